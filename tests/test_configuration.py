"""The configuration that identifies a run, as plain values."""

import importlib.util
import linecache
import sys
from pathlib import Path

from promptlimit._configuration import description


def test_a_class_that_was_edited_has_another_name(tmp_path: Path) -> None:
    names = []
    for number in (1, 2):
        path = tmp_path / "edited.py"
        path.write_text(f"class Law:\n    size = {number}\n")
        linecache.checkcache()
        spec = importlib.util.spec_from_file_location("edited", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["edited"] = module
        spec.loader.exec_module(module)
        names.append(description(module.Law))
    del sys.modules["edited"]
    assert names[0] != names[1]
