"""Every figure draws, in every format, to the same bytes each time."""

import pytest

from promptlimit.experiments import FigureRecipe, Setting, all_figures, figure_data
from promptlimit.reporting import FORMATS, draw, render


@pytest.mark.slow
@pytest.mark.parametrize("recipe", all_figures(), ids=lambda recipe: recipe.name)
def test_a_figure_is_drawn_from_its_data_to_the_same_bytes(recipe: FigureRecipe) -> None:
    data = figure_data(recipe, Setting())
    assert recipe.caption.endswith(".")
    for kind in FORMATS:
        first, second = (render(draw(recipe.name, data), kind) for _ in range(2))
        assert first == second
        assert len(first) > 5_000
