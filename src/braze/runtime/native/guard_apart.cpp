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

// --- memory --------------------------------------------------------------------------------------

static int make_extents(Apart* apart) {
    apart->extents = (Extent*)PyMem_Calloc(member_count(apart), sizeof(Extent));
    if (apart->extents == NULL) return -1;
    for (int i = 0; i < member_count(apart); i++) apart->extents[i].member = i;
    return 0;
}

// Its sizes and strides; 0 where libtorch does not say.
static int layout_of(void* handle, int64* rank, int64** sizes, int64** strides) {
    const char* implementation = *(const char**)handle;
    int64* kept = (int64*)(implementation + libtorch.rank_offset);
    if (libtorch.rank_offset && *kept <= INLINE_SIZES) {
        *rank = *kept;
        *sizes = kept + 1;
        *strides = kept + 1 + INLINE_SIZES;
        return 1;
    }
    return !libtorch.rank(handle, rank) && !libtorch.sizes(handle, sizes) &&
           !libtorch.strides(handle, strides);
}

// The bytes of a tensor's elements, or of all of its storage: from start to end, equal where there
// are none. 0 where they are unknown: a storage without memory, or that of an empty tensor.
static int find_extent(PyObject* tensor, int64 item_size, int64 role, Extent* extent) {
    void* handle = (char*)tensor + libtorch.offset;
    int64 rank, offset, size, *sizes, *strides, last = 0;
    extent->start = extent->end = NULL;
    if (!layout_of(handle, &rank, &sizes, &strides)) return 0;
    for (int64 i = 0; i < rank; i++) {
        if (sizes[i] == 0) return role != REBASED;
        last += (sizes[i] - 1) * strides[i];
    }
    if (libtorch.data(handle, &extent->start) || extent->start == NULL) return 0;
    extent->end = extent->start + (last + 1) * item_size;
    if (role != REBASED) return 1;
    if (libtorch.storage_offset(handle, &offset) || libtorch.storage_size(handle, &size)) return 0;
    extent->start -= offset * item_size;
    extent->end = extent->start + size;
    return 1;
}

struct Term {
    int64 step, count;
};

// Whether a sum of the steps, each at most as often as it is there, lies in [low, high]; yes, too,
// where that takes too long to tell. The steps descend.
static int reaches(const Term* terms, int count, int64 low, int64 high, int* effort) {
    if (high < 0) return 0;
    if (low <= 0) return 1;
    int64 sum = 0, divisor = 0;
    for (int i = 0; i < count; i++) {
        sum += terms[i].step * terms[i].count;
        for (int64 a = terms[i].step; a;) {
            int64 rest = divisor % a;
            divisor = a;
            a = rest;
        }
    }
    if (sum < low || (low + divisor - 1) / divisor * divisor > high) return 0;
    if (--*effort < 0) return 1;
    int64 step = terms->step, others = sum - step * terms->count;
    int64 most = high / step < terms->count ? high / step : terms->count;
    int64 least = low > others ? (low - others + step - 1) / step : 0;
    for (int64 i = least; i <= most; i++)
        if (reaches(terms + 1, count - 1, low - step * i, high - step * i, effort)) return 1;
    return 0;
}

enum { MAX_TERMS = 16, EFFORT = 1000 };

// Adds a dimension where its step belongs; 0 where there is no room.
static int add_term(Term* terms, int* count, int64 size, int64 step) {
    if (size < 2 || step == 0) return 1;
    int place = 0;
    while (place < *count && terms[place].step > step) place++;
    if (place < *count && terms[place].step == step) {
        terms[place].count += size - 1;
        return 1;
    }
    if (*count == MAX_TERMS) return 0;
    memmove(terms + place + 1, terms + place, (*count - place) * sizeof(Term));
    terms[place] = {step, size - 1};
    ++*count;
    return 1;
}

static int add_terms(Term* terms, int* count, PyObject* tensor, int64 width) {
    int64 rank, *sizes, *strides;
    if (!layout_of((char*)tensor + libtorch.offset, &rank, &sizes, &strides)) return 0;
    for (int64 i = 0; i < rank; i++)
        if (!add_term(terms, count, sizes[i], strides[i] * width)) return 0;
    return 1;
}

// Whether two tensors whose bytes interleave have elements in common: memory_overlap.py explains.
static int elements_meet(const Snapshot* self, const Apart* apart, const Frame* frame,
                         const Extent* one, const Extent* other) {
    const Extent* both[] = {one, other};
    int64 widths[2];
    Term terms[MAX_TERMS];
    int count = 0, effort = EFFORT;
    for (int i = 0; i < 2; i++) {
        const Extent* extent = both[i];
        bool is_whole = apart->roles[extent->member] == REBASED;
        widths[i] = is_whole ? 1 : apart->item_sizes[extent->member];
        PyObject* tensor = member(self, apart, frame, extent->member);
        if (is_whole ? !add_term(terms, &count, extent->end - extent->start, 1)
                     : tensor == NULL || !add_terms(terms, &count, tensor, widths[i]))
            return 1;
    }
    int64 reach = other->end - widths[1] - one->start;
    return reaches(terms, count, reach - widths[0] + 1, reach + widths[1] - 1, &effort);
}

static int starts_before(const void* one, const void* other) {
    const char *a = ((const Extent*)one)->start, *b = ((const Extent*)other)->start;
    return (a > b) - (a < b);
}

// Whether no tensor that is written to has an element in common with another. All of them have
// passed a check of their facts, dtype included. Where the addresses ascend as at the last call,
// one look at each tells.
static int memory_is_apart(const Snapshot* self, const Apart* apart, const Frame* frame) {
    int count = member_count(apart);
    const char* reached = NULL;
    bool ascends = true;
    for (int i = 0; i < count; i++) {
        Extent* extent = &apart->extents[i];
        PyObject* tensor = member(self, apart, frame, extent->member);
        int64 item_size = apart->item_sizes[extent->member], role = apart->roles[extent->member];
        if (tensor == NULL || !find_extent(tensor, item_size, role, extent)) return 0;
        if (extent->start == extent->end) continue;
        if (extent->start < reached) ascends = false;
        reached = extent->end;
    }
    if (ascends) return 1;
    qsort(apart->extents, count, sizeof(Extent), starts_before);
    for (int i = 0; i < count; i++) {
        const Extent *one = &apart->extents[i], *other = one + 1;
        if (one->start == one->end) continue;
        for (; other < apart->extents + count && other->start < one->end; other++) {
            bool is_read = apart->roles[one->member] == READ && apart->roles[other->member] == READ;
            if (!is_read && elements_meet(self, apart, frame, one, other)) return 0;
        }
    }
    return 1;
}
