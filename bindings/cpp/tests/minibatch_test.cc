// SPDX-License-Identifier: Apache-2.0
// Jobs of random shards compared with a model that is computed from rank numbers alone: gathered values are the owners' and
// sums are those of all ranks' additions. All values are small integers, so every sum is exact.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>

#include "testing.h"

namespace {

constexpr uint64_t kMinibatches = 4;
constexpr uint64_t kShards = 7;

template <class T>
T number(uint64_t value) {
    return T(static_cast<float>(value));
}
template <>
double number<double>(uint64_t value) {
    return static_cast<double>(value);
}
template <>
std::byte number<std::byte>(uint64_t value) {
    return static_cast<std::byte>(value);
}

// A job's shards, derived from rank numbers.
struct Model {
    uint64_t seed, size;

    uint64_t random(std::initializer_list<uint64_t> what) const {
        return std::accumulate(what.begin(), what.end(), mix({seed, size, what.size()}),
                               [](uint64_t state, uint64_t word) {
                                   return mix({state, word});
                               });
    }
    uint64_t numel(uint64_t shard) const {
        return std::array<uint64_t, 4>{1, 7, 1000, 40000}[random({1, shard}) % 4] + random({2, shard}) % 50;
    }
    // A permutation of some of the ranks.
    std::vector<int32_t> listed(uint64_t shard) const {
        std::vector<int32_t> ranks(size);
        std::iota(ranks.begin(), ranks.end(), 0);
        std::sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) {
            return random({3, shard, static_cast<uint64_t>(a)}) < random({3, shard, static_cast<uint64_t>(b)});
        });
        ranks.resize(1 + random({4, shard}) % size);
        return ranks;
    }
    // Equal for even shards; otherwise random, with zero sizes among them.
    std::vector<uint64_t> slices(uint64_t shard) const {
        const uint64_t all = numel(shard), owners = listed(shard).size();
        std::vector<uint64_t> cuts{0, all};
        for (uint64_t i = 1; i < owners; ++i) {
            cuts.push_back(shard % 2 == 0 ? std::min(all, i * ((all + owners - 1) / owners))
                                          : random({5, shard, i}) % (all + 1));
        }
        std::sort(cuts.begin(), cuts.end());
        std::vector<uint64_t> numels;
        for (size_t i = 1; i < cuts.size(); ++i) {
            numels.push_back(cuts[i] - cuts[i - 1]);
        }
        return numels;
    }
    odc::Description describe(uint64_t shard) const {
        odc::Description description{"shard " + std::to_string(shard), numel(shard), listed(shard)};
        if (shard % 2 == 1) {
            description.slices = slices(shard);
        }
        return description;
    }
    uint64_t parameter(uint64_t shard, uint64_t minibatch, uint64_t element) const {
        return (random({6, shard, minibatch}) % 1000 + element * 31) % 200;
    }
    uint64_t gradient(uint64_t shard, uint64_t minibatch, uint64_t rank, uint64_t call, uint64_t element) const {
        return (random({7, shard, minibatch, rank, call}) % 1000 + element * 17) % 100;
    }
    uint64_t calls(uint64_t shard, uint64_t minibatch, uint64_t rank) const {
        return random({8, shard, minibatch, rank}) % 4;
    }
    uint64_t sum(uint64_t shard, uint64_t minibatch, uint64_t element) const {
        uint64_t total = 0;
        for (const int32_t listed_rank : listed(shard)) {
            const auto rank = static_cast<uint64_t>(listed_rank);
            for (uint64_t call = 0; call < calls(shard, minibatch, rank); ++call) {
                total += gradient(shard, minibatch, rank, call, element);
            }
        }
        return total;
    }
};

// A shard of any types.
class AnyTensor {
public:
    virtual ~AnyTensor() = default;
    virtual void check_sums_and_write() = 0;
    virtual void publish() = 0;
    virtual void use() = 0;
    virtual void release() = 0;
};

template <class P, class G>
class Tensor : public AnyTensor {
public:
    Tensor(const Model &model, uint64_t number, odc::Context &context)
        : model_(model), number_(number), context_(context),
          shard_(context.register_shard<P, G>(model.describe(number))) {
        const auto listed = model.listed(number);
        const auto place = std::find(listed.begin(), listed.end(), context.rank()) - listed.begin();
        const auto numels = model.slices(number);
        REQUIRE(shard_.slice().offset == std::accumulate(numels.begin(), numels.begin() + place, uint64_t{0}));
        REQUIRE(shard_.slice().parameters.size() == numels[static_cast<size_t>(place)]);
        REQUIRE(shard_.slice().gradients.size() == numels[static_cast<size_t>(place)]);
        REQUIRE(shard_.numel() == model.numel(number) && shard_.name() == "shard " + std::to_string(number));
    }

    void check_sums_and_write() override {
        using Sum = typename odc::Element<G>::Sum;
        const uint64_t minibatch = context_.minibatch();
        const auto slice = shard_.slice();
        for (size_t i = 0; i < slice.parameters.size(); ++i) {
            const uint64_t sum = minibatch == 0 ? 0 : model_.sum(number_, minibatch - 1, slice.offset + i);
            REQUIRE(slice.gradients[i] == static_cast<Sum>(sum));
            slice.parameters[i] = number<P>(model_.parameter(number_, minibatch, slice.offset + i));
        }
    }

