/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots as files: complete ones are restored; other ones are refused and leave no file.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/rows/snapshot.h"
#include "tests/lib/tmpdir.h"

struct rig {
    struct hps_tmpdir dir;
    char kept[HPS_TMPDIR_PATH_MAX], to[HPS_TMPDIR_PATH_MAX];
    struct hps_error err;
    struct hps_snapshot_report report;
};

static struct rig rig;

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    hps_tmpdir_open(&rig.dir);
    snprintf(rig.kept, sizeof(rig.kept), "%s", hps_tmpdir_join(&rig.dir, "kept"));
    snprintf(rig.to, sizeof(rig.to), "%s", hps_tmpdir_join(&rig.dir, "to"));
    assert_int_equal(hps_snapshot_begin(rig.kept, &rig.err), HPS_OK);
    hps_tmpdir_mkdir(&rig.dir, "kept/hpsd");
    hps_tmpdir_write(&rig.dir, "kept/hpsd/CURRENT", "MANIFEST-1\n", 11);
    hps_tmpdir_write(&rig.dir, "kept/hpsd/000007.sst", "rows", 4);
    hps_tmpdir_write(&rig.dir, "kept/hpsd/000008.log", "", 0);
    assert_int_equal(
        hps_snapshot_finish(rig.kept, "9.9.9", 1700000000000, NULL, &rig.report, &rig.err), HPS_OK);
    assert_int_equal(rig.report.n_files, 3);
    assert_int_equal(rig.report.n_bytes, 15);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_tmpdir_close(&rig.dir);
    return 0;
}

static hps_status restore(void)
{
    memset(&rig.report, 0, sizeof(rig.report));
    return hps_snapshot_restore(rig.kept, rig.to, &rig.report, &rig.err);
}

static void expect_refusal(hps_status status, const char *word)
{
    assert_int_equal(restore(), status);
    assert_non_null(strstr(rig.err.text, word));
    assert_int_not_equal(access(hps_tmpdir_join(&rig.dir, "to/hpsd"), F_OK), 0);
    assert_int_not_equal(access(hps_tmpdir_join(&rig.dir, "to/hpsd.restoring"), F_OK), 0);
}

static ino_t inode(const char *name)
{
    struct stat info;
    assert_int_equal(stat(hps_tmpdir_join(&rig.dir, name), &info), 0);
    return info.st_ino;
}

static void test_restore_when_complete_then_all_files_are_restored(void **state)
{
    (void)state;
    char text[32] = "";
    hps_tmpdir_mkdir(&rig.dir, "to");
    hps_tmpdir_write(&rig.dir, "to/hpsd.damaged", "m/1\n", 4);
    hps_tmpdir_mkdir(&rig.dir, "to/hpsd.restoring"); /* of a killed attempt */
    hps_tmpdir_write(&rig.dir, "to/hpsd.restoring/000007.sst", "ro", 2);
    assert_int_equal(restore(), HPS_OK);
    assert_int_equal(rig.report.n_files, 3);
    assert_int_equal(rig.report.n_bytes, 15);
    assert_true(rig.report.verified);
    assert_int_equal(hps_tmpdir_entries(&rig.dir, "to/hpsd"), 3);
    assert_int_equal(hps_tmpdir_entries(&rig.dir, "to"), 3); /* the database and two locks */
    FILE *file = fopen(hps_tmpdir_join(&rig.dir, "to/hpsd/CURRENT"), "re");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_string_equal(text, "MANIFEST-1\n");
    assert_true(inode("to/hpsd/000007.sst") == inode("kept/hpsd/000007.sst"));
    /* Files that are written again must be new inodes. */
    assert_true(inode("to/hpsd/CURRENT") != inode("kept/hpsd/CURRENT"));
    assert_true(inode("to/hpsd/000008.log") != inode("kept/hpsd/000008.log"));
}

/* A snapshot that root copied, for an hpsd that runs as another user. */
static void test_restore_when_as_root_then_all_files_belong_to_the_directorys_owner(void **state)
{
    (void)state;
    static const char *const names[] = {"to/hpsd/CURRENT", "to/hpsd/000007.sst", "to/hpsd",
                                        "to/lock"};
    enum { OWNER = 4321 };
    struct stat info;
    if (geteuid() != 0) {
        skip();
    }
    hps_tmpdir_mkdir(&rig.dir, "to");
    assert_int_equal(chown(hps_tmpdir_join(&rig.dir, "to"), OWNER, OWNER), 0);
    assert_int_equal(restore(), HPS_OK);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(stat(hps_tmpdir_join(&rig.dir, names[i]), &info), 0);
        assert_int_equal(info.st_uid, OWNER);
    }
    assert_int_equal(stat(hps_tmpdir_join(&rig.dir, "kept/hpsd/000007.sst"), &info), 0);
    assert_int_equal(info.st_uid, 0); /* the snapshot keeps its owner */
}

enum { SERVICE = 4321 }; /* a user, who controls the contents of its directory */

