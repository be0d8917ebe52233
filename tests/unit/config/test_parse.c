/* SPDX-License-Identifier: Apache-2.0
 *
 * From text to struct hps_config: every key, HPS's defaults, and messages that a person can act on.
 */
#include "tests/unit/config/config_test.h"

#include <unistd.h>

#include "base/heap.h"
#include "config/options.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/work.h"

#define SAMPLES HPS_SOURCE_DIR "/config/samples/"

static struct hps_config *parse_sample(const char *path, struct hps_notes *notes)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    if (hps_config_parse_file(path, &config, notes, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return keep_config(config);
}

static void assert_near(double value, double expected)
{
    assert_true(value > expected - 1e-9 && value < expected + 1e-9);
}

/* ---- the whole of HPS's file ----------------------------------------------------------------- */

static void test_full_sample_when_parsed_then_every_hps_key_is_set(void **state)
{
    (void)state;
    struct hps_config *config = parse_sample(SAMPLES "hps-full.json", &noted);
    assert_int_equal(noted.n, 1);
    assert_int_equal(noted.items[0].kind, HPS_NOTE_IGNORED);
    for (const struct hps_option_past *past = hps_options_past; past->name != NULL; past++) {
        bool old =
            strncmp(past->name, "max_", 4) == 0 && strstr(past->name, "t_batch_size") != NULL;
        bool wanted = past->instead == NULL && !old;
        assert_int_equal(strstr(noted.items[0].text, past->name) != NULL, wanted);
    }
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        bool ours = (option->flags & HPS_OPTION_OURS) != 0;
        const struct hps_option_set *set =
            option->section == HPS_SECTION_model           ? &config->models[0].set
            : option->section == HPS_SECTION_volatile_db   ? &config->volatile_db.set
            : option->section == HPS_SECTION_persistent_db ? &config->persistent_db.set
            : option->section == HPS_SECTION_update_source ? &config->update_source.set
                                                           : &config->set;
        if (!ours && !hps_option_is_set(set, (enum hps_option_id)i)) {
            fail_msg("%s is not in the sample", option->name);
        }
    }
}

static void test_full_sample_when_parsed_then_values_are_those_written(void **state)
{
    (void)state;
    struct hps_config *config = parse_sample(SAMPLES "hps-full.json", NULL);
    assert_true(config->supportlonglong);
    assert_int_equal(config->key_bytes, 8);
    assert_int_equal(config->volatile_db.num_partitions, 8);
    assert_true(config->volatile_db.overflow_margin == UINT64_MAX);
    assert_int_equal(config->volatile_db.overflow_policy, HPS_CONFIG_OVERFLOW_EVICT_OLDEST);
    assert_string_equal(config->volatile_db.update_filters.items[0], ".+");
    assert_int_equal(config->persistent_db.type, HPS_CONFIG_PERSISTENT_ROCKS_DB);
    assert_string_equal(config->persistent_db.path, "/var/lib/hps");
    assert_int_equal(config->update_source.type, HPS_CONFIG_UPDATE_SOURCE_NULL);
    assert_int_equal(config->n_models, 1);
    const struct hps_config_model *model = &config->models[0];
    assert_string_equal(model->name, "wdl");
    assert_int_equal(model->n_tables, 2);
    assert_string_equal(model->tables[1].name, "deep");
    assert_string_equal(model->tables[1].path, "/models/wdl/1/wdl1_sparse_2000.model");
    assert_int_equal(model->tables[1].dim, 16);
    assert_int_equal(model->tables[1].n_default_values, 1);
    assert_near((double)model->tables[1].default_values[0], (double)0.01f);
    assert_int_equal(model->n_deployed_devices, 1);
    assert_near(model->gpucacheper, 0.5);
}

static void test_commented_sample_when_parsed_then_as_without_comments(void **state)
{
    (void)state;
    struct hps_buf text[2];
    const char *const paths[2] = {SAMPLES "hps-full.json", SAMPLES "hps-full-commented.json"};
    for (size_t i = 0; i < 2; i++) {
        struct hps_config *config = parse_sample(paths[i], NULL);
        hps_buf_init(&text[i], 1024 * 1024);
        assert_int_equal(hps_config_print_effective(config, &text[i]), HPS_OK);
    }
    assert_int_equal(text[0].size, text[1].size);
    assert_memory_equal(text[0].data, text[1].data, text[0].size);
    hps_buf_fini(&text[0]);
    hps_buf_fini(&text[1]);
}

static void test_production_sample_when_parsed_then_server_is_set(void **state)
{
    (void)state;
    struct hps_config *config = parse_sample(SAMPLES "hpsd.json", NULL);
    const struct hps_config_server *server = &config->server;
    assert_int_equal(server->listen.n, 2);
    assert_string_equal(server->listen.items[1].address, "unix:/run/hpsd/grpc.sock");
    assert_true(server->http_listen.plaintext);
    assert_string_equal(server->tls.key, "/etc/hpsd/tls.key");
    assert_true(server->tls.require_client_certificate);
    assert_int_equal(server->load_memory_bytes, UINT64_C(4) << 30);
    assert_int_equal(server->log_format, HPS_CONFIG_LOG_FORMAT_JSON);
    assert_string_equal(server->model_roots.items[0], "/models");
    assert_int_equal(config->models[0].version, 20260101);
    assert_string_equal(config->models[0].lineage, "dlrm-daily");
    assert_int_equal(config->models[0].tables[1].n_default_values, 4);
    assert_near((double)config->models[0].tables[1].default_values[3], 0.25);
    assert_int_equal(config->models[0].n_deployed_devices, 0);
    finish_good(config, NULL);
    assert_string_equal(server->state_dir, "/var/lib/hpsd");
}

