"""Make references.npz: what transformers computes for the models the tests run. Run by hand once.

    PYTHONPATH=tests python tests/heads/make_references.py MINILM_FOLDER SMOLLM2_FILE

needs torch and transformers, which the project does not. For every small model of
`small_models.py`, and for MiniLM when its folder is given, the archive holds the last hidden
state, the input of every attention output matrix (the heads' outputs side by side), the loss of
causal models, and for MiniLM a few columns of each. For SmolLM2, when its GGUF file is given, it
holds token numbers of a text, the loss, and a few columns of the heads' outputs and of the scores
of next tokens. Parts that are not given are kept from the archive.
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
TEXT = (
    "In 1984 there were 12 apples, 345 pears\n    and naïve “quotes” — "
    "def f(x): return x**2 != 0x7F"
)
HEAD_COLUMNS, WORD_COLUMNS = slice(0, 576, 72), slice(0, 49152, 384)
ARCHIVE = Path(__file__).parent / "references.npz"


def outputs(folder: Path, ids: np.ndarray, **options: str) -> dict[str, np.ndarray]:
    """Return the reference outputs of one model; `options` of its loading."""
    import torch  # noqa: PLC0415  # not a dependency
    import transformers  # noqa: PLC0415  # as above

    config = transformers.AutoConfig.from_pretrained(folder, **options)
    causal = any("LM" in name for name in config.architectures or ["CausalLM"])
    maker = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    model = maker.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, **options
    ).eval()
    contexts: list[np.ndarray] = []
    endings = ("attention.output.dense", "attn.c_proj", "self_attn.o_proj")
    for name, module in model.named_modules():
        if name.endswith(endings):
            module.register_forward_pre_hook(lambda _, given: contexts.append(given[0][0].numpy()))
    tokens = torch.tensor(ids)[None]
    with torch.no_grad():
        labels = {"labels": tokens} if causal else {}
        found = model(tokens, output_hidden_states=True, **labels)
    result = {"hidden": found.hidden_states[-1][0].numpy(), "context": np.stack(contexts)}
    if causal:
        result |= {"loss": found.loss.numpy(), "logits": found.logits[0].numpy()}
    return result


def smollm2(file: Path) -> dict[str, np.ndarray]:
    """Return token numbers of `TEXT` and the reference outputs at them."""
    import transformers  # noqa: PLC0415  # not a dependency

    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = np.array(tokenizer(TEXT)["input_ids"])
    found = outputs(file.parent, ids, gguf_file=file.name)
    return {
        "ids": ids,
        "context": found["context"][:, :, HEAD_COLUMNS],
        "logits": found["logits"][:, WORD_COLUMNS],
        "loss": found["loss"],
    }


def main() -> None:
    """Write the archive to the folder of this file."""
    packages = ("transformers", "torch")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    arrays: dict[str, np.ndarray] = dict(np.load(ARCHIVE)) if ARCHIVE.exists() else {}
    arrays["versions"] = np.array(versions)
    with tempfile.TemporaryDirectory() as place:
        for family in CONFIGS:
            folder = write_model(Path(place) / family, family)
            for name, array in outputs(folder, IDS).items():
                if name != "logits":
                    arrays[f"{family}_{name}"] = array
    if len(sys.argv) > 1:
        ids = np.array(SENTENCE_IDS)
        found = outputs(Path(sys.argv[1]), ids)
        arrays["minilm_ids"] = ids
        arrays["minilm_hidden"] = found["hidden"][:, COLUMNS]
        arrays["minilm_context"] = found["context"][:, :, COLUMNS]
    if len(sys.argv) > 2:
        arrays |= {f"smollm2_{name}": array for name, array in smollm2(Path(sys.argv[2])).items()}
    np.savez_compressed(ARCHIVE, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
