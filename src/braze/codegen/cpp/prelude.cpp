// What generated units begin with: types, conversions, scalar operators. No header is included: they
// cost more to compile than the kernels do. For the same reason a unit holds only the parts of this
// file that it uses (prelude.py). Parts are separated by blank lines; the first is in each unit.
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long i64;
typedef unsigned long u64;
#define BZ_INLINE static inline __attribute__((always_inline, unused))
extern "C" {
int omp_get_thread_num(void) noexcept;
int omp_get_num_threads(void) noexcept;
}

extern "C" {
// clang-format off
#define BZ_SCALAR1(op) double op(double) noexcept; float op##f(float) noexcept;
#define BZ_SCALAR2(op) double op(double, double) noexcept; float op##f(float, float) noexcept;
// clang-format on
#ifdef BZ_VECTOR_MATH
#define BZ_SIMD _Pragma("omp declare simd notinbranch")
#else
#define BZ_SIMD
#endif
#define BZ_VECTOR1(op)                                                                              \
    BZ_SIMD double op(double) noexcept;                                                             \
    BZ_SIMD float op##f(float) noexcept;
#define BZ_VECTOR2(op)                                                                              \
    BZ_SIMD double op(double, double) noexcept;                                                     \
    BZ_SIMD float op##f(float, float) noexcept;
// clang-format off
BZ_VECTOR1(exp) BZ_VECTOR1(log) BZ_VECTOR1(sin) BZ_VECTOR1(cos) BZ_VECTOR2(pow)
BZ_VECTOR1(exp2) BZ_VECTOR1(expm1) BZ_VECTOR1(log2) BZ_VECTOR1(log10) BZ_VECTOR1(log1p)
BZ_VECTOR1(tan) BZ_VECTOR1(asin) BZ_VECTOR1(acos) BZ_VECTOR1(atan) BZ_VECTOR1(sinh)
BZ_VECTOR1(cosh) BZ_VECTOR1(tanh) BZ_VECTOR1(asinh) BZ_VECTOR1(acosh) BZ_VECTOR1(atanh)
BZ_VECTOR1(erf) BZ_VECTOR1(erfc) BZ_VECTOR2(atan2)
BZ_SCALAR1(lgamma) BZ_SCALAR2(hypot) BZ_SCALAR2(nextafter) BZ_SCALAR2(fmod)
// clang-format on
}

// clang-format off
#define BZ_CALL1(op)                                                                                \
    BZ_INLINE float bz_##op(float x) { return op##f(x); }                                            \
    BZ_INLINE double bz_##op(double x) { return op(x); }
#define BZ_CALL2(op)                                                                                \
    BZ_INLINE float bz_##op(float x, float y) { return op##f(x, y); }                                \
    BZ_INLINE double bz_##op(double x, double y) { return op(x, y); }
BZ_CALL1(exp2) BZ_CALL1(expm1) BZ_CALL1(log) BZ_CALL1(log2) BZ_CALL1(log10)
BZ_CALL1(log1p) BZ_CALL1(sin) BZ_CALL1(cos) BZ_CALL1(tan) BZ_CALL1(asin) BZ_CALL1(acos)
BZ_CALL1(atan) BZ_CALL1(sinh) BZ_CALL1(cosh) BZ_CALL1(asinh) BZ_CALL1(acosh)
BZ_CALL1(atanh) BZ_CALL1(erfc) BZ_CALL1(lgamma) BZ_CALL2(atan2) BZ_CALL2(hypot)
BZ_CALL2(nextafter) BZ_CALL2(fmod) BZ_CALL2(pow)
// clang-format on

// clang-format off
#define BZ_BUILTIN1(name, op)                                                                       \
    BZ_INLINE float bz_##name(float x) { return __builtin_##op##f(x); }                             \
    BZ_INLINE double bz_##name(double x) { return __builtin_##op(x); }
BZ_BUILTIN1(sqrt, sqrt) BZ_BUILTIN1(floor, floor) BZ_BUILTIN1(ceil, ceil)
BZ_BUILTIN1(trunc, trunc) BZ_BUILTIN1(round, nearbyint)
// clang-format on

