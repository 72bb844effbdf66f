"""Whether a claim notices an error planted in what it uses."""

import jax

from promptlimit.studies import Claim, Setting


def turns_red(claim: Claim) -> bool:
    """Return whether a check of the statement fails; the checks after it are not computed."""
    assert claim.expected == "holds"  # without the error, every such check passes
    with jax.enable_x64(True):
        checks = iter(claim.decide(Setting(quick=True)))
        return any(check.role == "statement" and not check.passed for check in checks)
