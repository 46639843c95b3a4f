// New tensors, by libtorch's stable C interface, which `connect` is given the functions of. One text
// with tensor_addresses.cpp, which comes before it, and launchers, which come behind it.
//
// What is made is an array of numbers (see new_tensors.py):
//   tensors, device type, device index; then for each: its place in a table of pointers, dtype,
//   rank, sizes, strides.

typedef long i64;
typedef int (*Empty)(i64, const i64*, const i64*, int, int, int, void**);
typedef int (*Delete)(void*);
typedef int (*Address)(void*, void**);
typedef PyObject* (*Wrap)(const void*);

static PyObject* out_of_memory;
static Empty empty_strided;
static Delete delete_tensor;
static Address address_of;
static Wrap wrap;

// One of those that `made` describes, its pointer in the table, if there is one; at is moved on.
static PyObject* make(const i64* made, const i64** at, char** table) {
    const i64 place = (*at)[0], dtype = (*at)[1], rank = (*at)[2];
    const i64* sizes = *at + 3;
    *at = sizes + 2 * rank;
    void* handle = NULL;
    if (empty_strided(rank, sizes, sizes + rank, (int)dtype, (int)made[1], (int)made[2], &handle)) {
        PyErr_SetString(out_of_memory, "no memory for a result of compiled kernels");
        return NULL;
    }
    void* address = NULL;
    PyObject* tensor = address_of(handle, &address) ? NULL : wrap(handle);
    delete_tensor(handle);
    if (table != NULL) table[place] = (char*)address;
    if (tensor == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "a new tensor does not say where it is");
    return tensor;
}

// All that `made` describes, from `first` on in a new tuple, whose items before are the caller's.
static PyObject* make_all(const i64* made, Py_ssize_t first, char** table) {
    PyObject* results = PyTuple_New(first + made[0]);
    const i64* at = made + 3;
    for (i64 n = first; results != NULL && n < first + made[0]; ++n) {
        PyObject* tensor = make(made, &at, table);
        if (tensor == NULL) Py_CLEAR(results);
        else PyTuple_SET_ITEM(results, n, tensor);
    }
    return results;
}

// new_tensors(made, table) -> tuple; table: 0 where nobody asks for pointers.
static PyObject* new_tensors(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2 || empty_strided == NULL) {
        PyErr_SetString(PyExc_TypeError, "new_tensors(made, table), once connected");
        return NULL;
    }
    const i64* made = (const i64*)PyLong_AsVoidPtr(args[0]);
    char** table = (char**)PyLong_AsVoidPtr(args[1]);
    return PyErr_Occurred() ? NULL : make_all(made, 0, table);
}

// connect(empty_strided, delete_tensor_object, get_data_ptr, wrap, class of exceptions)
static PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "connect takes four addresses and a class");
        return NULL;
    }
    void* found[4];
    for (int n = 0; n < 4; ++n) found[n] = PyLong_AsVoidPtr(args[n]);
    if (PyErr_Occurred()) return NULL;
    delete_tensor = (Delete)found[1];
    address_of = (Address)found[2];
    wrap = (Wrap)found[3];
    Py_XSETREF(out_of_memory, Py_NewRef(args[4]));
    empty_strided = (Empty)found[0];
    Py_RETURN_NONE;
}
