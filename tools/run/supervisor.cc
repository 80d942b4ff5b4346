// SPDX-License-Identifier: Apache-2.0
// Starts processes and supervises them until the last has ended.
#include "run/supervisor.h"

#include "cli/exit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace odc_tool {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{2};  // to report errors, then again to obey SIGTERM

[[noreturn]] void fail_system(const std::string &what) { throw Exit{1, fmt::format("{}: {}", what, strerror(errno))}; }

std::set<pid_t> children() {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", getpid()));
    return {std::istream_iterator<pid_t>(file), {}};
}

void close_given(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

// Output and orders.
size_t descriptors_each(const Work &work) {
    return (work.output == Output::Prefixed ? RankOutput::kDescriptors : 0) +
           (work.processes.front().input == Input::Orders ? 1 : 0);
}

}  // namespace

Supervisor::Supervisor(const Work &work)
    : work_(work), limit_(static_cast<int>(work.processes.size()), descriptors_each(work)), others_(children()),
      pids_(work.processes.size()), orders_(work.processes.size()), ordered_(work.orders),
      groups_(work.processes.size()) {
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
    prctl(PR_SET_CHILD_SUBREAPER,
          1);  // orphans of the processes become this process's children, so that they can be ended
}

Supervisor::~Supervisor() {
    stop_guard();
    if (children_) {  // one could not be started, or not be ended
        signal_rest(SIGKILL);
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
    }
    prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
}

void Supervisor::start() {
    for (size_t index = 0; index < pids_.size(); ++index) {
        start_process(index);
    }
    start_guard();
}

void Supervisor::start_process(size_t index) {
    const Process &process = work_.processes[index];
    std::array<int, 2> output = {-1, -1};
    if (work_.output == Output::Prefixed) {
        output = output_.open(process.prefix);
    }
    const int input = process.input == Input::Orders ? orders_[index].open() : -1;
    int exec_failed[2];
    if (pipe2(exec_failed, O_CLOEXEC) != 0) {
        fail_system("pipe");
    }
    const pid_t parent = getpid();
    const pid_t pid = fork();
    const int fork_error = errno;
    if (pid == 0) {
        signals_.restore();
        become(process, output, input, parent, exec_failed[1]);
    }
    close(exec_failed[1]);
    close_given(input);
    std::for_each(output.begin(), output.end(), close_given);
    int error = pid < 0 ? fork_error : 0;
    if (pid > 0) {
        pids_[index] = pid;
        groups_[index] = pid;
        if (read(exec_failed[0], &error, sizeof error) != sizeof error) {
            error = 0;
        }
    }
    close(exec_failed[0]);
    if (pid < 0) {
        throw Exit{1, fmt::format("cannot start {} {}: fork: {}", work_.noun, process.label, strerror(error))};
    }
    if (error != 0) {
        throw Exit{error == ENOENT ? 127 : 126, fmt::format("cannot start '{}': {}", process.argv[0], strerror(error))};
    }
}

