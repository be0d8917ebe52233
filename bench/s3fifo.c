/* SPDX-License-Identifier: Apache-2.0
 *
 * See s3fifo.h. It follows its paper, in the version that its authors' own simulator runs.
 */
#include "bench/s3fifo.h"

#include "base/assert.h"
#include "base/heap.h"

#define NONE UINT32_MAX

enum {
    OUT = 0, /* the queue of a key that is not in the cache */
    SMALL = 1,
    MAIN = 2,
    N_QUEUES = 3,
    S3_HITS_MAX = 3,
    S3_HITS_MAIN = 2, /* in the small queue, to get into the main one */
};

struct queue {
    uint32_t newest, oldest, n;
};

struct policy {
    uint32_t capacity;
    struct queue queues[N_QUEUES];
    uint32_t *newer, *older; /* [n_keys] neighbours in the queue */
    uint8_t *where;          /* [n_keys] queue */
    uint8_t *hits;           /* [n_keys] since it came, as far as the policy counts */
    uint64_t *left_small;    /* [n_keys] when it left the small queue, 0: did not */
    uint64_t n_left_small;
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

/* ---- S3-FIFO --------------------------------------------------------------------------------- */

static uint32_t s3_main_max(const struct policy *policy)
{
    return policy->capacity - policy->capacity / 10;
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

/* ---- the cache ------------------------------------------------------------------------------- */

struct policy *policy_new(uint32_t n_keys, uint32_t capacity)
{
    struct policy *policy = hps_calloc(1, sizeof(*policy));

    HPS_ASSERT(capacity > 0);
    if (policy == NULL) {
        return NULL;
    }
    policy->capacity = capacity;
    for (unsigned i = 0; i < N_QUEUES; i++) {
        policy->queues[i] = (struct queue){NONE, NONE, 0};
    }
    policy->newer = hps_calloc(n_keys, sizeof(*policy->newer));
    policy->older = hps_calloc(n_keys, sizeof(*policy->older));
    policy->where = hps_calloc(n_keys, 1);
    policy->hits = hps_calloc(n_keys, 1);
    policy->left_small = hps_calloc(n_keys, sizeof(*policy->left_small));
    if (policy->newer == NULL || policy->older == NULL || policy->where == NULL ||
        policy->hits == NULL || policy->left_small == NULL) {
        policy_free(policy);
        return NULL;
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
        hps_free(policy);
    }
}

bool policy_touch(struct policy *policy, uint32_t key)
{
    if (policy->where[key] == OUT) {
        return false;
    }
    if (policy->hits[key] < S3_HITS_MAX) {
        policy->hits[key]++;
    }
    return true;
}

void policy_insert(struct policy *policy, uint32_t key)
{
    uint64_t left = policy->left_small[key];
    bool remembered = left != 0 && policy->n_left_small - left < s3_main_max(policy);

    if (policy_has(policy, key)) {
        return;
    }
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
