/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/threads.md shows the table of locks as it is, and the table is one that can be read.
 */
#include "base/lock_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE_BYTES_MAX = 1024 * 1024 };

static char page[PAGE_BYTES_MAX];

static int setup(void **state)
{
    (void)state;
    FILE *file = fopen(HPS_SOURCE_DIR "/docs/threads.md", "r");
    assert_non_null(file);
    size_t size = fread(page, 1, sizeof(page) - 1, file);
    (void)fclose(file);
    page[size] = '\0';
    return 0;
}

static void test_doc_when_made_anew_then_in_the_committed_page(void **state)
{
    (void)state;
    struct hps_buf buf;
    hps_buf_init(&buf, PAGE_BYTES_MAX);
    hps_buf_put(&buf, "<!-- Made by gen-docs from base/lock_table.def. Do not edit. -->\n");
    hps_lock_doc(&buf);
    hps_buf_put(&buf, "<!-- The end of what gen-docs made. -->\n");
    hps_buf_put_bytes(&buf, "", 1);
    assert_int_equal(buf.status, HPS_OK);
    if (strstr(page, (const char *)buf.data) == NULL) {
        fail_msg("docs/threads.md is stale: run build/bin/gen-docs docs");
    }
    hps_buf_fini(&buf);
}

static void test_table_when_read_then_by_rank_and_in_words(void **state)
{
    (void)state;
    unsigned rank = 1;
    for (unsigned i = HPS_LOCK_NONE + 1; i < HPS_LOCK_CLASSES; i++) {
        const struct hps_lock_row *row = &hps_lock_rows[i];
        assert_true(row->rank >= rank);
        assert_true(row->label[0] != '\0' && row->protects[0] != '\0' && row->takers[0] != '\0');
        rank = row->rank;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doc_when_made_anew_then_in_the_committed_page),
        cmocka_unit_test(test_table_when_read_then_by_rank_and_in_words),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
