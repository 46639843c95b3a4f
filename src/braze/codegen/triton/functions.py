"""Triton functions that generated kernels call; a kernel's text holds those that it needs."""

from __future__ import annotations

import re

_SOURCE = '''
@triton.jit
def bz_floor_div(a, b):
    """Of an index by a positive divisor."""
    q = a // b
    return tl.where(a % b < 0, q - 1, q)


@triton.jit
def bz_floor_mod(a, b):
    r = a % b
    return tl.where(r < 0, r + b, r)


@triton.jit
def bz_floordiv(a, b):
    q = a // b
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def bz_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def bz_float_mod(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def bz_float_floordiv(a, b):
    r = libdevice.fmod(a, b)
    d = libdevice.div_rn(a - r, b)
    d = tl.where((r != 0) & ((r < 0) != (b < 0)), d - 1, d)
    whole = libdevice.floor(d)
    whole = tl.where(d - whole > 0.5, whole + 1, whole)
    plain = libdevice.div_rn(a, b)
    whole = tl.where(d != 0, whole, libdevice.copysign(d * 0, plain))
    return tl.where(b == 0, plain, whole)


@triton.jit
def bz_from_e4m3(x):
    u = x.to(tl.int32)
    m = u & 127
    small = (m << 20).to(tl.float32, bitcast=True)  # 2**-120 of it, also where it has no exponent
    bits = (small * 1329227995784915872903807060280344576.0).to(tl.int32, bitcast=True)
    sign = (u >> 7) << 31
    return (tl.where(m == 127, 2143289344, bits) | sign).to(tl.float32, bitcast=True)


@triton.jit
def bz_to_e4m3(x):
    """To nearest, to even; no number beyond 464, where the device's conversion saturates."""
    u = x.to(tl.int32, bitcast=True)
    m = u & 2147483647
    normal = (m + 524287 + ((m >> 20) & 1) - 1006632960) >> 20
    tiny = (m.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 1182793728
    finite = tl.where(m < 1015021568, tiny, normal)
    return (tl.where(m >= 1139802112, 127, finite) | ((u >> 24) & 128)).to(tl.uint8)


@triton.jit
def bz_to_e4m3_within(x):
    """The same, but the largest number for what is larger, infinities among it."""
    return bz_to_e4m3(tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x)))


@triton.jit
def bz_from_e5m2(x):
    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def bz_to_e5m2(x):
    u = x.to(tl.int32, bitcast=True)
    m = u & 2147483647
    normal = (m + 1048575 + ((m >> 21) & 1) - 939524096) >> 21
    tiny = (m.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 1124073472
    finite = tl.where(m < 947912704, tiny, normal)
    large = tl.where(m > 2139095040, 127, 124)
    return (tl.where(m >= 1199570944, large, finite) | ((u >> 24) & 128)).to(tl.uint8)


@triton.jit
def bz_sign(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def bz_signbit(a):
    bits: tl.constexpr = tl.int32 if a.dtype.primitive_bitwidth == 32 else tl.int64
    return a.to(bits, bitcast=True) < 0


@triton.jit
def bz_not(a):
    return (a * 0 - 1) ^ a


@triton.jit
def bz_shl(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    good = (b >= 0) & (b < bits)
    return tl.where(good, a << tl.where(good, b, b * 0), a * 0)


@triton.jit
def bz_shr(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    good = (b >= 0) & (b < bits)
    return a >> tl.where(good, b, b * 0 + (bits - 1))


@triton.jit
def bz_power(a, b):
    zero = (a + b) * 0  # what a loop changes keeps its shape: either may be one number
    result = zero + 1
    factor = a + zero
    left = tl.where(b < 0, zero, b)
    for _ in range(a.dtype.primitive_bitwidth):
        result = tl.where((left & 1) != 0, result * factor, result)
        factor = factor * factor
        left = left >> 1
    one = zero + 1
    inverse = tl.where(a == a * 0 - 1, tl.where((b & 1) != 0, -one, one), zero)
    inverse = tl.where(a == 1, one, inverse)
    return tl.where(b < 0, inverse, result)


@triton.jit
def bz_short_erf(x):
    """Abramowitz and Stegun 7.1.26: absolute error below 2e-7."""
    a = tl.abs(x)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.3275911 * a)
    p = 1.061405429 * t - 1.453152027
    p = p * t + 1.421413741
    p = p * t - 0.284496736
    p = p * t + 0.254829592
    y = 1.0 - p * t * tl.exp2(-1.4426950408889634 * a * a)
    return libdevice.copysign(y, x)


@triton.jit
def bz_short_tanh(x):
    a = tl.abs(x)
    e = tl.exp2(-2.8853900817779268 * a)
    y = libdevice.fast_dividef(1.0 - e, 1.0 + e)
    y = tl.where(a < 0.03, a * (1.0 - x * x * 0.33333334), y)
    return libdevice.copysign(y, x)


@triton.jit
def bz_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def bz_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def bz_fmax(a, b):
    return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))


@triton.jit
def bz_fmin(a, b):
    return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))


@triton.jit
def bz_product(a, b):
    return a * b


@triton.jit
def bz_argmax(a, i, b, j):
    """NaN wins, then the greater value, then the earlier position."""
    a_nan = a != a
    b_nan = b != b
    keep = (a > b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def bz_argmin(a, i, b, j):
    """NaN wins, then the smaller value, then the earlier position."""
    a_nan = a != a
    b_nan = b != b
    keep = (a < b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def bz_argmax_later(a, i, b, j):
    """bz_argmax, where j is behind i."""
    take = (b > a) | ((b != b) & (a == a))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def bz_argmin_later(a, i, b, j):
    """bz_argmin, where j is behind i."""
    take = (b < a) | ((b != b) & (a == a))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def bz_pair_first(x):
    """The first of each two neighbours, in both places."""
    a, _ = tl.split(tl.reshape(x, [x.shape[0] // 2, 2]))
    return tl.reshape(tl.join(a, a), x.shape)


@triton.jit
def bz_pair_second(x):
    """The second of each two neighbours, in both places."""
    _, b = tl.split(tl.reshape(x, [x.shape[0] // 2, 2]))
    return tl.reshape(tl.join(b, b), x.shape)


@triton.jit
def bz_first(x):
    """The first of each pair."""
    a, _ = tl.split(x)
    return a


@triton.jit
def bz_second(x):
    """The second of each pair."""
    _, b = tl.split(x)
    return b


@triton.jit
def bz_store_both(at, a, b, mask=None):
    """Write pairs."""
    kind = at.dtype.element_ty
    tl.store(at, tl.join(a.to(kind), b.to(kind)), mask)


@triton.jit
def bz_exp_below(x):
    """exp of what is not positive, to be added to such of zero: none below 2**-126."""
    short: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(short, "=f,f", [x * 1.4426950408889634], tl.float32, True, 1)


@triton.jit
def bz_to_tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1
    )


@triton.jit
def bz_shift(top):
    """What is subtracted before exp: a maximum, where it is one."""
    return tl.where(top == float('-inf'), 0.0, top)


@triton.jit
def bz_add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def bz_meet(arrivals, count):
    """What this program wrote can be read by the others behind it, and what they wrote by this."""
    tl.debug_barrier()
    tl.atomic_add(arrivals, 1, sem='release')
    while tl.atomic_add(arrivals, 0, sem='relaxed') < count:
        pass
    tl.atomic_add(arrivals, 0, sem='acquire')  # once: it empties the first-level cache
    tl.debug_barrier()
'''


def functions_in(text: str) -> list[str]:
    """The source of each function that the text calls, directly or through another one."""
    wanted: dict[str, str] = {}
    pending = sorted(set(_CALL.findall(text)))
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted[name] = _FUNCTIONS[name]
            pending += sorted(set(_CALL.findall(_FUNCTIONS[name])) - {name})
    return [_FUNCTIONS[name] for name in sorted(wanted)]


# --- private ---------------------------------------------------------------------------------

_CALL = re.compile(r"\bbz_\w+")


def _by_name() -> dict[str, str]:
    parts = ["@triton.jit\n" + part.strip() for part in _SOURCE.split("@triton.jit\n")[1:]]
    return {_CALL.findall(part)[0]: part for part in parts}


_FUNCTIONS = _by_name()
