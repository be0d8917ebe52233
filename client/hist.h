/* SPDX-License-Identifier: Apache-2.0
 *
 * Histogram of latencies or other integers. Values below 128 are exact; larger values are rounded
 * up by at most 0.8 %. Used by one thread at a time.
 */
#ifndef HPS_CLIENT_HIST_H
#define HPS_CLIENT_HIST_H

#include <stdint.h>

enum {
    HPS_HIST_SUB_BITS = 7,
    HPS_HIST_BUCKETS = (64 - HPS_HIST_SUB_BITS + 1) << HPS_HIST_SUB_BITS
};

/* An empty histogram is all zero. */
struct hps_hist {
    uint64_t n;   /* number of recorded values */
    uint64_t sum; /* exact sum of the recorded values */
    uint64_t max; /* largest recorded value, exact; 0 if n is 0 */
    uint64_t buckets[HPS_HIST_BUCKETS];
};

void hps_hist_add(struct hps_hist *hist, uint64_t value);
void hps_hist_merge(struct hps_hist *into, const struct hps_hist *from);
/* The quantile `share` (0 to 1): the smallest recorded value v such that this share of the values
 * is at most v. A v of 128 or more is rounded up by at most 0.8 %, but never above `max`. 0 if the
 * histogram is empty. */
uint64_t hps_hist_quantile(const struct hps_hist *hist, double share);

#endif
