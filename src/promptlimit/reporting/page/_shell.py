"""The shell of a page: head, style, script, headline, contents, sections, foot.

Whatever fills it, the result is one file that asks nothing of a network and runs no script but its
own: the policy in its head names the only style sheet and the only script by their hashes.
"""

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources

from promptlimit.reporting.page._html import Html, element, joined, opening


@dataclass(frozen=True)
class Entry:
    """A line of the contents: where it leads, what it says, a sign before it."""

    anchor: str
    label: str
    mark: str = ""
    mark_class: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, and what the contents list below it."""

    anchor: str
    title: str
    body: Html
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page to be written.

    Attributes:
        title: the name in the browser's bar and the heading.
        eyebrow: a line above the heading.
        lead: what the reader should know first.
        sections: the parts, in order.
        foot: the last lines.
        style: rules this page needs besides those of every page.
    """

    title: str
    eyebrow: str
    lead: Html
    sections: tuple[Section, ...]
    foot: Html
    style: str = ""


def page_text(page: Page) -> str:
    """Return the page as the text of an HTML file; the same page gives the same text."""
    style = Html(f"{_part('page.css')}\n{page.style}")
    script = Html(_part("page.js"))
    head = joined(
        opening("meta", charset="utf-8"),
        opening("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        opening("meta", name="viewport", content="width=device-width, initial-scale=1"),
        opening("meta", name="color-scheme", content="light dark"),
        opening("meta", name="referrer", content="no-referrer"),
        opening("link", rel="icon", href="data:,"),
        element("title", page.title),
        element("style", style),
    )
    body = joined(
        element("a", "Skip to the content", class_="skip", href="#content"),
        _bar(page),
        element("div", _contents(page), _main(page), class_="columns"),
        element("script", script),
    )
    language = element("html", element("head", head), element("body", body), lang="en")
    return f"<!doctype html>\n{language}\n"


def _part(name: str) -> str:
    return (resources.files("promptlimit.reporting.page") / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _bar(page: Page) -> Html:
    links = (element("a", section.title, href=f"#{section.anchor}") for section in page.sections)
    return element(
        "header",
        element("a", page.eyebrow, class_="brand", href="#content"),
        element("nav", *links, aria_label="Sections"),
        element("button", "Dark", type="button", class_="theme", hidden=True),
        class_="bar",
    )


def _contents(page: Page) -> Html:
    items = (
        element("li", element("a", section.title, href=f"#{section.anchor}"), _entries(section))
        for section in page.sections
    )
    return element(
        "nav",
        element("details", element("summary", "Contents"), element("ol", *items), open=True),
        class_="contents",
        aria_label="Contents",
    )


def _entries(section: Section) -> Html:
    if not section.entries:
        return Html()
    lines = (
        element(
            "li",
            element(
                "a",
                element("span", entry.mark, class_=f"mark {entry.mark_class}".strip()),
                entry.label,
                href=f"#{entry.anchor}",
            ),
        )
        for entry in section.entries
    )
    return element("ol", *lines)


def _main(page: Page) -> Html:
    sections = (
        element("section", element("h2", section.title), section.body, id=section.anchor)
        for section in page.sections
    )
    return element(
        "main",
        element("div", element("h1", page.title), page.lead, class_="lead"),
        *sections,
        element("footer", page.foot),
        id="content",
    )
