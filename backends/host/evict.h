/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction of one table: S3-FIFO (Yang et al., SOSP 2023) with the main queue replaced by a clock
 * hand over the buckets of the index. A new key is on probation until n newer keys are on probation
 * too, where n is a tenth of the number of rows. If readers have found the key at least twice by
 * then, the key stays in the table. Otherwise it is evicted. A key that is added again soon after
 * its eviction skips probation. A reader counts a hit by writing two bits in the bucket of the key.
 * Only the writer of the table calls the functions of this file.
 */
#ifndef HPS_BACKENDS_HOST_EVICT_H
#define HPS_BACKENDS_HOST_EVICT_H

#include "backends/host/index.h"

/* Upper bound of the memory that eviction needs, in bytes per row of the table. */
enum { HPS_HOST_EVICT_ROW_BYTES = 3 };

struct hps_host_evict {
    /* The table has been full once, so it evicts; set by hps_host_evict_start. */
    bool on;
    hps_key *ring;       /* keys on probation, the oldest at ring_head */
    uint64_t n_ring_max; /* capacity of ring */
    uint64_t ring_head;
    uint64_t n_ring; /* keys in ring */
    /* [n_ghosts] Each element has 4 fingerprints of evicted keys, the newest in the lowest bits. */
    uint64_t *ghosts;
    uint64_t n_ghosts;
    uint64_t hand; /* clock hand: a hash whose home (index.h) is the next bucket to check */
    /* If the hand is at the last home: number of buckets after this home that were checked.
     * Otherwise 0. */
    unsigned tail;
    unsigned slot; /* next slot to check in the bucket of the hand */
};

/* Start to evict. Call it once, when the table is full for the first time. n_rows: the number of
 * rows that fit the table. If there is no memory for ring and ghosts, eviction uses only the clock.
 */
void hps_host_evict_start(struct hps_host_evict *evict, uint64_t n_rows);
void hps_host_evict_close(struct hps_host_evict *evict); /* frees all and zeroes `evict` */

/* Decide whether a key with this hash starts on probation. Call it before the key is added.
 * True: the caller must call hps_host_evict_entered after it has added the key. */
bool hps_host_evict_probation(struct hps_host_evict *evict, uint64_t hash);
void hps_host_evict_entered(struct hps_host_evict *evict, hps_key key);

/* Find a key to evict, in a bounded number of steps. Returns the place of the key. If `bucket` of
 * the place is NULL, the call has found no key, and the next call continues the search. */
struct hps_host_place hps_host_evict_victim(struct hps_host_evict *evict,
                                            const struct hps_host_index *index);

#endif
