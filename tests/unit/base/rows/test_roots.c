/* SPDX-License-Identifier: Apache-2.0
 *
 * Files below directories that no path can leave, with openat2() and on kernels without it.
 */
#include "base/rows/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/rows/modeldir.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir.h"

struct rig {
    struct hps_tmpdir dir;
    struct hps_roots *roots;
    struct hps_error err;
};

static struct rig rig;

static const char *at(const char *name)
{
    return hps_tmpdir_join(&rig.dir, name);
}

static void link_to(const char *target, const char *name)
{
    assert_int_equal(symlink(target, at(name)), 0);
}

/* models/ and more/ are roots, secret and evil/ are outside. */
static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    hps_tmpdir_open(&rig.dir);
    hps_tmpdir_mkdir(&rig.dir, "models");
    hps_tmpdir_mkdir(&rig.dir, "models/1");
    hps_tmpdir_mkdir(&rig.dir, "models-of-others");
    hps_tmpdir_mkdir(&rig.dir, "more");
    hps_tmpdir_write(&rig.dir, "models/1/rows", "inside", 6);
    hps_tmpdir_write(&rig.dir, "more/rows", "also", 4);
    hps_tmpdir_write(&rig.dir, "models-of-others/rows", "others", 6);
    hps_tmpdir_write(&rig.dir, "secret", "secret", 6);
    link_to("1/rows", "models/relative");
    link_to(at("models/1/rows"), "models/absolute");
    link_to(at("more/rows"), "models/other-root");
    link_to("1", "models/current");
    link_to("../secret", "models/out");
    link_to(at("secret"), "models/out-absolute");
    link_to("..", "models/up");
    link_to("/proc/self/root", "models/magic");
    link_to("models", "way-in");
    link_to("loop", "models/loop");
    link_to("../absent", "models/dangling");
    link_to("1/rows", "models/file");
    char models[HPS_TMPDIR_PATH_MAX], more[HPS_TMPDIR_PATH_MAX], absent[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(models, sizeof(models), "%s", at("way-in"));
    (void)snprintf(more, sizeof(more), "%s", at("more"));
    (void)snprintf(absent, sizeof(absent), "%s", at("absent"));
    const char *const paths[] = {models, absent, more};
    assert_int_equal(hps_roots_open("the.option", paths, 3, &rig.roots, &rig.err), HPS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_roots_close(rig.roots);
    hps_tmpdir_close(&rig.dir);
    return 0;
}

static hps_status open_it(const char *path)
{
    uint64_t bytes = 0;
    int fd = -1;
    hps_status status = hps_roots_open_read(rig.roots, path, &fd, &bytes, &rig.err);
    if (status == HPS_OK) {
        close(fd);
    }
    return status;
}

static void expect_inside_is_read_and_outside_refused(void)
{
    static const char *const inside[] = {
        "models/1/rows",       "models/relative",         "models/absolute",
        "models/1/../1/rows",  "models/other-root",       "way-in/1/rows",
        "models/current/rows", "models/up/models/1/rows", "more/rows"};
    static const char *const outside[] = {
        "secret", "models/out", "models/out-absolute", "models/../secret", "models/up/secret",
        "models-of-others/rows",
        /* A client must not be able to distinguish these from the paths above. */
        "absent", "absent/rows", "secret/rows", "models/../absent", "models/up/absent",
        "models/dangling", "models/dangling/", "models/dangling/rows", "models/loop"};
    char through[2 * HPS_TMPDIR_PATH_MAX];
    struct stat info;
    for (unsigned i = 0; i < sizeof(inside) / sizeof(inside[0]); i++) {
        assert_int_equal(open_it(at(inside[i])), HPS_OK);
        assert_int_equal(hps_roots_stat(rig.roots, at(inside[i]), &info, &rig.err), HPS_OK);
        assert_true(S_ISREG(info.st_mode));
    }
    for (unsigned i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        assert_int_equal(open_it(at(outside[i])), HPS_PERMISSION);
        assert_non_null(strstr(rig.err.text, "the.option"));
        assert_int_equal(hps_roots_stat(rig.roots, at(outside[i]), &info, &rig.err),
                         HPS_PERMISSION);
    }
    (void)snprintf(through, sizeof(through), "%s%s", at("models/magic"), at("secret"));
    assert_int_equal(open_it(through), HPS_PERMISSION);
    assert_int_equal(open_it(at("models/1/absent")), HPS_NOT_FOUND);
    assert_int_equal(open_it(at("models/absent/")), HPS_NOT_FOUND);
    assert_int_equal(open_it(at("models/1/absent/rows")), HPS_NOT_FOUND);
    assert_int_equal(open_it(at("models/file/rows")), HPS_NOT_FOUND);
    assert_int_equal(open_it(at("models")), HPS_INVALID); /* not a file */
    assert_int_equal(mkfifo(at("models/fifo"), 0600), 0);
    assert_int_equal(open_it(at("models/fifo")), HPS_INVALID); /* and does not wait for a writer */
    assert_int_equal(unlink(at("models/fifo")), 0);
}

static void test_read_when_links_lead_out_then_refused(void **state)
{
    (void)state;
    expect_inside_is_read_and_outside_refused();
}

/* Make openat2() fail with `error` in this process from now on. */
static void take_openat2_away(uint32_t error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    assert_int_equal(syscall(SYS_openat2, -1, "", NULL, 0), -1);
    assert_int_equal(errno, (int)error);
}

static void test_read_when_the_kernel_or_the_sandbox_has_no_openat2_then_the_same(void **state)
{
    (void)state;
    static const uint32_t errors[] = {ENOSYS, EPERM};
    for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        int code = 0;
        (void)fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            take_openat2_away(errors[i]);
            expect_inside_is_read_and_outside_refused();
            _exit(0); /* a failed assertion ends the child earlier */
        }
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
}

