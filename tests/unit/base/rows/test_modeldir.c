/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files make up which table, and when they count as changed.
 */
#include "base/rows/modeldir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static void touch(const char *name)
{
    hps_tmpdir_write(&dir, name, "x", 1);
}

static void expect_refused(hps_status status, const char *text)
{
    struct hps_model_dir model = {0};
    struct hps_error err = {0};
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), status);
    assert_null(model.tables);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
}

static void test_open_when_all_forms_then_tables_by_name(void **state)
{
    (void)state;
    hps_tmpdir_mkdir(&dir, "users");
    touch("users/key");
    touch("users/emb_vector");
    touch("items.npy");
    touch("ads.keys.npy");
    touch("ads.rows.npy");
    touch("README");
    touch("ps.json");
    touch(".hidden.npy");
    touch("manifest.json");
    hps_tmpdir_mkdir(&dir, "rocksdb");
    hps_tmpdir_mkdir(&dir, ".users.tmp-1-1");
    touch(".users.tmp-1-1/key");
    struct hps_model_dir model = {0};
    char path[HPS_TMPDIR_PATH_MAX + 2];
    (void)snprintf(path, sizeof(path), "%s//", dir.path);
    assert_int_equal(hps_model_dir_open(path, NULL, &model, NULL), HPS_OK);
    assert_string_equal(model.path, dir.path);
    assert_int_equal(model.n_tables, 3);
    assert_string_equal(model.tables[0].name, "ads");
    assert_int_equal(model.tables[0].form, HPS_ROW_FORM_NPY_PAIR);
    assert_string_equal(model.tables[0].path, hps_tmpdir_join(&dir, "ads.rows.npy"));
    assert_string_equal(model.tables[1].name, "items");
    assert_int_equal(model.tables[1].form, HPS_ROW_FORM_NPY);
    assert_string_equal(model.tables[1].path, hps_tmpdir_join(&dir, "items.npy"));
    assert_string_equal(model.tables[2].name, "users");
    assert_int_equal(model.tables[2].form, HPS_ROW_FORM_HUGECTR);
    assert_string_equal(model.tables[2].path, hps_tmpdir_join(&dir, "users"));
    assert_string_equal(model.manifest_path, hps_tmpdir_join(&dir, "manifest.json"));
    assert_null(model.dle_path);
    hps_model_dir_close(&model);
    hps_model_dir_close(&model);
}

static void test_open_when_dle_checkpoint_then_by_number(void **state)
{
    (void)state;
    for (int i = 11; i >= 0; i--) {
        char name[32];
        (void)snprintf(name, sizeof(name), "feature_%d.npy", i);
        touch(name);
    }
    touch("config.json");
    struct hps_model_dir model = {0};
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(model.n_tables, 12);
    assert_non_null(model.dle_path);
    for (int i = 0; i < 12; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "feature_%d", i);
        assert_string_equal(model.tables[i].name, name);
    }
    hps_model_dir_close(&model);
    assert_int_equal(unlink(hps_tmpdir_join(&dir, "feature_4.npy")), 0);
    expect_refused(HPS_INVALID, "got 'feature_5.npy', expected 'feature_4.npy'");
    assert_int_equal(unlink(hps_tmpdir_join(&dir, "config.json")), 0);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK); /* plain tables */
    assert_int_equal(model.n_tables, 11);
    hps_model_dir_close(&model);
}

static void test_open_when_names_mix_then_one_total_order(void **state)
{
    (void)state;
    static const char *const names[] = {"t10",   "feature_10", "t9_2",    "t2",        "t1x",
                                        "t9_10", "t02",        "sparse3", "feature_2", "t",
                                        "t1",    "T3",         "sparse12"};
    static const char *const order[] = {"T3",   "feature_2", "feature_10", "sparse3", "sparse12",
                                        "t",    "t1",        "t1x",        "t02",     "t2",
                                        "t9_2", "t9_10",     "t10"};
    enum { N_NAMES = sizeof(names) / sizeof(names[0]) };
    for (size_t i = 0; i < N_NAMES; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%s.npy", names[i]);
        touch(name);
    }
    struct hps_model_dir model = {0};
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    for (size_t i = 0; i < N_NAMES; i++) {
        assert_string_equal(model.tables[i].name, order[i]);
    }
    hps_model_dir_close(&model);
}

static void test_open_when_no_tables_then_invalid(void **state)
{
    (void)state;
    expect_refused(HPS_INVALID, "no tables: expected T/key");
    touch("notes.txt");
    expect_refused(HPS_INVALID, "no tables");
    touch("key");
    expect_refused(HPS_INVALID, "has 'key' but no 'emb_vector'");
    touch("emb_vector");
    expect_refused(HPS_INVALID, "files of one table, expected its parent directory");
}

