/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files a load reads: several paths to the same files, and tables that are named one by
 * one.
 */
#include "server/load/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/tmpdir.h"

static void write_hugectr(struct hps_tmpdir *dir, const char *name)
{
    const int64_t keys[] = {1, 2};
    const float rows[] = {1, 2, 3, 4};
    char file[64];
    hps_tmpdir_mkdir(dir, name);
    (void)snprintf(file, sizeof(file), "%s/key", name);
    hps_tmpdir_write(dir, file, keys, sizeof(keys));
    (void)snprintf(file, sizeof(file), "%s/emb_vector", name);
    hps_tmpdir_write(dir, file, rows, sizeof(rows));
}

static void test_canonical_when_paths_differ_then_one_canonical_path(void **state)
{
    (void)state;
    static const char *const ways[] = {"models/one", "models/one/", "models//one", "link/one",
                                       "models/../link/./one"};
    struct hps_tmpdir dir;
    char expected[PATH_MAX], root[PATH_MAX], path[PATH_MAX];
    hps_tmpdir_open(&dir);
    hps_tmpdir_mkdir(&dir, "models");
    assert_int_equal(symlink(hps_tmpdir_join(&dir, "models"), hps_tmpdir_join(&dir, "link")), 0);
    assert_non_null(realpath(dir.path, root));
    (void)snprintf(expected, sizeof(expected), "%.500s/models/one", root);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        assert_true(hps_source_canonical(hps_tmpdir_join(&dir, ways[i]), path));
        assert_string_equal(path, expected);
    }
    assert_false(hps_source_canonical(hps_tmpdir_join(&dir, "nowhere/one"), path));
    assert_string_equal(path, hps_tmpdir_join(&dir, "nowhere/one"));
    assert_false(hps_source_canonical(hps_tmpdir_join(&dir, "models/one/.."), path));
    assert_true(hps_source_canonical(hps_tmpdir_join(&dir, "link/."), path));
    assert_memory_equal(path, expected, strlen(expected) - strlen("/one"));
    assert_true(hps_source_canonical("/", path));
    assert_string_equal(path, "/");
    assert_true(hps_source_canonical("x", path));
    assert_int_equal(path[0], '/');
    hps_tmpdir_close(&dir);
}

static void test_tables_when_named_then_they_have_names_order_and_a_print_for_any_path(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    struct hps_source source, other;
    struct hps_error err;
    char resolved[2][PATH_MAX], ways[2][PATH_MAX];
    hps_tmpdir_open(&dir);
    hps_tmpdir_mkdir(&dir, "models");
    write_hugectr(&dir, "models/dlrm0_sparse_2000.model");
    write_hugectr(&dir, "models/dlrm1_sparse_2000.model");
    assert_int_equal(symlink(hps_tmpdir_join(&dir, "models"), hps_tmpdir_join(&dir, "link")), 0);
    for (unsigned i = 0; i < 2; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "link/dlrm%u_sparse_2000.model", i);
        (void)snprintf(ways[i], PATH_MAX, "%s", hps_tmpdir_join(&dir, name));
        assert_true(hps_source_canonical(ways[i], resolved[i]));
    }
    const struct hps_source_named by_link[] = {{.name = "users", .path = ways[0]},
                                               {.name = "items", .path = ways[1]}};
    const struct hps_source_named by_path[] = {{.name = "users", .path = resolved[0]},
                                               {.name = "items", .path = resolved[1]}};
    const struct hps_source_named swapped[] = {{.name = "items", .path = ways[0]},
                                               {.name = "users", .path = ways[1]}};
    assert_int_equal(hps_source_open_tables(NULL, by_link, 2, NULL, &source, &err), HPS_OK);
    assert_int_equal(source.n_tables, 2);
    assert_string_equal(source.tables[0].files.name, "users");
    assert_string_equal(source.tables[1].files.name, "items");
    assert_int_equal(hps_source_open_tables(NULL, by_path, 2, NULL, &other, &err), HPS_OK);
    assert_string_not_equal(source.print.text, other.print.text);
    assert_string_equal(source.canonical.text, other.print.text);
    assert_string_equal(other.canonical.text, other.print.text);
    hps_source_close(&other);
    assert_int_equal(hps_source_open_tables(NULL, swapped, 2, NULL, &other, &err), HPS_OK);
    assert_string_not_equal(source.print.text, other.print.text);
    assert_string_not_equal(source.canonical.text, other.canonical.text);
    hps_source_close(&other);
    hps_source_close(&source);
    hps_tmpdir_close(&dir);
}

