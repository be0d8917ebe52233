/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/config.md is what the table of options says.
 */
#include "tests/unit/config/config_test.h"

#include <stdlib.h>

#include "config/options.h"

static void test_doc_when_regenerated_then_the_committed_file(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 1024 * 1024);
    assert_int_equal(hps_config_doc(&buf), HPS_OK);
    FILE *file = fopen(HPS_SOURCE_DIR "/docs/config.md", "r");
    assert_non_null(file);
    char *text = test_malloc(buf.size + 2);
    size_t size = fread(text, 1, buf.size + 1, file);
    (void)fclose(file);
    if (size != buf.size || memcmp(text, buf.data, size) != 0) {
        fail_msg("docs/config.md is stale: run gen-config-doc > docs/config.md");
    }
    test_free(text);
    hps_buf_fini(&buf);
}

static void test_doc_when_printed_then_every_option_is_in_it(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, 1024 * 1024);
    assert_int_equal(hps_config_doc(&buf), HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        char cell[80];
        (void)snprintf(cell, sizeof(cell), "| `%s`", hps_options[i].name);
        assert_non_null(strstr((const char *)buf.data, cell));
    }
    hps_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doc_when_regenerated_then_the_committed_file),
        cmocka_unit_test(test_doc_when_printed_then_every_option_is_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
