// SPDX-License-Identifier: Apache-2.0
// The choice of routes: both ranks of a pair always agree, the order of preference, and what ODC_REQUIRE reports.
#include "routing/route.h"
#include "base/error.h"
#include "routing/providers.h"
#include "routing/transport_table.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <set>

extern "C" {
#include <cmocka.h>
uint64_t test_seed(void);  // from ranks.h, which is C only
}

namespace {

using namespace odc;

uint16_t bit_of(const std::string &provider) {
    const auto row = std::find_if(kProviders.begin(), kProviders.end(),
                                  [&](const ProviderRow &one) { return provider == one.name; });
    assert_true(row != kProviders.end());
    return static_cast<uint16_t>(1U << (row - kProviders.begin()));
}

uint32_t bit_of_transport(const char *name) { return transport_bit(transport_row(name)); }

NicAddress nic(const char *provider, const char *name, const char *network, uint32_t speed = 0,
               Nearness distance = Nearness::NumaNode, NicKind kind = NicKind::Ethernet) {
    NicAddress made{};
    made.providers = bit_of(provider);
    std::strncpy(made.name, name, sizeof(made.name) - 1);
    const Network parsed = parse_network(network);
    std::copy(parsed.address.begin(), parsed.address.end(), made.address);
    made.family = static_cast<uint8_t>(parsed.family);
    made.prefix = static_cast<uint8_t>(parsed.prefix);
    made.speed = speed;
    made.distance = static_cast<uint8_t>(distance);
    made.kind = static_cast<uint8_t>(kind);
    return made;
}

RankDescriptor rank(int number, const std::string &host, std::vector<NicAddress> nics) {
    RankDescriptor made;
    made.rank = number;
    made.host = made.identity = host;
    made.nics = std::move(nics);
    return made;
}

// "eth0 -> eth1", or the reasons why there is none.
std::string nics_taken(const RankDescriptor &mine, const RankDescriptor &theirs) {
    const RouteChoice choice = choose_route({mine, theirs}, MemoryKind::Host);
    return choice.my_nic < 0 ? why_not_text(choice)
                             : formatted("{} -> {}", mine.nics[static_cast<size_t>(choice.my_nic)].name,
                                         theirs.nics[static_cast<size_t>(choice.their_nic)].name);
}

void assert_says(const std::string &sentence, const char *text) {
    if (sentence.find(text) == std::string::npos) {
        fail_msg("\"%s\" does not say \"%s\"", sentence.c_str(), text);
    }
}

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    int below(int limit) { return static_cast<int>(engine_() % static_cast<uint64_t>(limit)); }
    template <class T>
    T of(std::initializer_list<T> list) {
        return list.begin()[below(static_cast<int>(list.size()))];
    }

private:
    std::mt19937_64 engine_;
};

// From few values, so that equal ones are frequent.
RankDescriptor random_rank(Random &random, int number) {
    RankDescriptor made = rank(number, random.of({"a", "b"}), {});
    made.identity = random.of({"a", "b", "c"});
    made.index = random.below(9);
    made.transports = random.of(
        {kAllTransports, kAllTransports, kAllTransports, bit_of_transport("shm"), bit_of_transport("fabric")});
    made.why_no_fabric = random.of({"", "", "", "", "libfabric was not found"});
    for (int i = random.below(9); i > 0; --i) {
        NicAddress one = nic(random.of({"tcp;ofi_rxm", "tcp;ofi_rxm", "verbs;ofi_rxm", "efa", "net", "psm3"}),
                             random.of({"eth0", "eth1", "mlx5_0"}),
                             random.of({"", "10.0.0.1/24", "10.0.0.2/24", "10.0.1.1/24", "fd00::1/64", "fe80::1/64"}),
                             random.of({0U, 1000U, 100000U}), random.of({Nearness::Switch, Nearness::OtherPackage}),
                             random.of({NicKind::Ethernet, NicKind::RoCE, NicKind::InfiniBand, NicKind::Tunnel}));
        made.nics.push_back(one);
    }
    return made;
}

