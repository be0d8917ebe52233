/* SPDX-License-Identifier: Apache-2.0
 *
 * Files with secrets, and who can read them.
 */
#include "config/secrets.h"

#include <sys/stat.h>

#include "tests/lib/tmpdir_fixture.h"
#include "tests/unit/config/config_test.h"

/* A configuration with a token and a key; `server` follows in its section, `more` behind it. */
static struct hps_config *config_of(const char *server, const char *more)
{
    char text[4096];
    (void)snprintf(text, sizeof(text),
                   "{\"supportlonglong\":true," MODELS ",\"server\":{\"state_dir\":\"/s\","
                   "\"admin_token_file\":\"%s/token\",\"tls\":{\"certificate\":\"%s/crt\","
                   "\"key\":\"%s/key\"}%s}%s}",
                   dir.path, dir.path, dir.path, server, more);
    return parse_good(text, NULL);
}

static struct hps_config *config_with(const char *more)
{
    return config_of("", more);
}

static int teardown_all(void **state)
{
    (void)config_teardown(state);
    return teardown(state);
}

static void make(const char *name, mode_t mode)
{
    hps_tmpdir_write(&dir, name, "secret", 6);
    assert_int_equal(chmod(hps_tmpdir_join(&dir, name), mode), 0);
}

static void test_note_when_others_can_read_a_secret_then_each_is_named(void **state)
{
    (void)state;
    struct hps_notes notes;
    struct hps_config *config = config_with("");
    make("token", 0640);
    make("key", 0400);
    make("crt", 0644); /* everybody may */
    hps_notes_init(&notes);
    assert_int_equal(hps_config_finish(config, NULL, &notes, NULL), HPS_OK);
    size_t n = notes.n;
    assert_int_equal(chmod(hps_tmpdir_join(&dir, "token"), 0644), 0);
    assert_int_equal(chmod(hps_tmpdir_join(&dir, "key"), 0404), 0);
    hps_notes_fini(&notes);
    assert_int_equal(hps_config_finish(config, NULL, &notes, NULL), HPS_OK);
    assert_int_equal(notes.n, n + 2);
    assert_int_equal(notes.items[n].kind, HPS_NOTE_WARNING);
    assert_non_null(strstr(notes.items[n].text, "server.tls.key: "));
    assert_non_null(strstr(notes.items[n].text, "(mode 0404); chmod o= "));
    assert_non_null(strstr(notes.items[n + 1].text, "server.admin_token_file: "));
    hps_notes_fini(&notes);
}

static void test_note_when_others_can_write_what_gives_rights_then_it_is_named(void **state)
{
    (void)state;
    char more[HPS_TMPDIR_PATH_MAX + 64];
    struct hps_notes notes;
    struct hps_config *config = config_with("");
    make("token", 0620);
    make("key", 0620); /* whoever writes to it cannot serve by it, but stop the service */
    make("crt", 0644);
    hps_notes_init(&notes);
    assert_int_equal(hps_config_finish(config, NULL, &notes, NULL), HPS_OK);
    assert_true(notes.n > 0);
    const struct hps_note *last = &notes.items[notes.n - 1];
    assert_int_equal(last->kind, HPS_NOTE_WARNING);
    assert_non_null(strstr(last->text, "server.admin_token_file: "));
    assert_non_null(strstr(last->text, "its group can write to it"));
    assert_non_null(strstr(last->text, "(mode 0620); chmod go-w "));
    size_t n = notes.n;
    hps_notes_fini(&notes);
    make("token", 0640);
    make("roles", 0602);
    (void)snprintf(more, sizeof(more), ",\"access\":\"%s/roles\"", dir.path);
    config = config_of(more, "");
    assert_int_equal(hps_config_finish(config, NULL, &notes, NULL), HPS_OK);
    assert_int_equal(notes.n, n);
    last = &notes.items[n - 1];
    assert_non_null(strstr(last->text, "server.access: "));
    assert_non_null(strstr(last->text, "roles: every user of this host can write to it"));
    hps_notes_fini(&notes);
}

static void test_of_when_the_configuration_has_a_password_then_it_is_a_secret_itself(void **state)
{
    (void)state;
    static const char *const with[] = {
        ",\"volatile_db\":{\"type\":\"redis_cluster\",\"password\":\"p\"}",
        ",\"update_source\":{\"type\":\"kafka_message_queue\",\"brokers\":\"h:1\","
        "\"properties\":[\"sasl.password=x\"]}"};
    struct hps_secret secrets[HPS_SECRETS_MAX];
    struct hps_config *config = config_with("");
    size_t plain = hps_secrets_of(config, secrets);
    for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
        config = config_with(with[i]);
        assert_int_equal(hps_secrets_of(config, secrets), plain + 1);
        assert_string_equal(secrets[plain].path, config->file);
    }
}

static void test_below_when_files_are_in_the_directory_then_their_options_are_listed(void **state)
{
    (void)state;
    char options[64], longer[HPS_TMPDIR_PATH_MAX + 8];
    struct hps_config *config = config_with("");
    assert_int_equal(hps_secrets_below(config, NULL, options, sizeof(options)), 0);
    assert_int_equal(hps_secrets_below(config, "", options, sizeof(options)), 0);
    assert_int_equal(hps_secrets_below(config, dir.path, options, sizeof(options)), 2);
    assert_string_equal(options, "server.tls.key, server.admin_token_file");
    (void)snprintf(longer, sizeof(longer), "%s/t", dir.path);
    assert_int_equal(hps_secrets_below(config, longer, options, sizeof(options)), 0);
    assert_string_equal(options, "");
}