static void test_minimal_sample_when_parsed_then_hps_defaults(void **state)
{
    (void)state;
    struct hps_config *config = parse_sample(SAMPLES "minimal.json", NULL);
    const struct hps_config_model *model = &config->models[0];
    assert_int_equal(config->volatile_db.type, HPS_CONFIG_VOLATILE_PARALLEL_HASH_MAP);
    assert_int_equal(config->volatile_db.max_batch_size, 65536);
    assert_string_equal(config->volatile_db.update_filters.items[0], "^hps_.+$");
    assert_int_equal(config->persistent_db.type, HPS_CONFIG_PERSISTENT_DISABLED);
    assert_int_equal(config->persistent_db.num_threads, 16);
    assert_int_equal(config->persistent_db.read_mode, HPS_CONFIG_READ_MODE_AUTO);
    assert_int_equal(config->persistent_db.wal_sync_ms, 1000);
    assert_false(config->persistent_db.read_only);
    assert_int_equal(config->persistent_db.block_cache_bytes, 64 << 20);
    assert_int_equal(config->update_source.max_batch_size, 8192);
    assert_int_equal(config->update_source.metadata_refresh_interval_ms, 30000);
    assert_int_equal(model->max_batch_size, 64);
    assert_true(model->gpucache);
    assert_near(model->gpucacheper, 0.2);
    assert_near(model->hit_rate_threshold, 0.9);
    assert_int_equal(model->miss_policy, HPS_CONFIG_MISS_THRESHOLD);
    assert_string_equal(model->tables[0].name, "sparse_embedding0");
    assert_int_equal(config->server.request_bytes_max, 32u << 20);
    assert_int_equal(config->server.keys_max, 2u << 20);
    assert_string_equal(config->server.listen.items[0].address, "127.0.0.1:8601");
}

/* ---- policies, stores ------------------------------------------------------------------------ */

static void test_redis_when_the_sample_is_read_then_all_of_it_is_known(void **state)
{
    (void)state;
    struct hps_config *config = parse_sample(SAMPLES "redis.json", NULL);
    const struct hps_config_volatile_db *db = &config->volatile_db;
    assert_int_equal(db->type, HPS_CONFIG_VOLATILE_REDIS_CLUSTER);
    assert_string_equal(db->user_name, "hpsd");
    assert_int_equal(db->num_partitions, 64);
    assert_int_equal(db->local_cache_bytes, UINT64_C(4) << 30);
    assert_true(db->cache_missed_embeddings);
    assert_int_equal(db->redis_lease_s, 30);
    assert_int_equal(db->redis_ttl_s, 604800);
    assert_int_equal(db->redis_connect_timeout_ms, 500);
    assert_int_equal(db->redis_command_timeout_ms, 20);
    assert_false(db->redis_replica_reads);
}

static void test_policies_when_given_then_each_word_is_taken_and_others_are_not(void **state)
{
    (void)state;
    static const char *const miss[] = {"exact", "wait", "memory_only", "threshold"};
    static const char *const unknown[] = {"default_row", "zero", "error"};
    char text[1024];
    for (unsigned i = 0; i < 12; i++) {
        struct hps_config_policies got;
        snprintf(text, sizeof(text),
                 "{\"models\":[{" MODEL_KEYS
                 ",\"miss_policy\":\"%s\",\"unknown_key_policy\":\"%s\"%s}]}",
                 miss[i % 4], unknown[i / 4], i % 2 == 0 ? "" : ",\"hit_rate_threshold\":0.75");
        struct hps_config *config = parse_good(text, NULL);
        hps_config_model_policies(hps_config_model_find(config, "m"), &got);
        assert_int_equal(got.miss, HPS_CONFIG_MISS_EXACT + i % 4);
        assert_int_equal(got.unknown_key, HPS_CONFIG_UNKNOWN_KEY_DEFAULT_ROW + i / 4);
        assert_near(got.hit_rate_threshold, i % 2 == 0 ? 0.9 : 0.75);
        /* A model that no entry names was loaded at run time: exact, whatever HPS's default is. */
        hps_config_model_policies(hps_config_model_find(config, "n"), &got);
        assert_int_equal(got.miss, HPS_CONFIG_MISS_THRESHOLD);
        assert_int_equal(got.unknown_key, HPS_CONFIG_UNKNOWN_KEY_DEFAULT_ROW);
        assert_true(got.hit_rate_threshold >= 1.0);
    }
    parse_bad("{\"models\":[{" MODEL_KEYS ",\"miss_policy\":\"memory\"}]}", HPS_INVALID,
              "models[0].miss_policy", NULL);
}

/* In HPS such a cache has every row, so that nothing is ever answered with a default row. */
static void test_policies_when_the_cache_is_static_or_uvm_then_exact_whatever_the_threshold(
    void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double threshold;
    } cases[] = {{"\"embedding_cache_type\":\"dynamic\"", 0.75},
                 {"\"embedding_cache_type\":\"stochastic\"", 0.75},
                 {"\"embedding_cache_type\":\"static\"", 1.0},
                 {"\"embedding_cache_type\":\"uvm\"", 1.0},
                 {"\"use_static_table\":true", 1.0}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        struct hps_config_policies got;
        snprintf(text, sizeof(text),
                 "{\"models\":[{" MODEL_KEYS ",\"hit_rate_threshold\":0.75,%s}]}", cases[i].text);
        struct hps_config *config = parse_good(text, NULL);
        hps_config_model_policies(hps_config_model_find(config, "m"), &got);
        assert_near(got.hit_rate_threshold, cases[i].threshold);
        assert_int_equal(got.miss, HPS_CONFIG_MISS_THRESHOLD);
    }
}

