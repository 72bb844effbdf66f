"""The components of a mixture or a product."""

from collections.abc import Iterable, Sequence

from promptlimit._inputs import type_name
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure


def require_components(components: Sequence[AbstractMeasure]) -> tuple[AbstractMeasure, ...]:
    """Return the components as a tuple, after checking that they are measures."""
    if isinstance(components, AbstractMeasure) or not isinstance(components, Iterable):
        raise ArgumentError(
            "components", f"must be a list of measures, got {type_name(components)}."
        )
    measures = tuple(
        require_measure(f"components[{index}]", value) for index, value in enumerate(components)
    )
    if not measures:
        raise ArgumentError("components", "must contain at least one measure, got none.")
    return measures


def require_measure(name: str, value: object) -> AbstractMeasure:
    """Return the value if it is a measure; otherwise raise an error."""
    if not isinstance(value, AbstractMeasure):
        is_class = isinstance(value, type) and issubclass(value, AbstractMeasure)
        hint = "Wrap an array of tokens as promptlimit.Empirical(tokens)."
        if is_class:
            hint = f"Pass {value.__name__}(...) with its parameters."
        raise ArgumentError(name, f"must be a measure, got {type_name(value)}. {hint}")
    return value
