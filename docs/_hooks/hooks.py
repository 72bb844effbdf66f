"""Parts of the site that mkdocs does not build itself.

These are reference pages from docstrings, tutorials with the output of their code and their
notebooks, rendered formulas, the map of the packages and the explorer. An error in any of them
fails the build.
"""

import re
from importlib import resources
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import architecture
import formulas
import node
import reference
import tutorials
from promptlimit.reporting import explorer_page

_ROOT = Path(__file__).parents[2]
_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md")
_MAP = "<!-- architecture -->"
_REMOTE_SHIM = "https://unpkg.com/iframe-worker/shim"
_COLOURS = "assets/report.css"
_SHIM = "assets/iframe-worker.js"
"""A script that lets the search run from disk; the theme would fetch it from a server."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the sections of the navigation whose pages are generated."""
    sections = {
        "Tutorials": tutorials.navigation(Path(config.docs_dir)),
        "Reference": reference.navigation(Path(config.docs_dir)),
        "Project": [name.lower() for name in _PROJECT],
    }
    config.nav = [
        {title: sections.get(title, pages)}
        for entry in config.nav or []
        for title, pages in entry.items()
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets that are not in the docs folder."""
    texts = reference.pages(Path(config.docs_dir)) | {
        name.lower(): _text_inside_docs((_ROOT / name).read_text("utf-8")) for name in _PROJECT
    }
    for page in tutorials.navigation(Path(config.docs_dir)):
        text = (Path(config.docs_dir) / page).read_text("utf-8")
        texts[tutorials.notebook_address(page)] = tutorials.notebook(text, page)
    for address, text in texts.items():
        files.append(File.generated(config, address, content=text))
    files.append(File.generated(config, "explorer.html", content=explorer_page()))
    files.append(File.generated(config, _COLOURS, content=_colours_of_the_report()))
    shim = node.package("iframe-worker") / "shim" / "index.js"
    for address, path in {**formulas.assets(), _SHIM: shim}.items():
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Run tutorials, insert the map of the packages, set the language of doctests."""
    address = page.file.src_uri
    if address.startswith("tutorials/"):
        markdown = tutorials.page_with_output(markdown, address)
        page.meta["hide"] = ["toc"]  # wide code needs the space
    if _MAP in markdown:
        markdown = markdown.replace(_MAP, architecture.drawing(_ROOT))
    return markdown.replace("```python\n>>>", "```pycon\n>>>")


def on_env(env: Any, files: Files, **_: object) -> Any:
    """Render the formulas of all pages in one call; the search index contains them as text."""
    pages = [file.page for file in files.documentation_pages() if file.page is not None]
    contents = formulas.mark({page.file.src_uri: page.content or "" for page in pages})
    for page in pages:
        page.content = contents[page.file.src_uri]
    return env


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Insert the rendered formulas; load the one remote script of the theme from the site."""
    output = output.replace(_REMOTE_SHIM, "../" * page.url.count("/") + _SHIM)
    return formulas.draw(output)


def on_post_template(output_content: str, **_: object) -> str:
    """Replace the remote script on the page for missing addresses, which uses absolute paths."""
    return output_content.replace(_REMOTE_SHIM, "/" + _SHIM)


def _colours_of_the_report() -> str:
    """Return the colours and fonts of the report as custom properties, which site.css uses."""
    style = (resources.files("promptlimit.reporting.page") / "page.css").read_text("utf-8")
    properties = re.findall(r"--[\w-]+:[^;]*;", style[: style.index("}")])
    return ":root { " + " ".join(properties) + " }\n"


def _text_inside_docs(text: str) -> str:
    """Return a page of the root folder with its links relative to the docs folder."""
    return text.replace("](docs/", "](")
