"""Logging of the entry points: one format on stderr, beside a progress bar, with the libraries' chatter turned down."""

import contextlib
import logging
import sys

from tqdm import tqdm

_CHATTY = ("absl", "jax", "orbax", "grain", "tensorstore", "matplotlib")

_log = logging.getLogger(__name__)


class _LineFormatter(logging.Formatter):
    """One line, without its traceback, of what a library logs: the failure itself reaches us as an exception."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name.partition(".")[0] not in _CHATTY:
            return super().format(record)
        fields = {"msg": (record.getMessage().splitlines() or [""])[0], "args": (), "exc_info": None, "exc_text": None}
        return super().format(logging.makeLogRecord(record.__dict__ | fields))


class _ProgressHandler(logging.Handler):
    """Writes above a running progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # a message that does not fit its arguments, a closed stderr: no log line stops a run
            with contextlib.suppress(Exception):
                self.handleError(record)


def configure_logging(level: int = logging.INFO, *, process: int = 0) -> None:
    """Set up logging once, at an entry point.

    Args:
        level: least level of our own messages; the libraries' are shown from WARNING on.
        process: index of this process; every process but the first shows warnings only, with its index.
    """
    mark = "" if process == 0 else f"[{process}] "
    handler = _ProgressHandler()
    handler.setFormatter(_LineFormatter(f"%(asctime)s {mark}%(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    for previous in [known for known in root.handlers if isinstance(known, _ProgressHandler)]:
        root.removeHandler(previous)
    root.addHandler(handler)
    root.setLevel(level if process == 0 else max(level, logging.WARNING))
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Of writes that fail together Orbax raises the first; asyncio would tell of the others at exit, with tracebacks.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.unraisablehook = _log_unraisable


def _log_unraisable(failure: "sys.UnraisableHookArgs") -> None:
    """A failure in a destructor or a library's thread, which nobody can catch: one line."""
    kind = failure.exc_type.__name__ if failure.exc_type else "failure"
    where = failure.err_msg or f"in the background, in {failure.object!r:.200}"
    _log.warning("%s: %s: %s", where, kind, failure.exc_value)
