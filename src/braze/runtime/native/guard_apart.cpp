// Which objects are no two the same, and which tensors share no memory. One text with
// guard_steps.cpp and guard_brought.cpp, which come first.

static int member_count(const Apart* apart) {
    return apart->name_count + apart->count + apart->gradient_count;
}

// One of them; NULL where there is no such local.
static PyObject* member(const Snapshot* self, const Apart* apart, const Frame* frame, int i) {
    if (i < apart->name_count) return place_of(self, PyTuple_GET_ITEM(apart->names, i), frame);
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

// Whether a few objects that calls bring along are no two the same and none of the pinned ones.
static int few_are_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    PyObject* found[MAX_APART];
    for (int i = 0; i < apart->name_count; i++) {
        found[i] = member(self, apart, frame, i);
        if (found[i] == NULL) return 0;
        for (int other = 0; other < i; other++)
            if (found[other] == found[i]) return 0;
        for (int other = 0; other < apart->count; other++)
            if (apart->objects[other] == found[i]) return 0;
    }
    return 1;
}

// The same of many, or with gradients among them.
static int all_are_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    empty_table(apart);
    for (int i = 0; i < member_count(apart); i++) {
        const char* found = (const char*)member(self, apart, frame, i);
        if (found == NULL || !is_new(apart, found)) return 0;
    }
    return 1;
}

static bool is_few(const Apart* apart) {
    return apart->name_count <= MAX_APART && !apart->gradient_count;
}

static int are_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    return is_few(apart) ? few_are_apart(self, apart, frame) : all_are_apart(self, apart, frame);
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
