"""Make references.npz: what transformers computes for the models the tests run. Run by hand once.

    PYTHONPATH=tests python tests/heads/make_references.py MINILM_FOLDER

needs torch and transformers, which the project does not. For every small model of
`small_models.py`, and for MiniLM when its folder is given, the archive holds the last hidden
state, the input of every attention output matrix (the heads' outputs side by side), the loss of
causal models, and for MiniLM a few columns of each.
"""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import numpy as np

from heads.small_models import CONFIGS, IDS, write_model

SENTENCE_IDS = [101, 1996, 5835, 1997, 2023, 4007, 2003, 3024, 2004, 2003, 1010, 2302, 10943, 2100,
                1997, 2151, 2785, 1012, 102]  # fmt: skip
COLUMNS = slice(0, 384, 24)


def outputs(folder: Path, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the reference outputs of one model."""
    import torch  # noqa: PLC0415  # not a dependency  # pyright: ignore[reportMissingImports]
    import transformers  # noqa: PLC0415  # as above  # pyright: ignore[reportMissingImports]

    config = transformers.AutoConfig.from_pretrained(folder)
    causal = any("LM" in name for name in config.architectures)
    maker = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    model = maker.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    contexts: list[np.ndarray] = []
    endings = ("attention.output.dense", "attn.c_proj", "self_attn.o_proj")
    for name, module in model.named_modules():
        if name.endswith(endings):
            module.register_forward_pre_hook(lambda _, given: contexts.append(given[0][0].numpy()))
    tokens = torch.tensor(ids)[None]
    with torch.no_grad():
        options = {"labels": tokens} if causal else {}
        found = model(tokens, output_hidden_states=True, **options)
    result = {"hidden": found.hidden_states[-1][0].numpy(), "context": np.stack(contexts)}
    if causal:
        result["loss"] = found.loss.numpy()
    return result


def main() -> None:
    """Write the archive beside this file."""
    packages = ("transformers", "torch")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    arrays: dict[str, np.ndarray] = {"versions": np.array(versions)}
    with tempfile.TemporaryDirectory() as place:
        for family in CONFIGS:
            folder = write_model(Path(place) / family, family)
            for name, array in outputs(folder, IDS).items():
                arrays[f"{family}_{name}"] = array
    if len(sys.argv) > 1:
        ids = np.array(SENTENCE_IDS)
        found = outputs(Path(sys.argv[1]), ids)
        arrays["minilm_ids"] = ids
        arrays["minilm_hidden"] = found["hidden"][:, COLUMNS]
        arrays["minilm_context"] = found["context"][:, :, COLUMNS]
    np.savez_compressed(Path(__file__).parent / "references.npz", **arrays)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
