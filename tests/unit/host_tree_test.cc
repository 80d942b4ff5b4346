// SPDX-License-Identifier: Apache-2.0
// The sync tree of a host with more ranks than a test machine can run: they arrive one by one in random order.
#include "core/host_tree.h"

#include "bootstrap/membership.h"

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

constexpr int kValues = 3;

// Ranks that share memory in this process. Rank r is on host r % hosts.
class Ranks {
public:
    Ranks(int size, int hosts) {
        std::vector<std::shared_ptr<odc::Arena>> arenas;
        for (int rank = 0; rank < size; ++rank) {
            arenas.emplace_back(odc::Arena::create());
            new (arenas.back()->record(arenas.back()->allocate_record(sizeof(odc::ControlBlock)))) odc::ControlBlock{};
        }
        for (int rank = 0; rank < size; ++rank) {
            odc::Membership &membership =
                memberships_.emplace_back(odc::JobConfig{rank, size, 1000, nullptr, nullptr, &log_});
            membership.hosts.resize(static_cast<size_t>(hosts));
            for (int other = 0; other < size; ++other) {
                membership.hosts[static_cast<size_t>(other % hosts)].push_back(other);
                membership.peers.push_back({"",
                                            "",
                                            static_cast<size_t>(other % hosts),
                                            1,
                                            arenas[static_cast<size_t>(other)],
                                            0,
                                            odc::Fd(),
                                            {},
                                            {},
                                            {}});
            }
            jobs_.emplace_back(membership);
            trees_.emplace_back(jobs_.back(), &odc::ControlBlock::synced, &odc::ControlBlock::sync_tree);
        }
    }
    odc::Job &job(int rank) { return jobs_[static_cast<size_t>(rank)]; }
    odc::HostTree &tree(int rank) { return trees_[static_cast<size_t>(rank)]; }
    // All have arrived: this rank has been released, and releases those that wait for it.
    void pass(int rank, uint64_t number) {
        odc::Job::Wait wait(job(rank), "test");
        tree(rank).await(wait, number, [rank] {
            fail_msg("rank %d was not released", rank);
            return -1;
        });
    }

private:
    odc::Log log_{ODC_LOG_ERROR};
    std::deque<odc::Membership> memberships_;
    std::deque<odc::Job> jobs_;
    std::deque<odc::HostTree> trees_;
};

double model(std::vector<double> parts) {
    while (parts.size() > 1) {
        std::vector<double> above;
        for (size_t i = 0; i < parts.size(); ++i) {
            i % 16 == 0 ? above.push_back(parts[i]) : void(above.back() += parts[i]);
        }
        parts = above;
    }
    return parts[0];
}

// `odd`: a rank that brings another count of values than the others; -1: none.
void bring(odc::Job &job, uint64_t number, const std::vector<std::vector<double>> &values, int odd, int registers) {
    odc::Contribution &mine = job.mine().synced[number % 2];
    mine = {};
    mine.count = job.rank() == odd ? kValues - 1 : kValues;
    mine.op = ODC_SUM;
    mine.has_registered = job.rank() == registers ? 1 : 0;
    for (int i = 0; i < kValues; ++i) {
        mine.values[i] = values[static_cast<size_t>(i)][static_cast<size_t>(job.rank())];
    }
}

void check(const odc::Contribution &got, const std::vector<std::vector<double>> &values, int odd, int registers) {
    assert_int_equal(got.differs, odd >= 0 ? 1 : 0);
    assert_int_equal(got.has_registered, registers >= 0 ? 1 : 0);
    for (int i = 0; odd < 0 && i < kValues; ++i) {
        const double wanted = model(values[static_cast<size_t>(i)]);
        assert_memory_equal(&got.values[i], &wanted, sizeof(wanted));
    }
}

void come_in_random_order(std::mt19937_64 &random, int size, int hosts) {
    Ranks ranks(size, hosts);
    std::vector<int> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t number = 0; number < 7; ++number) {
        std::vector<std::vector<double>> values(kValues, std::vector<double>(static_cast<size_t>(size)));
        std::vector<int> left(static_cast<size_t>(hosts));  // by host: ranks that have not arrived
        const int odd = size > 1 && random() % 3 == 0 ? static_cast<int>(random() % static_cast<uint64_t>(size)) : -1;
        const int registers = random() % 2 == 0 ? static_cast<int>(random() % static_cast<uint64_t>(size)) : -1;
        for (auto &column : values) {
            std::generate(column.begin(), column.end(), [&] { return std::normal_distribution<>(0, 1e6)(random); });
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const int rank : order) {
            ++left[static_cast<size_t>(rank % hosts)];
        }
        for (const int rank : order) {
            bring(ranks.job(rank), number, values, odd, registers);
            ranks.tree(rank).join(number);
            odc::TreeNode &root = ranks.job(rank % hosts)
                                      .mine()
                                      .sync_tree[size <= 16 * hosts    ? 0
                                                 : size <= 256 * hosts ? 1
                                                                       : 2];
            assert_int_equal(root.released.load() > number, --left[static_cast<size_t>(rank % hosts)] == 0);
        }
        // Each waits for a node that a later rank completed.
        for (size_t i = order.size(); i-- > 0;) {
            ranks.pass(order[i], number);
        }
        for (const int rank : {0, order[0], order.back()}) {
            check(ranks.tree(rank).combined(number), values, odd, registers);
        }
    }
}

void a_tree_of_any_size_combines_what_all_bring(void **) {
    const char *given = std::getenv("ODC_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    for (const int size : {1, 2, 15, 16, 17, 33, 256, 257, 300}) {
        come_in_random_order(random, size, 1);
    }
    for (const int size : {2, 17, 48, 300}) {
        come_in_random_order(random, size, 2);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_of_any_size_combines_what_all_bring),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
