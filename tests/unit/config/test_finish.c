/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags, derived defaults, and the rules between options.
 */
#include "tests/unit/config/config_test.h"

#include "config/limits.h"

static void finish_bad(const char *text, const struct hps_config_flags *flags, const char *expected)
{
    struct hps_config *config = parse_good(text, NULL);
    struct hps_config_flags with_dir = {.state_dir = "/s"};
    struct hps_error err = {0};
    hps_status status = hps_config_finish(config, flags == NULL ? &with_dir : flags, NULL, &err);
    assert_int_equal(status, HPS_INVALID);
    if (strstr(err.text, expected) == NULL) {
        fail_msg("expected \"%s\" in \"%s\"", expected, err.text);
    }
}

static void test_finish_when_no_option_is_set_then_defaults_of_the_machine(void **state)
{
    (void)state;
    struct hps_config *config = parse_good("{\"supportlonglong\":true," MODELS "}", NULL);
    finish_good(config, NULL);
    uint64_t memory = hps_limits_memory_bytes();
    const struct hps_config_server *server = &config->server;
    assert_int_equal(config->volatile_db.memory_bytes, memory / 2);
    assert_int_equal(server->reply_bytes_in_flight, memory / 4);
    assert_true(server->loop_threads >= 1 && server->worker_threads >= 1 &&
                server->io_threads >= 8);
    assert_true(config->volatile_db.num_partitions >= 1 &&
                config->volatile_db.num_partitions <= 16);
    assert_string_equal(server->admin_listen.address, "unix:/var/lib/hpsd/admin.sock");
    assert_int_equal(server->model_roots.n, 2);
    assert_string_equal(server->model_roots.items[0], "d/m");
    assert_string_equal(server->model_roots.items[1], "/var/lib/hpsd/models");
    assert_string_equal(config->persistent_db.path, "");
}

#define REDIS(more) FILE_WITH("\"volatile_db\":{\"type\":\"redis_cluster\"" more "}")
#define ROCKS       ",\"persistent_db\":{\"type\":\"rocks_db\"}"

static void test_finish_when_redis_then_its_own_defaults(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(REDIS(""), NULL);
    finish_good(config, NULL);
    const struct hps_config_volatile_db *db = &config->volatile_db;
    assert_int_equal(db->num_partitions, 64);
    assert_int_equal(hps_config_host_bytes(config), 0);
    assert_int_equal(db->redis_command_timeout_ms, 20);
    /* unlike HPS, hpsd has no default file names */
    assert_string_equal(db->tls_ca_certificate, "");
    assert_string_equal(db->tls_client_certificate, "");
    assert_string_equal(db->tls_client_key, "");
    assert_string_equal(db->tls_server_name_identification, "");

    config = parse_good(REDIS(",\"local_cache_bytes\":\"8MiB\",\"memory_bytes\":\"1MiB\","
                              "\"tls_ca_certificate\":\"/x/ca\",\"tls_client_key\":\"\","
                              "\"tls_server_name_identification\":\"redis.localhost\""),
                        NULL);
    finish_good(config, NULL);
    db = &config->volatile_db;
    assert_int_equal(hps_config_host_bytes(config), 8 << 20);
    assert_string_equal(db->tls_ca_certificate, "/x/ca");
    assert_string_equal(db->tls_client_key, "");
    assert_string_equal(db->tls_server_name_identification, "redis.localhost");
}

static void test_finish_when_rows_are_in_memory_then_no_block_cache_unless_set(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(FILE_WITH("\"persistent_db\":{}"), NULL);
    finish_good(config, NULL);
    assert_int_equal(config->persistent_db.block_cache_bytes, 0);
    config = parse_good(FILE_WITH("\"persistent_db\":{\"block_cache_bytes\":4096}"), NULL);
    finish_good(config, NULL);
    assert_int_equal(config->persistent_db.block_cache_bytes, 4096);
    config = parse_good(FILE_WITH("\"volatile_db\":{\"type\":\"disabled\"}" ROCKS), NULL);
    finish_good(config, NULL);
    assert_int_equal(config->persistent_db.block_cache_bytes, 64 << 20);
}

