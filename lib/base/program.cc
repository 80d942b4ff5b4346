// SPDX-License-Identifier: Apache-2.0
#include "base/program.h"

#include "base/error.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace odc {

namespace {

constexpr size_t kBytes = 4096;
constexpr char kUnmapped = 1;   // written by the owner
constexpr int kExitMs = 100;    // for an exit to complete, where /proc cannot tell it from exec
static_assert(kUnmapped == 1);  // pinned as in bootstrap/shared_layouts.cc

// The process id in this pid namespace; 0 or less if it has none here.
long pid_of(int pidfd) {
    std::ifstream info(formatted("/proc/self/fdinfo/{}", pidfd));
    for (std::string word; info >> word;) {
        if (long pid = 0; word == "Pid:" && info >> pid) {
            return pid;
        }
    }
    return 0;
}

}  // namespace

Program::Program()
    : fd_(memfd_create("libodc-program", MFD_CLOEXEC | MFD_ALLOW_SEALING)), page_(MAP_FAILED), pid_(getpid()) {
    if (fd_.valid() && ftruncate(fd_.get(), kBytes) == 0) {
        page_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    }
    if (page_ == MAP_FAILED || madvise(page_, kBytes, MADV_DONTFORK) != 0) {
        fail_errno("mapping the page by which other ranks detect exec");
    }
}

Program::~Program() {
    if (getpid() == pid_) {  // in a forked child something else may lie there
        *static_cast<volatile char *>(page_) = kUnmapped;
        munmap(page_, kBytes);
    }
}

bool is_program_gone(int program) { return fcntl(program, F_ADD_SEALS, F_SEAL_WRITE) == 0; }

Ending how_program_went(int pidfd) {
    pollfd entry{pidfd, POLLIN, 0};
    if (poll(&entry, 1, 0) == 1) {
        return Ending::Death;
    }
    char path[1];
    if (const long pid = pid_of(pidfd); pid > 0) {
        // An exiting process has no /proc/PID/exe; after exec it names the new program.
        if (readlink(formatted("/proc/{}/exe", pid).c_str(), path, sizeof(path)) >= 0) {
            return Ending::Exec;
        }
        if (errno == ENOENT) {
            return Ending::Death;
        }
    }
    return poll(&entry, 1, kExitMs) == 1 ? Ending::Death : Ending::Exec;
}

const char *how_it_left(int pidfd, int program) {
    pollfd entry{pidfd, POLLIN, 0};
    // A process that dies or calls exec loses its memory before its sockets; one that gives up may still have it.
    if (!is_program_gone(program)) {
        poll(&entry, 1, kExitMs);
    }
    // A process that gave up may have ended since, so its mark counts first.
    if (char unmapped = 0; pread(program, &unmapped, 1, 0) == 1 && unmapped == kUnmapped) {
        return "gave up";
    }
    return poll(&entry, 1, 0) == 0 && !is_program_gone(program) ? "gave up" : ending_text(how_program_went(pidfd));
}

const char *ending_text(Ending ending) { return ending == Ending::Exec ? "replaced its program (exec)" : "died"; }

}  // namespace odc
