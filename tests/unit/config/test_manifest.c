/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.json: there and back, each wrong field refused by name, and checked against files.
 */
#include "config/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rows/crc32c.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static void put(const char *text)
{
    hps_tmpdir_write(&dir, "manifest.json", text, strlen(text));
}

static const char *path_of(void)
{
    return hps_tmpdir_join(&dir, "manifest.json");
}

/* Literals that the writer only reads. */
#define TEXT(literal) ((char[]){literal})

static void test_manifest_when_written_then_read_back(void **state)
{
    (void)state;
    struct hps_manifest_file files[2] = {
        {.name = TEXT("a/key"), .bytes = 80, .bytes_known = true},
        {.name = TEXT("a/emb_vector"), .crc32c = 0xfedcba98, .crc32c_known = true}};
    struct hps_manifest_table tables[2] = {{.name = TEXT("a"),
                                            .dim = 128,
                                            .dtype = HPS_DTYPE_FP16,
                                            .n_rows = 10,
                                            .n_rows_known = true,
                                            .files = files,
                                            .n_files = 2},
                                           {.name = TEXT("b")}};
    struct hps_manifest_position position = {.cluster = TEXT("c-\"1\""),
                                             .topic = TEXT("hps_et.m.a"),
                                             .partition = 7,
                                             .offset = INT64_MAX};
    struct hps_manifest written = {.lineage = TEXT("run7"),
                                   .tables = tables,
                                   .n_tables = 2,
                                   .positions = &position,
                                   .n_positions = 1};
    struct hps_manifest read = {0};
    assert_int_equal(hps_manifest_write(&written, path_of(), NULL), HPS_OK);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 1);
    assert_int_equal(hps_manifest_read(path_of(), &read, NULL), HPS_OK);
    assert_string_equal(read.lineage, "run7");
    assert_int_equal(read.n_tables, 2);
    const struct hps_manifest_table *a = hps_manifest_find(&read, "a");
    assert_ptr_equal(a, &read.tables[0]);
    assert_int_equal(a->dim, 128);
    assert_int_equal(a->dtype, HPS_DTYPE_FP16);
    assert_true(a->n_rows_known && a->n_rows == 10);
    assert_int_equal(a->n_files, 2);
    assert_string_equal(a->files[0].name, "a/key");
    assert_true(a->files[0].bytes_known && a->files[0].bytes == 80 && !a->files[0].crc32c_known);
    assert_true(a->files[1].crc32c_known && a->files[1].crc32c == 0xfedcba98);
    assert_true(!a->files[1].bytes_known);
    const struct hps_manifest_table *b = hps_manifest_find(&read, "b");
    assert_true(b->dim == 0 && b->dtype == 0 && !b->n_rows_known && b->n_files == 0);
    assert_null(hps_manifest_find(&read, "c"));
    assert_int_equal(read.n_positions, 1);
    assert_string_equal(read.positions[0].cluster, "c-\"1\"");
    assert_string_equal(read.positions[0].topic, "hps_et.m.a");
    assert_int_equal(read.positions[0].partition, 7);
    assert_true(read.positions[0].offset == INT64_MAX);
    hps_manifest_close(&read);
    hps_manifest_close(&read);
}

static void test_manifest_when_rows_are_of_any_type_then_read_back(void **state)
{
    (void)state;
    for (unsigned dtype = HPS_DTYPE_FP32; dtype < HPS_DTYPE_STORED_END; dtype++) {
        struct hps_manifest_table table = {.name = TEXT("a"), .dtype = (enum hps_dtype)dtype};
        const struct hps_manifest written = {.tables = &table, .n_tables = 1};
        struct hps_manifest read = {0};
        assert_int_equal(hps_manifest_write(&written, path_of(), NULL), HPS_OK);
        assert_int_equal(hps_manifest_read(path_of(), &read, NULL), HPS_OK);
        assert_int_equal(read.tables[0].dtype, dtype);
        hps_manifest_close(&read);
    }
}

