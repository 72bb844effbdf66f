"""Run the code of tutorials and question pages, and show what it prints and draws.

The blocks of a page share one process in an empty folder. A block with a title is written there as
a file, and a console block is run line by line. Blocks with prompts, `>>>`, show their output
already and run as tests, so that only their figures are added. A block that fails, fails the
build. Outputs are stored and reused until the code of the page or the package changes. Each
tutorial is also written as an executed notebook.
"""

import ast
import base64
import contextlib
import doctest
import hashlib
import io
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from promptlimit._cores import usable_cores

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r'(?ms)^```(?P<language>python|console)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```\n'
)
_LINK = re.compile(r"\]\((?P<page>[\w./-]+)\.md(?P<anchor>#[\w-]+)?\)")
_LIMIT = 600
"""Seconds one page may take; each should take less than 60 on one core."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Block = tuple[str, str, str]
"""The language of a block, its file name or "", and its text."""

Output = dict[str, Any]
"""What a block prints, "text", and draws, "figures": each as "svg", and as "png" in base64."""


def add_outputs(folder: Path, store: Path) -> None:
    """Add outputs to the tutorials and question pages in a folder; write the notebooks."""
    pages = sorted((*folder.glob("tutorials/*.md"), *folder.glob("questions/*.md")))
    texts = {str(page.relative_to(folder)): page.read_text("utf-8") for page in pages}
    outputs = outputs_of({name: blocks_of(text) for name, text in texts.items()}, store)
    (folder / "notebooks").mkdir()
    for name, text in texts.items():
        shown = page_with_outputs(text, outputs[name])
        if name.startswith("tutorials/"):
            address = f"notebooks/{Path(name).stem}.ipynb"
            (folder / address).write_text(notebook(text, outputs[name]), "utf-8")
            title, _, rest = shown.partition("\n")
            link = f"[Download this tutorial as a notebook](../{address}){{ download }}"
            shown = f"{title}\n\n{link}\n{rest}"
        wide = f"---\nhide: [toc]\n---\n\n{shown}"  # lines of code need the space
        (folder / name).write_text(wide, "utf-8")


def blocks_of(markdown: str) -> list[Block]:
    """Return the blocks of a page that are run, in their order."""
    return [
        (match["language"], match["title"] or "", match["code"])
        for match in _BLOCK.finditer(markdown)
    ]


def page_with_outputs(markdown: str, outputs: list[Output]) -> str:
    """Return a page with the output of each block below it."""
    following = iter(outputs)
    return _BLOCK.sub(lambda match: match[0] + _markdown(next(following)), markdown)


def notebook(markdown: str, outputs: list[Output]) -> str:
    """Return a tutorial as a notebook in Jupyter's format 4.5, with the output of its code."""
    cells: list[dict[str, Any]] = []
    end = 0
    for count, match in enumerate(_BLOCK.finditer(markdown), start=1):
        cells += _text_cells(markdown[end : match.start()])
        code = {"source": _cell_source(match), "outputs": _cell_outputs(outputs[count - 1])}
        cells.append({"cell_type": "code", "execution_count": count, **code})
        end = match.end()
    cells += _text_cells(markdown[end:])
    named = [{"id": f"cell-{i}", "metadata": {}, **cell} for i, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": named}
    return json.dumps(whole, indent=1)


def _markdown(output: Output) -> str:
    """Return the output of a block as it is shown on the page."""
    text = f"\n```text\n{output['text']}\n```\n" if output["text"] else ""
    drawings = [figure["svg"][figure["svg"].index("<svg") :] for figure in output["figures"]]
    return text + "".join(f'\n<div class="drawing">{svg}</div>\n' for svg in drawings)


def _text_cells(text: str) -> list[dict[str, Any]]:
    """Return one cell, or none for blank text; links lead to the pages of the site."""
    linked = _LINK.sub(r"](../tutorials/\g<page>.html\g<anchor>)", text.strip())
    return [{"cell_type": "markdown", "source": linked}] if linked else []


def _cell_source(match: re.Match[str]) -> str:
    """Return the code of a block as IPython runs it: files and commands have their own syntax."""
    code = match["code"].rstrip("\n")
    if match["title"]:
        return f"%%writefile {match['title']}\n{code}"
    return re.sub(r"(?m)^\$ ", "!", code) if match["language"] == "console" else code


def _cell_outputs(output: Output) -> list[dict[str, Any]]:
    """Return text and figures; PNG because Jupyter does not show SVG of downloaded notebooks."""
    text = {"output_type": "stream", "name": "stdout", "text": output["text"] + "\n"}
    figures = [
        {"output_type": "display_data", "data": {"image/png": figure["png"]}, "metadata": {}}
        for figure in output["figures"]
    ]
    return [text, *figures] if output["text"] else figures


# ---------------------------------------------------------------- running the code


def outputs_of(pages: Mapping[str, list[Block]], store: Path) -> dict[str, list[Output]]:
    """Return the outputs of the blocks of each page; run those that the store does not have."""
    store.mkdir(parents=True, exist_ok=True)
    package = _hash_of_package()
    files = {
        name: store / f"{hashlib.sha256((package + json.dumps(blocks)).encode()).hexdigest()}.json"
        for name, blocks in pages.items()
    }
    missing = [name for name, file in files.items() if not file.exists()]
    if missing:
        _run_pages({name: pages[name] for name in missing}, files)
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items()}