// In the child: executes the program, or sends the parent the reason through `failed`.
void Supervisor::become(const Process &process, std::array<int, 2> output, int input, pid_t parent, int failed) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    if (input >= 0) {
        dup2(input, STDIN_FILENO);
    } else if (process.input != Input::Ours || isatty(STDIN_FILENO) != 0) {
        // A background process group that reads the terminal is stopped.
        const int nothing = ::open("/dev/null", O_RDONLY);
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    for (int stream = 0; stream < 2; ++stream) {
        if (output[static_cast<size_t>(stream)] >= 0) {
            dup2(output[static_cast<size_t>(stream)], stream + 1);
        }
    }
    for (const auto &[name, value] : process.environment) {
        setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<char *> argv;
    for (const std::string &word : process.argv) {
        argv.push_back(const_cast<char *>(word.c_str()));
    }
    argv.push_back(nullptr);
    limit_.restore();
    execvp(argv[0], argv.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(failed, &error, sizeof error);
    _exit(127);
}

void Supervisor::start_guard() {
    const pid_t parent = getpid();
    guard_ = fork();
    if (guard_ < 0) {
        fail_system("fork");
    }
    if (guard_ != 0) {
        return;
    }
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    setpgid(0, 0);
    prctl(PR_SET_NAME, "odc guard");
    closefrom(0);  // an open pipe would keep its reader waiting
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    while (getppid() == parent) {
        int signal = 0;
        sigwait(&all, &signal);
    }
    groups_.signal_all(SIGKILL);
    _exit(0);
}

void Supervisor::stop_guard() {
    if (guard_ > 0) {
        kill(guard_, SIGKILL);
        waitpid(guard_, nullptr, 0);
        guard_ = 0;
    }
}

void Supervisor::supervise() {
    reap();
    while (children_ && ending_ != Ending::GivenUp) {
        sleep();
        pass_signals_on();
        follow_orders();
        for (OrderPipe &pipe : orders_) {
            pipe.flush();
        }
        reap();
        output_.pump();
        if (ending_ != Ending::No && Clock::now() >= deadline_) {
            end_next();
        }
    }
    // From here a signal may end this process: it only waits for the reader. Not SIGPIPE: a closed pipe must not change the
    // status.
    signals_.restore_mask();
    tell_failures();
    output_.finish();
    tell_failures();  // what agents said behind output that there was no room for
    output_.finish();
}

void Supervisor::sleep() {
    int timeout_ms = -1;
    if (ending_ != Ending::No) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
        timeout_ms = static_cast<int>(std::max<int64_t>(left, 0));
    }
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0}};
    output_.add_polls(polls);
    ordered_.add_poll(polls);
    for (const OrderPipe &pipe : orders_) {
        pipe.add_poll(polls);
    }
    poll(polls.data(), polls.size(), timeout_ms);
}

void Supervisor::pass_signals_on() {
    for (int signal = signals_.take(); signal != 0; signal = signals_.take()) {
        if (signal == SIGCHLD) {
            continue;
        }
        pass_on(signal);
        if (signal == SIGTSTP) {  // Ctrl-Z: the shell waits for this process to stop, too
            raise(SIGSTOP);
        }
    }
}

void Supervisor::pass_on(int signal) {
    last_passed_ = signal;
    for (size_t index = 0; index < pids_.size(); ++index) {
        if (orders_[index].is_obeyed()) {
            orders_[index].write(fmt::format("signal {}\n", signal));
        } else if (groups_[index] != 0) {
            kill(-groups_[index], signal);
        }
    }
}

void Supervisor::follow_orders() {
    const bool had_ended = ordered_.ended();
    for (std::string line = ordered_.take(); !line.empty(); line = ordered_.take()) {
        constexpr std::string_view kSignal = "signal ";
        const int signal = line.starts_with(kSignal) ? std::atoi(line.c_str() + kSignal.size()) : 0;
        if (signal > 0) {
            pass_on(signal);
        }
    }
    if (ordered_.ended() && !had_ended) {  // the launcher has gone, or has ended the job
        status_ = failed_ ? status_ : 1;
        failed_ = true;
        if (ending_ < Ending::Terminating) {
            ending_ = Ending::Waiting;
            end_next();
        }
    }
}

void Supervisor::reap() {
    for (;;) {
        int wait_status = 0;
        const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
        if (pid <= 0) {
            children_ = pid == 0 && (others_.empty() || !own_children().empty());
            return;
        }
        others_.erase(pid);
        const auto process = std::find(pids_.begin(), pids_.end(), pid);
        groups_.forget_ended();
        if (process != pids_.end()) {
            output_.pump();  // what an agent said before it ended
            process_ended(static_cast<size_t>(process - pids_.begin()), wait_status);
        } else if (pid == guard_) {
            guard_ = 0;
        }
    }
}