void both_ranks_agree(void **) {
    const uint64_t seed = test_seed();
    Random random(seed);
    int routes = 0;
    for (int round = 0; round < 20000; ++round) {
        const RankDescriptor a = random_rank(random, random.below(3));
        const RankDescriptor b = random_rank(random, a.rank + 1 + random.below(3));
        const RouteChoice mine = choose_route({a, b}, MemoryKind::Host);
        const RouteChoice theirs = choose_route({b, a}, MemoryKind::Host);
        assert_true(mine.transport == theirs.transport);
        assert_int_equal(mine.my_nic, theirs.their_nic);
        assert_int_equal(mine.their_nic, theirs.my_nic);
        assert_int_equal(mine.why_not.size(), theirs.why_not.size());
        assert_int_equal(mine.why_not.size() + (mine.transport.empty() ? 0 : 1),
                         kTransports.size() - 1);  // cuda does not move host memory
        for (size_t i = 0; i < mine.why_not.size(); ++i) {
            assert_true(mine.why_not[i].transport == theirs.why_not[i].transport);
            assert_true(!mine.why_not[i].why.empty() && !theirs.why_not[i].why.empty());
        }
        assert_true(mine.transport.empty() == mine.why.empty());
        assert_true((mine.transport == "fabric") == (mine.my_nic >= 0));
        routes += mine.my_nic >= 0 ? 1 : 0;
    }
    assert_true(routes > 2000);
}

// The kernel's hfi1_3 is ib3 in libfabric's opx.
void a_domain_may_have_another_name_than_its_nic(void **) {
    Machine machine;
    machine.numa_nodes.emplace_back();
    for (const auto &[name, kind] : {std::pair("hfi1_3", NicKind::OmniPath), {"rdmap0s6", NicKind::Efa}}) {
        Nic nic;
        nic.name = name;
        nic.kind = kind;
        nic.state = NicState::Up;
        machine.nics.push_back(nic);
    }
    const NicAddresses found = nic_addresses_of(machine, {}, read_route_options(),
                                                {{"opx", "ib3", ""}, {"efa", "rdmap0s6-rdm", "", ReadMode::Staged}});
    assert_int_equal(found.nics.size(), 2);
    for (const NicAddress &one : found.nics) {
        const bool is_opx = std::strcmp(provider_of(one).name, "opx") == 0;
        assert_string_equal(domain_of(one).c_str(), is_opx ? "ib3" : "rdmap0s6-rdm");
        assert_string_equal(one.name, is_opx ? "hfi1_3" : "rdmap0s6");
    }
}

