"""A small folder of results of a study, as `promptlimit reproduce` would leave it."""

import functools
from pathlib import Path

import numpy as np

from promptlimit.claims import (
    Check,
    ClaimResult,
    Origin,
    ReportFolder,
    StoredClaim,
    StoredFigure,
    StoredStudy,
)

STUDY = "made_up"
SETTING = {"seed": 3, "quick": True, "protocol": "exact"}
PROVENANCE = {
    "versions": {"promptlimit": "0.1.0", "jax": "0.10.0"},
    "python": "3.11.2",
    "device": "cpu",
    "setting": SETTING,
    "started": "2026-11-15T08:00:00Z",
    "seconds": 301.2,
}


def claim(number: int = 4, study: str = STUDY) -> StoredClaim:
    """Return a claim with a statement, a control and a remark."""
    result = ClaimResult(
        number=number,
        name=f"claim-of-number-{number}",
        statement="The gap falls like $L^{-1}$ for τ² < 1/2 & more slowly beyond.",
        reference="Proposition 3.1 and Figure 1",
        expected="holds",
        checks=(
            Check("slope of the gap", -0.98, "<=", -0.9, error=0.012),
            Check("a head that is not small", 3.2e-7, ">=", 1e-9, role="control"),
        ),
        evidence="A remark.",
    )
    return StoredClaim(study, result, Origin("promptlimit x", SETTING, 12.4, "0123abcd"))


def figure(name: str, study: str = STUDY) -> StoredFigure:
    """Return a figure of the paper, or one beyond it if it is called "more"."""
    beyond = name == "more"
    return StoredFigure(
        study=study,
        name=name,
        title="Both gaps against the length",
        caption="Lines are exact; points are simulated.",
        reference="" if beyond else "Figure 1",
        section="beyond" if beyond else "paper",
        arrays={"lengths": np.array([1.0, 10.0, np.nan])},
        origin=Origin("promptlimit y", SETTING, 2.5, "ef"),
    )


@functools.cache
def plot() -> bytes:
    """Return a drawing with two curves to choose from, as the figures of the library are drawn."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # most tests need no drawing

    from promptlimit.reporting import render  # noqa: PLC0415

    picture = Figure(figsize=(6.0, 4.0))
    axis = picture.subplots()
    for label, slope, colour in (("L = 10", 1.0, "#0072b2"), ("L = 1000 <b>", 2.0, "#222222")):
        (line,) = axis.plot([0, 1, 2], [0, slope, 3], "o-", color=colour, label=label)
        line.set_gid(f"series:{label}")
    axis.set_title("gap $L^{-1}$ & risk")
    axis.legend()
    return render(picture, "svg")[0]


def write_results(path: Path, numbers: tuple[int, ...] = (12, 4), study: str = STUDY) -> Path:
    """Write claims of those numbers and two figures into a folder, with provenance."""
    folder = ReportFolder(path)
    folder.save_study(
        StoredStudy(
            study,
            "Gaps & <risks>",
            "Nobody, 2026",
            "https://example.org/1",
            "What was found.",
            "gaps",
            address=f"studies/{study}.py",
            claim_names=tuple(f"claim-of-number-{number}" for number in range(1, 20)),
            figure_names=("gaps", "more"),
        )
    )
    items: list[StoredClaim | StoredFigure] = [claim(number, study) for number in numbers]
    for item in items:
        assert isinstance(item, StoredClaim)
        folder.save_claim(item)
    for name in ("gaps", "more"):
        drawn = figure(name, study)
        folder.save_figure(drawn)
        items.append(folder.save_pictures(drawn, {"pdf": b"%PDF-1.4"}, "abc"))
    folder.record(items, items, PROVENANCE, whole=True)
    return path
