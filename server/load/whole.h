/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the embedding caches of tables that are cached whole: their model has `gpucacheper` 1 or
 * static tables. The caches get all rows from the version's lowest tier, so that lookups need not
 * miss a row before it is cached.
 */
#ifndef HPS_SERVER_LOAD_WHOLE_H
#define HPS_SERVER_LOAD_WHOLE_H

#include "server/load/warmup.h"

/* Whether the version has a table that is cached whole and whose cache is not filled yet. A cache
 * that will be created soon also counts as not filled. False if the model does not have init_ec.
 * Any thread. */
bool hps_whole_useful(const struct hps_version *version);
/* Fill the caches of all tables that are cached whole and not filled yet, one after the other. If
 * an update may have changed a row after it was read, the row is read again before it is inserted
 * (cache/version/stamps.h). Uses the memory of a scan of the store, and at most 1 MiB for a batch
 * of rows. The calling thread pauses for about half of the time. limits->go_on may stop the fill
 * before each batch; a later call then scans the unfinished table again. The version must be pinned
 * or not yet published. May block. Any thread, but one call per version at a time.
 *
 * limits      out_free_bytes of go_on is ignored
 * out_report  n_keys: rows that were read; n_gpu_rows: rows queued for the device */
void hps_whole_refill(struct hps_version *version, const struct hps_warmup_limits *limits,
                      struct hps_warmup_report *out_report);

#endif
