"""`promptlimit stack`: what a prompt makes of layers one upon another, at every length."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from promptlimit.cli._console import (
    CommandError,
    JsonOption,
    SeedOption,
    UsageError,
    as_usage_error,
    emit,
    out_option,
    print_json,
    print_note,
    print_table,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._inputs import LENGTHS, STACK_NAMES, lengths_in, read_files
from promptlimit.cli._progress import AbstractProgress, progress
from promptlimit.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.cli._problems import StackSpec
    from promptlimit.results import PromptMoments

_EXAMPLES = ("softmax", "linear", "sharp", "mixture")
_HEADINGS = {"exact": "exact", "asymptotic": "leading order", "estimate": "simulated"}
_LONGEST = 100
"""Tokens of a prompt that is simulated: a layer compares them all."""


def stack(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES]...",
            help=escape(  # shapes in brackets are no markup
                "Files of named arrays (.npz, .json), or NAME=FILE for one array (.npy as well). "
                "Names: key_query and value, [layers, d, d] or [layers, heads, d, d]; residual, "
                "[layers, d, d] (the identity); kernel: softmax or linear; query; and for the "
                "prompt mean and cov, tokens and weights, half_widths or radius."
            ),
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help=f"Three built-in layers of two heads: {', '.join(_EXAMPLES)}.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="LAW",
            help="The tokens' law: gaussian, tokens, rademacher, cube, sphere.",
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="softmax or linear, whatever the files say.")
    ] = None,
    lengths: Annotated[str, LENGTHS] = "10,30,100,300,1e3,1e4,1e6",
    causal: Annotated[
        bool, typer.Option("--causal", help="Let each token see only those before it, and itself.")
    ] = False,
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            min=0,
            max=10**8,
            help=f"Prompts to simulate at lengths up to {_LONGEST}; 0 for none.",
        ),
    ] = 256,
    out: Annotated[
        Path | None,
        out_option("Also write stack.json and the figure there."),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Print the limit of a stack of layers, and how far finite prompts are from it.

    For each kind that can be had: the root mean square distance from the limit, and the bias.
    """
    if samples == 1:
        raise UsageError("--samples must be 0 or at least 2, got 1", "one has no error bar")
    sizes = lengths_in(lengths)
    require_folder(out)
    with progress("stack") as shown:
        shown.at("starting")
        asked = _asked(files, example, prompt, kernel)
        try:
            report = _report(asked, sizes, causal, samples, seed, shown)
        except ValueError as problem:
            if isinstance(problem, ArgumentError) and problem.argument == "key":
                words = "--samples must be positive for a prompt that has no closed limit, got 0"
                raise UsageError(words, "--samples 256") from None
            raise as_usage_error(problem, "stack") from None
        except ArithmeticError as problem:
            raise CommandError(str(problem), "promptlimit stack --help") from None
    for note in _notes(report):
        print_note(note)
    emit(
        lambda: print_json(report.to_dict()) if as_json else _print(report),
        None if out is None else lambda: _write(report, out),
    )


def _asked(
    files: list[str] | None, example: str | None, prompt: str | None, kernel: str | None
) -> "StackSpec":
    """Return the stack of the files or of the example."""
    if bool(files) == (example is not None):
        raise UsageError(
            "the problem must be given in one way: files or --example NAME",
            "promptlimit stack --example softmax",
        )
    if example is not None and (prompt is not None or kernel is not None):
        option = "--prompt" if prompt is not None else "--kernel"
        raise UsageError(
            f"{option} must be given with files only", f"promptlimit stack layers.npz {option} ..."
        )
    if example is not None and example not in _EXAMPLES:
        raise UsageError(
            f"there is no example '{example}'", f"the examples are {', '.join(_EXAMPLES)}"
        )
    arrays = read_files(files or [], prompt, "stack", STACK_NAMES)  # before jax, which takes long
    if kernel is not None:
        arrays["kernel"] = kernel
    use_double_precision()
    from promptlimit.cli import _problems

    if example is not None:
        return _problems.stack_example(example)
    try:
        return _problems.stack_from_arrays(arrays)
    except ValueError as problem:
        raise CommandError(str(problem), "promptlimit stack --help lists the names") from None


