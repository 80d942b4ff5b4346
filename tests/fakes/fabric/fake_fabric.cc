// SPDX-License-Identifier: Apache-2.0
#include "fake_fabric.h"

#include "changed.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

namespace fake_fabric {

namespace {

constexpr const char *kProvider = "efa";
constexpr const char *kRealProvider = "tcp;ofi_rxm";
constexpr const char *kRealDomain = "lo";

Real load() {
    void *library = dlopen(REAL_LIBFABRIC, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "fake fabric: %s\n", dlerror());
        std::abort();
    }
    const auto find = [library](auto &function, const char *name, const char *version) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlvsym(library, name, version));
    };
    Real one{};
    find(one.getinfo, "fi_getinfo", "FABRIC_1.3");
    find(one.freeinfo, "fi_freeinfo", "FABRIC_1.3");
    find(one.dupinfo, "fi_dupinfo", "FABRIC_1.3");
    find(one.fabric, "fi_fabric", "FABRIC_1.1");
    find(one.strerror, "fi_strerror", "FABRIC_1.0");
    return one;
}

void rename(char *&name, const std::string &to) {
    std::free(name);
    name = strdup(to.c_str());
}

std::vector<std::string> domains() {
    std::istringstream names(setting("FAKE_FABRIC_DOMAINS", "rdmap79s0-rdm"));
    std::vector<std::string> all;
    for (std::string name; std::getline(names, name, ',');) {
        all.push_back(name);
    }
    return all;
}

// For another provider, or a domain that it does not have.
bool is_elsewhere(const fi_info &hints) {
    const char *provider = hints.fabric_attr->prov_name;
    const char *domain = hints.domain_attr->name;
    bool known = domain == nullptr;
    for (const std::string &name : domains()) {
        known = known || name == domain;
    }
    return (provider != nullptr && std::strcmp(provider, kProvider) != 0) || !known;
}

bool reaches_gpus() { return setting("FAKE_FABRIC_GPU", "yes") != "no"; }

// How this libfabric presents what the real one has found.
void disguise(fi_info &found, const fi_info &hints, const std::string &domain) {
    rename(found.fabric_attr->prov_name, kProvider);
    rename(found.domain_attr->name, domain);
    if ((hints.caps & FI_HMEM) != 0) {
        found.caps |= FI_HMEM;
        found.domain_attr->mr_mode |= FI_MR_HMEM;
    }
    if (is_local()) {
        found.domain_attr->mr_mode |= FI_MR_LOCAL;
    }
}

int open_domain(fid_fabric *fabric, fi_info *info, fid_domain **domain, void *context) {
    fi_info *known = translated(*info);
    const int code = original(fabric->ops)->domain(fabric, known, domain, context);
    real().freeinfo(known);
    if (code == 0) {
        take_over(**domain);
    }
    return code;
}

}  // namespace

const Real &real() {
    static const Real one = load();
    return one;
}

std::string setting(const char *name, const char *otherwise) {
    const char *value = std::getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

bool is_local() {
    static const bool one = setting("FAKE_FABRIC_LOCAL", "0") != "0";
    return one;
}

fi_info *translated(const fi_info &info) {
    fi_info *known = real().dupinfo(&info);
    rename(known->fabric_attr->prov_name, kRealProvider);
    rename(known->domain_attr->name, kRealDomain);
    known->caps &= ~FI_HMEM;
    // An adapter's peers address memory by offsets, since its addresses here differ from the real libfabric's.
    known->domain_attr->mr_mode &= ~(FI_MR_HMEM | FI_MR_LOCAL | FI_MR_VIRT_ADDR);
    return known;
}

}  // namespace fake_fabric

using namespace fake_fabric;

#pragma GCC visibility push(default)

extern "C" {

uint32_t fi_version() {
    unsigned major = 0;
    unsigned minor = 0;
    std::sscanf(setting("FAKE_FABRIC_VERSION", "1.22").c_str(), "%u.%u", &major, &minor);
    return FI_VERSION(major, minor);
}

const char *fi_strerror(int number) { return real().strerror(number); }
void fi_freeinfo(fi_info *info) { real().freeinfo(info); }
fi_info *fi_dupinfo(const fi_info *info) { return real().dupinfo(info); }

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const fi_info *hints,
               fi_info **found) {
    if (hints == nullptr) {
        return real().getinfo(version, node, service, flags, hints, found);
    }
    if (is_elsewhere(*hints) || ((hints->caps & FI_HMEM) != 0 && !reaches_gpus())) {
        return -FI_ENODATA;
    }
    fi_info **end = found;
    *found = nullptr;
    for (const std::string &domain : domains()) {
        if (hints->domain_attr->name != nullptr && domain != hints->domain_attr->name) {
            continue;
        }
        fi_info *known = translated(*hints);
        const int code = real().getinfo(version, node, service, flags, known, end);
        real().freeinfo(known);
        if (code != 0) {
            return code;
        }
        for (; *end != nullptr; end = &(*end)->next) {
            disguise(**end, *hints, domain);
        }
    }
    return 0;
}

int fi_fabric(fi_fabric_attr *attributes, fid_fabric **fabric, void *context) {
    fi_fabric_attr known = *attributes;
    std::string provider = kRealProvider;
    known.prov_name = provider.data();
    const int code = real().fabric(&known, fabric, context);
    if (code == 0) {
        change((*fabric)->ops, [](fi_ops_fabric &ours) { ours.domain = open_domain; });
    }
    return code;
}
}
