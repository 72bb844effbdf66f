"""`promptlimit denoise`: how far attention is from Bayes on a mixture, at every length."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    CommandError,
    JsonOption,
    UsageError,
    emit,
    out_option,
    print_json,
    print_note,
    print_table,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._inputs import LENGTHS, lengths_in
from promptlimit.cli._progress import AbstractProgress, progress
from promptlimit.errors import ArgumentError, InputFileError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.attention import AbstractAttention
    from promptlimit.tasks import Denoising

_HINTS = {
    "--means": '--means "3,0; 0,3"',
    "--weights": "--weights 0.5,0.5",
    "--within": "--within 1",
    "--noise": "--noise 4",
}
_OPTIONS = {
    "means": "--means",
    "weights": "--weights",
    "within_variance": "--within",
    "noise_variance": "--noise",
}
"""What the library calls the numbers that the options hold."""

_LABELS = {
    "layer": "layer of Bayes",
    "two_heads": "two heads",
    "linear": "linear",
    "best": "best layer",
}
_USUAL_SECONDS = {"layer": 3.0, "two_heads": 15.0, "linear": 1.0, "best": 10.0}
_HOTTEST = 1.6
"""Gates beyond are not searched."""

_ROUNDING = 2.0**-52


def denoise(
    means: Annotated[
        str,
        typer.Option(
            "--means",
            metavar="ROWS",
            help="The means, one a row, semicolons between, or a file: .npy or .csv with them; "
            ".npz or .json with means and perhaps weights.",
        ),
    ] = "3,0; 0,3",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="W,W,...", help="Of the components, with sum one (equal)."
        ),
    ] = None,
    within: Annotated[
        float, typer.Option("--within", help="Variance of a clean token about its mean.")
    ] = 1.0,
    noise: Annotated[float, typer.Option("--noise", help="Variance of what is added to it.")] = 4.0,
    lengths: Annotated[str, LENGTHS] = "10,100,1e3,1e4,1e6",
    clean_prompt: Annotated[
        bool,
        typer.Option("--clean-prompt", help="The prompt holds clean tokens; the query is noisy."),
    ] = False,
    two_heads: Annotated[
        bool,
        typer.Option("--two-heads", help="Also the two heads of Theorem 4.1, some 15 seconds."),
    ] = False,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Also the best layer at each length, some ten seconds a length."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        out_option("Also write denoise.json and the figure there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print how far attention is from the Bayes denoiser of a Gaussian mixture, exactly.

    The prompt holds noisy tokens, the query is one more. The numbers are mean squared distances to
    the best predictor there is; what that one misses itself is printed below.
    """
    require_folder(out)
    sizes = [*map(float, lengths_in(lengths)), math.inf]
    centres, shares = _mixture(means, weights)
    with progress("denoise") as shown:
        shown.at("starting")
        use_double_precision()
        from promptlimit.tasks import Denoising

        try:
            task = Denoising(
                centres,
                shares,
                within_variance=within,
                noise_variance=noise,
                clean_prompt=clean_prompt,
            )
            report = _report(task, sizes, _asked(two_heads, best), shown)
        except ArgumentError as problem:
            raise _as_usage_error(problem, in_file=_typed_means(means) is None) from None
    for note in _notes(report, best):
        print_note(note)
    emit(
        lambda: print_json(report.to_dict()) if as_json else _print(report),
        None if out is None else lambda: _write(report, out),
    )


def _mixture(means: str, weights: str | None) -> "tuple[np.ndarray, np.ndarray]":
    """Return means and weights as they were typed, or as a file holds them."""
    import numpy as np

    arrays = _typed_means(means) or _means_in_file(means)
    centres = arrays["means"]
    if weights is not None:
        try:
            return centres, np.array([float(part) for part in weights.split(",")])
        except ValueError:
            words = f"--weights must be numbers with commas between, got '{weights}'"
            raise UsageError(words, _HINTS["--weights"]) from None
    count = centres.shape[0] if centres.ndim else 1
    return centres, arrays.get("weights", np.full(count, 1.0 / max(count, 1)))


def _typed_means(text: str) -> "dict[str, np.ndarray] | None":
    """Return the rows that were typed; None where the text is the name of a file."""
    import numpy as np

    try:
        rows = [[float(part) for part in row.split(",")] for row in text.split(";")]
    except ValueError:
        if Path(text).suffix.lower() in (".npy", ".csv", ".npz", ".json"):
            return None
        words = f"--means must be rows of numbers with semicolons between, or a file, got '{text}'"
        raise UsageError(words, _HINTS["--means"]) from None
    if len({*map(len, rows)}) > 1:
        words = f"--means must have rows of one length, got {', '.join(str(len(r)) for r in rows)}"
        raise UsageError(words, _HINTS["--means"])
    return {"means": np.array(rows)}


