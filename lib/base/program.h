// SPDX-License-Identifier: Apache-2.0
// Detects that a peer has called exec, which keeps its process and pidfd but unmaps its memory. Each rank maps one page of a
// memfd, which forked children do not inherit, and passes the memfd to its peers. The kernel lets a peer add F_SEAL_WRITE only
// once the page is unmapped. A rank that unmaps the page itself first writes kUnmapped there.
#pragma once

#include "base/fd.h"

#include <sys/types.h>

#include <cstdint>

namespace odc {

class Program {
public:
    Program();
    ~Program();
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;
    int fd() const { return fd_.get(); }

private:
    Fd fd_;
    void *page_;
    pid_t pid_;
};

constexpr size_t kProgramsAtOnce = 16;  // peers that are checked in one round

// `program`: the memfd of another process's Program. Never true while that process runs its program.
bool is_program_gone(int program);

enum class Ending : int32_t { Death, Exec };

// Why a process's program is gone.
Ending how_program_went(int pidfd);
// "died" or "replaced its program (exec)".
const char *ending_text(Ending ending);

// Why a process closed its connection in odc_init: "gave up", even if it has ended since, or as ending_text.
const char *how_it_left(int pidfd, int program);
// The same for a process that has not passed its pidfd yet.
constexpr const char *kLeftSomehow = "died, gave up or replaced its program (exec)";

}  // namespace odc
