r"""Heads of a PyTorch model of any family, captured while it runs.

There are two routes. Models of the package transformers call a registered attention function: while
such a model runs, a function that records its arguments is registered in its place. In other
models, two kinds of operations are recorded: calls of `scaled_dot_product_attention`, and each
softmax between two matrix products. For such a softmax, the scale c and the mask are inferred from
the scores, which are $c\langle q,k\rangle$ for visible tokens and large negative numbers for masked
tokens. On both routes, the output of every attention call is rebuilt from the captured heads and
compared with the output in the model.
"""

import contextlib
import contextvars
import dataclasses
import importlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Literal

import numpy as np

from promptlimit._arrays import with_numpy_defaults
from promptlimit._inputs import require_choice
from promptlimit.errors import ArgumentError, MissingPackageError
from promptlimit.heads._head import Head
from promptlimit.heads._prompts import CapturedHeads

_HIDDEN = -5e3
"""Tokens with at most this score are masked. Models mask by -10000, -1e9, the least float or -inf.
"""
_REBUILT = {4: 1e-4, 2: 5e-2}
"""The largest relative error of a rebuilt output that rounding can cause, by the size of the
model's numbers in bytes."""
_BY_HAND = "Pass its arrays: promptlimit.heads.Head(queries, keys, values)."


@with_numpy_defaults
def capture(
    model: Any,
    ids: Any,
    *,
    name: str | None = None,
    route: Literal["auto", "transformers", "operators"] = "auto",
    **inputs: object,
) -> CapturedHeads:
    """Run a PyTorch model and return the queries, keys and values of every head and layer.

    If `captured` is the result, `captured.prompts[p][l][h]` is the `Head` with index h in layer l,
    over prompt p. Layers are in the order in which they run, and `captured.layer_names[l]` is the
    name of the attention module of layer l.

    The model can be any `torch.nn.Module` that computes attention by `scaled_dot_product_attention`
    or by matrix products and a softmax: a model of transformers, `torch.nn.MultiheadAttention`, or
    a user-defined module. Queries and keys are captured after any rotation, as they enter the
    scores. Keys and values that several heads share are repeated for each head. The model runs once
    per prompt, in evaluation mode and without gradients; its mode is restored afterwards.

    Args:
        model: the model, called as `model(tokens, **inputs)` with a batch of one.
        ids: the token ids of one prompt, [n], or of several, [prompts, n]; vectors, [n, d] or
            [prompts, n, d], for a model whose input consists of vectors. Padding is not supported.
        name: the name of the model on the HTML page of the atlas; by default the name of its
            checkpoint or class.
        route: "transformers" registers an attention function (`transformers.AttentionInterface`),
            also for models loaded with flex attention; "operators" records the operators of
            PyTorch; "auto" uses "transformers" if the model supports it, otherwise "operators".
        inputs: further arguments of the model's forward pass.

    Raises:
        MissingPackageError: PyTorch is not installed.
        ValueError: no attention was found, or the attention of a layer is not a softmax of scaled
            products.
    """
    torch = _torch()
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError("model", f"must be a torch.nn.Module, got {type(model).__name__}.")
    require_choice("route", route, ("auto", "transformers", "operators"))
    registered = route != "operators" and _is_transformers_model(model)
    if route == "transformers" and not registered:
        raise ArgumentError(
            "route",
            f"must be 'operators' or 'auto' for {type(model).__name__}, which does not support "
            "the attention functions of transformers, got 'transformers'.",
        )
    prompts: list[list[list[Head]]] = []
    parity: list[list[float]] = []
    names: list[str] = []
    for tokens in _batches_of_one(torch, model, ids):
        calls = _calls(torch, model, tokens, inputs, registered=registered)
        prompts.append([_heads(call) for call in calls])
        parity.append([_rebuilding_error(*pair) for pair in zip(calls, prompts[-1], strict=True)])
        names = [call.module for call in calls]
    config = getattr(model, "config", None)
    own = PurePath(str(getattr(config, "_name_or_path", ""))).name
    return CapturedHeads(
        prompts,
        name=name or own or type(model).__name__,
        model_type=str(getattr(config, "model_type", "") or type(model).__name__),
        rotary=any("rotary" in type(module).__name__.lower() for module in model.modules()),
        parity=np.array([max(layer) for layer in zip(*parity, strict=False)]),
        layer_names=names,
    )


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MissingPackageError(
            "`capture` must run the model with PyTorch, which is not installed. Run pip install "
            "torch, or pass the arrays of heads: promptlimit.heads.Head(queries, keys, values)."
        ) from None


