# SPDX-License-Identifier: Apache-2.0
"""Tries by itself each facility of the kernel and the driver that libodc needs: `facilities.py [--short] [NAME...]`
(default: all). Prints JSON, one result for each, and after each a line with all so far; a failure says which part of
libodc needs the facility. Each is tried in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from cuda_api import MAJOR, MINOR, MULTIPROCESSORS, NATIVE_ATOMICS, PEER_ACCESS, Driver, Gpu, p2p_attribute

LIMIT = 60.0  # seconds for each; CUDA may take a while to begin
FORK = multiprocessing.get_context("fork")
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
SHORT = "--short" in sys.argv  # sizes for the fake GPU
MIB = 1 << 20

Figures = dict[str, Any]


class Missing(Exception):
    """The facility is missing, and libodc works without it."""


def check(holds: bool, words: str) -> None:
    if not holds:
        raise RuntimeError(words)


def checked(result: int, call: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
    return result


@contextlib.contextmanager
def child(fn: Callable[..., None], *args: Any) -> Iterator[Any]:
    process = FORK.Process(target=fn, args=args)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def soon(condition: Callable[[], bool], words: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < deadline, f"{words} after {seconds} s")
        time.sleep(0.001)


# ---- the kernel ----


def arena(nbytes: int) -> int:
    descriptor = os.memfd_create("odc-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    return descriptor


def memfd() -> Figures:
    descriptor = arena(1 << 60)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    try:
        os.ftruncate(descriptor, 1 << 20)
    except OSError:
        return {"bytes": 1 << 60}
    raise RuntimeError("a sealed memfd was made smaller")


def fallocate() -> Figures:
    descriptor = arena(1 << 60)
    nbytes, figures = 64 << 20, {}
    for mode, offset in ((0, 1 << 40), (3, 1 << 40)):  # then a hole is made of it
        arguments = (ctypes.c_int(descriptor), ctypes.c_int(mode), ctypes.c_long(offset), ctypes.c_long(nbytes))
        checked(LIBC.fallocate(*arguments), f"fallocate with mode {mode}")
        figures[f"bytes after mode {mode}"] = os.fstat(descriptor).st_blocks * 512
    return figures


def rights() -> Figures:
    """An abstract socket, its peer's credentials, and a descriptor of memory that both processes write."""
    name = f"\0odc-probe-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(name)
    listener.listen()

    def send() -> None:
        descriptor = arena(PAGE)
        page = mmap.mmap(descriptor, PAGE)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mine:
            mine.connect(name)
            socket.send_fds(mine, [b"x"], [descriptor])
            soon(lambda: page[0] == 7, "the other's write was not seen")
            page[1] = 8
            mine.recv(1)

    with child(send) as process:
        theirs, _ = listener.accept()
        credentials = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        check(int.from_bytes(credentials[:4], "little") == process.pid, "SO_PEERCRED names another process")
        page = mmap.mmap(descriptors[0], PAGE)
        page[0] = 7
        soon(lambda: page[1] == 8, "the other's write was not seen")
        theirs.send(b"x")
    return {}


def pidfd() -> Figures:
    with child(time.sleep, LIMIT) as process:
        descriptor = os.pidfd_open(process.pid)
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        check(not ready.poll(0), "a pidfd is readable while its process runs")
        begin = time.monotonic()
        process.kill()
        check(bool(ready.poll(10_000)), "a pidfd was not readable 10 s after its process was killed")
        return {"ms": 1e3 * (time.monotonic() - begin)}


