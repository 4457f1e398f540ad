"""Every rule across sections, broken alone; and many at once."""

from collections.abc import Callable

import pytest

from maxtrain.config import Config, ConfigError, axis_sizes, check_config, check_or_raise
from maxtrain.config.checks import Backend
from maxtrain.config.checks.numbers import divisors, divisors_near, multiples_near
from maxtrain.config.schema import MeshConfig

MakeConfig = Callable[..., Config]
MOE = "model.moe={num_experts: 8, top_k: 2, d_expert: 32, first_dense: 1}"
STAGES = "data.stages=[{name: a, tokens: 2560}, {name: b, tokens: 2560, sequence_length: 128}]"


def test_the_small_config_is_sound(make: MakeConfig) -> None:
    assert check_config(make()) == []
    assert check_config(make(MOE), 1) == []
    assert check_config(make(STAGES)) == []
    check_or_raise(make(), 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # model
        (["model.num_kv_heads=3"], "model.num_kv_heads = 3: must divide model.num_heads = 4; set 2 or 4"),
        (["model.num_heads=6"], "model.num_heads = 6: must divide model.d_model = 32 where model.head_dim is null"),
        (["model.head_dim=7"], "model.head_dim = 7: must be even, for rotary positions turn pairs; set 6 or 8"),
        (["model.head_dim=1"], "model.head_dim = 1: must be even, for rotary positions turn pairs; set 2"),
        (["model.attention=mla"], "model.attention = mla: is not available yet; set gqa"),
        (["model.num_mtp=1"], "model.num_mtp = 1: multi-token prediction is not available yet; set 0"),
        (["model.global_every=4"], "model.global_every = 4: needs a window"),
        (["model.window=8", "model.global_every=1"], "model.global_every = 1: makes every layer attend fully"),
        (["model.dropout=1"], "model.dropout = 1: must be under 1"),
        (
            ["model.rope.scaling={kind: linear, factor: 0.5}"],
            "model.rope.scaling.factor = 0.5: must be at least 1",
        ),
        (
            ["model.rope.scaling={kind: llama3, factor: 8, original_length: 64, low_freq_factor: 4}"],
            "model.rope.scaling.low_freq_factor = 4.0: must be under model.rope.scaling.high_freq_factor = 4.0",
        ),
        (
            ["model.rope.scaling={kind: yarn, factor: 8, original_length: 64, beta_slow: 64}"],
            "model.rope.scaling.beta_slow = 64.0: must be under model.rope.scaling.beta_fast = 32.0",
        ),
        (
            ["model.rope.scaling={kind: linear, factor: 2, original_length: 64}"],
            "model.rope.scaling.original_length = 64: has no effect with kind linear; remove it (the default is null)",
        ),
        (
            ["model.rope.scaling={kind: llama3, factor: 8, original_length: 64, beta_fast: 16}"],
            "model.rope.scaling.beta_fast = 16.0: has no effect with kind llama3; remove it (the default is 32)",
        ),
        (
            ["model.rope.scaling={kind: yarn, factor: 8}"],
            "model.rope.scaling.original_length = null: is required with kind yarn",
        ),
        (
            ["precision.emulate=true"],
            "precision.emulate = true: has no effect with precision.compute = float32; set false",
        ),
        # remat
        (
            ["remat.layers=[{first: 1, last: 9, policy: full}]"],
            "remat.layers.0.last = 9: must be under model.num_layers = 4, for layers count from 0; set 3 or less",
        ),
        (
            ["remat.layers=[{first: 1, last: 0, policy: full}]"],
            "remat.layers.0.first = 1: must be at most remat.layers.0.last = 0",
        ),
        (
            ["remat.layers=[{first: 0, last: 1, policy: full}, {first: 1, last: 1, policy: none}]"],
            "remat.layers.1.first = 1: layer 1 is in remat.layers.0 too; make the ranges disjoint",
        ),
        (
            ["model.parametrization={kind: completep, base_d_model: 16}"],
            "model.parametrization.base_num_layers = null: completep needs the layers at which",
        ),
        (
            ["model.parametrization={kind: mup, base_d_model: 16, base_num_layers: 2}"],
            "model.parametrization.base_num_layers = 2: has no effect with model.parametrization.kind = mup",
        ),
        # optimizer
        (
            ["optimizer.groups={router: {lr_factor: 0.5}}"],
            "optimizer.groups.router = {'lr_factor': 0.5}: has no effect: the model has no experts (model.moe is null)",
        ),
        (
            ["model.tie_embeddings=true", "optimizer.groups={output: {lr_factor: 0.5}}"],
            "optimizer.groups.output = {'lr_factor': 0.5}: has no effect: the output projection is the embedding",
        ),
        (["precision.parameters=bfloat16"], "precision.parameters = bfloat16: would lose every update under 1/256"),
        (
            ["optimizer.stochastic_rounding=true"],
            "optimizer.stochastic_rounding = true: has no effect: parameters and moments are stored in float32",
        ),
        (
            ["optimizer.qk_clip=100", "model.qk_norm=true"],
            "optimizer.qk_clip = 100.0: has no effect with model.qk_norm, which normalises away",
        ),
        # experts
        (
            [MOE, "model.moe.d_shared=16"],
            "model.moe.d_shared = 16: has no effect, for model.moe.num_shared is 0; set null, or give",
        ),
        (
            [MOE, "model.moe.bias_rate=0.01"],
            "model.moe.bias_rate = 0.01: has no effect with model.moe.balance = sequence; set 0.001, or balance to",
        ),
        ([MOE, "model.moe.top_k=9"], "model.moe.top_k = 9: must be at most 8, the experts; set 8 or less"),
        (
            [MOE, "model.moe.num_groups=3"],
            "model.moe.num_groups = 3: must divide model.moe.num_experts = 8; set 2 or 4",
        ),
        (
            [MOE, "model.moe.num_groups=2", "model.moe.top_groups=3"],
            "model.moe.top_groups = 3: must be at most model.moe.num_groups = 2",
        ),
        (
            [MOE, "model.moe.num_groups=4", "model.moe.top_k=3"],
            "model.moe.top_k = 3: must be at most 2, the experts in the 1 of 4 groups that a token may use",
        ),
        ([MOE, "model.moe.first_dense=5"], "model.moe.first_dense = 5: must be at most model.num_layers = 4"),
        (
            [MOE, "model.moe.capacity_factor=0.05"],
            "model.moe.capacity_factor = 0.05: leaves an expert less than one token of a sequence of "
            "64; set at least 0.0625",
        ),
        (
            [MOE, "model.moe.balance=global"],
            "model.moe.balance = global: counts loads over the whole batch, so accumulation must be 1; "
            "batch.global_batch_tokens = 512 has 2; set batch.micro_batch to 8",
        ),
        # batches
        (
            ["batch.global_batch_tokens=600", "train.total_tokens=6000"],
            "batch.global_batch_tokens = 600: must be a whole number of microbatches of 256 tokens "
            "(micro_batch 4 × sequence length 64 × 1 data-parallel ranks); set 512 or 768",
        ),
        (
            ["batch.global_batch_tokens=128"],
            "set 256 or 512, or batch.micro_batch to 2",
        ),
        (
            ["batch.accumulation=3"],
            "batch.global_batch_tokens = 512: must be micro_batch 4 × sequence length 64 × 1 data-parallel ranks × "
            "accumulation 3 = 768; set 768, or batch.accumulation to 2 or null (derived)",
        ),
        (
            ["train.total_tokens=5000"],
            "train.total_tokens = 5,000: must be a whole number of batches of 512 tokens; set 5,120 or 4,608",
        ),
        (["train.total_tokens=100"], "train.total_tokens = 100: must be a whole number of batches"),
        (
            ["batch.warmup=[{tokens: 300, global_batch_tokens: 256}]", "train.total_tokens=5420"],
            "batch.warmup.0.tokens = 300: must be a whole number of batches of 256 tokens; set 256 or 512",
        ),
        (
            ["batch.warmup=[{tokens: 768, global_batch_tokens: 256}]"],
            "train.total_tokens = 5,120: must be a whole number of batches of 512 tokens after 768 "
            "tokens of batch.warmup; "
            "set 4,864 or 5,376",
        ),
        (
            ["batch.warmup=[{tokens: 5120, global_batch_tokens: 256}]"],
            "train.total_tokens = 5,120: must be a whole number of batches of 512 tokens after 5,120 tokens",
        ),
        (
            ["batch.warmup=[{tokens: 1536, global_batch_tokens: 768}]", "train.total_tokens=6656"],
            "batch.warmup.0.global_batch_tokens = 768: must be at most batch.global_batch_tokens = 512",
        ),
        (
            [STAGES, "batch.warmup=[{tokens: 256, global_batch_tokens: 256}]"],
            "batch.warmup = 1 phases: is only for a run without data.stages",
        ),
        (
            [STAGES, "data.stages.0.tokens=2561", "train.total_tokens=5121"],
            "data.stages.0.tokens = 2,561: must be a whole",
        ),
        (
            [STAGES, "train.total_tokens=1Mi"],
            "train.total_tokens = 1,048,576: must be the sum of the stages' tokens, 5,120",
        ),
        (
            [STAGES, "data.stages.1.global_batch_tokens=640"],
            "data.stages.1.global_batch_tokens = 640: must be a whole number of microbatches of 512 tokens",
        ),
        (
            ["data.block_tokens=96"],
            "data.block_tokens = 96: every stage's sequence length must divide data.block_tokens = 96; 64 does not; "
            "set 64 or 128",
        ),
        (
            [
                STAGES,
                "data.stages.1.sequence_length=96",
                "data.stages.1.tokens=3072",
                "train.total_tokens=5632",
                "data.stages.1.global_batch_tokens=768",
            ],
            "data.block_tokens = null: every stage's sequence length must divide data.block_tokens (by "
            "default the longest)"
            " = 96; 64 does not; set 192 or 384",
        ),
        # data
        (
            ["data.dataset=null"],
            "data.dataset = null: is required; give a dataset directory or URL, or set data.source",
        ),
        (["data.dataset=' '"], "data.dataset = ' ': is an empty text"),
        (
            [STAGES, "data.dataset=null", "data.stages.1.dataset=d"],
            "data.stages.0.dataset = null: is required, for data.dataset is null",
        ),
        (
            [STAGES, "data.dataset=null", "data.stages.0.dataset=d", "data.stages.1.dataset=e", "evaluation.every=5"],
            "evaluation.dataset = null: is required, for data.dataset is null",
        ),
        (
            ["data.source=synthetic", "data.dataset=null", "evaluation.every=5"],
            "evaluation.every = 5: synthetic data has no held-out documents",
        ),
        (
            ["data.source=synthetic", "evaluation.dataset=other"],
            "evaluation.dataset = other: has no effect, for data.source is synthetic; set null",
        ),
        (
            [
                "evaluation={every: 5, dataset: ./datasets/test/}",
                "data.mixture={a: {weight: 1, filter: {split: heldout}}}",
            ],
            "data.mixture.a.filter.split = heldout: would train on the documents that evaluation.split = heldout",
        ),
        (
            [
                STAGES,
                "evaluation={every: 5, dataset: d}",
                "data.stages.1.dataset=d",
                "data.stages.1.mixture={a: {weight: 1, filter: {split: heldout}}}",
            ],
            "data.stages.1.mixture.a.filter.split = heldout: would train on",
        ),
        (
            ["evaluation.every=5", "data.mixture={a: {weight: 1, filter: {split: [train, heldout]}}}"],
            "data.mixture.a.filter.split = train, heldout: would train on the documents that "
            "evaluation.split = heldout",
        ),
        (
            ["data.mixture={a: {weight: 1}, b: {weight: 1e-6}}"],
            "data.mixture.b.weight = 1e-06: is 1e-06 of the mixture, under the least share of 1/65,536",
        ),
        (
            ["data.mixture={a: {weight: 1, filter: {quality_score: {min: 0.9, max: 0.1}}}}"],
            "data.mixture.a.filter.quality_score.min = 0.9: is over quality_score.max = 0.1, so that "
            "no document matches",
        ),
        ([STAGES, "data.stages.1.name=a"], "data.stages = a: names 2 stages; give every stage its own name"),
        (
            [STAGES, "data.stages.0.mixture={a: {weight: 1, filter: {num_tokens: {min: 9, max: 1}}}}"],
            "data.stages.0.mixture.a.filter.num_tokens.min = 9.0: is over num_tokens.max = 1",
        ),
        # schedule and run
        (
            ["schedule.name=constant", "schedule.min_lr=1e-4"],
            "schedule.min_lr = 0.0001: has no effect with schedule.name = constant, which does not decay; set 0",
        ),
        (["profile.steps=[1, 4]"], "profile.steps = [1, 4]: the first step compiles and cannot be profiled"),
        (["profile.steps=[9, 3]"], "profile.steps = [9, 3]: the last step comes before the first; set [3, 9]"),
        (["schedule.min_lr=1"], "schedule.min_lr = 1.0: must be at most schedule.lr = 0.001; set 0.0001"),
        (
            ["schedule.warmup_frac=0.1", "schedule.warmup_tokens=512"],
            "schedule.warmup_tokens = 512: schedule.warmup_frac = 0.1 is given too",
        ),
        (["schedule.warmup_tokens=700"], "schedule.warmup_tokens = 700: must end with a whole step; set 512 or 1,024"),
        (["schedule.warmup_tokens=10K"], "schedule.warmup_tokens = 10,000: is over the run's 5,120 tokens"),
        (
            ["schedule.name=wsd", "schedule.warmup_frac=0.6", "schedule.decay_frac=0.5"],
            "schedule.decay_frac = 0.5: with a warm-up of 0.6 it is over the whole run; set at most 0.4",
        ),
        (
            ["checkpoint={every: 100, keep_every: 250}"],
            "checkpoint.keep_every = 250: must be a multiple of checkpoint.every = 100, or those steps are not saved; "
            "set 200 or 300",
        ),
        (["run.directory=''"], "run.directory = '': is an empty text"),
        (
            ["batch={global_batch_tokens: 1280M, micro_batch: 20000000}", "train.total_tokens=1280M"],
            "batch.micro_batch = 20,000,000: × sequence length 64 × model.moe.top_k is 1,280,000,000, over "
            "1,073,741,824; lower it",
        ),
        (
            ["mesh.pipeline=4", "pipeline.rounds=2", "batch.micro_batch=1"],
            "model.num_layers = 4: the layers (in the stages) must be a multiple of mesh.pipeline 4 × pipeline.rounds "
            "2; set 8 or 16, or mesh.pipeline to 2, or pipeline.rounds to 1, or pipeline.uneven to true",
        ),
        # pipeline
        (["pipeline.rounds=2"], "pipeline.rounds = 2: has no effect with mesh.pipeline = 1; give mesh.pipeline"),
        (
            ["mesh.pipeline=3", "batch={global_batch_tokens: 768, micro_batch: 4}", "train.total_tokens=7680"],
            "model.num_layers = 4: the layers (in the stages) must be a multiple of mesh.pipeline 3 × pipeline.rounds "
            "1; set 3 or 6, or mesh.pipeline to 2 or 4, or pipeline.uneven to true",
        ),
        (
            [MOE, "mesh.pipeline=2", "pipeline.rounds=2"],
            "model.num_layers = 4: the layers (4 less 1 dense ones before the first stage) must be a multiple of "
            "mesh.pipeline 2 × pipeline.rounds 2; set 5 or 9",
        ),
        (
            ["mesh.pipeline=2", "pipeline={rounds: 3, uneven: true}"],
            "model.num_layers = 4: leaves some of mesh.pipeline 2 × pipeline.rounds 3 slots without any layer; lower",
        ),
        (
            ["mesh.pipeline=4", "batch.micro_batch=2", "model.window=8", "model.global_every=2"],
            "model.global_every = 2: gives the 4 × 1 slots of 1 layer(s) different windows; make mesh.pipeline",
        ),
        (
            ["mesh.pipeline=4"],
            "batch.global_batch_tokens = 512: is 2 microbatch(es) of 256 tokens, not a multiple of mesh.pipeline = 4; "
            "set 1,024 or 2,048, or batch.micro_batch lower",
        ),
        (
            ["mesh.pipeline=2", "pipeline.microbatches=3"],
            "pipeline.microbatches = 3: must be a multiple of mesh.pipeline = 2; set 2 or 4",
        ),
        # mesh
        (
            ["mesh={devices: 6, context: 6}"],
            "data.sequence_length = 64: must be a multiple of 2 × mesh.context 6; set 60 or 72",
        ),
        (
            [
                "mesh={devices: 12, context: 3, tensor: 4, sequence_parallel: true}",
                "model.num_kv_heads=4",
                "data.stages=[{name: a, tokens: 1920}, {name: b, tokens: 1920, sequence_length: 32}]",
                "train.total_tokens=3840",
                "data.sequence_length=96",
                "batch={global_batch_tokens: 192, micro_batch: 1}",
            ],
            "data.stages.1.sequence_length = 32: must be a multiple of 2 × mesh.context 3 and of mesh.context 3 × "
            "mesh.tensor 4 of mesh.sequence_parallel; set 36 or 24",
        ),
        (
            ["mesh.sequence_parallel=true"],
            "mesh.sequence_parallel = true: has no effect with mesh.tensor = 1; set mesh.tensor, or remove it",
        ),
        (["mesh.data=0"], "mesh.data = 0: an axis has a size of at least 1"),
        (["mesh.data=-1", "mesh.fsdp=-1"], "mesh.fsdp = -1: only one axis may be -1, and mesh.data is"),
        (
            ["mesh.devices=4"],
            "mesh.devices = 4: the axes (every axis 1) multiply to 1; set mesh.data or mesh.fsdp to -1",
        ),
        (
            ["mesh={devices: 6, data: -1, tensor: 4}", "model.num_kv_heads=4"],
            "mesh.data = -1: the other axes (tensor 4) are 4 devices together, which does not divide 6; make their "
            "product a divisor of 6, such as 3",
        ),
        (["mesh.tensor=4"], "mesh.tensor = 4: must divide model.num_kv_heads = 2; set mesh.tensor to 1 or 2"),
        (["mesh.tensor=2", "model.vocab_size=255"], "mesh.tensor = 2: must divide model.vocab_size = 255"),
        (["mesh.tensor=2", "model.d_ff=63"], "mesh.tensor = 2: must divide model.d_ff = 63"),
        ([MOE, "mesh.tensor=2", "model.moe.d_expert=31"], "mesh.tensor = 2: must divide model.moe.d_expert = 31"),
        (
            [MOE, "mesh.tensor=2", "model.moe.num_shared=1", "model.moe.d_shared=31"],
            "mesh.tensor = 2: must divide model.moe.d_shared × num_shared = 31",
        ),
        (["mesh.fsdp=2", "model.d_model=31", "model.head_dim=8"], "mesh.fsdp = 2: must divide model.d_model = 31"),
        (
            [MOE, "mesh.expert=3", "batch.micro_batch=1", "batch.global_batch_tokens=1536", "train.total_tokens=3072"],
            "mesh.expert = 3: must divide model.moe.num_experts = 8; set mesh.expert to 1 or 2 or 4 or 8",
        ),
        (
            [MOE, "mesh={fsdp: 2, tensor: 2, expert_fold: [fsdp, tensor]}", "model.moe.num_experts=6"],
            "mesh.expert_fold = [fsdp, tensor]: divides the experts over fsdp 2 × expert 1 × tensor 2 = 4 ranks, which "
            "must divide model.moe.num_experts = 6; fold fewer axes, or let the ranks be 1 or 2 or 3 or 6",
        ),
        (
            [MOE, "mesh={fsdp: 2, expert_fold: [fsdp, fsdp]}"],
            "mesh.expert_fold = [fsdp, fsdp]: names fsdp twice; name each axis once",
        ),
        (
            [
                "mesh.expert=4",
                "batch.micro_batch=2",
                "model.moe={num_experts: 24, top_k: 2, d_expert: 8, num_groups: 6, top_groups: 2}",
            ],
            "mesh.expert = 4: must divide model.moe.num_groups = 6 or be a multiple of it, or a token that uses 2 "
            "groups would travel to more ranks than they need; set model.moe.num_groups to 2 or 4 or 8 or 12 or 24",
        ),
        (["mesh.exchange=ring"], "mesh.exchange = ring: has no effect, for model.moe is null; set auto"),
        (["mesh.expert_fold=[fsdp]"], "mesh.expert_fold = [fsdp]: has no effect, for model.moe is null; remove it"),
        (
            [MOE, "mesh={expert: 2, exchange: ring, exchange_factor: 1.5}"],
            "mesh.exchange_factor = 1.5: has no effect, for mesh.exchange = ring has no buffers; set 1.25",
        ),
        (
            [MOE, "mesh={expert: 2, exchange: dense, exchange_overflow: drop}"],
            "mesh.exchange_overflow = drop: has no effect, for mesh.exchange = dense has no buffers; set replay",
        ),
        (
            [MOE, "mesh.exchange=ring"],
            "mesh.exchange = ring: has no effect, for the experts are on one rank (mesh.expert is 1); set auto",
        ),
        (
            [MOE, "mesh.exchange_factor=2"],
            "mesh.exchange_factor = 2.0: has no effect, for the experts are on one rank (mesh.expert is 1); set 1.25",
        ),
        (
            [MOE, "mesh={fsdp: 1, expert_fold: [fsdp]}"],
            "mesh.expert_fold = [fsdp]: has no effect, for the experts are on one rank (mesh.fsdp is 1 and mesh.expert "
            "is 1); remove it",
        ),
        (
            [MOE, "mesh={expert: 2, exchange_factor: 3}"],
            "mesh.exchange_factor = 3.0: must be at most the 2 ranks that the experts are divided over, where a buffer "
            "holds all rows; set 2 or less",
        ),
        (["mesh.zero=1"], "mesh.zero = 1: has no effect with mesh.fsdp = 1; set 3, or give mesh.fsdp"),
        (
            ["model.window=64"],
            "model.window = 64: has no effect, for no sequence is longer than 64; set less than 64, or null",
        ),
        (
            [STAGES, "model.window=128"],
            "model.window = 128: has no effect, for no sequence is longer than 128; set less than 128, or null",
        ),
        (
            ["model.window=8", "model.global_every=5"],
            "model.global_every = 5: has no effect, for there are model.num_layers = 4 layers; set 4 or less, or 0",
        ),
        (
            [MOE, "model.moe.capacity_factor=4"],
            "model.moe.capacity_factor = 4.0: has no effect: from model.moe.num_experts / top_k = 4 on, an expert "
            "takes every token of a row; set less than 4, or null for dropless",
        ),
        (
            [MOE, "model.moe.balance=none", "model.moe.balance_weight=0.1"],
            "model.moe.balance_weight = 0.1: has no effect with model.moe.balance = none; set 0.01, or another balance",
        ),
        (
            ["optimizer.muon_iterations=6"],
            "optimizer.muon_iterations = 6: has no effect with optimizer.name = adamw; set 5, or optimizer.name to",
        ),
        (
            ["optimizer.muon_momentum=0.9"],
            "optimizer.muon_momentum = 0.9: has no effect with optimizer.name = adamw; set 0.95, or optimizer.name to",
        ),
        (
            ["schedule.decay_frac=0.2"],
            "schedule.decay_frac = 0.2: has no effect with schedule.name = cosine; set 0.1, or schedule.name to wsd",
        ),
        (
            ["schedule.decay_shape=sqrt"],
            "schedule.decay_shape = sqrt: has no effect with schedule.name = cosine; set linear, or schedule.name",
        ),
        (
            ["schedule={name: wsd, lr: 1, min_lr: 0.1, decay_frac: 0}"],
            "schedule.min_lr = 0.1: has no effect with schedule.decay_frac = 0, by which the rate never decays; set 0",
        ),
        (
            ["schedule.lr=100"],
            "optimizer.weight_decay = 0.1: times the learning rate 100 is over 1: an update would turn every "
            "parameter's sign; set 0.01 or less, or a lower schedule.lr",
        ),
        (
            ["optimizer.groups={embedding: {weight_decay: 900}}", "schedule.lr=0.01"],
            "optimizer.groups.embedding.weight_decay = 900.0: times the learning rate 0.01 is over 1",
        ),
        (
            [
                "optimizer.groups={embedding: {lr_factor: 100, weight_decay: 0}}",
                "schedule.lr=11",
                "optimizer.weight_decay=0",
            ],
            "optimizer.groups.embedding.lr_factor = 100.0: times schedule.lr = 11 is a learning rate of 1100, over",
        ),
        (
            ["train.total_tokens=5T", "batch={global_batch_tokens: 64, micro_batch: 1}"],
            "train.total_tokens = 5,000,000,000,000: is 78,125,000,000 steps, over 2,147,483,647; lower it, or raise",
        ),
        (
            ["mesh.expert=2"],
            "mesh.expert = 2: the model has no experts (model.moe is null); use mesh.data or mesh.fsdp",
        ),
    ],
)
def test_a_broken_rule_is_told_alone(make: MakeConfig, overrides: list[str], message: str) -> None:
    violations = check_config(make(*overrides))
    assert len(violations) == 1, [str(violation) for violation in violations]
    assert message in str(violations[0])
    assert "\n" not in str(violations[0])


