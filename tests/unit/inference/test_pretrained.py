"""Public checkpoints with their reference values (transformers 5.24 in float32)."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from maxtrain.core.errors import DataError, UserError
from maxtrain.inference.pretrained import load_pretrained
from maxtrain.inference.public_config import read_public_config
from maxtrain.model import Model
from maxtrain.model.routing import choose_experts


class Reference:
    """A checkpoint, its reference values, and its loss and gradients."""

    def __init__(self, directory):
        self.config, self.params, self.bias = load_pretrained(directory)
        self.arrays = load_file(directory / "reference.safetensors")
        self.figures = json.loads((directory / "reference.json").read_text())
        self.model = Model(self.config, scan_unroll=1)
        labels = self.arrays["labels"][:, 1:]
        rows, length = labels.shape
        self.batch = {
            "tokens": jnp.asarray(self.arrays["input_ids"][:, :-1], jnp.int32),
            "targets": jnp.asarray(np.maximum(labels, 0), jnp.int32),
            "weights": jnp.asarray(labels >= 0, jnp.float32),
            "segment_ids": jnp.ones((rows, length), jnp.int32),
            "positions": jnp.broadcast_to(jnp.arange(length), (rows, length)),
        }
        self.step = jax.jit(jax.value_and_grad(self._loss))

    def _loss(self, params):
        total, aux = self.model.loss(params, self.batch, expert_bias=self.bias)
        return total / aux.weight_B.sum()


@pytest.fixture(scope="module")
def load(shared):
    return functools.cache(lambda name: Reference(shared / "parity" / name))


def ours(gradient, name, shape):
    """The public name's gradient out of ours."""
    parts = name.split(".")
    if parts[1] != "layers":
        leaf = {"model.norm.weight": gradient["final_norm"]["scale"]}[name]
        return np.asarray(leaf)
    layer = jax.tree.map(lambda leaf: leaf[int(parts[2])], next(iter(gradient["layers"].values())))
    leaf = {
        "input_layernorm": lambda: layer["attention_norm"]["scale"],
        "self_attn.o_proj": lambda: layer["attention"]["output"].reshape(shape[::-1]).T,
        "self_attn.k_norm": lambda: layer["attention"]["key_norm"]["scale"],
        "mlp.gate": lambda: layer["feed_forward"]["router"]["kernel"].T,
    }[".".join(parts[3:-1])]()
    return np.asarray(leaf)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "qwen3_moe"])
def test_logits_loss_and_gradients_are_the_reference(name, load):
    reference = load(name)
    logits = jax.jit(reference.model.logits)(reference.params, jnp.asarray(reference.arrays["input_ids"], jnp.int32))
    assert np.abs(logits - reference.arrays["logits"]).max() < 1e-4
    loss, gradient = reference.step(reference.params)
    assert float(loss) == pytest.approx(reference.figures["loss_masked_prefix"], rel=1e-6)
    compared = 0
    for name, expected in reference.arrays.items():
        if name.startswith("grad."):
            got = ours(gradient, name.removeprefix("grad."), expected.shape)
            assert np.linalg.norm(got - expected) <= 1e-4 * np.linalg.norm(expected), name
            compared += 1
    assert compared >= 3


def test_five_steps_of_adamw_follow_the_reference(load):
    """Loss and gradient norm of each step, for the sparse model: all gradients at once."""
    reference = load("qwen3_moe")
    settings = reference.figures["adamw"]
    # The decay is for tensors of two dimensions and more in the public layout: all but norms.
    mask = jax.tree_util.tree_map_with_path(lambda path, _: "scale" not in str(path[-1]), reference.params)
    optimizer = optax.chain(
        optax.clip_by_global_norm(settings["clip"]),
        optax.adamw(
            settings["lr"],
            *settings["betas"],
            eps=settings["eps"],
            weight_decay=settings["weight_decay_ge2d"],
            mask=mask,
        ),
    )

    @functools.partial(jax.jit, donate_argnums=1)
    def update(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, optax.tree.norm(gradient)

    params, state = reference.params, optimizer.init(reference.params)
    for expected_loss, expected_norm in settings["loss_and_gradnorm"]:
        loss, gradient = reference.step(params)
        params, state, norm = update(gradient, state, params)
        assert float(loss) == pytest.approx(expected_loss, rel=1e-4)
        assert float(norm) == pytest.approx(expected_norm, rel=1e-3)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_routers_pick_and_weigh_as_the_reference(name, load):
    """The reference's router logits through our choice, and our load against its picks."""
    reference = load(name)
    moe = reference.config.moe
    assert moe is not None
    tokens = jnp.asarray(reference.arrays["input_ids"], jnp.int32)
    ones = jnp.ones(tokens.shape, jnp.float32)
    batch = {
        "tokens": tokens,
        "targets": tokens,
        "weights": ones,
        "segment_ids": jnp.ones_like(tokens),
        "positions": jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
    }
    _, aux = jax.jit(reference.model.loss)(reference.params, batch, expert_bias=reference.bias)
    for layer in range(reference.config.num_layers):
        prefix = f"router.model.layers.{layer}.mlp.gate"
        picks, weights = (reference.arrays[f"{prefix}.{part}"] for part in ("topk_idx_sorted", "topk_weight_by_idx"))
        routing = choose_experts(jnp.asarray(reference.arrays[f"{prefix}.logits"])[None], reference.bias[layer], moe)
        order = np.argsort(routing.index_BTk[0], -1)
        np.testing.assert_array_equal(np.take_along_axis(np.asarray(routing.index_BTk[0]), order, -1), picks)
        np.testing.assert_allclose(np.take_along_axis(np.asarray(routing.weight_BTk[0]), order, -1), weights, rtol=1e-4)
        np.testing.assert_array_equal(aux.expert_load[layer], np.bincount(picks.ravel(), minlength=moe.num_experts))


LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
}


