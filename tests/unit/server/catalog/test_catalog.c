/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalog with real stores: loads, switches, rollback, removal of old versions, restarts,
 * updates, and recovery after a crash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <pthread.h>
#include <stdatomic.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "cache/version/usage.h"
#include "server/catalog/catalog.h"
#include "server/load/records.h"
#include "server/observe/metrics.h"
#include "server/update/partition/position.h"
#include "tests/lib/catalog_fixture.h"
#include "tests/lib/config_fixture.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 4, N_ROWS = 50 };

struct rig {
    struct hps_tmpdir dir;
    struct hps_config *config;
    struct hps_metrics *metrics;
    struct hps_models *models;
    struct hps_catalog *catalog;
    struct hps_load_env env;
    struct hps_store *host, *durable; /* of env.stores */
    bool read_only;                   /* of the next open */
    struct hps_error err;             /* of the last call that failed */
};

/* The value of a row contains its key and the number of its model directory. */
static float value_of(int directory, uint64_t key)
{
    return (float)directory * 1000.0f + (float)key;
}

static void write_table(struct rig *rig, const char *name, int directory, const char *table)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s.npy", name, table);
    fixture_write_rows(hps_tmpdir_join(&rig->dir, path), DIM, N_ROWS, value_of(directory, 0));
}

static void write_model(struct rig *rig, const char *name, int directory, const char *table)
{
    hps_tmpdir_mkdir(&rig->dir, name);
    write_table(rig, name, directory, table);
}

