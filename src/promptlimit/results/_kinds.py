"""Every number says what it is."""

from typing import Literal

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""What a value is.

- `exact`: prompts integrated out, by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the leading order in 1/L.
- `bound`: proved, above the truth.
- `estimate`: prompts simulated; the error is a standard error.
"""
