/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of --table, notes, and freeing.
 */
#include "tests/unit/config/config_test.h"

#include "config/options.h"
#include "tests/lib/fault_heap.h"

static void test_tables_when_given_then_exact_and_persistent(void **state)
{
    (void)state;
    const char *const args[] = {"items=items.npy", "users=/data/u=1"};
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    struct hps_notes notes;
    hps_notes_init(&notes);
    assert_int_equal(hps_config_for_tables(args, 2, &config, &err), HPS_OK);
    finish_good(config, &notes);
    const struct hps_config_model *model = &config->models[0];
    assert_int_equal(notes.n, 0);
    assert_int_equal(config->n_models, 1);
    assert_string_equal(model->name, "default");
    assert_int_equal(model->n_tables, 2);
    assert_string_equal(model->tables[0].name, "items");
    assert_string_equal(model->tables[1].path, "/data/u=1");
    assert_int_equal(model->tables[1].dim, 0);
    assert_int_equal(model->tables[1].n_default_values, 1);
    assert_int_equal(model->miss_policy, HPS_CONFIG_MISS_EXACT);
    assert_true(model->hit_rate_threshold >= 1.0);
    assert_false(model->gpucache);
    assert_int_equal(config->key_bytes, 8);
    assert_int_equal(config->volatile_db.type, HPS_CONFIG_VOLATILE_PARALLEL_HASH_MAP);
    assert_int_equal(config->persistent_db.type, HPS_CONFIG_PERSISTENT_ROCKS_DB);
    assert_string_equal(config->persistent_db.path, "/var/lib/hpsd");
    hps_config_free(config);
    hps_notes_fini(&notes);
}

static void test_tables_when_malformed_then_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"items", "=x", "items=", "a b=x", ""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hps_config *config = NULL;
        struct hps_error err = {0};
        assert_int_equal(hps_config_for_tables(&bad[i], 1, &config, &err), HPS_INVALID);
        assert_non_null(strstr(err.text, "--table: got "));
        assert_null(config);
    }
    const char *const twice[] = {"a=1", "b=2", "a=3"};
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_config_for_tables(twice, 3, &config, &err), HPS_INVALID);
    assert_string_equal(err.text, "--table: \"a\" is given twice");
}

static void make_tables(void *ctx)
{
    const char *const args[] = {"a=1", "b=2"};
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    (void)ctx;
    hps_status status = hps_config_for_tables(args, 2, &config, &err);
    assert_true(status == HPS_OK ||
                (status == HPS_NO_MEMORY && strstr(err.text, "out of memory") != NULL));
    hps_config_free(config);
}

static void test_tables_when_any_allocation_fails_then_no_memory_and_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(make_tables, NULL) > 20);
}

static void test_notes_when_added_then_kept_and_cut(void **state)
{
    (void)state;
    struct hps_notes notes;
    hps_notes_init(&notes);
    char text[2 * HPS_NOTE_BYTES_MAX];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(hps_notes_add(&notes, HPS_NOTE_WARNING, "%s", text), HPS_OK);
    assert_int_equal(hps_notes_add(&notes, HPS_NOTE_DIFFERENT, "n=%d", 3), HPS_OK);
    assert_int_equal(hps_notes_add(NULL, HPS_NOTE_DIFFERENT, "dropped"), HPS_OK);
    assert_int_equal(strlen(notes.items[0].text), HPS_NOTE_BYTES_MAX - 1);
    assert_string_equal(notes.items[1].text, "n=3");
    hps_notes_fini(&notes);
    assert_int_equal(notes.n, 0);
    hps_notes_fini(&notes);
}

static void test_free_when_null_then_nothing(void **state)
{
    (void)state;
    hps_config_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_when_given_then_exact_and_persistent),
        cmocka_unit_test(test_tables_when_malformed_then_refused),
        cmocka_unit_test(test_tables_when_any_allocation_fails_then_no_memory_and_no_leak),
        cmocka_unit_test(test_notes_when_added_then_kept_and_cut),
        cmocka_unit_test(test_free_when_null_then_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
