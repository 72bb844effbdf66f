"""Stacks whose finite-length numbers were worked out once by other means, with those numbers."""

import numpy as np

from promptlimit.depth import GaussianStack, LayerMatrices


def line(mean, *layers):
    """Return a stack of one dimension over N(mean, 1), of layers (r, (u, v), ...)."""
    made = [
        LayerMatrices(
            np.array([[float(residual)]]),
            tuple((np.array([[float(u)]]), np.array([[float(v)]])) for u, v in heads),
        )
        for residual, *heads in layers
    ]
    return GaussianStack(np.array([float(mean)]), np.eye(1), tuple(made))


# stack, query, output, L Var, L bias, L Var under a causal mask
LINES = {
    "two": (
        line(0.0, (1, (0.2, 0.6)), (1, (0.25, 0.5))),
        *(1.0, 1.295616, 2.678105630061, -0.21303339, 2.771316828187),
    ),
    "two, not centred": (
        line(0.5, (1, (0.3, 0.5)), (1, (0.3, 0.5))),
        *(0.7, 1.676785625, 2.433257950619, -0.18027857, 2.517974467174),
    ),
    "three": (
        line(0.0, (1, (0.2, 0.6)), (1, (0.15, 0.5)), (0.8, (0.2, 0.7))),
        *(1.0, 1.237885882810, 12.755342405988, -0.02769270, 15.327299689680),
    ),
    "four": (
        line(0.3, (1, (0.2, 0.3)), (1, (-0.15, 0.5)), (0.8, (0.2, 0.3)), (1, (0.1, 0.5))),
        *(1.0, 1.627244043992, 6.564939669851, -0.12259256, 8.631280513837),
    ),
    "two heads": (
        line(0.3, (1, (0.2, 0.6), (-0.15, 0.4)), (0.9, (0.2, 0.5), (0.1, -0.7))),
        *(1.0, 1.14624288, 0.298541239877, -0.08065826, 0.338558477062),
    ),
}

_U0 = np.array([[0.2, -0.1], [0.1, 0.3]])
_V0 = np.array([[0.5, 0.2], [-0.3, 0.4]])
_U1 = np.array([[-0.2, 0.1], [0.2, 0.1]])
_V1 = np.array([[0.6, 0.0], [0.2, -0.5]])
PLANE_LAYERS = (
    LayerMatrices(np.eye(2), ((_U0, _V0),)),
    LayerMatrices(0.8 * np.eye(2), ((_U1, _V1),)),
    LayerMatrices(np.eye(2), ((_U0, _V1),)),
)
PLANE_QUERY = np.array([0.8, -0.6])


def plane(depth):
    """Return the first layers of a stack in two dimensions."""
    mean, cov = np.array([0.3, -0.4]), np.array([[1.0, 0.3], [0.3, 0.6]])
    return GaussianStack(mean, cov, PLANE_LAYERS[:depth])


def plain(stack):
    """Return the layers of a stack as `weighted_atoms` takes them."""
    return [(layer.residual, layer.heads) for layer in stack.layers]
