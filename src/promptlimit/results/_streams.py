"""Attention over one prompt at several of its prefix lengths."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from promptlimit.results._result import Result, axis, derived, variable


class StreamedAttention(Result):
    r"""Attention of q queries to the first L tokens of one prompt, at n lengths L.

    The scores are $s_i=\langle Uz,z_i\rangle$ and the weights $p_i\propto e^{s_i}$. All numbers are
    computed in double precision, from tokens that may be rounded (`dtype`).

    Attributes:
        lengths: $L$, [n].
        output: the output of the attention, [n, q, output_dim].
        log_sum_exp: $\log\sum_ie^{s_i}$, [n, q].
        max_score: $\max_is_i$, [n, q].
        max_weight: $\max_ip_i$, [n, q].
        participation: $S_2=\sum_ip_i^2$, [n, q].
        entropy: $-\sum_ip_i\log p_i$, [n, q].
        mean: $\sum_ip_iz_i$, [n, q, token_dim].
        cov: $\sum_ip_i(z_i-\bar z)(z_i-\bar z)^\top$ with `mean` $\bar z$,
            [n, q, token_dim, token_dim]; None if not requested.
        linear_output: the output of linear attention with the same matrices, [n, q, output_dim];
            None if not requested.
        dtype: the precision in which tokens were read.
    """

    lengths: np.ndarray = axis("length", "L", scale="log", keeps=True)
    output: np.ndarray = variable("length", "query", "output")
    log_sum_exp: np.ndarray = variable("length", "query")
    max_score: np.ndarray = variable("length", "query")
    max_weight: np.ndarray = variable("length", "query")
    participation: np.ndarray = variable("length", "query")
    entropy: np.ndarray = variable("length", "query")
    mean: np.ndarray = variable("length", "query", "token")
    cov: np.ndarray | None = variable("length", "query", "token", "other_token")
    linear_output: np.ndarray | None = variable("length", "query", "output")
    dtype: str

    @property
    @derived("length", "query")
    def effective_tokens(self) -> np.ndarray:
        r"""$1/S_2$: the number of equal weights with this participation, [n, q]."""
        return 1.0 / self.participation


class StreamReport(Result):
    r"""Attention over a streamed prompt, compared with exact means over random prompts of its law.

    Attributes:
        streamed: the streamed attention.
        reference: the output with which the streamed outputs are compared, [q, output_dim]: the
            limit, or the output over the whole prompt if the law of the tokens is not known.
        is_limit: whether `reference` is the limit.
        expected_squared_distance: the exact mean squared distance from the limit over random
            prompts, [n, q]; None if not available.
        expected_tokens: the exact $1/E\,S_2$ over random prompts, [n, q]; None if not available.
    """

    streamed: StreamedAttention
    reference: np.ndarray = variable("query", "output")
    is_limit: bool
    expected_squared_distance: np.ndarray | None = variable("length", "query")
    expected_tokens: np.ndarray | None = variable("length", "query")

    @property
    @derived("length", "query")
    def squared_distance(self) -> np.ndarray:
        """The squared distances of outputs from the reference, [n, q]."""
        return np.sum((self.streamed.output - self.reference) ** 2, axis=-1)

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return one row per length: root mean squared distances, and means, over queries."""
        streamed = self.streamed
        columns = {
            "distance": np.sqrt(self.squared_distance.mean(axis=1)),
            "effective_tokens": streamed.effective_tokens.mean(axis=1),
            "max_weight": streamed.max_weight.mean(axis=1),
            "entropy": streamed.entropy.mean(axis=1),
        }
        if self.expected_squared_distance is not None:
            columns["expected_distance"] = np.sqrt(self.expected_squared_distance.mean(axis=1))
        if self.expected_tokens is not None:
            columns["expected_tokens"] = self.expected_tokens.mean(axis=1)
        return {"length": streamed.lengths}, columns

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield one row per length, with readable headings."""
        for row in self.rows():
            yield {"L" if n == "length" else n.replace("_", " "): x for n, x in row.items()}

    def notes(self) -> list[str]:
        """Return the reference of the distances, and the reason for missing exact values."""
        reference = "the limit" if self.is_limit else "the output over the whole prompt"
        count = self.streamed.output.shape[1]
        queries = f"{count} quer{'y' if count == 1 else 'ies'}"
        notes = [
            f"Distances from {reference} are root mean squares over {queries}; other columns are "
            "means."
        ]
        if self.is_limit and self.expected_squared_distance is None:
            notes.append("Exact theory does not apply to these queries and tokens.")
        return notes
