# SPDX-License-Identifier: Apache-2.0
"""libodc.stats: the numbers of every open context, as data and as a table."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
from ranks import run_ranks

import libodc


def two_groups(rank: int, size: int, job: str) -> None:
    assert libodc.stats() == () and str(libodc.stats()) == "no context is open"
    actor = libodc.init(rank=rank, size=size, job=job, group="actor", timeout=30)
    critic = libodc.init(rank=rank, size=size, job=job, group="critic", timeout=30)
    shard = actor.register("w", 1000)
    for minibatch in range(3):
        actor.publish()
        full = np.zeros(1000, np.float32)
        shard.gather(full)
        shard.scatter_add(full)
        if rank == 1:
            time.sleep(0.05)  # the others wait for this one
        actor.sync()
        assert [one.minibatch for one in libodc.stats()] == [minibatch + 1, 0]
    first, second = libodc.stats()
    assert (first.group, first.rank, first.size) == ("actor", rank, size) == (actor.group, actor.rank, actor.size)
    assert first.totals == actor.stats() and first.peers == [actor.peer_stats(peer) for peer in range(size)]
    assert first.totals.gather_calls == 3 and first.totals.gather_bytes == 12000
    assert (second.group, second.totals) == ("critic", critic.stats())
    tables = str(libodc.stats()).split("\n\n")
    assert tables == [str(first), str(second)]
    assert tables[0].startswith(f'group "actor": rank {rank} of 3, in minibatch 3\n')
    late = f"{first.peers[1].sync_late_ns * 1e-9:.3f} s"
    assert any(line.split()[0] == "1" and late in line for line in tables[0].splitlines())
    child = os.fork()
    if child == 0:
        os._exit(0 if libodc.stats() == () else 1)  # they are the parent's
    assert os.waitpid(child, 0)[1] == 0
    critic.close()
    assert [one.group for one in libodc.stats()] == ["actor"]
    del actor, shard
    assert libodc.stats() == ()


def test_stats_are_of_every_open_context() -> None:
    run_ranks(3, two_groups)


def test_the_table_is_aligned_and_short() -> None:
    totals = libodc.Stats(384, 1_500_000_000, 7, 999, 12, 213_000_000, 1_402_000_000, 4_000_000, 96_000_000, *[0] * 7)
    peers = [libodc.PeerStats(rank * 10_000_000, 200_000_000, 3) for rank in range(40)]
    one = libodc.ContextStats("actor", 1, 3, 12, totals, peers[:3])
    assert str(one) == (
        'group "actor": rank 1 of 3, in minibatch 12\n'
        "  gathers         384    1.5 GB   waited for publish     0.213 s\n"
        "  additions         7     999 B   waited for sync        1.402 s\n"
        "  syncs            12             waited for locks       0.004 s\n"
        "  slices                  96 MB\n"
        "  rank      waited for   late in sync   last in sync\n"
        "  0            0.000 s        0.200 s              3\n"
        "  1 (this)     0.010 s        0.200 s              3\n"
        "  2            0.020 s        0.200 s              3"
    )
    between_hosts = replace(totals, packets_sent=1234)
    assert "\n  packets        1234\n" in str(replace(one, totals=between_hosts))
    staged = replace(totals, pinned_bytes=16_000_000)
    assert "\n  pinned                  16 MB\n" in str(replace(one, totals=staged))
    fetched = replace(totals, fetched_bytes=3_000_000, served_bytes=12_000_000, sent_bytes=24_000_000)
    assert "\n  fetched                  3 MB   node cache served     12 MB\n" in str(replace(one, totals=fetched))
    assert "\n  sent                    24 MB\n" in str(replace(one, totals=fetched))
    clamped = replace(totals, clamped_addends=7)
    assert "\n  clamped           7 elements of gradients were too large" in str(replace(one, totals=clamped))
    lines = str(replace(one, size=40, peers=peers)).splitlines()
    assert [line.split()[0] for line in lines[6:-1]] == [str(rank) for rank in range(24, 40)]  # the costliest
    assert lines[-1] == "  and 24 ranks that cost less"


def test_the_function_is_not_hidden_by_a_module() -> None:
    code = "import libodc, libodc.context, libodc.tracing; libodc.stats(); assert callable(libodc.trace)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
