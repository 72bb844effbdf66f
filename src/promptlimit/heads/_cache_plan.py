r"""A smaller cache for a causal head: tokens kept, and count, means and covariances of the rest.

Scores $s_j=\langle t,k_j\rangle$ with the scale in t. Of n far tokens, with means
$\bar k,\bar v$ and covariances $C_{kk},C_{vk}$, the cache knows

    log-mass   x = ln n + <t, kbar> + t C_kk t/2,      ln Z_f ~ offset + slope x
    answer     a_f ~ vbar + gain C_vk t

Slope, offset and gain are fitted for each head to the last queries of the prompt, by least squares
in what they change of the answer; without calibration they are 0, 1 and 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from promptlimit._arrays import require_unmasked, require_whole
from promptlimit.errors import ArgumentError
from promptlimit.heads._causal_atlas import moment_tokens
from promptlimit.heads._head import Head

Importance = Literal["recent", "heavy", "window", "expected"]
"""How tokens are ranked: by place; by the weight all queries gave them (H2O); by the weight the
last queries gave their neighbourhood (SnapKV); by the weight Gaussian queries would give them."""
_POOL = 7
"""Tokens of a neighbourhood."""
_BLOCK = 256
"""Queries whose scores are in memory at once."""
_CERTAIN = 1e-6
"""Share of the mean that every query has in a calibration, however little it is moved."""


class Calibration(NamedTuple):
    """How a head reads the moments of its far tokens."""

    offset: float = 0.0
    slope: float = 1.0
    gain: float = 1.0


@dataclasses.dataclass(frozen=True)
class FarMoments:
    """What is known of n tokens that are no longer there: means and covariances, in doubles."""

    count: int
    key_mean: np.ndarray
    value_mean: np.ndarray
    key_cov: np.ndarray
    cross: np.ndarray

    def read(self, tilts: np.ndarray, how: Calibration) -> tuple[np.ndarray, np.ndarray]:
        """Return log-mass [n] and answer [n, e] at tilts [n, d]."""
        log_mass = self.log_masses(tilts)
        return how.offset + how.slope * log_mass, self.value_mean + how.gain * self.pulls(tilts)

    def log_masses(self, tilts: np.ndarray) -> np.ndarray:
        """Return the log-masses of Gaussian tokens, [n]."""
        half = 0.5 * ((tilts @ self.key_cov) * tilts).sum(axis=1)
        return np.log(self.count) + tilts @ self.key_mean + half

    def pulls(self, tilts: np.ndarray) -> np.ndarray:
        """Return what the tilts add to the mean value, [n, e]."""
        return tilts @ self.cross.T


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """What is left of a prompt for heads that share keys, and how well it served the last queries.

    Attributes:
        kept: positions of the tokens kept, increasing.
        keys: theirs, [kept, d].
        values: theirs, [kept, e].
        scale: the factor on the scores.
        moments: of the other tokens, or None where they are dropped.
        calibrations: one a head.
        error: squared error of the answers to the last queries, summed over heads.
        dropped_error: the same where what is not kept is dropped, in the same memory.
        last: number of those queries.
    """

    kept: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    scale: float
    moments: FarMoments | None
    calibrations: tuple[Calibration, ...]
    error: float
    dropped_error: float
    last: int

    def answers(
        self,
        queries: np.ndarray,
        head: int = 0,
        *,
        later_keys: np.ndarray | None = None,
        later_values: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the answers to queries after the prompt, [n, e].

        Args:
            queries: [n, d].
            head: which of the heads that share the keys.
            later_keys: keys of the tokens that came after the prompt, the n-th with the n-th
                query, [n, d].
            later_values: their values, [n, e].
        """
        given = {"queries": queries, "later_keys": later_keys, "later_values": later_values}
        for name, value in given.items():
            require_unmasked(name, value)
        tilts = self.scale * np.asarray(queries, np.float64)
        keys, values = self.keys.astype(np.float64), self.values.astype(np.float64)
        scores = tilts @ keys.T
        if later_keys is not None and later_values is not None:
            later = tilts @ np.asarray(later_keys, np.float64).T
            later = np.where(np.tri(len(tilts), dtype=bool), later, -np.inf)
            scores = np.concatenate([scores, later], axis=1)
            values = np.concatenate([values, np.asarray(later_values, np.float64)])
        log_mass, answer = _attended(scores, values)
        if self.moments is None:
            return answer
        return _joined(log_mass, answer, *self.moments.read(tilts, self.calibrations[head]))


