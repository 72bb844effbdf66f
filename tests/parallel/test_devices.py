import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from parallel.processes import command, program, run
from promptlimit.cli._console import CommandError
from promptlimit.cli._machines import Machines, machines
from promptlimit.parallel import active_devices, collective_sums, in_chunks, run_on_devices


def doubled(shared: tuple[jax.Array, str], part: jax.Array) -> jax.Array:
    traced.append(shared[1])
    return 2 * part + shared[0]


traced: list[str] = []


def _on_devices(folder: Path, *parts: str) -> dict[str, dict[str, Any]]:
    """Return the results of a process with eight devices."""
    file = Path(__file__).with_name("on_devices.py")
    (done,) = run([program(file, *parts, folder / "runs")], folder=folder)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the results of one process, shared by all tests."""
    folder = tmp_path_factory.mktemp("devices")
    return _on_devices(folder, "estimates", "trainings", "streams", "collectives", "group")


def test_estimates_have_the_same_bits_on_1_and_8_devices(results: dict[str, dict]) -> None:
    found = results["estimates"]
    assert [*found["gap"]] == ["1", "8"]
    _assert_same_bits(found)


def test_gradient_gaps_moments_and_risks_have_the_same_bits_on_any_number_of_devices(
    tmp_path: Path,
) -> None:
    found = _on_devices(tmp_path, "slopes")["slopes"]
    assert {name: [*by_devices] for name, by_devices in found.items()} == {
        "slope": ["1", "2"],
        "moments": ["1", "4"],
        "risk": ["1", "2"],
    }
    _assert_same_bits(found)


def _assert_same_bits(found: dict[str, dict[str, list[str]]]) -> None:
    for name, by_devices in found.items():
        first = by_devices["1"]
        assert all(float.fromhex(number) != 0.0 for number in first)
        assert by_devices == dict.fromkeys(by_devices, first), name


def test_training_agrees_to_rounding_and_a_run_begun_on_four_devices_resumes_on_one(
    results: dict[str, dict],
) -> None:
    runs = dict(results["trainings"]["runs"])
    assert len(results["trainings"]["checkpoints"]) == 1
    alone = runs.pop("1")
    moved = np.array(alone["value"])[..., -1] / np.array(alone["value"])[..., 0]
    assert (abs(moved - 1.0) > 1e-3).all()
    assert set(runs) == {"4", "resumed"}
    for other in runs.values():
        for name, array in alone.items():
            np.testing.assert_allclose(other[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_devices_and_chunks_change_no_bit_of_a_stream(results: dict[str, dict]) -> None:
    found = results["streams"]
    assert {name: [*ways] for name, ways in found.items()} == {
        "drawn": ["1 1", "4 3"],  # devices and chunks
        "held": ["1 1", "8 1"],
        "arriving": ["1 1", "8 1"],
    }
    for name, ways in found.items():
        assert ways == dict.fromkeys(ways, ways["1 1"]), name
    assert found["held"] == found["arriving"]
    assert found["held"]["1 1"] != found["drawn"]["1 1"]


def test_a_program_is_traced_once_for_the_same_shapes_and_constants() -> None:
    traced.clear()
    for number in range(3):
        part = np.full(4, number, np.float32)
        found = run_on_devices(doubled, (jnp.float32(1.0), "a"), lambda _, part=part: part)
        np.testing.assert_array_equal(found, (2 * part + 1)[None])
    run_on_devices(doubled, (jnp.float32(5.0), "b"), lambda _: np.zeros(4, np.float32))
    assert traced == ["a", "b"]


def test_without_spread_there_is_one_device_the_default_one() -> None:
    assert (
        active_devices().size,
        active_devices().local,
        active_devices().hosts,
        active_devices().writes,
    ) == (1, (0,), 1, True)
    with jax.default_device(jax.devices("cpu")[0]):
        assert active_devices().mesh.devices.tolist() == [jax.devices("cpu")[0]]


def test_use_devices_refuses_more_devices_than_there_are_and_suggests_how_to_get_more() -> None:
    there = len(jax.devices())
    with (
        pytest.raises(ValueError, match="`devices` must be at most") as caught,
        pl.use_devices(1000),
    ):
        pass
    if jax.default_backend() == "cpu":
        assert str(caught.value) == (
            f"`devices` must be at most {there}, got 1000. A CPU is one device by default. "
            "For more, set before jax is first used: "
            "jax.config.update('jax_num_cpu_devices', 1000), or "
            "XLA_FLAGS=--xla_force_host_platform_device_count=1000."
        )


@pytest.mark.parametrize("devices", [0, -1, "some"])
def test_use_devices_refuses_invalid_numbers_of_devices(devices: int | str) -> None:
    words = f"`devices` must be 'all' or a whole number from 1, got {devices!r}."
    with pytest.raises(ValueError, match=words), pl.use_devices(devices):
        pass
    assert active_devices().size == 1


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_chunks_follow_one_another_without_gaps_with_the_keys_of_jax(generator: str) -> None:
    key = jax.random.key(9, impl=generator)
    chunks = in_chunks(_words, None, 3, key=key, draws=2)
    rows = [jax.random.split(jax.random.fold_in(key, i)) for i in range(9)]
    wanted = np.stack([jax.random.key_data(row) for row in rows])
    np.testing.assert_array_equal(np.concatenate([next(chunks) for _ in range(3)]), wanted)


def _words(_: None, keys: jax.Array) -> jax.Array:
    return jax.random.key_data(keys)


def test_collective_sums_are_correct_on_the_devices_present() -> None:
    found, expected = collective_sums()
    assert found.tolist() == [expected] * len(jax.devices())


def test_a_process_with_several_devices_is_one_host_that_writes(results: dict[str, dict]) -> None:
    assert results["group"] == {"size": 4, "hosts": 1, "process": 0, "writes": True}


def test_collective_sums_are_correct_on_eight_devices(results: dict[str, dict]) -> None:
    assert results["collectives"] == {"sums": [36.0] * 8, "expected": 36.0}  # 1 + 2 + ... + 8


def test_a_cpu_counts_as_several_devices_on_the_command_line(tmp_path: Path) -> None:
    (well,) = run([command("doctor", "--devices", 4, "--json")], folder=tmp_path)
    findings = {each["name"]: each for each in json.loads(well.out)}
    assert (well.code, findings["hosts"]["found"]) == (0, "1 process")
    assert findings["collectives"]["found"] == "4 of 4 devices"
    assert findings["devices"]["found"].startswith("4 x ")


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (
            ("few", None),
            "--devices must be a whole number from 1, or all, got 'few'",
            "--devices all",
        ),
        ((None, 1), "--process must be given together with --distributed", None),
        (
            ("5000", None),
            "--devices must be at most 2048 in a process, got 5000",
            "--devices all",
        ),
    ],
)
def test_wrong_numbers_of_devices_and_processes_get_an_error_and_a_hint(
    asked: tuple[str | None, int | None], message: str, hint: str | None
) -> None:
    devices, process = asked
    with (
        pytest.raises(CommandError) as refusal,
        machines(Machines(devices, False, None, None, process)),
    ):
        pass
    assert (refusal.value.message, refusal.value.hint) == (message, hint)
