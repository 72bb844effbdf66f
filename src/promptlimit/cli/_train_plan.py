"""What `promptlimit train` is asked for: options over a TOML file over the paper's protocol."""

import difflib
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptlimit.cli._console import CommandError

if TYPE_CHECKING:
    from promptlimit.results import Training
    from promptlimit.tasks import LinearRegression

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
_LAWS = ("identity", "kms", "kms-as-coded")
_TYPES = {name: type(value) for name, value in DEFAULTS.items()}


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
        task = _task(config)
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
        options = {name: each for name, each in self.config.items() if name != "lengths"}
        if self.config["covariance"].partition(":")[0] in _LAWS:
            return options
        task = _task(self.config)
        held = {name: getattr(task, name).tolist() for name in ("covariance", "query_covariance")}
        return {**options, "held": held}

    @staticmethod
    def call(arguments: Mapping[str, Any], **more: Any) -> "Training":
        """Train."""
        from promptlimit.dynamics import sgd

        return sgd(**arguments, **more)


def resolved_plan(given: Mapping[str, Any], file: Path | None) -> Plan:
    """Return the plan: options given, else those of the file, else the paper's."""
    options = {**DEFAULTS, **(_from_file(file) if file is not None else {})}
    options |= {name: value for name, value in given.items() if value is not None}
    _require_within_ranges(options)
    every = options.pop("every")
    options["lengths"] = _lengths(options["lengths"])
    options["kernels"] = _names("--kernels", options["kernels"], ("softmax", "linear"))
    (options["sampling"],) = _names("--sampling", options["sampling"], ("tokens", "law"), most=1)
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
    return {int: "a whole number", float: "a number", str: "a string"}[kind]


def _lengths(text: str) -> list[int]:
    try:
        found = [int(each) for each in str(text).split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise CommandError(
            f"--lengths must be whole numbers from 1 with commas between, got '{text}'",
            "promptlimit train --lengths 10,40,100",
        )
    return sorted(set(found))


def _names(option: str, text: str, known: tuple[str, ...], most: int = 2) -> list[str]:
    found = list(dict.fromkeys(each.strip() for each in str(text).split(",")))
    if len(found) > most or not set(found) <= set(known):
        words = f"{'among' if most > 1 else 'one of'} {', '.join(known)}"
        raise CommandError(f"{option} must be {words}, got '{text}'", f"{option} {known[0]}")
    return found


def _require_within_ranges(options: Mapping[str, Any]) -> None:
    """Refuse numbers that no training can take, wherever they come from."""
    for name, (least, most, words) in _RANGES.items():
        if not least <= options[name] <= most:
            raise CommandError(
                f"--{name} must be {words}, got {options[name]}", f"--{name} {DEFAULTS[name]}"
            )


def _task(config: Mapping[str, Any]) -> "LinearRegression":
    """Return the regression with the covariance that was named."""
    from promptlimit.experiments import protocol_task

    text, dim, noise = config["covariance"], config["dim"], config["noise"]
    name, _, number = text.partition(":")
    if name == "identity" and not number:
        return protocol_task("identity", dim, noise=noise)
    if name in _LAWS[1:]:
        try:
            rho = float(number or 0.5)
        except ValueError:
            rho = 2.0
        if not -1.0 < rho < 1.0:
            raise CommandError(
                f"--covariance {name}:R must have R between -1 and 1, got '{number}'",
                f"--covariance {name}:0.5",
            )
        return protocol_task(name, dim, rho, noise)
    return _task_from_file(text, noise)


def _task_from_file(text: str, noise: float) -> "LinearRegression":
    """Return the regression whose covariance a file holds, alone or by name."""
    from promptlimit.results import InputFileError, read_arrays
    from promptlimit.tasks import LinearRegression

    single = Path(text).suffix.lower() in (".npy", ".csv")
    try:
        arrays = read_arrays(f"covariance={text}" if single else text)
    except InputFileError as problem:
        raise CommandError(
            f"--covariance must be identity, kms:0.5, kms-as-coded:0.5 or a file: {problem}",
            "promptlimit train --covariance kms:0.5",
        ) from None
    if "covariance" not in arrays or not set(arrays) <= {"covariance", "query_covariance"}:
        raise CommandError(
            f"{text} must hold covariance and perhaps query_covariance, got {', '.join(arrays)}",
            "promptlimit train --covariance kms:0.5",
        )
    found: dict[str, Any] = dict(arrays)
    return LinearRegression(
        found["covariance"],
        query_covariance=found.get("query_covariance"),
        noise_variance=noise,
        prior_variance=1.0 / len(found["covariance"]),
    )
