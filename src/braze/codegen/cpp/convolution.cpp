// Convolutions of channels-last images of floats, with what follows them element by element.
//
// A dense one, or one of groups, is a product: rows are the result's pixels, columns its channels,
// and a row of the first matrix is the pixel's window, read where it lies in the image, which is
// copied before with a border of zeros if the window leaves it. Weights are in panels of V vectors
// of channels. Where each channel has a group of its own, vectors go along the channels.
#define BZ_PIXELS 192 // of a task, at most: their windows stay in the second-level cache
#define BZ_WINDOW 384 // elements of a window that are summed at a time
#define BZ_SPANS 128 // contiguous parts of a window, at most
#define BZ_CHANNELS 96 // of an image that are convolved at a time, where each is by itself
#define BZ_STRIP 4 // pixels of a row that share what is read of weights there
#define BZ_ALONE (1 << 18) // multiplications of which one thread is done before another wakes
#define BZ_BORDERED (1 << 20) // elements of images that are copied at a time

struct bz_window {
    i64 n, h, w, ci, co, kh, kw, sh, sw, ph, pw, dh, dw, groups, oh, ow;
};

// After the sums: times scale plus shift, plus added; then the activation. No number stays none.
struct bz_epilogue {
    const float *scale, *shift, *added;
    i64 kind;
    float low, high;
};

enum { BZ_NONE, BZ_RELU, BZ_CLAMP, BZ_HARDSWISH, BZ_HARDSIGMOID, BZ_SIGMOID, BZ_SILU };

BZ_INLINE bz_vector bz_clamped(bz_vector x, float low, float high) {
    const bz_vector least = low - (bz_vector){}, most = high - (bz_vector){};
    return x < least ? least : x > most ? most : x;
}

// sums[R][V] of R pixels, whose results begin at `place` of all, and V vectors of channels.
template <int R, int V>
BZ_INLINE void bz_finish(bz_vector (&sums)[R][V], const bz_epilogue& e, i64 channel, i64 place,
                         i64 step) {
    BZ_UNROLL
    for (int v = 0; v < V; ++v) {
        const bz_vector scale = *(const bz_unaligned*)(e.scale + channel + v * BZ_VW);
        const bz_vector shift = *(const bz_unaligned*)(e.shift + channel + v * BZ_VW);
        BZ_UNROLL
        for (int i = 0; i < R; ++i) sums[i][v] = sums[i][v] * scale + shift;
    }
    if (e.added) {
        const float* const added = e.added + place;
        BZ_UNROLL
        for (int i = 0; i < R; ++i)
            BZ_UNROLL
            for (int v = 0; v < V; ++v)
                sums[i][v] += *(const bz_unaligned*)(added + i * step + v * BZ_VW);
    }
    const bz_vector zero = {};
    const float low = e.low, high = e.high;
#define BZ_EACH(text)                                                                              \
    BZ_UNROLL                                                                                      \
    for (int i = 0; i < R; ++i)                                                                    \
        BZ_UNROLL                                                                                  \
        for (int v = 0; v < V; ++v) {                                                              \
            const bz_vector x = sums[i][v];                                                        \
            sums[i][v] = text;                                                                     \
        }
    switch (e.kind) {
        case BZ_RELU: BZ_EACH((x <= zero ? zero : x)) break;
        case BZ_CLAMP: BZ_EACH(bz_clamped(x, low, high)) break;
        case BZ_HARDSWISH: BZ_EACH(x * bz_clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f) break;
        case BZ_HARDSIGMOID: BZ_EACH(bz_clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f) break;
    }
#undef BZ_EACH
}

// Activations by functions of the mathematical library, of results in the cache: `rows` pixels,
// `step` apart, of `count` channels.
__attribute__((noinline)) static void bz_smooth(i64 rows, i64 count, i64 kind, float* out,
                                                i64 step) {
    for (i64 r = 0; r < rows; ++r, out += step)
        if (kind == BZ_SIGMOID) {
            #pragma omp simd
            for (i64 c = 0; c < count; ++c) out[c] = 1.0f / (1.0f + expf(-out[c]));
        } else if (kind == BZ_SILU) {
            #pragma omp simd
            for (i64 c = 0; c < count; ++c) out[c] = out[c] / (1.0f + expf(-out[c]));
        }
}

