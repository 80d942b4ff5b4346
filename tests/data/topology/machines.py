#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the recorded machines of this folder as hwloc's XML, from public facts about each (data sheets, manuals, what
lspci and lstopo print there). Caches and hardware threads are left out, since no route depends on them.

    tests/data/topology/machines.py            # rewrites tests/data/topology/*.xml
"""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from xml.sax.saxutils import quoteattr

GIB = 1 << 30


@dataclass
class Object:
    """One of hwloc's objects with its attributes, info attributes and children."""

    attributes: dict[str, str]
    infos: dict[str, str] = field(default_factory=dict)
    children: list["Object"] = field(default_factory=list)
    gp_index: int = 0

    def add(self, *children: "Object") -> "Object":
        self.children += children
        return self

    def numbered(self, numbers: count) -> None:
        self.gp_index = next(numbers)
        for child in self.children:
            child.numbered(numbers)

    def lines(self, indent: int) -> list[str]:
        attributes = {"type": self.attributes["type"], "gp_index": str(self.gp_index)} | self.attributes
        words = "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())
        pad = " " * indent
        if not self.infos and not self.children:
            return [f"{pad}<object{words}/>"]
        infos = [f"{pad} <info name={quoteattr(n)} value={quoteattr(v)}/>" for n, v in self.infos.items()]
        inside = [line for child in self.children for line in child.lines(indent + 1)]
        return [f"{pad}<object{words}>", *infos, *inside, f"{pad}</object>"]


def bitmap(bits: range) -> str:
    words = []
    for low in range(0, max(bits) + 1, 32):
        words.append(f"0x{sum(1 << (bit - low) for bit in bits if low <= bit < low + 32):08x}")
    return ",".join(reversed(words))


def sets(cpus: range, nodes: range) -> dict[str, str]:
    cpuset, nodeset = bitmap(cpus), bitmap(nodes)
    return {"cpuset": cpuset, "complete_cpuset": cpuset, "nodeset": nodeset, "complete_nodeset": nodeset}


def package(index: int, model: str, cores: int, gib: int) -> Object:
    """A package that is one NUMA node; packages of one machine are alike."""
    cpus, nodes = range(index * cores, (index + 1) * cores), range(index, index + 1)
    numa = {"type": "NUMANode", "os_index": str(index), **sets(cpus, nodes), "local_memory": str(gib * GIB)}
    made = Object({"type": "Package", "os_index": str(index), **sets(cpus, nodes)}, {"CPUModel": model}, [Object(numa)])
    for cpu in cpus:
        one = sets(range(cpu, cpu + 1), nodes)
        made.add(
            Object(
                {"type": "Core", "os_index": str(cpu), **one}, {}, [Object({"type": "PU", "os_index": str(cpu), **one})]
            )
        )
    return made


def machine(name: str, packages: list[Object], architecture: str = "x86_64") -> Object:
    cores = sum(child.attributes["type"] == "Core" for one in packages for child in one.children)
    everything = sets(range(cores), range(len(packages)))
    allowed = {"allowed_cpuset": everything["cpuset"], "allowed_nodeset": everything["nodeset"]}
    infos = {"OSName": "Linux", "HostName": name, "Architecture": architecture}
    return Object({"type": "Machine", "os_index": "0", **everything, **allowed}, infos, list(packages))


def host_bridge(first: int, last: int, *children: Object) -> Object:
    bus = f"0000:[{first:02x}-{last:02x}]"
    return Object({"type": "Bridge", "bridge_type": "0-1", "depth": "0", "bridge_pci": bus}, {}, list(children))


def bridge(bus_id: str, first: int, last: int, depth: int, identity: str, *children: Object) -> Object:
    """A root port, or a port of a PCIe switch."""
    attributes = {
        "type": "Bridge",
        "bridge_type": "1-1",
        "depth": str(depth),
        "bridge_pci": f"0000:[{first:02x}-{last:02x}]",
        "pci_busid": f"0000:{bus_id}",
        "pci_type": f"0604 [{identity}] [0000:0000] 00",
        "pci_link_speed": "0.000000",
    }
    return Object(attributes, {}, list(children))


def device(bus_id: str, pci_class: str, identity: str, vendor: str, name: str, *children: Object) -> Object:
    attributes = {
        "type": "PCIDev",
        "pci_busid": f"0000:{bus_id}",
        "pci_type": f"{pci_class} [{identity}] [0000:0000] 00",
        "pci_link_speed": "0.000000",
    }
    return Object(attributes, {"PCIVendor": vendor, "PCIDevice": name}, list(children))


