"""The charts of a report and the picture of the loss curve."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from maxtrain.monitor.canvas import (
    BAD,
    HELD_OUT,
    TRAIN,
    draw_series,
    drawing,
    finish,
    legend_above,
    new_axes,
    new_figure,
    series_style,
    thin,
    tick,
    to_png,
    to_svg,
)
from maxtrain.monitor.record import RunRecord

_WIDE, _HALF, _HEIGHT = 1060, 520, 300
_LOAD_COLOURS = LinearSegmentedColormap.from_list("load", ["#17528f", "#8fb8de", "#f1efe8", "#eda45a", "#a63a0c"])
_MAX_LAYERS = 6
_LEGEND_ABOVE = ("step_time", "mixture")
_NATS = "nats / token"
_TOKENS = "tokens seen"


def _mark_restarts_and_skips(axes: Axes, run: RunRecord) -> None:
    """A dotted line where an attempt began anew, a red tick at the foot for a skipped step."""
    metrics = run.metrics
    for row in np.flatnonzero(np.diff(metrics.scalars["attempt"]) > 0):
        axes.axvline(metrics.tokens[row], color="#8b96a3", linestyle=":", linewidth=1)
    skipped = metrics.tokens[metrics.scalars["skipped"] > 0]
    if len(skipped):
        foot = axes.get_xaxis_transform()
        axes.plot(skipped, np.full(len(skipped), 0.015), "|", color=BAD, transform=foot, markersize=9, label="skipped")


def _loss(axes: Axes, run: RunRecord) -> None:
    draw_series(
        axes, run.metrics.tokens, run.metrics.scalars["cross_entropy"], "training", {"color": TRAIN, "linestyle": "-"}
    )
    if run.heldout:
        x = [result.tokens_seen for result in run.heldout]
        y = [result.total.loss for result in run.heldout]
        axes.plot(x, y, "o-", color=HELD_OUT, linewidth=1.2, markersize=4.5, label="held-out", zorder=3)
    _mark_restarts_and_skips(axes, run)
    finish(axes, _TOKENS, _NATS)


def _loss_by_domain(axes: Axes, run: RunRecord) -> None:
    for index, (name, values) in enumerate(run.metrics.by_name["loss_by_domain"].items()):
        style = series_style(index)
        draw_series(axes, run.metrics.tokens, values, name, style)
        scored = [
            (result.tokens_seen, result.by_domain[name].loss) for result in run.heldout if name in result.by_domain
        ]
        if scored:
            axes.plot(*zip(*scored, strict=True), "o", color=style["color"], markersize=4, zorder=3)
    finish(axes, _TOKENS, _NATS)


def _bits_per_byte(axes: Axes, run: RunRecord) -> None:
    for index, name in enumerate(run.domains):
        scored = [
            (result.tokens_seen, result.by_domain[name].bits_per_byte)
            for result in run.heldout
            if name in result.by_domain and result.by_domain[name].bits_per_byte is not None
        ]
        if scored:
            axes.plot(*zip(*scored, strict=True), marker="o", markersize=4, label=name, **series_style(index))
    finish(axes, _TOKENS, "bits / byte of text")


def _learning_rate(axes: Axes, run: RunRecord) -> None:
    rate = thin(run.metrics.tokens, run.metrics.scalars["lr"])
    axes.plot(rate.x, rate.mean, color=TRAIN, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")
    finish(axes, _TOKENS, "learning rate")


def _gradient_norm(axes: Axes, run: RunRecord) -> None:
    norm = run.metrics.scalars["grad_norm"]
    draw_series(axes, run.metrics.tokens, norm, "whole", {"color": TRAIN, "linestyle": "-"})
    for index, (name, values) in enumerate(run.metrics.by_name["grad_norm_by_group"].items(), start=1):
        group = thin(run.metrics.tokens, values, 150)
        axes.plot(group.x, group.mean, linewidth=0.9, alpha=0.8, label=name.replace("_", " "), **series_style(index))
    if np.any(norm > 0):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    finish(axes, _TOKENS, "gradient norm")


def _attention_logit(axes: Axes, run: RunRecord) -> None:
    greatest = run.metrics.scalars["max_attention_logit"]
    draw_series(axes, run.metrics.tokens, greatest, "greatest", {"color": TRAIN, "linestyle": "-"})
    if run.config is not None and run.config.optimizer.qk_clip is not None:
        axes.axhline(run.config.optimizer.qk_clip, color=BAD, linewidth=1, label="optimizer.qk_clip")
    finish(axes, _TOKENS, "attention logit")


def _throughput(axes: Axes, run: RunRecord) -> None:
    speed = run.metrics.scalars["tokens_per_second"]
    draw_series(axes, run.metrics.tokens, speed, "tokens / s", {"color": TRAIN, "linestyle": "-"})
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(tick)
    finish(axes, _TOKENS, "tokens / s", legend=False)


def _step_time(axes: Axes, run: RunRecord) -> None:
    parts = {
        "device": "device_seconds",
        "host": "host_seconds",
        "data wait": "data_wait_seconds",
        "save": "save_stall_seconds",
    }
    thinned = [thin(run.metrics.tokens, np.nan_to_num(run.metrics.scalars[name]), 150) for name in parts.values()]
    colours = [series_style(index)["color"] for index in range(len(parts))]
    axes.stackplot(
        thinned[0].x, [part.mean for part in thinned], labels=list(parts), colors=colours, alpha=0.85, linewidth=0
    )
    whole = np.sum([part.mean for part in thinned], axis=0)
    # The first step compiles; its height would press all others flat.
    ordinary = whole[1:] if len(whole) > 1 else whole
    axes.set_ylim(0, max(1.4 * float(np.quantile(ordinary, 0.95)), 1e-6))
    finish(axes, _TOKENS, "seconds / step", legend=False)
    legend_above(axes)


def _tokens_per_domain(axes: Axes, run: RunRecord) -> None:
    consumed = run.metrics.by_name["tokens_by_domain"]
    running = np.array([np.cumsum(np.nan_to_num(values)) for values in consumed.values()])
    shares = running / np.maximum(running.sum(0), 1)
    thinned = [thin(run.metrics.tokens, share, 200) for share in shares]
    colours = [series_style(index)["color"] for index in range(len(thinned))]
    axes.stackplot(
        thinned[0].x, [part.mean for part in thinned], labels=list(consumed), colors=colours, linewidth=0, alpha=0.85
    )
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    finish(axes, _TOKENS, "share of target tokens so far", legend=False)
    if len(consumed) <= 6:
        legend_above(axes)


def _load_peak(axes: Axes, run: RunRecord) -> None:
    table = run.metrics.by_layer["expert_load_max_over_mean"]
    for layer in _chosen_layers(table.shape[1]):
        draw_series(axes, run.metrics.tokens, table[:, layer], f"MoE layer {layer}", series_style(layer))
    axes.axhline(1.0, color="#8b96a3", linewidth=1, linestyle=":")
    finish(axes, _TOKENS, "greatest load / mean load")


def _chosen_layers(count: int) -> list[int]:
    """At most _MAX_LAYERS layers, spread from the first to the last."""
    return sorted({round(layer) for layer in np.linspace(0, count - 1, min(count, _MAX_LAYERS))})


def _relative(load: np.ndarray) -> np.ndarray:
    """Loads [..., E] divided by their mean over the experts."""
    return load / np.maximum(load.mean(-1, keepdims=True), 1e-9)


def _load_at_end(figure: Figure, run: RunRecord) -> None:
    """Heat map layer × expert, the mean of the newest loads."""
    load = _relative(run.metrics.load[-max(len(run.metrics.load) // 20, 1) :].sum(0))
    axes = figure.subplots()
    axes.grid(False)
    image = axes.imshow(load, aspect="auto", cmap=_LOAD_COLOURS, vmin=0, vmax=2, interpolation="nearest")
    for ticks, count in ((axes.xaxis, load.shape[1]), (axes.yaxis, load.shape[0])):
        ticks.set_major_locator(_whole_numbers(count))
    if load.size <= 128:
        for (layer, expert), value in np.ndenumerate(load):
            dark = abs(value - 1) > 0.75
            axes.text(
                expert, layer, f"{value:.2f}", ha="center", va="center", fontsize=9, color="white" if dark else "#333"
            )
    figure.colorbar(image, ax=axes, label="load / mean load", extend="max", pad=0.02)
    finish(axes, "expert", "MoE layer")


def _load_over_time(figure: Figure, run: RunRecord) -> None:
    """Heat maps expert × tokens, one for each of some layers."""
    tokens, load = run.metrics.load_tokens.astype(np.float64), _relative(run.metrics.load)
    edges = np.concatenate([[0.0], tokens])
    layers = _chosen_layers(load.shape[1])
    grid = figure.subplots(1, len(layers), sharey=True, squeeze=False)[0]
    for axes, layer in zip(grid, layers, strict=True):
        image = axes.pcolormesh(
            edges,
            np.arange(load.shape[2] + 1) - 0.5,
            load[:, layer].T,
            cmap=_LOAD_COLOURS,
            vmin=0,
            vmax=2,
            rasterized=True,
        )
        axes.grid(False)
        axes.set_title(f"MoE layer {layer}")
        axes.yaxis.set_major_locator(_whole_numbers(load.shape[2]))
        finish(axes, _TOKENS, "expert" if layer == layers[0] else "")
        axes.xaxis.get_major_locator().set_params(nbins=3)
    figure.colorbar(image, ax=grid.tolist(), label="load / mean load", extend="max", pad=0.01)


def _whole_numbers(count: int) -> MaxNLocator:
    return MaxNLocator(nbins=min(max(count, 1), 16), integer=True)


def _chart(name: str, title: str, draw: Callable[[Axes, RunRecord], None], run: RunRecord, width: int) -> str:
    with drawing(name, themed=True):
        figure, axes = new_axes(width, _HEIGHT, top=26 if name in _LEGEND_ABOVE else 12)
        draw(axes, run)
        return to_svg(figure, title)


def _heat_map(name: str, title: str, draw: Callable[[Figure, RunRecord], None], run: RunRecord, width: int) -> str:
    with drawing(name, themed=True):
        figure = new_figure(width, _HEIGHT)
        draw(figure, run)
        return to_svg(figure, title)


def draw_charts(run: RunRecord) -> dict[str, str]:
    """Every chart that the run has data for: name → SVG element."""
    plain: list[tuple[str, str, Callable[[Axes, RunRecord], None], int]] = [
        ("loss", "Training and held-out loss", _loss, _WIDE),
        ("loss_by_domain", "Loss by domain", _loss_by_domain, _HALF),
        ("lr", "Learning rate", _learning_rate, _HALF),
        ("grad_norm", "Gradient norm", _gradient_norm, _HALF),
        ("throughput", "Throughput", _throughput, _HALF),
        ("step_time", "Step time", _step_time, _HALF),
        ("mixture", "Share of tokens by domain", _tokens_per_domain, _HALF),
    ]
    if any(score.bits_per_byte is not None for result in run.heldout for score in result.by_domain.values()):
        plain.append(("bits_per_byte", "Held-out bits per byte by domain", _bits_per_byte, _HALF))
    if np.isfinite(run.metrics.scalars["max_attention_logit"]).any():
        plain.append(("attention_logit", "Greatest attention logit", _attention_logit, _HALF))
    charts = {name: _chart(name, title, draw, run, width) for name, title, draw, width in plain}
    if run.metrics.by_layer["expert_load_max_over_mean"].shape[1]:
        charts["load_peak"] = _chart("load_peak", "Greatest expert load", _load_peak, run, _HALF)
    if run.metrics.load.size:
        charts["load_at_end"] = _heat_map("load_at_end", "Expert load at the end", _load_at_end, run, _HALF)
        charts["load_over_time"] = _heat_map("load_over_time", "Expert load over time", _load_over_time, run, _WIDE)
    return charts


def draw_loss_picture(run: RunRecord) -> bytes:
    """The loss curve as a PNG: all of it, and by domain with held-out points."""
    with drawing("loss.png", themed=False):
        figure = new_figure(_WIDE, 380)
        left, right = figure.subplots(1, 2)
        _loss(left, run)
        left.set_title("Loss")
        _loss_by_domain(right, run)
        right.set_title("Loss by domain (points: held-out)" if run.heldout else "Loss by domain")
        figure.suptitle(run.name, fontsize=13)
        return to_png(figure)
