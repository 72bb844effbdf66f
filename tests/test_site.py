"""The site: built strictly, once, and opened in a real browser from disk."""

import ast
import base64
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="the site is not built: pip install --group docs")
pytest.importorskip("griffe", reason="the site is not built: pip install --group docs")

import yaml
from mkdocs.commands.build import build
from mkdocs.config.base import load_config
from mkdocs.exceptions import Abort

import promptlimit as pl
from reporting.page.visits import NEEDS_BROWSER, Visit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))


@pytest.fixture(scope="module")
def hook() -> Iterator[Callable[[str], Any]]:
    """Return what imports a module of the site's build by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "_pages"))
        yield importlib.import_module


@pytest.fixture(scope="module")
def katex(hook: Callable[[str], Any]) -> None:
    """Skip the test if the formula renderer is not installed and cannot be."""
    try:
        hook("formulas").package("katex")
    except SystemExit as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="module")
def site(katex: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` does: every tutorial runs."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, str(DOCS / "_pages"), "--site", str(folder)], check=True)
    return folder


# ---------------------------------------------------------------- what is on it


def _pages_of_public_names(site: Path) -> Iterator[tuple[Path, str]]:
    packages = {path.parent.name for path in (ROOT / "src" / "promptlimit").glob("*/__init__.py")}
    names = set(dir(pl)) - packages - {"__version__"}
    assert len(names) > 50
    for name in names:
        pages = list((site / "reference").glob(f"*/{name}.html"))  # `load` has two
        assert pages, name
        for page in pages:
            yield page, page.read_text(encoding="utf-8")
    assert (site / "reference" / "heads" / "atlas.html").exists()
    assert (site / "reference" / "studies" / "Claim.html").exists()


def test_every_public_name_has_its_page_with_its_docstring(site: Path) -> None:
    for page, text in _pages_of_public_names(site):
        content = text.partition(f'<h1 id="{page.stem.lower()}">')[2]
        assert 'class="language-python highlight"' in content, page
        assert re.search(r"<p>\s*\S.{10,}", content), page


def test_reference_pages_are_plain_markdown_with_functions_first(
    hook: Callable[[str], Any],
) -> None:
    reference = hook("reference")
    pages = reference.pages(DOCS)
    page = pages["reference/concentration/required_length.md"]
    assert page.startswith("# required_length\n\n```python\nrequired_length(\n    attention: Abs")
    assert "\n) -> RequiredLength\n```\n\nReturn the smallest length" in page
    measure = "[`AbstractMeasure`](../measures/AbstractMeasure.md)"
    assert f"- **`queries`** ({measure} `| ArrayLike`): the law of the query" in page
    assert "- **`absolute`** (`bool`, default `False`): whether" in page
    assert "```pycon\n>>> import promptlimit as pl\n" in page
    law = pages["reference/measures/Gaussian.md"]
    assert (
        f"```python\nclass Gaussian(mean: ArrayLike, cov: ArrayLike)\n```\n\nBases: {measure}"
        in law
    )
    assert "## dim\n\n```python\ndim: int\n```\n" in law
    for section in reference.navigation(DOCS)[1:]:
        (names,) = ([Path(address).stem for address in listed[1:]] for listed in section.values())
        kinds = [name[0].isupper() for name in names]
        assert kinds == sorted(kinds), names


def test_every_tutorial_shows_what_it_prints_and_draws(site: Path) -> None:
    for tutorial in TUTORIALS:
        text = (site / "tutorials" / f"{tutorial.stem}.html").read_text(encoding="utf-8")
        assert 'class="language-text highlight"' in text, tutorial
        assert '<div class="drawing"><svg' in text, tutorial


def _notebook(site: Path, tutorial: Path) -> dict[str, Any]:
    return json.loads((site / "notebooks" / f"{tutorial.stem}.ipynb").read_text(encoding="utf-8"))


def _code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_every_tutorial_links_its_notebook_with_the_same_code_and_output(site: Path) -> None:
    for tutorial in TUTORIALS:
        page = (site / "tutorials" / f"{tutorial.stem}.html").read_text(encoding="utf-8")
        assert re.search(rf'<a [^>]*href="\.\./notebooks/{tutorial.stem}\.ipynb"', page), tutorial
        notebook = _notebook(site, tutorial)
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        code = _code_cells(notebook)
        blocks = re.findall(r"(?m)^```(?:python|console)\b", tutorial.read_text(encoding="utf-8"))
        assert len(code) == len(blocks) > 2
        outputs = [output for cell in code for output in cell["outputs"]]
        assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
        assert sum("data" in output for output in outputs) == page.count('<div class="drawing">')
        for output in outputs:
            if "data" in output:
                assert base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG")
        texts = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
        links = re.findall(r"\]\(([^)#]+)", "\n".join(texts))
        assert [link for link in links if not (site / "notebooks" / link).exists()] == []


def test_a_notebook_runs_from_top_to_bottom_and_prints_what_it_shows(
    site: Path, tmp_path: Path
) -> None:
    cells = _code_cells(_notebook(site, TUTORIALS[0]))
    shown = [output.get("text", "") for cell in cells for output in cell["outputs"]]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(cell["source"] for cell in cells), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, str(script)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert process.stdout == "".join(shown)


def test_every_question_page_ends_with_its_figure(site: Path) -> None:
    questions = sorted((DOCS / "questions").glob("*.md"))
    assert len(questions) == 5
    for question in questions:
        text = (site / "questions" / f"{question.stem}.html").read_text(encoding="utf-8")
        assert text.count('<div class="drawing"><svg') == 1, question
        last_heading = re.findall(r"<h2 [^>]*>(.*?)<", text)[-1]
        assert last_heading == "Your figure", question
        assert text.index('<div class="drawing">') > text.index('id="your-figure"'), question


def test_no_formula_is_left_undrawn_and_no_address_is_on_a_network(site: Path) -> None:
    _require_drawn_formulas(site)
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    start = next(entry["text"] for entry in index["docs"] if entry["location"] == "index.html")
    assert "a probability measure μ on Rd. Softmax" in start  # a formula is read as text, once


def _require_drawn_formulas(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert sum(text.count('class="katex"') for text in pages.values()) > 500
    for path, text in pages.items():
        assert "arithmatex" not in text, path
        assert "data-formula" not in text, path
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//', text), path
        assert not re.search(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="http', text), (
            path
        )


def test_the_map_shows_every_package_and_what_it_imports(site: Path) -> None:
    text = (site / "contributing.html").read_text(encoding="utf-8")
    boxes = re.findall(r'<div class="package"><b>(\w+)</b>.*?<small>imports (.*?)</small>', text)
    source = ROOT / "src" / "promptlimit"
    assert {name for name, _ in boxes} == {
        path.parent.name for path in source.glob("*/__init__.py")
    }
    for name, uses in boxes:
        trees = [ast.parse(path.read_text("utf-8")) for path in (source / name).rglob("*.py")]
        modules = {
            node.module.split(".")[1]
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and node.module is not None
            and node.module.startswith("promptlimit.")
        }
        imported = {module for module in modules if not module.startswith("_")} - {name}
        assert set(uses.split(", ")) - {"no other package"} == imported


def test_the_questions_of_the_readme_are_on_the_start_page_and_its_links_are_alive() -> None:
    def rows(path: Path) -> list[str]:
        text = re.sub(r"\[(`[^`]*`|[^]]*)\]\([^)]*\)", r"\1", path.read_text(encoding="utf-8"))
        (table,) = re.findall(r"(?m)^\| question .*(?:\n\|.*)+", text)
        return table.splitlines()

    assert set(rows(ROOT / "README.md")) <= set(rows(DOCS / "index.md"))
    links = re.findall(r"\[[^]\\]*\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("https:")]
    assert len(local) > 20
    assert [link for link in local if not (ROOT / link).exists()] == []


# ---------------------------------------------------------------- what fails the build


def test_a_public_name_without_a_docstring_fails(
    hook: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = hook("reference")
    assert "reference/concentration/required_length.md" in reference.pages(DOCS)
    function = reference._package()["concentration.required_length"].final_target
    monkeypatch.setattr(function, "docstring", None)
    sentence = "^error: the public name promptlimit.concentration.required_length has no docstring$"
    with pytest.raises(SystemExit, match=sentence):
        reference.pages(DOCS)


@pytest.mark.parametrize(
    ("link", "fails"),
    [
        ("other.md#here", False),
        ("missing.md", True),
        ("other.md#nowhere", True),
        ("missing.html", True),
        ("/other.md", True),
    ],
)
def test_a_dead_link_fails(link: str, fails: bool, tmp_path: Path) -> None:
    ours = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Start\n\n[A link]({link})\n", encoding="utf-8")
    (docs / "other.md").write_text("# Other\n\n## Here\n", encoding="utf-8")
    settings = {"site_name": "small", "plugins": [], "strict": True}
    (tmp_path / "mkdocs.yml").write_text(
        yaml.safe_dump({**settings, "validation": ours["validation"]}), encoding="utf-8"
    )
    config = load_config(str(tmp_path / "mkdocs.yml"))
    outcome = pytest.raises(Abort, match="with 1 warnings") if fails else contextlib.nullcontext()
    with outcome:
        build(config)


def test_a_wrong_formula_fails_and_names_its_page(katex: None, hook: Callable[[str], Any]) -> None:
    formulas = hook("formulas")
    sentence = r"^error: theory\.html: KaTeX parse error: .*'\\\\frac\{1\}'$"
    with pytest.raises(SystemExit, match=sentence):
        formulas.render({(r"\mu", False): "a.html", (r"\frac{1}", False): "theory.html"})


def test_formulas_are_drawn_on_pages_and_read_as_text_in_the_search_index(
    katex: None, hook: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(
        r'<p>a <span class="arithmatex">\(x&lt;\mu\)</span></p>'
        r'<div class="arithmatex">\[y\]</div><p>no formula</p>',
        encoding="utf-8",
    )
    (tmp_path / "search").mkdir()
    entry = {"title": r"\(x&lt;\mu\)", "text": r"a \[y\] and \(unknown\)"}
    index = tmp_path / "search" / "search_index.json"
    index.write_text(json.dumps({"docs": [entry]}), encoding="utf-8")
    hook("formulas").finish(tmp_path)
    drawn = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert drawn.startswith('<p>a <span class="katex">')
    assert '<div class="formula"><span class="katex-display">' in drawn
    (entry,) = json.loads(index.read_text(encoding="utf-8"))["docs"]
    assert entry == {"title": "x&lt;μ", "text": r"a y and \(unknown\)"}


DRAWS = "import matplotlib.pyplot as plt\n_ = plt.plot([number, 1])\n"
SESSION = re.sub("(?m)^", ">>> ", DRAWS.rstrip()) + "\n>>> print(number)\n4\n"


def test_pages_show_what_their_blocks_print_and_draw(
    hook: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = hook("examples")
    page = f"# A\n\n```python\nnumber = 4\nprint(number)\n```\n\nB\n\n```python\n{DRAWS}```\n"
    asked = f"# C\n\n```python\n>>> number = 4\n\n```\n\n```python\n{SESSION}\n```\n"
    for name, text in (("tutorials/a.md", page), ("questions/c.md", asked)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    examples.add_outputs(tmp_path, tmp_path / "store")
    shown = (tmp_path / "tutorials" / "a.md").read_text(encoding="utf-8")
    link = "[Download this tutorial as a notebook](../notebooks/a.ipynb){ download }"
    assert shown.startswith(f"---\nhide: [toc]\n---\n\n# A\n\n{link}\n")
    assert "print(number)\n```\n\n```text\n4\n```\n\nB\n" in shown
    drawing = r'\n```\n\n<div class="drawing"><svg [^`]*</svg>\s*</div>\n$'
    assert re.search(drawing, shown)
    question = (tmp_path / "questions" / "c.md").read_text(encoding="utf-8")
    assert re.search(drawing, question)
    assert "```text" not in question
    monkeypatch.setattr(examples, "run", lambda *_: pytest.fail("it was run again"))
    blocks = {"tutorials/a.md": examples.blocks_of(page)}
    outputs = examples.outputs_of(blocks, tmp_path / "store")["tutorials/a.md"]
    assert examples.page_with_outputs(page, outputs) in shown.replace(f"\n{link}\n", "")


def test_a_page_whose_code_fails_is_named(hook: Callable[[str], Any], tmp_path: Path) -> None:
    blocks = {"tutorials/a.md": [("python", "", "1 / 0\n")]}
    with pytest.raises(SystemExit, match=r"(?s)^error: tutorials/a\.md fails:.*ZeroDivisionError"):
        hook("examples").outputs_of(blocks, tmp_path)


def test_the_outputs_of_other_pages_are_kept_when_one_fails(
    hook: Callable[[str], Any], tmp_path: Path
) -> None:
    wrong = "import not_there\n"
    pages = {"a.md": [("python", "", wrong)], "b.md": [("python", "", "print(1)\n")]}
    with pytest.raises(SystemExit, match=r"^error: a\.md fails: ModuleNotFoundError: No module"):
        hook("examples").outputs_of(pages, tmp_path)
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()]
    assert stored == [[{"text": "1", "figures": []}]]


def test_a_missing_command_is_named(hook: Callable[[str], Any], tmp_path: Path) -> None:
    blocks = {"a.md": [("console", "", "$ not-a-command --help\n")]}
    with pytest.raises(SystemExit, match="needs the command 'not-a-command', which is not inst"):
        hook("examples").outputs_of(blocks, tmp_path)


def test_a_notebook_writes_files_runs_commands_and_links_to_the_site(
    hook: Callable[[str], Any], tmp_path: Path
) -> None:
    examples = hook("examples")
    page = (
        "# A\n\n[B](b.md), [C](../c.md#d)\n\n"
        '```python title="mine.py"\nnumber = 4\n```\n'
        "```python\nimport mine\nprint(mine.number)\n```\n"
        "E\n\n```console\n$ echo one\n$ echo two\n```\n"
    )
    outputs = examples.outputs_of({"a": examples.blocks_of(page)}, tmp_path)["a"]
    cells = json.loads(examples.notebook(page, outputs))["cells"]
    assert [cell["source"] for cell in cells] == [
        "# A\n\n[B](../tutorials/b.html), [C](../tutorials/../c.html#d)",
        "%%writefile mine.py\nnumber = 4",
        "import mine\nprint(mine.number)",
        "E",
        "!echo one\n!echo two",
    ]
    stream = {"output_type": "stream", "name": "stdout"}
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [
        [],
        [stream | {"text": "4\n"}],
        [stream | {"text": "one\ntwo\n"}],
    ]
    assert len({cell["id"] for cell in cells}) == len(cells)


# ---------------------------------------------------------------- in a browser


class TestInABrowser:
    pytestmark = NEEDS_BROWSER

    @pytest.mark.parametrize(
        ("address", "width", "scheme"),
        [
            ("index.html", 1280, "light"),
            ("index.html", 390, "dark"),
            ("theory.html", 390, "light"),
            ("reference/concentration/required_length.html", 1280, "dark"),
            (f"tutorials/{TUTORIALS[0].stem}.html", 390, "light"),
            ("questions/signal-propagation.html", 390, "dark"),
        ],
    )
    def test_pages_are_quiet_stay_at_home_and_fit(
        self, site: Path, visit: Visit, address: str, width: int, scheme: str
    ) -> None:
        with visit((site / address).as_uri(), width, scheme, home=site.as_uri()) as page:
            assert page.locator("h1").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") == width
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
            assert (brightness > 128) == (scheme == "light")

    def test_the_search_works_from_disk_and_the_explorer_is_linked(
        self, site: Path, visit: Visit
    ) -> None:
        with visit((site / "index.html").as_uri(), home=site.as_uri()) as page:
            page.locator("a.explorer").click()
            page.wait_for_url("**/explorer.html")
            page.go_back()
            page.locator("input.md-search__input").fill("required_length")
            result = page.locator(".md-search-result__link").first
            result.wait_for()
            assert "/reference/concentration/required_length.html" in result.get_attribute("href")
            result.click()
            page.wait_for_url("**/reference/concentration/required_length.html*")
            assert "required_length" in page.locator("h1").inner_text()