@pytest.mark.parametrize(
    "overrides",
    [
        [MOE, "model.moe.balance=global", "batch.micro_batch=8"],
        [MOE, "model.moe.first_dense=4"],
        [MOE, "model.moe.num_groups=4", "model.moe.top_groups=2", "model.moe.top_k=4"],
        [MOE, "model.d_ff=63", "model.moe.first_dense=0", "mesh.tensor=2"],
        [MOE, "model.moe.d_expert=31", "mesh={tensor: 2, expert_fold: [tensor]}"],
        [MOE, "mesh={fsdp: 2, expert_fold: [fsdp], exchange_factor: 1, exchange_overflow: drop}"],
        ["model.head_dim=8", "model.d_model=33"],
        ["model.window=8", "model.global_every=2"],
        [STAGES, "model.window=64"],
        [MOE, "mesh={expert: -1, exchange: ring}"],
        [MOE, "mesh={expert: 2, exchange_factor: 2}"],
        [MOE, "model.moe.balance=none", "model.moe.balance_weight=0"],
        ["optimizer={name: muon, muon_momentum: 0.9, muon_iterations: 6}"],
        ["schedule={name: wsd, lr: 1, min_lr: 0.1, decay_frac: 0.2, decay_shape: sqrt}"],
        ["model.rope.scaling={kind: linear, factor: 2}"],
        ["evaluation={every: 5, max_tokens: 100}"],
        [
            STAGES,
            "evaluation={every: 5}",
            "data.stages.0.dataset=d",
            "data.stages.1.dataset=d",
            "data.mixture={a: {weight: 1, filter: {split: heldout}}}",
        ],
        ["data.source=synthetic", "data.dataset=null"],
        [STAGES, "data.dataset=null", "data.stages.0.dataset=d", "data.stages.1.dataset=e"],
        ["evaluation={every: 5, dataset: other}", "data.mixture={a: {weight: 1, filter: {split: heldout}}}"],
        ["batch.warmup=[{tokens: 512, global_batch_tokens: 256}]", "schedule.warmup_tokens=256"],
        ["batch.accumulation=2"],
        ["mesh={devices: 2, data: 2}"],
        ["mesh.data=-1"],
        ["checkpoint={every: 100, keep_every: 300}"],
        ["schedule={name: cosine, lr: 1, warmup_frac: 1}"],
    ],
)
def test_what_is_allowed_passes(make: MakeConfig, overrides: list[str]) -> None:
    assert check_config(make(*overrides)) == []


