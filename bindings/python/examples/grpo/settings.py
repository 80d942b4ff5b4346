# SPDX-License-Identifier: Apache-2.0
"""The command line of grpo.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from options import positive, whole  # of the training example

_ODC = ("odc-equal", "odc-free", "odc-packed", "odc-ahead", "odc-claims")
ARMS = ("fsdp2-equal", "fsdp2-packed", "collective-packed", "collective-equal", *_ODC)
_REAL = ("fsdp2-equal", "fsdp2-packed", "odc-equal", "odc-free", "odc-packed", "odc-claims")
_MOST_SECONDS = 600
_EMULATED = ("collective-packed", "collective-equal", "odc-equal", "odc-free", "odc-ahead", "odc-claims")


@dataclass(frozen=True)
class Settings:
    """`minibatch`: prompts whose answers make one, before groups without signal are dropped. `emulate`: seconds that an
    answer of 32 tokens takes on an emulated device; 0: real compute. `noise`: by what share devices' speeds differ."""

    rollouts: int
    prompts: int
    answers: int
    minibatch: int
    warm_up: int
    refresh: int
    width: int
    blocks: int
    rate: float
    clip: float
    kl: float
    held_out: int
    seed: int
    emulate: float
    noise: float
    arms: tuple[str, ...]
    report: Path


def parse_settings(arguments: list[str], description: str) -> Settings:
    parser = argparse.ArgumentParser(
        prog="grpo.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(name: str, default: int, text: str, least: int = 1) -> None:
        text = f"{text} (default: %(default)s)"
        parser.add_argument(name, type=whole(least), default=default, metavar="N", help=text)

    add("--rollouts", 40, "of each arm")
    add("--prompts", 32, "of a rollout")
    add("--answers", 8, "to each prompt: a group")
    add("--minibatch", 4, "groups of a minibatch; a rollout is trained on in several")
    add("--warm-up", 20, "supervised minibatches that the policy begins with")
    add("--refresh", 20, "rollouts after which the reference becomes the policy")
    add("--width", 64, "of the decoder, a multiple of 32")
    add("--blocks", 2, "of the decoder")
    add("--held-out", 64, "prompts that are only evaluated, before and after")
    add("--seed", 1, "of parameters, prompts and answers", least=0)
    for name, kind, default, text in (
        ("--rate", positive, 5e-4, "of learning"),
        ("--clip", positive, 0.2, "of the ratio of new to old probabilities"),
        ("--kl", _between(0, 1000), 0.01, "weight of the divergence from the reference"),
    ):
        parser.add_argument(name, type=kind, default=default, metavar="X", help=f"{text} (default: %(default)s)")
    emulate = "updates on emulated devices: an answer of 32 tokens takes X seconds (default: real compute)"
    parser.add_argument("--emulate", type=positive, default=0.0, metavar="X", help=emulate)
    noise = "each emulated device has another speed in each minibatch, by up to this share more or less (default: none)"
    parser.add_argument("--noise", type=_between(0, 0.9), default=0.0, metavar="X", help=noise)
    arms = "(default: {}; with --emulate {})".format(*(", ".join(some) for some in (_REAL, _EMULATED)))
    parser.add_argument("--arms", nargs="+", choices=ARMS, help=arms)
    parser.add_argument("--report", type=Path, default=Path("report/grpo"), help="directory for pictures and numbers")
    given = parser.parse_args(arguments)
    if given.width % 32 != 0:
        parser.error(f"--width {given.width}: must be a multiple of 32")
    if given.answers < 2:
        parser.error(f"--answers {given.answers}: advantages compare a group's answers, so two are the least")
    if given.emulate > _MOST_SECONDS:
        parser.error(f"--emulate {given.emulate:g}: at most {_MOST_SECONDS} s for an answer")
    if given.emulate > 0 and given.rollouts < 2:
        parser.error(f"--rollouts {given.rollouts}: with --emulate the first warms up, so two are the least")
    if given.noise > 0 and given.emulate == 0:
        parser.error(f"--noise {given.noise:g}: it is of emulated devices, so --emulate is needed, too")
    chosen = given.arms or (_EMULATED if given.emulate > 0 else _REAL)
    given.arms = tuple(name for name in ARMS if name in chosen)
    return Settings(**vars(given))


def _between(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f'"{text}" is not a number from {least:g} to {most:g}')
        return value

    return parse
