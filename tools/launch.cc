// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job on this host and supervises them until the last has ended.
#include "launch.h"

#include "descriptors.h"
#include "rank_output.h"
#include "verbs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

namespace odc_tool {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{2};  // to say what they saw, then again to obey SIGTERM
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};

[[noreturn]] void fail_system(const std::string &what) { throw Exit{1, what + ": " + strerror(errno)}; }

// 128 random bits, so that no other job of this host can be met by chance.
std::string random_job() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        fail_system("getrandom");
    }
    std::string text;
    for (const unsigned char byte : bytes) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

// Blocks the signals that are passed on and reads them from a descriptor instead, until destroyed.
class Signals {
public:
    Signals() {
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGCHLD);
        for (const int signal : kPassedOn) {
            sigaddset(&wanted, signal);
        }
        fd_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
        if (fd_ < 0) {
            fail_system("signalfd");
        }
        sigprocmask(SIG_BLOCK, &wanted, &mask_before_);
        struct sigaction action = {};
        action.sa_handler = SIG_IGN;
        sigaction(SIGPIPE, &action, &pipe_before_);
        action.sa_handler = SIG_DFL;  // a parent may have left it ignored, and then nobody is waited for
        sigaction(SIGCHLD, &action, nullptr);
    }
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;
    ~Signals() {
        close(fd_);
        restore();
    }

    int fd() const { return fd_; }
    // Also what a new rank needs before it becomes the user's program.
    void restore() const {
        sigaction(SIGPIPE, &pipe_before_, nullptr);
        restore_mask();
    }
    void restore_mask() const { sigprocmask(SIG_SETMASK, &mask_before_, nullptr); }
    // The next signal, or 0.
    int take() const {
        signalfd_siginfo info;
        return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
    }

private:
    int fd_ = -1;
    sigset_t mask_before_ = {};
    struct sigaction pipe_before_ = {};
};

// The ranks' process groups, in memory that the guard shares: it outlives us if we are killed, and only then kills
// what is left of each group. (The kernel kills the ranks themselves, but not what they have started.)
class Groups {
public:
    explicit Groups(size_t count) : count_(count) {
        void *memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            fail_system("mmap");
        }
        pids_ = static_cast<pid_t *>(memory);
    }
    Groups(const Groups &) = delete;
    Groups &operator=(const Groups &) = delete;
    ~Groups() { munmap(pids_, bytes()); }

    pid_t &operator[](size_t index) { return pids_[index]; }
    bool contains(pid_t group) const { return std::find(pids_, pids_ + count_, group) != pids_ + count_; }
    // The number of a group without members may become somebody else's.
    void forget_ended() {
        std::replace_if(
            pids_, pids_ + count_, [](pid_t group) { return group != 0 && kill(-group, 0) != 0; }, 0);
    }
    void signal_all(int signal) const {
        for (size_t index = 0; index < count_; ++index) {
            if (pids_[index] != 0) {  // 0: nobody of the group is left
                kill(-pids_[index], signal);
            }
        }
    }

private:
    size_t bytes() const { return count_ * sizeof(pid_t); }
    size_t count_;
    pid_t *pids_;
};

std::set<pid_t> children() {
    std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
    return {std::istream_iterator<pid_t>(file), {}};
}

