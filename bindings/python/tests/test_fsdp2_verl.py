# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP engine, changed as in MIGRATING.md, updates a small actor with dynamic batches as verl's own does over
plain FSDP2. verl is made for GPUs, Ray and older releases of transformers and TRL: its device is the CPU, by verl's
registry of platforms, and Ray, and what it patches in models for packed sequences, are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hugging_face import WORDS, save_models, tokenizer, transformers
from logged import warnings_logged
from migrating import block, patched
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

pytest.importorskip("tensordict", reason="tensordict, which verl needs, is not installed")
try:
    import ray  # noqa: F401
except ImportError:
    sys.modules.update({f"ray{name}": mock.MagicMock() for name in ("", ".util", ".actor", ".experimental")})
    sys.modules["ray.util.placement_group"] = sys.modules["ray.util.scheduling_strategies"] = mock.MagicMock()
    sys.modules["ray.experimental.state"] = sys.modules["ray.experimental.state.api"] = mock.MagicMock()
pytest.importorskip("verl", reason="verl is not installed")
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


class Cpu(PlatformBase):  # type: ignore[misc]
    device_name, vendor_name, device_module = "cpu", "cpu", torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "NO_DEVICES"

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def _nothing(self, *_: Any) -> None:
        pass

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = ray_noset_envvars = ray_resource_name = _nothing


platform_manager.set_platform(Cpu())
from verl.utils import tensordict_utils  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig  # noqa: E402
from verl.workers.config.actor import ActorConfig  # noqa: E402
from verl.workers.engine.fsdp import transformer_impl  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

STEPS, MOST_TOKENS = 30, 40
LIMIT = 300.0  # seconds; a loaded machine imports slowly


@contextmanager
def changed_engine(diff: str) -> Iterator[ModuleType]:
    """verl's module with its source changed by the diff."""
    path = Path(str(transformer_impl.__file__))
    module = ModuleType(transformer_impl.__name__)
    module.__dict__.update(fsdp2=fsdp2, __package__=transformer_impl.__package__, __file__=str(path))
    once = mock.patch.object(transformer_impl.EngineRegistry, "register", lambda **_: lambda kind: kind)
    with mock.patch.dict(sys.modules, {transformer_impl.__name__: module}), once:
        exec(compile(patched(diff, path.read_text()), str(path), "exec"), module.__dict__)
        yield module


def engine_of(module: ModuleType, folder: Path, lora_rank: int = 0, **options: Any) -> Any:
    model = SimpleNamespace(
        use_remove_padding=False,
        lora_rank=lora_rank,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
        target_parameters=None,
        exclude_modules=None,
        hf_config=transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager"),
        local_path=str(folder),
        trust_remote_code=False,
        model_type="language_model",
        use_liger=False,
        use_fused_kernels=False,
        fused_kernel_options=None,
        enable_gradient_checkpointing=False,
        enable_activation_offload=False,
        get_processor=tokenizer,
    )
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
    engine = module.FSDPEngineWithLMHead(
        model,
        FSDPEngineConfig(strategy="fsdp2", mixed_precision=exact, use_torch_compile=False, **options),
        FSDPOptimizerConfig(
            lr=1e-2, total_training_steps=STEPS, clip_grad=0.5, override_optimizer_config={"eps": 1e-3}
        ),
        None,
    )
    with mock.patch.multiple(module, FSDPCheckpointManager=mock.DEFAULT, apply_monkey_patch=mock.DEFAULT):
        torch.manual_seed(0)  # of adapters
        engine.initialize()
    return engine


