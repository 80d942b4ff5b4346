/* SPDX-License-Identifier: Apache-2.0 */
/* What consumers of DLPack capsules call back: also with an exception pending, theirs or the program's, which a callback of
 * ctypes would lose. */

/* Of Python's stable ABI, so that its headers are not needed. */
typedef struct object object;
int Py_IsInitialized(void);
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
void Py_DecRef(object *one);
int PyCapsule_IsValid(object *capsule, const char *name);
void *PyCapsule_GetPointer(object *capsule, const char *name);

/* dlpack.h's. */
typedef struct managed {
    unsigned char tensor[48];
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