static void test_add_when_below_a_root_or_missing_then_no_further_file_may_be_read(void **state)
{
    (void)state;
    assert_int_equal(hps_roots_add(rig.roots, at("models/1"), &rig.err), HPS_OK);
    assert_int_equal(hps_roots_add(rig.roots, at("absent"), &rig.err), HPS_OK);
    assert_int_equal(hps_roots_add(rig.roots, at("secret"), &rig.err), HPS_OK); /* a file */
    assert_int_equal(open_it(at("models-of-others/rows")), HPS_PERMISSION);
    assert_int_equal(open_it(at("secret")), HPS_PERMISSION);
    assert_int_equal(hps_roots_add(rig.roots, at("models-of-others"), &rig.err), HPS_OK);
    assert_int_equal(open_it(at("models-of-others/rows")), HPS_OK);
    assert_int_equal(hps_roots_add(rig.roots, "/", &rig.err), HPS_OK);
    assert_int_equal(open_it(at("secret")), HPS_OK);
}

static void test_read_when_there_are_no_roots_then_links_are_followed(void **state)
{
    (void)state;
    hps_roots_close(rig.roots);
    rig.roots = NULL;
    assert_int_equal(open_it(at("models/out")), HPS_OK);
    assert_int_equal(open_it(at("models")), HPS_INVALID);
    const char *const none[] = {""};
    assert_int_equal(hps_roots_open("the.option", none, 0, &rig.roots, &rig.err), HPS_OK);
    assert_int_equal(open_it(at("models/1/rows")), HPS_PERMISSION); /* 0 roots allow no file */
}

static void test_model_when_a_file_is_a_link_out_then_the_directory_is_not_a_model(void **state)
{
    (void)state;
    static const char *const kinds[] = {"key", "emb_vector", "u.npy", "manifest.json"};
    struct hps_model_dir model;
    hps_tmpdir_mkdir(&rig.dir, "models/2");
    hps_tmpdir_mkdir(&rig.dir, "models/2/t");
    hps_tmpdir_write(&rig.dir, "models/2/t/key", "12345678", 8);
    hps_tmpdir_write(&rig.dir, "models/2/t/emb_vector", "1234", 4);
    assert_int_equal(hps_model_dir_open(at("models/2"), rig.roots, &model, &rig.err), HPS_OK);
    assert_int_equal(rig.err.status, HPS_OK); /* missing files are no error */
    hps_model_dir_close(&model);
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "models/2/%s%s", i < 2 ? "t/" : "", kinds[i]);
        (void)unlink(at(name));
        link_to(at("secret"), name);
        assert_int_equal(hps_model_dir_open(at("models/2"), rig.roots, &model, &rig.err),
                         HPS_PERMISSION);
        assert_non_null(strstr(rig.err.text, kinds[i]));
        assert_int_equal(unlink(at(name)), 0);
        if (i < 2) {
            hps_tmpdir_write(&rig.dir, name, "12345678", i == 0 ? 8 : 4);
        }
    }
}

/* Another directory replaces the root, and the name "1" differs in the two: like a change of the
 * root between the check of the path and the open. */
static void test_read_when_a_directory_becomes_a_link_before_the_open_then_refused(void **state)
{
    (void)state;
    char old[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(old, sizeof(old), "%s", at("models"));
    assert_int_equal(rename(old, at("old")), 0);
    assert_int_equal(rename(at("old/1"), at("old/was")), 0);
    link_to("../models-of-others", "old/1");
    hps_tmpdir_mkdir(&rig.dir, "models");
    hps_tmpdir_mkdir(&rig.dir, "models/1");
    hps_tmpdir_write(&rig.dir, "models/1/rows", "inside", 6);
    assert_int_equal(open_it(at("models/1/rows")), HPS_PERMISSION);
    pid_t child = fork();
    if (child == 0) {
        take_openat2_away(ENOSYS);
        _exit(open_it(at("models/1/rows")) == HPS_OK);
    }
    int code = 0;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

static void open_and_close(void *ctx)
{
    (void)ctx;
    struct hps_roots *roots = NULL;
    const char *const paths[] = {"/tmp", "/usr"};
    hps_status status = hps_roots_open("the.option", paths, 2, &roots, NULL);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_roots_close(roots);
}

static void test_open_when_memory_fails_then_error_without_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(open_and_close, NULL) >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_read_when_links_lead_out_then_refused),
        TEST(test_read_when_the_kernel_or_the_sandbox_has_no_openat2_then_the_same),
        TEST(test_add_when_below_a_root_or_missing_then_no_further_file_may_be_read),
        TEST(test_read_when_there_are_no_roots_then_links_are_followed),
        TEST(test_model_when_a_file_is_a_link_out_then_the_directory_is_not_a_model),
        TEST(test_read_when_a_directory_becomes_a_link_before_the_open_then_refused),
        TEST(test_open_when_memory_fails_then_error_without_leak),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