static void test_open_when_ambiguous_or_half_then_invalid(void **state)
{
    (void)state;
    touch("t.rows.npy");
    expect_refused(HPS_INVALID, "has 't.rows.npy' but no 't.keys.npy'");
    assert_int_equal(unlink(hps_tmpdir_join(&dir, "t.rows.npy")), 0);
    touch("t.keys.npy");
    expect_refused(HPS_INVALID, "has 't.keys.npy' but no 't.rows.npy'");
    touch("t.rows.npy");
    touch("t.npy");
    expect_refused(HPS_INVALID, "table 't' twice");
    assert_int_equal(unlink(hps_tmpdir_join(&dir, "t.npy")), 0);
    hps_tmpdir_mkdir(&dir, "u");
    touch("u/emb_vector");
    expect_refused(HPS_INVALID, "u: has 'emb_vector' but no 'key'");
    touch("u/key");
    touch("s.scale_bias.npy");
    expect_refused(HPS_INVALID, "has 's.scale_bias.npy' but no 's.npy' or 's.rows.npy'");
    assert_int_equal(unlink(hps_tmpdir_join(&dir, "s.scale_bias.npy")), 0);
    touch("b.ad.npy");
    expect_refused(HPS_INVALID, "table name 'b.ad'");
    expect_refused(HPS_INVALID, "with --table, or with --config of hpsctl load");
    struct hps_model_dir model = {0};
    assert_int_equal(hps_model_dir_open("/no/such/dir", NULL, &model, NULL), HPS_NOT_FOUND);
    struct hps_error err;
    assert_int_equal(hps_model_dir_open(hps_tmpdir_join(&dir, "u/key"), NULL, &model, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "u/key: a file, expected the directory of a model"));
}

static void test_open_when_rows_have_scales_then_of_their_table(void **state)
{
    (void)state;
    touch("a.npy");
    touch("a.scale_bias.npy");
    touch("b.keys.npy");
    touch("b.rows.npy");
    touch("b.scale_bias.npy");
    struct hps_model_dir model = {0};
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(model.n_tables, 2);
    assert_string_equal(model.tables[0].name, "a");
    assert_string_equal(model.tables[1].name, "b");
    hps_model_dir_close(&model);
}

static void test_table_when_given_by_path_then_its_form(void **state)
{
    (void)state;
    hps_tmpdir_mkdir(&dir, "d");
    hps_tmpdir_mkdir(&dir, "e");
    touch("d/key");
    touch("d/emb_vector");
    touch("t.npy");
    touch("p.keys.npy");
    touch("p.rows.npy");
    const struct {
        const char *name;
        enum hps_row_form form;
        const char *path;
    } cases[] = {
        {"d", HPS_ROW_FORM_HUGECTR, "d"},
        {"d/", HPS_ROW_FORM_HUGECTR, "d"},
        {"t.npy", HPS_ROW_FORM_NPY, "t.npy"},
        {"p.keys.npy", HPS_ROW_FORM_NPY_PAIR, "p.rows.npy"},
        {"p.rows.npy", HPS_ROW_FORM_NPY_PAIR, "p.rows.npy"},
        {"p", HPS_ROW_FORM_NPY_PAIR, "p.rows.npy"},
    };
    struct hps_model_table table = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(
            hps_model_table_open("x", hps_tmpdir_join(&dir, cases[i].name), NULL, &table, NULL),
            HPS_OK);
        assert_int_equal(table.form, cases[i].form);
        assert_string_equal(table.path, hps_tmpdir_join(&dir, cases[i].path));
        assert_string_equal(table.name, "x");
        hps_model_table_close(&table);
    }
    struct hps_error err = {0};
    assert_int_equal(hps_model_table_open("x", hps_tmpdir_join(&dir, "e"), NULL, &table, &err),
                     HPS_INVALID);
    assert_int_equal(hps_model_table_open("x", hps_tmpdir_join(&dir, "f"), NULL, &table, &err),
                     HPS_NOT_FOUND);
    assert_int_equal(hps_model_table_open("x.y", hps_tmpdir_join(&dir, "d"), NULL, &table, &err),
                     HPS_INVALID);
    assert_null(table.path);
}

static void test_name_when_at_the_limits_then_hps_rule(void **state)
{
    (void)state;
    char name[122];
    memset(name, 'a', sizeof(name));
    name[121] = '\0';
    assert_false(hps_model_name_valid(name));
    name[120] = '\0';
    assert_true(hps_model_name_valid(name));
    assert_true(hps_model_name_valid("Az09_-"));
    assert_false(hps_model_name_valid(""));
    assert_false(hps_model_name_valid("a/b"));
    assert_false(hps_model_name_valid("a b"));
    assert_false(hps_model_name_valid("\xc3\xa9"));
}

