# SPDX-License-Identifier: Apache-2.0
"""Generation on sharded weights, where rank 0 wants 8 tokens and the others 48: the seconds until each rank has them,
over ODC, where each rank generates its own number (synced_gpus=False), and with the collectives of plain FSDP2, where
all run as many forwards as the longest (synced_gpus=True):

    odc run -n 2 build/python/bin/python bindings/python/bench/generate.py

A tiny Qwen2 with random weights; both ways must give the same tokens. Medians of 5 turns. Needs transformers
(`tests/venv.sh checks torch libraries`).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
import transformers
from gloo_ranks import process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from libodc.torch import fsdp2

SHORT, LONG = 8, 48
TURNS = 5
SIZE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}
SIZE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 1}


def sharded() -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**SIZE))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def generate(model: Any, length: int, synced: bool) -> tuple[float, torch.Tensor]:
    """The seconds that it took, median of several turns, and the tokens."""
    prompt = torch.arange(3, 11).unsqueeze(0)
    options = {"min_new_tokens": length, "max_new_tokens": length, "do_sample": False, "synced_gpus": synced}
    seconds = []
    for _ in range(1 + TURNS):
        dist.barrier()
        begin = time.perf_counter()
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:]), tokens


def main() -> None:
    with process_group() as (rank, size):
        length = SHORT if rank == 0 else LONG
        model = sharded()
        collective, expected = generate(model, length, synced=True)
        with fsdp2.attach(model):
            alone, tokens = generate(model, length, synced=False)
        assert torch.equal(tokens, expected), "the tokens over ODC differ from those of plain FSDP2"
        found: list[Any] = [None] * size
        dist.all_gather_object(found, (length, alone, collective))
        if rank == 0:
            for other, (count, over_odc, over_gloo) in enumerate(found):
                print(
                    f"rank {other}, {count} tokens: {over_odc:.3f} s over ODC with synced_gpus=False, "
                    f"{over_gloo:.3f} s by collectives with synced_gpus=True",
                    flush=True,
                )


if __name__ == "__main__":
    main()
