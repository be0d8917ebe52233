/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of tests/one_thread.txt are linked with in place of pthread_create: whoever needs
 * a second thread is to be taken off that list, so that ThreadSanitizer sees it.
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
