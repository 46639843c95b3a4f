// Special functions, in units that use one. Each is computed in double precision and rounded once.
// Formula numbers are those of the NIST Digital Library of Mathematical Functions (dlmf.nist.gov).
extern "C" {
double j0(double) noexcept;
double j1(double) noexcept;
double y0(double) noexcept;
double y1(double) noexcept;
}
#define BZ_SPECIAL static __attribute__((noinline, unused))
#define BZ_SPECIAL1(op)                                                                             \
    BZ_INLINE float bz_##op(float x) { return (float)special_##op((double)x); }                     \
    BZ_INLINE double bz_##op(double x) { return special_##op(x); }
#define BZ_SPECIAL2(op)                                                                             \
    BZ_INLINE float bz_##op(float x, float y) { return (float)special_##op((double)x, (double)y); } \
    BZ_INLINE double bz_##op(double x, double y) { return special_##op(x, y); }
static const double BZ_PI = 0x1.921fb54442d18p+1, BZ_EULER = 0x1.2788cfc6fb619p-1;
static const double BZ_INFINITY = __builtin_inf(), BZ_NAN = __builtin_nan("");

// --- gamma and zeta ---

// 5.11.2 from 10 on; 5.5.2 below; 5.5.4 for negative arguments.
BZ_SPECIAL double special_digamma(double x) {
    double value = 0;
    if (x == 0) return __builtin_copysign(BZ_INFINITY, -x);
    if (x < 0) {
        double fraction = x - __builtin_trunc(x);
        if (!(fraction != 0)) return BZ_NAN;
        value = -BZ_PI / tan(BZ_PI * fraction);
        x = 1 - x;
    }
    for (; x < 10; x += 1) value -= 1 / x;
    double z = 1 / (x * x), series = 1.0 / 12;
    series = series * z - 691.0 / 32760;
    series = series * z + 1.0 / 132;
    series = series * z - 1.0 / 240;
    series = series * z + 1.0 / 252;
    series = series * z - 1.0 / 120;
    series = series * z + 1.0 / 12;
    return value + log(x) - 0.5 / x - z * series;
}
BZ_SPECIAL1(digamma)

// Euler and Maclaurin's sum, 25.11.5, from the first shifted argument above nine.
BZ_SPECIAL double special_zeta(double s, double q) {
    static const double factors[] = {  // B(2k) / (2k)!
        1.0 / 12,           -1.0 / 720,          1.0 / 30240,
        -1.0 / 1209600,     1.0 / 47900160,      -691.0 / 1307674368000.0,
        1.0 / 74724249600.0, -3617.0 / 10670622842880000.0};
    if (s == 1) return BZ_INFINITY;
    if (!(s > 1)) return BZ_NAN;
    if (q <= 0 && q == __builtin_floor(q)) return BZ_INFINITY;
    if (q <= 0 && s != __builtin_floor(s)) return BZ_NAN;
    double value = 0, a = q;
    for (int k = 0; k < 9 || a <= 9; k++, a += 1) {
        double term = pow(a, -s);
        value += term;
        if (__builtin_fabs(term) < 1e-17 * __builtin_fabs(value)) return value;
    }
    double power = pow(a, -s), rising = s / a;
    value += power * (a / (s - 1) + 0.5);
    for (int k = 0; k < 8; k++) {
        value += factors[k] * rising * power;
        rising *= (s + 2 * k + 1) * (s + 2 * k + 2) / (a * a);
    }
    return value;
}
BZ_SPECIAL2(zeta)

// 5.15.6 below one half. The sine of an argument in its own precision: at the poles, which are not
// representable, eager's value is the rounding error of that sine.
template <class T> BZ_SPECIAL T bz_trigamma(T x) {
    if (!(x < (T)0.5)) return x == (T)BZ_INFINITY ? 0 : (T)special_zeta(2, x);
    T sine = bz_sin((T)BZ_PI * x);
    return (T)(BZ_PI * BZ_PI / ((double)sine * (double)sine) - special_zeta(2, 1 - (double)x));
}