def facts(kind: str, state: str, networks: str, speed: int) -> dict[str, str]:
    made = {"odc.kind": kind, "odc.state": state, "odc.networks": networks}
    return made | ({"odc.speed": str(speed)} if speed else {})


def net(name: str, networks: str, speed: int = 0, state: str = "up", kind: str = "Ethernet") -> Object:
    """An interface of a PCI device."""
    return Object({"type": "OSDev", "name": name, "osdev_type": "2"}, facts(kind, state, networks, speed))


def virtual(name: str, kind: str, networks: str, state: str = "up", speed: int = 0) -> Object:
    """An interface without a PCI device, as `odc topo --save` writes it."""
    return Object({"type": "Misc", "name": name}, facts(kind, state, networks, speed))


def rdma(name: str, speed: int, state: str = "4") -> Object:
    """An OpenFabrics device; 4 is the state of an active port."""
    return Object({"type": "OSDev", "name": name, "osdev_type": "3"}, {"Port1State": state, "odc.speed": str(speed)})


def loopback() -> Object:
    return virtual("lo", "loopback", "127.0.0.1/8 ::1/128")


def docker() -> Object:
    return virtual("docker0", "bridge", "172.17.0.1/16", "no carrier")


def laptop() -> Object:
    """A laptop with an Intel Core i7-1260P: Wi-Fi, no cable in the socket, a WireGuard tunnel, docker."""
    made = machine("laptop", [package(0, "12th Gen Intel(R) Core(TM) i7-1260P", 12, 16)])
    made.children[0].add(
        host_bridge(
            0,
            0xFF,
            device("00:02.0", "0300", "8086:46a6", "Intel Corporation", "Alder Lake-P GT2 [Iris Xe Graphics]"),
            device(
                "00:14.3",
                "0280",
                "8086:51f0",
                "Intel Corporation",
                "Alder Lake-P PCH CNVi WiFi",
                net("wlp0s20f3", "192.168.1.23/24 fe80::5c1b:11ff:fe22:3344/64", kind="Wi-Fi"),
            ),
            device(
                "00:1f.6",
                "0200",
                "8086:1a1e",
                "Intel Corporation",
                "Ethernet Connection (16) I219-LM",
                net("enp0s31f6", "", state="no carrier"),
            ),
        )
    )
    return made.add(loopback(), virtual("wg0", "tunnel", "10.8.0.2/24"), docker())


def dual_socket() -> Object:
    """Two AMD EPYC 9354, a 25 Gbit/s Ethernet card on each, the board's own port without a cable, docker, libvirt."""
    made = machine("dual-socket", [package(i, "AMD EPYC 9354 32-Core Processor", 32, 384) for i in range(2)])
    broadcom = (
        "14e4:16d7",
        "Broadcom Inc. and subsidiaries",
        "BCM57414 NetXtreme-E 10Gb/25Gb RDMA Ethernet Controller",
    )
    intel = ("8086:1521", "Intel Corporation", "I350 Gigabit Network Connection")
    for i, (root, bus, name) in enumerate((("00:01.1", 0x01, "ens1f0np0"), ("80:01.1", 0x81, "ens4f0np0"))):
        card = device(f"{bus:02x}:00.0", "0200", *broadcom, net(name, f"10.1.0.{11 + i}/24", 25000))
        made.children[i].add(host_bridge(bus & 0x80, (bus & 0x80) + 0x3F, bridge(root, bus, bus, 1, "1022:14ab", card)))
    port = device("42:00.0", "0200", *intel, net("eno1", "", state="down"))
    made.children[0].add(host_bridge(0x40, 0x7F, bridge("40:03.1", 0x42, 0x42, 1, "1022:14ab", port)))
    return made.add(loopback(), virtual("virbr0", "bridge", "192.168.122.1/24", "no carrier"), docker())


H100 = ("0302", "10de:2330", "NVIDIA Corporation", "GH100 [H100 SXM5 80GB]")


def nvswitches(buses: list[int]) -> list[Object]:
    made = [
        device(f"{bus:02x}:00.0", "0680", "10de:22a3", "NVIDIA Corporation", "GH100 [H100 NVSwitch]") for bus in buses
    ]
    for one in made:
        one.attributes["subtype"] = "NVSwitch"
    return made


def link_gpus(top: Object, identity: str, nvlink: str, atomics: str) -> Object:
    """What `odc topo --save` records of GPUs that all are linked alike, and read each other's memory."""
    gpus = every(top, identity)
    for i, gpu in enumerate(gpus):
        others = [one.attributes["pci_busid"] for one in gpus if one is not gpu]
        gpu.infos["odc.uuid"] = f"GPU-00000000-0000-0000-0000-{i:012x}"
        for name, value in (("odc.nvlink", nvlink), ("odc.p2p", "yes"), ("odc.atomics", atomics)):
            gpu.infos[name] = " ".join(f"{bus_id}={value}" for bus_id in others)
    return top


