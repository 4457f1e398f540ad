"""Orderly stops on signals."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """A signal asks for an orderly stop.

    One process: the first SIGTERM or SIGINT counts; a second one acts as if this did not exist. Several processes:
    SIGTERM to any of them counts. JAX's coordinator then names one step to all, so that they stop together.

    Attributes:
        number: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, step: int) -> bool:
        """Whether to stop after this step; to be called after every step, by every process."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.number = signal.SIGTERM
        return self.number is not None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen while the block runs. With several processes JAX listens already."""
        if jax.process_count() > 1:
            yield
            return

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
