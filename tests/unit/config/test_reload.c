/* SPDX-License-Identifier: Apache-2.0
 *
 * The differences between two configurations, and which of them a reload applies.
 */
#include "tests/unit/config/config_test.h"

#include "base/heap.h"
#include "config/options.h"
#include "tests/lib/fault_heap.h"

struct changes {
    struct hps_config_change items[64];
    size_t n;
};

static void collect(void *ctx, const struct hps_config_change *change)
{
    struct changes *changes = ctx;
    assert_true(changes->n < 64);
    changes->items[changes->n++] = *change;
}

/* Returns how many changes need a restart. */
static size_t diff(const char *before, const char *after, struct changes *changes)
{
    struct hps_config *configs[2] = {parse_good(before, NULL), parse_good(after, NULL)};
    finish_good(configs[0], NULL);
    finish_good(configs[1], NULL);
    size_t n_restart = 0;
    *changes = (struct changes){.n = 0};
    assert_int_equal(hps_config_diff(configs[0], configs[1], collect, changes), HPS_OK);
    for (size_t i = 0; i < changes->n; i++) {
        n_restart += changes->items[i].reloadable ? 0 : 1;
    }
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
            "\"volatile_db\":{\"type\":\"map\",\"allocation_rate\":7,\"num_partitions\":3},"
            "\"server\":{\"slow_request_ms\":6,\"worker_threads\":3,\"tls\":{\"certificate\":\"c\","
            "\"key\":\"b\"}}"),
        &changes);
    assert_int_equal(changes.n, 5); /* the other is ignored */
    assert_int_equal(n_restart, 3);
    assert_true(find(&changes, "server.slow_request_ms")->reloadable);
    assert_string_equal(find(&changes, "server.slow_request_ms")->before, "5");
    assert_string_equal(find(&changes, "server.slow_request_ms")->after, "6");
    assert_true(find(&changes, "server.tls.certificate")->reloadable);
    assert_false(find(&changes, "server.worker_threads")->reloadable);
    assert_string_equal(find(&changes, "volatile_db.type")->after, "\"hash_map\"");
}

static void test_diff_when_models_are_added_removed_or_changed_then_listed(void **state)
{
    (void)state;
    struct changes changes;
    size_t n_restart = diff(
        "{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS
        ",\"label\":\"a\"}],\"server\":{\"model_roots\":[\"/\"]}}",
        "{\"supportlonglong\":true,\"models\":[{" MODEL_KEYS ",\"label\":\"b\"},{\"model\":\"n\","
        "\"sparse_files\":[\"x\"],\"embedding_vecsize_per_table\":[1],\"deployed_device_list\":[],"
        "\"default_value_for_each_table\":[0]}],"
        "\"server\":{\"model_roots\":[\"/\"]}}",
        &changes);
    assert_int_equal(changes.n, 2);
    assert_int_equal(n_restart, 2);
    assert_true(find(&changes, "models[m].label")->kept);
    assert_string_equal(find(&changes, "models[m].label")->after, "\"b\"");
    assert_string_equal(find(&changes, "models[n]")->after, "added");
    (void)diff("{" MODELS ",\"server\":{\"model_roots\":[\"/\"]}}",
               "{\"models\":[],\"server\":{\"model_roots\":[\"/\"]}}", &changes);
    assert_int_equal(changes.n, 1);
    assert_string_equal(find(&changes, "models[m]")->before, "removed");
}

static void test_diff_when_a_file_is_added_or_removed_then_a_restart_is_needed(void **state)
{
    (void)state;
    struct changes changes;
    static const char with[] = FILE_WITH(
        "\"server\":{\"admin_token_file\":\"t\",\"tls\":{\"certificate\":\"a\",\"key\":\"b\"}}");
    static const char without[] = FILE_WITH("\"server\":{}");
    assert_int_equal(diff(with, without, &changes), 3);
    assert_int_equal(diff(without, with, &changes), 3);
    assert_int_equal(changes.n, 3);
    assert_int_equal(diff(with,
                          FILE_WITH("\"server\":{\"admin_token_file\":\"u\",\"tls\":{"
                                    "\"certificate\":\"c\",\"key\":\"d\",\"client_ca\":\"e\"}}"),
                          &changes),
                     1);
    assert_int_equal(changes.n, 4);
    assert_false(find(&changes, "server.tls.client_ca")->reloadable);
}

