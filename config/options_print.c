/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields that the table of options describes as text, and what may stand there as a message says
 * it. Any thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/options.h"
#include "config/secrets.h"

static const void *field_of_const(const struct hps_option *option, const void *base)
{
    HPS_ASSERT(base != NULL);
    return (const char *)base + option->offset;
}

hps_status hps_json_print_string(const char *text, struct hps_buf *buf)
{
    hps_status status = hps_buf_append(buf, "\"", 1);
    size_t left = strlen(text);
    while (left > 0 && status == HPS_OK) {
        char escape[HPS_TEXT_ESCAPE_BYTES];
        uint32_t point = (unsigned char)*text;
        size_t length = hps_utf8_decode(text, left, &point);
        length = length > 0 ? length : 1; /* the path of a file may be any bytes */
        if (*text == '"' || *text == '\\') {
            status = hps_buf_printf(buf, "\\%c", *text);
        } else if (!hps_text_point_is_plain(point)) {
            status = hps_buf_append(buf, escape, hps_text_escape(point, escape));
        } else {
            status = hps_buf_append(buf, text, length);
        }
        text += length;
        left -= length;
    }
    return status == HPS_OK ? hps_buf_append(buf, "\"", 1) : status;
}

static hps_status print_strings(const struct hps_strings *strings, struct hps_buf *buf)
{
    hps_status status = hps_buf_append(buf, "[", 1);
    for (size_t i = 0; i < strings->n && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : hps_buf_append(buf, ", ", 2);
        if (status == HPS_OK) {
            status = hps_json_print_string(strings->items[i], buf);
        }
    }
    return status == HPS_OK ? hps_buf_append(buf, "]", 1) : status;
}

static hps_status print_listener(const struct hps_config_listener *listener, struct hps_buf *buf)
{
    HPS_ASSERT(listener != NULL);
    const char *address = listener->address == NULL ? "" : listener->address;
    if (!listener->plaintext) {
        return hps_json_print_string(address, buf);
    }
    hps_status status = hps_buf_printf(buf, "{\"address\": ");
    if (status == HPS_OK) {
        status = hps_json_print_string(address, buf);
    }
    return status == HPS_OK ? hps_buf_printf(buf, ", \"plaintext\": true}") : status;
}

static hps_status print_listeners(const struct hps_config_listeners *listeners, struct hps_buf *buf)
{
    hps_status status = hps_buf_append(buf, "[", 1);
    for (size_t i = 0; i < listeners->n && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : hps_buf_append(buf, ", ", 2);
        if (status == HPS_OK) {
            status = print_listener(&listeners->items[i], buf);
        }
    }
    return status == HPS_OK ? hps_buf_append(buf, "]", 1) : status;
}

static hps_status print_f64(double value, struct hps_buf *buf)
{
    char text[HPS_TEXT_F64_BYTES];

    return hps_buf_printf(buf, "%s", hps_text_f64(value, text));
}

static const char *word_of(const struct hps_option *option, uint32_t number)
{
    HPS_ASSERT(option->values != NULL);
    for (const struct hps_option_value *v = option->values; v->word != NULL; v++) {
        if (v->number == number) {
            return v->word;
        }
    }
    return "";
}

static hps_status print_default_values(const struct hps_config_table *table, struct hps_buf *buf)
{
    HPS_ASSERT(table->n_default_values == 0 || table->default_values != NULL);
    if (table->n_default_values == 1) {
        return print_f64((double)table->default_values[0], buf);
    }
    hps_status status = hps_buf_append(buf, "[", 1);
    for (uint32_t i = 0; i < table->n_default_values && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : hps_buf_append(buf, ", ", 2);
        if (status == HPS_OK) {
            status = print_f64((double)table->default_values[i], buf);
        }
    }
    return status == HPS_OK ? hps_buf_append(buf, "]", 1) : status;
}

static hps_status print_of_table(enum hps_option_id id, const struct hps_config_table *table,
                                 struct hps_buf *buf)
{
    switch (id) {
    case HPS_OPTION_model_sparse_files:
        return hps_json_print_string(table->path, buf);
    case HPS_OPTION_model_embedding_table_names:
        return hps_json_print_string(table->name, buf);
    case HPS_OPTION_model_embedding_vecsize_per_table:
        return hps_buf_printf(buf, "%" PRIu32, table->dim);
    case HPS_OPTION_model_row_dtype:
        return hps_json_print_string(word_of(&hps_options[id], table->row_dtype), buf);
    default:
        HPS_ASSERT(id == HPS_OPTION_model_default_value_for_each_table);
        return print_default_values(table, buf);
    }
}

static hps_status print_tables(enum hps_option_id id, const struct hps_config_model *model,
                               struct hps_buf *buf)
{
    bool devices = id == HPS_OPTION_model_deployed_device_list;
    size_t n = devices ? model->n_deployed_devices : model->n_tables;
    hps_status status = hps_buf_append(buf, "[", 1);
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : hps_buf_append(buf, ", ", 2);
        if (status != HPS_OK) {
            return status;
        }
        status = devices ? hps_buf_printf(buf, "%" PRIu32, model->deployed_device_list[i])
                         : print_of_table(id, &model->tables[i], buf);
    }
    return status == HPS_OK ? hps_buf_append(buf, "]", 1) : status;
}