static void test_finish_when_redis_and_options_do_not_fit_then_refused_by_name(void **state)
{
    (void)state;
    finish_bad(REDIS(",\"num_partitions\":5000"), NULL,
               "volatile_db.num_partitions: got 5000, expected at most 4096");
    finish_bad(REDIS(",\"overflow_resolution_target\":0"), NULL, "overflow_resolution_target");
    finish_bad(REDIS(",\"redis_ttl_s\":60"), NULL, "volatile_db.redis_ttl_s: got 60, expected 0:");
    finish_bad(FILE_WITH("\"volatile_db\":{\"type\":\"redis\",\"redis_ttl_s\":29}" ROCKS), NULL,
               "expected 0 or at least redis_lease_s, 30");
    finish_bad(REDIS(",\"address\":\" ,\""), NULL, "volatile_db.address: got \" ,\"");
    finish_bad(REDIS(",\"user_name\":\"bob\""), NULL,
               "volatile_db.password: got none, expected the password of user_name \"bob\"");
    finish_bad(REDIS(",\"enable_tls\":true,\"tls_client_key\":\"k.pem\""), NULL,
               "volatile_db.tls_client_certificate: got none");
}

static void test_finish_when_local_cache_without_redis_then_a_warning(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(
        FILE_WITH("\"volatile_db\":{\"type\":\"hash_map\",\"local_cache_bytes\":1}"), NULL);
    finish_good(config, &noted);
    assert_true(has_note(&noted, "volatile_db.local_cache_bytes: not applied"));
}

static void test_finish_when_no_state_dir_then_refused(void **state)
{
    (void)state;
    struct hps_config_flags none = {0};
    finish_bad("{" MODELS "}", &none, "server.state_dir: got none");
}

static void test_flags_when_given_then_they_win(void **state)
{
    (void)state;
    struct hps_config *config = parse_good(FILE_WITH("\"server\":{\"listen\":\"0.0.0.0:1\",\"state_"
                                                     "dir\":\"/file\",\"log_level\":\"error\"}"),
                                           NULL);
    const char *const listen[] = {"127.0.0.1:0", "unix:/run/x.sock"};
    struct hps_config_flags flags = {.listen = listen,
                                     .n_listen = 2,
                                     .http_listen = "127.0.0.1:0",
                                     .admin_listen = "unix:/run/a.sock",
                                     .state_dir = "/flag",
                                     .log_level = "debug",
                                     .log_format = "json"};
    struct hps_error err = {0};
    assert_int_equal(hps_config_finish(config, &flags, NULL, &err), HPS_OK);
    const struct hps_config_server *server = &config->server;
    assert_int_equal(server->listen.n, 2);
    assert_string_equal(server->listen.items[0].address, "127.0.0.1:0");
    assert_string_equal(server->http_listen.address, "127.0.0.1:0");
    assert_string_equal(server->admin_listen.address, "unix:/run/a.sock");
    assert_string_equal(server->state_dir, "/flag");
    assert_int_equal(server->log_level, HPS_CONFIG_LOG_LEVEL_DEBUG);
    assert_int_equal(server->log_format, HPS_CONFIG_LOG_FORMAT_JSON);
    assert_true(hps_option_is_set(&server->set, HPS_OPTION_server_log_format));
    struct hps_config_flags loud = {.state_dir = "/s", .log_level = "loud"};
    finish_bad("{" MODELS "}", &loud, "--log-level: got \"loud\", expected one of \"debug\"");
}

static void test_listener_when_open_to_the_network_then_needs_tls_or_plaintext(void **state)
{
    (void)state;
    static const char *const open[] = {"0.0.0.0:8601",  "[::]:8601",      "10.0.0.1:1",
                                       "example.org:1", "127.evil.org:1", "127.0.0.1.org:1",
                                       "[::2]:1"};
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
        struct hps_config_flags flags = {.listen = &open[i], .n_listen = 1, .state_dir = "/s"};
        finish_bad("{" MODELS "}", &flags, "which is open to the network, without TLS");
        struct hps_config *config = parse_good(FILE_WITH("\"server\":{\"plaintext\":true}"), NULL);
        assert_int_equal(hps_config_finish(config, &flags, NULL, NULL), HPS_OK);
        assert_false(hps_config_listener_tls(&config->server, &config->server.listen.items[0]));
    }
    finish_bad(FILE_WITH("\"server\":{\"http_listen\":\"0.0.0.0:1\"}"), NULL, "server.http_listen");
}

