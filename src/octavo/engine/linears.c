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
 * of 8 bits, so that products are sums of integers: by dot products for a few rows, by tiles of 8
 * bits for more, to the same sums. Outputs of a tile are summed side by side, from group to group in
 * float32.
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

#if defined __linux__ && defined __AMX_BF16__ && defined __AMX_INT8__ && defined __AVX512BF16__ && defined __AVX512BW__ && \
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
    BLOCK = 8,    /* rows of x whose digits lie side by side */
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
typedef uint32_t uints __attribute__((vector_size(LANES * 4)));
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
    int64_t count, width, kind, tiles; /* tiles: whether this process may multiply them */
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

/* What belongs to a rounded group of a row of x. */
struct factor {
    float scale, zero; /* a number's unit; the sum of the numbers in it */
    int32_t above;     /* what the sum of products has for numbers whose zero is 128, taken away */
};

/* A call: what every strip needs. */
struct call {
    const struct part *parts;
    int64_t count, rows, width;
    const char *x; /* [rows, width] in the element type of the weights, packed, or as digits */
    struct factor *factors; /* of digits, in the same order */
    void *const *outs; /* of each part, [rows, outs] */
    int half;          /* whether outputs and biases are bfloat16, else float32 */
    int tiles;         /* whether the processor may multiply tiles */
};

#include "linears_numbers.h"
#include "linears_plain.h"
#include "linears_tiles.h"
#include "linears_rounded.h"
#include "linears_quantised.h"

/* --- the layer -------------------------------------------------------------------------------- */

/* Memory that begins with a line of the cache, and ends with one. */
static void *lines(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

INLINE int is_packed(int kind) { return kind == INT8 || kind == INT4; }

/* Rows of x as their strips want them, widened. */
static void widen_rows(float *to, const void *x, int64_t count, int half) {
    for (int64_t n = 0; n < count; n++) to[n] = element(x, n, half);
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
        tile(c, c->parts + part, c->outs[part], (char *)spare, strip_number * outs, from, upto, kind);
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
    int size = kind == BF16 ? OUTS * 4 : kind == TILED ? TILE * 2 : kind == INT4 ? TILE : 0;
    size_t bytes = (size_t)c->width * (size_t)size;
    for (int64_t n = 0; n < c->count; n++) strips += (c->parts[n].outs + outs - 1) / outs;
#pragma omp parallel num_threads(threads)
    {
        float *spare = NULL; /* a strip of BF16 as float32, of TILED as it is, of INT4 as bytes */
        if (bytes && !(spare = lines(bytes))) {
#pragma omp atomic write
            failed = 1;
        }
#ifdef HAS_TILES
        if (kind == TILED) shape_tiles();
        if (is_packed(kind) && c->tiles) shape_byte_tiles();
#endif
#pragma omp for schedule(dynamic, chunk)
        for (int64_t n = 0; n < panels * strips; n++)
            if (!bytes || spare) ones[kind](c, spare, n % strips, n / strips * PANEL);
#ifdef HAS_TILES
        if (kind == TILED || (is_packed(kind) && c->tiles)) _tile_release();
#endif
        free(spare);
    }
    return failed;
}

/* Rows of x as layers of a kind want them, in memory of their own: NULL where there is none. */
static void *prepare(struct call *c, const void *x, int kind, int threads) {
    int64_t tile_rows = (c->rows + TILE - 1) / TILE * TILE, numbers = tile_rows * c->width;
    char *made = lines((size_t)numbers * (kind == BF16 ? 4 : 2) +
                       (size_t)(is_packed(kind) ? numbers / GROUP : 0) * sizeof(struct factor));
    if (!made) return NULL;
    c->x = made;
    c->factors = (struct factor *)(made + 2 * numbers);
#ifdef HAS_TILES
    if (kind == TILED) pack((uint32_t *)made, x, c->rows, c->width);
#endif
    if (kind == BF16) widen_rows((float *)made, x, c->rows * c->width, 1);
    if (is_packed(kind)) round_rows(c, x, threads);
    return made;
}

/* Computes layers on ``rows`` of ``x``, which is bfloat16 if it is ``half``, else float32, and as
 * what ``outs`` are; 0, or 1 where there was no memory and the outputs mean nothing. */
int octavo_linear(const struct layers *l, const void *x, void *const *outs, int64_t rows,
                  int64_t half, int64_t threads) {
    struct call c = {l->parts, l->count, rows, l->width, x, NULL, outs, (int)half, (int)l->tiles};
    int64_t all = 0;
    int kind = (int)l->kind;
    void *made = NULL;
    if (kind == BF16 && c.tiles && c.width % GROUP == 0) kind = TILED;
#if defined __AVX512F__ && defined __AVX512BF16__
    if (kind == BF16) kind = PAIRED;
#endif
    for (int64_t n = 0; n < l->count; n++) all += l->parts[n].outs;
    if (rows * c.width * all < SMALL) threads = 1;
    if (kind != FP32 && kind != PAIRED && !(made = prepare(&c, x, kind, (int)threads))) return 1;
    int failed = run(&c, (int)threads, kind);
    free(made);
    return failed;
}
