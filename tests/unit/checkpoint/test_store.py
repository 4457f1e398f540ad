import json
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import maxtrain.checkpoint.store as store_module
from maxtrain.checkpoint import CheckpointStore, leaf_digest, list_steps, restore_subtree
from maxtrain.checkpoint.health import Health, Verdict
from maxtrain.core.errors import BusyError, CheckpointError, ExitCode, run_command


def _assert_equal(left: Any, right: Any) -> None:
    assert str(jax.tree.structure(left)) == str(jax.tree.structure(right))
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _array_file(step: Path) -> Path:
    return max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.fixture
def copied(committed: Path, directory: Path) -> Path:
    """The test's directory with committed steps 2 and 3."""
    return shutil.copytree(committed, directory)


def test_a_save_restores_bit_for_bit_with_its_record(open_store, events, state, abstract, directory):
    store = open_store()
    assert store.restore(abstract) is None
    record = {"step": 12, "seed": 5, "fingerprint": {"a": [1, 2.5, None]}, "text": "中文", "loss": float("inf")}
    assert store.save(12, state, record) >= 0
    store.wait()
    store.close()
    [info] = list_steps(directory)
    assert (info.step, info.verified, info.health, info.record) == (12, True, "provisional", record)
    step, restored, found = open_store().restore(abstract)
    assert (step, found) == (12, record)
    _assert_equal(restored, state)
    jax.tree.map(
        lambda got, asked: pytest.fail("sharding") if got.sharding != asked.sharding else None, restored, abstract
    )
    [(_, fields)] = events.of("save")
    assert fields["num_bytes"] == info.num_bytes
    assert fields["seconds"] >= fields["stall_seconds"] >= 0


def test_eight_devices_to_four_to_one_is_exact(committed, open_store, kit):
    _, on_four, _ = restore_subtree(committed, kit.abstract(kit.mesh(4, 1)))
    assert on_four["params"]["w"].sharding.num_devices == 4
    _assert_equal(on_four, kit.state(kit.mesh(1, 1), seed=3))
    store = open_store(asynchronous=False)
    store.save(4, on_four, {})
    _, on_one, _ = store.restore(kit.abstract(kit.mesh(1, 1)))
    _assert_equal(on_one, on_four)
    assert leaf_digest(on_one) == leaf_digest(on_four) == leaf_digest(kit.state(kit.mesh(2, 4), seed=3))


def test_a_relative_path_is_as_good(committed, kit, monkeypatch):
    monkeypatch.chdir(committed.parent)
    _, restored, _ = restore_subtree(Path(committed.name), kit.abstract(kit.mesh(1, 1)))
    _assert_equal(restored, kit.state(kit.mesh(1, 1), seed=3))


def test_saving_on_one_device_restores_on_eight(open_store, kit, abstract):
    store = open_store(asynchronous=False)
    store.save(1, kit.state(kit.mesh(1, 1)), {})
    _assert_equal(store.restore(abstract)[1], kit.state(kit.mesh(2, 4)))


def test_part_of_the_state_is_restored_without_lock_or_moves(copied, open_store, abstract, caplog):
    _flip(_array_file(copied / "step_00000003"))
    open_store()
    part = {"params": {"w": abstract["params"]["w"]}, "expert_bias": abstract["expert_bias"]}
    step, restored, record = restore_subtree(copied, part)
    assert (step, record["step"]) == (2, 2)
    assert str(jax.tree.structure(restored)) == str(jax.tree.structure(part))
    assert "step_00000003" in caplog.text
    assert (copied / "step_00000003").is_dir()
    assert restore_subtree(copied, part, step=2)[0] == 2
    with pytest.raises(CheckpointError, match="another SHA-256"):
        restore_subtree(copied, part, step=3)
    with pytest.raises(CheckpointError, match="step 9 was never committed or is gone; there are: 2, 3"):
        restore_subtree(copied, part, step=9)


def test_a_damaged_step_falls_back_by_name_and_is_kept_aside(copied, open_store, events, abstract, kit, mesh):
    victim = _array_file(copied / "step_00000003")
    _flip(victim)
    store = open_store()
    step, restored, _ = store.restore(abstract)
    assert step == 2
    _assert_equal(restored, kit.state(mesh, seed=2))
    [(bad, fields)] = events.of("fallback")
    assert bad == 3
    assert victim.name in fields["reason"]
    assert fields["moved_to"].endswith("quarantine/step_00000003")
    assert events.of("restore") == [(2, {"passed_over": [3]})]
    assert store.restore(abstract)[0] == 2
    told = [fields for _, _, fields in events if "step_00000003" in str(fields)]
    assert len(told) == 1, "told once, not by every attempt"
    assert (copied / "quarantine" / "step_00000003" / "commit.json").exists()
    assert "step_00000003" in (copied / "quarantine" / "reasons.jsonl").read_text()
    store.save(3, kit.state(mesh, seed=3), {})
    store.wait()
    assert [info.verified for info in list_steps(copied)] == [True, True]


