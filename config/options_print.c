/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of option values, and of the values that an option expects. Any thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/text.h"
#include "config/options.h"
#include "config/secrets.h"

#define LISTENER_EXPECTED "\"host:port\", \"unix:PATH\" or {\"address\": ..., \"plaintext\": true}"

static const void *field_of_const(const struct hps_option *option, const void *base)
{
    HPS_ASSERT(base != NULL);
    return (const char *)base + option->offset;
}

static void print_text(const char *text, struct hps_buf *buf)
{
    hps_json_text(buf, text, strlen(text));
}

static void print_strings(const struct hps_strings *strings, struct hps_buf *buf)
{
    hps_buf_put(buf, "[");
    for (size_t i = 0; i < strings->n; i++) {
        hps_buf_put(buf, i == 0 ? "" : ", ");
        print_text(strings->items[i], buf);
    }
    hps_buf_put(buf, "]");
}

static void print_listener(const struct hps_config_listener *listener, struct hps_buf *buf)
{
    hps_buf_put(buf, listener->plaintext ? "{\"address\": " : "");
    print_text(listener->address == NULL ? "" : listener->address, buf);
    hps_buf_put(buf, listener->plaintext ? ", \"plaintext\": true}" : "");
}

static void print_listeners(const struct hps_config_listeners *listeners, struct hps_buf *buf)
{
    hps_buf_put(buf, "[");
    for (size_t i = 0; i < listeners->n; i++) {
        hps_buf_put(buf, i == 0 ? "" : ", ");
        print_listener(&listeners->items[i], buf);
    }
    hps_buf_put(buf, "]");
}

static void print_f64(double value, struct hps_buf *buf)
{
    char text[HPS_TEXT_F64_BYTES];

    hps_buf_put(buf, hps_text_f64(value, text));
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

static void print_default_values(const struct hps_config_table *table, struct hps_buf *buf)
{
    HPS_ASSERT(table->n_default_values == 0 || table->default_values != NULL);
    bool list = table->n_default_values != 1;
    hps_buf_put(buf, list ? "[" : "");
    for (uint32_t i = 0; i < table->n_default_values; i++) {
        hps_buf_put(buf, i == 0 ? "" : ", ");
        print_f64((double)table->default_values[i], buf);
    }
    hps_buf_put(buf, list ? "]" : "");
}

static void print_of_table(enum hps_option_id id, const struct hps_config_table *table,
                           struct hps_buf *buf)
{
    switch (id) {
    case HPS_OPTION_model_sparse_files:
        print_text(table->path, buf);
        break;
    case HPS_OPTION_model_embedding_table_names:
        print_text(table->name, buf);
        break;
    case HPS_OPTION_model_embedding_vecsize_per_table:
        hps_buf_putf(buf, "%" PRIu32, table->dim);
        break;
    case HPS_OPTION_model_row_dtype:
        print_text(word_of(&hps_options[id], table->row_dtype), buf);
        break;
    default:
        HPS_ASSERT(id == HPS_OPTION_model_default_value_for_each_table);
        print_default_values(table, buf);
    }
}

static void print_tables(enum hps_option_id id, const struct hps_config_model *model,
                         struct hps_buf *buf)
{
    bool devices = id == HPS_OPTION_model_deployed_device_list;
    size_t n = devices ? model->n_deployed_devices : model->n_tables;
    hps_buf_put(buf, "[");
    for (size_t i = 0; i < n; i++) {
        hps_buf_put(buf, i == 0 ? "" : ", ");
        if (devices) {
            hps_buf_putf(buf, "%" PRIu32, model->deployed_device_list[i]);
        } else {
            print_of_table(id, &model->tables[i], buf);
        }
    }
    hps_buf_put(buf, "]");
}

void hps_option_print(const struct hps_option *option, const void *base, struct hps_buf *buf)
{
    HPS_ASSERT(hps_option_has_value(option));
    const void *field = field_of_const(option, base);
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        hps_buf_put(buf, *(const bool *)field ? "true" : "false");
        break;
    case HPS_OPTION_TYPE_U32:
        hps_buf_putf(buf, "%" PRIu32, *(const uint32_t *)field);
        break;
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        hps_buf_putf(buf, "%" PRIu64, *(const uint64_t *)field);
        break;
    case HPS_OPTION_TYPE_F64:
        print_f64(*(const double *)field, buf);
        break;
    case HPS_OPTION_TYPE_ENUM:
        print_text(word_of(option, *(const uint32_t *)field), buf);
        break;
    case HPS_OPTION_TYPE_STRING:
        print_text(*(char *const *)field, buf);
        break;
    case HPS_OPTION_TYPE_STRINGS:
        print_strings(field, buf);
        break;
    case HPS_OPTION_TYPE_LISTEN:
        print_listener(field, buf);
        break;
    case HPS_OPTION_TYPE_LISTENS:
        print_listeners(field, buf);
        break;
    case HPS_OPTION_TYPE_TABLES:
        print_tables((enum hps_option_id)(option - hps_options), base, buf);
        break;
    case HPS_OPTION_TYPE_OBJECT:
        hps_buf_put(buf, "null");
    }
}

