"""The law of tokens along continuous depth."""

from typing import TYPE_CHECKING, Any

import numpy as np

from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axes_for, axis, variable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class DepthFlow(Result):
    r"""The prompt $\mu_t$ at several depths t, in the limit of many thin layers.

    Attributes:
        times: the depths t, in increasing order, [n].
        mean: the mean of the tokens at each depth, [n, d]; NaN from `blow_up` on.
        value: the covariance $G(t)$ of the tokens, [n, d, d]; NaN from `blow_up` on.
        error: the error of each entry of `value`, [n, d, d]; 0 for a closed form.
        kind: "limit" for a Gaussian, "exact" for tokens.
        blow_up: $t^*$, the depth at which the covariance becomes infinite; infinite if there is no
            such depth, None if $t^*$ is unknown but larger than the last time.
        tokens: the tokens at each depth, [n, L, d]; None for a Gaussian.
    """

    times: np.ndarray = axis("time", "t")
    mean: np.ndarray = variable("time", "row")
    value: np.ndarray = variable("time", "row", "column", label="covariance")
    error: np.ndarray = variable("time", "row", "column")
    kind: Kind
    blow_up: float | None
    tokens: np.ndarray | None = variable("time", "token", "row", bulk=True, default=None)

    @property
    def cov(self) -> np.ndarray:
        """The same as `value`."""
        return self.value

    def ranks(self, threshold: float = 1e-9) -> np.ndarray:
        """Return the number of eigenvalues of each covariance above `threshold` times the largest.

        The rank does not change with depth, so an eigenvalue that is not counted may be small but
        positive. The result is 0 from `blow_up` on.
        """
        ranks = np.zeros(self.times.size, dtype=int)
        for place in np.flatnonzero(np.isfinite(self.value).all(axis=(1, 2))):
            spectrum = np.linalg.eigvalsh(self.value[place])
            ranks[place] = int(np.sum(spectrum > threshold * spectrum[-1]))
        return ranks

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the eigenvalues of the covariance against depth, and the depth of the blow-up.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: keywords for the style of the lines, as for `ax.plot`.
        """
        roles = self._roles()
        drawn = axes_for(ax, roles["times"], roles["value"], self.times)
        drawn.set(ylabel="eigenvalues of the covariance", yscale="log")
        known = np.isfinite(self.value).all(axis=(1, 2))
        spectra = np.linalg.eigvalsh(self.value[known])
        style.setdefault("label", self.kind)
        first, *others = drawn.plot(self.times[known], spectra[:, ::-1], **style)
        for line in others:
            line.set(color=first.get_color(), label="_")
        if self.blow_up is not None and self.blow_up <= self.times[-1]:
            drawn.axvline(self.blow_up, color=first.get_color(), linestyle="--", linewidth=1)
        return drawn
