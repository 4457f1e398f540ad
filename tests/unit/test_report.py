import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxtrain.core.errors import DataError, ExitCode, UserError, run_command
from maxtrain.monitor.canvas import smooth, thin
from maxtrain.monitor.charts import draw_loss_picture
from maxtrain.monitor.events import EventLog
from maxtrain.monitor.heldout import HeldOutResult, HeldOutWriter, Score
from maxtrain.monitor.metrics import MetricsWriter, next_attempt
from maxtrain.monitor.page import page_values, status
from maxtrain.monitor.record import read_run
from maxtrain.report import main, write_report

CONFIG = """\
run: {{directory: {directory}}}
data:
  dataset: datasets/sample
  sequence_length: 256
  mixture:
    english: {{weight: 5.0, filter: {{lang: en}}}}
    chinese: {{weight: 2.0, filter: {{lang: zh}}}}
    code: {{weight: 2.0, filter: {{category: code}}}}
    math: {{weight: 1.0, filter: {{category: math}}}}
batch: {{global_batch_tokens: 4096, micro_batch: 16}}
model:
  vocab_size: 4096
  num_layers: 4
  d_model: 128
  num_heads: 4
  d_ff: 512
  moe: {{num_experts: 8, top_k: 2, d_expert: 128, first_dense: 1}}
train: {{total_tokens: {tokens}}}
schedule: {{lr: 3e-3, min_lr: 3e-4}}
"""
DOMAINS = ("english", "chinese", "code", "math")
SHARES = np.array([0.5, 0.2, 0.2, 0.1])