def futex() -> Figures:
    number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
    page = mmap.mmap(-1, PAGE)
    word = ctypes.c_uint32.from_buffer(page)

    def sleep() -> None:
        page[8] = 1
        seconds = (ctypes.c_long * 2)(10, 0)
        result = LIBC.syscall(ctypes.c_long(number), ctypes.byref(word), 0, 0, seconds, None, 0)
        page[9] = 1 if result == 0 else 2

    with child(sleep) as process:
        soon(lambda: page[8] == 1, "a process had not started")
        woken = []

        def wake() -> bool:
            woken.append(LIBC.syscall(ctypes.c_long(number), ctypes.byref(word), 1, 1, None, None, 0))
            return bool(woken[-1] == 1)

        soon(wake, "nobody was woken by a futex in memory that two processes share")
        process.join(5)
        check(page[9] == 1, "the futex that was woken did not return")
    return {}


def wipe_on_fork() -> Figures:
    page = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    seen = mmap.mmap(-1, PAGE)
    page[0] = 1
    try:
        page.madvise(18)  # MADV_WIPEONFORK
    except OSError as error:
        raise Missing(f"madvise: {error.strerror}") from error

    def look() -> None:
        seen[0] = 2 + page[0]

    with child(look) as process:
        process.join(10)
    check(seen[0] != 0 and page[0] == 1, "a child did not look within 10 s, or its parent's page was wiped")
    if seen[0] != 2:
        raise Missing("a forked child finds its parent's page as it was")
    return {}


def boot() -> Figures:
    with open("/proc/sys/kernel/random/boot_id") as file:
        check(len(file.read().strip()) == 36, "boot_id is no UUID")
    return {"kernel": os.uname().release, "cores": os.cpu_count(), "descriptors": os.sysconf("SC_OPEN_MAX")}


# ---- the driver ----


def driver() -> Figures:
    cuda = Driver()
    newer = {name: cuda.has(name) for name in ("cuMemcpyBatchAsync", "cuDeviceGetP2PAtomicCapabilities", "cuFuncLoad")}
    return {"interface": cuda.version(), "gpus": cuda.count(), "fake": cuda.fake, **newer}


ATTRIBUTES = {
    "unified addressing": 41,
    "memory that can be mapped (VMM)": 102,
    "export as a descriptor": 103,
    "64-bit words written by streams": 122,
    "registered host memory": 99,
}


def device() -> Figures:
    cuda = Driver()
    gpu = Gpu(cuda)
    lacking = [name for name, which in ATTRIBUTES.items() if gpu.attribute(which) == 0]
    check(not lacking, f"the GPU lacks: {', '.join(lacking)}")
    free, total = gpu.memory()
    return {
        "name": cuda.name(0),
        "capability": f"{gpu.attribute(MAJOR)}.{gpu.attribute(MINOR)}",
        "multiprocessors": gpu.attribute(MULTIPROCESSORS),
        "free_bytes": free,
        "bytes": total,
        "granule_bytes": gpu.granule(),
        "gpu_direct_rdma": bool(gpu.attribute(110)),
        "same_pointer_for_registered_memory": bool(gpu.attribute(91)),
    }


def pinned_memfd(gpu: Gpu) -> tuple[mmap.mmap, int]:
    """A MiB of it, and its device address."""
    memory = mmap.mmap(arena(MIB), MIB)
    return memory, gpu.register(ctypes.addressof(ctypes.c_char.from_buffer(memory)), MIB)


def words() -> Figures:
    """A stream writes a word in pinned memory of a memfd, after its earlier work."""
    gpu = Gpu(Driver())
    page, seen = pinned_memfd(gpu)
    memory, stream = gpu.new(1 << 16), gpu.stream()
    begin = time.monotonic()
    for value in range(1, 51 if SHORT else 1001):
        gpu.fill(memory, value % 256, 1 << 16, stream)
        gpu.copy(seen + PAGE, memory, 8, stream)
        gpu.write_word(seen, value, stream)
        expected, behind = value.to_bytes(8, "little"), bytes([value % 256]) * 8
        soon(lambda expected=expected: page[:8] == expected, "a stream's word was not seen")  # type: ignore[misc]
        check(page[PAGE : PAGE + 8] == behind, f"word {value} came before the data that was enqueued before it")
    return {"seconds": time.monotonic() - begin, "rounds": value}