static void test_http_when_tls_is_set_then_required_beyond_loopback_unless_plaintext(void **state)
{
    (void)state;
#define WITH_TLS(listener)                                                               \
    FILE_WITH("\"server\":{\"http_listen\":" listener ",\"tls\":{\"certificate\":\"c\"," \
              "\"key\":\"k\"}}")
    static const struct {
        const char *file;
        bool tls;
    } cases[] = {
        {WITH_TLS("\"0.0.0.0:1\""), true},
        {WITH_TLS("\"[::]:1\""), true},
        {WITH_TLS("{\"address\":\"0.0.0.0:1\",\"plaintext\":true}"), false},
        {WITH_TLS("\"127.0.0.1:1\""), false},
        {WITH_TLS("\"unix:/h\""), false},
        {FILE_WITH("\"server\":{\"http_listen\":\"0.0.0.0:1\",\"plaintext\":true}"), false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_config *config = parse_good(cases[i].file, NULL);
        finish_good(config, NULL);
        assert_int_equal(hps_config_http_tls(&config->server), cases[i].tls);
    }
#undef WITH_TLS
}

static void test_listener_when_local_then_allowed_in_plaintext(void **state)
{
    (void)state;
    static const char *const local[] = {"127.0.0.1:0", "127.8.9.1:65535", "[::1]:1", "localhost:1",
                                        "unix:/x"};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++) {
        assert_true(hps_config_address_is_local(local[i]));
        struct hps_config *config = parse_good("{" MODELS "}", NULL);
        struct hps_config_flags flags = {.listen = &local[i], .n_listen = 1, .state_dir = "/s"};
        assert_int_equal(hps_config_finish(config, &flags, NULL, NULL), HPS_OK);
    }
}

static void test_listener_when_tls_then_tcp_uses_it_and_unix_does_not(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good(FILE_WITH("\"server\":{\"tls\":{\"certificate\":\"c\",\"key\":\"k\"},\"listen\":"
                             "[\"0.0.0.0:1\",\"unix:/a\","
                             "{\"address\":\"10.0.0.1:2\",\"plaintext\":true}]}"),
                   NULL);
    finish_good(config, NULL);
    const struct hps_config_server *server = &config->server;
    assert_true(hps_config_has_tls(server));
    assert_true(hps_config_listener_tls(server, &server->listen.items[0]));
    assert_false(hps_config_listener_tls(server, &server->listen.items[1]));
    assert_false(hps_config_listener_tls(server, &server->listen.items[2]));
}

static void test_kserve_listeners_when_given_then_by_the_rules_of_listen(void **state)
{
    (void)state;
    static const char *const none[] = {"{" MODELS "}",
                                       FILE_WITH("\"server\":{\"kserve_listen\":\"\"}"),
                                       FILE_WITH("\"server\":{\"kserve_listen\":[]}")};
    for (size_t i = 0; i < 3; i++) {
        struct hps_config_flags flags = {.state_dir = "/s"};
        struct hps_config *config = parse_good(none[i], NULL);
        assert_int_equal(hps_config_finish(config, &flags, NULL, NULL), HPS_OK);
        assert_int_equal(config->server.kserve_listen.n, 0);
    }
    const char *const given[] = {"127.0.0.1:0", "unix:/run/k.sock"};
    struct hps_config_flags flags = {
        .kserve_listen = given, .n_kserve_listen = 2, .state_dir = "/s"};
    struct hps_config *config =
        parse_good(FILE_WITH("\"server\":{\"kserve_listen\":\"0.0.0.0:8000\"}"), NULL);
    assert_int_equal(hps_config_finish(config, &flags, NULL, NULL), HPS_OK);
    assert_int_equal(config->server.kserve_listen.n, 2);
    assert_string_equal(config->server.kserve_listen.items[1].address, "unix:/run/k.sock");
    finish_bad(FILE_WITH("\"server\":{\"kserve_listen\":\"0.0.0.0:8000\"}"), NULL,
               "server.kserve_listen: got \"0.0.0.0:8000\", which is open to the network");
    finish_bad(FILE_WITH("\"server\":{\"kserve_listen\":\"here\"}"), NULL,
               "server.kserve_listen: got \"here\"");
}

