/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the embedding caches of tables that are cached whole: their model has `gpucacheper` 1 or
 * static tables. The caches get all rows from the version's lowest tier, so that lookups need not
 * miss a row before it is cached.
 */
#ifndef HPS_SERVER_LOAD_WHOLE_H
#define HPS_SERVER_LOAD_WHOLE_H

#include "server/load/warmup.h"

/* Whether at least one table of the version is cached whole and its cache is not filled yet: the
 * cache exists and has not had all rows since it was created, or it will be created soon. False if
 * the model lacks init_ec. Any thread. */
bool hps_whole_useful(const struct hps_version *version);
/* Fill the caches of all tables that are cached whole and not filled yet, one after the other. Rows
 * that an update may have changed since they were read are not inserted but read again
 * (cache/version/stamps.h). Uses the memory of a scan of the store, and at most 1 MiB for a batch
 * of rows. The thread pauses for about half of the time. `limits` may stop it before each batch; a
 * later call scans the unfinished table again. The version must be pinned or not yet published. May
 * block. Any thread, but one call per version at a time.
 *
 * limits      out_free_bytes of go_on is ignored
 * out_report  n_keys: rows that were read; n_gpu_rows: rows queued for the device */
void hps_whole_refill(struct hps_version *version, const struct hps_warmup_limits *limits,
                      struct hps_warmup_report *out_report);

#endif
