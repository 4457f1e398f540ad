"""Agreement between the processes of a run, from any thread.

It goes through the coordinator's key-value store and not through device collectives: a background thread may use it
while the main thread runs steps, which would otherwise have to be ordered alike on every process.
"""

import itertools
from typing import Any

import jax
from jax._src import distributed  # the coordinator's client has no public name

from maxtrain.core.errors import CheckpointError

_groups = itertools.count()


class Processes:
    """All processes, for one use; every process must create its groups, and call `exchange`, in the same order."""

    def __init__(self, timeout_seconds: float) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._timeout = timeout_seconds
        self._prefix = f"maxtrain/checkpoint/{next(_groups)}"
        self._turn = itertools.count()

    @property
    def is_main(self) -> bool:
        """Whether this process commits."""
        return self.index == 0

    def exchange(self, message: str) -> list[str]:
        """Give every process a message and wait for theirs.

        Returns:
            The messages of all processes, in order.

        Raises:
            CheckpointError: a process gave none in time.
        """
        if self.count == 1:
            return [message]
        client: Any = distributed.global_state.client
        turn = next(self._turn)
        client.key_value_set(f"{self._prefix}/{turn}/{self.index}", message)
        messages = []
        for index in range(self.count):
            try:
                messages.append(
                    client.blocking_key_value_get(f"{self._prefix}/{turn}/{index}", int(self._timeout * 1000))
                )
            except Exception as error:  # jaxlib's own error type is not public
                raise CheckpointError(
                    f"process {index} did not answer within {self._timeout:.0f} s while a checkpoint was handled: "
                    f"{str(error).splitlines()[0]}"
                ) from None
        # Who is here has read all of the turn before, so nobody needs the turn before that one.
        if turn > 1:
            client.key_value_delete(f"{self._prefix}/{turn - 2}/{self.index}")
        return messages

    def agree(self, error: str | None) -> None:
        """Wait for all processes; where any of them failed, all raise.

        Raises:
            CheckpointError: the first failure by process.
        """
        for index, message in enumerate(self.exchange(error or "")):
            if message:
                raise CheckpointError(message if index == self.index else f"process {index}: {message}")

    def from_main(self, message: str) -> str:
        """Hand the message of process 0 to all."""
        return self.exchange(message)[0]
