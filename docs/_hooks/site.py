"""What the site is made of besides the pages in this folder, put in place as mkdocs builds.

Reference pages from the docstrings, tutorials with the output of their code, formulas drawn,
the map of the packages, the explorer. Whatever cannot be made fails the build.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import architecture
import formulas
import node
import reference
import tutorials
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_SHIM = "assets/iframe-worker.js"
"""What lets the search run from disk; the theme would ask a server for it."""

_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the sections of the navigation that are made here."""
    made = {
        "Tutorials": tutorials.navigation(Path(config.docs_dir)),
        "Reference": reference.navigation(),
        "Project": [name.lower() for name in _PROJECT],
    }
    config.nav = [
        {title: made.get(title, pages)} for entry in config.nav or [] for title, pages in entry.items()
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets that are made here."""
    from promptlimit.reporting import explorer_page

    texts = reference.pages() | {
        name.lower(): _within(name, (_ROOT / name).read_text("utf-8")) for name in _PROJECT
    }
    for address, text in texts.items():
        files.append(File.generated(config, address, content=text))
    files.append(File.generated(config, "explorer.html", content=explorer_page()))
    for address, path in (*formulas.assets(), (_SHIM, node.package("iframe-worker") / "shim/index.js")):
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def _within(name: str, text: str) -> str:
    """Return a page of the project with its links as they are inside this folder."""
    return text.replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Run tutorials, draw the map where it is asked for, name the language of doctests."""
    if page.file.src_uri.startswith("tutorials/"):
        markdown = tutorials.run(markdown, page.file.src_uri)
    if "<!-- architecture -->" in markdown:
        markdown = markdown.replace("<!-- architecture -->", architecture.drawing(_ROOT))
    return markdown.replace("```python\n>>>", "```pycon\n>>>")


def on_page_content(html: str, page: Any, **_: object) -> str:
    """Draw the formulas of a page."""
    return formulas.drawn(html, page.file.src_uri)


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Take the one script that the theme has elsewhere from here."""
    to_root = "../" * page.url.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", to_root + _SHIM)


def on_post_build(**_: object) -> None:
    """Let the process that draws formulas go."""
    formulas.close()