def line_of(
    step: int, num_steps: int, rng: np.random.Generator, domains: tuple[str, ...], layers: int
) -> dict[str, Any]:
    """A believable line of a run: falling loss, a compile at step 1, experts that even out."""
    done = step / num_steps
    floor = dict(zip(domains, (3.0, 3.6, 2.1, 2.5), strict=False))
    losses = {name: base + 5.0 * np.exp(-6 * done) + rng.normal(0, 0.06) for name, base in floor.items()}
    loss = float(SHARES[: len(domains)] @ list(losses.values()) / SHARES[: len(domains)].sum())
    skipped = step in (num_steps // 3, num_steps // 3 + 1)
    load = rng.multinomial(8192, rng.dirichlet(np.full(8, 4 + 80 * done)), size=layers)
    seconds = 21.0 if step == 1 else 0.4 + abs(rng.normal(0, 0.02))
    groups = ("embedding", "attention", "feed_forward", "experts", "router", "norms", "output")
    return {
        "step": step,
        "updates": step - 2 * (step > num_steps // 3 + 1),
        "tokens_seen": 4096 * step,
        "batch_digest": int(rng.integers(2**32)),
        "target_tokens": 4000,
        "loss": float("nan") if skipped else loss + 0.01,
        "cross_entropy": float("nan") if skipped else loss,
        "balance_loss": 0.01,
        "router_z_loss": 0.0,
        "z_loss": 0.0,
        "loss_by_domain": {name: float(value) for name, value in losses.items()},
        "tokens_by_domain": {name: int(4000 * share) for name, share in zip(domains, SHARES, strict=False)},
        "epochs": dict.fromkeys(domains, 3.0 * done),
        "padding_fraction": 0.01,
        "grad_norm": float(np.exp(rng.normal(0.5 - done, 0.2))),
        "grad_norm_by_group": {name: float(np.exp(rng.normal(-1 - done, 0.2))) for name in groups},
        "update_norm": 0.1,
        "param_norm": 30.0,
        "lr": float(3e-4 + 2.7e-3 * min(20 * done, 0.5 + 0.5 * np.cos(np.pi * done))),
        "max_attention_logit": float(90.0 + 20.0 * np.exp(-6 * done)) if layers else None,
        "skipped": skipped,
        "skipped_target_tokens": 4000 * skipped,
        "skips_in_a_row": int(skipped),
        "expert_load": load.tolist(),
        "expert_load_max_over_mean": (load.max(1) / load.mean(1)).tolist() if layers else [],
        "expert_entropy": [0.99] * layers,
        "router_entropy": [1.5] * layers,
        "dropped_tokens": [0] * layers,
        "communication_fraction": None,
        "flops_per_token": 1.0e7,
        "num_devices": 2,
        "tokens_per_second": 4096 / seconds,
        "tokens_per_second_per_device": 2048 / seconds,
        "mfu": 0.31,
        "step_seconds": seconds,
        "data_wait_seconds": 0.01,
        "device_seconds": seconds - 0.05,
        "host_seconds": 0.04,
        "save_stall_seconds": 0.08 if step % 100 == 0 else 0.0,
        "memory_bytes": 3 * 2**30,
        "memory_peak_bytes": 4 * 2**30,
    }


def make_run(
    directory: Path,
    num_steps: int,
    *,
    done: int | None = None,
    domains: tuple[str, ...] = DOMAINS,
    layers: int = 3,
    extras: bool = True,
) -> Path:
    """A run directory of so many steps; `done` of them taken."""
    rng = np.random.default_rng(0)
    done = num_steps if done is None else done
    directory.mkdir(parents=True)
    resumed = 6 * num_steps // 10
    for attempt, steps in ((1, range(1, min(resumed, done) + 1)), (2, range(resumed + 1, done + 1))):
        with MetricsWriter(directory / "metrics.jsonl", attempt) as writer:
            for step in steps:
                writer.write(line_of(step, num_steps, rng, domains, layers))
    if not extras:
        return directory
    (directory / "config.yaml").write_text(CONFIG.format(directory=directory.name, tokens=4096 * num_steps))
    heldout = HeldOutWriter(directory / "eval" / "heldout.jsonl", 1)
    for step in range(0, done + 1, max(num_steps // 12, 1)):
        value = 3.2 + 5.0 * np.exp(-6 * step / num_steps)
        scores = {
            name: Score(value + offset, (value + offset) / 2.6, 60_000, 230_000)
            for name, offset in zip(domains, (0.0, 0.6, -0.9, -0.4), strict=False)
        }
        heldout.write(HeldOutResult(step, 4096 * step, scores, Score(value, value / 2.6, 240_000, 920_000)))
    heldout.close()
    for attempt in (1, 2):
        log = EventLog(directory / "events.jsonl", attempt)
        versions = {"maxtrain": "0.1.0", "jax": "0.10.2"}
        log.write("start", 0, parameters=4_321_920, active_parameters=1_960_320, device="cpu", versions=versions)
        if attempt == 1:
            for step in (num_steps // 3, num_steps // 3 + 1):
                log.write("skip", step, reason="loss nan, gradient norm 3.1", loss=float("nan"))
        else:
            log.write("restore", resumed)
            log.write("save", done, seconds=0.31)
            if done == num_steps:
                log.write("stop", done, reason="end of the run")
        log.close()
    samples = [
        {"step": done, "prompt": "The history of the city ", "text": "begins with a <b>river</b> & its bridges."},
        {"step": done, "prompt": "数学是", "text": "研究数量、结构以及空间等概念的一门学科。"},
    ]
    (directory / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return directory


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run of a few thousand steps and its page."""
    run = make_run(tmp_path_factory.mktemp("runs") / "first", 1500)
    page, picture = write_report(run)
    assert (page, picture) == (run / "report.html", run / "loss.png")
    return run, page.read_text()


def test_page_has_every_section(reported):
    _, page = reported
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Loss", "Optimization", "Speed", "Experts", "Data", "Samples", "Run"]
    assert page.count("<svg ") == 12
    assert "finished" in page
    assert "<h3>Greatest attention logit</h3>" in page
    assert "4,321,920" in page
    assert "0.10.2" in page


def test_page_asks_for_nothing_outside_itself(reported):
    _, page = reported
    assert not re.search(r"<(script|link|iframe|img|object|embed)\b", page)
    assert not re.search(r"""(?:href|src)\s*=\s*["'](?!#|data:)""", page)
    assert not re.search(r"url\((?!#|&quot;#|\"#)", page)
    assert "@import" not in page


def test_page_stays_small_however_long_the_run(reported):
    _, page = reported
    assert len(page) < 3_000_000


def test_charts_follow_the_page_colours_and_have_no_id_twice(reported):
    _, page = reported
    assert "#010203" not in page
    assert "#040506" not in page
    clips = re.findall(r'<clipPath id="([^"]+)"', page)
    assert len(clips) == len(set(clips))


def test_picture_is_a_png(reported):
    run, _ = reported
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_same_run_gives_the_same_picture(reported):
    run, _ = reported
    assert draw_loss_picture(read_run(run)) == (run / "loss.png").read_bytes()


def test_mixture_states_weights_and_what_was_consumed(reported):
    run, page = reported
    record = read_run(run)
    assert record.stated_shares() == pytest.approx({"english": 0.5, "chinese": 0.2, "code": 0.2, "math": 0.1})
    assert record.tokens_by_domain() == {"english": 3_000_000, "chinese": 1_200_000, "code": 1_200_000, "math": 600_000}
    for text in ("50.00%", "20.00%", "10.00%", "3.00M"):
        assert text in page


def test_stated_shares_follow_the_stages(tmp_path):
    run = make_run(tmp_path / "run", 30)
    config = (run / "config.yaml").read_text()
    stages = """\
  stages:
    - {name: one, tokens: 40960, mixture: {english: {weight: 1.0}}}
    - {name: two, tokens: 81920, mixture: {english: {weight: 1.0}, math: {weight: 3.0}}}
batch:"""
    (run / "config.yaml").write_text(config.replace("\nbatch:", f"\n{stages}"))
    shares = read_run(run).stated_shares()
    assert shares == pytest.approx({"english": (10 + 5) / 30, "math": 15 / 30, "chinese": 0, "code": 0})


class Tags(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data):
        self.texts.append(data)


def test_texts_of_documents_and_names_stay_texts(tmp_path):
    names = ("<script>alert(1)</script>", 'a" onload="x', "$\\alpha_{", "</svg><u>数学")
    run = make_run(tmp_path / "<u>run&", 40, domains=names)
    page, _ = write_report(run)  # Chinese without a font for it, and half a formula, draw no warning
    parsed = Tags(page.read_text())
    assert not parsed.tags & {"script", "u"}
    assert not any(name.startswith("on") for name in parsed.attributes)
    assert all(any(name in text for text in parsed.texts) for name in names)
    assert any("begins with a <b>river</b> & its bridges." in text for text in parsed.texts)
    assert "<u>run&" in parsed.texts


def test_a_run_after_its_first_step(tmp_path):
    page, _ = write_report(make_run(tmp_path / "run", 600, done=1))
    assert "running or interrupted at step 1 of 600" in page.read_text()


def test_status_tells_why_a_run_stopped(tmp_path):
    run = make_run(tmp_path / "run", 60, done=50)
    assert status(read_run(run)) == {"text": "running or interrupted at step 50 of 60", "tone": "warn"}
    log = EventLog(run / "events.jsonl", 2)
    log.write("stop", 50, reason="SIGTERM")
    log.close()
    assert status(read_run(run)) == {"text": "stopped at step 50 of 60: SIGTERM", "tone": "warn"}


def test_dense_run_with_metrics_alone_and_a_torn_tail(tmp_path):
    run = make_run(tmp_path / "run", 12, layers=0, extras=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    page, _ = write_report(run)
    text = page.read_text()
    assert "12 steps recorded" in text
    assert "<h2>Experts</h2>" not in text
    assert "<td>config.yaml</td><td>absent</td>" in text


def test_a_config_of_another_version_is_still_shown(tmp_path):
    run = make_run(tmp_path / "run", 12)
    (run / "config.yaml").write_text("future: {key: 1}\n")
    record = read_run(run)
    assert (record.config, record.num_steps, record.stated_shares()) == (None, None, None)
    assert record.config_text == "future: {key: 1}\n"
    assert page_values(record)["facts"][0]["rows"] == [("config.yaml", "shown below as it stands")]


def test_few_expert_loads_are_kept_of_a_long_run(reported):
    run, _ = reported
    metrics = read_run(run).metrics
    assert metrics.load.shape[1:] == (3, 8)
    assert 120 <= len(metrics.load) <= 241
    assert metrics.load_tokens[-1] == metrics.tokens[-1]
    assert metrics.load.sum(-1) == pytest.approx(8192)


@pytest.mark.parametrize("content", [None, "", '{"step": 1, "los'])
def test_a_run_without_a_step_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match="no step is recorded"):
        write_report(tmp_path)


GARBAGE = {
    "not JSON": b"\x00\xff\x17garbage\n",
    "torn": b'{"attempt":1,"time":"2026-\n',
    "a list": b"[1, 2]\n",
    "nested": b"[" * 100_000 + b"\n",
    "empty": b"{}\n",
    "another": b'{"attempt":"one","time":3,"step":[2],"kind":4,"tokens_seen":{},"by_domain":[],"total":7}\n',
    "no step": b'{"attempt":1,"time":"now","step":null,"kind":null,"by_domain":{"a":1}}\n',
    "huge": b'{"attempt":1,"time":"now","step":1%s,"kind":"save","tokens_seen":1}\n' % (b"0" * 400),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "eval/heldout.jsonl"])
def test_a_line_of_garbage_in_the_middle_is_told_with_its_file_and_number(tmp_path, capsys, name, garbage):
    run = make_run(tmp_path / "run", 3)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(lines[0] + garbage + b"".join(lines[1:]))
    assert run_command(lambda: main([str(run)])) == ExitCode.DATA
    told = capsys.readouterr().err
    assert told.startswith(f"error: {run / name} line 2")
    assert told.endswith("; restore the file or delete that line\n")
    assert told.count("\n") == 1
    assert len(told) < 400
    # The next attempt only numbers itself by these files, and goes on.
    assert next_attempt(run / "metrics.jsonl", run / "events.jsonl") >= 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expert_load", [[1, "2"]]),
        ("expert_load", [[1, 2], [3]]),
        ("expert_load", [[10**30]]),
        ("loss", "much"),
        ("loss", [1]),
        ("loss_by_domain", {"a": "b"}),
        ("router_entropy", {"a": 1}),
        ("skipped", 3),
        ("tokens_by_domain", [1]),
        ("mfu", 10**400),
    ],
)
def test_a_step_with_a_value_of_another_kind_is_told(tmp_path, field, value):
    run = make_run(tmp_path / "run", 3)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), field: value})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=rf"metrics\.jsonl line 2: {field} = .* should be "):
        write_report(run)


