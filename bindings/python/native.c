/* SPDX-License-Identifier: Apache-2.0 */
/* What consumers of DLPack capsules and libodc call back: a callback of ctypes would lose an exception that is pending, or
 * that a signal handler raises before or after the callback's own code. And loops over memory. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Declared here, from Python's stable ABI, so that its headers are not needed. */
typedef struct object object;
int Py_IsInitialized(void);
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
void Py_DecRef(object *one);
object *Py_BuildValue(const char *format, ...);
object *PyObject_CallFunction(object *callable, const char *format, ...);
int PyObject_IsTrue(object *one);
int PyErr_CheckSignals(void);
void PyErr_Clear(void);
void PyErr_Fetch(object **type, object **error, object **traceback);
void PyErr_NormalizeException(object **type, object **error, object **traceback);
int PyException_SetTraceback(object *error, object *traceback);
int PyCapsule_IsValid(object *capsule, const char *name);
void *PyCapsule_GetPointer(object *capsule, const char *name);

object *PyList_GetItem(object *list, intptr_t index);
object *PyObject_Type(object *one);

/* dlpack.h's. */
typedef struct {
    void *data;
    int32_t device_type, device, dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct managed {
    tensor tensor;
    object *manager; /* keeps all that the tensor refers to, and the tensor */
    void (*deleter)(struct managed *managed);
} managed;

/* Tensors that outlive the interpreter keep their memory. */
void odc_delete_managed(managed *one) {
    if (Py_IsInitialized()) {
        const int state = PyGILState_Ensure();
        Py_DecRef(one->manager);
        PyGILState_Release(state);
    }
}

/* One that nobody has consumed: a consumer renames it. */
void odc_drop_capsule(object *capsule) {
    static const char name[] = "dltensor";
    if (PyCapsule_IsValid(capsule, name)) {
        odc_delete_managed(PyCapsule_GetPointer(capsule, name));
    }
}

/* ---- Callbacks of libodc, whose argument is a callable of Python's. An interpreter that ends is not entered. ---- */

/* What a callback of this thread has raised, until the call into libodc has returned. */
static _Thread_local object *kept;

object *odc_take_kept(void) {
    object *error = kept;
    kept = NULL;
    return error ? Py_BuildValue("N", error) : Py_BuildValue("");
}

/* Keeps the error that is pending, unless there is an earlier one; non-zero ends the call into libodc. */
static int keep(void) {
    object *type, *error, *traceback;
    if (kept) {
        PyErr_Clear();
        return 1;
    }
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback) {
        PyException_SetTraceback(error, traceback);
    }
    kept = error;
    Py_DecRef(type);
    Py_DecRef(traceback);
    return 1;
}

static int keep_unless(object *result) {
    if (!result) {
        return keep();
    }
    Py_DecRef(result);
    return 0;
}

/* A callback may call libodc itself: what is kept for the outer call is not the inner one's. */
static object *set_aside(void) {
    object *const outer = kept;
    kept = NULL;
    return outer;
}

static void put_back(object *outer) {
    Py_DecRef(kept); /* an inner call that has not returned to Python's code */
    kept = outer;
}

static int asks_to_end(object *callable) {
    object *const answer = PyObject_CallFunction(callable, NULL);
    const int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_DecRef(answer);
    return truth < 0 ? keep() : truth;
}

/* Runs the handlers of signals, in the main thread; `callable` may be NULL. */
int odc_interrupted(void *callable) {
    int end = 0;
    if (Py_IsInitialized()) {
        const int state = PyGILState_Ensure();
        if (kept) {
            end = 1;
        } else if (PyErr_CheckSignals() != 0) {
            end = keep();
        } else if (callable) {
            end = asks_to_end(callable);
        }
        PyGILState_Release(state);
    }
    return end;
}

int odc_all_gather(void *callable, const void *mine, void *all, size_t bytes) {
    int end = 1;
    if (Py_IsInitialized()) {
        const int state = PyGILState_Ensure();
        object *const outer = set_aside();
        object *const result = PyObject_CallFunction(callable, "KKK", (unsigned long long)(uintptr_t)mine,
                                                     (unsigned long long)(uintptr_t)all, (unsigned long long)bytes);
        put_back(outer);
        end = keep_unless(result);
        PyGILState_Release(state);
    }
    return end;
}

void odc_log(void *callable, int32_t level, const char *line) {
    if (Py_IsInitialized()) {
        const int state = PyGILState_Ensure();
        object *const outer = set_aside();
        object *const result = PyObject_CallFunction(callable, "iy", (int)level, line);
        put_back(outer);
        keep_unless(result);
        PyGILState_Release(state);
    }
}

/* ---- Tensors ---- */

/* Where a tensor is, and of what kind. The last two words tell other devices, types, shapes and gaps. */
typedef struct {
    uint64_t address, numel, kind, shape;
} description;
_Static_assert(sizeof(description) == 32, "WORDS of _native.py");