def _means_in_file(name: str) -> "dict[str, np.ndarray]":
    """Return what a file holds: means, and perhaps weights."""
    from promptlimit.storage import read_arrays

    single = Path(name).suffix.lower() in (".npy", ".csv")
    try:
        content = read_arrays(f"means={name}" if single else name, {"means", "weights"})
    except InputFileError as problem:
        raise CommandError(str(problem), _HINTS["--means"]) from None
    if "means" not in content or not set(content) <= {"means", "weights"}:
        words = f"{name} must hold means and perhaps weights, got {', '.join(content) or 'nothing'}"
        raise CommandError(words, _HINTS["--means"])
    arrays = {key: value for key, value in content.items() if not isinstance(value, str)}
    if texts := sorted(set(content) - set(arrays)):
        raise CommandError(f"{name} must hold numbers in {texts[0]}, got a text", _HINTS["--means"])
    if "weights" in arrays and 1 in arrays["weights"].shape:
        arrays["weights"] = arrays["weights"].ravel()
    return arrays


def _as_usage_error(problem: ArgumentError, *, in_file: bool) -> CommandError:
    """Return a refusal of the library in the names of the options."""
    of_means = CommandError if in_file else UsageError
    if problem.argument in ("task", "attention"):
        return of_means(
            f"--means must be near enough for finite prompts, but {problem}",
            "take nearer means or larger variances",
        )
    if problem.argument not in _OPTIONS:
        return CommandError(str(problem), "promptlimit denoise --help")
    option = _OPTIONS[problem.argument]
    wrong = of_means if option == "--means" else UsageError
    return wrong(f"{option} {problem.renamed(**_OPTIONS).requirement}", _HINTS[option])


def _asked(two_heads: bool, best: bool) -> list[str]:
    """Return the predictors to be had, in the order of the columns."""
    chosen = {"layer": True, "two_heads": two_heads, "linear": True, "best": best}
    return [name for name, wanted in chosen.items() if wanted]


@dataclasses.dataclass(frozen=True)
class _Predictor:
    """How far one predictor is from Bayes, one number a length.

    Attributes:
        excess: the mean squared distance.
        error: of it.
        more: other numbers of the predictor, by name.
    """

    excess: "np.ndarray"
    error: "np.ndarray"
    more: "dict[str, np.ndarray]" = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Report:
    """What is known of a mixture.

    Attributes:
        task: the mixture.
        lengths: of prompts, the last infinite.
        predictors: by name.
        missing: why one is not to be had, by name.
        bayes_risk: the mean squared error of Bayes.
        tau: the largest standard deviation of scores of the layer of Bayes.
        exponent: by which its excess falls in the end.
    """

    task: "Denoising"
    lengths: "np.ndarray"
    predictors: dict[str, _Predictor]
    missing: dict[str, str]
    bayes_risk: float
    tau: float
    exponent: float

    def to_dict(self) -> dict[str, object]:
        """Return plain numbers and lists; what is infinite is null."""
        from promptlimit.results import plain

        task = self.task
        return plain(
            {
                "means": task.means,
                "weights": task.weights,
                "within_variance": task.within_variance,
                "noise_variance": task.noise_variance,
                "clean_prompt": task.clean_prompt,
                "bayes_risk": self.bayes_risk,
                "lengths": self.lengths,
                "predictors": {
                    name: {
                        "kind": "exact",
                        "excess": one.excess,
                        "error": one.error,
                        **one.more,
                    }
                    for name, one in self.predictors.items()
                },
                "missing": self.missing,
                "exponent": {"value": self.exponent, "tau": self.tau},
            }
        )

    def to_arrays(self) -> "dict[str, np.ndarray]":
        """Return what the figure shows."""
        import numpy as np

        excesses = {name: one.excess for name, one in self.predictors.items()}
        return {"lengths": self.lengths, "exponent": np.array(self.exponent), **excesses}


def _report(
    task: "Denoising", lengths: Sequence[float], names: Sequence[str], shown: AbstractProgress
) -> _Report:
    """Return the excess of all predictors, and tell of each."""
    import numpy as np

    from promptlimit.attention import SoftmaxAttention
    from promptlimit.concentration import gap_exponent
    from promptlimit.measures import Gaussian
    from promptlimit.tasks import bayes_risk

    attentions, missing = _attentions(task, names)
    items = {_LABELS[name]: _USUAL_SECONDS[name] for name in attentions}
    if "best" in names:
        items |= {_best_item(length): _USUAL_SECONDS["best"] for length in lengths}
    dim, count = task.token_dim, len(lengths) - 1
    place = f"{dim} dimension{'s' * (dim > 1)}, {count} length{'s' * (count > 1)}"
    shown.plan(f"{len(task.weights)} components in {place}", items)
    predictors = dict(_predictors(task, lengths, attentions, "best" in names, shown))
    eye = np.eye(dim)
    head = SoftmaxAttention(eye / task.query_variance, eye)
    laws = (Gaussian(np.zeros(dim), v * eye) for v in (task.token_variance, task.query_variance))
    rate = gap_exponent(head, *laws)
    return _Report(
        task=task,
        lengths=np.array(lengths),
        predictors=predictors,
        missing=missing,
        bayes_risk=float(bayes_risk(task, math.inf).mse),
        tau=rate.tau,
        exponent=rate.value,
    )


