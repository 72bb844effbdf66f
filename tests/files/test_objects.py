"""Saved objects load with the same bits; files that were tampered with are refused."""

import dataclasses
import importlib
import io
import json
import math
import pickle
import pkgutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

import promptlimit as pl
from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.storage import RunFolder

ROTATION = np.array([[0.6, -0.8], [0.8, 0.6]])
THIRD = 1.0 / 3.0


def _law():
    return pl.Gaussian([THIRD, 2.0], [[2.0, THIRD], [THIRD, 1.0]])


def _head():
    return pl.SoftmaxAttention(key_query=ROTATION / 3, value=[[1.0, THIRD]])


def _square():
    return pl.LinearAttention(key_query=ROTATION / 3, value=np.eye(2))


BUILT = {
    "gaussian": _law,
    "quadratic": lambda: pl.GaussianQuadratic([1.0, THIRD], np.eye(2)),
    "empirical": lambda: pl.Empirical([[1.0, THIRD], [2.0, 0.1]]),
    "weighted": lambda: pl.Empirical([[1.0], [2.0]], weights=[0.25, 0.75]),
    "mixture": lambda: pl.Mixture([0.5, 0.5], [_law(), pl.Rademacher([1.0, THIRD])]),
    "affine": lambda: pl.Affine(pl.UniformCube([1.0]), [[THIRD], [2.0]], [0.1, 0.2]),
    "product": lambda: pl.Product([pl.UniformSphere(3, radius=THIRD), _law()]),
    "chain": lambda: pl.MarkovChain([[1.0], [THIRD]], [[0.5, 0.5], [0.25, 0.75]], start=1, end=0),
    "prompt": lambda: pl.Prompt(_law(), fixed=[[1.0, THIRD]], sinks=[THIRD], slope=THIRD),
    "correlated": lambda: pl.AutoregressiveGaussian([THIRD], [[2.0]], THIRD),
    "draws": lambda: pl.WithoutReplacement([[1.0, THIRD], [2.0, 0.1]]),
    "softmax": _head,
    "factored": lambda: pl.Factored("softmax", ROTATION, ROTATION / 7, ROTATION, scale=0.1),
    "heads": lambda: pl.MultiHead([_head(), _head()], output=[[THIRD], [1.0]]),
    "layer": lambda: pl.Layer(_square(), residual=ROTATION),
    "stack": lambda: pl.Stack([pl.Layer(_square()), pl.Layer([_square(), _square()])]),
    "regression": lambda: pl.LinearRegression(
        [[1.0, THIRD], [THIRD, 1.0]], noise_variance=0.1, query_covariance=np.eye(2)
    ),
    "rotated": lambda: pl.RotatedRegression([1.0, THIRD], noise_variance=0.1),
    "covariates": lambda: pl.CovariateRegression(_law(), noise_variance=THIRD),
    "denoising": lambda: pl.Denoising(
        [[1.0], [THIRD]], [0.5, 0.5], within_variance=1.0, noise_variance=0.3, clean_prompt=True
    ),
    "in-context": lambda: pl.InContextDenoising(
        [[1.0, 2.0], [THIRD, 0.0]], [0.5, 0.5], within_variance=THIRD, noise_variance=0.3
    ),
    "bigram": lambda: pl.tasks.InContextBigram(3, THIRD),
    "one bigram": lambda: pl.tasks.InContextBigram(2, THIRD, [[1.0, 0.0], [0.25, 0.75]]),
    "induction head": lambda: pl.tasks.InContextBigram(3, THIRD).head(THIRD, sink=0.1),
    "single location": lambda: pl.tasks.SingleLocation(THIRD),
    "discrimination": lambda: pl.Discrimination(ROTATION, [0.6, 0.4], np.eye(2)),
    "plan": lambda: pl.TrainingPlan(steps=9, learning_rate=THIRD, record=(0, 3, 9)),
    "flow plan": lambda: pl.dynamics.FlowPlan([0.0, THIRD, math.inf], rtol=1e-9, points=512),
    "captured": lambda: pl.heads.CapturedHeads(
        [[[pl.heads.Head([[THIRD]], [[1.0], [2.0]], [[1.0], [THIRD]])]]]
    ),
    "scores": lambda: pl.lengths.GaussianScores([1.0, THIRD], weights=[0.25, 0.75]),
    "list of scores": lambda: pl.lengths.ListedScores([1.0, THIRD]),
    "scores of tokens": lambda: pl.lengths.TokenScores(_law(), [1.0, THIRD]),
    "problem": lambda: pl.files.AttentionProblem(_head(), _law(), np.eye(2)),
    "gap": lambda: pl.output_gap(_head(), _law(), [[1.0, 2.0]], [10, np.inf]),
    "exponent": lambda: pl.gap_exponent(_head(), _law(), _law()),
    "length": lambda: pl.required_length(_head(), _law(), [[1.0, 2.0]], 0.1),
    "moments": lambda: pl.prompt_moments(_head(), _law(), [1.0, 2.0], 10),
    "fit": lambda: pl.fit_rate([10, 100, 1000], [0.3, 0.03, 0.0031]),
    "weights": lambda: pl.weight_statistics([0.0, 1.0], [10, 100]),
    "lengths": lambda: pl.length_statistics(1.0, [10, 100], fixed_scores=[3.0]),
}