static char *print(const struct hps_config *config)
{
    struct hps_buf buf;
    hps_buf_init(&buf, 1 << 20);
    assert_int_equal(hps_config_print_effective(config, &buf), HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
    return (char *)buf.data; /* freed with hps_free */
}

static struct hps_option_set *set_of(struct hps_config *config, struct hps_config_model *model,
                                     enum hps_option_section section)
{
    switch (section) {
    case HPS_SECTION_model:
        return &model->set;
    case HPS_SECTION_server:
        return &config->server.set;
    case HPS_SECTION_update_source:
        return &config->update_source.set;
    default:
        assert_int_equal(section, HPS_SECTION_tls);
        return &config->server.tls.set;
    }
}

/* Set every option to one of two values, so that each applied option is visible. */
static struct hps_config *every_option(unsigned which)
{
    struct hps_config *config = parse_good(FILE_WITH("\"server\":{}"), NULL);
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        struct hps_config_model *model = &config->models[0];
        void *base = option->section == HPS_SECTION_model
                         ? (void *)model
                         : hps_section_base(config, option->section);
        if ((option->flags & HPS_OPTION_RELOAD) == 0) {
            continue;
        }
        const char *text = which == 0 ? "1" : "2";
        char number[32];
        if (option->type == HPS_OPTION_TYPE_ENUM) {
            text = option->values[which].word;
        } else if (option->type == HPS_OPTION_TYPE_BOOL) {
            text = which == 0 ? "false" : "true";
        } else if (option->type == HPS_OPTION_TYPE_F64) {
            text = which == 0 ? "0.25" : "0.5";
        } else if (option->type != HPS_OPTION_TYPE_STRING &&
                   option->type != HPS_OPTION_TYPE_STRINGS) {
            snprintf(number, sizeof(number), "%llu", (unsigned long long)option->min + which);
            text = number;
        }
        assert_int_equal(hps_option_set_text(option, base, text), HPS_OK);
        hps_option_mark(set_of(config, model, option->section), option);
    }
    config->server.worker_threads = which + 1;
    hps_option_mark(&config->server.set, &hps_options[HPS_OPTION_server_worker_threads]);
    finish_good(config, NULL);
    return config;
}

static void test_exchange_when_every_option_differs_then_only_reloadable_ones_are_applied(
    void **state)
{
    (void)state;
    struct hps_config *running = every_option(0);
    struct hps_config *next = every_option(1);
    const void *models = running->models;
    char *before = print(running);
    char *wanted = print(next);
    struct changes changes = {.n = 0};
    size_t n_reloadable = 0;
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        n_reloadable += (hps_options[i].flags & HPS_OPTION_RELOAD) != 0;
    }
    assert_int_equal(hps_config_diff(running, next, collect, &changes), HPS_OK);
    assert_int_equal(changes.n, n_reloadable + 1);

    hps_config_exchange(running, next);
    assert_ptr_equal(running->models, models);
    assert_int_equal(running->models[0].miss_policy, HPS_CONFIG_MISS_WAIT);
    assert_int_equal(running->server.worker_threads, 1);
    running->server.worker_threads = 2; /* all other options have the new values */
    char *taken = print(running);
    assert_string_equal(taken, wanted);
    running->server.worker_threads = 1;
    changes.n = 0;
    assert_int_equal(hps_config_diff(running, next, collect, &changes), HPS_OK);
    assert_int_equal(changes.n, n_reloadable + 1); /* `next` has the old values */

    hps_config_exchange(running, next);
    char *back = print(running);
    assert_string_equal(back, before);
    hps_free(before);
    hps_free(wanted);
    hps_free(taken);
    hps_free(back);
}

static void test_exchange_when_an_option_is_removed_then_its_default_applies(void **state)
{
    (void)state;
    struct hps_config *running = parse_good(FILE_WITH("\"server\":{\"keys_max\":5}"), NULL);
    struct hps_config *next = parse_good("{\"supportlonglong\":true,\"models\":[]}", NULL);
    finish_good(running, NULL);
    finish_good(next, NULL);
    hps_config_exchange(running, next);
    assert_int_equal(running->server.keys_max, 2097152);
    assert_false(hps_option_is_set(&running->server.set, HPS_OPTION_server_keys_max));
    assert_true(hps_option_is_set(&next->server.set, HPS_OPTION_server_keys_max));
    assert_int_equal(running->n_models, 1); /* a model that was removed from the file stays */
    assert_int_equal(running->server.model_roots.n, 1);
}

static void diff_only(void *ctx)
{
    struct hps_config **configs = ctx;
    struct changes changes = {.n = 0};
    hps_status status = hps_config_diff(configs[0], configs[1], collect, &changes);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_diff_when_any_allocation_fails_then_no_memory(void **state)
{
    (void)state;
    struct hps_config *configs[] = {parse_good(FILE_WITH("\"server\":{\"keys_max\":5}"), NULL),
                                    parse_good(FILE_WITH("\"server\":{\"keys_max\":6}"), NULL)};
    finish_good(configs[0], NULL);
    finish_good(configs[1], NULL);
    (void)hps_fault_heap_run(diff_only, configs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFIG_TEST(test_diff_when_equal_then_none),
        CONFIG_TEST(test_diff_when_options_differ_then_listed_with_what_they_need),
        CONFIG_TEST(test_diff_when_models_are_added_removed_or_changed_then_listed),
        CONFIG_TEST(test_diff_when_a_file_is_added_or_removed_then_a_restart_is_needed),
        CONFIG_TEST(test_diff_when_any_allocation_fails_then_no_memory),
        CONFIG_TEST(test_exchange_when_every_option_differs_then_only_reloadable_ones_are_applied),
        CONFIG_TEST(test_exchange_when_an_option_is_removed_then_its_default_applies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
