# ruff: noqa: E501 - one line a case
"""Heads without weights: captured from PyTorch models that run, or brought by hand."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import promptlimit as pl
from heads.small_models import write_model
from promptlimit.cli import _heads as command
from promptlimit.cli._console import CommandError
from promptlimit.heads._atlas import _length_needed
from promptlimit.heads._prediction import GRID

IDS = (5 + 7 * np.arange(48) ** 2) % 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pl.heads.Model:
    return pl.heads.load(write_model(tmp_path_factory.mktemp("gpt2"), "gpt2"))


@pytest.fixture(scope="module")
def captured(model: pl.heads.Model) -> pl.heads.CapturedHeads:
    return pl.heads.CapturedHeads([model.heads(ids) for ids in IDS.reshape(2, 24)])


def test_heads_alone_give_the_atlas_of_their_model(
    model: pl.heads.Model, captured: pl.heads.CapturedHeads, tmp_path: Path
) -> None:
    whole = pl.heads.atlas(model, IDS, window=24, clusters=2, sinks=2)
    pl.save(tmp_path / "heads.npz", captured)
    for heads in (captured, captured.prompts, pl.load(tmp_path / "heads.npz")):
        alone = pl.heads.atlas(heads, clusters=2, sinks=2)
        assert (alone.model, alone.model_type) == ("heads", "arrays")
        assert (alone.window, alone.causal) == (24, True)
        for name, expected in whole.to_arrays().items():
            if name not in {"model", "model_type", "parity"}:
                np.testing.assert_allclose(
                    alone.to_arrays()[name], expected, rtol=1e-6, atol=1e-6, err_msg=name
                )
        assert np.isnan(alone.parity).all()
        assert json.loads(json.dumps(alone.to_dict(), allow_nan=False))["parity"] == [None] * 2
    pl.heads.export_maps(alone, tmp_path / "maps.safetensors")
    with pytest.raises(
        ValueError, match=r"^`model` must be a model from `load`, got CapturedHeads. R"
    ):
        pl.heads.replacement_curve(captured, IDS, alone)


def test_one_layer_or_one_prompt_of_heads_is_enough() -> None:
    rng = np.random.default_rng(0)
    heads = [
        pl.heads.Head(
            rng.normal(size=(16, 3)),
            rng.normal(size=(16, 3)),
            rng.normal(size=(16, 2)),
            scale=scale,
        )
        for scale in (0.5, 1.0)
    ]
    flat, layers = (pl.heads.atlas(lists, clusters=2, sinks=1) for lists in (heads, [heads]))
    assert flat.linear_share.shape == (1, 2)
    np.testing.assert_array_equal(flat.sharpness, layers.sharpness)
    scores = np.array([head.scale * head.queries @ head.keys.T for head in heads])
    np.testing.assert_allclose(
        flat.median_sharpness[0], np.median(scores.std(axis=2), axis=1), 1e-5
    )
    assert flat.matrix.shape == (1, 2, 2, 3)


def test_queries_of_another_sequence_have_moments_of_their_own() -> None:
    rng = np.random.default_rng(1)
    crossed = pl.heads.Head(2 * rng.normal(size=(9, 3)), rng.normal(size=(16, 3)), np.ones((16, 1)))
    doubled = pl.heads.Head(np.tile(crossed.queries, (2, 1)), crossed.keys, crossed.values)
    one, two = (pl.heads.atlas([head], clusters=2, sinks=1) for head in (crossed, doubled))
    np.testing.assert_allclose(one.exponent, two.exponent, rtol=1e-4)  # of single precision
    assert 0 < one.exponent[0, 0] < 1


def test_a_head_whose_output_never_varies_needs_no_length() -> None:
    never = _length_needed(np.zeros((1, 2, len(GRID))), np.array([[1.0, 0.0]]))
    assert np.isnan(never).all()


def test_heads_that_are_no_atlas_are_refused(model: pl.heads.Model) -> None:
    rng = np.random.default_rng(2)
    head, wide = (pl.heads.Head(*rng.normal(size=(3, 16, d))) for d in (3, 4))
    short, huge = pl.heads.Head(*rng.normal(size=(3, 4, 3))), [1e25 * rng.normal(size=(16, 3))] * 3
    form = "queries x keys x width 16 x 16 x {0}, values of {0}, not causal"
    for heads, options, message in (
        ([], {}, "or a list of heads (of lists for layers, of lists of lists for prompts), got list."),
        ([head, [head]], {}, "of lists of lists for prompts), got list of lists and heads side by side."),
        ([[head], [[head]]], {}, "of lists of lists for prompts), got list of lists and heads side by"),
        ([head], {"text_or_ids": "a"}, "`text_or_ids` must be omitted for heads, which include their"),
        ([head], {"window": 16}, "`window` must be omitted for heads, which include their prompts, got"),
        ([[head, head], [head]], {}, "`model` must have 2 heads in every layer, got 1 in layer 1."),
        ([[head], [wide]], {}, f"must have heads of one shape, got {form.format(3)} in layer 0 and {form.format(4)} in layer 1"),
        ([[[head]], [[head]] * 2], {}, "the 1 layers of the first prompt in every prompt, got 2 in"),
        ([short], {}, "`model` must be heads over at least 8 tokens, got 4. Pass a longer prompt."),
        ([pl.heads.Head(*huge)], {}, "must have scores that are finite in single precision, but those of"),
        (model, {}, "`text_or_ids` must be given for a model to read, got None."),
    ):  # fmt: skip
        arguments: dict[str, Any] = {"model": heads, "clusters": 1, "sinks": 1, **options}
        with pytest.raises(ValueError, match=re.escape(message)):
            pl.heads.atlas(**arguments)


def test_a_position_requires_a_causal_mask() -> None:
    head = pl.heads.Head(*np.random.default_rng(0).normal(size=(3, 12, 2)))
    with pytest.raises(ValueError, match=r"^`position` must be None for a head without a causal"):
        head.gaussian(position=3)
    with pytest.raises(ValueError, match=r"^`position` must be from 0 to 11, got 12"):
        pl.heads.Head(head.queries, head.keys, head.values, causal=True).gaussian(position=12)


def test_captured_heads_are_nested_lists(tmp_path: Path) -> None:
    head = pl.heads.Head(*np.ones((3, 2, 1)))
    for prompts in ([], [[]], [[[head], []]]):
        with pytest.raises(
            ValueError, match=r"^`prompts` must be a list of prompts, each a list of"
        ):
            pl.heads.CapturedHeads(prompts)
    pl.save(tmp_path / "law.npz", pl.Gaussian([0.0], [[1.0]]))
    with pytest.raises(CommandError, match=r"law\.npz must hold captured heads, got Gaussian$"):
        command.heads(tmp_path / "law.npz")


def test_the_command_reads_heads_without_a_model(
    captured: pl.heads.CapturedHeads,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    path, out = tmp_path / "heads.npz", tmp_path / "out"
    pl.save(path, captured)
    command.heads(path, clusters=2, sinks=2, out=out, as_json=True)
    printed = capsys.readouterr()
    assert "heads: 2 layers of 4 heads without weights;" in printed.err
    found = json.loads(printed.out)
    assert found["replacement"] is None
    assert np.shape(found["texts"]["heads"]["sharpness"])[:2] == (2, 4)
    assert (out / "index.html").read_text().count("<svg") == 3
    with pytest.raises(CommandError, match="--text must be left out for captured heads, got"):
        command.heads(path, [path])


def test_without_pytorch_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(
        ImportError, match=r"^`capture` must run the model with PyTorch, which is not i"
    ):
        pl.heads.capture(None, [1])


def tiny(torch: Any, way: str) -> Any:
    """Return a random causal transformer of two layers of two heads, attention by one way."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

        def forward(self, rows: Any) -> Any:
            n = rows.shape[1]
            q, k, v = (
                part.view(1, n, 2, 4).transpose(1, 2) for part in self.project(rows).split(8, dim=2)
            )
            inside = torch.ones(n, n, dtype=torch.bool).tril()
            if way == "fused":
                heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            elif way == "fused with a mask":
                heads = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=torch.zeros(n, n).masked_fill(~inside, -torch.inf), scale=0.5
                )
            elif way == "by products":
                scores = (q @ k.transpose(-1, -2) / 2.0).masked_fill(~inside, -torch.inf)
                heads = torch.nn.functional.dropout(scores.softmax(-1), 0.5, self.training) @ v
            else:
                scores = torch.einsum("bhqd,bhkd->bhqk", 0.5 * q, k) - 1e9 * ~inside
                heads = torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, dim=-1), v)
            return rows + self.out(heads.transpose(1, 2).reshape(1, n, 8))

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(40, 8)
            self.layers = torch.nn.ModuleList([Layer(), Layer()])

        def forward(self, ids: Any) -> Any:
            rows = self.words(ids)
            for layer in self.layers:
                rows = layer(rows)
            return rows

    torch.manual_seed(0)
    return Tiny()