def test_a_batch_that_no_accumulation_reaches_names_the_nearest_values(make: MakeConfig) -> None:
    config = make(
        "data.sequence_length=4096",
        "batch={global_batch_tokens: 4000000, micro_batch: 1}",
        "mesh={data: 8, fsdp: 64}",
        "model.d_model=64",
        "train.total_tokens=40000000",
    )
    (violation,) = check_config(config)
    assert str(violation) == (
        "batch.global_batch_tokens = 4,000,000: must be a whole number of microbatches of "
        "2,097,152 tokens (micro_batch 1 "
        "× sequence length 4,096 × 512 data-parallel ranks); set 4,194,304 or 2,097,152"
    )
    reachable = make(
        "data.sequence_length=4096",
        "batch={global_batch_tokens: 4194304, micro_batch: 1}",
        "mesh={data: 8, fsdp: 64}",
        "model.d_model=64",
        "train.total_tokens=41943040",
    )
    assert check_config(reachable) == []


def test_all_violations_are_told_at_once(make: MakeConfig) -> None:
    config = make(
        MOE,
        "model.num_kv_heads=3",
        "model.moe.top_k=9",
        "model.attention=mla",
        "batch.global_batch_tokens=600",
        "train.total_tokens=5000",
        "data.dataset=null",
        "schedule.min_lr=1",
        "mesh={pipeline: 2, tensor: 5}",
    )
    paths = {violation.path for violation in check_config(config)}
    assert paths == {
        "mesh.tensor",
        "model.num_layers",
        "model.num_kv_heads",
        "model.attention",
        "model.moe.top_k",
        "batch.global_batch_tokens",
        "train.total_tokens",
        "data.dataset",
        "schedule.min_lr",
    }
    origins = {"model": "run.yaml:4", "train.total_tokens": "command line"}
    with pytest.raises(ConfigError, match=r"run.yaml: \d+ violations\n  mesh.tensor = 5") as caught:
        check_or_raise(config, name="run.yaml", origins=origins)
    text = str(caught.value)
    assert "set gqa, with fewer model.num_kv_heads [run.yaml:4]" in text
    assert "set 4,800 or 5,400 [command line]" in text


