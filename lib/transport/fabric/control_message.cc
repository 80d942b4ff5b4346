// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/control_message.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace odc {

namespace {

struct Head {
    uint32_t kind;   // index in ControlMessage
    uint32_t bytes;  // that follow
};

constexpr uint64_t kMostTextBytes = 4096;

// Pinned as in bootstrap/shared_layouts.cc.
static_assert(sizeof(Head) == 8);
static_assert(offsetof(Head, bytes) == 4);
static_assert(kMostTextBytes == 4096);
// An ArrivedMessage with all values: decode() takes no longer ones.
static_assert(12 + ArrivedMessage::kMost * (29 + 12 + kMaxValues * sizeof(double)) <= kMostTextBytes + 256);

class Writer {
public:
    explicit Writer(uint32_t kind) { put(Head{kind, 0}); }
    template <class Value>
    void put(const Value &value) {
        static_assert(std::is_trivially_copyable_v<Value>);
        bytes_.append(reinterpret_cast<const char *>(&value), sizeof(value));
    }
    template <class List>
    void put_list(const List &list) {
        put(static_cast<uint32_t>(list.size()));
        bytes_.append(reinterpret_cast<const char *>(list.data()), list.size() * sizeof(list[0]));
    }
    std::string finish() {
        const auto bytes = static_cast<uint32_t>(bytes_.size() - sizeof(Head));
        std::memcpy(bytes_.data() + offsetof(Head, bytes), &bytes, sizeof(bytes));
        return std::move(bytes_);
    }

private:
    std::string bytes_;
};

[[noreturn]] void fail_broken(const char *what) {
    fail(ODC_ERROR_INTERNAL, "a message between hosts is broken: {}", what);
}

class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    template <class Value>
    void get(Value *value) {
        static_assert(std::is_trivially_copyable_v<Value>);
        take(value, sizeof(*value));
    }
    template <class List>
    void get_list(List *list, uint64_t most) {
        uint32_t count = 0;
        get(&count);
        if (count > most) {
            fail_broken("a list is too long");
        }
        list->resize(count);
        take(list->data(), count * sizeof((*list)[0]));
    }
    void finish() const {
        if (!bytes_.empty()) {
            fail_broken("it is too long");
        }
    }

private:
    void take(void *to, size_t bytes) {
        if (bytes > bytes_.size()) {
            fail_broken("it is too short");
        }
        if (bytes > 0) {
            std::memcpy(to, bytes_.data(), bytes);
        }
        bytes_.remove_prefix(bytes);
    }
    std::string_view bytes_;
};

// Messages that are not one fixed struct. Contributions are sent with as many values as they have.
void write(Writer &out, const Contribution &values) {
    out.put(values.count);
    out.put(values.op);
    out.put(values.has_registered);
    for (uint32_t i = 0; i < values.count; ++i) {
        out.put(values.values[i]);
    }
}

void read(Reader &in, Contribution *values) {
    in.get(&values->count);
    in.get(&values->op);
    in.get(&values->has_registered);
    if (values->count > kMaxValues) {
        fail_broken("it has too many values");
    }
    for (uint32_t i = 0; i < values->count; ++i) {
        in.get(&values->values[i]);
    }
}

void write(Writer &out, const RegisteredMessage &n) {
    out.put(n.record), out.put(n.minibatch), out.put(n.numel), out.put(n.slice_numel), out.put(n.address);
    out.put(n.key), out.put(n.parameter_type), out.put(n.gradient_type), out.put(n.summation);
    out.put(n.first_exponent), out.put(n.memory);
    out.put_list(n.name), out.put_list(n.ranks), out.put_list(n.slices);
}

void read(Reader &in, RegisteredMessage *n, int size) {
    const auto ranks = static_cast<uint64_t>(size);
    in.get(&n->record), in.get(&n->minibatch), in.get(&n->numel), in.get(&n->slice_numel), in.get(&n->address);
    in.get(&n->key), in.get(&n->parameter_type), in.get(&n->gradient_type), in.get(&n->summation);
    in.get(&n->first_exponent), in.get(&n->memory);
    in.get_list(&n->name, kMostTextBytes), in.get_list(&n->ranks, ranks), in.get_list(&n->slices, ranks);
}

void write(Writer &out, const ArrivedMessage &n) {
    out.put(n.number), out.put(static_cast<uint32_t>(n.arrivals.size()));
    for (const Arrival &one : n.arrivals) {
        out.put(one.rank), out.put(one.call), out.put(one.broadcasts), out.put(one.age_ns), out.put(one.speed);
        write(out, one.values);
    }
}

void read(Reader &in, ArrivedMessage *n, int) {
    uint32_t count = 0;
    in.get(&n->number), in.get(&count);
    if (count > ArrivedMessage::kMost) {
        fail_broken("it has too many arrivals");
    }
    n->arrivals.resize(count);
    for (Arrival &one : n->arrivals) {
        in.get(&one.rank), in.get(&one.call), in.get(&one.broadcasts), in.get(&one.age_ns), in.get(&one.speed);
        read(in, &one.values);
        if (one.call != Call::Sync && one.call != Call::AllReduce) {
            fail_broken("it is of no collective call");
        }
    }
}

void write(Writer &out, const FailedMessage &n) { out.put(n.status), out.put_list(n.text); }
void read(Reader &in, FailedMessage *n, int) { in.get(&n->status), in.get_list(&n->text, kMostTextBytes); }

template <class Fixed>
void write(Writer &out, const Fixed &n) {
    if constexpr (!std::is_empty_v<Fixed>) {
        out.put(n);
    }
}
template <class Fixed>
void read(Reader &in, Fixed *n, int) {
    if constexpr (!std::is_empty_v<Fixed>) {
        in.get(n);
    }
}

template <size_t kKind = 0>
ControlMessage read_kind(size_t kind, Reader &in, int size) {
    if constexpr (kKind < std::variant_size_v<ControlMessage>) {
        if (kind != kKind) {
            return read_kind<kKind + 1>(kind, in, size);
        }
        std::variant_alternative_t<kKind, ControlMessage> message{};
        read(in, &message, size);
        return message;
    } else {
        fail_broken("its kind is unknown");
    }
}

}  // namespace

std::string encode(const ControlMessage &message) {
    Writer out(static_cast<uint32_t>(message.index()));
    std::visit([&](const auto &one) { write(out, one); }, message);
    return out.finish();
}

std::optional<ControlMessage> decode(std::string_view *stream, int size) {
    Head head{};
    if (stream->size() < sizeof(head)) {
        return std::nullopt;
    }
    std::memcpy(&head, stream->data(), sizeof(head));
    // The longest is a RegisteredMessage that lists every rank and every slice.
    if (head.bytes > kMostTextBytes + 256 + static_cast<uint64_t>(size) * 12) {
        fail_broken("it is longer than any message");
    }
    if (stream->size() - sizeof(head) < head.bytes) {
        return std::nullopt;
    }
    Reader in(stream->substr(sizeof(head), head.bytes));
    ControlMessage message = read_kind(head.kind, in, size);
    in.finish();
    stream->remove_prefix(sizeof(head) + head.bytes);
    return message;
}

}  // namespace odc