static void test_label_when_a_number_or_no_path_then_not_valid(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "nightly", "v1", "2024-11-28", "1.5", "_x", "7b"};
    static const char *const bad[] = {"",  "3",   "007",      "-1",  "+3", "a b", "a/b", ".",
                                      ".", "..x", "\xc3\xbc", "a\n", "-a", "a%b", " 3"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(hps_label_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(hps_label_valid(bad[i]));
    }
    char label[122];
    memset(label, 'a', sizeof(label));
    label[121] = '\0';
    assert_false(hps_label_valid(label));
    label[120] = '\0';
    assert_true(hps_label_valid(label));
}

static void set_mtime(const char *name, time_t seconds, long nanoseconds)
{
    struct timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
    assert_int_equal(utimensat(AT_FDCWD, hps_tmpdir_join(&dir, name), times, 0), 0);
}

static void print_of(struct hps_fingerprint *print)
{
    struct hps_model_dir model = {0};
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(hps_model_fingerprint(model.tables, model.n_tables, print, NULL), HPS_OK);
    hps_model_dir_close(&model);
}

static void test_fingerprint_when_any_file_changes_then_another(void **state)
{
    (void)state;
    hps_tmpdir_mkdir(&dir, "d");
    touch("d/key");
    touch("d/emb_vector");
    touch("p.keys.npy");
    touch("p.rows.npy");
    touch("t.npy");
    touch("p.scale_bias.npy");
    touch("t.scale_bias.npy");
    static const char *const files[] = {"d/key",           "d/emb_vector", "p.keys.npy",
                                        "p.rows.npy",      "t.npy",        "p.scale_bias.npy",
                                        "t.scale_bias.npy"};
    enum { N_FILES = sizeof(files) / sizeof(files[0]) };
    for (size_t i = 0; i < N_FILES; i++) {
        set_mtime(files[i], 1700000000 + (time_t)i, 5);
    }
    struct hps_fingerprint first;
    struct hps_fingerprint print;
    print_of(&first);
    print_of(&print);
    assert_true(first.hash == print.hash);
    assert_int_equal(first.n_files, N_FILES);
    assert_int_equal(first.bytes, N_FILES);
    assert_int_equal(first.mtime_ms_oldest, UINT64_C(1700000000000));
    assert_int_equal(strlen(first.text), 16);
    for (size_t i = 0; i < N_FILES; i++) {
        set_mtime(files[i], 1700000000 + (time_t)i, 6); /* one nanosecond */
        print_of(&print);
        assert_true(first.hash != print.hash);
        set_mtime(files[i], 1700000000 + (time_t)i, 5);
        print_of(&print);
        assert_true(first.hash == print.hash);
        hps_tmpdir_write(&dir, files[i], "xy", 2);
        set_mtime(files[i], 1700000000 + (time_t)i, 5);
        print_of(&print);
        assert_true(first.hash != print.hash);
        touch(files[i]);
        set_mtime(files[i], 1700000000 + (time_t)i, 5);
    }
    struct hps_model_table gone = {
        .name = (char[]){"t"}, .form = HPS_ROW_FORM_NPY, .path = (char[]){"/no/such.npy"}};
    assert_int_equal(hps_model_fingerprint(&gone, 1, &print, NULL), HPS_NOT_FOUND);
}