static void open_catalog(struct rig *rig)
{
    struct hps_error err = {0};
    const struct hps_rocksdb_options options = {.path = rig->dir.path,
                                                .n_threads = 2,
                                                .batch_keys_max = 1024,
                                                .read_only = rig->read_only,
                                                .disk_free_min_bytes = 1 << 20,
                                                .block_cache_bytes = 1 << 20};
    rig->env = (struct hps_load_env){.spill_dir = rig->dir.path,
                                     .memory_bytes = 4 << 20,
                                     .host_bytes_max = 64 << 20,
                                     .key_bytes = 8,
                                     .disk_free_min_bytes = 1 << 20};
    assert_int_equal(hps_rocksdb_open(&options, &rig->durable, &err), HPS_OK);
    assert_int_equal(hps_host_map_open(rig->env.host_bytes_max, &rig->host, &err), HPS_OK);
    hps_stores_add(&rig->env.stores, rig->host);
    hps_stores_add(&rig->env.stores, rig->durable);
    rig->metrics = hps_server_metrics_new();
    rig->models = hps_models_new();
    const struct hps_catalog_options catalog = {
        .models = rig->models, .config = rig->config, .metrics = rig->metrics, .env = rig->env};
    if (hps_catalog_open(&catalog, &rig->catalog, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

static void close_catalog(struct rig *rig)
{
    hps_catalog_close(rig->catalog);
    hps_models_free(rig->models);
    hps_metrics_free(rig->metrics);
    hps_stores_close(&rig->env.stores);
}

static void reopen(struct rig *rig)
{
    close_catalog(rig);
    open_catalog(rig);
}

/* `model`: the entry of "m" in models[] after its files; NULL: no entry. `server`: more options. */
static void configure_server(struct rig *rig, const char *model, const char *server)
{
    char text[4096];
    char entry[2048] = "";
    hps_config_free(rig->config);
    if (model != NULL) {
        snprintf(entry, sizeof(entry),
                 "{\"model\": \"m\", \"sparse_files\": [\"%s\"],"
                 " \"embedding_vecsize_per_table\": [%d], \"embedding_table_names\": [\"items\"],"
                 " \"default_value_for_each_table\": [0], \"deployed_device_list\": [0], %s}",
                 hps_tmpdir_join(&rig->dir, "one/items.npy"), DIM, model);
    }
    snprintf(text, sizeof(text),
             "{\"supportlonglong\": true, \"models\": [%s],"
             " \"persistent_db\": {\"type\": \"rocks_db\"},"
             " \"server\": {\"state_dir\": \"%s\", %s}}",
             entry, rig->dir.path, server);
    rig->config = config_of(text);
}

static void configure(struct rig *rig, const char *model)
{
    char server[1024];
    snprintf(server, sizeof(server), "\"model_roots\": [\"%s\"], \"keep_versions\": 2",
             rig->dir.path);
    configure_server(rig, model, server);
}

static int setup(void **state)
{
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    hps_log_level_set(HPS_LOG_ERROR);
    hps_tmpdir_open(&rig.dir);
    configure(&rig, NULL);
    write_model(&rig, "one", 1, "items");
    write_model(&rig, "two", 2, "items");
    write_model(&rig, "three", 3, "items");
    open_catalog(&rig);
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    close_catalog(rig);
    hps_config_free(rig->config);
    hps_tmpdir_close(&rig->dir);
    return 0;
}

static hps_status load(struct rig *rig, const char *dir, int64_t version, bool activate)
{
    struct hps_load_state state;
    const struct hps_load_request request = {.model = "m",
                                             .directory = hps_tmpdir_join(&rig->dir, dir),
                                             .version = version,
                                             .activate = activate};
    struct hps_load *one = NULL;
    hps_status status = hps_catalog_load(rig->catalog, &request, &one, &rig->err);
    if (status != HPS_OK) {
        return status;
    }
    fixture_load_end(one, &state);
    rig->err = state.error;
    return state.error.status;
}

static void load_ok(struct rig *rig, const char *dir, bool activate)
{
    if (load(rig, dir, 0, activate) != HPS_OK) {
        fail_msg("%s", rig->err.text);
    }
}

/* Activate a version. Returns the version that was active before. */
static int64_t activate(struct rig *rig, int64_t number)
{
    struct hps_switched switched;
    assert_int_equal(hps_catalog_activate(rig->catalog, "m", number, false, &switched, NULL),
                     HPS_OK);
    hps_version_diff_free(&switched.diff);
    return switched.previous;
}

static hps_status rollback(struct rig *rig)
{
    struct hps_switched switched;
    return hps_catalog_rollback(rig->catalog, "m", &switched, &rig->err);
}

static void load_two(struct rig *rig)
{
    load_ok(rig, "one", true);
    load_ok(rig, "two", true);
}

/* The directory of a version's rows; 0: not resident. */
static int served(struct rig *rig, int64_t number)
{
    struct hps_version *version;
    if (hps_models_pin(rig->models, "m", 1, number, &version, NULL) != HPS_OK) {
        return 0;
    }
    hps_key key = 7;
    uint32_t slot = 0;
    float row[DIM] = {0};
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
    const struct hps_call call = {0};
    for (uint32_t i = 0; i < version->n_tiers && batch.n > 0; i++) {
        struct hps_space *space = version->tiers[i];
        assert_int_equal(space->store->ops->get(space, &call, &version->tables[0], &batch), HPS_OK);
    }
    hps_version_unpin(version);
    return batch.n == 0 ? (int)(row[0] / 1000.0f) : -1;
}

static void wait_done(struct fixture_unload *wait)
{
    AWAIT(atomic_load(&wait->done));
    assert_int_equal(wait->error.status, HPS_OK);
}

/* Unload a version that is not in use. */
static hps_status unload(struct rig *rig, int64_t version)
{
    struct fixture_unload wait = fixture_unload_new();
    hps_status status = hps_catalog_unload(rig->catalog, "m", version, &wait.unload, &rig->err);
    if (status != HPS_OK) {
        assert_false(wait.done);
        return status;
    }
    AWAIT(atomic_load(&wait.done)); /* the reaper may end the unload */
    return wait.error.status;
}

static struct hps_version *pin(struct rig *rig, int64_t number)
{
    struct hps_version *version;
    assert_int_equal(hps_models_pin(rig->models, "m", 1, number, &version, NULL), HPS_OK);
    return version;
}

static void add_state(void *ctx, const struct hps_version_view *view)
{
    char *text = ctx;
    size_t size = strlen(text);
    snprintf(text + size, 128 - size, "%d=%s ", (int)view->version->number, view->state);
}

static void expect_states(struct rig *rig, const char *expected)
{
    char text[128] = "";
    hps_catalog_each(rig->catalog, add_state, text);
    assert_string_equal(text, expected);
}

/* Wait until the reaper has brought all versions to these states. */
static void await_states(struct rig *rig, const char *expected)
{
    char text[128];
    do {
        brief_pause();
        text[0] = '\0';
        hps_catalog_each(rig->catalog, add_state, text);
    } while (strcmp(text, expected) != 0);
}

static void test_load_when_first_then_active_and_later_only_on_request(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", false);
    assert_int_equal(served(rig, 0), 1);
    load_ok(rig, "two", false);
    assert_int_equal(served(rig, 0), 1);
    assert_int_equal(served(rig, 2), 2);
    assert_int_equal(activate(rig, 2), 1);
    assert_int_equal(served(rig, 0), 2);
}

static void test_rollback_when_twice_then_refused_also_after_a_restart(void **state)
{
    struct rig *rig = *state;
    struct hps_switched switched;
    assert_int_equal(rollback(rig), HPS_NOT_FOUND);
    load_ok(rig, "one", false);
    assert_int_equal(rollback(rig), HPS_PRECONDITION);
    load_ok(rig, "two", true);
    assert_int_equal(hps_catalog_rollback(rig->catalog, "m", &switched, &rig->err), HPS_OK);
    assert_int_equal(switched.version, 1);
    for (int i = 0; i < 2; i++) { /* version 2 is bad: no rollback to it */
        assert_int_equal(served(rig, 0), 1);
        assert_int_equal(rollback(rig), HPS_PRECONDITION);
        assert_non_null(strstr(rig->err.text, "activate"));
        reopen(rig);
    }
    activate(rig, 2);
    assert_int_equal(rollback(rig), HPS_OK);
    assert_int_equal(served(rig, 0), 1);
}

static void test_rollback_when_the_number_went_to_another_version_then_refused(void **state)
{
    struct rig *rig = *state;
    load_two(rig);
    assert_int_equal(rollback(rig), HPS_OK);
    assert_int_equal(unload(rig, 2), HPS_OK);
    load_ok(rig, "three", false); /* has number 2 now, was never active */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(served(rig, 2), 3);
        assert_int_equal(rollback(rig), HPS_PRECONDITION);
        reopen(rig);
    }
}

static void test_load_when_beyond_keep_versions_then_oldest_is_unloaded(void **state)
{
    struct rig *rig = *state;
    load_two(rig);
    load_ok(rig, "three", true);
    assert_int_equal(served(rig, 1), 0);
    assert_int_equal(served(rig, 2), 2);
    assert_int_equal(served(rig, 0), 3);
}

static void test_unload_when_active_then_refused_while_other_versions_exist(void **state)
{
    struct rig *rig = *state;
    load_two(rig);
    assert_int_equal(unload(rig, 2), HPS_PRECONDITION);
    assert_int_equal(unload(rig, 9), HPS_NOT_FOUND);
    assert_int_equal(unload(rig, 1), HPS_OK);
    assert_int_equal(unload(rig, 2), HPS_OK);
    assert_int_equal(served(rig, 0), 0);
    reopen(rig);
    assert_int_equal(served(rig, 0), 0);
}

static void test_unload_when_in_use_then_other_calls_do_not_wait(void **state)
{
    struct rig *rig = *state;
    struct fixture_unload wait = fixture_unload_new();
    load_two(rig);
    struct hps_version *used = pin(rig, 1);
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 1, &wait.unload, &rig->err), HPS_OK);
    assert_false(wait.done);
    assert_int_equal(served(rig, 1), 0);
    expect_states(rig, "1=unloading 2=active ");
    /* Unload the version again, load its number, and roll back to it. */
    assert_int_equal(unload(rig, 1), HPS_PRECONDITION);
    assert_non_null(strstr(rig->err.text, "version 1 of model \"m\" is unloading"));
    assert_int_equal(load(rig, "one", 1, false), HPS_EXISTS);
    assert_non_null(strstr(rig->err.text, "still unloading"));
    assert_int_equal(rollback(rig), HPS_PRECONDITION);
    /* Other versions can be loaded, activated and unloaded. */
    load_ok(rig, "three", false);
    activate(rig, 3);
    assert_int_equal(unload(rig, 2), HPS_OK);
    expect_states(rig, "1=unloading 3=active ");
    assert_false(wait.done);
    hps_version_unpin(used);
    wait_done(&wait);
    expect_states(rig, "3=active ");
}

