/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces pthread_create in the tests of tests/one_thread.txt, and fails. A test that needs a
 * second thread must be removed from that list, so that ThreadSanitizer tests it. Or its line gets
 * a pattern of the names of functions that have several threads. ThreadSanitizer runs only these
 * functions. ctest passes the pattern, or an empty text, in HPS_TESTS_WITH_THREADS.
 */
#include <fnmatch.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *ctx);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *ctx);
int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

static bool may_create;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *ctx)
{
    if (may_create) {
        return __real_pthread_create(thread, attr, run, ctx);
    }
    (void)fputs("thread refused: this test is in tests/one_thread.txt; take it off that list\n",
                stderr);
    abort();
}

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *threaded = getenv("HPS_TESTS_WITH_THREADS");
    size_t n_threaded = 0;
    int n_failed = 0;

    if (threaded == NULL) { /* run by hand */
        may_create = true;
        return __real__cmocka_run_group_tests(name, tests, n, setup, teardown);
    }
    for (size_t i = 0; i < n; i++) {
        n_threaded += fnmatch(threaded, tests[i].name, 0) == 0 ? 1 : 0;
    }
    if (threaded[0] != '\0' && n_threaded == 0) {
        (void)fprintf(stderr, "tests/one_thread.txt: no function is called %s\n", threaded);
        return 1;
    }
    if (n_threaded > 0) {
        may_create = true;
        cmocka_set_test_filter(threaded);
        n_failed = __real__cmocka_run_group_tests(name, tests, n, setup, teardown);
        may_create = false;
        cmocka_set_test_filter(NULL);
        cmocka_set_skip_filter(threaded);
    }
#ifdef HPS_TSAN
    if (n_threaded > 0) {
        return n_failed;
    }
#endif
    return n_failed + __real__cmocka_run_group_tests(name, tests, n, setup, teardown);
}