static void open_and_print(void *ctx)
{
    (void)ctx;
    struct hps_model_dir model = {0};
    struct hps_model_table table = {0};
    struct hps_fingerprint print;
    hps_status status = hps_model_dir_open(dir.path, NULL, &model, NULL);
    if (status == HPS_OK) {
        status = hps_model_fingerprint(model.tables, model.n_tables, &print, NULL);
    }
    hps_model_dir_close(&model);
    if (status == HPS_OK) {
        status = hps_model_table_open("x", hps_tmpdir_join(&dir, "p"), NULL, &table, NULL);
    }
    hps_model_table_close(&table);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_all_when_memory_fails_then_survived(void **state)
{
    (void)state;
    hps_tmpdir_mkdir(&dir, "d");
    touch("d/key");
    touch("d/emb_vector");
    touch("p.keys.npy");
    touch("p.rows.npy");
    touch("p.scale_bias.npy");
    touch("feature_0.npy");
    touch("manifest.json");
    assert_true(hps_fault_heap_run(open_and_print, NULL) > 20);
}

static void write_tensors(const char *name, const char *head, size_t n_data)
{
    uint8_t file[1024] = {0};
    uint64_t n = strlen(head);
    memcpy(file, &n, 8);
    memcpy(file + 8, head, n);
    hps_tmpdir_write(&dir, name, file, 8 + n + n_data);
}

static void test_open_when_safetensors_then_each_matrix_is_a_table(void **state)
{
    (void)state;
    struct hps_model_dir model = {0};
    struct hps_error err = {0};
    struct hps_fingerprint before, after;
    write_tensors("m-1-of-2.safetensors",
                  "{\"emb.0/w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                  "\"bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                  16);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "m-2-of-2.safetensors"));
    write_tensors("m-2-of-2.safetensors",
                  "{\"q\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[0,2]},"
                  "\"q.scale\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[2,6]}}",
                  6);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), HPS_OK);
    assert_int_equal(model.n_tables, 2);
    assert_string_equal(model.tables[0].name, "emb_0_w");
    assert_string_equal(model.tables[0].path,
                        hps_tmpdir_join(&dir, "m-1-of-2.safetensors:emb.0/w"));
    assert_int_equal(model.tables[0].form, HPS_ROW_FORM_SAFETENSORS);
    assert_string_equal(model.tables[1].name, "q");
    assert_int_equal(hps_model_fingerprint(model.tables, 2, &before, &err), HPS_OK);
    touch("m-1-of-2.safetensors");
    assert_int_equal(hps_model_fingerprint(model.tables, 2, &after, &err), HPS_OK);
    assert_true(before.hash != after.hash);
    hps_model_dir_close(&model);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), HPS_INVALID); /* empty */
    assert_int_equal(
        hps_model_dir_open(hps_tmpdir_join(&dir, "m-2-of-2.safetensors"), NULL, &model, &err),
        HPS_OK);
    assert_int_equal(model.n_tables, 1);
    hps_model_dir_close(&model);
    write_tensors("m-1-of-2.safetensors",
                  "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "table 'q' twice"));
}

static void test_open_when_a_directory_is_named_like_a_part_then_only_files_are_parts(void **state)
{
    (void)state;
    static const char head[] = "{\"t\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    struct hps_model_dir model = {0};
    struct hps_error err = {0};
    hps_tmpdir_mkdir(&dir, "run-1-of-3");
    write_tensors("run-1-of-3/m.safetensors", head, 8);
    assert_int_equal(hps_model_dir_open(hps_tmpdir_join(&dir, "run-1-of-3"), NULL, &model, &err),
                     HPS_OK);
    hps_model_dir_close(&model);
    hps_tmpdir_mkdir(&dir, "best-of-all");
    write_tensors("best-of-all/m-1-of-2.safetensors", head, 8);
    assert_int_equal(hps_model_dir_open(hps_tmpdir_join(&dir, "best-of-all"), NULL, &model, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "m-2-of-2.safetensors"));
}

static void test_open_when_a_directory_is_named_safetensors_then_its_manifest_counts(void **state)
{
    (void)state;
    struct hps_model_dir model = {0};
    struct hps_error err = {0};
    hps_tmpdir_mkdir(&dir, "x.safetensors");
    touch("x.safetensors/t.npy");
    touch("x.safetensors/manifest.json");
    const char *path = hps_tmpdir_join(&dir, "x.safetensors");
    assert_int_equal(hps_model_dir_open(path, NULL, &model, &err), HPS_OK);
    assert_string_equal(model.manifest_path, hps_tmpdir_join(&dir, "x.safetensors/manifest.json"));
    hps_model_dir_close(&model);
}

static void test_open_when_rows_of_floats_have_a_bias_then_it_is_a_table(void **state)
{
    (void)state;
    struct hps_model_dir model = {0};
    struct hps_error err = {0};
    write_tensors("m.safetensors",
                  "{\"t\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                  "\"t.bias\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}",
                  16);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, &err), HPS_OK);
    assert_int_equal(model.n_tables, 2);
    assert_string_equal(model.tables[1].name, "t_bias");
    hps_model_dir_close(&model);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_open_when_all_forms_then_tables_by_name),
        T(test_open_when_dle_checkpoint_then_by_number),
        T(test_open_when_names_mix_then_one_total_order),
        T(test_open_when_no_tables_then_invalid),
        T(test_open_when_ambiguous_or_half_then_invalid),
        T(test_open_when_rows_have_scales_then_of_their_table),
        T(test_table_when_given_by_path_then_its_form),
        T(test_name_when_at_the_limits_then_hps_rule),
        T(test_label_when_a_number_or_no_path_then_not_valid),
        T(test_fingerprint_when_any_file_changes_then_another),
        T(test_open_when_safetensors_then_each_matrix_is_a_table),
        T(test_open_when_a_directory_is_named_like_a_part_then_only_files_are_parts),
        T(test_open_when_a_directory_is_named_safetensors_then_its_manifest_counts),
        T(test_open_when_rows_of_floats_have_a_bias_then_it_is_a_table),
        T(test_all_when_memory_fails_then_survived),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