BZ_INLINE float bz_abs(float x) { return __builtin_fabsf(x); }
BZ_INLINE double bz_abs(double x) { return __builtin_fabs(x); }

BZ_INLINE float bz_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
BZ_INLINE double bz_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

BZ_INLINE float bz_copysign(float x, float y) { return __builtin_copysignf(x, y); }
BZ_INLINE double bz_copysign(double x, double y) { return __builtin_copysign(x, y); }

BZ_INLINE float bz_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
BZ_INLINE double bz_fma(double x, double y, double z) { return __builtin_fma(x, y, z); }

BZ_INLINE bool bz_signbit(float x) { return __builtin_bit_cast(int, x) < 0; }
BZ_INLINE bool bz_signbit(double x) { return __builtin_bit_cast(i64, x) < 0; }

template <class T> BZ_INLINE bool bz_isnan(T x) { return x != x; }
template <class T> BZ_INLINE bool bz_isinf(T x) { return bz_abs(x) == (T)__builtin_inf(); }

BZ_INLINE float bz_sign(float x) { return (float)((x > 0) - (x < 0)); }
BZ_INLINE double bz_sign(double x) { return (double)((x > 0) - (x < 0)); }

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
BZ_INLINE float bz_muladd(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
#else
BZ_INLINE float bz_muladd(float x, float y, float z) { return x * y + z; }
#endif

// exp, tanh and erf of floats, without branches, so that loops over them vectorise without calls.
// Polynomials: weighted least squares driven to equal ripple, relative error below 2^-27.
BZ_INLINE float bz_power_of_two(int n) { return __builtin_bit_cast(float, (n + 127) << 23); }

BZ_INLINE float bz_exp(float x) {
    float z = x > 89.0f ? 89.0f : x;
    z = z < -104.0f ? -104.0f : z;
    float shifted = bz_muladd(z, 0x1.715476p+0f, 0x1.8p+23f), n = shifted - 0x1.8p+23f;
    float r = bz_muladd(n, -0x1.62e400p-1f, z);
    r = bz_muladd(n, -0x1.7f7d1cp-20f, r);
    float q = bz_muladd(r, 0x1.6d7532p-10f, 0x1.120b72p-7f);
    q = bz_muladd(q, r, 0x1.5554b8p-5f);
    q = bz_muladd(q, r, 0x1.5554dcp-3f);
    q = bz_muladd(q, r, 0.5f);
    float value = 1.0f + bz_muladd(r * r, q, r);
    int k = __builtin_bit_cast(int, shifted) - __builtin_bit_cast(int, 0x1.8p+23f), half = k >> 1;
    return value * bz_power_of_two(half) * bz_power_of_two(k - half);
}

// e^x for x in [-87, 88] only.
BZ_INLINE float bz_small_exp(float x) {
    float shifted = bz_muladd(x, 0x1.715476p+0f, 0x1.8p+23f), n = shifted - 0x1.8p+23f;
    float r = bz_muladd(n, -0x1.62e400p-1f, x);
    r = bz_muladd(n, -0x1.7f7d1cp-20f, r);
    float q = bz_muladd(r, 0x1.6d7532p-10f, 0x1.120b72p-7f);
    q = bz_muladd(q, r, 0x1.5554b8p-5f);
    q = bz_muladd(q, r, 0x1.5554dcp-3f);
    q = bz_muladd(q, r, 0.5f);
    float value = 1.0f + bz_muladd(r * r, q, r);
    return __builtin_bit_cast(float, __builtin_bit_cast(int, value) +
                                         (__builtin_bit_cast(int, shifted) << 23));
}

BZ_INLINE float bz_tanh(float x) {
    float a = __builtin_fabsf(x), z = x * x, b = a > 10.0f ? 10.0f : a;
    float p = bz_muladd(z, 0x1.2d5378p-9f, -0x1.119ce4p-7f);
    p = bz_muladd(p, z, 0x1.64b22ap-6f);
    p = bz_muladd(p, z, -0x1.ba0960p-5f);
    p = bz_muladd(p, z, 0x1.1110ecp-3f);
    p = bz_muladd(p, z, -0x1.555556p-2f);
    float small = bz_muladd(x * z, p, x);
    float large = 1.0f - 2.0f / (bz_small_exp(b + b) + 1.0f);
    return a < 0.625f ? small : __builtin_copysignf(large, x);
}

BZ_INLINE float bz_erf(float x) {
    float a = __builtin_fabsf(x), z = x * x, b = a > 4.0f ? 4.0f : a;
    float p = bz_muladd(z, 0x1.60351ap-14f, -0x1.ab473ap-11f);
    p = bz_muladd(p, z, 0x1.54e624p-8f);
    p = bz_muladd(p, z, -0x1.b811bep-6f);
    p = bz_muladd(p, z, 0x1.ce2e30p-4f);
    p = bz_muladd(p, z, -0x1.812744p-2f);
    p = bz_muladd(p, z, 0x1.06eba8p-3f);
    float small = bz_muladd(x, p, x);
    float q = bz_muladd(b, 0x1.9aeb30p-13f, -0x1.8ee2aep-9f);  // of log(1 - erf)
    q = bz_muladd(q, b, 0x1.6c2b0ap-6f);
    q = bz_muladd(q, b, -0x1.a9b476p-4f);
    q = bz_muladd(q, b, -0x1.463cb6p-1f);
    q = bz_muladd(q, b, -0x1.20af5cp+0f);
    q = bz_muladd(q, b, -0x1.9a4928p-13f);
    float large = 1.0f - bz_small_exp(q);
    return a < 0.925f ? small : __builtin_copysignf(large, x);
}

BZ_INLINE double bz_exp(double x) { return exp(x); }

BZ_INLINE double bz_tanh(double x) { return tanh(x); }

BZ_INLINE double bz_erf(double x) { return erf(x); }

// x where all bits of a mask are set, y where none is: GCC makes a branch of ?: where the condition
// is one for all lanes, and vectorises no loop that holds one.
template <class M, class T> BZ_INLINE T bz_choose(M mask, T x, T y) {
    return (T)((x & (T)mask) | (y & (T)~mask));
}
BZ_INLINE bool bz_choose(bool c, bool x, bool y) { return (c & x) | (!c & y); }
BZ_INLINE float bz_choose(u32 mask, float x, float y) {
    return __builtin_bit_cast(float, bz_choose(mask, __builtin_bit_cast(u32, x), __builtin_bit_cast(u32, y)));
}
BZ_INLINE double bz_choose(u64 mask, double x, double y) {
    return __builtin_bit_cast(double, bz_choose(mask, __builtin_bit_cast(u64, x), __builtin_bit_cast(u64, y)));
}

// NaN wins in the first two, loses in the others.
template <class T> BZ_INLINE T bz_maximum(T x, T y) { return (x > y) | (x != x) ? x : y; }
template <class T> BZ_INLINE T bz_minimum(T x, T y) { return (x < y) | (x != x) ? x : y; }
template <class T> BZ_INLINE T bz_fmax(T x, T y) { return (x > y) | (y != y) ? x : y; }
template <class T> BZ_INLINE T bz_fmin(T x, T y) { return (x < y) | (y != y) ? x : y; }

// Python's division of floats: the remainder has the divisor's sign.
BZ_INLINE float bz_mod(float x, float y) {
    float r = fmodf(x, y);
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}
BZ_INLINE double bz_mod(double x, double y) {
    double r = fmod(x, y);
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}

template <class T> BZ_INLINE T bz_floordiv_of(T x, T y, T r) {
    if (y == 0) return x / y;
    T q = (x - r) / y;
    if ((r != 0) & ((y < 0) != (r < 0))) q -= 1;
    if (q == 0) return bz_copysign((T)0, x / y);
    T whole = bz_floor(q);
    return q - whole > (T)0.5 ? whole + 1 : whole;
}
BZ_INLINE float bz_floordiv(float x, float y) { return bz_floordiv_of(x, y, fmodf(x, y)); }
BZ_INLINE double bz_floordiv(double x, double y) { return bz_floordiv_of(x, y, fmod(x, y)); }

// Integers. A zero divisor sets `bad`; minus one is kept from the divide instruction, which traps.
template <class T> BZ_INLINE T bz_abs(T x) { return x < 0 ? (T)-x : x; }

template <class T> BZ_INLINE T bz_sign(T x) { return (T)((x > 0) - (x < 0)); }

template <class T> BZ_INLINE T bz_truncdiv(T x, T y, int& bad) {
    bad |= (y == 0) << 1;
    if ((y == 0) | (y == (T)-1)) return (T)-1 < 0 ? (T)-x : y == 0 ? x : x == y;
    return (T)(x / y);
}
template <class T> BZ_INLINE T bz_fmod(T x, T y, int& bad) {
    return (T)(x - bz_truncdiv(x, y, bad) * y);
}
template <class T> BZ_INLINE T bz_floordiv(T x, T y, int& bad) {
    T q = bz_truncdiv(x, y, bad), r = (T)(x - q * y);
    return (r != 0) & ((r < 0) != (y < 0)) ? (T)(q - 1) : q;
}
template <class T> BZ_INLINE T bz_mod(T x, T y, int& bad) {
    T r = bz_fmod(x, y, bad);
    return (r != 0) & ((r < 0) != (y < 0)) ? (T)(r + y) : r;
}

template <class T> BZ_INLINE T bz_pow(T x, T n) {
    if (n < 0) return x == 1 ? 1 : x == (T)-1 ? (n % 2 ? (T)-1 : (T)1) : 0;
    T result = 1;
    for (; n; n >>= 1, x = (T)(x * x)) if (n & 1) result = (T)(result * x);
    return result;
}

template <class T> BZ_INLINE T bz_shl(T x, T n) {
    return (u64)n >= sizeof(T) * 8 ? 0 : (T)((u64)x << n);
}
template <class T> BZ_INLINE T bz_shr(T x, T n) {
    return (u64)n >= sizeof(T) * 8 ? (T)(x < 0 ? -1 : 0) : (T)(x >> n);
}

// Conversions. Integers narrower than int go through it, as eager's do.
template <class T, class F> BZ_INLINE T bz_truncate(F x) {
    return sizeof(T) < 4 ? (T)(int)x : (T)x;
}
template <> inline __attribute__((always_inline, unused)) u64 bz_truncate<u64, float>(float x) {
    return x < 0 ? (u64)(i64)x : (u64)x;
}
template <> inline __attribute__((always_inline, unused)) u64 bz_truncate<u64, double>(double x) {
    return x < 0 ? (u64)(i64)x : (u64)x;
}

// Zero, which the compiler takes for any number: what is xored with it is no conversion of a float.
template <class T> BZ_INLINE T bz_zero() {
    T zero = 0;
    __asm__("" : "+r"(zero));
    return zero;
}

// A 16-bit float is kept as its bits; arithmetic happens in float.
BZ_INLINE float bz_from_bfloat(u16 x) { return __builtin_bit_cast(float, (u32)x << 16); }
BZ_INLINE u16 bz_to_bfloat(float x) {
    u32 u = __builtin_bit_cast(u32, x);
    u32 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (u16)(x != x ? 0x7fc0 : rounded);
}

BZ_INLINE float bz_from_half(u16 x) {
    u32 sign = (u32)(x & 0x8000) << 16, magnitude = x & 0x7fff;
    u32 normal = (magnitude << 13) + (magnitude >= 0x7c00 ? 224u << 23 : 112u << 23);
    u32 tiny = __builtin_bit_cast(u32, (float)(int)magnitude * 0x1p-24f);
    return __builtin_bit_cast(float, sign | (magnitude < 0x400 ? tiny : normal));
}

BZ_INLINE u16 bz_to_half(float x) {
    u32 u = __builtin_bit_cast(u32, x), sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
    u32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    u32 tiny = __builtin_bit_cast(u32, shifted) - 0x3f000000;
    u32 finite = magnitude < 0x38800000 ? tiny : normal;
    u32 large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    return (u16)(sign | (magnitude >= 0x477ff000 ? large : finite));
}

BZ_INLINE float bz_from_e4m3(u8 x) {
    u32 sign = (u32)(x & 0x80) << 24, magnitude = x & 0x7f;
    u32 tiny = __builtin_bit_cast(u32, (float)(int)magnitude * 0x1p-9f);
    u32 finite = magnitude < 8 ? tiny : (magnitude << 20) + (120u << 23);
    return __builtin_bit_cast(float, sign | (magnitude == 0x7f ? 0x7fc00000 : finite));
}

BZ_INLINE u8 bz_to_e4m3(float x) {
    u32 u = __builtin_bit_cast(u32, x), sign = (u >> 24) & 0x80, magnitude = u & 0x7fffffff;
    u32 normal = (magnitude + 0x7ffff + ((magnitude >> 20) & 1) - (120u << 23)) >> 20;
    float shifted = __builtin_bit_cast(float, magnitude) + 0x1p14f;
    u32 tiny = __builtin_bit_cast(u32, shifted) - 0x46800000;
    u32 finite = magnitude < 0x3c800000 ? tiny : normal;
    return (u8)(sign | (magnitude >= 0x43f00000 ? 0x7f : finite));
}
// The same, but the largest number for what is larger, infinities among it.
BZ_INLINE u8 bz_to_e4m3_within(float x) {
    float most = 0x1.cp8f, least = -0x1.cp8f;
    return bz_to_e4m3(x > most ? most : x < least ? least : x);
}

BZ_INLINE float bz_from_e5m2(u8 x) { return bz_from_half((u16)(x << 8)); }
BZ_INLINE u8 bz_to_e5m2(float x) {
    u32 u = __builtin_bit_cast(u32, x), sign = (u >> 24) & 0x80, magnitude = u & 0x7fffffff;
    u32 normal = (magnitude + 0xfffff + ((magnitude >> 21) & 1) - (112u << 23)) >> 21;
    float shifted = __builtin_bit_cast(float, magnitude) + 0x1p7f;
    u32 tiny = __builtin_bit_cast(u32, shifted) - 0x43000000;
    u32 finite = magnitude < 0x38800000 ? tiny : normal;
    u32 large = magnitude > 0x7f800000 ? 0x7f : 0x7c;
    return (u8)(sign | (magnitude >= 0x47800000 ? large : finite));
}

// Index arithmetic.
BZ_INLINE i64 bz_min(i64 x, i64 y) { return x < y ? x : y; }
BZ_INLINE i64 bz_max(i64 x, i64 y) { return x > y ? x : y; }

BZ_INLINE i64 bz_floor_div(i64 x, i64 y) { return x / y - ((x % y != 0) & ((x < 0) != (y < 0))); }
BZ_INLINE i64 bz_floor_mod(i64 x, i64 y) {
    i64 r = x % y;
    return r + ((r != 0) & ((r < 0) != (y < 0)) ? y : 0);
}

// Runs tasks [lo, hi) of a kernel. `c` holds the numbers in which kernels of one form differ.
typedef void (*bz_range)(char* const* p, const i64* sizes, const i64* c, i64 lo, i64 hi,
                         int* fault);

// Splits a kernel's tasks over the threads, as far as there is work worth another thread. The
// region always has all threads: libgomp ends and recreates them whenever the number changes.
__attribute__((unused, noinline)) static void bz_run(bz_range range, char* const* p, const i64* sizes,
                                           const i64* c, i64 tasks, i64 worth, int threads,
                                           int* fault) {
    if (tasks < 1) return; // a size of zero: the first task's place would divide by it
    const i64 team = bz_min(bz_min(threads, tasks), worth);
    if (team < 2) {
        range(p, sizes, c, 0, tasks, fault);
        return;
    }
    #pragma omp parallel num_threads(threads)
    {
        const i64 n = bz_min(team, omp_get_num_threads()), me = omp_get_thread_num();
        if (me < n) range(p, sizes, c, tasks * me / n, tasks * (me + 1) / n, fault);
    }
}