def connectx(bus: int, number: int, interface: str, network: str) -> Object:
    return device(
        f"{bus:02x}:00.0",
        "0207",
        "15b3:1021",
        "Mellanox Technologies",
        "MT2910 Family [ConnectX-7]",
        net(interface, network, 400000, kind="IPoIB"),
        rdma(f"mlx5_{number}", 400000),
    )


def dgx_h100() -> Object:
    """NVIDIA DGX H100: each GPU and its ConnectX-7 behind one PCIe switch; two more ConnectX-7 for storage."""
    made = machine("dgx-h100", [package(i, "Intel(R) Xeon(R) Platinum 8480C", 56, 1024) for i in range(2)])
    # Root bus; switch's upstream port; NIC; GPU.
    groups = [(0x15, 0x16, 0x18, 0x1B), (0x3D, 0x3E, 0x40, 0x43), (0x4C, 0x4D, 0x4F, 0x52), (0x5B, 0x5C, 0x5E, 0x61)]
    groups += [(0x97, 0x98, 0x9A, 0x9D), (0xBD, 0xBE, 0xC0, 0xC3), (0xCB, 0xCC, 0xCE, 0xD1), (0xD9, 0xDA, 0xDC, 0xDF)]
    for i, (root, up, nic, gpu) in enumerate(groups):
        inner = bridge(
            f"{up:02x}:00.0",
            up + 1,
            gpu,
            2,
            "1000:c030",
            bridge(
                f"{up + 1:02x}:00.0", nic, nic, 3, "1000:c030", connectx(nic, i, f"ibp{nic}s0", f"10.10.0.{11 + i}/16")
            ),
            bridge(f"{up + 1:02x}:01.0", gpu, gpu, 3, "1000:c030", device(f"{gpu:02x}:00.0", *H100)),
        )
        made.children[i // 4].add(host_bridge(root, gpu, bridge(f"{root:02x}:01.0", up, gpu, 1, "8086:352a", inner)))
    for i, (root, bus) in enumerate(((0x27, 0x29), (0xA8, 0xAA))):
        storage = connectx(bus, 8 + i, f"ibp{bus}s0", f"10.20.0.{11 + i}/16")
        made.children[i].add(host_bridge(root, bus, bridge(f"{root:02x}:01.0", bus, bus, 1, "8086:352a", storage)))
    intel = ("8086:1563", "Intel Corporation", "Ethernet Controller X550")
    made.children[0].add(host_bridge(0x0B, 0x14, device("0b:00.0", "0200", *intel, net("eno3", "10.0.0.21/24", 10000))))
    made.children[0].add(host_bridge(0x05, 0x0A, *nvswitches([0x06, 0x07, 0x08, 0x09])))
    return link_gpus(made.add(loopback(), docker()), "0302 [10de:2330] [0000:0000] 00", "NVSwitch:18", "yes")


def pcie_4gpu() -> Object:
    """One AMD EPYC 7443P and four RTX A6000 without NVLink, and a 100 Gbit/s RoCE card near the first."""
    made = machine("pcie-4gpu", [package(0, "AMD EPYC 7443P 24-Core Processor", 24, 256)])
    a6000 = ("0300", "10de:2230", "NVIDIA Corporation", "GA102GL [RTX A6000]")
    mellanox = ("0200", "15b3:101d", "Mellanox Technologies", "MT2892 Family [ConnectX-6 Dx]")
    aspeed = ("0300", "1a03:2000", "ASPEED Technology, Inc.", "ASPEED Graphics Family")
    intel = ("0200", "8086:1521", "Intel Corporation", "I350 Gigabit Network Connection")
    for root in (0x00, 0x40, 0x80, 0xC0):
        inside = [
            bridge(f"{root:02x}:01.1", root + 1, root + 1, 1, "1022:1483", device(f"{root + 1:02x}:00.0", *a6000))
        ]
        if root == 0:
            roce = device("02:00.0", *mellanox, net("enp2s0np0", "192.168.100.5/24", 100000), rdma("rocep2s0", 100000))
            inside.append(bridge("00:03.1", 2, 2, 1, "1022:1483", roce))
        if root == 0xC0:
            board = [
                device("c2:00.0", *intel, net("eno1", "10.0.0.31/24", 1000)),
                device("c2:00.1", *intel, net("eno2", "", state="down")),
            ]
            inside.append(bridge("c0:03.1", 0xC2, 0xC2, 1, "1022:1483", *board))
            inside.append(bridge("c0:05.2", 0xC4, 0xC4, 1, "1022:1483", device("c4:00.0", *aspeed)))
        made.children[0].add(host_bridge(root, root + 0x3F, *inside))
    return link_gpus(made.add(loopback(), docker()), "0300 [10de:2230] [0000:0000] 00", "no", "no")


def efa_cloud() -> Object:
    """Like AWS p5.48xlarge: eight H100, each with four EFA devices behind its PCIe switch, and ENA for IP."""
    made = machine("efa-cloud", [package(i, "AMD EPYC 7R13 Processor", 48, 1024) for i in range(2)])
    for i, first in enumerate((0x4F, 0x60, 0x71, 0x82, 0x93, 0xA4, 0xB5, 0xC6)):
        root, gpu = first - 3, first + 4
        inside = []
        for bus in range(first, gpu):
            efa = device(
                f"{bus:02x}:00.0",
                "0200",
                "1d0f:efa2",
                "Amazon.com, Inc.",
                "Elastic Fabric Adapter (EFA)",
                rdma(f"rdmap{bus}s0", 100000),
            )
            inside.append(bridge(f"{first - 1:02x}:{bus - first:02x}.0", bus, bus, 3, "1d0f:0200", efa))
        inside.append(bridge(f"{first - 1:02x}:04.0", gpu, gpu, 3, "1d0f:0200", device(f"{gpu:02x}:00.0", *H100)))
        switch = bridge(f"{first - 2:02x}:00.0", first - 1, gpu, 2, "1d0f:0200", *inside)
        made.children[i // 4].add(
            host_bridge(root, gpu, bridge(f"{root:02x}:01.0", first - 2, gpu, 1, "1d0f:0200", switch))
        )
    ena = device(
        "20:00.0",
        "0200",
        "1d0f:ec20",
        "Amazon.com, Inc.",
        "Elastic Network Adapter (ENA)",
        net("ens32", "172.31.5.10/20 fe80::85d:e1ff:fe2b:77aa/64"),
    )
    made.children[0].add(host_bridge(0x10, 0x2F, ena))
    made.children[0].add(host_bridge(0x30, 0x3F, *nvswitches([0x31, 0x32, 0x33, 0x34])))
    return made.add(loopback(), docker())


def arm_board() -> Object:
    """Raspberry Pi 4: no PCI NIC, IPv6 only, Wi-Fi switched off."""
    made = machine("arm-board", [package(0, "Cortex-A72", 4, 8)], "aarch64")
    wlan = virtual("wlan0", "Wi-Fi", "", "down")
    return made.add(
        virtual("eth0", "Ethernet", "2001:db8:7::4/64 fe80::dea6:32ff:fe01:203/64", speed=1000), wlan, loopback()
    )


def every(top: Object, wanted: str) -> list[Object]:
    here = [top] if wanted in (top.attributes.get("pci_type", ""), top.attributes.get("subtype", "")) else []
    return here + [one for child in top.children for one in every(child, wanted)]


def nvlink(top: Object) -> list[str]:
    """Each H100 with 18 links of 26562 MB/s, divided over four switches, as hwloc's NVML component measures them: of a
    machine of which NVML itself is not recorded, as lstopo does."""
    gpus, switches = every(top, "0302 [10de:2330] [0000:0000] 00"), every(top, "NVSwitch")
    if not switches or "odc.nvlink" in gpus[0].infos:
        return []
    objects = gpus + switches
    links = [5, 4, 4, 5]
    names = " ".join(f"PCIDev:{one.gp_index}" for one in objects)
    values = []
    for i in range(len(objects)):
        for j in range(len(objects)):
            pair = (i >= len(gpus)) != (j >= len(gpus))
            values.append(str(26562 * links[max(i, j) - len(gpus)] if pair else 0))
    text = " ".join(values)
    return [
        f' <distances2hetero nbobjs="{len(objects)}" kind="25" name="NVLinkBandwidth">',
        f'  <indexes length="{len(names)}">{names}</indexes>',
        f'  <u64values length="{len(text)}">{text}</u64values>',
        " </distances2hetero>",
    ]


def main() -> None:
    for make in (laptop, dual_socket, dgx_h100, pcie_4gpu, efa_cloud, arm_board):
        top = make()
        top.numbered(count(1))
        head = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">']
        # As an attribute: hwloc's own parser, used where libxml2 cannot be had, knows no comments.
        top.infos["odc.about"] = f"{make.__doc__} Written by machines.py. SPDX-License-Identifier: Apache-2.0"
        lines = [*head, '<topology version="2.0">', *top.lines(1), *nvlink(top), "</topology>"]
        path = Path(__file__).with_name(make.__name__.replace("_", "-") + ".xml")
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
