// What no step leads to: gradients of leaves, who watches them, and which objects are no two the
// same. One text with guard_steps.cpp, which comes first.
//
// `leaf.grad` is in no dict, and another tensor at each call of a training step: it is read, and
// compared, of leaves that the steps have proven. No Python code runs here, either; reading may
// make an object, so that collections are put off.

// --- objects that are all different --------------------------------------------------------------

static int member_count(const Apart* apart) {
    return apart->name_count + apart->count + apart->gradient_count;
}

// One of them; NULL where there is no such local.
static PyObject* member(const Snapshot* self, const Apart* apart, const Frame* frame, int i) {
    if (i < apart->name_count) {
        PyObject* name = PyTuple_GET_ITEM(apart->names, i);
        PyObject* found = PyDict_GetItemWithError(frame->locals, name);
        if (found == NULL) PyErr_Clear();
        return found;
    }
    i -= apart->name_count;
    return i < apart->count ? apart->objects[i] : self->grads[apart->gradients[i - apart->count]];
}

// At least twice as many slots as members: some always stay free.
static int make_table(Apart* apart) {
    apart->slot_bits = 3;
    while (1 << apart->slot_bits < 2 * member_count(apart)) apart->slot_bits++;
    apart->seen = (const char**)PyMem_Calloc((size_t)1 << apart->slot_bits, sizeof(char*));
    return apart->seen ? 0 : -1;
}

static void empty_table(const Apart* apart) {
    memset(apart->seen, 0, ((size_t)1 << apart->slot_bits) * sizeof(*apart->seen));
}

// Whether the table has no such address yet, which it has from now on. No Python code runs while a
// table is filled: one serves all calls.
static int is_new(const Apart* apart, const char* address) {
    size_t slots = (size_t)1 << apart->slot_bits;
    size_t slot = ((size_t)address >> 4) * 0x9E3779B97F4A7C15ull >> (64 - apart->slot_bits);
    while (apart->seen[slot] != NULL && apart->seen[slot] != address) slot = (slot + 1) % slots;
    if (apart->seen[slot] == address) return 0;
    apart->seen[slot] = address;
    return 1;
}

// Whether the objects in some locals are no two the same and none of the pinned ones.
static int are_apart(const Apart* apart, const Frame* frame) {
    PyObject* found[MAX_APART];
    for (int i = 0; i < apart->name_count; i++) {
        found[i] = member(NULL, apart, frame, i);
        if (found[i] == NULL) return 0;
        for (int other = 0; other < i; other++)
            if (found[other] == found[i]) return 0;
        for (int other = 0; other < apart->count; other++)
            if (apart->objects[other] == found[i]) return 0;
    }
    return 1;
}

// The same with gradients among them.
static int all_are_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    empty_table(apart);
    for (int i = 0; i < member_count(apart); i++) {
        const char* found = (const char*)member(self, apart, frame, i);
        if (found == NULL || !is_new(apart, found)) return 0;
    }
    return 1;
}

// Whether tensors have storages of their own: storages that begin at different addresses are
// different. All of them have passed a check of their facts, dtype included. A storage without
// memory is unknown.
static int storages_are_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    empty_table(apart);
    for (int i = 0; i < member_count(apart); i++) {
        PyObject* tensor = member(self, apart, frame, i);
        if (tensor == NULL) return 0;
        void* handle = (char*)tensor + libtorch.offset;
        const char* start;
        int64 offset;
        if (libtorch.data(handle, &start) || start == NULL) return 0;
        if (libtorch.storage_offset(handle, &offset)) return 0;
        if (!is_new(apart, start - offset * apart->item_sizes[i])) return 0;
    }
    return 1;
}

// --- gradients -----------------------------------------------------------------------------------

// Whether a borrowed object is still a tensor of a plain class.
static int is_plain_tensor(PyObject* object) {
    if (Py_TYPE(object) != libtorch.plain[0] && Py_TYPE(object) != libtorch.plain[1]) return 0;
    return *(void**)((char*)object + libtorch.offset) != NULL;
}

// Whether nobody watches: a hook, or a history that holds the leaf. Of a tensor that needs no
// gradients libtorch must not be asked.
static int is_unwatched(const Unwatched* group) {
    for (Py_ssize_t i = 0; i < group->count; i++) {
        PyObject* leaf = group->leaves[i];
        void* handle = (char*)leaf + libtorch.offset;
        if (!is_plain_tensor(leaf) || requires_grad(leaf, handle) != 1) return 0;
        PyGetSetDef* question = libtorch.get_grad_hooks;
        PyObject* hooks = question->get(leaf, question->closure);
        if (hooks == NULL) PyErr_Clear();
        int none = hooks == Py_None || (hooks && PyDict_Check(hooks) && !PyDict_GET_SIZE(hooks));
        Py_XDECREF(hooks);
        if (!none) return 0;
        group->implementations[i] = *(void**)handle;
    }
    return group->first(group->find_node, group->find_hooks, group->implementations,
                        group->count) < 0;
}

// Reads gradients of leaves (of others that would warn) and compares them; the number of those that
// were read and are to be let go.
static Py_ssize_t read_gradients(Snapshot* self, PyObject* inputs, int* holds) {
    Py_ssize_t i = 0;
    PyGetSetDef* question = libtorch.get_grad;
    for (*holds = 1; *holds && i < self->gradient_count; i++) {
        TensorCheck* check = &self->gradients[i];
        *holds = 0;
        if (!is_plain_tensor(check->tensor)) return i;
        if (is_leaf(check->tensor, (char*)check->tensor + libtorch.offset) != 1) return i;
        PyObject* grad = self->grads[i] = question->get(check->tensor, question->closure);
        if (grad == NULL) {
            PyErr_Clear();
            return i;
        }
        *holds = check->facts ? matches(grad, check->facts) : grad == Py_None;
        if (*holds && check->place >= 0)
            PyList_SET_ITEM(inputs, check->place, Py_NewRef(grad));
    }
    return i;
}

static int compare_gradients(Snapshot* self, const Frame* frame, PyObject* inputs) {
    int holds;
    Py_ssize_t count = read_gradients(self, inputs, &holds);
    for (Py_ssize_t i = 0; holds && i < self->apart_count; i++) {
        const Apart* apart = &self->aparts[i];
        if (!apart->gradient_count) continue;
        holds = apart->item_sizes ? storages_are_apart(self, apart, frame)
                                  : all_are_apart(self, apart, frame);
    }
    for (Py_ssize_t i = 0; holds && i < self->unwatched_count; i++)
        holds = is_unwatched(&self->unwatched[i]);
    while (count) Py_DECREF(self->grads[--count]);
    return holds;
}

// What is asked of gradients, behind all steps and tensors.
static int gradients_hold(Snapshot* self, const Frame* frame, PyObject* inputs) {
    if (!self->gradient_count && !self->unwatched_count) return 1;
    int collects = PyGC_Disable();
    int holds = compare_gradients(self, frame, inputs);
    if (collects) PyGC_Enable();
    return holds;
}