def _batches_of_one(torch: Any, model: Any, ids: Any) -> Iterator[Any]:
    """Yield the prompts as tensors with a batch of one, on the device of the model."""
    try:
        tokens = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError("ids", f"must be token ids, got {type(ids).__name__}.") from None
    whole = not (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool)
    least = 1 if whole else 2
    if tokens.ndim not in {least, least + 1} or tokens.numel() == 0:
        raise ArgumentError(
            "ids",
            "must be token ids [n] or [prompts, n], or vectors [n, d] or [prompts, n, d], "
            f"got shape {tuple(tokens.shape)}, {str(tokens.dtype).removeprefix('torch.')}.",
        )
    weight = next(iter(model.parameters()), torch.zeros(()))
    tokens = tokens.to(weight.device, torch.int64 if whole else weight.dtype)
    yield from (row[None] for row in (tokens if tokens.ndim > least else tokens[None]))


@dataclasses.dataclass(frozen=True)
class _Call:
    """One attention call of a model on one prompt, with arrays in single precision.

    Attributes:
        module: the name of the module.
        queries: the queries, [heads, n, d].
        keys: the keys, [heads, length, d].
        values: the values, [heads, length, e].
        seen: whether each query attends to each token, [heads, n, length].
        scale: the factor on the scores.
        outputs: the outputs of the heads in the model, [heads, n, e].
        rounding: the largest relative error that the precision of the model can cause.
    """

    module: str
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    seen: np.ndarray
    scale: float
    outputs: np.ndarray
    rounding: float


def _heads(call: _Call) -> list[Head]:
    """Return the heads of one call, which must have no mask or a causal mask."""
    causal = np.tri(*call.seen.shape[1:], dtype=bool)
    if not call.seen.all() and not (call.seen == causal).all():
        raise ArgumentError(
            "model",
            f"must have attention without a mask or with a causal mask, but {call.module} uses "
            "another mask. Pass prompts without padding, no longer than its sliding window.",
        )
    rows = zip(call.queries, call.keys, call.values, strict=True)
    return [Head(*row, scale=call.scale, causal=not call.seen.all()) for row in rows]


def _rebuilding_error(call: _Call, heads: Sequence[Head]) -> float:
    rebuilt = np.stack([head.outputs() for head in heads])
    error = np.linalg.norm(rebuilt - call.outputs) / max(np.linalg.norm(call.outputs), 1e-30)
    if not error < call.rounding:
        raise ArgumentError(
            "model",
            f"must attend by softmax of scaled products, but the output of {call.module} "
            f"differs from that by {error:.0%}. Position biases, caps on scores and learned sinks "
            "are not of that form.",
        )
    return float(error)


def _calls(
    torch: Any, model: Any, tokens: Any, inputs: dict[str, object], *, registered: bool
) -> list[_Call]:
    """Return the attention calls of one forward pass, in the order in which they run."""
    calls: list[_Call] = []
    with contextlib.ExitStack() as stack:
        modules = _running_modules(model, stack)

        def record(*arrays: Any, seen: np.ndarray, scale: float) -> None:
            rounding = _REBUILT[min(arrays[0].element_size(), 4)]
            parts = map(_array, arrays)
            calls.append(_call(modules[-1], *parts, seen=seen, scale=scale, rounding=rounding))

        training = {module: module.training for module in model.modules()}
        stack.callback(lambda: [setattr(m, "training", was) for m, was in training.items()])
        model.eval()
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.no_grad())
        if registered:
            stack.enter_context(_record_registered_calls(model, record))
        else:
            following = _record_operators(torch, record)
            stack.enter_context(following)
            stack.enter_context(_record_fused_calls(torch, following, record))
        model(tokens, **inputs)
    if registered and not calls:  # the model has no attention that uses the registered name
        return _calls(torch, model, tokens, inputs, registered=False)
    if not calls:
        raise ArgumentError(
            "model",
            "must attend by scaled_dot_product_attention or by softmax of products, got "
            f"{type(model).__name__}, in which no such call was found. Load a model of "
            f"transformers with attn_implementation='eager'. {_BY_HAND}",
        )
    return calls


