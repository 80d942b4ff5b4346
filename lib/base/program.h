// SPDX-License-Identifier: Apache-2.0
// Whether a process still runs the program that it ran in odc_init: exec keeps the process and its pidfd, but not its
// memory. Each rank maps a page of a file of its own, which forked children do not inherit, and hands out the file; the
// kernel lets others seal it against writing only when the page is no longer mapped. A rank that unmaps it itself writes
// so there.
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

constexpr size_t kProgramsAtOnce = 16;  // of many ranks so many are asked for at a time

// `program`: the descriptor of another process's Program. Never true while that process runs it.
bool is_program_gone(int program);

enum class Ending : int32_t { Death, Exec };

// Of a process whose program is gone, by its pidfd.
Ending how_program_went(int life);
// "died" or "replaced its program (exec)".
const char *words_of(Ending ending);

// Of a process that closed its connection in odc_init: the same, or "gave up".
const char *how_it_left(int life, int program);
// The same where nothing else is known of it.
constexpr const char *kLeftSomehow = "died, gave up or replaced its program (exec)";

}  // namespace odc
