"""Every check says where its tolerance comes from.

That false alarms of a run add up to little is in test_reproduction.py.
"""

import ast
import importlib
from pathlib import Path

import pytest

from promptlimit.studies import Paper, papers


@pytest.mark.parametrize("paper", papers(), ids=lambda paper: paper.name)
def test_every_check_is_written_with_a_basis(paper: Paper) -> None:
    without, found = [], 0
    for claim in paper.claims:
        file = importlib.import_module(claim.decide.__module__).__file__
        assert file is not None
        for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check":
                found += 1
                if "basis" not in {keyword.arg for keyword in node.keywords}:
                    without.append((claim.name, node.lineno))
    assert not without
    assert found > len(paper.claims)
