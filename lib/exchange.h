// SPDX-License-Identifier: Apache-2.0
// Ways by which ranks that may be on several hosts tell each other who they are: every rank hands in one card and gets
// all cards in rank order. What follows on each host is meeting.h's.
#pragma once

#include "fd.h"
#include "patience.h"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace odc {

using Card = std::array<std::byte, 256>;

struct Exchanged {
    std::vector<Card> cards;
    // By rank, rank 0's to all others and theirs to it; nothing is said there any more, so what becomes readable has
    // gone. Kept until the ranks share memory. Empty where there are none.
    std::vector<Fd> ties;
};

// Rank 0 listens at `endpoint` ("host:port", "[v6]:port"); the others prove that they know `secret`, which is not empty
// (HMAC challenge-response in both directions), before anything of theirs is believed. After sodium_init.
Exchanged exchange_tcp(const std::string &endpoint, const std::string &secret, int rank, int size, const Card &mine,
                       const Patience &patience);

// Through the PMIx server of the launcher; the library is opened at run time.
std::vector<Card> exchange_pmix(int rank, int size, const Card &mine, const Patience &patience);
// NULL when exchange_pmix can be tried here, else why not.
const char *why_not_pmix();

std::vector<Card> exchange_callback(odc_all_gather_fn all_gather, void *arg, int size, const Card &mine);

}  // namespace odc
