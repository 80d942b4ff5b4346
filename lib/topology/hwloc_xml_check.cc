// SPDX-License-Identifier: Apache-2.0
#include "topology/hwloc_xml_check.h"

#include "base/error.h"

#include <expat.h>
#include <hwloc.h>
#include <array>
#include <charconv>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

namespace odc {

namespace {

struct FreeBitmap {
    void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

struct FreeParser {
    void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
};
using Parser = std::unique_ptr<XML_ParserStruct, FreeParser>;

constexpr std::array<const char *, 4> kSets = {"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"};
enum { kCpuset, kNodeset = 2 };
// hwloc recurses into nested objects; machines have about ten levels.
constexpr size_t kDeepest = 100;

struct Object {
    hwloc_obj_type_t type;
    std::array<Bitmap, kSets.size()> sets;  // all or none
};

// expat's: name, value, name, value, ..., null.
using Attributes = const XML_Char **;

const char *find(Attributes attributes, const char *name) {
    for (; *attributes != nullptr; attributes += 2) {
        if (std::strcmp(attributes[0], name) == 0) {
            return attributes[1];
        }
    }
    return nullptr;
}

const char *need(Attributes attributes, const char *element, const char *name) {
    const char *value = find(attributes, name);
    if (value == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "this {} has no {}", element, name);
    }
    return value;
}

unsigned number(const char *name, std::string_view text) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
    if (error != std::errc() || end != text.end()) {
        fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is not a number", name, text);
    }
    return value;
}

Bitmap bitmap(const char *name, const char *text) {
    Bitmap set(hwloc_bitmap_alloc());
    if (set == nullptr) {
        throw std::bad_alloc();
    }
    // hwloc reads past the end of "" and asserts on a leading comma.
    if (*text == '\0' || *text == ',' || text[std::strspn(text, "0123456789abcdefABCDEFx,")] != '\0' ||
        hwloc_bitmap_sscanf(set.get(), text) != 0) {
        fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is not a finite bitmap", name, text);
    }
    return set;
}

bool ends_in(std::string_view name, std::string_view end) {
    return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

// All elements can have bitmaps: cpukinds and memory attributes, too.
void check_bitmaps(Attributes attributes) {
    for (; *attributes != nullptr; attributes += 2) {
        if (ends_in(attributes[0], "cpuset") || ends_in(attributes[0], "nodeset")) {
            bitmap(attributes[0], attributes[1]);
        }
    }
}

hwloc_obj_type_t type_of(Attributes attributes) {
    // hwloc requires that the type comes first.
    if (*attributes == nullptr || std::strcmp(attributes[0], "type") != 0) {
        fail(ODC_ERROR_ARGUMENT, "the first attribute of this object is not its type");
    }
    hwloc_obj_type_t type;
    if (hwloc_type_sscanf(attributes[1], &type, nullptr, 0) != 0) {
        fail(ODC_ERROR_ARGUMENT, "type=\"{}\" is not an object type", attributes[1]);
    }
    return type;
}

// True for processors and memory; devices and Misc objects have no sets.
bool has_sets(hwloc_obj_type_t type) { return hwloc_obj_type_is_normal(type) || hwloc_obj_type_is_memory(type); }

void check_alone(const char *type, unsigned index, const char *name, const Bitmap &set) {
    if (hwloc_bitmap_weight(set.get()) != 1 || !hwloc_bitmap_isset(set.get(), index)) {
        fail(ODC_ERROR_ARGUMENT, "the {} of this {} is not its os_index, {}", name, type, index);
    }
}

Object read_object(Attributes attributes, const Object *parent) {
    Object object{type_of(attributes), {}};
    const char *type = attributes[1];
    if ((parent == nullptr) != (object.type == HWLOC_OBJ_MACHINE)) {
        throw Error(ODC_ERROR_ARGUMENT,
                    parent == nullptr ? "the outermost object is not a Machine" : "a Machine inside an object");
    }
    for (size_t i = 0; i < kSets.size(); ++i) {
        if (!has_sets(object.type)) {
            if (find(attributes, kSets[i]) != nullptr) {
                fail(ODC_ERROR_ARGUMENT, "this {} has a {}", type, kSets[i]);
            }
            continue;
        }
        object.sets[i] = bitmap(kSets[i], need(attributes, type, kSets[i]));
        if (parent != nullptr && !has_sets(parent->type)) {
            fail(ODC_ERROR_ARGUMENT, "a {} inside an object without a {}", type, kSets[i]);
        }
        if (parent != nullptr && !hwloc_bitmap_isincluded(object.sets[i].get(), parent->sets[i].get())) {
            fail(ODC_ERROR_ARGUMENT, "the {} of this {} is not inside that of the object around it", kSets[i], type);
        }
    }
    if (object.type == HWLOC_OBJ_PU) {
        check_alone(type, number("os_index", need(attributes, type, "os_index")), "cpuset", object.sets[kCpuset]);
    } else if (object.type == HWLOC_OBJ_NUMANODE) {
        check_alone(type, number("os_index", need(attributes, type, "os_index")), "nodeset", object.sets[kNodeset]);
    }
    return object;
}

class Check {
public:
    Check();
    void run(const std::string &xml);

private:
    // expat is C: an exception of `step` is kept in failure_.
    template <class Step>
    void guarded(Step step);
    static void begin_doctype(void *self, const XML_Char *, const XML_Char *file, const XML_Char *, int inner);
    static void begin_element(void *self, const XML_Char *name, Attributes attributes);
    static void end_element(void *self, const XML_Char *name);
    void begin(const char *name, Attributes attributes);

    Parser parser_{XML_ParserCreate(nullptr)};
    std::vector<Object> around_;
    bool topology_ = false;  // its tag has been seen
    bool machine_ = false;   // a Machine's tag has been seen
    std::exception_ptr failure_;
};

Check::Check() {
    if (parser_ == nullptr) {
        throw std::bad_alloc();
    }
    XML_SetUserData(parser_.get(), this);
    XML_SetStartDoctypeDeclHandler(parser_.get(), begin_doctype);
    XML_SetElementHandler(parser_.get(), begin_element, end_element);
}

template <class Step>
void Check::guarded(Step step) {
    if (failure_ != nullptr) {
        return;  // expat still ends an empty element after XML_StopParser
    }
    try {
        step();
    } catch (...) {
        failure_ = std::current_exception();
        XML_StopParser(parser_.get(), XML_FALSE);
    }
}

void Check::begin_doctype(void *self, const XML_Char *, const XML_Char *file, const XML_Char *, int inner) {
    static_cast<Check *>(self)->guarded([&] {
        // hwloc dereferences the DTD's name without checking it.
        if (file == nullptr || inner != 0) {
            fail(ODC_ERROR_ARGUMENT, "the DOCTYPE is not hwloc's, SYSTEM \"hwloc2.dtd\"");
        }
    });
}

void Check::begin_element(void *self, const XML_Char *name, Attributes attributes) {
    auto *check = static_cast<Check *>(self);
    check->guarded([&] { check->begin(name, attributes); });
}

void Check::end_element(void *self, const XML_Char *name) {
    auto *check = static_cast<Check *>(self);
    check->guarded([&] {
        if (std::strcmp(name, "object") == 0) {
            check->around_.pop_back();
        }
    });
}

void Check::begin(const char *name, Attributes attributes) {
    check_bitmaps(attributes);
    if (!topology_) {
        if (std::strcmp(name, "topology") != 0) {
            fail(ODC_ERROR_ARGUMENT, "the outermost element is <{}>, not <topology>", name);
        }
        topology_ = true;
        // hwloc 1 writes no nodesets.
        const std::string_view version = need(attributes, name, "version");
        if (number("version", version.substr(0, version.find('.'))) < 2) {
            fail(ODC_ERROR_ARGUMENT, "version=\"{}\" is older than hwloc 2", version);
        }
    } else if (std::strcmp(name, "object") == 0) {
        if (around_.size() == kDeepest || (around_.empty() && machine_)) {
            throw Error(ODC_ERROR_ARGUMENT,
                        machine_ && around_.empty() ? "a second Machine" : "objects nested too deeply");
        }
        machine_ = true;
        around_.push_back(read_object(attributes, around_.empty() ? nullptr : &around_.back()));
    }
}

void Check::run(const std::string &xml) {
    if (XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), XML_TRUE) == XML_STATUS_OK) {
        return;
    }
    const auto line = XML_GetCurrentLineNumber(parser_.get());
    if (failure_ == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "line {}: {}", line, XML_ErrorString(XML_GetErrorCode(parser_.get())));
    }
    try {
        std::rethrow_exception(failure_);
    } catch (const Error &error) {
        fail(error.status(), "line {}: {}", line, error.what());
    }
}

}  // namespace

void check_hwloc_xml(const std::string &xml) { Check().run(xml); }

}  // namespace odc
