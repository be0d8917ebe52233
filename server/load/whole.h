/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of which all rows are to be cached on a device (`gpucacheper` 1, `static`): their caches
 * get all rows from the version's lowest tier before anybody asks. Without this a row would come
 * into its cache only behind an answer without it. A thread that may block.
 */
#ifndef HPS_SERVER_LOAD_WHOLE_H
#define HPS_SERVER_LOAD_WHOLE_H

#include "server/load/warmup.h"

/* Is there such a table: its cache is there, or soon, and has not had all rows since it was made?
 * Not where the model has not init_ec. Any thread. */
bool hps_whole_useful(const struct hps_version *version);
/* Refill the caches of all tables, one after the other, with what the lowest tier has; a row that
 * an update overtakes on the way is read again. Memory: what a scan and one batch of at most 1 MiB
 * take. On half of this thread's time. Stops where limits say so, before each batch; the rest may
 * be done later. The version is pinned or not yet published. May block; any thread, one
 * per version at a time.
 * limits      the room for rows in the host map is of no interest
 * out_report  n_keys: rows read, n_gpu_rows: given to the device */
void hps_whole_refill(struct hps_version *version, const struct hps_warmup_limits *limits,
                      struct hps_warmup_report *out_report);

#endif
