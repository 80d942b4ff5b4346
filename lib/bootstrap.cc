// SPDX-License-Identifier: Apache-2.0
#include "bootstrap.h"

#include <sodium.h>

#include <cstring>

#include "exchange.h"
#include "launcher.h"
#include "rank_block.h"
#include "settings.h"
#include "topology.h"

namespace odc {

namespace {

constexpr int64_t kMostMs = int64_t{1} << 40;
constexpr int kMostRanks = 1 << 20;

// What a rank tells all others before they share memory.
struct CardContent {
    uint64_t magic;
    int32_t rank;
    int32_t size;
    char identity[96];
    char host[64];
    char group[48];           // cut; only to notice that two groups meet by mistake
    unsigned char nonce[16];  // rank 0's names the meeting; random, so no leftover of another job knows it
};
static_assert(sizeof(CardContent) <= sizeof(Card));

struct Plan {
    Place place;
    std::string group;
    std::string rendezvous;
    std::string secret;
    odc_all_gather_fn all_gather;
    void *all_gather_arg;
};

Plan make_plan(const odc_config &config) {
    Plan plan{{}, {}, {}, {}, config.all_gather, config.all_gather_arg};
    if (config.size < 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: size is ", config.size, ", must be 1 or more");
    }
    if (config.size > kMostRanks) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: size is ", config.size, ", at most ", kMostRanks, " ranks are possible");
    }
    if (config.size == 0 && config.rank != 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: rank ", config.rank, " is given without a size");
    }
    if (config.size > 0) {
        if (config.rank < 0 || config.rank >= config.size) {
            fail(ODC_ERROR_ARGUMENT, "odc_init: rank ", config.rank, " is not in 0..", config.size - 1);
        }
        // A launcher's job id still helps ranks that were numbered by the caller to meet.
        if (config.job == nullptr && config.size > 1 && config.all_gather == nullptr) {
            plan.place = find_place();
        }
        plan.place.rank = config.rank;
        plan.place.size = config.size;
    } else {
        plan.place = find_place();
        if (plan.place.launcher.empty()) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init: no launcher is found and the config gives no rank and size; start the program with odc run "
                 "-n N, torchrun, mpirun or srun, or set config.rank, config.size and config.job");
        }
    }
    if (config.job != nullptr) {
        plan.place.job = config.job;
        plan.place.one_host = true;
    }
    if (config.group != nullptr && config.group[0] != '\0') {
        plan.group = config.group;
        plan.place.job += "/" + plan.group;
    }
    plan.rendezvous = config.rendezvous != nullptr ? config.rendezvous : setting(Setting::kRendezvous);
    plan.secret = config.secret != nullptr ? config.secret : setting(Setting::kSecret);
    return plan;
}

[[noreturn]] void fail_no_way(const Plan &plan) {
    const std::string launcher = plan.place.launcher.empty() ? "config" : plan.place.launcher;
    fail(ODC_ERROR_RENDEZVOUS, "odc_init: ", launcher, " says that there are ", plan.place.size,
         " ranks, but not that all are on this host; give config.all_gather (MPI or a torch store), or ODC_RENDEZVOUS="
         "host:port of rank 0 with ODC_SECRET, or (one host) config.job; PMIx: ",
         why_not_pmix());
}

std::vector<Card> exchange(const Plan &plan, const Card &mine, const Patience &patience) {
    const Place &place = plan.place;
    if (plan.all_gather != nullptr) {
        return exchange_callback(plan.all_gather, plan.all_gather_arg, place.size, mine);
    }
    if (!plan.rendezvous.empty()) {
        if (plan.secret.empty()) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: a meeting at ", plan.rendezvous,
                 " needs a secret that all ranks share; set ODC_SECRET or config.secret");
        }
        return exchange_tcp(plan.rendezvous, plan.secret, place.rank, place.size, mine, patience);
    }
    if (why_not_pmix() != nullptr) {
        fail_no_way(plan);
    }
    return exchange_pmix(place.rank, place.size, mine, patience);
}

