/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the audit log: fields of a line, rate limits, and changes of the file.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/observe/audit.h"
#include "server/observe/metrics.h"
#include "tests/lib/pause.h"
#include "tests/lib/tmpdir.h"

#define TS "ts=2023-11-14T22:13:20.123Z "

static struct {
    struct hps_tmpdir dir;
    char path[HPS_TMPDIR_PATH_MAX + 16];
    char other[HPS_TMPDIR_PATH_MAX + 16];
    struct hps_metrics *metrics;
    struct hps_metric *lost;
    struct hps_pool *pool;
    struct hps_audit *audit;
    char text[1 << 17];
} t;

static const struct hps_audit_event event = {
    .method = "LoadModel", .who = "cert:ops", .peer = "127.0.0.1:4", .model = "dlrm", .version = 3};
static const struct hps_audit_event refusal = {
    .method = "Lookup", .peer = "[::1]:5", .code = 7, .error = "no role", .refused = true};

static int opened(const char *path)
{
    int fd = -1;
    struct hps_error err = {0};
    assert_int_equal(hps_audit_open(path, &fd, &err), HPS_OK);
    return fd;
}

static int setup(void **state)
{
    (void)state;
    hps_clock_fake(1700000000123456u);
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    hps_tmpdir_open(&t.dir);
    snprintf(t.path, sizeof(t.path), "%s/audit.log", t.dir.path);
    snprintf(t.other, sizeof(t.other), "%s/audit.log.1", t.dir.path);
    t.metrics = hps_server_metrics_new();
    t.lost = hps_server_metric(t.metrics, HPS_M_AUDIT_LINES_LOST, NULL, NULL, NULL, NULL);
    assert_int_equal(hps_pool_new("admin", 1, 64, &t.pool), HPS_OK);
    t.audit = hps_audit_new(opened(t.path), t.lost);
    assert_non_null(t.audit);
    hps_audit_pool_set(t.audit, t.pool);
    return 0;
}

static void pool_ends(void)
{
    hps_audit_pool_set(t.audit, NULL);
    hps_pool_free(t.pool); /* runs the posted writes */
    t.pool = NULL;
}

static int teardown(void **state)
{
    (void)state;
    hps_pool_free(t.pool);
    hps_audit_free(t.audit);
    hps_metrics_free(t.metrics);
    hps_tmpdir_close(&t.dir);
    hps_clock_real();
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, STDERR_FILENO);
    return 0;
}

struct blocker {
    struct hps_task task;
    atomic_bool ends;
};

static void run_blocker(struct hps_task *task)
{
    AWAIT(atomic_load(&((struct blocker *)task)->ends));
}

static const char *content(const char *path)
{
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t size = fread(t.text, 1, sizeof(t.text) - 1, file);
    fclose(file);
    t.text[size] = '\0';
    return t.text;
}

