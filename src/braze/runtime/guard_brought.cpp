// Lists, tuples and dicts that calls bring along, other ones each time, and what is in them. One text
// with guard_steps.cpp, which comes first.
//
// What is in them is borrowed from containers that the frame holds, and used before any Python code
// runs. Keys are compared in order: nothing is hashed.

// Puts the values of a dict with these keys, in this order.
static int put_values(PyObject* dict, PyObject* keys, PyObject** room) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (!has_keys(dict, keys)) return 0;
    while (PyDict_Next(dict, &position, &key, &value)) *room++ = value;
    return 1;
}

static int put_items(PyObject* sequence, Py_ssize_t count, PyObject** room) {
    if (Py_SIZE(sequence) != count) return 0;
    memcpy(room, PySequence_Fast_ITEMS(sequence), count * sizeof(PyObject*));
    return 1;
}

// Whether containers are as many and as large as they were; what they hold is in `brought` then.
static int containers_hold(Snapshot* self, const Frame* frame) {
    PyObject** room = self->brought;
    for (Py_ssize_t i = 0; i < self->container_count; i++) {
        const Container* container = &self->containers[i];
        PyObject* object = place_of(self, container->where, frame);
        if (object == NULL || Py_TYPE(object) != container->type) return 0;
        int put = container->keys ? put_values(object, container->keys, room)
                                  : put_items(object, container->count, room);
        if (!put) return 0;
        room += container->count;
    }
    return 1;
}

// Of atoms that are the same where their type and value, or bits, are.
static int is_same(PyObject* found, PyObject* constant) {
    if (found == constant) return 1;
    if (Py_TYPE(found) != Py_TYPE(constant)) return 0;
    if (PyFloat_CheckExact(found)) {
        double left = PyFloat_AS_DOUBLE(found), right = PyFloat_AS_DOUBLE(constant);
        return memcmp(&left, &right, sizeof left) == 0;
    }
    if (!PyLong_CheckExact(found) && !PyUnicode_CheckExact(found)) return 0;
    return PyObject_RichCompareBool(found, constant, Py_EQ) == 1;
}

static int brought_holds(Snapshot* self, const Frame* frame, PyObject* inputs) {
    if (!containers_hold(self, frame)) return 0;
    for (Py_ssize_t i = 0; i < self->item_count; i++) {
        const Item* item = &self->items[i];
        PyObject* found = self->brought[item->slot];
        if (item->facts && !matches(found, item->facts)) return 0;
        if (item->constant && !is_same(found, item->constant)) return 0;
        if (item->place >= 0) PyList_SET_ITEM(inputs, item->place, Py_NewRef(found));
    }
    return 1;
}

// ((name or slot, class, count or keys), ...)
static int read_containers(Snapshot* self, PyObject* rows) {
    self->containers = (Container*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Container));
    for (Py_ssize_t i = 0; self->containers && i < PyTuple_GET_SIZE(rows); i++) {
        Container* container = &self->containers[self->container_count++];
        PyObject *type, *shape;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "OO!O", &container->where, &PyType_Type,
                              &type, &shape))
            return -1;
        if (!is_place(self, container->where)) return -1;
        container->type = (PyTypeObject*)type;
        container->keys = type == (PyObject*)&PyDict_Type ? shape : NULL;
        bool sequence = type == (PyObject*)&PyList_Type || type == (PyObject*)&PyTuple_Type;
        if (container->keys ? !PyTuple_Check(shape) : !sequence || !PyLong_Check(shape)) {
            PyErr_SetString(PyExc_ValueError, "a dict with its keys, or a list or tuple with a count");
            return -1;
        }
        container->count = container->keys ? PyTuple_GET_SIZE(shape) : PyLong_AsSsize_t(shape);
        self->brought_count += container->count;
    }
    self->brought = (PyObject**)PyMem_Calloc(self->brought_count + 1, sizeof(PyObject*));
    return self->containers && self->brought ? 0 : -1;
}

// ((slot, index of facts or -1, constant or NULL as `absent`, place or -1), ...)
static int read_items(Snapshot* self, PyObject* rows, PyObject* absent) {
    self->items = (Item*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Item));
    for (Py_ssize_t i = 0; self->items && i < PyTuple_GET_SIZE(rows); i++) {
        Item* item = &self->items[self->item_count++];
        Py_ssize_t facts;
        PyObject* constant;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "nnOn", &item->slot, &facts, &constant,
                              &item->place))
            return -1;
        if (item->slot >= self->brought_count || facts >= self->facts_count ||
            item->place >= self->input_count) {
            PyErr_SetString(PyExc_ValueError, "no such slot, facts or place");
            return -1;
        }
        item->facts = facts < 0 ? NULL : &self->facts[facts];
        item->constant = constant == absent ? NULL : constant;
    }
    return self->items ? 0 : -1;
}
