/* Products of queries with keys, and of weights with values, for cpu.c. */

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
