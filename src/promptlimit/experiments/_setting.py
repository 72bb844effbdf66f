"""The setting in which claims are decided and figures computed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Protocol = Literal["exact", "full"]


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """What decides the numbers, where runs are kept, and who is told what is going on.

    Attributes:
        seed: of everything random.
        quick: whether to do less, for continuous integration: fewer lengths, starts and draws.
        protocol: "exact" follows gradient flows beside a few runs of gradient descent; "full" also
            runs the whole training protocol of the paper.
        folder: where trajectories and training runs are kept, so that figures and claims share
            them and an interrupted reproduction goes on; None keeps them in memory alone.
        tell: a function told in a few words what is being computed.
    """

    seed: int = 0
    quick: bool = False
    protocol: Protocol = "exact"
    folder: Path | None = None
    tell: Callable[[str], object] = field(default=_silent, compare=False, repr=False)

    def as_json(self) -> dict[str, object]:
        """Return what decides the numbers."""
        return {"seed": self.seed, "quick": self.quick, "protocol": self.protocol}
