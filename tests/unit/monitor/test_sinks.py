import math
import struct

from tensorboardX.proto.event_pb2 import Event

from maxtrain.monitor.heldout import HeldOutResult, Score
from maxtrain.monitor.schema import FIELDS
from maxtrain.monitor.sinks import SCALARS, SCALARS_BY_LAYER, SCALARS_BY_NAME, TensorBoardSink


def read_scalars(directory):
    """(tag, step) → value, and the purge steps, of every event file in a folder."""
    scalars, purged = {}, []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            if event.HasField("session_log"):
                purged.append(event.step)
            for value in event.summary.value:
                scalars[value.tag, event.step] = value.simple_value
    return scalars, purged


def test_what_is_written_is_read_back(tmp_path, make_line):
    sink = TensorBoardSink(tmp_path)
    sink.write(make_line(3, loss=2.5, grad_norm=math.inf, mfu=None, expert_load_max_over_mean=[1.5]))
    sink.write_heldout(
        HeldOutResult(3, 1536, {"english": Score(2.0, 0.75, 8, 30)}, Score(2.25, None, 8, 0)),
    )
    sink.flush()
    sink.close()
    scalars, purged = read_scalars(tmp_path)
    assert purged == [3]
    assert scalars["loss/total", 3] == 2.5
    assert scalars["loss_by_domain/english", 3] == struct.unpack("<f", struct.pack("<f", 8 / 3))[0]
    assert scalars["expert_load_max_over_mean/moe_layer_000", 3] == 1.5
    assert scalars["heldout_loss/all", 3] == 2.25
    assert scalars["heldout_bits_per_byte/english", 3] == 0.75
    tags = {tag for tag, _ in scalars}
    assert not tags & {"speed/mfu", "optimizer/grad_norm", "loss_by_domain/数学", "heldout_bits_per_byte/all"}


def test_every_number_of_the_schema_is_shown():
    left_out = {
        "attempt",
        "time",
        "step",
        "batch_digest",
        "target_tokens",
        "tokens_by_domain",
        "skipped",
        "skipped_target_tokens",
    }
    left_out |= {"expert_load", "flops_per_token", "num_devices"}
    shown = set(SCALARS) | set(SCALARS_BY_NAME) | set(SCALARS_BY_LAYER)
    assert shown == {field.name for field in FIELDS} - left_out


def test_tags_are_unique():
    tags = [*SCALARS.values(), *SCALARS_BY_NAME.values(), *SCALARS_BY_LAYER.values()]
    assert len(tags) == len(set(tags))


def test_a_resumed_run_hides_what_it_computes_again(tmp_path, make_line):
    for first in (1, 2):
        sink = TensorBoardSink(tmp_path / f"attempt_{first}")
        for step in (first, first + 1):
            sink.write(make_line(step))
        sink.close()
        assert read_scalars(tmp_path / f"attempt_{first}")[1] == [first]


def test_nothing_written_leaves_no_file(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard")
    sink.flush()
    sink.close()
    assert not (tmp_path / "tensorboard").exists()
