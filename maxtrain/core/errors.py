"""Errors that a user can cure, and the exit codes of every command."""

import os
import sys
from collections.abc import Callable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes; a supervisor may retry FAILED, never the others over 0."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Bad command line, config or input: the same call will fail again."""
    DATA = 3
    """Dataset or tokenizer missing, damaged or not the expected one."""
    CHECKPOINT = 4
    """No usable checkpoint, or a save failed."""
    BUSY = 5
    """Another run holds the directory."""
    STOPPED = 6
    """The run's own guard stopped it: too many skipped steps, or parameters, state or held-out loss not finite."""


class UserError(ValueError):
    """A mistake that the user can cure, told in one line: what, where, the limit, the cure."""

    exit_code = ExitCode.USAGE


class DataError(UserError):
    """The dataset, its files or its tokenizer are not what they should be."""

    exit_code = ExitCode.DATA


class CheckpointError(UserError):
    """A checkpoint cannot be written, verified or restored."""

    exit_code = ExitCode.CHECKPOINT


class BusyError(UserError):
    """Another process holds the run directory."""

    exit_code = ExitCode.BUSY


class StoppedError(UserError):
    """The guard stopped the run."""

    exit_code = ExitCode.STOPPED


def run_command(command: Callable[[], int | None]) -> int:
    """Run an entry point: a UserError or a file error becomes one line on stderr and an exit code.

    Returns:
        The process's exit code.
    """
    try:
        return int(command() or ExitCode.OK)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.FAILED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        return int(ExitCode.FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