// A libfabric with provider tcp alone meets one that has tcp only under ofi_rxm.
void ranks_negotiate_a_provider_that_all_have(void **) {
    NicAddress of_1_17 = nic("tcp;ofi_rxm", "eth0", "10.0.0.1/24");
    of_1_17.providers |= bit_of("net");
    of_1_17.staged = bit_of("tcp;ofi_rxm");
    NicAddress of_2_1 = of_1_17;
    of_2_1.providers = bit_of("tcp") | bit_of("tcp;ofi_rxm");
    const NicAddress roce = nic("verbs;ofi_rxm", "mlx5_0", "10.2.0.1/24", 0, Nearness::Switch, NicKind::RoCE);
    RankDescriptor a = rank(0, "a", {roce, of_2_1});
    RankDescriptor b = rank(1, "b", {of_2_1});
    const RankDescriptor without = rank(2, "c", {});
    RankDescriptor c = without;
    assert_string_equal(negotiate_providers({&a, &b, &c}).c_str(), "");
    for (const NicAddress &one : {a.nics[1], b.nics[0]}) {
        assert_int_equal(one.providers, bit_of("tcp"));
        assert_true(read_mode_of(one) == ReadMode::Direct);
    }
    assert_int_equal(a.nics[0].providers, bit_of("verbs;ofi_rxm"));
    // A rank with a provider on one NIC only (FI_TCP_IFACE=eth0) still meets the others there.
    NicAddress eth1 = nic("net", "eth1", "10.1.0.1/24");
    a.nics = {of_2_1};
    c.nics = {eth1, of_1_17};
    assert_string_equal(
        negotiate_providers({&a, &c}).c_str(),
        "all ranks of a job use one provider of plain Ethernet, here tcp;ofi_rxm, which eth1 of rank 2 does "
        "not have (FI_TCP_IFACE narrows it)");
    assert_int_equal(a.nics[0].providers, bit_of("tcp;ofi_rxm"));
    assert_int_equal(c.nics[0].providers, bit_of("net"));
    assert_int_equal(c.nics[1].providers, bit_of("tcp;ofi_rxm"));
    assert_string_equal(nics_taken(a, c).c_str(), "eth0 -> eth0");
    assert_true(choose_route({a, c}, MemoryKind::Host).read_mode == ReadMode::Staged);
    // Where there is no common provider, the error says which rank lacks it.
    a.nics = {of_1_17};
    b.nics = {of_2_1};
    c = rank(2, "c", {eth1});
    assert_string_equal(
        negotiate_providers({&a, &b, &c}).c_str(),
        "all ranks of a job use one provider of plain Ethernet; rank 2 has net, but those before it share "
        "only tcp;ofi_rxm");
    assert_says(nics_taken(a, c), "rank 0 has eth0 by tcp;ofi_rxm in 10.0.0.1/24; rank 2 has eth1 by net in ");
}

// Whichever pairs have failed the reachability probe; none is tried twice.
void an_unreachable_pair_is_not_chosen_again(void **) {
    const uint64_t seed = test_seed();
    Random random(seed);
    int second_choices = 0;
    for (int round = 0; round < 3000; ++round) {
        const RankDescriptor a = random_rank(random, 0);
        const RankDescriptor b = random_rank(random, 1);
        std::vector<NicPair> of_a;
        std::vector<NicPair> of_b;
        RouteChoice choice = choose_route({a, b}, MemoryKind::Host);
        const RouteChoice first = choice;
        for (; choice.my_nic >= 0; choice = choose_route({a, b, of_a}, MemoryKind::Host)) {
            for (const NicPair &tried : of_a) {
                assert_true(tried.mine != choice.my_nic || tried.theirs != choice.their_nic);
            }
            assert_int_equal(choice.their_nic, choose_route({b, a, of_b}, MemoryKind::Host).my_nic);
            assert_int_equal(choice.my_nic, choose_route({b, a, of_b}, MemoryKind::Host).their_nic);
            second_choices += of_a.empty() ? 0 : 1;
            of_a.push_back({choice.my_nic, choice.their_nic});
            of_b.push_back({choice.their_nic, choice.my_nic});
        }
        if (first.my_nic >= 0) {
            assert_says(why_not_text(choice), "tried without an answer: ");
        }
    }
    assert_true(second_choices > 500);
}

void hosts_and_settings_decide_the_transport(void **) {
    const std::vector<NicAddress> nics = {nic("tcp;ofi_rxm", "eth0", "10.0.0.1/24")};
    RankDescriptor a = rank(0, "a", nics);
    RankDescriptor b = rank(1, "a", nics);
    assert_true(choose_route({a, a}, MemoryKind::Host).transport == "shm");
    assert_true(choose_route({a, b}, MemoryKind::Host).transport == "shm");
    assert_says(why_not_text(choose_route({a, b}, MemoryKind::Host)), "fabric: never inside a host");
    b.identity = std::string("another namespace");
    assert_true(choose_route({a, b}, MemoryKind::Host).transport == "fabric");
    assert_says(
        why_not_text(choose_route({a, b}, MemoryKind::Host)),
        "shm: rank 1 is on a host of the same name, but their kernel, network namespace, user and ODC_HOST_ID are not "
        "all the same");
    b.host = std::string("b");
    assert_says(why_not_text(choose_route({a, b}, MemoryKind::Host)), "shm: rank 1 is on another host (b)");
    b.transports = bit_of_transport("shm");
    assert_true(choose_route({a, b}, MemoryKind::Host).transport.empty());
    assert_says(why_not_text(choose_route({a, b}, MemoryKind::Host)), "fabric: ODC_TRANSPORTS of rank 1 leaves it out");
    b.transports = kAllTransports;
    b.why_no_fabric = "libfabric was not found";
    assert_says(why_not_text(choose_route({a, b}, MemoryKind::Host)),
                "fabric: rank 1 cannot use it: libfabric was not found");
    a.identity = b.identity;
    a.transports = bit_of_transport("fabric");
    assert_true(choose_route({a, b}, MemoryKind::Host).transport.empty());
    assert_says(why_not_text(choose_route({a, b}, MemoryKind::Host)), "shm: ODC_TRANSPORTS of rank 0 leaves it out");
    assert_true(choose_route({a, a}, MemoryKind::Host).transport == "shm");  // itself
}

