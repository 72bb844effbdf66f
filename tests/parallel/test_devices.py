import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from parallel.processes import command, run, script
from promptlimit.parallel import collective_sums, crew, in_chunks, on_crew

ESTIMATES = """
import contextlib, json, sys, jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np, promptlimit as pl

key, signs = jax.random.key(3), pl.Rademacher(np.array([1.0, 0.5]))
attention = pl.SoftmaxAttention(np.array([[0.5, 0.2], [-0.3, 0.4]]), np.array([[1.0, 2.0]]))
head = pl.SoftmaxAttention(0.3 * np.eye(2), np.array([[0.0, 1.0]]))
task = pl.LinearRegression(np.eye(1), noise_variance=0.1)
how = {"kind": "estimate", "key": key}

def gap():
    found = pl.output_gap(attention, signs, signs, [3, 20], **how, samples=700)
    return found.value, found.error

def slope():
    return (pl.gradient_gap(attention, signs, signs, [3], wrt="value", **how, samples=600).value,)

def moments():
    found = pl.prompt_moments(attention, signs, np.ones(2), 9, **how, rtol=0.05)
    return found.mean, found.cov, found.mse

def risk():
    found = pl.risk(head, task, 5, **how, samples=2500)
    return found.value, found.error

everything = (gap, slope, moments, risk)
found = {}
for devices, estimates in ((1, everything), (2, (gap,)), (4, (moments,)), (8, everything)):
    with pl.spread(devices):
        for each in estimates:
            numbers = [x.hex() for array in each() for x in np.ravel(array).tolist()]
            found.setdefault(each.__name__, {})[devices] = numbers
json.dump(found, sys.stdout)
"""

TRAININGS = """
import contextlib, json, sys, jax
jax.config.update("jax_num_cpu_devices", 4)
import numpy as np, promptlimit as pl
from pathlib import Path

class Killed(Exception):
    pass

def stop(progress):
    if progress.step >= 40:
        raise Killed

def trained(devices, folder=None, watch=None):
    task = pl.LinearRegression(np.eye(1), noise_variance=0.1)
    factors = lambda key: pl.uniform_factors(1, key=key, kernel="linear")
    starts = [factors, lambda key: factors(jax.random.fold_in(key, 1))]
    with pl.spread(devices):
        done = pl.sgd(
            task, starts, 6, steps=80, key=jax.random.key(1), seeds=5, batch=8, learning_rate=0.05,
            record=[0, 80], points=64, folder=folder, every=20, watch=watch, label="sgd")
    return {**done.parameters, "risks": done.risks}

folder = Path(sys.argv[1])
runs = {devices: trained(devices) for devices in (1, 2, 4)}
with contextlib.suppress(Killed):
    trained(4, folder, stop)
checkpoints = [str(path.relative_to(folder)) for path in folder.glob("*/checkpoint.npz")]
runs["resumed"] = trained(1, folder)
json.dump({"runs": {k: {n: a.tolist() for n, a in r.items()} for k, r in runs.items()},
           "checkpoints": checkpoints}, sys.stdout)
"""


def doubled(shared: tuple[jax.Array, str], part: jax.Array) -> jax.Array:
    traced.append(shared[1])
    return 2 * part + shared[0]


traced: list[str] = []


def test_estimates_have_the_same_bits_on_1_2_4_and_8_devices(tmp_path: Path) -> None:
    (done,) = run([script(ESTIMATES)], folder=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [len(found[name]) for name in ("gap", "slope", "moments", "risk")] == [3, 2, 3, 2]
    for name, by_devices in found.items():
        first = by_devices["1"]
        assert all(float.fromhex(number) != 0.0 for number in first)
        assert by_devices == dict.fromkeys(by_devices, first), name


@pytest.mark.slow
def test_training_agrees_to_rounding_and_a_run_begun_on_four_devices_resumes_on_one(
    tmp_path: Path,
) -> None:
    (done,) = run([script(TRAININGS, tmp_path / "runs")], folder=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert len(found["checkpoints"]) == 1
    alone = found["runs"].pop("1")
    moved = np.array(alone["risks"])[..., -1] / np.array(alone["risks"])[..., 0]
    assert (abs(moved - 1.0) > 1e-3).all()
    assert set(found["runs"]) == {"2", "4", "resumed"}
    for other in found["runs"].values():
        for name, array in alone.items():
            np.testing.assert_allclose(other[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_program_is_traced_once_for_the_same_shapes_and_constants() -> None:
    traced.clear()
    for number in range(3):
        part = np.full(4, number, np.float32)
        found = on_crew(doubled, (jnp.float32(1.0), "a"), lambda _, part=part: part)
        np.testing.assert_array_equal(found, (2 * part + 1)[None])
    on_crew(doubled, (jnp.float32(5.0), "b"), lambda _: np.zeros(4, np.float32))
    assert traced == ["a", "b"]


def test_without_spread_there_is_one_device_the_default_one() -> None:
    assert (crew().size, crew().local, crew().hosts, crew().writes) == (1, (0,), 1, True)
    with jax.default_device(jax.devices("cpu")[0]):
        assert crew().mesh.devices.tolist() == [jax.devices("cpu")[0]]


def test_spread_refuses_more_devices_than_there_are_and_names_the_way_out() -> None:
    there = len(jax.devices())
    with pytest.raises(ValueError, match="`devices` must be at most") as caught, pl.spread(1000):
        pass
    if jax.default_backend() == "cpu":
        assert str(caught.value) == (
            f"`devices` must be at most {there}, got 1000. A CPU counts as one device unless told "
            "before jax is first used: jax.config.update('jax_num_cpu_devices', 1000), or "
            "XLA_FLAGS=--xla_force_host_platform_device_count=1000."
        )


@pytest.mark.parametrize("devices", [0, -1, "some"])
def test_spread_refuses_what_is_no_number_of_devices(devices: object) -> None:
    words = f"`devices` must be 'all' or a whole number from 1, got {devices!r}."
    with pytest.raises(ValueError, match=words), pl.spread(devices):  # pyright: ignore[reportArgumentType]
        pass
    assert crew().size == 1


def test_chunks_follow_one_another_without_gaps() -> None:
    chunks = in_chunks(_indices, None, 3)
    assert [next(chunks).tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def _indices(_: None, indices: jax.Array) -> jax.Array:
    return indices


def test_collective_sums_are_those_of_arithmetic() -> None:
    found, expected = collective_sums()
    assert found.tolist() == [expected] * len(jax.devices())


def test_a_cpu_counts_as_several_devices_on_the_command_line(tmp_path: Path) -> None:
    well, refused, lone, many = run(
        [
            command("doctor", "--devices", 4, "--json"),
            command("gap", "--dim", 1, "--devices", "few"),
            command("gap", "--dim", 1, "--process", 1),
            command("doctor", "--devices", 5000),
        ],
        folder=tmp_path,
    )
    findings = {each["name"]: each for each in json.loads(well.out)}
    assert (well.code, findings["hosts"]["found"]) == (0, "1 process")
    assert findings["collectives"]["found"] == "4 of 4 devices"
    assert findings["devices"]["found"].startswith("4 x ")
    assert refused.code == lone.code == 1
    assert refused.err == (
        "error: --devices must be a whole number from 1, or all, got 'few'\nhint: --devices all\n"
    )
    assert lone.err == "error: --process belongs to --distributed\nhint: add --distributed\n"
    assert many.err.startswith("error: --devices must be at most 2048 in a process, got 5000\n")