static void test_stores_when_a_word_or_path_is_not_known_then_refused_by_name(void **state)
{
    (void)state;
    parse_bad(FILE_WITH("\"persistent_db\":{\"type\":\"rocks_db\",\"read_mode\":\"fast\"}"),
              HPS_INVALID, "persistent_db.read_mode", "mmap", NULL);
    parse_bad("{\"models\":[{\"model\":\"m\",\"sparse_files\":[\"hdfs://a/b\"],"
              "\"embedding_vecsize_per_table\":[4],"
              "\"deployed_device_list\":[0],\"default_value_for_each_table\":[0]}]}",
              HPS_UNIMPLEMENTED, "models[0].sparse_files[0]", "hdfs: files", NULL);
}

/* ---- keys that are no options ---------------------------------------------------------------- */

static void test_ignored_keys_when_a_file_has_any_then_one_warning_lists_them(void **state)
{
    (void)state;
    (void)parse_good(
        "{\"supportlonglong\":true,\"fuse_embedding_table\":[7],\"models\":[{" MODEL_KEYS
        "},{\"fp8_quant\":{},\"fuse_embedding_table\":0,\"model\":\"n\",\"sparse_files\":[\"f\"],"
        "\"embedding_vecsize_per_table\":[1],\"deployed_device_list\":[],"
        "\"default_value_for_each_table\":[0]}],\"persistent_db\":{\"max_get_batch_size\":-1},"
        "\"volatile_db\":{\"type\":\"map\",\"fp8_quant\":1}}",
        &noted);
    assert_int_equal(noted.n, 2);
    assert_true(has_note(&noted, "volatile_db.fp8_quant: unknown key"));
    assert_int_equal(noted.items[1].kind, HPS_NOTE_IGNORED);
    assert_string_equal(noted.items[1].text,
                        "ps.json: no effect in hpsd: fuse_embedding_table, max_get_batch_size, "
                        "fp8_quant");
}

static void test_removed_keys_when_given_then_refused_with_what_to_do_instead(void **state)
{
    (void)state;
    parse_bad(FILE_WITH("\"volatile_db\":{\"type\":\"redis\",\n\"redis_layout\":\"hpsd\"}"),
              HPS_INVALID, "ps.json:2: volatile_db.redis_layout: removed; ", "load the model files",
              NULL);
}

/* ---- spelling -------------------------------------------------------------------------------- */

static void test_unknown_key_when_in_hps_section_then_warning_with_suggestion(void **state)
{
    (void)state;
    (void)parse_good("{\"supportlonglong\":true,\n\"peristent_db\":{},\n" MODELS
                     ",\"volatile_db\":{\"type\":\"map\",\n"
                     "\"overflow_margins\":1,\"keys_max\":7,\"zzz\":1}}",
                     &noted);
    assert_int_equal(noted.n, 4);
    assert_int_equal(noted.items[0].kind, HPS_NOTE_WARNING);
    assert_true(has_note(
        &noted, "ps.json:2: peristent_db: unknown key, ignored; did you mean \"persistent_db\"?"));
    assert_true(has_note(
        &noted, "ps.json:4: volatile_db.overflow_margins: unknown key, ignored; did you mean "
                "\"overflow_margin\"?"));
    assert_true(
        has_note(&noted, "volatile_db.keys_max: unknown key, ignored; it belongs to server"));
    assert_true(has_note(&noted, "volatile_db.zzz: unknown key, ignored"));
}

static void test_unknown_key_when_in_server_then_error_with_suggestion(void **state)
{
    (void)state;
    parse_bad("{" MODELS ",\n\"server\":{\n\"key_max\":5}}", HPS_INVALID,
              "ps.json:3: server.key_max: unknown key", "did you mean \"keys_max\"?", NULL);
    parse_bad("{" MODELS ",\"server\":{\"tls\":{\"cert\":\"x\"}}}", HPS_INVALID, "server.tls.cert",
              NULL);
}

/* So many that it would take hours to look for the line of each. */
static void test_unknown_keys_when_very_many_then_notes_are_bounded(void **state)
{
    (void)state;
    enum { N = HPS_TEST_WORK(200000) };
    struct hps_buf text;
    hps_buf_init(&text, 16 << 20);
    assert_int_equal(hps_buf_printf(&text, "{\"models\":[]"), HPS_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(hps_buf_printf(&text, ",\"unknown%d\":0", i), HPS_OK);
    }
    assert_int_equal(hps_buf_append(&text, "}", 2), HPS_OK);
    (void)parse_good((const char *)text.data, &noted);
    assert_int_equal(noted.n, HPS_NOTES_MAX);
    assert_int_equal(noted.n_dropped, N - HPS_NOTES_MAX);
    hps_buf_fini(&text);
}

static void test_word_when_misspelt_then_error_with_suggestion(void **state)
{
    (void)state;
    parse_bad(FILE_WITH("\n\"volatile_db\":{\n\"type\": \"hash_mapp\"}"), HPS_INVALID,
              "ps.json:3: volatile_db.type: got \"hash_mapp\"",
              "expected one of \"disabled\", \"hash_map\"", "did you mean \"hash_map\"?", NULL);
    parse_bad(FILE_WITH("\"server\":{\"log_level\":\"loud\"}"), HPS_INVALID,
              "server.log_level: got \"loud\"", "\"debug\", \"info\", \"warn\", \"error\"", NULL);
    parse_bad(FILE_WITH("\"volatile_db\":{\"type\":\"rocks_db\"}"), HPS_INVALID, "volatile_db.type",
              NULL);
}

