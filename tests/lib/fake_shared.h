/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted store that is shared with other daemons: two shards, by the lowest bit of the key,
 * each with the positions that its rows are of. The other daemons, and what befalls the server, are
 * what a test does to them. One space; one thread.
 */
#ifndef HPS_TESTS_LIB_FAKE_SHARED_H
#define HPS_TESTS_LIB_FAKE_SHARED_H

#include "tests/lib/fake_store.h"

enum { HPS_SHARED_SHARDS = 2 };

/* alone: nothing below it has the rows. NULL: no memory. Close by ops. */
struct hps_store *hps_fake_shared_new(bool alone);

/* The shard, or (away: false) no shard any more, does not answer. */
void hps_fake_shared_away(struct hps_store *store, uint32_t shard, bool away);
/* The shard forgets rows and positions. */
void hps_fake_shared_lose(struct hps_store *store, uint32_t shard);
/* The shard's position in a partition becomes this one, as an older state, or another daemon, has
 * it. */
void hps_fake_shared_move(struct hps_store *store, uint32_t shard, uint64_t partition,
                          int64_t offset);
/* -1: it does not name the partition; -2: it is not there. */
int64_t hps_fake_shared_at(struct hps_store *store, uint32_t shard, uint64_t partition);
/* Where the version is, as the store was told; -1: nothing was. */
int64_t hps_fake_shared_version_at(struct hps_store *store, uint64_t partition);
bool hps_fake_shared_left(struct hps_store *store);
/* Batches that log->apply was given. */
uint64_t hps_fake_shared_batches(struct hps_store *store);

#endif
