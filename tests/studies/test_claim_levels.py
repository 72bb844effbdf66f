"""Every check says where its tolerance comes from.

That false alarms of a run add up to little is in test_reproduction.py.
"""

import ast
import importlib
from pathlib import Path

import pytest

from promptlimit.studies import Study, studies

CHECKS = ("Check", "at_least", "at_most")


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_every_check_is_written_with_a_basis(study: Study) -> None:
    without, found = [], 0
    for claim in study.claims:
        file = importlib.import_module(claim.decide.__module__).__file__
        assert file is not None
        for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CHECKS:
                found += 1
                if "basis" not in {keyword.arg for keyword in node.keywords}:
                    without.append((claim.name, node.lineno))
    assert not without
    assert found > len(study.claims)