static void test_write_when_called_then_one_line_with_identity_method_and_result(void **state)
{
    (void)state;
    const struct hps_log_field request[] = {HPS_STR("request.directory", "/srv/a b\n\xe2\x80\xae"),
                                            HPS_LOG_END};
    struct hps_audit_event more = event;
    struct stat st;
    more.request = request;
    hps_audit_write(t.audit, &more);
    more.code = 5;
    more.error = "no such directory";
    more.request = NULL;
    hps_audit_write(t.audit, &more);
    assert_string_equal(
        content(t.path),
        TS "method=LoadModel model=dlrm version=3 who=cert:ops peer=127.0.0.1:4 result=done code=0 "
           "error=\"\" request.directory=\"/srv/a b\\n\\u202e\"\n" TS
           "method=LoadModel model=dlrm version=3 who=cert:ops peer=127.0.0.1:4 result=failed "
           "code=5 error=\"no such directory\"\n");
    assert_int_equal(stat(t.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static unsigned count(const char *text)
{
    unsigned n = 0;
    for (const char *at = content(t.path); (at = strstr(at, text)) != NULL; at++) {
        n++;
    }
    return n;
}

static void test_write_when_many_at_once_then_none_is_limited(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        hps_audit_write(t.audit, &event);
    }
    assert_int_equal(count("\n"), 100);
}

static void test_refused_when_many_at_once_then_ten_and_the_next_counts_the_rest(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 25; i++) {
        hps_audit_limited(t.audit, &refusal);
    }
    hps_clock_fake(1700000001123456u);
    hps_audit_limited(t.audit, &refusal);
    pool_ends();
    const char *at = content(t.path);
    for (unsigned i = 0; i < 10; i++) {
        at = strchr(at, '\n') + 1;
    }
    assert_string_equal(at, "ts=2023-11-14T22:13:21.123Z method=Lookup model=\"\" version=0 "
                            "who=\"\" peer=[::1]:5 result=refused code=7 error=\"no role\" "
                            "suppressed=15\n");
    assert_ptr_equal(strstr(t.text, "suppressed"), strstr(at, "suppressed"));
    assert_true(hps_metric_value(t.lost) == 0);
}

static void test_limited_when_many_at_once_then_ten_failures_and_ten_reads(void **state)
{
    (void)state;
    struct hps_audit_event failure = event;
    failure.code = 5;
    for (unsigned i = 0; i < 25; i++) {
        hps_audit_limited(t.audit, &failure);
        hps_audit_limited(t.audit, &event);
    }
    hps_audit_write(t.audit, &event);
    assert_int_equal(count("\n"), 21);
    hps_clock_fake(1700000001123456u);
    hps_audit_limited(t.audit, &failure);
    hps_audit_limited(t.audit, &event);
    assert_int_equal(count("suppressed=15\n"), 2);
}

static void test_limited_when_one_identity_floods_then_events_of_other_ones_are_written(
    void **state)
{
    (void)state;
    enum { OTHERS = 16, OTHERS_SEEN = 8 /* a few may share a limit with the first one */ };
    struct hps_audit_event failure = event;
    failure.code = 5;
    for (unsigned i = 0; i < 1000; i++) {
        hps_audit_limited(t.audit, &failure);
    }
    for (unsigned i = 0; i < OTHERS; i++) {
        char who[16];
        snprintf(who, sizeof(who), "token:%u", i);
        failure.who = who;
        hps_audit_limited(t.audit, &failure);
    }
    assert_int_equal(count("who=cert:ops"), 10);
    assert_in_range(count("who=token:"), OTHERS_SEEN, OTHERS);
}

static void test_write_when_on_a_loop_then_a_thread_of_the_pool_writes_if_it_can(void **state)
{
    (void)state;
    struct hps_audit_event change = event;
    change.on_loop = true;
    struct blocker blocker = {.task.run = run_blocker};
    assert_int_equal(hps_pool_post(t.pool, &blocker.task), HPS_OK);
    hps_audit_write(t.audit, &change);
    assert_int_equal(count("\n"), 0);
    atomic_store(&blocker.ends, true);
    pool_ends();
    assert_int_equal(count("\n"), 1);
    hps_audit_write(t.audit, &change);
    assert_int_equal(count("\n"), 2);
    assert_true(hps_metric_value(t.lost) == 0);
}

static void test_refused_when_no_thread_may_wait_for_the_disk_then_counted_as_lost(void **state)
{
    (void)state;
    pool_ends();
    hps_audit_limited(t.audit, &refusal);
    assert_true(hps_metric_value(t.lost) == 1);
    assert_string_equal(content(t.path), "");
}

static void test_reopened_when_the_name_is_a_new_file_then_lines_go_there(void **state)
{
    (void)state;
    struct hps_audit_event change = event;
    change.method = "Drain";
    hps_audit_write(t.audit, &event);
    assert_int_equal(rename(t.path, t.other), 0);
    hps_audit_write(t.audit, &change); /* no line is lost before the reload */
    hps_audit_reopened(t.audit, opened(t.path));
    hps_audit_write(t.audit, &event);
    assert_non_null(strstr(content(t.path), "LoadModel"));
    assert_null(strstr(t.text, "Drain"));
    assert_non_null(strstr(content(t.other), "Drain"));
}

enum { WRITERS = 3, LINES_EACH = 200, ROTATIONS = 50 };

static void *write_lines(void *arg)
{
    for (unsigned i = 0; i < LINES_EACH; i++) {
        hps_audit_write(arg, &event);
    }
    return NULL;
}

static unsigned whole_lines(const char *text)
{
    unsigned n = 0;
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        assert_int_equal(strncmp(at, TS "method=LoadModel ", strlen(TS) + 17), 0);
        n++;
    }
    return n;
}

