/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes LookupResponse messages piece by piece, as they come from the network, and puts rows and
 * key states into the caller's memory. No copy of a message is made. Fields may come in any order.
 * One thread at a time.
 */
#ifndef HPS_CLIENT_INTAKE_H
#define HPS_CLIENT_INTAKE_H

#include "base/status.h"
#include "client/hpsd.h"

enum { HPS_INTAKE_SCRATCH_BYTES = 160 };

/* Where a field is: the message itself, or one of its results. */
enum hps_intake_depth { HPS_INTAKE_MESSAGE, HPS_INTAKE_RESULT };
enum hps_intake_step { HPS_INTAKE_TAG, HPS_INTAKE_VARINT, HPS_INTAKE_SIZE, HPS_INTAKE_BYTES };

/* A TableResult that is coming: rows of one query, all of them or a part. */
struct hps_intake_part {
    size_t query;
    uint64_t n_rows;
    uint64_t dim;
    uint64_t dtype;
    uint64_t n_unique;
    uint64_t n_defaulted;
    uint64_t n_unknown;
    uint64_t column;
    uint64_t rows_bytes;
    uint64_t n_status;
};

struct hps_intake {
    /* Set by hps_intake_init. */
    const struct hpsd_query *queries;
    size_t n_queries;
    struct hpsd_result *results; /* [n_queries] */
    uint8_t *rows;               /* rows of queries without memory of their own */
    size_t rows_size;
    bool owned; /* `rows` is allocated here */
    bool concat;
    bool stream;
    unsigned dtype; /* of the values; 0: as they are stored */
    /* Progress: the next row is `row` of `query`; with concat `row` of the matrix. */
    size_t query;
    size_t row;
    size_t rows_used;       /* of `rows` */
    size_t query_rows_used; /* of the memory of `query` */
    uint64_t n_messages;
    size_t n_message_results;
    uint64_t message_matrix_bytes;
    uint64_t message_columns;
    struct hpsd_reply reply;
    /* The wire format. */
    enum hps_intake_depth depth;
    enum hps_intake_step step;
    uint64_t left[2]; /* bytes of the message and of the result that are to come */
    uint64_t value;   /* of the varint that is coming */
    unsigned shift;
    uint64_t tag;
    uint64_t bytes_left; /* of a field */
    uint8_t *to;         /* where they go; NULL: nowhere */
    uint8_t *to_end;     /* of rows: end of the memory for them and for rows that follow */
    size_t n_scratch;
    struct hps_intake_part part;
    uint8_t scratch[HPS_INTAKE_SCRATCH_BYTES];
};

/* Prepares for the reply to `lookup`. results: [n_queries]. `queries`, their offsets and all memory
 * for results are borrowed until the end. */
void hps_intake_init(struct hps_intake *intake, const struct hpsd_lookup *lookup,
                     const struct hpsd_query *queries, struct hpsd_result *results);
/* Frees what the intake owns. */
void hps_intake_fini(struct hps_intake *intake);
/* Discards the received bytes, before the request is sent again. */
void hps_intake_reset(struct hps_intake *intake);
/* A message of `size` bytes begins.
 *
 * error   DATA_LOSS: a second message that is not of a stream, or the message before is incomplete;
 *         NO_MEMORY
 */
hps_status hps_intake_begin(struct hps_intake *intake, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;
/* Takes the next bytes of the message.
 *
 * error   DATA_LOSS: malformed, or not the reply to this lookup; RANGE: the rows do not fit
 */
hps_status hps_intake_feed(struct hps_intake *intake, const uint8_t *data, size_t size,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Where up to `size` of the next bytes may be received, to be fed from there. NULL: nowhere. */
uint8_t *hps_intake_room(const struct hps_intake *intake, size_t size, size_t *out_room);
/* After the last message: completes the results and returns the reply.
 *
 * owner   out_reply->memory: the caller, hpsd_free
 * error   DATA_LOSS: something is missing
 */
hps_status hps_intake_end(struct hps_intake *intake, struct hpsd_reply *out_reply,
                          struct hps_error *err) HPS_MUST_CHECK;

#endif
