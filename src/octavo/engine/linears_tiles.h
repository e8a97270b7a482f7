/* Plain weights of bfloat16 by tiles, for linears.c. */

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