// What a block of registers is of: windows of R pixels are `spans` parts of `length` elements,
// places: where each begins, from the pixel's address. The sums are added to `part`, `width` apart,
// if `adds`, and go there, or, if these are the last, with what follows them to `out`.
struct bz_task {
    const float* const* pixels;
    i64 spans;
    const i64* places;
    i64 length;
    const float* panel;
    float* part;
    i64 width;
    bool adds, ends;
    float* out;
    i64 place, step, channel, columns;
};

template <int R, int V>
BZ_CONTRACTS static void bz_windows(const bz_task& t, i64 first, const bz_epilogue& e) {
    BZ_CONTRACT
    bz_vector sums[R][V];
    const float* b = t.panel;
    BZ_UNROLL
    for (int i = 0; i < R; ++i)
        BZ_UNROLL
        for (int v = 0; v < V; ++v) sums[i][v] = (bz_vector){};
    for (i64 s = 0; s < t.spans; ++s) {
        const float* from[R];
        BZ_UNROLL
        for (int i = 0; i < R; ++i) from[i] = t.pixels[first + i] + t.places[s];
        for (i64 k = 0; k < t.length; ++k, b += V * BZ_VW) {
            bz_vector weights[V];
            BZ_UNROLL
            for (int v = 0; v < V; ++v) weights[v] = *(const bz_unaligned*)(b + v * BZ_VW);
            BZ_UNROLL
            for (int i = 0; i < R; ++i) {
                const bz_vector x = from[i][k] - (bz_vector){};
                BZ_UNROLL
                for (int v = 0; v < V; ++v) sums[i][v] += x * weights[v];
            }
        }
    }
    float* const part = t.part + first * t.width;
    if (t.adds)
        BZ_UNROLL
        for (int i = 0; i < R; ++i)
            BZ_UNROLL
            for (int v = 0; v < V; ++v)
                sums[i][v] += *(const bz_unaligned*)(part + i * t.width + v * BZ_VW);
    float* to = part;
    i64 step = t.width;
    alignas(64) float edge[R * V * BZ_VW], added[R * V * BZ_VW];
    const bool whole = t.columns == V * BZ_VW;
    if (t.ends) {
        const i64 place = t.place + first * t.step;
        to = t.out + place;
        step = t.step;
        if (whole)
            bz_finish<R, V>(sums, e, t.channel, place, step);
        else {
            bz_epilogue own = e;
            if (e.added) {
                for (int i = 0; i < R; ++i)
                    for (int c = 0; c < V * BZ_VW; ++c)
                        added[i * V * BZ_VW + c] =
                            c < t.columns ? e.added[place + i * step + c] : 0.0f;
                own.added = added;
            }
            bz_finish<R, V>(sums, own, t.channel, 0, V * BZ_VW);
            to = edge;
            step = V * BZ_VW;
        }
    }
    BZ_UNROLL
    for (int i = 0; i < R; ++i)
        BZ_UNROLL
        for (int v = 0; v < V; ++v) *(bz_unaligned*)(to + i * step + v * BZ_VW) = sums[i][v];
    if (t.ends && !whole)
        for (int i = 0; i < R; ++i)
            for (int c = 0; c < t.columns; ++c)
                t.out[t.place + (first + i) * t.step + c] = edge[i * V * BZ_VW + c];
}

template <int V> static void bz_all_windows(const bz_task& t, i64 count, const bz_epilogue& e) {
    constexpr int R = V == 1 ? 8 : BZ_VW == 16 ? 12 : 6; // sums in registers, addresses too
    i64 m = 0;
    for (; m + R <= count; m += R) bz_windows<R, V>(t, m, e);
    if (R > 8 && m + 8 <= count) bz_windows<8, V>(t, m, e), m += 8;
    if (R > 4 && m + 4 <= count) bz_windows<4, V>(t, m, e), m += 4;
    while (m + 2 <= count) bz_windows<2, V>(t, m, e), m += 2;
    if (m < count) bz_windows<1, V>(t, m, e);
}

// The image with borders of zeros, or as it is; windows of a pixel have `spans` parts.
struct bz_source {
    const float* image;
    i64 h, w, spans, length;
    const i64* places;
};

