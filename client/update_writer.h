/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes rows and deletes as update records (base/rows/update_record.h) and sends them to a sink,
 * usually a producer. hps_update_partition selects the partition of a key. So all writes of a key
 * are in one partition and arrive in order, in every form of records. Used by one thread at a time.
 */
#ifndef HPS_CLIENT_UPDATE_WRITER_H
#define HPS_CLIENT_UPDATE_WRITER_H

#include "base/dtype.h"
#include "base/rows/update_record.h"
#include "base/types.h"
#include "client/producer.h"

/* Receives the records. `topic` has the contract of hps_producer_topic, and `send` that of
 * hps_producer_send. */
struct hps_update_sink {
    void *ctx;
    hps_status (*topic)(void *ctx, const char *name, uint32_t *out_topic,
                        uint32_t *out_n_partitions, struct hps_error *err);
    hps_status (*send)(void *ctx, const struct hps_producer_record *record, struct hps_error *err);
};

struct hps_update_writer_options {
    const char *model; /* must be a valid name; copied */
    enum hps_update_form form;
    uint32_t key_bytes;     /* HCTR: size of a key, 8 or 4 */
    size_t batch_bytes;     /* HCTR, PACKED: maximum size of a record with several rows */
    int64_t version;        /* model version that applies the records; 0: every version */
    bool row_version_given; /* KEYED, HCTR: send row_version in a header; PACKED: no effect */
    uint64_t row_version;
    /* PACKED: send all writes between two flushes as one record, called a unit. Needs a topic with
     * one partition. */
    bool units;
    /* Type to which rows are converted before they are sent. 0: INT8 rows are sent unchanged, other
     * rows as FP32. Every table accepts FP32 rows. If rows are sent as another type, it must be the
     * type of the table. */
    enum hps_dtype row_dtype;
    bool nan_allowed; /* send NaN, Inf and values too large for 16-bit types, too */
};

/* Sets *out_sent to the type in which rows of type `given` are sent with these options. INVALID:
 * the form is HCTR, and the rows would be sent in another type than FP32; or both types are INT8
 * types, but different ones, so the rows would have to be quantised again. */
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

/* Writes rows of one table. The first call for a table sets its dim and dtype.
 *
 * shape   keys[n]; rows[n] of type `dtype`, any stored type, unaligned
 * error   INVALID: a key does not fit key_bytes, `dim` or `dtype` differs from the first call,
 *         hps_update_writer_sends fails, or a value does not fit the type in which it is sent;
 *         EXHAUSTED: a unit exceeds HPS_UPDATE_RECORD_BYTES_MAX; PRECONDITION: `units` is set and
 *         the topic has several partitions; NO_MEMORY; errors of the sink
 */
hps_status hps_update_writer_rows(struct hps_update_writer *writer, const char *table, uint32_t dim,
                                  enum hps_dtype dtype, const hps_key *keys, const void *rows,
                                  size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Writes deletes. Returns the errors of hps_update_writer_rows, and INVALID if the form is HCTR,
 * which has no deletes. */
hps_status hps_update_writer_deletes(struct hps_update_writer *writer, const char *table,
                                     const hps_key *keys, size_t n, struct hps_error *err)
    HPS_MUST_CHECK;
/* Sends all rows and deletes that are still buffered to the sink. With `units`, this ends a
 * unit. */
hps_status hps_update_writer_flush(struct hps_update_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
const struct hps_update_written *hps_update_writer_written(const struct hps_update_writer *writer);

#endif