def test_the_number_of_devices_resolves_the_free_axis(make: MakeConfig) -> None:
    config = make("mesh={fsdp: -1, tensor: 2}")
    assert check_config(config) == []
    assert check_config(config, 4) == []
    (violation,) = check_config(config, 5)
    assert "does not divide 5" in violation.limit
    (violation,) = check_config(config, 16)
    assert violation.path == "batch.global_batch_tokens"
    assert "8 data-parallel ranks" in violation.limit
    (violation,) = check_config(make(), 8)
    assert (violation.path, violation.value) == ("mesh", "8 devices")
    (violation,) = check_config(make("mesh={devices: 2, data: 2}"), 8)
    assert str(violation) == "mesh.devices = 2: the run has 8 devices; set 8, or null"


def test_axis_sizes() -> None:
    ones = {"data": 1, "fsdp": 1, "pipeline": 1, "expert": 1, "context": 1, "tensor": 1}
    assert axis_sizes(MeshConfig()) == ones
    assert axis_sizes(MeshConfig(fsdp=-1)) is None
    assert axis_sizes(MeshConfig(fsdp=-1, tensor=2), 8) == {**ones, "fsdp": 4, "tensor": 2}
    assert axis_sizes(MeshConfig(fsdp=-1, devices=8)) == {**ones, "fsdp": 8}
    assert axis_sizes(MeshConfig(fsdp=-1, tensor=3), 8) is None
    assert axis_sizes(MeshConfig(fsdp=-1, data=-1), 8) is None
    assert axis_sizes(MeshConfig(data=0)) is None


