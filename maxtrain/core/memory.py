"""How this process asks the system for memory."""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KEEP = {_M_TRIM_THRESHOLD: -1, _M_MMAP_MAX: 0, _M_ARENA_MAX: 1}
_USUAL = {_M_TRIM_THRESHOLD: 2**17, _M_MMAP_MAX: 2**16, _M_ARENA_MAX: 0}


def keep_freed_memory(keep: bool = True) -> None:
    """Let this process keep the memory that it frees, for the next step to use; does nothing without glibc.

    A step on CPU takes hundreds of megabytes for its intermediate values. glibc would give each large piece back to
    the system and fetch it again, page by page, which costs a tenth of the step. So nothing is taken by mmap, nothing
    is given back, and all threads share one heap, as the others can hold no large piece. See mallopt(3).

    Args:
        keep: whether to; it works for threads that start later only. False takes it back.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    for parameter, value in (_KEEP if keep else _USUAL).items():
        mallopt(parameter, value)


def collect_rarely() -> None:
    """Let Python's cyclic collector leave alone what is loaded by now, and run seldom.

    Tracing a step makes a million lasting objects, which the collector would walk again and again: a tenth of the
    time. The few cycles that a run makes later are still found.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
