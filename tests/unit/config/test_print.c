/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration and the difference of two.
 */
#include "tests/unit/config/config_test.h"

#include "config/options.h"
#include "tests/lib/fault_heap.h"

static char *print(const struct hps_config *config)
{
    static struct hps_buf buf;
    hps_buf_fini(&buf);
    hps_buf_init(&buf, 1024 * 1024);
    assert_int_equal(hps_config_print_effective(config, &buf), HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
    return (char *)buf.data;
}

static void test_effective_when_printed_then_values_and_where_they_come_from(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good(FILE_WITH("\"volatile_db\":{\"type\":\"map\",\"password\":\"secret\"},"
                             "\"server\":{\"keys_max\":5,\"listen\":{\"address\":\"1.2.3.4:5\","
                             "\"plaintext\":true}}"),
                   NULL);
    finish_good(config, NULL);
    const char *text = print(config);
    assert_non_null(strstr(text, "\"keys_max\": {\"value\": 5, \"default\": false}"));
    assert_non_null(strstr(text, "\"tables_max\": {\"value\": 1024, \"default\": true}"));
    assert_non_null(strstr(text, "\"type\": {\"value\": \"hash_map\", \"default\": false}"));
    assert_non_null(strstr(text, "[{\"address\": \"1.2.3.4:5\", \"plaintext\": true}]"));
    assert_non_null(
        strstr(text, "\"default_value_for_each_table\": {\"value\": [0.5], \"default\": false}"));
    assert_non_null(strstr(text, "\"password\": {\"value\": \"***\", \"default\": false}"));
    assert_null(strstr(text, "secret"));
    hps_config_free(config);
}

/* "{"value": X, ...}" of each option, read back as a file, must give the same configuration. */
static void test_effective_when_read_back_then_it_is_legal_json(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good(FILE_WITH("\"server\":{\"state_dir\":\"a\\\"\\n\\u00e9\"}"), NULL);
    finish_good(config, NULL);
    struct hps_config *back = NULL;
    struct hps_error err = {0};
    const char *text = print(config);
    assert_int_equal(hps_config_parse(text, strlen(text), "effective", &back, NULL, &err),
                     HPS_INVALID);
    assert_null(strstr(err.text, "expected legal JSON"));
    assert_non_null(strstr(err.text, "supportlonglong: got {\"value\": true"));
    hps_config_free(config);
}

static void print_and_diff(void *ctx)
{
    struct hps_buf buf;
    hps_buf_init(&buf, 1024 * 1024);
    hps_status status = hps_config_print_effective(ctx, &buf);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_buf_fini(&buf);
}

static void test_effective_when_any_allocation_fails_then_no_memory(void **state)
{
    (void)state;
    struct hps_config *config = parse_good("{" MODELS "}", NULL);
    (void)hps_fault_heap_run(print_and_diff, config);
    hps_config_free(config);
}

struct changes {
    struct hps_config_change items[32];
    size_t n;
};

static void collect(void *ctx, const struct hps_config_change *change)
{
    struct changes *changes = ctx;
    assert_true(changes->n < 32);
    changes->items[changes->n++] = *change;
}

static size_t diff(const char *before, const char *after, struct changes *changes)
{
    struct hps_config *configs[2] = {parse_good(before, NULL), parse_good(after, NULL)};
    finish_good(configs[0], NULL);
    finish_good(configs[1], NULL);
    size_t n_restart = 0;
    *changes = (struct changes){.n = 0};
    assert_int_equal(hps_config_diff(configs[0], configs[1], collect, changes, &n_restart), HPS_OK);
    hps_config_free(configs[0]);
    hps_config_free(configs[1]);
    return n_restart;
}

static const struct hps_config_change *find(const struct changes *changes, const char *path)
{
    for (size_t i = 0; i < changes->n; i++) {
        if (strcmp(changes->items[i].path, path) == 0) {
            return &changes->items[i];
        }
    }
    fail_msg("no change of %s", path);
    return NULL;
}

static void test_diff_when_equal_then_none(void **state)
{
    (void)state;
    struct changes changes;
    const char *text = FILE_WITH("\"server\":{\"keys_max\":2097152}");
    assert_int_equal(diff(text, text, &changes), 0);
    assert_int_equal(changes.n, 0);
    assert_int_equal(diff(text, "{\"supportlonglong\":\"TRUE\"," MODELS "}", &changes), 0);
    assert_int_equal(changes.n, 0);
}

static void test_diff_when_options_differ_then_listed_with_what_they_need(void **state)
{
    (void)state;
    struct changes changes;
    size_t n_restart = diff(
        FILE_WITH(
            "\"server\":{\"slow_request_ms\":5,\"tls\":{\"certificate\":\"a\",\"key\":\"b\"}}"),
        FILE_WITH(
            "\"volatile_db\":{\"type\":\"map\",\"password\":\"x\"},"
            "\"server\":{\"slow_request_ms\":6,\"worker_threads\":3,\"tls\":{\"certificate\":\"c\","
            "\"key\":\"b\"}}"),
        &changes);
    assert_int_equal(changes.n, 5);
    assert_int_equal(n_restart, 3);
    assert_true(find(&changes, "server.slow_request_ms")->reloadable);
    assert_string_equal(find(&changes, "server.slow_request_ms")->before, "5");
    assert_string_equal(find(&changes, "server.slow_request_ms")->after, "6");
    assert_true(find(&changes, "server.tls.certificate")->reloadable);
    assert_false(find(&changes, "server.worker_threads")->reloadable);
    assert_string_equal(find(&changes, "volatile_db.password")->after, "\"***\"");
    assert_string_equal(find(&changes, "volatile_db.type")->after, "\"hash_map\"");
}

static void test_diff_when_models_come_go_or_change_then_listed(void **state)
{
    (void)state;
    struct changes changes;
    size_t n_restart = diff(
        "{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS
        ",\"label\":\"a\"}],\"server\":{\"model_roots\":[\"/\"]}}",
        "{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS ",\"label\":\"b\"},{\"model\":\"n\","
        "\"sparse_files\":[\"x\"],\"embedding_vecsize_per_table\":[1],\"deployed_device_list\":[],"
        "\"maxnum_catfeature_query_per_table_per_sample\":[1],\"default_value_for_each_table\":[0]}"
        "],"
        "\"server\":{\"model_roots\":[\"/\"]}}",
        &changes);
    assert_int_equal(changes.n, 2);
    assert_int_equal(n_restart, 2);
    assert_string_equal(find(&changes, "models[m].label")->after, "\"b\"");
    assert_string_equal(find(&changes, "models[n]")->after, "added");
    (void)diff("{" MODELS ",\"server\":{\"model_roots\":[\"/\"]}}",
               "{\"models\":[],\"server\":{\"model_roots\":[\"/\"]}}", &changes);
    assert_int_equal(changes.n, 1);
    assert_string_equal(find(&changes, "models[m]")->before, "removed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_effective_when_printed_then_values_and_where_they_come_from),
        cmocka_unit_test(test_effective_when_read_back_then_it_is_legal_json),
        cmocka_unit_test(test_effective_when_any_allocation_fails_then_no_memory),
        cmocka_unit_test(test_diff_when_equal_then_none),
        cmocka_unit_test(test_diff_when_options_differ_then_listed_with_what_they_need),
        cmocka_unit_test(test_diff_when_models_come_go_or_change_then_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
