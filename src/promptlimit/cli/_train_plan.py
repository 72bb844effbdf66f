"""What `promptlimit train` is asked for: options over a TOML file over the paper's protocol."""

import difflib
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from promptlimit.cli._console import CommandError, UsageError
from promptlimit.cli._inputs import (
    COVARIANCE,
    LENGTHS,
    choices,
    covariance_arrays,
    covariance_law,
    lengths_in,
    regression,
    require_covariance,
)

if TYPE_CHECKING:
    from promptlimit.results import Training

DEFAULTS: Mapping[str, Any] = {
    "lengths": "10,40,100",
    "seeds": 1,
    "steps": 300_000,
    "covariance": "identity",
    "kernels": "softmax,linear",
    "dim": 5,
    "noise": 0.1,
    "batch": 128,
    "rate": 1e-3,
    "sampling": "tokens",
    "every": 10_000,
    "seed": 0,
}
_COUNT = (1, 2**31 - 1, "from 1 to 2147483647")
_RANGES: Mapping[str, tuple[float, float, str]] = {
    **dict.fromkeys(("seeds", "steps", "dim", "batch", "every"), _COUNT),
    "noise": (0.0, sys.float_info.max, "finite and not negative"),
    "rate": (sys.float_info.min, sys.float_info.max, "positive and finite"),
    "seed": (0, 2**63 - 1, "from 0 to 9223372036854775807"),
}
_TYPES = {name: type(value) for name, value in DEFAULTS.items()}


class TrainOptions(NamedTuple):
    """The options that decide what is trained; None where they are not given."""

    lengths: Annotated[str | None, LENGTHS] = None
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Random starts.")] = None
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of each run.")] = None
    covariance: Annotated[str | None, COVARIANCE] = None
    kernels: Annotated[
        str | None, typer.Option("--kernels", metavar="NAMES", help="softmax, linear or both.")
    ] = None
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="Covariates' dimension.")] = None
    noise: Annotated[float | None, typer.Option("--noise", help="Label variance.")] = None
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Prompts a step.")] = None
    rate: Annotated[float | None, typer.Option("--rate", help="Learning rate.")] = None
    sampling: Annotated[
        str | None, typer.Option("--sampling", metavar="HOW", help="tokens, or law (faster).")
    ] = None
    every: Annotated[
        int | None, typer.Option("--every", min=1, help="Steps between checkpoints.")
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of everything random.")
    ] = None


@dataclass(frozen=True)
class Plan:
    """A request in plain numbers and words.

    Attributes:
        config: every option that decides the result, resolved.
        every: how many steps lie between checkpoints.
    """

    config: Mapping[str, Any]
    every: int

    @property
    def lengths(self) -> list[int]:
        """The prompt lengths."""
        return list(self.config["lengths"])

    def arguments(self) -> dict[str, Any]:
        """Return what `sgd` is called with, besides folder and watcher."""
        import functools

        import jax

        from promptlimit.dynamics import TrainingPlan, uniform_factors

        config = self.config
        task = regression(config["covariance"], config["dim"], config["noise"])
        dim = task.token_dim - 1

        def start(key: Any, kernel: str) -> Any:
            return uniform_factors(dim, key=key, kernel=kernel)

        starts: list[Callable] = [functools.partial(start, kernel=k) for k in config["kernels"]]
        return {
            "task": task,
            "start": starts,
            "lengths": self.lengths,
            "plan": TrainingPlan(
                steps=config["steps"],
                batch=config["batch"],
                learning_rate=config["rate"],
                sampling=config["sampling"],
            ),
            "key": jax.random.key(config["seed"]),
            "seeds": config["seeds"],
            "every": self.every,
        }

    def record(self) -> dict[str, Any]:
        """Return what `train.json` keeps: the options, and what a file of covariances held.

        Lengths are left out: each is a cell of its own, and more may join.
        """
        options = {name: value for name, value in self.config.items() if name != "lengths"}
        if covariance_law(self.config["covariance"]) is not None:
            return options
        arrays = covariance_arrays(self.config["covariance"])
        matrices = {name: array.tolist() for name, array in arrays.items()}
        return {**options, "held": {"query_covariance": matrices["covariance"], **matrices}}

    @staticmethod
    def call(arguments: Mapping[str, Any], **more: Any) -> "Training":
        """Train."""
        from promptlimit.dynamics import sgd

        return sgd(**arguments, **more)


def resolve_plan(typed: TrainOptions, file: Path | None) -> Plan:
    """Return the plan: options typed, else those of the file, else the paper's."""
    options = {**DEFAULTS, **(_from_file(file) if file is not None else {})}
    options |= {name: value for name, value in typed._asdict().items() if value is not None}
    _require_within_ranges(options)
    every = options.pop("every")
    options["lengths"] = lengths_in(options["lengths"])
    options["kernels"] = choices("--kernels", options["kernels"], ("softmax", "linear"), most=2)
    (options["sampling"],) = choices("--sampling", options["sampling"], ("tokens", "law"))
    require_covariance(options["covariance"])
    return Plan(options, int(every))


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise CommandError(
            f"{file} must be readable as TOML, but {problem}", "steps = 1000 is such a line"
        ) from None
    for name, value in content.items():
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(DEFAULTS)}"
            raise CommandError(f"{file} has an option '{name}' that train has not", hint)
        wanted = _TYPES[name]
        if name in ("lengths", "kernels") and isinstance(value, list):
            content[name] = ",".join(map(str, value))
        elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
            content[name] = float(value)
        elif not isinstance(value, wanted) or isinstance(value, bool):
            raise CommandError(
                f"{name} in {file} must be {_words(wanted)}, got {value!r}",
                f"for example {name} = {DEFAULTS[name]!r}",
            )
    return content


def _words(kind: type) -> str:
    words: dict[type, str] = {int: "a whole number", float: "a number", str: "a string"}
    return words[kind]


def _require_within_ranges(options: Mapping[str, Any]) -> None:
    """Refuse numbers that no training can take, wherever they come from."""
    for name, (least, most, words) in _RANGES.items():
        if not least <= options[name] <= most:
            raise UsageError(
                f"--{name} must be {words}, got {options[name]}", f"--{name} {DEFAULTS[name]}"
            )
