// SPDX-License-Identifier: Apache-2.0
// Control messages are decoded as they were encoded, from pieces of any size; malformed ones are refused and nothing is read
// past their end.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "transport/fabric/control_message.h"

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

constexpr int kSize = 5;

Contribution values(uint32_t count) {
    Contribution all{count, ODC_SUM, 1, 0, {}};
    for (uint32_t i = 0; i < count; ++i) {
        all.values[i] = 0.5 * i;
    }
    return all;
}

// At least one of every kind, with the longest and the shortest variable parts.
std::vector<ControlMessage> samples() {
    return {
        RegisteredMessage{1, 2, 3, 4, 5, 6, ODC_F32, ODC_BF16, ODC_SUM_EXACT, -3, ODC_HOST_MEMORY, "layer", {}, {}},
        RegisteredMessage{1,
                          2,
                          3,
                          4,
                          5,
                          6,
                          0,
                          ODC_F64,
                          0,
                          0,
                          ODC_GPU_MEMORY,
                          std::string(255, 'x'),
                          {4, 0, 1, 2, 3},
                          {0, 1, 2, 3, uint64_t(-1)}},
        ReleasedMessage{7},
        PublishedMessage{8, 9, 10, -1003, 0},
        AllPublishedMessage{9, 10},
        DeadMessage{3, Ending::Death},
        DeadMessage{4, Ending::Exec},
        ArrivedMessage{10, {}},
        ArrivedMessage{11, {{1, Call::Sync, 2, 3, 0, values(0)}, {2, Call::AllReduce, 3, 4, 2.5, values(kMaxValues)}}},
        ArrivedMessage{
            12, std::vector<Arrival>(ArrivedMessage::kMost, Arrival{3, Call::Sync, 4, 5, 6, values(kMaxValues)})},
        LeftMessage{13},
        FailedMessage{ODC_ERROR_ABORTED, "the reason"},
        FailedMessage{ODC_ERROR_TIMEOUT, std::string(2043, 'y')},
        HeartbeatMessage{14, 15, 16},
        AddMessage{17, 18, 19, 20, 21, 22, 23, -4, 24, 25},
        AppliedMessage{24, 25},
        ClaimMessage{26, 27, 28},
        ClaimedMessage{29, 30, 31},
        GoodbyeMessage{},
        AckMessage{}};
}

// ---- The bytes on the wire ----

// Values one after another, as other builds of the same layout version expect them.
class Wire {
public:
    explicit Wire(uint32_t kind) : kind_(kind) {}
    template <class Value>
    Wire &add(Value value) {
        bytes_.append(reinterpret_cast<const char *>(&value), sizeof(value));
        return *this;
    }
    Wire &text(const char *text) {
        bytes_ += text;
        return *this;
    }
    std::string message() const {
        const uint32_t head[] = {kind_, static_cast<uint32_t>(bytes_.size())};
        return std::string(reinterpret_cast<const char *>(head), sizeof(head)) + bytes_;
    }

private:
    uint32_t kind_;
    std::string bytes_;
};

void assert_bytes(const ControlMessage &message, const Wire &wire) {
    const std::string bytes = encode(message);
    const std::string wanted = wire.message();
    assert_int_equal(bytes.size(), wanted.size());
    assert_memory_equal(bytes.data(), wanted.data(), wanted.size());
}