static void test_tables_when_none_or_a_name_twice_then_refused(void **state)
{
    (void)state;
    const struct hps_source_named twice[] = {
        {.name = "a", .path = "/x"}, {.name = "b", .path = "/y"}, {.name = "a", .path = "/z"}};
    struct hps_source source;
    struct hps_error err;
    assert_int_equal(hps_source_open_tables(NULL, twice, 0, NULL, &source, &err), HPS_INVALID);
    assert_int_equal(
        hps_source_open_tables(NULL, twice, HPS_MODEL_TABLES_MAX + 1, NULL, &source, &err),
        HPS_INVALID);
    assert_int_equal(hps_source_open_tables(NULL, twice, 3, NULL, &source, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "\"a\" twice: /x and /z"));
    assert_int_equal(hps_source_open_tables(NULL, twice, 2, NULL, &source, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, "table \"a\""));
}

/* A model directory that another user writes. */
static void test_config_when_a_file_of_it_is_a_link_out_then_refused(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    struct hps_source source;
    struct hps_error err;
    char path[PATH_MAX], rows[PATH_MAX], roots_path[PATH_MAX];
    hps_tmpdir_open(&dir);
    hps_tmpdir_mkdir(&dir, "models");
    hps_tmpdir_mkdir(&dir, "disk");
    hps_tmpdir_mkdir(&dir, "disk/2");
    hps_tmpdir_write(&dir, "secret", "0123456789abcdef", 16);
    write_hugectr(&dir, "disk/2/t");
    (void)snprintf(path, PATH_MAX, "%s", hps_tmpdir_join(&dir, "models/t"));
    (void)snprintf(rows, PATH_MAX, "%s", hps_tmpdir_join(&dir, "disk/2/t/emb_vector"));
    (void)snprintf(roots_path, PATH_MAX, "%s", hps_tmpdir_join(&dir, "models"));
    assert_int_equal(symlink("../disk/2/t", path), 0);
    struct hps_config_table table = {.name = (char[]){"t"}, .path = path, .dim = 2};
    struct hps_config_model model = {.tables = &table, .n_tables = 1};
    char *items[] = {roots_path};
    const struct hps_strings roots = {.items = items, .n = 1};
    /* The operator chose this path, so its links are followed. */
    assert_int_equal(hps_source_open_config(&roots, &model, &source, &err), HPS_OK);
    /* Links inside the directory must stay in it, at the open and later. */
    assert_int_equal(unlink(rows), 0);
    assert_int_equal(symlink("../../../secret", rows), 0);
    assert_int_equal(hps_source_check_unchanged(&source.tables[0], &err), HPS_PERMISSION);
    hps_source_close(&source);
    assert_int_equal(hps_source_open_config(&roots, &model, &source, &err), HPS_PERMISSION);
    assert_non_null(strstr(err.text, "server.model_roots"));
    /* Blobs that versions share may be next to them or in another root. */
    assert_int_equal(unlink(rows), 0);
    hps_tmpdir_write(&dir, "disk/2/blob", "0123456789abcdef", 16);
    assert_int_equal(symlink("../blob", rows), 0);
    assert_int_equal(hps_source_open_config(&roots, &model, &source, &err), HPS_OK);
    hps_source_close(&source);
    assert_int_equal(unlink(rows), 0);
    hps_tmpdir_write(&dir, "models/blob", "0123456789abcdef", 16);
    assert_int_equal(symlink("../../../models/blob", rows), 0);
    assert_int_equal(hps_source_open_config(&roots, &model, &source, &err), HPS_OK);
    hps_source_close(&source);
    hps_tmpdir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical_when_paths_differ_then_one_canonical_path),
        cmocka_unit_test(
            test_tables_when_named_then_they_have_names_order_and_a_print_for_any_path),
        cmocka_unit_test(test_config_when_a_file_of_it_is_a_link_out_then_refused),
        cmocka_unit_test(test_tables_when_none_or_a_name_twice_then_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