def plain_heads(weights: dict[str, np.ndarray], ids: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Return queries, keys and values [heads, n, d] of each layer, by NumPy from the weights."""
    rows, found = weights["words.weight"][ids].astype(np.float64), []
    for layer in range(2):
        name = f"layers.{layer}"
        three = rows @ weights[f"{name}.project.weight"].T + weights[f"{name}.project.bias"]
        q, k, v = (part.reshape(-1, 2, 4).swapaxes(0, 1) for part in np.split(three, 3, axis=1))
        scores = np.where(np.tri(len(ids), dtype=bool), q @ k.swapaxes(1, 2) / 2, -np.inf)
        share = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
        joined = (share @ v).swapaxes(0, 1).reshape(-1, 8)
        rows = rows + joined @ weights[f"{name}.out.weight"].T + weights[f"{name}.out.bias"]
        found.append((q, k, v))
    return found


@pytest.mark.parametrize("way", ["fused", "fused with a mask", "by products", "by einsum"])
def test_captured_heads_are_those_of_the_weights(way: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    model = tiny(torch, way)
    fused = torch.nn.functional.scaled_dot_product_attention
    heads = pl.heads.capture(model, IDS.reshape(2, 24), name="tiny")
    assert torch.nn.functional.scaled_dot_product_attention is fused
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert heads.layer_names == ["layers.0", "layers.1"]
    assert (heads.name, heads.model_type, heads.rotary) == ("tiny", "Tiny", False)
    assert heads.parity.shape == (2,)
    assert heads.parity.max() < 1e-6
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    for prompt, ids in zip(heads.prompts, IDS.reshape(2, 24), strict=True):
        for layer, (q, k, v) in zip(prompt, plain_heads(weights, ids), strict=True):
            for number, head in enumerate(layer):
                assert head.causal
                scores = head.scale * head.queries.astype(float) @ head.keys.T
                np.testing.assert_allclose(scores, (q @ k.swapaxes(1, 2))[number] / 2, atol=1e-6)
                np.testing.assert_allclose(head.keys, k[number], atol=1e-6)
                np.testing.assert_allclose(head.values, v[number], atol=1e-6)
                assert head.scale in (pytest.approx(0.5, rel=1e-6), pytest.approx(1.0, rel=1e-6))
    found = pl.heads.atlas(heads, clusters=2, sinks=1)
    assert found.r2["gaussian"].shape == (2, 2)


def test_models_whose_attention_cannot_be_captured() -> None:
    torch = pytest.importorskip("torch")

    def attend(**options: Any) -> Callable[..., Any]:
        function = torch.nn.functional

        class Module(torch.nn.Module):
            def forward(self, rows: Any) -> Any:
                mask = options["mask"](rows.shape[1]) if "mask" in options else None
                rows = rows.expand(options.get("batch", 1), -1, -1)[:, None]
                return function.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)

        return Module()

    rows = np.random.default_rng(0).normal(size=(12, 4))
    window = attend(mask=lambda n: torch.ones(n, n).tril().triu(-3).bool())
    for model, ids, message in (
        (torch.nn.Linear(4, 4), rows, "`model` must attend by scaled_dot_product_attention or by soft"),
        (window, rows, "`model` must have attention without a mask or with a causal mask, but Module uses another"),
        (attend(mask=lambda n: torch.ones(n, n).tril()), rows, "add nothing to its scores but a mask, got"),
        (attend(batch=2), rows, "`model` must attend to one prompt at a time, [1, heads, n, d], but Module"),
        (len, rows, "`model` must be a torch.nn.Module, got builtin_function_or_method."),
        (window, "text", "`ids` must be token ids, got str."),
        (window, rows[0], "or vectors [n, d] or [prompts, n, d], got shape (4,), float64."),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(message)):
            pl.heads.capture(model, ids)


def small_transformer(family: str, attention: str) -> Any:
    """Return a random model of transformers with two layers of two heads."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install transformers"
    )
    sizes = {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 64,
    }  # fmt: skip
    others = {
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        "OPT": {"word_embed_proj_dim": 16, "ffn_dim": 24},
        "Qwen3": {"num_key_value_heads": 1, "head_dim": 8},
        "Llama": {"num_key_value_heads": 1, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "Gemma2": {"head_dim": 8, "num_key_value_heads": 1, "attn_logit_softcapping": 1e-3},
    }
    config = getattr(transformers, f"{family}Config")(**sizes | others.get(family, {}))
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config, attn_implementation=attention)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["Bert", "DistilBert", "GPT2", "Llama", "OPT", "Phi", "Qwen3"])
def test_both_routes_capture_the_same_heads(family: str, attention: str) -> None:
    model = small_transformer(family, attention)
    routes = [pl.heads.capture(model, IDS, route=r) for r in ("transformers", "operators", "auto")]
    assert model.config._attn_implementation == attention
    assert model.training
    for heads in routes:
        assert [[len(layer) for layer in prompt] for prompt in heads.prompts] == [[2, 2]]
        assert heads.parity.max() < 1e-6
        assert heads.model_type == family.lower()
        assert heads.rotary == (family in {"Llama", "Phi", "Qwen3"})
        assert heads.layer_names == routes[0].layer_names
        for layer in range(2):
            for one, other in zip(
                heads.prompts[0][layer], routes[0].prompts[0][layer], strict=True
            ):
                assert one.causal == other.causal == ("Bert" not in family)
                own, first = (head.scale * head.queries @ head.keys.T for head in (one, other))
                np.testing.assert_allclose(own, first, atol=1e-5)
                np.testing.assert_allclose(one.values, other.values, atol=1e-6)


def test_the_route_of_transformers_requires_a_model_that_supports_it() -> None:
    capped = small_transformer("Gemma2", "eager")
    with pytest.raises(ValueError, match=r"^`model` must attend by softmax of scaled products, "):
        pl.heads.capture(capped, IDS)
    assert capped.config._attn_implementation == "eager"
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^`route` must be 'operators' or 'auto' for Tiny, which"):
        pl.heads.capture(tiny(torch, "fused"), IDS, route="transformers")
