"""The config's sections, frozen and validated where they are declared."""

from maxtrain.config.schema.data import (
    WEIGHT_UNITS,
    BatchConfig,
    BatchWarmup,
    DataConfig,
    DomainConfig,
    Mixture,
    Range,
    StageConfig,
    TagFilter,
)
from maxtrain.config.schema.model import ModelConfig, MoeConfig, PrecisionConfig, RematConfig, RopeConfig, RopeScaling
from maxtrain.config.schema.optim import GuardConfig, OptimizerConfig, ScheduleConfig
from maxtrain.config.schema.run import (
    BATCH_AXES,
    MESH_AXES,
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LoggingConfig,
    MeshConfig,
    PipelineConfig,
    RunConfig,
    TrainConfig,
)
from maxtrain.config.schema.types import Section, parse_count

__all__ = [
    "BATCH_AXES",
    "MESH_AXES",
    "WEIGHT_UNITS",
    "BatchConfig",
    "BatchWarmup",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DomainConfig",
    "EvaluationConfig",
    "GuardConfig",
    "LoggingConfig",
    "MeshConfig",
    "Mixture",
    "ModelConfig",
    "MoeConfig",
    "OptimizerConfig",
    "PipelineConfig",
    "PrecisionConfig",
    "Range",
    "RematConfig",
    "RopeConfig",
    "RopeScaling",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "StageConfig",
    "TagFilter",
    "TrainConfig",
    "parse_count",
]
