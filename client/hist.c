/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-linear buckets: 128 to each power of two. Used by one thread at a time.
 */
#include "client/hist.h"

#include "base/assert.h"

enum { SUB = 1 << HPS_HIST_SUB_BITS };

static unsigned bucket_of(uint64_t value)
{
    if (value < SUB) {
        return (unsigned)value;
    }
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - HPS_HIST_SUB_BITS;
    return ((shift + 1) << HPS_HIST_SUB_BITS) + (unsigned)(value >> shift) - SUB;
}

/* Largest value of the bucket. */
static uint64_t bucket_top(unsigned bucket)
{
    if (bucket < SUB) {
        return bucket;
    }
    unsigned shift = (bucket >> HPS_HIST_SUB_BITS) - 1;
    uint64_t low = (uint64_t)((bucket & (SUB - 1)) + SUB) << shift;
    return low + ((UINT64_C(1) << shift) - 1);
}

void hps_hist_add(struct hps_hist *hist, uint64_t value)
{
    hist->n++;
    hist->sum += value;
    hist->max = hist->max < value ? value : hist->max;
    hist->buckets[bucket_of(value)]++;
}

void hps_hist_merge(struct hps_hist *into, const struct hps_hist *from)
{
    into->n += from->n;
    into->sum += from->sum;
    into->max = into->max < from->max ? from->max : into->max;
    for (unsigned i = 0; i < HPS_HIST_BUCKETS; i++) {
        into->buckets[i] += from->buckets[i];
    }
}

uint64_t hps_hist_quantile(const struct hps_hist *hist, double share)
{
    HPS_ASSERT(share >= 0 && share <= 1);
    double wanted = share * (double)hist->n;
    uint64_t seen = 0;

    for (unsigned i = 0; i < HPS_HIST_BUCKETS && hist->n > 0; i++) {
        seen += hist->buckets[i];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t top = bucket_top(i);
            return top < hist->max ? top : hist->max;
        }
    }
    return hist->max;
}
