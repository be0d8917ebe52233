/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows and deletes become update records (base/rows/update_record.h) and go to a sink, a producer
 * as a rule. Every key goes to the partition that hps_update_partition names, in every form, and
 * what is written of it arrives in the order in which it was written. Used by one thread at a time.
 */
#ifndef HPS_CLIENT_UPDATE_WRITER_H
#define HPS_CLIENT_UPDATE_WRITER_H

#include "base/dtype.h"
#include "base/rows/update_record.h"
#include "base/types.h"
#include "client/producer.h"

/* Where records go: hps_producer_topic and hps_producer_send. */
struct hps_update_sink {
    void *ctx;
    hps_status (*topic)(void *ctx, const char *name, uint32_t *out_topic,
                        uint32_t *out_n_partitions, struct hps_error *err);
    hps_status (*send)(void *ctx, const struct hps_producer_record *record, struct hps_error *err);
};

struct hps_update_writer_options {
    const char *model; /* valid name; copied */
    enum hps_update_form form;
    uint32_t key_bytes;     /* HCTR: 8 or 4 */
    size_t batch_bytes;     /* HCTR, PACKED: a record is no larger, unless one row alone is */
    int64_t version;        /* the one that it is for; 0: any */
    bool row_version_given; /* KEYED, HCTR: row_version goes into a header */
    uint64_t row_version;
    bool units; /* PACKED: all between two flushes is one record; needs a topic of one partition */
    /* How rows are sent; 0: as FP32, which every table takes, but INT8 rows as they are given. The
     * table must have the same type, unless it is FP32. */
    enum hps_dtype row_dtype;
    bool nan_allowed; /* halves get what is NaN, Inf or too large for them */
};

/* How rows of a type are sent.
 * error   INVALID: HCTR records have float32 alone; INT8 rows are not quantised again */
hps_status hps_update_writer_sends(const struct hps_update_writer_options *options,
                                   enum hps_dtype given, enum hps_dtype *out_sent,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* What was handed to the sink. */
struct hps_update_written {
    uint64_t n_rows;
    uint64_t n_deletes;
    uint64_t n_records;
    uint64_t bytes; /* of keys and values of records */
};

struct hps_update_writer;

hps_status hps_update_writer_new(const struct hps_update_writer_options *options,
                                 const struct hps_update_sink *sink,
                                 struct hps_update_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_update_writer_free(struct hps_update_writer *writer); /* drops what was not flushed */

/* Rows of one table, which keeps the dim and dtype of its first ones.
 *
 * shape   keys[n]; rows[n] of any stored type, unaligned; see row_dtype for how they are sent
 * error   INVALID: a key of more than key_bytes, another dim or type than before, a type that is
 *         not sent so, a row that does not fit the type as which it is sent; EXHAUSTED: a unit
 *         above HPS_UPDATE_RECORD_BYTES_MAX; PRECONDITION: units, and several partitions;
 *         NO_MEMORY; the sink's
 */
hps_status hps_update_writer_rows(struct hps_update_writer *writer, const char *table, uint32_t dim,
                                  enum hps_dtype dtype, const hps_key *keys, const void *rows,
                                  size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* error   INVALID: HCTR records cannot delete; as above */
hps_status hps_update_writer_deletes(struct hps_update_writer *writer, const char *table,
                                     const hps_key *keys, size_t n, struct hps_error *err)
    HPS_MUST_CHECK;
/* Hand what is gathered to the sink; the end of a unit. */
hps_status hps_update_writer_flush(struct hps_update_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
const struct hps_update_written *hps_update_writer_written(const struct hps_update_writer *writer);

#endif
