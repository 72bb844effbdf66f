"""Text into prompts of one length."""

from typing import Any

import numpy as np

from promptlimit.heads._model import Model

TextOrIds = str | np.ndarray | list[int] | list[list[int]]
"""A text, a list of token ids to cut into windows, or the windows themselves, one a row."""


def windows_of(
    model: Model, text_or_ids: TextOrIds, *, window: int, at_most: int | None = None
) -> np.ndarray:
    """Return token ids cut into windows, [windows, window]; what is left at the end is dropped.

    A text's windows each begin and end with the special tokens the tokenizer would put there, and
    they count.
    """
    _require_window(model, window)
    if isinstance(text_or_ids, str):
        first, ids, last = _encoded(model.tokenizer, text_or_ids)
        room = window - len(first) - len(last)
        cut = _cut(ids, room, "text_or_ids", window)
        ends = [np.tile(np.array(part, np.int64), (len(cut), 1)) for part in (first, last)]
        found = np.concatenate([ends[0], cut, ends[1]], axis=1)
    else:
        array = np.asarray(text_or_ids)
        if array.ndim not in {1, 2} or array.dtype.kind not in "iu" or array.size == 0:
            raise ValueError(
                "`text_or_ids` must be a text or whole numbers in one or two dimensions, got shape "
                f"{array.shape}, dtype {array.dtype}."
            )
        if array.ndim == 2 and array.shape[1] != window:
            raise ValueError(
                f"`text_or_ids` must have rows of the window's {window} tokens, "
                f"got {array.shape[1]}."
            )
        found = array if array.ndim == 2 else _cut(array, window, "text_or_ids", window)
    return found if at_most is None else found[:at_most]


def _require_window(model: Model, window: int) -> None:
    longest = model.shape.positions
    if isinstance(window, bool) or not isinstance(window, int) or not 8 <= window <= longest:
        raise ValueError(
            f"`window` must be from 8 to the model's {longest} positions, got {window}."
        )


def _cut(ids: np.ndarray, room: int, name: str, window: int) -> np.ndarray:
    count = len(ids) // room
    if count == 0:
        raise ValueError(
            f"`{name}` must fill a window of {window} tokens, got {len(ids)} tokens. "
            "Give more text or a smaller window."
        )
    return np.asarray(ids[: count * room], np.int64).reshape(count, room)


def _encoded(tokenizer: Any, text: str) -> tuple[list[int], np.ndarray, list[int]]:
    """Return the special tokens before a text, its own tokens, and the special tokens after it."""
    if tokenizer is None:
        raise ValueError(
            "`text_or_ids` must be token ids, got a text, for a model without tokenizer.json."
        )
    plain = tokenizer.encode("a b", add_special_tokens=False).ids
    whole = tokenizer.encode("a b", add_special_tokens=True).ids
    starts = [i for i in range(len(whole)) if whole[i : i + len(plain)] == plain]
    start = starts[0] if starts else 0
    end = start + len(plain) if starts else len(whole)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    return whole[:start], ids, whole[end:]
