"""From sums to what attention does with the prompt, in the tokens' own coordinates."""

from collections.abc import Sequence

import numpy as np

from promptlimit.results import StreamedAttention
from promptlimit.streaming._leaves import symmetric
from promptlimit.streaming._prompts import AbstractPrompt
from promptlimit.streaming._request import StreamRequest
from promptlimit.streaming._sums import TiltedSums


def streamed_attention(
    request: StreamRequest, sums_by_length: Sequence[tuple[int, TiltedSums]]
) -> StreamedAttention:
    r"""Return the readings at each prefix length.

    With $z=Au+b$, scores are $\langle A^\top t,u\rangle+\langle t,b\rangle$, means $A\bar u+b$ and
    covariances $A\,\mathrm{cov}(u)A^\top$. Entropy is the log-sum-exp less the mean score.

    Args:
        request: what was asked.
        sums_by_length: lengths, and the sums over so many tokens.
    """
    prompt, count = request.prompt, len(request.queries)
    lengths = np.array([length for length, _ in sums_by_length], np.int64)
    sums = TiltedSums(
        *(np.stack(column) for column in zip(*(sums for _, sums in sums_by_length), strict=True))
    )
    tilts = request.queries @ request.key_query.T
    offset = tilts @ prompt.shift
    mass = sums.mass[:, :count]
    centre = sums.first / sums.mass[..., None]
    log_mass = sums.top[:, :count] + np.log(mass)
    mean = centre @ prompt.matrix.T + prompt.shift
    cov = _covariances(sums, centre, prompt) if sums.second.shape[-1] else None
    output = mean[:, :count] @ request.value.T
    linear_output = None
    if request.linear and cov is not None:
        moment = cov[:, count] + mean[:, count, :, None] * mean[:, count, None, :]
        linear_output = tilts @ moment @ request.value.T
    own = linear_output if request.is_linear and linear_output is not None else output
    return StreamedAttention(
        lengths=lengths,
        output=own,
        log_sum_exp=log_mass + offset,
        max_score=sums.top[:, :count] + offset,
        max_weight=1.0 / mass,
        participation=sums.square[:, :count] / mass**2,
        entropy=np.maximum(log_mass - np.sum(request.tilts[:count] * centre[:, :count], -1), 0.0),
        mean=mean[:, :count],
        cov=cov[:, :count] if request.covariance and cov is not None else None,
        linear_output=linear_output,
        dtype=str(prompt.dtype),
    )


def _covariances(sums: TiltedSums, centre: np.ndarray, prompt: AbstractPrompt) -> np.ndarray:
    matrix, dim = prompt.matrix, prompt.dim
    moments = symmetric(sums.second / sums.mass[..., None], dim)
    return matrix @ (moments - centre[..., :, None] * centre[..., None, :]) @ matrix.T