def _running_modules(model: Any, stack: contextlib.ExitStack) -> list[str]:
    """Return a list that always contains the names of the running modules, innermost last."""
    running = [type(model).__name__]
    for name, module in model.named_modules():
        if name:
            enter = module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
            leave = module.register_forward_hook(
                lambda *_: running.pop() and None, always_call=True
            )
            stack.callback(enter.remove)
            stack.callback(leave.remove)
    return running


def _is_transformers_model(model: Any) -> bool:
    """Return whether a model of transformers can use a registered function in place of "sdpa".

    Models with capped scores or learned sinks do not support "sdpa".
    """
    transformers = sys.modules.get("transformers")
    return (
        hasattr(transformers, "AttentionMaskInterface")
        and isinstance(model, transformers.PreTrainedModel)
        and hasattr(model, "set_attn_implementation")
        and getattr(model, "_supports_sdpa", False)
    )


_record: contextvars.ContextVar[Callable[..., None]] = contextvars.ContextVar("record")


def _recorded_attention(  # noqa: PLR0917 - the signature of transformers' attention functions
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Compute attention by the function "sdpa" of transformers, and record its arguments."""
    # For models with these options, some versions of transformers use "sdpa", which ignores them.
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise ArgumentError(
            "model",
            f"must attend by softmax of scaled products, but {type(module).__name__} caps its "
            "scores or has learned sinks.",
        )
    attend = importlib.import_module("transformers").AttentionInterface()["sdpa"]
    outputs, weights = attend(
        module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **options
    )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    shape = (query.shape[-2], key.shape[-2])
    seen = _seen(attention_mask, shape, causal=bool(causal) and attention_mask is None)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    _record.get()(query, key, value, outputs.transpose(1, 2), seen=seen, scale=scale)
    return outputs, weights


@contextlib.contextmanager
def _record_registered_calls(model: Any, record: Callable[..., None]) -> Generator[None]:
    """Record every attention call of a model of transformers inside the context."""
    name = "promptlimit_capture"
    transformers = importlib.import_module("transformers")
    masks = transformers.AttentionMaskInterface
    transformers.AttentionInterface.register(name, _recorded_attention)
    masks.register(name, masks()["sdpa"])
    parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
    before = [part.config._attn_implementation for part in parts]
    token = _record.set(record)
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        _record.reset(token)
        # The whole model comes first, because setting it also sets all of its parts.
        for part, implementation in zip(parts, before, strict=True):
            part.set_attn_implementation(implementation)


@contextlib.contextmanager
def _record_fused_calls(torch: Any, following: Any, record: Callable[..., None]) -> Generator[None]:
    """Record every call of `scaled_dot_product_attention` inside the context."""
    functional = torch.nn.functional
    fused = functional.scaled_dot_product_attention

    def watched(  # noqa: PLR0917 - the signature of PyTorch's function
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        following.paused = True
        try:
            shared = {"enable_gqa": True} if enable_gqa else {}
            outputs = fused(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **shared
            )
        finally:
            following.paused = False
        seen = _seen(attn_mask, (query.shape[-2], key.shape[-2]), causal=is_causal)
        factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
        record(query, key, value, outputs, seen=seen, scale=factor)
        return outputs

    functional.scaled_dot_product_attention = watched
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


def _seen(mask: Any, shape: tuple[int, int], *, causal: bool) -> np.ndarray:
    """Return whether each query attends to each token, [..., n, length]."""
    seen = np.tri(*shape, dtype=bool) if causal else np.ones(shape, dtype=bool)
    if mask is None:
        return seen
    added = _array(mask)
    if mask.dtype.is_floating_point:
        shown = added > _HIDDEN
        if np.abs(added[shown]).max(initial=0.0) > 0:
            raise ArgumentError(
                "model",
                "must add nothing to its scores but a mask, got position biases. Scores "
                "that are not of the form scale <q, k> have no limit here.",
            )
        return seen & shown
    return seen & (added > 0)


def _record_operators(torch: Any, record: Callable[..., None]) -> Any:
    """Return a context in which each softmax between two matrix products is recorded."""
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class FollowOperators(base):
        """Tracks which tensors are matrix products (`scores`) or softmax of these (`weights`)."""

        def __init__(self) -> None:
            super().__init__()
            self.paused = False
            self.scores: dict[int, tuple] = {}
            self.weights: dict[int, tuple] = {}

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if not self.paused and isinstance(result, torch.Tensor):
                self.follow(func.overloadpacket.__name__, args, result)
            return result

        def follow(self, operator: str, args: tuple, result: Any) -> None:
            if operator in {"bmm", "mm", "baddbmm"}:
                left, right = args[-2:] if operator != "baddbmm" else args[1:3]
                if id(left) in self.weights:
                    self.attended(self.weights[id(left)], right, result)
                else:
                    self.scores[id(result)] = (result, left, right)
            elif operator in {"_softmax", "_safe_softmax"}:
                if id(args[0]) in self.scores:
                    self.weights[id(result)] = (result, args[0], *self.scores[id(args[0])][1:])
            else:
                for known in (self.scores, self.weights):
                    for part in args:
                        if id(part) in known and part.numel() == result.numel():
                            known[id(result)] = (result, *known[id(part)][1:])

        def attended(self, weights: tuple, values: Any, outputs: Any) -> None:
            _, scores, queries, keys = weights
            self.scores, self.weights = {}, {}
            keys = keys.transpose(-1, -2)
            rows = _array(scores).reshape(*queries.shape[:-1], keys.shape[-2])
            seen, scale = _mask_and_scale(rows, _array(queries), _array(keys))
            record(queries, keys, values, outputs, seen=seen, scale=scale)

    return FollowOperators()


def _mask_and_scale(
    scores: np.ndarray, queries: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return which tokens are visible, and the least-squares scale of their scores."""
    seen = scores > _HIDDEN
    products = (queries.astype(np.float64) @ keys.astype(np.float64).swapaxes(-1, -2))[seen]
    size = float((products**2).sum())
    return seen, float((products * scores[seen]).sum()) / size if size > 0 else 1.0


def _call(
    module: str,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    outputs: np.ndarray,
    *,
    seen: np.ndarray,
    scale: float,
    rounding: float,
) -> _Call:
    """Return a call from arrays [1, heads, ...]; shared keys and values are repeated."""
    arrays = {"queries": queries, "keys": keys, "values": values, "outputs": outputs}
    for name, array in arrays.items():
        if array.ndim < 2 or any(size != 1 for size in array.shape[:-3]):
            raise ArgumentError(
                "model",
                f"must attend to one prompt at a time, [1, heads, n, d], but {module} "
                f"has {name} of shape {array.shape}. {_BY_HAND}",
            )
        arrays[name] = array.reshape(-1, *array.shape[-2:])
    heads = len(arrays["queries"])
    for name in ("keys", "values"):
        arrays[name] = np.repeat(arrays[name], heads // len(arrays[name]), axis=0)
    n, length = arrays["queries"].shape[1], arrays["keys"].shape[1]
    whole = np.broadcast_to(seen, (*(1,) * (3 - seen.ndim), *seen.shape))
    whole = np.broadcast_to(whole.reshape(-1, *whole.shape[-2:]), (heads, n, length))
    return _Call(module=module, seen=whole, scale=scale, rounding=rounding, **arrays)


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor of any precision and device as an array in single precision."""
    return tensor.detach().float().cpu().numpy()
