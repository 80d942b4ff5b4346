// SPDX-License-Identifier: Apache-2.0
// A port for the ranks of a job, of which one will listen.
#pragma once

namespace odc_tool {

// Keeps a port from being given to others: bound but not listening, so that a rank can listen on it with SO_REUSEADDR, as
// libodc and torch's store do.
class HeldPort {
public:
    HeldPort();  // throws Exit
    HeldPort(const HeldPort &) = delete;
    HeldPort &operator=(const HeldPort &) = delete;
    ~HeldPort();

    int number() const;

private:
    int socket_;
};

}  // namespace odc_tool
