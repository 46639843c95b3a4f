// What stands before the entries: how they call a kernel. Kernels may be in other units.
typedef long i64;
typedef unsigned short u16;
typedef void (*bz_kernel)(char* const* p, const i64* sizes, const i64* c, int threads, int* fault);

// Where a profiler is at work: told the number of an entry and of a kernel in it, as it begins and
// as it ends.
typedef void (*bz_observer)(int entry, int kernel, int begins);
extern "C" __attribute__((visibility("default"))) bz_observer bz_observe;
bz_observer bz_observe = 0;

// Runs a kernel on the pointers at the given places of the table.
__attribute__((unused, noinline)) static void bz_call(bz_kernel kernel, char** table,
                                                      const u16* places, int count,
                                                      const i64* sizes, const i64* c, int threads,
                                                      int* fault, int entry, int number) {
    char* p[count];
    for (int i = 0; i < count; ++i) {
        p[i] = table[places[i]];
        __asm__ volatile("");  // as vectors these few loads cost a fifth of a small unit's build
    }
    const bz_observer observe = bz_observe;  // one that begins is told that it ends
    if (observe) observe(entry, number, 1);
    kernel(p, sizes, c, threads, fault);
    if (observe) observe(entry, number, 0);
}

