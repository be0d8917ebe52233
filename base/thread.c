/* SPDX-License-Identifier: Apache-2.0
 *
 * How a thread of ours begins: see thread.h. Any thread.
 */
#include "base/thread.h"

#include <signal.h>
#include <unistd.h>

/* A third of the processor beside a thread that answers, which as a rule need not wait for it. */
enum { BACKGROUND_NICE = 5 };

hps_status hps_thread_start(size_t stack_bytes, void *(*run)(void *arg), void *arg,
                            pthread_t *out_thread)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    int failed = stack_bytes == 0 ? 0 : pthread_attr_setstacksize(&attr, stack_bytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    failed = failed != 0 ? failed : pthread_create(out_thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return failed == 0 ? HPS_OK : HPS_EXHAUSTED;
}

void hps_thread_background(void)
{
    (void)!nice(BACKGROUND_NICE); /* of this thread alone, as Linux has it; less is never refused */
}
