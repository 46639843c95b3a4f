// Products of matrices of floats. A task packs the columns of the second matrix that its tile has
// into panels, BZ_NR columns wide, and multiplies rows of the first one with each: the sums of
// BZ_MR x BZ_NR results stay in registers.
#if defined(__AVX512F__)
#define BZ_VW 16 // floats of a vector
#define BZ_MR 14
#elif defined(__AVX__)
#define BZ_VW 8
#define BZ_MR 6
#else
#define BZ_VW 4
#define BZ_MR 6
#endif
#define BZ_NR (2 * BZ_VW)
#define BZ_KB 256 // summed at a time: so much of some rows stays in the first-level cache
#define BZ_LD (BZ_KB + 16) // not a power of two: rows lie in different sets of that cache
#define BZ_TURNED 16 // from column to column, where rows of the block are neighbours in memory
#if defined(__clang__)
#define BZ_CONTRACTS __attribute__((noinline))
#define BZ_CONTRACT _Pragma("clang fp contract(fast)")
#else
#define BZ_CONTRACTS __attribute__((noinline, optimize("O2,fp-contract=fast")))
#define BZ_CONTRACT
#endif
#define BZ_UNROLL _Pragma("GCC unroll 16")
typedef float bz_vector __attribute__((vector_size(BZ_VW * 4)));
typedef float bz_unaligned __attribute__((vector_size(BZ_VW * 4), aligned(4), may_alias));
typedef int bz_places __attribute__((vector_size(BZ_VW * 4)));

// c[R][NR] = or += a[R][count] @ b[count][NR]; rows of `c` are `width` apart. DOWN, ACROSS: the
// steps in `a`.
template <int R, int DOWN, int ACROSS>
BZ_CONTRACTS static void bz_block(i64 count, const float* __restrict a, const float* __restrict b,
                                  float* __restrict c, i64 width, bool adds) {
    BZ_CONTRACT
    bz_vector sums[R][2];
    BZ_UNROLL
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = (bz_vector){};
    for (i64 k = 0; k < count; ++k) {
        const bz_vector left = *(const bz_unaligned*)(b + k * BZ_NR);
        const bz_vector right = *(const bz_unaligned*)(b + k * BZ_NR + BZ_VW);
        BZ_UNROLL
        for (int i = 0; i < R; ++i) {
            const bz_vector x = a[i * DOWN + k * ACROSS] - (bz_vector){};
            sums[i][0] += x * left;
            sums[i][1] += x * right;
        }
    }
    BZ_UNROLL
    for (int i = 0; i < R; ++i) {
        bz_unaligned* const at = (bz_unaligned*)(c + i * width);
        bz_unaligned* const next = (bz_unaligned*)(c + i * width + BZ_VW);
        *at = adds ? *at + sums[i][0] : sums[i][0];
        *next = adds ? *next + sums[i][1] : sums[i][1];
    }
}

// BZ_VW rows of so many floats, `step` apart, as columns that are BZ_NR apart.
__attribute__((unused)) static void bz_turn(const float* from, i64 step, float* to) {
#if defined(__clang__)
    for (int i = 0; i < BZ_VW; ++i)
        for (int k = 0; k < BZ_VW; ++k) to[k * BZ_NR + i] = from[i * step + k];
#else
    bz_vector rows[BZ_VW];
    BZ_UNROLL
    for (int i = 0; i < BZ_VW; ++i) rows[i] = *(const bz_unaligned*)(from + i * step);
    BZ_UNROLL
    for (int s = BZ_VW / 2; s >= 1; s >>= 1) {
        bz_places low, high;
        BZ_UNROLL
        for (int t = 0; t < BZ_VW; ++t) {
            low[t] = t & s ? BZ_VW + (t ^ s) : t;
            high[t] = t & s ? BZ_VW + t : t ^ s;
        }
        BZ_UNROLL
        for (int i = 0; i < BZ_VW; ++i) {
            if (i & s) continue;
            const bz_vector x = rows[i], y = rows[i + s];
            rows[i] = __builtin_shuffle(x, y, low);
            rows[i + s] = __builtin_shuffle(x, y, high);
        }
    }
    BZ_UNROLL
    for (int k = 0; k < BZ_VW; ++k) *(bz_unaligned*)(to + k * BZ_NR) = rows[k];
#endif
}