// Those that are written field by field: whoever changes the order raises the layout version.
void the_bytes_are_those_of_this_layout_version(void **) {
    Wire registered(0);
    for (uint64_t field = 1; field <= 6; ++field) {
        registered.add(field);
    }
    for (int32_t field = 7; field <= 11; ++field) {
        registered.add(field);
    }
    registered.add(uint32_t{2}).text("ab").add(uint32_t{1}).add(int32_t{12});
    registered.add(uint32_t{2}).add(uint64_t{13}).add(uint64_t{14});
    assert_bytes(RegisteredMessage{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "ab", {12}, {13, 14}}, registered);
    const Contribution two{2, 3, 1, 0, {0.5, -4}};
    const auto add_two = [](Wire wire) {
        return wire.add(uint32_t{2}).add(int32_t{3}).add(uint32_t{1}).add(0.5).add(-4.0);
    };
    Wire arrived = Wire(3).add(uint64_t{15}).add(uint32_t{2});
    arrived = add_two(arrived.add(int32_t{4}).add(uint8_t{7}).add(uint64_t{5}).add(int64_t{6}).add(2.5));
    arrived = add_two(arrived.add(int32_t{7}).add(uint8_t{8}).add(uint64_t{8}).add(int64_t{9}).add(3.5));
    assert_bytes(ArrivedMessage{15, {{4, Call::Sync, 5, 6, 2.5, two}, {7, Call::AllReduce, 8, 9, 3.5, two}}}, arrived);
    assert_bytes(FailedMessage{17, "why"}, Wire(5).add(int32_t{17}).add(uint32_t{3}).text("why"));
    assert_bytes(GoodbyeMessage{}, Wire(9));
    assert_bytes(ClaimMessage{18, 19, 20}, Wire(13).add(uint64_t{18}).add(uint64_t{19}).add(uint64_t{20}));
}

// In a heap block of its exact size, so that a sanitizer sees a read past its end.
std::optional<ControlMessage> decode_copy(const char *from, size_t bytes, size_t *left) {
    const auto copy = std::make_unique<char[]>(bytes);
    std::memcpy(copy.get(), from, bytes);
    std::string_view stream(copy.get(), bytes);
    std::optional<ControlMessage> message = decode(&stream, kSize);
    *left = stream.size();
    return message;
}

void every_kind_comes_out_as_it_went_in(void **) {
    std::vector<bool> seen(std::variant_size_v<ControlMessage>);
    std::string stream;
    for (const ControlMessage &one : samples()) {
        seen[one.index()] = true;
        stream += encode(one);
    }
    assert_true(std::find(seen.begin(), seen.end(), false) == seen.end());
    std::string_view rest = stream;
    for (const ControlMessage &one : samples()) {
        const std::optional<ControlMessage> message = decode(&rest, kSize);
        assert_true(message.has_value());
        assert_int_equal(message->index(), one.index());
        assert_true(encode(*message) == encode(one));
    }
    assert_int_equal(rest.size(), 0);
    assert_false(decode(&rest, kSize).has_value());
}

void long_texts_and_lists_come_out_whole(void **) {
    const std::string text(2043, 'z');
    std::string stream = encode(FailedMessage{ODC_ERROR_TIMEOUT, text});
    std::string_view rest = stream;
    const auto failed = std::get<FailedMessage>(*decode(&rest, kSize));
    assert_int_equal(failed.status, ODC_ERROR_TIMEOUT);
    assert_true(failed.text == text);
    stream = encode(ArrivedMessage{
        77, {{0, Call::Sync, 1, 2, 3.5, values(1)}, {1, Call::AllReduce, 2, 3, 4.5, values(kMaxValues)}}});
    rest = stream;
    const auto arrived = std::get<ArrivedMessage>(*decode(&rest, kSize));
    assert_int_equal(arrived.number, 77);
    assert_int_equal(arrived.arrivals.size(), 2);
    const Arrival &second = arrived.arrivals[1];
    assert_true(second.rank == 1 && second.call == Call::AllReduce && second.broadcasts == 2 && second.age_ns == 3 &&
                second.speed == 4.5);
    assert_int_equal(second.values.count, kMaxValues);
    assert_true(second.values.values[kMaxValues - 1] == 0.5 * (kMaxValues - 1));
    stream = encode(samples()[1]);
    rest = stream;
    const auto registered = std::get<RegisteredMessage>(*decode(&rest, kSize));
    assert_true(registered.ranks == (std::vector<int32_t>{4, 0, 1, 2, 3}));
    assert_true(registered.slices.back() == uint64_t(-1) && registered.name.size() == 255 && registered.key == 6);
}

void an_incomplete_message_is_waited_for(void **) {
    for (const ControlMessage &one : samples()) {
        const std::string whole = encode(one);
        for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
            size_t left = 0;
            assert_false(decode_copy(whole.data(), bytes, &left).has_value());
            assert_int_equal(left, bytes);
        }
    }
}