def test_the_nearest_values() -> None:
    assert multiples_near(10, 4) == [8, 12]
    assert multiples_near(11, 4) == [12, 8]
    assert multiples_near(1, 4) == [4, 8]
    assert multiples_near(11, 4, offset=2) == [10, 14]
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors_near(5, 12) == [4, 6]
    assert divisors_near(100, 12) == [12, 6]


def test_host_offload_is_refused_where_device_memory_is_the_hosts(make: MakeConfig) -> None:
    config = make("remat.layers=[{first: 1, last: 2, policy: offload_dots}]")
    assert check_config(config, 1) == check_config(config, 1, Backend("gpu", "NVIDIA H100", (9, 0))) == []
    (violation,) = check_config(config, 1, Backend("cpu", "cpu"))
    assert str(violation) == (
        "remat.layers.0.policy = offload_dots: the CPU's device memory is the host's memory, so that nothing would "
        "leave it; set save_dots, or full to keep less"
    )


@pytest.mark.parametrize(
    ("backend", "known"),
    [
        (Backend("cpu", "cpu"), False),
        (Backend("gpu", "NVIDIA A100-SXM4-80GB", (8, 0)), False),
        (Backend("gpu", "NVIDIA L4", (8, 9)), True),
        (Backend("gpu", "NVIDIA H100 80GB HBM3", (9, 0)), True),
        (Backend("tpu", "TPU v5p"), False),
        (Backend("tpu", "TPU7x"), True),
    ],
)
def test_float8_is_refused_where_devices_lack_it_unless_emulated(
    make: MakeConfig, backend: Backend, known: bool
) -> None:
    violations = check_config(make("precision.compute=float8"), 1, backend)
    assert check_config(make("precision.compute=float8", "precision.emulate=true"), 1, backend) == []
    assert bool(violations) != known
    for violation in violations:
        assert f"precision.compute = float8: {backend.device_kind} has no float8 units" in str(violation)
        assert violation.cure.startswith("set bfloat16, or precision.emulate to true")


