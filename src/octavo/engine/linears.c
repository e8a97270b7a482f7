/* Linear layers on a CPU: out = x * weight^T + bias, for the few rows of a decode step and for many.
 *
 * Plain weights are read where they lie, a row of them for each output, in float32 or bfloat16. Work
 * is cut into strips of OUTS outputs, which stay in the cache while PANEL rows of x pass by.
 *
 * Where the processor multiplies tiles of bfloat16, strips are TILE outputs wide: their weights, a
 * row for each, are one side of a product as they lie, and rows of x, packed once a call, the other.
 *
 * Quantised weights are numbers of 8 or 4 bits in groups of GROUP, packed by tiles of TILE outputs.
 * Inputs are rounded to 15 bits, each group of a row with a scale of its own, and kept as two digits
 * of 8 bits, so that products are sums of integers. Outputs of a tile are summed side by side, from
 * group to group in float32.
 *
 * A sum is taken in an order that depends on the width alone: a row's result is the same to the bit
 * beside any others and with any number of threads.
 */

#define _DEFAULT_SOURCE /* for syscall() */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#if defined __linux__ && defined __AMX_BF16__ && defined __AVX512BF16__ && defined __AVX512BW__ && \
    defined __AVX512VL__
#define HAS_TILES /* registers of TILE rows of 64 bytes, for processes that may use them */
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef __AVX512F__
enum { LANES = 16, OUTS = 6, ROWS = 4 }; /* sums that fit into 32 registers */
#else
enum { LANES = 8, OUTS = 4, ROWS = 2 }; /* into 16 */
#endif

enum {
    GROUP = 32,   /* elements that share a scale */
    TILE = 16,    /* outputs of quantised weights that lie side by side; rows and outputs of tiles */
    PANEL = 64,   /* rows of x that pass by a strip: at widths that are usual they stay in the L2 */
    FEW = 8,      /* rows summed at once at most; more are worth writing a strip down as float32 */
    CHUNK = 8,    /* strips a thread takes at once */
    TILES = 2,    /* tiles of quantised weights */
    WIDE = 4,     /* strips of TILE outputs */
    AHEAD = 4096,  /* bytes of tiles that are asked for before they are needed */
    SMALL = 65536, /* products that are not worth another thread */
};

