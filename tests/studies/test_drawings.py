"""Every figure draws in every format, and the same numbers give the same bytes."""

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from promptlimit.reporting import FORMATS, render
from promptlimit.studies.large_prompt import STUDY

LENGTHS = np.array([10.0, 100.0, 1000.0])
STEPS = np.geomspace(100.0, 3e5, 12)


def test_every_figure_of_the_paper_is_there_with_its_words_and_its_drawing() -> None:
    paper = [figure for figure in STUDY.figures if figure.section == "paper"]
    assert [figure.name for figure in paper] == [f"figure_{number}" for number in range(1, 9)]
    drawings = [figure.draw for figure in paper]
    assert drawings[:4] == drawings[4:]
    assert len(set(drawings)) == 4
    for figure in STUDY.figures:
        assert figure.caption.endswith(".")
        assert figure.title
        assert figure.reference


def test_the_cost_of_softmax_is_drawn_with_its_limits() -> None:
    heads = {"softmax": 20.0, "linear": 6.5, "ridge": 0.5}
    data = {"lengths": LENGTHS, **{name: 0.9 * cost + 0 * LENGTHS for name, cost in heads.items()}}
    data |= {f"{name}_limit": np.array(cost) for name, cost in heads.items()}
    first, second = (render(STUDY.draw("softmax_optimum", data), *FORMATS) for _ in range(2))
    assert first == second
    drawn = first[FORMATS.index("svg")]
    assert all(f">{cost:.3g}<".encode() in drawn for cost in heads.values())


def gaps() -> dict[str, np.ndarray]:
    fall = np.ones((2, 1)) / LENGTHS
    rows = {name: power * fall for name, power in (("output", 1.0), ("batch", 0.5))}
    rows["population"] = fall**2
    return rows | {f"{name}_error": 0.1 * rows[name] for name in rows}


def ends() -> dict[str, np.ndarray]:
    errors = 0.1 + np.array([[6.0], [3.0]]) / LENGTHS
    return {
        "lengths": LENGTHS,
        "errors": errors,
        "accuracy": 0 * errors,
        "optimum": errors[1],
        "ridge_lengths": LENGTHS,
        "ridge": 0.1 + 0.5 / LENGTHS,
        "floor": np.array(0.1),
        "curve_lengths": LENGTHS,
        "start_errors": errors[..., None] * np.array([1.0, 1.3]),
        "converged": np.array([[[1.0, 0.0]] * 3] * 2),
        "noise_lengths": LENGTHS[:1],
        "noise_rise": np.full((2, 1), 1e-3),
        "trained_lengths": LENGTHS[:1],
        "trained": errors[:, :1],
        "trained_time": np.array([600.0]),
    }


def training() -> dict[str, np.ndarray]:
    errors = np.ones((2, 3, 2, 1)) / (1 + STEPS / 1e4)
    return {
        "lengths": LENGTHS,
        "errors": 0.1 + errors,
        "distances": errors[0],
        "best": np.full((2, 3), 0.12),
        "floor": np.array(0.1),
        "converged": np.ones((2, 3, 2)),
        "shown": np.array(1.0),
        "trained_lengths": LENGTHS[:1],
        "trained_steps": STEPS,
        "trained_errors": 0.1 + errors[:, :1, 0],
        "trained_distances": errors[0, :1, 0],
    }


def made_up(number: int) -> dict[str, np.ndarray]:
    """Return arrays as the figure of a figure computes them, for its laws."""
    laws = ("identity",) if number <= 4 else ("kms", "kms-as-coded")
    kind = (number - 1) % 4
    shared: dict[str, np.ndarray] = {"lengths": LENGTHS, "gradient_lengths": LENGTHS}
    if kind == 1:
        shared = {"isotropic_optimum": 0.1 + 2.0 / LENGTHS} if number > 4 else {}
    if kind > 1:
        shared = {"steps": STEPS}
    of_law = (gaps, ends, training, training)[kind]()
    return shared | {f"{law}.{name}": array for law in laws for name, array in of_law.items()}


@pytest.mark.parametrize(
    ("number", "series"),
    [
        (1, ["output", "gradient, same batch"]),
        (2, ["softmax", "linear", "ridge"]),
        (3, ["L = 10", "L = 1000"]),
        (6, ["linear optimum, isotropic"]),
        (8, ["L = 100"]),
    ],
)
def test_a_figure_of_the_paper_names_what_a_reader_may_hide(number: int, series: list[str]) -> None:
    (drawn,) = render(STUDY.draw(f"figure_{number}", made_up(number)), "svg")
    for label in series:
        assert f'id="series:{label}"'.encode() in drawn


def test_error_bars_are_two_standard_errors_of_the_mean_over_starts() -> None:
    data = made_up(1)
    (errors,) = (rows for name, rows in data.items() if name.endswith("batch_error"))
    axis = STUDY.draw("figure_1", data).axes[0]
    (bars,) = (each for each in axis.containers if isinstance(each, ErrorbarContainer))
    (segments,) = (lines.get_segments() for lines in bars.lines[2])
    heights = [np.ptp(segment[:, 1]) for segment in segments]
    np.testing.assert_allclose(heights, 4 * np.sqrt((errors**2).sum(axis=0)) / len(errors))
