/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables with all rows cached on a device (`gpucacheper` 1, `static`): their caches get all rows
 * from the version's lowest tier before lookups need them. Without this, a row is inserted only
 * after a lookup has missed it. For a thread that may block.
 */
#ifndef HPS_SERVER_LOAD_WHOLE_H
#define HPS_SERVER_LOAD_WHOLE_H

#include "server/load/warmup.h"

/* Whether a table's cache exists or is coming, and has not had all its rows since it was created.
 * False without init_ec. Any thread. */
bool hps_whole_useful(const struct hps_version *version);
/* Fill the caches of all such tables, one after the other, from the lowest tier. A row that an
 * update changes during the scan is read again. Memory: a scan and one batch of at most 1 MiB. The
 * thread pauses for half of the time. Limits may stop it before each batch; a later call can do the
 * rest. The version must be pinned or not yet published. May block; any thread, one per version at
 * a time.
 *
 * limits      out_room_bytes is ignored
 * out_report  n_keys: rows read, n_gpu_rows: rows given to the device */
void hps_whole_refill(struct hps_version *version, const struct hps_warmup_limits *limits,
                      struct hps_warmup_report *out_report);

#endif
