/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of the persistent store: what lies in it, its lock, and its disk running full.
 */
#include "backends/rocksdb/dir.h"

// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/lib/tmpdir.h"

enum { FREE_MIN = 4 << 20, DISK = 64 << 20 };

static struct hps_tmpdir tmp;
static struct hps_error error;

static int setup(void **state)
{
    (void)state;
    hps_tmpdir_open(&tmp);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)umount2(tmp.path, MNT_DETACH); /* only mounted in one test */
    hps_tmpdir_close(&tmp);
    return 0;
}

static const char *below(const char *name)
{
    static char path[600];
    (void)snprintf(path, sizeof(path), "%s/%s", tmp.path, name);
    return path;
}

static void file_make(const char *name, off_t bytes)
{
    int fd = open(below(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    if (bytes > 0) {
        assert_int_equal(posix_fallocate(fd, 0, bytes), 0);
    }
    close(fd);
}

static struct hps_rocksdb_dir dir_open(uint64_t disk_free_min_bytes)
{
    struct hps_rocksdb_dir dir;
    if (hps_rocksdb_dir_open(&dir, tmp.path, false, disk_free_min_bytes, &error) != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    return dir;
}

static enum hps_rocksdb_dir_state look(const struct hps_rocksdb_dir *dir)
{
    enum hps_rocksdb_dir_state state = HPS_ROCKSDB_DIR_OTHER;
    assert_int_equal(hps_rocksdb_dir_look(dir, &state, &error), HPS_OK);
    return state;
}

static void test_look_when_files_come_then_says_what_it_is(void **state)
{
    (void)state;
    struct hps_rocksdb_dir dir = dir_open(FREE_MIN);
    struct hps_rocksdb_dir_files files = {0};
    assert_int_equal(look(&dir), HPS_ROCKSDB_DIR_ABSENT);
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    assert_int_equal(look(&dir), HPS_ROCKSDB_DIR_EMPTY);
    file_make("hpsd/000007.sst", 4096);
    assert_int_equal(look(&dir), HPS_ROCKSDB_DIR_OTHER);
    file_make("hpsd/CURRENT", 0);
    file_make("hpsd/000008.sst", 100);
    file_make("hpsd/000009.log", 5000);
    assert_int_equal(look(&dir), HPS_ROCKSDB_DIR_DATABASE);
    assert_int_equal(hps_rocksdb_dir_files(&dir, ".sst", &files, &error), HPS_OK);
    assert_int_equal(files.n, 2);
    assert_int_equal(files.bytes, 4196);
    assert_int_equal(files.newest, 8);
    hps_rocksdb_dir_close(&dir);
}

static void test_remove_leftovers_when_some_are_left_then_nothing_else_goes(void **state)
{
    (void)state;
    struct hps_rocksdb_dir dir = dir_open(FREE_MIN);
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    assert_int_equal(mkdir(below("hpsd/load-m@1"), 0700), 0);
    file_make("hpsd/load-m@1/000001.sst", 10);
    file_make("hpsd/OPTIONS-000012.dbtmp", 10);
    file_make("hpsd/OPTIONS-000009", 10);
    file_make("hpsd/CURRENT", 0);
    assert_int_equal(hps_rocksdb_dir_remove_leftovers(&dir, &error), HPS_OK);
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), -1);
    assert_int_equal(access(below("hpsd/OPTIONS-000012.dbtmp"), F_OK), -1);
    assert_int_equal(access(below("hpsd/OPTIONS-000009"), F_OK), 0);
    assert_int_equal(access(below("hpsd/CURRENT"), F_OK), 0);
    hps_rocksdb_dir_close(&dir);
}

static void test_open_when_taken_or_too_long_then_refused(void **state)
{
    (void)state;
    struct hps_rocksdb_dir dir = dir_open(FREE_MIN);
    struct hps_rocksdb_dir other;
    assert_int_equal(hps_rocksdb_dir_open(&other, tmp.path, false, 0, &error), HPS_BUSY);
    assert_non_null(strstr(error.text, "hpsd.lock"));
    hps_rocksdb_dir_close(&other);
    hps_rocksdb_dir_close(&dir);
    char path[HPS_ROCKSDB_PATH_BYTES_MAX + 2];
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(hps_rocksdb_dir_open(&other, path, false, 0, &error), HPS_INVALID);
    hps_rocksdb_dir_close(&other);
    dir = dir_open(FREE_MIN); /* the lock was given back */
    hps_rocksdb_dir_close(&dir);
}

static void test_guard_when_automatic_then_two_gib_or_a_twentieth(void **state)
{
    (void)state;
    struct statvfs fs;
    assert_int_equal(statvfs(tmp.path, &fs), 0);
    uint64_t twentieth = (uint64_t)fs.f_blocks * fs.f_frsize / 20;
    uint64_t two_gib = UINT64_C(2) << 30;
    struct hps_rocksdb_dir dir = dir_open(0);
    assert_int_equal(dir.disk_free_min_bytes, twentieth > two_gib ? twentieth : two_gib);
    hps_rocksdb_dir_close(&dir);
}

static uint64_t disk_free(void)
{
    struct statvfs fs;
    assert_int_equal(statvfs(tmp.path, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

static void test_guards_when_others_fill_the_disk_then_only_vital_writes_go_on(void **state)
{
    (void)state;
    if (mount("tmpfs", tmp.path, "tmpfs", 0, "size=64m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_rocksdb_dir dir = dir_open(DISK); /* which is touched from the start */
    hps_rocksdb_dir_ballast(&dir);
    assert_true(disk_free() <= DISK - HPS_ROCKSDB_BALLAST_BYTES);
    dir.disk_free_min_bytes = FREE_MIN;
    assert_int_equal(hps_rocksdb_dir_guard(&dir, 1 << 20, &error), HPS_OK);
    assert_int_equal(hps_rocksdb_dir_guard(&dir, DISK, &error), HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "needed"));
    file_make("others", (off_t)disk_free());
    assert_int_equal(disk_free(), 0);
    assert_int_equal(hps_rocksdb_dir_free_bytes(&dir), 0);
    assert_int_equal(hps_rocksdb_dir_guard(&dir, 1, &error), HPS_EXHAUSTED);
    assert_int_equal(hps_rocksdb_dir_guard_small(&dir, 1, &error), HPS_EXHAUSTED);
    assert_int_equal(hps_rocksdb_dir_guard_vital(&dir, 1000, &error), HPS_OK);
    assert_true(disk_free() >= HPS_ROCKSDB_BALLAST_BYTES);
    hps_rocksdb_dir_ballast(&dir); /* no room for it yet */
    assert_true(disk_free() >= HPS_ROCKSDB_BALLAST_BYTES);
    assert_int_equal(unlink(below("others")), 0);
    hps_rocksdb_dir_ballast(&dir);
    assert_true(disk_free() <= DISK - HPS_ROCKSDB_BALLAST_BYTES);
    hps_rocksdb_dir_close(&dir);
}

static void test_ballast_when_an_empty_one_was_left_then_made_anew(void **state)
{
    (void)state;
    struct stat info;
    file_make("hpsd.ballast", 0); /* as where the room for it could not be had */
    struct hps_rocksdb_dir dir = dir_open(FREE_MIN);
    hps_rocksdb_dir_ballast(&dir);
    assert_int_equal(stat(below("hpsd.ballast"), &info), 0);
    assert_int_equal(info.st_size, HPS_ROCKSDB_BALLAST_BYTES);
    hps_rocksdb_dir_close(&dir);
    dir = dir_open(FREE_MIN);
    assert_true(dir.ballast);
    hps_rocksdb_dir_close(&dir);
}

static void test_open_when_there_is_a_link_then_it_is_not_followed(void **state)
{
    (void)state;
    struct hps_rocksdb_dir dir;
    char lock[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(lock, sizeof(lock), "%s", hps_tmpdir_join(&tmp, "hpsd.lock"));
    (void)unlink(lock);
    assert_int_equal(symlink("victim", lock), 0);
    assert_int_equal(hps_rocksdb_dir_open(&dir, tmp.path, false, 0, &error), HPS_PERMISSION);
    assert_non_null(strstr(error.text, "hpsd.lock"));
    hps_rocksdb_dir_close(&dir);
    assert_int_not_equal(access(hps_tmpdir_join(&tmp, "victim"), F_OK), 0);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(symlink("victim", hps_tmpdir_join(&tmp, "hpsd.ballast")), 0);
    dir = dir_open(FREE_MIN);
    hps_rocksdb_dir_ballast(&dir);
    assert_false(dir.ballast);
    hps_rocksdb_dir_close(&dir);
    assert_int_not_equal(access(hps_tmpdir_join(&tmp, "victim"), F_OK), 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_look_when_files_come_then_says_what_it_is),
        T(test_remove_leftovers_when_some_are_left_then_nothing_else_goes),
        T(test_open_when_taken_or_too_long_then_refused),
        T(test_guard_when_automatic_then_two_gib_or_a_twentieth),
        T(test_guards_when_others_fill_the_disk_then_only_vital_writes_go_on),
        T(test_ballast_when_an_empty_one_was_left_then_made_anew),
        T(test_open_when_there_is_a_link_then_it_is_not_followed),
    };
    return cmocka_run_group_tests_name("rocksdb_dir", tests, NULL, NULL);
}
