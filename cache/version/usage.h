/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of the lookups of each version: how many succeeded and failed, and where the time was
 * spent. Counters never decrease. A version that is unloaded and loaded again under the same number
 * continues its counters.
 */
#ifndef HPS_CACHE_VERSION_USAGE_H
#define HPS_CACHE_VERSION_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Parts of a lookup's time. The rest of the time was spent receiving the request from the network.
 */
enum hps_usage_part {
    HPS_USAGE_QUEUE,  /* waiting for admission or for a thread */
    HPS_USAGE_INPUT,  /* decoding the message */
    HPS_USAGE_WALK,   /* finding rows */
    HPS_USAGE_OUTPUT, /* encoding the reply, and the client receiving it */
    HPS_USAGE_PARTS
};

/* One finished lookup. */
struct hps_usage_lookup {
    bool good;         /* the client got a reply with rows, not an error */
    uint64_t ended_ms; /* hps_clock_wall_ms */
    uint64_t us;       /* from the first byte of the request to the last byte of the reply */
    uint64_t part_us[HPS_USAGE_PARTS];
};

struct hps_usage; /* the counters of one version; freed by hps_usages_free */

/* Count a lookup. Thread-safe, with little contention. */
void hps_usage_add(struct hps_usage *usage, const struct hps_usage_lookup *lookup);

struct hps_usage_sums {
    uint64_t n_good, good_us;          /* good lookups, and the sum of their `us` */
    uint64_t n_failed, failed_us;      /* the other lookups, and the sum of their `us` */
    uint64_t part_us[HPS_USAGE_PARTS]; /* sums of `part_us` of the good lookups */
    uint64_t last_ms; /* hps_clock_wall_ms when the last lookup ended, good or not; 0: no lookup has
                         ended */
};

/* The sums. A lookup that ends during the call may be in some numbers and not in others.
 * Thread-safe. */
void hps_usage_get(const struct hps_usage *usage, struct hps_usage_sums *out_sums);

/* The counters of all versions, resident or not. Only one thread at a time may call the functions
 * that take a struct hps_usages. */
struct hps_usages;

/* Returns NULL if there is no memory. */
struct hps_usages *hps_usages_new(void);
/* Also frees all its struct hps_usage; no effect if NULL. */
void hps_usages_free(struct hps_usages *usages);
/* The counters of a version, created by the first call for it. Returns NULL if there is no
 * memory. */
struct hps_usage *hps_usages_of(struct hps_usages *usages, const char *model, int64_t version);

#endif