// Channels of a group, with those that fill its last vector: panels are two vectors wide, but for
// the last, which may be one.
static i64 bz_padded(i64 made) { return (made + BZ_VW - 1) / BZ_VW * BZ_VW; }

// Pixels from `first` on, counted through all images, and panels of a group's channels.
static void bz_convolve_block(const bz_window& q, const bz_source& s, i64 group, i64 first,
                              i64 last, i64 panel, i64 panels, const float* weights,
                              const bz_epilogue& e, float* out) {
    constexpr i64 wide = BZ_NR;
    const float* pixels[BZ_PIXELS];
    const i64 made = q.co / q.groups, total = s.spans * s.length, count = last - first;
    const float* const from = s.image + group * (q.ci / q.groups);
    i64 x = first % q.ow, y = first / q.ow % q.oh, n = first / q.ow / q.oh;
    for (i64 m = 0; m < count; ++m) {
        pixels[m] = from + ((n * s.h + y * q.sh) * s.w + x * q.sw) * q.ci;
        if (++x == q.ow) {
            x = 0;
            if (++y == q.oh) y = 0, ++n;
        }
    }
    const i64 pieces = s.length <= BZ_WINDOW ? 1 : (s.length + BZ_WINDOW - 1) / BZ_WINDOW;
    const i64 length = (s.length + pieces - 1) / pieces;
    const i64 rounds = (s.spans * length + BZ_WINDOW - 1) / BZ_WINDOW;
    const i64 spans = pieces > 1 ? 1 : (s.spans + rounds - 1) / rounds;
    const i64 padded = bz_padded(made);
    alignas(64) float part[BZ_PIXELS * wide];
    for (i64 t = 0; t < s.spans; t += spans)
        for (i64 k = 0; k < s.length; k += length) {
            const i64 some = bz_min(s.spans - t, spans), size = bz_min(s.length - k, length);
            i64 places[BZ_SPANS];
            for (i64 i = 0; i < some; ++i) places[i] = s.places[t + i] + k;
            for (i64 j = panel; j < panels; ++j) {
                const i64 columns = bz_min(made - j * wide, wide);
                const i64 place = first * q.co + group * made + j * wide;
                const i64 channel = group * padded + j * wide, size_of = bz_min(padded - j * wide, wide);
                bz_task task{pixels, some, places, size};
                task.panel = weights + channel * total + (t * s.length + k) * size_of;
                task.part = columns == size_of ? out + place : part;
                task.width = columns == size_of ? q.co : size_of;
                task.adds = t || k;
                task.ends = t + some == s.spans && k + size == s.length;
                task.out = out;
                task.place = place;
                task.step = q.co;
                task.channel = channel;
                task.columns = columns;
                if (size_of == BZ_VW) bz_all_windows<1>(task, count, e);
                else bz_all_windows<2>(task, count, e);
                if (task.ends && e.kind >= BZ_SIGMOID)
                    bz_smooth(count, columns, e.kind, out + place, q.co);
            }
        }
}

alignas(64) static const float bz_zeros[BZ_VW] = {};

// A strip of pixels of a row of a result: `x` is the first one, `row` where the window of pixel 0
// would begin in the image without borders. down, last: the rows of the window that lie in it.
// count: channels from `channel` on, at least a vector. place: of the row in the result.
struct bz_strip {
    const float* row;
    i64 x, down, last, channel, count, place;
    const float* weights;
    float* out;
};

BZ_INLINE void bz_end_strip(bz_vector (&sums)[BZ_STRIP][1], const bz_window& q, const bz_strip& t,
                            i64 at, const bz_epilogue& e) {
    const i64 target = t.place + t.x * q.ci + at;
    bz_finish<BZ_STRIP, 1>(sums, e, at, target, q.ci);
    BZ_UNROLL
    for (int i = 0; i < BZ_STRIP; ++i) *(bz_unaligned*)(t.out + target + i * q.ci) = sums[i][0];
}

