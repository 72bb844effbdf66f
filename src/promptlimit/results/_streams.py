"""What attention does with one prompt, at some of its prefix lengths."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StreamedAttention:
    r"""Attention of q queries on the first L tokens of one prompt, at n lengths L.

    With scores $s_i=\langle Uz,z_i\rangle$ and weights $p_i\propto e^{s_i}$, in double precision
    but for what the tokens' own precision rounds.

    Attributes:
        lengths: $L$, [n].
        output: of the attention that was asked about, [n, q, output_dim].
        log_sum_exp: $\log\sum_ie^{s_i}$, [n, q].
        max_score: $\max_is_i$, [n, q].
        max_weight: $\max_ip_i$, [n, q].
        participation: $S_2=\sum_ip_i^2$, [n, q].
        entropy: $-\sum_ip_i\log p_i$, [n, q].
        mean: $\sum_ip_iz_i$, [n, q, token_dim].
        cov: $\sum_ip_i(z_i-\bar z)(z_i-\bar z)^\top$, [n, q, token_dim, token_dim]; None when not
            asked for.
        linear_output: of the linear attention with the same matrices, [n, q, output_dim]; None
            when not asked for.
        dtype: the precision in which tokens were read.
    """

    lengths: np.ndarray
    output: np.ndarray
    log_sum_exp: np.ndarray
    max_score: np.ndarray
    max_weight: np.ndarray
    participation: np.ndarray
    entropy: np.ndarray
    mean: np.ndarray
    cov: np.ndarray | None
    linear_output: np.ndarray | None
    dtype: str

    @property
    def effective_tokens(self) -> np.ndarray:
        r"""$1/S_2$: how many tokens of equal weight would be as spread out, [n, q]."""
        return 1.0 / self.participation

    def as_json(self) -> dict[str, object]:
        """The numbers as nested lists, for JSON; what was not asked for is null."""
        arrays = {
            name: None if value is None else value.tolist()
            for name, value in vars(self).items()
            if name != "dtype"
        }
        return {**arrays, "effective_tokens": self.effective_tokens.tolist(), "dtype": self.dtype}


@dataclass(frozen=True)
class StreamReport:
    """A streamed prompt beside what theory says of prompts of its law.

    Attributes:
        streamed: what was read.
        reference: what outputs are held against, [q, output_dim]: the limit, or the output on the
            whole prompt where the law of the tokens is not known...
        is_limit: ... and which of the two it is.
        expected_square: the exact mean square distance of outputs from the limit, [n, q], and
        expected_tokens: one over the exact mean of $S_2$, [n, q]; None where they are not known.
    """

    streamed: StreamedAttention
    reference: np.ndarray
    is_limit: bool
    expected_square: np.ndarray | None
    expected_tokens: np.ndarray | None

    @property
    def square(self) -> np.ndarray:
        """The square distances of outputs from the reference, [n, q]."""
        return np.sum((self.streamed.output - self.reference) ** 2, axis=-1)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """The curves as named arrays, for a figure; what is not known is left out."""
        arrays = {
            "lengths": self.streamed.lengths,
            "square": self.square,
            "effective_tokens": self.streamed.effective_tokens,
            "is_limit": np.array(self.is_limit),
        }
        if self.expected_square is not None and self.expected_tokens is not None:
            arrays["expected_square"] = self.expected_square
            arrays["expected_tokens"] = self.expected_tokens
        return arrays

    def as_json(self) -> dict[str, object]:
        """All of it as nested lists, for JSON."""
        expected = {
            "expected_square": self.expected_square,
            "expected_tokens": self.expected_tokens,
        }
        return {
            **self.streamed.as_json(),
            "reference": self.reference.tolist(),
            "is_limit": self.is_limit,
            "square": self.square.tolist(),
            **{name: None if x is None else x.tolist() for name, x in expected.items()},
        }