// Packs `columns` columns of a matrix of `count` rows, `down` and `across` the steps in it, into
// panels; what a panel lacks in columns is zero.
__attribute__((unused, noinline)) static void bz_pack(i64 count, i64 columns, const float* b,
                                                      i64 down, i64 across, float* to) {
    for (; columns > 0; columns -= BZ_NR, b += BZ_NR * across, to += BZ_NR * count) {
        const i64 width = bz_min(columns, BZ_NR);
        i64 done = 0;
        if (width == BZ_NR && down == 1)
            for (; done + BZ_VW <= count; done += BZ_VW) {
                bz_turn(b + done, across, to + done * BZ_NR);
                bz_turn(b + BZ_VW * across + done, across, to + done * BZ_NR + BZ_VW);
            }
        else if (width == BZ_NR && across == 1)
            for (; done < count; ++done) {
                const float* const from = b + done * down;
                *(bz_unaligned*)(to + done * BZ_NR) = *(const bz_unaligned*)from;
                *(bz_unaligned*)(to + done * BZ_NR + BZ_VW) = *(const bz_unaligned*)(from + BZ_VW);
            }
        for (; done < count; ++done)
            for (i64 j = 0; j < BZ_NR; ++j)
                to[done * BZ_NR + j] = j < width ? b[done * down + j * across] : 0.0f;
    }
}

template <int R, bool TURNED>
static void bz_rows(i64 count, const float* block, const float* panels, i64 total, i64 columns,
                    float* c, i64 width, bool adds) {
    if constexpr (R > 0)
        for (i64 j = 0; j < columns; j += BZ_NR)
            bz_block<R, TURNED ? 1 : BZ_LD, TURNED ? BZ_TURNED : 1>(
                count, block, panels + j * total, c + j, width, adds);
}

// c[rows][NT] = a[rows][count] @ the packed panels of `columns` columns. down, across: the steps in
// `a`; TURNED: neighbours in memory are in one column. rows: MT, or LAST of the last tile. NT: a
// multiple of BZ_NR.
template <int MT, int NT, int LAST, bool TURNED>
static void bz_product(i64 rows, i64 columns, i64 count, const float* a, i64 down, i64 across,
                       const float* packed, float* c) {
    alignas(64) float block[TURNED ? BZ_KB * BZ_TURNED : BZ_MR * BZ_LD];
    for (i64 k = 0; k < count; k += BZ_KB) {
        const i64 part = bz_min(count - k, BZ_KB);
        for (i64 i = 0; i < rows; i += BZ_MR) {
            const i64 height = bz_min(rows - i, BZ_MR);
            const float* const from = a + i * down + k * across;
            if constexpr (TURNED)
                for (i64 x = 0; x < part; ++x) {
                    #pragma omp simd
                    for (i64 r = 0; r < height; ++r) block[x * BZ_TURNED + r] = from[r + x * across];
                }
            else if (across == 1)
                for (i64 r = 0; r < height; ++r) {
                    #pragma omp simd
                    for (i64 x = 0; x < part; ++x) block[r * BZ_LD + x] = from[r * down + x];
                }
            else
                for (i64 x = 0; x < part; ++x)
                    for (i64 r = 0; r < height; ++r)
                        block[r * BZ_LD + x] = from[r * down + x * across];
            const float* const panels = packed + k * BZ_NR;
            float* const at = c + i * NT;
            if (height == BZ_MR)
                bz_rows<BZ_MR, TURNED>(part, block, panels, count, columns, at, NT, k > 0);
            else if (height == MT % BZ_MR)
                bz_rows<MT % BZ_MR, TURNED>(part, block, panels, count, columns, at, NT, k > 0);
            else
                bz_rows<LAST % BZ_MR, TURNED>(part, block, panels, count, columns, at, NT, k > 0);
        }
    }
}
