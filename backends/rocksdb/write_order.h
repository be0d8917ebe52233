/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of a batch in key order. RocksDB inserts into its memtable faster if keys are in order,
 * because it begins to search at the previous key (its insert hint). Thread-safe.
 */
#ifndef HPS_BACKENDS_ROCKSDB_WRITE_ORDER_H
#define HPS_BACKENDS_ROCKSDB_WRITE_ORDER_H

#include "backends/store.h"

/* Receives one write. row: table->row_bytes bytes; NULL: the key is to be deleted. */
typedef void hps_write_row_fn(void *ctx, const struct hps_table *table, hps_key key,
                              const uint8_t *row);

/* Call fn for each row of the writes. The rows are sorted in groups of at most 65,536, by table id,
 * then by key (unsigned). Rows with the same key keep their order.
 *
 * error   NO_MEMORY, before any call of fn */
hps_status hps_write_order(const struct hps_write *writes, uint32_t n_writes, hps_write_row_fn *fn,
                           void *ctx) HPS_MUST_CHECK;

#endif
