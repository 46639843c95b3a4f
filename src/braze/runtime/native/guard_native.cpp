// Snapshots as Python objects. One text with guard_steps.cpp, guard_brought.cpp, guard_apart.cpp and
// guard_gradients.cpp, which come first, guard_entrance.cpp and guard_module.cpp.

// --- what comes before the steps; Python code may run ------------------------------------------

// A new reference to the answer. `dict.__getitem__`, which asks for a global, is not called: that
// would take four times as long.
static PyObject* answer_of(PyObject* question, PyObject* argument) {
    PyObject* owner = PyCFunction_CheckExact(question) ? PyCFunction_GET_SELF(question) : NULL;
    if (owner && PyDict_CheckExact(owner) &&
        strcmp(((PyCFunctionObject*)question)->m_ml->ml_name, "__getitem__") == 0)
        return Py_XNewRef(PyDict_GetItemWithError(owner, argument));
    return PyObject_Vectorcall(question, &argument, argument == Py_None ? 0 : 1, NULL);
}

// Rows of (callable, argument or None, answer).
static int questions_hold(PyObject* questions) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(questions); i++) {
        PyObject* row = PyTuple_GET_ITEM(questions, i);
        PyObject* argument = PyTuple_GET_ITEM(row, 1);
        PyObject* expected = PyTuple_GET_ITEM(row, 2);
        PyObject* answer = answer_of(PyTuple_GET_ITEM(row, 0), argument);
        if (answer == NULL) {
            PyErr_Clear();
            return 0;
        }
        int same = answer == expected;
        if (!same && PyLong_CheckExact(answer) && PyLong_CheckExact(expected))
            same = PyObject_RichCompareBool(answer, expected, Py_EQ) == 1;
        Py_DECREF(answer);
        if (!same) return 0;
    }
    return 1;
}

static unsigned class_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
    return type->tp_version_tag;
}

static int classes_hold(Snapshot* self) {
    for (Py_ssize_t i = 0; i < self->class_count; i++) {
        PyObject* row = PyTuple_GET_ITEM(self->classes, i);
        PyTypeObject* type = (PyTypeObject*)PyTuple_GET_ITEM(row, 0);
        unsigned version = class_version(type);
        if (version && version == self->class_versions[i]) continue;
        _PyType_Lookup(type, PyTuple_GET_ITEM(row, 2));  // gives the class a version
        version = class_version(type);
        PyObject* answer = PyObject_CallOneArg(PyTuple_GET_ITEM(row, 1), (PyObject*)type);
        if (answer == NULL) PyErr_Clear();
        int holds = answer == Py_True;
        Py_XDECREF(answer);
        if (!holds) return 0;
        self->class_versions[i] = version;
    }
    return 1;
}

static int functions_hold(PyObject* functions) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(functions); i++) {
        PyObject** row = ((PyTupleObject*)PyTuple_GET_ITEM(functions, i))->ob_item;
        PyFunctionObject* function = (PyFunctionObject*)row[0];
        PyObject* defaults = function->func_defaults ? function->func_defaults : Py_None;
        PyObject* keyword = function->func_kwdefaults ? function->func_kwdefaults : Py_None;
        if (function->func_code != row[1] || defaults != row[2] || keyword != row[3]) return 0;
    }
    return 1;
}

// --- a snapshot ----------------------------------------------------------------------------------

// With SELF or FUNCTION: not what is there, but the parts of the bound method that is there.
enum Place { LOCAL, STACK, GLOBALS, CONTENT, SELF = 8, FUNCTION = 16 };

static PyObject *globals_name, *locals_name, *stack_name;

static int locals_match(Snapshot* self, const Frame* frame, PyObject* inputs) {
    for (Py_ssize_t i = 0; i < self->local_count; i++) {
        TensorCheck* check = &self->locals[i];
        PyObject* tensor = PyDict_GetItemWithError(frame->locals, check->tensor);
        if (tensor == NULL) {
            PyErr_Clear();
            return 0;
        }
        if (check->facts && !matches(tensor, check->facts)) return 0;
        if (check->place >= 0) PyList_SET_ITEM(inputs, check->place, Py_NewRef(tensor));
    }
    return 1;
}

