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
 * transposed, so that copying is paid once for all of them; in bfloat16 they are multiplied by tiles
 * where the processor has them.
 *
 * NaN and infinity go their way as IEEE arithmetic has it; what a row does not see never meets it.
 * Its score is taken away whatever it is, and where its value is not finite, so that a weight of 0
 * would not take it away, the rows of the tile take the values they see alone.
 */

#define _DEFAULT_SOURCE /* for syscall() */
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
typedef uint32_t uints __attribute__((vector_size(LANES * 4)));
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
    int64_t causal, bf16, threads, tiles; /* tiles: whether this process may multiply them */
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

#include "cpu_numbers.h"
#include "cpu_products.h"
#include "cpu_tiles.h"
#include "cpu_softmax.h"

/* --- a tile ----------------------------------------------------------------------------------- */

/* Whether so many rows work on keys and values where they lie. */
INLINE int in_place(const struct call *c, int64_t rows) {
    return rows <= FEW && c->k_dim % LANES == 0 && c->v_dim % LANES == 0;
}

/* Whether many rows are multiplied by tiles. */
INLINE int by_tiles(const struct call *c) {
    return c->tiles && c->bf16 && c->k_dim % 32 == 0 && c->v_dim % 16 == 0;
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

#ifdef HAS_TILES
/* The same by tiles, but for values that are not finite. */
static void tile_multiplied(const struct call *c, const struct piece *p, const struct tile *t,
                            const struct scratch *s, const struct sums *sums) {
    int64_t count = p->upto - p->from;
    int whole = sees_all(c, p, t->at, t->n);
    copy_keys(t->keys, t->n, c->k_dim / 2, s->keys, 0); /* pairs of bfloat16, as they lie */
    multiply_keys((const uint16_t *)s->rows, count, c->k_dim, s->keys, s->scores);
    for (int64_t i = 0; i < count * TILE; i += LANES)
        store(s->scores + i, load(s->scores + i) * spread((float)c->scale));
    weigh(c, p, t, whole, s->scores, sums);
    if (!all_finite(t->values, t->n, c->v_dim, 1)) {
        struct product out = {s->scores, TILE, t->values, t->n, sums->out, c->v_dim, c->v_dim};
        add_values(c, p, t, &out, whole, 1);
        return;
    }
    pair_values(t->values, t->n, c->v_dim, s->values);
    split_weights(s->scores, count, t->n);
    multiply_values(s->scores, count, t->n, s->values, sums->out, c->v_dim);
}
#endif

/* --- a piece ---------------------------------------------------------------------------------- */

INLINE int64_t query_head(const struct call *c, const struct piece *p, int64_t row) {
    return p->head * sharers(c) + row % sharers(c);
}

INLINE int64_t token(const struct call *c, const struct piece *p, int64_t row) {
    return c->start[p->sequence] + row / sharers(c);
}

static void copy_queries(const struct call *c, const struct piece *p, float *rows) {
    int as_they_are = by_tiles(c) && !in_place(c, p->upto - p->from);
    for (int64_t row = p->from; row < p->upto; row++, rows += as_they_are ? c->k_dim / 2 : c->k_dim) {
        int64_t at = token(c, p, row) * c->query_token + query_head(c, p, row) * c->query_head;
        if (as_they_are) {
            memcpy(rows, (const uint16_t *)c->query + at, (size_t)c->k_dim * sizeof(uint16_t));
            continue;
        }
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
#ifdef HAS_TILES
        else if (by_tiles(c))
            tile_multiplied(c, p, &tiles[i], s, sums);
#endif
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

/* One thread's memory, or NULL; ``s`` points into it. Rows are filled up to those of tiles, so that
 * all parts but the last begin with a line of the cache. */
static void *prepare(const struct call *c, int64_t most_rows, struct scratch *s) {
    int copies = !in_place(c, most_rows);
    s->most = (most_rows + SIDE - 1) / SIDE * SIDE;
    size_t points = copies ? (size_t)most(c->k_dim, TILE) : 0, rows = (size_t)s->most;
    size_t queries = rows * (size_t)c->k_dim, scores = rows * TILE;
    size_t sums = 2 * (size_t)sums_size(c, s->most), keys = copies ? TILE * (size_t)c->k_dim : 0;
    size_t values = copies ? TILE * (size_t)padded(c->v_dim) : 0;
    size_t floats = queries + scores + sums + keys + values;
    size_t bytes = points * sizeof(char *) + floats * sizeof(float);
    float *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) return NULL;
    s->rows = memory;
    s->scores = s->rows + queries;
    s->sums = s->scores + scores;
    s->keys = s->sums + sums;
    s->values = s->keys + keys;
    s->points = (const char **)(s->values + values);
#ifdef HAS_TILES
    if (copies && by_tiles(c)) shape_tiles();
#endif
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
#ifdef HAS_TILES
        if (memory && by_tiles(c)) _tile_release();
#endif
        free(memory);
    }
    free(found);
    free(pieces);
    return failed;
}

#include "cpu_put.h"
