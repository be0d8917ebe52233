# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that saves a sharded EmbeddingBagCollection: write_dcp.py RANK WORLD PORT DIRECTORY."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (column_wise, construct_module_sharding_plan, data_parallel, row_wise,
                                                table_wise)
from torchrec.distributed.types import ShardingPlan

TABLES = {"rows": (11, 8), "columns": (6, 8), "table": (5, 4), "parallel": (7, 4)}


def full(name):
    """All rows of a table."""
    rows, dim = TABLES[name]
    return torch.arange(rows * dim, dtype=torch.float32).reshape(rows, dim) / 8 + len(name)


class Model(torch.nn.Module):
    """A sharded collection and a layer that is no table."""

    def __init__(self, collection):
        super().__init__()
        self.ebc, self.over = collection, torch.nn.Linear(3, 2)


def main(rank, world, port, directory):
    os.environ.update(RANK=rank, WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, LOCAL_RANK=rank,
                      LOCAL_WORLD_SIZE=world)
    dist.init_process_group("gloo")
    collection = EmbeddingBagCollection(device=torch.device("meta"), tables=[
        EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name])
        for name, (rows, dim) in TABLES.items()])
    how = {"rows": row_wise(), "columns": column_wise(ranks=[0, 1]), "table": table_wise(rank=1), "parallel": data_parallel()}
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(collection, how, sharder=sharder, local_size=int(world), world_size=int(world),
                                          device_type="cpu")
    model = DistributedModelParallel(Model(collection), device=torch.device("cpu"), plan=ShardingPlan(plan={"ebc": plan}),
                                     sharders=[sharder])
    state = model.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            table = name.split(".")[-2]
            if table not in TABLES:
                continue
            for shard in value.local_shards() if hasattr(value, "local_shards") else []:
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(full(table)[row:row + rows, column:column + columns])
            if not hasattr(value, "local_shards"):
                value.copy_(full(table))
    dcp.save(state, checkpoint_id=directory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
