"""Where a result comes from, as lines of a page."""

from promptlimit.reporting.page._html import Html, element, joined
from promptlimit.reporting.page._numbers import duration
from promptlimit.reporting.page._stored import Origin, parts


def origin_lines(origin: Origin) -> Html:
    """Return the command that regenerates a result, its configuration, its time and its hash."""
    facts = [f"{name} {value}" for name, value in parts(origin.setting)]
    if origin.seconds is not None:
        facts.append(f"took {duration(origin.seconds)}")
    if origin.digest:
        facts.append(f"hash {origin.digest}")
    lines = [element("code", origin.command, class_="command")] if origin.command else []
    lines += [element("span", fact) for fact in facts]
    return element("p", joined(*lines), class_="origin") if lines else Html()