@dataclasses.dataclass(frozen=True)
class _StackReport:
    """What is known of a stack.

    Attributes:
        limit: the moments of an infinite prompt.
        curves: those of finite ones, by kind.
        missing: why a kind is not to be had, by kind.
        causal: whether there is a mask.
        squared_tau: of every softmax layer over Gaussian tokens, else None.
    """

    limit: "PromptMoments"
    curves: "dict[str, PromptMoments]"
    missing: dict[str, str]
    causal: bool
    squared_tau: list[float] | None

    def to_dict(self) -> dict[str, object]:
        """Return plain numbers and lists; what is not known is null."""
        from promptlimit.results import plain

        curves = {
            kind: {
                "lengths": moments.lengths,
                "mse": moments.mse,
                "error": moments.error,
                "bias": moments.bias,
                "bias_error": moments.bias_error,
                "cov": moments.cov,
                "samples": int(moments.samples.max()),
            }
            for kind, moments in self.curves.items()
        }
        return plain(
            {
                "limit": {
                    "kind": self.limit.kind,
                    "value": self.limit.limit,
                    "error": self.limit.limit_error,
                },
                "causal": self.causal,
                "squared_tau": self.squared_tau,
                "curves": curves,
                "missing": self.missing,
            }
        )

    def to_arrays(self) -> "dict[str, np.ndarray]":
        """Return what the figure shows."""
        import numpy as np

        arrays = {}
        for kind, moments in self.curves.items():
            distance = np.sqrt(np.maximum(moments.mse, 0.0))
            arrays |= {
                f"{kind}_lengths": moments.lengths,
                f"{kind}_distance": distance,
                f"{kind}_distance_error": moments.error / np.maximum(2 * distance, 1e-300),
                f"{kind}_bias": np.linalg.norm(moments.bias, axis=1),
                f"{kind}_bias_error": np.linalg.norm(moments.bias_error, axis=1),
            }
        return arrays


def _report(
    asked: "StackSpec",
    sizes: list[int],
    causal: bool,
    samples: int,
    seed: int,
    shown: AbstractProgress,
) -> _StackReport:
    """Return the moments in every kind that can be had, and tell of each."""
    import jax
    import numpy as np

    from promptlimit.finite import (
        PROMPT_MOMENTS,
        checked_problem,
        prompt_moments,
    )
    from promptlimit.rules import Rule

    parts = asked.stack, asked.law, asked.query
    lengths = np.array(sizes, float)
    problem = checked_problem(asked.stack, asked.law, lengths, query=asked.query, causal=causal)
    rules = {kind: PROMPT_MOMENTS.first(problem, kind) for kind in _HEADINGS}
    missing = {kind: rule for kind, rule in rules.items() if isinstance(rule, str)}
    short = lengths[lengths <= _LONGEST]
    kinds = [kind for kind, rule in rules.items() if isinstance(rule, Rule) and kind != "estimate"]
    if samples and short.size:
        kinds.append("estimate")
    shown.plan(_words(asked, sizes), {"limit": 1.0, **{_HEADINGS[kind]: 3.0 for kind in kinds}})
    key = jax.random.key(seed) if samples else None
    most = samples or None
    shown.at("limit")
    limit = prompt_moments(*parts, math.inf, causal=causal, key=key, samples=most)
    shown.end("limit", outcome=limit.kind)
    curves = {}
    for kind in kinds:
        shown.at(_HEADINGS[kind])
        lengths_of_kind = short if kind == "estimate" else lengths
        curves[kind] = prompt_moments(
            *parts, lengths_of_kind, kind=kind, causal=causal, key=key, samples=most
        )
        shown.end(_HEADINGS[kind], outcome=f"{curves[kind].lengths.size} lengths")
    return _StackReport(limit, curves, missing, causal, _squared_tau(asked))