/* Numbers above 2^53 are read from the text, where the last value must be found, too. */
static void test_duplicate_key_when_anywhere_then_the_last_counts_and_a_warning_says_where(
    void **state)
{
    (void)state;
    struct hps_config *config = parse_good(
        "{\"models\":7,\n\"models\":[{" MODEL_KEYS
        ",\n\"x\":[{\"a\":1,\"b\":{},\n\"\\u0061\":1,\n\"a\":{}}]}],"
        "\"volatile_db\":{\"type\":\"nonsense\",\"type\":\"disabled\","
        "\"overflow_margin\":9007199254740995,\n\"overflow_marg\\u0069n\":9007199254740993}}",
        &noted);
    assert_int_equal(config->n_models, 1);
    assert_int_equal(config->volatile_db.type, HPS_CONFIG_VOLATILE_DISABLED);
    assert_int_equal(config->volatile_db.overflow_margin, 9007199254740993);
    static const char *const places[] = {"ps.json:2: models: duplicate key",
                                         "ps.json:4: models[0].x[0].a: duplicate key",
                                         "ps.json:5: volatile_db.type: duplicate key",
                                         "ps.json:6: volatile_db.overflow_margin: duplicate key"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assert_true(has_note(&noted, places[i]));
    }
    assert_int_equal(noted.n, 5); /* and that "x" is unknown */
}

/* Following the path to each of these keys would take hours. */
static void test_duplicate_key_when_many_are_deep_then_each_has_its_line(void **state)
{
    (void)state;
    enum { DEPTH = 2000, PAD = 4 << 20 };
    struct hps_buf text;
    hps_buf_init(&text, PAD + (1 << 20));
    hps_status status = hps_buf_printf(&text, "{\"models\":[],\"x\":");
    for (int i = 0; i < DEPTH && status == HPS_OK; i++) {
        status = hps_buf_append(&text, "{\"a\":", 5);
    }
    status = status == HPS_OK ? hps_buf_printf(&text, "{\"pad\":\"%*s\"", PAD, "") : status;
    for (int i = 0; i < HPS_NOTES_MAX && status == HPS_OK; i++) {
        status = hps_buf_printf(&text, ",\n\"%d\":1,\"%d\":2", i, i);
    }
    for (int i = 0; i < DEPTH + 2 && status == HPS_OK; i++) {
        status = hps_buf_append(&text, "}", 1);
    }
    assert_int_equal(hps_buf_append(&text, "", 1), HPS_OK);
    (void)parse_good((const char *)text.data, &noted);
    assert_true(has_note(&noted, "ps.json:2: x.a.a"));
    assert_true(has_note(&noted, "ps.json:101: x.a.a"));
    hps_buf_fini(&text);
}

/* ---- several errors -------------------------------------------------------------------------- */

static void parse_wrong(const char *text, struct hps_notes *notes)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    hps_notes_init(notes);
    hps_status status = hps_config_parse(text, strlen(text), "ps.json", &config, notes, &err);
    assert_int_equal(status, HPS_INVALID);
    assert_null(config);
    assert_int_equal(notes->items[0].kind, HPS_NOTE_ERROR);
    assert_string_equal(notes->items[0].text, err.text);
    assert_int_equal(notes->n, notes->n_errors);
}

static void test_errors_when_several_then_each_is_told_once(void **state)
{
    static const char *const expected[] = {
        "ps.json:1: volatile_db.type: got \"nonsense\"",
        "ps.json:2: models[0]: got no \"model\", which",
        "ps.json:2: models[0]: got no \"sparse_files\", which",
        "ps.json:2: models[0]: got no \"embedding_vecsize_per_table\", which",
        "ps.json:2: models[0]: got no \"default_value_for_each_table\", which",
        "ps.json:2: models[0]: got no \"deployed_device_list\", which",
        "ps.json:3: models[1].max_batch_size: got -1",
        "ps.json:3: models[1].deployed_device_list[1]: got \"x\"",
        "ps.json:3: models[1].sparse_files[0]: got 1",
        "ps.json:4: models[1].embedding_table_names[1]: got \"\"",
        "ps.json:4: models[1].embedding_vecsize_per_table: got 1 entries, expected 2",
        "ps.json:4: models[1].default_value_for_each_table[1]: got \"z\"",
        "ps.json:4: models[1].row_dtype[0]: got \"fp\"",
        "ps.json:4: models[1].row_dtype[1]: got \"fp\"",
        "ps.json:5: models[2]: got 7, expected an object",
        "ps.json:6: server.model_roots[0]: got 1",
        "ps.json:6: server.model_roots[1]: got 2",
        "ps.json:6: server.listen[0]: got 5",
        "ps.json:6: server.listen[2]: got 7",
        "ps.json:6: server.tls: got 6",
    };
    (void)state;
    parse_wrong("{\"volatile_db\":{\"type\":\"nonsense\"},\"models\":[\n{},\n"
                "{\"model\":\"m\",\"max_batch_size\":-1,\"deployed_device_list\":[0,\"x\"],"
                "\"sparse_files\":[1,\"b\"],\n\"embedding_table_names\":[\"a\",\"\"],"
                "\"embedding_vecsize_per_table\":[4],"
                "\"default_value_for_each_table\":[[1,2],\"z\"],\"row_dtype\":[\"fp\",\"fp\"]},\n"
                "7],\n\"server\":{\"listen\":[5,\"a:1\",7],\"model_roots\":[1,2],\"tls\":6}}",
                &noted);
    for (size_t i = 0; i < noted.n || i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_true(i < sizeof(expected) / sizeof(expected[0]));
        if (i == noted.n || strstr(noted.items[i].text, expected[i]) != noted.items[i].text) {
            fail_msg("expected \"%s\", got \"%s\"", expected[i],
                     i == noted.n ? "" : noted.items[i].text);
        }
    }
}

