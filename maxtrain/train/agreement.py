"""What process 0 does alone, and how the others hear that it failed, so that none waits for ever."""

import json
from collections.abc import Callable
from typing import TypeVar

from maxtrain.checkpoint.processes import Processes
from maxtrain.core.errors import ExitCode, UserError

Result = TypeVar("Result")


def on_main(processes: Processes, action: Callable[[], Result]) -> Result | None:
    """Do something on process 0; every process must call this, in one order.

    Returns:
        The result on process 0, None elsewhere.

    Raises:
        Exception: on process 0, what the action raised.
        UserError: on the others, its message and exit code.
    """
    result, failure = None, None
    if processes.is_main:
        try:
            result = action()
        except Exception as error:  # whatever it is, the other processes must hear of it
            failure = error
    told = [str(failure), getattr(failure, "exit_code", ExitCode.FAILED)] if failure is not None else None
    answer = json.loads(processes.from_main(json.dumps(told)))
    if failure is not None:
        raise failure
    if answer is not None:
        told_here = UserError(f"process 0: {answer[0]}")
        told_here.exit_code = ExitCode(answer[1])
        raise told_here
    return result
