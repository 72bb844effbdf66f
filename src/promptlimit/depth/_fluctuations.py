r"""What one token does to a stack, and the covariance that many independent ones make.

A stack is a functional of the empirical measure. To first order it moves by the mean over tokens of
its influence $K(z,y)$, and L times its covariance tends to $E_yK(z,y)K(z',y)'$. Derived here:

    K_K(z,y) = sum_{l<K} N_lK grad_t chi_l(t_l(z), y),    N_lK = M_{K-1}...M_{l+1} V_l
    chi_l(t,y) = e^{<t,Z_l y> - Lambda_l(t)} - 1 + <t, E_{z'~N(m + G P_l't, G)} K_l(z',y)>

Unrolled, chi is a sum over paths of layers l = p_0 > p_1 > ... > p_k: a Gaussian tilt descends,

    s_0 = t,    s_{i+1} = (A + eps_{i+1} N') s_i + U_j m_j + N(0, U_j G_j U_j'),    A = U_j P_j G P_l'

from layer l to j, and the path has $\partial_{\epsilon_1}\cdots\partial_{\epsilon_k}$ of
$E\exp(\langle s_k,P(y-m)\rangle-\tfrac12s_k'G_{p_k}s_k)$. Of several heads a path also picks one.
Under a causal mask a path of k steps meets one of k' with the weight $\binom{k+k'}k$.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from promptlimit._arrays import Array
from promptlimit.depth._gaussian_stack import GaussianStack
from promptlimit.depth._nilpotent import exponential, inverse, product
from promptlimit.depth._tilts import GaussianMean, Tilts, symmetric_form


@dataclasses.dataclass(frozen=True)
class Descent:
    """A path of layers, with the tilt that came down it.

    Attributes:
        tilts: where the path has arrived.
        layer: its last layer.
        steps: how many steps it has.
    """

    tilts: Tilts
    layer: int
    steps: int


def descents(stack: GaussianStack, tilts: Tilts, level: int) -> Iterator[Descent]:
    """Yield every path down from a layer, of the first tilt of v; it arrives below the others."""
    first, others = slice(0, stack.token_dims[level]), slice(stack.token_dims[level], None)
    yield Descent(tilts.taken(others, first), level, 0)
    for j, h in stack.below(level):
        key_query, path = stack.layers[j].heads[h][0], stack.paths[j]
        across = key_query @ path @ stack.cov
        lower = tilts.followed(
            across @ stack.paths[level].mT,
            first,
            shift=key_query @ stack.means[j],
            noise=across @ path.mT @ key_query.mT,
            mark=(stack.carry(j, h, level).mT, first),
        )
        size = lower.mean.shape[-2]
        arrived = slice(size - stack.token_dims[j], size)
        between = slice(first.stop, arrived.start)
        for descent in descents(stack, lower.taken(arrived, between), j):
            yield dataclasses.replace(descent, steps=descent.steps + 1)


def query_tilt(stack: GaussianStack, query: Array, level: int, head: int) -> Array:
    """Return $t_l(z)=U_lZ_l(z)$, a column."""
    return stack.layers[level].heads[head][0] @ stack.position(level, query)


def pair_form(stack: GaussianStack, first: int, second: int) -> Array:
    r"""Return J with $\tfrac12v'Jv=x'P_pGP_q'x'$, for v = (x, x') at layers p and q."""
    between = stack.paths[first] @ stack.cov @ stack.paths[second].mT
    rows, columns = (np.zeros((size, size)) for size in between.shape[-2:])
    return symmetric_form(rows, between, columns)


def fluctuation_cov(stack: GaussianStack, query: Array, *, causal: bool = False) -> Array:
    r"""Return $\lim_LL\,\mathrm{Cov}$ of the output at a query, [..., e, e].

    Args:
        stack: whose sharpness the caller has looked at (`GaussianStack.covariance_obstacle`).
        query: $z$, [..., d].
        causal: whether a token sees only those before it; the query sees them all.
    """
    ends = [
        (stack.carry(level, head, stack.depth), descent)
        for level, head in stack.below(stack.depth)
        for descent in descents(stack, Tilts.start(query_tilt(stack, query, level, head)), level)
    ]
    total: Array | float = 0.0
    for place, (left, first) in enumerate(ends):
        for number, (right, second) in enumerate(ends[: place + 1]):
            form = pair_form(stack, first.layer, second.layer)
            mean = GaussianMean.of(first.tilts.beside(second.tilts), form)
            part = left @ mean.mixed_derivative(first.tilts.slope.shape[-1]) @ right.mT
            weight = math.comb(first.steps + second.steps, first.steps) if causal else 1.0
            total = total + weight * (part if number == place else part + part.mT)
    return 0.5 * (total + np.asarray(total).mT)