// In the child: becomes the user's program, or tells the parent why not through `failed`.
[[noreturn]] void become_rank(const Launch &wanted, int rank, const std::string &job, std::array<int, 2> output,
                              pid_t parent, int failed, const DescriptorLimit &limit) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    if (rank != 0 || isatty(STDIN_FILENO) != 0) {  // a background process group that reads the terminal is stopped
        const int nothing = ::open("/dev/null", O_RDONLY);
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    for (int stream = 0; stream < 2; ++stream) {
        if (output[static_cast<size_t>(stream)] >= 0) {
            dup2(output[static_cast<size_t>(stream)], stream + 1);
        }
    }
    setenv("ODC_RANK", std::to_string(rank).c_str(), 1);
    setenv("ODC_SIZE", std::to_string(wanted.ranks).c_str(), 1);
    setenv("ODC_JOB", job.c_str(), 1);
    std::vector<char *> argv;
    for (const std::string &word : wanted.argv) {
        argv.push_back(const_cast<char *>(word.c_str()));
    }
    argv.push_back(nullptr);
    limit.restore();
    execvp(argv[0], argv.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(failed, &error, sizeof error);
    _exit(127);
}

class Job {
public:
    explicit Job(const Launch &wanted)
        : wanted_(wanted),
          limit_(wanted.ranks, wanted.output == Launch::Output::Prefixed ? RankOutput::kDescriptors : 0),
          ranks_(static_cast<size_t>(wanted.ranks)), groups_(static_cast<size_t>(wanted.ranks)) {
        prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
        prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the ranks leave behind becomes our child, so that it can be ended
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job();

    void start();
    void supervise();
    // Output that was lost must not look like success.
    int status() const { return status_ == 0 && output_.failed() ? 1 : status_; }

private:
    enum class Ending { No, Waiting, Terminating, Killing, GivenUp };

    void start_rank(int rank, const std::string &job);
    void start_guard();
    void stop_guard();
    void pass_signals_on();
    void reap();
    void rank_ended(size_t rank, int wait_status);
    void rank_failed(size_t rank, int wait_status);
    void end_next();
    std::set<pid_t> job_children() const;
    void signal_rest(int signal) const;
    std::string running() const;
    void sleep();

    const Launch &wanted_;
    DescriptorLimit limit_;
    std::set<pid_t> others_ = children();  // of the program that became us, such as a sidecar: not ours to end
    std::vector<pid_t> ranks_;             // 0: has ended
    Groups groups_;
    Signals signals_;
    RankOutput output_;
    pid_t guard_ = 0;
    size_t ended_ = 0;
    bool children_ = true;  // of the job
    int status_ = 0;
    bool failed_ = false;
    int last_passed_ = 0;
    Ending ending_ = Ending::No;
    Clock::time_point deadline_ = {};
    int subreaper_before_ = 0;
};

Job::~Job() {
    stop_guard();
    if (children_) {  // it could not be started, or not be ended
        signal_rest(SIGKILL);
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
    }
    prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
}

void Job::start() {
    const std::string job = random_job();
    for (int rank = 0; rank < wanted_.ranks; ++rank) {
        start_rank(rank, job);
    }
    start_guard();
}

void Job::start_rank(int rank, const std::string &job) {
    std::array<int, 2> output = {-1, -1};
    if (wanted_.output == Launch::Output::Prefixed) {
        output = output_.open(rank);
    }
    int exec_failed[2];
    if (pipe2(exec_failed, O_CLOEXEC) != 0) {
        fail_system("pipe");
    }
    const pid_t parent = getpid();
    const pid_t pid = fork();
    const int fork_error = errno;
    if (pid == 0) {
        signals_.restore();
        become_rank(wanted_, rank, job, output, parent, exec_failed[1], limit_);
    }
    close(exec_failed[1]);
    for (const int fd : output) {
        if (fd >= 0) {
            close(fd);
        }
    }
    int error = pid < 0 ? fork_error : 0;
    if (pid > 0) {
        ranks_[static_cast<size_t>(rank)] = pid;
        groups_[static_cast<size_t>(rank)] = pid;
        if (read(exec_failed[0], &error, sizeof error) != sizeof error) {
            error = 0;
        }
    }
    close(exec_failed[0]);
    if (pid < 0) {
        throw Exit{1, "cannot start rank " + std::to_string(rank) + ": fork: " + strerror(error)};
    }
    if (error != 0) {
        throw Exit{error == ENOENT ? 127 : 126, "cannot start '" + wanted_.argv[0] + "': " + strerror(error)};
    }
}

void Job::start_guard() {
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
    closefrom(0);  // holds nobody's output open
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    while (getppid() == parent) {
        int signal = 0;
        sigwait(&all, &signal);
    }
    groups_.signal_all(SIGKILL);
    _exit(0);
}

void Job::stop_guard() {
    if (guard_ > 0) {
        kill(guard_, SIGKILL);
        waitpid(guard_, nullptr, 0);
        guard_ = 0;
    }
}

void Job::supervise() {
    reap();
    while (children_ && ending_ != Ending::GivenUp) {
        sleep();
        pass_signals_on();
        reap();
        output_.pump();
        if (ending_ != Ending::No && Clock::now() >= deadline_) {
            end_next();
        }
    }
    // From here a signal may end us: it is only our reader that is waited for. Not SIGPIPE: a reader who leaves must not
    // take the status with him.
    signals_.restore_mask();
    output_.finish();
}

void Job::sleep() {
    int timeout_ms = -1;
    if (ending_ != Ending::No) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
        timeout_ms = static_cast<int>(std::max<int64_t>(left, 0));
    }
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0}};
    output_.add_polls(polls);
    poll(polls.data(), polls.size(), timeout_ms);
}

void Job::pass_signals_on() {
    for (int signal = signals_.take(); signal != 0; signal = signals_.take()) {
        if (signal == SIGCHLD) {
            continue;
        }
        last_passed_ = signal;
        groups_.signal_all(signal);
        if (signal == SIGTSTP) {  // Ctrl-Z: the shell waits for us to stop, too
            raise(SIGSTOP);
        }
    }
}

