# SPDX-License-Identifier: Apache-2.0
"""The command line of train.py."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

HEAD = 32  # width of an attention head of the decoder; here, as importing that takes seconds
WINDOW = 16  # minibatches whose samples are the same in every order

# By launcher: odc run, torchrun, Open MPI, MPICH, Slurm.
_RANK_AND_SIZE = (
    ("ODC_RANK", "ODC_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def speaks() -> bool:
    """Whether this rank tells what all ranks find before they have met."""
    ranks = (os.environ[rank] for rank, size in _RANK_AND_SIZE if rank in os.environ and size in os.environ)
    return next(ranks, "0") == "0"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if speaks():
            super().error(message)
        self.exit(2)

    def known_options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


def _meant(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True)
class Options:
    """Options of all experiments. `minibatch`: samples per rank."""

    experiment: str
    data: Path | None
    tokenizer: Path | None
    lengths: Path | None
    length_scale: int | None  # None: 1 for messages, otherwise text_scale
    text_scale: int
    budget: int
    minibatch: int
    seed: int
    width: int
    blocks: int
    rate: float
    report: Path
    rounds: int
    turn: int
    device: str
    compare: str | None
    slow: int | None
    minibatches: int
    seconds: float
    ranks: int
    seeds: int
    windows: int
    lookahead: int
    reduce: str
    kill: int | None
    resume: bool


def parse_options(arguments: list[str], description: str) -> Options:
    parser = _Parser(prog="train.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    experiments = parser.add_subparsers(dest="experiment", required=True)
    compute = experiments.add_parser("compute", help="real compute; as many ranks as cores, or as GPUs")
    emulated = experiments.add_parser("emulated", help="compute padded by sleep; more ranks than cores")
    order = experiments.add_parser("order", help="what lookahead does to training: the held-out loss")
    exact = experiments.add_parser("exact", help="exact sums: the same bits with every plan and number of ranks")
    _add_common(compute, scale=32, width=192, blocks=4)
    _add_common(emulated, scale=128, width=64, blocks=3)
    _add_common(order, scale=128, width=64, blocks=2)
    _add_common(exact, scale=512, width=64, blocks=2)
    compute.add_argument("--rounds", type=whole(1), default=8, help="turns of each arm (default: %(default)s)")
    compute.add_argument("--turn", type=whole(1), default=2, help="minibatches of a turn (default: %(default)s)")
    compute.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    compute.add_argument("--compare", choices=("nccl",), help="on GPUs: FSDP2's own collectives, too, by NCCL")
    slow = "a rank that gets half speed by a busy process on its core; adds the arm odc + claims"
    compute.add_argument("--slow", type=whole(0), metavar="RANK", help=slow)
    compute.set_defaults(minibatches=0, seconds=0.0)
    emulated.add_argument(
        "--minibatches", type=whole(1), default=12, help="of each arm and size (default: %(default)s)"
    )
    emulated.add_argument("--seconds", type=positive, default=180.0, help="emulated time of all (default: %(default)s)")
    order.add_argument("--ranks", type=whole(1), default=8, help="that are planned for (default: %(default)s)")
    order.add_argument("--seeds", type=whole(2), default=4, help="runs of each order (default: %(default)s)")
    order.add_argument("--windows", type=whole(1), default=12, help=f"of {WINDOW} minibatches (default: %(default)s)")
    order.add_argument("--lookahead", type=_window_part, default=2, help="that is compared (default: %(default)s)")
    exact.add_argument("--minibatches", type=whole(1), default=50, help="of each plan (default: %(default)s)")
    exact.add_argument(
        "--reduce", choices=("f32", "bf16"), default="f32", help="type in which gradients are reduced (default: f32)"
    )
    ends = exact.add_mutually_exclusive_group()
    kill = "kill the last rank (SIGKILL) in this minibatch; only odc + claims is trained, with checkpoints"
    ends.add_argument("--kill", type=whole(3), metavar="MINIBATCH", help=kill)
    ends.add_argument("--resume", action="store_true", help="every plan goes on from the checkpoint of such a run")
    # A minibatch is 16 times --minibatch samples, whatever the number of ranks.
    exact.set_defaults(ranks=16, minibatch=1, seconds=0.0, seeds=0, windows=0, lookahead=0)
    order.set_defaults(minibatches=0, seconds=0.0)
    order.set_defaults(minibatch=4, rate=3e-3)  # about the best rate in the order of the data
    for one in (emulated, order, exact):
        one.set_defaults(rounds=0, turn=0, device="cpu", compare=None, slow=None)
    for one in (compute, emulated, order):
        one.set_defaults(reduce="f32", kill=None, resume=False)
    for one in (compute, emulated):
        one.set_defaults(ranks=0, seeds=0, windows=0, lookahead=0)
    known = experiments.choices
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        meant = _meant(arguments[0], known)
        parser.error(f"there is no experiment '{arguments[0]}'{meant} (choose from {', '.join(known)})")
    options, others = parser.parse_known_args(arguments)
    if others:
        chosen = known[options.experiment]
        meant = _meant(others[0].partition("=")[0], chosen.known_options())
        chosen.error(f"unknown: {' '.join(others)}{meant} (see 'train.py {options.experiment} --help')")
    if options.kill and options.kill >= options.minibatches:
        exact.error(
            f"--kill {options.kill}: minibatches are numbered 0 to {options.minibatches - 1}; see --minibatches"
        )
    return Options(**vars(options))


def _add_common(parser: argparse.ArgumentParser, *, scale: int, width: int, blocks: int) -> None:
    def add(name: str, kind: Callable[[str], object], default: object, text: str) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(name, type=kind, default=default, help=text + shown, metavar=name.rsplit("-")[-1].upper())

    add("--data", Path, None, "directory of text files, or .jsonl with text or messages (default: Python's library)")
    add("--tokenizer", Path, None, "tokenizer.json of Hugging Face (default: bytes)")
    add("--lengths", Path, None, "file of sequence lengths to cut the text into (default: the documents' own)")
    text = f"samples are the first 1/SCALE of their documents (default: 1 for messages, {scale} for other text)"
    add("--length-scale", whole(1), None, text)
    parser.set_defaults(text_scale=scale)
    add("--budget", whole(1), 65536, "tokens of a microbatch, before scaling")
    add("--minibatch", whole(1), 8, "samples a rank and minibatch")
    add("--seed", whole(0), 1, "of the parameters and the order of the samples")
    add("--width", _width, width, f"of the decoder, a multiple of {HEAD}")
    add("--blocks", whole(1), blocks, "of the decoder")
    add("--rate", positive, 1e-3, "of learning")
    add("--report", Path, Path("report") / parser.prog.split()[-1], "directory for summary.json and pictures")


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f'"{text}" is not a whole number of at least {least}')
        return int(text)

    return parse


def _window_part(text: str) -> int:
    ahead = whole(2)(text)
    if WINDOW % ahead != 0:
        raise argparse.ArgumentTypeError(f"{ahead} does not divide the {WINDOW} minibatches of a window")
    return ahead


def _width(text: str) -> int:
    width = whole(HEAD)(text)
    if width % HEAD != 0:
        raise argparse.ArgumentTypeError(f"{width} is not a multiple of {HEAD}, the width of a head")
    return width


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f'"{text}" is not a positive number')
    return value
