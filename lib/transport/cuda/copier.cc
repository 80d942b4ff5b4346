// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/copier.h"

#include "base/settings.h"

namespace odc {

using cuda::driver;

Copier::Copier(const CudaDevice &device)
    : device_(device), batches_(driver().cuMemcpyBatchAsync != nullptr && setting_number(Setting::kCopyBatches) != 0) {}

void Copier::enqueue(const std::vector<Copy> &copies, cuda::Stream stream) const {
    // The legacy default stream takes no batches.
    const bool batches = batches_ && stream != nullptr && stream != cuda::kLegacyStream;
    std::vector<Copy> between;
    for (const Copy &copy : copies) {
        if (copy.other_gpu && batches) {
            between.push_back(copy);
        } else {
            enqueue_one(copy, stream);
        }
    }
    if (!between.empty()) {
        enqueue_batch(between, stream);
    }
}

void Copier::enqueue_one(const Copy &copy, cuda::Stream stream) const {
    device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(copy.to),
                                         reinterpret_cast<cuda::Address>(copy.from), copy.bytes, stream),
                  "cuMemcpyAsync");
}

void Copier::enqueue_batch(const std::vector<Copy> &copies, cuda::Stream stream) const {
    std::vector<cuda::Address> to;
    std::vector<cuda::Address> from;
    std::vector<size_t> bytes;
    for (const Copy &copy : copies) {
        to.push_back(reinterpret_cast<cuda::Address>(copy.to));
        from.push_back(reinterpret_cast<cuda::Address>(copy.from));
        bytes.push_back(copy.bytes);
    }
    cuda::CopyAttributes attributes{cuda::SourceAccess::InStream, {}, {}, cuda::kPreferOverlapWithCompute};
    size_t first = 0;
    device_.check(driver().cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), copies.size(), &attributes, &first,
                                              1, stream),
                  "cuMemcpyBatchAsync");
}

}  // namespace odc