def waits() -> Figures:
    """A stream waits for a word of pinned memory, then copies what the host has written before the word."""
    gpu = Gpu(Driver())
    page, seen = pinned_memfd(gpu)
    memory, stream = gpu.new(1 << 16), gpu.stream()
    begin = time.monotonic()
    for value in range(1, 51 if SHORT else 1001):
        gpu.await_word(seen, value, stream)
        gpu.copy(memory, seen + PAGE, 1 << 16, stream)
        check(not gpu.is_done(stream), f"a stream did not wait for word {value}")
        page[PAGE : PAGE + (1 << 16)] = bytes([value % 256]) * (1 << 16)
        page[:8] = value.to_bytes(8, "little")
        gpu.wait(stream)
        check_bytes(gpu, memory, 1 << 16, value % 256)
    return {"seconds": time.monotonic() - begin, "rounds": value}


def fill_and_send(theirs: socket.socket, nbytes: int) -> None:
    """Another process's memory, until it is killed."""
    gpu = Gpu(Driver())
    handle = gpu.create(nbytes)
    stream = gpu.stream()
    gpu.fill(gpu.map(handle, nbytes), 5, nbytes, stream)
    gpu.wait(stream)
    socket.send_fds(theirs, [b"x"], [gpu.export(handle)])
    time.sleep(LIMIT)


