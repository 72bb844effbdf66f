"""A report holds every kind that can be had, and says why the others cannot."""

import numpy as np

from promptlimit.concentration import fit_rate
from promptlimit.concentration._report import _fit
from promptlimit.results import GapCurve


def test_gaps_of_the_same_prompts_are_fitted_with_their_covariance() -> None:
    lengths = np.array([10.0, 100.0, 1000.0, 1e4])
    value = 1.3 / lengths * np.array([1.0, 1.1, 0.9, 1.05])
    cov = 1e-2 * np.outer(value, value) * (0.9 + 0.1 * np.eye(4))
    curve = GapCurve(lengths, value, np.sqrt(np.diag(cov)), "estimate", None, 1.0, cov, 50)
    fit, want = _fit([curve]), fit_rate(lengths, value, cov=cov)
    assert fit is not None
    assert fit.standard_error == want.standard_error
    assert fit.standard_error < 0.5 * fit_rate(lengths, value, cov=np.diag(cov)).standard_error
