# SPDX-License-Identifier: Apache-2.0
"""MIGRATING.md's subclass of verl's FSDP engine, loaded as verl loads an `external_lib`, updates a small actor with
dynamic batches as verl's own engine does over plain FSDP2. verl is made for GPUs, Ray and older releases of
transformers and TRL: its device is the CPU, by verl's registry of platforms, while engines are looked up as for CUDA;
Ray, and what verl patches in models for packed sequences, are left out."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hugging_face import WORDS, save_models
from logged import warnings_logged
from migrating import block
from torch_ranks import dist, run_torch_ranks, torch

import libodc

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
import hydra  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.utils import tensordict_utils  # noqa: E402

with mock.patch("torch._utils._get_available_device_type", lambda: "cpu"):  # verl imports torchtitan, which keeps it
    from verl.workers.engine.base import EngineRegistry
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.config.actor import ActorConfig  # noqa: E402
from verl.workers.engine.fsdp import transformer_impl  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

STEPS, MOST_TOKENS = 30, 40
ALIKE, FEW = range(STEPS), range(STEPS, STEPS + 3)  # steps with as many samples on both ranks, and with one on one
ACTOR = ActorConfig(
    strategy="fsdp2",
    use_dynamic_bsz=True,
    ppo_max_token_len_per_gpu=MOST_TOKENS,
    rollout_n=1,
    use_torch_compile=False,
)
LIMIT = 300.0  # seconds; a loaded machine imports slowly


def engine_of(folder: Path, external_lib: str | None, lora_rank: int = 0, **options: Any) -> Any:
    """As verl's worker makes one. The first with an `external_lib` imports it, and all later ones are of its kind."""
    model = HFModelConfig(
        path=str(folder),
        load_tokenizer=False,
        external_lib=external_lib,
        override_config={"attn_implementation": "eager"},
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        lora_rank=lora_rank,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
    )
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=model,
        engine_config=FSDPEngineConfig(strategy="fsdp2", mixed_precision=exact, use_torch_compile=False, **options),
        optimizer_config=FSDPOptimizerConfig(
            lr=1e-2, total_training_steps=STEPS, clip_grad=0.5, override_optimizer_config={"eps": 1e-3}
        ),
        checkpoint_config=None,
    )
    with mock.patch.multiple(transformer_impl, FSDPCheckpointManager=mock.DEFAULT, apply_monkey_patch=mock.DEFAULT):
        torch.manual_seed(0)  # of adapters
        engine.initialize()
    return engine


def answers(rank: int, step: int) -> dict[str, list[Any]]:
    """Three on each rank, of which one rank's are long, so with as many tokens a microbatch it has more of these. After
    STEPS, five long ones on a rank and one on the other."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    long = (rank + step) % 2 == 0
    count = 3 if step < STEPS else 5 if long else 1
    lengths = torch.randint(*((10, 24) if long else (2, 5)), (count,), generator=generator)

    def draw(low: int, high: int) -> list[Any]:
        return [torch.randint(low, high, (int(length),), generator=generator) for length in lengths]

    prompts = [torch.randint(3, WORDS, (4,), generator=generator) for _ in lengths]
    responses = draw(3, WORDS)
    ids = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    return {
        "input_ids": ids,
        "position_ids": [torch.arange(len(one)) for one in ids],
        "loss_mask": [(torch.arange(len(one)) >= 4).long() for one in ids],
        "prompts": prompts,
        "responses": responses,
        "response_mask": [torch.ones(len(one), dtype=torch.long) for one in responses],
        "old_log_probs": [-4.0 - torch.rand(len(one), generator=generator) for one in responses],
        "advantages": [torch.randn((), generator=generator).expand(len(one)).clone() for one in responses],
    }


def batch(step: int) -> Any:
    """This rank's; one process has those of both."""
    ranks = [dist.get_rank()] if dist.get_world_size() == 2 else [0, 1]
    drawn = [answers(rank, step) for rank in ranks]
    nested = {
        name: torch.nested.as_nested_tensor([one for fields in drawn for one in fields[name]], layout=torch.jagged)
        for name in drawn[0]
    }
    about = {"use_remove_padding": False, "use_dynamic_bsz": True, "max_token_len_per_gpu": MOST_TOKENS}
    about |= {"temperature": 1.0, "global_batch_size": 6}
    return tensordict_utils.get_tensordict(nested, about)


