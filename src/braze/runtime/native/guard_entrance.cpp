// The way through a compiled function for calls that a snapshot proves: arguments are bound, the
// graph is called and the result picked without a Python frame in between. One text with
// guard_native.cpp, which comes first, and guard_module.cpp.
//
// It knows nothing that can be out of date: which entries there are, and what proves them, is read
// at each call, where Python keeps it in slots; their places in memory are those of the classes'
// descriptors (entrance.py).

namespace entrance {

// Slots that are read or filled, in the order of entrance.py.
enum Slot {
    ENTRIES, IS_PLAIN, GRAPH, REPLAY, RESULT, MEMORY, CHECKS,
    VALUES_LOCALS, VALUES_STACK, VALUES_GLOBALS, UNDONE_ENTRY, UNDONE_FAULT, SLOTS
};

struct Entrance {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject* function;
    PyObject* code;      // the function's when this was made
    PyObject* names;     // of parameters as `co_varnames` has them, then of free variables
    PyObject* cache;     // a FrameCache
    PyObject* unknown;   // what is returned where Python has to look for an entry
    PyObject* values;    // FrameValues
    PyObject* undone;    // the class of `unknown`
    PyObject* nothing;   // an empty tuple: the stack
    Py_buffer calls;     // one int64_t: how many calls were made here
    Py_ssize_t offsets[SLOTS];
    Py_ssize_t positional, positional_only, keyword_only;
    int has_rest, has_more;
};

static PyObject* read(const Entrance* self, Slot slot, PyObject* object) {
    return *(PyObject**)((char*)object + self->offsets[slot]);
}

static void fill(const Entrance* self, Slot slot, PyObject* object, PyObject* value) {
    *(PyObject**)((char*)object + self->offsets[slot]) = Py_NewRef(value);
}

static PyObject* make(PyObject* type) {
    PyTypeObject* made = (PyTypeObject*)type;
    return made->tp_alloc(made, 0);
}

// --- arguments -----------------------------------------------------------------------------------

// Of a call: `used` counts the keywords that named a parameter, `more` has the others.
struct Given {
    PyObject *args, *kwargs, *locals, *more;
    Py_ssize_t used;
};

static PyObject* default_of(const PyFunctionObject* function, const Entrance* self, Py_ssize_t n) {
    PyObject* defaults = function->func_defaults;
    Py_ssize_t count = defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults);
    Py_ssize_t at = n - (self->positional - count);
    return at < 0 ? NULL : PyTuple_GET_ITEM(defaults, at);
}

// A parameter's value by its name; NULL where no keyword names it.
static PyObject* named(Given* given, PyObject* name) {
    PyObject* value = given->kwargs ? PyDict_GetItemWithError(given->kwargs, name) : NULL;
    if (value == NULL) return NULL;
    given->used++;
    if (given->more && PyDict_DelItem(given->more, name)) return NULL;
    return value;
}

// Each of these is 1, 0 where the function would raise, and -1 with an exception.
static int bind_parameters(const Entrance* self, const PyFunctionObject* function, Given* given) {
    Py_ssize_t count = PyTuple_GET_SIZE(given->args);
    if (count > self->positional && !self->has_rest) return 0;
    for (Py_ssize_t n = 0; n < self->positional + self->keyword_only; n++) {
        PyObject *name = PyTuple_GET_ITEM(self->names, n), *value = NULL;
        bool is_positional = n < self->positional;
        if (is_positional && n < count) {
            value = PyTuple_GET_ITEM(given->args, n);
            // A keyword of the same name is an error, or one of `**more`.
            if (given->more && given->kwargs && n >= self->positional_only &&
                PyDict_Contains(given->kwargs, name))
                return 0;
        } else {
            if (n >= self->positional_only) value = named(given, name);
            if (value == NULL && PyErr_Occurred()) return -1;
            if (value == NULL && is_positional) value = default_of(function, self, n);
            if (value == NULL && !is_positional && function->func_kwdefaults)
                value = PyDict_GetItemWithError(function->func_kwdefaults, name);
            if (value == NULL) return PyErr_Occurred() ? -1 : 0;
        }
        if (PyDict_SetItem(given->locals, name, value)) return -1;
    }
    return 1;
}

static int bind_others(const Entrance* self, const PyFunctionObject* function, Given* given) {
    Py_ssize_t n = self->positional + self->keyword_only;
    if (self->has_rest) {
        Py_ssize_t count = PyTuple_GET_SIZE(given->args);
        PyObject* rest = PyTuple_GetSlice(given->args, self->positional, count);
        int failed = rest == NULL;
        PyObject* name = PyTuple_GET_ITEM(self->names, n++);
        if (!failed) failed = PyDict_SetItem(given->locals, name, rest);
        Py_XDECREF(rest);
        if (failed) return -1;
    }
    if (self->has_more) {
        PyObject* name = PyTuple_GET_ITEM(self->names, n++);
        if (PyDict_SetItem(given->locals, name, given->more)) return -1;
    } else if (given->kwargs && given->used != PyDict_GET_SIZE(given->kwargs)) {
        return 0;
    }
    Py_ssize_t free = PyTuple_GET_SIZE(self->names) - n;
    if (free == 0) return 1;
    PyObject* cells = function->func_closure;
    if (cells == NULL || PyTuple_GET_SIZE(cells) != free) return 0;
    for (Py_ssize_t i = 0; i < free; i++)
        if (PyDict_SetItem(given->locals, PyTuple_GET_ITEM(self->names, n + i),
                           PyTuple_GET_ITEM(cells, i)))
            return -1;
    return 1;
}

