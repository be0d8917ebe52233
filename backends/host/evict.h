/* SPDX-License-Identifier: Apache-2.0
 *
 * Which key of a full table goes: S3-FIFO (Yang et al., SOSP 2023) with the main queue replaced by
 * a clock hand over the buckets of the index. A new key is on probation; it stays if it is asked
 * for again before a tenth of the table has come in behind it, and if it was thrown out and comes
 * back soon, it is not on probation again. Hits cost two bits in the bucket, and no list. Belongs
 * to the table's writer.
 */
#ifndef HPS_BACKENDS_HOST_EVICT_H
#define HPS_BACKENDS_HOST_EVICT_H

#include "backends/host/index.h"

enum { HPS_HOST_EVICT_ROW_BYTES = 3 }; /* what it takes for each row of the table, at most */

struct hps_host_evict {
    bool on;       /* the table has been full */
    hps_key *ring; /* keys on probation, the oldest at ring_head */
    uint64_t n_ring_max;
    uint64_t ring_head;
    uint64_t n_ring;
    uint64_t *ghosts; /* [n_ghosts] sets of 4 fingerprints of keys thrown out, the newest lowest */
    uint64_t n_ghosts;
    uint64_t hand; /* of the clock: a hash */
    unsigned tail; /* buckets that it lies behind the last home */
    unsigned slot; /* in its bucket */
};

/* The table is full for the first time, with room for n_rows. Without memory for ring and ghosts
 * the clock does it alone. */
void hps_host_evict_start(struct hps_host_evict *evict, uint64_t n_rows);
void hps_host_evict_close(struct hps_host_evict *evict); /* also starts over */

/* A key is about to come in: whether it is on probation. If so, _entered must follow. */
bool hps_host_evict_probation(struct hps_host_evict *evict, uint64_t hash);
void hps_host_evict_entered(struct hps_host_evict *evict, hps_key key);

/* The key to go next, after a bounded number of looks. bucket NULL: no key was found, look again.
 */
struct hps_host_place hps_host_evict_victim(struct hps_host_evict *evict,
                                            const struct hps_host_index *index);

#endif
