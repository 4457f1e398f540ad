"""What emulated devices need that real ones do not."""

from typing import TypeVar

import jax

Tree = TypeVar("Tree")


def settle(tree: Tree) -> Tree:
    """Wait for arrays that lie on several emulated CPU devices; elsewhere return at once.

    The devices of a CPU backend share one pool of threads. Programs with collectives that are in flight at the same
    time can take all of them while each waits for a partner that gets none.
    """
    if jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        jax.block_until_ready(tree)
    return tree
