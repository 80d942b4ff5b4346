// SPDX-License-Identifier: Apache-2.0
// Handles that move and are destroyed in any order, errors in both styles, callbacks that throw, dropped operations.
#include <pthread.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "testing.h"

namespace {

using Layer = odc::Shard<float, float>;

Layer layer_of(odc::Context &context) { return context.register_shard<float, float>({"layer", 1000}); }

// ---- Lifetime ----

void handles_move_and_leave_nothing_behind() {
    odc::Context first = alone();
    odc::Context context = std::move(first);
    REQUIRE(!first && context && context.rank() == 0 && context.size() == 1);
    REQUIRE(first.rank() == -1 && first.size() == -1 && first.minibatch() == 0);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, first.publish(), "the context is NULL");
    Layer layer = layer_of(context), other;
    other = std::move(layer);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, layer.publish(), "the shard is NULL");
    other.publish();
    std::vector<float> full(1000);
    odc::Operation operation = other.gather_start(full), moved;
    moved = std::move(operation);
    REQUIRE(!operation.pending() && moved.pending());
    REQUIRE_THROWS(ODC_ERROR_PHASE, operation.wait(), "not pending");
    moved.wait();
    REQUIRE(!moved.pending());
    REQUIRE_THROWS(ODC_ERROR_PHASE, moved.wait(), "has been waited for");
    context = alone();  // leaves its job
    REQUIRE_THROWS(ODC_ERROR_PHASE, other.gather(full), "this rank has left the job");
    REQUIRE(context.minibatch() == 0);
}

void a_shard_outlives_its_context() {
    Layer layer;
    {
        odc::Context context = alone();
        layer = layer_of(context);
        layer.slice().parameters[999] = 7;
        context.publish();
    }
    REQUIRE(layer.slice().parameters[999] == 7 && layer.name() == "layer");
    std::vector<float> full(1000);
    REQUIRE_THROWS(ODC_ERROR_PHASE, layer.gather(full), "this rank has left the job");
}

void an_operation_keeps_its_rank_in_the_job_until_it_is_done() {
    run_configs(2, [](const odc::Config &config) {
        odc::Context context = odc::Context::join(config);
        Layer layer = layer_of(context);
        std::vector<float> full(1000, 1), ones(1000, 1);
        layer.publish();
        odc::Operation addition;
        if (config.rank == 0) {
            addition = layer.scatter_add_start(ones);
            REQUIRE_THROWS(ODC_ERROR_PHASE, context.shutdown(), "nobody has waited for: 1");
            context = odc::Context();
            addition.wait();  // the last handle that kept this rank in the job
            REQUIRE_THROWS(ODC_ERROR_PHASE, layer.gather(full), "this rank has left the job");
        } else {
            layer.gather(full);
        }
    });
}

void an_assigned_operation_is_waited_for() {
    run(1, [](odc::Context &context) {
        Layer layer = layer_of(context);
        layer.publish();
        std::vector<float> ones(1000, 1);
        odc::Operation operation = layer.scatter_add_start(ones);
        operation = layer.scatter_add_start(ones);
        operation = odc::Operation();
        context.shutdown();  // refused while operations are pending
    });
}

// The owner publishes late: only after the other rank has left the block in which it started.
void a_dropped_operation_has_given_its_buffer_back() {
    for (const bool by_exception : {false, true}) {
        std::atomic<bool> started{false}, done{false}, impatient{false};
        run_configs(2, [&](odc::Config config) {
            config.interrupted = [&impatient, rank = config.rank] { return rank == 0 && impatient; };
            odc::Context context = odc::Context::join(config);
            Layer layer = layer_of(context);
            const auto slice = layer.slice();
            std::fill(slice.parameters.begin(), slice.parameters.end(), 5.0f);
            if (config.rank == 1) {
                await([&] { return started.load(); });
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                REQUIRE(!done);
                context.publish();
            } else {
                context.publish();
                std::vector<float> full(1000);
                try {
                    impatient = true;  // destructors are not interrupted
                    const odc::Operation dropped = layer.gather_start(full);
                    started = true;
                    if (by_exception) {
                        throw std::runtime_error("something else");
                    }
                } catch (const std::runtime_error &) {
                }
                done = true;
                REQUIRE(std::count(full.begin(), full.end(), 5.0f) == 1000);
                REQUIRE_THROWS(ODC_ERROR_INTERRUPTED, context.sync(), "interrupted");  // as before
                impatient = false;
            }
            if (config.rank == 1) {
                await([&] { return !impatient.load(); });
            }
            context.sync();
            context.shutdown();
        });
    }
}