// All columns of all windows lie in the image. KW, SW: as in q.
template <int KW, int SW>
BZ_CONTRACTS static void bz_inner_strip(const bz_window& q, const bz_strip& t,
                                        const bz_epilogue& e) {
    BZ_CONTRACT
    constexpr int count = (BZ_STRIP - 1) * SW + KW; // columns of the image, each read once
    const i64 line = q.dh * q.w * q.ci;
    for (i64 c = 0; c < t.count; c += BZ_VW) {
        const i64 at = t.channel + bz_min(c, t.count - BZ_VW); // the last vector may overlap
        const float* p = t.row + t.x * SW * q.ci + at + t.down * line;
        const float* own = t.weights + t.down * KW * q.ci + at;
        bz_vector sums[BZ_STRIP][1] = {};
        for (i64 a = t.down; a < t.last; ++a, p += line) {
            bz_vector image[count];
            const float* next = p;
            BZ_UNROLL
            for (int b = 0; b < count; ++b, next += q.ci) image[b] = *(const bz_unaligned*)next;
            BZ_UNROLL
            for (int b = 0; b < KW; ++b, own += q.ci) {
                const bz_vector weight = *(const bz_unaligned*)own;
                BZ_UNROLL
                for (int i = 0; i < BZ_STRIP; ++i) sums[i][0] += image[i * SW + b] * weight;
            }
        }
        bz_end_strip(sums, q, t, at, e);
    }
}

// Columns may lie outside; any window, stride and dilation.
BZ_CONTRACTS static void bz_any_strip(const bz_window& q, const bz_strip& t, const bz_epilogue& e) {
    BZ_CONTRACT
    const i64 left = t.x * q.sw - q.pw;
    for (i64 c = 0; c < t.count; c += BZ_VW) {
        const i64 at = t.channel + bz_min(c, t.count - BZ_VW);
        bz_vector sums[BZ_STRIP][1] = {};
        for (i64 a = t.down; a < t.last; ++a) {
            const float* const p = t.row + (a * q.dh * q.w + t.x * q.sw) * q.ci + at;
            const float* own = t.weights + a * q.kw * q.ci + at;
            for (i64 b = 0; b < q.kw; ++b, own += q.ci) {
                const bz_vector weight = *(const bz_unaligned*)own;
                BZ_UNROLL
                for (int i = 0; i < BZ_STRIP; ++i) {
                    const i64 x = i * q.sw + b * q.dw;
                    const bool inside = (u64)(left + x) < (u64)q.w;
                    sums[i][0] += *(const bz_unaligned*)(inside ? p + x * q.ci : bz_zeros) * weight;
                }
            }
        }
        bz_end_strip(sums, q, t, at, e);
    }
}

// Brings the part below a strip of rows, which windows of the next row of the result begin to read,
// into the cache: pixels are read too far apart for the processor to foresee.
static void bz_fetch_ahead(const bz_window& q, const float* image, i64 row, i64 end, i64 x) {
    const i64 first = x * q.sw * q.ci, count = bz_min(BZ_STRIP * q.sw * q.ci, q.w * q.ci - first);
    for (; row < end; ++row) {
        const float* const p = image + row * q.w * q.ci + first;
        for (i64 i = 0; i < count; i += 16) __builtin_prefetch(p + i, 0, 2);
    }
}