def _attentions(
    task: "Denoising", names: Sequence[str]
) -> "tuple[dict[str, AbstractAttention], dict[str, str]]":
    """Return those that were asked for and do not depend on the length, and why others fail."""
    from promptlimit.tasks import bayes_heads, bayes_layer, linear_denoiser

    makers: dict[str, Callable[[Denoising], AbstractAttention]] = {
        "layer": bayes_layer,
        "two_heads": bayes_heads,
        "linear": linear_denoiser,
    }
    attentions, missing = {}, {}
    for name in names:
        if name in makers:
            try:
                attentions[name] = makers[name](task)
            except ArgumentError as problem:
                if problem.argument != "task":
                    raise
                missing[name] = f"the task {problem.requirement}"
    return attentions, missing


def _predictors(
    task: "Denoising",
    lengths: Sequence[float],
    attentions: "dict[str, AbstractAttention]",
    best: bool,
    shown: AbstractProgress,
) -> Iterator[tuple[str, _Predictor]]:
    import numpy as np

    from promptlimit.tasks import bayes_excess, best_layer

    for name, attention in attentions.items():
        shown.at(_LABELS[name])
        risk = bayes_excess(attention, task, np.array(lengths))
        if not np.isfinite(risk.mse).all():
            raise OverflowError(f"the excess of the predictor '{_LABELS[name]}'")
        yield name, _Predictor(np.asarray(risk.mse), np.asarray(risk.mse_error))
        outcome = f"excess {np.ravel(risk.mse)[0]:.4g} at L = {lengths[0]:g}"
        shown.end(_LABELS[name], outcome=outcome)
    if not best:
        return
    layers = []
    for length in lengths:
        shown.at(_best_item(length))
        layers.append(layer := best_layer(task, length))
        shown.end(_best_item(length), outcome=f"excess {layer.mse:.4g}")
    columns = ("mse", "mse_error", "gate", "gain", "residual")
    mse, error, gate, gain, residual = (
        np.array([getattr(layer, column) for layer in layers]) for column in columns
    )
    temperature = np.divide(1.0, gate, out=np.full(gate.shape, np.inf), where=gate > 0.0)
    more = {"gate": gate, "temperature": temperature, "gain": gain, "residual": residual}
    yield "best", _Predictor(mse, error, more)


def _best_item(length: float) -> str:
    return f"best layer at L = {length:g}"


def _notes(report: _Report, best: bool) -> Iterator[str]:
    """Yield what a reader of the table must know: what is missing, where a search ended."""
    for name, why in report.missing.items():
        yield f"there is no column '{_LABELS[name]}': {why}"
    if "layer" in report.missing and not best:
        yield "--best finds the best layer of any mixture"
    if "best" in report.predictors:
        hot = report.lengths[report.predictors["best"].more["gate"] >= 0.99 * _HOTTEST]
        if hot.size:
            places = ", ".join(f"{length:g}" for length in hot)
            yield (
                f"at L = {places} the best gate is the hottest that is looked at, {_HOTTEST:g} "
                "times that of Bayes: hotter ones can be better still"
            )


def _print(report: _Report) -> None:
    smallest = _ROUNDING * report.bayes_risk
    tuned = report.predictors["best"].more if "best" in report.predictors else {}
    extra = [name for name in tuned if name != "gate"]
    rows = []
    for place, length in enumerate(report.lengths):
        excesses = [one.excess[place] for one in report.predictors.values()]
        cells = [f"{value:.4g}" if value > smallest else "0" for value in excesses]
        rows.append([f"{length:g}", *cells, *(f"{tuned[name][place]:.4g}" for name in extra)])
    print_table(["L", *(_LABELS[name] for name in report.predictors), *extra], rows)
    typer.echo(f"Bayes itself has a mean squared error of {report.bayes_risk:.6f}.")
    if "layer" in report.predictors:
        typer.echo(_rate(report))


def _rate(report: _Report) -> str:
    """Return how the layer of Bayes falls, in the end and between the last two lengths."""
    words = f"The layer of Bayes falls as L^-{report.exponent:.4g} (τ {report.tau:.4g}) in the end"
    lengths, excess = report.lengths[:-1], report.predictors["layer"].excess
    if lengths.size < 2 or not 0.0 < excess[-2] < excess[-3]:
        return f"{words}."
    slope = math.log(excess[-3] / excess[-2]) / math.log(lengths[-1] / lengths[-2])
    return f"{words}, and as L^-{slope:.4g} from L = {lengths[-2]:g} to {lengths[-1]:g}."


def _write(report: _Report, out: Path) -> None:
    from promptlimit.storage import write_json

    write_json(out / "denoise.json", report.to_dict())
    write_figure("denoise_curve", report.to_arrays(), out / "denoise")
