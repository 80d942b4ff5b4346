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

// The card of a rank that cannot join: the others need not wait for it.
struct Regret {
    uint64_t magic;
    char why[sizeof(Card) - sizeof(uint64_t)];
};
static_assert(sizeof(Regret) == sizeof(Card));
constexpr uint64_t kRegretMagic = 0x6f6463207361642e;  // "odc sad."

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

Exchanged exchange(const Plan &plan, const Card &mine, const Patience &patience) {
    const Place &place = plan.place;
    if (plan.all_gather != nullptr) {
        return {exchange_callback(plan.all_gather, plan.all_gather_arg, place.size, mine), {}};
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
    return {exchange_pmix(place.rank, place.size, mine, patience), {}};
}

std::string hex(const unsigned char *bytes, size_t count) {
    std::string text(2 * count + 1, '\0');
    sodium_bin2hex(text.data(), text.size(), bytes, count);
    text.pop_back();
    return text;
}

template <class Content>
Card card_of(const Content &content) {
    Card card{};
    std::memcpy(card.data(), &content, sizeof(content));
    return card;
}

// Tells the others, who would wait for this rank, why it does not come.
void send_regret(const Plan &plan, const Error &error, const Patience &patience) {
    Regret regret{kRegretMagic, {}};
    std::strncpy(regret.why, error.what(), sizeof(regret.why) - 1);
    try {
        exchange(plan, card_of(regret), patience);
    } catch (const Error &) {
        // What went wrong first is what the caller reads.
    }
}

CardContent read_card(const Card &card, int rank) {
    Regret regret;
    std::memcpy(&regret, card.data(), sizeof(regret));
    if (regret.magic == kRegretMagic) {
        regret.why[sizeof(regret.why) - 1] = '\0';
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " cannot join: ", regret.why);
    }
    CardContent content;
    std::memcpy(&content, card.data(), sizeof(content));
    if (content.magic != kRankBlockMagic) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " uses another version of libodc");
    }
    content.identity[sizeof(content.identity) - 1] = content.host[sizeof(content.host) - 1] =
        content.group[sizeof(content.group) - 1] = '\0';
    return content;
}

struct Invitations {
    std::string meeting;  // its name
    std::vector<Fd> ties;
};

// Hands in this rank's card and checks every rank's.
Invitations meet_by_cards(const Plan &plan, const Patience &patience) {
    CardContent content{};
    content.magic = kRankBlockMagic;
    content.rank = plan.place.rank;
    content.size = plan.place.size;
    std::strncpy(content.identity, host_identity().c_str(), sizeof(content.identity) - 1);
    std::strncpy(content.host, host_name().c_str(), sizeof(content.host) - 1);
    std::strncpy(content.group, plan.group.c_str(), sizeof(content.group) - 1);
    randombytes_buf(content.nonce, sizeof(content.nonce));
    Exchanged all = exchange(plan, card_of(content), patience);
    for (int rank = 0; rank < plan.place.size; ++rank) {
        const CardContent one = read_card(all.cards[static_cast<size_t>(rank)], rank);
        if (one.rank != rank || one.size != plan.place.size) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: in place ", rank, " of ", plan.place.size,
                 " a process says that it is rank ", one.rank, " of ", one.size,
                 "; give each process its own rank, and all one size");
        }
        if (std::strcmp(one.group, content.group) != 0) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " joins group \"", one.group, "\", this rank \"",
                 content.group, "\"; join groups in the same order everywhere");
        }
        choose_route(plan.place.rank, rank, one.host, one.identity);
    }
    const CardContent first = read_card(all.cards[0], 0);
    return {hex(first.nonce, sizeof(first.nonce)), std::move(all.ties)};
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
    return {host, attendant.pid, std::move(arena), 0, std::move(attendant.life),
            choose_route(my_rank, rank, host, identity)};
}

Membership attend(Invitations invitations, std::unique_ptr<Arena> arena, const Terms &terms, const Patience &patience) {
    std::vector<Attendant> attendants(1);
    if (terms.size > 1) {
        attendants =
            meet(invitations.meeting, terms.rank, terms.size, arena->fd(), std::move(invitations.ties), patience);
    } else {
        attendants[0].pid = getpid();
    }
    const std::string identity = host_identity();
    Membership membership{terms, {}, nullptr};
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

    const bool by_name = plan.all_gather == nullptr && plan.rendezvous.empty() && place.one_host;
    const bool by_cards = place.size > 1 && !by_name;
    if (by_cards && sodium_init() < 0) {
        fail(ODC_ERROR_SYSTEM, "libsodium found no source of random numbers");
    }
    std::unique_ptr<Arena> arena;
    try {
        arena = make_arena(place);
    } catch (const Error &error) {
        if (by_cards) {
            send_regret(plan, error, patience);
        }
        throw;
    }
    Invitations invitations = by_cards ? meet_by_cards(plan, patience) : Invitations{place.job, {}};
    auto *block = reinterpret_cast<RankBlock *>(arena->record(0));
    const std::shared_ptr<const void> keep = arena->hold();
    try {
        return attend(std::move(invitations), std::move(arena),
                      {place.rank, place.size, timeout_ms, config.interrupted, config.interrupted_arg}, patience);
    } catch (const Error &error) {
        // Peers that have our memory already read why this rank does not come.
        record_failure(*block, ODC_ERROR_PEER_LOST, say("rank ", place.rank, " left odc_init: ", error.what()).c_str());
        throw;
    }
}

}  // namespace odc
