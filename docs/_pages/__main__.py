"""Build the site: write every page as plain Markdown into `build/docs`, then run mkdocs on them.

    python docs/_pages            # build/docs and site/
    python docs/_pages --pages    # build/docs alone

Another builder can replace mkdocs: `build/mkdocs.yml` has the navigation, and the pages need
nothing but tables, attribute lists and formulas between dollar signs. An error in any part fails
the build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import yaml

import architecture
import examples
import formulas
import reference
from promptlimit.reporting import explorer_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md")
_MAP = "<!-- architecture -->"


def write_pages(folder: Path) -> None:
    """Write the pages and their assets into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("_*"))
    for name in _PROJECT:  # links in the root folder start with docs/
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        text = text.replace(_MAP, architecture.drawing(ROOT))
        (folder / name.lower()).write_text(text, "utf-8")
    for address, text in reference.pages(DOCS).items():
        (folder / address).parent.mkdir(parents=True, exist_ok=True)
        (folder / address).write_text(text, "utf-8")
    examples.add_outputs(folder, ROOT / "build" / "outputs")
    for page in folder.rglob("*.md"):
        text = page.read_text("utf-8")
        page.write_text(text.replace("```python\n>>>", "```pycon\n>>>"), "utf-8")
    report = resources.files("promptlimit.reporting.page")
    (folder / "explorer.html").write_text(explorer_page(), "utf-8")
    (folder / "assets" / "logo.svg").write_text((report / "logo.svg").read_text("utf-8"), "utf-8")
    colours = _colours((report / "page.css").read_text("utf-8"))
    (folder / "assets" / "report.css").write_text(colours, "utf-8")
    formulas.copy_assets(folder / "assets")


def write_configuration(path: Path) -> None:
    """Write mkdocs.yml with the navigation of the sections whose pages are generated."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    tutorials = [f"tutorials/{page.name}" for page in sorted((DOCS / "tutorials").glob("*.md"))]
    sections = {
        "Tutorials": tutorials,
        "Reference": reference.navigation(DOCS),
        "Project": [name.lower() for name in _PROJECT],
    }
    settings["nav"] = [
        {title: pages or sections[title]}
        for entry in settings["nav"]
        for title, pages in entry.items()
    ]
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")


def _colours(style: str) -> str:
    """Return the colours and fonts of the report as custom properties, which site.css uses."""
    properties = re.findall(r"--[\w-]+:[^;]*;", style[: style.index("}")])
    return ":root { " + " ".join(properties) + " }\n"


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="the folder of the site")
    parser.add_argument("--pages", action="store_true", help="write the Markdown alone")
    options = parser.parse_args()
    configuration = ROOT / "build" / "mkdocs.yml"
    write_pages(ROOT / "build" / "docs")
    write_configuration(configuration)
    if options.pages:
        return
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    files = ["--config-file", str(configuration), "--site-dir", str(options.site.absolute())]
    # The theme warns of a next version of MkDocs; pyproject.toml stays below it.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if status := subprocess.run([*command, *files], env=environment, check=False).returncode:
        sys.exit(status)
    formulas.finish(options.site)


if __name__ == "__main__":
    main()
