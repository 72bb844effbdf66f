"""The forward passes against outputs that transformers made (see make_references.py)."""

from pathlib import Path

import numpy as np
import pytest

import promptlimit as pl
from heads.make_references import HEAD_COLUMNS, TEXT, WORD_COLUMNS
from heads.small_models import CONFIGS, IDS, write_model

BAR = 1e-4
REFERENCES = np.load(Path(__file__).parent / "references.npz")


def relative(found: object, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))


def contexts(model: pl.heads.Model, ids: np.ndarray) -> np.ndarray:
    return np.stack(
        [np.concatenate([head.outputs() for head in layer], axis=1) for layer in model.heads(ids)]
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_small_models_agree_with_transformers(family: str, tmp_path: Path) -> None:
    model = pl.heads.load(write_model(tmp_path, family))
    assert relative(model.hidden(IDS), REFERENCES[f"{family}_hidden"]) < BAR
    assert relative(contexts(model, IDS), REFERENCES[f"{family}_context"]) < BAR
    assert model.parity.shape == (2,)
    assert model.parity.max() < BAR
    if model.shape.causal:
        assert model.loss(IDS) == pytest.approx(float(REFERENCES[f"{family}_loss"]), rel=BAR)


def test_minilm_agrees_with_transformers(minilm: pl.heads.Model) -> None:
    ids = REFERENCES["minilm_ids"]
    columns = slice(0, 384, 24)
    assert relative(np.asarray(minilm.hidden(ids))[:, columns], REFERENCES["minilm_hidden"]) < BAR
    assert relative(contexts(minilm, ids)[:, :, columns], REFERENCES["minilm_context"]) < BAR
    assert minilm.parity.max() < BAR
    text = "The licence of this software is provided as is, without warranty of any kind."
    spelled = minilm.tokenizer.encode(text.replace("licence", "license")).ids
    assert spelled[0] == 101
    assert spelled[-1] == 102


def test_smollm2_agrees_with_transformers(smollm2: pl.heads.Model) -> None:
    ids = smollm2.tokenizer.encode(TEXT).ids
    assert ids == REFERENCES["smollm2_ids"].tolist()
    logits = np.asarray(smollm2.logits(np.array(ids)))
    assert relative(logits[:, WORD_COLUMNS], REFERENCES["smollm2_logits"]) < BAR
    outputs = contexts(smollm2, np.array(ids))[:, :, HEAD_COLUMNS]
    assert relative(outputs, REFERENCES["smollm2_context"]) < BAR
    assert smollm2.loss(np.array(ids)) == pytest.approx(float(REFERENCES["smollm2_loss"]), rel=BAR)
    assert smollm2.tokenizer.decode(ids) == TEXT
    assert smollm2.parity.max() < BAR