static void prepare_service(void)
{
    hps_tmpdir_mkdir(&rig.dir, "to");
    hps_tmpdir_mkdir(&rig.dir, "victim");
    hps_tmpdir_write(&rig.dir, "victim/file", "precious", 8);
    assert_int_equal(chmod(hps_tmpdir_join(&rig.dir, "victim/file"), 0600), 0);
    assert_int_equal(chown(hps_tmpdir_join(&rig.dir, "to"), SERVICE, SERVICE), 0);
}

static void expect_victim_untouched(void)
{
    struct stat info;
    assert_int_equal(stat(hps_tmpdir_join(&rig.dir, "victim/file"), &info), 0);
    assert_int_equal(info.st_uid, geteuid());
    assert_int_equal(info.st_size, 8);
    assert_int_equal(stat(hps_tmpdir_join(&rig.dir, "victim"), &info), 0);
    assert_int_equal(info.st_uid, geteuid());
}

static void test_restore_when_as_root_then_no_link_of_the_service_is_followed(void **state)
{
    (void)state;
    static const char *const locks[] = {"to/lock", "to/hpsd.lock"};
    if (geteuid() != 0) {
        skip();
    }
    prepare_service();
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(symlink("../victim/file", hps_tmpdir_join(&rig.dir, locks[i])), 0);
        expect_refusal(HPS_PERMISSION, "symbolic link");
        assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, locks[i])), 0);
    }
    assert_int_equal(symlink("../victim", hps_tmpdir_join(&rig.dir, "to/hpsd")), 0);
    assert_int_equal(restore(), HPS_EXISTS);
    assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, "to/hpsd")), 0);
    assert_int_equal(symlink("../victim", hps_tmpdir_join(&rig.dir, "to/hpsd.restoring")), 0);
    assert_int_equal(symlink("../victim/file", hps_tmpdir_join(&rig.dir, "to/hpsd.damaged")), 0);
    assert_int_equal(restore(), HPS_OK);
    expect_victim_untouched();
    assert_int_equal(hps_tmpdir_entries(&rig.dir, "to"), 3); /* the database and two locks */
}

/* The service's own snapshot contains a link to a file that the service may not read. */
static void test_restore_when_the_service_owns_the_snapshot_then_it_is_read_as_the_service(
    void **state)
{
    (void)state;
    static const char list[] = "hpsd-snapshot 1\nfile 8 stolen\n";
    if (geteuid() != 0) {
        skip();
    }
    prepare_service();
    hps_tmpdir_write(&rig.dir, "kept/snapshot", list, strlen(list));
    assert_int_equal(symlink("../../victim/file", hps_tmpdir_join(&rig.dir, "kept/hpsd/stolen")),
                     0);
    expect_refusal(HPS_PERMISSION, "symbolic link"); /* also in a snapshot of root */
    assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, "kept/hpsd/stolen")), 0);
    assert_int_equal(link(hps_tmpdir_join(&rig.dir, "victim/file"),
                          hps_tmpdir_join(&rig.dir, "kept/hpsd/stolen")),
                     0);
    assert_int_equal(chown(hps_tmpdir_join(&rig.dir, "kept"), SERVICE, SERVICE), 0);
    assert_int_equal(chown(hps_tmpdir_join(&rig.dir, "kept/hpsd"), SERVICE, SERVICE), 0);
    expect_refusal(HPS_PERMISSION, "stolen");
    expect_victim_untouched();
    assert_int_equal(chown(hps_tmpdir_join(&rig.dir, "victim/file"), SERVICE, SERVICE), 0);
    assert_int_equal(restore(), HPS_OK);
}

static void test_restore_when_the_directory_has_a_database_then_refused(void **state)
{
    (void)state;
    assert_int_equal(restore(), HPS_OK);
    assert_int_equal(restore(), HPS_EXISTS);
    assert_non_null(strstr(rig.err.text, "to/hpsd"));
    assert_int_equal(hps_tmpdir_entries(&rig.dir, "to/hpsd"), 3);
}

static void test_restore_when_the_directory_is_used_then_refused(void **state)
{
    (void)state;
    static const char *const locks[] = {"to/lock", "to/hpsd.lock"};
    hps_tmpdir_mkdir(&rig.dir, "to");
    for (unsigned i = 0; i < 2; i++) {
        int fd = open(hps_tmpdir_join(&rig.dir, locks[i]), O_RDWR | O_CREAT, 0640);
        assert_int_equal(flock(fd, LOCK_EX), 0);
        expect_refusal(HPS_BUSY, "stop it");
        close(fd);
    }
    assert_int_equal(restore(), HPS_OK);
}

static void test_restore_when_incomplete_then_refused_and_no_file_is_left(void **state)
{
    (void)state;
    assert_int_equal(truncate(hps_tmpdir_join(&rig.dir, "kept/hpsd/000007.sst"), 3), 0);
    expect_refusal(HPS_DATA_LOSS, "000007.sst has 3 bytes, expected 4");
    assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, "kept/hpsd/000007.sst")), 0);
    expect_refusal(HPS_DATA_LOSS, "000007.sst");
    assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, "kept/snapshot")), 0);
    expect_refusal(HPS_DATA_LOSS, "not a snapshot");
}

