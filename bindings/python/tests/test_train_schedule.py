# SPDX-License-Identifier: Apache-2.0
"""Every arm of the training example trains like one process without ranks and packing."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
from arms import COLLECTIVE, FSDP, ODC_MICRO, Arm
from collective import Collectives
from decoder import Decoder, loss_sum, pack
from emulation import Device
from example_ranks import joined
from experiment import ArmRecord, ExperimentError, check_losses
from samples import Sample
from trainer import EmulatedTrainer, Recipe, Step, Trainer
from workload import CostModel, Microbatches, Workload

Gradients = list[list[torch.Tensor]]

RANKS = 3
RECIPE = Recipe(vocabulary=17, start=16, width=32, blocks=2, rate=1e-2, seed=5, reduced=torch.float32)
# By minibatch and rank. Equally many microbatches, as collectives need; and any number.
EVEN: list[list[Microbatches]] = [[[[0, 1], [2]], [[3], [4]], [[5], [6, 7]]], [[[7]], [[6, 5, 4]], [[3, 2]]]]
UNEVEN: list[list[Microbatches]] = [[[], [[0], [1, 2], [3]], [[4, 5, 6, 7]]], [[[7, 6], [5]], [], [[4], [3], [2]]]]


def make_workload(seed: int) -> Workload:
    source = random.Random(seed)
    samples = []
    for _ in range(8):
        length = source.randint(1, 12)
        learnt = torch.tensor([source.random() < 0.7 for _ in range(length - 1)] + [True])
        samples.append(Sample(length, torch.tensor([source.randrange(16) for _ in range(length)]), learnt))
    return Workload(samples, CostModel("7b", 65536), ())


def train_alone(workload: Workload, minibatches: list[list[Microbatches]]) -> tuple[Decoder, list[float], Gradients]:
    """One process that takes each sample by itself: the model, and each minibatch's loss and gradients."""
    torch.manual_seed(RECIPE.seed)
    model = Decoder(RECIPE.vocabulary, RECIPE.width, RECIPE.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.rate)
    losses, gradients = [], []
    for minibatch in minibatches:
        samples = [workload.samples[i] for rank in minibatch for microbatch in rank for i in microbatch]
        tokens = sum(int(sample.learnt.sum()) for sample in samples)
        total = sum(loss_sum(model, pack([sample], RECIPE.start)) for sample in samples) / tokens
        total.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return model, losses, gradients


def check_close(ours: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float) -> None:
    """Each tensor as a whole: Adam divides an element by itself, and so shows a tiny one's rounding."""
    for one, other in zip(ours, wanted, strict=True):
        assert float((one - other).norm()) <= tolerance * float(other.norm())


def check_trained(trainer: Trainer, rank: int, workload: Workload, minibatches: list[list[Microbatches]]) -> None:
    model, wanted_losses, wanted_gradients = train_alone(workload, minibatches)
    gradients: Gradients = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients.append([p.grad.full_tensor().clone() for group in optimizer.param_groups for p in group["params"]])

    hook = trainer.optimizer.register_step_pre_hook(keep)
    losses = [trainer.train(minibatch[rank]).loss for minibatch in minibatches]
    hook.remove()
    assert losses == pytest.approx(wanted_losses, rel=1e-5)
    for ours, wanted in zip(gradients, wanted_gradients, strict=True):
        check_close(ours, wanted, 1e-3)
    check_close([p.full_tensor() for p in trainer.model.parameters()], list(model.parameters()), 1e-3)
    batch = pack(workload.samples[:3], RECIPE.start)
    loss, learnt = trainer.evaluate([batch])
    assert loss == pytest.approx(float(loss_sum(model, batch).detach()), rel=1e-4)
    assert learnt == batch.learnt
    trainer.train(minibatches[0][rank])  # evaluating has broken nothing
    assert trainer.evaluate([batch])[0] != loss


