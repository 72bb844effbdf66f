"""Text into prompts of one length."""

from typing import Any

import numpy as np

from promptlimit._arrays import require_unmasked
from promptlimit.errors import ArgumentError
from promptlimit.heads._model import Model

TextOrIds = str | np.ndarray | list[int] | list[list[int]]
"""A text, a list of token ids to cut into windows, or the windows themselves, one a row."""

USUAL = 512
"""Tokens of a window, where the model takes as many."""


def windows_of(
    model: Model, text_or_ids: TextOrIds, *, window: int | None = None, at_most: int | None = None
) -> np.ndarray:
    """Return token ids cut into windows, [windows, window]; what is left at the end is dropped.

    A text's windows each begin and end with the special tokens the tokenizer would put there, and
    they count. A window has as many tokens as the model takes, at most 512, unless given.
    """
    window = min(USUAL, model.shape.positions) if window is None else window
    _require_window(model, window)
    if isinstance(text_or_ids, str):
        first, ids, last = _encoded(model.tokenizer, text_or_ids)
        room = window - len(first) - len(last)
        if room < 1:
            raise ArgumentError(
                "window",
                f"must exceed the tokenizer's {len(first) + len(last)} special tokens, "
                f"got {window}.",
            )
        cut = _cut(ids, room, window)
        ends = [np.tile(np.array(part, np.int64), (len(cut), 1)) for part in (first, last)]
        windows = np.concatenate([ends[0], cut, ends[1]], axis=1)
    else:
        require_unmasked("text_or_ids", text_or_ids)
        array = np.asarray(text_or_ids)
        if array.ndim not in {1, 2} or array.dtype.kind not in "iu" or array.size == 0:
            raise ArgumentError(
                "text_or_ids",
                "must be a text or whole numbers in one or two dimensions, got shape "
                f"{array.shape}, dtype {array.dtype}.",
            )
        if array.ndim == 2 and array.shape[1] != window:
            raise ArgumentError(
                "text_or_ids",
                f"must have rows of the window's {window} tokens, got {array.shape[1]}.",
            )
        windows = array if array.ndim == 2 else _cut(array, window, window)
    return windows if at_most is None else windows[:at_most]


def _require_window(model: Model, window: int) -> None:
    longest = model.shape.positions
    if isinstance(window, bool) or not isinstance(window, int) or not 8 <= window <= longest:
        raise ArgumentError(
            "window", f"must be from 8 to the model's {longest} positions, got {window}."
        )


def _cut(ids: np.ndarray, room: int, window: int) -> np.ndarray:
    count = len(ids) // room
    if count == 0:
        raise ArgumentError(
            "text_or_ids",
            f"must fill a window of {window} tokens, got {len(ids)} tokens. "
            "Give more text or a smaller window.",
        )
    return np.asarray(ids[: count * room], np.int64).reshape(count, room)


def _encoded(tokenizer: Any, text: str) -> tuple[list[int], np.ndarray, list[int]]:
    """Return the special tokens before a text, its own tokens, and the special tokens after it."""
    if tokenizer is None:
        raise ArgumentError(
            "text_or_ids",
            "must be token ids, got a text, for a model without tokenizer.json, or "
            "whose GGUF file has a tokenizer that is not known here.",
        )
    try:
        whole = tokenizer.encode(text, add_special_tokens=True)
    except Exception as problem:  # the package raises Exception itself
        raise ArgumentError(
            "text_or_ids",
            f"must be a text that tokenizer.json can read, but {problem}. "
            "Does the tokenizer belong to this model?",
        ) from None
    own = [place for place, added in enumerate(whole.special_tokens_mask) if not added]
    start, end = (own[0], own[-1] + 1) if own else (len(whole.ids),) * 2
    return whole.ids[:start], np.array(whole.ids[start:end], np.int64), whole.ids[end:]