static void test_listener_when_address_is_malformed_then_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"8601",    ":8601",       "host:", "host:65536", "host:1x",
                                      "::1:5",   "[::1]",       "a b:1", "unix:",      "",
                                      "host:-1", "host:123456", "[]:1",  "http://a:1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hps_config_flags flags = {.listen = &bad[i], .n_listen = 1, .state_dir = "/s"};
        finish_bad("{" MODELS "}", &flags, "server.listen: got \"");
    }
    char path[160] = "unix:/";
    memset(path + 6, 'x', 110);
    const char *long_path = path;
    struct hps_config_flags flags = {.listen = &long_path, .n_listen = 1, .state_dir = "/s"};
    finish_bad("{" MODELS "}", &flags, "expected unix:PATH of 1 to 107 bytes");
}

static void test_listeners_when_one_address_twice_then_refused(void **state)
{
    (void)state;
    finish_bad(FILE_WITH("\"server\":{\"listen\":\"127.0.0.1:9\",\"http_listen\":\"127.0.0.1:9\"}"),
               NULL, "for two listeners");
    finish_bad(FILE_WITH("\"server\":{\"listen\":\"127.0.0.1:9\",\"kserve_listen\":[\"[::1]:9\","
                         "\"127.0.0.1:9\"]}"),
               NULL, "for two listeners");
    finish_bad(FILE_WITH("\"server\":{\"kserve_listen\":\"127.0.0.1:8602\"}"), NULL,
               "for two listeners");
    finish_bad(FILE_WITH("\"server\":{\"listen\":[\"unix:/a\",\"unix:/a\"]}"), NULL,
               "for two listeners");
    struct hps_config *config = parse_good(
        FILE_WITH("\"server\":{\"listen\":\"127.0.0.1:0\",\"http_listen\":\"127.0.0.1:0\"}"), NULL);
    finish_good(config, NULL);
}

static void test_admin_when_tcp_then_needs_token_or_rules(void **state)
{
    (void)state;
    finish_bad(FILE_WITH("\"server\":{\"admin_listen\":\"127.0.0.1:9\"}"), NULL,
               "server.admin_listen");
    finish_bad(FILE_WITH("\"server\":{\"admin_listen\":\"10.0.0.1:9\",\"tls\":{\"certificate\":"
                         "\"c\",\"key\":\"k\",\"client_ca\":\"a\","
                         "\"require_client_certificate\":true}}"),
               NULL, "server.access"); /* a client certificate grants no admin rights */
    static const char *const good[] = {
        FILE_WITH("\"server\":{\"admin_listen\":\"127.0.0.1:9\",\"admin_token_file\":\"/t\"}"),
        FILE_WITH("\"server\":{\"admin_listen\":\"10.0.0.1:9\",\"tls\":{\"certificate\":\"c\","
                  "\"key\":\"k\"},\"access\":\"roles.json\"}"),
    };
    for (size_t i = 0; i < 2; i++) {
        struct hps_config *config = parse_good(good[i], NULL);
        finish_good(config, NULL);
    }
}

static void test_tls_when_halves_are_missing_then_refused(void **state)
{
    (void)state;
    finish_bad(FILE_WITH("\"server\":{\"tls\":{\"certificate\":\"c\"}}"), NULL,
               "got only \"certificate\"");
    finish_bad(FILE_WITH("\"server\":{\"tls\":{\"key\":\"c\"}}"), NULL, "got only \"key\"");
    finish_bad(FILE_WITH("\"server\":{\"tls\":{\"client_ca\":\"c\"}}"), NULL,
               "got no \"certificate\"");
    finish_bad(FILE_WITH("\"server\":{\"tls\":{\"certificate\":\"c\",\"key\":\"k\","
                         "\"require_client_certificate\":true}}"),
               NULL, "server.tls.client_ca");
}

