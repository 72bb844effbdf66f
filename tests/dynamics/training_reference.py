"""Training steps written again, plainly, in NumPy and double precision."""

import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Threefry-2x32 with 20 rounds, as published; counters [2, n]."""
    mask = np.uint64(0xFFFFFFFF)
    k0, k1 = (np.uint64(int(word)) for word in key)
    keys = (k0, k1, k0 ^ k1 ^ np.uint64(0x1BD11BDA))
    x0, x1 = ((row.astype(np.uint64) + k) & mask for row, k in zip(counters, keys, strict=False))
    for block in range(5):
        for r in ROTATIONS[block % 2]:
            x0 = (x0 + x1) & mask
            x1 = ((x1 << np.uint64(r)) | (x1 >> np.uint64(32 - r))) & mask
            x1 ^= x0
        x0 = (x0 + keys[(block + 1) % 3]) & mask
        x1 = (x1 + keys[(block + 2) % 3] + np.uint64(block + 1)) & mask
    return np.stack([x0, x1])


def normals(key: np.ndarray, step: int, index: np.ndarray) -> np.ndarray:
    """Two normals a counter, [2, ...], by Box and Muller."""
    flat = index.ravel()
    words = threefry(key, np.stack([np.full_like(flat, step), flat]))
    u = ((words[0] >> np.uint64(9)).astype(float) + 0.5) / 2**23
    angle = 2 * np.pi * words[1].astype(float) / 2**32
    radius = np.sqrt(-2 * np.log(u))
    return (radius * np.stack([np.cos(angle), np.sin(angle)])).reshape(2, *index.shape)


def batch(
    task, key, length: int, step: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens [size, length, d + 1], queries [size, d + 1] and targets of a step."""
    dim = task.token_dim
    pairs = (dim + 1) // 2
    plane, row, place = np.indices((pairs, size, length))
    drawn = normals(key, step, (plane * size + row) * length + place)
    g = np.stack([drawn[c % 2, c // 2] for c in range(dim)], axis=-1)
    column, row = np.indices((dim, size))
    asked = normals(key, step, pairs * size * length + column * size + row)
    w = np.sqrt(task.prior_variance) * asked[0, :-1].T
    root, query_root = (np.linalg.cholesky(c) for c in (task.covariance, task.query_covariance))
    x_query = asked[1, :-1].T @ query_root.T
    noise = np.sqrt(task.noise_variance)
    target = (w * x_query).sum(-1) + noise * asked[0, -1]
    x = g[..., :-1] @ root.T
    y = np.einsum("bld,bd->bl", x, w) + noise * g[..., -1]
    tokens = np.concatenate([x, y[..., None]], axis=-1)
    return tokens, np.concatenate([x_query, np.zeros((size, 1))], axis=-1), target


def loss(kernel: str, factors: dict[str, np.ndarray], scale: float, data) -> float:
    """The mean squared error of a head with factors K, Q, V and O."""
    tokens, query, target = data
    scores = scale * np.einsum(
        "blk,bk->bl", tokens @ factors["key_weight"].T, query @ factors["query_weight"].T
    )
    if kernel == "softmax":
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    else:
        weights = scores / tokens.shape[1]
    read = np.einsum("bl,blk->bk", weights, tokens @ factors["value_weight"].T)
    return float(np.mean(((read @ factors["output"].T)[:, -1] - target) ** 2))


def gradient(kernel: str, factors: dict[str, np.ndarray], scale: float, data) -> dict:
    """Its gradient, by central differences."""
    found = {}
    for name, matrix in factors.items():
        slope = np.zeros_like(matrix)
        for place in np.ndindex(*matrix.shape):
            ends = []
            for sign in (1, -1):
                moved = matrix.copy()
                moved[place] += sign * 1e-5
                ends.append(loss(kernel, {**factors, name: moved}, scale, data))
            slope[place] = (ends[0] - ends[1]) / 2e-5
        found[name] = slope
    return found