static void test_read_when_field_is_wrong_then_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *text;
    } cases[] = {
        {"", "line "},
        {"{", "line "},
        {"[]", "top level: expected an object"},
        {"{\"a\": 1, \"a\": 2}", "line "},
        {"{}", "tables: expected an array of 1 to 4096"},
        {"{\"tables\": []}", "tables: expected"},
        {"{\"tables\": 1}", "tables: expected an array"},
        {"{\"tables\": [1]}", "tables[0].name"},
        {"{\"tables\": [{\"name\": \"a/b\"}]}", "tables[0].name: expected 1 to 120"},
        {"{\"tables\": [{\"name\": \"a\"}, {\"name\": \"a\"}]}", "table 'a' twice"},
        {"{\"tables\": [{\"name\": \"a\", \"dim\": 0}]}",
         "tables[0].dim: expected an integer from 1"},
        {"{\"tables\": [{\"name\": \"a\", \"dim\": 65537}]}", "tables[0].dim"},
        {"{\"tables\": [{\"name\": \"a\", \"dim\": 1.5}]}", "tables[0].dim"},
        {"{\"tables\": [{\"name\": \"a\", \"rows\": -1}]}", "tables[0].rows"},
        {"{\"tables\": [{\"name\": \"a\", \"dtype\": \"int8\"}]}", "tables[0].dtype"},
        {"{\"tables\": [{\"name\": \"a\", \"dtype\": \"raw\"}]}", "tables[0].dtype"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": {}}]}", "tables[0].files"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{}]}]}", "tables[0].files[0].name"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"/etc/passwd\"}]}]}", "relative"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"../x\"}]}]}", "relative"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"x/../../y\"}]}]}", "relative"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"x/..\"}]}]}", "relative"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"\"}]}]}", "relative"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"x\", "
         "\"crc32c\": \"1234567g\"}]}]}",
         "files[0].crc32c: expected 8 hex"},
        {"{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"x\", \"crc32c\": \"123\"}]}]}",
         "files[0].crc32c"},
        {"{\"tables\": [{\"name\": \"a\"}], \"lineage\": 3}", "lineage: expected a string"},
        {"{\"tables\": [{\"name\": \"a\"}], \"format\": \"zip\"}", "format: expected"},
        {"{\"tables\": [{\"name\": \"a\"}], \"start_positions\": [{}]}",
         "start_positions[0].topic"},
        {"{\"tables\": [{\"name\": \"a\"}], \"start_positions\": [{\"topic\": \"t\"}]}",
         "start_positions[0].partition"},
        {"{\"tables\": [{\"name\": \"a\"}], \"start_positions\": [{\"topic\": \"t\", "
         "\"partition\": 1}]}",
         "start_positions[0].offset"},
        {"{\"tables\": [{\"name\": \"a\"}], \"start_positions\": [{\"topic\": \"t\", "
         "\"partition\": -1}]}",
         "start_positions[0].partition"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_manifest manifest = {.n_positions = 42};
        struct hps_error err = {0};
        put(cases[i].json);
        assert_int_equal(hps_manifest_read(path_of(), &manifest, &err), HPS_INVALID);
        assert_int_equal(manifest.n_positions, 42);
        assert_non_null(strstr(err.text, "manifest.json"));
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("case %zu: '%s' is not in '%s'", i, cases[i].text, err.text);
        }
    }
}

static void test_read_when_absent_or_newer_then_told(void **state)
{
    (void)state;
    struct hps_manifest manifest = {0};
    struct hps_error err = {0};
    assert_int_equal(hps_manifest_read(path_of(), &manifest, &err), HPS_NOT_FOUND);
    put("{\"version\": 2, \"tables\": [{\"name\": \"a\"}]}");
    assert_int_equal(hps_manifest_read(path_of(), &manifest, &err), HPS_NEWER_FORMAT);
    put("{\"version\": 1, \"more\": [1, 2], \"tables\": [{\"name\": \"a\", \"color\": 3}]}");
    assert_int_equal(hps_manifest_read(path_of(), &manifest, &err), HPS_OK); /* unknown: ignored */
    hps_manifest_close(&manifest);
}

static void test_dle_when_read_then_tables_by_number(void **state)
{
    (void)state;
    struct hps_manifest manifest = {0};
    put("{\"categorical_cardinalities\": [10, 20], \"embedding_dim\": [4, 8], \"x\": null}");
    assert_int_equal(hps_manifest_read_dle(path_of(), &manifest, NULL), HPS_OK);
    assert_string_equal(manifest.file, "config.json");
    assert_int_equal(manifest.n_tables, 2);
    assert_string_equal(manifest.tables[1].name, "feature_1");
    assert_int_equal(manifest.tables[1].dim, 8);
    assert_int_equal(manifest.tables[1].n_rows, 20);
    hps_manifest_close(&manifest);
    put("{\"categorical_cardinalities\": [10, 20], \"embedding_dim\": 16}");
    assert_int_equal(hps_manifest_read_dle(path_of(), &manifest, NULL), HPS_OK);
    assert_int_equal(manifest.tables[1].dim, 16);
    hps_manifest_close(&manifest);
    put("{\"other\": true}");
    assert_int_equal(hps_manifest_read_dle(path_of(), &manifest, NULL), HPS_OK);
    assert_int_equal(manifest.n_tables, 0);
    struct hps_error err = {0};
    put("{\"categorical_cardinalities\": [10, \"x\"]}");
    assert_int_equal(hps_manifest_read_dle(path_of(), &manifest, &err), HPS_INVALID);
    put("{\"categorical_cardinalities\": [10], \"embedding_dim\": [0]}");
    assert_int_equal(hps_manifest_read_dle(path_of(), &manifest, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "embedding_dim"));
}

