/* SPDX-License-Identifier: Apache-2.0
 *
 * A LookupResponse as a server that lies might send it, read by the client library. An input is one
 * message. Whatever it is: a result that is given lies within the message, its first and last rows
 * can be read, and one that passes the check has the status of each key that was asked for.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/heap.h"
#include "client/lookup.h"

enum { N_BAGS = 3, N_KEYS = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_rows(const uint8_t *data, size_t size,
                      const struct hps_client_lookup_result *result)
{
    if (result->row_count == 0 || result->dim == 0) {
        return;
    }
    size_t row_bytes = (size_t)hps_dtype_row_bytes(result->dtype, result->dim);
    const uint8_t *last = result->rows + (size_t)(result->row_count - 1) * result->stride;

    HPS_ASSERT(result->rows >= data && last >= data);
    HPS_ASSERT(last + row_bytes <= data + size);
    HPS_ASSERT(result->rows_bytes == row_bytes * result->row_count);
    float *values = hps_alloc((size_t)result->dim * sizeof(*values));
    if (values != NULL) {
        hps_client_lookup_row(result, 0, values);
        hps_client_lookup_row(result, result->row_count - 1, values);
        (void)hps_client_lookup_value(result, result->row_count - 1, result->dim - 1);
    }
    hps_free(values);
}

static void check_query(const struct hps_client_lookup_query *query,
                        const struct hps_client_lookup_result *result)
{
    struct hps_error err;
    size_t first = 1;

    if (hps_client_lookup_check(query, first, result, &err) != HPS_OK) {
        return;
    }
    HPS_ASSERT(first + result->row_count <= hps_client_lookup_rows(query));
    size_t begin = hps_client_lookup_first_key(query, first);
    size_t end = hps_client_lookup_first_key(query, first + result->row_count);
    for (size_t i = begin; i < end; i++) {
        (void)hps_client_lookup_key_status(result, (uint32_t)(i - begin)); /* ASan looks */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const hps_key keys[N_KEYS];
    static const uint32_t offsets[N_BAGS + 1] = {0, 4, 4, N_KEYS};
    const struct hps_client_lookup_query plain = {.keys = keys, .n_keys = N_KEYS};
    const struct hps_client_lookup_query bags = {.keys = keys,
                                                 .n_keys = N_KEYS,
                                                 .pooling = HPS_POOLING_SUM,
                                                 .n_bags = N_BAGS,
                                                 .offsets = offsets};
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    struct hps_error err;

    if (hps_client_lookup_reply_open(data, size, &reply, &err) != HPS_OK) {
        return 0;
    }
    for (uint32_t i = 0; i < reply.n_results; i++) {
        hps_status status = hps_client_lookup_reply_next(&reply, &result, &err);
        if (status != HPS_OK) {
            HPS_ASSERT(status == HPS_DATA_LOSS);
            return 0;
        }
        read_rows(data, size, &result);
        check_query(&plain, &result);
        check_query(&bags, &result);
    }
    return 0;
}
