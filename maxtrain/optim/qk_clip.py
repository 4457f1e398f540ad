"""QK-clip (Kimi K2 2025, MuonClip): heads whose attention logits grow too large have queries and keys scaled down.

L layers  N query heads  K kv heads  G = N / K query heads of a kv head
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def clip_factors(max_logits: Mapping[str, jax.Array], threshold: float, num_kv_heads: int) -> dict[str, jax.Array]:
    """Factors on the weights of queries and keys, by path, that bring a head's greatest logit down to the threshold.

    A head's logits are multiplied by γ = min(1, threshold / its greatest logit), half of it (sqrt γ) on the queries
    and half on the keys. Where heads share keys, the keys take the share of the worst of them, and each head's queries
    the rest, so that every head is scaled by its own γ exactly; a head under the threshold is not changed.

    Args:
        max_logits: [L, N] of the step, by kind of layer.
        threshold: greatest logit that is left alone.
        num_kv_heads: K.

    Returns:
        [L, 1, N, 1] for queries and [L, 1, K, 1] for keys, float32, layers in their order.
    """
    factors = {}
    for kind, logits_LN in max_logits.items():
        # Not finite where the step is skipped anyway.
        gamma_LN = jnp.where(logits_LN > threshold, threshold / jnp.maximum(logits_LN, threshold), 1.0)
        gamma_LKG = gamma_LN.reshape(len(gamma_LN), num_kv_heads, -1)
        keys_LK = jnp.sqrt(gamma_LKG.min(-1))
        queries_LN = (gamma_LKG / keys_LK[..., None]).reshape(gamma_LN.shape)
        factors[f"layers/{kind}/attention/query"] = queries_LN[:, None, :, None]
        factors[f"layers/{kind}/attention/key"] = keys_LK[:, None, :, None]
    return factors
