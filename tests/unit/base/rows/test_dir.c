/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories in which another user may have put links. No link is followed, and root acts as
 * the owner of the directory.
 */
#include "base/rows/dir.h"

#include <fcntl.h>
#include <grp.h>
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
#include "tests/lib/tmpdir.h"

enum { OTHER = 4321 }; /* a user id */

struct rig {
    struct hps_tmpdir tmp;
    struct hps_dir dir; /* tmp/state */
    struct hps_error err;
};

static struct rig rig;

static const char *at(const char *name)
{
    return hps_tmpdir_join(&rig.tmp, name);
}

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    hps_tmpdir_open(&rig.tmp);
    hps_tmpdir_mkdir(&rig.tmp, "state");
    hps_tmpdir_mkdir(&rig.tmp, "victim");
    hps_tmpdir_write(&rig.tmp, "victim/file", "kept", 4);
    assert_int_equal(hps_dir_open(at("state"), &rig.dir, &rig.err), HPS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_dir_close(&rig.dir);
    hps_tmpdir_close(&rig.tmp);
    return 0;
}

static hps_status open_file(const char *name, int flags)
{
    int fd = -1;
    hps_status status = hps_dir_open_file(&rig.dir, name, flags, &fd, &rig.err);
    if (status == HPS_OK) {
        assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
        close(fd);
    }
    return status;
}

