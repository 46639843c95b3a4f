// Snapshots: "nothing that these guards read has changed since they last held", in a few
// nanoseconds a guard.
//
// A Snapshot lists, parents before children, the objects that the guards went through and what
// made them lead on: the class and `__dict__` of an instance, entries of a dict, items of a list.
// Only roots, atoms and classes are held; the rest is borrowed. Each borrowed object is looked at
// only after the step that proves that a live parent still holds it, and each step compares its
// object's class first, so an object that took the place of a dead one is never misread. From the
// roots to the last tensor no Python code runs and nothing is allocated.
//
// "This dict has not changed" is its version tag on 3.11, a dict watcher from 3.12 on. A dict that
// did change has its own entries compared; where they are the same, it counts as unchanged again.
//
// Metadata of tensors is asked of libtorch through its stable C interface.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "snapshots rely on the interpreter's lock"
#endif

typedef long long int64;
typedef unsigned long long Version;

// --- whether a dict has changed ----------------------------------------------------------------

#if PY_VERSION_HEX >= 0x030C0000
#define WATCHES 1

// How often a dict was changed; found by its address. Freed when no step asks any more.
struct Watch {
    PyObject* dict;  // NULL once it is dead
    Version changes;
    Py_ssize_t users;
    Watch* next;
};

static Watch* watches[4096];
static int watcher = -1;

static Watch** bucket_of(PyObject* dict) {
    return &watches[((size_t)dict >> 5) * 0x9E3779B97F4A7C15ull >> 52];
}

static Watch* find_watch(PyObject* dict) {
    for (Watch* watch = *bucket_of(dict); watch; watch = watch->next)
        if (watch->dict == dict) return watch;
    return NULL;
}

static void unlink_watch(Watch* watch) {
    Watch** place = bucket_of(watch->dict);
    while (*place != watch) place = &(*place)->next;
    *place = watch->next;
}

static int on_change(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
    Watch* watch = find_watch(dict);
    if (watch == NULL) return 0;
    watch->changes++;
    if (event == PyDict_EVENT_DEALLOCATED) {
        unlink_watch(watch);
        watch->dict = NULL;
    }
    return 0;
}

static void drop_watch(Watch* watch) {
    if (watch == NULL || --watch->users) return;
    if (watch->dict) {
        PyDict_Unwatch(watcher, watch->dict);
        unlink_watch(watch);
    }
    PyMem_Free(watch);
}

static Watch* take_watch(PyObject* dict) {
    Watch* watch = find_watch(dict);
    if (watch == NULL) {
        watch = (Watch*)PyMem_Calloc(1, sizeof(Watch));
        if (watch == NULL) return NULL;
        if (PyDict_Watch(watcher, dict) < 0) {
            PyErr_Clear();
            PyMem_Free(watch);
            return NULL;
        }
        watch->dict = dict;
        watch->next = *bucket_of(dict);
        *bucket_of(dict) = watch;
    }
    watch->users++;
    return watch;
}
#else
#define WATCHES 0
struct Watch;
#endif

// --- data ----------------------------------------------------------------------------------------

enum Kind { INSTANCE, DICT, SIZE, SEQUENCE, CELL, MEMBERS, METHOD };

// What a DICT step compares once its dict has changed.
struct Content {
    Py_ssize_t size;  // -1: any
    PyObject* keys;   // a tuple, or NULL: any
    Py_ssize_t count;
    PyObject** entries;  // key, value, key, value, ...; a NULL value: there is none
};

// INSTANCE: object is of `type`, its __dict__ is `other`.
// DICT: a dict of `type` with `content`. SIZE: a dict of `type` with `count` entries.
// SEQUENCE: a list or tuple of `type` with these `items`. CELL: a cell that holds `other`.
// MEMBERS: a dict of `type` whose keys and values are these `items`, in order.
// METHOD: a bound method whose function and object are these `items`.
struct Step {
    int kind;
    int count;
    PyObject* object;
    PyTypeObject* type;
    union {
        PyObject* other;
        PyObject** items;
        Content* content;
    };
    Version version;
#if WATCHES
    Watch* watch;
#endif
};

enum { CODES = 4, KIND_BYTES = 16, INLINE_SIZES = 5 };

// sizes and strides: -1 matches any. requires_grad, is_leaf: 0, 1 or -1 for any.
struct Facts {
    PyTypeObject* type;
    int codes[CODES];  // dtype, kind of device, index of device (-1: any), layout
    char kind[KIND_BYTES];  // how an implementation that matched says the same
    bool has_kind;
    unsigned long long keys;  // the set of dispatch keys; 0: any
    int requires_grad;
    int is_leaf;
    int rank;
    int64* sizes;
    int64* strides;
};

