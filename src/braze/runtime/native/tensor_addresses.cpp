// Where the data of tensors are, asked of libtorch's stable C interface; by `data_ptr()` where that
// is not known. One text with what comes behind it: launcher.cpp, or new_tensors.cpp.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

// type: of all tensors; offset: of the pointer to the implementation in the Python object, whose
// address is a handle; ask: 0 where the handle's tensor has an address.
static struct {
    PyTypeObject* type;
    Py_ssize_t offset;
    int (*ask)(void*, void**);
} tensors;

static PyObject* data_ptr_name;

// A tensor's data_ptr(); 0, or -1 with an exception set.
static int data_of(PyObject* tensor, void** data) {
    if (tensors.type && PyObject_TypeCheck(tensor, tensors.type) &&
        tensors.ask((char*)tensor + tensors.offset, data) == 0)
        return 0;
    PyObject* address = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
    if (address == NULL) return -1;
    *data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

// Puts that into the table's places, of (place, tensor) pairs; 0, or -1 with an exception set.
static int bind(char** table, PyObject* const* args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i += 2) {
        Py_ssize_t place = PyLong_AsSsize_t(args[i]);
        if (data_of(args[i + 1], (void**)&table[place])) return -1;
    }
    return 0;
}

// connect_tensors(class of all tensors, offset, address of what is asked)
static PyObject* connect_tensors(PyObject*, PyObject* args) {
    PyObject *type, *ask;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "O!nO", &PyType_Type, &type, &offset, &ask)) return NULL;
    tensors.ask = (int (*)(void*, void**))PyLong_AsVoidPtr(ask);
    if (PyErr_Occurred()) return NULL;
    tensors.offset = offset;
    tensors.type = (PyTypeObject*)Py_NewRef(type);
    Py_RETURN_NONE;
}