static void test_unload_when_the_only_other_one_is_unloading_then_the_active_one_is_unloaded(
    void **state)
{
    struct rig *rig = *state;
    struct fixture_unload wait = fixture_unload_new();
    load_two(rig);
    struct hps_version *used = pin(rig, 1);
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 1, &wait.unload, &rig->err), HPS_OK);
    assert_int_equal(unload(rig, 2), HPS_OK);
    assert_int_equal(served(rig, 0), 0);
    expect_states(rig, "1=unloading ");
    /* The next load is the first of its model again. */
    load_ok(rig, "three", false);
    assert_int_equal(served(rig, 0), 3);
    hps_version_unpin(used);
    wait_done(&wait);
    expect_states(rig, "2=active ");
}

/* Count one lookup. Returns the number of lookups of the version. */
static uint64_t count_lookup(struct rig *rig, int64_t number)
{
    const struct hps_usage_lookup lookup = {.good = true, .ended_ms = 1, .us = 1};
    struct hps_usage_sums sums;
    struct hps_version *version = pin(rig, number);
    hps_usage_add(version->usage, &lookup);
    hps_usage_get(version->usage, &sums);
    hps_version_unpin(version);
    return sums.n_good;
}

static void test_unload_when_its_number_is_loaded_again_then_its_counts_continue(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    assert_int_equal(count_lookup(rig, 1), 1);
    assert_int_equal(count_lookup(rig, 1), 2);
    load_ok(rig, "two", true);
    assert_int_equal(count_lookup(rig, 2), 1); /* another version has its own count */
    assert_int_equal(unload(rig, 1), HPS_OK);
    assert_int_equal(unload(rig, 2), HPS_OK);
    load_ok(rig, "three", true);
    expect_states(rig, "1=active ");
    assert_int_equal(count_lookup(rig, 1), 3);
}

static void test_unload_model_when_a_version_is_in_use_then_only_its_rows_remain(void **state)
{
    struct rig *rig = *state;
    struct hps_versions_gone gone;
    load_two(rig);
    struct hps_version *used = pin(rig, 1);
    assert_int_equal(hps_catalog_unload_model(rig->catalog, "m", &gone, &rig->err), HPS_OK);
    assert_int_equal(gone.n, 2);
    assert_int_equal(gone.numbers[0], 1);
    assert_int_equal(gone.numbers[1], 2); /* the active version is removed last */
    assert_int_equal(served(rig, 0), 0);
    await_states(rig, "1=unloading ");
    assert_int_equal(hps_catalog_unload_model(rig->catalog, "m", &gone, &rig->err), HPS_NOT_FOUND);
    assert_int_equal(gone.n, 0);
    hps_version_unpin(used);
    await_states(rig, "");
    assert_int_equal(hps_catalog_unload_model(rig->catalog, "m", &gone, &rig->err), HPS_NOT_FOUND);
    assert_non_null(strstr(rig->err.text, "\"m\""));
    reopen(rig);
    expect_states(rig, ""); /* also after a restart */
}

