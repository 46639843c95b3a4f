// Gradients of leaves, and who watches them. One text with guard_steps.cpp and guard_apart.cpp, which
// come first.
//
// `leaf.grad` is in no dict, and another tensor at each call of a training step: it is read, and
// compared, of leaves that the steps have proven. No Python code runs here, either; reading may
// make an object, so that collections are put off.

// Whether a borrowed object is still a tensor of a plain class.
static int is_plain_tensor(PyObject* object) {
    if (Py_TYPE(object) != libtorch.plain[0] && Py_TYPE(object) != libtorch.plain[1]) return 0;
    return *(void**)((char*)object + libtorch.offset) != NULL;
}

// Whether nobody watches, by a hook of the leaf or of its AccumulateGrad node. Of a tensor that needs
// no gradients libtorch must not be asked.
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
    return group->first(group->questions, group->implementations, group->count) < 0;
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
        holds = apart->item_sizes ? memory_is_apart(self, apart, frame)
                                  : are_apart(self, apart, frame);
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
