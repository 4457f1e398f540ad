"""The real training step, compiled for machines that are not there: run with -m aot.

Each compiler is a package of its own; a test skips where it is absent.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.aot, pytest.mark.timeout(3600)]
needs_tpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is absent: pip install .[tpu-compile]")
needs_cuda = pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None, reason="jax_cuda12_plugin is absent: pip install .[cuda-compile]"
)

SMALL = """
run: {directory: unused}
data: {source: synthetic, sequence_length: 512}
batch: {global_batch_tokens: 4096, micro_batch: 1}
model:
  vocab_size: 512
  num_layers: 2
  d_model: 256
  num_heads: 4
  num_kv_heads: 2
  head_dim: 64
  d_ff: 512
  window: 128
  global_every: 2
  moe: {num_experts: 8, top_k: 2, d_expert: 128, first_dense: 1}
precision: {compute: bfloat16, activations: bfloat16}
remat: {policy: full}
mesh: {devices: 4, fsdp: 2, expert: 2}
train: {total_tokens: 32768, scan_unroll: 1}
schedule: {name: constant, lr: 1e-3}
"""
"""A dense layer with a window and one of experts that attends to all, over two axes."""
KERNELS_OF_TPU = {"gmm", "tgmm", "splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"}
KERNELS_OF_CUDA = {"grouped_product", "grouped_outer", "attention_forward", "attention_dq", "attention_dkv"}
RING = "mesh.expert=1", "mesh.context=2"
LOCAL = "mesh.expert=1", "mesh.tensor=2"


@pytest.fixture
def compile_step(root, tmp_path):
    """Run the tool; returns its report."""

    def run(*arguments, config=None):
        if config is None:
            config = tmp_path / "small.yaml"
            config.write_text(SMALL)
        environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
        command = [sys.executable, str(root / "tools/compile_step.py"), str(config), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=root, env=environment | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        report = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(report))
        return report

    return run


@needs_tpu
def test_step_for_v5p_has_the_kernels_of_tpu(compile_step):
    kernels = compile_step("--tpu", "v5p:2x2x1")["kernels"]
    assert set(kernels) == KERNELS_OF_TPU
    assert kernels["splash_mha_dq"] == kernels["splash_mha_dkv"] == 2  # kinds of layers


@needs_tpu
def test_ring_for_v5p_has_the_kernels_of_tpu(compile_step):
    kernels = compile_step("--tpu", "v5p:2x2x1", *RING)["kernels"]
    assert set(kernels) == KERNELS_OF_TPU
    assert kernels["splash_mha_dq"] == kernels["splash_mha_dkv"] == 3  # the ring's own chunks, and its turns


@needs_cuda
def test_step_for_h100_has_the_kernels_of_cuda(compile_step, root):
    kernels = compile_step("--cuda", "1x1x4", "--target", root / "tests/device/h100.txtpb")["kernels"]
    assert set(kernels) == KERNELS_OF_CUDA
    assert kernels["attention_dq"] == kernels["attention_dkv"] == 2  # kinds of layers


@needs_cuda
def test_ring_for_h100_has_the_kernels_of_cuda(compile_step, root):
    target = root / "tests/device/h100.txtpb"
    kernels = compile_step("--cuda", "1x1x4", "--target", target, *RING)["kernels"]
    assert set(kernels) == KERNELS_OF_CUDA
    assert kernels["attention_dq"] == kernels["attention_dkv"] == 3  # the ring's own chunks, and its turns


@needs_cuda
@pytest.mark.parametrize("mesh", [(), LOCAL], ids=["expert", "tensor"])
def test_products_of_mxfp8_for_b200_are_cudnns(compile_step, root, mesh):
    target = root / "tests/device/b200.txtpb"
    kernels = compile_step("--cuda", "1x1x4", "--target", target, "precision.compute=mxfp8", *mesh)["kernels"]
    assert set(kernels) == {"block_scaled_dot", "attention_forward", "attention_dq", "attention_dkv"}
    assert kernels["block_scaled_dot"] > 3 * (4 + 3)  # forward and two gradients of attention and a feed-forward


@needs_cuda
@pytest.mark.parametrize("compute", ["float8", "mxfp8"])
def test_eight_bits_compile_for_h100(compile_step, root, compute):
    """Experts that no axis divides take their portable form; XLA widens blocks, for which Hopper has no units."""
    target = root / "tests/device/h100.txtpb"
    options = f"precision.compute={compute}", "precision.emulate=true", *LOCAL
    kernels = compile_step("--cuda", "1x1x4", "--target", target, *options)["kernels"]
    assert set(kernels) == {"attention_forward", "attention_dq", "attention_dkv"}


def test_100b_compiles_for_512_emulated_devices(compile_step, root):
    report = compile_step(
        "--emulated", 512, "mesh.devices=512", "mesh.data=2", config=root / "configs/production/moe_100b.yaml"
    )
    assert report["kernels"] == {}
    assert report["host_peak_bytes"] < 8 << 30


@needs_tpu
def test_100b_compiles_for_a_v5p_pod(compile_step, root):
    report = compile_step("--tpu", "v5p:8x8x4", config=root / "configs/production/moe_100b.yaml")
    assert set(report["kernels"]) == KERNELS_OF_TPU
    memory = report["device_argument_bytes"] + report["device_temporary_bytes"]
    assert memory < 95 << 30  # of a v5p
