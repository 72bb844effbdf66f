"""A small folder of results, as `promptlimit reproduce` would leave it."""

import json
from pathlib import Path
from typing import Any

from promptlimit.results import Check, ClaimResult

SETTING = {"seed": 3, "quick": True, "protocol": "exact"}


def claim(number: int = 4, **changes: Any) -> dict[str, Any]:
    """Return a claim as its file holds it, with some keys changed."""
    result = ClaimResult(
        number=number,
        name=f"claim-of-number-{number}",
        statement="The gap falls like L^-1 for τ² < 1/2 & more slowly beyond.",
        reference="Proposition 3.1 and Figure 1",
        expected="holds",
        checks=(
            Check("slope of the gap", -0.98, "<=", -0.9, error=0.012),
            Check("a head that is not small", 3.2e-7, ">=", 1e-9, role="control"),
        ),
    )
    origin = {"setting": SETTING, "seconds": 12.4, "hash": "0123abcd", "command": "promptlimit x"}
    return {**result.as_json(), **origin, "note": "A remark.", **changes}


def figure_words(name: str, **changes: Any) -> dict[str, Any]:
    """Return the words of a figure as its file holds them, with some keys changed."""
    words = {
        "name": name,
        "title": "Both gaps against the length",
        "caption": "Lines are exact; points are simulated.",
        "reference": "Figure 1",
        "section": "paper",
    }
    origin = {"setting": SETTING, "seconds": 2.5, "hash": "ef", "command": "promptlimit y"}
    return {**words, **origin, **changes}


def plot() -> bytes:
    """Return a drawing with two curves to choose from, as the figures of the library are drawn."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # most tests need no drawing

    from promptlimit.reporting import render  # noqa: PLC0415

    figure = Figure(figsize=(6.0, 4.0))
    axis = figure.subplots()
    for label, slope, colour in (("L = 10", 1.0, "#0072b2"), ("L = 1000 <b>", 2.0, "#222222")):
        (line,) = axis.plot([0, 1, 2], [0, slope, 3], "o-", color=colour, label=label)
        line.set_gid(f"series:{label}")
    axis.set_title("gap $L^{-1}$ & risk")
    axis.legend()
    return render(figure, "svg")[0]


def write_results(
    folder: Path, *, claims: list[dict[str, Any]], drawings: dict[str, bytes]
) -> Path:
    """Write claims and figures into a folder, with provenance."""
    (folder / "claims").mkdir(parents=True)
    (folder / "figures").mkdir()
    for content in claims:
        path = folder / "claims" / f"{content['name']}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
    for i, (name, drawing) in enumerate(sorted(drawings.items())):
        beyond: dict[str, Any] = {} if i == 0 else {"section": "beyond", "reference": ""}
        words = figure_words(name, **beyond)
        (folder / "figures" / f"{name}.json").write_text(json.dumps(words))
        (folder / "figures" / f"{name}.svg").write_bytes(drawing)
        (folder / "figures" / f"{name}.pdf").write_bytes(b"%PDF-1.4")
    provenance = {
        "versions": {"promptlimit": "0.1.0", "jax": "0.10.0"},
        "python": "3.11.2",
        "device": "cpu",
        "setting": SETTING,
        "started": "2026-11-15T08:00:00Z",
        "seconds": 301.2,
        "hash": "feed",
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    return folder