struct TensorCheck {
    PyObject* tensor;  // or, of a local, its name
    Facts* facts;      // or NULL: only a graph input
    Py_ssize_t place;  // among the graph's inputs; -1: none
};

// A list, tuple or dict that a call brings along.
struct Container {
    PyObject* where;  // a local's name, or a slot of `brought`
    PyTypeObject* type;
    PyObject* keys;    // all of a dict's, a tuple; NULL: any
    Py_ssize_t size;   // of a list or tuple; -1: any
    PyObject* picked;  // key or index, slot, key or index, slot, ...: what is put into `brought`
};

// What must be in a slot of `brought`: a tensor, or a constant; with neither, anything.
struct Item {
    Py_ssize_t slot;
    Facts* facts;
    PyObject* constant;
    Py_ssize_t place;  // among the graph's inputs; -1: none
};

// Objects that are all different: those that a call brings along, pinned ones, and gradients.
struct Apart {
    PyObject* names;  // of locals, or slots of `brought`
    PyObject** objects;
    Py_ssize_t* gradients;  // which of the snapshot's
    int64* item_sizes;      // of tensors whose memory is compared, in that order; or NULL
    int64* roles;           // of these: an Access
    struct Extent* extents;  // room for as many, in the order of the last call's addresses; or NULL
    const char** seen;      // a table of addresses, of 1 << slot_bits places; or NULL
    int name_count, count, gradient_count, slot_bits;
};
// What the graph does to the memory of a tensor, as in memory_overlap.py.
enum Access { WRITTEN, REBASED, READ };

// The bytes from `start` to `end` of the tensor of that number among those compared.
struct Extent {
    const char *start, *end;
    int member;
};
// So few are compared each with each; so many tensors' memory is compared at most, as in
// guards_snapshot.py.
enum { MAX_APART = 16, MAX_EXTENTS = 4096 };

// Leaves whose gradients nobody watches, and who is asked (gradient_hooks.cpp): the first that is
// watched, or -1.
struct Unwatched {
    PyObject** leaves;
    void** implementations;  // room for as many
    Py_ssize_t count;
    long (*first)(const void* questions, void* const* implementations, long count);
    const void* questions;
};

// What a frame brings along.
struct Frame {
    PyObject *locals, *stack, *globals;
};

// One of C++: a function, and the answer in the bits of the mask.
struct Question {
    int64 (*ask)(int64, int64, int64);
    int64 first, second, third, mask, answer;
};

struct Snapshot {
    PyObject_HEAD
    PyObject* keep;       // a tuple that holds all that is not borrowed
    PyObject* questions;  // ((function, argument or None, expected), ...)
    PyObject* classes;    // ((class, recheck), ...)
    PyObject* functions;  // ((function, code, defaults, keyword defaults), ...)
    PyObject* roots;      // ((place, key, address), ...)
    PyObject* residual;   // (check, places) or None
    Py_ssize_t input_count, question_count, step_count, tensor_count, local_count, facts_count,
        class_count, apart_count, gradient_count, unwatched_count, container_count, item_count,
        brought_count;
    Question* native_questions;
    unsigned* class_versions;
    Step* steps;
    TensorCheck* tensors;
    TensorCheck* locals;
    TensorCheck* gradients;  // of a pinned tensor its `grad`, which is another object at each call
    PyObject** grads;        // these, while they are compared
    Facts* facts;
    Apart* aparts;
    Unwatched* unwatched;
    Container* containers;
    PyObject** brought;  // what is picked from the containers, while it is compared
    Item* items;
    Version proven;  // calls that this snapshot answered
};

// --- questions of C++ ----------------------------------------------------------------------------

// Rows of (address, three arguments, mask, answer). The type of a function with fewer arguments, or
// fewer bits in them or in its result, is another one, but it is called the same way.
static Question* read_questions(PyObject* rows, Py_ssize_t* count) {
    *count = PyTuple_GET_SIZE(rows);
    Question* questions = (Question*)PyMem_Calloc(*count + 1, sizeof(Question));
    for (Py_ssize_t i = 0; questions && i < *count; i++) {
        Question* question = &questions[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "LLLLLL", (int64*)&question->ask,
                              &question->first, &question->second, &question->third,
                              &question->mask, &question->answer))
            break;
    }
    return questions;
}

static int answers_hold(const Question* question, Py_ssize_t count) {
    for (const Question* end = question + count; question < end; question++) {
        int64 answer = question->ask(question->first, question->second, question->third);
        if ((answer & question->mask) != question->answer) return 0;
    }
    return 1;
}

