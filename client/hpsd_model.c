/* SPDX-License-Identifier: Apache-2.0
 *
 * Models, as GetModel describes them. Any thread.
 */
#include <string.h>

#include "base/dtype.h"
#include "base/heap.h"
#include "client/hpsd_internal.h"
#include "client/wire.h"

#define GET_MODEL_PATH "/hps.v1.ParameterServer/GetModel"

enum { PLACES_MAX = 1 << 20 };

/* What one ModelTable says. */
struct table {
    const uint8_t *name;
    size_t name_size;
    struct hpsd_table as;
    uint64_t place;
};

static bool read_table(const struct hps_wire_field *from, struct table *out_table)
{
    struct hps_wire_reader reader = {from->data, from->size, 0};
    struct hps_wire_field field;
    struct table table = {.name = (const uint8_t *)"", .as = {.dtype = HPSD_FP32}};

    while (hps_wire_next(&reader, &field)) {
        if (field.number == 1 && field.type == HPS_WIRE_BYTES) {
            table.name = field.data;
            table.name_size = field.size;
        } else if (field.number == 2) {
            table.as.dim = (uint32_t)field.value;
        } else if (field.number == 3) {
            table.as.dtype = (enum hpsd_dtype)field.value;
        } else if (field.number == 4) {
            table.as.n_rows = field.value;
        } else if (field.number == 5) {
            table.as.n_rows_estimated = field.value != 0;
        } else if (field.number == 6) {
            table.place = field.value;
        }
    }
    *out_table = table;
    return !hps_wire_broken(&reader) && table.place < PLACES_MAX &&
           memchr(table.name, '\0', table.name_size) == NULL;
}

/* A version in the reply: its number, label and tables. */
struct version {
    int64_t number;
    struct hps_wire_field label;
    struct hps_wire_field message;
    size_t n_tables; /* largest place + 1 */
    size_t n_names;  /* bytes of all names with their NULs */
};

static bool read_version(const struct hps_wire_field *from, struct version *out_version)
{
    struct hps_wire_reader reader = {from->data, from->size, 0};
    struct hps_wire_field field;
    struct version version = {.label = {.data = (const uint8_t *)""}, .message = *from};
    struct table table;

    while (hps_wire_next(&reader, &field)) {
        if (field.number == 1) {
            version.number = (int64_t)field.value;
        } else if (field.number == 2 && field.type == HPS_WIRE_BYTES) {
            version.label = field;
        } else if (field.number == 5 && field.type == HPS_WIRE_BYTES) {
            if (!read_table(&field, &table)) {
                return false;
            }
            version.n_tables =
                table.place >= version.n_tables ? (size_t)table.place + 1 : version.n_tables;
            version.n_names += table.name_size + 1;
        }
    }
    *out_version = version;
    return !hps_wire_broken(&reader);
}

/* Finds the wanted version in the reply. number 0: the active one. */
static hps_status find_version(const struct hps_buf *reply, const char *model, int64_t number,
                               struct version *out_version, struct hps_error *err)
{
    bool found = false;
    struct hps_wire_field field;

    for (int pass = 0; pass < 2 && !found; pass++) { /* active_version may come last */
        struct hps_wire_reader reader = {reply->data, reply->size, 0};
        while (!found && hps_wire_next(&reader, &field)) {
            if (field.number == 2 && number == 0) {
                number = (int64_t)field.value;
            } else if (field.number == 3 && field.type == HPS_WIRE_BYTES) {
                if (!read_version(&field, out_version)) {
                    return hps_error_set(err, HPS_DATA_LOSS, "the description is malformed");
                }
                found = number != 0 && out_version->number == number;
            }
        }
        if (hps_wire_broken(&reader)) {
            return hps_error_set(err, HPS_DATA_LOSS, "the description is malformed");
        }
    }
    return found ? HPS_OK
                 : hps_error_set(err, HPS_UNAVAILABLE, "model \"%s\" has no active version", model);
}

/* One block: the model, its tables, their names. */
static struct hpsd_model *make_model(const struct version *version)
{
    size_t tables_bytes = version->n_tables * sizeof(struct hpsd_table);
    struct hpsd_model *model =
        hps_calloc(1, sizeof(*model) + tables_bytes + version->n_names + version->label.size + 1);
    struct hps_wire_reader reader = {version->message.data, version->message.size, 0};
    struct hps_wire_field field;
    struct table table;

    if (model == NULL) {
        return NULL;
    }
    struct hpsd_table *tables = (struct hpsd_table *)(model + 1);
    char *text = (char *)tables + tables_bytes;
    *model = (struct hpsd_model){
        .version = version->number, .label = text, .tables = tables, .n_tables = version->n_tables};
    memcpy(text, version->label.data, version->label.size);
    for (size_t i = 0; i < version->n_tables; i++) {
        tables[i].name = text + version->label.size; /* "" */
    }
    text += version->label.size + 1;
    while (hps_wire_next(&reader, &field)) {
        if (field.number == 5 && field.type == HPS_WIRE_BYTES && read_table(&field, &table)) {
            memcpy(text, table.name, table.name_size);
            tables[table.place] = table.as;
            tables[table.place].name = text;
            text += table.name_size + 1;
        }
    }
    return model;
}

static hps_status model_read(const struct hps_buf *reply, const char *name, int64_t number,
                             struct hpsd_model **out_model, struct hps_error *err)
{
    struct version version = {0};
    hps_status status = find_version(reply, name, number, &version, err);

    if (status != HPS_OK) {
        return status;
    }
    struct hpsd_model *model = make_model(&version);
    if (model == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", version.n_tables);
    }
    *out_model = model;
    return HPS_OK;
}

enum hpsd_status hpsd_model_get(struct hpsd_client *client, const char *model, int64_t version,
                                uint64_t timeout_us, struct hpsd_model **out_model,
                                struct hpsd_error *error)
{
    struct hps_error err;
    enum hpsd_status code = hpsd_client_check(client, true, error);
    const char *name = model == NULL ? "default" : model;

    if (code != HPSD_OK) {
        return code;
    }
    struct hpsd_call *call = hpsd_call_new(client, GET_MODEL_PATH, timeout_us, 0);
    hps_status status = call == NULL ? HPS_NO_MEMORY : hps_wire_put_text(&call->request, 1, name);
    if (status == HPS_OK) {
        status = hps_wire_put_uint(&call->request, 2, (uint64_t)version);
    }
    if (status != HPS_OK) {
        (void)hps_error_set(&err, status, "no memory for a call");
        code = hpsd_error_take(error, &err);
    } else {
        hpsd_client_wait(client, call);
        if (call->failed) {
            code = call->error.status;
            if (error != NULL) {
                *error = call->error;
            }
        } else if (model_read(&call->message, name, version, out_model, &err) != HPS_OK) {
            code = hpsd_error_take(error, &err);
        }
    }
    if (call != NULL) {
        hpsd_call_free(call);
    }
    return code;
}

void hpsd_model_free(struct hpsd_model *model)
{
    hps_free(model);
}
