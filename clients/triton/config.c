/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/triton/backend.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/heap.h"

#define ADDRESS_ENVIRONMENT "HPSD_LOOKUP_ADDR"
#define ADDRESS_DEFAULT     "127.0.0.1:8601"

enum { TIMEOUT_US = 5000000, CONNECTIONS_MAX = 64 };

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory");
}

static hps_status parse(const char *json, size_t size, const char *what, json_t **out_root,
                        struct hps_error *err)
{
    json_error_t wrong;

    *out_root = json_loadb(json, size, 0, &wrong);
    return *out_root != NULL ? HPS_OK : hps_error_set(err, HPS_INVALID, "%s: %s", what, wrong.text);
}

/* ---- --backend-config ------------------------------------------------------------------------ */

static hps_status invalid(const char *name, const char *value, const char *expected,
                          struct hps_error *err)
{
    return hps_error_set(err, HPS_INVALID, "--backend-config=hps,%s=%s: expected %s", name, value,
                         expected);
}

static bool is_of_triton(const char *name)
{
    static const char *const names[] = {"auto-complete-config", "backend-directory",
                                        "default-max-batch-size", "min-compute-capability"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static hps_status take(struct hps_triton_config *config, const char *name, const char *value,
                       struct hps_error *err)
{
    const struct {
        const char *name;
        char **text;
    } texts[] = {{"addr", &config->addresses},        {"ps", &config->ignored},
                 {"token-file", &config->token_file}, {"tls-ca", &config->tls_ca},
                 {"tls-cert", &config->tls_cert},     {"tls-key", &config->tls_key}};
    uint64_t number;

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        if (strcmp(name, texts[i].name) == 0) {
            hps_free(*texts[i].text);
            *texts[i].text = hps_strdup(value);
            return *texts[i].text == NULL ? no_memory(err) : HPS_OK;
        }
    }
    if (strcmp(name, "timeout") == 0) {
        if (!hps_args_duration_us(value, &config->timeout_us) || config->timeout_us == 0) {
            return invalid(name, value, "a duration such as 2.5 (seconds) or 250ms", err);
        }
    } else if (strcmp(name, "connections") == 0) {
        if (!hps_args_u64(value, &number) || number == 0 || number > CONNECTIONS_MAX) {
            return invalid(name, value, "a number from 1 to 64", err);
        }
        config->connections = (uint32_t)number;
    } else if (strcmp(name, "token-in-clear") == 0) {
        config->token_in_clear = strcmp(value, "true") == 0;
        if (!config->token_in_clear && strcmp(value, "false") != 0) {
            return invalid(name, value, "true or false", err);
        }
    } else if (!is_of_triton(name)) {
        hps_triton_log(TRITON_WARN,
                       "--backend-config=hps,%s=%s ignored: the names are addr, token-file, "
                       "token-in-clear, tls-ca, tls-cert, tls-key, timeout, connections",
                       name, value);
    }
    return HPS_OK;
}

hps_status hps_triton_config_read(const char *json, size_t size, struct hps_triton_config *out,
                                  struct hps_error *err)
{
    struct hps_triton_config config = {.timeout_us = TIMEOUT_US};
    const char *environment = getenv(ADDRESS_ENVIRONMENT);
    const char *name;
    json_t *root = NULL;
    json_t *value;
    hps_status status = parse(json, size, "the configuration of the backend", &root, err);

    json_object_foreach (json_object_get(root, "cmdline"), name, value) {
        if (status == HPS_OK && json_is_string(value)) {
            status = take(&config, name, json_string_value(value), err);
        }
    }
    json_decref(root);
    if (status == HPS_OK && config.addresses == NULL) {
        bool set = environment != NULL && environment[0] != '\0';
        config.addresses = hps_strdup(set ? environment : ADDRESS_DEFAULT);
        status = config.addresses == NULL ? no_memory(err) : HPS_OK;
    }
    if (status != HPS_OK) {
        hps_triton_config_free(&config);
        return status;
    }
    *out = config;
    return HPS_OK;
}

void hps_triton_config_free(struct hps_triton_config *config)
{
    hps_free(config->addresses);
    hps_free(config->token_file);
    hps_free(config->tls_ca);
    hps_free(config->tls_cert);
    hps_free(config->tls_key);
    hps_free(config->ignored);
}

/* ---- config.pbtxt ---------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text == NULL ? "" : text;
}

static hps_status check_input(const json_t *inputs, const char *name, const char *type,
                              struct hps_error *err)
{
    size_t i;
    json_t *input;

    json_array_foreach (inputs, i, input) {
        if (strcmp(text_of(input, "name"), name) == 0) {
            return strcmp(text_of(input, "data_type"), type) == 0
                       ? HPS_OK
                       : hps_error_set(err, HPS_INVALID, "input '%s' has data_type %s, expected %s",
                                       name, text_of(input, "data_type"), type);
        }
    }
    return hps_error_set(err, HPS_INVALID, "input '%s' of data_type %s is missing", name, type);
}

static hps_status check_model(const json_t *root, struct hps_error *err)
{
    const json_t *inputs = json_object_get(root, "input");
    const json_t *outputs = json_object_get(root, "output");
    const char *type = text_of(json_array_get(outputs, 0), "data_type");
    hps_status status = check_input(inputs, "KEYS", "TYPE_INT64", err);

    if (status == HPS_OK) {
        status = check_input(inputs, "NUMKEYS", "TYPE_INT32", err);
    }
    if (status == HPS_OK && json_array_size(inputs) != 2) {
        return hps_error_set(err, HPS_INVALID, "%zu inputs, expected KEYS and NUMKEYS",
                             json_array_size(inputs));
    }
    if (status == HPS_OK && (json_array_size(outputs) != 1 || strcmp(type, "TYPE_FP32") != 0)) {
        return hps_error_set(err, HPS_INVALID, "expected one output, of data_type TYPE_FP32");
    }
    return status;
}

hps_status hps_triton_config_check_model(const char *json, size_t size, struct hps_error *err)
{
    json_t *root = NULL;
    hps_status status = parse(json, size, "the model's configuration", &root, err);

    if (status == HPS_OK) {
        status = check_model(root, err);
    }
    json_decref(root);
    return status;
}