def test_damage_is_told(tmp_path):
    run = make_run(tmp_path / "run", 3)
    (run / "events.jsonl").write_text("{\n{}\n")
    with pytest.raises(DataError, match=r"events\.jsonl line 1 is not a JSON object"):
        write_report(run)


def test_a_spike_among_thousands_of_steps_stays_visible():
    values = np.zeros(10_000)
    values[1234], values[8765] = 50.0, -50.0
    values[5000] = np.nan
    bucketed = thin(np.arange(10_000.0), values)
    assert len(bucketed.x) <= 400
    assert (bucketed.high.max(), bucketed.low.min()) == (50.0, -50.0)
    assert np.all(np.diff(bucketed.x) > 0)


def test_running_mean_neither_lags_nor_bends_a_line_and_bridges_gaps():
    line = np.linspace(9.0, 3.0, 500)
    assert smooth(line) == pytest.approx(line)
    line[250] = np.nan
    assert smooth(line)[250] == pytest.approx((9.0 + 3.0) / 2, abs=0.05)
    noisy = np.tile([1.0, 3.0], 500)
    assert smooth(noisy)[100:-100] == pytest.approx(2.0, abs=0.05)
    assert np.isnan(smooth(np.full(3, np.nan))).all()


class TestCommandLine:
    def test_missing_steps_are_named(self, tmp_path, capsys):
        run = make_run(tmp_path / "run", 12)
        path = run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for step, line in enumerate(lines, 1) if step not in (1, 3, 9, 10)))
        assert main([str(run)]) == 0
        told = capsys.readouterr().err
        assert told == f"warning: {path}: no line of step 1, 3, 9-10; the report leaves a gap there\n"
        assert "8 steps recorded, missing: 1, 3, 9-10" in (run / "report.html").read_text()

    def test_an_output_that_cannot_be_written_is_one_line(self, tmp_path, capsys):
        run = make_run(tmp_path / "run", 2, extras=False)
        assert run_command(lambda: main([str(run), "--output", "/proc/x"])) == 1
        told = capsys.readouterr().err
        assert re.fullmatch(r"error: /proc/x: the report cannot be written \(.*\); give a folder .* --output\n", told)

    def test_prints_the_paths_and_needs_no_jax(self, tmp_path):
        run = make_run(tmp_path / "run", 3)
        code = "import sys; sys.modules['jax'] = None; import maxtrain.report as r; sys.exit(r.run_command(r.main))"
        arguments = [str(run), "--output", str(tmp_path / "out"), "--json"]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        paths = json.loads(done.stdout)
        assert sorted(paths) == ["picture", "report"]
        assert all(Path(path).stat().st_size for path in paths.values())
        assert not (run / "report.html").exists()

    def test_help_waits_for_no_plotting(self):
        light = "import sys, maxtrain.report; raise SystemExit('matplotlib' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0

    @pytest.mark.parametrize("kind", ["missing", "empty", "file as output"])
    def test_a_mistake_is_one_line(self, tmp_path, capsys, kind):
        arguments = [str(tmp_path / "missing")]
        if kind == "empty":
            arguments = [str(tmp_path)]
        elif kind == "file as output":
            (tmp_path / "file").touch()
            arguments = [str(make_run(tmp_path / "run", 2, extras=False)), "--output", str(tmp_path / "file")]
        assert run_command(lambda: main(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"error: [^\n]+\n", err)