void an_exception_that_ends_a_context_ends_the_job() {
    run_configs(2, [](const odc::Config &config) {
        if (config.rank == 0) {
            try {
                odc::Context context = odc::Context::join(config);
                layer_of(context);
                throw std::runtime_error("no such file");
            } catch (const std::runtime_error &) {
            }
        } else {
            odc::Context context = odc::Context::join(config);
            Layer layer = layer_of(context);
            context.publish();
            REQUIRE_THROWS(ODC_ERROR_ABORTED, context.sync(), "rank 0", "one of its threads threw an exception");
        }
    });
}

// A context that joins and is moved during an exception, and ends regularly, does not abort the job; nor does an exception that
// is handled inside.
void an_exception_elsewhere_ends_no_job() {
    std::atomic<bool> ended{false};
    struct Joins {
        const odc::Config &config;
        std::atomic<bool> &ended;
        odc::Status &status;
        ~Joins() {
            {
                odc::Context context = odc::Context::join(config);
                odc::Context moved = std::move(context);
                Layer layer = layer_of(moved);
                odc::Status refused;
                moved.peer_stats(7, refused);
                if (config.rank == 1) {
                    await([&] { return ended.load(); });
                    moved.publish(refused);
                    moved.sync(status);
                }
            }
            ended = true;
        }
    };
    run_configs(2, [&](const odc::Config &config) {
        odc::Status status;
        try {
            const Joins joins{config, ended, status};
            throw std::runtime_error("meanwhile");
        } catch (const std::runtime_error &) {
        }
        if (config.rank == 1) {
            REQUIRE(status.code() == ODC_ERROR_PEER_LOST);
            REQUIRE_SAYS(status.message(), "rank 0", "left");
        }
    });
}

// ---- Errors ----

void misuse_is_reported() {
    odc::Context context = alone();
    Layer layer = layer_of(context);
    std::vector<float> full(1000), small(10);
    REQUIRE_THROWS(ODC_ERROR_PHASE, layer.gather(full), "publish this rank's slice", "layer");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, layer_of(context), "layer");
    REQUIRE_THROWS(ODC_ERROR_PHASE, context.sync(), "has not published", "layer");
    const auto bad = [&](odc::Description description) {
        return thrown_by(
            ODC_ERROR_ARGUMENT, [&] { context.register_shard<float, float>(description); }, "register_shard", __FILE__,
            __LINE__);
    };
    REQUIRE_SAYS(bad({"a", 10, {}, {4, 6}}), "shard \"a\" has 2 slices for 1 ranks; give one for each");
    REQUIRE_SAYS(bad({"a", 10, {0}, {9}}), "a", "9", "10");
    REQUIRE_SAYS(bad({std::string("a\0b", 3), 10}), "NUL");
    REQUIRE_SAYS(bad({"", 10}), "name");
    REQUIRE_SAYS(bad({"a", 10, {3}}), "3");
    const std::vector<odc::Description> two{{"b", 10}, {"layer", 10}};
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, (context.register_shards<float, float>(two)), "layer");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, (context.register_shards<float, float>({})), "count is 0");
    context.register_shard<float, float>({"b", 10});  // none of them was registered
    context.publish();
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, layer.gather(small), "10", "1000", "layer");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, layer.scatter_add(small), "10", "1000");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, layer.gather_start(small), "10", "1000");
    REQUIRE_THROWS(ODC_ERROR_UNSUPPORTED, layer.gather(full, odc::Stream{&context}), "host memory");
    REQUIRE_THROWS(ODC_ERROR_UNSUPPORTED, layer.scatter_add(full, odc::Stream{&context}), "host memory");
    REQUIRE_THROWS(ODC_ERROR_PHASE, layer.publish(), "layer");
    REQUIRE_THROWS(ODC_ERROR_PHASE, layer.release(), "layer");
    std::vector<double> values(65);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.sync_reduce(values, odc::Reduction::Sum), "65", "64");
    REQUIRE_THROWS(ODC_ERROR_PHASE, context.all_reduce(odc::span<double>(values.data(), 1), odc::Reduction::Max),
                   "published");
    context.sync();
    layer.release();
    REQUIRE_THROWS(ODC_ERROR_PHASE, layer.slice(), "released", "layer");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.route(1), "rank 1");
    context.abort("enough");
    REQUIRE_THROWS(ODC_ERROR_ABORTED, context.publish(), "rank 0", "enough");
    context.shutdown();
    REQUIRE_THROWS(ODC_ERROR_PHASE, context.shutdown(), "left");
}

