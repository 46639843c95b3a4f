// launch(plan, table, sizes, stream, place, tensor, place, tensor, ...) -> int
//
// Puts tensor.data_ptr() into the table's places, then starts the kernels of a plan on the stream,
// with the interpreter's lock released. Addresses are Python ints. Returns the driver's code, or
// MISALIGNED, with nothing started, where a pointer is not what the kernels are built for.
//
// A plan is an array of 64-bit numbers (see device_plan.py):
//   kernels, most arguments of one, cuLaunchKernel, cuCtxSetCurrent, the context, place of the
//   arena; how many places of the table must hold multiples of 16, and which; then for each kernel:
//   function, threads, shared bytes, three sizes of the grid as (kind, number), number of
//   arguments, each as (kind, number).
//
// launch_making(plan, made, table, sizes, stream, place, tensor, ...) -> (int, tensor, ...)
//
// The same, with new tensors made before, as new_tensors.cpp has it. One text with that, behind
// tensor_addresses.cpp.

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void*, void**, void**);
typedef int (*SetContext)(void*);
enum Kind { NUMBER, SIZE, POINTER, IN_ARENA, VALUE };
enum { HEAD = 6, ADDED = 4, INVALID_CONTEXT = 201, MISALIGNED = -1, ALIGNMENT = 16 };

// What an argument is in this call. VALUE: what a place of the table points to on the host.
static inline i64 valued(const i64* at, char* const* table, const i64* sizes, const char* arena) {
    switch (at[0]) {
        case SIZE: return sizes[at[1]];
        case POINTER: return (i64)table[at[1]];
        case IN_ARENA: return (i64)(arena + at[1]);
        case VALUE: return *(const i64*)table[at[1]];
        default: return at[1];
    }
}

static int start(const i64* plan, char* const* table, const i64* sizes, void* stream) {
    const i64 count = plan[0];
    Launch launch = (Launch)plan[2];
    SetContext set_context = (SetContext)plan[3];
    const char* arena = plan[5] < 0 ? NULL : table[plan[5]];
    i64 values[plan[1] + 1];
    void* pointers[plan[1] + ADDED];
    const i64* at = plan + HEAD;
    unsigned long bits = 0;
    for (i64 left = *at++; left; --left) bits |= (unsigned long)table[*at++];
    if (bits % ALIGNMENT) return MISALIGNED;
    for (i64 kernel = 0; kernel < count; ++kernel) {
        void* function = (void*)at[0];
        const unsigned threads = (unsigned)at[1], shared = (unsigned)at[2];
        i64 grid[3];
        for (int axis = 0; axis < 3; ++axis)
            grid[axis] = valued(at + 3 + 2 * axis, table, sizes, arena);
        const i64 arguments = at[9];
        at += 10;
        for (i64 n = 0; n < arguments; ++n, at += 2) {
            values[n] = valued(at, table, sizes, arena);
            pointers[n] = &values[n];
        }
        // Triton's kernels take pointers to scratch memory behind their own arguments: none here.
        static i64 none = 0;
        for (int n = 0; n < ADDED; ++n) pointers[arguments + n] = &none;
        if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) continue;  // nothing to compute
        int code = launch(function, (unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2],
                          threads, 1, 1, shared, stream, pointers, NULL);
        if (code == INVALID_CONTEXT && set_context((void*)plan[4]) == 0)  // a thread's first call
            code = launch(function, (unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2],
                          threads, 1, 1, shared, stream, pointers, NULL);
        if (code) return code;
    }
    return 0;
}

static PyObject* launch(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 4 || count % 2) {
        PyErr_SetString(PyExc_TypeError, "launch(plan, table, sizes, stream, place, tensor, ...)");
        return NULL;
    }
    const i64* plan = (const i64*)PyLong_AsVoidPtr(args[0]);
    char** table = (char**)PyLong_AsVoidPtr(args[1]);
    const i64* sizes = (const i64*)PyLong_AsVoidPtr(args[2]);
    void* stream = PyLong_AsVoidPtr(args[3]);
    if (PyErr_Occurred() || bind(table, args + 4, count - 4)) return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = start(plan, table, sizes, stream);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(code);
}

static PyObject* launch_making(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 5 || count % 2 == 0 || empty_strided == NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "launch_making(plan, made, table, sizes, stream, place, tensor, ...)");
        return NULL;
    }
    const i64* plan = (const i64*)PyLong_AsVoidPtr(args[0]);
    const i64* made = (const i64*)PyLong_AsVoidPtr(args[1]);
    char** table = (char**)PyLong_AsVoidPtr(args[2]);
    const i64* sizes = (const i64*)PyLong_AsVoidPtr(args[3]);
    void* stream = PyLong_AsVoidPtr(args[4]);
    if (PyErr_Occurred() || bind(table, args + 5, count - 5)) return NULL;
    PyObject* results = make_all(made, 1, table);
    if (results == NULL) return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = start(plan, table, sizes, stream);
    Py_END_ALLOW_THREADS;
    PyObject* answer = PyLong_FromLong(code);
    if (answer == NULL) Py_CLEAR(results);
    else PyTuple_SET_ITEM(results, 0, answer);
    return results;
}

static PyMethodDef methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Start the kernels of a plan."},
    {"launch_making", (PyCFunction)(void (*)(void))launch_making, METH_FASTCALL,
     "Make tensors, then start the kernels of a plan."},
    {"new_tensors", (PyCFunction)(void (*)(void))new_tensors, METH_FASTCALL, "Make tensors."},
    {"connect", (PyCFunction)(void (*)(void))connect, METH_FASTCALL, "Functions of libtorch."},
    {"connect_tensors", connect_tensors, METH_VARARGS, "Tell where tensors are asked."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "braze_device_launcher", NULL, -1, methods};

PyMODINIT_FUNC PyInit_braze_device_launcher(void) {
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return data_ptr_name == NULL ? NULL : PyModule_Create(&module);
}