static void test_tiers_when_all_are_disabled_then_refused(void **state)
{
    (void)state;
    finish_bad(FILE_WITH("\"volatile_db\":{\"type\":\"none\"}"), NULL,
               "expected a store for the rows");
    struct hps_config *config = parse_good(
        FILE_WITH("\"volatile_db\":{\"type\":\"none\"},\"persistent_db\":{\"type\":\"rocks_db\"}"),
        NULL);
    finish_good(config, NULL);
    assert_string_equal(config->persistent_db.path, "/var/lib/hpsd");
}

static void test_notes_when_hps_settings_have_no_effect_then_each_is_reported_once(void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good("{" MODELS ",\"volatile_db\":{\"type\":\"multi_process_hash_map\","
                   "\"overflow_policy\":\"evict_oldest\",\"initial_cache_rate\":0.5,"
                   "\"memory_bytes\":\"1000TiB\"},\"persistent_db\":{\"type\":"
                   "\"rocks_db\"}}",
                   &noted);
    assert_int_equal(noted.n, 0);
    finish_good(config, &noted);
    static const char *const expected[] = {
        "supportlonglong: not given",
        "multi_process_hash_map is the host map",
        "volatile_db.overflow_policy: not applied; the host map has one policy",
        "initial_cache_rate",
        "persistent_db.path: not given; the database is in /var/lib/hpsd/hpsd",
        "volatile_db.memory_bytes: got 1099511627776000, more than",
    };
    enum { N = sizeof(expected) / sizeof(expected[0]) };
    for (size_t i = 0; i < N; i++) {
        if (!has_note(&noted, expected[i])) {
            fail_msg("no note \"%s\"", expected[i]);
        }
    }
    assert_int_equal(noted.n, N);
}

static void test_notes_when_settings_of_models_have_no_effect_then_each_is_reported_once(
    void **state)
{
    (void)state;
    struct hps_config *config =
        parse_good("{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS
                   ",\"init_ec\":false,\"use_static_table\":true},{\"model\":\"n\","
                   "\"sparse_files\":[\"x\"],\"embedding_vecsize_per_table\":[1],"
                   "\"deployed_device_list\":[0,1],\"default_value_for_each_table\":[0],"
                   "\"init_ec\":false,\"embedding_cache_type\":\"uvm\"}]}",
                   &noted);
    finish_good(config, &noted);
    assert_int_equal(noted.n, 2);
    assert_true(has_note(&noted, "init_ec: hpsd warms up the host map"));
    assert_true(has_note(&noted, "embedding_cache_type: every type uses the stores"));
}

static void test_finish_when_only_checked_then_no_state_dir_is_needed_and_more_is_noted(
    void **state)
{
    (void)state;
    const struct hps_config_flags check = {.check = true};
    struct hps_config *config = parse_good(
        FILE_WITH("\"volatile_db\":{\"type\":\"redis_cluster\",\"update_filters\":[\".+\"]},"
                  "\"persistent_db\":{\"type\":\"rocks_db\",\"path\":\"/p\"},"
                  "\"update_source\":{\"type\":\"kafka\"}"),
        &noted);
    assert_int_equal(hps_config_finish(config, &check, &noted, NULL), HPS_OK);
    assert_string_equal(config->server.state_dir, "");
    assert_string_equal(config->server.admin_listen.address, "");
    assert_int_equal(config->server.model_roots.n, 1);
    static const struct {
        enum hps_note_kind kind;
        const char *text;
    } expected[] = {
        {HPS_NOTE_MISSING, "ps.json: server.state_dir: not given; a start needs a state"},
        {HPS_NOTE_MISSING, "ps.json: server.kserve_listen: not given"},
        {HPS_NOTE_DIFFERENT, "ps.json: volatile_db.type: hpsd has its own keys in Redis"},
        {HPS_NOTE_DIFFERENT, "ps.json: persistent_db.path: hpsd has its own database"},
        {HPS_NOTE_DIFFERENT, "ps.json: update_filters: \"^hps_.+$\", the default, selects"},
    };
    enum { N = sizeof(expected) / sizeof(expected[0]) };
    assert_int_equal(noted.n, N);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(noted.items[i].kind, expected[i].kind);
        assert_ptr_equal(strstr(noted.items[i].text, expected[i].text), noted.items[i].text);
    }
}

