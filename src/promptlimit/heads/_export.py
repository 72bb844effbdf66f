"""The affine maps of an atlas, written for others to start from."""

from pathlib import Path

import numpy as np

from promptlimit.heads._extra import extra
from promptlimit.results import HeadAtlas
from promptlimit.storage import write_bytes


def export_maps(atlas: HeadAtlas, path: str | Path) -> None:
    r"""Write the Gaussian limits $q\mapsto Mq+b$ of all heads as a safetensors file.

    `layer.N.matrix` is M, [heads, e, d], with the scale of the scores included, and `layer.N.shift`
    is b, [heads, e]: what each head answers to its query, before the layer's output matrix, when
    its prompt is infinite and Gaussian. One may start linear attention there.
    """
    save = extra("safetensors.numpy").save
    tensors = {}
    for layer, (matrix, shift) in enumerate(zip(atlas.matrix, atlas.shift, strict=True)):
        tensors[f"layer.{layer}.matrix"] = matrix.astype(np.float32)
        tensors[f"layer.{layer}.shift"] = shift.astype(np.float32)
    notes = {
        "format": "np",
        "model": atlas.model,
        "map": "answer = matrix @ query + shift, scale of the scores included",
        "tokens": str(atlas.window * atlas.windows),
    }
    write_bytes(Path(path), save(tensors, metadata=notes))
