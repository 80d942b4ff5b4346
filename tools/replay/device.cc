// SPDX-License-Identifier: Apache-2.0
// The emulated device's timeline. In the collective and the odc schedule a step's compute starts when the previous one has
// ended and its parameters have arrived; ends are absolute times, so a late wake-up delays communication, not the device's
// clock.
#include "replay/device.h"

#include "rank/clock.h"
#include "rank/context.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

namespace odc_tool {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

void sleep_until(int64_t when_ns) {
    const timespec when{when_ns / kSecond, when_ns % kSecond};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) == EINTR) {
    }
}

}  // namespace

Device::Device(const Models &models, Network &network, odc_context *barrier)
    : models_(models), gathered_(*models.front()), added_(*models.back()), network_(network), barrier_(barrier) {
    prctl(PR_SET_TIMERSLACK, 1);  // the default of 50 us is as long as a short layer
}

RunRecord Device::run(int32_t number, Schedule schedule, const DeviceWork &work, Detail detail) {
    steps_.clear();
    cost_ = 0;
    added_ns_ = 0;
    for (const Microbatch &microbatch : work.planned) {
        add_steps(microbatch, work.ns_per_cost, kPlanned);
    }
    number_ = number;
    schedule_ = schedule;
    detail_ = detail;
    network_.reset();
    check(odc_minibatch_sync(barrier_));
    origin_ns_ = network_.begin(number, now_ns(), detail);
    for (ModelShards *model : models_) {
        model->update_and_publish();
    }
    record(Kind::Update, {}, origin_ns_, now_ns());
    run_steps(work);
    sleep_until(added_ns_);
    if (work.reported) {
        check(odc_report_cost(gathered_.context(), cost_));
    }
    const int64_t arrived_ns = now_ns();
    for (const ModelShards *model : models_) {
        check(odc_minibatch_sync(model->context()));
    }
    sleep_until(network_.ended());
    const int64_t end_ns = now_ns();
    record(Kind::Sync, {}, arrived_ns, end_ns);
    return summary(end_ns - origin_ns_);
}

RunRecord Device::summary(int64_t duration_ns) const {
    double compute_ns = 0;
    double claimed_ns = 0;
    int64_t claimed = 0;
    for (const Step &step : steps_) {
        compute_ns += step.duration_ns;
        if (step.item != kPlanned) {
            claimed_ns += step.duration_ns;
            claimed += step.kind == Kind::Forward && step.layer == 0 ? 1 : 0;
        }
    }
    return {duration_ns, int64_t(compute_ns), int64_t(claimed_ns), claimed, network_.crossed()};
}

void Device::add_steps(const Microbatch &microbatch, double ns_per_cost, int32_t item) {
    const int32_t number = steps_.empty() ? 0 : steps_.back().microbatch + 1;
    const int32_t layers = gathered_.layers();
    const double forward_ns = microbatch.cost * ns_per_cost / (3.0 * layers);  // backward takes twice as long
    for (int32_t layer = 0; layer < layers; ++layer) {
        steps_.push_back({Kind::Forward, number, layer, item, forward_ns, 0});
    }
    for (int32_t layer = layers; layer-- > 0;) {
        steps_.push_back({Kind::Backward, number, layer, item, 2 * forward_ns, microbatch.gradient.of_layer(layer)});
    }
    cost_ += microbatch.cost;
}

bool Device::has_step(size_t step, const DeviceWork &work) {
    if (step == steps_.size() && !work.items.empty()) {
        uint64_t item = 0;
        const odc_status status = odc_claim(gathered_.context(), work.items.size(), &item);
        if (status != ODC_DONE) {
            check(status);
            add_steps(work.items[item], work.ns_per_cost, static_cast<int32_t>(item));
        }
    }
    return step < steps_.size();
}

void Device::run_steps(const DeviceWork &work) {
    switch (schedule_) {
        case Schedule::Collective:
        case Schedule::Odc: run_ahead(work); break;
        case Schedule::Waiting: run_waiting(); break;
        case Schedule::Prefetching: run_prefetching(); break;
    }
}

