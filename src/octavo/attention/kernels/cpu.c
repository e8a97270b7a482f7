/* Paged attention on a CPU: reads keys and values where their pages lie, in float32 or bfloat16,
 * and puts new ones there.
 *
 * Work is cut by sequence, by key/value head, by at most ROWS of the query rows that share the head
 * (rows are queries times the heads of a group, so keys are never expanded), and by PART keys.
 * Where the cuts lie depends on the sequence alone: its result is the same to the bit beside any
 * others and with any number of threads. Each part walks its keys in tiles of TILE with the online
 * softmax; parts are merged by their largest score.
 *
 * A few rows take dot products with keys in place. Many rows copy a tile to float32 first, its keys
 * transposed, so that copying is paid once for all of them.
 *
 * NaN and infinity go their way as IEEE arithmetic has it; what a row does not see never meets it.
 * Its score is taken away whatever it is, and where its value is not finite, so that a weight of 0
 * would not take it away, the rows of the tile take the values they see alone.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

enum {
    TILE = 64,  /* keys scored at once: their scores and one head's tile stay in the L1 cache */
    ROWS = 64,  /* query rows of a piece of work */
    FEW = 8,    /* most rows that work in place */
    PART = 512, /* keys of a piece of work where its rows are few: a long context has many */
};

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef float octet __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* A call compiled for each element type. */
#define BY_TYPE(bf16, function, ...) \
    ((bf16) ? function(__VA_ARGS__, 1) : function(__VA_ARGS__, 0))

/* What Python passes; the fields of Call in the same order. Strides count elements. */
struct call {
    const char *query, *key, *value;
    char *out;
    float *lse;               /* [tokens, heads] or NULL */
    const float *sink_logits; /* [heads] or NULL */
    const int32_t *table;     /* [sequences, width] */
    const int64_t *start, *count, *past, *base; /* [sequences] */
    int64_t sequences, width, page_size, heads, kv_heads, k_dim, v_dim;
    int64_t query_token, query_head;
    int64_t key_page, key_head, key_token;
    int64_t value_page, value_head, value_token;
    int64_t window, sink_tokens; /* window 0: none */
    int64_t causal, bf16, threads;
    double scale, softcap; /* softcap 0: none */
};

/* Query rows [from, upto) of one sequence and key/value head, over keys at [low, high). */
struct piece {
    int64_t sequence, head, from, upto, low, high;
    int64_t parts; /* pieces of the same rows from this one on, which also sees the sink tokens;
                      0: not the first of them */
};

/* Keys and values of n positions from ``at`` on, each where it lies. */
struct tile {
    int64_t at, n;
    const char *keys[TILE], *values[TILE];
};

/* Where a piece stands: rows of sums, their largest scores and totals. */
struct sums {
    float *out; /* [rows, v_dim] */
    float *peak, *total;
};

/* --- numbers ---------------------------------------------------------------------------------- */

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec load(const float *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, vec x) { memcpy(to, &x, sizeof x); }

/* Elements i..i+LANES-1 of a key or value as float32; bfloat16 is its upper half. */
INLINE vec fetch(const char *from, int64_t i, int bf16) {
    if (!bf16) return load((const float *)from + i);
    halves h;
    memcpy(&h, (const uint16_t *)from + i, sizeof h);
#if defined __AVX512F__ /* what compilers make of the conversion takes thrice as many instructions */
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined __AVX2__
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vec)(__builtin_convertvector(h, ints) << 16);
#endif
}

