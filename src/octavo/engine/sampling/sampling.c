/* Tokens and log probabilities of a row of scores, on a CPU: what processors.py, shortlist.py and
 * draws.py define, in one pass or two. Scores are float32; -inf: never this token. A row is
 * computed by one thread and by itself; the one behind it in memory is fetched meanwhile.
 */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

enum { SHORT = -1, BROKEN = -2 }; /* in place of tokens: the list is too short, no finite scores */
enum { AHEAD = 4096 }; /* scores fetched before: a processor alone stops at a page's end */
enum { BLOCK = 64 }; /* scores whose largest is found, or whose chances are added up, first */

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));

#define INLINE static inline __attribute__((always_inline))

/* A row of scores, and what chances are relative to: e^((x - top) / temperature). */
struct row {
    const float *x;
    int64_t n;
    float top, temperature;
};

struct entry {
    float score;
    int32_t id;
};

/* --- numbers ---------------------------------------------------------------------------------- */

INLINE vec spread(float x) { return x - (vec){0}; }

INLINE vec choose(ints mask, vec yes, vec no) {
    return (vec)((mask & (ints)yes) | (~mask & (ints)no));
}

/* Scores i..i+LANES-1; -inf behind the last. */
INLINE vec fetch(const float *x, int64_t i, int64_t n) {
    vec found = spread(-INFINITY);
    if (i + LANES <= n)
        memcpy(&found, x + i, sizeof found);
    else if (i < n)
        memcpy(&found, x + i, (size_t)(n - i) * sizeof(float));
    return found;
}

