/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a configuration will take in the persistent store.
 */
#include "server/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/tmpdir.h"

enum { N_ROWS = 1000, DIM = 32 };

static void write_table(struct hps_tmpdir *dir)
{
    static int64_t keys[N_ROWS];
    static float rows[N_ROWS * DIM];
    for (int64_t i = 0; i < N_ROWS; i++) {
        keys[i] = i;
    }
    hps_tmpdir_mkdir(dir, "items");
    hps_tmpdir_write(dir, "items/key", keys, sizeof(keys));
    hps_tmpdir_write(dir, "items/emb_vector", rows, sizeof(rows));
}

static void test_bytes_when_rows_are_converted_then_those_that_are_stored_count(void **state)
{
    (void)state;
    static const struct {
        const char *path, *row_dtype;
        uint64_t row_bytes; /* 0: no rows */
    } cases[] = {{"items", "file", 4 * DIM},
                 {"items", "fp16", 2 * DIM},
                 {"items", "int8_rowwise_f32", DIM + 8},
                 {"none", "file", 0}};
    struct hps_tmpdir dir;
    hps_tmpdir_open(&dir);
    write_table(&dir);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        struct hps_config *config = NULL;
        struct hps_error err = {0};
        (void)snprintf(text, sizeof(text),
                       "{\"supportlonglong\":true,\"models\":[{\"model\":\"m\",\"sparse_files\":"
                       "[\"%s\"],\"embedding_vecsize_per_table\":[%d],\"row_dtype\":\"%s\","
                       "\"deployed_device_list\":[0],"
                       "\"default_value_for_each_table\":[0.5]}]}",
                       hps_tmpdir_join(&dir, cases[i].path), DIM, cases[i].row_dtype);
        if (hps_config_parse(text, strlen(text), "ps.json", &config, NULL, &err) != HPS_OK) {
            fail_msg("%s", err.text);
        }
        uint64_t bytes = cases[i].row_bytes == 0 ? 0 : N_ROWS * (cases[i].row_bytes + 24);
        assert_int_equal(hps_check_store_bytes(config), bytes + bytes / 8); /* in aligned blocks */
        hps_config_free(config);
    }
    hps_tmpdir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_when_rows_are_converted_then_those_that_are_stored_count),
    };
    return cmocka_run_group_tests_name("server_check", tests, NULL, NULL);
}
