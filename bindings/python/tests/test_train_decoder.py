# SPDX-License-Identifier: Apache-2.0
"""Packing in the training example: a packed sample is computed as if it were alone."""

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from decoder import IGNORED, Decoder, loss_sum, pack
from samples import Sample

START = 16


def random_samples(lengths: list[int]) -> list[Sample]:
    made = []
    for length in lengths:
        learnt = torch.rand(length) < 0.7
        learnt[-1] = True
        made.append(Sample(length, torch.randint(START, (length,)), learnt))
    return made


@pytest.fixture
def seed() -> int:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    torch.manual_seed(seed)
    return seed


def decoder() -> Decoder:
    return Decoder(START + 1, 64, 2).double()


def gradients(model: Decoder, *microbatches: list[Sample]) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    total = 0.0
    for microbatch in microbatches:
        loss = loss_sum(model, pack(microbatch, START))
        loss.backward()
        total += float(loss.detach())
    return total, [parameter.grad.clone() for parameter in model.parameters()]


def test_packing(seed: int) -> None:
    first, second = random_samples([3, 2])
    packed = pack([first, second], START)
    a, b = first.tokens.tolist(), second.tokens.tolist()
    assert packed.tokens.tolist() == [[START, a[0], a[1], START, b[0]]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1]]
    wanted = [
        token if learnt else IGNORED
        for sample in (first, second)
        for token, learnt in zip(sample.tokens.tolist(), sample.learnt.tolist(), strict=True)
    ]
    assert packed.targets.tolist() == [wanted]
    assert packed.lengths == (3, 2)
    assert packed.learnt == int(first.learnt.sum() + second.learnt.sum())


def test_packed_samples_equal_separate_ones(seed: int) -> None:
    model = decoder()
    samples = random_samples([5, 1, 17, 2])
    loss, packed = gradients(model, samples)
    apart_loss, apart = gradients(model, *([sample] for sample in samples))
    assert loss == pytest.approx(apart_loss, rel=1e-12)
    for one, other in zip(packed, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_samples_do_not_see_each_other_nor_what_is_to_come(seed: int) -> None:
    model = decoder()
    first, second = random_samples([6, 5])
    logits = model(pack([first, second], START))[0]
    torch.testing.assert_close(logits[6:], model(pack([second], START))[0])
    changed = first.tokens.clone()
    changed[3] = (changed[3] + 1) % START
    other = model(pack([Sample(6, changed, first.learnt), second], START))[0]
    assert torch.equal(logits[:4], other[:4])  # the token at place 3 is read at place 4
    assert not torch.allclose(logits[4:6], other[4:6])
    assert torch.equal(logits[6:], other[6:])


def test_only_distances_matter(seed: int) -> None:
    model = decoder()
    packed = pack(random_samples([8]), START)
    logits = model(packed)
    shifted = replace(packed, positions=packed.positions + 7)
    torch.testing.assert_close(model(shifted), logits)
    stretched = replace(packed, positions=2 * packed.positions)
    assert not torch.allclose(model(stretched), logits)


def test_only_learnt_tokens_count(seed: int) -> None:
    model = decoder()
    (sample,) = random_samples([9])
    packed = pack([sample], START)
    logits = model(packed)[0].log_softmax(-1)
    wanted = -sum(logits[i, t] for i, t in enumerate(sample.tokens.tolist()) if sample.learnt[i])
    torch.testing.assert_close(loss_sum(model, packed), wanted)


def test_a_width_without_heads() -> None:
    with pytest.raises(ValueError, match="a width of 40 is not a multiple of 32"):
        Decoder(8, 40, 1)