// --- tensors -------------------------------------------------------------------------------------

// Of the stable C interface of libtorch: a handle is the address of a pointer to the tensor's
// implementation; the result is 0 unless the tensor cannot answer.
typedef int (*AskInt32)(void*, int*);
typedef int (*AskInt64)(void*, int64*);
typedef int (*AskArray)(void*, int64**);
// C++ member functions without arguments; where a build lacks them, the getters of the Python
// attributes answer, at ten times the cost.
typedef bool (*AskFlag)(const void*);

static struct {
    AskInt32 codes[CODES];
    AskInt64 rank;
    AskArray sizes, strides;
    AskInt64 storage_offset;
    int (*data)(void*, const char**);
    AskInt64 storage_size;
    AskFlag requires_grad;  // of the implementation
    AskFlag is_leaf;        // of the handle
    PyGetSetDef *get_requires_grad, *get_is_leaf, *get_grad, *get_grad_hooks;
    PyTypeObject* plain[2];  // classes of tensors whose attributes are PyTorch's own
    Py_ssize_t offset;       // of the pointer to the implementation in the Python object
    // Of the rank in the implementation, followed by INLINE_SIZES sizes and as many strides, the
    // storage offset, the number of elements and the bytes of a kind; 0: unknown.
    Py_ssize_t rank_offset;
    Py_ssize_t keys_offset;  // of the set of dispatch keys in the implementation
} libtorch;

// 1, 0, or -2 where the getter fails.
static int get(PyObject* tensor, PyGetSetDef* question) {
    PyObject* answer = question->get(tensor, question->closure);
    if (answer == NULL) {
        PyErr_Clear();
        return -2;
    }
    int yes = answer == Py_True;
    Py_DECREF(answer);
    return yes;
}

static int requires_grad(PyObject* tensor, void* handle) {
    if (libtorch.requires_grad) return libtorch.requires_grad(*(void**)handle);
    return get(tensor, libtorch.get_requires_grad);
}

static int is_leaf(PyObject* tensor, void* handle) {
    if (libtorch.is_leaf) return libtorch.is_leaf(handle);
    return get(tensor, libtorch.get_is_leaf);
}

static int same_sizes(const int64* actual, const int64* expected, int rank) {
    for (int i = 0; i < rank; i++)
        if (expected[i] != actual[i] && expected[i] != -1) return 0;
    return 1;
}

// What a tensor's flags (conjugate, negative, zero, inference) are bits of.
static unsigned long long keys_of(const char* implementation) {
    return *(const unsigned long long*)(implementation + libtorch.keys_offset);
}

// The same without a call: 1, or 0 for unknown. Bytes of one kind mean one dtype, device and
// layout, which is tried when the extension is loaded (guards_native.py).
static int is_known_to_match(const char* implementation, const Facts* facts) {
    if (!facts->has_kind) return 0;
    const int64* rank = (const int64*)(implementation + libtorch.rank_offset);
    const int64 *sizes = rank + 1, *strides = sizes + INLINE_SIZES;
    return *rank == facts->rank && same_sizes(sizes, facts->sizes, facts->rank) &&
           same_sizes(strides, facts->strides, facts->rank) &&
           memcmp(strides + INLINE_SIZES + 2, facts->kind, KIND_BYTES) == 0;
}

static void remember_kind(const char* implementation, Facts* facts) {
    const int64* rank = (const int64*)(implementation + libtorch.rank_offset);
    if (libtorch.rank_offset == 0 || facts->rank > INLINE_SIZES || *rank != facts->rank) return;
    memcpy(facts->kind, rank + 1 + 2 * INLINE_SIZES + 2, KIND_BYTES);
    facts->has_kind = true;
}

static int metadata_matches(void* handle, const Facts* facts) {
    for (int i = 0; i < CODES; i++) {
        int code;
        if (facts->codes[i] == -1 && i == 2) continue;
        if (libtorch.codes[i](handle, &code) || code != facts->codes[i]) return 0;
    }
    int64 rank, *sizes, *strides;
    if (libtorch.rank(handle, &rank) || rank != facts->rank) return 0;
    if (rank == 0) return 1;
    if (libtorch.sizes(handle, &sizes) || !same_sizes(sizes, facts->sizes, rank)) return 0;
    return libtorch.strides(handle, &strides) == 0 && same_sizes(strides, facts->strides, rank);
}

