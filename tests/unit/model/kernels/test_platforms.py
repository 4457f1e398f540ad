"""Which kernels a program has, by the platform that it is lowered for; no compiler of that platform is needed."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from maxtrain.model.kernels import common
from maxtrain.model.kernels.attention import attention
from maxtrain.model.kernels.experts import experts
from maxtrain.model.kernels.grouped_matmul import grouped_matmul

bfloat16 = jnp.bfloat16


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def attend(q, k, v, ids):
    return attention(q, k, v, ids, window=100, scale=0.1, compute_dtype=bfloat16)


def route(x, weight, up, down, index, dtype=bfloat16):
    return experts(x, index, weight, None, up, down, activation="relu2", compute_dtype=dtype)


def group(x, w, sizes):
    return grouped_matmul(x, w, sizes, compute_dtype=bfloat16)


INTEGER = jnp.int32
OF_EXPERTS = (
    shape(256, 64),
    shape(256, 2),
    shape(4, 64, 128),
    shape(4, 128, 64),
    shape(256, 2, dtype=INTEGER),
)
CASES = {
    "attention": (
        attend,
        (shape(1, 256, 4, 64), shape(1, 256, 2, 64), shape(1, 256, 2, 64), shape(1, 256, dtype=INTEGER)),
    ),
    "experts": (route, OF_EXPERTS),
    "grouped": (group, (shape(256, 64), shape(4, 64, 128), shape(4, dtype=INTEGER))),
}
GROUPED_CUDA = {"grouped_product", "grouped_outer"}
GROUPED_TPU = {"kernel"}  # megablox calls both of its kernels so
EXPECTED = {
    ("attention", "cuda"): {"attention_forward", "attention_dq", "attention_dkv"},
    ("attention", "tpu"): {
        "splash_mha_fwd_segmented_residuals",
        "splash_mha_dq_segmented_no_residuals",
        "splash_mha_dkv_segmented_no_residuals",
    },
    ("experts", "cuda"): GROUPED_CUDA,
    ("experts", "tpu"): GROUPED_TPU,
    ("grouped", "cuda"): GROUPED_CUDA,
    ("grouped", "tpu"): GROUPED_TPU,
}


def kernels(function, arguments, platform):
    """Names of the Pallas kernels of value and gradients."""
    floats = tuple(i for i, a in enumerate(arguments) if a.dtype == jnp.float32)
    gradient = jax.jit(jax.grad(lambda *a: jnp.sum(function(*a)), argnums=floats))
    program = gradient.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    calls = [line for line in program.splitlines() if "tpu_custom_call" in line or "xla.gpu.triton" in line]
    found = {re.search(r'kernel_name = "(\w+)"|\bname = "(\w+)"', line) for line in calls}
    return {match and (match[1] or match[2]) for match in found}


@pytest.fixture(autouse=True)
def all_platforms(monkeypatch):
    monkeypatch.setattr(common, "compiled_for", lambda: frozenset({"cpu", "cuda", "tpu"}))


@pytest.mark.parametrize(("case", "platform"), EXPECTED)
def test_accelerators_have_kernels_of_their_own(case, platform):
    assert kernels(*CASES[case], platform) == EXPECTED[case, platform]


@pytest.mark.parametrize("case", CASES)
def test_cpu_has_none(case):
    assert kernels(*CASES[case], "cpu") == set()


def test_operands_of_other_types_are_left_to_the_portable_form_and_the_log_says_so_once(caplog):
    common._tell_portable.cache_clear()
    with caplog.at_level("INFO"):
        assert kernels(partial(route, dtype=jnp.float8_e4m3fn), OF_EXPERTS, "cuda") == set()
    assert [record.getMessage() for record in caplog.records if record.name == common.__name__] == [
        "experts: the portable form, slower and equal: no kernel multiplies float8_e4m3fn"
    ]