def _run_pages(pages: Mapping[str, list[Block]], files: Mapping[str, Path]) -> None:
    """Run pages, one on each core, and store the outputs of a page as soon as it ends."""
    spawn = multiprocessing.get_context("spawn")  # a page starts without the imports of another
    failed = ""
    with (
        _settings_of_pages(),
        ProcessPoolExecutor(usable_cores(), mp_context=spawn, max_tasks_per_child=1) as pool,
    ):
        # Pages with much code take longest. They come first, so that the cores end together.
        longest = sorted(pages, key=lambda name: -sum(len(code) for *_, code in pages[name]))
        running = {pool.submit(run, pages[name]): name for name in longest}
        for future in as_completed(running):
            name = running[future]
            try:
                text = json.dumps(future.result())
            except CancelledError:
                continue
            except Exception as problem:
                what = f"{type(problem).__name__}: {problem}"
                failed = failed or f"error: {name} fails: {what}\n{problem.__cause__ or ''}"
                for waiting in running:
                    waiting.cancel()
                continue
            unfinished = files[name].with_suffix(f".{os.getpid()}")
            unfinished.write_text(text, "utf-8")
            unfinished.replace(files[name])
    if failed:
        raise SystemExit(failed)


@contextlib.contextmanager
def _settings_of_pages() -> Generator[None]:
    """Let the processes of pages use one thread each for linear algebra: there is one per core."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _hash_of_package() -> str:
    digest = hashlib.sha256()
    for path in sorted((_ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(blocks: list[Block]) -> list[Output]:
    """Run the blocks of one page in an empty folder, in this process, which then ends."""
    import matplotlib as mpl  # noqa: PLC0415  # with the settings of a page alone
    from cycler import cycler  # noqa: PLC0415

    from promptlimit import reporting  # noqa: PLC0415

    mpl.use("svg")
    colours = [reporting.CONTRAST, reporting.LIMIT, reporting.THIRD, reporting.FOURTH]
    settings: dict[Any, Any] = {
        "figure.figsize": (7.0, 3.9),
        "axes.prop_cycle": cycler(color=colours),
        "svg.fonttype": "path",  # roots and sums need the fonts of Matplotlib
    }
    names: dict[str, Any] = {"__name__": "__main__"}
    signal.alarm(_LIMIT)  # a page that hangs breaks the pool, which fails the build
    with tempfile.TemporaryDirectory() as folder, reporting.theme(), mpl.rc_context(settings):
        os.chdir(folder)
        sys.path.insert(0, "")  # as in a console: modules in the working directory
        return [_output(language, title, code, names) for language, title, code in blocks]


def _output(language: str, title: str, code: str, names: dict[str, Any]) -> Output:
    """Run a block; return the text that it prints and its figures."""
    if title:
        Path(title).parent.mkdir(parents=True, exist_ok=True)
        Path(title).write_text(code, "utf-8")
        return {"text": "", "figures": []}
    if language == "console":
        lines = [_printed_by_command(line.removeprefix("$ ")) for line in code.splitlines()]
        return {"text": "".join(lines).rstrip(), "figures": []}
    shows_output = code.startswith(">>>")
    if shows_output:
        code = "".join(example.source for example in doctest.DocTestParser().get_examples(code))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _run(code, names)
    return {
        "text": "" if shows_output else printed.getvalue().rstrip(),
        "figures": _drawings(value),
    }


def _run(code: str, names: dict[str, Any]) -> object:
    """Run Python; return the value of the last line if it is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<page>", "exec"), names)  # noqa: S102  # our own pages
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<page>", "eval"), names)  # noqa: S307


def _printed_by_command(command: str) -> str:
    """Return the output of a command; commands of this environment take precedence."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    name, *arguments = shlex.split(command)
    program = shutil.which(name, path=path)
    if program is None:
        raise RuntimeError(f"{command!r} needs the command {name!r}, which is not installed")
    found = [program, *arguments]
    process = subprocess.run(found, capture_output=True, encoding="utf-8", check=False)
    if process.returncode:
        raise RuntimeError(f"{command!r} ends with {process.returncode}: {process.stderr}")
    return process.stdout


def _drawings(value: object) -> list[dict[str, str]]:
    """Return all open figures, and the value if it is a figure, as SVG and PNG; close them."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figures = [plt.figure(number) for number in plt.get_fignums()]
    if isinstance(value, plt.Figure) and value not in figures:
        figures.append(value)
    drawings = []
    for figure in figures:
        svg, png = io.BytesIO(), io.BytesIO()
        metadata = {"Date": None}
        figure.savefig(svg, bbox_inches="tight", format="svg", transparent=True, metadata=metadata)
        figure.savefig(png, bbox_inches="tight", format="png", dpi=100)
        encoded = base64.b64encode(png.getvalue()).decode()
        drawings.append({"svg": svg.getvalue().decode(), "png": encoded})
    plt.close("all")
    return drawings
