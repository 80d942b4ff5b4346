# SPDX-License-Identifier: Apache-2.0
"""Compares additions by cp.reduce.async.bulk (bulk.cu) with the library's reductions
(lib/transport/cuda/kernels/add.cu) into memory of the same GPU: `bulk.py add_sm90.ptx bulk.ptx`. Prints JSON: whether
each adds correctly, alone and while the other adds to the same words, and the speed of both, in pairs of random order.
"""

from __future__ import annotations

import ctypes
import json
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable
from ctypes import Structure, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from cuda_api import MAJOR, MULTIPROCESSORS, CudaError, Driver, Gpu

TILE = 2048  # elements; bulk.cu's
MOST_ADDENDS, THREADS, ADD_TILE = 128, 512, 16 * 512  # lib/transport/cuda/kernels/add.h's
BLOCKS = 4  # to a multiprocessor
NUMEL = 64 << 20
PAIRS = 15
SAMPLE_SECONDS = 0.1
SIZES = {"f32": 4, "bf16": 2, "f16": 2}


class Addend(Structure):
    _fields_ = (("source", c_uint64), ("to", c_uint64), ("numel", c_uint64))


class Additions(Structure):
    _fields_ = (("addends", Addend * MOST_ADDENDS), ("count", c_uint), ("first", c_uint))


Launch = Callable[[int, int, int, c_void_p], None]  # to, from, elements, stream


class Experiment:
    def __init__(self, gpu: Gpu, add: bytes, bulk: bytes) -> None:
        self.gpu = gpu
        self.most = BLOCKS * gpu.attribute(MULTIPROCESSORS)
        self.add, self.bulk = gpu.load(add), gpu.load(bulk)

    def by_red(self, kind: str) -> Launch:
        function = self.gpu.function(self.add, f"odc_add_{kind}")

        def launch(to: int, source: int, numel: int, stream: c_void_p) -> None:
            additions = Additions(count=1)
            additions.addends[0] = Addend(source, to, numel)
            self.gpu.launch(function, min(self.most, -(-numel // ADD_TILE)), THREADS, stream, additions)

        return launch

    def by_bulk(self, kind: str) -> Launch:
        function = self.gpu.function(self.bulk, f"bulk_add_{kind}")
        threads = 32 if kind == "f32" else 256

        def launch(to: int, source: int, numel: int, stream: c_void_p) -> None:
            tiles = numel // TILE
            parameters = (c_uint64(to), c_uint64(source), c_uint64(tiles))
            self.gpu.launch(function, min(self.most, tiles), threads, stream, *parameters)

        return launch

    # ---- correctness ----

    def upload(self, text: bytes) -> int:
        address, stream = self.gpu.new(len(text)), self.gpu.stream()
        source = ctypes.create_string_buffer(text, len(text))
        self.gpu.copy(address, ctypes.addressof(source), len(text), stream)
        self.gpu.wait(stream)
        return address

    def sums_are(self, address: int, numel: int, of: list[int]) -> bool:
        return self.gpu.read(address, 4 * numel) == struct.pack(f"<{numel}f", *of)

    def is_right(self, kind: str, tiles: int, *adders: Launch) -> bool:
        """Seven additions by each kernel, all at the same time."""
        numel = tiles * TILE
        values = [random.randint(-8, 8) for _ in range(numel)]
        source = self.upload(encoded(kind, values))
        to = self.upload(bytes(4 * numel))
        streams = [self.gpu.stream() for _ in adders]
        for _ in range(7):
            for launch, stream in zip(adders, streams, strict=True):
                launch(to, source, numel, stream)
        for stream in streams:
            self.gpu.wait(stream)
        return self.sums_are(to, numel, [7 * len(adders) * value for value in values])

    # ---- speed ----

    def seconds(self, launch: Launch, to: int, source: int, stream: c_void_p, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            launch(to, source, NUMEL, stream)
        self.gpu.wait(stream)
        return (time.perf_counter() - begin) / repeats

    def race(self, kind: str) -> dict[str, Any]:
        source, to = self.gpu.new(NUMEL * SIZES[kind]), self.gpu.new(4 * NUMEL)
        stream = self.gpu.stream()
        self.gpu.fill(source, 0, NUMEL * SIZES[kind], stream)
        self.gpu.fill(to, 0, 4 * NUMEL, stream)
        adders = {"red": self.by_red(kind), "bulk": self.by_bulk(kind)}
        taken: dict[str, list[float]] = {name: [] for name in adders}
        repeats = {}
        for name, launch in adders.items():
            self.seconds(launch, to, source, stream, 3)
            repeats[name] = max(3, round(SAMPLE_SECONDS / self.seconds(launch, to, source, stream, 10)))
        for _ in range(PAIRS):
            for name in random.sample(list(adders), 2):
                taken[name].append(self.seconds(adders[name], to, source, stream, repeats[name]))
        ratios = sorted(red / bulk for red, bulk in zip(taken["red"], taken["bulk"], strict=True))
        middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
        gradients = {f"{name}_gradient_gbps": NUMEL * SIZES[kind] / s / 1e9 for name, s in middle.items()}
        # Each sum is read and written once.
        memory = {f"{name}_memory_gbps": NUMEL * (SIZES[kind] + 8) / s / 1e9 for name, s in middle.items()}
        return {"ratio": statistics.median(ratios), "ratios": [round(r, 4) for r in ratios], **gradients, **memory}


def encoded(kind: str, values: list[int]) -> bytes:
    if kind == "bf16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{'f' if kind == 'f32' else 'e'}", *values)


def main() -> int:
    seed = random.randrange(1 << 32)
    random.seed(seed)
    add, bulk = (Path(name).read_bytes() + b"\0" for name in sys.argv[1:3])
    driver = Driver()
    why = "the driver is fake: it has no such kernel" if driver.fake else ""
    gpu = Gpu(driver)
    if not why and gpu.attribute(MAJOR) < 9:
        why = "cp.reduce.async.bulk needs compute capability 9.0"
    if why:
        print(json.dumps({"results": [{"name": "bulk additions", "outcome": "skipped", "reason": why}]}))
        return 0
    experiment = Experiment(gpu, add, bulk)
    most = experiment.most
    results: list[dict[str, Any]] = []
    for kind in SIZES:
        red, by_bulk = experiment.by_red(kind), experiment.by_bulk(kind)
        for name, adders in (("alone", (by_bulk,)), ("twice", (by_bulk, by_bulk)), ("beside red", (red, by_bulk))):
            right = True
            for experiment.most, tiles in ((4, 1), (4, 203), (most, 203)):  # many tiles to a block, too
                right = right and experiment.is_right(kind, tiles, *adders)
            outcome, reason = ("passed", "") if right else ("failed", f"sums are wrong; seed {seed}")
            results.append({"name": f"{kind} {name}", "outcome": outcome, "reason": reason})
        figures = {"note": "ratio above 1: bulk is faster", **experiment.race(kind)}
        results.append({"name": f"{kind} speed", "outcome": "passed", "figures": figures})
    print(json.dumps({"results": results}))
    return 0


try:
    sys.exit(main())
except CudaError as error:
    sys.exit(f"bulk.py: {error}")
