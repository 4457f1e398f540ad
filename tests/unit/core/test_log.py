import logging
import sys
from collections.abc import Iterator

import pytest

from maxtrain.core.log import configure_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, sys.unraisablehook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.unraisablehook = hook


def test_our_messages_are_shown_once_and_the_libraries_chatter_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    configure_logging()
    logging.getLogger("maxtrain.train").info("step %d", 3)
    logging.getLogger("orbax").info("chatter")
    logging.getLogger("absl").warning("careful")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["INFO step 3", "WARNING careful"]


def test_other_processes_show_warnings_with_their_index(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(process=2)
    logging.getLogger("maxtrain").info("quiet")
    logging.getLogger("maxtrain").warning("loud")
    err = capsys.readouterr().err
    assert "[2] WARNING loud" in err
    assert "quiet" not in err


def test_a_library_s_failure_is_one_line_and_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    try:
        raise OSError("no space")
    except OSError:
        logging.getLogger("absl").exception("writing %s failed\nat length", "x")
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
        logging.getLogger("maxtrain").exception("ours")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == ["ERROR writing x failed", "ERROR ours"]
    assert lines[-1] == "no space"


def test_a_failure_nobody_can_catch_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing:
        def __del__(self) -> None:
            raise RuntimeError("Event loop is closed")

    configure_logging()
    Failing()
    (line,) = capsys.readouterr().err.splitlines()
    assert "WARNING in the background, in <function " in line
    assert line.endswith("RuntimeError: Event loop is closed")


def test_a_message_that_does_not_fit_its_arguments_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger().handlers.clear()  # of the tests' own, which raise
    configure_logging()
    logging.getLogger("absl").warning("%d steps", "many")
    monkeypatch.setattr(sys, "stderr", None)
    logging.getLogger("maxtrain").warning("nobody reads this")
