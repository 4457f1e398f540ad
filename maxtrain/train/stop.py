"""Orderly stops on signals."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """The first SIGTERM or SIGINT asks for an orderly stop; a second one acts as if this did not exist.

    Attributes:
        number: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self) -> bool:
        """Whether a stop is asked for."""
        return self.number is not None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen while the block runs."""

        def listen(number: int, _: FrameType | None) -> None:
            self.number = number
            restore()

        def restore() -> None:
            for number, handler in old.items():
                signal.signal(number, handler)

        old = {number: signal.signal(number, listen) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            restore()
