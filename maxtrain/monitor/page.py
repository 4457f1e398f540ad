"""What a report says in words and figures: the values of the HTML template."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from maxtrain.monitor.canvas import series_style
from maxtrain.monitor.events import Event
from maxtrain.monitor.record import RunRecord
from maxtrain.monitor.units import human_bytes, human_count, human_seconds

_MAX_EVENTS = 200
_MAX_SAMPLES = 24
_MAX_GAPS = 10
_BAD_EVENTS = {"skip", "save_failed", "fallback", "repair", "warning"}
_UNKNOWN = "–"


def _real(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None or not math.isfinite(value) else format(value, form)


def _median(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def status(run: RunRecord) -> dict[str, str]:
    """How the run stands: text and tone."""
    attempt = max((event.attempt for event in run.events), default=0)
    stop = next((event for event in run.events if event.attempt == attempt and event.kind == "stop"), None)
    step, last = int(run.metrics.steps[-1]), run.num_steps
    if last is not None and step >= last:
        return {"text": "finished", "tone": "good"}
    where = f"at step {step:,}" + (f" of {last:,}" if last is not None else "")
    if stop is not None:
        return {"text": f"stopped {where}: {stop.fields.get('reason', 'no reason given')}", "tone": "warn"}
    return {"text": f"running or interrupted {where}", "tone": "warn"}


def missing_steps(run: RunRecord) -> str:
    """The steps that metrics.jsonl has no line of, such as `3, 7-9`; empty for none."""
    gaps = run.metrics.missing
    named = [f"{first}-{last}" if last > first else f"{first}" for first, last in gaps[:_MAX_GAPS]]
    if len(gaps) > _MAX_GAPS:
        named.append(f"and {sum(last - first + 1 for first, last in gaps[_MAX_GAPS:]):,} more")
    return ", ".join(named)


def tiles(run: RunRecord) -> list[dict[str, str]]:
    """The figures to see first."""
    scalars = run.metrics.scalars
    newest = scalars["cross_entropy"][-max(len(run.metrics.steps) // 50, 1) :]
    known = newest[np.isfinite(newest)]
    window = f"mean of {len(newest)} steps" if len(newest) > 1 else "newest step"
    made = [("Training loss", _real(float(known.mean()) if len(known) else None, ".4f"), f"nats/token, {window}")]
    if run.heldout:
        best = min(run.heldout, key=lambda result: result.total.loss if math.isfinite(result.total.loss) else math.inf)
        last = run.heldout[-1]
        made.append(
            ("Held-out loss", _real(last.total.loss, ".4f"), f"best {best.total.loss:.4f} at step {best.step:,}")
        )
        if last.total.bits_per_byte is not None:
            made.append(("Held-out bits per byte", _real(last.total.bits_per_byte, ".4f"), f"step {last.step:,}"))
    planned = f"of {human_count(run.config.train.total_tokens)}" if run.config is not None else ""
    made.append(("Tokens seen", human_count(run.metrics.tokens[-1]), planned))
    speed = _median(scalars["tokens_per_second"])
    per_device = _median(scalars["tokens_per_second_per_device"])
    made.append(("Tokens per second", human_count(speed or 0), f"median; {human_count(per_device or 0)} a device"))
    made.append(("MFU", _real(_median(scalars["mfu"]), ".1%"), "median"))
    spent = np.nansum(scalars["step_seconds"]) + np.nansum(scalars["save_stall_seconds"])
    devices = int(scalars["num_devices"][-1])
    made.append(("Time in steps and saves", human_seconds(float(spent)), f"{devices} device{'s' * (devices > 1)}"))
    skips = int(np.nansum(scalars["skipped"]))
    if skips:
        made.append(("Skipped steps", f"{skips:,}", f"of {len(run.metrics.steps):,}"))
    return [{"label": label, "value": value, "note": note} for label, value, note in made]


def heldout_table(run: RunRecord) -> dict[str, Any] | None:
    """The newest held-out scores by domain, or None."""
    if not run.heldout:
        return None
    newest = run.heldout[-1]
    known = {name: series_style(index)["color"] for index, name in enumerate(run.domains)}
    scores = [(name, known.get(name), score) for name, score in newest.by_domain.items()]
    if len(scores) != 1:
        scores.append(("all", None, newest.total))
    rows = [
        {
            "name": name,
            "colour": colour,
            "loss": _real(score.loss, ".4f"),
            "perplexity": _real(math.exp(score.loss) if score.loss < 50 else math.inf, ",.2f"),
            "bits_per_byte": _real(score.bits_per_byte, ".4f"),
            "tokens": f"{score.tokens:,}",
            "bytes": human_bytes(score.bytes),
        }
        for name, colour, score in scores
    ]
    return {"step": f"{newest.step:,}", "rows": rows}


def mixture_table(run: RunRecord) -> list[dict[str, Any]]:
    """Share, stated share, tokens and epochs of every domain."""
    consumed, stated = run.tokens_by_domain(), run.stated_shares()
    total = max(sum(consumed.values()), 1)
    epochs = run.metrics.by_name["epochs"]
    rows = []
    for index, (name, tokens) in enumerate(consumed.items()):
        share = tokens / total
        promised = stated.get(name) if stated is not None else None
        rows.append(
            {
                "name": name,
                "colour": series_style(index)["color"],
                "width": f"{100 * share:.2f}",
                "mark": f"{100 * promised:.2f}" if promised is not None else None,
                "share": f"{share:.2%}",
                "stated": _real(promised, ".2%"),
                "tokens": human_count(tokens),
                "epochs": _real(float(epochs[name][-1]) if name in epochs else None, ".2f"),
            }
        )
    return rows


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested JSON as rows of name and text."""
    if isinstance(value, dict) and (value or not name):
        for key, item in value.items():
            words = str(key).replace("_", " ")
            yield from _flat(item, f"{name} · {words}" if name else words)
    elif value is None or value in ({}, []):
        yield name, _UNKNOWN
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif isinstance(value, int) and abs(value) >= 10_000:
        yield name, f"{value:,}"
    elif isinstance(value, list):
        yield name, json.dumps(value, ensure_ascii=False)
    else:
        yield name, f"{value:g}" if isinstance(value, float) else str(value)


