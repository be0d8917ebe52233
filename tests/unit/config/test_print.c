/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration.
 */
#include "tests/unit/config/config_test.h"

#include "base/heap.h"
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
                             "\"update_source\":{\"properties\":[\"sasl.password=hunter2\","
                             "\"security.protocol=ssl\",\"ssl.key.password=\"]},"
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
    assert_non_null(strstr(text, "\"row_dtype\": {\"value\": [\"file\"], \"default\": true}"));
    assert_non_null(strstr(text, "\"password\": {\"value\": \"***\", \"default\": false}"));
    assert_null(strstr(text, "hunter2"));
    assert_non_null(strstr(text, "\"sasl.password=***\""));
    assert_non_null(strstr(text, "\"security.protocol=ssl\""));
    assert_null(strstr(text, "secret"));
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
    assert_null(strstr(err.text, "expected valid JSON"));
    assert_non_null(strstr(err.text, "supportlonglong: got an object"));
}

static void count_change(void *ctx, const struct hps_config_change *change)
{
    (void)change;
    (*(size_t *)ctx)++;
}

static void test_entry_when_printed_then_it_reads_as_the_same_model(void **state)
{
    (void)state;
    static const char *const more[] = {
        "\"label\":\"a\"",
        "\"row_dtype\":\"fp16\",\"version\":7,\"lineage\":\"x\\\"\\n\",\"dense_file\":\"d\"",
        "\"gpucacheper\":0.1,\"hit_rate_threshold\":\"0.25\",\"row_versions\":\"TRUE\","
        "\"miss_policy\":\"exact\",\"embedding_table_names\":[\"items\"],\"max_batch_size\":3"};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        char text[1024];
        struct hps_buf buf;
        struct hps_error err = {0};
        struct hps_config *back = NULL;
        size_t n = 0;
        (void)snprintf(text, sizeof(text), "{\"models\":[{" MODEL_KEYS ",%s,\"unknown\":1}]}",
                       more[i]);
        struct hps_config *config = parse_good(text, NULL);
        hps_buf_init(&buf, 1024 * 1024);
        assert_int_equal(hps_config_print_entry(&config->models[0], &buf), HPS_OK);
        assert_int_equal(
            hps_config_parse_entry((const char *)buf.data, buf.size, "config", &back, NULL, &err),
            HPS_OK);
        assert_int_equal(
            hps_config_diff_entry(&config->models[0], &back->models[0], count_change, &n), HPS_OK);
        assert_int_equal(n, 0);
        hps_config_free(back);
        hps_buf_fini(&buf);
    }
}

static void test_entry_when_not_one_object_then_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{" MODEL_KEYS "},{" MODEL_KEYS "}",
                                      "7",
                                      "{\"model\":\"m\"}",
                                      "{" MODEL_KEYS "}]"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hps_config *config = NULL;
        struct hps_error err = {0};
        assert_int_equal(
            hps_config_parse_entry(bad[i], strlen(bad[i]), "config", &config, NULL, &err),
            HPS_INVALID);
        assert_int_equal(strncmp(err.text, "config", 6), 0);
        assert_null(config);
    }
}

static void print_all(void *ctx)
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
    (void)hps_fault_heap_run(print_all, config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFIG_TEST(test_effective_when_printed_then_values_and_where_they_come_from),
        CONFIG_TEST(test_entry_when_printed_then_it_reads_as_the_same_model),
        CONFIG_TEST(test_entry_when_not_one_object_then_refused),
        CONFIG_TEST(test_effective_when_read_back_then_it_is_legal_json),
        CONFIG_TEST(test_effective_when_any_allocation_fails_then_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
