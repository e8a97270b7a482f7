/* Quantised weights, for linears.c: outputs of a tile are summed side by side. */

/* Adds a group's products to a row's sums: ``high`` and ``low`` are those with its digits. */
INLINE vec add_group(vec sum, ints high, ints low, vec scale, vec zero, const struct factor *row,
                     int kind) {
    ints all = high * 128 + low;
    if (kind == INT8) all += row->above;
    sum += __builtin_convertvector(all, vec) * (scale * row->scale);
    return kind == INT4 ? sum + zero * row->zero : sum;
}

/* Scales of LANES outputs of a group, and zeros where it has them. */
INLINE vec find_scale(const char *weight, int kind) {
    return load(weight + (kind == INT8 ? GROUP : GROUP / 2) * TILE);
}

INLINE vec find_zero(const char *weight, int kind) {
    return kind == INT4 ? load(weight + (GROUP / 2 + 4) * TILE) : (vec){0};
}

static void put_last(const struct call *c, const struct part *p, void *out, vec sums, int64_t row,
                     int64_t at) {
    float each[LANES];
    memcpy(each, &sums, sizeof each);
    for (int o = 0; o < p->outs - at; o++)
        put(out, row * p->outs + at + o,
            p->bias ? each[o] + element(p->bias, at + o, c->half) : each[o], c->half);
}

/* Writes outputs from ``at`` on of a row, a vector full or as many as there are. */
INLINE void put_outs(const struct call *c, const struct part *p, void *out, vec sum, int64_t row,
                     int64_t at) {
    if (at + LANES > p->outs) {
        put_last(c, p, out, sum, row, at);
        return;
    }
    if (p->bias) sum += c->half ? from_bf16((const uint16_t *)p->bias + at)
                                : load((const float *)p->bias + at);
    put_vector(out, row * p->outs + at, sum, c->half);
}

