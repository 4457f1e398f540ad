"""Numbers as people read them."""

import math


def human_count(value: float) -> str:
    """A count in three figures with a decimal suffix: 1234567 → `1.23M`; whole numbers under 1000 stay as they are."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 999.5:
        return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 99.95 else f"{value:.3g}"
    for suffix in ("K", "M", "B", "T"):
        value /= 1000
        if abs(value) < 999.5 or suffix == "T":
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{suffix}"


def human_bytes(value: float) -> str:
    """A size in binary units: 3221225472 → `3.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """A duration in its two greatest units: 3725 → `1h 02m`."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(whole / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(whole / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"
