# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over ODC: torchrun --nproc-per-node 2 minimal_fsdp2.py or odc run -n 2 python3 minimal_fsdp2.py; prints
11: loss 1.758, samples by rank [16, 16], waited 0.01 s"""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import libodc.torch.fsdp2
from libodc.torch import MinibatchSampler

dist.init_process_group("gloo")  # on GPUs: torch.cuda.set_device(LOCAL_RANK), "nccl", and the model there
draw = random.Random(0)  # in this language each token is the last one plus a step; few sequences are long
lengths = [min(512, int(16 * draw.paretovariate(1.0))) for _ in range(128)]
samples = [torch.arange(length) * draw.choice((1, 2, 3)) % 64 for length in lengths]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 64)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(4))
        self.head = nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden[0])


torch.manual_seed(0)  # equal weights on all ranks
model = Decoder()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
sampler = MinibatchSampler(lengths=lengths, minibatch_size=32, max_tokens=512)  # balances each minibatch over ranks

with libodc.torch.fsdp2.attach(model, optimizer) as job:
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for minibatch in sampler:  # this rank's microbatches: lists of samples, any number of them, none too
            tokens, loss_sum = 0, 0.0
            for sample in job.microbatches([samples[index] for microbatch in minibatch for index in microbatch]):
                logits = model(sample[None, :-1])
                loss = nn.functional.cross_entropy(logits, sample[1:], reduction="sum")
                loss.backward()
                tokens, loss_sum = tokens + len(sample) - 1, loss_sum + loss.item()
            report = job.sync_gradients(weight=tokens, sums={"loss": loss_sum})  # the one wait for all ranks
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                loss, counts = report.sums["loss"] / report.divisor, report.microbatches
                print(f"{report.minibatch}: loss {loss:.3f}, samples by rank {counts}, waited {report.waited_s:.2f} s")
dist.destroy_process_group()
