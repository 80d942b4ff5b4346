// SPDX-License-Identifier: Apache-2.0
// Links between GPUs: of recorded machines, by NVML (fake_nvml), and what ODC_REQUIRE=nvlink reports for a machine.
#include "base/error.h"
#include "bootstrap/nvlink_requirement.h"
#include "topology/nvml_gpus.h"
#include "topology/topology_source.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace odc;

constexpr GpuLink kSwitched{NvLink::Switch, 18, Ability::Yes, Ability::Yes};

std::string path_of(const std::string &name) {
    const char *sources = std::getenv("ODC_SOURCE_DIR");
    assert_non_null(sources);
    return formatted("{}/tests/data/topology/{}.xml", sources, name);
}

void assert_says(const std::string &sentence, const std::string &expected) {
    if (sentence.find(expected) == std::string::npos) {
        fail_msg("\"%s\" does not say \"%s\"", sentence.c_str(), expected.c_str());
    }
}

void assert_link(const GpuLink &link, const GpuLink &wanted) {
    if (link != wanted) {
        fail_msg("%s, %s; not %s, %s", nvlink_text(link).c_str(), p2p_text(link).c_str(), nvlink_text(wanted).c_str(),
                 p2p_text(wanted).c_str());
    }
}

// Sets an environment variable for its lifetime.
class Set {
public:
    Set(const char *name, const char *value) : name_(name) { setenv(name, value, 1); }
    ~Set() { unsetenv(name_); }
    Set(const Set &) = delete;
    Set &operator=(const Set &) = delete;

private:
    const char *name_;
};

// ---- Recorded machines ----

// A recorded machine after one change of its text.
std::string changed(const std::string &name, const std::string &old, const std::string &replacement) {
    std::ifstream file(path_of(name));
    std::string text(std::istreambuf_iterator<char>(file), {});
    const size_t at = text.find(old);
    assert_true(at != std::string::npos);
    return text.replace(at, old.size(), replacement);
}

Machine machine_of(const std::string &text) {
    char path[] = "/tmp/odc-machine-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text.data(), text.size()), text.size());
    close(fd);
    try {
        Machine machine = recorded_machine(path);
        unlink(path);
        return machine;
    } catch (...) {
        unlink(path);
        throw;
    }
}

std::string error_of(const std::string &text) {
    try {
        machine_of(text);
    } catch (const Error &error) {
        return error.what();
    }
    return "";
}

void recorded_links_are_read(void **) {
    const Machine dgx = recorded_machine(path_of("dgx-h100"));
    const Machine cloud = recorded_machine(path_of("efa-cloud"));  // hwloc reports NVLink only
    const Machine box = recorded_machine(path_of("pcie-4gpu"));
    for (size_t i = 0; i < 8; ++i) {
        for (size_t j = 0; j < 8; ++j) {
            assert_link(dgx.link(i, j), i == j ? GpuLink{} : kSwitched);
            assert_link(cloud.link(i, j), {i == j ? NvLink::Unknown : NvLink::Switch, 0});
            assert_link(box.link(i % 4, j % 4),
                        i % 4 == j % 4 ? GpuLink{} : GpuLink{NvLink::None, 0, Ability::Yes, Ability::No});
        }
    }
    assert_string_equal(dgx.gpus[7].uuid.c_str(), "GPU-00000000-0000-0000-0000-000000000007");
    assert_string_equal(dgx.why_no_links.c_str(), "");
}

// A pair whose two attributes differ, and a pair without one.
void attributes_of_both_ends_are_combined(void **) {
    const auto link = [](const char *old, const char *replacement) {
        return machine_of(changed("pcie-4gpu", old, replacement)).link(0, 1);
    };
    // The first attribute is that of gpu0.
    assert_link(link("0000:41:00.0=no", "0000:41:00.0=NVLink:4"), {NvLink::None, 0, Ability::Yes, Ability::No});
    assert_link(link("0000:41:00.0=yes ", ""), {NvLink::None, 0, Ability::Unknown, Ability::No});
    assert_link(link("0000:41:00.0=yes", "0000:41:00.0=no"), {NvLink::None, 0, Ability::No, Ability::No});
    const GpuLink four{NvLink::Direct, 4, Ability::Yes, Ability::Yes};
    assert_link(both_ways(four, {NvLink::Direct, 2, Ability::Yes, Ability::Unknown}),
                {NvLink::Direct, 2, Ability::Yes, Ability::Unknown});
    assert_link(both_ways(four, {NvLink::Direct, 0, Ability::Yes, Ability::No}),
                {NvLink::Direct, 0, Ability::Yes, Ability::No});
    assert_link(both_ways(four, {}), {});
}

