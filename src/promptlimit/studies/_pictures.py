"""Figures drawn from their stored arrays, and the page that shows them; no jax is needed."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from promptlimit.claims import ReportFolder, StoredFigure, StoredReport
from promptlimit.reporting import FORMATS, Format, explorer_page, is_drawing, render, report_pages
from promptlimit.studies._paper import Paper, papers


def drawn_figure(
    paper: Paper,
    figure: StoredFigure,
    folder: ReportFolder,
    drawn_by: str,
    formats: Sequence[Format] = FORMATS,
) -> tuple[StoredFigure, bytes]:
    """Return the figure with its pictures on disk, and the one for the page.

    It is drawn unless this code has drawn it before, and the picture for the page is still one of
    those that this code draws: what lies on a disk may be anybody's.

    Args:
        paper: whose drawing it is.
        figure: the figure, stored already.
        folder: where its pictures are or go.
        drawn_by: the hash of this code.
        formats: of the pictures, "svg" among them.
    """
    if figure.drawn_by == drawn_by and set(formats) <= set(figure.pictures):
        svg = folder.picture(figure, "svg")
        if is_drawing(svg):
            return figure, svg
    files = render(paper.draw(figure.drawing, figure.arrays), *formats)
    pictures: dict[str, bytes] = dict(zip(formats, files, strict=True))
    return folder.save_pictures(figure, pictures, drawn_by), pictures["svg"]


def write_pages(
    folder: ReportFolder,
    known: Iterable[Paper] = (),
    drawings: Mapping[tuple[str, str], bytes] | None = None,
) -> tuple[Path, StoredReport, list[str]]:
    """Write the pages of a folder; return the first page, the results, and a list of problems.

    Args:
        folder: the results to show. It is read again, and its files are not trusted.
        known: papers besides those of this library.
        drawings: SVG files by paper and name, for figures that were drawn just now.
    """
    report = folder.read()
    by_name = {paper.name: paper for paper in (*papers(), *known)}
    shown, problems = dict(drawings or {}), []
    for figure in report.figures:
        place = (figure.paper, figure.name)
        if place in shown:
            continue
        stored = folder.picture(figure, "svg")
        if is_drawing(stored):
            shown[place] = stored
            continue
        try:
            if figure.paper not in by_name:
                raise ValueError(f"the paper {figure.paper} is not one of this library")
            picture = by_name[figure.paper].draw(figure.drawing, figure.arrays)
            shown[place] = render(picture, "svg")[0]
        except Exception as problem:  # arrays of a file may be any
            reason = str(problem) or type(problem).__name__
            shown[place] = folder.picture(figure, "png")
            how = "shown as the picture that is stored" if shown[place] else "not shown"
            problems.append(f"{figure.paper}/figures/{figure.name} is {how}: {reason}.")
    pages = {**report_pages(report, shown), "explorer.html": explorer_page()}
    return folder.save_pages(pages), report, problems
