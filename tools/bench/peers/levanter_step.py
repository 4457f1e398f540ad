"""A peer of train_step.py: the same shapes as a levanter model, one step after another.

Run by an interpreter that has levanter; prints one line of JSON. The step is that of levanter's trainer, jitted whole
with its state donated: `TrainerState`, its AdamW, its loss, its policy of mixed precision. Settings are the fastest on
a CPU: attention in blocks of 256 and the layers one after another, not by scan.
"""

import time

_START = time.perf_counter()

import equinox  # noqa: E402  the clock starts before the imports
import haliax  # noqa: E402
import jax  # noqa: E402
import jmp  # noqa: E402
import levanter.tracker  # noqa: E402
import numpy as np  # noqa: E402
from levanter.layers.attention import AttentionBackend  # noqa: E402
from levanter.models.llama import LlamaConfig  # noqa: E402
from levanter.models.lm_model import LmConfig, LmExample, compute_next_token_loss  # noqa: E402
from levanter.models.mixtral import MixtralConfig  # noqa: E402
from levanter.optim import AdamConfig  # noqa: E402
from levanter.trainer_state import TrainerState  # noqa: E402
from step_loop import read_case, time_steps  # noqa: E402

BATCH, VOCABULARY = haliax.Axis("batch", 8), haliax.Axis("vocab", 8192)
POLICIES = {"float32": "f32", "bfloat16": "p=f32,c=bfloat16"}


def make_config(case: dict) -> LmConfig:
    """The model of a case; every layer is computed anew where remat is full."""
    common = {
        "seq_len": 512,
        "hidden_dim": 256,
        "intermediate_dim": case["hidden"],
        "num_layers": 4,
        "num_heads": 8,
        "num_kv_heads": 8,
        "attn_backend": AttentionBackend.JAX_FLASH,
        "flash_attention_block_size": 256,
        "gradient_checkpointing": case["remat"] == "full",
        "scan_layers": False,
    }
    if not case["experts"]:
        return LlamaConfig(**common)
    moe = {"n_routed_experts": case["experts"], "num_experts_per_tok": 2, "lbl_coef": 0.01, "rzl_coef": None}
    return MixtralConfig(**common, **moe, use_flash_attention=None)


def train_step(state: TrainerState, example: LmExample) -> tuple[TrainerState, jax.Array]:
    """One update; the state after it, and the mean loss of each token predicting the next."""
    new_key, _ = jax.random.split(state.training_key)

    def loss_of(model: equinox.Module) -> jax.Array:
        # levanter's own mean gives JAX a mask of floats, which its newer versions refuse.
        each = compute_next_token_loss(state.mp.cast_to_compute(model), example, reduction=None)
        return haliax.mean(each, where=example.loss_mask > 0).scalar()

    # Mixtral logs its routing: without this it would call Python from the step.
    with levanter.tracker.defer_tracker_for_jit():
        loss, gradients = equinox.filter_value_and_grad(loss_of)(state.model)
        state, _ = state.take_step(gradients, loss=loss, key=new_key)
    return state, loss


def main() -> None:
    """Train on random tokens and print the CPU-seconds of each step."""
    case = read_case()
    if case.get("compile"):
        raise SystemExit("levanter's step is always compiled: leave out --peer-compile")
    config = make_config(case)
    adamw = AdamConfig(
        learning_rate=1e-3, lr_schedule="constant", warmup=0, beta2=0.95, weight_decay=0.1, max_grad_norm=1.0
    ).build(case["steps"] + 1)
    policy = jmp.get_policy(POLICIES[case["precision"]])
    mask = LmExample.causal_loss_mask(config.Pos)
    random = np.random.default_rng(0)

    def create_state(key: jax.Array) -> TrainerState:
        return TrainerState.init(adamw, config.build(VOCABULARY, key=key), key=key, mp=policy)

    def next_batch() -> LmExample:
        tokens = random.integers(VOCABULARY.size, size=(BATCH.size, config.Pos.size), dtype=np.int32)
        return LmExample(tokens=haliax.named(jax.numpy.asarray(tokens), (BATCH, config.Pos)), loss_mask=mask)

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh), haliax.axis_mapping({}):
        state = haliax.named_jit(create_state)(jax.random.key(0))
        jitted = haliax.named_jit(train_step, donate_args=(True, False))

        def step(example: LmExample) -> float:
            nonlocal state
            state, loss = jitted(state, example)
            return float(loss)

        time_steps(_START, case["steps"], next_batch, step)


if __name__ == "__main__":
    main()