INLINE float element(const char *from, int64_t i, int bf16) {
    if (!bf16) return ((const float *)from)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE vec choose(ints mask, vec yes, vec no) {
    return (vec)((mask & (ints)yes) | (~mask & (ints)no));
}

/* e^x for x <= 0, relative error below 2e-7; exactly 0 below -87, where float32 ends; NaN of NaN. */
INLINE vec exponential(vec x) {
    const vec shift = spread(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    ints tiny = x < spread(-87.0f), number = x == x;
    vec given = x;
    x = choose(tiny, spread(-87.0f), x);
    vec shifted = x * spread(1.44269504f) + shift;
    vec n = shifted - shift;
    vec r = x - n * spread(0.693359375f) + n * spread(2.12194440e-4f); /* ln 2 in two parts */
    vec p = spread(1.0f / 5040);
    p = p * r + spread(1.0f / 720);
    p = p * r + spread(1.0f / 120);
    p = p * r + spread(1.0f / 24);
    p = p * r + spread(1.0f / 6);
    p = p * r + spread(0.5f);
    p = p * r + spread(1.0f);
    p = p * r + spread(1.0f);
    vec power = (vec)((ints)p + ((ints)shifted << 23)); /* n is in the low bits of shifted */
    return choose(number, choose(tiny, spread(0.0f), power), given);
}

INLINE float largest(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    float top = x[0];
    UNROLLED for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
    return top;
#endif
}

INLINE octet folded(vec x) {
#ifdef __AVX512F__
    return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return x;
#endif
}

INLINE float total_of(vec x) {
    octet eight = folded(x);
    quad four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* The totals of four vectors. */
INLINE quad totals(vec a, vec b, vec c, vec d) {
    octet w = folded(a), x = folded(b), y = folded(c), z = folded(d);
    octet wx = __builtin_shufflevector(w, x, 0, 8, 1, 9, 4, 12, 5, 13) +
               __builtin_shufflevector(w, x, 2, 10, 3, 11, 6, 14, 7, 15);
    octet yz = __builtin_shufflevector(y, z, 0, 8, 1, 9, 4, 12, 5, 13) +
               __builtin_shufflevector(y, z, 2, 10, 3, 11, 6, 14, 7, 15);
    octet all = __builtin_shufflevector(wx, yz, 0, 1, 8, 9, 4, 5, 12, 13) +
                __builtin_shufflevector(wx, yz, 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(all, all, 0, 1, 2, 3) +
           __builtin_shufflevector(all, all, 4, 5, 6, 7);
}

/* --- keys in place ---------------------------------------------------------------------------- */

/* Dot products of R rows with four keys: scores[row * TILE + 0..3]. */
INLINE void dots(const float *rows, int64_t dim, const char *const *keys, float *scores, int R,
                 int bf16) {
    vec sum[3][4];
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int t = 0; t < 4; t++) sum[r][t] = spread(0);
    for (int64_t d = 0; d < dim; d += LANES) {
        vec key[4];
        UNROLLED for (int t = 0; t < 4; t++) key[t] = fetch(keys[t], d, bf16);
        UNROLLED for (int r = 0; r < R; r++) {
            vec row = load(rows + r * dim + d);
            UNROLLED for (int t = 0; t < 4; t++) sum[r][t] += row * key[t];
        }
    }
    UNROLLED for (int r = 0; r < R; r++) {
        quad four = totals(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        memcpy(scores + r * TILE, &four, sizeof four);
    }
}

/* Has four keys and values brought to the second cache; the first has no room for two tiles. */
INLINE void prefetch(const struct call *c, const struct tile *tile, int64_t t) {
    int64_t size = c->bf16 ? 2 : 4, stop = t + 4 < tile->n ? t + 4 : tile->n;
    for (; t < stop; t++) {
        for (int64_t b = 0; b < c->k_dim * size; b += 64) __builtin_prefetch(tile->keys[t] + b, 0, 2);
        for (int64_t b = 0; b < c->v_dim * size; b += 64) __builtin_prefetch(tile->values[t] + b, 0, 2);
    }
}

/* Scores of all rows with a tile's keys; those up to the next multiple of four repeat the last
 * one's. The tile worked on next is fetched meanwhile: of pages elsewhere no processor guesses it. */
INLINE void score_in_place(const struct call *c, const float *rows, int64_t count,
                           const struct tile *tile, const struct tile *next, float *scores,
                           int bf16) {
    int64_t dim = c->k_dim, last = tile->n - 1;
    for (int64_t t = 0; t < tile->n; t += 4) {
        const char *four[4];
        for (int i = 0; i < 4; i++) four[i] = tile->keys[t + i < last ? t + i : last];
        prefetch(c, next, t);
        int64_t r = 0;
        for (; r + 3 <= count; r += 3) dots(rows + r * dim, dim, four, scores + r * TILE + t, 3, bf16);
        if (count - r == 2) dots(rows + r * dim, dim, four, scores + r * TILE + t, 2, bf16);
        if (count - r == 1) dots(rows + r * dim, dim, four, scores + r * TILE + t, 1, bf16);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* factors [count, n], rows of n columns each by a pointer, out [count, width] += factors @ rows. */
struct product {
    const float *factors;
    int64_t factors_stride;
    const char *const *rows;
    int64_t n;
    float *out;
    int64_t out_stride, width; /* width is a multiple of LANES */
};

/* Rows r..r+R-1 of the result, C * LANES columns from ``column`` on. */
INLINE void block(const struct product *p, int64_t r, int64_t column, int R, int C, int bf16) {
    const float *factors = p->factors + r * p->factors_stride;
    float *out = p->out + r * p->out_stride + column;
    vec sum[4][4];
    UNROLLED for (int i = 0; i < R; i++)
        UNROLLED for (int j = 0; j < C; j++) sum[i][j] = load(out + i * p->out_stride + j * LANES);
    for (int64_t t = 0; t < p->n; t++) {
        vec row[4];
        UNROLLED for (int j = 0; j < C; j++) row[j] = fetch(p->rows[t], column + j * LANES, bf16);
        UNROLLED for (int i = 0; i < R; i++) {
            vec factor = spread(factors[i * p->factors_stride + t]);
            UNROLLED for (int j = 0; j < C; j++) sum[i][j] += factor * row[j];
        }
    }
    UNROLLED for (int i = 0; i < R; i++)
        UNROLLED for (int j = 0; j < C; j++) store(out + i * p->out_stride + j * LANES, sum[i][j]);
}

/* All columns of R rows, as many at once as registers hold sums for. */
INLINE void columns(const struct product *p, int64_t r, int R, int C, int bf16) {
    int64_t column = 0;
    for (; column + C * LANES <= p->width; column += C * LANES) block(p, r, column, R, C, bf16);
    for (; column < p->width; column += LANES) block(p, r, column, R, 1, bf16);
}

INLINE void add_rows(const struct product *p, int64_t count, int bf16) {
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) columns(p, r, 4, LANES == 16 ? 4 : 2, bf16);
    if (count - r == 3) columns(p, r, 3, 4, bf16);
    if (count - r == 2) columns(p, r, 2, 4, bf16);
    if (count - r == 1) columns(p, r, 1, 4, bf16);
}

static void add_product(const struct product *p, int64_t count, int bf16) {
    BY_TYPE(bf16, add_rows, p, count);
}

/* --- keys and values copied first ------------------------------------------------------------- */

/* Eight elements of eight keys, transposed. */
INLINE void transpose(const char *const *keys, int64_t d, float *to, int bf16) {
    octet x[8], y[8], z[8];
    UNROLLED for (int i = 0; i < 8; i++) {
        float eight[8];
        UNROLLED for (int j = 0; j < 8; j++) eight[j] = element(keys[i], d + j, bf16);
        memcpy(&x[i], eight, sizeof eight);
    }
    UNROLLED for (int i = 0; i < 8; i += 2) {
        y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    UNROLLED for (int i = 0; i < 8; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
        z[i + j] = __builtin_shufflevector(y[i + j], y[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        z[i + j + 2] = __builtin_shufflevector(y[i + j], y[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        octet low = __builtin_shufflevector(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        octet high = __builtin_shufflevector(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(to + i * TILE, &low, sizeof low);
        memcpy(to + (i + 4) * TILE, &high, sizeof high);
    }
}

/* n keys as float32, [dim, TILE]; columns up to the next multiple of LANES repeat the last key. */
INLINE void copy_keys(const char *const *keys, int64_t n, int64_t dim, float *to, int bf16) {
    int64_t upto = (n + LANES - 1) / LANES * LANES;
    for (int64_t t = 0; t < upto; t += 8) {
        const char *eight[8];
        for (int i = 0; i < 8; i++) eight[i] = keys[t + i < n ? t + i : n - 1];
        int64_t d = 0;
        for (; d + 8 <= dim; d += 8) transpose(eight, d, to + d * TILE + t, bf16);
        for (; d < dim; d++)
            for (int i = 0; i < 8; i++) to[d * TILE + t + i] = element(eight[i], d, bf16);
    }
}

/* n values as float32, [n, width], zeros behind their dim elements. */
INLINE void copy_values(const char *const *values, int64_t n, int64_t dim, int64_t width, float *to,
                        int bf16) {
    for (int64_t t = 0; t < n; t++) {
        for (int64_t d = 0; d < dim; d++) to[t * width + d] = element(values[t], d, bf16);
        for (int64_t d = dim; d < width; d++) to[t * width + d] = 0;
    }
}

/* --- softmax ---------------------------------------------------------------------------------- */

/* softcap * tanh(score / softcap): a series near 0, (1 - e^-2x) / (1 + e^-2x) further out. */
INLINE vec capped(vec score, float softcap) {
    vec x = score / spread(softcap), square = x * x;
    vec near = x * (spread(1) - square * (spread(1.0f / 3) - square * (spread(2.0f / 15) -
                    square * spread(17.0f / 315))));
    vec size = choose(x < spread(0), -x, x), e = exponential(size * spread(-2));
    vec far = (spread(1) - e) / (spread(1) + e);
    far = choose(x < spread(0), -far, far);
    return spread(softcap) * choose(size < spread(0.25f), near, far);
}

/* Turns a row's scores, -inf behind the last, into weights against its peak; sums before shrink. */
static void soften(float *scores, int64_t n, float *out, int64_t width, float *peak, float *total) {
    vec top = spread(*peak);
    for (int64_t t = 0; t < n; t += LANES) {
        vec x = load(scores + t);
        top = choose(x > top, x, top);
    }
    float high = largest(top);
    if (high > *peak) {
        float shrink = expf(*peak - high);
        for (int64_t d = 0; d < width; d += LANES) store(out + d, load(out + d) * spread(shrink));
        *total *= shrink;
        *peak = high;
    }
    vec sum = spread(0), against = spread(high == -INFINITY ? 0 : high);
    for (int64_t t = 0; t < n; t += LANES) {
        vec weight = exponential(load(scores + t) - against);
        store(scores + t, weight);
        sum += weight;
    }
    *total += total_of(sum);
}

/* --- a tile ----------------------------------------------------------------------------------- */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Whether so many rows work on keys and values where they lie. */
INLINE int in_place(const struct call *c, int64_t rows) {
    return rows <= FEW && c->k_dim % LANES == 0 && c->v_dim % LANES == 0;
}

/* Query rows that share a key/value head. */
INLINE int64_t sharers(const struct call *c) { return c->heads / c->kv_heads; }

/* Position of the query of a row. */
INLINE int64_t position(const struct call *c, const struct piece *p, int64_t row) {
    return c->past[p->sequence] + row / sharers(c);
}

/* Finds n keys and values from position ``at`` on. */
static void find(const struct call *c, const struct piece *p, int64_t at, int64_t n,
                 struct tile *tile) {
    int64_t size = c->bf16 ? 2 : 4, from = at - c->base[p->sequence];
    int64_t column = from / c->page_size, offset = from % c->page_size;
    const int32_t *pages = c->table + p->sequence * c->width;
    tile->at = at;
    tile->n = n;
    for (int64_t t = 0; t < n; column++, offset = 0) {
        int64_t page = pages[column], stop = least(n, t + c->page_size - offset);
        const char *k = c->key + size * (page * c->key_page + p->head * c->key_head +
                                         offset * c->key_token);
        const char *v = c->value + size * (page * c->value_page + p->head * c->value_head +
                                           offset * c->value_token);
        for (; t < stop; t++, k += size * c->key_token, v += size * c->value_token) {
            tile->keys[t] = k;
            tile->values[t] = v;
        }
    }
}

/* Whether a query sees a key, by position. */
INLINE int sees(const struct call *c, int64_t query, int64_t key) {
    int before = !c->causal || key <= query;
    int near = !c->window || key > query - c->window || key < c->sink_tokens;
    return before && near;
}

/* Takes away the scores of the n keys from position ``at`` on that a query does not see. */
static void mask(const struct call *c, int64_t query, int64_t at, int64_t n, float *scores) {
    if (c->causal)
        for (int64_t t = most(0, query + 1 - at); t < n; t++) scores[t] = -INFINITY;
    if (c->window)
        for (int64_t t = most(0, c->sink_tokens - at); t < least(n, query - c->window + 1 - at); t++)
            scores[t] = -INFINITY;
}

/* Whether every row of a piece sees the n keys from position ``at`` on. */
INLINE int sees_all(const struct call *c, const struct piece *p, int64_t at, int64_t n) {
    int64_t first = position(c, p, p->from), last = position(c, p, p->upto - 1);
    int near = !c->window || at > last - c->window || at + n <= c->sink_tokens;
    return near && (!c->causal || at + n - 1 <= first);
}

/* Scores of a tile become weights, and are taken into the sums. */
static void weigh(const struct call *c, const struct piece *p, const struct tile *tile, int whole,
                  float *scores, const struct sums *sums) {
    int64_t width = padded(c->v_dim), at = tile->at, n = tile->n;
    for (int64_t r = 0; r < p->upto - p->from; r++, scores += TILE) {
        if (c->softcap > 0)
            for (int64_t t = 0; t < n; t += LANES)
                store(scores + t, capped(load(scores + t), (float)c->softcap));
        if (!whole) mask(c, position(c, p, p->from + r), at, n, scores);
        for (int64_t t = n; t < padded(n); t++) scores[t] = -INFINITY;
        soften(scores, n, sums->out + r * width, width, sums->peak + r, sums->total + r);
    }
}

/* Whether all numbers of some rows are finite: else their products with 0 are not all 0. */
INLINE int all_finite(const char *const *rows, int64_t n, int64_t width, int bf16) {
    vec sum = spread(0);
    for (int64_t t = 0; t < n; t++)
        for (int64_t d = 0; d < width; d += LANES) sum += fetch(rows[t], d, bf16) * spread(0);
    return total_of(sum) == 0;
}

/* Values of a tile, each row a pointer, are weighed and added, each for those who see it alone. */
INLINE void add_seen(const struct call *c, const struct piece *p, const struct tile *tile,
                     const struct product *values, int bf16) {
    for (int64_t r = 0; r < p->upto - p->from; r++) {
        struct product one = *values;
        one.out += r * values->out_stride;
        one.n = 1;
        for (int64_t t = 0; t < tile->n; t++) {
            if (!sees(c, position(c, p, p->from + r), tile->at + t)) continue;
            one.factors = values->factors + r * values->factors_stride + t;
            one.rows = values->rows + t;
            add_rows(&one, 1, bf16);
        }
    }
}

/* Weighed values are added to the sums; ``whole``: every row sees all of them. */
INLINE void add_values(const struct call *c, const struct piece *p, const struct tile *tile,
                       const struct product *values, int whole, int bf16) {
    if (whole || all_finite(values->rows, values->n, values->width, bf16))
        add_product(values, p->upto - p->from, bf16);
    else
        add_seen(c, p, tile, values, bf16);
}

/* One thread's memory, for pieces of at most ``most`` rows. */
struct scratch {
    int64_t most;
    float *rows;         /* [most, k_dim], queries times scale */
    float *scores;       /* [most, TILE] */
    float *sums;         /* two of ``most`` rows */
    float *keys;         /* [k_dim, TILE]; this and what follows only for tiles that are copied */
    float *values;       /* [TILE, v_dim padded] */
    const char **points; /* [k_dim or TILE], rows of keys or values */
};

static void tile_in_place(const struct call *c, const struct piece *p, const struct tile *t,
                          const struct tile *next, const struct scratch *s,
                          const struct sums *sums) {
    int64_t count = p->upto - p->from;
    int whole = sees_all(c, p, t->at, t->n);
    BY_TYPE(c->bf16, score_in_place, c, s->rows, count, t, next, s->scores);
    weigh(c, p, t, whole, s->scores, sums);
    struct product out = {s->scores, TILE, t->values, t->n, sums->out, c->v_dim, c->v_dim};
    BY_TYPE(c->bf16, add_values, c, p, t, &out, whole);
}

/* The same with keys and values copied. */
static void tile_copied(const struct call *c, const struct piece *p, const struct tile *t,
                        const struct scratch *s, const struct sums *sums) {
    int64_t count = p->upto - p->from, width = padded(c->v_dim);
    int whole = sees_all(c, p, t->at, t->n);
    BY_TYPE(c->bf16, copy_keys, t->keys, t->n, c->k_dim, s->keys);
    for (int64_t d = 0; d < c->k_dim; d++) s->points[d] = (const char *)(s->keys + d * TILE);
    memset(s->scores, 0, (size_t)(count * TILE) * sizeof(float));
    struct product scores = {s->rows,   c->k_dim, s->points,   c->k_dim,
                             s->scores, TILE,     padded(t->n)};
    add_product(&scores, count, 0);
    weigh(c, p, t, whole, s->scores, sums);
    const char *const *values = t->values;
    if (c->bf16 || c->v_dim % LANES) { /* else they are what a product takes, where they lie */
        BY_TYPE(c->bf16, copy_values, t->values, t->n, c->v_dim, width, s->values);
        for (int64_t i = 0; i < t->n; i++) s->points[i] = (const char *)(s->values + i * width);
        values = s->points;
    }
    struct product out = {s->scores, TILE, values, t->n, sums->out, width, width};
    add_values(c, p, t, &out, whole, 0);
}

/* --- a piece ---------------------------------------------------------------------------------- */

INLINE int64_t query_head(const struct call *c, const struct piece *p, int64_t row) {
    return p->head * sharers(c) + row % sharers(c);
}

INLINE int64_t token(const struct call *c, const struct piece *p, int64_t row) {
    return c->start[p->sequence] + row / sharers(c);
}

static void copy_queries(const struct call *c, const struct piece *p, float *rows) {
    for (int64_t row = p->from; row < p->upto; row++, rows += c->k_dim) {
        int64_t at = token(c, p, row) * c->query_token + query_head(c, p, row) * c->query_head;
        for (int64_t d = 0; d < c->k_dim; d++)
            rows[d] = element(c->query, at + d, c->bf16) * (float)c->scale;
    }
}

static void walk(const struct call *c, const struct piece *p, int64_t low, int64_t high,
                 const struct scratch *s, const struct sums *sums) {
    struct tile tiles[2];
    if (low < high) find(c, p, low, least(TILE, high - low), &tiles[0]);
    for (int64_t at = low, i = 0; at < high; at += TILE, i = !i) {
        find(c, p, at + TILE, most(0, least(TILE, high - at - TILE)), &tiles[!i]);
        if (in_place(c, p->upto - p->from))
            tile_in_place(c, p, &tiles[i], &tiles[!i], s, sums);
        else
            tile_copied(c, p, &tiles[i], s, sums);
    }
}

/* The sums of a piece, from nothing. */
static void attend(const struct call *c, const struct piece *p, const struct scratch *s,
                   const struct sums *sums) {
    int64_t rows = p->upto - p->from;
    memset(sums->out, 0, (size_t)(rows * padded(c->v_dim)) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        sums->peak[r] = -INFINITY;
        sums->total[r] = 0;
    }
    copy_queries(c, p, s->rows);
    if (p->parts && c->window)
        walk(c, p, c->base[p->sequence], least(c->sink_tokens, p->low), s, sums);
    walk(c, p, p->low, p->high, s, sums);
}

/* Divides the sums by their totals and writes them, the rows of a piece one after the other. */
static void write_out(const struct call *c, const struct piece *p, const struct sums *sums) {
    int64_t width = padded(c->v_dim);
    for (int64_t r = 0; r < p->upto - p->from; r++) {
        int64_t head = query_head(c, p, p->from + r);
        int64_t at = token(c, p, p->from + r) * c->heads + head;
        float peak = sums->peak[r], total = sums->total[r], factor = 0;
        if (c->lse) c->lse[at] = total == 0 ? -INFINITY : peak + logf(total);
        if (total != 0) { /* NaN too */
            float sink = c->sink_logits ? c->sink_logits[head] : -INFINITY;
            float top = sink > peak ? sink : peak;
            factor = expf(peak - top) / (total * expf(peak - top) + expf(sink - top));
        }
        for (int64_t d = 0; d < c->v_dim; d++) {
            float x = sums->out[r * width + d] * factor;
            if (c->bf16)
                ((uint16_t *)c->out)[at * c->v_dim + d] = to_bf16(x);
            else
                ((float *)c->out)[at * c->v_dim + d] = x;
        }
    }
}

/* Takes what another piece of the same rows found into ``into``. */
static void merge(int64_t rows, int64_t width, const struct sums *from, const struct sums *into) {
    for (int64_t r = 0; r < rows; r++) {
        float top = from->peak[r] > into->peak[r] ? from->peak[r] : into->peak[r];
        float against = top == -INFINITY ? 0 : top;
        float theirs = expf(from->peak[r] - against), ours = expf(into->peak[r] - against);
        for (int64_t d = 0; d < width; d++) {
            float *sum = into->out + r * width + d;
            *sum = *sum * ours + from->out[r * width + d] * theirs;
        }
        into->total[r] = into->total[r] * ours + from->total[r] * theirs;
        into->peak[r] = top;
    }
}

/* --- a call ----------------------------------------------------------------------------------- */

/* Writes the pieces of one sequence and head to ``pieces`` (NULL: only counts them). */
static int64_t cut(const struct call *c, int64_t sequence, int64_t head, struct piece *pieces) {
    int64_t rows = c->count[sequence] * sharers(c), base = c->base[sequence], found = 0;
    int64_t end = c->past[sequence] + c->count[sequence];
    for (int64_t from = 0; from < rows; from += ROWS) {
        struct piece p = {sequence, head, from, least(from + ROWS, rows), base, end, 0};
        if (c->window) p.low = most(base, position(c, &p, p.from) - c->window + 1);
        if (c->causal) p.high = least(end, position(c, &p, p.upto - 1) + 1);
        int64_t keys = most(0, p.high - p.low), part = p.upto - p.from <= FEW ? PART : keys;
        int64_t parts = keys ? (keys + part - 1) / part : 1;
        for (int64_t i = 0; i < parts; i++, found++) {
            if (!pieces) continue;
            pieces[found] = p;
            pieces[found].low = p.low + i * part;
            pieces[found].high = least(p.high, p.low + (i + 1) * part);
            pieces[found].parts = i ? 0 : parts;
        }
    }
    return found;
}

static int64_t cut_all(const struct call *c, struct piece *pieces) {
    int64_t found = 0;
    for (int64_t sequence = 0; sequence < c->sequences; sequence++)
        for (int64_t head = 0; head < c->kv_heads; head++)
            found += cut(c, sequence, head, pieces ? pieces + found : NULL);
    return found;
}

/* Sums of at most ``rows`` rows from ``memory`` on. */
static struct sums sums_at(const struct call *c, float *memory, int64_t rows) {
    int64_t out = rows * padded(c->v_dim);
    return (struct sums){memory, memory + out, memory + out + rows};
}

static int64_t sums_size(const struct call *c, int64_t rows) { return rows * (padded(c->v_dim) + 2); }

/* A piece and those that follow it with other keys of the same rows, one after the other. */
static void run_whole(const struct call *c, const struct piece *p, const struct scratch *s) {
    struct sums all = sums_at(c, s->sums, s->most);
    struct sums part = sums_at(c, s->sums + sums_size(c, s->most), s->most);
    for (int64_t i = 0; i < p->parts; i++) {
        attend(c, p + i, s, i ? &part : &all);
        if (i) merge(p->upto - p->from, padded(c->v_dim), &part, &all);
    }
    write_out(c, p, &all);
}

/* Merges what other threads found for a piece and those that follow it. */
static void join(const struct call *c, const struct piece *p, float *memory) {
    int64_t rows = p->upto - p->from, size = sums_size(c, FEW);
    struct sums all = sums_at(c, memory, FEW);
    for (int64_t i = 1; i < p->parts; i++) {
        struct sums part = sums_at(c, memory + i * size, FEW);
        merge(rows, padded(c->v_dim), &part, &all);
    }
    write_out(c, p, &all);
}

/* One thread's memory, or NULL; ``s`` points into it. */
static void *prepare(const struct call *c, int64_t most_rows, struct scratch *s) {
    int copies = !in_place(c, most_rows);
    size_t points = copies ? (size_t)most(c->k_dim, TILE) : 0, rows = (size_t)most_rows;
    size_t queries = rows * (size_t)c->k_dim, scores = rows * TILE;
    size_t sums = 2 * (size_t)sums_size(c, most_rows), keys = copies ? TILE * (size_t)c->k_dim : 0;
    size_t values = copies ? TILE * (size_t)padded(c->v_dim) : 0;
    size_t floats = queries + scores + sums + keys + values;
    void *memory = malloc(points * sizeof(char *) + floats * sizeof(float));
    if (!memory) return NULL;
    s->most = most_rows;
    s->points = memory; /* first, for its alignment */
    s->rows = (float *)(s->points + points);
    s->scores = s->rows + queries;
    s->sums = s->scores + scores;
    s->keys = s->sums + sums;
    s->values = s->keys + keys;
    return memory;
}

/* Attends; 0, or 1 where there was no memory and the output means nothing. */
int octavo_paged_attention(const struct call *c) {
    int64_t count = cut_all(c, NULL), wholes = 0, rows = 1;
    struct piece *pieces = malloc((size_t)most(1, count) * sizeof *pieces);
    if (!pieces) return 1;
    cut_all(c, pieces);
    for (int64_t i = 0; i < count; i++) {
        wholes += pieces[i].parts > 0;
        rows = most(rows, pieces[i].upto - pieces[i].from);
    }
    int apart = c->threads > 1 && wholes < 4 * c->threads; /* few long contexts: share their parts */
    int64_t size = sums_size(c, FEW);
    float *found = malloc(apart ? (size_t)(count * size) * sizeof(float) : 1);
    int failed = !found;
#pragma omp parallel num_threads((int)c->threads)
    {
        struct scratch s;
        void *memory = found ? prepare(c, rows, &s) : NULL;
        if (!memory) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++) {
            const struct piece *p = pieces + i;
            struct sums mine = sums_at(c, found + (apart ? i * size : 0), FEW);
            if (!memory) continue;
            if (apart && p->parts != 1)
                attend(c, p, &s, &mine);
            else if (p->parts)
                run_whole(c, p, &s);
        }
#pragma omp for
        for (int64_t i = 0; i < count; i++)
            if (apart && !failed && pieces[i].parts > 1) join(c, pieces + i, found + i * size);
        free(memory);
    }
    free(found);
    free(pieces);
    return failed;
}

/* --- new rows --------------------------------------------------------------------------------- */

/* Rows of ``size`` elements, [tokens, heads], and the pages they belong to; strides count elements. */
struct rows {
    const char *new;
    char *cache;
    int64_t size, new_token, new_head, page, head, token;
};

/* What Python passes: a layer's keys and values, their pages and places there by token. */
struct put {
    const int64_t *pages, *offsets; /* [tokens] */
    int64_t tokens, heads, bytes;   /* bytes of an element */
    struct rows key, value;
};

static void put_rows(const struct put *p, const struct rows *r) {
    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++)
            memcpy(r->cache + p->bytes * (p->pages[t] * r->page + h * r->head +
                                          p->offsets[t] * r->token),
                   r->new + p->bytes * (t * r->new_token + h * r->new_head),
                   (size_t)(p->bytes * r->size));
}

void octavo_put_rows(const struct put *p) {
    put_rows(p, &p->key);
    put_rows(p, &p->value);
}