static void test_open_when_directory_says_nothing_then_no_tables(void **state)
{
    (void)state;
    struct hps_model_dir model = {0};
    struct hps_manifest manifest = {0};
    hps_tmpdir_write(&dir, "feature_0.npy", "x", 1);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(hps_manifest_open(&model, &manifest, NULL), HPS_OK);
    assert_int_equal(manifest.n_tables, 0);
    assert_int_equal(hps_manifest_check_dir(&manifest, &model, NULL), HPS_OK);
    hps_model_dir_close(&model);
    static const char config[] = "{\"categorical_cardinalities\": [3], \"embedding_dim\": [2]}";
    hps_tmpdir_write(&dir, "config.json", config, sizeof(config) - 1);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(hps_manifest_open(&model, &manifest, NULL), HPS_OK);
    assert_int_equal(manifest.n_tables, 1);
    hps_manifest_close(&manifest);
    put("{\"tables\": [{\"name\": \"z\"}]}");
    hps_model_dir_close(&model);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(hps_manifest_open(&model, &manifest, NULL), HPS_OK);
    assert_string_equal(manifest.tables[0].name, "z"); /* manifest.json first */
    hps_manifest_close(&manifest);
    hps_model_dir_close(&model);
}

static void expect_dir(const char *json, hps_status status, const char *text)
{
    struct hps_model_dir model = {0};
    struct hps_manifest manifest = {0};
    struct hps_error err = {0};
    put(json);
    assert_int_equal(hps_model_dir_open(dir.path, NULL, &model, NULL), HPS_OK);
    assert_int_equal(hps_manifest_open(&model, &manifest, NULL), HPS_OK);
    assert_int_equal(hps_manifest_check_dir(&manifest, &model, &err), status);
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
    hps_manifest_close(&manifest);
    hps_model_dir_close(&model);
}

static void test_check_dir_when_tables_or_sizes_differ_then_precondition(void **state)
{
    (void)state;
    hps_tmpdir_write(&dir, "a.npy", "abc", 3);
    expect_dir("{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"a.npy\", "
               "\"bytes\": 3}]}]}",
               HPS_OK, "");
    expect_dir("{\"tables\": [{\"name\": \"b\"}]}", HPS_PRECONDITION,
               "table 'a' has files but is not in manifest.json");
    expect_dir("{\"tables\": [{\"name\": \"a\"}, {\"name\": \"b\"}]}", HPS_PRECONDITION,
               "table 'b' is in manifest.json but has no files");
    expect_dir("{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"a.npy\", "
               "\"bytes\": 4}]}]}",
               HPS_PRECONDITION, "a.npy: 3 bytes, expected 4 as in manifest.json");
    expect_dir("{\"tables\": [{\"name\": \"a\", \"files\": [{\"name\": \"c.npy\", "
               "\"bytes\": 4}]}]}",
               HPS_NOT_FOUND, "c.npy");
}

static void test_check_table_when_facts_differ_then_precondition(void **state)
{
    (void)state;
    struct hps_manifest_table table = {
        .name = TEXT("a"), .dim = 4, .dtype = HPS_DTYPE_FP32, .n_rows = 9, .n_rows_known = true};
    struct hps_manifest manifest = {.file = "config.json", .tables = &table, .n_tables = 1};
    const struct hps_row_desc good = {/* read as another type: the files are what is compared */
                                      .n_rows = 9,
                                      .dim = 4,
                                      .dtype = HPS_DTYPE_BF16,
                                      .file_dtype = HPS_DTYPE_FP32};
    struct hps_row_desc desc = good;
    struct hps_error err = {0};
    assert_int_equal(hps_manifest_check_table(&manifest, "a", &desc, &err), HPS_OK);
    assert_int_equal(hps_manifest_check_table(&manifest, "b", &desc, &err), HPS_OK);
    desc.n_rows = 8;
    assert_int_equal(hps_manifest_check_table(&manifest, "a", &desc, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "8 rows, expected 9 as in config.json"));
    desc = good;
    desc.dim = 5;
    assert_int_equal(hps_manifest_check_table(&manifest, "a", &desc, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "5 values per row, expected 4 as in config.json"));
    assert_null(strstr(err.text, "4 bytes"));
    desc.form = HPS_ROW_FORM_HUGECTR;
    desc.dim = 8;
    assert_int_equal(hps_manifest_check_table(&manifest, "a", &desc, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "looks like keys of 4 bytes"));
    desc = good;
    desc.file_dtype = HPS_DTYPE_INT8_ROWWISE_F16;
    assert_int_equal(hps_manifest_check_table(&manifest, "a", &desc, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "rows of int8_rowwise_f16, expected fp32"));
}