// "cuda, direct: P2P; shm: cuda is faster; fabric: never inside a host"
std::string gpu_route(const RankPair &pair) {
    const RouteChoice choice = choose_route(pair, MemoryKind::Gpu);
    return formatted("{}, {}: {}; {}", choice.transport, access_of(choice), choice.why, why_not_text(choice));
}

void assert_gpu_route(const RankPair &pair, std::initializer_list<const char *> texts) {
    for (const char *one : texts) {
        assert_says(gpu_route(pair), one);
    }
}

void gpu_memory_takes_the_first_row_that_reaches_it(void **) {
    RankDescriptor a = rank(0, "a", {nic("tcp;ofi_rxm", "eth0", "10.0.0.1/24")});
    RankDescriptor b = rank(1, "a", {});
    a.gpu = "cuda:0";
    assert_gpu_route({a, b},
                     {", none: rank 1 has no GPU (config.device or ODC_DEVICE names it); cuda: rank 1 has no GPU (",
                      "; shm: it moves host memory only", "; fabric: it moves host memory only"});
    b.gpu = "cuda:1";
    assert_gpu_route({a, b, {}, {"P2P", ""}},
                     {"cuda, direct: P2P; shm: cuda is faster", "; fabric: never inside a host"});
    assert_gpu_route({a, b, {}, {"", "no P2P"}},
                     {"shm, staged: through host memory, as no P2P; cuda: no P2P", "; fabric: never inside a host"});
    b.transports = bit_of_transport("cuda");
    assert_gpu_route({a, b, {}, {"", "no P2P"}},
                     {", none: no P2P; cuda: no P2P; shm: ODC_TRANSPORTS of rank 1 leaves it out"});
    a.transports = bit_of_transport("fabric");
    assert_gpu_route({a, a, {}, {"the same GPU", ""}}, {"cuda, direct: the same GPU; "});  // itself
    a.transports = b.transports = kAllTransports;
    b.host = b.identity = std::string("b");
    b.nics = a.nics;
    assert_gpu_route({a, b}, {"fabric, staged: through host memory; tcp;ofi_rxm from eth0 to eth0: ",
                              "; cuda: rank 1 is on another host (b); shm: rank 1 is on another host (b)"});
    a.why_no_gpu_direct = "";
    assert_gpu_route({a, b}, {"through host memory of rank 1, as ODC_GPU_DIRECT is not 1; tcp;ofi_rxm from "});
}

