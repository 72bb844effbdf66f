"""Run the blocks of one tutorial in this process; write their output and figures.

A block is [language, title, code]: Python that is run, a file that is written where it has a title,
or commands for the console.
"""

import ast
import base64
import contextlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.use("svg")
import matplotlib.pyplot as plt

mpl.rcParams |= {"svg.hashsalt": "promptlimit", "figure.figsize": (7.0, 3.9)}


def _output(language: str, title: str, code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block; return the text that it prints and its figures, as SVG and as PNG in base64."""
    if title:
        Path(title).parent.mkdir(parents=True, exist_ok=True)
        Path(title).write_text(code, "utf-8")
        return {"text": "", "figures": []}
    printed = io.StringIO()
    if language == "console":
        for line in code.splitlines():
            printed.write(_printed_by_command(line.removeprefix("$ ")))
        figures = []
    else:
        with contextlib.redirect_stdout(printed):
            value = _run(code, names)
        figures = [value] if isinstance(value, Figure) else []
    return {"text": printed.getvalue().rstrip(), "figures": _drawings(figures)}


def _run(code: str, names: dict[str, Any]) -> object:
    """Run Python; return the value of the last line if it is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<tutorial>", "exec"), names)  # noqa: S102  # our own pages
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<tutorial>", "eval"), names)  # noqa: S307


def _printed_by_command(command: str) -> str:
    """Return the output of a command; commands of this environment take precedence."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    name, *arguments = shlex.split(command)
    process = subprocess.run(
        [shutil.which(name, path=path) or name, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{command!r} ends with {process.returncode}: {process.stderr}")
    return process.stdout


def _drawings(figures: list[Figure]) -> list[dict[str, str]]:
    """Return the given and all open figures as SVG and PNG; close them."""
    opened = [plt.figure(number) for number in plt.get_fignums()]
    drawings = [
        {
            "svg": _saved(figure, "svg", metadata={"Date": None}).decode(),
            "png": base64.b64encode(_saved(figure, "png", dpi=100)).decode(),
        }
        for figure in dict.fromkeys((*opened, *figures))
    ]
    plt.close("all")
    return drawings


def _saved(figure: Figure, suffix: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=suffix, bbox_inches="tight", **options)
    return file.getvalue()


def main() -> None:
    """Read blocks from standard input and write their outputs to the file in the first argument."""
    names: dict[str, Any] = {"__name__": "__main__"}
    sys.path.insert(0, "")  # as in a console: modules in the working directory
    blocks: list[tuple[str, str, str]] = json.load(sys.stdin)
    outputs = [_output(language, title, code, names) for language, title, code in blocks]
    Path(sys.argv[1]).write_text(json.dumps(outputs), "utf-8")


if __name__ == "__main__":
    main()
