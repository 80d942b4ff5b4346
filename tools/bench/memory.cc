// SPDX-License-Identifier: Apache-2.0
// Rank 0 makes a memfd and passes it to the others by an abstract socket with a name chosen by the kernel. (The library's
// slices are not visible to other ranks, and /dev/shm is too small in many containers.)
#include "bench/memory.h"

#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace odc_tool {

namespace {

constexpr size_t kLargePage = size_t{2} << 20;
constexpr auto kPeerTimeout = std::chrono::seconds(30);

[[noreturn]] void fail_errno(const std::string &what) {
    throw Exit{1, fmt::format("{}: {}", what, std::generic_category().message(errno))};
}

class File {
public:
    explicit File(int fd = -1) : fd_(fd) {}
    File(File &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    File &operator=(File &&) = delete;
    ~File() {
        if (fd_ >= 0) {
            close(fd_);
        }
    }
    int get() const { return fd_; }

private:
    int fd_;
};

sockaddr_un address_of(const std::string &name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    return address;
}

socklen_t address_length(const std::string &name) {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool is_same_user(int socket) {
    ucred peer = {};
    socklen_t length = sizeof(peer);
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// One byte with a descriptor attached.
struct DescriptorMessage {
    char byte = 0;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&byte, 1};
    msghdr message = {};

    DescriptorMessage() {
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
    }
};

void send_file(int socket, int fd) {
    DescriptorMessage descriptor_message;
    cmsghdr *header = CMSG_FIRSTHDR(&descriptor_message.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (sendmsg(socket, &descriptor_message.message, MSG_NOSIGNAL) != 1) {
        fail_errno("handing the benchmark's memory to another rank");
    }
}

File receive_file(int socket) {
    DescriptorMessage descriptor_message;
    if (recvmsg(socket, &descriptor_message.message, MSG_CMSG_CLOEXEC) != 1) {
        fail_errno("receiving the benchmark's memory from rank 0");
    }
    const cmsghdr *header = CMSG_FIRSTHDR(&descriptor_message.message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
        throw Exit{1, "rank 0 sent no memory for the benchmark"};
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return File(fd);
}

void wait_readable(int socket, std::chrono::steady_clock::time_point deadline, const char *whom) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd wanted = {socket, POLLIN, 0};
    if (poll(&wanted, 1, std::max<int>(0, static_cast<int>(left.count()))) != 1) {
        throw Exit{1, fmt::format("waited {} s for {} to share the benchmark's memory", kPeerTimeout.count(), whom)};
    }
}

File make_socket() {
    File made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (made.get() < 0) {
        fail_errno("making a socket");
    }
    return made;
}

void serve(int listener, int fd, int others) {
    const auto deadline = std::chrono::steady_clock::now() + kPeerTimeout;
    for (int served = 0; served < others;) {
        wait_readable(listener, deadline, "the other ranks");
        const File peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        if (peer.get() < 0 && errno != EINTR && errno != ECONNABORTED) {
            fail_errno("accepting another rank, which shares the benchmark's memory");
        }
        if (peer.get() >= 0 && is_same_user(peer.get())) {
            send_file(peer.get(), fd);
            ++served;
        }
    }
}

// What the kernel chose: five hexadecimal digits.
uint64_t bound_number(int listener) {
    sockaddr_un address = {};
    socklen_t length = sizeof(address);
    if (getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length) != 0) {
        fail_errno("asking for a socket's name");
    }
    const std::string digits(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    return std::stoull(digits, nullptr, 16);
}

File make_memory(size_t bytes) {
    File made(memfd_create("odc-bench", MFD_CLOEXEC));
    if (made.get() < 0 || ftruncate(made.get(), static_cast<off_t>(bytes)) != 0) {
        fail_errno(fmt::format("making {} bytes of shared memory", bytes));
    }
    return made;
}

File serve_memory(odc_context *context, size_t bytes) {
    File memory = make_memory(bytes);
    const File listener = make_socket();
    const sockaddr_un any = {.sun_family = AF_UNIX, .sun_path = {}};
    if (bind(listener.get(), reinterpret_cast<const sockaddr *>(&any), sizeof(sa_family_t)) != 0 ||
        listen(listener.get(), odc_size(context)) != 0) {
        fail_errno("listening for the other ranks");
    }
    double number = static_cast<double>(bound_number(listener.get()));
    check(odc_all_reduce(context, &number, 1, ODC_SUM));
    serve(listener.get(), memory.get(), odc_size(context) - 1);
    return memory;
}

File fetch_memory(odc_context *context) {
    double number = 0;
    check(odc_all_reduce(context, &number, 1, ODC_SUM));
    const std::string name = fmt::format("{:05x}", static_cast<uint64_t>(number));
    const File socket = make_socket();
    const sockaddr_un address = address_of(name);
    if (connect(socket.get(), reinterpret_cast<const sockaddr *>(&address), address_length(name)) != 0) {
        fail_errno("reaching rank 0 (odc bench measures the ranks of one host)");
    }
    if (!is_same_user(socket.get())) {
        throw Exit{1, "the socket that rank 0 should hold belongs to another user"};
    }
    wait_readable(socket.get(), std::chrono::steady_clock::now() + kPeerTimeout, "rank 0");
    return receive_file(socket.get());
}

size_t whole_pages(size_t bytes) { return (bytes + kLargePage - 1) / kLargePage * kLargePage; }

// Aligned to the large page: reserves more than needed and frees the ends.
std::byte *map(int fd, size_t bytes) {
    const size_t length = whole_pages(bytes);
    void *reserved = mmap(nullptr, length + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
        fail_errno(fmt::format("reserving {} bytes of addresses", length + kLargePage));
    }
    auto *begin = static_cast<std::byte *>(reserved);
    const size_t before = (kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage) % kLargePage;
    munmap(begin, before);
    munmap(begin + before + length, kLargePage - before);
    std::byte *place = begin + before;
    if (mmap(place, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        fail_errno(fmt::format("mapping {} bytes of shared memory", length));
    }
    madvise(place, length, MADV_HUGEPAGE);  // if it is refused, small pages are used
    return place;
}

}  // namespace

std::byte *share_memory(odc_context *context, size_t bytes) {
    const File memory = odc_rank(context) == 0 ? serve_memory(context, whole_pages(bytes)) : fetch_memory(context);
    return map(memory.get(), bytes);
}

void gather_into_large_pages(std::byte *memory, size_t bytes) {
    constexpr int kCollapse = 25;                    // MADV_COLLAPSE of Linux 6.1, younger than some C libraries
    madvise(memory, whole_pages(bytes), kCollapse);  // if it is refused, small pages are used
}

void unshare_memory(std::byte *memory, size_t bytes) { munmap(memory, whole_pages(bytes)); }

}  // namespace odc_tool