// The locals of a call; NULL, without an exception where the function would raise one.
static PyObject* bind(const Entrance* self, PyObject* args, PyObject* kwargs) {
    const PyFunctionObject* function = (PyFunctionObject*)self->function;
    Given given = {args, PyDict_GET_SIZE(kwargs) ? kwargs : NULL, PyDict_New(), NULL, 0};
    if (self->has_more) given.more = given.kwargs ? PyDict_Copy(kwargs) : PyDict_New();
    int bound = -1;
    if (given.locals && (given.more || !self->has_more)) {
        bound = bind_parameters(self, function, &given);
        if (bound == 1) bound = bind_others(self, function, &given);
    }
    Py_XDECREF(given.more);
    if (bound == 1) return given.locals;
    Py_XDECREF(given.locals);
    return NULL;
}

// --- the graph and the result ------------------------------------------------------------------

struct MadeValues {
    const Entrance* self;
    const Frame* frame;
};

// FrameValues of the frame.
static PyObject* make_values(void* given) {
    const Entrance* self = ((MadeValues*)given)->self;
    const Frame* frame = ((MadeValues*)given)->frame;
    PyObject* made = make(self->values);
    if (made == NULL) return NULL;
    fill(self, VALUES_LOCALS, made, frame->locals);
    fill(self, VALUES_STACK, made, frame->stack);
    fill(self, VALUES_GLOBALS, made, frame->globals);
    return made;
}

// An Undone that has the exception that is set; the exception itself where it is no Exception.
static PyObject* undone(const Entrance* self, PyObject* entry) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyObject *type, *fault, *traceback;
    PyErr_Fetch(&type, &fault, &traceback);
    PyErr_NormalizeException(&type, &fault, &traceback);
    if (traceback) PyException_SetTraceback(fault, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    PyObject* made = make(self->undone);
    if (made) {
        fill(self, UNDONE_ENTRY, made, entry);
        fill(self, UNDONE_FAULT, made, fault);
    }
    Py_DECREF(fault);
    return made;
}

// What the function returns. The entry's `result` is the number of the graph's result, a tuple of
// such numbers, or None: then `replay` knows.
static PyObject* result_of(const Entrance* self, PyObject* entry, const Frame* frame,
                           PyObject* results) {
    PyObject* which = read(self, RESULT, entry);
    if (PyList_CheckExact(results) && PyLong_CheckExact(which))
        return Py_NewRef(PyList_GET_ITEM(results, PyLong_AsSsize_t(which)));
    if (PyList_CheckExact(results) && PyTuple_CheckExact(which)) {
        PyObject* made = PyTuple_New(PyTuple_GET_SIZE(which));
        for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(which); i++) {
            Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GET_ITEM(which, i));
            PyTuple_SET_ITEM(made, i, Py_NewRef(PyList_GET_ITEM(results, n)));
        }
        return made;
    }
    MadeValues making = {self, frame};
    PyObject* arguments[] = {make_values(&making), results};
    if (arguments[0] == NULL) return NULL;
    PyObject* made = PyObject_Vectorcall(read(self, REPLAY, entry), arguments, 2, NULL);
    Py_DECREF(arguments[0]);
    return made;
}

static PyObject* run(const Entrance* self, PyObject* entry, const Frame* frame, PyObject* inputs) {
    PyObject* results = PyObject_CallOneArg(read(self, GRAPH, entry), inputs);
    if (results == NULL) return undone(self, entry);
    PyObject* made = result_of(self, entry, frame, results);
    Py_DECREF(results);
    return made;
}

// The graph's inputs by a snapshot of the entry; NULL, without an exception where none proves it.
static PyObject* inputs_of(const Entrance* self, PyObject* entry, const Frame* frame) {
    PyObject* memory = read(self, MEMORY, entry);
    PyObject* checks = memory ? read(self, CHECKS, memory) : NULL;
    if (checks == NULL || !PyTuple_CheckExact(checks)) return NULL;
    MadeValues making = {self, frame};
    PyObject* inputs = NULL;
    Py_INCREF(checks);
    for (Py_ssize_t i = 0; inputs == NULL && i < PyTuple_GET_SIZE(checks); i++) {
        PyObject* known = PyTuple_GET_ITEM(checks, i);
        if (!PyCFunction_CheckExact(known) || PyCFunction_GET_FUNCTION(known) != check) break;
        Snapshot* snapshot = (Snapshot*)PyCFunction_GET_SELF(known);
        inputs = prove(snapshot, frame, make_values, &making);
        if (inputs == NULL && PyErr_Occurred()) break;
    }
    Py_DECREF(checks);
    return inputs;
}