    void publish() override { shard_.publish(); }

    void use() override {
        const uint64_t minibatch = context_.minibatch(), rank = static_cast<uint64_t>(context_.rank());
        for (uint64_t call = 0; call < model_.calls(number_, minibatch, rank); ++call) {
            std::vector<P> full(shard_.numel(), number<P>(199));
            std::vector<G> gradients(shard_.numel());
            for (size_t i = 0; i < gradients.size(); ++i) {
                gradients[i] = number<G>(model_.gradient(number_, minibatch, rank, call, i));
            }
            if (model_.random({9, number_, call}) % 2 == 0) {
                shard_.gather(full);
                check_parameters(full);
                shard_.scatter_add(gradients);
            } else {
                odc::Operation gather = shard_.gather_start(full);
                odc::Operation addition = shard_.scatter_add_start(gradients);
                gather.wait();
                check_parameters(full);
                if (call % 2 == 0) {
                    addition.wait();
                }  // otherwise its destructor waits
            }
        }
    }

    void release() override { shard_.release(); }

private:
    void check_parameters(const std::vector<P> &full) {
        for (size_t i = 0; i < full.size(); ++i) {
            REQUIRE(full[i] == number<P>(model_.parameter(number_, context_.minibatch(), i)));
        }
    }

    const Model &model_;
    uint64_t number_;
    odc::Context &context_;
    odc::Shard<P, G> shard_;
};

std::unique_ptr<AnyTensor> make(const Model &model, uint64_t number, odc::Context &context) {
    switch (model.random({10, number}) % 6) {
        case 0: return std::make_unique<Tensor<float, float>>(model, number, context);
        case 1: return std::make_unique<Tensor<double, double>>(model, number, context);
        case 2: return std::make_unique<Tensor<odc::Bf16, odc::Bf16>>(model, number, context);
        case 3: return std::make_unique<Tensor<odc::F16, odc::F16>>(model, number, context);
        case 4: return std::make_unique<Tensor<std::byte, float>>(model, number, context);
        default: return std::make_unique<Tensor<odc::Bf16, double>>(model, number, context);
    }
}

void run_job(const Model &model) {
    run(static_cast<int32_t>(model.size), [&](odc::Context &context) {
        const auto rank = static_cast<uint64_t>(context.rank());
        std::vector<std::unique_ptr<AnyTensor>> tensors;
        for (uint64_t shard = 0; shard < kShards; ++shard) {
            const auto listed = model.listed(shard);
            if (std::count(listed.begin(), listed.end(), context.rank()) > 0) {
                tensors.push_back(make(model, shard, context));
            }
        }
        auto everybody = context.register_shard<float, void>({"everybody's", model.size});
        for (uint64_t minibatch = 0; minibatch < kMinibatches; ++minibatch) {
            REQUIRE(context.minibatch() == minibatch);
            std::array<double, 2> values{static_cast<double>(rank), 1};
            context.all_reduce(values, odc::Reduction::Max);
            REQUIRE(values[0] == static_cast<double>(model.size - 1) && values[1] == 1);
            for (const auto &tensor : tensors) {
                tensor->check_sums_and_write();
            }
            if (model.random({11, minibatch, rank}) % 2 == 0) {
                for (size_t i = 0; i < tensors.size() - tensors.size() / 3; ++i) {
                    tensors[i]->publish();
                }
            }
            context.publish();
            for (const auto &tensor : tensors) {
                tensor->use();
            }
            values = {static_cast<double>(rank), 1};
            context.sync_reduce(values, odc::Reduction::Sum);
            const auto size = static_cast<double>(model.size);
            REQUIRE(values[0] == size * (size - 1) / 2 && values[1] == size);
        }
        for (const auto &tensor : tensors) {
            tensor->check_sums_and_write();
            tensor->release();
        }
        everybody.release();
        REQUIRE(context.stats().slice_bytes == 0);
        REQUIRE(context.stats().syncs == kMinibatches);
    });
}

void jobs_of_random_shards_are_as_the_model_says() {
    const uint64_t seed = test_seed();
    for (const uint64_t size : {1u, 2u, 3u, 4u}) {
        run_job({seed, size});
    }
}

void a_half_may_be_absent() {
    run(2, [](odc::Context &context) {
        auto frozen = context.register_shard<float, void>({"frozen", 10});
        auto sums = context.register_shard<void, float>({"sums", 10});
        const auto slice = frozen.slice();
        REQUIRE(slice.parameters.size() == 5 && slice.gradients.size() == 0);
        std::fill(slice.parameters.begin(), slice.parameters.end(), 3.0f);
        context.publish();
        std::array<float, 10> full{}, ones;
        ones.fill(1.5f);
        frozen.gather(full);
        REQUIRE(std::count(full.begin(), full.end(), 3.0f) == 10);
        sums.scatter_add(ones);
        context.sync();
        const auto gradients = sums.slice().gradients;
        REQUIRE(sums.slice().parameters.size() == 0);
        REQUIRE(gradients.size() == 5 && std::count(gradients.begin(), gradients.end(), 3.0f) == 5);
    });
}