void better_nics_are_preferred(void **) {
    const NicAddress slow = nic("tcp;ofi_rxm", "slow", "10.0.0.1/24", 1000);
    const NicAddress fast = nic("tcp;ofi_rxm", "fast", "10.0.1.1/24", 100000);
    const NicAddress routed = nic("tcp;ofi_rxm", "routed", "10.9.0.1/24", 400000);
    const NicAddress verbs = nic("verbs;ofi_rxm", "roce", "10.2.0.1/24", 100, Nearness::OtherPackage, NicKind::RoCE);
    const NicAddress tunnel = nic("tcp;ofi_rxm", "tun0", "10.3.0.1/24", 400000, Nearness::Self, NicKind::Tunnel);
    const NicAddress link = nic("tcp;ofi_rxm", "link", "fe80::1/64", 400000, Nearness::Self);
    const auto taken = [](std::vector<NicAddress> mine, std::vector<NicAddress> theirs) {
        return nics_taken(rank(0, "a", std::move(mine)), rank(1, "b", std::move(theirs)));
    };
    assert_string_equal(taken({slow, fast}, {slow, fast}).c_str(), "fast -> fast");
    // The same subnet comes before speed; the slower end's speed counts.
    assert_string_equal(taken({slow, routed}, {slow}).c_str(), "slow -> slow");
    NicAddress slow_end = fast;
    slow_end.speed = 10;
    assert_string_equal(taken({slow, fast}, {slow, slow_end}).c_str(), "slow -> slow");
    // RDMA first, tunnels after routers, link-local addresses last.
    assert_string_equal(taken({fast, verbs}, {fast, verbs}).c_str(), "roce -> roce");
    assert_string_equal(taken({tunnel, fast}, {tunnel, routed}).c_str(), "fast -> routed");
    assert_string_equal(taken({link, tunnel}, {link, tunnel}).c_str(), "tun0 -> tun0");
    assert_string_equal(taken({link}, {link}).c_str(), "link -> link");
    // At equal speed the nearer NIC.
    NicAddress near = fast;
    std::strcpy(near.name, "near");
    near.distance = static_cast<uint8_t>(Nearness::Switch);
    assert_string_equal(taken({fast, near}, {fast}).c_str(), "near -> fast");
    assert_says(taken({fast}, {routed}), "fast -> routed");
    assert_says(choose_route({rank(0, "a", {fast}), rank(1, "b", {routed})}, MemoryKind::Host).why,
                "by the routing table (10.0.1.1/24 to 10.9.0.1/24), 100 Gbit/s");
}

void what_does_not_reach_is_explained(void **) {
    const NicAddress tcp = nic("tcp;ofi_rxm", "eth0", "10.0.0.1/24");
    const NicAddress v6 = nic("tcp;ofi_rxm", "eth1", "fd00::1/64");
    const NicAddress link = nic("tcp;ofi_rxm", "eth2", "fe80::1/64");
    const NicAddress efa = nic("efa", "rdmap79s0", "", 0, Nearness::Switch, NicKind::Efa);
    const NicAddress roce = nic("verbs;ofi_rxm", "mlx5_0", "10.0.0.1/24", 0, Nearness::Switch, NicKind::RoCE);
    NicAddress infiniband = roce;
    infiniband.kind = static_cast<uint8_t>(NicKind::InfiniBand);
    NicAddress other_infiniband = infiniband;
    other_infiniband.address[2] = 7;
    const auto taken = [](const NicAddress &mine, const NicAddress &theirs) {
        return nics_taken(rank(0, "a", {mine}), rank(1, "b", {theirs}));
    };
    for (const auto &[mine, theirs] : {std::pair(tcp, v6), std::pair(v6, link), std::pair(tcp, efa),
                                       std::pair(roce, infiniband), std::pair(infiniband, other_infiniband)}) {
        assert_says(taken(mine, theirs), "no two NICs reach each other: rank 0 has ");
        assert_says(taken(mine, theirs), theirs.name);
        assert_says(taken(theirs, mine), "no two NICs reach each other: rank 0 has ");
    }
    assert_says(taken(tcp, efa), "rank 0 has eth0 by tcp;ofi_rxm in 10.0.0.1/24; rank 1 has rdmap79s0 by efa");
    assert_says(nics_taken(rank(0, "a", {}), rank(1, "b", {tcp})), "rank 0 has no NIC that can be used");
}

