# SPDX-License-Identifier: Apache-2.0
"""torchtitan's Trainer, changed as in MIGRATING.md, trains a small Llama for 30 steps like torchtitan's own: at equal
counts over plain FSDP2 on as many ranks, else in one process. It is made for GPUs, so its device is replaced by the
CPU, and FlexAttention, which has no backward on it, by torch's attention."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from logged import warnings_logged
from migrating import block, patched
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

FSDPModule = torch.distributed.fsdp.FSDPModule
pytest.importorskip("torchtitan", reason="torchtitan is not installed")
with mock.patch("torch._utils._get_available_device_type", lambda: "cpu"):
    trainer = importlib.import_module("torchtitan.trainer")
from torchtitan.components import loss, metrics  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.lora import LoRAConverter  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import utils  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.models.common import ComplexRoPE  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402

WORDS, WIDTH, HEADS, LENGTH, ROWS = 64, 32, 4, 16, 2
Counts = list[tuple[int, ...]]  # microbatches of each rank in each step
EVEN: Counts = [(2, 2)] * 30
UNEVEN: Counts = [(3, 1), (1, 3), (4, 0)] * 10
ALONE: Counts = [(4,)] * 30
# Relative to the losses, and to the largest parameter of a tensor. The ranks' gradients are summed in another order, in
# f32, whose epsilon is 1.2e-7.
LOSSES, PARAMETERS = 1e-6, 1e-5
LIMIT = 300.0  # seconds; a loaded machine imports slowly


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return WORDS


class Batches(BaseDataLoader):
    """Each step has the same microbatches, in whatever way they are divided over ranks. Some labels are ignored."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        counts: Counts

    def __init__(self, config: Config, *, dp_rank: int, **_: Any) -> None:
        self.counts, self.rank = config.counts, dp_rank

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for step, counts in enumerate(self.counts):
            begin = sum(counts[: self.rank])
            for index in range(begin, begin + counts[self.rank]):
                generator = torch.Generator().manual_seed(10 * step + index)
                ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
                labels = ids[:, 1:].clone()
                labels[:, LENGTH - 2 * index :] = loss.IGNORE_INDEX
                yield {"input": ids[:, :-1]}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class NoMemory:
    """Of a device: what is asked of torchtitan's DeviceMemoryMonitor."""

    device_name = "CPU"

    def get_peak_stats(self) -> Any:
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self) -> None:
        pass