static void test_file_when_it_is_a_link_then_refused(void **state)
{
    (void)state;
    struct stat info;
    assert_int_equal(symlink("../victim/file", at("state/lock")), 0);
    assert_int_equal(symlink("../victim/new", at("state/dangling")), 0);
    assert_int_equal(open_file("lock", O_RDWR | O_CREAT), HPS_PERMISSION);
    assert_non_null(strstr(rig.err.text, "state/lock"));
    assert_non_null(strstr(rig.err.text, "symbolic link"));
    assert_int_equal(open_file("dangling", O_RDWR | O_CREAT), HPS_PERMISSION);
    assert_int_not_equal(access(at("victim/new"), F_OK), 0);
    assert_true(hps_dir_has(&rig.dir, "dangling"));
    assert_false(hps_dir_has(&rig.dir, "absent"));
    assert_int_equal(open_file("absent", O_RDONLY), HPS_NOT_FOUND);
    assert_int_equal(open_file("made", O_RDWR | O_CREAT | O_EXCL), HPS_OK);
    assert_int_equal(open_file("made", O_RDWR | O_CREAT | O_EXCL), HPS_EXISTS);
    assert_int_equal(stat(at("state/made"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(mkfifo(at("state/fifo"), 0600), 0);
    assert_int_equal(open_file("fifo", O_RDONLY), HPS_INVALID); /* and does not block */
}

static void test_directory_when_it_is_a_link_then_refused(void **state)
{
    (void)state;
    struct hps_dir in = {.fd = -1};
    assert_int_equal(symlink("../victim", at("state/tmp")), 0);
    assert_int_equal(hps_dir_open_in(&rig.dir, "tmp", true, &in, &rig.err), HPS_PERMISSION);
    assert_int_equal(hps_dir_open_in(&rig.dir, "absent", false, &in, &rig.err), HPS_NOT_FOUND);
    assert_int_equal(hps_dir_open_in(&rig.dir, "made", true, &in, &rig.err), HPS_OK);
    assert_string_equal(in.path, at("state/made"));
    hps_dir_close(&in);
    assert_int_equal(hps_dir_open_in(&rig.dir, "made", true, &in, &rig.err), HPS_OK);
    hps_dir_close(&in);
    hps_dir_close(&in);
}

static void test_remove_when_there_are_links_then_their_targets_stay(void **state)
{
    (void)state;
    assert_int_equal(symlink("../victim", at("state/link")), 0);
    assert_int_equal(hps_dir_remove(&rig.dir, "link", &rig.err), HPS_OK);
    hps_tmpdir_mkdir(&rig.tmp, "state/tree");
    hps_tmpdir_mkdir(&rig.tmp, "state/tree/deeper");
    hps_tmpdir_write(&rig.tmp, "state/tree/deeper/file", "x", 1);
    assert_int_equal(symlink("../../../victim", at("state/tree/deeper/link")), 0);
    assert_int_equal(hps_dir_remove(&rig.dir, "tree", &rig.err), HPS_OK);
    assert_int_equal(hps_dir_remove(&rig.dir, "tree", &rig.err), HPS_OK);
    assert_int_equal(hps_tmpdir_entries(&rig.tmp, "state"), 0);
    assert_int_equal(access(at("victim/file"), F_OK), 0);
}

static void test_rename_when_the_new_name_is_a_link_then_the_link_is_replaced(void **state)
{
    (void)state;
    hps_tmpdir_write(&rig.tmp, "state/new", "x", 1);
    assert_int_equal(symlink("../victim/file", at("state/name")), 0);
    assert_int_equal(hps_dir_rename(&rig.dir, "new", "name", &rig.err), HPS_OK);
    assert_int_equal(open_file("name", O_RDONLY), HPS_OK);
    assert_int_equal(hps_dir_rename(&rig.dir, "absent", "name", &rig.err), HPS_NOT_FOUND);
}

static void expect_way(const char *name, hps_status status)
{
    struct hps_dir dir = {.fd = -1};
    assert_int_equal(hps_dir_open(at(name), &dir, &rig.err), status);
    hps_dir_close(&dir);
}

static void test_open_when_the_path_has_links_then_root_refuses_links_of_other_users(void **state)
{
    (void)state;
    assert_int_equal(symlink("state", at("relative")), 0);
    assert_int_equal(symlink(at("relative"), at("absolute")), 0);
    assert_int_equal(symlink("loop", at("loop")), 0);
    expect_way("relative", HPS_OK);
    expect_way("absolute/../victim//.", HPS_OK);
    expect_way("absent/state", HPS_NOT_FOUND);
    expect_way("victim/file", HPS_IO);
    expect_way("loop", HPS_IO);
    if (geteuid() == 0) {
        assert_int_equal(lchown(at("relative"), OTHER, OTHER), 0);
        expect_way("relative", HPS_PERMISSION);
        assert_non_null(strstr(rig.err.text, "user 4321"));
        expect_way("absolute", HPS_PERMISSION);
    }
}

static void test_make_when_parts_are_missing_then_all_are_created(void **state)
{
    (void)state;
    struct hps_dir dir = {.fd = -1};
    struct stat info;
    assert_int_equal(hps_dir_make(at("a/b/c"), &dir, &rig.err), HPS_OK);
    hps_dir_close(&dir);
    assert_int_equal(stat(at("a/b/c"), &info), 0);
    assert_int_equal(info.st_mode & 07, 0);
    assert_int_equal(hps_dir_make(at("a/b/c/"), &dir, &rig.err), HPS_OK);
    hps_dir_close(&dir);
    assert_int_equal(hps_dir_make(at("victim/file/x"), &dir, &rig.err), HPS_IO);
    assert_int_equal(hps_dir_make("", &dir, &rig.err), HPS_NOT_FOUND);
}

static void test_make_last_when_more_is_missing_or_another_users_link_is_in_the_path_then_fails(
    void **state)
{
    (void)state;
    struct hps_dir dir = {.fd = -1};
    struct stat info;
    assert_int_equal(hps_dir_make_last(at("a/b"), &dir, &rig.err), HPS_NOT_FOUND);
    assert_int_equal(stat(at("a"), &info), -1);
    assert_int_equal(hps_dir_make_last(at("a/"), &dir, &rig.err), HPS_OK);
    hps_dir_close(&dir);
    assert_int_equal(stat(at("a"), &info), 0);
    assert_int_equal(symlink("../victim", at("state/link")), 0);
    if (geteuid() == 0) {
        assert_int_equal(lchown(at("state/link"), OTHER, OTHER), 0);
        assert_int_equal(hps_dir_make_last(at("state/link/x"), &dir, &rig.err), HPS_PERMISSION);
        assert_int_equal(stat(at("victim/x"), &info), -1);
    }
}

static void test_actor_when_root_then_it_is_the_owner_until_the_end(void **state)
{
    (void)state;
    struct hps_dir_actor actor = {0};
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(hps_dir_check_owner(&rig.dir, "option", &rig.err), HPS_OK);
    assert_int_equal(hps_dir_actor_begin(&rig.dir, &actor, &rig.err), HPS_OK);
    assert_false(actor.changed); /* owned by root */
    assert_int_equal(fchown(rig.dir.fd, OTHER, OTHER + 1), 0);
    assert_int_equal(hps_dir_check_owner(&rig.dir, "the.option", &rig.err), HPS_INVALID);
    assert_non_null(strstr(rig.err.text, "the.option"));
    assert_int_equal(chmod(at("victim/file"), 0600), 0);
    int fd = open(at("victim"), O_PATH | O_DIRECTORY);
    assert_int_equal(hps_dir_actor_begin(&rig.dir, &actor, &rig.err), HPS_OK);
    gid_t group = 0;
    assert_int_equal(geteuid(), OTHER);
    assert_int_equal(getegid(), OTHER + 1);
    assert_int_equal(getgroups(1, &group), 1);
    assert_int_equal(group, OTHER + 1);
    assert_int_equal(faccessat(fd, "file", R_OK, AT_EACCESS), -1);
    assert_int_equal(open_file("file", O_RDWR | O_CREAT), HPS_OK);
    hps_dir_actor_end(&actor);
    hps_dir_actor_end(&actor);
    close(fd);
    struct stat info;
    assert_int_equal(geteuid(), 0);
    assert_int_equal(getegid(), 0);
    assert_int_equal(stat(at("state/file"), &info), 0);
    assert_int_equal(info.st_uid, OTHER);
    assert_int_equal(info.st_gid, OTHER + 1);
}

static void scenario(void *ctx)
{
    (void)ctx;
    struct hps_dir dir = {.fd = -1}, in = {.fd = -1};
    hps_status status = hps_dir_make(at("x/y"), &dir, NULL);
    if (status == HPS_OK) {
        status = hps_dir_open_in(&dir, "z", true, &in, NULL);
    }
    if (status == HPS_OK) {
        status = hps_dir_remove(&dir, "z", NULL);
    }
    hps_dir_close(&in);
    hps_dir_close(&dir);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
}

static void test_all_when_memory_fails_then_error_without_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(scenario, NULL) >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_file_when_it_is_a_link_then_refused),
        TEST(test_directory_when_it_is_a_link_then_refused),
        TEST(test_remove_when_there_are_links_then_their_targets_stay),
        TEST(test_rename_when_the_new_name_is_a_link_then_the_link_is_replaced),
        TEST(test_open_when_the_path_has_links_then_root_refuses_links_of_other_users),
        TEST(test_make_when_parts_are_missing_then_all_are_created),
        TEST(test_make_last_when_more_is_missing_or_another_users_link_is_in_the_path_then_fails),
        TEST(test_actor_when_root_then_it_is_the_owner_until_the_end),
        TEST(test_all_when_memory_fails_then_error_without_leak),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
