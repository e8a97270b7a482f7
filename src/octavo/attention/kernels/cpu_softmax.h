/* Scores become weights, for cpu.c. */

/* softcap * tanh(score / softcap): a series near 0, (1 - e^-2x) / (1 + e^-2x) further out. */
INLINE vec capped(vec score, float softcap) {
    vec x = score / spread(softcap), square = x * x;
    vec near = x * (spread(1) - square * (spread(1.0f / 3) - square * (spread(2.0f / 15) -
                    square * spread(17.0f / 315))));
    vec size = choose(x < spread(0), -x, x), e = exponential(size * spread(-2));
    vec far = (spread(1) - e) / (spread(1) + e);
    far = choose(x < spread(0), -far, far);
    return spread(softcap) * choose(size < spread(0.25f), near, far);
}

/* Turns a row's scores, -inf behind the last, into weights against its peak; sums before shrink. */
static void soften(float *scores, int64_t n, float *out, int64_t width, float *peak, float *total) {
    vec top = spread(*peak);
    for (int64_t t = 0; t < n; t += LANES) {
        vec x = load(scores + t);
        top = choose(x > top, x, top);
    }
    float high = largest(top);
    if (high > *peak) {
        float shrink = expf(*peak - high);
        for (int64_t d = 0; d < width; d += LANES) store(out + d, load(out + d) * spread(shrink));
        *total *= shrink;
        *peak = high;
    }
    vec sum = spread(0), against = spread(high == -INFINITY ? 0 : high);
    for (int64_t t = 0; t < n; t += LANES) {
        vec weight = exponential(load(scores + t) - against);
        store(scores + t, weight);
        sum += weight;
    }
    *total += total_of(sum);
}