def same(a: Any, b: Any) -> None:
    """Assert that two objects have one type and, down to the last bit, one content."""
    assert type(a) is type(b) or (isinstance(a, jax.Array) and isinstance(b, jax.Array))
    if dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, np.ndarray | np.generic | jax.Array):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    else:
        assert a == b or (a != a and b != b)  # noqa: PLR0124


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", BUILT)
def test_objects_come_back_with_the_same_bits(name: str, double: bool, tmp_path: Path) -> None:
    with jax.enable_x64(double):
        built = BUILT[name]()
        pl.save(tmp_path / "object.npz", built)
    same(pl.load(tmp_path / "object.npz"), built)
    assert list(tmp_path.iterdir()) == [tmp_path / "object.npz"]


def parts_of(obj: Any) -> Iterator[Any]:
    """Yield an object and all objects inside it."""
    yield obj
    if dataclasses.is_dataclass(obj):
        inside = [getattr(obj, field.name) for field in dataclasses.fields(obj)]
    else:
        inside = obj if isinstance(obj, tuple | list) else ()
    for part in inside:
        yield from parts_of(part)


def public_subclasses(base: type) -> Iterator[type]:
    """Yield the concrete public classes of this library below a base class."""
    for own in base.__subclasses__():
        package, part = own.__module__.split(".")[:2]
        concrete = package == "promptlimit" and not own.__name__.startswith("Abstract")
        if concrete and own is getattr(getattr(pl, part), own.__name__, None):
            yield own
        yield from public_subclasses(own)


def test_every_public_class_that_users_construct_is_among_the_examples() -> None:
    tried = {type(part) for build in BUILT.values() for part in parts_of(build())}
    for module in pkgutil.iter_modules(pl.__path__):
        package = importlib.import_module(f"promptlimit.{module.name}")
        for name in dir(package):  # names load on first use
            getattr(package, name)
    bases = (
        pl.AbstractMeasure,
        pl.prompts.AbstractPrompt,
        pl.AbstractAttention,
        pl.AbstractTask,
        pl.lengths.AbstractScores,
    )
    public = {own for base in bases for own in public_subclasses(base)}
    public |= {pl.TrainingPlan, pl.dynamics.FlowPlan, pl.files.AttentionProblem}
    public |= {pl.heads.CapturedHeads, pl.heads.Head}
    assert len(public) > 30
    assert public - tried == set()


@pl.files.savable
class Shifted(pl.AbstractMeasure):
    """A law of a user."""

    base: pl.Gaussian
    shift: Float[Array, " d"]

    @property
    def dim(self) -> int:
        return self.base.dim

    def log_laplace(self, tilt: Array) -> Array:
        return self.base.log_laplace(tilt) + tilt @ self.shift

    def sample(self, length: int, *, key: Array) -> Array:
        return self.base.sample(length, key=key) + self.shift


