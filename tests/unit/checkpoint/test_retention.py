from pathlib import Path

import pytest

from maxtrain.checkpoint.commit import seal_files, write_commit
from maxtrain.checkpoint.health import Health, Verdict
from maxtrain.checkpoint.housekeeping import apply_retention, move_aside, remove_step, steps_to_remove, sweep
from maxtrain.checkpoint.layout import step_directories, step_name
from maxtrain.checkpoint.ledger import append_health


@pytest.mark.parametrize(
    ("health", "keep", "keep_every", "protected", "removed"),
    [
        ("", 1, None, (), []),
        ("h", 1, None, (), []),
        ("hhhh", 2, None, (), [0, 1]),
        ("hhhh", 9, None, (), []),
        ("hhhhh", 1, 2, (), [1, 3]),
        ("hhuu", 1, None, (), [0, 2]),
        ("huhu", 1, None, (), [0, 1]),
        ("uuu", 1, None, (), [0, 1]),
        ("hh", 1, None, (0,), []),
        # The newest provisional step and the next to be proven stay, whatever is newer.
        ("hpppp", 1, None, (), [2, 3]),
        ("hpppuu", 1, None, (), [2, 4]),
        ("phuph", 1, None, (), [0, 1, 2, 3]),
        ("pppp", 2, None, (), [1]),
    ],
)
def test_what_retention_gives_up(health, keep, keep_every, protected, removed):
    words = {"h": Health.HEALTHY, "p": Health.PROVISIONAL, "u": Health.UNHEALTHY}
    steps = {step: words[letter] for step, letter in enumerate(health)}
    assert steps_to_remove(steps, keep=keep, keep_every=keep_every, protected=protected) == removed


@pytest.mark.parametrize("healthy_after", [1, 3, 16, 50])
def test_a_proven_step_is_always_kept_however_soon_steps_are_saved(healthy_after):
    steps: dict[int, Health] = {}
    for step in range(200):
        proven = [saved for saved in steps if saved <= step - healthy_after]
        steps |= dict.fromkeys(proven, Health.HEALTHY) | {step: Health.PROVISIONAL}
        for gone in steps_to_remove(steps, keep=2, keep_every=None):
            del steps[gone]
        assert len(steps) <= 4
        healthy = [saved for saved, health in steps.items() if health is Health.HEALTHY]
        assert step < healthy_after or step - max(healthy) < 2 * healthy_after


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Committed, healthy steps 0 to 4 of one small file each."""
    for step in range(5):
        path = tmp_path / step_name(step)
        path.mkdir()
        (path / "manifest.json").write_text('{"record": {}, "leaves": []}')
        (path / "data").write_bytes(bytes([step]) * 9)
        write_commit(path, step, seal_files(path))
        append_health(tmp_path, step, Verdict(Health.HEALTHY))
    return tmp_path


def test_the_newest_steps_stay(steps):
    assert apply_retention(steps, committed=[4], keep=2, keep_every=None) == [0, 1, 2]
    assert list(step_directories(steps)) == [3, 4]
    assert apply_retention(steps, committed=[4], keep=2, keep_every=None) == []


def test_a_damaged_step_is_neither_counted_nor_removed(steps):
    (steps / "step_00000003" / "data").unlink()
    assert apply_retention(steps, committed=[4], keep=2, keep_every=None) == [0, 1]
    assert list(step_directories(steps)) == [2, 3, 4]


def test_the_newest_healthy_step_stays_behind_unhealthy_ones(steps):
    for step in (2, 3, 4):
        append_health(steps, step, Verdict(Health.UNHEALTHY, "spike"))
    assert apply_retention(steps, committed=[4], keep=1, keep_every=None) == [0, 2, 3]


def test_a_healthy_step_of_rotten_content_does_not_stand_in_for_a_good_one(steps):
    for step in (3, 4):
        append_health(steps, step, Verdict(Health.UNHEALTHY, "spike"))
    (steps / "step_00000002" / "data").write_bytes(b"\xff" * 9)
    assert apply_retention(steps, committed=[4], keep=1, keep_every=None) == [0, 3]
    assert list(step_directories(steps)) == [1, 2, 4]


def test_a_removal_leaves_nothing_under_the_name_of_a_step(steps, monkeypatch):
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("maxtrain.checkpoint.housekeeping.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_step(steps / "step_00000000")
    monkeypatch.undo()
    assert 0 not in step_directories(steps)
    sweep(steps, lambda *_: None)
    assert [path.name for path in steps.glob("step_00000000*")] == []


def test_the_quarantine_keeps_committed_steps_and_one_unfinished_save(steps, events):
    assert move_aside(steps / "step_00000001", "one").name == "step_00000001"
    (steps / "step_00000002").rename(steps / "step_00000001")
    assert move_aside(steps / "step_00000001", "two").name == "step_00000001.1"
    for step in (5, 6, 6):
        (steps / f"step_0000000{step}.partial").mkdir()
        sweep(steps, events)
    names = sorted(path.name for path in (steps / "quarantine").iterdir())
    assert names == ["reasons.jsonl", "step_00000001", "step_00000001.1", "step_00000006.partial"]
    assert [step for step, fields in events.of("warning") if "removed" in fields] == [6, 6]
    assert '"reason": "two"' in (steps / "quarantine" / "reasons.jsonl").read_text()
