// Replays of a recorded CUDA graph: are its pointers still those that it was recorded with, new
// tensors, and new pointers for its kernels' arguments. Addresses are Python ints. One text with
// new_tensors.cpp, behind tensor_addresses.cpp.
typedef int (*SetParameters)(void*, void*, const void*);  // cuGraphExecKernelNodeSetParams_v2

struct NodeParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
    void* function;
    unsigned grid[3], block[3], shared;
    void** parameters;
    void** extra;
    void* kernel;
    void* context;
};
enum { ADDED = 4, MISALIGNED = -1, ALIGNMENT = 16 };

// agrees(inputs, expected) -> bool: expected is the address of pairs (number of an input, pointer)
// behind their count; inputs is a list or tuple.
static PyObject* agrees(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "agrees(inputs, expected)");
        return NULL;
    }
    PyObject* inputs = PySequence_Fast(args[0], "inputs are a sequence");
    const i64* at = (const i64*)PyLong_AsVoidPtr(args[1]);
    if (inputs == NULL || PyErr_Occurred()) {
        Py_XDECREF(inputs);
        return NULL;
    }
    PyObject* answer = Py_True;
    for (i64 left = *at++; left; --left, at += 2) {
        void* address;
        if (at[0] >= PySequence_Fast_GET_SIZE(inputs)) {
            PyErr_SetString(PyExc_IndexError, "fewer inputs than were recorded");
            answer = NULL;
        } else if (data_of(PySequence_Fast_GET_ITEM(inputs, at[0]), &address)) {
            answer = NULL;
        } else if ((i64)address != at[1]) {
            answer = Py_False;
        }
        if (answer != Py_True) break;
    }
    Py_DECREF(inputs);
    return Py_XNewRef(answer);
}

// patch(program, tensor, ...) -> int: gives the kernels the pointers of these tensors, one a slot.
// Returns the driver's code, or MISALIGNED, with nothing changed.
//
// The program is an array of 64-bit numbers (see graph_recording.py):
//   cuGraphExecKernelNodeSetParams_v2, the executable graph, slots, how many of them, the last, are
//   numbers in the host's memory, nodes; a pointer or number a slot; then for each node: node,
//   function, three sizes of the grid, threads, shared bytes, arguments, patches, each as
//   (argument, slot); a value an argument.
static PyObject* patch(PyObject*, PyObject* const* args, Py_ssize_t count) {
    i64* program = count ? (i64*)PyLong_AsVoidPtr(args[0]) : NULL;
    if (PyErr_Occurred()) return NULL;
    if (program == NULL || program[2] != count - 1) {
        PyErr_SetString(PyExc_TypeError, "patch(program, tensor, ...), one tensor a slot");
        return NULL;
    }
    SetParameters set_parameters = (SetParameters)program[0];
    i64* slots = program + 5;
    const i64 pointers_end = program[2] - program[3];
    int changed = 0;
    i64 fresh[count];
    for (Py_ssize_t n = 1; n < count; ++n) {
        if (data_of(args[n], (void**)&fresh[n - 1])) return NULL;
        if (n - 1 >= pointers_end)
            fresh[n - 1] = *(const i64*)fresh[n - 1];
        else if (fresh[n - 1] % ALIGNMENT)
            return PyLong_FromLong(MISALIGNED);
        changed |= fresh[n - 1] != slots[n - 1];
    }
    if (!changed) return PyLong_FromLong(0);
    for (Py_ssize_t n = 1; n < count; ++n) slots[n - 1] = fresh[n - 1];
    i64* at = slots + program[2];
    for (i64 left = program[4]; left; --left) {
        const i64* node = at;
        const i64 arguments = node[7], patches = node[8];
        i64* values = at + 9 + 2 * patches;
        int differs = 0;
        for (i64 n = 0; n < patches; ++n) {
            const i64 argument = node[9 + 2 * n], pointer = slots[node[10 + 2 * n]];
            differs |= values[argument] != pointer;
            values[argument] = pointer;
        }
        at = values + arguments;
        if (!differs) continue;
        static i64 none = 0;
        void* pointers[arguments + ADDED];
        for (i64 n = 0; n < arguments; ++n) pointers[n] = &values[n];
        for (i64 n = 0; n < ADDED; ++n) pointers[arguments + n] = &none;
        NodeParameters parameters = {
            (void*)node[1], {(unsigned)node[2], (unsigned)node[3], (unsigned)node[4]},
            {(unsigned)node[5], 1, 1}, (unsigned)node[6], pointers, NULL, NULL, NULL};
        int code = set_parameters((void*)program[1], (void*)node[0], &parameters);
        if (code) return PyLong_FromLong(code);
    }
    return PyLong_FromLong(0);
}

static PyMethodDef methods[] = {
    {"agrees", (PyCFunction)(void (*)(void))agrees, METH_FASTCALL, "Compare pointers."},
    {"patch", (PyCFunction)(void (*)(void))patch, METH_FASTCALL, "Give kernels other pointers."},
    {"new_tensors", (PyCFunction)(void (*)(void))new_tensors, METH_FASTCALL, "Make tensors."},
    {"connect", (PyCFunction)(void (*)(void))connect, METH_FASTCALL, "Functions of libtorch."},
    {"connect_tensors", connect_tensors, METH_VARARGS, "Tell where tensors are asked."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "braze_graph_patches", NULL, -1, methods};

PyMODINIT_FUNC PyInit_braze_graph_patches(void) {
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return data_ptr_name == NULL ? NULL : PyModule_Create(&module);
}
