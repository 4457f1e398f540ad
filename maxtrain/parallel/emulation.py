"""What emulated devices need that real ones do not."""

import os
from collections.abc import MutableMapping
from typing import TypeVar

import jax

Tree = TypeVar("Tree")


_IN_ORDER = {
    # The default order keeps several collectives in flight at once.
    "--xla_cpu_enable_concurrency_optimized_scheduler": "false",
    # With these kernels bfloat16 steps ended so, within 150; without them none did. Why is not known.
    "--xla_cpu_experimental_ynn_fusion_type": "",
}
"""Flags of XLA, and why each."""


def keep_collectives_in_order(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let a CPU device do a program's collectives one after another, as they are written; before the backend starts.

    Devices tell collectives apart by kind and shape alone: of two that were in flight, now and then one took another's
    data, or each waited for ever (jax 0.10). A value that the user has set stays.
    """
    flags = environment.get("XLA_FLAGS", "")
    added = [f"{name}={value}" for name, value in _IN_ORDER.items() if name not in flags]
    environment["XLA_FLAGS"] = " ".join([*flags.split(), *added])


def settle(tree: Tree) -> Tree:
    """Wait for arrays that lie on several emulated CPU devices; elsewhere return at once.

    The devices of a CPU backend share one pool of threads. Programs with collectives that are in flight at the same
    time can take all of them while each waits for a partner that gets none. Reading a replicated result waits for its
    first device alone: a process that then ends leaves the other devices, and with them other processes, waiting for
    ever.
    """
    if jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        jax.block_until_ready(tree)
    return tree