class _LastQueries(NamedTuple):
    """A head at the last queries of its prompt, in doubles: what plans are fitted to.

    Attributes:
        tilts: the queries times the scale, [last, d].
        scores: of every token, -inf where a query does not see it, [last, length].
        answers: the head's own, [last, e].
    """

    tilts: np.ndarray
    scores: np.ndarray
    answers: np.ndarray


class CachePlanner:
    """Plans of several sizes and kinds for causal heads that share keys and values.

    Args:
        heads: one, or those that share keys and values.
        sinks: tokens kept at the beginning.
        recent: tokens kept at the end.
        last: queries at the end of the prompt that plans are fitted to.
    """

    def __init__(
        self, heads: Head | Sequence[Head], *, sinks: int = 4, recent: int = 64, last: int = 64
    ):
        self._group = _checked_group(heads)
        _require_counts(sinks=sinks, recent=recent, last=last)
        first = self._group[0]
        self._length, self._sinks, self._recent, self._last = len(first.keys), sinks, recent, last
        self._keys, self._values = first.keys.astype(np.float64), first.values.astype(np.float64)
        self._seen = [self._last_queries(head) for head in self._group]
        self._importance: dict[str, np.ndarray] = {}

    def plan(
        self,
        tokens: int,
        *,
        importance: Importance | np.ndarray = "heavy",
        moments: Literal["where better", "always", "never"] = "where better",
        calibrate: bool = True,
    ) -> CachePlan:
        """Return the cache of so many tokens' memory; arguments as for `cache_plan`."""
        price = moment_tokens(self._keys.shape[1], self._values.shape[1])
        least = self._sinks + self._recent + (price if moments == "always" else 0)
        if isinstance(tokens, bool) or not least <= tokens < self._length:
            raise ArgumentError(
                "tokens",
                f"must be from the {least} that are always paid for to fewer than the "
                f"{self._length} of the prompt, got {tokens}.",
            )
        ranked = self._ranked(importance)
        dropped = self._planned(ranked, tokens)
        if moments == "never" or tokens - price < self._sinks + self._recent:
            return dropped
        read = self._planned(ranked, tokens - price, calibrate=calibrate)
        chosen = read if moments == "always" or read.error < dropped.error else dropped
        return dataclasses.replace(chosen, dropped_error=dropped.error)

    def _ranked(self, importance: Importance | np.ndarray) -> np.ndarray:
        """Return the importance of all tokens, infinite for those that are always kept."""
        if isinstance(importance, str):
            if importance not in self._importance:
                ranks = token_importance(self._group, importance, last=self._last)  # ty: ignore[invalid-argument-type]  # no array is a string
                self._importance[importance] = ranks
            importance = self._importance[importance]
        if np.shape(importance) != (self._length,):
            raise ArgumentError(
                "importance",
                f"must be one number for each of the {self._length} tokens, "
                f"got shape {np.shape(importance)}.",
            )
        require_unmasked("importance", importance)
        ranked = np.array(importance, np.float64)
        ranked[: self._sinks], ranked[self._length - self._recent :] = np.inf, np.inf
        return ranked

    def _last_queries(self, head: Head) -> _LastQueries:
        tilts = head.scale * head.queries[-self._last :].astype(np.float64)
        here = np.arange(self._length - self._last, self._length)
        seen = np.arange(self._length)[None] <= here[:, None]
        scores = np.where(seen, tilts @ self._keys.T, -np.inf)
        return _LastQueries(tilts, scores, _attended(scores, self._values)[1])

    def _planned(
        self, ranked: np.ndarray, tokens: int, *, calibrate: bool | None = None
    ) -> CachePlan:
        """Return the plan that keeps so many tokens; the rest is dropped if `calibrate` is None."""
        kept = np.sort(np.argsort(-ranked, kind="stable")[:tokens])
        far = np.setdiff1d(np.arange(self._length), kept)
        moments = None if calibrate is None else _far_moments(self._keys[far], self._values[far])
        calibrations, error = [], 0.0
        for seen in self._seen:
            log_mass, answer = _attended(seen.scores[:, kept], self._values[kept])
            calibration = Calibration()
            if moments is not None:
                if calibrate:
                    truth = _attended(seen.scores[:, far], self._values[far])
                    calibration = _calibrated(moments, seen.tilts, truth, (log_mass, answer))
                answer = _joined(log_mass, answer, *moments.read(seen.tilts, calibration))
            calibrations.append(calibration)
            error += float(((answer - seen.answers) ** 2).sum())
        first = self._group[0]
        keys, values, fitted = first.keys[kept], first.values[kept], tuple(calibrations)
        return CachePlan(kept, keys, values, first.scale, moments, fitted, error, error, self._last)


