// Lists, tuples and dicts that calls bring along, other ones each time, and what is in them. One text
// with guard_steps.cpp, which comes first.
//
// What is in them is borrowed from containers that the frame holds, and used before any Python code
// runs: keys of the user's classes are unknown.

// What a call brings along, by a local's name or by its slot; NULL where there is no such local.
static PyObject* place_of(const Snapshot* self, PyObject* where, const Frame* frame) {
    if (PyLong_CheckExact(where)) return self->brought[PyLong_AsSsize_t(where)];
    PyObject* found = PyDict_GetItemWithError(frame->locals, where);
    if (found == NULL) PyErr_Clear();
    return found;
}

// Whether it is a name or a slot; else an exception.
static int is_place(const Snapshot* self, PyObject* where) {
    if (PyUnicode_CheckExact(where)) return 1;
    Py_ssize_t slot = PyLong_AsSsize_t(where);
    if (slot >= 0 && slot < self->brought_count) return 1;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no such slot");
    return 0;
}

static int pick_values(PyObject* dict, const Container* container, PyObject** brought) {
    if (container->keys ? !has_keys(dict, container->keys) : !has_plain_keys(dict)) return 0;
    PyObject** picked = PySequence_Fast_ITEMS(container->picked);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(container->picked); i += 2) {
        PyObject* found = PyDict_GetItemWithError(dict, picked[i]);
        if (found == NULL) {
            PyErr_Clear();
            return 0;
        }
        brought[PyLong_AsSsize_t(picked[i + 1])] = found;
    }
    return 1;
}

static int pick_items(PyObject* sequence, const Container* container, PyObject** brought) {
    Py_ssize_t size = Py_SIZE(sequence);
    if (container->size >= 0 && size != container->size) return 0;
    PyObject **items = PySequence_Fast_ITEMS(sequence),
             **picked = PySequence_Fast_ITEMS(container->picked);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(container->picked); i += 2) {
        Py_ssize_t index = PyLong_AsSsize_t(picked[i]);
        if (index >= size) return 0;
        brought[PyLong_AsSsize_t(picked[i + 1])] = items[index];
    }
    return 1;
}

// Whether the containers are as they were; what is looked for in them is in `brought` then.
static int containers_hold(Snapshot* self, const Frame* frame) {
    for (Py_ssize_t i = 0; i < self->container_count; i++) {
        const Container* container = &self->containers[i];
        PyObject* object = place_of(self, container->where, frame);
        if (object == NULL || Py_TYPE(object) != container->type) return 0;
        int holds = container->type == &PyDict_Type
                        ? pick_values(object, container, self->brought)
                        : pick_items(object, container, self->brought);
        if (!holds) return 0;
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

// Whether these are keys, or indices, each with a slot.
static int are_picks(const Snapshot* self, PyObject* picked, bool are_indices) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(picked); i++) {
        bool is_number = i % 2 || are_indices;
        Py_ssize_t number = is_number ? PyLong_AsSsize_t(PyTuple_GET_ITEM(picked, i)) : 0;
        if (number < 0 || (i % 2 && number >= self->brought_count)) return 0;
    }
    return PyTuple_GET_SIZE(picked) % 2 == 0;
}

static int read_container(Snapshot* self, Container* container, PyObject* row) {
    PyObject *type, *shape;
    if (!PyArg_ParseTuple(row, "OO!OO!", &container->where, &PyType_Type, &type, &shape,
                          &PyTuple_Type, &container->picked))
        return -1;
    container->type = (PyTypeObject*)type;
    bool is_dict = container->type == &PyDict_Type, any = shape == Py_None;
    bool known = is_dict || container->type == &PyList_Type || container->type == &PyTuple_Type;
    bool right = any || (is_dict ? PyTuple_Check(shape) : PyLong_Check(shape));
    container->keys = is_dict && !any ? shape : NULL;
    container->size = is_dict || any || !right ? -1 : PyLong_AsSsize_t(shape);
    if (known && right && are_picks(self, container->picked, !is_dict))
        return is_place(self, container->where) ? 0 : -1;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a dict, list or tuple is needed");
    return -1;
}

// ((name or slot, class, count or keys or None, (key or index, slot, ...)), ...)
static int read_containers(Snapshot* self, PyObject* rows) {
    self->containers = (Container*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Container));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject* row = PyTuple_GET_ITEM(rows, i);
        if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 4) return -1;
        if (PyTuple_Check(PyTuple_GET_ITEM(row, 3)))
            self->brought_count += PyTuple_GET_SIZE(PyTuple_GET_ITEM(row, 3)) / 2;
    }
    self->brought = (PyObject**)PyMem_Calloc(self->brought_count + 1, sizeof(PyObject*));
    if (!self->containers || !self->brought) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        Container* container = &self->containers[self->container_count++];
        if (read_container(self, container, PyTuple_GET_ITEM(rows, i)) < 0) return -1;
    }
    return 0;
}

// ((slot, index of facts or -1, constant or `absent`, place or -1), ...)
static int read_items(Snapshot* self, PyObject* rows, PyObject* absent) {
    self->items = (Item*)PyMem_Calloc(PyTuple_GET_SIZE(rows) + 1, sizeof(Item));
    for (Py_ssize_t i = 0; self->items && i < PyTuple_GET_SIZE(rows); i++) {
        Item* item = &self->items[self->item_count++];
        Py_ssize_t facts;
        PyObject* constant;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "nnOn", &item->slot, &facts, &constant,
                              &item->place))
            return -1;
        if (item->slot < 0 || item->slot >= self->brought_count || facts >= self->facts_count ||
            item->place >= self->input_count) {
            PyErr_SetString(PyExc_ValueError, "no such slot, facts or place");
            return -1;
        }
        item->facts = facts < 0 ? NULL : &self->facts[facts];
        item->constant = constant == absent ? NULL : constant;
    }
    return self->items ? 0 : -1;
}
