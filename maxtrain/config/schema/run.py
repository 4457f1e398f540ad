"""The run itself: mesh, length, checkpoints, evaluation, logs; and the whole config."""

from typing import Annotated, Literal

from pydantic import Field

from maxtrain.config.schema.data import BatchConfig, DataConfig
from maxtrain.config.schema.model import ModelConfig, PrecisionConfig, RematConfig
from maxtrain.config.schema.optim import GuardConfig, OptimizerConfig, ScheduleConfig
from maxtrain.config.schema.types import (
    MAX_SIZE,
    AsTuple,
    NonNegativeInt,
    NonNegativeReal,
    PositiveCount,
    PositiveInt,
    PositiveReal,
    Section,
    Size,
)

MESH_AXES = ("data", "fsdp", "pipeline", "expert", "context", "tensor")
"""Mesh axes in device order, slowest first."""
BATCH_AXES = ("data", "fsdp", "expert")
"""Mesh axes over which the rows of a batch are divided."""

FoldAxis = Literal["data", "fsdp", "context", "tensor"]
AxisSize = Annotated[int, Field(ge=-1, le=MAX_SIZE)]


class RunConfig(Section):
    """Identity of the run."""

    directory: str
    """Run directory."""
    seed: NonNegativeInt = 0
    """Seed of initialisation, dropout and data order."""


class MeshConfig(Section):
    """Sizes of the mesh axes; one of them may be -1: what is left of the devices."""

    devices: Size | None = None
    """Devices in all; null for what the backend has. On CPU that many are emulated."""
    data: AxisSize = 1
    """Replicas of the parameters, each with its own rows."""
    fsdp: AxisSize = 1
    """Shards of optimizer state, gradients and parameters (mesh.zero), each with its own rows."""
    pipeline: AxisSize = 1
    """Pipeline stages, which divide the layers; see the section `pipeline`."""
    expert: AxisSize = 1
    """Shards of the experts, each with its own rows."""
    context: AxisSize = 1
    """Shards of the sequence, for attention by a ring."""
    tensor: AxisSize = 1
    """Shards of heads, hidden widths and vocabulary."""
    zero: Literal[1, 2, 3] = 3
    """What mesh.fsdp divides (Rajbhandari 2020): 1 the optimizer's state, 2 gradients too, 3 parameters too."""
    expert_fold: Annotated[tuple[FoldAxis, ...], AsTuple] = ()
    """Further axes that divide the experts, instead of what they divide elsewhere: fsdp keeps experts whole."""
    exchange: Literal["auto", "all_to_all", "ragged", "ring", "dense"] = "auto"
    """How rows meet experts of other ranks; `auto`: all_to_all. `ragged` needs GPU or TPU; `dense` is for tests."""
    exchange_factor: Annotated[PositiveReal, Field(ge=1)] = 1.25
    """Size of the buffers of all_to_all and ragged, in what an even load needs."""
    exchange_overflow: Literal["replay", "drop"] = "replay"
    """What a full buffer leaves: `replay` sends it in further rounds, exactly; `drop` counts it as dropped."""
    sequence_parallel: bool = False
    """Divide norms and the residual stream over tensor too, along the sequence: less memory, no more exchange."""

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Mesh axes that divide the experts, in device order."""
        return tuple(axis for axis in MESH_AXES if axis in ("expert", *self.expert_fold))


class PipelineConfig(Section):
    """How the stages of mesh.pipeline take turns."""

    rounds: PositiveInt = 1
    """Slots of layers that each stage holds: 1 is GPipe, more are interleaved (circular) and shrink the bubble."""
    microbatches: PositiveInt | None = None
    """Microbatches in flight in one pass, a multiple of the stages; null: all of a step's."""
    uneven: bool = False
    """Allow layers that do not divide over stages × rounds: the last slots hold fewer, and their stages wait."""


class TrainConfig(Section):
    """Length and form of the training."""

    total_tokens: PositiveCount
    """Tokens of the whole run, padding included; a whole number of batches."""
    scan_unroll: Annotated[int, Field(gt=0, le=1024)] = 4
    """Layers unrolled in one turn of the layer scan."""
    kernels: Literal["auto", "reference"] = "auto"
    """`reference` uses the plain forms of attention, experts and loss: slow, for comparison."""
    xla_flags: Literal["auto", "none"] = "auto"
    """`auto` adds flags: on GPU and TPU collectives overlap with computation, a CPU's compiler takes less time; flags
    already set stay."""
    quick_compile: bool = False
    """On CPU compile in half the time, for short runs of small models; the step of large ones is up to a third slower.
    """
    compilation_cache: bool = True
    """Keep compiled programs in the user's cache directory."""


class CheckpointConfig(Section):
    """Saving. The first and the last step are always saved."""

    every: PositiveInt = 500
    """Steps between saves."""
    keep: PositiveInt = 3
    """Newest verified checkpoints to keep, beside the newest healthy one and the next that may become it."""
    healthy_after: PositiveInt = 16
    """Clean steps in a row, none skipped, after which a checkpoint is healthy; it is provisional until then."""
    keep_every: PositiveInt | None = None
    """Steps whose checkpoints are kept for ever; null for none."""
    asynchronous: bool = True
    """Write while training goes on."""


class EvaluationConfig(Section):
    """Held-out loss and bits per byte of every domain while training."""

    every: NonNegativeInt = 0
    """Steps between evaluations, and after the last step; the initial state is not evaluated. 0 for none."""
    dataset: str | None = None
    """Dataset directory or URL; null for data.dataset, whatever the stages read. Not with synthetic data."""
    split: str = "heldout"
    """Split that every domain's filter is turned to."""
    max_tokens: PositiveCount = 65_536
    """Most tokens read of each domain: whole documents that fit, from the domain's start."""


class LoggingConfig(Section):
    """What a run prints and writes."""

    every: PositiveInt = 1
    """Steps between progress lines where stderr is no terminal, which shows every step; so does metrics.jsonl."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    peak_tflops: Annotated[NonNegativeReal, Field(le=1e9)] | None = None
    """Peak of one device in TFLOP/s, for MFU; null: known accelerators by name, else measured at start."""


class ProfileConfig(Section):
    """Tracing of some steps; it changes no bit of the run."""

    steps: Annotated[tuple[PositiveInt, PositiveInt] | None, AsTuple] = None
    """First and last step to trace into RUN/profile/, with a table of their time; null for none. An attempt that begins
    later than two steps before the first traces nothing, as it compiles there."""


class Config(Section):
    """One run."""

    run: RunConfig
    """Identity."""
    data: DataConfig
    """What is read."""
    batch: BatchConfig
    """How much at once."""
    model: ModelConfig
    """What is trained."""
    precision: PrecisionConfig = PrecisionConfig()
    """Number formats."""
    remat: RematConfig = RematConfig()
    """What is recomputed."""
    mesh: MeshConfig = MeshConfig()
    """Where it runs."""
    pipeline: PipelineConfig = PipelineConfig()
    """How its pipeline stages take turns."""
    train: TrainConfig
    """How long."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How parameters move."""
    schedule: ScheduleConfig
    """How fast."""
    guard: GuardConfig = GuardConfig()
    """What is skipped."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """What is measured."""
    logging: LoggingConfig = LoggingConfig()
    """What is shown."""
    profile: ProfileConfig = ProfileConfig()
    """What is traced."""
