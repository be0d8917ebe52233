/* SPDX-License-Identifier: Apache-2.0
 *
 * See policies.h. Each follows its paper, in the version that its authors' own simulators run.
 */
#include "bench/policies.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/embed/kernels.h"

#define NONE UINT32_MAX

enum {
    OUT = 0, /* the queue of a key that is not in the cache */
    LIST = 1,
    SMALL = 1,
    MAIN = 2,
    WINDOW = 1,
    PROBATION = 2,
    PROTECTED = 3,
    N_QUEUES = 4,
    S3_HITS_MAX = 3,
    S3_HITS_MAIN = 2, /* in the small queue, to get into the main one */
    SKETCH_ROWS = 4,
    SKETCH_MAX = 15,
    SKETCH_CELLS = 4,   /* per row and cached key */
    SKETCH_SAMPLE = 10, /* requests per cached key, then all counts are halved */
    SETS_SAMPLE_RATE = 8,
    SETS_WINDOW = 40,         /* counts per slot, then all are halved: of every request, */
    SETS_WINDOW_SAMPLED = 10, /* of one in SETS_SAMPLE_RATE */
    SETS_TILE = 32,           /* requests are sampled in runs, as the cache does */
};

struct queue {
    uint32_t newest, oldest, n;
};

struct policy {
    const struct policy_kind *kind;
    uint32_t capacity;
    struct queue queues[N_QUEUES];
    uint32_t *newer, *older; /* [n_keys] neighbours in the queue */
    uint8_t *where;          /* [n_keys] queue */
    uint8_t *hits;           /* [n_keys] since it came, as far as the policy counts */
    uint32_t hand;           /* SIEVE */
    uint64_t *left_small;    /* [n_keys] S3-FIFO: when it left the small queue, 0: did not */
    uint64_t n_left_small;
    uint8_t *sketch; /* [SKETCH_ROWS][sketch_cells] W-TinyLFU */
    uint32_t sketch_cells;
    uint32_t n_sampled;
    uint32_t *ways; /* [capacity] keys of sets */
    uint32_t n_touched;
};

/* ---- queues ---------------------------------------------------------------------------------- */

static void push(struct policy *policy, uint8_t where, uint32_t key)
{
    struct queue *queue = &policy->queues[where];

    policy->where[key] = where;
    policy->newer[key] = NONE;
    policy->older[key] = queue->newest;
    if (queue->newest != NONE) {
        policy->newer[queue->newest] = key;
    } else {
        queue->oldest = key;
    }
    queue->newest = key;
    queue->n++;
}

static void take_out(struct policy *policy, uint32_t key)
{
    struct queue *queue = &policy->queues[policy->where[key]];
    uint32_t newer = policy->newer[key], older = policy->older[key];

    if (newer != NONE) {
        policy->older[newer] = older;
    } else {
        queue->newest = older;
    }
    if (older != NONE) {
        policy->newer[older] = newer;
    } else {
        queue->oldest = newer;
    }
    queue->n--;
    policy->where[key] = OUT;
}

static void move(struct policy *policy, uint8_t where, uint32_t key)
{
    take_out(policy, key);
    push(policy, where, key);
}

/* ---- LRU ------------------------------------------------------------------------------------- */

static bool lru_touch(struct policy *policy, uint32_t key)
{
    if (policy->where[key] == OUT) {
        return false;
    }
    move(policy, LIST, key);
    return true;
}

static void lru_insert(struct policy *policy, uint32_t key)
{
    if (policy->queues[LIST].n == policy->capacity) {
        take_out(policy, policy->queues[LIST].oldest);
    }
    push(policy, LIST, key);
}

const struct policy_kind policy_lru = {"LRU", lru_touch, lru_insert};

/* ---- SIEVE ----------------------------------------------------------------------------------- */

static bool sieve_touch(struct policy *policy, uint32_t key)
{
    if (policy->where[key] == OUT) {
        return false;
    }
    policy->hits[key] = 1;
    return true;
}

static void sieve_insert(struct policy *policy, uint32_t key)
{
    struct queue *queue = &policy->queues[LIST];

    if (queue->n == policy->capacity) {
        uint32_t at = policy->hand != NONE ? policy->hand : queue->oldest;
        while (policy->hits[at] != 0) {
            policy->hits[at] = 0;
            at = policy->newer[at] != NONE ? policy->newer[at] : queue->oldest;
        }
        policy->hand = policy->newer[at];
        take_out(policy, at);
    }
    policy->hits[key] = 0;
    push(policy, LIST, key);
}

const struct policy_kind policy_sieve = {"SIEVE", sieve_touch, sieve_insert};

/* ---- S3-FIFO --------------------------------------------------------------------------------- */

static uint32_t s3_main_max(const struct policy *policy)
{
    return policy->capacity - policy->capacity / 10;
}

static bool s3_touch(struct policy *policy, uint32_t key)
{
    if (policy->where[key] == OUT) {
        return false;
    }
    if (policy->hits[key] < S3_HITS_MAX) {
        policy->hits[key]++;
    }
    return true;
}

