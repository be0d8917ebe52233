/* SPDX-License-Identifier: Apache-2.0
 *
 * Two versions from their files over a restart to their unload, with each allocation and each
 * call of the persistent store failing in turn. Served versions are complete, failures are
 * reported, and everything is released.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backends/host/map.h"
#include "base/container.h"
#include "base/log.h"
#include "server/catalog/catalog.h"
#include "server/observe/metrics.h"
#include "tests/lib/config_fixture.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/pause.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 4, N_ROWS = 40, N_TABLES = 2 };

struct scenario {
    struct hps_tmpdir dir;
    struct hps_config *config;
    struct hps_load_env env;
    struct hps_metrics *metrics;
    struct hps_models *models;
    struct hps_catalog *catalog;
    struct hps_unload unload;
    atomic_bool unloaded;
    int64_t active; /* version before the restart */
    enum hps_fake_op fail_op;
    uint32_t fail_skip; /* calls of it that succeed before one fails */
    unsigned n_loaded;
    unsigned n_failed;
};

static void write_table(struct scenario *s, const char *name, enum hps_row_form form, bool down,
                        float first)
{
    const struct hps_row_writer_options options = {form, DIM, HPS_DTYPE_FP32};
    struct hps_row_writer *writer;
    assert_int_equal(hps_row_writer_open(hps_tmpdir_join(&s->dir, name), &options, &writer, NULL),
                     HPS_OK);
    for (hps_key i = 0; i < N_ROWS; i++) {
        hps_key key = down ? N_ROWS - 1 - i : i;
        float row[DIM] = {first + (float)key, first};
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

/* Returns whether a version, or the active one, is served. Then it must have all rows. */
static bool whole(struct scenario *s, int64_t number, float first)
{
    struct hps_version *version;
    struct hps_error err;
    if (hps_models_pin(s->models, "m", 1, number, &version, &err) != HPS_OK) {
        return false;
    }
    assert_int_equal(version->n_tables, N_TABLES);
    for (uint32_t t = 0; t < version->n_tables; t++) {
        for (hps_key key = 0; key < N_ROWS; key++) {
            hps_key asked = key;
            uint32_t slot = 0;
            float row[DIM] = {0};
            struct hps_batch batch = {
                .keys = &asked, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
            const struct hps_call call = {0};
            for (uint32_t i = 0; i < version->n_tiers && batch.n > 0; i++) {
                struct hps_space *space = version->tiers[i];
                assert_int_equal(space->store->ops->get(space, &call, &version->tables[t], &batch),
                                 HPS_OK);
            }
            assert_int_equal(batch.n, 0);
            assert_true(row[0] == first + (float)key);
        }
    }
    hps_version_unpin(version);
    return true;
}

static bool load(struct scenario *s, const char *directory, int64_t version, bool activate)
{
    const struct hps_load_request request = {.model = "m",
                                             .directory = hps_tmpdir_join(&s->dir, directory),
                                             .version = version,
                                             .activate = activate};
    struct hps_load_state state;
    struct hps_error err = {0};
    struct hps_load *one = NULL;
    if (hps_catalog_load(s->catalog, &request, &one, &err) != HPS_OK) {
        assert_true(err.text[0] != '\0');
        s->n_failed++;
        return false;
    }
    do {
        brief_pause();
        hps_load_state_get(one, &state);
    } while (!state.done);
    hps_load_unref(one);
    if (state.error.status != HPS_OK) {
        assert_true(state.error.text[0] != '\0');
        s->n_failed++;
        return false;
    }
    s->n_loaded++;
    return true;
}

static bool open_catalog(struct scenario *s)
{
    struct hps_error err = {0};
    s->catalog = NULL;
    s->metrics = hps_server_metrics_new();
    s->models = hps_models_new();
    const struct hps_catalog_options options = {
        .models = s->models, .config = s->config, .metrics = s->metrics, .env = s->env};
    if (s->metrics == NULL || s->models == NULL) {
        return false;
    }
    if (hps_catalog_open(&options, &s->catalog, &err) != HPS_OK) {
        assert_true(err.text[0] != '\0');
        return false;
    }
    return true;
}

static void close_catalog(struct scenario *s)
{
    hps_catalog_close(s->catalog);
    hps_models_free(s->models);
    hps_metrics_free(s->metrics);
}

static void on_unloaded(struct hps_unload *unload, const struct hps_error *error)
{
    struct scenario *s = HPS_CONTAINER_OF(unload, struct scenario, unload);
    (void)error;
    atomic_store(&s->unloaded, true);
}

/* The number of the active version, 0: none. */
static int64_t active(struct scenario *s)
{
    struct hps_version *version;
    struct hps_error err;
    if (hps_models_pin(s->models, "m", 1, 0, &version, &err) != HPS_OK) {
        return 0;
    }
    int64_t number = version->number;
    hps_version_unpin(version);
    return number;
}

static void unload_one(struct scenario *s)
{
    struct hps_error err = {0};
    s->unload.done = on_unloaded;
    atomic_store(&s->unloaded, false);
    if (hps_catalog_unload(s->catalog, "m", 1, &s->unload, &err) != HPS_OK) {
        assert_true(err.text[0] != '\0');
        return;
    }
    while (!atomic_load(&s->unloaded)) {
        brief_pause();
    }
}

static void serve_two(struct scenario *s)
{
    struct hps_switched switched;
    struct hps_error err = {0};
    bool one = load(s, "one", 1, true);
    bool two = load(s, "two", 2, false);
    assert_true(whole(s, 1, 1000) || !one);
    assert_true(whole(s, 2, 2000) || !two);
    if (one && two && hps_catalog_activate(s->catalog, "m", 2, false, &switched, &err) == HPS_OK) {
        assert_int_equal(active(s), 2);
    }
    s->active = active(s);
}

/* A restart serves the same version as before, whatever failed. */
static void serve_again(struct scenario *s)
{
    assert_int_equal(active(s), s->active);
    assert_true(s->active == 0 || whole(s, 0, (float)s->active * 1000));
    unload_one(s);
}

static void run(void *ctx)
{
    struct scenario *s = ctx;
    const struct hps_fake_options disk = {
        .name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    struct hps_error err;
    s->active = 0;
    s->env = (struct hps_load_env){.spill_dir = s->dir.path,
                                   .memory_bytes = 2 << 20,
                                   .host_bytes_max = 8 << 20,
                                   .key_bytes = 8};
    struct hps_store *durable = hps_fake_store_new(&disk);
    struct hps_store *host;
    if (durable == NULL) {
        return;
    }
    hps_stores_add(&s->env.stores, durable);
    hps_fake_fail(durable, s->fail_op, HPS_IO, s->fail_skip, 1, 0);
    if (hps_host_map_open(s->env.host_bytes_max, &host, &err) == HPS_OK) {
        hps_stores_add(&s->env.stores, host);
        for (int i = 0; i < 2; i++) {
            if (open_catalog(s)) {
                (i == 0 ? serve_two : serve_again)(s);
            }
            close_catalog(s);
        }
    }
    hps_stores_close(&s->env.stores);
}

static int setup(void **state)
{
    static struct scenario s;
    memset(&s, 0, sizeof(s));
    hps_log_level_set(HPS_LOG_ERROR);
    hps_tmpdir_open(&s.dir);
    s.config = config_of_store(s.dir.path);
    hps_tmpdir_mkdir(&s.dir, "one");
    hps_tmpdir_mkdir(&s.dir, "two");
    write_table(&s, "one/a.npy", HPS_ROW_FORM_NPY, false, 1000);
    write_table(&s, "one/b.rows.npy", HPS_ROW_FORM_NPY_PAIR, true, 1000);
    write_table(&s, "two/a.npy", HPS_ROW_FORM_NPY, false, 2000);
    write_table(&s, "two/b.rows.npy", HPS_ROW_FORM_NPY_PAIR, true, 2000);
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    struct scenario *s = *state;
    hps_config_free(s->config);
    hps_tmpdir_close(&s->dir);
    hps_log_level_set(HPS_LOG_INFO);
    return 0;
}

static void test_catalog_when_each_allocation_fails_then_complete_or_refused(void **state)
{
    struct scenario *s = *state;
    s->fail_skip = UINT32_MAX;
    size_t n = hps_fault_heap_run(run, s);
    assert_true(n > 100);
    assert_true(s->n_failed > 50 / HPS_FAULT_HEAP_STEP);
    assert_true(s->n_loaded > n / HPS_FAULT_HEAP_STEP);
}

static void test_catalog_when_each_store_call_fails_then_complete_or_refused(void **state)
{
    static const enum hps_fake_op ops[] = {
        HPS_FAKE_SPACE_OPEN,    HPS_FAKE_SPACE_DROP,  HPS_FAKE_LOAD_BEGIN,
        HPS_FAKE_LOAD_ADD,      HPS_FAKE_LOAD_COMMIT, HPS_FAKE_RECORD_PUT,
        HPS_FAKE_RECORD_DELETE, HPS_FAKE_RECORD_SCAN, HPS_FAKE_SCAN};
    struct scenario *s = *state;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        s->fail_op = ops[i];
        for (s->fail_skip = 0; s->fail_skip < 10; s->fail_skip++) {
            run(s);
        }
    }
    assert_true(s->n_failed >= 10);
    assert_true(s->n_loaded > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_catalog_when_each_allocation_fails_then_complete_or_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_catalog_when_each_store_call_fails_then_complete_or_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
