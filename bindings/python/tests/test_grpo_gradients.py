# SPDX-License-Identifier: Apache-2.0
"""The gradients of GRPO's arms are one process's: each minibatch's summed loss, divided by its answers' tokens."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
import policy
import sorting
from decoder import Decoder
from example_ranks import joined
from learner import Learner, Record, Sample, Totals
from settings import Settings, parse_settings
from ways import ARMS

OPTIONS = ["--width", "32", "--blocks", "1", "--prompts", "5", "--minibatch", "5", "--answers", "2"]


def draw_samples(settings: Settings, seed: int) -> dict[int, Sample]:
    """Of each prompt as many answers as there are in a group; most ratios are clipped."""
    source = random.Random(seed)
    samples = {}
    for prompt in sorting.prompts_of(seed, 0, settings.prompts):
        for _ in range(settings.answers):
            answer = [source.randrange(10) for _ in range(source.randint(1, 12))]
            old, reference = (torch.tensor([source.uniform(-4, -1) for _ in answer]) for _ in range(2))
            samples[len(samples)] = {
                "tokens": torch.tensor([*prompt, sorting.SORT, *answer]),
                "old": old,
                "reference": reference,
                "advantage": torch.tensor([source.uniform(-2, 2)]),
            }
    return samples


def gradients_alone(settings: Settings, samples: dict[int, Sample]) -> list[torch.Tensor]:
    """Each answer by itself, without ranks."""
    torch.manual_seed(settings.seed)
    model = Decoder(sorting.VOCABULARY, settings.width, settings.blocks)
    learner: Any = SimpleNamespace(settings=settings, policy=model)
    for sample in samples.values():
        Learner.loss(learner, [sample], Totals()).backward()  # type: ignore[no-untyped-call]
    tokens = sum(len(sample["old"]) for sample in samples.values())
    return [parameter.grad / tokens for parameter in model.parameters()]


def check_arms(rank: int, size: int, job: str, seed: int) -> None:
    settings = parse_settings(OPTIONS, "")
    samples = draw_samples(settings, seed)
    wanted = gradients_alone(settings, samples)
    of_rank_1 = {number: one for number, one in samples.items() if number % 5 == 1}
    mine = [{number: one for number, one in samples.items() if number not in of_rank_1}, of_rank_1, {}][rank]
    with joined(rank, size, job) as (context, mesh):
        base = policy.made(settings, mesh)
        for arm in ARMS:
            print(arm, flush=True)  # shown where the next lines fail, or take too long
            learner = ARMS[arm](settings, context, mesh, base)
            found = gradients_of(learner, mine)
            for one, other in zip(found, wanted, strict=True):
                assert float((one - other).norm()) <= 1e-4 * float(other.norm())


def gradients_of(learner: Learner, samples: dict[int, Sample]) -> list[torch.Tensor]:
    """Of the one minibatch, as its step meets them, but for the clipping."""
    found: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        found.extend(one.grad.full_tensor().clone() for one in learner.policy.parameters())

    learner.clip = lambda: None  # type: ignore[method-assign]
    learner.optimizer.register_step_pre_hook(keep)
    sampler, data = learner.exchange(0, samples)
    learner.update(0, sampler, data, [], Record())
    learner.close()
    return found


def test_the_arms() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_ranks(3, check_arms, seed, seconds=300)
