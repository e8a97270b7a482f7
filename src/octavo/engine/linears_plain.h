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
