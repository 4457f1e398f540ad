"""Compile a config's training step for machines that are not there, and tell what it takes and which kernels it has.

    python tools/compile_step.py configs/production/moe_100b.yaml --emulated 512 mesh.devices=512 mesh.data=2
    python tools/compile_step.py configs/production/moe_100b.yaml --tpu v5p:8x8x4
    python tools/compile_step.py configs/research/moe_1b.yaml --cuda 1x1x8 --target tests/device/h100.txtpb

--tpu needs the extra `tpu-compile`, --cuda the extra `cuda-compile`; neither needs the hardware. Prints a line of JSON.
"""

import argparse
import json
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

KERNELS = (
    *("grouped_product", "grouped_outer", "attention_forward", "attention_dq", "attention_dkv"),
    *("tgmm", "gmm", "splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"),
)
"""Names of our kernels on CUDA, and of JAX's on TPU."""
LIBRARIES = {"__cudnn$blockScaledDot": "block_scaled_dot"}
"""Kernels of libraries that XLA calls, by the target of the call."""


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit code 0; 2 where a compiler is missing."
    )
    parser.add_argument("config", help="config file")
    parser.add_argument("overrides", nargs="*", help="key=value")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--emulated", type=int, metavar="N", help="CPU devices, at most 2,048")
    where.add_argument("--tpu", metavar="TOPOLOGY", help="such as v5p:8x8x4")
    where.add_argument("--cuda", metavar="TOPOLOGY", help="slices x hosts x GPUs, such as 1x64x8; with --target")
    parser.add_argument("--target", type=Path, help="text that describes the GPU")
    arguments = parser.parse_intermixed_args()
    if (arguments.cuda is None) != (arguments.target is None):
        parser.error("--cuda and --target go together")
    return arguments


def devices_of(arguments: argparse.Namespace) -> Sequence[Any]:
    """Devices of the machine to compile for."""
    import jax
    from jax.experimental import topologies

    if arguments.emulated:
        return jax.devices()
    if arguments.tpu:
        return topologies.get_topology_desc(platform="tpu", topology_name=arguments.tpu).devices
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=arguments.cuda,
        topology=arguments.cuda,
        target_config=arguments.target.read_text(),
    ).devices


def kernels_of(program: str) -> dict[str, int]:
    """How often each kernel is called in a compiled program's text."""
    found: Counter[str] = Counter()
    for line in program.splitlines():
        if 'custom_call_target="tpu_custom_call"' in line or 'custom_call_target="__gpu$xla.gpu.triton"' in line:
            names = [name for name in KERNELS if re.search(rf"\b{name}(_|\b)", line)]
            found[names[0] if names else "other"] += 1
        found.update(name for target, name in LIBRARIES.items() if f'custom_call_target="{target}"' in line)
    return dict(found)


def main() -> int:
    """Compile and report."""
    arguments = parse_arguments()
    wanted = ("libtpu", "tpu-compile") if arguments.tpu else ("jax_cuda12_plugin", "cuda-compile")
    if not arguments.emulated and find_spec(wanted[0]) is None:
        print(f"{wanted[0]} is not installed: pip install 'maxtrain[{wanted[1]}]'", file=sys.stderr)
        return 2
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    if arguments.emulated:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(arguments.emulated)
    from maxtrain.config import load_config
    from maxtrain.train.parts import lower_train_step

    config = load_config(arguments.config, arguments.overrides)
    devices = devices_of(arguments)
    begin = time.perf_counter(), time.process_time()
    lowered = lower_train_step(config, devices)
    middle = time.perf_counter(), time.process_time()
    compiled = lowered.compile()
    end = time.perf_counter(), time.process_time()
    memory = compiled.memory_analysis()
    report = {
        "device_kind": devices[0].device_kind,
        "num_devices": config.mesh.devices or len(devices),
        "trace_seconds": round(middle[0] - begin[0], 1),
        "trace_cpu_seconds": round(middle[1] - begin[1], 1),
        "compile_seconds": round(end[0] - middle[0], 1),
        "compile_cpu_seconds": round(end[1] - middle[1], 1),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_argument_bytes": memory.argument_size_in_bytes,
        "device_temporary_bytes": memory.temp_size_in_bytes,
        "kernels": kernels_of(compiled.as_text()),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