void ranks_of_a_host_are_spread_over_equals(void **) {
    std::vector<NicAddress> rails;
    std::vector<NicAddress> one_subnet;
    for (int i = 0; i < 4; ++i) {
        rails.push_back(nic("tcp;ofi_rxm", formatted("eth{}", i).c_str(), formatted("10.0.{}.1/24", i).c_str(), 100));
        one_subnet.push_back(
            nic("tcp;ofi_rxm", formatted("eth{}", i).c_str(), formatted("10.0.0.{}/24", i + 1).c_str(), 100));
    }
    for (const std::vector<NicAddress> &nics : {rails, one_subnet}) {
        std::set<std::string> taken;
        for (int i = 0; i < 8; ++i) {
            RankDescriptor mine = rank(i, "a", nics);
            RankDescriptor theirs = rank(8, "b", nics);
            mine.index = i;
            taken.insert(nics_taken(mine, theirs));
            assert_says(choose_route({mine, theirs}, MemoryKind::Host).why, "one of 4 equal NICs");
        }
        assert_int_equal(taken.size(), 4);
    }
}

void requirements_are_held(void **) {
    const RankDescriptor tcp = rank(0, "a", {nic("tcp;ofi_rxm", "eth0", "10.0.0.1/24")});
    RankDescriptor other = rank(1, "b", {nic("tcp;ofi_rxm", "eth0", "10.0.0.2/24")});
    const NicAddress efa = nic("efa", "rdmap79s0", "", 0, Nearness::Switch, NicKind::Efa);
    const auto unmet = [](uint32_t requirements, const RankDescriptor &a, const RankDescriptor &b) {
        RouteOptions options;
        options.requirements = requirements;
        return unmet_requirement(choose_route({a, b}, MemoryKind::Host), a, b, options, {{"mlx5_0", "it is down"}});
    };
    const auto bit = [](Requirement one) { return 1U << static_cast<unsigned>(one); };
    const uint32_t all = bit(Requirement::Shm) | bit(Requirement::NvLink) | bit(Requirement::Rdma);
    assert_string_equal(unmet(0, tcp, other).c_str(), "");
    const std::string rdma = unmet(bit(Requirement::Rdma), tcp, other);
    for (const char *text : {"ODC_REQUIRE asks for rdma (between hosts:", "rank 0 (host a) and rank 1 (host b)",
                             "tcp;ofi_rxm from eth0 to eth0", "mlx5_0: it is down"}) {
        assert_says(rdma, text);
    }
    assert_string_equal(unmet(bit(Requirement::Shm) | bit(Requirement::NvLink), tcp, other).c_str(), "");
    assert_string_equal(unmet(all, rank(0, "a", {efa}), rank(1, "b", {efa})).c_str(), "");
    assert_string_equal(unmet(all, tcp, tcp).c_str(), "");
    other.host = std::string("a");
    assert_says(unmet(bit(Requirement::Shm), tcp, other), "ODC_REQUIRE asks for shm (inside a host: shared memory)");
    other.identity = std::string("a");
    assert_string_equal(unmet(bit(Requirement::Shm) | bit(Requirement::Rdma), tcp, other).c_str(), "");
    assert_string_equal(unmet(bit(Requirement::NvLink), tcp, other).c_str(), "");  // concerns GPUs only
    const RankDescriptor alone = rank(1, "b", {});
    assert_says(unmet(0, tcp, alone), "no transport connects rank 0 (host a) and rank 1 (host b): shm: rank 1 is on");
}