static void test_restore_when_the_list_is_bad_then_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "hello\n",
                                      "hpsd-snapshot 1\n",
                                      "hpsd-snapshot x\nfile 4 000007.sst\n",
                                      "hpsd-snapshot 1\nfile 4 ../kept/hpsd/000007.sst\n",
                                      "hpsd-snapshot 1\nfile 4 ..\n",
                                      "hpsd-snapshot 1\nfile x 000007.sst\n",
                                      "hpsd-snapshot 1\nfile 4 \n",
                                      "hpsd-snapshot 1\nfile 4 000007.sst"};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        hps_tmpdir_write(&rig.dir, "kept/snapshot", bad[i], strlen(bad[i]));
        expect_refusal(HPS_DATA_LOSS, "snapshot");
    }
    hps_tmpdir_write(&rig.dir, "kept/snapshot", "hpsd-snapshot 3\n", 16);
    expect_refusal(HPS_NEWER_FORMAT, "newer");
}

static void change_byte(const char *name, long at)
{
    FILE *file = fopen(hps_tmpdir_join(&rig.dir, name), "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int was = fgetc(file);
    assert_true(was != EOF);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_true(fputc(was ^ 1, file) != EOF);
    assert_int_equal(fclose(file), 0);
}

static long size_of(const char *name)
{
    struct stat info;
    assert_int_equal(stat(hps_tmpdir_join(&rig.dir, name), &info), 0);
    return (long)info.st_size;
}

/* Every byte of each file, linked or copied, and of the list is checked. */
static void test_restore_when_any_byte_differs_then_the_file_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *file, *word;
    } files[] = {{"kept/hpsd/000007.sst", "000007.sst has CRC-32C"},
                 {"kept/hpsd/CURRENT", "CURRENT has CRC-32C"},
                 {"kept/snapshot", "kept"}};
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        for (long at = 0; at < size_of(files[i].file); at++) {
            change_byte(files[i].file, at);
            assert_true(restore() != HPS_OK);
            assert_non_null(strstr(rig.err.text, files[i].word));
            assert_int_not_equal(access(hps_tmpdir_join(&rig.dir, "to/hpsd"), F_OK), 0);
            assert_int_not_equal(access(hps_tmpdir_join(&rig.dir, "to/hpsd.restoring"), F_OK), 0);
            change_byte(files[i].file, at);
        }
    }
    for (long size = size_of("kept/snapshot") - 1; size >= 0; size--) {
        assert_int_equal(truncate(hps_tmpdir_join(&rig.dir, "kept/snapshot"), size), 0);
        expect_refusal(HPS_DATA_LOSS, "snapshot");
    }
}

static void test_restore_when_the_format_has_no_checksums_then_it_is_not_verified(void **state)
{
    (void)state;
    static const char list[] = "hpsd-snapshot 1\nhpsd 0.0.9\ncreated 1\nfile 11 CURRENT\n"
                               "file 4 000007.sst\nfile 0 000008.log\n";
    hps_tmpdir_write(&rig.dir, "kept/snapshot", list, strlen(list));
    assert_int_equal(restore(), HPS_OK);
    assert_int_equal(rig.report.n_files, 3);
    assert_int_equal(rig.report.n_bytes, 15);
    assert_false(rig.report.verified);
}

static void test_finish_when_cancelled_then_no_snapshot_is_left(void **state)
{
    (void)state;
    const atomic_bool cancel = true;
    assert_int_equal(unlink(hps_tmpdir_join(&rig.dir, "kept/snapshot")), 0);
    assert_int_equal(hps_snapshot_finish(rig.kept, "9", 1, &cancel, &rig.report, &rig.err),
                     HPS_CANCELLED);
    expect_refusal(HPS_DATA_LOSS, "not a snapshot");
}

static void test_begin_when_the_directory_exists_then_refused(void **state)
{
    (void)state;
    assert_int_equal(hps_snapshot_begin(rig.kept, &rig.err), HPS_EXISTS);
    assert_int_equal(hps_snapshot_begin(hps_tmpdir_join(&rig.dir, "no/parent"), &rig.err),
                     HPS_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_restore_when_complete_then_all_files_are_restored),
        TEST(test_restore_when_as_root_then_all_files_belong_to_the_directorys_owner),
        TEST(test_restore_when_as_root_then_no_link_of_the_service_is_followed),
        TEST(test_restore_when_the_service_owns_the_snapshot_then_it_is_read_as_the_service),
        TEST(test_restore_when_the_directory_has_a_database_then_refused),
        TEST(test_restore_when_the_directory_is_used_then_refused),
        TEST(test_restore_when_incomplete_then_refused_and_no_file_is_left),
        TEST(test_restore_when_the_list_is_bad_then_refused),
        TEST(test_restore_when_any_byte_differs_then_the_file_is_named),
        TEST(test_restore_when_the_format_has_no_checksums_then_it_is_not_verified),
        TEST(test_finish_when_cancelled_then_no_snapshot_is_left),
        TEST(test_begin_when_the_directory_exists_then_refused),
#undef TEST
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
