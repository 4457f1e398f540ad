"""What emulated devices need that real ones do not."""

import os
from collections.abc import MutableMapping
from typing import TypeVar

import jax

Tree = TypeVar("Tree")


_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def keep_collectives_in_order(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the compiler order a program's collectives as they are written; before the backend starts.

    Its default order keeps several in flight at once, which CPU devices tell apart by kind and shape alone: now and
    then one took another's data (jax 0.10). A value that the user has set stays.
    """
    flags = environment.get("XLA_FLAGS", "")
    if _IN_ORDER.partition("=")[0] not in flags:
        environment["XLA_FLAGS"] = f"{flags} {_IN_ORDER}".strip()


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