// The length says the message is complete, but it is too short for its kind.
void a_message_of_a_wrong_length_is_refused(void **) {
    for (const ControlMessage &one : samples()) {
        const std::string whole = encode(one);
        const auto body = static_cast<uint32_t>(whole.size() - 8);
        for (uint32_t bytes = 0; bytes < body + 40; ++bytes) {
            std::string wrong = whole;
            wrong.resize(8 + bytes, '\0');
            std::memcpy(wrong.data() + 4, &bytes, sizeof(bytes));
            size_t left = 0;
            try {
                decode_copy(wrong.data(), wrong.size(), &left);
                assert_int_equal(bytes, body);
            } catch (const Error &error) {
                assert_int_equal(error.status(), ODC_ERROR_INTERNAL);
                assert_non_null(std::strstr(error.what(), "a message between hosts is broken"));
                assert_int_not_equal(bytes, body);
            }
        }
    }
}

bool is_refused(const std::string &stream) {
    size_t left = 0;
    try {
        decode_copy(stream.data(), stream.size(), &left);
        return false;
    } catch (const Error &error) {
        return error.status() == ODC_ERROR_INTERNAL;
    }
}

std::string changed(const ControlMessage &message, size_t offset, uint32_t value) {
    std::string stream = encode(message);
    std::memcpy(stream.data() + offset, &value, sizeof(value));
    return stream;
}

void lengths_that_no_job_has_are_refused_before_anything_is_taken_for_them(void **) {
    assert_true(is_refused(changed(LeftMessage{1}, 0, std::variant_size_v<ControlMessage>)));
    assert_true(is_refused(changed(LeftMessage{1}, 0, UINT32_MAX)));
    assert_true(is_refused(changed(LeftMessage{1}, 4, UINT32_MAX)));                                     // bytes
    assert_true(is_refused(changed(ArrivedMessage{1, {{0, Call::Sync, 0, 0, 0, values(2)}}}, 49, 65)));  // values
    assert_true(is_refused(changed(ArrivedMessage{1, {}}, 16, ArrivedMessage::kMost + 1)));              // arrivals
    assert_true(is_refused(encode(ArrivedMessage{1, std::vector<Arrival>(ArrivedMessage::kMost + 1)})));
    assert_true(is_refused(encode(ArrivedMessage{1, {{0, Call::Publish, 0, 0, 0, values(0)}}})));
    assert_true(is_refused(changed(FailedMessage{-9, "no"}, 12, UINT32_MAX)));  // text
    assert_true(is_refused(
        encode(RegisteredMessage{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, "x", {0, 1, 2, 3, 4, 0}, {}})));  // 6 ranks of 5
    assert_true(is_refused(encode(RegisteredMessage{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, "x", {}, {0, 1, 2, 3, 4, 0}})));
}

void random_bytes_harm_nobody(void **) {
    const char *given = std::getenv("ODC_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    const std::vector<ControlMessage> all = samples();
    for (int round = 0; round < 100'000; ++round) {
        std::string stream = encode(all[random() % all.size()]) + encode(all[random() % all.size()]);
        for (uint64_t flips = random() % 8; flips > 0; --flips) {
            const size_t most = random() % 2 == 0 ? std::min<size_t>(stream.size(), 24) : stream.size();
            stream[random() % most] = static_cast<char>(random() % 2 == 0 ? random() : random() % 3);
        }
        stream.resize(random() % (stream.size() + 1));
        size_t left = stream.size();
        try {
            while (left > 0 && decode_copy(stream.data() + stream.size() - left, left, &left)) {
            }
        } catch (const Error &error) {
            assert_int_equal(error.status(), ODC_ERROR_INTERNAL);
        }
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_those_of_this_layout_version),
        cmocka_unit_test(every_kind_comes_out_as_it_went_in),
        cmocka_unit_test(long_texts_and_lists_come_out_whole),
        cmocka_unit_test(an_incomplete_message_is_waited_for),
        cmocka_unit_test(a_message_of_a_wrong_length_is_refused),
        cmocka_unit_test(lengths_that_no_job_has_are_refused_before_anything_is_taken_for_them),
        cmocka_unit_test(random_bytes_harm_nobody),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
