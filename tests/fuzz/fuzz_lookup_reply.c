/* SPDX-License-Identifier: Apache-2.0
 *
 * A LookupResponse as a server that lies might send it, taken by the C library. An input is one
 * message. Whatever it is: nothing is written outside the caller's memory, a reply that is accepted
 * has a row for each key or bag, and the size of the pieces makes no difference.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "client/intake.h"

enum { N_BAGS = 3, N_KEYS = 9, ROWS_BYTES = 200, N_QUERIES = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes the message in pieces of `piece` bytes, and in place where the intake allows it. */
static hps_status take(struct hps_intake *intake, const uint8_t *data, size_t size, size_t piece,
                       struct hpsd_reply *out_reply)
{
    struct hps_error err;
    hps_status status = hps_intake_begin(intake, size, &err);

    while (status == HPS_OK && size > 0) {
        size_t n = piece < size ? piece : size;
        uint8_t *room = hps_intake_room(intake, n, &n);
        if (room != NULL) {
            memcpy(room, data, n);
        }
        status = hps_intake_feed(intake, room != NULL ? room : data, n, &err);
        data += n;
        size -= n;
    }
    return status == HPS_OK ? hps_intake_end(intake, out_reply, &err) : status;
}

static volatile uint8_t looked;

/* Looks at each value and key state; ASan looks too. */
static void look(const struct hpsd_lookup *lookup, const struct hpsd_reply *reply)
{
    uint8_t sum = 0;

    for (size_t i = 0; i < lookup->n_queries; i++) {
        const struct hpsd_query *query = &lookup->queries[i];
        const struct hpsd_result *result = &lookup->results[i];
        size_t row_bytes = hpsd_row_bytes(result->dtype, result->dim);
        HPS_ASSERT(result->n_rows == (query->offsets == NULL ? query->n_keys : query->n_bags));
        HPS_ASSERT(lookup->concat || result->stride == row_bytes);
        HPS_ASSERT(row_bytes == 0 || result->rows != NULL);
        for (size_t at = 0; at < result->n_rows * row_bytes; at++) {
            const uint8_t *rows = result->rows;
            sum = (uint8_t)(sum + rows[at / row_bytes * result->stride + at % row_bytes]);
        }
        for (size_t k = 0; k < query->n_keys; k++) {
            sum = (uint8_t)(sum + query->key_status[k]);
        }
    }
    looked = sum;
    HPS_ASSERT(memchr(reply->label, '\0', sizeof(reply->label)) != NULL);
}

static hps_status try(const uint8_t *data, size_t size, size_t piece, bool bags, bool concat)
{
    static const uint32_t offsets[N_BAGS + 1] = {0, 4, 4, N_KEYS};
    struct hpsd_query queries[N_QUERIES] = {{.n_keys = N_KEYS}, {.n_keys = concat ? N_KEYS : 2}};
    struct hpsd_result results[N_QUERIES];
    struct hpsd_lookup lookup = {.queries = queries,
                                 .n_queries = N_QUERIES,
                                 .concat = concat,
                                 .output_type = HPSD_RAW,
                                 .results = results};
    struct hps_intake intake;
    struct hpsd_reply reply = {0};

    for (size_t i = 0; i < N_QUERIES; i++) {
        queries[i].key_status = hps_alloc(queries[i].n_keys);
        HPS_ASSERT(queries[i].key_status != NULL);
        if (bags && queries[i].n_keys == N_KEYS) {
            queries[i].pooling = HPSD_POOLING_SUM;
            queries[i].offsets = offsets;
            queries[i].n_bags = N_BAGS;
        }
    }
    if (!concat) {
        queries[0].rows = hps_alloc(ROWS_BYTES);
        queries[0].rows_size = ROWS_BYTES;
        HPS_ASSERT(queries[0].rows != NULL);
    }
    hps_intake_init(&intake, &lookup, queries, results);
    hps_status status = take(&intake, data, size, piece, &reply);
    HPS_ASSERT(status == HPS_OK || status == HPS_DATA_LOSS || status == HPS_RANGE);
    if (status == HPS_OK) {
        look(&lookup, &reply);
    }
    hps_intake_fini(&intake);
    hpsd_free(reply.memory);
    hps_free(queries[0].rows);
    for (size_t i = 0; i < N_QUERIES; i++) {
        hps_free(queries[i].key_status);
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (unsigned form = 0; form < 4; form++) {
        hps_status whole = try(data, size, SIZE_MAX, (form & 1) != 0, (form & 2) != 0);
        HPS_ASSERT(try(data, size, 1, (form & 1) != 0, (form & 2) != 0) == whole);
        HPS_ASSERT(try(data, size, 5, (form & 1) != 0, (form & 2) != 0) == whole);
    }
    return 0;
}
