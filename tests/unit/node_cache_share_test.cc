// SPDX-License-Identifier: Apache-2.0
// How the ranks of a host agree on the memory that each gives to the node cache and partial sums.
#include "bootstrap/node_cache_share.h"
#include "topology/host.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::ControlBlock;
using odc::NodeCacheLimit;
using odc::NodeCacheShare;
using Kind = odc::NodeCacheLimit::Kind;

// Of ranks 4, 5, ... of one host.
NodeCacheShare share_of(const std::vector<NodeCacheLimit> &limits) {
    std::vector<std::unique_ptr<ControlBlock>> blocks;
    std::vector<const ControlBlock *> peers;
    for (const NodeCacheLimit &limit : limits) {
        blocks.push_back(std::make_unique<ControlBlock>());
        blocks.back()->rank = 3 + static_cast<int32_t>(blocks.size());
        blocks.back()->node_cache = limit;
        peers.push_back(blocks.back().get());
    }
    return odc::node_cache_share(peers);
}

void check(const NodeCacheShare &share, uint64_t bytes, uint64_t part_of_free, const std::string &says) {
    assert_int_equal(share.bytes, bytes);
    assert_int_equal(share.part_of_free, part_of_free);
    if (share.why.find(says) == std::string::npos) {
        fail_msg("\"%s\" does not say \"%s\"", share.why.c_str(), says.c_str());
    }
}

void with_auto_the_ranks_divide_what_the_least_has_left(void **) {
    check(share_of({{Kind::Auto, 9000}, {Kind::Auto, 6000}, {Kind::Auto, 7000}}), 2000, 12,
          "while 2000 bytes a rank suffice (ODC_NODE_CACHE of rank 5)");
}

void given_bytes_are_each_ranks_and_need_not_be_free(void **) {
    check(share_of({{Kind::Bytes, 9000}, {Kind::Bytes, 6000}}), 6000, 0, "6000 bytes a rank suffice");
}

void the_least_counts_whoever_gives_it(void **) {
    check(share_of({{Kind::Auto, 9000}, {Kind::Bytes, 6000}}), 4500, 8, "of rank 4)");
    check(share_of({{Kind::Auto, 9000}, {Kind::Bytes, 3000}}), 3000, 8, "of rank 5)");
}

void a_rank_without_switches_it_off_for_all(void **) {
    check(share_of({{Kind::Bytes, 9000}, {Kind::Off, 0}}), 0, 0, "as rank 5 has ODC_NODE_CACHE=off");
}

void a_hosts_only_rank_has_none(void **) {
    check(share_of({{Kind::Bytes, 9000}}), 0, 0, "this rank shares its host with no other");
}

// Other programs take and free memory meanwhile, hence only about a quarter.
void auto_is_a_quarter_of_the_memory_that_is_left(void **) {
    setenv("ODC_NODE_CACHE", "auto", 1);
    const int somebody = 0;
    const auto *exchange = reinterpret_cast<const odc::Allgather *>(&somebody);  // only whether there is one counts
    const NodeCacheLimit limit = odc::node_cache_limit(exchange);
    const uint64_t left = odc::available_memory();
    assert_true(limit.kind == Kind::Auto);
    assert_in_range(limit.bytes, left / 6, left / 3);
    assert_int_equal(odc::node_cache_limit(nullptr).bytes, 0);
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_auto_the_ranks_divide_what_the_least_has_left),
        cmocka_unit_test(given_bytes_are_each_ranks_and_need_not_be_free),
        cmocka_unit_test(the_least_counts_whoever_gives_it),
        cmocka_unit_test(a_rank_without_switches_it_off_for_all),
        cmocka_unit_test(a_hosts_only_rank_has_none),
        cmocka_unit_test(auto_is_a_quarter_of_the_memory_that_is_left),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