static void test_reopened_when_lines_are_being_written_then_each_is_complete_and_none_lost(
    void **state)
{
    (void)state;
    pthread_t threads[WRITERS];
    for (unsigned i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, t.audit), 0);
    }
    for (unsigned i = 0; i < ROTATIONS; i++) {
        hps_audit_reopened(t.audit, opened(i % 2 == 0 ? t.other : t.path));
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    unsigned n = whole_lines(content(t.path));
    n += whole_lines(content(t.other));
    assert_int_equal(n, WRITERS * LINES_EACH);
    assert_true(hps_metric_value(t.lost) == 0);
}

static void test_open_when_the_path_is_not_appendable_then_refused_naming_it(void **state)
{
    (void)state;
    struct hps_error err = {0};
    int fd = -7;
    const char *link = hps_tmpdir_join(&t.dir, "link");
    const char *fifo = hps_tmpdir_join(&t.dir, "fifo");
    const char *absent = hps_tmpdir_join(&t.dir, "none/audit.log");
    assert_int_equal(symlink(t.path, link), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(hps_audit_open(link, &fd, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_int_equal(hps_audit_open(fifo, &fd, &err), HPS_INVALID);
    assert_int_equal(hps_audit_open("/dev/null", &fd, &err), HPS_INVALID);
    assert_int_equal(hps_audit_open(t.dir.path, &fd, &err), HPS_INVALID);
    assert_int_equal(hps_audit_open(absent, &fd, &err), HPS_NOT_FOUND);
    assert_non_null(strstr(err.text, absent));
    assert_int_equal(fd, -7);
    assert_int_equal(opened(""), -1);
}

static void test_write_when_the_disk_is_full_then_counted_and_later_lines_are_complete(void **state)
{
    (void)state;
    struct hps_audit *full = hps_audit_new(open("/dev/full", O_WRONLY | O_CLOEXEC), t.lost);
    assert_non_null(full);
    hps_audit_write(full, &event);
    assert_true(hps_metric_value(t.lost) == 1);
    hps_audit_reopened(full, opened(t.path));
    hps_audit_write(full, &event);
    assert_int_equal(strncmp(content(t.path), TS "method=LoadModel", strlen(TS) + 16), 0);
    hps_audit_free(full);
}

static void test_write_when_there_is_no_file_then_only_the_log_has_the_line(void **state)
{
    (void)state;
    struct hps_audit *none = hps_audit_new(-1, t.lost);
    assert_non_null(none);
    hps_audit_write(none, &event);
    hps_audit_limited(none, &refusal);
    hps_audit_reopened(none, -1);
    hps_audit_free(none);
    assert_true(hps_metric_value(t.lost) == 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_write_when_called_then_one_line_with_identity_method_and_result),
        T(test_write_when_many_at_once_then_none_is_limited),
        T(test_refused_when_many_at_once_then_ten_and_the_next_counts_the_rest),
        T(test_limited_when_many_at_once_then_ten_failures_and_ten_reads),
        T(test_limited_when_one_identity_floods_then_events_of_other_ones_are_written),
        T(test_write_when_on_a_loop_then_a_thread_of_the_pool_writes_if_it_can),
        T(test_refused_when_no_thread_may_wait_for_the_disk_then_counted_as_lost),
        T(test_reopened_when_the_name_is_a_new_file_then_lines_go_there),
        T(test_reopened_when_lines_are_being_written_then_each_is_complete_and_none_lost),
        T(test_open_when_the_path_is_not_appendable_then_refused_naming_it),
        T(test_write_when_the_disk_is_full_then_counted_and_later_lines_are_complete),
        T(test_write_when_there_is_no_file_then_only_the_log_has_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
