// start(number): KeyboardInterrupt at the first place after that many lines and calls at which
// the interpreter handles signals. count(): how many there were. stop(): no more.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static long seen, wanted;

static int on_event(PyObject*, PyFrameObject*, int what, PyObject*) {
    if ((what == PyTrace_LINE || what == PyTrace_CALL) && ++seen == wanted) PyErr_SetInterrupt();
    return 0;
}

static PyObject* start(PyObject*, PyObject* number) {
    wanted = PyLong_AsLong(number);
    if (PyErr_Occurred()) return NULL;
    seen = 0;
    PyEval_SetTrace(on_event, NULL);
    Py_RETURN_NONE;
}

static PyObject* count(PyObject*, PyObject*) { return PyLong_FromLong(seen); }

static PyObject* stop(PyObject*, PyObject*) {
    PyEval_SetTrace(NULL, NULL);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_O, NULL},
    {"count", count, METH_NOARGS, NULL},
    {"stop", stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "interrupts", NULL, -1, methods};

PyMODINIT_FUNC PyInit_interrupts(void) { return PyModule_Create(&module); }
