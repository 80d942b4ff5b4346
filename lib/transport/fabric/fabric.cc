// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric.h"

#include "base/error.h"
#include "memory/shared_arena.h"
#include "transport/cuda/bounce_pool.h"
#include "transport/fabric/progress_thread.h"

namespace odc {

namespace {

class FabricPath final : public Path {
public:
    FabricPath(LibraryThread &thread, int peer) : thread_(thread), peer_(peer) {}

    std::shared_ptr<Transfer> start_get(const RemoteSlice &from, void *to, uint64_t filled) override {
        auto transfer = std::make_shared<Transfer>(peer_);
        thread_.get(from, static_cast<std::byte *>(to), filled, transfer);
        return transfer;
    }

    std::shared_ptr<Transfer> expect_get(const RemoteSlice &from, void *to, uint64_t filled) override {
        return start_get(from, to, filled);
    }

    std::shared_ptr<Transfer> start_add(const RemoteSlice &to, const void *from, uint64_t filled, Alarm &,
                                        int64_t *) override {
        auto transfer = std::make_shared<Transfer>(peer_);
        thread_.add(to, static_cast<const std::byte *>(from), filled, transfer);
        return transfer;
    }

    void cancel(const std::shared_ptr<Transfer> &transfer) override { thread_.cancel(transfer); }

private:
    LibraryThread &thread_;
    int peer_;
};

}  // namespace

Fabric::Fabric(const FabricTerms &terms, const std::vector<FabricPort> &ports)
    : thread_(std::make_unique<LibraryThread>(terms, ports)) {}

Fabric::~Fabric() = default;

const std::vector<std::byte> &Fabric::name(size_t port) const { return thread_->name(port); }

void Fabric::start(const Token &token, const std::vector<FabricPeer> &peers, const std::vector<std::vector<int>> &hosts,
                   std::vector<FabricMate> mates) {
    thread_->start(token, peers, hosts, std::move(mates));
}

std::shared_ptr<Arena> Fabric::images() const { return thread_->images(); }
uint64_t Fabric::image_of(int rank) const { return thread_->image_of(rank); }
std::unique_ptr<Path> Fabric::path_to(int rank) { return std::make_unique<FabricPath>(*thread_, rank); }
void Fabric::tell(const Notice &notice) { thread_->tell(encode(notice), {}); }
void Fabric::tell(const Notice &notice, const std::vector<int> &ranks) { thread_->tell(encode(notice), ranks); }
void Fabric::tell_when(const std::atomic<uint64_t> &word, uint64_t value, const Notice &notice,
                       const std::vector<int> &ranks) {
    thread_->tell_when(word, value, encode(notice), ranks);
}
void Fabric::flush() { thread_->flush(); }
void Fabric::fail(const FailedNotice &notice) { thread_->fail_job(encode(notice)); }
void Fabric::await_failed() { thread_->await_failed(); }
bool Fabric::reaches_gpu() const { return thread_->reaches_gpu(); }
void Fabric::lend(const Slots &slots, Access access) {
    thread_->lend(slots.start(), slots.bytes(), slots.kind(), access);
}
void Fabric::add_by(GpuSums &sums) { thread_->add_by(sums); }
void Fabric::expose(const RemoteSlice &slice) { thread_->expose(slice); }
void Fabric::announce(const PostNotice &post) { thread_->announce(post); }
void Fabric::conceal(uint64_t record) { thread_->conceal(record); }
uint64_t Fabric::packets_sent() const { return thread_->packets_sent(); }

}  // namespace odc
