/* SPDX-License-Identifier: Apache-2.0
 *
 * How a load stores the rows of its files: unchanged or converted, as the request wishes, with
 * the matching load id and default row.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rows/rowgen.h"
#include "server/load/loader.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/tmpdir_fixture.h"

enum { DIM = 6, N_ROWS = 50, ROW_BYTES_MAX = DIM * 4 };

static const enum hps_dtype dtypes[] = {HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16,
                                        HPS_DTYPE_INT8_ROWWISE_F32, HPS_DTYPE_INT8_ROWWISE_F16};

enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

/* Write rows of the formula times `scale`, with unsorted keys: model/t.{keys,rows}.npy. */
static void write_model(enum hps_dtype dtype, float scale)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY_PAIR, DIM, dtype};
    struct hps_row_writer *writer;
    if (access(hps_tmpdir_join(&dir, "model"), F_OK) == 0) {
        hps_tmpdir_remove(&dir, "model");
    }
    hps_tmpdir_mkdir(&dir, "model");
    assert_int_equal(
        hps_row_writer_open(hps_tmpdir_join(&dir, "model/t.rows.npy"), &options, &writer, NULL),
        HPS_OK);
    for (uint64_t r = 0; r < N_ROWS; r++) {
        const hps_key key = r * 7 % N_ROWS;
        float values[DIM];
        uint8_t row[ROW_BYTES_MAX];
        hps_rowgen_row(1, 0, key, DIM, values);
        for (uint32_t i = 0; i < DIM; i++) {
            values[i] *= scale;
        }
        hps_row_convert(row, dtype, values, HPS_DTYPE_FP32, DIM);
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

/* The entry of the table in models[]. */
static float default_values[DIM] = {-1, 0, 0.25f, 0.5f, 1, 3};
static struct hps_config_table configured = {
    .name = (char[]){"t"}, .dim = DIM, .default_values = default_values, .n_default_values = DIM};
static const struct hps_config_model model = {.tables = &configured, .n_tables = 1};

struct loaded {
    struct hps_table table; /* without its name and its default row */
    uint8_t default_row[ROW_BYTES_MAX];
    uint8_t rows[N_ROWS][ROW_BYTES_MAX];
    uint32_t n_rows;
    char load_id[17];
    struct hps_load_plan plan;
    struct hps_load_conversion conversion;
};

static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct loaded *loaded = ctx;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(keys[i] < N_ROWS);
        memcpy(loaded->rows[keys[i]], rows + (size_t)i * loaded->table.row_bytes,
               loaded->table.row_bytes);
    }
    loaded->n_rows += n;
    return HPS_OK;
}

/* Load the directory `model` into a store, and read the rows back. `wish`: the type that the
 * request names. `said`: the dtype in the manifest. */
static hps_status load(struct hps_load_env env, struct hps_row_wish wish, enum hps_dtype said,
                       struct loaded *out_loaded, struct hps_error *err)
{
    const struct hps_fake_options disk = {.tier = HPS_TIER_ROCKSDB,
                                          .caps = HPS_STORE_DURABLE | HPS_STORE_SCANS};
    struct loaded loaded = {0};
    struct hps_load_progress progress = {.conversions = &loaded.conversion};
    struct hps_source source;
    hps_stores_add(&env.stores, hps_fake_store_new(&disk));
    env.memory_bytes = 2 << 20;
    env.key_bytes = 8;
    env.spill_dir = dir.path;
    assert_int_equal(
        hps_source_open_dir(NULL, hps_tmpdir_join(&dir, "model"), &model, &source, err), HPS_OK);
    source.tables[0].file_dtype = said;
    if (wish.given) {
        hps_source_set_row_dtype(&source, wish.dtype);
    }
    struct hps_version *version = hps_version_new("m", 1, 1);
    hps_status status = hps_load_plan(&env, &source, 0, version, &loaded.plan, err);
    if (status == HPS_OK) {
        status = hps_load_run(&env, &source, &loaded.plan, version, &progress, err);
    }
    if (status == HPS_OK) {
        struct hps_space *space = version->tiers[0];
        loaded.table = version->tables[0];
        memcpy(loaded.default_row, loaded.table.default_row, loaded.table.row_bytes);
        (void)snprintf(loaded.load_id, sizeof(loaded.load_id), "%s", version->load_id);
        assert_int_equal(
            space->store->ops->scan(space, &version->tables[0], take_rows, &loaded, err), HPS_OK);
        space->store->ops->space_close(space);
        *out_loaded = loaded;
    }
    hps_version_free(version);
    hps_source_close(&source);
    hps_stores_close(&env.stores);
    return status;
}

