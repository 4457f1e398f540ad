"""Drawing that both pictures and report share: series that stay readable at any length, and SVG for a themed page."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from maxtrain.monitor.units import human_count

TRAIN = "#4a7fd0"
HELD_OUT = "#e0812b"
BAD = "#d0443e"
_CYCLE = ("#4a7fd0", "#e0812b", "#35a06b", "#a874c9", "#d65f7c", "#23a3b0", "#a89b2c", "#8d7159", "#7d8b99", "#6a66c9")
_STYLES = ("-", "--", ":", "-.")
# Stand-ins that no chart uses; the page's style sheet gives them their colour in light and dark.
_INK, _FAINT = "#010203", "#040506"
_MAX_POINTS = 400
# Asked for in this order, if installed: without one of them a PNG cannot show Chinese, Japanese or Korean.
_CJK_FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "PingFang SC", "SimHei")


def series_style(index: int) -> dict[str, Any]:
    """Colour and line style of the n-th domain, layer or part; the same wherever it is shown."""
    return {"color": _CYCLE[index % len(_CYCLE)], "linestyle": _STYLES[index // len(_CYCLE) % len(_STYLES)]}


class Thinned(NamedTuple):
    """A series in at most a few hundred buckets of neighbouring steps."""

    x: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray


def thin(x: np.ndarray, y: np.ndarray, max_points: int = _MAX_POINTS) -> Thinned:
    """Bucket a series, so that a single spike among thousands of steps stays visible in low or high.

    Values that are not finite are left out; a short series passes through.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(y) <= max_points:
        return Thinned(x, y, y, y)
    edges = np.linspace(0, len(y), max_points + 1).astype(int)
    starts, counts = edges[:-1], np.diff(edges)
    return Thinned(
        np.add.reduceat(x, starts) / counts,
        np.minimum.reduceat(y, starts),
        np.add.reduceat(y, starts) / counts,
        np.maximum.reduceat(y, starts),
    )


def smooth(y: np.ndarray, share: float = 0.03) -> np.ndarray:
    """Mean over a window centred on each step, as wide as a share of the series, narrower towards both ends.

    It neither lags behind a falling curve nor bends it at its ends; values that are not finite are left out.
    """
    known = np.isfinite(y)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, y, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(y))
    half = np.minimum(int(len(y) * share / 2), np.minimum(at, len(y) - 1 - at))
    total, count = sums[at + half + 1] - sums[at - half], counts[at + half + 1] - counts[at - half]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def draw_series(axes: Axes, x: np.ndarray, y: np.ndarray, label: str, style: dict[str, Any]) -> None:
    """Draw every step faintly (long series: the band from least to greatest) and the running mean on top."""
    raw = thin(x, y)
    if len(raw.x) < np.isfinite(y).sum():
        axes.fill_between(raw.x, raw.low, raw.high, color=style["color"], alpha=0.22, linewidth=0)
    else:
        axes.plot(raw.x, raw.mean, color=style["color"], alpha=0.35, linewidth=0.9)
    mean = thin(x, smooth(y))
    single = len(mean.x) == 1
    axes.plot(mean.x, mean.mean, label=label, linewidth=1.8, marker="o" if single else None, **style)


def new_axes(width: float, height: float, *, top: float = 12) -> tuple[Figure, Axes]:
    """A figure of so many CSS pixels (SVG points) with one chart, and room for the names of its axes."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    left, right, bottom = 64, 14, 44
    box = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    return figure, figure.add_axes(box)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many CSS pixels that fits its parts itself."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def tick(value: float, _: float = 0) -> str:
    """A tick in human units without idle zeros: 1.2M, 600K, 0.25."""
    text = human_count(value)
    return re.sub(r"\.?0+(?=[KMBT]$)", "", text) if "." in text else text


def finish(axes: Axes, x_label: str, y_label: str, *, legend: bool = True) -> None:
    """Name the axes, give their ticks human units, and add a legend where there is more than one series."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if x_label.startswith("tokens"):
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.xaxis.set_major_locator(MaxNLocator(7))
    names = axes.get_legend_handles_labels()[1]
    if legend and len(names) > 1:
        axes.legend(frameon=False, ncols=2 if len(names) > 6 else 1)


def legend_above(axes: Axes) -> None:
    """A legend in one row over the chart, for areas that leave no room inside."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=6, borderaxespad=0.2)


@contextmanager
def drawing(name: str, *, themed: bool) -> Iterator[None]:
    """The settings under which a figure is built and written.

    Args:
        name: Seeds the ids inside the SVG, so that the same data gives the same bytes and ids of two charts differ.
        themed: Text and axes take the page's colours; else they are dark on white.
    """
    ink, faint = (_INK, _FAINT) if themed else ("#24292f", "#d8dde3")
    installed = set(font_manager.get_font_names())
    style: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", *(font for font in _CJK_FONTS if font in installed)],
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": faint,
        "axes.labelcolor": ink,
        "axes.facecolor": "none",
        "figure.facecolor": "none" if themed else "white",
        "savefig.facecolor": "none" if themed else "white",
        "grid.color": faint,
        "grid.linewidth": 0.7,
        "text.color": ink,
        "text.parse_math": False,
        "xtick.color": faint,
        "ytick.color": faint,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an inline SVG element that follows the page's width, font and colours."""
    buffer = io.StringIO()
    nothing: Sequence[str] = ("Creator", "Date", "Format", "Type")
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(nothing))
    text = buffer.getvalue()
    text = text[text.index("<svg ") :]
    text = re.sub(r'(<svg [^>]*?)width="[^"]*pt" height="[^"]*pt"', r"\1", text, count=1)
    text = re.sub(r"(font: [^;\"']*?\d+(?:\.\d+)?px) [^;\"]*", r"\1 var(--font)", text)
    text = text.replace(_INK, "var(--ink)").replace(_FAINT, "var(--line)")
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def to_png(figure: Figure, scale: float = 2.0) -> bytes:
    """The figure as a PNG with so many dots a CSS pixel."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=72 * scale)
    return buffer.getvalue()