hps_status hps_option_print(const struct hps_option *option, const void *base, struct hps_buf *buf)
{
    HPS_ASSERT(hps_option_has_value(option));
    const void *field = field_of_const(option, base);
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        return hps_buf_printf(buf, "%s", *(const bool *)field ? "true" : "false");
    case HPS_OPTION_TYPE_U32:
        return hps_buf_printf(buf, "%" PRIu32, *(const uint32_t *)field);
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        return hps_buf_printf(buf, "%" PRIu64, *(const uint64_t *)field);
    case HPS_OPTION_TYPE_F64:
        return print_f64(*(const double *)field, buf);
    case HPS_OPTION_TYPE_ENUM:
        return hps_json_print_string(word_of(option, *(const uint32_t *)field), buf);
    case HPS_OPTION_TYPE_STRING:
        return hps_json_print_string(*(char *const *)field, buf);
    case HPS_OPTION_TYPE_STRINGS:
        return print_strings(field, buf);
    case HPS_OPTION_TYPE_LISTEN:
        return print_listener(field, buf);
    case HPS_OPTION_TYPE_LISTENS:
        return print_listeners(field, buf);
    case HPS_OPTION_TYPE_TABLES:
        return print_tables((enum hps_option_id)(option - hps_options), base, buf);
    default:
        return hps_buf_printf(buf, "null");
    }
}

static hps_status expected_integer(const struct hps_option *option, struct hps_buf *buf)
{
    bool bytes = option->type == HPS_OPTION_TYPE_BYTES;
    hps_status status =
        hps_buf_printf(buf, "%s", bytes ? "bytes, like 4096 or \"4GiB\"" : "an integer");
    if (status == HPS_OK && option->max != UINT64_MAX) {
        status = hps_buf_printf(buf, "%s from %" PRIu64 " to %" PRIu64, bytes ? "," : "",
                                option->min, option->max);
    } else if (status == HPS_OK && option->min > 0) {
        status = hps_buf_printf(buf, "%s of at least %" PRIu64, bytes ? "," : "", option->min);
    }
    if (status == HPS_OK && !bytes && option->unit[0] != '\0') {
        status = hps_buf_printf(buf, " (%s)", option->unit);
    }
    return status;
}

static hps_status expected_word(const struct hps_option *option, struct hps_buf *buf)
{
    HPS_ASSERT(option->values != NULL);
    hps_status status = hps_buf_printf(buf, "one of");
    const char *comma = " ";
    for (const struct hps_option_value *v = option->values; v->word != NULL; v++) {
        if (status == HPS_OK) {
            status = hps_buf_printf(buf, "%s\"%s\"", comma, v->word);
            comma = ", ";
        }
    }
    return status;
}

hps_status hps_option_expected(const struct hps_option *option, struct hps_buf *buf)
{
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        return hps_buf_printf(buf, "true or false");
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        return expected_integer(option, buf);
    case HPS_OPTION_TYPE_F64:
        return hps_buf_printf(buf, "a number from %g to %g", option->f_min, option->f_max);
    case HPS_OPTION_TYPE_ENUM:
        return expected_word(option, buf);
    case HPS_OPTION_TYPE_STRINGS:
        return hps_buf_printf(buf, "a list of strings");
    case HPS_OPTION_TYPE_OBJECT:
        return hps_buf_printf(buf, "an object");
    case HPS_OPTION_TYPE_LISTEN:
    case HPS_OPTION_TYPE_LISTENS:
        return hps_buf_printf(
            buf, "\"host:port\", \"unix:PATH\" or {\"address\": ..., \"plaintext\": true}");
    default:
        return hps_buf_printf(buf, "a string");
    }
}

bool hps_option_has_value(const struct hps_option *option)
{
    return option->type != HPS_OPTION_TYPE_OBJECT;
}

static hps_status print_properties(const struct hps_option *option,
                                   const struct hps_config_update_source *source,
                                   struct hps_buf *buf)
{
    struct hps_config_update_source shown = *source;
    hps_status status = hps_strings_copy(&source->properties, &shown.properties);
    if (status != HPS_OK) {
        return status;
    }
    for (size_t i = 0; i < shown.properties.n; i++) {
        char *equals = strchr(shown.properties.items[i], '=');
        if (hps_secrets_is_property(shown.properties.items[i]) && equals != NULL) {
            memset(equals + 1, '*', strlen(equals + 1));
            equals[strlen(equals) < 4 ? strlen(equals) : 4] = '\0';
        }
    }
    status = hps_option_print(option, &shown, buf);
    hps_strings_fini(&shown.properties);
    return status;
}

hps_status hps_option_print_public(const struct hps_option *option, const void *base,
                                   struct hps_buf *buf)
{
    if (option == &hps_options[HPS_OPTION_volatile_db_password]) {
        const char *password = ((const struct hps_config_volatile_db *)base)->password;
        return hps_buf_printf(buf, "%s", password[0] == '\0' ? "\"\"" : "\"***\"");
    }
    if (option == &hps_options[HPS_OPTION_update_source_properties]) {
        return print_properties(option, base, buf);
    }
    return hps_option_print(option, base, buf);
}