/* Finding the line of each of these errors would take hours. */
static void test_errors_when_very_many_then_they_are_bounded(void **state)
{
    (void)state;
    struct hps_buf text;
    hps_buf_init(&text, 16 << 20);
    assert_int_equal(hps_buf_printf(&text, "{\"models\":[0"), HPS_OK);
    for (int i = 0; i < HPS_TEST_WORK(1000000); i++) {
        assert_int_equal(hps_buf_append(&text, ",1", 2), HPS_OK);
    }
    assert_int_equal(hps_buf_append(&text, "]}", 3), HPS_OK);
    parse_wrong((const char *)text.data, &noted);
    assert_int_equal(noted.n_errors, HPS_NOTES_MAX);
    hps_buf_fini(&text);
}

/* ---- types, ranges, syntax ------------------------------------------------------------------- */

static void test_strings_when_in_place_of_numbers_then_read_as_triton_did(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good("{\"supportlonglong\":\"False\",\"models\":[{" MODEL_KEYS
                   ",\"gpucache\":\"TRUE\",\"gpucacheper\":\"0.5\","
                   "\"max_batch_size\":\"128\",\"embedding_cache_type\":\"Static\"}],"
                   "\"volatile_db\":{\"type\":\"Parallel Hash-Map\",\"memory_bytes\":\"4GiB\"}}",
                   NULL);
    assert_false(config->supportlonglong);
    assert_int_equal(config->key_bytes, 4);
    assert_true(config->models[0].gpucache);
    assert_near(config->models[0].gpucacheper, 0.5);
    assert_int_equal(config->models[0].max_batch_size, 128);
    assert_int_equal(config->models[0].embedding_cache_type, HPS_CONFIG_CACHE_STATIC);
    assert_int_equal(config->volatile_db.memory_bytes, UINT64_C(4) << 30);
}

static void test_numbers_when_large_then_exact(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good("{\"models\":[{" MODEL_KEYS ",\"version\":9007199254740993}],"
                   "\"volatile_db\":{\"type\":\"map\",\"overflow_margin\":18446744073709551614}}",
                   NULL);
    assert_true(config->models[0].version == UINT64_C(9007199254740993));
    assert_true(config->volatile_db.overflow_margin == UINT64_MAX - 1);
}

static void test_value_when_wrong_type_then_got_and_expected(void **state)
{
    (void)state;
    parse_bad(FILE_WITH("\"server\":{\"keys_max\":true}"), HPS_INVALID,
              "server.keys_max: got true, expected an integer from 1 to 4294967295 (keys)", NULL);
    parse_bad(FILE_WITH("\"server\":{\"keys_max\":null}"), HPS_INVALID, "got null", NULL);
    parse_bad(FILE_WITH("\"server\":{\"state_dir\":3}"), HPS_INVALID, "got 3, expected a string",
              NULL);
    parse_bad(FILE_WITH("\"server\":{\"plaintext\":1}"), HPS_INVALID,
              "got 1, expected true or false", NULL);
    parse_bad(FILE_WITH("\"server\":{\"log_level\":1}"), HPS_INVALID, "got 1, expected one of",
              NULL);
    parse_bad(FILE_WITH("\"server\":[1,2]"), HPS_INVALID, "server: got a list, expected an object",
              NULL);
    parse_bad(FILE_WITH("\"server\":{\"model_roots\":[\"/a\",{}]}"), HPS_INVALID,
              "server.model_roots[1]: got {}, expected a string", NULL);
    parse_bad(FILE_WITH("\"server\":{\"tls\":7}"), HPS_INVALID, "server.tls: got 7", NULL);
    parse_bad("[]", HPS_INVALID, "ps.json:1: got [], expected an object", NULL);
    parse_bad("{\"models\":{}}", HPS_INVALID, "models: got {}, expected a list", NULL);
    parse_bad("{\"models\":[3]}", HPS_INVALID, "models[0]: got 3, expected an object", NULL);
}

static void test_value_when_out_of_range_then_limits_are_named(void **state)
{
    (void)state;
    parse_bad(FILE_WITH("\"server\":{\"keys_max\":0}"), HPS_INVALID, "got 0", "from 1 to", NULL);
    parse_bad(FILE_WITH("\"server\":{\"keys_max\":1.5}"), HPS_INVALID, "got 1.5", NULL);
    parse_bad(FILE_WITH("\"server\":{\"keys_max\":-1}"), HPS_INVALID, "got -1", NULL);
    parse_bad(FILE_WITH("\"server\":{\"request_bytes_max\":\"4 GiB\"}"), HPS_INVALID,
              "got \"4 GiB\"", "from 1024 to 2147483647", NULL);
    parse_bad(FILE_WITH("\"volatile_db\":{\"overflow_margin\":18446744073709551616}"), HPS_INVALID,
              "got 18446744073709551616", NULL);
    parse_bad(FILE_WITH("\"volatile_db\":{\"overflow_resolution_target\":1.1}"), HPS_INVALID,
              "a number from 0 to 1", NULL);
    /* HPS aborts on these */
    parse_bad(FILE_WITH("\"update_source\":{\"metadata_refresh_interval_ms\":9}"), HPS_INVALID,
              "from 10", NULL);
    parse_bad(FILE_WITH("\"update_source\":{\"poll_timeout_ms\":0}"), HPS_INVALID, "from 1", NULL);
    parse_bad(FILE_WITH("\"update_source\":{\"max_batch_size\":0}"), HPS_INVALID, "from 1", NULL);
}

