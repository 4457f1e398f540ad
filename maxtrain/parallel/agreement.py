"""Agreement between the processes of a run, from any thread.

It goes through the coordinator's key-value store and not through device collectives: a background thread may use it
while the main thread runs steps, which would otherwise have to be ordered alike on every process.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the coordinator's client has no public name

from maxtrain.core.errors import ExitCode, UserError

Result = TypeVar("Result")

_groups = itertools.count()


class ProcessGroup:
    """All processes, for one use; every process must create its groups, and call their methods, in the same order.

    Args:
        timeout_seconds: how long processes wait for each other.
        work: what they wait in, for the error's text.
        error: class of what is raised where another process failed or gave no answer.
    """

    def __init__(self, timeout_seconds: float, work: str, error: type[UserError] = UserError) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._timeout, self._work, self._error = timeout_seconds, work, error
        self._prefix = f"maxtrain/group/{next(_groups)}"
        self._turn = itertools.count()

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which writes what all share."""
        return self.index == 0

    def exchange(self, message: str) -> list[str]:
        """Give every process a message and wait for theirs.

        Returns:
            The messages of all processes, in order.

        Raises:
            UserError: of the group's class; a process gave none in time.
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
                raise self._failure(
                    f"process {index} did not answer within {self._timeout:.0f} s while {self._work}: "
                    f"{str(error).splitlines()[0]}",
                    ExitCode.FAILED,
                ) from None
        # Who is here has read all of the turn before, so nobody needs the turn before that one.
        if turn > 1:
            client.key_value_delete(f"{self._prefix}/{turn - 2}/{self.index}")
        return messages

    def agree(self, error: str | None) -> None:
        """Wait for all processes; where any of them failed, all raise.

        Raises:
            UserError: of the group's class; the first failure by process.
        """
        for index, message in enumerate(self.exchange(error or "")):
            if message:
                raise self._error(message if index == self.index else f"process {index}: {message}")

    def from_main(self, message: str) -> str:
        """Hand the message of process 0 to all."""
        return self.exchange(message)[0]

    def on_main(self, action: Callable[[], Result]) -> Result | None:
        """Do something on process 0; the others hear that it failed, so that none waits for ever.

        Returns:
            The result on process 0, None elsewhere.

        Raises:
            Exception: on process 0, what the action raised.
            UserError: on the others, of the group's class, its message; a plain UserError takes over its exit code.
        """
        results: list[Result] = []

        def act() -> str:
            results.append(action())
            return ""

        self.text_from_main(act)
        return results[0] if results else None

    def text_from_main(self, action: Callable[[], str]) -> str:
        """Do something on process 0 and give its result to all; else as `on_main`."""
        text, failure = "", None
        if self.is_main:
            try:
                text = action()
            except Exception as error:  # whatever it is, the other processes must hear of it
                failure = error
        told = [str(failure), getattr(failure, "exit_code", ExitCode.FAILED)] if failure is not None else None
        text, told = json.loads(self.from_main(json.dumps([text, told])))
        if failure is not None:
            raise failure
        if told is not None:
            raise self._failure(f"process 0: {told[0]}", ExitCode(told[1]))
        return text

    def _failure(self, text: str, exit_code: ExitCode) -> UserError:
        """An error of the group's class; a plain UserError with this exit code, others keep that of their class."""
        failure = self._error(text)
        if self._error is UserError:
            failure.exit_code = exit_code
        return failure