static void test_finish_when_a_file_of_hpsd_is_checked_then_little_is_noted(void **state)
{
    (void)state;
    const struct hps_config_flags check = {.check = true};
    struct hps_config *config =
        parse_good("{\"supportlonglong\":true," MODELS ",\"server\":{\"state_dir\":\"/s\"},"
                   "\"volatile_db\":{\"type\":\"hash_map\",\"memory_bytes\":\"1MiB\"}}",
                   &noted);
    assert_int_equal(hps_config_finish(config, &check, &noted, NULL), HPS_OK);
    assert_int_equal(noted.n, 1);
    assert_true(has_note(&noted, "persistent_db: disabled; a restart reads the model files"));
}

static void test_roots_when_tables_share_directories_then_their_parents_once(void **state)
{
    (void)state;
    const char *const args[] = {"a=x.npy", "b=/m/1/b/", "c=/m/1//c", "d=/d",          "e=/m/2/e",
                                "f=/n/f",  "g=../../g", "h=../h",    "i=/usr/../n/i", "j=/./n/j"};
    const char *const expected[] = {
        ".", "/m", "/", "/n", "../..", "..", "/usr/../n", "/./n", "/var/lib/hpsd/models"};
    struct hps_config *config = NULL;
    assert_int_equal(hps_config_for_tables(args, 10, &config, NULL), HPS_OK);
    finish_good(keep_config(config), NULL);
    const struct hps_strings *roots = &config->server.model_roots;
    assert_int_equal(roots->n, 9);
    for (size_t i = 0; i < 9; i++) {
        assert_string_equal(roots->items[i], expected[i]);
    }
}

#define FILTERS(of) ",\"volatile_db\":{\"type\":\"map\",\"update_filters\":[\"" of "\"]}"

static void test_updates_when_contradictory_then_refused_by_name(void **state)
{
    (void)state;
    finish_bad(FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"properties\":[\"a=b\",\"=c\"]}"),
               NULL, "update_source.properties[1]: expected \"NAME=VALUE\"");
    finish_bad(FILE_WITH("\"volatile_db\":{\"type\":\"map\",\"update_filters\":[\"a\",\"*\"]}"),
               NULL, "volatile_db.update_filters: update filter \"*\" is not a regular expression");
    finish_bad(FILE_WITH("\"persistent_db\":{\"type\":\"rocks_db\",\"update_filters\":[\"(\"]}"),
               NULL, "persistent_db.update_filters: update filter \"(\" is not");
    finish_bad(FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"dead_letter_topic\":\"a b\"}"),
               NULL, "update_source.dead_letter_topic: got \"a b\"");
    finish_bad(FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"dead_letter_topic\":\"..\"}"),
               NULL, "update_source.dead_letter_topic: got \"..\"");
    static const struct {
        const char *topic, *more; /* filters */
        bool refused;
    } letters[] = {
        {"hps_et.any.t", "", true},
        {"hps_et.any", "", true}, /* a topic of a model that may be loaded later */
        {"hps_et.dead", FILTERS("m"), false},
        {"hps_et.dead", FILTERS("m") ROCKS, true}, /* RocksDB has the default filter */
        {"hps_et.dead", FILTERS("dea."), true},
        {"hps_et.a.b.c", "", false}, /* not a topic of updates, like the next one */
        {"letters", "", false},
    };
    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++) {
        char text[640];
        snprintf(text, sizeof(text),
                 FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"dead_letter_topic\":\"%s\"}%s"),
                 letters[i].topic, letters[i].more);
        if (letters[i].refused) {
            finish_bad(text, NULL, "from which hpsd reads updates");
        } else {
            finish_good(parse_good(text, NULL), NULL);
        }
    }
    static const char *const brokers[] = {"",          " ,",         "h:port", "h:9,k:", "h:65536",
                                          "h:9092 x:", "http://h:1", "::1",    "h:0"};
    for (size_t i = 0; i < sizeof(brokers) / sizeof(brokers[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"brokers\":\"%s\"}"),
                 brokers[i]);
        finish_bad(text, NULL, "update_source.brokers: got");
    }
    finish_bad(FILE_WITH_MODEL("\"row_versions\":true"), NULL,
               "models[0].row_versions: got true, but the versions are kept in persistent_db");
    finish_bad(FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"start\":\"time\"}"), NULL,
               "update_source.start_time_unix_ms: got 0");
    struct hps_config *config =
        parse_good(FILE_WITH("\"update_source\":{\"type\":\"kafka\",\"brokers\":"
                             "\"h,k:1;[::1]:9092, [::1],SASL_SSL://l:3,SSL://m\"}"),
                   NULL);
    finish_good(config, NULL);
    assert_memory_equal(config->update_source.group, "hpsd", 4); /* and the host name */
}

