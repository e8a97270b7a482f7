/* Numbers and vectors of them, for linears.c. */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec load(const void *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE vec from_bf16(const uint16_t *from) {
    halves h;
    memcpy(&h, from, sizeof h);
#if defined __AVX512F__ /* what compilers make of the conversion takes thrice as many instructions */
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined __AVX2__
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vec)(__builtin_convertvector(h, ints) << 16);
#endif
}

/* One number of many. */
INLINE float element(const void *of, int64_t at, int half) {
    if (!half) return ((const float *)of)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)of)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Writes one, in bfloat16 rounded to the nearest, to even. */
INLINE void put(void *to, int64_t at, float x, int half) {
    if (!half) {
        ((float *)to)[at] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int nan = (bits & 0x7fffffff) > 0x7f800000;
    ((uint16_t *)to)[at] = (uint16_t)(nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Writes a vector full, to the same bits. */
INLINE void put_vector(void *to, int64_t at, vec x, int half) {
    if (!half) {
        memcpy((float *)to + at, &x, sizeof x);
        return;
    }
    uints bits = (uints)x;
    ints number = (ints)(x == x);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    bits = (bits & (uints)number) | (0x7fc0 & ~(uints)number);
    halves h = __builtin_convertvector(bits, halves);
    memcpy((uint16_t *)to + at, &h, sizeof h);
}

/* The sums of four vectors, each taken in the same order. */
INLINE void sum_each(float *to, const vec *of) {
#if defined __AVX512F__
    __m512 a = (__m512)of[0], b = (__m512)of[1], c = (__m512)of[2], d = (__m512)of[3];
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_castps_pd(ab), high = _mm512_castps_pd(cd);
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                               _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int n = 0; n < 4; n++) {
        float s[LANES];
        memcpy(s, of + n, sizeof s);
        for (int width = LANES / 2; width; width /= 2)
            for (int i = 0; i < width; i++) s[i] += s[i + width];
        to[n] = s[0];
    }
#endif
}