static int matches(PyObject* tensor, Facts* facts) {
    if (Py_TYPE(tensor) != facts->type) return 0;
    void* handle = (char*)tensor + libtorch.offset;
    const char* implementation = *(const char**)handle;
    if (implementation == NULL) return 0;
    if (facts->keys && keys_of(implementation) != facts->keys) return 0;
    if (!is_known_to_match(implementation, facts)) {
        if (!metadata_matches(handle, facts)) return 0;
        remember_kind(implementation, facts);
    }
    if (facts->requires_grad >= 0 && requires_grad(tensor, handle) != facts->requires_grad)
        return 0;
    return facts->is_leaf < 0 || is_leaf(tensor, handle) == facts->is_leaf;
}

// --- steps ---------------------------------------------------------------------------------------

// Whether the dict's values are an instance's attributes, stored in the instance itself. Watchers
// of 3.13 are not told of all changes to those, so the content is compared at every call. Its keys
// are strings.
static int is_shared(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
    return ((PyDictObject*)dict)->ma_values != NULL;
#else
    return 0;
#endif
}

// Classes, functions and most other objects are compared by identity.
static int is_plain_key(PyObject* key) {
    richcmpfunc compare = Py_TYPE(key)->tp_richcompare;
    return compare == PyBaseObject_Type.tp_richcompare || compare == PyUnicode_Type.tp_richcompare ||
           compare == PyLong_Type.tp_richcompare || compare == PyBytes_Type.tp_richcompare ||
           key == Py_None;
}

// Comparing plain keys runs no Python code.
static int has_plain_keys(PyObject* dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value))
        if (!is_plain_key(key)) return 0;
    return 1;
}

static int has_keys(PyObject* dict, PyObject* expected) {
    PyObject *key, *value;
    Py_ssize_t position = 0, index = 0;
    if (PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        PyObject* wanted = PyTuple_GET_ITEM(expected, index++);
        if (key == wanted) continue;
        if (Py_TYPE(key) != Py_TYPE(wanted)) return 0;
        if (PyObject_RichCompareBool(key, wanted, Py_EQ) != 1) return 0;
    }
    return 1;
}

static int has_content(PyObject* dict, const Content* content) {
    if (content->size >= 0 && PyDict_GET_SIZE(dict) != content->size) return 0;
    if (!is_shared(dict) && !has_plain_keys(dict)) return 0;
    for (Py_ssize_t i = 0; i < content->count; i++) {
        PyObject* value = PyDict_GetItemWithError(dict, content->entries[2 * i]);
        if (value == NULL) PyErr_Clear();
        if (value != content->entries[2 * i + 1]) return 0;
    }
    return content->keys == NULL || has_keys(dict, content->keys);
}

static int dict_holds(Step* step) {
#if WATCHES
    Watch* watch = step->watch;
    bool unchanged = watch && watch->dict == step->object && watch->changes == step->version;
    if (unchanged && !is_shared(step->object)) return 1;
    if (!has_content(step->object, step->content)) return 0;
    if (is_shared(step->object)) return 1;
    if (watch == NULL || watch->dict != step->object) {
        drop_watch(watch);
        watch = step->watch = take_watch(step->object);
    }
    if (watch) step->version = watch->changes;
    return 1;
#else
    Version version = ((PyDictObject*)step->object)->ma_version_tag;
    if (version == step->version) return 1;
    if (!has_content(step->object, step->content)) return 0;
    step->version = version;
    return 1;
#endif
}

static int items_hold(const Step* step) {
    if (Py_SIZE(step->object) != step->count) return 0;
    PyObject** items = PySequence_Fast_ITEMS(step->object);
    for (int i = 0; i < step->count; i++)
        if (items[i] != step->items[i]) return 0;
    return 1;
}

static int members_hold(const Step* step) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int i = 0;
    if (2 * PyDict_GET_SIZE(step->object) != step->count) return 0;
    for (; i < step->count && PyDict_Next(step->object, &position, &key, &value); i += 2)
        if (key != step->items[i] || value != step->items[i + 1]) return 0;
    return i == step->count;
}

static int step_holds(Step* step) {
    if (Py_TYPE(step->object) != step->type) return 0;
    switch (step->kind) {
        case INSTANCE: {
            if (step->other == NULL) return 1;
            PyObject** place = _PyObject_GetDictPtr(step->object);
            return place != NULL && *place == step->other;
        }
        case DICT: return dict_holds(step);
        case SIZE: return PyDict_GET_SIZE(step->object) == step->count;
        case SEQUENCE: return items_hold(step);
        case CELL: return PyCell_GET(step->object) == step->other;
        case MEMBERS: return members_hold(step);
        case METHOD:
            return PyMethod_GET_FUNCTION(step->object) == step->items[0] &&
                   PyMethod_GET_SELF(step->object) == step->items[1];
    }
    return 0;
}