// A row of the result, of at least a strip, where each channel is by itself. Weights: kh, kw,
// channels.
static void bz_depthwise(const bz_window& q, const float* image, i64 row, const float* weights,
                         const bz_epilogue& e, float* out) {
    const i64 n = row / q.oh, top = row % q.oh * q.sh - q.ph, wide = q.dw * (q.kw - 1) + 1;
    bz_strip t;
    t.down = top < 0 ? (-top + q.dh - 1) / q.dh : 0;
    t.last = bz_min(q.kh, (q.h - top + q.dh - 1) / q.dh);
    t.row = image + ((n * q.h + top) * q.w - q.pw) * q.ci;
    t.place = row * q.ow * q.ci;
    t.weights = weights;
    t.out = out;
    const i64 next = top + q.dh * (q.kh - 1) + 1, end = bz_min(next + q.sh, q.h);
    const i64 pieces = (q.ci + BZ_CHANNELS - 1) / BZ_CHANNELS;
    const i64 size = bz_padded((q.ci + pieces - 1) / pieces);
    auto inner = bz_any_strip;
    if (q.dw == 1 && q.sw == 1) inner = q.kw == 3 ? bz_inner_strip<3, 1> : inner;
    if (q.dw == 1 && q.sw == 2) inner = q.kw == 3 ? bz_inner_strip<3, 2> : inner;
    if (q.dw == 1 && q.sw == 1) inner = q.kw == 5 ? bz_inner_strip<5, 1> : inner;
    if (q.dw == 1 && q.sw == 2) inner = q.kw == 5 ? bz_inner_strip<5, 2> : inner;
    for (i64 c = 0; c < q.ci; c += size) {
        const i64 count = bz_min(size, q.ci - c);
        t.count = count < BZ_VW ? BZ_VW : count; // the last piece may be less than a vector
        t.channel = c + count - t.count;
        for (i64 x = 0; x < q.ow; x += BZ_STRIP) {
            t.x = bz_min(x, q.ow - BZ_STRIP); // the last strip may overlap
            const i64 left = t.x * q.sw - q.pw;
            const bool inside = left >= 0 && left + (BZ_STRIP - 1) * q.sw + wide <= q.w;
            if (c == 0) bz_fetch_ahead(q, image, n * q.h + next, n * q.h + end, t.x);
            (inside ? inner : bz_any_strip)(q, t, e);
        }
    }
    if (e.kind >= BZ_SIGMOID) bz_smooth(1, q.ow * q.ci, e.kind, out + t.place, 0);
}

// Rows of images, within borders of zeros.
static void bz_border(const bz_window& q, const float* image, i64 row, float* to) {
    const i64 high = q.h + 2 * q.ph, wide = q.w + 2 * q.pw, y = row % high - q.ph;
    float* const line = to + row * wide * q.ci;
    const i64 size = sizeof(float) * q.ci;
    if (y < 0 || y >= q.h) {
        __builtin_memset(line, 0, wide * size);
        return;
    }
    __builtin_memset(line, 0, q.pw * size);
    __builtin_memcpy(line + q.pw * q.ci, image + (row / high * q.h + y) * q.w * q.ci, q.w * size);
    __builtin_memset(line + (q.pw + q.w) * q.ci, 0, q.pw * size);
}

// Images at once: as many as are copied at a time.
static i64 bz_images(const bz_window& q) {
    if (!(q.ph | q.pw)) return q.n;
    const i64 one = (q.h + 2 * q.ph) * (q.w + 2 * q.pw) * q.ci, some = BZ_BORDERED / one;
    return some < 1 ? 1 : bz_min(some, q.n);
}

static void bz_dense(bz_window q, const float* image, const float* weights, bz_epilogue e,
                     float* out, float* copy, int threads) {
    const bool borders = q.ph | q.pw, joins = q.dw == 1 && q.groups == 1;
    i64 places[BZ_SPANS];
    const i64 high = q.h + 2 * q.ph, wide = q.w + 2 * q.pw;
    const i64 own = q.ci / q.groups, across = joins ? 1 : q.kw;
    for (i64 a = 0; a < q.kh; ++a)
        for (i64 b = 0; b < across; ++b)
            places[a * across + b] = (a * q.dh * wide + b * q.dw) * q.ci;
    const bz_source s{copy, high, wide, q.kh * across, joins ? q.kw * own : own, places};
    const i64 all = q.n, some = bz_images(q);
    const i64 panels = (q.co / q.groups + BZ_NR - 1) / BZ_NR;
    for (i64 n = 0; n < all; n += some) {
        q.n = bz_min(some, all - n);
        const float* const from = image + n * q.h * q.w * q.ci;
        float* const to = out + n * q.oh * q.ow * q.co;
        bz_epilogue own_epilogue = e;
        if (e.added) own_epilogue.added = e.added + n * q.oh * q.ow * q.co;
        const i64 count = q.n * q.oh * q.ow;
        i64 pixels = bz_min(count, BZ_PIXELS);
        if (threads > 1) pixels = bz_min(pixels, (count / (4 * threads) / 6 + 1) * 6);
        const i64 blocks = (count + pixels - 1) / pixels;
        i64 parts = q.groups * blocks < 2 * threads ? bz_min(panels, threads) : 1;
        const i64 each = (panels + parts - 1) / parts, tasks = q.groups * blocks * parts;
        #pragma omp parallel num_threads(threads)
        {
            const i64 team = omp_get_num_threads(), me = omp_get_thread_num();
            if (borders) {
                const i64 rows = q.n * high;
                for (i64 r = rows * me / team; r < rows * (me + 1) / team; ++r)
                    bz_border(q, from, r, copy);
                #pragma omp barrier
            }
            for (i64 t = tasks * me / team; t < tasks * (me + 1) / team; ++t) {
                const i64 part = t % parts, block = t / parts / q.groups;
                const i64 group = t / parts % q.groups;
                bz_source own_source = s;
                if (!borders) own_source.image = from;
                const i64 end = bz_min(count, (block + 1) * pixels);
                const i64 last = bz_min(panels, (part + 1) * each);
                bz_convolve_block(q, own_source, group, block * pixels, end, part * each, last,
                                  weights, own_epilogue, to);
            }
        }
    }
}

