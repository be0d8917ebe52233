/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects keyed records with keys in another encoding than int64 little-endian. Java's
 * LongSerializer writes big-endian keys, and a trainer may write decimal text. Such keys have 8
 * bytes, too, so hpsd stores their rows under other keys.
 *
 * The first keys of a table's records are sampled, later one key of 256. Before a record is
 * applied, its key is looked up in both encodings. A sampled key counts if it has a row in only one
 * encoding. If 95 % of 256 such keys have their row in the other encoding, the keys of the table
 * are misencoded. The log says so once. On the thread `update`.
 */
#ifndef HPS_SERVER_UPDATE_SINK_KEYS_H
#define HPS_SERVER_UPDATE_SINK_KEYS_H

#include "base/metric.h"
#include "cache/update/update.h"

struct hps_update_keys;

/* version: borrowed. misencoded: counts sampled keys that have a row only in the other encoding.
 * Returns NULL if there is no memory. */
struct hps_update_keys *hps_update_keys_new(const struct hps_version *version,
                                            struct hps_metric *misencoded);
void hps_update_keys_free(struct hps_update_keys *keys); /* may be NULL */

/* Note the key [8 bytes] of a keyed record that will be applied with the next batch. Keys are not
 * narrowed: a misencoded key has no row then. May block to read the version's tiers. */
void hps_update_keys_note(struct hps_update_keys *keys, uint32_t table_id, const void *key);
/* Look up the noted keys. To be called before the batch is applied. */
void hps_update_keys_check(struct hps_update_keys *keys);
/* Whether the last 256 keys that counted were misencoded. False if there is no such table. */
bool hps_update_keys_misencoded(const struct hps_update_keys *keys, uint32_t table_id);

#endif
