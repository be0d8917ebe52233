/* SPDX-License-Identifier: Apache-2.0
 *
 * How often a version was looked up, how that went, and where the time went: by numbers that only
 * rise. A version that is unloaded and loaded again under its number goes on where it was.
 */
#ifndef HPS_CACHE_VERSION_USAGE_H
#define HPS_CACHE_VERSION_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Parts of a look-up's time; what is in none of them was spent by the network. */
enum hps_usage_part {
    HPS_USAGE_QUEUE,  /* waiting for room, or for a thread */
    HPS_USAGE_INPUT,  /* its message becomes keys */
    HPS_USAGE_WALK,   /* rows are found */
    HPS_USAGE_OUTPUT, /* the answer is made, and taken by the client */
    HPS_USAGE_PARTS
};

/* One look-up that is over. */
struct hps_usage_lookup {
    bool good;         /* it was answered */
    uint64_t ended_ms; /* hps_clock_wall_ms */
    uint64_t us;       /* from its first byte to its last */
    uint64_t part_us[HPS_USAGE_PARTS];
};

struct hps_usage; /* of one version; for as long as its set */

/* Count it. Any thread; threads do not fight for a cache line. */
void hps_usage_add(struct hps_usage *usage, const struct hps_usage_lookup *lookup);

struct hps_usage_sums {
    uint64_t n_good, good_us;
    uint64_t n_failed, failed_us;
    uint64_t part_us[HPS_USAGE_PARTS]; /* of good ones */
    uint64_t last_ms;                  /* when the last one ended, good or not; 0: there was none */
};

/* What has been counted; of look-ups that end meanwhile some numbers may be there and others not
 * yet. Any thread. */
void hps_usage_get(const struct hps_usage *usage, struct hps_usage_sums *out_sums);

/* Of all versions there are and were. One thread at a time. */
struct hps_usages;

struct hps_usages *hps_usages_new(void);         /* NULL: no memory */
void hps_usages_free(struct hps_usages *usages); /* NULL is legal; with all that it gave out */
/* That of a version, made if it is new. NULL: no memory. */
struct hps_usage *hps_usages_of(struct hps_usages *usages, const char *model, int64_t version);

#endif