def model(converters: Sequence[Any]) -> Any:
    spec = llama3.model_registry("debugmodel")
    rope = ComplexRoPE.Config(dim=WIDTH // HEADS, max_seq_len=LENGTH, theta=500000, scaling="llama")
    layers = llama3._build_llama3_layers(
        n_layers=2, dim=WIDTH, n_heads=HEADS, n_kv_heads=2, hidden_dim=48, rope=rope, attn_backend="flex"
    )
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    made = spec.model
    made.dim, made.vocab_size, made.layers = WIDTH, WORDS, layers
    made.tok_embeddings = replace(made.tok_embeddings, num_embeddings=WORDS, embedding_dim=WIDTH)
    made.norm = replace(made.norm, normalized_shape=WIDTH)
    made.lm_head = replace(made.lm_head, in_features=WIDTH, out_features=WORDS)
    for converter in converters:
        made = converter.build().convert(made)
    return replace(spec, model=made, state_dict_adapter=None)


@contextmanager
def changed_trainer(*diffs: str) -> Iterator[ModuleType]:
    """torchtitan.trainer with its source changed by the diff."""
    path = Path(str(trainer.__file__))
    code = path.read_text()
    for diff in diffs:
        code = patched(diff, code)
    module = ModuleType("torchtitan.trainer")
    module.__dict__["fsdp2"] = fsdp2
    with mock.patch.dict(sys.modules, {"torchtitan.trainer": module}):
        exec(compile(code, str(path), "exec"), module.__dict__)
        yield module


def whole(model: Any) -> dict[str, Any]:
    return {name: one.detach().full_tensor().clone() for name, one in model.named_parameters()}


@dataclass
class Trained:
    numbers: list[tuple[float, ...]]  # of each step: mean loss, largest loss of a rank, norm of the gradient
    began: dict[str, Any]  # the parameters
    ended: dict[str, Any]
    trainable: list[str]


@dataclass(frozen=True)
class Case:
    loss: Any = field(default_factory=loss.CrossEntropyLoss.Config)
    converters: tuple[Any, ...] = ()


ADAPTERS = LoRAConverter.Config(rank=4, target_modules=["wqkv", "wo", "w1"])
UNEVEN_CASES = {
    "chunked loss": Case(loss.ChunkedLossWrapper.Config(num_chunks=4)),
    "LoRA": Case(converters=(ADAPTERS,)),
}


def train(
    rank: int,
    module: ModuleType,
    case: Case,
    counts: Counts,
    folder: Path,
    begin_with: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """`begin_with`: parameters instead of torchtitan's own, which on other numbers of ranks are drawn otherwise."""
    config = module.Trainer.Config(
        model_spec=model(case.converters),
        loss=case.loss,
        tokenizer=NoTokenizer.Config(),
        dataloader=Batches.Config(counts=counts),
        optimizer=default_adamw(lr=1e-2, eps=1e-3),  # with a smaller eps, rounding would be large
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        training=TrainingConfig(
            local_batch_size=ROWS,
            global_batch_size=2 * 2 * ROWS,
            seq_len=LENGTH,
            steps=len(counts),
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", **options),
        metrics=metrics.MetricsProcessor.Config(log_freq=1),
        activation_checkpoint=None,
        dump_folder=str(folder),
    )
    config.debug.seed = 7
    numbers: list[tuple[float, ...]] = []
    with mock.patch.object(metrics, "build_device_memory_monitor", NoMemory):
        made = module.Trainer(config)
    made.metrics_processor.log = lambda step, *found, **_: numbers.append(found)
    (model_part,) = made.model_parts
    if begin_with is not None:
        with torch.no_grad():
            for name, one in model_part.named_parameters():
                one.to_local().copy_(begin_with[name])
    began = whole(model_part)
    if module is trainer:  # plain FSDP2 scales by 1.0 as it sums, which gloo cannot; sums alone are the same
        for part in model_part.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)
    step = made.train_step

    def train_step(batches: Any) -> None:
        made.gradient_accumulation_steps = counts[made.step - 1][rank]
        step(batches)

    made.train_step = train_step
    with mock.patch.object(utils, "set_pg_timeouts"), mock.patch("time.sleep"):  # it ends with two seconds of sleep
        made.train()
    made.close()
    assert len(numbers) == len(counts)
    trainable = [name for name, one in model_part.named_parameters() if one.requires_grad]
    return Trained(numbers, began, whole(model_part), trainable)


def assert_same(one: Trained, other: Trained, *, ranks_alike: bool) -> None:
    for mine, theirs in zip(one.numbers, other.numbers, strict=True):
        which = (0, 1, 2) if ranks_alike else (0, 2)  # else the largest loss is that of other microbatches
        assert [mine[i] for i in which] == pytest.approx([theirs[i] for i in which], rel=LOSSES)
    for name, expected in other.ended.items():
        error = (one.ended[name] - expected).abs().max() / expected.abs().max()
        print(f"{name}: {error:.1e}")
        assert error <= PARAMETERS, name


def train_over_odc(rank: int, case: Case, counts: Counts, folder: Path, diffs: int) -> Trained:
    """`diffs`: so many of the page's, from the first."""
    changes = [block("torchtitan", "diff", index) for index in range(diffs)]
    with changed_trainer(*changes) as module, warnings_logged() as warnings:
        trained = train(rank, module, case, counts, folder)
    assert not warnings  # of collectives in a minibatch, for one
    return trained


def train_on_two(rank: int, size: int, folder: Path) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    plain = train(rank, trainer, Case(), EVEN, folder)
    assert_same(train_over_odc(rank, Case(), EVEN, folder, diffs=1), plain, ranks_alike=True)
    for name, case in UNEVEN_CASES.items():
        print(name)  # shown where the next line fails
        trained = train_over_odc(rank, case, UNEVEN, folder, diffs=2)
        if rank == 0:
            torch.save(trained, folder / name)


def train_alone(rank: int, size: int, folder: Path) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    for name, case in UNEVEN_CASES.items():
        print(name)  # shown where the next lines fail
        trained: Trained = torch.load(folder / name, weights_only=False)
        alone = train(rank, trainer, case, ALONE, folder, trained.began)
        assert_same(trained, alone, ranks_alike=False)
        assert not case.converters or all("lora_" in one for one in trained.trainable)


def test_the_trainer(tmp_path: Path) -> None:
    run_torch_ranks(2, train_on_two, tmp_path, seconds=LIMIT)
    run_torch_ranks(1, train_alone, tmp_path, seconds=LIMIT)


def refuse(rank: int, size: int, folder: Path) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    with changed_trainer(block("torchtitan", "diff")) as module:
        with pytest.raises(libodc.UnsupportedError, match="HSDP"):
            train(rank, module, Case(), EVEN, folder, data_parallel_replicate_degree=2)


def test_replicas_are_refused(tmp_path: Path) -> None:
    run_torch_ranks(2, refuse, tmp_path, seconds=LIMIT)
