"""The kinds of numbers and the type of a length."""

from typing import Literal, TypeAlias

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""The kind of a value.

- `exact`: prompts integrated out, by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the leading order in 1/L.
- `bound`: proved, above the truth.
- `estimate`: prompts simulated; the error is a standard error.
"""


Length: TypeAlias = float | int
"""The number of tokens of a prompt: whole, or infinite. Run-time checks reject an int as float."""
