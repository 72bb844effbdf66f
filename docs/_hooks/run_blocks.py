"""Run the blocks of one tutorial in this process; write what each printed and drew."""

import contextlib
import io
import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  # after the choice of a backend

mpl.rcParams |= {"svg.hashsalt": "promptlimit", "figure.figsize": (7.0, 3.9)}


def _figures() -> str:
    """Return the open figures as SVG, and close them."""
    drawings = []
    for number in plt.get_fignums():
        text = io.StringIO()
        plt.figure(number).savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        drawings.append(text.getvalue().partition("<svg")[1:])
    plt.close("all")
    return "".join(f'\n<div class="drawing"><{"".join(parts)[1:]}</div>\n' for parts in drawings)


def main() -> None:
    """Read blocks from standard input, write their outputs to the file named."""
    outputs, names = [], {"__name__": "__main__"}
    for block in json.load(sys.stdin):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "<tutorial>", "exec"), names)  # noqa: S102  # our own pages
        text = printed.getvalue()
        outputs.append((f"\n```text\n{text.rstrip()}\n```\n" if text.strip() else "") + _figures())
    Path(sys.argv[1]).write_text(json.dumps(outputs), "utf-8")


if __name__ == "__main__":
    main()
