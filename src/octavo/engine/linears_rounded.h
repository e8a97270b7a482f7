/* Rows of x rounded to 15 bits, for linears.c: two digits of 8 bits, and factors by groups. */

/* The rows of x that a block from one on has, of those that are left. What tiles multiply is filled
 * up with zeros: a few rows are faster without them. */
INLINE int64_t block_rows(int64_t left, int tiles) {
    return tiles && left > BLOCK / 2 ? BLOCK : least(BLOCK, left);
}

/* Digits and factors of a group, of all rows of a block. */
struct rounded {
    int8_t *high, *low;     /* [rows, GROUP] each: a number is high * 128 + low */
    struct factor *factors; /* [rows] */
};

INLINE struct rounded find_rounded(const struct call *c, int64_t first, int64_t group) {
    int64_t rows = block_rows(c->rows - first, c->tiles), at = first * (c->width / GROUP) + group * rows;
    int8_t *high = (int8_t *)c->x + 2 * GROUP * at;
    return (struct rounded){high, high + rows * GROUP, c->factors + at};
}

INLINE int32_t greatest_of(ints x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    int32_t greatest = x[0];
    for (int i = 1; i < LANES; i++) greatest = x[i] > greatest ? x[i] : greatest;
    return greatest;
#endif
}

INLINE int32_t sum_of(ints x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
#endif
}

/* Rounds a group of a row of x: NaN and infinity make its scale NaN or infinite. */
INLINE void round_group(int8_t *to_high, int8_t *to_low, struct factor *to, const vec *x) {
    const float top = 127 * 128, shift = 12582912; /* 1.5 * 2^23, to which integers are added */
    ints most = {0}, sums = {0};
    UNROLLED for (int i = 0; i < GROUP / LANES; i++) {
        ints size = (ints)x[i] & 0x7fffffff; /* of the same order as the numbers' sizes */
        ints more = size > most;
        most = (size & more) | (most & ~more);
    }
    int32_t greatest = greatest_of(most);
    memcpy(&to->scale, &greatest, sizeof greatest);
    float unit = to->scale > 0 ? top / to->scale : 0;
    UNROLLED for (int i = 0; i < GROUP / LANES; i++) {
        ints number = (ints)(x[i] * unit + shift) - (ints)spread(shift);
        ints high = (number + 64) >> 7;
        signed_bytes digits = __builtin_convertvector(high, signed_bytes);
        memcpy(to_high + i * LANES, &digits, sizeof digits);
        digits = __builtin_convertvector(number - high * 128, signed_bytes);
        memcpy(to_low + i * LANES, &digits, sizeof digits);
        sums += number;
    }
    int32_t sum = sum_of(sums);
    to->scale /= top;
    to->zero = to->scale * (float)sum;
    to->above = -128 * sum;
}

/* Rounds rows of x, and fills up the last block. */
static void round_rows(const struct call *c, const void *x, int threads) {
    int64_t groups = c->width / GROUP, size = c->half ? 2 : 4;
#pragma omp parallel for num_threads(threads) if (c->rows > PANEL)
    for (int64_t first = 0; first < c->rows; first += BLOCK) {
        int64_t rows = block_rows(c->rows - first, c->tiles);
        for (int64_t r = 0; r < rows; r++) {
            const char *from = (const char *)x + (first + r) * c->width * size;
            for (int64_t g = 0; g < groups; g++, from += GROUP * size) {
                struct rounded to = find_rounded(c, first, g);
                vec group[GROUP / LANES] = {0};
                for (int i = 0; i < GROUP / LANES && first + r < c->rows; i++)
                    group[i] = c->half ? from_bf16((const uint16_t *)from + i * LANES)
                                       : load((const float *)from + i * LANES);
                round_group(to.high + r * GROUP, to.low + r * GROUP, to.factors + r, group);
            }
        }
    }
}
