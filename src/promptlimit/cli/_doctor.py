"""`promptlimit doctor`: what is installed, what computes, and what is missing."""

import importlib.metadata
import platform
from dataclasses import asdict, dataclass

import typer
from rich.markup import escape
from rich.table import Table

from promptlimit.cli._console import OUT, JsonOption, print_json

_PARTS = (
    "jax",
    "jaxlib",
    "equinox",
    "diffrax",
    "jaxtyping",
    "numpy",
    "scipy",
    "matplotlib",
    "typer",
    "rich",
)


@dataclass(frozen=True)
class Finding:
    """One thing examined: whether it is well, what was found, and the way out if it is not."""

    name: str
    well: bool
    found: str
    remedy: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Report versions, devices and precisions, and how to get what is missing.

    Exits 1 when something the library needs does not work.
    """
    findings = [_python(), *map(_part, _PARTS)]
    if all(finding.well for finding in findings):
        findings.append(_devices())
    if all(finding.well for finding in findings):
        findings += map(_precision, ("float32", "float64"))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        OUT.print(_table(findings))
    if not all(finding.well for finding in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", True, f"{platform.python_version()} on {platform.machine()}")


def _part(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "missing", f"pip install {name}")


def _devices() -> Finding:
    try:
        import jax

        devices = jax.devices()
    except Exception as problem:
        remedy = "unset JAX_PLATFORMS, or install the jax build for this device"
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        return Finding("devices", False, reason, remedy)
    kinds = [f"{device.platform}:{device.device_kind}" for device in devices]
    accelerated = any(device.platform != "cpu" for device in devices)
    remedy = "" if accelerated else "for an NVIDIA GPU: pip install 'jax[cuda13]'"
    return Finding("devices", True, ", ".join(kinds), remedy)


def _precision(name: str) -> Finding:
    """Try one closed form on the device: the limit over standard normal tokens is the identity."""
    import jax
    import jax.numpy as jnp

    import promptlimit as pl

    with jax.enable_x64(name == "float64"):
        query = jnp.array([0.1, -2.0])
        prompt = pl.Gaussian(jnp.zeros(2), jnp.eye(2))
        output = pl.SoftmaxAttention(jnp.eye(2), jnp.eye(2))(prompt, query)
        error = float(jnp.abs(output - query).max())
        well = output.dtype == name and error <= 4 * float(jnp.finfo(output.dtype).eps)
    found = f"Lemma 2.1 holds to {error:.1e}"
    return Finding(name, well, found, "" if well else "please report this, with this table")


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        mark = "[green]ok[/]" if finding.well else "[bold red]no[/]"
        table.add_row(mark, *map(escape, (finding.name, finding.found, finding.remedy)))
    return table
