/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling the host map of a version that serves already: when it may be called complete. Files
 * that change under a load.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "backends/host_map.h"
#include "base/heap.h"
#include "server/loader.h"
#include "tests/lib/tmpdir.h"

enum { N_ROWS = 200, ROW_BYTES = 8, SCAN_ROWS = 100 };

/* A persistent store that can only be scanned. After the first batch it does what a look-up does to
 * the host map whose insertion finds no room. */
struct below {
    struct hps_store store;
    struct hps_space space;
    struct hps_space *host;
    uint32_t n_lost;
};

static hps_status scan_below(struct hps_space *space, const struct hps_table *table,
                             hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                              uint32_t n),
                             void *ctx, struct hps_error *err)
{
    struct below *below = (struct below *)(void *)((char *)space - offsetof(struct below, space));
    const struct hps_call call = {0};
    uint8_t rows[SCAN_ROWS][ROW_BYTES] = {{0}};
    hps_key keys[SCAN_ROWS];
    hps_status status = HPS_OK;
    (void)err;
    for (hps_key first = 0; status == HPS_OK && first < table->n_rows; first += SCAN_ROWS) {
        for (hps_key i = 0; i < SCAN_ROWS; i++) {
            keys[i] = first + i;
        }
        status = fn(ctx, keys, rows[0], SCAN_ROWS);
        if (status == HPS_OK && first == 0) {
            status = below->host->store->ops->erase(below->host, &call, table, keys, below->n_lost);
        }
    }
    return status;
}

static hps_status fill(uint32_t n_rows, uint32_t n_lost, bool *out_complete, struct hps_error *err)
{
    static const struct hps_store_ops ops = {
        .name = "below", .tier = HPS_TIER_ROCKSDB, .scan = scan_below};
    struct hps_version *version = hps_version_new("m", 1, 1);
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = 2,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = n_rows,
                                            .default_row = hps_calloc(1, ROW_BYTES)};
    struct hps_load_env env = {0};
    uint64_t bytes = hps_load_host_bytes(version->tables, 1);
    assert_int_equal(hps_host_map_open(bytes > 1 << 20 ? bytes : 1 << 20, &env.host, err), HPS_OK);
    const struct hps_space_id id = {"m", 1, version->tables, 1};
    struct below below = {.store = {&ops}, .space = {&below.store}, .n_lost = n_lost};
    assert_int_equal(env.host->ops->space_open(env.host, &id, &below.host, err), HPS_OK);
    version->tiers[0] = below.host;
    version->tiers[1] = &below.space;
    version->n_tiers = 2;
    const atomic_bool cancel = false;
    hps_status status = hps_load_fill_host(&env, version, &cancel, err);
    *out_complete = atomic_load(&version->host_complete);
    env.host->ops->space_close(below.host);
    env.host->ops->close(env.host);
    hps_version_free(version);
    return status;
}

static void test_fill_when_every_row_is_there_then_the_map_is_complete(void **state)
{
    (void)state;
    struct hps_error err;
    bool complete = false;
    assert_int_equal(fill(N_ROWS, 0, &complete, &err), HPS_OK);
    assert_true(complete);
}

static void test_fill_when_an_insertion_took_rows_out_then_a_miss_proves_nothing(void **state)
{
    (void)state;
    struct hps_error err;
    bool complete = true;
    assert_int_equal(fill(N_ROWS, 1, &complete, &err), HPS_EXHAUSTED);
    assert_false(complete);
    assert_non_null(strstr(err.text, "1 of 200 rows"));
}

/* Otherwise a version that a load had put into the map would not be there after a restart. */
static void test_fill_when_the_budget_is_just_what_a_load_asks_for_then_it_suffices(void **state)
{
    (void)state;
    for (uint32_t n_rows = 20000; n_rows < 600000; n_rows = n_rows * 23 / 20 / 100 * 100) {
        struct hps_error err;
        bool complete = false;
        assert_int_equal(fill(n_rows, 0, &complete, &err), HPS_OK);
        assert_true(complete);
    }
}

/* ---- files that change under a load ---------------------------------------------------------- */

static void write_table(struct hps_tmpdir *dir, float value)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, 2, HPS_DTYPE_FP32};
    struct hps_row_writer *writer;
    assert_int_equal(
        hps_row_writer_open(hps_tmpdir_join(dir, "model/t.npy"), &options, &writer, NULL), HPS_OK);
    for (hps_key key = 0; key < N_ROWS; key++) {
        const float row[2] = {value, (float)key};
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

static void test_load_when_a_file_was_replaced_by_one_of_the_same_shape_then_refused(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    struct hps_load_env env = {.memory_bytes = 2 << 20, .host_bytes_max = 8 << 20, .key_bytes = 8};
    struct hps_source source;
    struct hps_load_plan plan;
    struct hps_load_progress progress = {0};
    struct hps_error err;
    hps_tmpdir_open(&dir);
    hps_tmpdir_mkdir(&dir, "model");
    env.spill_dir = dir.path;
    assert_int_equal(hps_host_map_open(env.host_bytes_max, &env.host, &err), HPS_OK);
    write_table(&dir, 1);
    assert_int_equal(hps_source_open_dir(hps_tmpdir_join(&dir, "model"), NULL, &source, &err),
                     HPS_OK);
    struct hps_version *version = hps_version_new("m", 1, 1);
    assert_int_equal(hps_load_plan(&env, &source, 0, version, &plan, &err), HPS_OK);
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}}; /* whatever the clock's step */
    write_table(&dir, 2);
    assert_int_equal(utimensat(AT_FDCWD, hps_tmpdir_join(&dir, "model/t.npy"), times, 0), 0);
    assert_int_equal(hps_load_run(&env, &source, &plan, version, &progress, &err),
                     HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "t.npy"));
    hps_version_free(version);
    hps_source_close(&source);
    env.host->ops->close(env.host); /* asserts that nothing is left in it */
    hps_tmpdir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_when_every_row_is_there_then_the_map_is_complete),
        cmocka_unit_test(test_fill_when_an_insertion_took_rows_out_then_a_miss_proves_nothing),
        cmocka_unit_test(test_fill_when_the_budget_is_just_what_a_load_asks_for_then_it_suffices),
        cmocka_unit_test(test_load_when_a_file_was_replaced_by_one_of_the_same_shape_then_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