void a_config_is_checked() {
    odc::Config config = config_of(0, 1, std::string("a\0b", 3));
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Context::join(config), "job has a NUL");
    config = config_of(2, 2, "a");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Context::join(config), "rank 2");
    config = config_of(0, 1, "");
    config.timeout = std::chrono::milliseconds(-5);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Context::join(config), "-5");
    config.timeout = std::chrono::milliseconds(200);
    config.size = 2;
    config.job = new_job();
    REQUIRE_THROWS(ODC_ERROR_RENDEZVOUS, odc::Context::join(config), "rank");
    config = odc::Config();
    config.all_gather = [](odc::span<const std::byte>, odc::span<std::byte>) { return true; };
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Context::join(config), "all_gather needs Config::size");
    struct Uncopied {
        bool *armed;
        explicit Uncopied(bool *flag) : armed(flag) {}
        Uncopied(const Uncopied &other) : armed(other.armed) { *armed ? throw 1 : 0; }
        bool operator()() const { return false; }
    };
    bool armed = false;
    config = config_of(0, 1, "");
    config.interrupted = Uncopied(&armed);
    armed = true;
    odc::Status status;
    REQUIRE(!odc::Context::join(config, status) && status.code() == ODC_ERROR_INTERNAL);
    REQUIRE_SAYS(status.message(), "not a std::exception");
    status.set(ODC_ERROR_PHASE, status.message(), "and more");
    REQUIRE_SAYS(status.message(), "not a std::exception", ": and more");
    armed = false;
}