/* The oldest of the small queue leaves it; true: the cache has one key less. */
static bool s3_leave_small(struct policy *policy)
{
    uint32_t key = policy->queues[SMALL].oldest;

    if (policy->hits[key] >= S3_HITS_MAIN) {
        policy->hits[key] = 0;
        move(policy, MAIN, key);
        return false;
    }
    policy->left_small[key] = ++policy->n_left_small;
    take_out(policy, key);
    return true;
}

static void s3_evict_main(struct policy *policy)
{
    uint32_t key = policy->queues[MAIN].oldest;

    while (policy->hits[key] > 0) {
        policy->hits[key]--;
        move(policy, MAIN, key);
        key = policy->queues[MAIN].oldest;
    }
    take_out(policy, key);
}

static void s3_insert(struct policy *policy, uint32_t key)
{
    uint64_t left = policy->left_small[key];
    bool remembered = left != 0 && policy->n_left_small - left < s3_main_max(policy);

    while (policy_count(policy) == policy->capacity) {
        if (policy->queues[MAIN].n > s3_main_max(policy) || policy->queues[SMALL].n == 0) {
            s3_evict_main(policy);
        } else {
            (void)s3_leave_small(policy); /* until one is gone: the loop asks */
        }
    }
    policy->hits[key] = 0;
    policy->left_small[key] = 0;
    push(policy, remembered ? MAIN : SMALL, key);
}

const struct policy_kind policy_s3fifo = {"S3-FIFO", s3_touch, s3_insert};

/* ---- W-TinyLFU ------------------------------------------------------------------------------- */

static uint8_t *sketch_cell(const struct policy *policy, unsigned row, uint32_t key)
{
    uint64_t hash = hps_mix64(key + (row + 1) * HPS_HASH_GOLDEN);

    return policy->sketch + (size_t)row * policy->sketch_cells +
           (hash & (policy->sketch_cells - 1));
}

static uint8_t sketch_count(const struct policy *policy, uint32_t key)
{
    uint8_t count = SKETCH_MAX;

    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint8_t cell = *sketch_cell(policy, row, key);
        count = cell < count ? cell : count;
    }
    return count;
}

static void sketch_add(struct policy *policy, uint32_t key)
{
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint8_t *cell = sketch_cell(policy, row, key);
        if (*cell < SKETCH_MAX) {
            ++*cell;
        }
    }
    if (++policy->n_sampled < SKETCH_SAMPLE * policy->capacity) {
        return;
    }
    for (size_t i = 0; i < (size_t)SKETCH_ROWS * policy->sketch_cells; i++) {
        policy->sketch[i] >>= 1;
    }
    policy->n_sampled /= 2;
}

static uint32_t window_max(const struct policy *policy)
{
    return policy->capacity < 100 ? 1 : policy->capacity / 100;
}

static bool tiny_touch(struct policy *policy, uint32_t key)
{
    uint32_t protected_max = (policy->capacity - window_max(policy)) / 5 * 4;

    sketch_add(policy, key);
    switch (policy->where[key]) {
    case OUT:
        return false;
    case WINDOW:
        move(policy, WINDOW, key);
        break;
    default:
        move(policy, PROTECTED, key);
        if (policy->queues[PROTECTED].n > protected_max) {
            move(policy, PROBATION, policy->queues[PROTECTED].oldest);
        }
        break;
    }
    return true;
}

static void tiny_insert(struct policy *policy, uint32_t key)
{
    push(policy, WINDOW, key);
    if (policy->queues[WINDOW].n <= window_max(policy)) {
        return;
    }
    uint32_t candidate = policy->queues[WINDOW].oldest;
    if (policy_count(policy) > policy->capacity) {
        uint32_t victim = policy->queues[PROBATION].oldest;
        victim = victim != NONE ? victim : policy->queues[PROTECTED].oldest;
        if (victim == NONE || sketch_count(policy, candidate) <= sketch_count(policy, victim)) {
            take_out(policy, candidate);
            return;
        }
        take_out(policy, victim);
    }
    move(policy, PROBATION, candidate);
}

const struct policy_kind policy_wtinylfu = {"W-TinyLFU", tiny_touch, tiny_insert};

/* ---- sets ------------------------------------------------------------------------------------ */

static uint8_t *sets_cell(const struct policy *policy, uint32_t row, uint32_t key)
{
    uint64_t twice = hps_mix64(hps_embed_mix(key, POLICY_SETS_SEED));
    uint32_t n_cells = hps_embed_sketch_cells(policy->capacity / HPS_EMBED_KERNEL_WAYS);

    return policy->sketch + hps_embed_cell_at(0, n_cells, row, twice);
}

static unsigned sets_estimate(const struct policy *policy, uint32_t key)
{
    unsigned least = HPS_EMBED_COUNT_MAX;

    for (uint32_t row = 0; row < SKETCH_ROWS; row++) {
        unsigned count = *sets_cell(policy, row, key);
        least = count < least ? count : least;
    }
    return least;
}

