"""Small models, batches, and a plain NumPy decoder that loops over tokens, heads and experts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import ModelConfig, MoeConfig


def small(**changes):
    fields = {
        "vocab_size": 40,
        "num_layers": 3,
        "d_model": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ff": 24,
        "init_std": 0.2,
    }
    return ModelConfig(**{**fields, **changes})


OPTIONS = {
    "dense": small(num_layers=3, window=3, global_every=2, qk_norm=True, attention_gate=True, tie_embeddings=True),
    "softmax": small(
        num_layers=2,
        activation="relu2",
        head_dim=6,
        num_kv_heads=1,
        depth_scaled_init=False,
        moe=MoeConfig(num_experts=6, top_k=3, d_expert=8, normalize_top_k=False, num_groups=3, top_groups=2),
    ),
    "sigmoid": small(
        activation="geglu",
        moe=MoeConfig(
            num_experts=8,
            top_k=2,
            d_expert=8,
            first_dense=1,
            num_shared=2,
            d_shared=5,
            score="sigmoid",
            balance="bias",
            routed_scale=2.5,
            num_groups=4,
            top_groups=2,
            z_weight=0.01,
        ),
    ),
}
"""Between them every option of the model."""


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Tiny models spend their time in the compiler."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def options():
    return OPTIONS


@pytest.fixture
def make_config():
    return small


@pytest.fixture
def make_batch():
    """Rows cut into documents of the given lengths; what is left is padding."""

    def make(documents_of_rows, length, vocab_size=40, seed=0):
        rng = np.random.default_rng(seed)
        rows = len(documents_of_rows)
        batch = {name: np.zeros((rows, length), np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
        batch["weights"] = np.zeros((rows, length), np.float32)
        for row, lengths in enumerate(documents_of_rows):
            start = 0
            for number, size in enumerate(lengths):
                part, text = slice(start, start + size), rng.integers(0, vocab_size, size)
                batch["tokens"][row, part] = text
                batch["targets"][row, start : start + size - 1] = text[1:]
                batch["weights"][row, start : start + size - 1] = 1
                batch["segment_ids"][row, part] = number + 1
                batch["positions"][row, part] = np.arange(size)
                start += size
        return {name: jnp.asarray(value) for name, value in batch.items()}

    return make


@pytest.fixture
def expert_bias():
    """A bias that moves choices."""

    def make(model):
        return 0.1 * jax.random.normal(jax.random.key(7), model.expert_bias().shape)

    return make


def _norm(x, scale, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _hidden(x, weights, activation):
    up = x @ weights["up"]
    if activation == "relu2":
        return np.maximum(up, 0) ** 2
    gate = x @ weights["gate"]
    if activation == "swiglu":
        return gate * _sigmoid(gate) * up
    return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def _rotate(x, position, theta):
    half = len(x) // 2
    angle = position * theta ** (-np.arange(half) * 2 / len(x))
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag])


def _attention(config, x, weights, window):
    heads, kv_heads, size = config.num_heads, config.kv_heads, config.dim_per_head
    out = np.zeros((len(x), heads, size))
    for head in range(heads):
        group = head // (heads // kv_heads)
        q, k = x @ weights["query"][:, head], x @ weights["key"][:, group]
        if config.qk_norm:
            q = _norm(q, weights["query_norm"]["scale"], config.norm_eps)
            k = _norm(k, weights["key_norm"]["scale"], config.norm_eps)
        q = np.stack([_rotate(row, t, config.rope.theta) for t, row in enumerate(q)])
        k = np.stack([_rotate(row, t, config.rope.theta) for t, row in enumerate(k)])
        v = x @ weights["value"][:, group]
        for t in range(len(x)):
            first = 0 if window is None else max(0, t - window + 1)
            score = np.exp(k[first : t + 1] @ q[t] / math.sqrt(size))
            out[t, head] = score @ v[first : t + 1] / score.sum()
    if config.attention_gate:
        out *= _sigmoid(x @ weights["gate"])[..., None]
    return np.einsum("tnh,nhd->td", out, weights["output"])


def _choose(moe, score, bias):
    choice = score + bias if moe.balance == "bias" else score.copy()
    size = moe.num_experts // moe.num_groups
    best = 2 if moe.score == "sigmoid" or moe.balance == "bias" else 1
    groups = [np.sort(choice[g * size : (g + 1) * size])[-best:].sum() for g in range(moe.num_groups)]
    for group in np.argsort(groups)[: moe.num_groups - moe.top_groups] if moe.num_groups > 1 else []:
        choice[group * size : (group + 1) * size] = -np.inf
    return np.argsort(-choice)[: moe.top_k]


def _experts(config, x, weights, bias):
    moe, y = config.moe, np.zeros_like(x)
    picks: list[set[int]] = []
    for t, row in enumerate(x):
        logits = row @ weights["router"]["kernel"]
        score = _sigmoid(logits) if moe.score == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
        chosen = _choose(moe, score, bias)
        picks.append(set(chosen.tolist()))
        total = score[chosen].sum() if moe.normalize_top_k else 1.0
        for expert in chosen:
            one = {name: matrix[expert] for name, matrix in weights["experts"].items()}
            y[t] += moe.routed_scale * score[expert] / total * (_hidden(row, one, config.activation) @ one["down"])
    if "shared" in weights:
        y += _hidden(x, weights["shared"], config.activation) @ weights["shared"]["down"]
    return y, picks


@pytest.fixture
def naive_logits():
    """Logits and expert picks of one document, in float64."""

    def forward(config, params, tokens, bias):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        x, seen = params["embedding"]["weight"][np.asarray(tokens)], {"dense": 0, "moe": 0}
        picks: list[list[set[int]]] = []
        for layer in range(config.num_layers):
            kind = "moe" if config.is_moe(layer) else "dense"
            number = seen[kind]
            seen[kind] += 1
            weights = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"][kind])
            normed = _norm(x, weights["attention_norm"]["scale"], config.norm_eps)
            x = x + _attention(config, normed, weights["attention"], config.window_of(layer))
            normed = _norm(x, weights["feed_forward_norm"]["scale"], config.norm_eps)
            if kind == "dense":
                inner = weights["feed_forward"]
                x = x + _hidden(normed, inner, config.activation) @ inner["down"]
            else:
                y, picked = _experts(config, normed, weights["feed_forward"], np.asarray(bias[number], np.float64))
                x, picks = x + y, [*picks, picked]
        x = _norm(x, params["final_norm"]["scale"], config.norm_eps)
        table = params["embedding" if config.tie_embeddings else "output"]["weight"]
        return x @ table.T, picks

    return forward