static PyObject* value_at(long place, PyObject* key, const Frame* frame) {
    switch (place) {
        case LOCAL: return PyDict_GetItemWithError(frame->locals, key);
        case STACK: {
            Py_ssize_t index = PyLong_AsSsize_t(key);
            if (PyList_CheckExact(frame->stack) && index < PyList_GET_SIZE(frame->stack))
                return PyList_GET_ITEM(frame->stack, index);
            if (PyTuple_CheckExact(frame->stack) && index < PyTuple_GET_SIZE(frame->stack))
                return PyTuple_GET_ITEM(frame->stack, index);
            return NULL;
        }
        case CONTENT: {
            PyObject* cell = PyDict_GetItemWithError(frame->locals, key);
            return cell != NULL && PyCell_Check(cell) ? PyCell_GET(cell) : NULL;
        }
        default: return frame->globals;
    }
}

static PyObject* root_of(PyObject* row, const Frame* frame) {
    long place = PyLong_AsLong(PyTuple_GET_ITEM(row, 0));
    PyObject* value = value_at(place & (SELF - 1), PyTuple_GET_ITEM(row, 1), frame);
    if (place < SELF || value == NULL) return value;
    if (!PyMethod_Check(value)) return NULL;
    return place & SELF ? PyMethod_GET_SELF(value) : PyMethod_GET_FUNCTION(value);
}

static int roots_hold(PyObject* roots, const Frame* frame) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
        PyObject* row = PyTuple_GET_ITEM(roots, i);
        PyObject* expected = (PyObject*)PyLong_AsVoidPtr(PyTuple_GET_ITEM(row, 2));
        PyObject* root = root_of(row, frame);
        if (root == NULL || root != expected) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

// Checking waits for memory more than anything else. The arrays of steps and of tensors are AHEAD
// longer than what they hold, with zeros.
enum { AHEAD = 8 };

static void prefetch(const TensorCheck* check) {
    if (check[AHEAD].tensor) __builtin_prefetch(check[AHEAD].tensor);
    const TensorCheck* soon = &check[AHEAD / 2];
    if (soon->facts == NULL || Py_TYPE(soon->tensor) != soon->facts->type) return;
    char* implementation = *(char**)((char*)soon->tensor + libtorch.offset);
    for (int line = 0; line < 4; line++) __builtin_prefetch(implementation + 64 * line);
}

static int world_holds(Snapshot* self, const Frame* frame, PyObject* inputs) {
    if (!PyDict_CheckExact(frame->locals)) return 0;
    if (!roots_hold(self->roots, frame) || !locals_match(self, frame, inputs)) return 0;
    if (!answers_hold(self->native_questions, self->question_count)) return 0;
    if (!questions_hold(self->questions) || !functions_hold(self->functions)) return 0;
    if (!classes_hold(self) || !brought_holds(self, frame, inputs)) return 0;
    for (Step *step = self->steps, *end = step + self->step_count; step < end; step++) {
        __builtin_prefetch(step[AHEAD].object);
        if (!step_holds(step)) return 0;
    }
    for (Py_ssize_t i = 0; i < self->apart_count; i++)
        if (!self->aparts[i].gradient_count && !self->aparts[i].item_sizes &&
            !are_apart(self, &self->aparts[i], frame))
            return 0;
    for (Py_ssize_t i = 0; i < self->tensor_count; i++) {
        TensorCheck* check = &self->tensors[i];
        prefetch(check);
        if (check->facts && !matches(check->tensor, check->facts)) return 0;
        if (check->place >= 0) PyList_SET_ITEM(inputs, check->place, Py_NewRef(check->tensor));
    }
    for (Py_ssize_t i = 0; i < self->apart_count; i++) {
        const Apart* apart = &self->aparts[i];
        if (!apart->gradient_count && apart->item_sizes && !memory_is_apart(self, apart, frame))
            return 0;
    }
    return 1;
}

