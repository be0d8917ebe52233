/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/config.md has what the table of options says.
 */
#include "tests/unit/config/config_test.h"

#include "config/options.h"

static struct hps_buf made;

static int setup(void **state)
{
    (void)state;
    hps_buf_init(&made, 1024 * 1024);
    hps_buf_put(&made, "<!-- Made by gen-docs from config/options.def. Do not edit. -->\n");
    hps_config_doc(&made);
    hps_buf_put(&made, "<!-- The end of what gen-docs made. -->\n");
    hps_buf_put_bytes(&made, "", 1);
    assert_int_equal(made.status, HPS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_buf_fini(&made);
    return 0;
}

static void test_doc_when_made_anew_then_in_the_committed_page(void **state)
{
    (void)state;
    static char page[1024 * 1024];
    FILE *file = fopen(HPS_SOURCE_DIR "/docs/config.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
    (void)fclose(file);
    if (strstr(page, (const char *)made.data) == NULL) {
        fail_msg("docs/config.md is stale: run build/bin/gen-docs docs");
    }
}

static void test_doc_when_made_then_every_option_is_in_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        char cell[80];
        (void)snprintf(cell, sizeof(cell), "| `%s`", hps_options[i].name);
        assert_non_null(strstr((const char *)made.data, cell));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doc_when_made_anew_then_in_the_committed_page),
        cmocka_unit_test(test_doc_when_made_then_every_option_is_in_it),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
