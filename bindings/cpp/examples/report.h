// SPDX-License-Identifier: Apache-2.0
// The output of the examples, on rank 0: it shows whether one rank and many train alike.
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H
#include <cstdio>
#include <odc/odc.hpp>

inline void report_minibatch(uint64_t number, double loss, double bytes, const odc::Plan &plan) {
    std::printf("minibatch %d: loss %.12f a byte over %.0f bytes, microbatches by rank", static_cast<int>(number),
                loss / bytes, bytes);
    for (const auto &microbatches : plan.ranks) {
        std::printf(" %zu", microbatches.size());
    }
    std::printf("\n");
}

// Sums of squares, the second weighted by position, so that a different order of parameters is noticed.
template <class T>
void report_parameters(const char *layer, odc::span<const T> full) {
    double squares = 0, placed = 0;
    for (size_t i = 0; i < full.size(); ++i) {
        const double square = double{full[i]} * double{full[i]};
        squares += square;
        placed += square * static_cast<double>(i % 97);
    }
    std::printf("parameters of %s: %.12f %.12f\n", layer, squares, placed);
}

#endif
