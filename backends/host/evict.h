/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction of one table: S3-FIFO (Yang et al., SOSP 2023) with the main queue replaced by a clock
 * hand over the buckets of the index. A new key is on probation. It stays if readers find it twice
 * before a tenth of the table has been inserted after it. A key that returns soon after its
 * eviction skips probation. A hit writes two bits in the bucket and uses no list. Used by the
 * table's writer only.
 */
#ifndef HPS_BACKENDS_HOST_EVICT_H
#define HPS_BACKENDS_HOST_EVICT_H

#include "backends/host/index.h"

/* Memory that eviction needs per row of the table, at most. */
enum { HPS_HOST_EVICT_ROW_BYTES = 3 };

struct hps_host_evict {
    bool on;       /* the table has been full */
    hps_key *ring; /* keys on probation, the oldest at ring_head */
    uint64_t n_ring_max;
    uint64_t ring_head;
    uint64_t n_ring;
    /* [n_ghosts] sets of 4 fingerprints of evicted keys, the newest in the lowest bits. */
    uint64_t *ghosts;
    uint64_t n_ghosts;
    uint64_t hand; /* clock hand: a hash */
    unsigned tail; /* how many buckets the hand is past the last home */
    unsigned slot; /* next slot in the bucket of the hand */
};

/* Call when the table, with space for n_rows, is full for the first time. Without memory for ring
 * and ghosts, the clock works alone. */
void hps_host_evict_start(struct hps_host_evict *evict, uint64_t n_rows);
void hps_host_evict_close(struct hps_host_evict *evict); /* also resets it */

/* Call before a key is added: whether it is on probation. If so, call hps_host_evict_entered after
 * adding it. */
bool hps_host_evict_probation(struct hps_host_evict *evict, uint64_t hash);
void hps_host_evict_entered(struct hps_host_evict *evict, hps_key key);

/* The key to evict, found in a bounded number of steps. bucket NULL: none found yet, call again. */
struct hps_host_place hps_host_evict_victim(struct hps_host_evict *evict,
                                            const struct hps_host_index *index);

#endif