def test_a_digest_that_differs_falls_back_though_every_file_is_as_committed(
    open_store, events, abstract, kit, mesh, monkeypatch
):
    store = open_store(asynchronous=False)
    store.save(1, kit.state(mesh, seed=1), {})
    real = store_module.start_write

    def corrupting(writer, directory, leaves):
        changed = [(path, leaf * 2 if path == "params/w" else leaf) for path, leaf in leaves]
        return real(writer, directory, changed)

    monkeypatch.setattr(store_module, "start_write", corrupting)
    store.save(2, kit.state(mesh, seed=2), {})
    assert store.restore(abstract)[0] == 1
    assert "params/w has another digest" in events.of("fallback")[0][1]["reason"]


def test_nothing_good_left_is_refused_and_never_a_fresh_start(copied, open_store, abstract):
    for step in (2, 3):
        (copied / f"step_0000000{step}" / "commit.json").unlink()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no verified step is left that is not unhealthy"):
            open_store().restore(abstract)
    with pytest.raises(CheckpointError, match=r"none is left; what was moved aside, and why, is in .*quarantine"):
        open_store().restore(abstract)
    shutil.rmtree(copied / "quarantine")
    store = open_store()
    assert run_command(lambda: store.restore(abstract)) == ExitCode.CHECKPOINT


def test_unhealthy_steps_are_passed_over_and_saving_goes_on(copied, open_store, events, abstract, kit, mesh):
    store, spike = open_store(), Verdict(Health.UNHEALTHY, "loss spike at 3")
    assert store.judge(lambda step: spike if step == 3 else Verdict(Health.HEALTHY))
    assert store.restore(abstract, step=3)[0] == 3
    assert store.restore(abstract)[0] == 2
    assert "loss spike at 3" in events.of("fallback")[0][1]["reason"]
    store.save(3, kit.state(mesh, seed=33), {})
    store.wait()
    # The old verdict was on another state of that number.
    assert store.restore(abstract)[0] == 3
    store.save(4, kit.state(mesh, seed=4), {"finite": False})
    store.wait()
    assert [info.health for info in list_steps(copied)] == ["healthy", "provisional", "unhealthy"]
    store.quarantine_after(2, "rollback")
    assert store.restore(abstract)[0] == 2


def test_each_verdict_is_written_once_and_not_while_a_save_is_on_its_way(
    copied, open_store, events, state, monkeypatch
):
    def lines() -> list[tuple[int, str]]:
        return [(line["step"], line["health"]) for line in map(json.loads, ledger.read_text().splitlines())]

    ledger, gate, real = copied / "health.jsonl", threading.Event(), store_module.write_commit
    store, before = open_store(), lines()
    verdicts = {2: Verdict(Health.HEALTHY), 3: Verdict(Health.PROVISIONAL), 9: Verdict(Health.HEALTHY)}
    monkeypatch.setattr(store_module, "write_commit", lambda *given: (gate.wait(20), real(*given))[1])
    store.save(4, state, {})
    assert not store.judge(lambda step: verdicts.get(step, verdicts[3]))
    gate.set()
    store.wait()
    for _ in range(2):
        assert store.judge(lambda step: verdicts.get(step, verdicts[3]))
    assert lines() == [*before, (4, "provisional"), (2, "healthy")]
    monkeypatch.setattr(store_module, "append_health", _fail_with(OSError(28, "No space left on device")))
    assert store.judge(lambda _: Verdict(Health.UNHEALTHY, "spike"))
    assert "No space left on device" in events.of("warning")[-1][1]["reason"]
    assert [info.health for info in list_steps(copied)] == ["healthy", "provisional", "provisional"]


def test_only_unhealthy_steps_are_refused_where_they_are(copied, open_store, abstract):
    store = open_store()
    store.judge(lambda _: Verdict(Health.UNHEALTHY, "spike"))
    with pytest.raises(CheckpointError, match="is unhealthy: spike"):
        store.restore(abstract)
    assert [info.verified for info in list_steps(copied)] == [True, True]


