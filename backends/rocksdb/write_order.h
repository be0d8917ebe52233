/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of a batch in the order of their keys. RocksDB's memory table, with its insert hint,
 * looks for the place of a key from that of the key before: a short way, if keys are in order. Any
 * thread.
 */
#ifndef HPS_BACKENDS_ROCKSDB_WRITE_ORDER_H
#define HPS_BACKENDS_ROCKSDB_WRITE_ORDER_H

#include "backends/store.h"

/* row: of table->row_bytes; NULL: the key is deleted. */
typedef void hps_write_row_fn(void *ctx, const struct hps_table *table, hps_key key,
                              const uint8_t *row);

/* Call fn for each row of the writes: within pieces of 65,536 rows by table id, then by key
 * (unsigned). Of a key that is given twice the later row comes later.
 *
 * error   NO_MEMORY, before any call of fn
 */
hps_status hps_write_order(const struct hps_write *writes, uint32_t n_writes, hps_write_row_fn *fn,
                           void *ctx) HPS_MUST_CHECK;

#endif