static description described(const tensor *of) {
    description made = {(uintptr_t)of->data + of->byte_offset, 1, 0, (uint64_t)of->dimensions};
    int contiguous = 1;
    for (int32_t i = of->dimensions; i-- > 0;) {
        contiguous &= of->shape[i] == 1 || (uint64_t)of->strides[i] == made.numel;
        made.numel *= (uint64_t)of->shape[i];
        made.shape = made.shape * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)of->shape[i];
    }
    contiguous |= made.numel == 0;
    made.kind = (uint64_t)(uint8_t)of->device_type << 56 | (uint64_t)(uint8_t)of->device << 48 |
                (uint64_t)of->code << 40 | (uint64_t)of->bits << 32 | (uint64_t)of->lanes << 16 | (uint64_t)contiguous;
    return made;
}

/* Describes the tensors of a list up to the first that is not of the class `type` itself or that `describe`, of its exchange
 * table, refuses. Returns how many. */
size_t odc_describe(object *list, size_t count, object *type, int (*describe)(void *one, tensor *out),
                    description *into) {
    for (size_t i = 0; i < count; ++i) {
        object *const one = PyList_GetItem(list, (intptr_t)i);
        object *const its_type = one ? PyObject_Type(one) : NULL;
        tensor seen;
        Py_DecRef(its_type);
        if (its_type != type || describe(one, &seen) != 0) {
            PyErr_Clear();
            return i;
        }
        into[i] = described(&seen);
    }
    return count;
}

/* ---- Calls of libodc. Their status is written before Python can raise the exception of a signal's handler. ---- */

int32_t odc_note_publication(int32_t *status, int32_t (*publish)(void *context, void *stream), void *context,
                             void *stream) {
    return *status = publish(context, stream);
}

int32_t odc_note_combination(int32_t *status,
                             int32_t (*combine)(void *context, double *values, size_t count, int32_t op), void *context,
                             double *values, size_t count, int32_t op) {
    return *status = combine(context, values, count, op);
}

int32_t odc_note_wait(int32_t *status, int32_t (*wait)(void *context, uint64_t operation), void *context,
                      uint64_t operation) {
    return *status = wait(context, operation);
}

/* ---- Loops. Addresses are numbers, since Python has arrays of those. ---- */

void odc_copy_each(size_t count, const uint64_t *to, const uint64_t *from, const uint64_t *bytes) {
    for (size_t i = 0; i < count; ++i) {
        memcpy((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], bytes[i]);
    }
}

int odc_same_each(size_t count, const uint64_t *a, const uint64_t *b, const uint64_t *bytes) {
    for (size_t i = 0; i < count; ++i) {
        if (memcmp((const void *)(uintptr_t)a[i], (const void *)(uintptr_t)b[i], bytes[i]) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Rounds as torch does; `to[i]` may be `from[i]`. `*done`: how many have been divided, so that a call that is repeated divides
 * none twice. */
#define DIVIDE_EACH(name, type)                                                                              \
    void name(size_t count, const uint64_t *to, const uint64_t *from, const uint64_t *lengths, type divisor, \
              uint64_t *done) {                                                                              \
        for (; *done < count; ++*done) {                                                                     \
            type *const into = (type *)(uintptr_t)to[*done];                                                 \
            const type *const sums = (const type *)(uintptr_t)from[*done];                                   \
            const uint64_t length = lengths[*done];                                                          \
            for (uint64_t i = 0; i < length; ++i) {                                                          \
                into[i] = sums[i] / divisor;                                                                 \
            }                                                                                                \
        }                                                                                                    \
    }
DIVIDE_EACH(odc_divide_each_f32, float)
DIVIDE_EACH(odc_divide_each_f64, double)

/* ---- Fingerprints, by which edits of memory are found: sums of its 32-bit words, of these sums and of those, in four
 * columns. They differ if up to two words of a column do: each edit of an element, two elements that change places, two
 * that change by as much in opposite directions. Other edits leave all twelve as they are by accident only, those of
 * rows that change places, too. Whoever wants to can find some: there is no key. ---- */

/* Two 64-bit numbers, so four words. Every processor has such vectors; compilers leave loops over numbers scalar, or their sums
 * in memory. */
typedef uint64_t four_words __attribute__((vector_size(16)));

/* The first of a half do not wrap below 64 GiB. */
typedef struct {
    four_words low[3], high[3];
} word_sums;
_Static_assert(sizeof(word_sums) == 96, "FINGERPRINT_BYTES of _loops.py");

static inline void add_words(word_sums *sums, four_words words) {
    const four_words low_half = {UINT32_MAX, UINT32_MAX};
    sums->low[0] += words & low_half;
    sums->low[1] += sums->low[0];
    sums->low[2] += sums->low[1];
    sums->high[0] += words >> 32;
    sums->high[1] += sums->high[0];
    sums->high[2] += sums->high[1];
}

void odc_fingerprint(const void *memory, uint64_t bytes, void *fingerprint) {
    word_sums sums = {0};
    four_words words;
    const char *at = memory;
    for (; bytes >= sizeof words; at += sizeof words, bytes -= sizeof words) {
        memcpy(&words, at, sizeof words);
        add_words(&sums, words);
    }
    words = (four_words){0};
    memcpy(&words, at, bytes);
    add_words(&sums, words);
    memcpy(fingerprint, &sums, sizeof sums);
}
