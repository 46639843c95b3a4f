// What a tensor's memory is, and whether its contents may have changed since: the storage, where its
// data are, the version, and how often the program got hold of that memory past the version counter
// (`.data`, `.numpy()`, `.untyped_storage()`, DLPack, ...). The C functions behind those are replaced
// by ones that count a storage that is watched, then do what they did.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030d0000
#define PyCFunctionFastWithKeywords _PyCFunctionFastWithKeywords
#endif

// Storage's address -> how often its memory was handed out.
static PyObject* watched;
static PyTypeObject* tensor_type;
static PyCFunction storage_function, address_function;
static PyObject *cdata_name, *version_name, *nbytes_name, *is_contiguous_name;
static getter data_getter;
static setter data_setter;
static int replaced = 0;

static PyObject* storage_of(PyObject* tensor) {
    PyObject* storage = storage_function(tensor, NULL);
    if (storage == NULL) return NULL;
    PyObject* address = PyObject_GetAttr(storage, cdata_name);
    Py_DECREF(storage);
    return address;
}

static void count(PyObject* tensor) {
    PyObject* address = storage_of(tensor);
    PyObject* times = address == NULL ? NULL : PyDict_GetItemWithError(watched, address);
    if (times != NULL) {
        PyObject* more = PyLong_FromSsize_t(PyLong_AsSsize_t(times) + 1);
        if (more != NULL) PyDict_SetItem(watched, address, more);
        Py_XDECREF(more);
    }
    Py_XDECREF(address);
    PyErr_Clear();  // of a tensor without storage
}

// Counts a tensor, or those in a tuple or list, however nested.
static void note(PyObject* value) {
    if (PyObject_TypeCheck(value, tensor_type)) {
        count(value);
    } else if (PyTuple_Check(value) || PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
            note(PySequence_Fast_GET_ITEM(value, i));
    }
}

static void note_all(PyObject* self, PyObject* args) {
    if (PyDict_GET_SIZE(watched) == 0) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (self != NULL) note(self);
    if (args != NULL) note(args);
    PyErr_Restore(type, value, trace);
}

static PyObject* get_data(PyObject* self, void* closure) {
    note_all(self, NULL);
    return data_getter(self, closure);
}

static int set_data(PyObject* self, PyObject* value, void* closure) {
    note_all(self, value);
    return data_setter(self, value, closure);
}

// C functions have no place for what they stand for: one for each.
enum { MOST = 32 };
static PyCFunction originals[MOST];

template <int N>
static PyObject* noted(PyObject* self, PyObject* args) {
    note_all(self, args);
    return originals[N](self, args);
}

template <int N>
static PyObject* noted_keywords(PyObject* self, PyObject* args, PyObject* keywords) {
    note_all(self, args);
    PyObject* value;
    for (Py_ssize_t at = 0; keywords != NULL && PyDict_Next(keywords, &at, NULL, &value);)
        note_all(NULL, value);
    return ((PyCFunctionWithKeywords)(void (*)(void))originals[N])(self, args, keywords);
}

static const PyCFunction plain[MOST] = {
    noted<0>, noted<1>, noted<2>, noted<3>,
    noted<4>, noted<5>, noted<6>, noted<7>,
    noted<8>, noted<9>, noted<10>, noted<11>,
    noted<12>, noted<13>, noted<14>, noted<15>,
    noted<16>, noted<17>, noted<18>, noted<19>,
    noted<20>, noted<21>, noted<22>, noted<23>,
    noted<24>, noted<25>, noted<26>, noted<27>,
    noted<28>, noted<29>, noted<30>, noted<31>};
static const PyCFunctionWithKeywords with_keywords[MOST] = {
    noted_keywords<0>, noted_keywords<1>, noted_keywords<2>, noted_keywords<3>,
    noted_keywords<4>, noted_keywords<5>, noted_keywords<6>, noted_keywords<7>,
    noted_keywords<8>, noted_keywords<9>, noted_keywords<10>, noted_keywords<11>,
    noted_keywords<12>, noted_keywords<13>, noted_keywords<14>, noted_keywords<15>,
    noted_keywords<16>, noted_keywords<17>, noted_keywords<18>, noted_keywords<19>,
    noted_keywords<20>, noted_keywords<21>, noted_keywords<22>, noted_keywords<23>,
    noted_keywords<24>, noted_keywords<25>, noted_keywords<26>, noted_keywords<27>,
    noted_keywords<28>, noted_keywords<29>, noted_keywords<30>, noted_keywords<31>};

template <int N>
static PyObject* noted_vector(PyObject* self, PyObject* const* args, Py_ssize_t count,
                              PyObject* names) {
    Py_ssize_t all = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    note_all(self, NULL);
    for (Py_ssize_t i = 0; i < all; i++) note_all(NULL, args[i]);
    return ((PyCFunctionFastWithKeywords)(void (*)(void))originals[N])(self, args, count, names);
}

static const PyCFunctionFastWithKeywords vectors[MOST] = {
    noted_vector<0>, noted_vector<1>, noted_vector<2>, noted_vector<3>,
    noted_vector<4>, noted_vector<5>, noted_vector<6>, noted_vector<7>,
    noted_vector<8>, noted_vector<9>, noted_vector<10>, noted_vector<11>,
    noted_vector<12>, noted_vector<13>, noted_vector<14>, noted_vector<15>,
    noted_vector<16>, noted_vector<17>, noted_vector<18>, noted_vector<19>,
    noted_vector<20>, noted_vector<21>, noted_vector<22>, noted_vector<23>,
    noted_vector<24>, noted_vector<25>, noted_vector<26>, noted_vector<27>,
    noted_vector<28>, noted_vector<29>, noted_vector<30>, noted_vector<31>};