@contextlib.contextmanager
def imported(nbytes: int) -> Iterator[tuple[Gpu, int, Any]]:
    """Our GPU, the address of another process's memory on it, that process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.settimeout(LIMIT / 2)
    with child(fill_and_send, theirs, nbytes) as process:
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
        check(len(descriptors) == 1, "the owner's descriptor did not come")
        gpu = Gpu(Driver())
        address = gpu.map(gpu.take(descriptors[0]), nbytes)
        os.close(descriptors[0])
        yield gpu, address, process


def check_bytes(gpu: Gpu, address: int, nbytes: int, value: int) -> None:
    for offset in (0, nbytes // 2, nbytes - PAGE):
        check(gpu.read(address + offset, PAGE) == bytes([value]) * PAGE, f"byte {offset} is not what was written")


def export() -> Figures:
    nbytes = (4 if SHORT else 64) * MIB
    with imported(nbytes) as (gpu, address, _):
        check_bytes(gpu, address, nbytes, 5)
    return {}


def outlives() -> Figures:
    nbytes = (4 if SHORT else 256) * MIB
    with imported(nbytes) as (gpu, address, owner):
        check_bytes(gpu, address, nbytes, 5)
        owner.kill()
        owner.join()
        stream = gpu.stream()
        for value in range(20):
            check_bytes(gpu, address, nbytes, 5 if value == 0 else value - 1)
            gpu.fill(address, value, nbytes, stream)
            gpu.wait(stream)
            time.sleep(0.05)
        check_bytes(gpu, address, nbytes, 19)
        free, total = gpu.memory()
    return {"bytes": nbytes, "free_bytes": free, "total_bytes": total}


def killed_amid_copies() -> Figures:
    """The owner is killed while copies from its memory are on their way."""
    nbytes = (4 if SHORT else 256) * MIB
    with imported(nbytes) as (gpu, address, owner):
        mine, stream = gpu.new(nbytes), gpu.stream()
        for _ in range(20 if SHORT else 1000):
            gpu.copy(mine, address, nbytes, stream)
        owner.kill()
        under_way = not gpu.is_done(stream)
        owner.join()
        still_under_way = not gpu.is_done(stream)
        gpu.wait(stream)
        check_bytes(gpu, mine, nbytes, 5)
    return {"under_way_at_the_kill": under_way, "under_way_when_it_had_ended": still_under_way}


def pairs() -> Figures:
    cuda = Driver()
    count = cuda.count()
    if count < 2:
        raise Missing("there is one GPU")
    table = {
        f"{one}-{other}": {
            "access": p2p_attribute(cuda, PEER_ACCESS, one, other),
            "native_atomics": p2p_attribute(cuda, NATIVE_ATOMICS, one, other),
        }
        for one in range(count)
        for other in range(count)
        if one != other
    }
    return table


# ---- tools ----


def tool(name: str, *arguments: str) -> Callable[[], Figures]:
    def look() -> Figures:
        if (path := shutil.which(name)) is None:
            raise Missing(f"{name} is not on the PATH")
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=LIMIT - 10)
        said = (done.stdout + done.stderr).strip()
        if done.returncode != 0:
            raise Missing(f"{name} ended with {done.returncode}: {said[-300:]}")
        return {"says": said[-400:]}

    return look


SMI = "--query-gpu=name,driver_version,memory.total,compute_cap,mig.mode.current,clocks.sm,clocks.mem"
# What it is called, how it is tried, what of libodc needs it.
FACILITIES: dict[str, tuple[Callable[[], Figures], str]] = {
    "boot": (boot, "telling hosts from each other"),
    "memfd": (memfd, "the arena: no shard can be registered without"),
    "fallocate": (fallocate, "committing pages of host memory when a shard is registered, and giving them back"),
    "rights": (rights, "the rendezvous of a host's ranks, and GPU memory's way to them"),
    "pidfd": (pidfd, "noticing that a rank died; ranks of one host are refused without"),
    "futex": (futex, "sleeping until a peer rings"),
    "wipe_on_fork": (wipe_on_fork, "noticing a fork; a handler does it instead"),
    "driver": (driver, "GPU memory"),
    "device": (device, "GPU memory"),
    "words": (words, "publishes of shards in GPU memory, and sync"),
    "waits": (waits, "gathers from other hosts into GPU memory"),
    "export": (export, "GPU memory of several ranks"),
    "outlives": (outlives, "surviving a rank's death: its peers would fault"),
    "killed_amid_copies": (killed_amid_copies, "surviving a rank's death: its peers would fault"),
    "pairs": (pairs, "the direct route between GPUs; without it they are staged"),
    "nvidia-smi": (tool("nvidia-smi", SMI, "--format=csv,noheader"), "nothing"),
    "compute-sanitizer": (tool("compute-sanitizer", "--version"), "the stage sanitizer"),
    "ncu": (tool("ncu", "--version"), "nothing"),
    "nvcc": (tool("nvcc", "--version"), "nothing"),
}


def attempt(name: str, pipe: Any) -> None:
    os.setpgid(0, 0)
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    fn, _ = FACILITIES[name]
    try:
        pipe.send(("passed", "", fn()))
    except Missing as error:
        pipe.send(("skipped", str(error), {}))
    except BaseException as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}", {}))


def tried(name: str) -> dict[str, Any]:
    mine, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=attempt, args=(name, theirs))
    begin = time.monotonic()
    process.start()
    theirs.close()
    outcome, reason, figures = "failed", f"did not end in {LIMIT:g} s", {}
    if mine.poll(LIMIT):
        try:
            outcome, reason, figures = mine.recv()
        except EOFError:
            process.join(5)
            reason = f"ended by itself with {process.exitcode}"
    with contextlib.suppress(ProcessLookupError):  # its children, too
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    if outcome != "passed":
        reason += f"; needed for: {FACILITIES[name][1]}"
    seconds = round(time.monotonic() - begin, 3)
    return {"name": name, "outcome": outcome, "reason": reason, "seconds": seconds, "figures": figures}


def main() -> int:
    names = [name for name in sys.argv[1:] if name != "--short"] or list(FACILITIES)
    if unknown := [name for name in names if name not in FACILITIES]:
        print(f"facilities.py: there is no {unknown[0]!r}; there are {', '.join(FACILITIES)}", file=sys.stderr)
        return 2
    results = []
    for name in names:
        results.append(tried(name))
        print(json.dumps({"results": results}), flush=True)
    return 0


sys.exit(main())