static void test_syntax_when_wrong_then_line_and_path(void **state)
{
    (void)state;
    parse_bad("", HPS_INVALID, "ps.json:1: ", "expected valid JSON", NULL);
    parse_bad("// only a comment", HPS_INVALID, "expected valid JSON", NULL);
    parse_bad("{\"models\":[],\n/* two\nlines */ \"server\":{\"a\" 1}}", HPS_INVALID,
              "ps.json:3: server.a: ", NULL);
    parse_bad("{\"models\":[]} x", HPS_INVALID, "expected valid JSON", NULL);
    parse_bad("{\"models\":[],\"x\":1e400}", HPS_INVALID, "expected valid JSON", NULL);
    parse_bad("{\"models\":[],\"x\":\"\xff\"}", HPS_INVALID, "expected valid JSON", NULL);
    parse_bad("{\"models\":[],\"x\":\"a\\u0000b\"}", HPS_INVALID, "expected valid JSON", NULL);
    parse_bad("/* never closed", HPS_INVALID, "ps.json:1: the comment", NULL);
    char deep[5000];
    memset(deep, '[', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    parse_bad(deep, HPS_INVALID, "expected valid JSON", NULL);
}

static void test_file_when_absent_or_a_directory_then_says_so(void **state)
{
    (void)state;
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_config_parse_file("/nonexistent/ps.json", &config, NULL, &err),
                     HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/ps.json"));
    assert_int_not_equal(hps_config_parse_file("/tmp", &config, NULL, &err), HPS_OK);
    assert_null(config);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void test_models_when_required_key_is_missing_then_named(void **state)
{
    (void)state;
    parse_bad("{\"supportlonglong\":true}", HPS_INVALID, "got no \"models\", which is required",
              NULL);
    static const char *const keys[] = {
        "\"model\":\"m\"",
        "\"sparse_files\":[\"f\"]",
        "\"embedding_vecsize_per_table\":[4]",
        "\"default_value_for_each_table\":[0]",
        "\"deployed_device_list\":[0]",
    };
    enum { N = sizeof(keys) / sizeof(keys[0]) };
    for (size_t skip = 0; skip < N; skip++) {
        char text[512] = "{\"models\":[{";
        size_t used = strlen(text);
        for (size_t i = 0; i < N; i++) {
            if (i != skip) {
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%s,", keys[i]);
            }
        }
        (void)snprintf(text + used - 1, sizeof(text) - used, "}]}");
        char expected[80];
        (void)snprintf(expected, sizeof(expected), "got no %.*s, which is required",
                       (int)strcspn(keys[skip], ":"), keys[skip]);
        parse_bad(text, HPS_INVALID, "models[0]: ", expected, NULL);
    }
}

/* Two tables with these lists. */
static const char *two_tables(const char *dims, const char *defaults, const char *more)
{
    static char text[1024];
    (void)snprintf(text, sizeof(text),
                   "{\"models\":[{\"model\":\"m\",\"sparse_files\":[\"a\",\"b\"],\n"
                   "\"embedding_vecsize_per_table\":%s,\n"
                   "\"default_value_for_each_table\":%s,\n\"deployed_device_list\":[0]%s}]}",
                   dims, defaults, more);
    return text;
}

static void test_tables_when_lists_disagree_then_refused(void **state)
{
    (void)state;
    parse_bad(two_tables("[4]", "[0,0]", ""), HPS_INVALID,
              "ps.json:2: models[0].embedding_vecsize_per_table: got 1 entries, expected 2", NULL);
    parse_bad(two_tables("[4,4]", "[0,0]", ",\"embedding_table_names\":[\"a\"]"), HPS_INVALID,
              "models[0].embedding_table_names: got 1 entries", NULL);
    parse_bad(two_tables("[4,4]", "[0,0]", ",\"embedding_table_names\":[\"a\",\"a\"]"), HPS_INVALID,
              "models[0].embedding_table_names[1]: got \"a\" again", NULL);
    parse_bad(two_tables("[4,4]", "[0,0]", ",\"embedding_table_names\":[\"a\",\"b.c\"]"),
              HPS_INVALID, "embedding_table_names[1]: got \"b.c\", expected a name", NULL);
    parse_bad(two_tables("[4,0]", "[0,0]", ""), HPS_INVALID,
              "embedding_vecsize_per_table[1]: got 0, expected an integer from 1 to 65536", NULL);
    parse_bad(two_tables("4", "[0,0]", ""), HPS_INVALID, "got 4, expected a list", NULL);
    parse_bad(two_tables("[4,\"x\"]", "[0,0]", ""), HPS_INVALID, "got \"x\"", NULL);
}

static void test_row_dtype_when_one_word_or_one_a_table_then_read(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(two_tables("[2,3]", "[0,0]", ""), NULL);
    assert_int_equal(config->models[0].tables[0].row_dtype, HPS_CONFIG_ROW_DTYPE_FILE);
    config = parse_good(two_tables("[2,3]", "[0,0]", ",\"row_dtype\":\"INT8-rowwise F32\""), NULL);
    assert_int_equal(config->models[0].tables[0].row_dtype, HPS_CONFIG_ROW_DTYPE_INT8_F32);
    assert_int_equal(config->models[0].tables[1].row_dtype, HPS_CONFIG_ROW_DTYPE_INT8_F32);
    config =
        parse_good(two_tables("[2,3]", "[0,0]", ",\"row_dtype\":[\"file\",\"float16\"]"), NULL);
    assert_int_equal(config->models[0].tables[0].row_dtype, HPS_CONFIG_ROW_DTYPE_FILE);
    assert_int_equal(config->models[0].tables[1].row_dtype, HPS_CONFIG_ROW_DTYPE_FP16);
    parse_bad(two_tables("[2,3]", "[0,0]", ",\"row_dtype\":[\"fp16\"]"), HPS_INVALID,
              "models[0].row_dtype: got 1 entries, expected 2, one for each table", NULL);
    parse_bad(two_tables("[2,3]", "[0,0]", ",\"row_dtype\":[\"fp16\",\"bf61\"]"), HPS_INVALID,
              "models[0].row_dtype[1]: got \"bf61\", expected one of \"file\", \"fp32\"",
              "did you mean \"bf16\"?", NULL);
    parse_bad(two_tables("[2,3]", "[0,0]", ",\"row_dtype\":8"), HPS_INVALID,
              "models[0].row_dtype: got 8, expected one of", NULL);
}

static void test_defaults_when_row_or_short_then_read(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(two_tables("[2,3]", "[[1.5,\"-2\"]]", ""), &noted);
    assert_int_equal(config->models[0].tables[0].n_default_values, 2);
    assert_near((double)config->models[0].tables[0].default_values[1], -2);
    assert_int_equal(config->models[0].tables[1].n_default_values, 1);
    assert_near((double)config->models[0].tables[1].default_values[0], 0);
    assert_true(has_note(&noted, "default_value_for_each_table: got 1 entries, expected 2"));
    parse_bad(two_tables("[2,3]", "[0,[1,2]]", ""), HPS_INVALID,
              "default_value_for_each_table[1]: got 2 numbers, expected 3", NULL);
    parse_bad(two_tables("[2,3]", "[0,[1,2,1e39]]", ""), HPS_INVALID,
              "default_value_for_each_table[1][2]: got 1e39, expected a number that fits float32",
              NULL);
    parse_bad(two_tables("[2,3]", "[0,true]", ""), HPS_INVALID, "got true", NULL);
}

static void test_models_when_names_are_bad_or_twice_then_refused(void **state)
{
    (void)state;
    parse_bad("{\"models\":[{" MODEL_KEYS "},{" MODEL_KEYS "}]}", HPS_INVALID,
              "models[1].model: got \"m\" again", NULL);
    char text[512];
    (void)snprintf(text, sizeof(text), "%s", "{\"models\":[{" MODEL_KEYS "}]}");
    strstr(text, "\"m\"")[1] = '/';
    parse_bad(text, HPS_INVALID, "models[0].model: got \"/\", expected a name", NULL);
}

static void test_models_when_static_table_then_cache_type_is_static(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(FILE_WITH_MODEL("\"use_static_table\":true"), NULL);
    assert_int_equal(config->models[0].embedding_cache_type, HPS_CONFIG_CACHE_STATIC);
}

static void test_volatile_db_when_block_has_no_type_then_disabled_with_warning(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(FILE_WITH("\"volatile_db\":{}"), &noted);
    assert_int_equal(config->volatile_db.type, HPS_CONFIG_VOLATILE_DISABLED);
    assert_true(has_note(&noted, "volatile_db: got no \"type\", so it is disabled"));
}

static void test_listeners_when_string_list_or_object_then_read(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(
        FILE_WITH(
            "\"server\":{\"listen\":[\"unix:/a\",{\"address\":\"0.0.0.0:1\",\"plaintext\":true}],"
            "\"http_listen\":\"\",\"admin_listen\":{\"address\":\"unix:/b\"}}"),
        NULL);
    assert_int_equal(config->server.listen.n, 2);
    assert_false(config->server.listen.items[0].plaintext);
    assert_true(config->server.listen.items[1].plaintext);
    assert_string_equal(config->server.http_listen.address, "");
    assert_string_equal(config->server.admin_listen.address, "unix:/b");
    parse_bad(FILE_WITH("\"server\":{\"listen\":[]}"), HPS_INVALID, "server.listen: got []", NULL);
    parse_bad(FILE_WITH("\"server\":{\"listen\":[\"a:1\",5]}"), HPS_INVALID,
              "server.listen[1]: got 5", NULL);
    parse_bad(FILE_WITH("\"server\":{\"listen\":{\"plaintext\":true}}"), HPS_INVALID,
              "server.listen", NULL);
    parse_bad(FILE_WITH("\"server\":{\"listen\":{\"address\":\"a:1\",\"plain\":true}}"),
              HPS_INVALID, "server.listen", NULL);
    parse_bad(FILE_WITH("\"server\":{\"http_listen\":{\"address\":\"a:1\",\"plaintext\":1}}"),
              HPS_INVALID, "server.http_listen", NULL);
}

/* ---- no memory ------------------------------------------------------------------------------- */

static void parse_and_free(void *ctx)
{
    struct hps_config *config = NULL;
    struct hps_notes notes;
    struct hps_error err = {0};
    const struct hps_config_flags flags = {.state_dir = "/var/lib/hpsd", .log_level = "warn"};
    hps_notes_init(&notes);
    hps_status status = hps_config_parse(ctx, strlen(ctx), "ps.json", &config, &notes, &err);
    if (status == HPS_OK) {
        status = hps_config_finish(config, &flags, &notes, &err);
    }
    if (status != HPS_OK &&
        (status != HPS_NO_MEMORY || strstr(err.text, "out of memory") == NULL)) {
        fail_msg("%s", err.text);
    }
    hps_config_free(config);
    hps_notes_fini(&notes);
}

static void test_parse_when_any_allocation_fails_then_no_memory_and_no_leak(void **state)
{
    (void)state;
    char text[] =
        "{\"peristent_db\":{},\"peristent_db\":{},\"models\":[{" MODEL_KEYS
        ",\"embedding_table_names\":[\"a\"]}],"
        "\"persistent_db\":{\"type\":\"rocks_db\"},\"server\":{\"listen\":[\"unix:/"
        "a\",\"[::1]:0\"],"
        "\"http_listen\":\"127.0.0.1:0\",\"model_roots\":[\"/a\",\"/b\"],\"slow_request_ms\":1}}";
    assert_true(hps_fault_heap_run(parse_and_free, text) > 50);
}

static void parse_bad_and_free(void *ctx)
{
    struct hps_config *config = NULL;
    struct hps_error err = {0};
    struct hps_notes notes;
    hps_notes_init(&notes);
    hps_status status = hps_config_parse(ctx, strlen(ctx), "ps.json", &config, &notes, &err);
    assert_true(status == HPS_INVALID || status == HPS_NO_MEMORY);
    assert_int_equal(status, err.status);
    assert_true(err.text[0] != '\0');
    assert_null(config);
    hps_notes_fini(&notes);
}

static void test_parse_when_bad_and_any_allocation_fails_then_an_error_and_no_leak(void **state)
{
    (void)state;
    char text[] = "{\"models\":[{" MODEL_KEYS "},{}],\"server\":{\"log_level\":\"inf\"}}";
    assert_true(hps_fault_heap_run(parse_bad_and_free, text) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFIG_TEST(test_full_sample_when_parsed_then_every_hps_key_is_set),
        CONFIG_TEST(test_full_sample_when_parsed_then_values_are_those_written),
        CONFIG_TEST(test_commented_sample_when_parsed_then_as_without_comments),
        CONFIG_TEST(test_production_sample_when_parsed_then_server_is_set),
        CONFIG_TEST(test_minimal_sample_when_parsed_then_hps_defaults),
        CONFIG_TEST(test_policies_when_given_then_each_word_is_taken_and_others_are_not),
        CONFIG_TEST(
            test_policies_when_the_cache_is_static_or_uvm_then_exact_whatever_the_threshold),
        CONFIG_TEST(test_redis_when_the_sample_is_read_then_all_of_it_is_known),
        CONFIG_TEST(test_stores_when_a_word_or_path_is_not_known_then_refused_by_name),
        CONFIG_TEST(test_ignored_keys_when_a_file_has_any_then_one_warning_lists_them),
        CONFIG_TEST(test_removed_keys_when_given_then_refused_with_what_to_do_instead),
        CONFIG_TEST(test_unknown_key_when_in_hps_section_then_warning_with_suggestion),
        CONFIG_TEST(test_unknown_key_when_in_server_then_error_with_suggestion),
        CONFIG_TEST(test_unknown_keys_when_very_many_then_notes_are_bounded),
        CONFIG_TEST(test_word_when_misspelt_then_error_with_suggestion),
        CONFIG_TEST(test_duplicate_key_when_anywhere_then_the_last_counts_and_a_warning_says_where),
        CONFIG_TEST(test_duplicate_key_when_many_are_deep_then_each_has_its_line),
        CONFIG_TEST(test_errors_when_several_then_each_is_told_once),
        CONFIG_TEST(test_errors_when_very_many_then_they_are_bounded),
        CONFIG_TEST(test_strings_when_in_place_of_numbers_then_read_as_triton_did),
        CONFIG_TEST(test_numbers_when_large_then_exact),
        CONFIG_TEST(test_value_when_wrong_type_then_got_and_expected),
        CONFIG_TEST(test_value_when_out_of_range_then_limits_are_named),
        CONFIG_TEST(test_syntax_when_wrong_then_line_and_path),
        CONFIG_TEST(test_file_when_absent_or_a_directory_then_says_so),
        CONFIG_TEST(test_models_when_required_key_is_missing_then_named),
        CONFIG_TEST(test_tables_when_lists_disagree_then_refused),
        CONFIG_TEST(test_row_dtype_when_one_word_or_one_a_table_then_read),
        CONFIG_TEST(test_defaults_when_row_or_short_then_read),
        CONFIG_TEST(test_models_when_names_are_bad_or_twice_then_refused),
        CONFIG_TEST(test_models_when_static_table_then_cache_type_is_static),
        CONFIG_TEST(test_volatile_db_when_block_has_no_type_then_disabled_with_warning),
        CONFIG_TEST(test_listeners_when_string_list_or_object_then_read),
        CONFIG_TEST(test_parse_when_any_allocation_fails_then_no_memory_and_no_leak),
        CONFIG_TEST(test_parse_when_bad_and_any_allocation_fails_then_an_error_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
