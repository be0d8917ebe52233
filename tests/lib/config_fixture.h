/* SPDX-License-Identifier: Apache-2.0
 *
 * Configurations for tests, as hpsd makes them from its file. What is wrong with one fails the
 * test.
 */
#ifndef HPS_TESTS_LIB_CONFIG_FIXTURE_H
#define HPS_TESTS_LIB_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"

/* Read and finished. owner: the caller, hps_config_free */
static inline struct hps_config *config_of(const char *text)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    hps_status status = hps_config_parse(text, strlen(text), "test", &config, NULL, &err);
    if (status == HPS_OK) {
        status = hps_config_finish(config, NULL, NULL, &err);
    }
    if (status != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return config;
}

/* No models yet; RocksDB and files of models below the directory. */
static inline struct hps_config *config_of_store(const char *dir)
{
    char text[2048];
    int n =
        snprintf(text, sizeof(text),
                 "{\"supportlonglong\": true, \"models\": [], \"persistent_db\": {\"type\": "
                 "\"rocks_db\"}, \"server\": {\"state_dir\": \"%s\", \"model_roots\": [\"%s\"]}}",
                 dir, dir);
    assert_in_range(n, 1, sizeof(text) - 1);
    return config_of(text);
}

#endif
