"""`promptlimit stream`: attention on a prompt too long for memory, at many of its prefixes."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from promptlimit.cli._console import (
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    print_json,
    require_folder,
    use_double_precision,
    warnings_as_notes,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._gap_input import (
    DimOption,
    FilesArgument,
    SharpnessOption,
    gap_problem,
    listed_lengths,
)
from promptlimit.cli._machines import (
    CoordinatorOption,
    DevicesOption,
    DistributedOption,
    Machines,
    ProcessesOption,
    ProcessOption,
    by_writer,
    machines,
)
from promptlimit.cli._problem_input import ExampleOption, PromptOption, read_files
from promptlimit.cli._progress import AbstractProgress, progress

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.experiments import StreamProblem
    from promptlimit.results import StreamReport
    from promptlimit.streaming import Progress as Streaming

_DEFAULT_LENGTH = 1e6


def stream(
    files: FilesArgument = None,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Read the tokens of this .npy file, [L, d]."),
    ] = None,
    example: ExampleOption = None,
    prompt: PromptOption = None,
    dim: DimOption = None,
    sharpness: SharpnessOption = None,
    length: Annotated[
        float | None,
        typer.Option("--length", metavar="L", help="Draw so many tokens of the law (1e6)."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", metavar="L,L,...", help="Prefixes; two a decade unless given."),
    ] = None,
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Queries to draw, where they have a law.")
    ] = 16,
    linear: Annotated[
        bool, typer.Option("--linear", help="Read as linear attention too, in the same pass.")
    ] = False,
    covariance: Annotated[
        bool, typer.Option("--covariance", help="Sum up tilted covariances too, for the JSON.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Keep the sums there, to go on when killed."),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Time between two times of saving.")
    ] = 30.0,
    seed: SeedOption = 0,
    devices: DevicesOption = None,
    distributed: DistributedOption = False,
    coordinator: CoordinatorOption = None,
    processes: ProcessesOption = None,
    process: ProcessOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what attention does with the first L tokens of one prompt that is never in memory.

    Tokens are drawn from a law, or read from a file. Beside each number stands what exact theory
    expects, where tokens are Gaussian.
    """
    if tokens is not None and length is not None:
        raise CommandError("--length must not be given with --tokens", "the file has its length")
    numbers = None if lengths is None else listed_lengths(lengths)
    if out is not None:
        require_folder(out)
    asked = Machines(devices, distributed, coordinator, processes, process)
    with progress("stream") as shown, machines(asked):
        shown.at("starting")
        use_double_precision()
        problem = _problem(files, tokens, example, prompt, dim, sharpness, length, queries, seed)
        report = _report(
            problem, numbers, shown, linear=linear, covariance=covariance, out=out, every=every
        )
        shown.close()
        if out is not None:
            by_writer(lambda: _write(report, out))
        if as_json:
            print_json(report.as_json())
        else:
            OUT.print(_table(report))
            OUT.print(_legend(report))


def _problem(
    files: list[str] | None,
    tokens: Path | None,
    example: str | None,
    prompt: str | None,
    dim: int | None,
    sharpness: float | None,
    length: float | None,
    queries: int,
    seed: int,
) -> "StreamProblem":
    from promptlimit import experiments

    given = ("stream", files or [], example, prompt, dim, sharpness)
    try:
        if tokens is None:
            law = gap_problem(*given)
            many = _DEFAULT_LENGTH if length is None else length
            return experiments.drawn_stream_problem(law, many, queries, seed)
        if not tokens.is_file():
            raise CommandError(f"--tokens must be a file, got {tokens}", "numpy.save writes one")
        held = read_files(files, prompt, "stream") if files else gap_problem(*given)
        return experiments.stored_stream_problem(held, tokens, queries, seed)
    except ValueError as refusal:
        raise CommandError(str(refusal), "promptlimit stream --help") from None


def _report(
    problem: "StreamProblem",
    lengths: list[float] | None,
    shown: AbstractProgress,
    *,
    linear: bool,
    covariance: bool,
    out: Path | None,
    every: float,
) -> "StreamReport":
    import numpy as np

    from promptlimit.experiments import stream_report
    from promptlimit.results import ConfigurationError, InputFileError, RunBusyError

    try:
        wanted = _two_a_decade(problem) if lengths is None else lengths
        item = f"{problem.length:.4g} tokens"
        count, prefixes = len(problem.queries), len(wanted)
        shown.plan(
            f"{item}, {count} quer{'y' if count == 1 else 'ies'}, "
            f"{prefixes} prefix{'' if prefixes == 1 else 'es'}",
            {item: 1.0},
        )

        def watch(at: "Streaming") -> None:
            speed = f", {at.rate / 1e6:.1f} M a second" if at.rate else ""
            shown.at(f"{at.done:.4g} of {item}{speed}", {item: at.done / problem.length})

        with warnings_as_notes():
            report = stream_report(
                problem,
                np.array(wanted),
                covariance=covariance,
                linear=linear,
                folder=None if out is None else out / "runs",
                every=every,
                watch=watch,
            )
        kept = report.streamed.effective_tokens[-1].mean()
        shown.end(item, outcome=f"effective tokens {kept:.4g}")
        return report
    except (ConfigurationError, RunBusyError) as refusal:
        raise CommandError(str(refusal), "promptlimit stream --out ANOTHER") from None
    except InputFileError as refusal:
        raise CommandError(str(refusal), "numpy.save writes a file of tokens") from None
    except ValueError as refusal:
        raise CommandError(str(refusal), "promptlimit stream --help") from None


def _two_a_decade(problem: "StreamProblem") -> list[float]:
    import numpy as np

    length = problem.length
    steps = range(2, 2 * math.ceil(math.log10(max(length, 10))))
    found = [round(10 ** (step / 2)) for step in steps]
    return np.unique([float(each) for each in found if each < length]).tolist()


def _write(report: "StreamReport", out: Path) -> None:
    from promptlimit.results import write_json

    write_json(out / "stream.json", report.as_json())
    write_figure("stream_curve", report.as_arrays(), out / "stream")


def _table(report: "StreamReport") -> Table:
    import numpy as np

    found, known = report.streamed, report.expected_tokens is not None
    table = Table(box=None, pad_edge=False)
    names = ["L", "distance", *["expected"] * known, "effective tokens", *["expected"] * known]
    for name in (*names, "largest weight", "entropy"):
        table.add_column(name, justify="right")
    for i, length in enumerate(found.lengths):
        row = [f"{length:g}" if length < 1e6 else f"{length:.4g}", _root(report.square[i])]
        if report.expected_square is not None:
            row.append(_root(report.expected_square[i]))
        row.append(f"{np.mean(found.effective_tokens[i]):.4g}")
        if report.expected_tokens is not None:
            row.append(f"{np.mean(report.expected_tokens[i]):.4g}")
        row += [f"{np.mean(found.max_weight[i]):.3g}", f"{np.mean(found.entropy[i]):.4f}"]
        table.add_row(*row)
    return table


def _legend(report: "StreamReport") -> str:
    against = "the limit" if report.is_limit else "the output on the whole prompt"
    count = report.streamed.output.shape[1]
    return f"RMS distance from {against}; means over {count} quer{'y' if count == 1 else 'ies'}."


def _root(squares: "np.ndarray") -> str:
    return f"{math.sqrt(squares.mean()):.4g}"