// Each call reports to a Status what it throws without one.
void other_exceptions_keep_their_status() {
    odc::Status status;
    REQUIRE(status.ok() && status.code() == ODC_OK && std::string(status.message()).empty());
    odc::Context context = odc::Context::join(config_of(0, 1, ""), status);
    REQUIRE(status.ok() && context);
    Layer layer = context.register_shard<float, float>({"layer", 1000}, status);
    REQUIRE(status.ok());
    std::vector<float> full(1000), small(10);
    const auto same = [&](auto call) {
        std::string said;
        int32_t code = ODC_OK;
        try {
            call();
        } catch (const odc::Error &error) {
            said = error.what();
            code = error.status();
        }
        call(status);
        REQUIRE(code != ODC_OK && status.code() == code && !status.ok() && said == status.message());
    };
    const odc::Stream stream{&status};
    odc::Context none;
    const std::vector<uint64_t> lengths{11};
    std::vector<double> values(65);
    same([&](auto &...s) { layer.gather(full, s...); });
    same([&](auto &...s) { layer.gather(full, odc::Stream(), s...); });
    same([&](auto &...s) { layer.scatter_add(small, s...); });
    same([&](auto &...s) { layer.scatter_add(small, odc::Stream(), s...); });
    same([&](auto &...s) { REQUIRE(!layer.gather_start(small, s...).pending()); });
    same([&](auto &...s) { REQUIRE(!layer.scatter_add_start(small, odc::Stream(), s...).pending()); });
    same([&](auto &...s) { layer.publish(stream, s...); });
    same([&](auto &...s) { REQUIRE(!(context.register_shard<float, float>({"layer", 1000}, s...).handle())); });
    same([&](auto &...s) { REQUIRE((context.register_shards<float, float>({}, s...).empty())); });
    same([&](auto &...s) { context.peer_stats(1, s...); });
    same([&](auto &...s) { REQUIRE(context.route(-1, s...).why.empty()); });
    same([&](auto &...s) { REQUIRE(context.route_to_gpu(-1, s...).why.empty()); });
    same([&](auto &...s) { context.sync(s...); });
    same([&](auto &...s) { context.sync_reduce(values, odc::Reduction::Sum, s...); });
    same([&](auto &...s) { context.all_reduce(values, odc::Reduction::Sum, s...); });
    same([&](auto &...s) { odc::Operation().wait(s...); });
    same([&](auto &...s) { REQUIRE(Layer().slice(s...).parameters.size() == 0); });
    same([&](auto &...s) { none.stats(s...); });
    same([&](auto &...s) { none.publish(s...); });
    same([&](auto &...s) { none.shutdown(s...); });
    same([&](auto &...s) { none.abort("enough", s...); });
    same([&](auto &...s) { REQUIRE(!odc::Context::join(config_of(3, 2, "a"), s...)); });
    same([&](auto &...s) { REQUIRE(odc::topology("/no/such", s...).json.empty()); });
    same([&](auto &...s) { REQUIRE(odc::Cost::of_model("9b", s...).a == 0); });
    same([&](auto &...s) { REQUIRE(odc::plan(lengths, 2, 10, odc::Policy::LbMini, odc::Cost(), s...).ranks.empty()); });
    same([&](auto &...s) {
        REQUIRE(odc::plan_window(lengths, lengths, 2, 10, odc::Policy::LbMini, odc::Cost(), odc::Lookahead(), s...)
                    .minibatches.empty());
    });
    layer.publish(status);
    REQUIRE(status.ok());
    same([&](auto &...s) { layer.publish(s...); });
    same([&](auto &...s) { layer.release(s...); });
    odc::transports(status);
    REQUIRE(status.ok());
}

// ---- Callbacks ----

struct Unusual {};

void an_exception_of_interrupted_goes_on_in_the_call_that_asked_it() {
    std::atomic<bool> angry{false}, calm{false};
    run_configs(2, [&](odc::Config config) {
        config.interrupted = [&angry, rank = config.rank] {
            if (rank == 0 && angry) {
                throw std::invalid_argument("Ctrl-C, say");
            }
            return false;
        };
        odc::Context context = odc::Context::join(config);
        Layer layer = layer_of(context);
        if (config.rank == 0) {
            context.publish();
            angry = true;
            std::vector<float> full(1000);
            bool caught = false;
            try {
                layer.gather(full);
            } catch (const std::invalid_argument &error) {
                caught = error.what() == std::string("Ctrl-C, say");
            }
            odc::Status status;
            layer.gather(full, status);
            REQUIRE(caught && status.code() == ODC_ERROR_INTERRUPTED);
            REQUIRE_SAYS(status.message(), "interrupted", ": Ctrl-C, say");
            odc::Operation gather = layer.gather_start(full);
            gather.wait(status);
            REQUIRE(status.code() == ODC_ERROR_INTERRUPTED && gather.pending());
            angry = false;
            calm = true;
            context.publish(status);  // earlier exceptions are forgotten
            REQUIRE(status.code() == ODC_ERROR_PHASE &&
                    std::string(status.message()).find("Ctrl-C") == std::string::npos);
            std::array<double, 1> values{1};
            context.sync_reduce(values, odc::Reduction::Sum);
            gather.wait();
        } else {
            await([&] { return calm.load(); });
            context.publish();
            std::array<double, 1> values{1};
            context.sync_reduce(values, odc::Reduction::Sum);
            REQUIRE(values[0] == 2);
        }
    });
}