def cache_plan(
    heads: Head | Sequence[Head],
    tokens: int,
    *,
    importance: Importance | np.ndarray = "heavy",
    moments: Literal["where better", "always", "never"] = "where better",
    calibrate: bool = True,
    sinks: int = 4,
    recent: int = 64,
    last: int = 64,
) -> CachePlan:
    """Return the cache of so many tokens' memory for causal heads that share keys and values.

    The first and the last tokens are kept, and the most important of the others. Where moments of
    the rest take part, they cost the memory of `1 + d + e + d e + d (d + 1)/2` numbers, and as many
    fewer tokens are kept. "where better" lets them take part where the answers to the last queries
    are then closer to the head's own; calibration uses the same queries and nothing later.

    Args:
        heads: one, or those that share keys and values.
        tokens: memory of the cache, in tokens.
        importance: how tokens are ranked, or the ranks themselves, one number a token.
        moments: whether moments take part.
        calibrate: whether their mass and pull are fitted to the last queries.
        sinks: tokens kept at the beginning.
        recent: tokens kept at the end.
        last: queries at the end of the prompt that the plan is fitted to.
    """
    planner = CachePlanner(heads, sinks=sinks, recent=recent, last=last)
    return planner.plan(tokens, importance=importance, moments=moments, calibrate=calibrate)


def token_importance(
    heads: Head | Sequence[Head], how: Importance, *, last: int = 64
) -> np.ndarray:
    """Return the importance of each token for causal heads that share keys, summed over heads."""
    group = _checked_group(heads)
    length = len(group[0].keys)
    if how == "recent":
        return np.arange(length, dtype=np.float64)
    return np.sum([_one_importance(head, how, last) for head in group], axis=0)


