/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes rows and deletes as update records (base/rows/update_record.h) to a sink, usually a
 * producer. In every form, hps_update_partition selects the partition of a key, and the writes of a
 * key arrive in order. Used by one thread at a time.
 */
#ifndef HPS_CLIENT_UPDATE_WRITER_H
#define HPS_CLIENT_UPDATE_WRITER_H

#include "base/dtype.h"
#include "base/rows/update_record.h"
#include "base/types.h"
#include "client/producer.h"

/* Receives the records: hps_producer_topic and hps_producer_send. */
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
    size_t batch_bytes;     /* HCTR, PACKED: limit of a record, unless one row alone exceeds it */
    int64_t version;        /* the version that the records are for; 0: any */
    bool row_version_given; /* KEYED, HCTR: send row_version in a header */
    uint64_t row_version;
    bool units; /* PACKED: one record between two flushes; needs a topic with one partition */
    /* Type in which rows are sent. 0: FP32, which every table accepts, but INT8 rows unchanged.
     * Rows of another type than FP32 need a table of that type. */
    enum hps_dtype row_dtype;
    bool nan_allowed; /* allow NaN, Inf and values too large for 16-bit types */
};

/* The type in which rows of type `given` are sent. INVALID: HCTR records have float32 only; INT8
 * rows are not quantised again. */
hps_status hps_update_writer_sends(const struct hps_update_writer_options *options,
                                   enum hps_dtype given, enum hps_dtype *out_sent,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* Totals of the records that the sink received. */
struct hps_update_written {
    uint64_t n_rows;
    uint64_t n_deletes;
    uint64_t n_records;
    uint64_t bytes; /* keys and values of records */
};

struct hps_update_writer;

hps_status hps_update_writer_new(const struct hps_update_writer_options *options,
                                 const struct hps_update_sink *sink,
                                 struct hps_update_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_update_writer_free(struct hps_update_writer *writer); /* drops unflushed rows */

/* Writes rows of one table. Its first rows set dim and dtype of the table.
 *
 * shape   keys[n]; rows[n] of any stored type, unaligned; see row_dtype for the type in which they
 *         are sent
 * error   INVALID: a key of more than key_bytes, another dim or type than before, an error of
 *         hps_update_writer_sends, a row that does not fit the type sent; EXHAUSTED: a unit above
 *         HPS_UPDATE_RECORD_BYTES_MAX; PRECONDITION: units and several partitions; NO_MEMORY; those
 *         of the sink
 */
hps_status hps_update_writer_rows(struct hps_update_writer *writer, const char *table, uint32_t dim,
                                  enum hps_dtype dtype, const hps_key *keys, const void *rows,
                                  size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Writes deletes. The same errors; INVALID also for HCTR, which cannot delete. */
hps_status hps_update_writer_deletes(struct hps_update_writer *writer, const char *table,
                                     const hps_key *keys, size_t n, struct hps_error *err)
    HPS_MUST_CHECK;
/* Sends the gathered rows to the sink; ends a unit. */
hps_status hps_update_writer_flush(struct hps_update_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
const struct hps_update_written *hps_update_writer_written(const struct hps_update_writer *writer);

#endif
