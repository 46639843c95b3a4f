// A product alone, of any sizes: what is timed where products are chosen. rows: a multiple of 56.
extern "C" __attribute__((visibility("default"))) void bz_probe(
    const i64* sizes, const float* a, const float* b, float* c, int threads) {
    const i64 m = sizes[0], n = sizes[1], k = sizes[2];
    const i64 rows = m / 56, columns = (n + 63) / 64;
    #pragma omp parallel num_threads(threads)
    {
        const i64 team = omp_get_num_threads(), me = omp_get_thread_num(), tasks = rows * columns;
        float* const packed = (float*)__builtin_malloc(64 * k * sizeof(float));
        i64 held = -1;
        alignas(64) float sums[56 * 64];
        for (i64 t = tasks * me / team; t < tasks * (me + 1) / team; ++t) {
            const i64 i = t % rows * 56, j = t / rows * 64, width = bz_min(n - j, 64);
            if (held != j) bz_pack(k, width, b + j * sizes[6], sizes[5], sizes[6], packed);
            held = j;
            const float* const from = a + i * sizes[3];
            if (sizes[3] == 1)
                bz_product<56, 64, 0, true>(56, width, k, from, 1, sizes[4], packed, sums);
            else
                bz_product<56, 64, 0, false>(56, width, k, from, sizes[3], sizes[4], packed, sums);
            for (i64 r = 0; r < 56; ++r) {
                #pragma omp simd
                for (i64 x = 0; x < width; ++x) c[(i + r) * n + j + x] = sums[r * 64 + x];
            }
        }
        __builtin_free(packed);
    }
}
