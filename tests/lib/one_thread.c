/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces pthread_create in the tests of tests/one_thread.txt, and fails. A test that needs a
 * second thread must be removed from that list, so that ThreadSanitizer tests it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *ctx);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *ctx)
{
    (void)thread;
    (void)attr;
    (void)run;
    (void)ctx;
    (void)fputs("thread refused: this test is in tests/one_thread.txt; take it off that list\n",
                stderr);
    abort();
}
