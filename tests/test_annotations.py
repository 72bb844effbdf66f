"""Annotations of nested functions are checked each time the function around them is called."""

import jaxtyping
import numpy as np
import pytest
from jaxtyping import Float

from annotations import checked

Vector = Float[np.ndarray, " n"]


def first(hint):
    @jaxtyping.jaxtyped(typechecker=checked)
    def inner(x: Vector, count: hint) -> Vector:
        return x[: int(count)]

    return inner


def test_a_nested_function_is_checked_again_at_each_definition():
    for _ in range(2):
        inner = first(int)
        np.testing.assert_array_equal(inner(np.ones(2), 2), np.ones(2))
        with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
            inner(np.ones((2, 2)), 2)
        with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
            inner(np.ones(2), "2")
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            inner(np.ones(2), 1)


@pytest.mark.parametrize("hint", [str, list[int]])
def test_definitions_with_other_annotations_have_a_check_of_their_own(hint):
    first(int)(np.ones(2), 2)
    with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
        first(hint)(np.ones(2), 2)


def test_equal_nested_functions_share_a_check():
    def made(hint):
        def inner(x: hint):
            return x

        return inner

    assert checked(made(int)) is checked(made(int))
    assert checked(made(int)) is not checked(made(str))