void bad_links_are_refused(void **) {
    const auto of = [](const char *replacement) {
        return error_of(changed("pcie-4gpu", "0000:41:00.0=no", replacement));
    };
    assert_says(of("0000:41:00.0=maybe"), "the GPU 0000:01:00.0 has odc.nvlink \"0000:41:00.0=maybe 0000:81:00.0=no");
    assert_says(of("0000:41:00.0=maybe"), "\", where \"maybe\" of 0000:41:00.0 is not a valid value");
    for (const char *value : {"NVLink:0", "NVLink:", "NVLink:4x", "NVLink:-1", "NVLink:1001", "no:1", "unknown", ""}) {
        assert_says(of(formatted("0000:41:00.0={}", value).c_str()),
                    formatted("where \"{}\" of 0000:41:00.0 is not a valid value", value));
    }
    assert_says(of("0000:42:00.0=no"), "\"0000:42:00.0\" is not another GPU");
    assert_says(of("0000:01:00.0=no"), "\"0000:01:00.0\" is not another GPU");
    assert_says(of("0000:41:00.0"), "\"0000:41:00.0\" is not BUS_ID=VALUE");
    assert_says(error_of(changed("pcie-4gpu", "0000:41:00.0=yes", "0000:41:00.0=y")), "has odc.p2p");
}

// ---- NVML ----

const char *kMesh = "0-1:4,0-2:2,1-2:1";

void nvml_is_asked_of_each_pair(void **) {
    const Set devices("FAKE_CUDA_DEVICES", "4");
    const Set links("FAKE_NVML_LINKS", "0-1:4,0-2:1,2-switch:18,3-switch:12");
    const Machine machine = live_machine(Look::Full);
    assert_int_equal(machine.gpus.size(), 4);
    assert_string_equal(machine.gpus[3].bus_id.c_str(), "0000:13:00.0");
    assert_string_equal(machine.gpus[3].model.c_str(), "Fake GPU 3");
    assert_string_equal(machine.gpus[3].uuid.c_str(), "GPU-6f646320-6661-6b65-2064-657669636503");
    assert_link(machine.link(1, 0), {NvLink::Direct, 4, Ability::Yes, Ability::Yes});
    assert_link(machine.link(0, 2), {NvLink::Direct, 1, Ability::Yes, Ability::Yes});
    assert_link(machine.link(0, 3), {NvLink::None, 0, Ability::Yes, Ability::Yes});
    assert_link(machine.link(2, 3), {NvLink::Switch, 12, Ability::Yes, Ability::Yes});
    assert_true(nearness(machine, {Device::What::Gpu, 0}, {Device::What::Gpu, 1}) == Nearness::NvLink);
    assert_true(nearness(machine, {Device::What::Gpu, 2}, {Device::What::Gpu, 3}) == Nearness::NvSwitch);
    assert_true(nearness_by_pci(machine, {Device::What::Gpu, 2}, {Device::What::Gpu, 3}) > Nearness::NvSwitch);
    assert_int_equal(live_machine(Look::Quick).gpus.size(), 0);  // a quick look must not wake GPUs
    const Set both("FAKE_NVML_LINKS", "0-1:4,0-switch:18,1-switch:18");
    assert_link(live_machine(Look::Full).link(0, 1), {NvLink::Direct, 4, Ability::Yes, Ability::Yes});
    const Set p2p("FAKE_CUDA_P2P", "no-atomics");
    assert_link(live_machine(Look::Full).link(0, 1), {NvLink::Direct, 4, Ability::Yes, Ability::No});
}

