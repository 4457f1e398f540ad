"""The model's shape and its numerics."""

from typing import Annotated, Literal

from pydantic import Field

from maxtrain.config.schema.types import (
    MAX_IDS,
    AsTuple,
    Epsilon,
    Factor,
    Fraction,
    Frequency,
    NonNegativeInt,
    NonNegativeSize,
    PositiveCount,
    PositiveReal,
    Section,
    Size,
    Weight,
)

Activation = Literal["swiglu", "geglu", "relu2"]
DType = Literal["float32", "bfloat16"]
RematPolicy = Literal["none", "full", "save_attention", "save_dots", "offload_dots"]


class RopeScaling(Section):
    """Stretching rotary positions beyond the length that a model was trained on."""

    kind: Literal["linear", "llama3", "yarn"]
    """`linear` (Chen 2023), `llama3` (frequency bands, Llama 3.1) or `yarn` (Peng 2023)."""
    factor: Frequency
    """New length divided by the original length."""
    original_length: PositiveCount | None = None
    """llama3 and yarn: sequence length of the original training, in tokens; required there, null for linear."""
    low_freq_factor: Frequency = 1.0
    """llama3: wavelengths over original_length / low_freq_factor are divided by the factor."""
    high_freq_factor: Frequency = 4.0
    """llama3: wavelengths under original_length / high_freq_factor are kept."""
    beta_fast: Frequency = 32.0
    """yarn: rotations over original_length above which a dimension is kept."""
    beta_slow: Frequency = 1.0
    """yarn: rotations over original_length below which a dimension is interpolated."""


class RopeConfig(Section):
    """Rotary position embedding (Su 2021)."""

    theta: Annotated[PositiveReal, Field(ge=2, le=1e12)] = 10000.0
    """Base of the rotary frequencies."""
    scaling: RopeScaling | None = None
    """How positions beyond the original length are stretched; null for none."""


class MoeConfig(Section):
    """Mixture-of-experts feed-forward layers."""

    num_experts: Size
    """Routed experts in each layer."""
    top_k: Size
    """Experts that each token is sent to."""
    d_expert: Size
    """Hidden width of one routed expert."""
    num_shared: NonNegativeSize = 0
    """Shared experts, which see every token; their widths add up to one feed-forward."""
    d_shared: Size | None = None
    """Hidden width of one shared expert; null for d_expert. Needs num_shared over 0."""
    first_dense: NonNegativeSize = 0
    """The first layers that keep a dense feed-forward (of width model.d_ff)."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """How router logits become scores."""
    normalize_top_k: bool = True
    """Divide the chosen scores by their sum."""
    routed_scale: Factor = 1.0
    """Factor on the routed experts' output (DeepSeek-V3: 2.5)."""
    num_groups: Size = 1
    """Groups of experts for group-limited routing; 1 for none."""
    top_groups: Size = 1
    """Groups that a token may choose experts from."""
    balance: Literal["none", "sequence", "global", "bias"] = "sequence"
    """`sequence`: auxiliary loss per sequence; `global`: over the whole batch; `bias`: loss-free, by expert bias."""
    balance_weight: Weight = 0.01
    """Weight of the auxiliary loss (`bias`: of the complementary per-sequence loss; `none`: of no effect)."""
    bias_rate: Fraction = 0.001
    """Step of the expert bias an update (Wang 2024); only with `bias`."""
    z_weight: Weight = 0.0
    """Weight of the router z-loss (Zoph 2022)."""
    capacity_factor: PositiveReal | None = None
    """Null: dropless. Else, in training, an expert takes at most factor × tokens × top_k / num_experts of a row."""


class ParametrizationConfig(Section):
    """Initial deviations, rates and factors that keep a base model's hyperparameters right at other sizes."""

    kind: Literal["mup", "completep"]
    """`mup`: maximal update, over widths (Yang 2022); `completep`: over depths too (Dey 2025)."""
    base_d_model: Size
    """Width at which init_std, learning rate and epsilon were tuned."""
    base_num_layers: Size | None = None
    """Layers at which they were tuned; required with completep, null with mup."""
    base_head_dim: Size | None = None
    """Head width of the base model, where attention scales are 1 / sqrt(head_dim); null for the model's own."""


