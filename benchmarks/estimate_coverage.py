"""How often do two standard errors of a simulated gap hold the exact one?

Prints the share of 500 repeats, for gaps of light and of heavy tails; nothing is asserted.
"""

import sys
import warnings

import jax
import numpy as np

import promptlimit as pl

LENGTHS = (3, 30, 300)
REPEATS = 500
SAMPLES = 200


def main(smallest: bool = False) -> None:
    """Print a line for each tau."""
    repeats, taus = (2, (0.2,)) if smallest else (REPEATS, (0.2, 0.4, 0.6, 1.0))
    jax.config.update("jax_enable_x64", True)
    normal = pl.Gaussian([0.0], [[1.0]])
    print("share within 1.96 standard errors at L = " + ", ".join(map(str, LENGTHS)))
    for tau in taus:
        attention = pl.SoftmaxAttention([[tau]], [[1.0]])
        exact = pl.output_gap(attention, normal, normal, LENGTHS).value
        hits, warned = np.zeros(len(LENGTHS)), 0
        for key in jax.random.split(jax.random.key(0), repeats):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                drawn = pl.output_gap(
                    attention, normal, normal, LENGTHS, kind="estimate", key=key, samples=SAMPLES
                )
            warned += bool(caught)
            hits += np.abs(drawn.value - exact) < 1.96 * drawn.error
        shares = "  ".join(f"{100 * hit / repeats:5.1f}%" for hit in hits)
        print(f"tau {tau}   {shares}   warned in {100 * warned / repeats:.0f}%")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