// What NVML does not report is unknown.
void nothing_is_guessed(void **) {
    const Set devices("FAKE_CUDA_DEVICES", "2");
    const Set links("FAKE_NVML_LINKS", "0-1:4");
    const auto with = [](const char *failing) {
        const Set failing_call("FAKE_NVML_FAIL", failing);
        return live_machine(Look::Full);
    };
    assert_link(with("nvmlDeviceGetP2PStatus:999").link(0, 1), {});
    assert_string_equal(with("nvmlDeviceGetP2PStatus:999").why_no_links.c_str(),
                        "NVML reports nothing about these GPUs");
    const auto writing = [](const char *status) {
        const Set write("FAKE_NVML_WRITE", status);
        return live_machine(Look::Full).link(0, 1);
    };
    assert_link(writing("6"), {NvLink::Direct, 4, Ability::Unknown, Ability::Yes});
    assert_link(writing("5"), {NvLink::Direct, 4, Ability::No, Ability::Yes});
    const GpuLink uncounted{NvLink::Direct, 0, Ability::Yes, Ability::Yes};
    for (const char *function : {"nvmlDeviceGetNvLinkState:3", "nvmlDeviceGetNvLinkRemoteDeviceType:3",
                                 "nvmlDeviceGetNvLinkRemotePciInfo_v2:15"}) {
        assert_link(with(function).link(0, 1), uncounted);
    }
    for (const char *function : {"nvmlInit_v2:9", "nvmlDeviceGetCount_v2:999", "nvmlDeviceGetHandleByIndex_v2:15",
                                 "nvmlDeviceGetPciInfo_v3:15"}) {
        assert_int_equal(with(function).gpus.size(), 0);
    }
    const Set failing_call("FAKE_NVML_FAIL", "nvmlInit_v2:9");
    assert_string_equal(gpus_by_nvml().why_not.c_str(), "NVML unavailable: nvmlInit failed: Driver Not Loaded");
}

// CUDA's UUID finds a GPU and its MIG instances.
void gpus_are_found_by_uuid(void **) {
    GpuUuid uuid{};
    std::optional<GpuMatch> match;
    std::memcpy(uuid.data(), "odc fake device", uuid.size());
    uuid[15] = 2;
    const Set devices("FAKE_CUDA_DEVICES", "4");
    const Set visible("CUDA_VISIBLE_DEVICES", "0");  // affects CUDA, not NVML
    match = find_gpu(gpus_by_nvml(), uuid);
    assert_true(match && match->gpu == 2 && !match->is_part);
    uuid[15] = 4;
    assert_false(find_gpu(gpus_by_nvml(), uuid).has_value());
    const Set divided("FAKE_CUDA_MIG", "2");
    std::memcpy(uuid.data(), "odc fake parts ", uuid.size());
    uuid[15] = 3;
    const GpuReport report = gpus_by_nvml();
    assert_int_equal(report.gpus.size(), 2);
    match = find_gpu(report, uuid);
    assert_true(match && match->gpu == 1 && match->is_part);
}

// ---- ODC_REQUIRE=nvlink ----

void a_machine_has_nvlink_between_all_gpus_or_reports_where_not(void **) {
    const auto unmet_by = [](const char *name) { return unmet_nvlink_requirement(recorded_machine(path_of(name))); };
    assert_string_equal(unmet_by("dgx-h100").c_str(), "");
    assert_string_equal(unmet_by("efa-cloud").c_str(), "");
    assert_string_equal(unmet_by("pcie-4gpu").c_str(),
                        "ODC_REQUIRE asks for nvlink (inside a host: NVLink between GPUs), but between gpu0 and gpu1 "
                        "there is no NVLink (P2P without native atomics)");
    assert_says(unmet_by("dual-socket"), "but this machine has no GPU");
    assert_string_equal(unmet_by("laptop").c_str(), "");  // one GPU for all ranks
    assert_says(unmet_nvlink_requirement(machine_of(changed("dgx-h100", "0000:43:00.0=NVSwitch:18", ""))),
                "but whether there is NVLink between gpu0 and gpu1 is unknown (P2P with native atomics)");
    const Set devices("FAKE_CUDA_DEVICES", "3");
    const Set links("FAKE_NVML_LINKS", kMesh);
    assert_string_equal(unmet_nvlink_requirement(live_machine(Look::Full)).c_str(), "");
    const Set four("FAKE_CUDA_DEVICES", "4");
    assert_says(unmet_nvlink_requirement(live_machine(Look::Full)),
                "between gpu0 and gpu3 there is no NVLink (P2P with");
}

}  // namespace

int main() {
    setenv("HWLOC_SYNTHETIC", "pack:1 node:1 pu:4", 1);  // hide the GPUs of this machine: only the fake ones count
    const CMUnitTest tests[] = {
        cmocka_unit_test(recorded_links_are_read),
        cmocka_unit_test(attributes_of_both_ends_are_combined),
        cmocka_unit_test(bad_links_are_refused),
        cmocka_unit_test(nvml_is_asked_of_each_pair),
        cmocka_unit_test(nothing_is_guessed),
        cmocka_unit_test(gpus_are_found_by_uuid),
        cmocka_unit_test(a_machine_has_nvlink_between_all_gpus_or_reports_where_not),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
