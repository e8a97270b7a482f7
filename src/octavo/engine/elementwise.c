/* What a model does to its rows between linear layers, on a CPU: norms and rotary codes. In float32
 * or bfloat16; sums and products are float32, and bfloat16 is rounded where torch rounds it. A row's result is the same to the bit beside any others and with any number of threads.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

enum { SMALL = 32768 }; /* elements that are not worth another thread */

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

#define INLINE static inline __attribute__((always_inline))

/* A call compiled for each element type. */
#define BY_TYPE(bf16, function, ...) \
    ((bf16) ? function(__VA_ARGS__, 1) : function(__VA_ARGS__, 0))

/* --- numbers ---------------------------------------------------------------------------------- */

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec choose(ints mask, vec yes, vec no) {
    return (vec)((mask & (ints)yes) | (~mask & (ints)no));
}

/* To nearest, ties to even, in the upper half of each lane; NaN stays NaN. */
INLINE vec rounded(vec x, int bf16) {
    if (!bf16) return x;
    words bits = (words)x;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
    return choose(x == x, (vec)bits, (vec)((ints){0} + 0x7fc00000));
}

/* n <= LANES elements from i on; zeros behind them. */
INLINE vec fetch(const void *from, int64_t i, int64_t n, int bf16) {
    if (!bf16) {
        vec x = spread(0);
        if (n == LANES)
            memcpy(&x, (const float *)from + i, sizeof x);
        else
            memcpy(&x, (const float *)from + i, (size_t)n * sizeof(float));
        return x;
    }
    halves h = {0};
    if (n == LANES)
        memcpy(&h, (const uint16_t *)from + i, sizeof h);
    else
        memcpy(&h, (const uint16_t *)from + i, (size_t)n * sizeof(uint16_t));
    return (vec)(__builtin_convertvector(h, words) << 16);
}

/* The opposite; of bfloat16 what `rounded` gives. */
INLINE void put(void *to, int64_t i, int64_t n, vec x, int bf16) {
    if (!bf16) {
        if (n == LANES)
            memcpy((float *)to + i, &x, sizeof x);
        else
            memcpy((float *)to + i, &x, (size_t)n * sizeof(float));
        return;
    }
    halves h = __builtin_convertvector((words)x >> 16, halves);
    if (n == LANES)
        memcpy((uint16_t *)to + i, &h, sizeof h);
    else
        memcpy((uint16_t *)to + i, &h, (size_t)n * sizeof(uint16_t));
}

INLINE int64_t lanes_at(int64_t i, int64_t width) { return width - i < LANES ? width - i : LANES; }

INLINE const void *from(const void *base, int64_t elements, int bf16) {
    return (const char *)base + elements * (bf16 ? 2 : 4);
}

/* --- norms ------------------------------------------------------------------------------------ */

enum { BF16 = 1, PLUS_ONE = 2, ROUNDS = 4 }; /* flags; ROUNDS: before the weight is multiplied */

INLINE void norm(const void *x, const void *weight, void *out, int64_t width, float eps, int plus,
                 int rounds, int bf16) {
    vec sums[4] = {spread(0), spread(0), spread(0), spread(0)};
    for (int64_t i = 0, k = 0; i < width; i += LANES, k = (k + 1) & 3) {
        vec part = fetch(x, i, lanes_at(i, width), bf16);
        sums[k] += part * part;
    }
    vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    vec factor = spread(1 / sqrtf(total / (float)width + eps));
    for (int64_t i = 0; i < width; i += LANES) {
        int64_t n = lanes_at(i, width);
        vec part = rounded(fetch(x, i, n, bf16) * factor, bf16 && rounds);
        if (weight) {
            vec scale = fetch(weight, i, n, bf16);
            part *= plus ? scale + spread(1) : scale;
        }
        put(out, i, n, rounded(part, bf16), bf16);
    }
}

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, of rows [rows, width]; weight NULL: 1. */
void octavo_norm(const void *x, const void *weight, void *out, int64_t rows, int64_t width,
                 double eps, int64_t flags, int64_t threads) {
    int plus = (flags & PLUS_ONE) != 0, rounds = (flags & ROUNDS) != 0, bf16 = (flags & BF16) != 0;
#pragma omp parallel for num_threads((int)threads) if (threads > 1 && rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++)
        BY_TYPE(bf16, norm, from(x, r * width, bf16), weight, (void *)from(out, r * width, bf16),
                width, (float)eps, plus, rounds);
}

/* --- rotary codes ----------------------------------------------------------------------------- */

/* One head of one token: its first ``turned`` elements in two halves, the rest as they are. */
INLINE void turn(const void *x, const void *cos, const void *sin, void *out, int64_t width,
                 int64_t turned, int bf16) {
    int64_t half = turned / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t n = lanes_at(i, half);
        vec low = fetch(x, i, n, bf16), high = fetch(x, half + i, n, bf16);
        vec first = rounded(low * fetch(cos, i, n, bf16), bf16) -
                    rounded(high * fetch(sin, i, n, bf16), bf16);
        vec second = rounded(high * fetch(cos, half + i, n, bf16), bf16) +
                     rounded(low * fetch(sin, half + i, n, bf16), bf16);
        put(out, i, n, rounded(first, bf16), bf16);
        put(out, half + i, n, rounded(second, bf16), bf16);
    }
    for (int64_t i = turned; i < width; i += LANES) {
        int64_t n = lanes_at(i, width);
        put(out, i, n, fetch(x, i, n, bf16), bf16);
    }
}

/* Where heads of tokens lie; strides count elements. */
struct heads {
    const void *x;
    void *out; /* [tokens, count, width] */
    int64_t count, of_token, of_head;
};

INLINE void turn_all(const struct heads *heads, const void *cos, const void *sin, int64_t token,
                     int64_t width, int64_t turned, int bf16) {
    for (int64_t h = 0; h < heads->count; h++)
        turn(from(heads->x, token * heads->of_token + h * heads->of_head, bf16),
             from(cos, token * turned, bf16), from(sin, token * turned, bf16),
             (void *)from(heads->out, (token * heads->count + h) * width, bf16), width, turned,
             bf16);
}

/* Heads of queries and keys turned by their token's row of cos and sin, [tokens, turned]. */
void octavo_turn(const void *q, void *q_out, int64_t q_heads, int64_t q_token, int64_t q_head,
                 const void *k, void *k_out, int64_t k_heads, int64_t k_token, int64_t k_head,
                 const void *cos, const void *sin, int64_t tokens, int64_t width, int64_t turned,
                 int64_t bf16, int64_t threads) {
    struct heads queries = {q, q_out, q_heads, q_token, q_head};
    struct heads keys = {k, k_out, k_heads, k_token, k_head};
    int64_t elements = tokens * (q_heads + k_heads) * width;
#pragma omp parallel for num_threads((int)threads) if (threads > 1 && elements > SMALL)
    for (int64_t t = 0; t < tokens; t++) {
        BY_TYPE(bf16, turn_all, &queries, cos, sin, t, width, turned);
        BY_TYPE(bf16, turn_all, &keys, cos, sin, t, width, turned);
    }
}
