"""Claim 8: the parameter gradients of attention, and how they pass to keys and queries."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import Factored
from promptlimit.measures import Empirical, Gaussian
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._ensembles import relative_error

_DIM, _HEAD_DIM, _OUTPUTS = 3, 4, 2
_EXACT, _DIFFERENCED = 1e-10, 1e-7
_ROUNDING = "rounding error, with a margin of $10^6$"


def _textbook(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    scores = tokens @ (k.T @ (q @ z))
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights, v @ (weights @ tokens)


def _closed_forms(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    """Appendix C.7 on finitely many tokens, by plain weighted sums."""
    weights, _ = _textbook(tokens, k, q, v, z)
    mean = weights @ tokens
    cov = (tokens - mean).T @ ((tokens - mean) * weights[:, None])
    by_u = np.stack([np.outer(cov @ row, z) for row in v])
    return {
        "key_query": by_u,
        "value": np.einsum("ij,k->ijk", np.eye(_OUTPUTS), mean),
        "key_weight": np.stack([q @ one.T for one in by_u]),
        "query_weight": np.stack([k @ one for one in by_u]),
    }


def _differences(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    """Central differences of the textbook formula in each entry of K."""
    step, result = 1e-5, np.empty((_OUTPUTS, *k.shape))
    for index in np.ndindex(*k.shape):
        up, down = k.copy(), k.copy()
        up[index] += step
        down[index] -= step
        rise = _textbook(tokens, up, q, v, z)[1] - _textbook(tokens, down, q, v, z)[1]
        result[(slice(None), *index)] = rise / (2 * step)
    return result


def decide(setting: Setting) -> Sequence[Check]:
    """Return the errors of the closed forms against automatic and finite differentiation."""
    numbers = np.arange(1.0, 1.0 + _HEAD_DIM * _DIM).reshape(_HEAD_DIM, _DIM)
    k, q = 0.5 * np.sin(numbers), 0.5 * np.cos(numbers)
    v, z = np.cos(numbers[:_OUTPUTS] ** 2), np.array([1.0, -0.7, 0.4])
    law = Gaussian([0.5, -1.0, 0.2], np.diag([1.0, 0.5, 2.0]))
    prompt = Empirical(law.sample(40, key=jax.random.key(setting.seed)))
    closed = _closed_forms(np.asarray(prompt.tokens), k, q, v, z)
    factored = Factored("softmax", k, q, v)
    merged = factored.merged()
    checks = [
        Check(
            f"gradient with respect to {symbol}: automatic differentiation compared with the "
            "closed form",
            relative_error(np.asarray(owner.jacobian(prompt, z, wrt=name)), closed[name]),
            "<=",
            _EXACT,
            basis=_ROUNDING,
        )
        for owner, name, symbol in (
            (merged, "key_query", "$U$"),
            (merged, "value", "$V$"),
            (factored, "key_weight", "$K$"),
            (factored, "query_weight", "$Q$"),
        )
    ]
    differences = _differences(np.asarray(prompt.tokens), k, q, v, z)
    cov, mean = np.asarray(law.covariance), np.asarray(law.location)
    gaussian = np.stack([np.outer(cov @ row, z) for row in v])
    by_u = np.asarray(merged.jacobian(law, z, wrt="key_query"))
    by_v = np.asarray(merged.jacobian(law, z, wrt="value"))[0, 0]
    untransposed = np.stack([q @ one for one in closed["key_query"]])
    return [
        *checks,
        Check(
            "gradient with respect to $K$: finite differences compared with the closed form",
            relative_error(differences, closed["key_weight"]),
            "<=",
            _DIFFERENCED,
            basis="theory: central differences with step $10^{-5}$ have errors of $10^{-10}$; "
            "margin",
        ),
        Check(
            r"Gaussian prompt $\mathcal{N}(m, \Gamma)$: gradient with respect to $U$ compared "
            r"with $\Gamma v_i z^\top$",
            relative_error(by_u, gaussian),
            "<=",
            _EXACT,
            basis=_ROUNDING,
        ),
        Check(
            r"Gaussian prompt $\mathcal{N}(m, \Gamma)$: gradient with respect to $v_i$ compared "
            r"with $m + \Gamma Uz$",
            relative_error(by_v, mean + cov @ np.asarray(merged.key_query) @ z),
            "<=",
            _EXACT,
            basis=_ROUNDING,
        ),
        Check(
            "gradient with respect to $K$ without the transpose, compared with finite differences",
            relative_error(untransposed, differences),
            ">=",
            1e-2,
            role="control",
            basis="$10^5$ times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=8,
    name="gradient-formulas",
    statement="Let $m$ and $C$ be the mean and covariance of the tokens under the tilt "
    r"$t = Uz$, and $v_i$ the $i$-th row of $V$. Then $\nabla_{v_i} T_i = m$ and "
    r"$\nabla_U T_i = C v_i z^\top$, and for $U = K^\top Q$ the chain rule gives "
    r"$\nabla_K T_i = Q(\nabla_U T_i)^\top$ and $\nabla_Q T_i = K\,\nabla_U T_i$.",
    reference="Appendix C.7",
    decide=decide,
)
