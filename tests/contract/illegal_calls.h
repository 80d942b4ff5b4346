/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with wrong arguments or in the wrong phase. Each fails at once and changes nothing, so the job follows its schedule. */
#ifndef ODC_TESTS_ILLEGAL_CALLS_H
#define ODC_TESTS_ILLEGAL_CALLS_H

#include "random_job.h"

/* Makes a few at random, or none. No other call of the rank may be running. */
void make_illegal_calls(world *w);

#endif
