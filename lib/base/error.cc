// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cerrno>
#include <new>
#include <system_error>

namespace odc {

std::string joined(const std::vector<std::string> &items, const char *between) {
    std::string text;
    for (const std::string &item : items) {
        text += formatted("{}{}", text.empty() ? "" : between, item);
    }
    return text;
}

std::string listed(const std::vector<std::string> &items, const char *between, size_t most) {
    if (items.size() <= most) {
        return joined(items, between);
    }
    const auto end = items.begin() + static_cast<std::ptrdiff_t>(most);
    return formatted("{}{}and {} more", joined({items.begin(), end}, between), between, items.size() - most);
}

void put(std::span<char> field, std::string_view text) {
    constexpr std::string_view kMissing = "...";
    const size_t room = field.size() - 1;
    size_t kept = text.size();
    if (kept > room) {
        kept = room - kMissing.size();
        while (kept > 0 && (static_cast<unsigned char>(text[kept]) & 0xC0) == 0x80) {
            --kept;
        }
    }
    size_t bytes = text.substr(0, kept).copy(field.data(), room);
    if (kept < text.size()) {
        bytes += kMissing.copy(field.data() + bytes, kMissing.size());
    }
    field[bytes] = '\0';
}

std::string cut(std::string_view text, size_t bytes) {
    std::string field(bytes + 1, '\0');
    put(field, text);
    field.resize(field.find('\0'));
    return field;
}

void vfail(odc_status status, fmt::string_view form, fmt::format_args values) {
    throw Error(status, vformatted(form, values));
}

void fail_errno(const std::string &what) {
    const int error = errno;
    const char *advice = "";
    if (error == EMFILE) {
        advice = "; raise the limit (ulimit -n)";
    } else if (error == ENFILE) {
        advice = "; raise the limit of the whole system (sysctl fs.file-max)";
    }
    fail(ODC_ERROR_SYSTEM, "{}: {}{}", what, std::generic_category().message(error), advice);
}

Error current_error() {
    try {
        throw;
    } catch (const Error &error) {
        return error;
    } catch (const std::bad_alloc &) {
        return {ODC_ERROR_NO_MEMORY, kNoMemoryText};
    } catch (const std::exception &error) {
        return {ODC_ERROR_INTERNAL, error.what()};
    }
}

// Without a default case, so that the compiler reports a status that is missing here.
const char *status_string(int32_t status) {
    if (status > ODC_DONE || status < ODC_ERROR_DEVICE) {
        return "unknown status";
    }
    switch (static_cast<odc_status>(status)) {
        case ODC_OK: return "ok";
        case ODC_DONE: return "nothing is left to claim";
        case ODC_ERROR_ARGUMENT: return "wrong argument";
        case ODC_ERROR_PHASE: return "call not allowed at this point";
        case ODC_ERROR_NO_MEMORY: return "not enough memory";
        case ODC_ERROR_UNSUPPORTED: return "not supported here";
        case ODC_ERROR_SYSTEM: return "the operating system refused";
        case ODC_ERROR_INTERRUPTED: return "interrupted";
        case ODC_ERROR_RENDEZVOUS: return "the ranks did not meet";
        case ODC_ERROR_INTERNAL: return "a fault in libodc";
        case ODC_ERROR_PEER_LOST: return "a rank died or left";
        case ODC_ERROR_ABORTED: return "a rank aborted the job";
        case ODC_ERROR_TIMEOUT: return "a rank missed the deadline";
        case ODC_ERROR_MISMATCH: return "ranks disagree";
        case ODC_ERROR_DEVICE: return "a rank's GPU failed";
    }
    return "unknown status";
}

}  // namespace odc