void lines_of_the_log_go_to_a_callback_that_may_throw() {
    std::vector<std::string> lines;
    odc::Config config;
    config.size = 1;
    config.log_level = odc::LogLevel::Info;
    config.log = [&lines](odc::LogLevel level, const char *line) {
        REQUIRE(level == odc::LogLevel::Info);
        lines.emplace_back(line);
        throw std::logic_error("it concerns nobody");
    };
    {
        odc::Context context = odc::Context::join(config);
        const size_t joined = lines.size();
        REQUIRE(joined > 0);
        REQUIRE_SAYS(lines.front(), " odc info rank=0/1 host=", "joins a job of this rank only");
        context.shutdown();
        REQUIRE(lines.size() == joined + 1);
        REQUIRE_SAYS(lines.back(), "minibatch=0: leaves the job");
    }
    config.log_level = static_cast<odc::LogLevel>(7);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Context::join(config), "log_level 7 is no odc_log_level");
}

void a_wait_that_is_interrupted_can_be_made_again() {
    std::atomic<bool> stop{false}, stopped{false};
    run_configs(2, [&](odc::Config config) {
        config.interrupted = [&stop, rank = config.rank] { return rank == 0 && stop; };
        odc::Context context = odc::Context::join(config);
        Layer layer = layer_of(context);
        context.publish();
        if (config.rank == 0) {
            stop = true;
            REQUIRE_THROWS(ODC_ERROR_INTERRUPTED, context.sync(), "interrupted");
            stop = false;
            stopped = true;
        } else {
            await([&] { return stopped.load(); });
        }
        context.sync();
        REQUIRE(context.minibatch() == 1);
    });
}

// Makes the call on a thread that its callback ends.
template <class Call>
void end_in(std::atomic<bool> &ending, Call &&call) {
    bool survived = false;
    ending = true;
    std::thread([&] {
        call();
        survived = true;
    }).join();
    REQUIRE(!survived && !ending);
}

// `make(context, layer)` returns a call that waits for rank 1, with or without a Status, and can be repeated.
template <class Make>
void end_and_make_again(Make make) {
    std::atomic<bool> ending{false}, ended{false};
    run_configs(2, [&](odc::Config config) {
        config.interrupted = [&ending, rank = config.rank] {
            if (rank == 0 && ending.exchange(false)) {
                pthread_exit(nullptr);
            }
            return false;
        };
        odc::Context context = odc::Context::join(config);
        Layer layer = layer_of(context);
        auto call = make(context, layer);
        if (config.rank == 0) {
            end_in(ending, call);
            ended = true;
        } else {
            await([&] { return ended.load(); });
        }
        call();
    });
}

void a_wait_whose_callback_ends_the_thread_can_be_made_again() {
    const auto published = [](auto call) {
        return [call](odc::Context &context, Layer &layer) {
            return [call, &context, &layer, first = true]() mutable {
                if (std::exchange(first, false)) {
                    context.publish();
                }
                call(context, layer);
            };
        };
    };
    std::vector<float> full(2000);
    const auto own = [&](const odc::Context &context) {
        return odc::span<float>(full.data() + 1000 * context.rank(), 1000);
    };
    const auto check = [](const odc::Status &status) { REQUIRE(status.ok()); };
    end_and_make_again(published([](odc::Context &context, Layer &) { context.sync(); }));
    end_and_make_again(published([&](odc::Context &context, Layer &) {
        odc::Status status;
        context.sync(status);
        check(status);
    }));
    end_and_make_again(published([&](odc::Context &context, Layer &layer) {
        odc::Status status;
        layer.gather(own(context), status);
        check(status);
    }));
    end_and_make_again(published([&](odc::Context &context, Layer &layer) {
        odc::Status status;
        layer.scatter_add(own(context), status);
        check(status);
    }));
    end_and_make_again([&](odc::Context &context, Layer &) {
        return [&] {
            odc::Status status;
            double value = 1;
            context.all_reduce(odc::span<double>(&value, 1), odc::Reduction::Sum, status);
            check(status);
            REQUIRE(value == 2);
        };
    });
}

// With a Status or without, ended by odc_init's own callback.
void a_thread_that_ends_in_joining_ends_nothing_else() {
    std::atomic<bool> ending{false};
    odc::Config config = config_of(0, 2, new_job());
    config.interrupted = [&ending] {
        if (ending.exchange(false)) {
            pthread_exit(nullptr);
        }
        return false;
    };
    end_in(ending, [&] { odc::Context::join(config); });
    end_in(ending, [&] {
        odc::Status status;
        odc::Context::join(config, status);
    });
}