static void test_check_files_when_one_bit_flips_then_data_loss(void **state)
{
    (void)state;
    char data[] = "some bytes of a model file";
    struct hps_manifest_file file = {
        .name = TEXT("f"), .crc32c = hps_crc32c(0, data, sizeof(data)), .crc32c_known = true};
    struct hps_manifest_table table = {.name = TEXT("a"), .files = &file, .n_files = 1};
    struct hps_manifest manifest = {.tables = &table, .n_tables = 1};
    struct hps_error err = {0};
    atomic_bool cancel = false;
    hps_tmpdir_write(&dir, "f", data, sizeof(data));
    assert_int_equal(hps_manifest_check_files(&manifest, "a", NULL, dir.path, &cancel, &err),
                     HPS_OK);
    assert_int_equal(hps_manifest_check_files(&manifest, "b", NULL, dir.path, &cancel, &err),
                     HPS_OK);
    data[7] ^= 1;
    hps_tmpdir_write(&dir, "f", data, sizeof(data));
    assert_int_equal(hps_manifest_check_files(&manifest, "a", NULL, dir.path, NULL, &err),
                     HPS_DATA_LOSS);
    assert_non_null(strstr(err.text, "/f: CRC-32C"));
    atomic_store(&cancel, true);
    assert_int_equal(hps_manifest_check_files(&manifest, "a", NULL, dir.path, &cancel, &err),
                     HPS_CANCELLED);
}

static void test_write_when_directory_absent_then_error(void **state)
{
    (void)state;
    struct hps_manifest manifest = {0};
    struct hps_error err = {0};
    assert_int_equal(hps_manifest_write(&manifest, "/no/such/place/manifest.json", &err),
                     HPS_NOT_FOUND);
    struct hps_manifest_table table = {.name = TEXT("\xff")};
    manifest = (struct hps_manifest){.tables = &table, .n_tables = 1};
    assert_int_not_equal(hps_manifest_write(&manifest, path_of(), &err), HPS_OK);
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 0);
}

static void read_and_write(void *ctx)
{
    (void)ctx;
    struct hps_manifest manifest = {0};
    hps_status status = hps_manifest_read(path_of(), &manifest, NULL);
    if (status == HPS_OK) {
        status = hps_manifest_write(&manifest, path_of(), NULL);
    }
    hps_manifest_close(&manifest);
    if (status == HPS_OK) {
        status = hps_manifest_read_dle(hps_tmpdir_join(&dir, "config.json"), &manifest, NULL);
    }
    hps_manifest_close(&manifest);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_all_when_memory_fails_then_survived(void **state)
{
    (void)state;
    static const char config[] = "{\"categorical_cardinalities\": [3], \"embedding_dim\": [2]}";
    hps_tmpdir_write(&dir, "config.json", config, sizeof(config) - 1);
    put("{\"lineage\": \"l\", \"tables\": [{\"name\": \"a\", \"dtype\": \"fp32\", \"files\":"
        " [{\"name\": \"x\", \"crc32c\": \"00000001\"}]}],"
        " \"start_positions\": [{\"topic\": \"t\", \"partition\": 0, \"offset\": 1}]}");
    assert_true(hps_fault_heap_run(read_and_write, NULL) > 10);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_manifest_when_written_then_read_back),
        T(test_manifest_when_rows_are_of_any_type_then_read_back),
        T(test_read_when_field_is_wrong_then_refused_by_name),
        T(test_read_when_absent_or_newer_then_told),
        T(test_dle_when_read_then_tables_by_number),
        T(test_open_when_directory_says_nothing_then_no_tables),
        T(test_check_dir_when_tables_or_sizes_differ_then_precondition),
        T(test_check_table_when_facts_differ_then_precondition),
        T(test_check_files_when_one_bit_flips_then_data_loss),
        T(test_write_when_directory_absent_then_error),
        T(test_all_when_memory_fails_then_survived),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
