/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted store that is shared with other daemons. It has two shards, selected by the lowest bit
 * of the key; each stores the log positions of its rows. Tests play the other daemons and the
 * failures of the server. One space; one thread.
 */
#ifndef HPS_TESTS_LIB_FAKE_SHARED_H
#define HPS_TESTS_LIB_FAKE_SHARED_H

#include "tests/lib/fake_store.h"

enum { HPS_SHARED_SHARDS = 2 };

/* alone: no lower tier has the rows. NULL: out of memory. Close with ops. */
struct hps_store *hps_fake_shared_new(bool alone);

/* While `away`, the shard does not respond. */
void hps_fake_shared_away(struct hps_store *store, uint32_t shard, bool away);
/* The shard loses its rows and positions. */
void hps_fake_shared_lose(struct hps_store *store, uint32_t shard);
/* Set the shard's position in a partition, as an older state or another daemon would have it. */
void hps_fake_shared_move(struct hps_store *store, uint32_t shard, uint64_t partition,
                          int64_t offset);
/* The shard's position; -1: none for this partition; -2: the shard is missing. */
int64_t hps_fake_shared_at(struct hps_store *store, uint32_t shard, uint64_t partition);
/* The position of the version that the store was last given; -1: none. */
int64_t hps_fake_shared_version_at(struct hps_store *store, uint64_t partition);
bool hps_fake_shared_left(struct hps_store *store);
/* Number of calls of log->apply. */
uint64_t hps_fake_shared_batches(struct hps_store *store);

#endif