def test_registered_classes_are_saved_and_others_are_refused(tmp_path: Path) -> None:
    law = Shifted(_law(), jnp.array([1.0, THIRD]))
    pl.save(tmp_path / "law.npz", pl.Mixture([0.5, 0.5], [law, _law()]))
    same(pl.load(tmp_path / "law.npz").components[0], law)

    class Unknown(Shifted):
        pass

    with pytest.raises(ArgumentError, match=r"got Unknown \(object\)\. Decorate user-defined"):
        pl.save(tmp_path / "unknown.npz", Unknown(law.base, law.shift))

    class Gaussian(pl.Gaussian):
        """Has the name of a class of the library."""

    with pytest.raises(ArgumentError, match=r"got Gaussian \(object\)"):
        pl.save(tmp_path / "unknown.npz", Gaussian(jnp.zeros(1), jnp.eye(1)))
    with pytest.raises(ArgumentError, match="must be a dataclass, got dict"):
        pl.files.savable(dict)
    assert not (tmp_path / "unknown.npz").exists()


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    plan = pl.TrainingPlan(steps=3, optimiser=optax.adam(1e-3), label="adam 0.001")
    with pytest.raises(ArgumentError, match="must not contain an optax optimiser"):
        pl.save(tmp_path / "plan.npz", plan)
    with pytest.raises(ArgumentError, match=r"^`path` must end in .npz, got 'law.json'\.$"):
        pl.save(tmp_path / "law.json", _law())
    if Path("/proc/self").exists():
        with pytest.raises(
            ArgumentError, match=r"^`path` must be a place .*, got '/proc/x\.npz': "
        ):
            pl.save("/proc/x.npz", _law())
    with pytest.raises(ArgumentError, match="an array that jax traces"):
        jax.jit(lambda x: pl.save(tmp_path / "law.npz", pl.Rademacher(x)))(jnp.ones(1))
    with pytest.raises(ArgumentError, match=r"got function \(object.0\)"):
        pl.save(tmp_path / "f.npz", (same,))
    assert list(tmp_path.iterdir()) == []


