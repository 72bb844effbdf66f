"""Every number says what it is; what is not good enough, or cannot be had, is refused."""

from typing import Literal, TypeAlias

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""What a value is.

- `exact`: prompts integrated out, by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the leading order in 1/L.
- `bound`: proved, above the truth.
- `estimate`: prompts simulated; the error is a standard error.
"""


Length: TypeAlias = float | int
"""The number of tokens of a prompt: whole, or infinite. Run-time checks take no int for a float."""
