"""What commands print as JSON satisfies the schemas derived from their result classes."""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from json_schemas import problems
from promptlimit.claims import ClaimResult, at_most, control_at_most
from promptlimit.cli._app import app
from promptlimit.cli._report import WrittenReport
from promptlimit.cli._schema import output_types
from promptlimit.results import Limits, json_schema, plain
from promptlimit.studies import ClaimsAtSeeds, DecidedClaims, SeedVerdicts

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"
LAWS = {"proposal_cov": [[2.25]], "target_cov": [[1.0]]}
COMMANDS = {
    "limit": ["--example", "shifted"],
    "gap": ["--dim", "1", "--lengths", "10,100", "--samples", "64"],
    "length": ["--dim", "1", "--tolerance", "0.1"],
    "flow": ["--dim", "1", "--lengths", "10", "--time", "1"],
    "train": ["--dim", "1", "--lengths", "5", "--steps", "20", "--kernels", "linear"],
    "train --dry-run": ["--dim", "1", "--lengths", "5", "--steps", "20", "--kernels", "linear"],
    "stream": ["--dim", "1", "--length", "100", "--linear", "--covariance"],
    "denoise": ["--lengths", "10"],
    "stack": ["--example", "linear", "--lengths", "10", "--samples", "0"],
    "temperature": [],
    "importance": ["laws.json", "--lengths", "10"],
    "doctor": [],
    "explore": [],
}


def require_valid(command: str, found: Any) -> None:
    schema = json_schema(output_types()[command])
    assert problems(found, schema, schema) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_json_of_a_command_satisfies_its_schema(
    command: str, here: Here, tmp_path: Path
) -> None:
    (tmp_path / "laws.json").write_text(json.dumps(LAWS))
    done = here(*command.split(), *COMMANDS[command], "--json")
    assert done.returncode == 0, done.stderr
    require_valid(command.split(maxsplit=1)[0], json.loads(done.stdout))


def test_claims_satisfy_the_schemas_of_reproduce_and_report() -> None:
    checks = at_most("one", 1.0, math.inf), control_at_most("two", math.nan, 2.0)
    claim = ClaimResult(1, "one", "One is finite.", "Here", "holds", checks)
    require_valid("reproduce", json.loads(json.dumps(plain(DecidedClaims(0, [claim])))))
    verdicts = SeedVerdicts("own", "one", "holds", {"0": "holds"}, {})
    require_valid("reproduce", asdict(ClaimsAtSeeds([0], [verdicts])))
    require_valid("report", asdict(WrittenReport("report/index.html", 1, 1, 1, 0, ["a reason"])))


def test_every_command_has_a_schema(here: Here) -> None:
    commands = {command.name for command in app.registered_commands} - {"schema"}
    assert set(output_types()) == commands
    assert commands - {name.split()[0] for name in COMMANDS} == {"heads", "reproduce", "report"}
    schemas = json.loads(here("schema").stdout)
    assert set(schemas) == commands
    assert json.loads(here("schema", "gap").stdout) == schemas["gap"]
    done = here("schema", "gapp")
    assert done.returncode == 2
    assert "COMMAND must be one of limit, gap," in done.stderr


def test_the_page_of_schemas_is_up_to_date(here: Here) -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = here("schema", "--markdown").stdout
    assert text.endswith(tables), "promptlimit schema --markdown prints the tables of the page"


def test_a_schema_refuses_what_a_result_does_not_declare() -> None:
    schema = json_schema(Limits)
    found = Limits(np.ones(2), np.ones(2), "limit", 0.0).to_dict()
    assert problems(found, schema, schema) == []
    for wrong in ({"kind": "sure"}, {"more": 1}, {"error": "0"}, {"softmax": {}}):
        assert problems({**found, **wrong}, schema, schema) != []
    del found["linear"]
    assert problems(found, schema, schema) == ["$: no linear"]