// What the snapshot cannot know is asked of generated Python. values: the frame as Python has it.
static int residual_holds(Snapshot* self, PyObject* values, PyObject* inputs) {
    PyObject* found = PyObject_CallOneArg(PyTuple_GET_ITEM(self->residual, 0), values);
    if (found == NULL) return -1;
    PyObject* places = PyTuple_GET_ITEM(self->residual, 1);
    int holds = PyList_CheckExact(found) && PyList_GET_SIZE(found) == PyTuple_GET_SIZE(places);
    for (Py_ssize_t i = 0; holds && i < PyTuple_GET_SIZE(places); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
        PyList_SET_ITEM(inputs, place, Py_NewRef(PyList_GET_ITEM(found, i)));
    }
    Py_DECREF(found);
    return holds;
}

// What makes the frame as Python has it, where it is needed; NULL with an exception set.
typedef PyObject* (*MakeValues)(void* given);

// The graph's inputs; NULL, without an exception, where the snapshot proves nothing.
static PyObject* prove(Snapshot* self, const Frame* frame, MakeValues make_values, void* given) {
    if (self->keep == NULL) return NULL;
    PyObject* inputs = PyList_New(self->input_count);
    if (inputs == NULL) return NULL;
    Py_INCREF(self);
    int holds = world_holds(self, frame, inputs) && gradients_hold(self, frame, inputs);
    if (holds && self->residual != Py_None) {
        PyObject* values = make_values(given);
        holds = values == NULL ? -1 : residual_holds(self, values, inputs);
        Py_XDECREF(values);
    }
    if (holds == 1) self->proven++;
    Py_DECREF(self);
    if (holds == 1) return inputs;
    Py_DECREF(inputs);
    return NULL;
}

static PyObject* given_values(void* given) { return Py_NewRef((PyObject*)given); }

// check(frame): the graph's inputs, or None where the snapshot proves nothing.
static PyObject* check(PyObject* object, PyObject* values) {
    Frame frame = {PyObject_GetAttr(values, locals_name), PyObject_GetAttr(values, stack_name),
                   PyObject_GetAttr(values, globals_name)};
    PyObject* inputs = NULL;
    if (frame.locals && frame.stack && frame.globals)
        inputs = prove((Snapshot*)object, &frame, given_values, values);
    Py_XDECREF(frame.locals);
    Py_XDECREF(frame.stack);
    Py_XDECREF(frame.globals);
    if (inputs == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return inputs;
}

// --- making one ----------------------------------------------------------------------------------

static PyObject* absent;  // stands for "no such entry" in a description

static PyObject** addresses_of(PyObject* tuple) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    PyObject** items = (PyObject**)PyMem_Calloc(count + 1, sizeof(PyObject*));
    for (Py_ssize_t i = 0; items && i < count; i++) {
        PyObject* item = PyTuple_GET_ITEM(tuple, i);
        items[i] = item == absent ? NULL : item;
    }
    return items;
}

static int read_content(Step* step, PyObject* size, PyObject* keys, PyObject* entries) {
    Content* content = step->content = (Content*)PyMem_Calloc(1, sizeof(Content));
    if (content == NULL) return -1;
    content->size = size == Py_None ? -1 : PyLong_AsSsize_t(size);
    content->keys = keys == Py_None ? NULL : keys;
    content->count = PyTuple_GET_SIZE(entries) / 2;
    content->entries = addresses_of(entries);
#if !WATCHES
    step->version = (Version)-1;  // of no dict: the first check compares the content
#endif
    return content->entries ? 0 : -1;
}

// (kind, object, type, other): see Step; of a DICT other is (size, keys, entries).
static int read_step(Step* step, PyObject* row) {
    PyObject *object, *type, *other;
    if (!PyArg_ParseTuple(row, "iOOO", &step->kind, &object, &type, &other)) return -1;
    step->object = object;
    step->type = (PyTypeObject*)type;
    switch (step->kind) {
        case INSTANCE:
        case CELL: step->other = other == absent ? NULL : other; return 0;
        case SIZE: step->count = (int)PyLong_AsLong(other); return 0;
        case SEQUENCE:
        case MEMBERS:
        case METHOD:
            step->count = (int)PyTuple_GET_SIZE(other);
            step->items = addresses_of(other);
            return step->items ? 0 : -1;
        case DICT: {
            PyObject *size, *keys, *entries;
            if (!PyArg_ParseTuple(other, "OOO!", &size, &keys, &PyTuple_Type, &entries)) return -1;
            return read_content(step, size, keys, entries);
        }
    }
    PyErr_SetString(PyExc_ValueError, "no such kind of step");
    return -1;
}