def train_arm(rank: int, size: int, job: str, arm: Arm, minibatches: list[list[Microbatches]], seed: int) -> None:
    with joined(rank, size, job) as (_, mesh):
        workload = make_workload(seed)
        trainer = Trainer(arm, RECIPE, workload, mesh)
        check_trained(trainer, rank, workload, minibatches)
        trainer.close()


@dataclass
class Recorder(Device):
    """Records which spans were not prefetched."""

    firsts: list[bool] = field(default_factory=list)

    def begin(self, *, first: bool) -> None:
        self.firsts.append(first)
        super().begin(first=first)


def train_emulated(rank: int, size: int, job: str, seed: int) -> None:
    with joined(rank, size, job) as (_, mesh):
        workload = make_workload(seed)
        device = Recorder(RECIPE.blocks, 1.0)
        trainer = EmulatedTrainer(COLLECTIVE, RECIPE, workload, mesh, device)
        check_trained(trainer, rank, workload, EVEN)
        kinds = [span.backward for span in device.spans]
        ran = [microbatch for minibatch in (*EVEN, EVEN[0]) for microbatch in minibatch[rank]]
        assert kinds == [False, False, True, True] * len(ran)
        evaluations = 2
        assert sum(device.firsts) == 2 * len(ran) + evaluations
        assert device.firsts[:4] == [True, False, True, False]
        for number, microbatch in enumerate(ran):
            own = device.spans[4 * number : 4 * number + 4]
            forward = workload.cost(microbatch) / 6
            durations = [span.end - span.begin - span.excess for span in own]
            assert durations == pytest.approx([forward, forward, 2 * forward, 2 * forward], rel=1e-6, abs=1e-9)
            assert all(a.end <= b.begin for a, b in pairwise(own))
        trainer.close()


@pytest.fixture
def seed() -> int:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return seed


@pytest.mark.parametrize("arm", [FSDP, COLLECTIVE], ids=lambda arm: arm.name)
def test_collective_schedules(arm: Arm, seed: int) -> None:
    run_ranks(RANKS, train_arm, arm, EVEN, seed)


def test_odc_with_ranks_that_have_nothing_to_do(seed: int) -> None:
    run_ranks(RANKS, train_arm, ODC_MICRO, UNEVEN, seed)


def test_an_emulated_device_trains_alike(seed: int) -> None:
    run_ranks(RANKS, train_emulated, seed)


def collectives(rank: int, size: int, job: str) -> None:
    with joined(rank, size, job) as (context, _):
        operations = Collectives("collectives", torch.device("cpu"))
        for repeated in range(3):
            output = torch.full((6,), -1.0)
            part = output[2 * rank : 2 * rank + 2]
            part.copy_(torch.tensor([10.0 * rank, repeated]))
            operations.all_gather(output, part)
            assert output.tolist() == [0, repeated, 10, repeated, 20, repeated]
            scattered = torch.empty(2)
            operations.reduce_scatter(scattered, torch.arange(6.0) * (rank + 1) + repeated)
            assert scattered.tolist() == [6 * (2 * rank) + 3 * repeated, 6 * (2 * rank + 1) + 3 * repeated]
        assert operations.all_reduce([1.0, rank]) == [3.0, 3.0]
        context.sync()
        operations.close()


def test_collectives() -> None:
    run_ranks(RANKS, collectives)


def test_losses_that_differ_by_more_than_rounding() -> None:
    def record(*losses: float) -> ArmRecord:
        return ArmRecord(steps=[[Step(loss, 0, 0, 0, 0) for loss in losses]])

    check_losses({FSDP: record(4.0, 2.0), COLLECTIVE: record(4.00001, 2.0)})
    for wrong in (2.0001, float("nan")):
        with pytest.raises(ExperimentError, match=r"in minibatch 1 collective \+ lb-micro has loss .* by more than"):
            check_losses({FSDP: record(4.0, 2.0), COLLECTIVE: record(4.0, wrong)})