@pytest.mark.parametrize(
    ("backend", "cure"),
    [
        (Backend("cpu", "cpu"), "set bfloat16"),
        (Backend("gpu", "NVIDIA A100-SXM4-80GB", (8, 0)), "set bfloat16"),
        (Backend("gpu", "NVIDIA H200", (9, 0)), "set float8 or bfloat16"),
        (Backend("gpu", "AMD Instinct MI355X"), "set bfloat16"),
        (Backend("tpu", "TPU7x"), "set float8 or bfloat16"),
        (Backend("gpu", "NVIDIA B200", (10, 0)), None),
        (Backend("gpu", "NVIDIA GeForce RTX 5090", (12, 0)), None),
    ],
)
def test_mxfp8_is_refused_where_devices_lack_it_unless_emulated(
    make: MakeConfig, backend: Backend, cure: str | None
) -> None:
    violations = check_config(make("precision.compute=mxfp8"), 1, backend)
    assert check_config(make("precision.compute=mxfp8", "precision.emulate=true"), 1, backend) == []
    assert [str(violation) for violation in violations] == (
        []
        if cure is None
        else [
            f"precision.compute = mxfp8: {backend.device_kind} has no mxfp8 units (NVIDIA from Blackwell on); "
            f"{cure}, or precision.emulate to true to round operands only, which is slow"
        ]
    )