INLINE int64_t group_size(int kind) {
    return kind == INT8 ? sizeof(struct int8) : sizeof(struct int4);
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

/* LANES outputs of a tile, of rows skip..skip+rows-1 of the block from ``first`` on; ``weight`` is
 * that of the first of them. */
INLINE void lanes(const struct call *c, const struct part *p, void *out, const char *weight,
                  int64_t at, int64_t first, int64_t skip, int rows, int kind) {
    int64_t groups = c->width / GROUP, size = group_size(kind);
    vec sums[BLOCK] = {0};
    for (int64_t g = 0; g < groups; g++, weight += size) {
        struct rounded x = find_rounded(c, first, g);
        ints high[BLOCK] = {0}, low[BLOCK] = {0};
        for (int64_t n = 0; n < size; n += 64) __builtin_prefetch(weight + AHEAD + n, 0, 3);
        UNROLLED for (int n = 0; n < GROUP / 4; n++) {
            ints w = (ints)load(weight + (kind == INT8 ? n : n % 4) * TILE * 4);
            if (kind == INT4) w = (n < 4 ? w : w >> 4) & 0x0f0f0f0f;
            UNROLLED for (int r = 0; r < rows; r++) {
                high[r] = add_dots(high[r], w, x.high + (skip + r) * GROUP + 4 * n, kind);
                low[r] = add_dots(low[r], w, x.low + (skip + r) * GROUP + 4 * n, kind);
            }
        }
        vec scale = find_scale(weight, kind), zero = find_zero(weight, kind);
        UNROLLED for (int r = 0; r < rows; r++)
            sums[r] = add_group(sums[r], high[r], low[r], scale, zero, x.factors + skip + r, kind);
    }
    for (int r = 0; r < rows; r++) put_outs(c, p, out, sums[r], first + skip + r, at);
}

/* A tile's outputs of the block from ``first`` on, by dot products. */
INLINE void by_dots(const struct call *c, const struct part *p, void *out, const char *weight,
                    int64_t at, int64_t first, int kind) {
    int64_t skip = 0, rows = least(BLOCK, c->rows - first);
#define BY(n) \
    for (; n <= 2 * ROWS && skip + n <= rows; skip += n) \
        for (int o = 0; o < TILE && at + o < p->outs; o += LANES) \
            lanes(c, p, out, weight + 4 * o, at + o, first, skip, n, kind)
    BY(8);
    BY(4);
    BY(2);
    BY(1);
#undef BY
}

#ifdef HAS_TILES

/* Where the products of a group with a block's digits lie: first those with all high ones. */
typedef int32_t products[2 * BLOCK][TILE];

/* Has the thread's tiles be for 8 bits: 0 to 3 are products, 4 weights, 5 and 6 digits. */
INLINE void shape_byte_tiles(void) {
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, GROUP, GROUP}, {16, 16, 16, 16, GROUP / 4, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* Products of a group's weights with the digits of one or two blocks, ``apart`` bytes; those of odd
 * groups have tiles of their own. */
INLINE void multiply_group(const char *weight, const int8_t *digits, int64_t apart, int blocks,
                           int odd) {
#define MULTIPLY(to, x, from) \
    _tile_loadd(x, from, GROUP); \
    _tile_zero(to); \
    _tile_dpbsud(to, x, 4);
    _tile_loadd(4, weight, 64);
    if (!odd) {
        MULTIPLY(0, 5, digits)
        if (blocks == 2) {
            MULTIPLY(1, 6, digits + apart)
        }
    } else {
        MULTIPLY(2, 5, digits)
        if (blocks == 2) {
            MULTIPLY(3, 6, digits + apart)
        }
    }
#undef MULTIPLY
}

INLINE void store_products(products *to, int blocks, int odd) {
    if (!odd) {
        _tile_stored(0, to, 64);
        if (blocks == 2) _tile_stored(1, to + 1, 64);
    } else {
        _tile_stored(2, to, 64);
        if (blocks == 2) _tile_stored(3, to + 1, 64);
    }
}

/* Adds a group's products to the sums of a block. */
INLINE void add_block(vec *sums, products *found, vec scale, vec zero, const struct factor *rows,
                      int kind) {
    UNROLLED for (int r = 0; r < BLOCK; r++)
        sums[r] = add_group(sums[r], (ints)load((*found)[r]), (ints)load((*found)[BLOCK + r]), scale,
                            zero, rows + r, kind);
}

/* A tile's outputs of one or two whole blocks from ``first`` on. While a group is multiplied, the
 * products of the one before it are stored, and those before them are added. */
INLINE void whole_blocks(const struct call *c, const struct part *p, void *out, const char *weight,
                         const char *numbers, int64_t step, int64_t at, int64_t first, int blocks,
                         int kind) {
    int64_t groups = c->width / GROUP, size = group_size(kind), apart = 2 * BLOCK * c->width;
    products found[2][2] __attribute__((aligned(64)));
    struct rounded x = find_rounded(c, first, 0);
    const int8_t *digits = x.high;
    const struct factor *factors = x.factors;
    vec one[BLOCK] = {0}, two[BLOCK] = {0};
    for (int64_t g = 0; g < groups + 2; g += 2)
        UNROLLED for (int odd = 0; odd < 2; odd++) {
            if (g + odd < groups) {
                multiply_group(numbers, digits, apart, blocks, odd);
                numbers += step;
                digits += 2 * BLOCK * GROUP;
            }
            if (g + odd > 0 && g + odd <= groups) store_products(found[!odd], blocks, !odd);
            if (g + odd < 2 || g + odd >= groups + 2) continue;
            vec scale = find_scale(weight, kind), zero = find_zero(weight, kind);
            for (int64_t n = 0; n < size && !(first % PANEL); n += 64) /* the next strip's */
                __builtin_prefetch(weight + groups * size + n, 0, 2);
            add_block(one, found[odd], scale, zero, factors, kind);
            if (blocks == 2)
                add_block(two, found[odd] + 1, scale, zero, factors + BLOCK * groups, kind);
            weight += size;
            factors += BLOCK;
        }
    vec sums[2 * BLOCK]; /* in memory, so that they were in registers */
    memcpy(sums, one, sizeof one);
    memcpy(sums + BLOCK, two, sizeof two);
    for (int64_t r = 0; r < least(blocks * BLOCK, c->rows - first); r++)
        put_outs(c, p, out, sums[r], first + r, at);
}

/* Numbers of 4 bits, each in a byte of its own. */
INLINE void widen(char *to, const char *weight, int64_t groups) {
    for (int64_t g = 0; g < groups; g++, weight += sizeof(struct int4), to += GROUP * TILE)
        for (int n = 0; n < GROUP / 8; n++) {
            ints two = (ints)load(weight + n * TILE * 4);
            ints low = two & 0x0f0f0f0f, high = two >> 4 & 0x0f0f0f0f;
            memcpy(to + n * TILE * 4, &low, sizeof low);
            memcpy(to + (n + GROUP / 8) * TILE * 4, &high, sizeof high);
        }
}

#endif

/* A tile's outputs of the rows from..upto-1; ``spare`` has room for its numbers in bytes. */
INLINE void tile(const struct call *c, const struct part *p, void *out, char *spare, int64_t at,
                 int64_t from, int64_t upto, int kind) {
    int64_t groups = c->width / GROUP, first = from;
    const char *weight = p->weight + at / TILE * groups * group_size(kind);
#ifdef HAS_TILES
    if (c->tiles && block_rows(upto - from, 1) == BLOCK) {
        const char *numbers = kind == INT4 ? spare : weight;
        int64_t step = kind == INT4 ? GROUP * TILE : group_size(kind);
        if (kind == INT4) widen(spare, weight, groups);
        __asm__ volatile("" ::: "memory"); /* some compilers do not know that tiles read it */
        for (; block_rows(upto - first - BLOCK, 1) == BLOCK; first += 2 * BLOCK)
            whole_blocks(c, p, out, weight, numbers, step, at, first, 2, kind);
        for (; block_rows(upto - first, 1) == BLOCK; first += BLOCK)
            whole_blocks(c, p, out, weight, numbers, step, at, first, 1, kind);
    }
#endif
    (void)spare;
    for (; first < upto; first += BLOCK) by_dots(c, p, out, weight, at, first, kind);
}
