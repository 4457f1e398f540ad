import os
import subprocess
import sys
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.parallel.emulation import keep_collectives_in_order
from maxtrain.parallel.xla_flags import PRESETS, apply_preset, expected_platform, quick_compile


def test_flags_of_the_user_win():
    environment = {
        "JAX_PLATFORMS": "cuda",
        "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=false --xla_dump_to=/tmp/x",
    }
    told = apply_preset(environment)
    flags = environment["XLA_FLAGS"].split()
    assert flags[:2] == ["--xla_gpu_enable_latency_hiding_scheduler=false", "--xla_dump_to=/tmp/x"]
    assert sum("latency_hiding" in flag for flag in flags) == 1
    assert "--xla_gpu_enable_pipelined_all_gather=true" in flags
    assert told is not None
    assert told.split()[2:] == flags[2:]
    assert apply_preset(environment) is None, "a second time there is nothing to add"


def test_flags_of_a_tpu_go_to_its_library():
    environment = {"JAX_PLATFORMS": "tpu,cpu", "XLA_FLAGS": "--xla_dump_to=/tmp/x"}
    assert apply_preset(environment)
    assert environment["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"
    assert "--xla_tpu_enable_async_collective_fusion=true" in environment["LIBTPU_INIT_ARGS"].split()


def test_other_platforms_get_none():
    environment = {"JAX_PLATFORMS": "metal"}
    assert apply_preset(environment) is None
    assert environment == {"JAX_PLATFORMS": "metal"}


def test_quick_compilation_keeps_the_results():
    """The same sums in other code: products, exponentials and integer bits."""

    def program(x):
        return jnp.exp(x @ x.T * 1e-2).sum(axis=0), (x.view(jnp.uint32) >> 3).sum()

    x = jax.random.normal(jax.random.key(0), (128, 64))
    slow, quick = (jax.jit(program, compiler_options=options)(x) for options in ({}, quick_compile("cpu")))
    np.testing.assert_allclose(quick[0], slow[0], rtol=1e-6)
    assert quick[1] == slow[1]
    assert quick_compile("gpu") == {}


def test_the_platform_is_told_by_jaxs_plugins(monkeypatch):
    installed: set[str] = set()
    monkeypatch.setattr("maxtrain.parallel.xla_flags.find_spec", lambda name: True if name in installed else None)
    assert expected_platform({}) == "cpu"
    installed.add("jax_cuda12_plugin")
    assert expected_platform({}) == "gpu"
    installed.add("libtpu")
    assert expected_platform({}) == "tpu"
    assert expected_platform({"JAX_PLATFORMS": "cpu"}) == "cpu"


@pytest.mark.parametrize("platform", PRESETS)
def test_the_installed_compiler_knows_every_flag(platform):
    """Starting a client, jaxlib parses all of XLA_FLAGS, those of GPUs too, and ends at one it does not know."""
    if platform == "tpu" and find_spec("libtpu") is None:
        pytest.skip("libtpu, which reads these flags, is not installed")
    environment = {**os.environ, "JAX_PLATFORMS": platform, "XLA_FLAGS": "", "LIBTPU_INIT_ARGS": ""}
    apply_preset(environment)
    start = "import jaxlib.xla_client as client; client.make_cpu_client()"
    if platform == "tpu":
        # A compiler for a topology parses them, and needs no device.
        environment.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
        start = (
            "from jax.experimental import topologies\n"
            "topologies.get_topology_desc(platform='tpu', topology_name='v5p:2x2x1')"
        )
    done = subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_flag_would_be_found():
    environment = {**os.environ, "XLA_FLAGS": "--xla_gpu_no_such_flag=true"}
    start = "import jaxlib.xla_client as client; client.make_cpu_client()"
    done = subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "xla_gpu_no_such_flag" in done.stderr


def test_emulated_devices_keep_collectives_in_order():
    environment: dict[str, str] = {"XLA_FLAGS": "--xla_dump_to=/tmp/x"}
    keep_collectives_in_order(environment)
    added = ["--xla_cpu_enable_concurrency_optimized_scheduler=false", "--xla_cpu_experimental_ynn_fusion_type="]
    assert environment["XLA_FLAGS"].split(" ") == ["--xla_dump_to=/tmp/x", *added]
    environment["XLA_FLAGS"] = "--xla_cpu_enable_concurrency_optimized_scheduler=true"
    keep_collectives_in_order(environment)
    assert environment["XLA_FLAGS"].split(" ") == ["--xla_cpu_enable_concurrency_optimized_scheduler=true", added[1]]