/* Returns whether a load was necessary. The load must succeed. */
static bool load_configured(struct rig *rig)
{
    struct hps_load *load = NULL;
    struct hps_load_state state = {.done = false};
    if (hps_catalog_load_configured(rig->catalog, "m", &load, &rig->err) != HPS_OK) {
        fail_msg("%s", rig->err.text);
    }
    if (load != NULL) {
        fixture_load_end(load, &state);
        assert_int_equal(state.error.status, HPS_OK);
    }
    return load != NULL;
}

static void test_load_configured_when_a_version_has_the_files_then_it_is_activated(void **state)
{
    struct rig *rig = *state;
    struct hps_load *load = NULL;
    assert_int_equal(hps_catalog_load_configured(rig->catalog, "m", &load, &rig->err),
                     HPS_NOT_FOUND);
    assert_non_null(strstr(rig->err.text, "models[]"));
    close_catalog(rig);
    configure(rig, "\"version\": 5, \"label\": \"nightly\"");
    open_catalog(rig);
    assert_true(load_configured(rig));
    expect_states(rig, "5=active ");
    assert_int_equal(served(rig, 0), 1);
    assert_false(load_configured(rig));
    expect_states(rig, "5=active ");
    load_ok(rig, "two", true);
    assert_int_equal(served(rig, 0), 2);
    assert_false(load_configured(rig));
    expect_states(rig, "5=active 6=resident ");
    assert_int_equal(served(rig, 0), 1);
    write_table(rig, "one", 3, "items"); /* other files under the same name */
    assert_true(load_configured(rig));
    assert_int_equal(served(rig, 0), 3);
    struct hps_version *version = pin(rig, 0);
    assert_int_equal(version->number, 7); /* 5 is taken */
    assert_string_equal(version->label, "nightly");
    hps_version_unpin(version);
}

static void add_note(void *ctx, const char *note)
{
    char *text = ctx;
    size_t size = strlen(text);
    snprintf(text + size, 1024 - size, "%s\n", note);
}

/* Change the record of a version to the form of an earlier build. */
static void make_older(struct rig *rig, int64_t number, const char *label)
{
    struct hps_version *version = pin(rig, number);
    assert_non_null(version->configured);
    hps_free(version->configured);
    hps_free(version->label);
    version->configured = NULL;
    version->label = hps_strdup(label);
    assert_int_equal(hps_records_put_version(rig->durable, version, &rig->err), HPS_OK);
    hps_version_unpin(version);
}

static void test_open_when_records_are_of_an_earlier_build_then_served_and_differences_logged(
    void **state)
{
    struct rig *rig = *state;
    close_catalog(rig);
    configure(rig, "\"version\": 1");
    open_catalog(rig);
    assert_true(load_configured(rig));
    load_ok(rig, "two", true);
    make_older(rig, 1, "");
    make_older(rig, 2, "3");
    for (int i = 0; i < 3; i++) {
        char notes[1024] = "";
        reopen(rig);
        hps_catalog_notes(rig->catalog, add_note, notes);
        assert_non_null(strstr(notes, "the label \"3\" of version 2"));
        assert_int_equal(served(rig, 0), i == 0 ? 2 : 1);
        assert_int_equal(strstr(notes, "version 2 was loaded by hand") != NULL, i == 0);
        assert_int_equal(strstr(notes, "models[] changed (sparse_files) since version 1") != NULL,
                         i == 2);
        assert_int_equal(hps_catalog_drift(rig->catalog, NULL, NULL), i == 2);
        if (i == 0) {
            activate(rig, 1);
        } else {
            write_table(rig, "one", 3, "items");
        }
    }
}

static void test_load_when_the_version_to_unload_is_in_use_then_it_still_succeeds(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    struct hps_version *used = pin(rig, 1);
    load_ok(rig, "two", true);
    load_ok(rig, "three", true);
    expect_states(rig, "1=unloading 2=resident 3=active ");
    load_ok(rig, "one", true);
    await_states(rig, "1=unloading 3=resident 4=active ");
    hps_version_unpin(used);
}

static void test_stop_when_an_unload_waits_then_it_ends_and_all_is_released(void **state)
{
    struct rig *rig = *state;
    struct fixture_unload wait = fixture_unload_new();
    load_two(rig);
    struct hps_version *used = pin(rig, 1);
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 1, &wait.unload, &rig->err), HPS_OK);
    hps_catalog_stop(rig->catalog);
    assert_true(wait.done);
    assert_int_equal(wait.error.status, HPS_UNAVAILABLE);
    hps_version_unpin(used);
    reopen(rig);
    assert_int_equal(served(rig, 0), 2);
    expect_states(rig, "2=active ");
    assert_int_equal(rollback(rig), HPS_PRECONDITION);
}

