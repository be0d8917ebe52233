/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options: its own consistency, values from text, suggestions.
 */
#include "tests/unit/config/config_test.h"

#include "config/options.h"

static void test_bytes_when_units_then_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        hps_status status;
        uint64_t bytes;
    } cases[] = {
        {"4096", HPS_OK, 4096},
        {"18446744073709551615", HPS_OK, UINT64_MAX},
        {"18446744073709551616", HPS_RANGE, 0},
        {"4GiB", HPS_OK, UINT64_C(4) << 30},
        {"4 gib", HPS_OK, UINT64_C(4) << 30},
        {"1.5MB", HPS_OK, 1500000},
        {"0.5KiB", HPS_OK, 512},
        {"2TiB", HPS_OK, UINT64_C(2) << 40},
        {"7B", HPS_OK, 7},
        {"1e3", HPS_OK, 1000},
        {"99999999TiB", HPS_RANGE, 0},
        {"-1", HPS_RANGE, 0},
        {"0.5", HPS_INVALID, 0},
        {"", HPS_INVALID, 0},
        {"GiB", HPS_INVALID, 0},
        {"4 parsecs", HPS_INVALID, 0},
        {"1.2.3MiB", HPS_INVALID, 0},
        {"11111111111111111111111111111111111MiB", HPS_INVALID, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 0;
        hps_status status = hps_bytes_parse(cases[i].text, &bytes);
        if (status != cases[i].status) {
            fail_msg("%s: %s", cases[i].text, hps_status_text(status));
        }
        if (status == HPS_OK) {
            assert_int_equal(bytes, cases[i].bytes);
        }
    }
}

static void test_table_when_read_then_names_are_unique_and_helped(void **state)
{
    (void)state;
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        assert_ptr_equal(hps_option_find(option->section, option->name), option);
        assert_true(strlen(option->help) > 8);
        assert_true(option->min <= option->max);
        assert_true(option->type != HPS_OPTION_TYPE_ENUM || option->values != NULL);
        assert_true(option->values == NULL || option->type == HPS_OPTION_TYPE_ENUM ||
                    option->type == HPS_OPTION_TYPE_TABLES);
    }
    assert_null(hps_option_find(HPS_SECTION_top, "peristent_db"));
}

static void test_words_when_every_word_and_alias_then_its_number(void **state)
{
    (void)state;
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        for (const struct hps_option_value *v = hps_options[i].values; v != NULL && v->word != NULL;
             v++) {
            char list[160];
            (void)snprintf(list, sizeof(list), "%s %s", v->word, v->aliases);
            for (char *word = list; *word != '\0';) {
                struct hps_option option = hps_options[i];
                option.type = HPS_OPTION_TYPE_ENUM; /* of a list for tables: an entry */
                option.offset = 0;
                uint32_t number = UINT32_MAX;
                size_t n = strcspn(word, " ");
                bool last = word[n] == '\0';
                word[n] = '\0';
                assert_int_equal(hps_option_set_text(&option, &number, word), HPS_OK);
                assert_int_equal(number, v->number);
                word += last ? n : n + 1;
            }
        }
    }
}

static void test_words_when_case_space_or_dash_then_read(void **state)
{
    (void)state;
    struct hps_config_volatile_db db = {0};
    const struct hps_option *type = &hps_options[HPS_OPTION_volatile_db_type];
    assert_int_equal(hps_option_set_text(type, &db, "Multi-Process Hash_Map"), HPS_OK);
    assert_int_equal(db.type, HPS_CONFIG_VOLATILE_MULTI_PROCESS_HASH_MAP);
    assert_int_equal(hps_option_set_text(type, &db, ""), HPS_INVALID);
    assert_int_equal(hps_option_set_text(type, &db, "hash_map parallel_map"), HPS_INVALID);
    assert_int_equal(hps_option_set_text(type, &db, "rocks_db"), HPS_INVALID);
    assert_int_equal(db.type, HPS_CONFIG_VOLATILE_MULTI_PROCESS_HASH_MAP);
}

static void test_suggest_when_near_then_name_else_none(void **state)
{
    (void)state;
    assert_string_equal(hps_option_suggest(HPS_SECTION_top, "peristent_db"), "persistent_db");
    assert_string_equal(hps_option_suggest(HPS_SECTION_top, "Models"), "models");
    assert_string_equal(hps_option_suggest(HPS_SECTION_server, "key_max"), "keys_max");
    assert_string_equal(hps_option_suggest(HPS_SECTION_model, "hit_rate_threshhold"),
                        "hit_rate_threshold");
    assert_string_equal(hps_option_suggest(HPS_SECTION_model, "gpucahce"), "gpucache");
    assert_null(hps_option_suggest(HPS_SECTION_server, "colour"));
    assert_null(hps_option_suggest(
        HPS_SECTION_server,
        "a_name_that_is_longer_than_any_name_that_anyone_would_give_to_an_option"));
}

static void test_numbers_when_odd_then_refused(void **state)
{
    (void)state;
    struct hps_config_server server = {0};
    const struct hps_option *keys = &hps_options[HPS_OPTION_server_keys_max];
    const struct hps_option *jitter = &hps_options[HPS_OPTION_server_connection_age_jitter];
    assert_int_equal(hps_option_set_text(keys, &server, "5e3"), HPS_OK);
    assert_int_equal(server.keys_max, 5000);
    assert_int_equal(hps_option_set_text(keys, &server, "0"), HPS_RANGE);
    assert_int_equal(hps_option_set_text(keys, &server, "4294967296"), HPS_RANGE);
    assert_int_equal(hps_option_set_text(keys, &server, "0x10"), HPS_INVALID);
    assert_int_equal(hps_option_set_text(keys, &server, " 7"), HPS_INVALID);
    assert_int_equal(hps_option_set_text(keys, &server, "1.5"), HPS_INVALID);
    assert_int_equal(server.keys_max, 5000);
    assert_int_equal(hps_option_set_text(jitter, &server, "nan"), HPS_INVALID);
    assert_int_equal(hps_option_set_text(jitter, &server, "inf"), HPS_INVALID);
    assert_int_equal(hps_option_set_text(jitter, &server, "1e999"), HPS_RANGE);
    assert_int_equal(hps_option_set_text(jitter, &server, "0.95"), HPS_RANGE);
    assert_int_equal(hps_option_set_text(jitter, &server, "0.25"), HPS_OK);
    assert_true(server.connection_age_jitter > 0.2499 && server.connection_age_jitter < 0.2501);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_when_units_then_exact),
        cmocka_unit_test(test_table_when_read_then_names_are_unique_and_helped),
        cmocka_unit_test(test_words_when_every_word_and_alias_then_its_number),
        cmocka_unit_test(test_words_when_case_space_or_dash_then_read),
        cmocka_unit_test(test_suggest_when_near_then_name_else_none),
        cmocka_unit_test(test_numbers_when_odd_then_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
