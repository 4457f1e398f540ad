"""Reading public checkpoints: safetensors in the layouts of Llama, Qwen3, Mixtral and Qwen3-MoE."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from maxtrain.config.schema import ModelConfig
from maxtrain.core.errors import DataError
from maxtrain.inference.public_config import read_public_config
from maxtrain.model import Model, ParameterSpec, Params

_EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen3_moe": ("mlp.gate", "mlp.experts", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
}
"""Of each architecture with experts: the router, the experts' list, and an expert's matrices."""

_LAYER_NAMES = {
    "attention_norm/scale": "input_layernorm",
    "feed_forward_norm/scale": "post_attention_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "attention/query_norm/scale": "self_attn.q_norm",
    "attention/key_norm/scale": "self_attn.k_norm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj",
}

_TOP_NAMES = {
    "embedding/weight": "model.embed_tokens.weight",
    "final_norm/scale": "model.norm.weight",
    "output/weight": "lm_head.weight",
}


def load_pretrained(directory: str | Path) -> tuple[ModelConfig, Params, jax.Array]:
    """Read a public checkpoint.

    Args:
        directory: holds `config.json` and `model.safetensors`, or shards with `model.safetensors.index.json`.

    Returns:
        The config, float32 parameters in this model's layout, and the expert bias (zeros).

    Raises:
        UserError: the config is not understood (see `read_public_config`).
        DataError: a file or a tensor is missing, unknown or of another shape.
    """
    directory = Path(directory)
    path = directory / "config.json"
    if not path.is_file():
        raise DataError(f"{path}: no such file; a public checkpoint has one")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    config = read_public_config(values, str(path))
    model = Model(config)
    with TensorFiles(directory) as files:
        leaves = {spec.path: _read_leaf(spec, values["model_type"], model, files) for spec in model.table}
        files.check_all_read()
    return config, jax.tree.map(jnp.asarray, model.unflatten(leaves)), model.expert_bias()


class TensorFiles:
    """The tensors of a directory of safetensors files, each read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unread: dict[str, Any] = {}
        self._files: list[Any] = []

    def __enter__(self) -> "TensorFiles":
        index = self._directory / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.is_file():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        for name in names:
            path = self._directory / name
            if not path.is_file():
                raise DataError(f"{path}: no such file")
            try:
                file = safe_open(path, framework="numpy").__enter__()
            except SafetensorError as error:
                raise DataError(f"{path}: not a safetensors file ({error})") from None
            self._files.append(file)
            self._unread.update(dict.fromkeys(file.keys(), file))
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files:
            file.__exit__(*exception)

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32."""
        if name not in self._unread:
            raise DataError(f"{self._directory}: tensor {name} is missing")
        return np.asarray(self._unread.pop(name).get_tensor(name)).astype(np.float32)

    def check_all_read(self) -> None:
        """Refuse tensors that nothing asked for."""
        if self._unread:
            raise DataError(f"{self._directory}: unknown tensor {min(self._unread)}")


def _read_leaf(spec: ParameterSpec, kind: str, model: Model, files: TensorFiles) -> np.ndarray:
    if spec.path in _TOP_NAMES:
        return _shaped(files.read(_TOP_NAMES[spec.path]), spec.shape, _TOP_NAMES[spec.path], lambda tensor: tensor)
    _, stack, part = spec.path.split("/", 2)
    layers = model.layers_of["moe" if stack == "moe" else "dense"]
    return np.stack([_read_layer(part, spec, kind, layer, files) for layer in layers])


def _read_layer(part: str, spec: ParameterSpec, kind: str, layer: int, files: TensorFiles) -> np.ndarray:
    """One layer's slice; public matrices are [outputs, inputs], ours [inputs, outputs]."""
    prefix, shape = f"model.layers.{layer}.", spec.shape[1:]

    def matrix(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return _shaped(files.read(name), shape, name, np.transpose)

    router, experts, matrices = _EXPERT_NAMES.get(kind, ("", "", {}))
    if part == "feed_forward/router/kernel":
        return matrix(f"{prefix}{router}.weight", shape)
    if part.startswith("feed_forward/experts/"):
        name = matrices[part.rsplit("/", 1)[1]]
        each = (f"{prefix}{experts}.{expert}.{name}.weight" for expert in range(shape[0]))
        return np.stack([matrix(expert, shape[1:]) for expert in each])
    return matrix(f"{prefix}{_LAYER_NAMES[part]}.weight", shape)


def _shaped(
    tensor: np.ndarray, shape: tuple[int, ...], name: str, turn: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    tensor = turn(tensor)
    if tensor.size != int(np.prod(shape)):
        raise DataError(f"tensor {name} has shape {tensor.shape[::-1]}, which does not fit {shape}")
    return tensor.reshape(shape)
