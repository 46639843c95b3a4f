// What stands before the entries: how they call a kernel. Kernels may be in other units.
typedef long i64;
typedef unsigned short u16;
typedef void (*bz_kernel)(char* const* p, const i64* sizes, const i64* c, int threads, int* fault);

// Runs a kernel on the pointers at the given places of the table.
__attribute__((unused, noinline)) static void bz_call(bz_kernel kernel, char** table,
                                                      const u16* places, int count,
                                                      const i64* sizes, const i64* c, int threads,
                                                      int* fault) {
    char* p[count];
    for (int i = 0; i < count; ++i) p[i] = table[places[i]];
    kernel(p, sizes, c, threads, fault);
}