void Supervisor::process_ended(size_t index, int wait_status) {
    pids_[index] = 0;
    orders_[index].end();
    ++ended_;
    if (wait_status != 0) {
        process_failed(index, wait_status);
    }
    if (ended_ == pids_.size()) {
        stop_guard();
        if (ending_ < Ending::Terminating) {  // what still runs was left behind by a process: do not wait for it
            ending_ = Ending::Waiting;
            deadline_ = Clock::now();
        }
    }
}

void Supervisor::process_failed(size_t index, int wait_status) {
    const bool killed = WIFSIGNALED(wait_status);
    const int number = killed ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    const int status = killed ? 128 + number : number;
    // An agent has reported what failed, or gets the signal, too.
    const bool said = orders_[index].was_opened() && (status == 128 + last_passed_ || (failed_ && number != 255));
    const bool told_to = ending_ >= Ending::Terminating || (killed && number == last_passed_) || said;
    Failure failure{work_.noun, work_.processes[index].label, ""};
    if (!told_to) {
        failure.how = killed ? fmt::format("was killed by signal {} ({})", number, strsignal(number))
                             : fmt::format("exited with status {}", number);
    }
    if (work_.on_failure) {
        work_.on_failure(status, failure);
        failure.how.clear();
    }
    fail(status, failure);
}

void Supervisor::fail(int status, const Failure &failure) {
    if (!failure.how.empty()) {
        failures_.add(failure);
    }
    if (failed_) {
        return;
    }
    failed_ = true;
    status_ = status;
    ending_ = Ending::Waiting;
    // Where another process gives the orders, it prints the failure and then ends the rest; this deadline is for the case
    // that the connection to it is gone.
    deadline_ = Clock::now() + (work_.on_failure ? 5 * kGrace : grace());
}

// An agent's grace periods must fit in this process's.
std::chrono::seconds Supervisor::grace() const {
    return ending_ == Ending::Terminating && work_.processes.front().input == Input::Orders ? 2 * kGrace : kGrace;
}

void Supervisor::tell_failures() {
    output_.pump();  // the ranks' output comes before our message
    for (const std::string &line : failures_.take()) {
        output_.warn(fmt::format("odc: {}", line));
    }
}

// The deadline of one step of the ending has passed: take the next step.
void Supervisor::end_next() {
    tell_failures();
    if (ending_ == Ending::Waiting) {
        ending_ = Ending::Terminating;
        if (ended_ < pids_.size()) {
            output_.warn(fmt::format("odc: ending {}", running()));
        }
        if (work_.processes.front().input == Input::Orders && ended_ < pids_.size()) {
            for (OrderPipe &pipe : orders_) {
                pipe.end();
            }
        } else {
            signal_rest(SIGTERM);
            signal_rest(SIGCONT);  // a stopped process must run to end
        }
    } else if (ending_ == Ending::Terminating) {
        ending_ = Ending::Killing;
        if (ended_ < pids_.size()) {
            output_.warn(fmt::format("odc: killing {}, which did not end at SIGTERM", running()));
        }
        signal_rest(SIGKILL);
    } else {
        ending_ = Ending::GivenUp;
        output_.warn("odc: gave up waiting for processes that SIGKILL did not end");
    }
    deadline_ = Clock::now() + grace();
}

// Those that have not ended.
std::string Supervisor::running() const {
    std::vector<std::string> labels;
    for (size_t index = 0; index < pids_.size(); ++index) {
        if (pids_[index] != 0) {
            labels.push_back(work_.processes[index].label);
        }
    }
    return enumerate(work_.noun, labels);
}

// Processes started here, the guard, and orphans of the processes.
std::set<pid_t> Supervisor::own_children() const {
    std::set<pid_t> all = children();
    for (const pid_t other : others_) {
        all.erase(other);
    }
    return all;
}

// Signals the groups, and the other children: processes that left their group and then lost their parent. Each once: a handler
// may not expect a second signal.
void Supervisor::signal_rest(int signal) const {
    groups_.signal_all(signal);
    for (const pid_t child : own_children()) {
        if (child != guard_ && !groups_.contains(getpgid(child))) {
            kill(child, signal);
        }
    }
}

}  // namespace odc_tool