void Device::run_ahead(const DeviceWork &work) {
    double device_free_ns = double(now_ns());
    if (!has_step(0, work)) {
        return;
    }
    fetch(steps_[0], 0);
    int64_t ready_ns = now_ns();
    const auto send = [&](const Step &step) {
        added_.make_gradient(step.gradient);
        send_gradient(step);
    };
    for (size_t i = 0; i < steps_.size(); ++i) {
        const Step step = steps_[i];
        const double start_ns = std::max(device_free_ns, double(ready_ns));
        const double end_ns = start_ns + step.duration_ns;
        record(Kind::Wait, step, int64_t(device_free_ns), int64_t(start_ns));
        record(step.kind, step, int64_t(start_ns), int64_t(end_ns));
        if (has_step(i + 1, work)) {
            fetch(steps_[i + 1], (i + 1) % 2);
            ready_ns = now_ns();
        }
        if (i > 0 && steps_[i - 1].kind == Kind::Backward) {
            send(steps_[i - 1]);
        }
        device_free_ns = end_ns;
        sleep_until(int64_t(end_ns));
    }
    send(steps_.back());
}

void Device::run_waiting() {
    for (const Step &step : steps_) {
        fetch(step, 0);
        compute(step);
        if (step.kind == Kind::Backward) {
            send_gradient(step);
        }
    }
}

void Device::run_prefetching() {
    const std::vector<Step> &steps = steps_;
    if (steps.empty()) {
        return;
    }
    gathered_.start_gather(steps[0].layer, 0);
    bool adding = false;
    const auto add = [&](const Step &step) {
        if (adding) {
            added_.end_scatter_add();
        }
        adding = step.kind == Kind::Backward;
        if (adding) {
            added_.start_scatter_add(step.layer);
        }
    };
    for (size_t i = 0; i < steps.size(); ++i) {
        gathered_.end_gather(steps[i].layer, i % 2);
        if (i + 1 < steps.size()) {
            gathered_.start_gather(steps[i + 1].layer, (i + 1) % 2);
        }
        if (i > 0) {
            add(steps[i - 1]);
        }
        compute(steps[i]);
    }
    add(steps.back());
    added_.end_scatter_add();
}

// A backward step computes its gradient.
void Device::compute(const Step &step) {
    const int64_t end_ns = now_ns() + int64_t(step.duration_ns);
    if (step.kind == Kind::Backward) {
        added_.make_gradient(step.gradient);
    }
    if (step.duration_ns > 0) {
        sleep_until(end_ns);
    }
}

void Device::fetch(const Step &step, size_t buffer) {
    meet(step);
    const int64_t begin_ns = now_ns();
    gathered_.gather(step.layer, buffer);
    sleep_until(network_.gathered(static_cast<size_t>(step.layer), begin_ns));
    record(Kind::Gather, step, begin_ns, now_ns());
}

// One gradient may be on its way while the next layer is gathered, and the next one is made.
void Device::send_gradient(const Step &step) {
    sleep_until(added_ns_);
    meet(step);
    const int64_t begin_ns = now_ns();
    added_.scatter_add(step.layer);
    if (network_.sums() && step.microbatch == steps_.back().microbatch) {
        added_.finish(step.layer);
    }
    added_ns_ = network_.added(static_cast<size_t>(step.layer), begin_ns);
    record(Kind::ScatterAdd, step, begin_ns, now_ns());
}

void Device::meet(const Step &step) {
    if (schedule_ == Schedule::Collective) {
        const int64_t begin_ns = now_ns();
        check(odc_minibatch_sync(barrier_));
        record(Kind::Barrier, step, begin_ns, now_ns());
    }
}

void Device::record(Kind kind, const Step &step, int64_t begin_ns, int64_t end_ns) {
    if (detail_ == Detail::Events && end_ns > begin_ns) {
        events_.push_back(
            {begin_ns - origin_ns_, end_ns - origin_ns_, number_, step.microbatch, step.layer, step.item, kind});
    }
}

}  // namespace odc_tool
