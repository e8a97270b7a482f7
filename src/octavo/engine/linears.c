/* Linear layers on a CPU: out = x * weight^T + bias, for the few rows of a decode step and for many.
 *
 * Weights are read where they lie, a row of them for each output, in float32, bfloat16, or groups of
 * GROUP elements of 8 or 4 bits; sums are float32. Work is cut into strips of OUTS outputs, which
 * stay in the cache while PANEL rows of x pass by. A sum is taken in an order that depends on the
 * width alone: a row's result is the same to the bit beside any others and with any number of
 * threads.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
enum { LANES = 16, OUTS = 6, ROWS = 4 }; /* sums that fit into 32 registers */
#else
enum { LANES = 8, OUTS = 4, ROWS = 2 }; /* into 16 */
#endif

enum {
    GROUP = 32,   /* elements that share a scale */
    PANEL = 64,   /* rows of x that pass by a strip: at widths that are usual they stay in the L2 */
    FEW = 8,      /* rows summed at once at most; more are worth writing a strip down as float32 */
    CHUNK = 8,    /* strips a thread takes at once */
    SMALL = 4096, /* products that are not worth another thread */
};

enum kind { FP32, BF16, INT8, INT4 };

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef int8_t signed_bytes __attribute__((vector_size(LANES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* A layer; the fields of KernelPart in the same order. */
struct part {
    const char *weight; /* [outs, width] of a kind; INT4: two to a byte, a group's first half low */
    const float *scale; /* [outs, width / GROUP], INT4: and the number of a zero behind each */
    const float *bias;  /* [outs] or NULL */
    float *out;         /* [rows, outs] */
    int64_t outs;
};

/* What Python passes: layers of the same kind that take the same x; as KernelCall. */
struct call {
    const float *x; /* [rows, width] */
    const struct part *parts;
    int64_t count, rows, width, kind, threads;
};

/* --- numbers ---------------------------------------------------------------------------------- */

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec load(const float *from) {
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

INLINE vec from_bytes(bytes b, int negative) {
#if defined __AVX512F__
    __m128i raw = (__m128i)b;
    __m512i wide = negative ? _mm512_cvtepi8_epi32(raw) : _mm512_cvtepu8_epi32(raw);
    return (vec)_mm512_cvtepi32_ps(wide);
#else
    if (negative) return __builtin_convertvector((signed_bytes)b, vec);
    return __builtin_convertvector(b, vec);
#endif
}

/* Elements at..at+LANES-1 of a row of weights; ``at`` is a multiple of LANES. */
INLINE vec fetch(const char *row, const float *scale, int64_t at, int kind) {
    int64_t group = at / GROUP, in = at % GROUP, half = GROUP / 2;
    bytes b;
    if (kind == FP32) return load((const float *)row + at);
    if (kind == BF16) return from_bf16((const uint16_t *)row + at);
    if (kind == INT8) {
        memcpy(&b, row + at, sizeof b);
        return from_bytes(b, 1) * spread(scale[group]);
    }
    memcpy(&b, row + group * half + in % half, sizeof b);
    b = in < half ? b & 15 : b >> 4;
    return from_bytes(b, 0) * spread(scale[2 * group]) + spread(scale[2 * group + 1]);
}

/* One element of a row of numbers. */
INLINE float element(const char *row, int64_t at, int kind) {
    if (kind == FP32) return ((const float *)row)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)row)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
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

/* --- the layer -------------------------------------------------------------------------------- */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes of a row of weights. */
INLINE int64_t row_bytes(int64_t width, int kind) {
    return kind == FP32 ? 4 * width : kind == BF16 ? 2 * width : kind == INT8 ? width : width / 2;
}

/* Numbers of a row's scales. */
INLINE int64_t row_scales(int64_t width, int kind) {
    return kind == INT4 ? width / GROUP * 2 : kind == INT8 ? width / GROUP : 0;
}

/* Outputs at..at+outs-1 of rows row..row+rows-1; ``weight`` and ``scale`` are those of ``at``. */
INLINE void block(const struct call *c, const struct part *p, const char *weight,
                  const float *scale, int64_t at, int64_t row, int outs, int rows, int kind) {
    int64_t width = c->width, bytes = row_bytes(width, kind), scales = row_scales(width, kind);
    const float *x = c->x + row * width;
    vec sums[FEW][OUTS + 2] = {0}; /* summed four at a time, so the last may be none */
    int64_t i = 0;
    for (; i + GROUP <= width; i += GROUP)
        UNROLLED for (int in = 0; in < GROUP; in += LANES) {
            vec now[FEW];
            UNROLLED for (int r = 0; r < rows; r++) now[r] = load(x + r * width + i + in);
            UNROLLED for (int o = 0; o < outs; o++) {
                vec w = fetch(weight + o * bytes, scale + o * scales, i + in, kind);
                UNROLLED for (int r = 0; r < rows; r++) sums[r][o] += w * now[r];
            }
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outs; o += 4) {
            float found[4];
            sum_each(found, sums[r] + o);
            UNROLLED for (int n = 0; n < least(4, outs - o); n++) {
                for (int64_t j = i; j < width; j++)
                    found[n] += x[r * width + j] * element(weight + (o + n) * bytes, j, kind);
                if (p->bias) found[n] += p->bias[at + o + n];
                p->out[(row + r) * p->outs + at + o + n] = found[n];
            }
        }
}

/* Outputs at..at+outs-1 of the rows from..upto-1, so many at once, and the rest by halves. */
INLINE void pass(const struct call *c, const struct part *p, const char *weight,
                 const float *scale, int64_t at, int64_t from, int64_t upto, int outs, int rows,
                 int kind) {
#define BY(n) \
    for (; n <= rows && from + n <= upto; from += n) \
        block(c, p, weight, scale, at, from, outs, n, kind)
    BY(8);
    BY(4);
    BY(2);
    BY(1);
#undef BY
}

/* The same of float32, whole strips or single outputs. */
static void pass_plain(const struct call *c, const struct part *p, const char *weight, int64_t at,
                       int64_t from, int64_t upto, int outs) {
    if (outs == OUTS)
        pass(c, p, weight, NULL, at, from, upto, OUTS, ROWS, FP32);
    else
        for (int o = 0; o < outs; o++)
            pass(c, p, weight + o * 4 * c->width, NULL, at + o, from, upto, 1, ROWS, FP32);
}

/* The same of any kind. What must be decoded is worth twice the rows at once, for which half the
 * outputs have room; of many rows it is written down as float32 in ``plain`` first. */
INLINE void strip(const struct call *c, const struct part *p, float *plain, int64_t at,
                  int64_t from, int64_t upto, int outs, int kind) {
    int64_t width = c->width, bytes = row_bytes(width, kind), scales = row_scales(width, kind);
    const char *weight = p->weight + at * bytes;
    const float *scale = p->scale + at * scales;
    if (kind == FP32) {
        pass_plain(c, p, weight, at, from, upto, outs);
        return;
    }
    if (upto - from <= FEW && outs == OUTS) {
        for (int o = 0; o < OUTS; o += OUTS / 2)
            pass(c, p, weight + o * bytes, scale + o * scales, at + o, from, upto, OUTS / 2,
                 2 * ROWS, kind);
        return;
    }
    for (int o = 0; o < outs; o++) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            vec w = fetch(weight + o * bytes, scale + o * scales, i, kind);
            memcpy(plain + o * width + i, &w, sizeof w);
        }
        for (; i < width; i++) plain[o * width + i] = element(weight + o * bytes, i, kind);
    }
    pass_plain(c, p, (const char *)plain, at, from, upto, outs);
}

INLINE int64_t strips_of(const struct part *p) { return (p->outs + OUTS - 1) / OUTS; }

INLINE int run(const struct call *c, int kind) {
    int64_t strips = 0, outs = 0, panels = (c->rows + PANEL - 1) / PANEL;
    for (int64_t n = 0; n < c->count; n++) {
        strips += strips_of(c->parts + n);
        outs += c->parts[n].outs;
    }
    int threads = c->rows * outs * c->width < SMALL ? 1 : (int)c->threads, failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *plain = kind == FP32 ? NULL : malloc((size_t)(OUTS * c->width) * sizeof(float));
        if (kind != FP32 && !plain) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, CHUNK)
        for (int64_t n = 0; n < panels * strips; n++) {
            const struct part *p = c->parts;
            int64_t number = n % strips, from = n / strips * PANEL;
            int64_t upto = least(from + PANEL, c->rows);
            if (kind != FP32 && !plain) continue;
            for (; number >= strips_of(p); p++) number -= strips_of(p);
            int64_t at = number * OUTS;
            strip(c, p, plain, at, from, upto, (int)least(OUTS, p->outs - at), kind);
        }
        free(plain);
    }
    return failed;
}

/* Computes the layers; 0, or 1 where there was no memory and the output means nothing. */
int octavo_linear(const struct call *c) {
    switch (c->kind) {
        case FP32: return run(c, FP32);
        case BF16: return run(c, BF16);
        case INT8: return run(c, INT8);
        default: return run(c, INT4);
    }
}