// The call by the entry that comes first; `unknown` where that is not proven.
static PyObject* through(const Entrance* self, PyObject* locals) {
    PyObject* entries = self->cache ? read(self, ENTRIES, self->cache) : NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries) || PyTuple_GET_SIZE(entries) == 0)
        return Py_NewRef(self->unknown);
    PyObject* entry = Py_NewRef(PyTuple_GET_ITEM(entries, 0));
    PyObject *made = NULL, *globals = ((PyFunctionObject*)self->function)->func_globals;
    Frame frame = {locals, self->nothing, globals};
    if (read(self, IS_PLAIN, entry) == Py_True) {
        PyObject* inputs = inputs_of(self, entry, &frame);
        if (inputs) made = run(self, entry, &frame, inputs);
        Py_XDECREF(inputs);
    }
    Py_DECREF(entry);
    return made == NULL && !PyErr_Occurred() ? Py_NewRef(self->unknown) : made;
}

// entrance(args, kwargs)
static PyObject* call(PyObject* object, PyObject* const* given, size_t, PyObject*) {
    Entrance* self = (Entrance*)object;
    if (((PyFunctionObject*)self->function)->func_code != self->code)
        return Py_NewRef(self->unknown);
    Py_INCREF(self);
    PyObject* locals = bind(self, given[0], given[1]);
    PyObject* made = NULL;
    if (locals) made = through(self, locals);
    else if (!PyErr_Occurred()) made = Py_NewRef(self->unknown);
    if (made != self->unknown) ++*(int64_t*)self->calls.buf;
    Py_XDECREF(locals);
    Py_DECREF(self);
    return made;
}

// --- making one ----------------------------------------------------------------------------------

static int read_offsets(Entrance* self, PyObject* descriptors) {
    if (PyTuple_GET_SIZE(descriptors) != SLOTS) {
        PyErr_SetString(PyExc_ValueError, "not as many slots as are read");
        return -1;
    }
    for (int n = 0; n < SLOTS; n++) {
        PyObject* descriptor = PyTuple_GET_ITEM(descriptors, n);
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) {
            PyErr_SetString(PyExc_TypeError, "a slot's descriptor is needed");
            return -1;
        }
        self->offsets[n] = ((PyMemberDescrObject*)descriptor)->d_member->offset;
    }
    return 0;
}

static int hold_calls(Entrance* self, PyObject* calls) {
    if (PyObject_GetBuffer(calls, &self->calls, PyBUF_WRITABLE)) return -1;
    if (self->calls.len == sizeof(int64_t)) return 0;
    PyErr_SetString(PyExc_ValueError, "one number of 64 bits is needed");
    return -1;
}

// Entrance(function, names, (positional, positional only, keyword only, has rest, has more), cache,
// unknown, FrameValues, slots, calls)
static PyObject* make_entrance(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *function, *names, *cache, *unknown, *values, *descriptors, *calls;
    Entrance* self = (Entrance*)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    if (!PyArg_ParseTuple(args, "O!O!(nnnpp)OOO!O!O", &PyFunction_Type, &function, &PyTuple_Type,
                          &names, &self->positional, &self->positional_only, &self->keyword_only,
                          &self->has_rest, &self->has_more, &cache, &unknown, &PyType_Type, &values,
                          &PyTuple_Type, &descriptors, &calls) ||
        read_offsets(self, descriptors) || hold_calls(self, calls)) {
        Py_DECREF(self);
        return NULL;
    }
    self->vectorcall = call;
    self->function = Py_NewRef(function);
    self->code = Py_NewRef(((PyFunctionObject*)function)->func_code);
    self->names = Py_NewRef(names);
    self->cache = Py_NewRef(cache);
    self->unknown = Py_NewRef(unknown);
    self->undone = Py_NewRef((PyObject*)Py_TYPE(unknown));
    self->values = Py_NewRef(values);
    self->nothing = PyTuple_New(0);
    return (PyObject*)self;
}

static int traverse(PyObject* object, visitproc visit, void* arg) {
    Entrance* self = (Entrance*)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->cache);
    Py_VISIT(self->unknown);
    Py_VISIT(self->calls.obj);
    return 0;
}

// No call comes any more where the collector clears it: whoever could make one is garbage, too.
static int clear(PyObject* object) {
    Entrance* self = (Entrance*)object;
    Py_CLEAR(self->cache);
    return 0;
}

static void dealloc(PyObject* object) {
    Entrance* self = (Entrance*)object;
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject* held[] = {self->function, self->code,   self->names,  self->cache,
                        self->unknown,  self->undone, self->values, self->nothing};
    for (PyObject* one : held) Py_XDECREF(one);
    if (self->calls.obj) PyBuffer_Release(&self->calls);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Entrance, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, (void*)make_entrance}, {Py_tp_dealloc, (void*)dealloc},
    {Py_tp_traverse, (void*)traverse}, {Py_tp_clear, (void*)clear},
    {Py_tp_call, (void*)PyVectorcall_Call}, {Py_tp_members, members},
    {0, NULL},
};
static PyType_Spec spec = {
    "braze_guards.Entrance", sizeof(Entrance), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace entrance
