import logging
from collections.abc import Iterator

import pytest

from maxtrain.core.log import configure_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


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
