// Which leaves have someone watching their gradients: what Python cannot list.
//
// A leaf's AccumulateGrad node lives as long as something holds it: a graph that has not been freed
// yet, or whoever put hooks on it (DDP's reducer). A node that is not alive has no hooks; of one that
// is, its lists of hooks are read, where it is known at which offsets they lie. libtorch is asked
// through addresses of its functions, so that this needs none of its headers.
#include <atomic>
#include <cstdint>

#if !defined(__x86_64__)
#error "how a function returns a smart pointer is known for x86-64 only"
#endif

namespace {
struct Hooks {  // std::vector<std::unique_ptr<FunctionPreHook>>, or of FunctionPostHook
    void *first, *last, *end;
};
using FindHooks = const Hooks &(*)(void *const &);
// A returned smart pointer is written where the first argument says.
using FindNode = void (*)(void **, void *const &);


struct Questions {
    FindNode find_node;
    FindHooks find_hooks;
    int64_t lists[2];  // offsets in a node, in bytes; negative: a live node counts as watched
};

// Lets a pointer go that `find_node` returned: its count of references is the second word of the
// node (c10::intrusive_ptr), or of the block that std::shared_ptr has beside it.
void release(void *const *found) {
    char *counted = static_cast<char *>(found[1] ? found[1] : found[0]);
    // Others hold it, so this is never the last reference.
    reinterpret_cast<std::atomic<uint32_t> *>(counted + 8)->fetch_sub(1);
}

bool is_empty(const Hooks &hooks) { return hooks.first == hooks.last; }

// Whether a node is alive that has hooks, or may have some.
bool has_hooks(const Questions *asked, void *const &tensor) {
    void *found[2] = {nullptr, nullptr};
    asked->find_node(found, tensor);
    if (!found[0]) return false;
    bool none = true;
    for (int64_t offset : asked->lists)
        none = none && offset >= 0 &&
               is_empty(*reinterpret_cast<Hooks *>(static_cast<char *>(found[0]) + offset));
    release(found);
    return !none;
}
}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// tensors: addresses of implementations. The number of the first that is watched, or -1.
EXPORTED long first_watched(const Questions *asked, void *const *tensors, long count) {
    for (long i = 0; i < count; ++i)
        if (!is_empty(asked->find_hooks(tensors[i])) || has_hooks(asked, tensors[i])) return i;
    return -1;
}

// Copies the first words of a leaf's node; 0 where it is not alive.
EXPORTED long read_node(const Questions *asked, void *const *tensor, uint64_t *words, long count) {
    void *found[2] = {nullptr, nullptr};
    asked->find_node(found, *tensor);
    if (!found[0]) return 0;
    for (long i = 0; i < count; ++i) words[i] = static_cast<uint64_t *>(found[0])[i];
    release(found);
    return 1;
}
