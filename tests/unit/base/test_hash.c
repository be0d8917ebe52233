/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes that are stored on disk, and the secret of those that are not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/hash.h"

static void test_hash_bytes_when_known_then_as_ever(void **state)
{
    (void)state;
    assert_int_equal(hps_mix64(1), UINT64_C(0x5692161d100b05e5));
    assert_int_equal(hps_hash_bytes("", 0, 0), hps_mix64(HPS_HASH_GOLDEN));
    assert_int_not_equal(hps_hash_bytes("a", 1, 0), hps_hash_bytes("a\0", 2, 0));
    assert_int_not_equal(hps_hash_bytes("a", 1, 0), hps_hash_bytes("a", 1, 1));
}

static void *read_secret(void *arg)
{
    *(uint64_t *)arg = hps_hash_secret();
    return NULL;
}

static void test_secret_when_asked_then_one_for_all_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    uint64_t secrets[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_secret, &secrets[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(secrets[i], hps_hash_secret());
    }
}

/* Asked before this process has made its own. */
static void test_secret_when_two_processes_have_one_then_they_differ(void **state)
{
    (void)state;
    int ends[2];
    uint64_t secrets[2] = {0};
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            uint64_t secret = hps_hash_secret();
            _exit(write(ends[1], &secret, sizeof(secret)) == (ssize_t)sizeof(secret) ? 0 : 1);
        }
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(read(ends[0], &secrets[i], sizeof(secrets[i])), sizeof(secrets[i]));
    }
    close(ends[0]);
    close(ends[1]);
    assert_int_not_equal(secrets[0], secrets[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_bytes_when_known_then_as_ever),
        cmocka_unit_test(test_secret_when_two_processes_have_one_then_they_differ),
        cmocka_unit_test(test_secret_when_asked_then_one_for_all_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
