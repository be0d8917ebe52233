/* SPDX-License-Identifier: Apache-2.0
 *
 * The state directory, also one in which somebody has put links.
 */
#include "server/state_dir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static struct hps_error err;

static hps_status open_state(struct hps_state_dir *out_state)
{
    return hps_state_dir_open(hps_tmpdir_join(&dir, "up/state"), out_state, &err);
}

static void test_open_when_new_then_it_is_made_and_has_one_user_and_one_name(void **state)
{
    (void)state;
    static const char *const files[] = {"up/state/lock", "up/state/instance"};
    struct hps_state_dir first, second;
    struct stat info;
    assert_int_equal(open_state(&first), HPS_OK);
    assert_string_equal(first.spill, hps_tmpdir_join(&dir, "up/state/tmp"));
    assert_int_equal(stat(first.spill, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(stat(hps_tmpdir_join(&dir, files[i]), &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
    }
    assert_int_equal(open_state(&second), HPS_BUSY);
    char pid[32];
    (void)snprintf(pid, sizeof(pid), "(pid %d)", (int)getpid());
    assert_non_null(strstr(err.text, pid));
    hps_state_dir_close(&first);
    assert_int_equal(open_state(&second), HPS_OK);
    assert_string_equal(second.instance, first.instance);
    hps_state_dir_close(&second);
    hps_tmpdir_write(&dir, "up/state/instance", "half of", 7); /* of a crash */
    assert_int_equal(open_state(&second), HPS_OK);
    assert_int_equal(strlen(second.instance), HPS_INSTANCE_CHARS);
    assert_string_not_equal(second.instance, first.instance);
    hps_state_dir_close(&second);
}

static void test_open_when_there_is_a_link_then_refused_and_its_target_is_as_it_was(void **state)
{
    (void)state;
    static const char *const names[] = {"lock", "tmp", "instance"};
    struct hps_state_dir opened;
    struct stat info;
    hps_tmpdir_mkdir(&dir, "up");
    hps_tmpdir_mkdir(&dir, "up/state");
    hps_tmpdir_write(&dir, "victim", "precious", 8);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "up/state/%s", names[i]);
        (void)unlink(hps_tmpdir_join(&dir, name));
        assert_int_equal(symlink("../../victim", hps_tmpdir_join(&dir, name)), 0);
        assert_int_equal(open_state(&opened), HPS_PERMISSION);
        assert_non_null(strstr(err.text, names[i]));
        assert_int_equal(stat(hps_tmpdir_join(&dir, "victim"), &info), 0);
        assert_int_equal(info.st_size, 8);
        assert_int_equal(unlink(hps_tmpdir_join(&dir, name)), 0);
    }
    assert_int_equal(open_state(&opened), HPS_OK);
    hps_state_dir_close(&opened);
}

static void test_open_when_root_and_the_directory_is_of_another_user_then_refused(void **state)
{
    (void)state;
    struct hps_state_dir opened;
    if (geteuid() != 0) {
        skip();
    }
    hps_tmpdir_mkdir(&dir, "up");
    hps_tmpdir_mkdir(&dir, "up/state");
    assert_int_equal(chown(hps_tmpdir_join(&dir, "up/state"), 4321, 4321), 0);
    assert_int_equal(open_state(&opened), HPS_INVALID);
    assert_non_null(strstr(err.text, "user 4321"));
    assert_int_equal(hps_tmpdir_entries(&dir, "up/state"), 0);
}

static void open_and_close(void *ctx)
{
    (void)ctx;
    struct hps_state_dir opened;
    hps_status status = open_state(&opened);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    if (status == HPS_OK) {
        hps_state_dir_close(&opened);
    }
}

static void test_open_when_memory_fails_then_survived(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(open_and_close, NULL) >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_open_when_new_then_it_is_made_and_has_one_user_and_one_name),
        TEST(test_open_when_there_is_a_link_then_refused_and_its_target_is_as_it_was),
        TEST(test_open_when_root_and_the_directory_is_of_another_user_then_refused),
        TEST(test_open_when_memory_fails_then_survived),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
