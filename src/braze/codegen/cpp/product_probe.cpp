// A product alone, of any sizes: what is timed where products are chosen. rows: a multiple of 56, or
// 32, 16, 8, 4, 2, 1. packed: the second matrix is as bz_pack_whole leaves it.
template <int LAST, bool TURNED>
static void bz_probe_tiles(const i64* sizes, const float* a, const float* b, float* c, int threads) {
    const i64 m = sizes[0], n = sizes[1], k = sizes[2];
    const i64 height = bz_min(m, 56), rows = m / height, columns = (n + 63) / 64;
    const bool packed = sizes[7];
    #pragma omp parallel num_threads(threads)
    {
        const i64 team = omp_get_num_threads(), me = omp_get_thread_num(), tasks = rows * columns;
        float* const own = (float*)__builtin_malloc(64 * k * sizeof(float));
        i64 held = -1;
        alignas(64) float sums[56 * 64];
        for (i64 t = tasks * me / team; t < tasks * (me + 1) / team; ++t) {
            const i64 i = t % rows * height, j = t / rows * 64, width = bz_min(n - j, 64);
            if (!packed && held != j) bz_pack(k, width, b + j * sizes[6], sizes[5], sizes[6], own);
            held = j;
            bz_product<56, 64, LAST, TURNED>(height, width, k, a + i * sizes[3],
                                             TURNED ? 1 : sizes[3], sizes[4],
                                             packed ? b + j * k : own, sums);
            for (i64 r = 0; r < height; ++r) {
                #pragma omp simd
                for (i64 x = 0; x < width; ++x) c[(i + r) * n + j + x] = sums[r * 64 + x];
            }
        }
        __builtin_free(own);
    }
}

extern "C" __attribute__((visibility("default"))) void bz_probe(
    const i64* sizes, const float* a, const float* b, float* c, int threads) {
    void (*run)(const i64*, const float*, const float*, float*, int) = bz_probe_tiles<0, false>;
    switch (sizes[0]) {
        case 1: run = bz_probe_tiles<1, false>; break;
        case 2: run = bz_probe_tiles<2, false>; break;
        case 4: run = bz_probe_tiles<4, false>; break;
        case 8: run = bz_probe_tiles<8, false>; break;
        case 16: run = bz_probe_tiles<16, false>; break;
        case 32: run = bz_probe_tiles<32, false>; break;
        default: if (sizes[3] == 1) run = bz_probe_tiles<0, true>;
    }
    run(sizes, a, b, c, threads);
}

// Packs a whole matrix: panels of all its columns, one behind the other.
extern "C" __attribute__((visibility("default"))) void bz_pack_whole(
    const i64* sizes, const float* b, float* to) {
    bz_pack(sizes[0], sizes[1], b, sizes[2], sizes[3], to);
}