void Job::reap() {
    for (;;) {
        int wait_status = 0;
        const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
        if (pid <= 0) {
            children_ = pid == 0 && (others_.empty() || !job_children().empty());
            return;
        }
        others_.erase(pid);
        const auto rank = std::find(ranks_.begin(), ranks_.end(), pid);
        groups_.forget_ended();
        if (rank != ranks_.end()) {
            rank_ended(static_cast<size_t>(rank - ranks_.begin()), wait_status);
        } else if (pid == guard_) {
            guard_ = 0;
        }
    }
}

void Job::rank_ended(size_t rank, int wait_status) {
    ranks_[rank] = 0;
    ++ended_;
    if (wait_status != 0) {
        rank_failed(rank, wait_status);
    }
    if (ended_ == ranks_.size()) {
        stop_guard();
        if (ending_ < Ending::Terminating) {  // what still runs was left behind by a rank: nobody waits for it
            ending_ = Ending::Waiting;
            deadline_ = Clock::now();
        }
    }
}

void Job::rank_failed(size_t rank, int wait_status) {
    const bool killed = WIFSIGNALED(wait_status);
    const int number = killed ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    const bool told_to = ending_ >= Ending::Terminating || (killed && number == last_passed_);
    if (!told_to) {
        output_.pump();  // what it said comes before what we say
        output_.say("odc: rank " + std::to_string(rank) +
                    (killed ? " was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")"
                            : " exited with status " + std::to_string(number)));
    }
    if (!failed_) {
        failed_ = true;
        status_ = killed ? 128 + number : number;
        ending_ = Ending::Waiting;
        deadline_ = Clock::now() + kPatience;
    }
}

// The deadline of one step of the ending has passed: the next step.
void Job::end_next() {
    deadline_ = Clock::now() + kPatience;
    if (ending_ == Ending::Waiting) {
        ending_ = Ending::Terminating;
        if (ended_ < ranks_.size()) {
            output_.say("odc: ending " + running());
        }
        signal_rest(SIGTERM);
        signal_rest(SIGCONT);  // a stopped process must run to end
    } else if (ending_ == Ending::Terminating) {
        ending_ = Ending::Killing;
        if (ended_ < ranks_.size()) {
            output_.say("odc: killing " + running() + ", which did not end at SIGTERM");
        }
        signal_rest(SIGKILL);
    } else {
        ending_ = Ending::GivenUp;
        output_.say("odc: gave up waiting for processes that SIGKILL did not end");
    }
}

// "rank 3", "ranks 0, 3": those that have not ended.
std::string Job::running() const {
    std::string names;
    size_t count = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank] != 0) {
            names += (count == 0 ? "" : ", ") + std::to_string(rank);
            ++count;
        }
    }
    return (count == 1 ? "rank " : "ranks ") + names;
}

// The ranks, the guard, and what the ranks have left to us.
std::set<pid_t> Job::job_children() const {
    std::set<pid_t> all = children();
    for (const pid_t other : others_) {
        all.erase(other);
    }
    return all;
}

// Signals the ranks' groups, and our other children: processes that left their group and then lost their parent. Each
// once: who handles a signal may take the second one badly.
void Job::signal_rest(int signal) const {
    groups_.signal_all(signal);
    for (const pid_t child : job_children()) {
        if (child != guard_ && !groups_.contains(getpgid(child))) {
            kill(child, signal);
        }
    }
}

}  // namespace

int launch(const Launch &wanted) {
    if (wanted.argv.empty()) {
        throw Exit{2, "no command to run was given"};
    }
    Job job(wanted);
    job.start();
    job.supervise();
    return job.status();
}

bool inside_a_job() {
    // Those of the library (kLaunchers in lib/launcher.cc): in a Slurm batch script, or with a stray RANK, nobody waits.
    constexpr std::array<std::array<const char *, 2>, 9> kLaunchers = {{
        {"ODC_RANK", "ODC_RANK"},
        {"ODC_SIZE", "ODC_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"},
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
        {"RANK", "LOCAL_WORLD_SIZE"},
        {"RANK", "WORLD_SIZE"},
        {"PMI_RANK", "MPI_LOCALNRANKS"},
        {"PMI_RANK", "PMI_SIZE"},
        {"SLURM_PROCID", "SLURM_STEP_ID"},
    }};
    const auto given = [](const char *name) {
        const char *value = std::getenv(name);
        return value != nullptr && *value != '\0';
    };
    return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                       [&](const auto &pair) { return given(pair[0]) && given(pair[1]); });
}

}  // namespace odc_tool
