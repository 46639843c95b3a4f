// What stands before the entries: how the kernels of one are called. Entries are data: a function
// each costs the compiler more than the kernels do in a model of many layers. Kernels may be in
// other units.
typedef long i64;
typedef unsigned short u16;
typedef void (*bz_kernel)(char* const* p, const i64* sizes, const i64* c, int threads, int* fault);

// Where a profiler is at work: told the number of an entry and of a kernel in it, as it begins and
// as it ends.
typedef void (*bz_observer)(int entry, int kernel, int begins);
extern "C" __attribute__((visibility("default"))) bz_observer bz_observe;
bz_observer bz_observe = 0;

// A call of a kernel, on the pointers at these places of the table. numbers: what the kernel differs
// in from others of its form; checks: it is left out where an earlier one of the entry had a fault.
struct bz_step {
    bz_kernel kernel;
    const u16* places;
    const i64* numbers;
    int count, checks;
};

// launcher.cpp and kernel_launcher.py know that `run` comes first.
struct bz_entry {
    int (*run)(const bz_entry* entry, char** table, const i64* sizes, int threads);
    const bz_step* steps;
    int count, number;
};

static void bz_call(const bz_step* step, char** table, const i64* sizes, int threads, int* fault) {
    char* p[step->count];
    for (int i = 0; i < step->count; ++i) {
        p[i] = table[step->places[i]];
        __asm__ volatile("");  // as vectors these few loads cost a fifth of a small unit's build
    }
    step->kernel(p, sizes, step->numbers, threads, fault);
}

// Runs the kernels of an entry in order.
static int bz_run_entry(const bz_entry* entry, char** table, const i64* sizes, int threads) {
    int fault = 0;
    for (int n = 0; n < entry->count; ++n) {
        const bz_step* step = entry->steps + n;
        if (step->checks && fault) break;
        const bz_observer observe = bz_observe;  // one that begins is told that it ends
        if (observe) observe(entry->number, n, 1);
        bz_call(step, table, sizes, threads, &fault);
        if (observe) observe(entry->number, n, 0);
    }
    return fault;
}

#define BZ_ENTRY extern "C" __attribute__((visibility("default"))) const bz_entry
