# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

import libodc

RECORDED = Path(__file__).resolve().parents[3] / "tests/data/topology"


def test_a_recorded_machine() -> None:
    machine = libodc.topology(RECORDED / "pcie-4gpu.xml")
    assert [gpu["name"] for gpu in machine["gpus"]] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert {route["from"]: route["nic"] for route in machine["to_another_host"]}["gpu0"] == "rocep2s0"
    assert {nic["name"]: nic["why_not"] for nic in machine["nics"] if "why_not" in nic}["eno2"] == "it is down"


def test_links_between_gpus() -> None:
    link = libodc.topology(RECORDED / "dgx-h100.xml")["gpu_links"][0]
    assert (link["between"], link["nvlink"], link["nvlinks"]) == (["gpu0", "gpu1"], "NVSwitch", 18)
    assert (link["p2p"], link["atomics"], link["transport"], link["access"]) == (True, True, "cuda", "direct")


def test_this_machine() -> None:
    machine = libodc.topology()
    assert sum(node["cores"] for node in machine["numa_nodes"]) >= 1
    assert {"lo"} <= {nic["name"] for nic in machine["nics"]}


def test_what_is_no_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(libodc.ArgumentError, match="No such file"):
        libodc.topology(tmp_path / "none.xml")
    (tmp_path / "text.xml").write_text("text")
    with pytest.raises(libodc.ArgumentError, match="is not a topology"):
        libodc.topology(tmp_path / "text.xml")
