"""`promptlimit stream`: attention on a prompt too long for memory, at many of its prefixes."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from promptlimit.cli._console import (
    OUT,
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
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._inputs import (
    LENGTHS,
    Source,
    Standard,
    lengths_in,
    problem_of,
    require_positive,
)
from promptlimit.cli._machines import Machines, by_writer, machines
from promptlimit.cli._progress import AbstractProgress, progress
from promptlimit.errors import (
    AccuracyError,
    ConfigurationError,
    InputFileError,
    KindUnavailableError,
    RunBusyError,
)

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.attention import AbstractAttention
    from promptlimit.results import StreamedAttention, StreamReport
    from promptlimit.streaming import Generated
    from promptlimit.streaming import Progress as Streaming


class _Prompt(NamedTuple):
    """A head, its queries one a row, and the tokens it reads: to be drawn, or in a file."""

    attention: "AbstractAttention"
    queries: "np.ndarray"
    tokens: "Generated | Path"
    length: int


def stream(
    source: Source,
    standard: Standard,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Read the tokens of this .npy file, [L, d]."),
    ] = None,
    length: Annotated[
        float | None,
        typer.Option("--length", metavar="L", help="Draw so many tokens of the law (1e6)."),
    ] = None,
    lengths: Annotated[str | None, LENGTHS] = None,
    queries: Annotated[
        int,
        typer.Option("--queries", min=1, max=10**6, help="Queries to draw, where they have a law."),
    ] = 16,
    linear: Annotated[
        bool, typer.Option("--linear", help="Read as linear attention too, in the same pass.")
    ] = False,
    covariance: Annotated[
        bool, typer.Option("--covariance", help="Sum up tilted covariances too, for the JSON.")
    ] = False,
    out: Annotated[
        Path | None,
        out_option("Keep the sums there, to go on when killed."),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Time between two times of saving.")
    ] = 30.0,
    seed: SeedOption = 0,
    *,
    where: Machines,
    as_json: JsonOption = False,
) -> None:
    """Print what attention does with the first L tokens of one prompt that is never in memory.

    Tokens are drawn from a law, or read from a file. Beside each number stands what exact theory
    expects, where tokens are Gaussian. Prefixes are two a decade unless --lengths lists them.
    """
    if tokens is not None and length is not None:
        raise UsageError("--length must not be given with --tokens", "the file has its length")
    if tokens is not None and not tokens.is_file():
        raise CommandError(f"--tokens must be a file, got {tokens}", "numpy.save writes one")
    require_positive("--every", every, 30.0)
    prefixes = None if lengths is None else lengths_in(lengths)
    require_folder(out)
    with progress("stream") as shown, machines(where):
        shown.at("starting")
        options = {"linear": linear, "covariance": covariance, "every": every}
        folder = None if out is None else out / "runs"
        try:
            prompt = _prompt(
                source, standard, tokens, 1e6 if length is None else length, queries, seed
            )
            report = _report(
                prompt, prefixes or _two_a_decade(prompt.length), shown, folder, options
            )
        except ValueError as problem:
            raise _as_command_error(problem) from None
        shown.close()
        emit(
            lambda: print_json(report.to_dict()) if as_json else _print(report),
            None if out is None else lambda: by_writer(lambda: _write(report, out)),
        )


def _as_command_error(problem: ValueError) -> CommandError:

    if isinstance(problem, (ConfigurationError, RunBusyError)):
        return CommandError(str(problem), "promptlimit stream --out ANOTHER")
    if isinstance(problem, InputFileError):
        return CommandError(str(problem), "numpy.save writes a file of tokens")
    return as_usage_error(problem, "stream", "length", "lengths")


def _prompt(
    source: Source,
    standard: Standard,
    file: Path | None,
    length: float,
    count: int,
    seed: int,
) -> _Prompt:
    """Return what was asked for, with so many queries where they have a law."""
    problem = problem_of("stream", source, standard, with_law=file is None)
    import jax
    import numpy as np

    from promptlimit.measures import AbstractMeasure
    from promptlimit.streaming import Generated, stored_length

    query_key, token_key = jax.random.split(jax.random.key(seed))
    queries = problem.queries
    if isinstance(queries, AbstractMeasure):
        with jax.enable_x64(True):
            queries = queries.sample(count, key=query_key)
    rows = np.asarray(queries, np.float64)
    if file is not None:
        return _Prompt(problem.attention, rows, file, stored_length(file))
    drawn = Generated(problem.parts[1], length, key=token_key)
    return _Prompt(problem.attention, rows, drawn, drawn.length)


def _report(
    prompt: _Prompt,
    prefixes: list[int],
    shown: AbstractProgress,
    folder: Path | None,
    options: dict,
) -> "StreamReport":
    """Return what was streamed, and what was to be expected where the law of tokens is known."""
    import jax
    import numpy as np

    from promptlimit.results import StreamReport
    from promptlimit.streaming import stream

    attention, queries, tokens, length = prompt
    item, count = f"{length:.4g} tokens", len(queries)
    shown.plan(
        f"{item}, {count} quer{'y' if count == 1 else 'ies'}, "
        f"{len(prefixes)} prefix{'' if len(prefixes) == 1 else 'es'}",
        {item: 1.0},
    )

    def watch(at: "Streaming") -> None:
        speed = f", {at.rate / 1e6:.1f} M a second" if at.rate else ""
        shown.at(f"{at.done:.4g} of {item}{speed}", {item: at.done / length})

    sizes = np.array(prefixes, np.float64)
    streamed = stream(attention, tokens, queries, sizes, folder=folder, watch=watch, **options)
    if isinstance(tokens, Path):
        report = StreamReport(streamed, streamed.output[-1], False, None, None)
    else:
        with jax.enable_x64(True):
            limits = [np.asarray(attention(tokens.measure, query)) for query in queries]
        expected = _expected(prompt, tokens, streamed)
        report = StreamReport(streamed, np.stack(limits), True, *expected)
    shown.end(item, outcome=f"effective tokens {streamed.effective_tokens[-1].mean():.4g}")
    return report


def _expected(
    prompt: _Prompt, drawn: "Generated", streamed: "StreamedAttention"
) -> "tuple[np.ndarray, np.ndarray] | tuple[None, None]":
    """Return mean square distances and effective tokens; of too sharp queries nothing is known."""
    import numpy as np

    from promptlimit.finite import prompt_moments

    lengths = streamed.lengths.astype(np.float64)
    try:
        moments = [
            prompt_moments(prompt.attention, drawn.measure, query, lengths, kind="exact")
            for query in prompt.queries
        ]
    except (KindUnavailableError, AccuracyError) as refusal:  # the stream is done: keep it
        print_note(f"There is no exact theory to compare with: {refusal}")
        return None, None
    squares, tokens = ([getattr(m, name) for m in moments] for name in ("mse", "effective_tokens"))
    return np.stack(squares, axis=1), np.stack(tokens, axis=1)


def _two_a_decade(length: int) -> list[int]:
    steps = range(2, 2 * math.ceil(math.log10(max(length, 10))))
    return sorted({size for step in steps if (size := round(10 ** (step / 2))) < length})


def _write(report: "StreamReport", out: Path) -> None:
    from promptlimit.storage import write_json

    write_json(out / "stream.json", report.to_dict())
    write_figure("stream_curve", report.to_arrays(), out / "stream")


def _print(report: "StreamReport") -> None:
    import numpy as np

    streamed, known = report.streamed, report.expected_tokens is not None
    names = ["L", "distance", *["expected"] * known, "effective tokens", *["expected"] * known]
    rows = []
    for i, length in enumerate(streamed.lengths):
        row = [f"{length:g}" if length < 1e6 else f"{length:.4g}", _root(report.square[i])]
        if report.expected_square is not None:
            row.append(_root(report.expected_square[i]))
        row.append(f"{np.mean(streamed.effective_tokens[i]):.4g}")
        if report.expected_tokens is not None:
            row.append(f"{np.mean(report.expected_tokens[i]):.4g}")
        row += [f"{np.mean(streamed.max_weight[i]):.3g}", f"{np.mean(streamed.entropy[i]):.4f}"]
        rows.append(row)
    print_table([*names, "largest weight", "entropy"], rows)
    OUT.print(_legend(report))


def _legend(report: "StreamReport") -> str:
    against = "the limit" if report.is_limit else "the output on the whole prompt"
    count = report.streamed.output.shape[1]
    return f"RMS distance from {against}; means over {count} quer{'y' if count == 1 else 'ies'}."


def _root(squares: "np.ndarray") -> str:
    return f"{math.sqrt(squares.mean()):.4g}"
