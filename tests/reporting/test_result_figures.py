"""Figures of results show what their tables print."""

import numpy as np

from promptlimit.reporting import figure_of
from promptlimit.results import Training


def test_training_is_drawn_as_mean_squared_errors_with_a_legend_of_lengths() -> None:
    steps, shape = np.array([0, 1, 10]), (2, 2, 3, 3)  # lengths, starts, seeds, steps
    risks = np.arange(1.0, 37.0).reshape(shape)
    training = Training(
        steps=steps,
        times=0.1 * steps,
        lengths=(5, float("inf")),
        kernels=("softmax", "linear"),
        parameters={},
        key_query=None,
        value_matrix=None,
        value=risks,
        gradient_norms=risks,
        error=0 * risks,
        diverged=np.full(shape[:3], -1),
        kind="exact",
        config={},
    )
    figure = figure_of(training)
    assert figure is not None
    assert [axis.get_title("left") for axis in figure.axes] == [
        "mean squared error, softmax",
        "mean squared error, linear",
    ]
    ends = [row["squared error"] for row in training.table()]
    for place, axis in enumerate(figure.axes):
        legend = axis.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["L = 5", "L = ∞"]
        drawn = [np.asarray(line.get_ydata()) for line in axis.get_lines()]
        assert [float(drawn[1][-1]), float(drawn[4][-1])] == [ends[place], ends[2 + place]]
