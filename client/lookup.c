/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes LookupRequest. Any thread.
 */
#include "client/lookup.h"

#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and bags travel as they are");

static size_t text_size(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

/* A bytes field of a query. */
struct query_bytes {
    uint32_t number;
    const void *data;
    size_t size;
};

hps_status hps_client_lookup_encode_query(const struct hps_client_lookup_query *query,
                                          struct hps_buf *buf)
{
    HPS_ASSERT(query->keys != NULL || query->n_keys == 0);
    bool pooled = query->pooling > HPS_POOLING_NONE;
    HPS_ASSERT(pooled == (query->offsets != NULL));
    HPS_ASSERT(pooled || query->weights == NULL);
    const struct query_bytes fields[] = {
        {1, query->table, text_size(query->table)},
        {2, query->keys, query->n_keys * sizeof(hps_key)},
        {4, query->offsets, pooled ? (query->n_bags + 1) * sizeof(uint32_t) : 0},
        {6, query->weights, query->weights == NULL ? 0 : query->n_keys * sizeof(float)},
    };
    const size_t n_fields = sizeof(fields) / sizeof(fields[0]);
    size_t size = pooled ? 1 + hps_wire_varint_size(query->pooling) : 0;

    for (size_t i = 0; i < n_fields; i++) {
        size += fields[i].size == 0 ? 0 : hps_wire_field_size(fields[i].size);
    }
    hps_status status = hps_wire_put_head(buf, 3, size);
    if (status == HPS_OK && pooled) {
        status = hps_wire_put_uint(buf, 5, query->pooling);
    }
    for (size_t i = 0; i < n_fields && status == HPS_OK; i++) {
        status = hps_wire_put_bytes(buf, fields[i].number, fields[i].data, fields[i].size);
    }
    return status;
}

hps_status hps_client_lookup_encode(const struct hps_client_lookup *lookup, struct hps_buf *buf)
{
    HPS_ASSERT(lookup->queries != NULL || lookup->n_queries == 0);
    const struct {
        uint32_t number;
        uint64_t value;
    } scalars[] = {
        {2, (uint64_t)lookup->version},  {4, lookup->miss_policy},  {5, lookup->max_wait_us},
        {6, lookup->unknown_key_policy}, {7, lookup->output_type},  {8, lookup->explain ? 1 : 0},
        {10, lookup->max_staleness_ms},  {11, lookup->consistency}, {12, lookup->row_layout},
    };
    hps_status status = hps_wire_put_text(buf, 1, lookup->model);

    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]) && status == HPS_OK; i++) {
        status = hps_wire_put_uint(buf, scalars[i].number, scalars[i].value);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_text(buf, 9, lookup->request_id);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_text(buf, 13, lookup->label);
    }
    for (size_t i = 0; i < lookup->n_queries && status == HPS_OK; i++) {
        status = hps_client_lookup_encode_query(&lookup->queries[i], buf);
    }
    return status;
}
