/* Many rows of bfloat16 by the processor's tiles (AMX), for cpu.c: products of queries with keys, and
 * of weights with values, SIDE rows by SIDE columns at once, summed in float32. Weights are taken as
 * the sum of two numbers of bfloat16, so that little of them is lost. */

#if defined __linux__ && defined __AMX_BF16__ && defined __AVX512BF16__ && defined __AVX512F__
#define HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { SIDE = 16 }; /* rows of a tile, and its numbers of 32 bits in a row */

/* Whether this process may multiply by tiles, which Linux allows those that ask. */
int octavo_attention_tiles(void) {
#ifdef HAS_TILES
    enum { ASK = 0x1023, DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return !syscall(SYS_arch_prctl, ASK, DATA);
#else
    return 0;
#endif
}

#ifdef HAS_TILES

/* Has the thread's tiles be of SIDE rows of 64 bytes each. */
static void shape_tiles(void) {
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* Numbers from a call to the next: some compilers do not know that tiles read and write memory. */
#define WRITTEN() __asm__ volatile("" ::: "memory")

/* scores [count, TILE] = queries [count, dim] @ pairs, the keys as [dim / 2, TILE] pairs of numbers. */
static void multiply_keys(const uint16_t *queries, int64_t count, int64_t dim, const float *pairs,
                          float *scores) {
    WRITTEN();
    for (int64_t r = 0; r < count; r += SIDE, queries += SIDE * dim, scores += SIDE * TILE) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < dim; d += 2 * SIDE) {
            _tile_loadd(4, queries + d, 2 * dim);
#define MULTIPLY(to, keys) \
    _tile_loadd(keys, pairs + d / 2 * TILE + to * SIDE, TILE * 4); \
    _tile_dpbf16ps(to, 4, keys);
            MULTIPLY(0, 5)
            MULTIPLY(1, 6)
            MULTIPLY(2, 5)
            MULTIPLY(3, 6)
#undef MULTIPLY
        }
        _tile_stored(0, scores, TILE * 4);
        _tile_stored(1, scores + SIDE, TILE * 4);
        _tile_stored(2, scores + 2 * SIDE, TILE * 4);
        _tile_stored(3, scores + 3 * SIDE, TILE * 4);
    }
    WRITTEN();
}

/* Values by pairs, [TILE / 2, dim], each of two neighbours; behind the n-th are zeros. */
static void pair_values(const char *const *values, int64_t n, int64_t dim, float *to) {
    for (int64_t t = 0; t < TILE; t += 2, to += dim)
        for (int64_t d = 0; d < dim; d += LANES) {
            uints first = t < n ? (uints)fetch(values[t], d, 1) : (uints){0};
            uints second = t + 1 < n ? (uints)fetch(values[t + 1], d, 1) : (uints){0};
            store(to + d, (vec)(first >> 16 | second));
        }
}

/* Has each of ``count`` rows of weights, of which n count, be TILE numbers of bfloat16, and behind
 * them what these lack. */
static void split_weights(float *weights, int64_t count, int64_t n) {
    for (int64_t r = 0; r < count; r++, weights += TILE) {
        __m256bh high[TILE / LANES], low[TILE / LANES];
        UNROLLED for (int i = 0; i < TILE / LANES; i++) {
            vec all = i * LANES < n ? load(weights + i * LANES) : spread(0);
            high[i] = _mm512_cvtneps_pbh((__m512)all);
            low[i] = _mm512_cvtneps_pbh((__m512)(all - fetch((const char *)(high + i), 0, 1)));
        }
        memcpy(weights, high, sizeof high);
        memcpy(weights + TILE / 2, low, sizeof low);
    }
}

/* out [count, width] += split weights @ values, the first n of them, by pairs. */
static void multiply_values(const float *weights, int64_t count, int64_t n, const float *pairs,
                            float *out, int64_t width) {
    WRITTEN();
    for (int64_t r = 0; r < count; r += SIDE, weights += SIDE * TILE, out += SIDE * width)
        for (int64_t d = 0; d < width; d += 2 * SIDE) {
            int two = d + SIDE < width;
            _tile_loadd(0, out + d, width * 4);
            if (two) _tile_loadd(1, out + d + SIDE, width * 4);
            for (int64_t t = 0; t < n; t += 2 * SIDE) {
                _tile_loadd(2, weights + t / 2, TILE * 4);
                _tile_loadd(3, weights + (TILE + t) / 2, TILE * 4);
                _tile_loadd(4, pairs + t / 2 * width + d, width * 4);
                _tile_dpbf16ps(0, 2, 4);
                _tile_dpbf16ps(0, 3, 4);
                if (!two) continue;
                _tile_loadd(5, pairs + t / 2 * width + d + SIDE, width * 4);
                _tile_dpbf16ps(1, 2, 5);
                _tile_dpbf16ps(1, 3, 5);
            }
            _tile_stored(0, out + d, width * 4);
            if (two) _tile_stored(1, out + d + SIDE, width * 4);
        }
    WRITTEN();
}

#endif