def written(law: object, tmp_path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the description and the arrays of an object."""
    pl.save(tmp_path / "good.npz", law)
    with np.load(tmp_path / "good.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    return json.loads(arrays.pop("description").tobytes()), arrays


def bad(path: Path, description: object, arrays: dict[str, np.ndarray]) -> Path:
    content = np.frombuffer(json.dumps(description).encode(), np.uint8)
    np.savez(path, description=content, **arrays)  # ty: ignore[invalid-argument-type]
    return path


def deep(node: object, levels: int) -> object:
    for _ in range(levels):
        node = {"tuple": [node]}
    return node


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, a: d["object"].update({"class": "os.system"}), "its class 'os.system' is not"),
        (lambda d, a: d["object"].update({"class": "AbstractMeasure"}), "is not known"),
        (lambda d, a: d["object"].update({"class": ["Gaussian"]}), "is not known"),
        (lambda d, a: d["object"]["arguments"].pop("cov"), "the arguments of Gaussian"),
        (lambda d, a: d["object"]["arguments"].update(more=1), "the arguments of Gaussian"),
        (
            lambda d, a: d["object"]["arguments"].update(cov=[1]),
            "neither marked as list nor as tuple",
        ),
        (lambda d, a: d["object"]["arguments"].update(cov={"pickle": "x"}), "not a known form"),
        (lambda d, a: d["object"]["arguments"].update(mean=1.0), "`mean` must be a vector"),
        (lambda d, a: d.update(object=deep(1, 60)), "nested deeper than 50"),
        (lambda d, a: d.update(object=3), "is not what `save` would write"),
        (lambda d, a: d.update(version=2), "it is of version 2"),
        (lambda d, a: d.update(format="other"), "of another format"),
        (lambda d, a: a.update({"object.more": np.ones(3)}), "is not what `save` would write"),
        (lambda d, a: a.pop("object.cov"), "object.cov"),
        (lambda d, a: a.update({"object.cov": -a["object.cov"]}), "positive semi-definite"),
        (lambda d, a: a.update({"object.cov": np.ones((3, 3))}), "`cov` must have shape"),
        (lambda d, a: a.update({"object.mean": np.array(["a"])}), "has dtype <U1"),
        (lambda d, a: a.update({"object.mean": np.ones(2, int)}), "not a valid array of Gaussian"),
        (lambda d, a: a.update({"object.mean": np.full(2, np.nan)}), "`mean` must be finite"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused_in_one_sentence(change, words, tmp_path) -> None:
    description, arrays = written(_law(), tmp_path)
    change(description, arrays)
    path = bad(tmp_path / "bad.npz", description, arrays)
    with pytest.raises(InputFileError) as caught:
        pl.load(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} must be a file that promptlimit.save wrote, but ")
    assert words in sentence
    assert "\n" not in sentence


def test_an_array_that_the_constructor_would_change_is_refused(tmp_path: Path) -> None:
    description, arrays = written(BUILT["regression"](), tmp_path)
    arrays["object.covariance"][0, 1] = np.nextafter(THIRD, 1.0)  # symmetric up to rounding
    path = bad(tmp_path / "bad.npz", description, arrays)
    with pytest.raises(
        InputFileError, match=r"'object.covariance' is not a valid array of LinearRegression"
    ):
        pl.load(path)


class Exploit:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickles_bombs_and_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, description=np.array([Exploit()], dtype=object))
    with pytest.raises(InputFileError, match="Python objects, which are never loaded"):
        pl.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    refused(
        path,
        f"{path} must be a file that promptlimit.save wrote, but it is truncated, damaged or "
        "of another format. Save the object again.",
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (2**22,)}
        )
        with archive.open("description.npy", "w") as member:
            member.write(header.getvalue() + bytes(2**22))
    monkeypatch.setattr("promptlimit.storage._arrays._UNPACKED", 2**20)
    with pytest.raises(InputFileError, match="it would unpack to"):
        pl.load(path)
    pl.save(path, _law())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputFileError, match=r"wrote, but .*\. Save the object again\.$"):
        pl.load(path)
    np.savez(path, description=np.ones(3))
    refused(
        path,
        f"{path} must be a file that promptlimit.save wrote, but it has no description. Save the "
        "object again.",
    )


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(InputFileError) as caught:
        pl.load(path)
    assert str(caught.value) == sentence


def test_a_path_without_a_saved_object_is_refused_with_what_to_do(tmp_path: Path) -> None:
    absent = tmp_path / "absent.npz"
    refused(
        absent,
        f"{absent} must be a file that promptlimit.save wrote, but it does not exist. Check the "
        "path.",
    )
    refused(
        tmp_path,
        f"{tmp_path} must be a file that promptlimit.save wrote, got a folder. Give the path of a "
        ".npz file.",
    )
    run = RunFolder(tmp_path, {"what": "test"}).save({"value": np.ones(1)})
    refused(
        run,
        f"{run} must be a file that promptlimit.save wrote, got a folder. It is a run folder: "
        "call `gradient_flow`, `sgd` or `stream` again with "
        f"folder={str(tmp_path)!r} to read it.",
    )


def test_mappings_keep_their_order_and_need_text_for_keys(tmp_path: Path) -> None:
    path = tmp_path / "mapping.npz"
    mapping = {"b.0": (np.ones(1), {"x": math.inf}), "b": {"0": np.zeros(2)}, "a": None}
    pl.save(path, mapping)
    found = pl.load(path)
    assert list(found) == ["b.0", "b", "a"]
    same(found["b"]["0"], mapping["b"]["0"])
    assert found["b.0"][1] == {"x": math.inf}
    with pytest.raises(ArgumentError, match=r"must have strings as keys of mappings, got 1 \(ob"):
        pl.save(path, {1: 2.0})


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "law.npz"
    pl.save(path, _law())
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        pl.save(path, _head())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_loaded_law_works_where_the_saved_one_did(tmp_path: Path) -> None:
    pl.save(tmp_path / "head.npz", _head())
    pl.save(tmp_path / "law.npz", _law())
    head, law = pl.load(tmp_path / "head.npz"), pl.load(tmp_path / "law.npz")
    np.testing.assert_array_equal(head(law, jnp.ones(2)), _head()(_law(), jnp.ones(2)))
    assert eqx.tree_equal(law, _law())