def answers(rank: int, step: int) -> Any:
    """Three on each rank, of which one rank's are long, so with as many tokens a microbatch it has more of these."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    long = (rank + step) % 2 == 0
    lengths = (
        torch.randint(10, 24, (3,), generator=generator) if long else torch.randint(2, 5, (3,), generator=generator)
    )

    def draw(low: int, high: int) -> list[Any]:
        return [torch.randint(low, high, (int(length),), generator=generator) for length in lengths]

    prompts = [torch.randint(3, WORDS, (4,), generator=generator) for _ in lengths]
    responses = draw(3, WORDS)
    ids = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    fields = {
        "input_ids": ids,
        "position_ids": [torch.arange(len(one)) for one in ids],
        "loss_mask": [(torch.arange(len(one)) >= 4).long() for one in ids],
        "prompts": prompts,
        "responses": responses,
        "response_mask": [torch.ones(len(one), dtype=torch.long) for one in responses],
        "old_log_probs": [-4.0 - torch.rand(len(one), generator=generator) for one in responses],
        "advantages": [torch.randn((), generator=generator).expand(len(one)).clone() for one in responses],
    }
    nested = {name: torch.nested.as_nested_tensor(parts, layout=torch.jagged) for name, parts in fields.items()}
    about = {"use_remove_padding": False, "use_dynamic_bsz": True, "max_token_len_per_gpu": MOST_TOKENS}
    about |= {"temperature": 1.0, "global_batch_size": 6}
    return tensordict_utils.get_tensordict(nested, about)


def train(rank: int, size: int, engine: Any) -> tuple[list[float], list[float], dict[str, Any]]:
    """Losses, norms, and parameters with the log-probabilities before."""
    actor = ActorConfig(
        strategy="fsdp2",
        use_dynamic_bsz=True,
        ppo_max_token_len_per_gpu=MOST_TOKENS,
        rollout_n=1,
        use_torch_compile=False,
    )
    losses, norms = [], []
    with engine.eval_mode():
        before = engine.infer_batch(answers(rank, 0))["model_output"]["log_probs"].values()
    with engine.train_mode():
        for step in range(STEPS):
            outputs = engine.train_batch(answers(rank, step), partial(ppo_loss, actor))
            total = torch.tensor(sum(outputs["loss"]) / size)
            dist.all_reduce(total)
            losses.append(float(total))
            norms.append(outputs["metrics"]["grad_norm"])
    parameters = {name: one.detach().full_tensor() for name, one in engine.module.named_parameters()}
    return losses, norms, parameters | {"log-probabilities": before}


def load(engine: Any, rank: int) -> None:
    """A checkpoint is published: otherwise the next forward would raise."""

    def halve(**_: Any) -> None:
        with torch.no_grad():
            for parameter in engine.module.parameters():
                parameter.to_local().mul_(0.5)

    engine.checkpoint_manager.load_checkpoint.side_effect = halve
    engine.load_checkpoint("checkpoint")
    with engine.eval_mode():
        engine.infer_batch(answers(rank, 0))


def compare(rank: int, size: int, folder: Path, lora_rank: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    plain = train(rank, size, engine_of(transformer_impl, folder / "qwen2", lora_rank))
    with changed_engine(block("verl", "diff")) as module, warnings_logged() as warnings:
        engine = engine_of(module, folder / "qwen2", lora_rank)
        counts: list[list[int]] = []
        sync = engine.job.sync_gradients
        engine.job.sync_gradients = lambda **options: counts.append(sync(**options).microbatches)
        over_odc = train(rank, size, engine)
        load(engine, rank)
        engine.job.close()
    assert not warnings  # of collectives in a minibatch, for one
    assert all(a != b for a, b in counts) and len(counts) == STEPS
    largest = max(map(abs, plain[0]))  # losses of this kind pass through zero
    assert over_odc[0] == pytest.approx(plain[0], rel=1e-6, abs=1e-6 * largest)
    assert over_odc[1] == pytest.approx(plain[1], rel=1e-4)
    for name, expected in plain[2].items():
        error = (over_odc[2][name] - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
        assert error <= 1e-4, name


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_actor_update(tmp_path: Path, lora_rank: int) -> None:
    save_models(tmp_path)
    run_torch_ranks(2, compare, tmp_path, lora_rank, seconds=LIMIT)


def refuse(rank: int, size: int, folder: Path) -> None:
    with changed_engine(block("verl", "diff")) as module:
        with pytest.raises(libodc.UnsupportedError, match="HSDP"):
            engine_of(module, folder / "qwen2", fsdp_size=2)


def test_replicas_are_refused(tmp_path: Path) -> None:
    save_models(tmp_path)
    run_torch_ranks(4, refuse, tmp_path, seconds=LIMIT)