def _change(abstract: Any, path: str, **changes: Any) -> Any:
    def edit(where, leaf):
        if jax.tree_util.keystr(where, simple=True, separator="/") != path:
            return leaf
        parts = {"shape": leaf.shape, "dtype": leaf.dtype, "sharding": leaf.sharding} | changes
        return jax.ShapeDtypeStruct(parts["shape"], parts["dtype"], sharding=parts["sharding"])

    return jax.tree_util.tree_map_with_path(edit, abstract)


def test_another_model_is_refused_by_name_and_nothing_is_moved(copied, open_store, abstract):
    store = open_store()
    without = {name: leaf for name, leaf in abstract.items() if name != "flags"}
    cases = [
        (_change(abstract, "params/w", dtype=jnp.bfloat16), "params/w is float32[8,64], this run has bfloat16[8,64]"),
        (_change(abstract, "params/w", shape=(8, 128)), "params/w is float32[8,64], this run has float32[8,128]"),
        (_change(abstract, "key", dtype=jax.random.key(0, impl="rbg").dtype), "key is key"),
        (without, "this run lacks flags"),
        (abstract | {"extra": abstract["step"]}, "the checkpoint lacks extra"),
    ]
    for changed, message in cases:
        with pytest.raises(CheckpointError) as caught:
            store.restore(changed)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="needs a sharding; params/w has none"):
        store.restore(_change(abstract, "params/w", sharding=None))
    assert len(list_steps(copied)) == 2


def test_what_killed_saves_left_blocks_nothing(directory, open_store, state, abstract):
    for name in ("step_00000004.partial/state", "step_00000005.partial", "step_00000004"):
        (directory / name).mkdir(parents=True)
        (directory / name / "half").write_text("half")
    store = open_store()
    for step in (4, 5):
        store.save(step, state, {})
    store.wait()
    assert [(info.step, info.verified) for info in list_steps(directory)] == [(4, True), (5, True)]
    assert (directory / "quarantine" / "step_00000004" / "half").exists()
    assert not list(directory.glob("*.partial"))


def test_a_committed_step_is_saved_again_only_if_equal(copied, open_store, kit, mesh):
    store = open_store()
    before = (copied / "step_00000003" / "commit.json").read_bytes()
    store.save(3, kit.state(kit.mesh(1, 1), seed=3), {"another": "record"})
    with pytest.raises(CheckpointError, match="step 3 is already committed with other arrays"):
        store.save(3, kit.state(mesh, seed=4), {})
    assert (copied / "step_00000003" / "commit.json").read_bytes() == before


def test_a_second_run_in_the_directory_is_refused_until_the_first_ends(directory, open_store):
    first = open_store()
    with pytest.raises(BusyError, match=r"held by process \d+"):
        CheckpointStore(directory)
    first.close()
    CheckpointStore(directory).close()


