// Products of small matrices, for attention by tiles.
#if defined(__AVX512F__)
#define BZ_LANES 16
#define BZ_VECTORS 4
#else
#define BZ_LANES 8
#define BZ_VECTORS 2
#endif
typedef float bz_score_vector __attribute__((vector_size(BZ_LANES * 4), aligned(4)));
#define BZ_FAST __attribute__((noinline, unused, optimize("O3", "fp-contract=fast")))

// c[r, j] = or += sum over k of a[r * row + k * step] * b[k * ldb + j], for `rows` rows, at most
// BZ_ROWS, and BZ_LANES * V columns.
template <int R, int V>
BZ_FAST static void bz_strip(const float* a, i64 row, i64 step, const float* b, i64 ldb, float* c,
                             i64 ldc, i64 count, bool adds) {
    bz_score_vector sums[R][V];
    #pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        #pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
            sums[r][v] = adds ? *(const bz_score_vector*)(c + r * ldc + v * BZ_LANES) : bz_score_vector{};
    for (i64 k = 0; k < count; ++k) {
        bz_score_vector line[V];
        #pragma GCC unroll 8
        for (int v = 0; v < V; ++v) line[v] = *(const bz_score_vector*)(b + k * ldb + v * BZ_LANES);
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const float x = a[r * row + k * step];
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sums[r][v] += x * line[v];
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        #pragma GCC unroll 8
        for (int v = 0; v < V; ++v) *(bz_score_vector*)(c + r * ldc + v * BZ_LANES) = sums[r][v];
}

template <int V>
static void bz_strips(const float* a, i64 row, i64 step, const float* b, i64 ldb, float* c, i64 ldc,
                      i64 rows, i64 count, bool adds) {
    i64 r = 0;
    for (; r + 6 <= rows; r += 6)
        bz_strip<6, V>(a + r * row, row, step, b, ldb, c + r * ldc, ldc, count, adds);
    for (; r + 2 <= rows; r += 2)
        bz_strip<2, V>(a + r * row, row, step, b, ldb, c + r * ldc, ldc, count, adds);
    for (; r < rows; ++r)
        bz_strip<1, V>(a + r * row, row, step, b, ldb, c + r * ldc, ldc, count, adds);
}

// The same for any number of rows, and columns that are a multiple of BZ_LANES.
__attribute__((unused)) static void bz_multiply(const float* a, i64 row, i64 step, const float* b,
                                                i64 ldb, float* c, i64 ldc, i64 rows, i64 columns,
                                                i64 count, bool adds) {
    i64 j = 0;
    for (; j + BZ_VECTORS * BZ_LANES <= columns; j += BZ_VECTORS * BZ_LANES)
        bz_strips<BZ_VECTORS>(a, row, step, b + j, ldb, c + j, ldc, rows, count, adds);
    for (; j < columns; j += BZ_LANES)
        bz_strips<1>(a, row, step, b + j, ldb, c + j, ldc, rows, count, adds);
}

// Fold a tile of scores, columns of which are rows of the softmax, into the largest scores and the
// sums of exponentials so far; the scores become exponentials. factors: what was summed before is
// to be multiplied with.
template <int M>
__attribute__((noinline, unused)) static void bz_soften(float* s, i64 count, float* most,
                                                        float* sums, float* factors) {
    alignas(64) float shift[M];
    for (int m = 0; m < M; ++m) shift[m] = most[m];
    for (i64 n = 0; n < count; ++n) {
        #pragma omp simd
        for (int m = 0; m < M; ++m) shift[m] = s[n * M + m] > shift[m] ? s[n * M + m] : shift[m];
    }
    #pragma omp simd
    for (int m = 0; m < M; ++m) {
        const float before = most[m], now = shift[m];
        most[m] = now;
        shift[m] = now == -__builtin_inff() ? 0.0f : now;
        factors[m] = bz_exp(before - shift[m]);
        sums[m] *= factors[m];
    }
    for (i64 n = 0; n < count; ++n) {
        #pragma omp simd
        for (int m = 0; m < M; ++m) {
            const float e = bz_exp(s[n * M + m] - shift[m]);
            s[n * M + m] = e;
            sums[m] += e;
        }
    }
}