static void load_good(struct hps_row_wish wish, enum hps_dtype said, struct loaded *out_loaded)
{
    struct hps_error err = {0};
    if (load((struct hps_load_env){0}, wish, said, out_loaded, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

/* The stored rows equal the formula's rows with type `from` in the files and `to` in the store. */
static void expect_rows(const struct loaded *loaded, enum hps_dtype from, enum hps_dtype to)
{
    size_t row_bytes = (size_t)hps_dtype_row_bytes(to, DIM);
    uint8_t expected[ROW_BYTES_MAX];
    assert_int_equal(loaded->table.dtype, to);
    assert_int_equal(loaded->table.row_bytes, row_bytes);
    assert_int_equal(loaded->n_rows, N_ROWS);
    assert_int_equal(loaded->plan.row_bytes, N_ROWS * row_bytes);
    for (hps_key key = 0; key < N_ROWS; key++) {
        float values[DIM];
        uint8_t given[ROW_BYTES_MAX];
        hps_rowgen_row(1, 0, key, DIM, values);
        hps_row_convert(given, from, values, HPS_DTYPE_FP32, DIM);
        hps_row_convert(values, HPS_DTYPE_FP32, given, from, DIM);
        if (from == to) {
            memcpy(expected, given, row_bytes);
        } else {
            hps_row_convert(expected, to, values, HPS_DTYPE_FP32, DIM);
        }
        assert_memory_equal(loaded->rows[key], expected, row_bytes);
    }
    hps_row_convert(expected, to, default_values, HPS_DTYPE_FP32, DIM);
    assert_memory_equal(loaded->default_row, expected, row_bytes);
}

static const struct hps_row_wish no_wish = {0};

static void test_load_when_rows_are_of_any_type_then_stored_unchanged(void **state)
{
    (void)state;
    struct loaded loaded;
    for (size_t i = 0; i < N_DTYPES; i++) {
        write_model(dtypes[i], 1);
        load_good(no_wish, dtypes[i], &loaded);
        expect_rows(&loaded, dtypes[i], dtypes[i]);
        assert_int_equal(loaded.conversion.from, dtypes[i]);
        assert_int_equal(loaded.conversion.to, dtypes[i]);
        assert_int_equal(loaded.conversion.loss.n, 0);
    }
}

static void test_load_when_another_type_is_requested_then_converted_and_the_loss_reported(
    void **state)
{
    (void)state;
    struct loaded loaded;
    for (size_t i = 1; i < N_DTYPES; i++) {
        write_model(HPS_DTYPE_FP32, 1);
        load_good((struct hps_row_wish){.given = true, .dtype = dtypes[i]}, 0, &loaded);
        expect_rows(&loaded, HPS_DTYPE_FP32, dtypes[i]);
        assert_int_equal(loaded.conversion.from, HPS_DTYPE_FP32);
        assert_int_equal(loaded.conversion.to, dtypes[i]);
        assert_int_equal(loaded.conversion.loss.n, N_ROWS * DIM);
        /* Values are below 1: half a step of 1/127, and the error of an fp16 scale. */
        assert_true(loaded.conversion.loss.max > 0 && loaded.conversion.loss.max < 0.008);
        assert_true(loaded.conversion.loss.sum / (N_ROWS * DIM) < loaded.conversion.loss.max);
    }
    write_model(HPS_DTYPE_BF16, 1);
    load_good((struct hps_row_wish){.given = true, .dtype = HPS_DTYPE_INT8_ROWWISE_F16},
              HPS_DTYPE_BF16, &loaded);
    expect_rows(&loaded, HPS_DTYPE_BF16, HPS_DTYPE_INT8_ROWWISE_F16);
}

static void test_load_when_models_names_a_type_then_it_applies_unless_the_request_names_one(
    void **state)
{
    (void)state;
    struct loaded loaded;
    write_model(HPS_DTYPE_FP32, 1);
    configured.row_dtype = HPS_DTYPE_FP16;
    load_good(no_wish, 0, &loaded);
    assert_int_equal(loaded.table.dtype, HPS_DTYPE_FP16);
    load_good((struct hps_row_wish){.given = true, .dtype = HPS_DTYPE_BF16}, 0, &loaded);
    assert_int_equal(loaded.table.dtype, HPS_DTYPE_BF16);
    load_good((struct hps_row_wish){.given = true}, 0, &loaded); /* the type of the files */
    assert_int_equal(loaded.table.dtype, HPS_DTYPE_FP32);
    configured.row_dtype = 0;
}

/* Shared stores name their rows by the load id. */
static void test_load_id_when_type_or_bytes_differ_then_another(void **state)
{
    (void)state;
    static struct loaded loaded[N_DTYPES];
    struct loaded again;
    write_model(HPS_DTYPE_FP32, 0); /* zeros: both half types have the same bytes */
    for (size_t i = 0; i < N_DTYPES; i++) {
        const struct hps_row_wish wish = {.given = true, .dtype = dtypes[i]};
        load_good(wish, 0, &loaded[i]);
        load_good(wish, 0, &again);
        assert_string_equal(again.load_id, loaded[i].load_id);
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(loaded[k].load_id, loaded[i].load_id);
        }
    }
    assert_memory_equal(loaded[1].rows, loaded[2].rows, sizeof(loaded[1].rows));
}

static void test_load_when_rows_are_fp32_then_the_id_is_the_hash_of_earlier_builds(void **state)
{
    (void)state;
    struct loaded loaded;
    hps_key keys[N_ROWS];
    float rows[N_ROWS][DIM];
    char expected[17];
    write_model(HPS_DTYPE_FP32, 1);
    load_good(no_wish, 0, &loaded);
    for (hps_key key = 0; key < N_ROWS; key++) {
        keys[key] = key;
        hps_rowgen_row(1, 0, key, DIM, rows[key]);
    }
    (void)snprintf(expected, sizeof(expected), "%016llx",
                   (unsigned long long)hps_hash_bytes(rows, sizeof(rows),
                                                      hps_hash_bytes(keys, sizeof(keys), 0)));
    assert_string_equal(loaded.load_id, expected);
}

static void expect_refused(struct hps_load_env env, struct hps_row_wish wish, enum hps_dtype said,
                           const char *text)
{
    struct loaded loaded;
    struct hps_error err = {0};
    assert_int_equal(load(env, wish, said, &loaded, &err), HPS_INVALID);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
    assert_non_null(strstr(err.text, "table \"t\""));
}

static void test_load_when_rows_cannot_be_converted_then_refused_with_the_table(void **state)
{
    (void)state;
    const struct hps_load_env strict = {0}, loose = {.nan_allowed = true};
    const struct hps_row_wish fp16 = {true, HPS_DTYPE_FP16};
    const struct hps_row_wish int8 = {true, HPS_DTYPE_INT8_ROWWISE_F32};
    struct loaded loaded;
    struct hps_error err;
    write_model(HPS_DTYPE_INT8_ROWWISE_F16, 1);
    expect_refused(strict, int8, 0, "rows are already quantised as int8_rowwise_f16");
    expect_refused(strict, fp16, 0, "rows are already quantised as int8_rowwise_f16");
    write_model(HPS_DTYPE_BF16, 1);
    expect_refused(strict, no_wish, 0, "rows of uint16");
    write_model(HPS_DTYPE_FP32, 1e6f);
    expect_refused(strict, fp16, 0, "does not fit fp16");
    assert_int_equal(load(loose, fp16, 0, &loaded, &err), HPS_OK);
    write_model(HPS_DTYPE_FP32, NAN);
    expect_refused(strict, fp16, 0, "NaN or Inf");
    expect_refused(loose, int8, 0, "does not fit int8_rowwise_f32");
    write_model(HPS_DTYPE_FP32, 1);
    default_values[DIM - 1] = 1e6f;
    expect_refused(loose, fp16, 0, "value 5 of its default row, 1e+06, does not fit fp16");
    default_values[DIM - 1] = 3;
}

/* Write zeros without a file of keys: model/t.npy. */
static void write_npy(void)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, DIM, HPS_DTYPE_FP32};
    const float row[DIM] = {0};
    struct hps_row_writer *writer;
    hps_tmpdir_mkdir(&dir, "model");
    assert_int_equal(
        hps_row_writer_open(hps_tmpdir_join(&dir, "model/t.npy"), &options, &writer, NULL), HPS_OK);
    for (hps_key key = 0; key < N_ROWS; key++) {
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

/* A table without a file of keys is stored in a base file. Any other may be. */
static void test_plan_when_base_files_then_their_size_and_a_merge_count(void **state)
{
    (void)state;
    const uint64_t base = 4096 + 4 + 8, file = N_ROWS * (4 * DIM + 24) * 9 / 8;
    const uint64_t expected[2][2][2] = {{{file, file}, {base, 2 * base}},
                                        {{file, file}, {file, file + base}}};
    for (int with_keys = 0; with_keys < 2; with_keys++) {
        struct hps_source source;
        if (with_keys == 1) {
            write_model(HPS_DTYPE_FP32, 1);
        } else {
            write_npy();
        }
        assert_int_equal(
            hps_source_open_dir(NULL, hps_tmpdir_join(&dir, "model"), &model, &source, NULL),
            HPS_OK);
        for (int base_files = 0; base_files < 2; base_files++) {
            for (int merges = 0; merges < 2; merges++) {
                struct hps_load_env env = {.key_bytes = 8,
                                           .memory_bytes = 1 << 20,
                                           .base_files = base_files == 1,
                                           .merges = merges == 1};
                const struct hps_fake_options disk = {.tier = HPS_TIER_ROCKSDB,
                                                      .caps = HPS_STORE_DURABLE | HPS_STORE_SCANS};
                struct hps_version *version = hps_version_new("m", 1, 1);
                struct hps_load_plan plan;
                hps_stores_add(&env.stores, hps_fake_store_new(&disk));
                assert_int_equal(hps_load_plan(&env, &source, 0, version, &plan, NULL), HPS_OK);
                assert_int_equal(plan.disk_bytes_needed, expected[with_keys][base_files][merges]);
                hps_version_free(version);
                hps_stores_close(&env.stores);
            }
        }
        hps_source_close(&source);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_load_when_rows_are_of_any_type_then_stored_unchanged),
        T(test_load_when_another_type_is_requested_then_converted_and_the_loss_reported),
        T(test_load_when_models_names_a_type_then_it_applies_unless_the_request_names_one),
        T(test_load_id_when_type_or_bytes_differ_then_another),
        T(test_load_when_rows_are_fp32_then_the_id_is_the_hash_of_earlier_builds),
        T(test_load_when_rows_cannot_be_converted_then_refused_with_the_table),
        T(test_plan_when_base_files_then_their_size_and_a_merge_count),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
