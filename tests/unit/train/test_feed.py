import numpy as np
import pytest

from maxtrain.config.schema import MeshConfig
from maxtrain.parallel.context import ring_order
from maxtrain.parallel.mesh import make_mesh
from maxtrain.train.feed import BatchFeeder


@pytest.mark.parametrize(
    ("sizes", "part"), [({"data": 2, "fsdp": 2}, (2, 2, 16)), ({"data": 2, "context": 4}, (2, 4, 4))]
)
def test_rows_lie_over_the_ranks_and_tokens_in_ring_order(sizes, part):
    feeder = BatchFeeder(
        make_mesh(MeshConfig(devices=int(np.prod(list(sizes.values()))), **sizes)), micro_batch=part[1]
    )
    tokens, domain = np.arange(16 * 16, dtype=np.int32).reshape(16, 16), np.arange(16, dtype=np.int32)
    placed = feeder.place({"tokens": tokens, "domain": domain}, 16)
    order = ring_order(16, sizes.get("context", 1))
    np.testing.assert_array_equal(np.asarray(placed["tokens"]).reshape(16, 16), tokens[:, order])
    np.testing.assert_array_equal(np.asarray(placed["domain"]).reshape(16), domain)
    assert {shard.data.shape for shard in placed["tokens"].addressable_shards} == {part}