static void test_property_when_its_name_says_so_then_it_is_a_secret(void **state)
{
    (void)state;
    assert_true(hps_secrets_is_property("sasl.password=x"));
    assert_true(hps_secrets_is_property("ssl.key.pem=x"));
    assert_true(hps_secrets_is_property("client.secret"));
    assert_true(hps_secrets_is_property("ssl.key.pasword=x"));
    assert_true(hps_secrets_is_property("client.id=a,sasl.password=b"));
    assert_true(hps_secrets_is_property("sasl.oauthbearer.assertion.private.key.passphrase=a"));
    assert_false(hps_secrets_is_property("client.id=password"));
}

/* Each is refused with a message that names the option, and without the word "hunter". */
static void test_message_when_a_secret_has_a_wrong_form_then_its_value_is_not_shown(void **state)
{
    (void)state;
    static const char *const all[][2] = {
        {"\"update_source\":{\"type\":\"kafka\",\"properties\":{\"sasl.password\":\"hunter\"}}",
         "update_source.properties: got a value that is not shown"},
        {"\"update_source\":{\"type\":\"kafka\",\"properties\":[[\"sasl.password=hunter\"]]}",
         "update_source.properties[0]: got a value that is not shown"},
        {"\"update_source\":{\"type\":\"kafka\",\"properties\":[\"sasl.password\" \"hunter\"]}",
         "update_source.properties[0]: ']' expected"},
        {"\"update_source\":{\"type\":\"kafka\",\"properties\":[\"sasl.password:hunter\"]}",
         "update_source.properties[0]: expected"},
        {"\"update_source\":{\"properties\":[\"sasl.password: hunter=\"]}",
         "update_source.properties[0]: expected"},
        {"\"update_source\":{\"type\":\"kafka\",\"brokers\":\"kafka://u:hunter@h:9\"}",
         "update_source.brokers: got '@'"},
        {"\"update_source\":[{\"sasl.password\":\"hunter\"}]", "update_source: got a list"},
        {"\"volatile_db\":{\"type\":\"redis\",\"password\":[\"hunter\"]}",
         "volatile_db.password: got a value that is not shown"},
        {"\"volatile_db\":{\"type\":\"redis\",\"password\":hunter}",
         "volatile_db.password: invalid token"},
        {"\"volatile_db\":{\"type\":\"redis\",\"pass\":hunter}", "volatile_db.pass: invalid token"},
        {"\"volatile_db\":{\"type\":\"redis\",\"user_name\":{\"a\":\"hunter\"}}",
         "volatile_db.user_name: got an object"},
        {"\"volatile_db\":{\"type\":\"redis\",\"address\":\"h:1,redis://u:hunter@h:7000\"}",
         "volatile_db.address: got '@'"},
        {"\"volatile_db\":{\"type\":\"redis\",\"address\":redis://hunter@h:7000}",
         "volatile_db.address: invalid token"},
        {"\"volatile_db\":{\"address\":\"a:b\" \":hunter@h:7\"}",
         "volatile_db.address: '}' expected"},
        {"\"volatile_db\":{\"type\":\"map\",\"address\":\":hunter@h:7000\"}",
         "volatile_db.address: got '@'"},
        {"\"server\":{\"admin_token\":\"hunter\"}", "server.admin_token: unknown key"},
        {"\"server\":{\"admin_token\":hunter}", "server.admin_token: invalid token"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char text[1024];
        struct hps_config *config = NULL;
        struct hps_error err = {0};
        struct hps_notes notes;
        const struct hps_config_flags flags = {.state_dir = "/var/lib/hpsd"};
        hps_notes_init(&notes);
        (void)snprintf(text, sizeof(text), "{\"supportlonglong\":true,\"models\":[],%s}",
                       all[i][0]);
        hps_status status = hps_config_parse(text, strlen(text), "ps.json", &config, &notes, &err);
        status = status == HPS_OK ? hps_config_finish(config, &flags, &notes, &err) : status;
        assert_int_equal(status, HPS_INVALID);
        if (strstr(err.text, "hunter") != NULL || strstr(err.text, all[i][1]) == NULL) {
            fail_msg("a secret is shown, or no option named: %s", err.text);
        }
        for (size_t k = 0; k < notes.n; k++) {
            assert_null(strstr(notes.items[k].text, "hunter"));
        }
        hps_notes_fini(&notes);
        hps_config_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_when_a_secret_has_a_wrong_form_then_its_value_is_not_shown),
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown_all)
        TEST(test_note_when_others_can_read_a_secret_then_each_is_named),
        TEST(test_note_when_others_can_write_what_gives_rights_then_it_is_named),
        TEST(test_of_when_the_configuration_has_a_password_then_it_is_a_secret_itself),
        TEST(test_below_when_files_are_in_the_directory_then_their_options_are_listed),
        TEST(test_property_when_its_name_says_so_then_it_is_a_secret),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
