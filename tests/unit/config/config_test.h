/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of config/ share: a legal model, and parsing that expects success or failure.
 */
#ifndef HPS_TESTS_UNIT_CONFIG_CONFIG_TEST_H
#define HPS_TESTS_UNIT_CONFIG_CONFIG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"

#define MODEL_KEYS                                                                        \
    "\"model\":\"m\",\"sparse_files\":[\"d/m/1/t\"],\"embedding_vecsize_per_table\":[4]," \
    "\"deployed_device_list\":[0],\"default_value_for_each_table\":[0.5]"
#define MODELS "\"models\":[{" MODEL_KEYS "}]"
/* A file with these members besides models. */
#define FILE_WITH(members) "{\"supportlonglong\":true," MODELS "," members "}"
#define FILE_WITH_MODEL(members) \
    "{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS "," members "}]}"

static inline struct hps_config *parse_good(const char *text, struct hps_notes *notes)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    if (hps_config_parse(text, strlen(text), "ps.json", &config, notes, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return config;
}

/* Parsing must fail with `status` and a message that contains each of the NULL-ended texts. */
static inline void parse_bad(const char *text, hps_status status, ...)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_config_parse(text, strlen(text), "ps.json", &config, NULL, &err), status);
    assert_null(config);
    va_list args;
    va_start(args, status);
    for (const char *part = va_arg(args, const char *); part != NULL;
         part = va_arg(args, const char *)) {
        if (strstr(err.text, part) == NULL) {
            va_end(args);
            fail_msg("expected \"%s\" in \"%s\"", part, err.text);
        }
    }
    va_end(args);
}

static inline bool has_note(const struct hps_notes *notes, const char *part)
{
    for (size_t i = 0; i < notes->n; i++) {
        if (strstr(notes->items[i].text, part) != NULL) {
            return true;
        }
    }
    return false;
}

/* Finish with a state directory. */
static inline void finish_good(struct hps_config *config, struct hps_notes *notes)
{
    struct hps_config_flags flags = {.state_dir = "/var/lib/hpsd"};
    struct hps_error err = {0};
    if (hps_config_finish(config, &flags, notes, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

#endif