static void test_open_when_restarted_then_serves_the_same(void **state)
{
    struct rig *rig = *state;
    load_two(rig);
    activate(rig, 1);
    reopen(rig);
    assert_int_equal(served(rig, 0), 1);
    assert_int_equal(served(rig, 2), 2);
    assert_true(hps_catalog_ready(rig->catalog, NULL, NULL));
    assert_true(hps_metric_value(hps_server_metric(rig->metrics, HPS_M_MODEL_ACTIVE_VERSION, "m",
                                                   NULL, NULL, NULL)) == 1);
    load_ok(rig, "three", false);
    assert_int_equal(served(rig, 3), 3);
}

static hps_status ignore_version(void *ctx, struct hps_version *version, struct hps_error *err)
{
    (void)ctx;
    (void)err;
    hps_version_free(version);
    return HPS_OK;
}

static hps_status take_switches(void *ctx, const struct hps_model_record *record)
{
    *(uint64_t *)ctx = record->n_switches;
    return HPS_OK;
}

static uint64_t switches(struct rig *rig)
{
    uint64_t n = 0;
    const struct hps_records_reader reader = {&n, ignore_version, take_switches};
    assert_int_equal(hps_records_read(rig->durable, &reader, NULL), HPS_OK);
    return n;
}

static void test_switches_when_counted_then_the_count_survives_restarts(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    assert_int_equal(switches(rig), 1);
    load_ok(rig, "two", true);
    load_ok(rig, "three", false);
    assert_int_equal(switches(rig), 2);
    reopen(rig);
    activate(rig, 3);
    assert_int_equal(switches(rig), 3);
    assert_int_equal(hps_records_delete_model(rig->durable, "m", NULL), HPS_OK);
    reopen(rig); /* the versions' records name a third one */
    assert_true(switches(rig) > 3);
}

/* A crash leaves this between the two records of a first load, or of the unload of the last
 * version. */
static void test_open_when_no_version_is_active_then_the_newest_one_is(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    assert_int_equal(hps_records_delete_model(rig->durable, "m", NULL), HPS_OK);
    reopen(rig);
    assert_int_equal(served(rig, 0), 1);
    assert_true(hps_catalog_ready(rig->catalog, NULL, NULL));
    load_ok(rig, "two", false);
    reopen(rig);
    assert_int_equal(served(rig, 0), 1);
}

/* The newest remaining version becomes active. It was the target of a rollback, so another
 * rollback must be refused. */
static void test_open_when_the_active_version_is_lost_then_no_rollback_to_the_one_before(
    void **state)
{
    struct rig *rig = *state;
    load_two(rig);
    assert_int_equal(hps_records_delete_version(rig->durable, "m", 2, NULL), HPS_OK);
    reopen(rig);
    assert_int_equal(served(rig, 0), 1);
    assert_int_equal(rollback(rig), HPS_PRECONDITION);
    load_ok(rig, "three", false); /* the number is free again */
    assert_int_equal(unload(rig, 2), HPS_OK);
    assert_int_equal(served(rig, 0), 1);
}

static hps_status no_space(void *ctx, const char *model, int64_t version)
{
    (void)model;
    (void)version;
    (*(int *)ctx)++;
    return HPS_OK;
}

static void expect_policies(struct rig *rig, int64_t number, enum hps_miss_policy miss,
                            enum hps_unknown_policy unknown)
{
    struct hps_version *version;
    assert_int_equal(hps_models_pin(rig->models, "m", 1, number, &version, NULL), HPS_OK);
    assert_int_equal(version->miss_policy, miss);
    assert_int_equal(version->unknown_policy, unknown);
    hps_version_unpin(version);
}

static void expect_threshold(struct rig *rig, int64_t number, double threshold,
                             enum hps_tier_kind cache_tier)
{
    struct hps_version *version;
    assert_int_equal(hps_models_pin(rig->models, "m", 1, number, &version, NULL), HPS_OK);
    double got = version->hit_rate_threshold;
    assert_true(got > threshold - 1e-9 && got < threshold + 1e-9);
    assert_int_equal(version->cache_tier, cache_tier);
    hps_version_unpin(version);
}

static void test_policies_when_configured_then_loaded_and_recovered_versions_have_them(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    expect_policies(rig, 1, HPS_MISS_THRESHOLD, HPS_UNKNOWN_DEFAULT_ROW);
    expect_threshold(rig, 1, 1.0, HPS_TIER_GPU); /* models[] does not name it: exact */
    close_catalog(rig);
    configure(rig, "\"miss_policy\": \"memory_only\", \"unknown_key_policy\": \"error\"");
    open_catalog(rig);
    expect_policies(rig, 1, HPS_MISS_MEMORY_ONLY, HPS_UNKNOWN_ERROR);
    expect_threshold(rig, 1, 0.9, HPS_TIER_GPU);
    load_ok(rig, "two", false);
    expect_policies(rig, 2, HPS_MISS_MEMORY_ONLY, HPS_UNKNOWN_ERROR);
    expect_threshold(rig, 2, 0.9, HPS_TIER_GPU);
}