/* e^x for x <= 0, relative error below 2e-7; exactly 0 below -87, where float32 ends. */
INLINE vec exponential(vec x) {
    const vec shift = spread(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    ints tiny = x < spread(-87.0f);
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
    return (vec)(~tiny & (ints)power);
}

/* The lanes of a vector by fours. */
typedef float quad __attribute__((vector_size(16)));
union lanes {
    vec all;
    quad of[LANES / 4];
};

INLINE float total_of(vec x) {
    union lanes lanes = {x};
    quad sum = lanes.of[0];
    for (int i = 1; i < LANES / 4; i++) sum += lanes.of[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE float larger(float a, float b) { return a > b ? a : b; }

INLINE float largest_of(vec x) {
    union lanes lanes = {x};
    quad top = lanes.of[0];
    for (int i = 1; i < LANES / 4; i++)
        for (int lane = 0; lane < 4; lane++) top[lane] = larger(top[lane], lanes.of[i][lane]);
    return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}

INLINE int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

/* The chances of one block, 0 behind the last, and their sum. */
INLINE float block_chances(const struct row *row, int64_t block, float *chances) {
    vec sum = spread(0);
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        vec x = fetch(row->x, block * BLOCK + i, row->n);
        __builtin_prefetch(row->x + row->n + block * BLOCK + i);
        vec chance = exponential((x - spread(row->top)) / spread(row->temperature));
        if (chances) memcpy(chances + i, &chance, sizeof chance);
        sum += chance;
    }
    return total_of(sum);
}

static double mass_of(const struct row *row) {
    double sum = 0;
    for (int64_t block = 0; block < blocks_of(row->n); block++)
        sum += (double)block_chances(row, block, NULL);
    return sum;
}

/* --- random numbers: those of draws.py -------------------------------------------------------- */

static const uint64_t STRIDE = 0x9E3779B97F4A7C15u; /* of SplitMix64, and so are the factors */
enum { REST = -1, PLACE = -2 }; /* in place of ids */

INLINE uint64_t mix(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return bits ^ (bits >> 31);
}

INLINE uint64_t key_of(int64_t seed, int64_t position) {
    return mix(mix((uint64_t)seed) + (uint64_t)position * STRIDE);
}

INLINE double number_of(uint64_t key, int64_t id) {
    uint64_t bits = mix(key + (uint64_t)id * STRIDE) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

/* --- the largest scores ----------------------------------------------------------------------- */

/* Larger scores come first; of equal ones the smaller id. */
INLINE int precedes(struct entry a, struct entry b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

/* A heap whose root comes last of all: put ``entry`` below ``at`` where it belongs. */
static void sink(struct entry *heap, int64_t size, int64_t at, struct entry entry) {
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && precedes(heap[child], heap[child + 1])) child++;
        if (!precedes(entry, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

/* Take an entry into a heap of the first ``most``; returns its new size. */
INLINE int64_t take(struct entry *heap, int64_t size, int64_t most, struct entry entry) {
    if (size == most) {
        if (precedes(entry, heap[0])) sink(heap, size, 0, entry);
        return size;
    }
    int64_t at = size;
    for (int64_t parent; at && precedes(heap[parent = (at - 1) / 2], entry); at = parent)
        heap[at] = heap[parent];
    heap[at] = entry;
    return size + 1;
}

/* The largest score of a block. ``sound`` loses the lanes of what is NaN or inf. */
INLINE float block_top(const float *x, int64_t n, int64_t block, ints *sound) {
    vec top = spread(-INFINITY);
    for (int64_t i = block * BLOCK; i < block * BLOCK + BLOCK; i += LANES) {
        vec part = fetch(x, i, n);
        __builtin_prefetch(x + i + AHEAD);
        top = choose(part > top, part, top);
        *sound &= part <= spread(FLT_MAX);
    }
    return largest_of(top);
}

INLINE int all_of(ints mask) {
    int all = 1;
    for (int i = 0; i < LANES; i++) all &= mask[i] != 0;
    return all;
}

/* The first ``count`` <= n entries of a row in their order; 0: its largest score is not finite.
 * They stand in the blocks whose largest score comes first: only so many blocks are looked at, kept
 * in ``near`` [count]. */
static int find_largest(const float *x, int64_t n, int64_t count, struct entry *found,
                        struct entry *near) {
    int64_t blocks = 0, size = 0;
    ints sound = (ints){0} - 1;
    for (int64_t block = 0; block < blocks_of(n); block++) {
        float top = block_top(x, n, block, &sound);
        blocks = take(near, blocks, count, (struct entry){top, (int32_t)block});
    }
    float least = blocks == count ? near[0].score : -INFINITY; /* so many are as large */
    for (int64_t k = 0; k < blocks; k++)
        for (int64_t i = (int64_t)near[k].id * BLOCK, end = i + BLOCK; i < end && i < n; i++)
            if (x[i] >= least) size = take(found, size, count, (struct entry){x[i], (int32_t)i});
    while (size > 1) { /* the last of them goes behind all others */
        struct entry last = found[0];
        size--;
        sink(found, size, 0, found[size]);
        found[size] = last;
    }
    return all_of(sound) && found[0].score >= -FLT_MAX;
}

/* The token of the largest score, the first of equal ones; BROKEN: that score is not finite. */
int64_t octavo_likeliest(const float *x, int64_t n) {
    struct entry best = {-INFINITY, 0};
    ints sound = (ints){0} - 1;
    for (int64_t block = 0; block < blocks_of(n); block++) {
        struct entry top = {block_top(x, n, block, &sound), (int32_t)block};
        if (precedes(top, best)) best = top;
    }
    if (!all_of(sound) || !(best.score >= -FLT_MAX)) return BROKEN;
    int64_t i = (int64_t)best.id * BLOCK;
    while (x[i] != best.score) i++;
    return i;
}

/* --- changes: those of processors.py ---------------------------------------------------------- */

/* What is overwritten of a row of n scores. A token that has no score is passed over: some models
 * read more tokens than they write. */
struct kept {
    float *x;
    int64_t n, count;
    int32_t *places;
    float *old;
};

INLINE int keep(struct kept *kept, int32_t id) {
    if (id < 0 || id >= kept->n) return 0;
    kept->places[kept->count] = id, kept->old[kept->count++] = kept->x[id];
    return 1;
}

static void keep_all(struct kept *kept, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) keep(kept, ids[i]);
}

/* Biases, penalties and bans of a row, in this order; what they overwrite is kept in ``places`` and
 * ``old`` [biases + prompts + 3 * outputs + bans], for `octavo_restore`. Returns how many. */
int64_t octavo_change(float *x, int64_t n, const int32_t *prompt, int64_t prompts,
                      const int32_t *output, int64_t outputs, const int32_t *biased,
                      const float *bias, int64_t biases, const int32_t *banned, int64_t bans,
                      double repetition, double presence, double frequency, int32_t *places,
                      float *old) {
    struct kept kept = {x, n, 0, places, old};
    for (int64_t i = 0; i < biases; i++)
        if (keep(&kept, biased[i])) x[biased[i]] += bias[i];
    if (repetition != 1) { /* all are read before one is written: tokens that come again */
        float penalty = (float)repetition;
        int64_t first = kept.count;
        keep_all(&kept, prompt, prompts);
        keep_all(&kept, output, outputs);
        for (int64_t k = first; k < kept.count; k++)
            x[places[k]] = old[k] < 0 ? old[k] * penalty : old[k] / penalty;
    }
    if (presence != 0 || frequency != 0) { /* how often each came is counted in its place */
        int64_t first = kept.count;
        keep_all(&kept, output, outputs);
        float *new = old + kept.count - first; /* behind the old ones, until they are written */
        for (int64_t k = first; k < kept.count; k++) x[places[k]] = 0;
        for (int64_t k = first; k < kept.count; k++) x[places[k]]++;
        for (int64_t k = first; k < kept.count; k++)
            new[k] = old[k] - (float)(presence + frequency * (double)x[places[k]]);
        for (int64_t k = first; k < kept.count; k++) x[places[k]] = new[k];
    }
    for (int64_t i = 0; i < bans; i++)
        if (keep(&kept, banned[i])) x[banned[i]] = -INFINITY;
    return kept.count;
}

/* A row as it was before `octavo_change`. */
void octavo_restore(float *x, const int32_t *places, const float *old, int64_t kept) {
    while (kept--) x[places[kept]] = old[kept];
}

/* --- draws ------------------------------------------------------------------------------------ */

/* Chances of a list, the likeliest first: what top_k, top_p and min_p bar is 0. See `shortlist`. */
static void narrow(const struct row *row, const struct entry *list, int64_t length, int64_t top_k,
                   float share, float least, float *chances) {
    float log[length], before = 0;
    for (int64_t i = 0; i < length; i++) {
        log[i] = (list[i].score - row->top) / row->temperature;
        chances[i] = top_k && i >= top_k ? 0 : expf(log[i]);
    }
    if (share < 1) {
        double mass = 0;
        for (int64_t i = 0; i < length; i++) mass += (double)chances[i];
        float bound = share * (float)(top_k ? mass : mass_of(row));
        for (int64_t i = 0; i < length; i++) {
            float chance = chances[i];
            if (i && before >= bound) chances[i] = 0;
            before += chance;
        }
    }
    for (int64_t i = 0; i < length; i++)
        if (log[i] < least) chances[i] = 0;
}

/* The token that comes first of a list; REST: one that is not listed, of this chance together. */
static int64_t race(const struct entry *list, const float *chances, int64_t length, float rest,
                    uint64_t key) {
    int64_t first = REST;
    double fastest = (double)rest / -log(number_of(key, REST));
    for (int64_t i = 0; i < length; i++) {
        double speed = (double)chances[i] / -log(number_of(key, list[i].id));
        if (speed > fastest) fastest = speed, first = list[i].id;
    }
    return first;
}

/* A token of those that temperature, top_k, top_p and min_p leave, of the ``length`` likeliest;
 * SHORT: they may leave more.
 *
 * top_k 0, share 1 and least -inf: all are left; least: the logarithm of min_p.
 */
int64_t octavo_draw_likely(const float *x, int64_t n, int64_t length, double temperature,
                           int64_t top_k, double share, double least, int64_t seed,
                           int64_t position) {
    if (length > n) length = n;
    struct entry list[length], near[length];
    float chances[length];
    if (!find_largest(x, n, length, list, near)) return BROKEN;
    struct row row = {x, n, list[0].score, (float)temperature};
    narrow(&row, list, length, top_k, (float)share, (float)least, chances);
    if (!top_k && length < n && chances[length - 1] > 0) return SHORT;
    return race(list, chances, length, 0, key_of(seed, position));
}

/* The sum of a block's chances, but for the tokens of a list. */
static float rest_of(const struct row *row, int64_t block, const struct entry *list, int64_t length,
                     float *chances) {
    block_chances(row, block, chances);
    for (int64_t i = 0; i < length; i++)
        if (list[i].id / BLOCK == block) chances[list[i].id % BLOCK] = 0;
    vec sum = spread(0);
    for (int64_t i = 0; i < BLOCK; i += LANES) sum += fetch(chances, i, BLOCK);
    return total_of(sum);
}

/* Where among the chances a number falls that are not of the list, laid end to end. */
static int64_t fall(const struct row *row, const float *sums, double number,
                    const struct entry *list, int64_t length) {
    float chances[BLOCK];
    double point = 0;
    int64_t block = 0, found = 0;
    for (int64_t b = 0; b < blocks_of(row->n); b++) point += (double)sums[b];
    point *= number;
    for (int64_t b = 0; b < blocks_of(row->n); b++) { /* rounded up to the end it is in the last */
        if (!(sums[b] > 0)) continue;
        block = b;
        if (point < (double)sums[b]) break;
        point -= (double)sums[b];
    }
    rest_of(row, block, list, length, chances);
    for (int64_t i = 0; i < BLOCK; i++) {
        if (!(chances[i] > 0)) continue;
        found = i;
        if (point < (double)chances[i]) break;
        point -= (double)chances[i];
    }
    return block * BLOCK + found;
}

/* A token of all: the ``length`` likeliest run by themselves, the others as one. */
int64_t octavo_draw_all(const float *x, int64_t n, int64_t length, double temperature, int64_t seed,
                        int64_t position) {
    if (length > n) length = n;
    struct entry list[length], near[length];
    float chances[length], part[BLOCK], sums[blocks_of(n)];
    if (!find_largest(x, n, length, list, near)) return BROKEN;
    struct row row = {x, n, list[0].score, (float)temperature};
    narrow(&row, list, length, 0, 1, -INFINITY, chances);
    for (int64_t block = 0; block < blocks_of(n); block++)
        sums[block] = block_chances(&row, block, NULL);
    for (int64_t i = 0; i < length; i++) {
        int64_t block = list[i].id / BLOCK;
        sums[block] = rest_of(&row, block, list, length, part);
    }
    double rest = 0;
    for (int64_t block = 0; block < blocks_of(n); block++) rest += (double)sums[block];
    uint64_t key = key_of(seed, position);
    int64_t token = race(list, chances, length, (float)rest, key);
    if (token == REST) token = fall(&row, sums, number_of(key, PLACE), list, length);
    return token;
}

/* --- log probabilities ------------------------------------------------------------------------ */

/* The log probability of a token; those of the ``count`` >= 1 likeliest and their ids, in their
 * order. work: 16 bytes for each of them. */
double octavo_logprobs(const float *x, int64_t n, int64_t token, int64_t count, int64_t *ids,
                       double *values, struct entry *work) {
    struct entry *list = work;
    find_largest(x, n, count, list, work + count);
    struct row row = {x, n, list[0].score, 1};
    double norm = (double)row.top + log(mass_of(&row));
    for (int64_t i = 0; i < count; i++) {
        ids[i] = list[i].id;
        values[i] = (double)list[i].score - norm;
    }
    return token < n ? (double)x[token] - norm : -INFINITY;
}