static int64* read_sizes(PyObject* sizes) {
    Py_ssize_t count = PyTuple_GET_SIZE(sizes);
    int64* numbers = (int64*)PyMem_Calloc(count + 1, sizeof(int64));
    for (Py_ssize_t i = 0; numbers && i < count; i++) {
        PyObject* size = PyTuple_GET_ITEM(sizes, i);
        numbers[i] = size == Py_None ? -1 : PyLong_AsLongLong(size);
    }
    return numbers;
}

// (type, (dtype, device, index, layout), keys, requires_grad, is_leaf, sizes, strides)
static int read_facts(Facts* facts, PyObject* row) {
    PyObject *type, *sizes, *strides;
    int* codes = facts->codes;
    if (!PyArg_ParseTuple(row, "O(iiii)KiiO!O!", &type, &codes[0], &codes[1], &codes[2], &codes[3],
                          &facts->keys, &facts->requires_grad, &facts->is_leaf, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides))
        return -1;
    facts->type = (PyTypeObject*)type;
    facts->rank = (int)PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != facts->rank) {
        PyErr_SetString(PyExc_ValueError, "as many strides as sizes");
        return -1;
    }
    facts->sizes = read_sizes(sizes);
    facts->strides = read_sizes(strides);
    return facts->sizes && facts->strides ? 0 : -1;
}

// ((tensor or name, index of facts or -1, place or -1), ...)
static TensorCheck* read_tensors(Snapshot* self, PyObject* rows, Py_ssize_t* count) {
    TensorCheck* checks =
        (TensorCheck*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + AHEAD + 1, sizeof(TensorCheck));
    for (Py_ssize_t i = 0; checks && i < PyTuple_GET_SIZE(rows); i++) {
        Py_ssize_t index;
        TensorCheck* check = &checks[(*count)++];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "Onn", &check->tensor, &index,
                              &check->place) ||
            index >= self->facts_count || check->place >= self->input_count)
            break;
        check->facts = index < 0 ? NULL : &self->facts[index];
    }
    return checks;
}

// ((names and slots, objects, numbers of gradients, item sizes or (), roles), ...)
static int read_aparts(Snapshot* self, PyObject* rows) {
    self->aparts = (Apart*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Apart));
    for (Py_ssize_t i = 0; self->aparts && i < PyTuple_GET_SIZE(rows); i++) {
        Apart* apart = &self->aparts[self->apart_count++];
        PyObject *objects, *gradients, *sizes, *roles;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!O!O!O!O!", &PyTuple_Type,
                              &apart->names, &PyTuple_Type, &objects, &PyTuple_Type, &gradients,
                              &PyTuple_Type, &sizes, &PyTuple_Type, &roles))
            return -1;
        apart->name_count = (int)PyTuple_GET_SIZE(apart->names);
        apart->count = (int)PyTuple_GET_SIZE(objects);
        apart->gradient_count = (int)PyTuple_GET_SIZE(gradients);
        apart->objects = addresses_of(objects);
        apart->gradients = (Py_ssize_t*)read_sizes(gradients);
        if (apart->objects == NULL || apart->gradients == NULL) return -1;
        int size_count = (int)PyTuple_GET_SIZE(sizes);
        if (size_count && (apart->item_sizes = read_sizes(sizes)) == NULL) return -1;
        if (size_count && (apart->roles = read_sizes(roles)) == NULL) return -1;
        bool right = size_count <= MAX_EXTENTS && size_count == PyTuple_GET_SIZE(roles) &&
                     (!size_count || size_count == member_count(apart));
        for (int n = 0; n < apart->gradient_count; n++)
            right = right && apart->gradients[n] >= 0 && apart->gradients[n] < self->gradient_count;
        if (!right) {
            PyErr_SetString(PyExc_ValueError, "too many, or not as many sizes as tensors");
            return -1;
        }
        for (int n = 0; n < apart->name_count; n++)
            if (!is_place(self, PyTuple_GET_ITEM(apart->names, n))) return -1;
        if (size_count ? make_extents(apart) < 0 : !is_few(apart) && make_table(apart) < 0)
            return -1;
    }
    return self->aparts ? 0 : -1;
}

