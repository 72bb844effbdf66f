"""`promptlimit doctor`: installed packages, devices, and whether they compute correctly."""

import contextlib
import platform
from collections import Counter
from dataclasses import asdict, dataclass

import typer

from promptlimit._packages import extra_versions, installed_version, package_versions
from promptlimit._text import text_table
from promptlimit.cli._console import JsonOption, print_json
from promptlimit.cli._machines import Machines, machines


@dataclass(frozen=True)
class Finding:
    """One check of the installation.

    Attributes:
        name: the name of the check.
        well: whether the check passed.
        found: the result of the check, such as a version.
        remedy: a suggestion; empty if there is none.
    """

    name: str
    well: bool
    found: str
    remedy: str = ""


def doctor(where: Machines, as_json: JsonOption = False) -> None:
    """Check packages, devices, processes and precisions, and print how to install missing packages.

    Exits with status 1 if a check fails.
    """
    findings = [_python(), *_packages(), *_extras()]
    with contextlib.ExitStack() as stack:
        if all(finding.well for finding in findings):
            stack.enter_context(machines(where))
            findings.append(_devices())
        if all(finding.well for finding in findings):
            findings += [_hosts(), _collectives()]
            findings += map(_precision, ("float32", "float64"))
        if as_json:
            print_json([asdict(finding) for finding in findings])
        else:
            rows = (
                {
                    "": "ok" if finding.well else "no",
                    "check": finding.name,
                    "found": finding.found,
                    "remedy": finding.remedy,
                }
                for finding in findings
            )
            typer.echo(text_table(rows))
        if not all(finding.well for finding in findings):
            raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", True, f"{platform.python_version()} on {platform.machine()}")


def _packages() -> list[Finding]:
    (own, version), *others = package_versions().items()
    installed, remedy = installed_version(), ""
    state = str(version)
    if installed is None:
        state += ", not installed"
        remedy = "install it; only jax is checked"
    elif installed != version:
        state += f", installed as {installed}"
        remedy = "install it again; its requirements may have changed"
    return [
        Finding(own, True, state, remedy),
        *(
            Finding(name, False, "missing", f"pip install {name}")
            if there is None
            else Finding(name, True, there)
            for name, there in others
        ),
    ]


def _extras() -> list[Finding]:
    """Return one finding per optional package; a missing package passes."""
    return [
        Finding(name, True, "missing", f"for the extra {extra}: pip install 'promptlimit[{extra}]'")
        if there is None
        else Finding(name, True, there)
        for extra, packages in extra_versions().items()
        for name, there in packages.items()
    ]


def _devices() -> Finding:
    try:
        import jax

        devices = jax.devices()
    except Exception as problem:
        remedy = "unset JAX_PLATFORMS, or install the jax build for this device"
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        return Finding("devices", False, reason, remedy)
    kinds = Counter(f"{device.platform}:{device.device_kind}" for device in devices)
    listing = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    accelerated = any(device.platform != "cpu" for device in devices)
    remedy = "" if accelerated else "for an NVIDIA GPU: pip install 'jax[cuda13]'"
    return Finding("devices", True, listing, remedy)


def _hosts() -> Finding:
    import jax

    count = jax.process_count()
    if count == 1:
        return Finding("hosts", True, "1 process")
    return Finding("hosts", True, f"{count} processes, this is number {jax.process_index()}")


def _collectives() -> Finding:
    """Check that sums across all devices are correct."""
    from promptlimit.parallel import collective_sums

    sums, expected = collective_sums()
    well = bool((sums == expected).all())
    words = f"{sums.size} of {sums.size} devices" if well else f"sums {sums} for {expected}"
    remedy = "" if well else "please report this, with this table"
    return Finding("collectives", well, words, remedy)


def _precision(name: str) -> Finding:
    """Check a closed form: with U = V = I, the limit over standard normal tokens is the query."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import promptlimit as pl

    with jax.enable_x64(name == "float64"):
        query = np.array([0.1, -2.0], name)
        prompt = pl.Gaussian([0.0, 0.0], np.eye(2))
        output = pl.SoftmaxAttention(np.eye(2), np.eye(2))(prompt, query)
        error = float(np.abs(np.asarray(output) - query).max())
        well = output.dtype == name and error <= 4 * float(jnp.finfo(output.dtype).eps)
    state = f"Lemma 2.1 holds to {error:.1e}"
    return Finding(name, well, state, "" if well else "please report this, with this table")
