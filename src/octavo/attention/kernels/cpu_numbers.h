/* Numbers and vectors of them, for cpu.c. */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

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