// ((leaves, address of the function that is asked, of its first argument), ...)
static int read_unwatched(Snapshot* self, PyObject* rows) {
    self->unwatched = (Unwatched*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Unwatched));
    for (Py_ssize_t i = 0; self->unwatched && i < PyTuple_GET_SIZE(rows); i++) {
        Unwatched* group = &self->unwatched[self->unwatched_count++];
        PyObject* leaves;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!LL", &PyTuple_Type, &leaves,
                              (int64*)&group->first, (int64*)&group->questions))
            return -1;
        group->count = PyTuple_GET_SIZE(leaves);
        group->leaves = addresses_of(leaves);
        group->implementations = (void**)PyMem_Calloc(group->count + 1, sizeof(void*));
        if (group->leaves == NULL || group->implementations == NULL) return -1;
    }
    return self->unwatched ? 0 : -1;
}

static int fill(Snapshot* self, PyObject* steps, PyObject* facts, PyObject* locals,
                PyObject* containers, PyObject* items, PyObject* tensors, PyObject* gradients,
                PyObject* aparts, PyObject* unwatched) {
    self->class_count = PyTuple_GET_SIZE(self->classes);
    self->class_versions = (unsigned*)PyMem_Calloc(self->class_count + 1, sizeof(unsigned));
    self->facts = (Facts*)PyMem_Calloc(PyTuple_GET_SIZE(facts) + 1, sizeof(Facts));
    self->steps = (Step*)PyMem_Calloc(PyTuple_GET_SIZE(steps) + AHEAD + 1, sizeof(Step));
    if (!self->class_versions || !self->facts || !self->steps) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(facts); i++)
        if (read_facts(&self->facts[self->facts_count++], PyTuple_GET_ITEM(facts, i)) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++)
        if (read_step(&self->steps[self->step_count++], PyTuple_GET_ITEM(steps, i)) < 0) return -1;
    self->locals = read_tensors(self, locals, &self->local_count);
    self->tensors = read_tensors(self, tensors, &self->tensor_count);
    self->gradients = read_tensors(self, gradients, &self->gradient_count);
    self->grads = (PyObject**)PyMem_Calloc(self->gradient_count + 1, sizeof(PyObject*));
    if (!self->locals || !self->tensors || !self->gradients || !self->grads) return -1;
    if (read_containers(self, containers) < 0 || read_items(self, items, absent) < 0) return -1;
    if (read_aparts(self, aparts) < 0 || read_unwatched(self, unwatched) < 0) return -1;
    return PyErr_Occurred() ? -1 : 0;
}

// Snapshot(keep, input_count, questions, native_questions, classes, functions, roots, steps, facts,
// locals, containers, items, tensors, gradients, aparts, unwatched, residual); a class is (class,
// recheck, a name).
static PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *keep, *questions, *native_questions, *classes, *functions, *roots, *steps, *facts,
        *locals, *containers, *items, *tensors, *gradients, *aparts, *unwatched, *residual;
    Py_ssize_t input_count;
    PyTypeObject* tuple = &PyTuple_Type;
    if (!PyArg_ParseTuple(args, "O!nO!O!O!O!O!O!O!O!O!O!O!O!O!O!O", tuple, &keep, &input_count, tuple,
                          &questions, tuple, &native_questions, tuple, &classes, tuple, &functions,
                          tuple, &roots, tuple, &steps, tuple, &facts, tuple, &locals, tuple,
                          &containers, tuple, &items, tuple, &tensors, tuple, &gradients, tuple, &aparts, tuple, &unwatched,
                          &residual))
        return NULL;
    Snapshot* self = (Snapshot*)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->questions = Py_NewRef(questions);
    self->classes = Py_NewRef(classes);
    self->functions = Py_NewRef(functions);
    self->roots = Py_NewRef(roots);
    self->residual = Py_NewRef(residual);
    self->keep = Py_NewRef(keep);
    self->input_count = input_count;
    self->native_questions = read_questions(native_questions, &self->question_count);
    if (!self->native_questions ||
        fill(self, steps, facts, locals, containers, items, tensors, gradients, aparts, unwatched) < 0) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject*)self;
}