static void sets_count(struct policy *policy, uint32_t key, uint32_t window)
{
    unsigned least = sets_estimate(policy, key);

    for (uint32_t row = 0; row < SKETCH_ROWS && least < HPS_EMBED_COUNT_MAX; row++) {
        uint8_t *cell = sets_cell(policy, row, key);
        *cell = (uint8_t)(*cell + (*cell == least));
    }
    if (++policy->n_sampled < window * policy->capacity) {
        return;
    }
    for (size_t i = 0; i < (size_t)SKETCH_ROWS * policy->sketch_cells; i++) {
        policy->sketch[i] >>= 1;
    }
    policy->n_sampled = 0;
}

static bool sets_touch(struct policy *policy, uint32_t key)
{
    sets_count(policy, key, SETS_WINDOW);
    return policy->where[key] != OUT;
}

static bool sets_touch_sampled(struct policy *policy, uint32_t key)
{
    if (hps_mix64(policy->n_touched++ / SETS_TILE) % SETS_SAMPLE_RATE == 0) {
        sets_count(policy, key, SETS_WINDOW_SAMPLED);
    }
    return policy->where[key] != OUT;
}

static void sets_insert(struct policy *policy, uint32_t key)
{
    uint32_t n_sets = policy->capacity / HPS_EMBED_KERNEL_WAYS;
    uint32_t set = hps_embed_set(hps_embed_mix(key, POLICY_SETS_SEED), n_sets);
    uint32_t *ways = policy->ways + (size_t)set * HPS_EMBED_KERNEL_WAYS, *least = NULL;
    unsigned fewest = sets_estimate(policy, key);

    for (uint32_t i = 0; i < HPS_EMBED_KERNEL_WAYS; i++) {
        if (ways[i] == NONE) {
            least = &ways[i];
            policy->queues[LIST].n++;
            break;
        }
        if (sets_estimate(policy, ways[i]) < fewest) {
            fewest = sets_estimate(policy, ways[i]);
            least = &ways[i];
        }
    }
    if (least != NULL) {
        if (*least != NONE) {
            policy->where[*least] = OUT;
        }
        *least = key;
        policy->where[key] = LIST;
    }
}

const struct policy_kind policy_sets = {"sketch", sets_touch, sets_insert};
const struct policy_kind policy_sets_sampled = {"sketch, 1/8", sets_touch_sampled, sets_insert};

/* ---- any ------------------------------------------------------------------------------------- */

struct policy *policy_new(const struct policy_kind *kind, uint32_t n_keys, uint32_t capacity)
{
    struct policy *policy = hps_calloc(1, sizeof(*policy));

    HPS_ASSERT(capacity > 0);
    if (policy == NULL) {
        return NULL;
    }
    policy->kind = kind;
    policy->capacity = capacity;
    policy->hand = NONE;
    for (unsigned i = 0; i < N_QUEUES; i++) {
        policy->queues[i] = (struct queue){NONE, NONE, 0};
    }
    policy->sketch_cells = 1;
    while (policy->sketch_cells < SKETCH_CELLS * capacity) {
        policy->sketch_cells *= 2;
    }
    policy->newer = hps_calloc(n_keys, sizeof(*policy->newer));
    policy->older = hps_calloc(n_keys, sizeof(*policy->older));
    policy->where = hps_calloc(n_keys, 1);
    policy->hits = hps_calloc(n_keys, 1);
    policy->left_small = hps_calloc(n_keys, sizeof(*policy->left_small));
    policy->sketch = hps_calloc(SKETCH_ROWS, policy->sketch_cells);
    policy->ways = hps_calloc(capacity, sizeof(*policy->ways));
    if (policy->newer == NULL || policy->older == NULL || policy->where == NULL ||
        policy->hits == NULL || policy->left_small == NULL || policy->sketch == NULL ||
        policy->ways == NULL) {
        policy_free(policy);
        return NULL;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        policy->ways[i] = NONE;
    }
    return policy;
}

void policy_free(struct policy *policy)
{
    if (policy != NULL) {
        hps_free(policy->newer);
        hps_free(policy->older);
        hps_free(policy->where);
        hps_free(policy->hits);
        hps_free(policy->left_small);
        hps_free(policy->sketch);
        hps_free(policy->ways);
        hps_free(policy);
    }
}

bool policy_touch(struct policy *policy, uint32_t key)
{
    return policy->kind->touch(policy, key);
}

void policy_insert(struct policy *policy, uint32_t key)
{
    if (!policy_has(policy, key)) {
        policy->kind->insert(policy, key);
    }
}

bool policy_has(const struct policy *policy, uint32_t key)
{
    return policy->where[key] != OUT;
}

uint32_t policy_count(const struct policy *policy)
{
    uint32_t n = 0;

    for (unsigned i = OUT + 1; i < N_QUEUES; i++) {
        n += policy->queues[i].n;
    }
    return n;
}