def _words(asked: "StackSpec", sizes: list[int]) -> str:
    layers, count = len(asked.stack.layers), len(sizes)
    words = f"{layers} layer{'s' * (layers > 1)} over {type(asked.law).__name__} tokens"
    return f"{words}, {count} length{'s' * (count > 1)}"


def _squared_tau(asked: "StackSpec") -> list[float] | None:
    """Return the squared sharpness of every softmax layer over a Gaussian; None for others."""
    from promptlimit._arrays import as_float64
    from promptlimit.depth import GaussianStack, unread_layer
    from promptlimit.measures import Gaussian

    if not isinstance(asked.law, Gaussian) or unread_layer(asked.stack.layers) is not None:
        return None
    moments = as_float64(asked.law.location), as_float64(asked.law.covariance)
    layers = GaussianStack.of(asked.stack.layers, *moments)
    return [layers.squared_tau(level) for level in range(layers.depth)]


def _notes(report: _StackReport) -> Iterator[str]:
    """Yield what a reader of the table must know: the kinds that are missing, and why."""
    for kind, why in report.missing.items():
        yield f"there is no {_HEADINGS[kind]} column: {why}"
    leading = report.curves.get("asymptotic")
    if leading is not None and not _finite(leading.bias):
        why = (
            "under a causal mask the first tokens decide it"
            if report.causal
            else "at some of these lengths it is not reached, because a layer is too sharp"
        )
        yield f"the bias has no leading order: {why}"


def _finite(array: "np.ndarray") -> bool:
    return all(math.isfinite(entry) for entry in array.ravel())


def _print(report: _StackReport) -> None:
    outputs = [f"{value:.10g}" for value in report.limit.limit]
    errors = report.limit.limit_error
    rows = [["limit", *outputs]]
    if errors.any():
        rows.append(["error", *(f"{value:.1g}" for value in errors)])
    rows.append(["kind", report.limit.kind, *[""] * (len(outputs) - 1)])
    print_table(["", *(f"output {index}" for index in range(len(outputs)))], rows, left=1)
    if report.curves:
        typer.echo("")
        headings = [f"{_HEADINGS[kind]} {word}" for kind in report.curves for word in _WORDS]
        print_table(["L", *headings], _rows(report))
    if report.squared_tau is not None:
        listing = ", ".join(f"{value:.4g}" for value in report.squared_tau)
        typer.echo(
            f"Squared sharpness of the layers: {listing}; 1/L needs less than 0.5 below the last."
        )


_WORDS = ("distance", "bias")


def _rows(report: _StackReport) -> Iterator[list[str]]:
    lengths = max((moments.lengths for moments in report.curves.values()), key=len)
    for place, length in enumerate(lengths):
        row = [f"{length:g}"]
        for kind, moments in report.curves.items():
            row += ["", ""] if place >= moments.lengths.size else _cells(kind, moments, place)
        yield row


def _cells(kind: str, moments: "PromptMoments", place: int) -> list[str]:
    """Return the root mean square distance from the limit and the size of the bias."""
    distance = math.sqrt(max(float(moments.mse[place]), 0.0))
    bias = math.hypot(*moments.bias[place])
    if kind != "estimate":
        return [f"{distance:.6g}", f"{bias:.6g}" if math.isfinite(bias) else "unknown"]
    error = float(moments.error[place]) / max(2.0 * distance, 1e-300)
    doubt = math.hypot(*moments.bias_error[place])
    return [f"{distance:.4g} ± {error:.1g}", f"{bias:.3g} ± {doubt:.1g}"]


def _write(report: _StackReport, out: Path) -> None:
    from promptlimit.storage import write_json

    write_json(out / "stack.json", report.to_dict())
    if report.curves:
        write_figure("stack_curve", report.to_arrays(), out / "stack")