class TestConfig:
    def test_both_generations_of_transformers_are_read(self):
        old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float32"}
        new = LLAMA | {
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
            "dtype": "float32",
        }
        first, second = (read_public_config(values, "config.json") for values in (old, new))
        assert first == second
        assert first.rope.theta == 5e5
        assert first.rope.scaling is not None
        assert first.rope.scaling.factor == 2.0

    def test_llama3_and_yarn(self):
        llama3 = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        scaling = read_public_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": llama3}, "c").rope.scaling
        assert scaling is not None
        assert (scaling.kind, scaling.original_length, scaling.high_freq_factor) == ("llama3", 8192, 4.0)
        yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
        scaling = read_public_config(
            LLAMA | {"rope_parameters": yarn, "max_position_embeddings": 4096}, "c"
        ).rope.scaling
        assert scaling is not None
        assert (scaling.kind, scaling.original_length, scaling.factor) == ("yarn", 4096, 4.0)

    def test_windows(self):
        qwen = LLAMA | {"model_type": "qwen3", "num_hidden_layers": 4, "sliding_window": 7}
        assert read_public_config(qwen | {"use_sliding_window": False}, "c").window is None
        used = qwen | {"use_sliding_window": True}
        assert read_public_config(used | {"max_window_layers": 4}, "c").window is None
        config = read_public_config(used | {"max_window_layers": 0}, "c")
        assert (config.window, config.global_every) == (7, 0)
        types = ["sliding_attention", "full_attention"] * 2
        config = read_public_config(used | {"layer_types": types}, "c")
        assert [config.window_of(layer) for layer in range(4)] == [7, None, 7, None]
        with pytest.raises(UserError, match="layer_types"):
            read_public_config(used | {"layer_types": types[::-1]}, "c")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "gpt2"}, "config.json: model_type 'gpt2' is not supported; supported are llama"),
            ({"logit_scale": 2.0}, "unknown key logit_scale"),
            ({"attention_bias": True}, "attention_bias True is not supported"),
            ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
            ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' is not supported"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope key mscale"),
            ({"vocab_size": None}, "vocab_size is missing"),
            ({"num_hidden_layers": 0}, "num_layers: Input should be greater than 0"),
        ],
    )
    def test_what_is_not_understood_is_refused_by_name(self, changes, message):
        with pytest.raises(UserError, match=message):
            read_public_config(LLAMA | changes, "config.json")


class TestFiles:
    @pytest.fixture
    def copy(self, shared, tmp_path):
        source = shared / "parity" / "llama"
        (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
        return tmp_path, load_file(source / "model.safetensors")

    def test_shards_with_an_index(self, copy):
        directory, tensors = copy
        names = sorted(tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, members in shards.items():
            save_file({name: tensors[name] for name in members}, directory / file)
        weight_map = {name: file for file, members in shards.items() for name in members}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        _, params, _ = load_pretrained(directory)
        np.testing.assert_array_equal(params["output"]["weight"], tensors["lm_head.weight"])

    def test_bfloat16(self, copy):
        directory, tensors = copy
        rounded = {name: value.astype(jnp.bfloat16) for name, value in tensors.items()}
        save_file(rounded, directory / "model.safetensors")
        _, params, _ = load_pretrained(directory)
        assert params["output"]["weight"].dtype == jnp.float32
        np.testing.assert_array_equal(params["output"]["weight"], rounded["lm_head.weight"].astype(np.float32))

    def test_what_does_not_fit_is_refused_by_name(self, copy):
        directory, tensors = copy
        path = directory / "model.safetensors"
        with pytest.raises(DataError, match="no such file"):
            load_pretrained(directory)
        save_file({name: value for name, value in tensors.items() if name != "model.norm.weight"}, path)
        with pytest.raises(DataError, match=r"tensor model\.norm\.weight is missing"):
            load_pretrained(directory)
        save_file(tensors | {"model.extra": np.ones(2, np.float32)}, path)
        with pytest.raises(DataError, match=r"unknown tensor model\.extra"):
            load_pretrained(directory)
        save_file(tensors | {"model.norm.weight": np.ones(2, np.float32)}, path)
        with pytest.raises(DataError, match=r"tensor model\.norm\.weight has shape \(2,\)"):
            load_pretrained(directory)
        path.write_bytes(b"no tensors")
        with pytest.raises(DataError, match="not a safetensors file"):
            load_pretrained(directory)