// Fills with every rank's part, as MPI_Allgather does.
class Board {
public:
    explicit Board(size_t size) : size_(size) {}

    bool all_gather(size_t rank, odc::span<const std::byte> mine, odc::span<std::byte> all) {
        std::unique_lock<std::mutex> lock(mutex_);
        const size_t round = rounds_[rank]++;
        parts_.resize(std::max(parts_.size(), round + 1));
        parts_[round].resize(size_ * mine.size());
        std::copy(mine.begin(), mine.end(), parts_[round].begin() + static_cast<std::ptrdiff_t>(rank * mine.size()));
        ++counts_[round];
        changed_.notify_all();
        changed_.wait(lock, [&] { return counts_[round] == size_; });
        std::copy(parts_[round].begin(), parts_[round].end(), all.begin());
        return all.size() == size_ * mine.size();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t size_;
    std::array<size_t, 64> rounds_{}, counts_{};
    std::vector<std::vector<std::byte>> parts_;
};

void ranks_meet_by_a_callback_whose_failure_keeps_its_text() {
    Board board(3);
    run_configs(3, [&](odc::Config config) {
        config.job.clear();
        config.all_gather = [&](odc::span<const std::byte> mine, odc::span<std::byte> all) {
            return board.all_gather(static_cast<size_t>(config.rank), mine, all);
        };
        odc::Context context = odc::Context::join(config);
        Layer layer = layer_of(context);
        context.publish();
        context.sync();
        REQUIRE(context.rank() == config.rank && context.size() == 3 && context.minibatch() == 1);
    });
    odc::Config config = config_of(0, 2, "");
    config.all_gather = [](odc::span<const std::byte>, odc::span<std::byte>) { return false; };
    REQUIRE_THROWS(ODC_ERROR_RENDEZVOUS, odc::Context::join(config), "all_gather callback failed");
    config.all_gather = [](odc::span<const std::byte>, odc::span<std::byte>) -> bool {
        throw std::invalid_argument("the store is gone");
    };
    odc::Status status;
    REQUIRE(!odc::Context::join(config, status) && status.code() == ODC_ERROR_RENDEZVOUS);
    REQUIRE_SAYS(status.message(), "all_gather", ": the store is gone");
    bool caught = false;
    try {
        odc::Context::join(config);
    } catch (const std::invalid_argument &) {
        caught = true;
    }
    config.all_gather = [](odc::span<const std::byte>, odc::span<std::byte>) -> bool { throw Unusual(); };
    REQUIRE(!odc::Context::join(config, status) && status.code() == ODC_ERROR_RENDEZVOUS);
    try {
        odc::Context::join(config);
    } catch (const Unusual &) {
        REQUIRE(caught);
        return;
    }
    REQUIRE(false);
}

}  // namespace

int main(int argc, char **argv) {
    return run_tests(
        "handles_test",
        {TEST(handles_move_and_leave_nothing_behind), TEST(a_shard_outlives_its_context),
         TEST(an_operation_keeps_its_rank_in_the_job_until_it_is_done), TEST(an_assigned_operation_is_waited_for),
         TEST(a_dropped_operation_has_given_its_buffer_back), TEST(an_exception_that_ends_a_context_ends_the_job),
         TEST(an_exception_elsewhere_ends_no_job), TEST(misuse_is_reported), TEST(a_config_is_checked),
         TEST(other_exceptions_keep_their_status), TEST(an_exception_of_interrupted_goes_on_in_the_call_that_asked_it),
         TEST(lines_of_the_log_go_to_a_callback_that_may_throw), TEST(a_wait_that_is_interrupted_can_be_made_again),
         TEST(a_wait_whose_callback_ends_the_thread_can_be_made_again),
         TEST(a_thread_that_ends_in_joining_ends_nothing_else),
         TEST(ranks_meet_by_a_callback_whose_failure_keeps_its_text)},
        argc, argv);
}
