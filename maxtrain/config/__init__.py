"""Config: schema, loading, checks, the plan of batches."""

from maxtrain.config.checks import axis_sizes, check_config, check_or_raise
from maxtrain.config.load import load_config, to_plain, to_yaml
from maxtrain.config.schema import Config
from maxtrain.config.violations import ConfigError, Violation

__all__ = [
    "Config",
    "ConfigError",
    "Violation",
    "axis_sizes",
    "check_config",
    "check_or_raise",
    "load_config",
    "to_plain",
    "to_yaml",
]