static bool bz_is_depthwise(const bz_window& q) {
    return q.groups > 1 && q.groups == q.ci && q.ci == q.co;
}

// activation((convolution * scale + shift) + added); image, added and out: channels last; weights:
// as bz_pack_convolution leaves them; scale, shift: a number a channel, groups padded to panels;
// added: may be null; copy: bz_convolution_copy floats.
extern "C" __attribute__((visibility("default"))) void bz_convolution(
    const i64* sizes, const float* image, const float* weights, const float* scale,
    const float* shift, const float* added, i64 kind, float low, float high, float* out,
    float* copy, int threads) {
    const bz_window& q = *(const bz_window*)sizes;
    const i64 window = q.ci / q.groups * q.kh * q.kw;
    if (q.n * q.oh * q.ow * q.co * window < BZ_ALONE) threads = 1;
    const bz_epilogue e{scale, shift, added, kind, low, high};
    if (!bz_is_depthwise(q)) return bz_dense(q, image, weights, e, out, copy, threads);
    const i64 rows = q.n * q.oh;
    #pragma omp parallel num_threads(threads)
    {
        const i64 team = omp_get_num_threads(), me = omp_get_thread_num();
        for (i64 r = rows * me / team; r < rows * (me + 1) / team; ++r)
            bz_depthwise(q, image, r, weights, e, out);
    }
}

// How many floats the images take that are copied with borders of zeros.
extern "C" __attribute__((visibility("default"))) i64 bz_convolution_copy(const i64* sizes) {
    const bz_window& q = *(const bz_window*)sizes;
    if (bz_is_depthwise(q) || !(q.ph | q.pw)) return 0;
    return bz_images(q) * (q.h + 2 * q.ph) * (q.w + 2 * q.pw) * q.ci;
}

// How many channels of the result a group's panels have, padding included.
extern "C" __attribute__((visibility("default"))) i64 bz_convolution_padded(const i64* sizes) {
    const bz_window& q = *(const bz_window*)sizes;
    return bz_is_depthwise(q) ? 1 : bz_padded(q.co / q.groups);
}

// weight: a channel of the result, one of the image, rows and columns of the window, `steps` apart;
// to: groups x padded channels x elements of a window.
extern "C" __attribute__((visibility("default"))) void bz_pack_convolution(
    const i64* sizes, const i64* steps, const float* weight, float* to) {
    const bz_window& q = *(const bz_window*)sizes;
    const i64 own = q.ci / q.groups, wide = q.co / q.groups;
    const bool alone = bz_is_depthwise(q);
    const i64 groups = alone ? 1 : q.groups, columns = alone ? q.co : wide;
    for (i64 g = 0; g < groups; ++g)
        for (i64 j = 0; j < columns; j += alone ? q.co : BZ_NR) {
            const i64 panel = alone ? q.co : bz_min(bz_padded(wide) - j, BZ_NR);
            for (i64 a = 0; a < q.kh; ++a)
                for (i64 b = 0; b < q.kw; ++b)
                    for (i64 c = 0; c < own; ++c)
                        for (i64 o = 0; o < panel; ++o) {
                            const i64 row = (g * columns + j + o) * steps[0] + c * steps[1];
                            const float* const own_weight = weight + row + a * steps[2];
                            *to++ = j + o < columns ? own_weight[b * steps[3]] : 0.0f;
                        }
        }
}