static void test_finish_when_several_checks_fail_then_each_is_reported(void **state)
{
    static const char *const expected[] = {
        "ps.json: server.state_dir: got none", "ps.json: server.tls: got only \"key\"",
        "ps.json: volatile_db.type and persistent_db.type: got \"disabled\"",
        "ps.json: update_source.brokers: got none", "ps.json: models[0].row_versions: got true"};
    enum { N = sizeof(expected) / sizeof(expected[0]) };
    struct hps_error err = {0};
    (void)state;
    struct hps_config *config =
        parse_good("{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS ",\"row_versions\":true}],"
                   "\"volatile_db\":{\"type\":\"disabled\"},\"server\":{\"tls\":{\"key\":\"k\"}},"
                   "\"update_source\":{\"type\":\"kafka_message_queue\",\"brokers\":\"\"}}",
                   &noted);
    size_t n_before = noted.n;
    assert_int_equal(hps_config_finish(config, NULL, &noted, &err), HPS_INVALID);
    assert_int_equal(noted.n_errors, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(has_note(&noted, expected[i]));
    }
    assert_string_equal(noted.items[n_before].text, err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFIG_TEST(test_updates_when_contradictory_then_refused_by_name),
        CONFIG_TEST(test_finish_when_no_option_is_set_then_defaults_of_the_machine),
        CONFIG_TEST(test_finish_when_redis_then_its_own_defaults),
        CONFIG_TEST(test_finish_when_rows_are_in_memory_then_no_block_cache_unless_set),
        CONFIG_TEST(test_finish_when_redis_and_options_do_not_fit_then_refused_by_name),
        CONFIG_TEST(test_finish_when_local_cache_without_redis_then_a_warning),
        CONFIG_TEST(test_finish_when_no_state_dir_then_refused),
        CONFIG_TEST(test_finish_when_several_checks_fail_then_each_is_reported),
        CONFIG_TEST(test_flags_when_given_then_they_win),
        CONFIG_TEST(test_listener_when_open_to_the_network_then_needs_tls_or_plaintext),
        CONFIG_TEST(test_http_when_tls_is_set_then_required_beyond_loopback_unless_plaintext),
        CONFIG_TEST(test_listener_when_local_then_allowed_in_plaintext),
        CONFIG_TEST(test_listener_when_tls_then_tcp_uses_it_and_unix_does_not),
        CONFIG_TEST(test_kserve_listeners_when_given_then_by_the_rules_of_listen),
        CONFIG_TEST(test_listener_when_address_is_malformed_then_refused),
        CONFIG_TEST(test_listeners_when_one_address_twice_then_refused),
        CONFIG_TEST(test_admin_when_tcp_then_needs_token_or_rules),
        CONFIG_TEST(test_tls_when_halves_are_missing_then_refused),
        CONFIG_TEST(test_tiers_when_all_are_disabled_then_refused),
        CONFIG_TEST(test_notes_when_hps_settings_have_no_effect_then_each_is_reported_once),
        CONFIG_TEST(test_notes_when_settings_of_models_have_no_effect_then_each_is_reported_once),
        CONFIG_TEST(test_finish_when_only_checked_then_no_state_dir_is_needed_and_more_is_noted),
        CONFIG_TEST(test_finish_when_a_file_of_hpsd_is_checked_then_little_is_noted),
        CONFIG_TEST(test_roots_when_tables_share_directories_then_their_parents_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
