// SPDX-License-Identifier: Apache-2.0
// The leader's side of a meeting (meeting.h): it listens, admits each rank of its host once, and hands all to all.
#pragma once

#include "meeting.h"
#include "parcel.h"

#include <vector>

namespace odc {

// What ranks hand each other, between descriptors in messages and by name.
Attendant attendant_of(const Member &member, std::vector<Fd> &&fds);
void add_member(const Attendant &one, int rank, Message *message, std::vector<int> *fds);
// This rank's own.
Attendant own_attendant(const Handout &mine);

// What to add to the words about ranks that have not found each other.
std::string doubt(const Party &party);

std::vector<Attendant> lead(const Party &party, const Handout &mine, const Patience &patience);

}  // namespace odc