/* Reload like the daemon: the same models, other values. */
static void reconfigure(struct rig *rig, const char *model, const char *server)
{
    struct hps_config *running = rig->config;
    struct hps_strings roots;
    rig->config = NULL;
    configure_server(rig, model, server);
    hps_config_exchange(running, rig->config);
    hps_config_free(rig->config);
    rig->config = running;
    assert_int_equal(hps_strings_copy(&running->server.model_roots, &roots), HPS_OK);
    hps_catalog_reconfigure(rig->catalog, running, &roots);
}

static void test_reconfigure_when_called_then_it_applies_to_versions_and_later_loads(void **state)
{
    struct rig *rig = *state;
    char one[256];
    char server[1024];
    close_catalog(rig);
    configure(rig, "\"miss_policy\": \"exact\"");
    open_catalog(rig);
    snprintf(one, sizeof(one), "%s", hps_tmpdir_join(&rig->dir, "one"));
    load_two(rig);
    assert_false(hps_catalog_env(rig->catalog)->nan_allowed);
    snprintf(server, sizeof(server),
             "\"model_roots\": [\"%s\"], \"keep_versions\": 1, \"nan_policy\": \"accept\","
             " \"async_without_gpu\": true",
             one);
    reconfigure(rig,
                "\"miss_policy\": \"wait\", \"unknown_key_policy\": \"zero\","
                " \"hit_rate_threshold\": 0.5",
                server);
    expect_policies(rig, 1, HPS_MISS_WAIT, HPS_UNKNOWN_ZERO);
    expect_policies(rig, 2, HPS_MISS_WAIT, HPS_UNKNOWN_ZERO);
    expect_threshold(rig, 2, 0.5, HPS_TIER_HOST);
    assert_true(hps_catalog_env(rig->catalog)->nan_allowed);
    assert_int_equal(load(rig, "three", 0, true), HPS_PERMISSION);
    assert_non_null(strstr(rig->err.text, one));
    load_ok(rig, "one", true); /* version 3; only one version is kept */
    assert_int_equal(served(rig, 1), 0);
    assert_int_equal(served(rig, 2), 0);
    assert_int_equal(served(rig, 0), 1);
    expect_policies(rig, 3, HPS_MISS_WAIT, HPS_UNKNOWN_ZERO);
    expect_threshold(rig, 3, 0.5, HPS_TIER_HOST);
}

static void test_open_when_a_space_has_no_record_then_removed(void **state)
{
    struct rig *rig = *state;
    struct hps_space *space;
    const struct hps_space_id id = {"ghost", 4, NULL, 0, 0};
    assert_int_equal(rig->durable->ops->space_open(rig->durable, &id, &space, NULL), HPS_OK);
    rig->durable->ops->space_close(space);
    reopen(rig);
    int n = 0;
    assert_int_equal(rig->durable->ops->durable->space_list(rig->durable, no_space, &n, NULL),
                     HPS_OK);
    assert_int_equal(n, 0);
}

static void test_open_when_such_a_space_cannot_be_removed_then_other_versions_are_served(
    void **state)
{
    struct rig *rig = *state;
    struct hps_space *space;
    const struct hps_space_id id = {"ghost", 4, NULL, 0, 0};
    load_ok(rig, "one", true);
    assert_int_equal(rig->durable->ops->space_open(rig->durable, &id, &space, NULL), HPS_OK);
    rig->durable->ops->space_close(space);
    close_catalog(rig);
    rig->read_only = true;
    open_catalog(rig);
    assert_int_equal(served(rig, 0), 1);
}

static void test_load_when_bad_then_nothing_changes(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    assert_int_equal(load(rig, "nowhere", 0, true), HPS_NOT_FOUND);
    assert_int_equal(load(rig, "two", 1, true), HPS_EXISTS);
    hps_tmpdir_mkdir(&rig->dir, "short");
    hps_tmpdir_write(&rig->dir, "short/items.npy", "\x93NUMPY", 6);
    assert_int_not_equal(load(rig, "short", 0, true), HPS_OK);
    assert_non_null(strstr(rig->err.text, "items.npy"));
    static const char *const outside[] = {"/usr", "/usr/absent", "/absent"};
    struct hps_load *one = NULL;
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        const struct hps_load_request bad = {.model = "m", .directory = outside[i]};
        assert_int_equal(hps_catalog_load(rig->catalog, &bad, &one, &rig->err), HPS_PERMISSION);
        assert_non_null(strstr(rig->err.text, "is not below any of server.model_roots"));
    }
    hps_tmpdir_mkdir(&rig->dir, "linked");
    assert_int_equal(symlink("/etc/passwd", hps_tmpdir_join(&rig->dir, "linked/items.npy")), 0);
    assert_int_equal(load(rig, "linked", 0, true), HPS_PERMISSION);
    assert_non_null(strstr(rig->err.text, "items.npy does not lead to a place below any of"));
    const struct hps_load_request name = {.model = "../m", .directory = rig->dir.path};
    assert_int_equal(hps_catalog_load(rig->catalog, &name, &one, &rig->err), HPS_INVALID);
    struct hps_load_request texts = {.model = "m", .directory = rig->dir.path, .label = "a\xff"};
    assert_int_equal(hps_catalog_load(rig->catalog, &texts, &one, &rig->err), HPS_INVALID);
    assert_non_null(strstr(rig->err.text, "label: byte 1"));
    texts = (struct hps_load_request){.model = "m", .directory = rig->dir.path, .lineage = "\xc3"};
    assert_int_equal(hps_catalog_load(rig->catalog, &texts, &one, &rig->err), HPS_INVALID);
    assert_non_null(strstr(rig->err.text, "lineage: byte 0"));
    assert_int_equal(served(rig, 0), 1);
    struct hps_catalog_totals totals;
    hps_catalog_totals_get(rig->catalog, &totals);
    assert_int_equal(totals.n_loading, 0);
    assert_int_equal(totals.host_rows, N_ROWS);
}