def _one_importance(head: Head, how: Importance, last: int) -> np.ndarray:
    length = len(head.keys)
    if how == "expected":
        tilts = head.scale * head.queries[-last:].astype(np.float64)
        keys = head.keys.astype(np.float64)
        spread = keys @ (tilts - tilts.mean(axis=0)).T
        logs = keys @ tilts.mean(axis=0) + 0.5 * (spread**2).mean(axis=1)
        return np.exp(logs - logs.max()) * np.linalg.norm(head.values, axis=1)
    if how not in {"heavy", "window"}:
        raise ArgumentError(
            "importance", f"must be recent, heavy, window or expected, got {how!r:.40}."
        )
    first = length - last if how == "window" else 0
    total = np.zeros(length)
    for start in range(first, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = (head.scale * head.queries[start:end]) @ head.keys[:end].T
        scores[:, start:][~np.tri(end - start, dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        total[:end] += (1.0 / weights.sum(axis=1)) @ weights
    if how == "heavy":
        return total
    padded = np.pad(total, _POOL // 2, constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, _POOL).max(axis=1)


def _far_moments(keys: np.ndarray, values: np.ndarray) -> FarMoments:
    key_mean, value_mean = keys.mean(axis=0), values.mean(axis=0)
    centred = keys - key_mean
    return FarMoments(
        count=len(keys),
        key_mean=key_mean,
        value_mean=value_mean,
        key_cov=centred.T @ centred / len(keys),
        cross=(values - value_mean).T @ centred / len(keys),
    )


def _calibrated(
    moments: FarMoments,
    tilts: np.ndarray,
    far: tuple[np.ndarray, np.ndarray],
    kept: tuple[np.ndarray, np.ndarray],
) -> Calibration:
    r"""Return the line and the gain that fit the far tokens' true mass and answer at some tilts.

    A change of $\ln Z_f$ moves the answer by $r(1-r)(a_f-a_k)$, r the far tokens' weight, and one
    of $a_f$ by r: squares of these weigh the residuals. `far` and `kept` are log-masses and
    answers.
    """
    (mass, answer), (kept_mass, kept_answer) = far, kept
    weight = 1.0 / (1.0 + np.exp(np.clip(kept_mass - mass, -700, 700)))
    moved = weight * (1.0 - weight) * np.linalg.norm(answer - kept_answer, axis=1)
    share = moved**2 + _CERTAIN * (moved**2).mean() + 1e-300
    share /= share.sum()
    x = moments.log_masses(tilts)
    x_mean, mass_mean = share @ x, share @ mass
    spread, both = share @ (x - x_mean) ** 2, share @ ((x - x_mean) * (mass - mass_mean))
    slope = float(both / spread) if spread > 1e-12 else 0.0
    pulls = moments.pulls(tilts)
    squares = (weight**2) @ (pulls**2).sum(axis=1)
    along = (weight**2) @ ((answer - moments.value_mean) * pulls).sum(axis=1)
    gain = float(along / squares) if squares > 1e-300 else 0.0
    return Calibration(float(mass_mean - slope * x_mean), slope, gain)


def _attended(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log-mass and answer of softmax attention; -inf is the score of what is not seen."""
    top = scores.max(axis=1, keepdims=True)
    masses = np.exp(scores - top)
    total = masses.sum(axis=1)
    return np.log(total) + top[:, 0], (masses @ values) / total[:, None]


def _joined(
    log_mass: np.ndarray, answer: np.ndarray, far_log_mass: np.ndarray, far_answer: np.ndarray
) -> np.ndarray:
    """Return the answer of two sets of tokens from the log-mass and the answer of each."""
    weight = 1.0 / (1.0 + np.exp(np.clip(log_mass - far_log_mass, -700, 700)))
    return answer + weight[:, None] * (far_answer - answer)


def _checked_group(heads: Head | Sequence[Head]) -> Sequence[Head]:
    group = [heads] if isinstance(heads, Head) else list(heads)
    if not group or not all(isinstance(head, Head) and head.causal for head in group):
        raise ArgumentError("heads", "must be causal heads, one or several that share keys.")
    first = group[0]
    for head in group[1:]:
        same = np.array_equal(head.keys, first.keys) and np.array_equal(head.values, first.values)
        if not same or head.scale != first.scale:
            raise ArgumentError(
                "heads", "must share keys, values and scale, but they do not. Plan them one by one."
            )
    return group


def _require_counts(*, sinks: int, recent: int, last: int) -> None:
    for name, value, low in (("sinks", sinks, 0), ("recent", recent, 1), ("last", last, 1)):
        require_whole(name, value, low)
    if last > recent:
        raise ArgumentError(
            "last",
            f"must be at most the {recent} recent tokens, got {last}: a query must not see "
            "tokens that come after it as moments.",
        )