// --- error function ---

// e^(x^2) erfc(x): the rounding error of x^2 is made up for; 7.12.1 from 25 on.
BZ_SPECIAL double special_erfcx(double x) {
    if (x < 25) {
        double high = x * x, low = __builtin_fma(x, x, -high);
        return high > 709 ? BZ_INFINITY : exp(high) * (1 + low) * erfc(x);
    }
    double z = 0.5 / (x * x);
    return (1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z * (1 - 11 * z)))))) *
            0x1.20dd750429b6dp-1 / x;
}
BZ_SPECIAL1(erfcx)

// Where erfc is c, 0 < c < 1: Winitzki's estimate ("A handy approximation for the error function
// and its inverse", 2008), then Newton's steps on the logarithm.
BZ_SPECIAL double inverse_erfc(double c) {
    double target = log(c), b = log(c * (2 - c)), a = 2 / (BZ_PI * 0.147) + b / 2;
    double x = __builtin_sqrt(__builtin_sqrt(a * a - b / 0.147) - a);
    for (int step = 0; step < 4; step++) {
        double scaled = special_erfcx(x);
        x += (log(scaled) - x * x - target) * scaled * 0x1.c5bf891b4ef6ap-1;
    }
    return x;
}
BZ_SPECIAL double special_erfinv(double y) {
    double a = __builtin_fabs(y);
    if (!(a <= 1)) return BZ_NAN;
    if (a == 1) return __builtin_copysign(BZ_INFINITY, y);
    if (a > 0.5) return __builtin_copysign(inverse_erfc(1 - a), y);
    double x = y * 0x1.c5bf891b4ef6ap-1 * (1 + y * y * 0.2617993877991494);
    for (int step = 0; step < 3; step++) {  // Halley's
        double u = (erf(x) - y) * 0x1.c5bf891b4ef6ap-1 * exp(x * x);
        x -= u / (1 + x * u);
    }
    return x;
}
BZ_SPECIAL1(erfinv)
BZ_SPECIAL double special_ndtri(double p) {
    const double root = 0x1.6a09e667f3bcdp+0;
    if (!(p >= 0 && p <= 1)) return BZ_NAN;
    if (p == 0 || p == 1) return p == 0 ? -BZ_INFINITY : BZ_INFINITY;
    if (p < 0.25) return -root * inverse_erfc(2 * p);
    if (p > 0.75) return root * inverse_erfc(2 * (1 - p));
    return root * special_erfinv(2 * p - 1);
}
BZ_SPECIAL1(ndtri)
BZ_SPECIAL double special_log_ndtr(double x) {
    double t = x * 0x1.6a09e667f3bcdp-1;
    return x < -1 ? log(special_erfcx(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}
BZ_SPECIAL1(log_ndtr)

// --- Bessel functions ---

// Of infinity eager makes NaN.
BZ_SPECIAL double special_bessel_j0(double x) { return x - x == 0 ? j0(x) : BZ_NAN; }
BZ_SPECIAL1(bessel_j0)
BZ_SPECIAL double special_bessel_j1(double x) { return x - x == 0 ? j1(x) : BZ_NAN; }
BZ_SPECIAL1(bessel_j1)
BZ_SPECIAL double special_bessel_y0(double x) {
    return x > 0 && x < BZ_INFINITY ? y0(x) : x == 0 ? -BZ_INFINITY : BZ_NAN;
}
BZ_SPECIAL1(bessel_y0)
BZ_SPECIAL double special_bessel_y1(double x) {
    return x > 0 && x < BZ_INFINITY ? y1(x) : x == 0 ? -BZ_INFINITY : BZ_NAN;
}
BZ_SPECIAL1(bessel_y1)

// 10.17.1's coefficients: the sum over k of a(k) (sign / x)^k, as long as terms get smaller.
BZ_SPECIAL double asymptotic_sum(double order, double x, double sign) {
    double value = 1, term = 1;
    for (int k = 1; k < 40 && __builtin_fabs(term) > 1e-17; k++) {
        double odd = 2 * k - 1;
        term *= sign * (4 * order * order - odd * odd) / (8 * k * x);
        value += term;
    }
    return value;
}
// e^-x I(x) for x >= 0, order 0 or 1: 10.25.2 or 10.40.1.
BZ_SPECIAL double scaled_bessel_i(int order, double x) {
    if (x > 20) return asymptotic_sum(order, x, -1) / __builtin_sqrt(2 * BZ_PI * x);
    double z = x * x / 4, term = order ? x / 2 : 1, value = term;
    for (int k = 1; term > 1e-17 * value; k++) {
        term *= z / (k * (k + order));
        value += term;
    }
    return value * exp(-x);
}
BZ_SPECIAL double special_i0e(double x) { return scaled_bessel_i(0, __builtin_fabs(x)); }
BZ_SPECIAL1(i0e)
BZ_SPECIAL double special_i1e(double x) {
    return __builtin_copysign(scaled_bessel_i(1, __builtin_fabs(x)), x);
}
BZ_SPECIAL1(i1e)
BZ_SPECIAL double special_i0(double x) {
    double half = exp(__builtin_fabs(x) / 2);
    return special_i0e(x) * half * half;
}
BZ_SPECIAL1(i0)
BZ_SPECIAL double special_i1(double x) {
    double half = exp(__builtin_fabs(x) / 2);
    return special_i1e(x) * half * half;
}
BZ_SPECIAL1(i1)

// e^x K(x): 10.31.1 up to two; the trapezoidal rule on 10.32.9; 10.40.2 from twenty on.
BZ_SPECIAL double scaled_bessel_k(int order, double x) {
    if (!(x > 0)) return x == 0 ? BZ_INFINITY : BZ_NAN;
    if (x > 20) return asymptotic_sum(order, x, 1) * __builtin_sqrt(BZ_PI / (2 * x));
    if (x > 2) {
        const double step = 0.125, growth = 2 * 0x1.0200aac16db6fp+0;  // cosh(step)
        double value = 0.5, before = growth / 2, here = 1;
        for (int k = 1; k < 32; k++) {
            double next = growth * here - before;
            before = here, here = next;
            value += exp(-x * (here - 1)) * (order ? here : 1);
        }
        return value * step;
    }
    double z = x * x / 4, term = order ? x / 2 : 1, harmonic = 2 * -BZ_EULER + order, value = 0;
    for (int k = 1; term > 1e-18; k++) {
        value += term * (harmonic / 2 - log(x / 2));
        term *= z / (k * (k + order));
        harmonic += 1.0 / k + 1.0 / (k + order);
    }
    return (order ? 1 / x - value : value) * exp(x);
}
BZ_SPECIAL double special_bessel_k0e(double x) { return scaled_bessel_k(0, x); }
BZ_SPECIAL1(bessel_k0e)
BZ_SPECIAL double special_bessel_k1e(double x) { return scaled_bessel_k(1, x); }
BZ_SPECIAL1(bessel_k1e)
BZ_SPECIAL double special_bessel_k0(double x) { return scaled_bessel_k(0, x) * exp(-x); }
BZ_SPECIAL1(bessel_k0)
BZ_SPECIAL double special_bessel_k1(double x) { return scaled_bessel_k(1, x) * exp(-x); }
BZ_SPECIAL1(bessel_k1)

// --- orthogonal polynomials, 18.9.1 and table 18.5.1; the degree is truncated to an integer ---

// Chebyshev's of four kinds differ in the one of degree one, 2 x + shift (x for the first kind).
BZ_SPECIAL double chebyshev_recurrence(double x, i64 n, double second) {
    double before = 1, here = second;
    if (n < 1) return n < 0 ? 0 : 1;
    for (i64 k = 1; k < n && here == here; k++) {
        double next = 2 * x * here - before;
        before = here, here = next;
    }
    return here;
}
BZ_SPECIAL double special_chebyshev_t(double x, double degree) {
    i64 n = (i64)degree;
    if (n > 6 && __builtin_fabs(x) < 1) return cos((double)n * acos(x));
    return chebyshev_recurrence(x, n, x);
}
BZ_SPECIAL2(chebyshev_t)
BZ_SPECIAL double special_chebyshev_u(double x, double degree) {
    i64 n = (i64)degree;
    double angle = acos(x);
    if (n > 8 && __builtin_fabs(x) < 1) return sin((double)(n + 1) * angle) / sin(angle);
    return chebyshev_recurrence(x, n, 2 * x);
}
BZ_SPECIAL2(chebyshev_u)
BZ_SPECIAL double special_chebyshev_v(double x, double degree) {
    i64 n = (i64)degree;
    double angle = acos(x);
    if (n > 8 && __builtin_fabs(x) < 1) return cos(((double)n + 0.5) * angle) / cos(angle / 2);
    return chebyshev_recurrence(x, n, 2 * x - 1);
}
BZ_SPECIAL2(chebyshev_v)
BZ_SPECIAL double special_chebyshev_w(double x, double degree) {
    i64 n = (i64)degree;
    double angle = acos(x);
    if (n > 8 && __builtin_fabs(x) < 1) return sin(((double)n + 0.5) * angle) / sin(angle / 2);
    return chebyshev_recurrence(x, n, 2 * x + 1);
}
BZ_SPECIAL2(chebyshev_w)

// Eager has no Hermite polynomials above a degree that overflows.
template <class T> BZ_SPECIAL T hermite(T x, T degree, double scale) {
    i64 n = (i64)degree;
    double before = 0, here = 1;
    if (n > (sizeof(T) == 4 ? 128 : 512)) return (T)BZ_NAN;
    if (n < 0) return 0;
    for (i64 k = 0; k < n && here == here; k++) {
        double next = scale * (x * here - (double)k * before);
        before = here, here = next;
    }
    return (T)here;
}
template <class T> BZ_INLINE T bz_hermite_h(T x, T degree) { return hermite(x, degree, 2); }
template <class T> BZ_INLINE T bz_hermite_he(T x, T degree) { return hermite(x, degree, 1); }
BZ_SPECIAL double special_laguerre_l(double x, double degree) {
    i64 n = (i64)degree;
    double before = 0, here = 1;
    if (n < 0) return 0;
    for (i64 k = 0; k < n && here == here; k++) {
        double next = ((2.0 * k + 1 - x) * here - (double)k * before) / (double)(k + 1);
        before = here, here = next;
    }
    return here;
}
BZ_SPECIAL2(laguerre_l)
BZ_SPECIAL double special_legendre_p(double x, double degree) {
    i64 n = (i64)degree;
    double before = 0, here = 1;
    if (n < 0) return 0;
    for (i64 k = 0; k < n && here == here; k++) {
        double next = ((2.0 * k + 1) * x * here - (double)k * before) / (double)(k + 1);
        before = here, here = next;
    }
    return here;
}
BZ_SPECIAL2(legendre_p)

// --- integers and bits ---

template <class T> BZ_SPECIAL T bz_gcd(T x, T y) {
    x = x < 0 ? (T)-x : x, y = y < 0 ? (T)-y : y;
    while (x != 0) {
        T rest = (T)(y % x);
        y = x, x = rest;
    }
    return y;
}
BZ_SPECIAL double special_frexp_mantissa(double x) {
    int exponent;
    return __builtin_frexp(x, &exponent);
}
BZ_SPECIAL1(frexp_mantissa)
BZ_SPECIAL double special_frexp_exponent(double x) {
    int exponent = 0;
    double mantissa = __builtin_frexp(x, &exponent);
    return mantissa - mantissa == 0 ? exponent : 0;
}
BZ_SPECIAL1(frexp_exponent)