@dataclass
class Trained:
    losses: list[float]
    norms: list[float]
    parameters: dict[str, Any]


def train(engine: Any, steps: range) -> Trained:
    losses, norms = [], []
    with engine.train_mode():
        for step in steps:
            outputs = engine.train_batch(batch(step), partial(ppo_loss, ACTOR))
            total = torch.tensor(sum(outputs["loss"]) / dist.get_world_size())
            dist.all_reduce(total)
            losses.append(float(total))
            norms.append(outputs["metrics"]["grad_norm"])
    parameters = {name: one.detach().full_tensor().clone() for name, one in engine.module.named_parameters()}
    return Trained(losses, norms, parameters)


def log_probabilities(engine: Any) -> Any:
    with engine.eval_mode():
        return engine.infer_batch(batch(0))["model_output"]["log_probs"].values()


def assert_near(one: Trained, other: Trained, apart: float) -> None:
    largest = max(map(abs, other.losses))  # losses of this kind pass through zero
    assert one.losses == pytest.approx(other.losses, rel=apart, abs=apart * largest)
    assert one.norms == pytest.approx(other.norms, rel=1e-4)
    for name, expected in other.parameters.items():
        error = (one.parameters[name] - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
        # Adam magnifies the rounding of small gradients: 1e-4, more or less by processor.
        assert error <= 5e-4, name


def load(engine: Any) -> None:
    """A checkpoint is published: otherwise the next forward would raise."""

    def halve(**_: Any) -> None:
        with torch.no_grad():
            for parameter in engine.module.parameters():
                parameter.to_local().mul_(0.5)

    engine.checkpoint_manager.load_checkpoint.side_effect = halve
    engine.load_checkpoint("checkpoint")
    log_probabilities(engine)


def refuse_a_mean_of_all_ranks(engine: Any) -> None:
    mean = {"loss_mode": "bypass_mode", "rollout_correction": {"rollout_is_batch_normalize": True}}
    loss = partial(ppo_loss, config=SimpleNamespace(policy_loss=SimpleNamespace(**mean)))
    with engine.train_mode(), pytest.raises(AssertionError, match="waits for all ranks in each microbatch"):
        engine.train_batch(batch(0), loss)


def be_launched(rank: int, size: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    sys.path.insert(0, str(folder.parent))  # where odc_engine is


def train_alone(rank: int, size: int, folder: Path, lora_rank: int, results: Path) -> None:
    be_launched(rank, size, folder)
    engine = engine_of(folder, None, lora_rank)
    torch.save([train(engine, steps) for steps in (ALIKE, FEW)], results)


def compare(rank: int, size: int, folder: Path, lora_rank: int, results: Path) -> None:
    be_launched(rank, size, folder)
    engine = engine_of(folder, None, lora_rank)
    before = log_probabilities(engine)
    plain = train(engine, ALIKE)
    with pytest.raises(ValueError, match="using the same micro-batch count across DP ranks"):
        train(engine, FEW)
    with pytest.raises(AssertionError, match="expecting td with length divisible by chunks, but got 3 and 2"):
        tensordict_utils.chunk_tensordict(batch(0), 2)

    with warnings_logged() as warnings:
        engine = engine_of(folder, "odc_engine", lora_rank)
        counts: list[list[int]] = []
        sync = engine.job.sync_gradients
        engine.job.sync_gradients = lambda **options: counts.append(sync(**options).microbatches)
        torch.testing.assert_close(log_probabilities(engine), before, rtol=0, atol=1e-5)
        over_odc = [train(engine, steps) for steps in (ALIKE, FEW)]
        load(engine)
        refuse_a_mean_of_all_ranks(engine)
        engine.job.close()
    assert not warnings  # of collectives in a minibatch, for one
    assert all(a != b for a, b in counts) and len(counts) == len(ALIKE) + len(FEW)
    assert_near(over_odc[0], plain, 1e-6)
    for trained, alone in zip(over_odc, torch.load(results, weights_only=False), strict=True):
        assert_near(trained, alone, 2e-5)  # whose microbatches are others, and so is their rounding


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    (folder / "odc_engine.py").write_text(block("verl", "python"))
    return folder / "qwen2"


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_actor_update(tmp_path: Path, model: Path, lora_rank: int) -> None:
    """As verl over plain FSDP2, which raises all ranks to the largest count, and refuses where one has fewer samples
    than that; there and elsewhere as one process."""
    run_torch_ranks(1, train_alone, model, lora_rank, tmp_path / "alone", seconds=LIMIT)
    run_torch_ranks(2, compare, model, lora_rank, tmp_path / "alone", seconds=LIMIT)


def by_the_worker(engine: Any) -> list[dict[str, Any]]:
    """Metrics of the mini-batches that verl's worker trains on, two epochs of two steps."""
    with mock.patch.dict(sys.modules):
        for name in ("uvicorn", "fastapi"):  # of servers, which no update needs
            if importlib.util.find_spec(name) is None:
                sys.modules[name] = mock.MagicMock()
        from verl.workers import engine_workers
    worker = object.__new__(engine_workers.TrainingWorker)  # without Ray
    worker.engine, worker.loss_fn, worker.device_name = engine, partial(ppo_loss, ACTOR), "cpu"
    worker.model_config, worker.flops_counter, worker.profiler = {}, None, mock.MagicMock()
    worker.engine_config = SimpleNamespace(
        forward_only=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=MOST_TOKENS,
        micro_batch_size_per_gpu=None,
        use_fused_kernels=False,
    )
    worker.train_batch = partial(inspect.unwrap(engine_workers.TrainingWorker.train_batch), worker)
    no_memory = SimpleNamespace(max_memory_allocated=lambda: 0, max_memory_reserved=lambda: 0)
    metrics = []
    with mock.patch.object(engine_workers, "get_torch_device", lambda: no_memory):
        for step in range(2):
            data = batch(step)
            tensordict_utils.assign_non_tensor(data, mini_batch_size=6, epochs=2)
            output = inspect.unwrap(engine_workers.TrainingWorker.train_mini_batch)(worker, data)
            metrics.append(tensordict_utils.get(output, "metrics"))
    return metrics


def compare_by_the_worker(rank: int, size: int, folder: Path) -> None:
    be_launched(rank, size, folder)
    plain, over_odc = (by_the_worker(engine_of(folder, library)) for library in (None, "odc_engine"))
    for of_plain, of_odc in zip(plain, over_odc, strict=True):
        assert of_plain.keys() == of_odc.keys() and "actor/pg_loss" in of_odc
        for name in ("loss", "grad_norm", "actor/pg_loss"):
            assert len(of_odc[name]) == 2
            assert of_odc[name] == pytest.approx(of_plain[name], rel=1e-4, abs=1e-6), name


def test_the_update_by_verls_worker(model: Path) -> None:
    """Which wants as many values of a metric from each rank; these have different numbers of microbatches."""
    run_torch_ranks(2, compare_by_the_worker, model, seconds=LIMIT)


def refuse(rank: int, size: int, folder: Path) -> None:
    be_launched(rank, size, folder)
    with pytest.raises(libodc.UnsupportedError, match="HSDP"):
        engine_of(folder, "odc_engine", fsdp_size=2)


def test_replicas_are_refused(model: Path) -> None:
    run_torch_ranks(4, refuse, model, seconds=LIMIT)


def test_the_settings_are_verls() -> None:
    """A name that verl's configuration lacks is refused."""
    words = shlex.split(block("verl", "sh").replace("\\\n", ""))
    assert words[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    settings = [*words[3:], "critic.strategy=fsdp2", "critic.model.external_lib=odc_engine"]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=settings)
    for setting in settings:
        name, _, value = setting.partition("=")
        assert str(OmegaConf.select(config, name)) == value
