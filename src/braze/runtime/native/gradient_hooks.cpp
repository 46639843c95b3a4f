// Which leaves have someone watching their gradients: what Python cannot list.
//
// A leaf's AccumulateGrad node lives as long as something holds it: a graph that has not been freed
// yet, or whoever put hooks on it (DDP's reducer). A node that is not alive has no hooks. libtorch
// is asked through addresses of its functions, so that this needs none of its headers.
#include <atomic>
#include <cstdint>

#if !defined(__x86_64__)
#error "how a function returns a smart pointer is known for x86-64 only"
#endif

namespace {
struct Hooks {  // std::vector<std::unique_ptr<FunctionPreHook>>
    void *first, *last, *end;
};
using FindHooks = const Hooks &(*)(void *const &);
// A returned smart pointer is written where the first argument says.
using FindNode = void (*)(void **, void *const &);

// Whether a node is alive. The pointer that was returned is let go: its count of references is the
// second word of the node (c10::intrusive_ptr), or of the block that std::shared_ptr has beside it.
bool is_alive(FindNode find, void *const &tensor) {
    void *found[2] = {nullptr, nullptr};
    find(found, tensor);
    if (!found[0]) return false;
    char *counted = static_cast<char *>(found[1] ? found[1] : found[0]);
    // Others hold it, so this is never the last reference.
    reinterpret_cast<std::atomic<uint32_t> *>(counted + 8)->fetch_sub(1);
    return true;
}
}  // namespace

// tensors: addresses of implementations. The number of the first that is watched, or -1.
extern "C" __attribute__((visibility("default"))) long first_watched(
    void *find_node, void *find_hooks, void *const *tensors, long count) {
    auto node_of = reinterpret_cast<FindNode>(find_node);
    auto hooks_of = reinterpret_cast<FindHooks>(find_hooks);
    for (long i = 0; i < count; ++i) {
        const Hooks &hooks = hooks_of(tensors[i]);
        if (hooks.first != hooks.last || is_alive(node_of, tensors[i])) return i;
    }
    return -1;
}