/* The last two: bfloat16, multiplied by tiles, or two to a lane. */
enum kind { FP32, BF16, INT8, INT4, TILED, PAIRED };

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef int8_t signed_bytes __attribute__((vector_size(LANES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* A layer; the fields of KernelPart in the same order. */
struct part {
    const char *weight; /* [outs, width], or packed by tiles: [tiles, groups], struct int8 or int4 */
    const void *bias;   /* [outs] of the element type of x, or NULL */
    int64_t outs;
};

/* Layers of the same kind that take the same x; the fields of KernelLayers in the same order. */
struct layers {
    const struct part *parts;
    int64_t count, width, kind;
};

/* A group of packed weights. Four inputs of an output lie together, then those of the next. */
struct int8 {
    uint8_t numbers[GROUP / 4][TILE][4]; /* 128 is zero */
    float scale[TILE];
};

struct int4 {
    uint8_t numbers[GROUP / 8][TILE][4]; /* in the low bits of the group's first half */
    float scale[TILE], zero[TILE];       /* a weight is number * scale + zero */
};

/* A group of a row of x, rounded. */
struct group {
    int8_t high[GROUP], low[GROUP]; /* a number is high * 128 + low */
    float scale, zero;              /* a number's unit; the sum of the numbers in it */
    int32_t sum;
};

/* A call: what every strip needs. */
struct call {
    const struct part *parts;
    int64_t count, rows, width;
    const char *x; /* [rows, width] in the element type of the weights, packed, or as struct group */
    void *const *outs; /* of each part, [rows, outs] */
    int half;          /* whether outputs and biases are bfloat16, else float32 */
};

/* --- numbers ---------------------------------------------------------------------------------- */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec load(const void *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE vec from_bf16(const uint16_t *from) {
    halves h;
    memcpy(&h, from, sizeof h);
#if defined __AVX512F__ /* what compilers make of the conversion takes thrice as many instructions */
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined __AVX2__
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vec)(__builtin_convertvector(h, ints) << 16);
#endif
}

/* One number of many. */
INLINE float element(const void *of, int64_t at, int half) {
    if (!half) return ((const float *)of)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)of)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Writes one, in bfloat16 rounded to the nearest, to even. */
INLINE void put(void *to, int64_t at, float x, int half) {
    if (!half) {
        ((float *)to)[at] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int nan = (bits & 0x7fffffff) > 0x7f800000;
    ((uint16_t *)to)[at] = (uint16_t)(nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The sums of four vectors, each taken in the same order. */
INLINE void sum_each(float *to, const vec *of) {
#if defined __AVX512F__
    __m512 a = (__m512)of[0], b = (__m512)of[1], c = (__m512)of[2], d = (__m512)of[3];
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_castps_pd(ab), high = _mm512_castps_pd(cd);
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                               _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int n = 0; n < 4; n++) {
        float s[LANES];
        memcpy(s, of + n, sizeof s);
        for (int width = LANES / 2; width; width /= 2)
            for (int i = 0; i < width; i++) s[i] += s[i + width];
        to[n] = s[0];
    }
#endif
}

/* --- plain weights ---------------------------------------------------------------------------- */

/* Elements from ``at`` of a row of weights, a vector full. */
INLINE vec fetch(const char *row, int64_t at, int kind) {
    if (kind == BF16) return from_bf16((const uint16_t *)row + at);
    return load(row + at * (kind == PAIRED ? 2 : 4));
}

INLINE vec add_product(vec sum, vec w, vec x, int kind) {
    (void)kind;
#if defined __AVX512F__ && defined __AVX512BF16__
    if (kind == PAIRED) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
#endif
    return sum + w * x;
}

/* What to ask memory for while a strip is computed: the next, in turns of the passes over this. */
struct ahead {
    const char *next; /* its weights */
    int turn, turns;
};

/* Outputs at..at+outs-1 of rows row..row+rows-1; ``weight`` is that of ``at``. */
INLINE void block(const struct call *c, const struct part *p, void *out, const char *weight,
                  struct ahead *ahead, int64_t at, int64_t row, int outs, int rows, int kind) {
    int size = kind == FP32 ? 4 : 2, step = kind == PAIRED ? 2 * LANES : LANES;
    int x_size = kind == PAIRED ? 2 : 4;
    int64_t width = c->width, bytes = size * width;
    const char *x = c->x + row * width * x_size;
    vec sums[FEW][OUTS + 2] = {0}; /* summed four at a time, so the last may be none */
    int64_t i = 0;
    for (; i + GROUP <= width; i += GROUP) {
        for (int o = ahead->turn; o < OUTS; o += ahead->turns)
            for (int n = 0; n < GROUP; n += 64 / size)
                __builtin_prefetch(ahead->next + o * bytes + (i + n) * size, 0, 2);
        UNROLLED for (int in = 0; in < GROUP; in += step) {
            vec now[FEW];
            UNROLLED for (int r = 0; r < rows; r++) now[r] = load(x + (r * width + i + in) * x_size);
            UNROLLED for (int o = 0; o < outs; o++) {
                vec w = fetch(weight + o * bytes, i + in, kind);
                UNROLLED for (int r = 0; r < rows; r++)
                    sums[r][o] = add_product(sums[r][o], w, now[r], kind);
            }
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outs; o += 4) {
            float found[4];
            sum_each(found, sums[r] + o);
            UNROLLED for (int n = 0; n < least(4, outs - o); n++) {
                for (int64_t j = i; j < width; j++)
                    found[n] += element(x, r * width + j, kind == PAIRED) *
                                element(weight + (o + n) * bytes, j, kind != FP32);
                if (p->bias) found[n] += element(p->bias, at + o + n, c->half);
                put(out, (row + r) * p->outs + at + o + n, found[n], c->half);
            }
        }
}

/* Outputs at..at+outs-1 of the rows from..upto-1, so many at once, and the rest by halves. */
INLINE void pass(const struct call *c, const struct part *p, void *out, const char *weight,
                 struct ahead *ahead, int64_t at, int64_t from, int64_t upto, int outs, int rows,
                 int kind) {
#define BY(n) \
    for (; n <= rows && from + n <= upto; from += n, ahead->turn++) \
        block(c, p, out, weight, ahead, at, from, outs, n, kind)
    BY(8);
    BY(4);
    BY(2);
    BY(1);
#undef BY
}

/* The same, whole strips or single outputs. */
INLINE void pass_plain(const struct call *c, const struct part *p, void *out, const char *weight,
                       struct ahead *ahead, int64_t at, int64_t from, int64_t upto, int outs,
                       int kind) {
    int64_t bytes = (kind == FP32 ? 4 : 2) * c->width;
    if (outs == OUTS)
        pass(c, p, out, weight, ahead, at, from, upto, OUTS, ROWS, kind);
    else
        for (int o = 0; o < outs; o++)
            pass(c, p, out, weight + o * bytes, ahead, at + o, from, upto, 1, ROWS, kind);
}

/* A strip. What must be widened is worth twice the rows at once, for which half the outputs have
 * room; of many rows it is written down as float32 in ``plain`` first. */
INLINE void strip(const struct call *c, const struct part *p, void *out, float *plain, int64_t at,
                  int64_t from, int64_t upto, int kind) {
    int64_t size = kind == FP32 ? 4 : 2, width = c->width, bytes = size * width;
    int outs = (int)least(OUTS, p->outs - at);
    const char *weight = p->weight + at * bytes;
    struct ahead ahead = {weight + OUTS * bytes, 0, (int)((upto - from + ROWS - 1) / ROWS)};
    if (kind != BF16) {
        pass_plain(c, p, out, weight, &ahead, at, from, upto, outs, kind);
        return;
    }
    if (upto - from <= FEW && outs == OUTS) {
        for (int o = 0; o < OUTS; o += OUTS / 2)
            pass(c, p, out, weight + o * bytes, &ahead, at + o, from, upto, OUTS / 2, 2 * ROWS,
                 kind);
        return;
    }
    for (int o = 0; o < outs; o++) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            vec w = fetch(weight + o * bytes, i, kind);
            memcpy(plain + o * width + i, &w, sizeof w);
        }
        for (; i < width; i++) plain[o * width + i] = element(weight + o * bytes, i, 1);
    }
    pass_plain(c, p, out, (const char *)plain, &ahead, at, from, upto, outs, FP32);
}

/* --- plain weights by tiles ------------------------------------------------------------------- */

#ifdef HAS_TILES

/* Two neighbours of a row of x lie together, then those of the next row: [tiles, width / 2, TILE],
 * the last tile filled up with zeros. */
static void pack(uint32_t *to, const char *x, int64_t rows, int64_t width) {
    int64_t pairs = width / 2;
    memset(to, 0, (size_t)((rows + TILE - 1) / TILE * TILE * pairs) * sizeof *to);
    for (int64_t from = 0; from < rows; from += TILE, to += TILE * pairs, x += TILE * 4 * pairs)
        for (int64_t i = 0; i < pairs; i++)
            for (int r = 0; r < least(TILE, rows - from); r++)
                memcpy(to + i * TILE + r, x + (r * pairs + i) * 4, sizeof *to);
}

/* Has the thread's tiles be of TILE rows of 64 bytes each. */
INLINE void shape_tiles(void) {
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* Writes outputs at..at+outs-1 of a row, whose sums are TILE floats apart. */
INLINE void put_sums(const struct part *p, void *out, const float *sums, int64_t row, int64_t at,
                     int outs) {
    const ints at_outs = {0,   16,  32,  48,  64,  80,  96,  112,
                          128, 144, 160, 176, 192, 208, 224, 240};
    __mmask16 mask = (__mmask16)((1 << outs) - 1);
    vec found = (vec)_mm512_i32gather_ps((__m512i)at_outs, sums, 4);
    if (p->bias) {
        __m256i bias = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p->bias + at);
        found += (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16);
    }
    _mm256_mask_storeu_epi16((uint16_t *)out + row * p->outs + at, mask,
                             (__m256i)_mm512_cvtneps_pbh((__m512)found));
}

/* A strip of TILE outputs. What is left of a layer's last is filled up with zeros in ``spare``. */
static void tiled(const struct call *c, const struct part *p, void *out, void *spare, int64_t at,
                  int64_t from, int64_t upto) {
    int64_t bytes = 2 * c->width, steps = c->width / GROUP, tiles = (upto - from + TILE - 1) / TILE;
    int outs = (int)least(TILE, p->outs - at);
    const char *weight = p->weight + at * bytes, *next = weight + TILE * bytes;
    const char *x = c->x + from * bytes;
    float sums[PANEL / TILE][TILE][TILE]; /* by outputs, then rows */
    if (outs < TILE) {
        memset(spare, 0, (size_t)(TILE * bytes));
        weight = memcpy(spare, weight, (size_t)(outs * bytes));
    }
    __asm__ volatile("" ::: "memory"); /* some compilers do not know that tiles read it */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t n = 0; n < steps; n++) {
#define MULTIPLY(tile) \
    if (tile < tiles) { \
        _tile_loadd(5, x + (tile * steps + n) * TILE * 64, 64); \
        _tile_dpbf16ps(tile, 4, 5); \
    }
        int64_t soon = n + AHEAD / (TILE * 64);
        const char *ahead = soon < steps ? weight + soon * 64 : next + (soon - steps) * 64;
        for (int o = 0; o < TILE; o++) __builtin_prefetch(ahead + o * bytes, 0, 2);
        _tile_loadd(4, weight + n * 64, bytes);
        MULTIPLY(0)
        MULTIPLY(1)
        MULTIPLY(2)
        MULTIPLY(3)
#undef MULTIPLY
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    for (int64_t row = from; row < upto; row++)
        put_sums(p, out, sums[(row - from) / TILE][0] + (row - from) % TILE, row, at, outs);
}

#endif

/* Whether this process may multiply by tiles, which Linux allows those that ask. */
int octavo_linear_tiles(void) {
#ifdef HAS_TILES
    enum { ASK = 0x1023, DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return !syscall(SYS_arch_prctl, ASK, DATA);
#else
    return 0;
#endif
}

/* --- quantised weights ------------------------------------------------------------------------ */

/* Rounds a group of a row of x: NaN and infinity make its scale NaN or infinite. */
INLINE void quantise(struct group *to, const float *x) {
    const float top = 127 * 128, shift = 12582912; /* 1.5 * 2^23, to which integers are added */
    ints most = {0}, sum = {0};
    int32_t greatest = 0;
    for (int i = 0; i < GROUP; i += LANES) {
        ints size = (ints)load(x + i) & 0x7fffffff; /* of the same order as the numbers' sizes */
        ints more = size > most;
        most = (size & more) | (most & ~more);
    }
    for (int i = 0; i < LANES; i++) greatest = most[i] > greatest ? most[i] : greatest;
    memcpy(&to->scale, &greatest, sizeof greatest);
    float unit = to->scale > 0 ? top / to->scale : 0;
    for (int i = 0; i < GROUP; i += LANES) {
        ints number = (ints)(load(x + i) * unit + shift) - (ints)spread(shift);
        ints high = (number + 64) >> 7;
        signed_bytes digits = __builtin_convertvector(high, signed_bytes);
        memcpy(to->high + i, &digits, sizeof digits);
        digits = __builtin_convertvector(number - high * 128, signed_bytes);
        memcpy(to->low + i, &digits, sizeof digits);
        sum += number;
    }
    to->sum = 0;
    for (int i = 0; i < LANES; i++) to->sum += sum[i];
    to->scale /= top;
    to->zero = to->scale * (float)to->sum;
}

/* Instructions of vectors of LANES, and the type that they take. */
#if defined __AVX512BW__
#define OP(name) _mm512_##name
typedef __m512i raw;
#elif defined __AVX2__ && !defined __AVX512F__
#define OP(name) _mm256_##name
typedef __m256i raw;
#endif

/* Adds to each lane the products of its four numbers, of 8 bits without a sign, with four of x. */
INLINE ints add_dots(ints sum, ints w, const int8_t *from, int kind) {
    int32_t x;
    memcpy(&x, from, sizeof x);
#if defined __AVX512F__ && defined __AVX512VNNI__
    (void)kind;
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(x));
#elif defined __AVXVNNI__ && !defined __AVX512F__
    (void)kind;
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, _mm256_set1_epi32(x));
#elif defined OP /* sums of two products have 16 bits: too few unless a number has 4 */
    raw four = OP(set1_epi32)(x);
    ints low = kind == INT4 ? w : w & 0x0f0f0f0f, high = w >> 4 & 0x0f0f0f0f;
    sum += (ints)OP(madd_epi16)(OP(maddubs_epi16)((raw)low, four), OP(set1_epi16)(1));
    if (kind == INT4) return sum;
    return sum + (ints)OP(madd_epi16)(OP(maddubs_epi16)((raw)high, four), OP(set1_epi16)(16));
#else
    (void)kind;
    for (int n = 0; n < 32; n += 8) sum += (w >> n & 255) * (int8_t)(x >> n);
    return sum;
#endif
}

/* LANES outputs of a tile, of rows row..row+rows-1; ``weight`` is that of the first. */
INLINE void lanes(const struct call *c, const struct part *p, void *out, const char *weight,
                  int64_t at, int64_t row, int rows, int kind) {
    int64_t groups = c->width / GROUP, size = kind == INT8 ? sizeof(struct int8) : sizeof(struct int4);
    const struct group *x = (const struct group *)c->x + row * groups;
    vec sums[FEW] = {0};
    for (int64_t g = 0; g < groups; g++, weight += size, x++) {
        ints high[FEW], low[FEW];
        for (int64_t n = 0; n < size; n += 64) __builtin_prefetch(weight + AHEAD + n, 0, 3);
        UNROLLED for (int r = 0; r < rows; r++) {
            low[r] = (kind == INT8 ? -128 * x[r * groups].sum : 0) - (ints){0};
            high[r] = (ints){0};
        }
        UNROLLED for (int n = 0; n < GROUP / 4; n++) {
            ints w = (ints)load(weight + (kind == INT8 ? n : n % 4) * TILE * 4);
            if (kind == INT4) w = (n < 4 ? w : w >> 4) & 0x0f0f0f0f;
            UNROLLED for (int r = 0; r < rows; r++) {
                high[r] = add_dots(high[r], w, x[r * groups].high + 4 * n, kind);
                low[r] = add_dots(low[r], w, x[r * groups].low + 4 * n, kind);
            }
        }
        const char *scales = weight + (kind == INT8 ? GROUP : GROUP / 2) * TILE;
        vec scale = load(scales), zero = load(scales + (kind == INT4 ? TILE * 4 : 0));
        UNROLLED for (int r = 0; r < rows; r++) {
            const struct group *now = x + r * groups;
            sums[r] += __builtin_convertvector(high[r] * 128 + low[r], vec) * (scale * now->scale);
            if (kind == INT4) sums[r] += zero * now->zero;
        }
    }
    UNROLLED for (int r = 0; r < rows; r++) {
        float each[LANES];
        memcpy(each, sums + r, sizeof each);
        for (int o = 0; o < least(LANES, p->outs - at); o++) {
            if (p->bias) each[o] += element(p->bias, at + o, c->half);
            put(out, (row + r) * p->outs + at + o, each[o], c->half);
        }
    }
}

/* A tile of the rows from..upto-1. */
INLINE void tile(const struct call *c, const struct part *p, void *out, int64_t at, int64_t from,
                 int64_t upto, int kind) {
    int64_t size = kind == INT8 ? sizeof(struct int8) : sizeof(struct int4);
    const char *weight = p->weight + at / TILE * (c->width / GROUP) * size;
#define BY(n) \
    for (; n <= 2 * ROWS && from + n <= upto; from += n) \
        for (int o = 0; o < TILE && at + o < p->outs; o += LANES) \
            lanes(c, p, out, weight + 4 * o, at + o, from, n, kind)
    BY(8);
    BY(4);
    BY(2);
    BY(1);
#undef BY
}

/* --- the layer -------------------------------------------------------------------------------- */

INLINE int is_packed(int kind) { return kind == INT8 || kind == INT4; }

/* Rows of x as their strips want them: rounded, or widened. */
static void prepare(void *to, const void *x, int64_t rows, int64_t width, int kind, int half,
                    int threads) {
    int64_t each = is_packed(kind) ? GROUP : width, count = rows * width / each;
#pragma omp parallel for num_threads(threads) if (rows > PANEL)
    for (int64_t n = 0; n < count; n++) {
        float few[GROUP], *wide = is_packed(kind) ? few : (float *)to + n * each;
        for (int64_t i = 0; i < each; i++) wide[i] = element(x, n * each + i, half);
        if (is_packed(kind)) quantise((struct group *)to + n, few);
    }
}

/* Outputs that are computed at once. */
INLINE int64_t outs_of(int kind) { return is_packed(kind) || kind == TILED ? TILE : OUTS; }

/* One of the strips and tiles of all layers, for a panel of rows; ``spare`` has room for a strip. */
INLINE void one(const struct call *c, float *spare, int64_t strip_number, int64_t from, int kind) {
    int64_t outs = outs_of(kind), part = 0, mine, upto = least(from + PANEL, c->rows);
    while (strip_number >= (mine = (c->parts[part].outs + outs - 1) / outs)) {
        strip_number -= mine;
        part++;
    }
#ifdef HAS_TILES
    if (kind == TILED) {
        tiled(c, c->parts + part, c->outs[part], spare, strip_number * outs, from, upto);
        return;
    }
#endif
    if (is_packed(kind))
        tile(c, c->parts + part, c->outs[part], strip_number * outs, from, upto, kind);
    else
        strip(c, c->parts + part, c->outs[part], spare, strip_number * outs, from, upto, kind);
}

/* A function for each kind: within a parallel region compilers know no constants. */
#define OF(name, kind) \
    static void name(const struct call *c, float *spare, int64_t number, int64_t from) { \
        one(c, spare, number, from, kind); \
    }
OF(one_fp32, FP32)
OF(one_int8, INT8)
OF(one_int4, INT4)
#if defined __AVX512F__ && defined __AVX512BF16__ /* one of the two: each takes seconds to compile */
OF(one_paired, PAIRED)
#define one_bf16 NULL
#else
OF(one_bf16, BF16)
#define one_paired NULL
#endif
#ifdef HAS_TILES
OF(one_tiled, TILED)
#else
#define one_tiled NULL
#endif
#undef OF

static int run(const struct call *c, int threads, int kind) {
    void (*const ones[])(const struct call *, float *, int64_t, int64_t) = {
        one_fp32, one_bf16, one_int8, one_int4, one_tiled, one_paired};
    int64_t outs = outs_of(kind), strips = 0, panels = (c->rows + PANEL - 1) / PANEL;
    int chunk = is_packed(kind) ? TILES : kind == TILED ? WIDE : CHUNK, failed = 0;
    size_t bytes = (size_t)c->width * (kind == BF16 ? OUTS * 4 : kind == TILED ? TILE * 2 : 0);
    for (int64_t n = 0; n < c->count; n++) strips += (c->parts[n].outs + outs - 1) / outs;
#pragma omp parallel num_threads(threads)
    {
        float *spare = NULL; /* a strip of BF16 as float32, of TILED as it is */
        if (bytes && !(spare = malloc(bytes))) {
#pragma omp atomic write
            failed = 1;
        }
#ifdef HAS_TILES
        if (kind == TILED) shape_tiles();
#endif
#pragma omp for schedule(dynamic, chunk)
        for (int64_t n = 0; n < panels * strips; n++)
            if (!bytes || spare) ones[kind](c, spare, n % strips, n / strips * PANEL);
#ifdef HAS_TILES
        if (kind == TILED) _tile_release();
#endif
        free(spare);
    }
    return failed;
}

/* Computes layers on ``rows`` of ``x``, which is bfloat16 if it is ``half``, else float32, and as
 * what ``outs`` are; 0, or 1 where there was no memory and the outputs mean nothing. */
int octavo_linear(const struct layers *l, const void *x, void *const *outs, int64_t rows,
                  int64_t half, int64_t threads) {
    int64_t width = l->width, all = 0;
    int kind = (int)l->kind;
    char *made = NULL;
#if defined __AVX512F__ && defined __AVX512BF16__
    if (kind == BF16) kind = PAIRED;
#endif
    for (int64_t n = 0; n < l->count; n++) all += l->parts[n].outs;
    if (rows * width * all < SMALL) threads = 1;
    if (kind != FP32 && kind != PAIRED) {
        size_t size = (size_t)(rows * width) * sizeof(float);
        if (is_packed(kind)) size = (size_t)(rows * width / GROUP) * sizeof(struct group);
        if (kind == TILED) size = (size_t)((rows + TILE - 1) / TILE * TILE * width) * 2;
        if (!(made = malloc(size))) return 1;
#ifdef HAS_TILES
        if (kind == TILED) pack((uint32_t *)made, x, rows, width);
#endif
        if (kind != TILED) prepare(made, x, rows, width, kind, (int)half, (int)threads);
    }
    struct call c = {l->parts, l->count, rows, width, made ? made : x, outs, (int)half};
    int failed = run(&c, (int)threads, kind);
    free(made);
    return failed;
}
