// run(entry, table, sizes, threads, place, tensor, place, tensor, ...) -> int
//
// Puts tensor.data_ptr() into the table's places, then calls the entry of a built unit with the
// interpreter's lock released. Addresses are Python ints. One text with tensor_addresses.cpp.

// How an entry begins, which is data: with the function that runs it. (entries.cpp has the rest.)
struct Entry {
    int (*run)(const Entry*, char**, const long*, int);
};

static PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 4 || count % 2) {
        PyErr_SetString(PyExc_TypeError, "run(entry, table, sizes, threads, place, tensor, ...)");
        return NULL;
    }
    const Entry* entry = (const Entry*)PyLong_AsVoidPtr(args[0]);
    char** table = (char**)PyLong_AsVoidPtr(args[1]);
    const long* sizes = (const long*)PyLong_AsVoidPtr(args[2]);
    long threads = PyLong_AsLong(args[3]);
    if (PyErr_Occurred() || bind(table, args + 4, count - 4)) return NULL;
    int fault;
    Py_BEGIN_ALLOW_THREADS;
    fault = entry->run(entry, table, sizes, (int)threads);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(fault);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Run the kernels of an entry."},
    {"connect_tensors", connect_tensors, METH_VARARGS, "Tell where tensors are asked."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "braze_launcher", NULL, -1, methods};

PyMODINIT_FUNC PyInit_braze_launcher(void) {
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return data_ptr_name == NULL ? NULL : PyModule_Create(&module);
}
