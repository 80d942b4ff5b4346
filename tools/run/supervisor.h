// SPDX-License-Identifier: Apache-2.0
// Starts processes, forwards their output and the signals of this process, and makes sure that all end: the ranks of this host,
// or the agents of several.
#pragma once

#include "run/descriptors.h"
#include "run/failures.h"
#include "run/groups.h"
#include "run/orders.h"
#include "run/rank_output.h"
#include "run/signals.h"

#include <array>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

enum class Input {
    Nothing,
    Ours,    // unless that is a terminal
    Orders,  // a pipe: signals are written to it instead of sent, and its end ends the job
};

struct Process {
    std::string label;                                             // "3", for "rank 3"
    std::string prefix;                                            // of its lines; for Output::Prefixed
    std::vector<std::string> argv;                                 // searched in PATH
    std::vector<std::pair<std::string, std::string>> environment;  // in addition to this process's
    Input input = Input::Nothing;
};

enum class Output {
    Prefixed,  // whole lines, each with its prefix
    Inherit,   // directly to this process's stdout and stderr
};

struct Work {
    std::string noun;  // "rank": what a process is called
    std::vector<Process> processes;
    Output output = Output::Prefixed;
    // This process itself gets orders through this descriptor; -1: no orders.
    int orders = -1;
    // Called for each process that failed: the one who gives the orders then says so, and ends the rest. `how` is empty where
    // this process's ending, or a signal that it passed on, is the reason.
    std::function<void(int status, const Failure &)> on_failure = nullptr;
};

class Supervisor {
public:
    // `work` must outlive this object. Called from the process's main thread.
    explicit Supervisor(const Work &work);
    Supervisor(const Supervisor &) = delete;
    Supervisor &operator=(const Supervisor &) = delete;
    ~Supervisor();

    // Throws Exit when a process cannot be started (127: command not found).
    void start();
    // Returns when the last has ended. When one fails the others have 2 s to report errors, then get SIGTERM (or the end of
    // their orders), and SIGKILL later.
    void supervise();
    // That of the first process that failed (128 + signal if it was killed), 0 if none did and no output was lost.
    int status() const { return status_ == 0 && output_.failed() ? 1 : status_; }

    // The rest may be called while a line of output is handled.
    RankOutput &output() { return output_; }
    void order(size_t process, const std::string &text) { orders_[process].write(text); }
    // Something has failed elsewhere, with this status. `failure` is said; if its `how` is empty, nothing is.
    void fail(int status, const Failure &failure);

private:
    enum class Ending { No, Waiting, Terminating, Killing, GivenUp };

    void start_process(size_t index);
    [[noreturn]] void become(const Process &process, std::array<int, 2> output, int input, pid_t parent, int failed);
    void start_guard();
    void stop_guard();
    void follow_orders();
    void pass_signals_on();
    void pass_on(int signal);
    void reap();
    void process_ended(size_t index, int wait_status);
    void process_failed(size_t index, int wait_status);
    void tell_failures();
    void end_next();
    std::chrono::seconds grace() const;
    std::set<pid_t> own_children() const;
    void signal_rest(int signal) const;
    std::string running() const;
    void sleep();

    const Work &work_;
    DescriptorLimit limit_;
    std::set<pid_t> others_;   // of the program that became this process, such as a sidecar: not to be ended
    std::vector<pid_t> pids_;  // 0: has ended
    std::vector<OrderPipe> orders_;
    OrderReader ordered_;
    Groups groups_;
    Signals signals_;
    RankOutput output_;
    pid_t guard_ = 0;
    Failures failures_;  // not yet told: others may fail in the same way
    size_t ended_ = 0;
    bool children_ = true;  // whether this process has children
    int status_ = 0;
    bool failed_ = false;
    int last_passed_ = 0;
    Ending ending_ = Ending::No;
    std::chrono::steady_clock::time_point deadline_ = {};
    int subreaper_before_ = 0;
};

}  // namespace odc_tool
