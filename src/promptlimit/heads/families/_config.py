"""The content of a config.json, which is not trusted: every value is checked when it is read."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from promptlimit.errors import InputFileError

WITHOUT_WEIGHTS = (
    "Take its heads while it runs, which needs no family: "
    "promptlimit.heads.atlas(promptlimit.heads.capture(model, ids))."
)
"""The way out for models that cannot be read from their files."""
_LARGEST = 2**24
_HUGE = 1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """The named values of a config.json, or of another `source` that errors name."""

    values: Mapping[str, Any]
    source: str = "config.json"

    def get(self, name: str, default: object = None) -> Any:
        """Return a value as it is."""
        return self.values.get(name, default)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number; what lies around a network is never huge."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            raise InputFileError(
                f"`{name}` in {self.source} must be a whole number from {least} to {_LARGEST}, "
                f"got {value!r:.40}."
            )
        return value

    def positive(self, name: str, default: float) -> float:
        """Return a positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _HUGE:
            raise InputFileError(
                f"`{name}` in {self.source} must be positive and below {_HUGE:g}, "
                f"got {value!r:.40}."
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise InputFileError(
                f"`{name}` in {self.source} must be true or false, got {value!r:.40}."
            )
        return value

    def share(self, total: str, parts: str) -> int:
        """Return one whole number divided by another, the width of a head for instance."""
        whole, count = self.whole(total), self.whole(parts)
        if whole % count:
            raise InputFileError(
                f"the hidden size in {self.source} must be a multiple of the {count} heads, "
                f"got {whole}."
            )
        return whole // count

    def require(self, name: str, expected: object) -> None:
        """Refuse a model that differs from what its family can do."""
        value = self.get(name, expected)
        if type(value) is not type(expected) or value != expected:
            raise InputFileError(
                f"`{name}` in {self.source} must be {expected!r}, got {value!r:.40}. "
                f"{WITHOUT_WEIGHTS}"
            )
