"""Run the blocks of one tutorial in this process; write what each printed and drew."""

import contextlib
import io
import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

mpl.rcParams |= {"svg.hashsalt": "promptlimit", "figure.figsize": (7.0, 3.9)}


def _drawings() -> str:
    """Return the open figures as SVG, and close them."""
    drawings = []
    for number in plt.get_fignums():
        file = io.StringIO()
        plt.figure(number).savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
        text = file.getvalue()
        drawings.append(f'\n<div class="drawing">{text[text.index("<svg") :]}</div>\n')
    plt.close("all")
    return "".join(drawings)


def main() -> None:
    """Read blocks from standard input, write their outputs to the file named."""
    outputs, names = [], {"__name__": "__main__"}
    for block in json.load(sys.stdin):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "<tutorial>", "exec"), names)  # noqa: S102  # our own pages
        text = printed.getvalue().rstrip()
        outputs.append((f"\n```text\n{text}\n```\n" if text else "") + _drawings())
    Path(sys.argv[1]).write_text(json.dumps(outputs), "utf-8")


if __name__ == "__main__":
    main()
