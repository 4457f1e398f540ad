"""Processes give each other messages, hear of each other's failures, and wait no longer than they were told."""

import json
import socket
import subprocess
import sys

import pytest

from maxtrain.core.errors import BusyError, CheckpointError, ExitCode
from maxtrain.parallel.agreement import ProcessGroup

_CHILD = """
import json, sys
import jax
port, rank = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from maxtrain.core.errors import BusyError, CheckpointError, UserError
from maxtrain.parallel.agreement import ProcessGroup

group = ProcessGroup(60, "a test ran")
checkpoints = ProcessGroup(60, "a test ran", CheckpointError)
short = ProcessGroup(0.2, "one was late")
short_checkpoints = ProcessGroup(0.2, "one was late", CheckpointError)
seen = {}


def failure(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return [type(error).__name__, str(error), int(getattr(error, "exit_code", -1))]


def busy():
    raise BusyError("taken")


def broken():
    raise RuntimeError("broken")


seen["turns"] = [group.exchange(f"{rank}{turn}") for turn in range(4)]
seen["from_main"] = group.from_main(str(rank))
seen["text"] = group.text_from_main(lambda: f"text of {rank}")
seen["result"] = group.on_main(lambda: "done")
seen["busy"] = failure(group.on_main, busy)
seen["broken"] = failure(group.on_main, broken)
seen["busy_checkpoint"] = failure(checkpoints.on_main, busy)
group.agree(None)
seen["agree"] = failure(group.agree, "full" if rank == 1 else None)
seen["agree_checkpoint"] = failure(checkpoints.agree, "full" if rank == 1 else None)
if rank == 0:
    seen["late"] = failure(short.exchange, "")
    seen["late_checkpoint"] = failure(short_checkpoints.exchange, "")
group.agree(None)
print(json.dumps(seen))
jax.distributed.shutdown()
"""


def test_two_processes_agree_and_fail_together():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, port, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], "\n".join(error for _, error in outputs)
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in outputs)
    for seen in (first, second):
        assert seen["turns"] == [[f"0{turn}", f"1{turn}"] for turn in range(4)]
        assert seen["from_main"] == "0"
        assert seen["text"] == "text of 0"
    assert (first["result"], second["result"]) == ("done", None)

    assert first["busy"] == first["busy_checkpoint"] == ["BusyError", "taken", ExitCode.BUSY]
    assert second["busy"] == ["UserError", "process 0: taken", ExitCode.BUSY]
    assert second["busy_checkpoint"] == ["CheckpointError", "process 0: taken", ExitCode.CHECKPOINT]
    assert first["broken"] == ["RuntimeError", "broken", -1]
    assert second["broken"] == ["UserError", "process 0: broken", ExitCode.FAILED]

    assert first["agree"] == ["UserError", "process 1: full", ExitCode.USAGE]
    assert second["agree"] == ["UserError", "full", ExitCode.USAGE]
    assert (first["agree_checkpoint"][0], second["agree_checkpoint"][0]) == ("CheckpointError", "CheckpointError")

    assert (first["late"][0], first["late"][2]) == ("UserError", ExitCode.FAILED)
    assert (first["late_checkpoint"][0], first["late_checkpoint"][2]) == ("CheckpointError", ExitCode.CHECKPOINT)
    assert "process 1 did not answer within 0 s while one was late" in first["late"][1]


def test_one_process_agrees_with_itself():
    group = ProcessGroup(1, "a test ran", CheckpointError)
    assert group.is_main
    assert group.exchange("a") == ["a"]
    assert group.on_main(lambda: 3) == 3
    group.agree(None)
    with pytest.raises(CheckpointError, match=r"^full$"):
        group.agree("full")

    def busy() -> None:
        raise BusyError("taken")

    with pytest.raises(BusyError, match=r"^taken$"):
        group.on_main(busy)