void long_lists_are_cut(void **) {
    std::vector<NicAddress> mine;
    std::vector<NicAddress> theirs;
    std::vector<Refusal> refused;
    for (int i = 0; i < 18; ++i) {
        mine.push_back(nic("tcp;ofi_rxm", formatted("eth{}", i).c_str(), formatted("10.0.{}.1/24", i).c_str()));
        theirs.push_back(nic("tcp;ofi_rxm", formatted("net{}", i).c_str(), formatted("fd00:{}::1/64", i).c_str()));
        refused.push_back({formatted("mlx5_{}", i), "it is down"});
    }
    const RankDescriptor a = rank(0, "a", mine);
    const RankDescriptor b = rank(1, "b", theirs);
    const std::string sentence = unmet_requirement(choose_route({a, b}, MemoryKind::Host), a, b, {}, refused);
    for (const char *text : {"eth3 by tcp;ofi_rxm in 10.0.3.1/24, and 14 more; rank 1 has net0 ",
                             "; NICs not used here: mlx5_0: it is down; ", "mlx5_3: it is down; and 14 more"}) {
        assert_says(sentence, text);
    }
    std::vector<NicPair> unreachable;
    for (int i = 0; i < 18; ++i) {
        for (int j = 0; j < 18; ++j) {
            unreachable.push_back({i, j});
        }
    }
    const RankDescriptor like = rank(1, "b", mine);
    assert_says(why_not_text(choose_route({a, like, unreachable}, MemoryKind::Host)),
                ", and 320 more (a cable, a VLAN or a firewall");
}

// The error for a setting's value; "": it is accepted.
std::string refused(const char *name, const char *value) {
    setenv(name, value, 1);
    std::string sentence;
    try {
        read_route_options();
    } catch (const Error &error) {
        assert_int_equal(error.status(), ODC_ERROR_ARGUMENT);
        sentence = error.what();
    }
    unsetenv(name);
    return sentence;
}

void settings_are_read_strictly(void **) {
    assert_int_equal(read_route_options().transports, kAllTransports);
    setenv("ODC_TRANSPORTS", "fabric", 1);
    setenv("ODC_PROVIDER", "net,verbs,tcp", 1);
    setenv("ODC_REQUIRE", "rdma,shm", 1);
    setenv("ODC_INTERFACE", "eth0,mlx5_0", 1);
    const RouteOptions options = read_route_options();
    assert_int_equal(options.transports, bit_of_transport("fabric"));
    assert_true((options.providers == std::vector<std::string>{"net", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm"}));
    assert_true((options.interfaces == std::vector<std::string>{"eth0", "mlx5_0"}));
    assert_true(options.requires_that(Requirement::Rdma) && options.requires_that(Requirement::Shm));
    assert_false(options.requires_that(Requirement::NvLink));
    for (const char *name : {"ODC_TRANSPORTS", "ODC_PROVIDER", "ODC_REQUIRE", "ODC_INTERFACE"}) {
        unsetenv(name);
        for (const char *value : {",", "a,", ",a", "a,,b", " ", "a, b"}) {
            assert_says(refused(name, value), "names with a comma and no space between them");
        }
    }
    assert_says(refused("ODC_TRANSPORTS", "shm,ib"),
                "ODC_TRANSPORTS=\"shm,ib\" is wrong: \"ib\" is none of cuda, shm, ");
    assert_says(refused("ODC_PROVIDER", "TCP"),
                "is none of cxi, efa, opx, verbs, verbs;ofi_rxm, psm3, tcp, tcp;ofi_rxm, net");
    assert_says(refused("ODC_REQUIRE", "ib"), "is none of shm, nvlink, rdma");
}

// What moves host memory has a way to a peer's, and only that.
void each_transport_of_host_memory_connects(void **) {
    for (const TransportRow &row : kTransports) {
        assert_int_equal(row.host_memory == nullptr, row.connect == nullptr);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(each_transport_of_host_memory_connects),
        cmocka_unit_test(both_ranks_agree),
        cmocka_unit_test(a_domain_may_have_another_name_than_its_nic),
        cmocka_unit_test(ranks_negotiate_a_provider_that_all_have),
        cmocka_unit_test(an_unreachable_pair_is_not_chosen_again),
        cmocka_unit_test(hosts_and_settings_decide_the_transport),
        cmocka_unit_test(gpu_memory_takes_the_first_row_that_reaches_it),
        cmocka_unit_test(better_nics_are_preferred),
        cmocka_unit_test(what_does_not_reach_is_explained),
        cmocka_unit_test(ranks_of_a_host_are_spread_over_equals),
        cmocka_unit_test(requirements_are_held),
        cmocka_unit_test(long_lists_are_cut),
        cmocka_unit_test(settings_are_read_strictly),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