static void test_load_when_the_highest_number_is_taken_then_it_has_no_next(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(load(rig, "one", INT64_MAX, true), HPS_OK);
    assert_int_equal(load(rig, "two", 0, true), HPS_RANGE);
    assert_non_null(strstr(rig->err.text, "9223372036854775807"));
    assert_int_equal(load(rig, "two", 5, true), HPS_OK);
    reopen(rig);
    assert_int_equal(served(rig, INT64_MAX), 1);
    assert_int_equal(served(rig, 0), 2);
}

static void test_plan_when_requested_then_no_version_is_loaded(void **state)
{
    struct rig *rig = *state;
    struct hps_load_plan plan;
    struct hps_version *version;
    struct hps_switched effect;
    struct hps_strings notes;
    const struct hps_load_request request = {.model = "m",
                                             .directory = hps_tmpdir_join(&rig->dir, "one")};
    assert_int_equal(
        hps_catalog_load_plan(rig->catalog, &request, &plan, &version, &effect, &notes, &rig->err),
        HPS_OK);
    assert_int_equal(notes.n, 0); /* one table, no updates, a durable store */
    hps_strings_fini(&notes);
    assert_int_equal(plan.n_rows, N_ROWS);
    assert_int_equal(plan.row_bytes, N_ROWS * DIM * sizeof(float));
    assert_true(plan.disk_bytes_needed >= plan.row_bytes);
    assert_string_equal(version->tables[0].name, "items");
    hps_version_free(version);
    assert_int_equal(served(rig, 0), 0);
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Key 7 gets a row of `directory`, or is deleted if that is 0. The position is the same number. */
static hps_status update(struct hps_version *version, int directory)
{
    const hps_key key = 7;
    float row[DIM];
    char position[16];
    struct hps_error err;
    int size = snprintf(position, sizeof(position), "%d", directory);
    for (int i = 0; i < DIM; i++) {
        row[i] = value_of(directory, key);
    }
    const struct hps_record record = {"p", 1, position, (size_t)size};
    const struct hps_update_part part = {.row_bytes = sizeof(row),
                                         .n = 1,
                                         .keys = &key,
                                         .rows = directory == 0 ? NULL : (const uint8_t *)row};
    const struct hps_update_batch batch = {
        .parts = &part, .n_parts = 1, .positions = &record, .n_positions = 1};
    return hps_update_apply(version, &batch, &err);
}

/* Stored positions of the updates of a version. */
struct positions {
    bool begins; /* has the time since which its files lack updates */
    char p[16];  /* the position of `update`; "": none */
};

static hps_status take_position(void *ctx, const void *key, size_t key_size, const void *value,
                                size_t value_size)
{
    struct positions *positions = ctx;
    bool start = key_size == strlen(HPS_POSITION_START);
    positions->begins =
        positions->begins || (start && memcmp(key, HPS_POSITION_START, key_size) == 0);
    if (key_size == 1) {
        assert_memory_equal(key, "p", 1);
        assert_true(value_size < sizeof(positions->p));
        memcpy(positions->p, value, value_size);
    }
    return HPS_OK;
}

/* Version 1 has this many updates after its load. */
static void expect_updated(struct rig *rig, uint64_t n_updates, const char *position)
{
    struct hps_version *version = pin(rig, 1);
    struct positions found = {0};
    assert_int_equal(hps_update_positions(version, take_position, &found), HPS_OK);
    assert_true(found.begins); /* for a later process that reads updates */
    assert_string_equal(found.p, position);
    assert_int_equal(hps_update_sequence(version), 1 + n_updates);
    hps_version_unpin(version);
}

static void test_updates_when_restarted_then_rows_positions_and_sequence_are_unchanged(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    load_ok(rig, "two", false);
    expect_updated(rig, 0, "");
    struct hps_version *version = pin(rig, 1);
    assert_int_equal(update(version, 5), HPS_OK);
    assert_int_equal(update(version, 6), HPS_OK);
    assert_true(hps_metric_value(version->update_rows_put) == 2);
    hps_version_unpin(version);
    assert_int_equal(served(rig, 1), 6);
    reopen(rig);
    expect_updated(rig, 2, "6");
    assert_int_equal(served(rig, 1), 6);
    assert_int_equal(served(rig, 2), 2);
    version = pin(rig, 1);
    assert_int_equal(update(version, 0), HPS_OK);
    hps_version_unpin(version);
    assert_int_equal(served(rig, 1), -1);
}

static void test_updates_when_the_version_is_loaded_again_then_it_has_none(void **state)
{
    struct rig *rig = *state;
    load_ok(rig, "one", true);
    struct hps_version *version = pin(rig, 1);
    assert_int_equal(update(version, 5), HPS_OK);
    hps_version_unpin(version);
    assert_int_equal(unload(rig, 1), HPS_OK);
    load_ok(rig, "one", true);
    expect_updated(rig, 0, "");
    assert_int_equal(served(rig, 1), 1);
}

/* An updater. Its batch waits in the persistent store until `go`. */
struct slow_update {
    struct hps_store_ops ops;
    struct hps_store_durable_ops durable;
    struct hps_version *version;
    hps_status status;
    atomic_bool waits;
    atomic_bool go;
};

static struct slow_update slow;
static const struct hps_store_ops *quick_ops;

static hps_status apply_slowly(struct hps_space *space, const struct hps_call *call,
                               const struct hps_write *writes, uint32_t n_writes,
                               const struct hps_record *records, uint32_t n_records,
                               struct hps_error *err)
{
    atomic_store(&slow.waits, true);
    AWAIT(atomic_load(&slow.go));
    return quick_ops->durable->apply(space, call, writes, n_writes, records, n_records, err);
}

static void *updater_main(void *arg)
{
    (void)arg;
    slow.status = update(slow.version, 5);
    hps_version_unpin(slow.version);
    return NULL;
}

static void test_unload_when_a_batch_is_being_applied_then_waits_for_it(void **state)
{
    struct rig *rig = *state;
    struct fixture_unload wait = fixture_unload_new();
    pthread_t thread;
    load_two(rig);
    quick_ops = rig->durable->ops;
    slow = (struct slow_update){
        .ops = *quick_ops, .durable = *quick_ops->durable, .version = pin(rig, 1)};
    slow.durable.apply = apply_slowly;
    slow.ops.durable = &slow.durable;
    rig->durable->ops = &slow.ops;
    assert_int_equal(pthread_create(&thread, NULL, updater_main, NULL), 0);
    AWAIT(atomic_load(&slow.waits));
    assert_int_equal(hps_catalog_unload(rig->catalog, "m", 1, &wait.unload, &rig->err), HPS_OK);
    assert_false(wait.done);
    expect_states(rig, "1=unloading 2=active ");
    atomic_store(&slow.go, true);
    pthread_join(thread, NULL);
    assert_int_equal(slow.status, HPS_OK);
    wait_done(&wait);
    rig->durable->ops = quick_ops;
    expect_states(rig, "2=active ");
    assert_int_equal(served(rig, 2), 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_load_when_first_then_active_and_later_only_on_request),
        TEST(test_rollback_when_twice_then_refused_also_after_a_restart),
        TEST(test_rollback_when_the_number_went_to_another_version_then_refused),
        TEST(test_load_when_beyond_keep_versions_then_oldest_is_unloaded),
        TEST(test_unload_when_active_then_refused_while_other_versions_exist),
        TEST(test_unload_when_in_use_then_other_calls_do_not_wait),
        TEST(test_unload_when_the_only_other_one_is_unloading_then_the_active_one_is_unloaded),
        TEST(test_unload_when_its_number_is_loaded_again_then_its_counts_continue),
        TEST(test_unload_model_when_a_version_is_in_use_then_only_its_rows_remain),
        TEST(test_load_configured_when_a_version_has_the_files_then_it_is_activated),
        TEST(test_open_when_records_are_of_an_earlier_build_then_served_and_differences_logged),
        TEST(test_load_when_the_version_to_unload_is_in_use_then_it_still_succeeds),
        TEST(test_stop_when_an_unload_waits_then_it_ends_and_all_is_released),
        TEST(test_open_when_restarted_then_serves_the_same),
        TEST(test_policies_when_configured_then_loaded_and_recovered_versions_have_them),
        TEST(test_reconfigure_when_called_then_it_applies_to_versions_and_later_loads),
        TEST(test_open_when_a_space_has_no_record_then_removed),
        TEST(test_open_when_such_a_space_cannot_be_removed_then_other_versions_are_served),
        TEST(test_switches_when_counted_then_the_count_survives_restarts),
        TEST(test_open_when_no_version_is_active_then_the_newest_one_is),
        TEST(test_open_when_the_active_version_is_lost_then_no_rollback_to_the_one_before),
        TEST(test_load_when_bad_then_nothing_changes),
        TEST(test_load_when_the_highest_number_is_taken_then_it_has_no_next),
        TEST(test_plan_when_requested_then_no_version_is_loaded),
        TEST(test_updates_when_restarted_then_rows_positions_and_sequence_are_unchanged),
        TEST(test_updates_when_the_version_is_loaded_again_then_it_has_none),
        TEST(test_unload_when_a_batch_is_being_applied_then_waits_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
