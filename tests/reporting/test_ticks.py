"""Labels of logarithmic axes are plain letters, and ticks without labels are drawn together."""

import io
import re
from contextlib import nullcontext

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from promptlimit.reporting import _drawing, render
from promptlimit.reporting._ticks import plain_power, write_powers_plainly


@pytest.mark.parametrize(
    ("formula", "plain"),
    [
        (r"$\mathdefault{10^{-3}}$", "10⁻³"),
        (r"$\mathdefault{2\times10^{14}}$", "2×10¹⁴"),
        (r"$\mathdefault{-10^{0}}$", "−10⁰"),  # a minus sign
        (r"$\mathdefault{-4.5\times2^{-67890}}$", "−4.5×2⁻⁶⁷⁸⁹⁰"),  # likewise
        (r"$\mathdefault{0}$", "0"),
        (r"$\mathdefault{10^{-3.50}}$", r"$\mathdefault{10^{-3.50}}$"),
        ("", ""),
        ("0.3", "0.3"),
    ],
)
def test_a_power_is_written_in_plain_letters_and_all_else_as_it_is(
    formula: str, plain: str
) -> None:
    assert plain_power(formula) == plain


def test_the_axes_of_a_figure_say_what_they_said_before_as_plain_letters() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.loglog([1e-5, 1e3], [2e-3, 5e-3])
    right.set(yscale="symlog", ylim=(-100, 100))
    map_ = right.pcolormesh(np.geomspace(1e-4, 1.0, 4).reshape(2, 2), norm="log")
    bar = figure.colorbar(map_)
    axes = (left.xaxis, left.yaxis, right.yaxis, bar.ax.yaxis)
    said = [_labels(axis) for axis in axes]
    write_powers_plainly(figure)
    plain = [_labels(axis) for axis in axes]
    assert plain == [[plain_power(label) for label in labels] for labels in said]
    assert "10⁻⁵" in plain[0]
    assert {"2×10⁻³", "3×10⁻³"} <= set(plain[1])
    assert {"0", "10¹", "−10¹"} <= set(plain[2])  # a minus sign
    assert "10⁻²" in plain[3]
    assert not re.search(rb"<tspan", render(figure, "svg")[0])


def _labels(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels(which="both")]


def test_ticks_without_labels_look_the_same_drawn_in_one_stroke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = _pixels(_many_ticks())
    monkeypatch.setattr(_drawing, "minor_ticks_in_one_stroke", lambda _: nullcontext())
    one_by_one = _pixels(_many_ticks())
    assert drawn.shape == one_by_one.shape
    assert np.abs(drawn - one_by_one).max() < 0.2  # a tick is drawn over its axis, or below it


def test_no_tick_is_made_for_them_and_labelled_ones_stay() -> None:
    figure = _many_ticks()
    render(figure, "svg")
    left, right, bar = figure.axes
    assert [axes.yaxis.get_minorticklocs().size for axes in (left, right, bar)] == [0, 0, 0]
    labels = [label.get_text() for label in left.get_xticklabels(minor=True)]
    assert {"2×10⁰", "3×10⁰"} <= set(labels)


def _many_ticks() -> Figure:
    """Return a figure with a shared scale, ticks on both sides, labelled ones, and a colour bar."""
    figure = Figure(figsize=(6, 2), dpi=60, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.loglog([1.0, 5.0], [1e-2, 1e2])
    right.loglog([1e-1, 1e1], [1e-2, 1e2])
    right.set_ylim(1e-2, 2e2)
    right.tick_params(which="both", right=True)
    map_ = right.pcolormesh(
        [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], np.geomspace(2e-2, 3.0, 4).reshape(2, 2), norm="log"
    )
    figure.colorbar(map_)
    return figure


def _pixels(figure: Figure) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(render(figure, "png")[0]))
