"""Generation: prompts of any lengths are read in blocks, then all rows advance together, a token a turn.

B rows  T tokens of a block  M tokens to generate
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from maxtrain.core.errors import UserError
from maxtrain.inference.cache import cache_length, make_cache
from maxtrain.inference.sample import Sampling, sample
from maxtrain.model import Cache, Model, Params

_PREFILL_BLOCK = 256
_TURNS_AT_ONCE = 32


class Completion(NamedTuple):
    """What was generated for one prompt."""

    tokens: list[int]
    """Without the end token."""
    log_probs: list[float]
    """Natural logarithm of each token's probability under the model, at temperature 1 and unfiltered."""
    stop_reason: Literal["end", "length"]
    """`end`: the end token was drawn; `length`: max_tokens were generated."""


class _Progress(NamedTuple):
    """The decode loop's state."""

    token_B: jax.Array
    """The last token, not yet in the cache."""
    position_B: jax.Array
    """Its position."""
    done_B: jax.Array
    turn: jax.Array
    tokens_BM: jax.Array
    log_probs_BM: jax.Array
    cache: Cache


class Engine:
    """Generates text from a model's parameters.

    Args:
        model: the model.
        params: its parameters.
        expert_bias: its expert bias.
        end_id: token that ends a row; None for none.
        num_tokens: tokens that the tokenizer knows; the padding of the vocabulary behind them is never drawn. None
            for the whole vocabulary.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        expert_bias: jax.Array,
        *,
        end_id: int | None,
        num_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._params = params
        self._expert_bias = expert_bias
        self._end_id = -1 if end_id is None else end_id
        self._num_tokens = model.config.vocab_size if num_tokens is None else num_tokens
        self._prefill = jax.jit(self._prefill_block, donate_argnums=(4,))
        self._advance = jax.jit(self._advance_rows, static_argnames=("sampling",), donate_argnames=("state",))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: Sampling,
        *,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Continue each prompt.

        Args:
            prompts: token ids, at least one a prompt.
            max_tokens: tokens to generate at most.
            sampling: how a token is drawn.
            seeds: one for each prompt, 0 to 2**32 - 1.
            on_tokens: called with the number of turns done since the last call.

        Raises:
            UserError: a prompt is empty, a token is outside the vocabulary, or a number is out of range.
        """
        self._check(prompts, max_tokens, seeds)
        if max_tokens == 0:
            return [Completion([], [], "length") for _ in prompts]
        state = self._start(prompts, max_tokens)
        seeds_B = jnp.asarray(seeds, jnp.uint32)
        last = 0
        while last < max_tokens and not bool(state.done_B.all()):
            stop = min(last + _TURNS_AT_ONCE, max_tokens)
            state = self._advance(self._params, self._expert_bias, seeds_B, jnp.int32(stop), state, sampling=sampling)
            if on_tokens is not None:
                on_tokens(stop - last)
            last = stop
        return self._collect(state)

    def _check(self, prompts: Sequence[Sequence[int]], max_tokens: int, seeds: Sequence[int]) -> None:
        if max_tokens < 0:
            raise UserError(f"max_tokens: {max_tokens} is below 0")
        if len(seeds) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts need as many seeds, not {len(seeds)}")
        for seed in seeds:
            if not 0 <= seed < 2**32:
                raise UserError(f"seed: {seed} is not between 0 and {2**32 - 1}")
        for number, prompt in enumerate(prompts):
            if not prompt:
                raise UserError(f"prompt {number} is empty: give it at least one token")
            if not 0 <= min(prompt) <= max(prompt) < self._num_tokens:
                raise UserError(f"prompt {number} holds a token outside the vocabulary of {self._num_tokens}")

    def _start(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> _Progress:
        """Read all of each prompt but its last token, which the loop's first turn takes."""
        lengths = np.array([len(prompt) for prompt in prompts])
        batch, longest = len(prompts), int(lengths.max())
        block = min(_PREFILL_BLOCK, 1 << max(longest - 2, 0).bit_length())
        padded = -(-max(longest - 1, 1) // block) * block
        tokens = np.zeros((batch, padded), np.int32)
        positions = np.full((batch, padded), -1, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt) - 1] = prompt[:-1]
            positions[row, : len(prompt) - 1] = np.arange(len(prompt) - 1)
        cache = make_cache(self._model, batch, cache_length(longest + max_tokens))
        for start in range(0, longest - 1, block):
            part = slice(start, start + block)
            cache = self._prefill(self._params, self._expert_bias, tokens[:, part], positions[:, part], cache)
        return _Progress(
            token_B=jnp.asarray([prompt[-1] for prompt in prompts], jnp.int32),
            position_B=jnp.asarray(lengths - 1, jnp.int32),
            done_B=jnp.zeros(batch, bool),
            turn=jnp.int32(0),
            tokens_BM=jnp.full((batch, max_tokens), -1, jnp.int32),
            log_probs_BM=jnp.zeros((batch, max_tokens), jnp.float32),
            cache=cache,
        )

    def _prefill_block(
        self, params: Params, expert_bias: jax.Array, tokens_BT: jax.Array, positions_BT: jax.Array, cache: Cache
    ) -> Cache:
        # The logits are not used, so the compiled program does not form them.
        return self._model.decode(params, tokens_BT, positions_BT, cache, expert_bias=expert_bias)[1]

    def _advance_rows(
        self,
        params: Params,
        expert_bias: jax.Array,
        seeds_B: jax.Array,
        stop: jax.Array,
        state: _Progress,
        *,
        sampling: Sampling,
    ) -> _Progress:
        """Turns until `stop`, or until every row is done."""
        step = partial(self._turn, params, expert_bias, seeds_B, sampling)
        return jax.lax.while_loop(lambda state: (state.turn < stop) & ~state.done_B.all(), step, state)

    def _turn(
        self, params: Params, expert_bias: jax.Array, seeds_B: jax.Array, sampling: Sampling, state: _Progress
    ) -> _Progress:
        """One token for each row; a row that is done computes without effect on the others."""
        logits_BTV, cache = self._model.decode(
            params, state.token_B[:, None], state.position_B[:, None], state.cache, expert_bias=expert_bias
        )
        logits_BV = jnp.where(jnp.arange(logits_BTV.shape[-1]) < self._num_tokens, logits_BTV[:, 0], -jnp.inf)
        position_B = state.position_B + 1
        token_B = sample(logits_BV, seeds_B, position_B, sampling)
        log_prob_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), token_B[:, None], axis=-1)[:, 0]
        written_B = jnp.where(state.done_B, -1, token_B)
        return _Progress(
            token_B=token_B,
            position_B=position_B,
            done_B=state.done_B | (token_B == self._end_id),
            turn=state.turn + 1,
            tokens_BM=state.tokens_BM.at[:, state.turn].set(written_B),
            log_probs_BM=state.log_probs_BM.at[:, state.turn].set(log_prob_B),
            cache=cache,
        )

    def _collect(self, state: _Progress) -> list[Completion]:
        completions = []
        for tokens, log_probs in zip(np.asarray(state.tokens_BM), np.asarray(state.log_probs_BM), strict=True):
            kept = [int(token) for token in tokens[tokens >= 0]]
            ended = self._end_id in kept
            num = kept.index(self._end_id) if ended else len(kept)
            completions.append(
                Completion(kept[:num], [float(value) for value in log_probs[:num]], "end" if ended else "length")
            )
        return completions