static PyCFunction replacement(int number, int flags) {
    if (flags & METH_FASTCALL) return (PyCFunction)(void (*)(void))vectors[number];
    if (flags & METH_KEYWORDS) return (PyCFunction)(void (*)(void))with_keywords[number];
    return plain[number];
}

// The definition of a method or a function of C; NULL where its calls are of another kind.
static PyMethodDef* definition_of(PyObject* function) {
    PyMethodDef* found = NULL;
    if (Py_IS_TYPE(function, &PyMethodDescr_Type))
        found = ((PyMethodDescrObject*)function)->d_method;
    if (Py_IS_TYPE(function, &PyCFunction_Type)) found = ((PyCFunctionObject*)function)->m_ml;
    if (found == NULL) return NULL;
    switch (found->ml_flags & ~METH_STATIC) {
        case METH_NOARGS:
        case METH_O:
        case METH_VARARGS:
        case METH_VARARGS | METH_KEYWORDS:
        case METH_FASTCALL | METH_KEYWORDS:
            return found;
    }
    return NULL;
}

// connect(class of all tensors, dict of what is watched, descriptor of `data`, functions of which the
// first two are the methods `untyped_storage` and `data_ptr`). False, and nothing is changed, where
// one is of another kind.
static PyObject* connect(PyObject*, PyObject* args) {
    PyObject *type, *dict, *data, *functions;
    if (!PyArg_ParseTuple(args, "O!O!OO!", &PyType_Type, &type, &PyDict_Type, &dict, &data,
                          &PyTuple_Type, &functions))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(functions);
    if (replaced || !Py_IS_TYPE(data, &PyGetSetDescr_Type) || size < 2 || size > MOST)
        Py_RETURN_FALSE;
    PyMethodDef* found[MOST];
    for (Py_ssize_t i = 0; i < size; i++) {
        found[i] = definition_of(PyTuple_GET_ITEM(functions, i));
        if (found[i] == NULL || (i < 2 && found[i]->ml_flags != METH_NOARGS)) Py_RETURN_FALSE;
    }
    PyGetSetDef* attribute = ((PyGetSetDescrObject*)data)->d_getset;
    cdata_name = PyUnicode_InternFromString("_cdata");
    version_name = PyUnicode_InternFromString("_version");
    nbytes_name = PyUnicode_InternFromString("nbytes");
    is_contiguous_name = PyUnicode_InternFromString("is_contiguous");
    if (!cdata_name || !version_name || !nbytes_name || !is_contiguous_name) return NULL;
    watched = Py_NewRef(dict);
    tensor_type = (PyTypeObject*)Py_NewRef(type);
    storage_function = found[0]->ml_meth;
    address_function = found[1]->ml_meth;
    data_getter = attribute->get;
    data_setter = attribute->set;
    for (Py_ssize_t i = 0; i < size; i++) {
        originals[i] = found[i]->ml_meth;
        found[i]->ml_meth = replacement((int)i, found[i]->ml_flags);
    }
    attribute->get = get_data;
    attribute->set = set_data;
    replaced = 1;
    Py_RETURN_TRUE;
}

// storage(tensor): its storage; no access is counted.
static PyObject* storage(PyObject*, PyObject* tensor) { return storage_function(tensor, NULL); }

// What a tensor of few bytes, one behind the other, holds; None of another, NULL for an error. Some
// kernels write to arguments and count no version: a norm's running statistics.
enum { FEW = 16384, PARTS = 5 };

static PyObject* contents_of(PyObject* tensor, PyObject* address) {
    PyObject* size = PyObject_GetAttr(tensor, nbytes_name);
    if (size == NULL) return NULL;
    Py_ssize_t bytes = PyLong_AsSsize_t(size);
    Py_DECREF(size);
    if (bytes < 0) return NULL;
    if (bytes > FEW) return Py_NewRef(Py_None);
    PyObject* dense = PyObject_CallMethodNoArgs(tensor, is_contiguous_name);
    if (dense == NULL) return NULL;
    bool is_dense = dense == Py_True;
    Py_DECREF(dense);
    if (!is_dense) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char*)PyLong_AsVoidPtr(address), bytes);
}

// states(tensors): of each its storage, its address, its version, how often it was handed out, and
// of a small one what it holds.
static PyObject* states(PyObject*, PyObject* tensors) {
    if (!PyTuple_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of tensors");
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(tensors);
    PyObject* found = PyTuple_New(PARTS * size);
    for (Py_ssize_t i = 0; found != NULL && i < size; i++) {
        PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
        PyObject* parts[PARTS] = {storage_of(tensor), NULL, NULL, NULL, NULL};
        if (parts[0] != NULL) parts[1] = address_function(tensor, NULL);
        if (parts[1] != NULL) parts[2] = PyObject_GetAttr(tensor, version_name);
        if (parts[2] != NULL) {
            PyObject* times = PyDict_GetItemWithError(watched, parts[0]);
            if (times == NULL && !PyErr_Occurred()) times = Py_None;
            parts[3] = Py_XNewRef(times);
        }
        if (parts[3] != NULL) parts[4] = contents_of(tensor, parts[1]);
        bool is_whole = parts[4] != NULL;
        for (int part = 0; part < PARTS; part++)
            PyTuple_SET_ITEM(found, PARTS * i + part, parts[part]);
        if (!is_whole) Py_CLEAR(found);
    }
    return found;
}

static PyMethodDef methods[] = {
    {"connect", connect, METH_VARARGS, "Replace the functions that hand memory out."},
    {"storage", storage, METH_O, "A tensor's storage."},
    {"states", states, METH_O, "What memory tensors have, and its versions."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "braze_storage_watch", NULL, -1, methods};

PyMODINIT_FUNC PyInit_braze_storage_watch(void) { return PyModule_Create(&module); }
