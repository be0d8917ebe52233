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

/* What a test has parsed, and a place for its notes: freed by the teardown. */
enum { KEPT_MAX = 64 };
static struct hps_config *kept[KEPT_MAX];
static size_t n_kept;
static struct hps_notes noted;

static inline struct hps_config *keep_config(struct hps_config *config)
{
    assert_true(n_kept < KEPT_MAX);
    return kept[n_kept++] = config;
}

static inline int config_setup(void **state)
{
    (void)state;
    hps_notes_init(&noted);
    return 0;
}

static inline int config_teardown(void **state)
{
    (void)state;
    while (n_kept > 0) {
        hps_config_free(kept[--n_kept]);
    }
    hps_notes_fini(&noted);
    return 0;
}

#define CONFIG_TEST(name) cmocka_unit_test_setup_teardown(name, config_setup, config_teardown)

static inline struct hps_config *parse_good(const char *text, struct hps_notes *notes)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    if (hps_config_parse(text, strlen(text), "ps.json", &config, notes, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return keep_config(config);
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
