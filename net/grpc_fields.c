/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata of a call: names and values packed one after another, in the order in which they arrived
 * or will be sent. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"

struct field_head {
    uint32_t name_size;
    uint32_t value_size;
};

void grpc_fields_init(struct grpc_fields *fields)
{
    hps_buf_init(&fields->bytes, 2 * 16 * 1024);
    fields->n = 0;
}

void grpc_fields_fini(struct grpc_fields *fields)
{
    hps_buf_fini(&fields->bytes);
    fields->n = 0;
}

hps_status grpc_fields_add(struct grpc_fields *fields, const char *name, size_t name_size,
                           const void *value, size_t value_size)
{
    HPS_ASSERT(name_size > 0 && name_size <= UINT32_MAX && value_size <= UINT32_MAX);
    struct field_head head = {(uint32_t)name_size, (uint32_t)value_size};
    struct hps_buf *bytes = &fields->bytes;
    hps_status status = hps_buf_reserve(bytes, sizeof head + name_size + value_size + 2);

    if (status != HPS_OK) {
        return status;
    }
    uint8_t *to = bytes->data + bytes->size;
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, name, name_size);
    to[sizeof head + name_size] = '\0';
    if (value_size > 0) {
        memcpy(to + sizeof head + name_size + 1, value, value_size);
    }
    to[sizeof head + name_size + 1 + value_size] = '\0';
    bytes->size += sizeof head + name_size + value_size + 2;
    fields->n++;
    return HPS_OK;
}

/* Reads the field at offset `at`, and moves `at` to the next field. False: no more fields. */
static bool fields_next(const struct grpc_fields *fields, size_t *at, struct hps_http_field *out)
{
    struct field_head head;

    if (*at >= fields->bytes.size) {
        HPS_ASSERT(*at == fields->bytes.size);
        return false;
    }
    const uint8_t *from = fields->bytes.data + *at;
    memcpy(&head, from, sizeof head);
    out->name = (const char *)from + sizeof head;
    out->name_size = head.name_size;
    out->value = out->name + head.name_size + 1;
    out->value_size = head.value_size;
    *at += sizeof head + head.name_size + head.value_size + 2;
    return true;
}

const char *grpc_fields_get(const struct grpc_fields *fields, const char *name, size_t *out_size)
{
    struct hps_http_field field;
    size_t name_size = strlen(name);
    size_t at = 0;

    while (fields_next(fields, &at, &field)) {
        if (field.name_size == name_size && memcmp(field.name, name, name_size) == 0) {
            if (out_size != NULL) {
                *out_size = field.value_size;
            }
            return field.value;
        }
    }
    return NULL;
}

unsigned grpc_fields_list(const struct grpc_fields *fields, struct hps_http_field *out,
                          unsigned n_max)
{
    unsigned n = 0;
    size_t at = 0;

    while (n < n_max && fields_next(fields, &at, &out[n])) {
        n++;
    }
    return n;
}
