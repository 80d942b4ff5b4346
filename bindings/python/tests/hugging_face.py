# SPDX-License-Identifier: Apache-2.0
"""Tiny language models, data and trainers of transformers, TRL and Accelerate. A test trains twice, by plain FSDP2 and
over ODC, and compares the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from logged import warnings_logged
from migrating import block, patched
from torch_ranks import dist, torch  # skips where there is no torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
distributed = pytest.importorskip("transformers.distributed")

Tensor = torch.Tensor
WORDS = 64  # divisible by the ranks: plain FSDP2 gathers a stale padded copy of weights tied after fully_shard
SIZE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
CONFIGS = {"qwen2": transformers.Qwen2Config, "llama": transformers.LlamaConfig}
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
}
# How a model is sharded: by Accelerate's plugin, in prepare(), or by transformers, in from_pretrained().
PLUGIN: dict[str, Any] = {"fsdp": True, "accelerator_config": {"use_configured_state": True}}


def save_models(folder: Path, tied: bool = True) -> None:
    """In `folder`/qwen2 and so on."""
    for kind, config in CONFIGS.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config(**SIZE, tie_word_embeddings=tied))
        model.save_pretrained(folder / kind)


def load(folder: Path, way: str = "plugin", *, scores: bool = False, **options: Any) -> Any:
    """`scores`: with a head for rewards, which is not in the folder."""
    kind = transformers.AutoModelForCausalLM
    if scores:
        kind = transformers.AutoModelForSequenceClassification
        options["num_labels"] = 1
        torch.manual_seed(0)
    if way == "loaded":
        size = dist.get_world_size()
        options["distributed_config"] = distributed.DistributedConfig(fsdp_size=size)
    return kind.from_pretrained(folder, attn_implementation="eager", **options)


def tokenizer() -> Any:
    """Words w3, w4 and so on are tokens 3, 4 and so on."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    words = models.WordLevel(special | {f"w{word}": word for word in range(3, WORDS)}, unk_token="<unk>")
    made = Tokenizer(words)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)


def samples(count: int, seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (count,), generator=generator).tolist()
    return [torch.randint(3, WORDS, (length,), generator=generator).tolist() for length in lengths]


def be_launched(rank: int, size: int) -> None:
    """Sets torchrun's variables; the process group exists already, so nobody listens at the address."""
    places = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    places |= {"MASTER_ADDR": "localhost", "MASTER_PORT": 1, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(value) for name, value in places.items()}


@contextmanager
def new_process(way: str) -> Iterator[None]:
    """Accelerate keeps state in classes and environment variables: clears it."""
    kept = dict(os.environ)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    try:
        if way == "plugin":
            exec(block("Accelerate", "python", 1))  # turns it on without a GPU
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def mixin(split: Any = None) -> Any:
    """The page's class; with `split`, as changed for uneven counts."""
    names: dict[str, Any] = {"split": split}
    code = block("Trainer and TRL", "python")
    exec(code if split is None else patched(block("Trainer and TRL", "diff", 1), code), names)
    return names["OverOdc"]


def full_parameters(model: Any) -> dict[str, Tensor]:
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: getattr(one, "full_tensor", lambda one=one: one)().clone() for name, one in whole.items()}


@contextmanager
def no_warnings() -> Iterator[None]:
    """The package logs no warning, for example of collectives in a minibatch."""
    with warnings_logged() as lines:
        yield
    assert not lines
