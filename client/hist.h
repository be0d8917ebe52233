/* SPDX-License-Identifier: Apache-2.0
 *
 * Histogram of latencies, exact below 128 and within 0.8 % above. Used by one thread at a time.
 */
#ifndef HPS_CLIENT_HIST_H
#define HPS_CLIENT_HIST_H

#include <stdint.h>

enum {
    HPS_HIST_SUB_BITS = 7,
    HPS_HIST_BUCKETS = (64 - HPS_HIST_SUB_BITS + 1) << HPS_HIST_SUB_BITS
};

/* Zero-initialised is empty. */
struct hps_hist {
    uint64_t n;
    uint64_t sum;
    uint64_t max;
    uint64_t buckets[HPS_HIST_BUCKETS];
};

void hps_hist_add(struct hps_hist *hist, uint64_t value);
void hps_hist_merge(struct hps_hist *into, const struct hps_hist *from);
/* The smallest recorded value, to the precision above, that `share` (0 to 1) of all values do not
 * exceed. 0 if empty; never above the maximum. */
uint64_t hps_hist_quantile(const struct hps_hist *hist, double share);

#endif
