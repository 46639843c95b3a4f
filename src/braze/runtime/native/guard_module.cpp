// The extension module. One text with the other guard_*.cpp, of which it is the last.

static PyGetSetDef* definition_of(PyObject* descriptor) {
    if (Py_TYPE(descriptor) == &PyGetSetDescr_Type)
        return ((PyGetSetDescrObject*)descriptor)->d_getset;
    PyErr_SetString(PyExc_TypeError, "a getset descriptor is needed");
    return NULL;
}

// connect((address of each function), requires_grad, is_leaf, grad, gradient hooks, (a plain class,
// another), offset): the last two addresses may be 0; the first two descriptors stand in for them.
static PyObject* connect(PyObject*, PyObject* args) {
    PyObject *addresses, *requires_grad, *is_leaf, *grad, *grad_hooks, *tensor, *parameter;
    Py_ssize_t offset;
    void* found[12];
    if (!PyArg_ParseTuple(args, "O!OOOO(O!O!)n", &PyTuple_Type, &addresses, &requires_grad,
                          &is_leaf, &grad, &grad_hooks, &PyType_Type, &tensor, &PyType_Type,
                          &parameter, &offset))
        return NULL;
    if (PyTuple_GET_SIZE(addresses) != 12) {
        PyErr_SetString(PyExc_ValueError, "twelve addresses are needed");
        return NULL;
    }
    for (int i = 0; i < 12; i++) found[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
    libtorch.get_requires_grad = definition_of(requires_grad);
    libtorch.get_is_leaf = definition_of(is_leaf);
    libtorch.get_grad = definition_of(grad);
    libtorch.get_grad_hooks = definition_of(grad_hooks);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < CODES; i++) libtorch.codes[i] = (AskInt32)found[i];
    libtorch.rank = (AskInt64)found[4];
    libtorch.sizes = (AskArray)found[5];
    libtorch.strides = (AskArray)found[6];
    libtorch.storage_offset = (AskInt64)found[7];
    libtorch.data = (int (*)(void*, const char**))found[8];
    libtorch.storage_size = (AskInt64)found[9];
    libtorch.requires_grad = (AskFlag)found[10];
    libtorch.is_leaf = (AskFlag)found[11];
    libtorch.plain[0] = (PyTypeObject*)Py_NewRef(tensor);
    libtorch.plain[1] = (PyTypeObject*)Py_NewRef(parameter);
    libtorch.offset = offset;
    Py_RETURN_NONE;
}

// codes_of(tensor): ((dtype, device, index of the device, layout) as libtorch numbers them,
// requires_grad, is_leaf).
static PyObject* codes_of(PyObject*, PyObject* tensor) {
    int codes[CODES];
    void* handle = (char*)tensor + libtorch.offset;
    for (int i = 0; i < CODES; i++)
        if (libtorch.codes[i] == NULL || libtorch.codes[i](handle, &codes[i])) Py_RETURN_NONE;
    return Py_BuildValue("((iiii)ii)", codes[0], codes[1], codes[2], codes[3],
                         requires_grad(tensor, handle), is_leaf(tensor, handle));
}

// bytes_of(tensor, start, count): of its implementation.
static PyObject* bytes_of(PyObject*, PyObject* args) {
    PyObject* tensor;
    Py_ssize_t start, count;
    if (!PyArg_ParseTuple(args, "Onn", &tensor, &start, &count)) return NULL;
    const char* implementation = *(const char**)((char*)tensor + libtorch.offset);
    return PyBytes_FromStringAndSize(implementation + start, count);
}

// set_rank_offset(offset): where an implementation keeps its rank and what follows it; 0: unknown.
static PyObject* set_rank_offset(PyObject*, PyObject* offset) {
    libtorch.rank_offset = PyLong_AsSsize_t(offset);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

// set_keys_offset(offset): where an implementation keeps its set of dispatch keys.
static PyObject* set_keys_offset(PyObject*, PyObject* offset) {
    libtorch.keys_offset = PyLong_AsSsize_t(offset);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"connect", connect, METH_VARARGS, "Tell where tensors are asked."},
    {"codes_of", codes_of, METH_O, "What is compared beside the sizes, or None."},
    {"bytes_of", bytes_of, METH_VARARGS, "Bytes of a tensor's implementation."},
    {"set_rank_offset", set_rank_offset, METH_O, "Tell where the rank is."},
    {"set_keys_offset", set_keys_offset, METH_O, "Tell where the dispatch keys are."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "braze_guards", NULL, -1, methods};

PyMODINIT_FUNC PyInit_braze_guards(void) {
#if WATCHES
    watcher = PyDict_AddWatcher(on_change);
    if (watcher < 0) return NULL;
#endif
    locals_name = PyUnicode_InternFromString("locals");
    stack_name = PyUnicode_InternFromString("stack");
    globals_name = PyUnicode_InternFromString("globals");
    absent = PyObject_CallNoArgs((PyObject*)&PyBaseObject_Type);
    PyObject* made = PyModule_Create(&module);
    PyObject *type = PyType_FromSpec(&spec), *way = PyType_FromSpec(&entrance::spec);
    if (made == NULL || type == NULL || way == NULL || absent == NULL) return NULL;
    if (PyModule_AddObjectRef(made, "Snapshot", type) < 0) return NULL;
    if (PyModule_AddObjectRef(made, "Entrance", way) < 0) return NULL;
    if (PyModule_AddObjectRef(made, "ABSENT", absent) < 0) return NULL;
    return made;
}
