"""`promptlimit stream`: attention on prefixes of a prompt that does not fit in memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    CommandError,
    SeedOption,
    UsageError,
    above_zero,
    any_number,
    whole_option,
)
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._machines import Machines, machines
from promptlimit.cli._options import Lengths, Problem, input_path, named_arrays
from promptlimit.cli._progress import progress
from promptlimit.errors import ConfigurationError, RunBusyError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.streaming import Progress


def stream(
    problem: Problem,
    prompt: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            parser=input_path,
            help="Read the tokens, [L, d], from a .npy file, which is memory-mapped, or from "
            "another file or a pipe, which is read into memory.",
        ),
    ] = None,
    length: Annotated[
        float | None,
        typer.Option(
            "--length",
            metavar="L",
            parser=any_number("--length"),
            help="Number of tokens to draw from the law (default 1e6).",
        ),
    ] = None,
    lengths: Lengths = None,
    count: Annotated[
        int,
        whole_option("--queries", "Queries to draw, if they have a law.", most=10**6),
    ] = 16,
    linear: Annotated[
        bool, typer.Option("--linear", help="Also compute linear attention; included in the JSON.")
    ] = False,
    covariance: Annotated[
        bool,
        typer.Option("--covariance", help="Also compute tilted covariances; included in the JSON."),
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="SECONDS",
            parser=above_zero("--every"),
            help="Time between checkpoints.",
        ),
    ] = 30.0,
    seed: SeedOption = 0,
    *,
    where: Machines,
    output: Output,
) -> None:
    """Print attention over the first L tokens of one long prompt, in one pass, for several L.

    Tokens are drawn from a law or read from a file. For Gaussian tokens, exact means over prompts
    are also printed. Without --lengths, there are two lengths L per decade. With --out DIR,
    checkpoints are stored, and the same command resumes from them.
    """
    if prompt is not None and length is not None:
        raise UsageError("--length must not be given together with --tokens")
    with progress("stream") as shown, machines(where) as writes:
        shown.at("starting")
        stored = None if prompt is None else _tokens(prompt)
        given = problem.load()
        import jax
        import numpy as np

        from promptlimit.measures import AbstractMeasure
        from promptlimit.streaming import Generated, stream_report

        query_key, token_key = jax.random.split(jax.random.key(seed))
        queries = given.queries
        if isinstance(queries, AbstractMeasure):
            with jax.enable_x64(True):
                queries = np.asarray(queries.sample(count, key=query_key), np.float64)
        tokens = stored
        if tokens is None:
            tokens = Generated(given.measure, 1e6 if length is None else length, key=token_key)

        def watch(at: "Progress") -> None:
            speed = f", {at.rate / 1e6:.1f} M per second" if at.rate else ""
            shown.step(f"{at.done:.4g} tokens{speed}", at.done, at.total or at.done)

        try:
            report = stream_report(
                given.attention,
                tokens,
                queries,
                lengths,
                covariance=covariance,
                linear=linear,
                folder=None if output.folder is None else output.folder / "runs",
                every=every,
                watch=watch,
            )
        except (ConfigurationError, RunBusyError) as refusal:
            raise CommandError(str(refusal), "choose another --out") from None
        shown.close()
        emit(report, output, "stream", writes=writes)


def _tokens(path: Path) -> "Path | np.ndarray":
    """Return the path itself for a .npy file, otherwise the tokens in the file or pipe."""
    if path.is_file() and path.suffix == ".npy":
        return path
    found = named_arrays(
        f"tokens={path}", ("tokens",), before="--tokens: ", hint="numpy.save writes such a file"
    )
    return found["tokens"]