def _config_facts(run: RunRecord) -> list[tuple[str, str]]:
    config = run.config
    if config is None:
        return [("config.yaml", "shown below as it stands" if run.config_text else "absent")]
    model, moe = config.model, config.model.moe
    rows = [
        ("layers × width", f"{model.num_layers} × {model.d_model}"),
        ("heads", f"{model.num_heads} query, {model.kv_heads} key-value, {model.dim_per_head} wide"),
        ("feed-forward", f"{model.d_ff} ({model.activation})"),
        ("vocabulary", f"{model.vocab_size:,}"),
    ]
    if moe is not None:
        shared = f", {moe.num_shared} shared" if moe.num_shared else ""
        rows.append(("experts", f"{moe.num_experts}, top {moe.top_k}, {moe.d_expert} wide{shared}"))
        rows.append(("balancing", f"{moe.balance} ({moe.score} scores)"))
    axes = {name: size for name, size in config.mesh.model_dump().items() if name != "devices" and size != 1}
    return [
        *rows,
        ("sequence length", f"{config.data.sequence_length:,} tokens"),
        ("batch", f"{config.batch.global_batch_tokens:,} tokens"),
        ("length of the run", f"{config.train.total_tokens:,} tokens, {run.num_steps:,} steps"),
        ("optimizer", f"{config.optimizer.name}, weight decay {config.optimizer.weight_decay:g}"),
        ("learning rate", f"{config.schedule.lr:g} → {config.schedule.min_lr:g} ({config.schedule.name})"),
        ("compute", config.precision.compute),
        ("mesh", " × ".join(f"{name} {size}" for name, size in axes.items()) or "one device"),
        ("seed", str(config.run.seed)),
    ]


def facts(run: RunRecord) -> list[dict[str, Any]]:
    """Tables of what the run is: from its config, and from the start event of its newest attempt."""
    start = next((event for event in reversed(run.events) if event.kind == "start"), None)
    started = list(_flat(start.fields)) if start is not None else []
    attempts = max(int(run.metrics.scalars["attempt"].max()), *(event.attempt for event in run.events), 1)
    peak = run.metrics.scalars["memory_peak_bytes"]
    known = peak[np.isfinite(peak)]
    started += [("attempts", str(attempts)), ("peak memory", human_bytes(known.max()) if len(known) else _UNKNOWN)]
    return [
        {"title": "Configuration", "rows": _config_facts(run)},
        {"title": "Start of the newest attempt", "rows": started},
    ]


def _event_row(event: Event) -> dict[str, str]:
    return {
        "time": event.time.replace("T", " ").rstrip("Z")[:19],
        "attempt": str(event.attempt),
        "step": f"{event.step:,}" if event.step is not None else "",
        "kind": event.kind.replace("_", " "),
        "detail": "" if event.kind == "start" else "; ".join(f"{name} {value}" for name, value in _flat(event.fields)),
        "tone": "bad" if event.kind in _BAD_EVENTS else "",
    }


def event_table(run: RunRecord) -> dict[str, Any]:
    """The newest events, newest first, and how many there are of each kind."""
    counts = Counter(event.kind for event in run.events)
    note = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.most_common())
    if len(run.events) > _MAX_EVENTS:
        note += f"; the newest {_MAX_EVENTS} are shown"
    rows = [_event_row(event) for event in reversed(run.events[-_MAX_EVENTS:])]
    return {"note": note or "none recorded", "rows": rows}


def page_values(run: RunRecord) -> dict[str, Any]:
    """Every value of the template but the charts, the version and the time."""
    seconds = run.metrics.scalars["step_seconds"]
    marks = []
    if np.any(np.diff(run.metrics.scalars["attempt"]) > 0):
        marks.append("Dotted: the run was resumed.")
    if np.any(run.metrics.scalars["skipped"] > 0):
        marks.append("Red ticks: skipped steps.")
    steps = f"{len(run.metrics.steps):,} steps recorded"
    if missing := missing_steps(run):
        steps += f", missing: {missing}"
    return {
        "run": run,
        "status": status(run),
        "subtitle": f"{steps} · {', '.join(run.domains)}",
        "tiles": tiles(run),
        "heldout": heldout_table(run),
        "mixture": mixture_table(run),
        "facts": facts(run),
        "events": event_table(run),
        "samples": run.samples[-_MAX_SAMPLES:],
        "marks": " ".join(marks),
        "compile_note": f"The first step, which compiles, took {human_seconds(float(seconds[0]))}.",
    }