class ModelConfig(Section):
    """A pre-norm decoder."""

    vocab_size: Annotated[PositiveCount, Field(le=MAX_IDS)]
    """Rows of the embedding; at least the tokenizer's size, and divisible by mesh.tensor."""
    num_layers: Size
    """Decoder layers."""
    d_model: Size
    """Width of the residual stream."""
    num_heads: Size
    """Query heads."""
    num_kv_heads: Size | None = None
    """Key and value heads (grouped-query attention); null for num_heads."""
    head_dim: Size | None = None
    """Width of a head; null for d_model / num_heads."""
    d_ff: Size
    """Hidden width of a dense feed-forward; of no effect where every layer has experts."""
    activation: Activation = "swiglu"
    """`swiglu` and `geglu` are gated (three matrices); `relu2` has two."""
    attention: Literal["gqa", "mla"] = "gqa"
    """Kind of attention; `mla` (multi-head latent attention) is not available yet."""
    window: PositiveCount | None = None
    """Sliding window: a token sees itself and window - 1 before it; null for full attention."""
    global_every: NonNegativeInt = 0
    """With a window, every n-th layer attends fully; 0 for none."""
    qk_norm: bool = False
    """RMSNorm on each query and key head before the rotation."""
    attention_gate: bool = False
    """A sigmoid gate on each head's output, computed from the layer's input."""
    rope: RopeConfig = RopeConfig()
    """Rotary positions."""
    norm_eps: Epsilon = 1e-6
    """Epsilon of every RMSNorm."""
    tie_embeddings: bool = False
    """Share the input embedding with the output projection."""
    dropout: Fraction = 0.0
    """Dropout on the output of every attention and feed-forward."""
    init_std: Annotated[PositiveReal, Field(ge=1e-8, le=100)] = 0.02
    """Standard deviation of the truncated normal that weights start from."""
    depth_scaled_init: bool = True
    """Divide the initial deviation of output projections by sqrt(2 × num_layers), with completep base_num_layers."""
    parametrization: ParametrizationConfig | None = None
    """Multipliers for transfer over sizes; null for the standard parametrization."""
    moe: MoeConfig | None = None
    """Mixture-of-experts layers; null for a dense model."""
    num_mtp: NonNegativeInt = 0
    """Extra tokens predicted ahead; over 0 (multi-token prediction) is not available yet."""
    z_weight: Weight = 0.0
    """Weight of the z-loss on the output logits (PaLM: 1e-4)."""

    @property
    def kv_heads(self) -> int:
        """Key and value heads, the default resolved."""
        return self.num_kv_heads or self.num_heads

    @property
    def dim_per_head(self) -> int:
        """Width of a head, the default resolved."""
        return self.head_dim or self.d_model // self.num_heads

    def window_of(self, layer: int) -> int | None:
        """Attention window of one layer, or None where it attends fully."""
        if self.window is None or (self.global_every and (layer + 1) % self.global_every == 0):
            return None
        return self.window

    def is_moe(self, layer: int) -> bool:
        """Whether a layer's feed-forward is a mixture of experts."""
        return self.moe is not None and layer >= self.moe.first_dense


class PrecisionConfig(Section):
    """Number formats. Tables, norms, router and loss statistics are always float32; see also optimizer.mu_dtype."""

    parameters: DType = "float32"
    """How the layers' matrices are stored, and a microbatch's gradients of them; see optimizer.stochastic_rounding."""
    compute: Literal["float32", "bfloat16", "float8", "mxfp8"] = "float32"
    """Operands of matrix products, summed in float32. `float8`: products with weights of attention, feed-forwards and
    experts (e4m3, gradients e5m2), all others bfloat16; `mxfp8`: the same products, e4m3 in blocks of 32."""
    emulate: bool = False
    """Run float8 or mxfp8 on devices without such units, by rounding operands: slow, for comparison."""
    activations: DType = "float32"
    """The residual stream and what is kept for the backward pass."""

    @property
    def is_eight_bit(self) -> bool:
        """Whether products with weights are in eight bits."""
        return self.compute in ("float8", "mxfp8")


class RematRange(Section):
    """Some layers with a policy of their own."""

    first: NonNegativeInt
    """First layer, counted from 0."""
    last: NonNegativeInt
    """Last layer, itself included."""
    policy: RematPolicy
    """As remat.policy."""


class RematConfig(Section):
    """What the backward pass recomputes instead of keeping."""

    policy: RematPolicy = "none"
    """`none` keeps all; `full` layer inputs; `save_attention` also attention outputs; `save_dots` also products;
    `offload_dots` the same, products in host memory."""
    layers: Annotated[tuple[RematRange, ...], AsTuple] = ()
    """Ranges of layers with another policy; they may not overlap."""

    def policy_of(self, layer: int) -> RematPolicy:
        """Policy of one layer."""
        return next((part.policy for part in self.layers if part.first <= layer <= part.last), self.policy)
