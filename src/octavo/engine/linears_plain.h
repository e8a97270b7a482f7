/* Plain weights, for linears.c. */

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

/* Adds the columns from ``i`` on, fewer than a group, of a row and some outputs. */
static void add_rest(const struct call *c, const char *weight, int64_t row, int64_t i, int outs,
                     int kind, float *sums) {
    int64_t width = c->width, bytes = (kind == FP32 ? 4 : 2) * width;
    for (int o = 0; o < outs; o++)
        for (int64_t j = i; j < width; j++)
            sums[o] += element(c->x, row * width + j, kind == PAIRED) *
                       element(weight + o * bytes, j, kind != FP32);
}

/* Outputs at..at+outs-1 of rows row..row+rows-1; ``weight`` is that of ``at``. */
INLINE void block(const struct call *c, const struct part *p, void *out, const char *weight,
                  const struct ahead *ahead, int64_t at, int64_t row, int outs, int rows, int kind) {
    int size = kind == FP32 ? 4 : 2, step = kind == PAIRED ? 2 * LANES : LANES;
    int x_size = kind == PAIRED ? 2 : 4;
    int64_t width = c->width, bytes = size * width;
    const char *x = c->x + row * width * x_size, *w = weight, *next = ahead->next;
    vec sums[FEW * OUTS + 3] = {0}; /* by rows, then outputs; four at a time are summed up */
    int64_t i = 0;
    for (; i + GROUP <= width; i += GROUP, x += GROUP * x_size, w += GROUP * size, next += GROUP * size) {
        for (int o = ahead->turn; o < OUTS; o += ahead->turns)
            for (int n = 0; n < GROUP * size; n += 64) __builtin_prefetch(next + o * bytes + n, 0, 2);
        UNROLLED for (int in = 0; in < GROUP; in += step) {
            vec now[FEW];
            UNROLLED for (int r = 0; r < rows; r++) now[r] = load(x + (r * width + in) * x_size);
            UNROLLED for (int o = 0; o < outs; o++) {
                vec many = fetch(w + o * bytes, in, kind);
                UNROLLED for (int r = 0; r < rows; r++)
                    sums[r * outs + o] = add_product(sums[r * outs + o], many, now[r], kind);
            }
        }
    }
    float found[FEW * OUTS + 3];
    UNROLLED for (int n = 0; n < rows * outs; n += 4) sum_each(found + n, sums + n);
    for (int r = 0; r < rows; r++) {
        float *mine = found + r * outs;
        if (i < width) add_rest(c, weight, row + r, i, outs, kind, mine);
        for (int o = 0; o < outs && p->bias; o++) mine[o] += element(p->bias, at + o, c->half);
        if (c->half)
            for (int o = 0; o < outs; o++) put(out, (row + r) * p->outs + at + o, mine[o], 1);
        else
            memcpy((float *)out + (row + r) * p->outs + at, mine, (size_t)outs * sizeof *mine);
    }
}

/* A function for each shape of a block: in one for all, compilers run out of registers. */
typedef void block_of(const struct call *, const struct part *, void *, const char *,
                      const struct ahead *, int64_t, int64_t);
#define BLOCK(name, outs, rows, most, kind) \
    static __attribute__((noinline)) void name(const struct call *c, const struct part *p, \
                                               void *out, const char *weight, \
                                               const struct ahead *ahead, int64_t at, \
                                               int64_t row) { \
        if (rows <= most) block(c, p, out, weight, ahead, at, row, outs, rows, kind); \
    }
#define BLOCKS(name, outs, most, kind) \
    BLOCK(name##_1, outs, 1, most, kind) \
    BLOCK(name##_2, outs, 2, most, kind) \
    BLOCK(name##_4, outs, 4, most, kind) \
    BLOCK(name##_8, outs, 8, most, kind) \
    static block_of *const name[] = {name##_1, name##_2, name##_4, name##_8};
BLOCKS(whole_fp32, OUTS, ROWS, FP32)
BLOCKS(single_fp32, 1, ROWS, FP32)
#if defined __AVX512F__ && defined __AVX512BF16__ /* one of the two: each takes seconds to compile */
BLOCKS(whole_paired, OUTS, ROWS, PAIRED)
BLOCKS(single_paired, 1, ROWS, PAIRED)
#else
BLOCKS(half_bf16, OUTS / 2, 2 * ROWS, BF16)
#endif
#undef BLOCKS
#undef BLOCK

/* Outputs of the rows from..upto-1, so many at once, and the rest by halves. */
static void pass(const struct call *c, const struct part *p, void *out, const char *weight,
                 struct ahead *ahead, int64_t at, int64_t from, int64_t upto, int rows,
                 block_of *const *blocks) {
    for (int n = 3; n >= 0; n--)
        for (; 1 << n <= rows && from + (1 << n) <= upto; from += 1 << n, ahead->turn++)
            blocks[n](c, p, out, weight, ahead, at, from);
}

/* The same, whole strips or single outputs. */
static void pass_plain(const struct call *c, const struct part *p, void *out, const char *weight,
                       struct ahead *ahead, int64_t at, int64_t from, int64_t upto, int outs,
                       int64_t bytes, block_of *const *whole, block_of *const *single) {
    if (outs == OUTS)
        pass(c, p, out, weight, ahead, at, from, upto, ROWS, whole);
    else
        for (int o = 0; o < outs; o++)
            pass(c, p, out, weight + o * bytes, ahead, at + o, from, upto, ROWS, single);
}

/* A strip. What must be widened is worth twice the rows at once, for which half the outputs have
 * room; of many rows it is written down as float32 in ``plain`` first. */
INLINE void strip(const struct call *c, const struct part *p, void *out, float *plain, int64_t at,
                  int64_t from, int64_t upto, int kind) {
    int64_t size = kind == FP32 ? 4 : 2, width = c->width, bytes = size * width;
    int outs = (int)least(OUTS, p->outs - at);
    const char *weight = p->weight + at * bytes;
    struct ahead ahead = {weight + OUTS * bytes, 0, (int)((upto - from + ROWS - 1) / ROWS)};
    if (kind == FP32) {
        pass_plain(c, p, out, weight, &ahead, at, from, upto, outs, bytes, whole_fp32, single_fp32);
        return;
    }
#if defined __AVX512F__ && defined __AVX512BF16__
    (void)plain;
    pass_plain(c, p, out, weight, &ahead, at, from, upto, outs, bytes, whole_paired, single_paired);
#else
    if (upto - from <= FEW && outs == OUTS) {
        for (int o = 0; o < OUTS; o += OUTS / 2)
            pass(c, p, out, weight + o * bytes, &ahead, at + o, from, upto, 2 * ROWS, half_bf16);
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
    pass_plain(c, p, out, (const char *)plain, &ahead, at, from, upto, outs, 4 * width, whole_fp32,
               single_fp32);
#endif
}