// Every rank's card, checked; its own alone when the job's name is all that is needed.
std::vector<CardContent> meet_by_cards(const Plan &plan, const Patience &patience) {
    if (sodium_init() < 0) {
        fail(ODC_ERROR_SYSTEM, "libsodium found no source of random numbers");
    }
    CardContent content{};
    content.magic = kRankBlockMagic;
    content.rank = plan.place.rank;
    content.size = plan.place.size;
    std::strncpy(content.identity, host_identity().c_str(), sizeof(content.identity) - 1);
    std::strncpy(content.host, host_name().c_str(), sizeof(content.host) - 1);
    std::strncpy(content.group, plan.group.c_str(), sizeof(content.group) - 1);
    randombytes_buf(content.nonce, sizeof(content.nonce));
    Card mine{};
    std::memcpy(mine.data(), &content, sizeof(content));
    std::vector<CardContent> all;
    for (const Card &card : exchange(plan, mine, patience)) {
        std::memcpy(&all.emplace_back(), card.data(), sizeof(CardContent));
    }
    for (int rank = 0; rank < plan.place.size; ++rank) {
        CardContent &one = all[static_cast<size_t>(rank)];
        one.identity[sizeof(one.identity) - 1] = one.host[sizeof(one.host) - 1] = one.group[sizeof(one.group) - 1] =
            '\0';
        if (one.magic != kRankBlockMagic) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " uses another version of libodc");
        }
        if (one.rank != rank || one.size != plan.place.size) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: in place ", rank, " of ", plan.place.size,
                 " a process says that it is rank ", one.rank, " of ", one.size,
                 "; give each process its own rank, and all one size");
        }
        if (std::strcmp(one.group, content.group) != 0) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " joins group \"", one.group, "\", this rank \"",
                 content.group, "\"; join groups in the same order everywhere");
        }
    }
    return all;
}

std::string hex(const unsigned char *bytes, size_t count) {
    std::string text(2 * count + 1, '\0');
    sodium_bin2hex(text.data(), text.size(), bytes, count);
    text.pop_back();
    return text;
}

std::unique_ptr<Arena> make_arena(const Place &place) {
    std::unique_ptr<Arena> arena = Arena::create();
    auto *block = new (arena->record(arena->allocate_record(sizeof(RankBlock)))) RankBlock{};
    block->rank = place.rank;
    block->size = place.size;
    block->pid = getpid();
    std::strncpy(block->host, host_name().c_str(), sizeof(block->host) - 1);
    block->did_at_ns = now_ns();
    block->magic = kRankBlockMagic;
    return arena;
}

Peer make_peer(int my_rank, int rank, int size, Attendant attendant, std::unique_ptr<Arena> arena,
               const std::string &identity) {
    if (!arena) {
        arena = Arena::open(std::move(attendant.memory));
    }
    const auto *block = reinterpret_cast<const RankBlock *>(arena->record(0));
    if (block->magic != kRankBlockMagic || block->rank != rank || block->size != size) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " (pid ", attendant.pid,
             ") uses another version of libodc");
    }
    const std::string host = block->host;
    return {host, attendant.pid, std::move(arena), std::move(attendant.life),
            choose_route(my_rank, rank, host, identity)};
}

Membership attend(const std::string &meeting_name, std::unique_ptr<Arena> arena, const Terms &terms,
                  const Patience &patience) {
    std::vector<Attendant> attendants(1);
    if (terms.size > 1) {
        attendants = meet(meeting_name, terms.rank, terms.size, arena->fd(), patience);
    } else {
        attendants[0].pid = getpid();
    }
    const std::string identity = host_identity();
    Membership membership{terms, {}};
    for (int rank = 0; rank < terms.size; ++rank) {
        membership.peers.push_back(make_peer(terms.rank, rank, terms.size,
                                             std::move(attendants[static_cast<size_t>(rank)]),
                                             rank == terms.rank ? std::move(arena) : nullptr, identity));
    }
    return membership;
}

}  // namespace

Membership join(const odc_config &config) {
    const Plan plan = make_plan(config);
    const Place &place = plan.place;
    if (config.timeout_ms < 0 || config.timeout_ms > kMostMs) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: timeout_ms is ", config.timeout_ms, ", must be in 1..", kMostMs,
             ", or 0 for the default");
    }
    const int64_t timeout_ms =
        config.timeout_ms > 0 ? config.timeout_ms : setting_number(Setting::kTimeoutMs, 1, kMostMs);
    const Patience patience(timeout_ms, config.interrupted, config.interrupted_arg);

    std::string meeting_name = place.job;
    const bool by_name = plan.all_gather == nullptr && plan.rendezvous.empty() && place.one_host;
    if (place.size > 1 && !by_name) {
        const std::vector<CardContent> cards = meet_by_cards(plan, patience);
        for (const CardContent &card : cards) {
            choose_route(place.rank, card.rank, card.host, card.identity);
        }
        meeting_name = hex(cards[0].nonce, sizeof(cards[0].nonce));
    }

    std::unique_ptr<Arena> arena = make_arena(place);
    auto *block = reinterpret_cast<RankBlock *>(arena->record(0));
    const std::shared_ptr<const void> keep = arena->hold();
    try {
        return attend(meeting_name, std::move(arena),
                      {place.rank, place.size, timeout_ms, config.interrupted, config.interrupted_arg}, patience);
    } catch (const Error &error) {
        // Peers that have our memory already read why this rank does not come.
        record_failure(*block, error.status(), error.what());
        throw;
    }
}

}  // namespace odc