static int traverse(PyObject* object, visitproc visit, void* arg) {
    Snapshot* self = (Snapshot*)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->keep);
    Py_VISIT(self->questions);
    Py_VISIT(self->classes);
    Py_VISIT(self->functions);
    Py_VISIT(self->residual);
    return 0;
}

static int clear(PyObject* object) {
    Snapshot* self = (Snapshot*)object;
    Py_CLEAR(self->keep);  // without it `check` does nothing
    Py_CLEAR(self->questions);
    Py_CLEAR(self->classes);
    Py_CLEAR(self->functions);
    Py_CLEAR(self->residual);
    return 0;
}

static void dealloc(PyObject* object) {
    Snapshot* self = (Snapshot*)object;
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->step_count; i++) {
        Step* step = &self->steps[i];
        if (step->kind == SEQUENCE || step->kind == MEMBERS || step->kind == METHOD)
            PyMem_Free(step->items);
        if (step->kind != DICT) continue;
        if (step->content) PyMem_Free(step->content->entries);
        PyMem_Free(step->content);
#if WATCHES
        drop_watch(step->watch);
#endif
    }
    for (Py_ssize_t i = 0; i < self->facts_count; i++) {
        PyMem_Free(self->facts[i].sizes);
        PyMem_Free(self->facts[i].strides);
    }
    for (Py_ssize_t i = 0; i < self->apart_count; i++) {
        PyMem_Free(self->aparts[i].objects);
        PyMem_Free(self->aparts[i].gradients);
        PyMem_Free(self->aparts[i].item_sizes);
        PyMem_Free(self->aparts[i].roles);
        PyMem_Free(self->aparts[i].extents);
        PyMem_Free((void*)self->aparts[i].seen);
    }
    for (Py_ssize_t i = 0; i < self->unwatched_count; i++) {
        PyMem_Free(self->unwatched[i].leaves);
        PyMem_Free(self->unwatched[i].implementations);
    }
    PyMem_Free(self->native_questions);
    PyMem_Free(self->aparts);
    PyMem_Free(self->unwatched);
    PyMem_Free(self->gradients);
    PyMem_Free(self->grads);
    PyMem_Free(self->class_versions);
    PyMem_Free(self->facts);
    PyMem_Free(self->steps);
    PyMem_Free(self->locals);
    PyMem_Free(self->containers);
    PyMem_Free(self->brought);
    PyMem_Free(self->items);
    PyMem_Free(self->tensors);
    Py_XDECREF(self->questions);
    Py_XDECREF(self->classes);
    Py_XDECREF(self->functions);
    Py_XDECREF(self->roots);
    Py_XDECREF(self->residual);
    Py_XDECREF(self->keep);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef snapshot_methods[] = {
    {"check", check, METH_O, "The graph's inputs, or None where nothing is proven."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef snapshot_members[] = {
    {"proven", T_ULONGLONG, offsetof(Snapshot, proven), READONLY, "Calls that it answered."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, (void*)make},         {Py_tp_dealloc, (void*)dealloc},
    {Py_tp_traverse, (void*)traverse}, {Py_tp_clear, (void*)clear},
    {Py_tp_methods, snapshot_methods}, {Py_tp_members, snapshot_members},
    {0, NULL},
};
static PyType_Spec spec = {"braze_guards.Snapshot", sizeof(Snapshot), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