static void expected_integer(const struct hps_option *option, struct hps_buf *buf)
{
    bool bytes = option->type == HPS_OPTION_TYPE_BYTES;
    hps_buf_put(buf, bytes ? "bytes, like 4096 or \"4GiB\"" : "an integer");
    if (option->max != UINT64_MAX) {
        hps_buf_putf(buf, "%s from %" PRIu64 " to %" PRIu64, bytes ? "," : "", option->min,
                     option->max);
    } else if (option->min > 0) {
        hps_buf_putf(buf, "%s of at least %" PRIu64, bytes ? "," : "", option->min);
    }
    if (!bytes && option->unit[0] != '\0') {
        hps_buf_putf(buf, " (%s)", option->unit);
    }
}

static void expected_word(const struct hps_option *option, struct hps_buf *buf)
{
    HPS_ASSERT(option->values != NULL);
    hps_buf_put(buf, "one of");
    for (const struct hps_option_value *v = option->values; v->word != NULL; v++) {
        hps_buf_putf(buf, "%s \"%s\"", v == option->values ? "" : ",", v->word);
    }
}

void hps_option_expected(const struct hps_option *option, struct hps_buf *buf)
{
    static const char *const texts[HPS_OPTION_TYPE_LISTENS + 1] = {
        [HPS_OPTION_TYPE_BOOL] = "true or false",
        [HPS_OPTION_TYPE_STRINGS] = "a list of strings",
        [HPS_OPTION_TYPE_OBJECT] = "an object",
        [HPS_OPTION_TYPE_LISTEN] = LISTENER_EXPECTED,
        [HPS_OPTION_TYPE_LISTENS] = LISTENER_EXPECTED,
    };
    switch (option->type) {
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        expected_integer(option, buf);
        break;
    case HPS_OPTION_TYPE_F64:
        hps_buf_putf(buf, "a number from %g to %g", option->f_min, option->f_max);
        break;
    case HPS_OPTION_TYPE_ENUM:
        expected_word(option, buf);
        break;
    default:
        hps_buf_put(buf, texts[option->type] != NULL ? texts[option->type] : "a string");
    }
}

bool hps_option_has_value(const struct hps_option *option)
{
    return option->type != HPS_OPTION_TYPE_OBJECT;
}

static void print_properties(const struct hps_option *option,
                             const struct hps_config_update_source *source, struct hps_buf *buf)
{
    struct hps_config_update_source shown = *source;
    hps_status status = hps_strings_copy(&source->properties, &shown.properties);
    if (status != HPS_OK) {
        buf->status = status;
        return;
    }
    for (size_t i = 0; i < shown.properties.n; i++) {
        char *equals = strchr(shown.properties.items[i], '=');
        if (hps_secrets_is_property(shown.properties.items[i]) && equals != NULL) {
            memset(equals + 1, '*', strlen(equals + 1));
            equals[strlen(equals) < 4 ? strlen(equals) : 4] = '\0';
        }
    }
    hps_option_print(option, &shown, buf);
    hps_strings_fini(&shown.properties);
}

void hps_option_print_public(const struct hps_option *option, const void *base, struct hps_buf *buf)
{
    if (option == &hps_options[HPS_OPTION_volatile_db_password]) {
        const char *password = ((const struct hps_config_volatile_db *)base)->password;
        hps_buf_put(buf, password[0] == '\0' ? "\"\"" : "\"***\"");
    } else if (option == &hps_options[HPS_OPTION_update_source_properties]) {
        print_properties(option, base, buf);
    } else {
        hps_option_print(option, base, buf);
    }
}