void exact_sums_do_not_depend_on_the_order() {
    run(2, [](odc::Context &context) {
        odc::Description description{"exact", 2};
        description.sum = odc::Sum::Exact;
        description.largest = 4.0f;
        auto shard = context.register_shard<void, float>(description);
        REQUIRE(shard.slice().largest == 4.0f);
        const std::array<float, 2> most{3.0f, -3.0f}, least{0x1p-40f, 0x1p-40f}, less{-3.0f, 3.0f};
        context.publish();
        shard.scatter_add(context.rank() == 0 ? most : less);
        shard.scatter_add(least);  // lost in a sum of f32
        context.sync();
        REQUIRE(shard.slice().gradients[0] == 0x1p-39f && shard.slice().largest == 0x1p-13f);
        REQUIRE(context.stats().clamped_addends == 0);
        description = {"wrong", 2};
        description.largest = 4.0f;
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, (context.register_shard<void, float>(description)), "largest");
    });
}

void exact_sums_of_numbers_do_not_depend_on_the_division() {
    run(2, [](odc::Context &context) {
        const std::array<double, 3> values{1.0, 0x1p60, 0x1p-60};
        odc::ExactSum sum;
        if (context.rank() == 0) {
            sum.add(values);
        } else {
            sum.add(-0x1p60);
        }
        context.all_reduce(sum.digits, odc::Reduction::Sum);
        REQUIRE(sum.value() == 1.0);  // 2^-60 is rounded away only here
        sum.add(-1.0);
        REQUIRE(sum.value() == 0x1p-60);
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, sum.add(0x1p94), "too large");
        sum.digits[0] = 0.5;
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, sum.value(), "digit 0 is 0.5");
    });
}

void many_shards_are_registered_at_once_and_used_by_many_threads() {
    run(2, [](odc::Context &context) {
        const std::vector<odc::Description> descriptions{{"layer.0", 500}, {"layer.1", 500}, {"layer.2", 500}};
        auto layers = context.register_shards<double, double>(descriptions);
        REQUIRE(layers.size() == 3 && layers[2].name() == "layer.2");
        for (auto &layer : layers) {
            const auto slice = layer.slice();
            std::fill(slice.parameters.begin(), slice.parameters.end(), 2.0);
        }
        context.publish();
        std::vector<std::thread> threads;
        std::atomic<int> good{0};
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([&] {
                for (const auto &layer : layers) {
                    std::vector<double> full(500, 1), quarter(500, 0.25), half(500, 0.5);
                    layer.gather(full);
                    good += full == std::vector<double>(500, 2);
                    layer.scatter_add(quarter);
                    odc::Operation operation = layer.scatter_add_start(half);
                    std::thread([&] { operation.wait(); }).join();
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        REQUIRE(good == 12);
        context.sync();
        for (const auto &layer : layers) {
            const auto sums = layer.slice().gradients;
            REQUIRE(std::count(sums.begin(), sums.end(), 6.0) == 250);
        }
        const odc::Stats stats = context.stats();
        REQUIRE(stats.gather_calls == 12 && stats.scatter_add_calls == 24 && stats.syncs == 1);
        REQUIRE(stats.gather_bytes == 12 * 4000);
    });
}

void each_item_is_claimed_once() {
    run(2, [](odc::Context &context) {
        std::array<double, 2> values{0, 0};
        while (const std::optional<uint64_t> item = context.claim(100)) {
            values[0] += 1;
            values[1] += static_cast<double>(*item);
        }
        odc::Status status;
        REQUIRE(!context.claim(100, status) && status.ok());
        const std::vector<uint64_t> claimed = context.claims(0);
        REQUIRE(static_cast<double>(claimed.size()) == values[0]);
        REQUIRE(static_cast<double>(std::accumulate(claimed.begin(), claimed.end(), uint64_t{0})) == values[1]);
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.claims(7), "minibatch 7 are not kept");
        REQUIRE((context.speeds() == std::vector<double>{1, 1}));
        context.report_cost(context.rank() == 0 ? 1 : 1e6);
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.report_cost(-1), "cost is -1");
        context.sync_reduce(values, odc::Reduction::Sum);
        REQUIRE(values[0] == 100 && values[1] == 4950);
        REQUIRE(!context.claim(uint64_t{1} << 32, status) && status.code() == ODC_ERROR_ARGUMENT);
    });
}

}  // namespace

int main(int argc, char **argv) {
    return run_tests(
        "minibatch_test",
        {TEST(jobs_of_random_shards_are_as_the_model_says), TEST(a_half_may_be_absent),
         TEST(exact_sums_do_not_depend_on_the_order), TEST(exact_sums_of_numbers_do_not_depend_on_the_division),
         TEST(each_item_is_claimed_once), TEST(many_shards_are_registered_at_once_and_used_by_many_threads)},
        argc, argv);
}