def test_a_state_with_other_leaves_or_a_record_that_is_no_json_is_refused_before_writing(open_store, directory, state):
    store = open_store()
    with pytest.raises(ValueError, match=r"JAX arrays only, not w \(ndarray\)"):
        store.save(1, {"w": np.zeros(2)}, {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save(1, state, {"value": np.float32(1)})
    assert not list(directory.glob("step_*"))


def test_buffers_may_be_donated_and_overwritten_right_after_a_save(open_store, kit, mesh):
    values = np.random.default_rng(0).standard_normal((512, 1024), np.float32)
    abstract = {"w": jax.ShapeDtypeStruct((512, 1024), np.float32, sharding=kit.state(mesh)["params"]["w"].sharding)}
    spoil = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    store = open_store(keep=9)
    for step in range(3):
        w = jax.device_put(values + step, abstract["w"].sharding)
        store.save(step, {"w": w}, {})
        for _ in range(3):
            w = spoil(w)
        w.block_until_ready()
    store.wait()
    for step in range(3):
        np.testing.assert_array_equal(store.restore(abstract, step=step)[1]["w"], values + step)


def test_the_record_is_that_of_the_save_and_a_directory_removed_meanwhile_is_made_again(
    open_store, directory, state, abstract, monkeypatch
):
    store = open_store()
    shutil.rmtree(directory)
    gate = threading.Event()
    real = store_module.write_atomic
    monkeypatch.setattr(store_module, "write_atomic", lambda *given: (gate.wait(20), real(*given)))
    record = {"monitor": {"spikes": 1}}
    store.save(1, state, record)
    record["monitor"]["spikes"] = 2
    gate.set()
    store.wait()
    assert store.restore(abstract)[2] == {"monitor": {"spikes": 1}}


def test_saves_do_not_overlap_and_the_wait_is_told(open_store, events, state, monkeypatch):
    gate, order = threading.Event(), []
    real = store_module.write_commit

    def slow(partial, step, files):
        order.append(step)
        assert gate.wait(20)
        return real(partial, step, files)

    monkeypatch.setattr(store_module, "write_commit", slow)
    store = open_store()
    store.save(1, state, {})
    threading.Timer(0.3, gate.set).start()
    assert store.save(2, state, {}) >= 0.2
    store.wait()
    assert order == [1, 2]
    assert events.of("save")[1][1]["stall_seconds"] >= 0.2


def test_retention_keeps_the_only_durable_step_while_a_newer_one_is_in_flight(
    open_store, directory, state, abstract, monkeypatch
):
    store = open_store(keep=1)
    store.save(1, state, {})
    store.wait()
    gate = threading.Event()
    seen: list[list[int]] = []
    real = store_module.write_commit

    def slow(partial, step, files):
        seen.append([info.step for info in list_steps(directory) if info.verified])
        assert gate.wait(20)
        return real(partial, step, files)

    monkeypatch.setattr(store_module, "write_commit", slow)
    store.save(2, state, {})
    gate.set()
    store.wait()
    assert seen == [[1]]
    assert [info.step for info in list_steps(directory)] == [1, 2]
    store.judge(lambda _: Verdict(Health.HEALTHY))
    for step in (3, 4, 5, 6):
        store.save(step, state, {"finite": False})
    store.wait()
    assert [info.step for info in list_steps(directory)] == [2, 6]
    assert store.restore(abstract)[0] == 2


def _fail_with(error: Exception) -> Callable[..., None]:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    return failing


@pytest.mark.parametrize("place", ["start_write", "finish_write", "write_atomic", "write_commit", "fsync_directory"])
def test_a_failed_save_is_told_at_once_and_raised_once_and_the_next_one_works(
    place, open_store, events, directory, state, abstract, monkeypatch
):
    store = open_store()
    store.save(1, state, {})
    store.wait()
    told = threading.Event()

    def tell(*event: Any) -> None:
        events(*event)
        told.set()

    monkeypatch.setattr(store, "_on_event", tell)
    monkeypatch.setattr(store_module, place, _fail_with(OSError(28, "No space left on device", "/disk")))
    store.save(2, state, {})
    assert told.wait(20)
    [(step, fields)] = events.of("save_failed")
    assert step == 2
    assert "No space left on device" in fields["reason"]
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(3, state, {})
    store.wait()
    # A failure after the step got its name is told too, though the step stands.
    assert store.restore(abstract)[0] == (2 if place == "fsync_directory" else 1)
    store.save(2, state, {})
    store.save(3, state, {})
    store.close()
    assert [(info.step, info.verified) for info in list_steps(directory)] == [(1, True), (2, True), (3, True)]


def test_the_failure_of_the_last_save_is_an_exit_code(open_store, directory, state, monkeypatch):
    monkeypatch.setattr(store_module, "write_commit", _fail_with(OSError(28, "No space left on device")))

    def run() -> None:
        with CheckpointStore(directory) as store:
            store.save(1, state, {})

    assert run_command(run) == ExitCode.CHECKPOINT
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "finish_write", _fail_with(RuntimeError("not an OSError")))
    with pytest.raises(CheckpointError, match="RuntimeError: not an OSError"):
        open_store(asynchronous=False).save(1, state, {})


def test_an_event_that_cannot_be_written_hides_no_failure(directory, state, monkeypatch):
    monkeypatch.setattr(store_module, "write_commit", _fail_with(OSError(28, "No space left on device")))
    store = CheckpointStore(directory, on_event=_fail_with(OSError(28, "events too")))
    store.save(1, state, {})
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.close()


def test_a_file_that_the_kernel_will_not_let_grow_fails_the_save(open_store, events, kit, mesh, abstract, state):
    store = open_store()
    store.save(1, state, {})
    store.wait()
    large = {"w": jax.device_put(np.random.default_rng(0).standard_normal((1024, 1024), np.float32))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store.save(2, large, {})
        with pytest.raises(CheckpointError, match="step 2 could not be saved"):
            store.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [step for step, _ in events.of("save_failed")] == [2]
    assert store.restore(abstract)[0] == 1


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path, state):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "checkpoints", Path("/proc/checkpoints")):
        with pytest.raises(CheckpointError, match="cannot be written") as caught:
            CheckpointStore(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_ledgers_hold_every_commit(open_store, directory, state):
    store = open_store(keep=1)
    for step in range(3):
        store.save(step, state, {})
    store.wait()
    lines = [json.loads(line) for line in (directory / "commits.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    # The next to be proven, and the newest.
    assert sorted(directory.glob("step_*")) == [directory / "step_00000000", directory / "step_00000002"]
