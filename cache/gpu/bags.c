/* SPDX-License-Identifier: Apache-2.0
 *
 * Bags of keys in lookups of a gpu tier: how many a batch takes, and which were answered. A bag is
 * never split.
 */
#include "base/assert.h"
#include "cache/gpu/internal.h"

enum { BITS = 32 }; /* per word */

struct gpu_bags gpu_bags_fit(const struct hps_gpu_part *part, uint32_t first, uint64_t n_keys_max,
                             uint64_t n_rows_max)
{
    struct gpu_bags bags = {.first = first};

    while (first + bags.n < part->n_bags && bags.n < n_rows_max &&
           part->offsets[first + bags.n + 1] - part->offsets[first] <= n_keys_max) {
        bags.n++;
    }
    bags.n_keys = part->offsets[first + bags.n] - part->offsets[first];
    return bags;
}

void gpu_bits_put(uint32_t *bits, uint32_t begin, uint32_t n, const uint32_t *from)
{
    uint32_t *to = bits + begin / BITS;
    uint32_t shift = begin % BITS;

    for (uint32_t i = 0; i < n; i += BITS, from++, to++) {
        to[0] |= *from << shift;
        if (shift != 0 && *from >> (BITS - shift) != 0) { /* else the next word may not exist */
            to[1] |= *from >> (BITS - shift);
        }
    }
}

/* The bits of the word of `begin` that belong to [begin, end). */
static uint32_t mask_of(uint32_t begin, uint32_t end)
{
    uint32_t n = end - begin < BITS - begin % BITS ? end - begin : BITS - begin % BITS;

    return (n == BITS ? UINT32_MAX : (UINT32_C(1) << n) - 1) << begin % BITS;
}

static uint32_t next_word(uint32_t bit)
{
    return (bit | (BITS - 1)) + 1;
}

static bool all_set(const uint32_t *bits, uint32_t begin, uint32_t end)
{
    bool all = true;

    for (uint32_t i = begin; i < end && all; i = next_word(i)) {
        all = (~bits[i / BITS] & mask_of(i, end)) == 0;
    }
    return all;
}

void hps_gpu_bags_whole(const struct hps_gpu_part *part, uint32_t *whole)
{
    HPS_ASSERT(part->pooling > HPS_POOLING_NONE);
    for (uint32_t b = 0; b < part->n_bags; b++) {
        uint32_t begin = part->offsets[b], end = part->offsets[b + 1];
        uint32_t bit = begin < end && all_set(part->hits, begin, end) ? 1 : 0;
        whole[b / BITS] = (b % BITS == 0 ? 0 : whole[b / BITS]) | bit << b % BITS;
    }
}
