/* SPDX-License-Identifier: Apache-2.0
 *
 * Start of threads, and pauses: see thread.h. Any thread.
 */
#include "base/thread.h"

#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"

/* Gives a third of the CPU next to a thread at normal priority. */
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
    (void)!nice(BACKGROUND_NICE); /* Linux: this thread only; a higher value is never refused */
}

/* One lock and condition for all pauses: interrupts are rare, and other threads continue their
 * pause. */
static struct hps_lock pause_lock = HPS_LOCK_STATIC(PAUSE);
static struct hps_cond pause_ended;
static pthread_once_t pause_once = PTHREAD_ONCE_INIT;

static void pause_init(void)
{
    hps_cond_init(&pause_ended); /* never destroyed */
}

static bool is_set(const atomic_bool *stop)
{
    return stop != NULL && atomic_load(stop);
}

bool hps_thread_pause(uint64_t us, const atomic_bool *stop)
{
    uint64_t until_us = hps_clock_us() + us;
    pthread_once(&pause_once, pause_init);
    hps_lock_acquire(&pause_lock);
    while (!is_set(stop) && hps_cond_wait_until(&pause_ended, &pause_lock, until_us)) {
    }
    hps_lock_release(&pause_lock);
    return is_set(stop);
}

void hps_thread_interrupt(atomic_bool *stop)
{
    pthread_once(&pause_once, pause_init);
    hps_lock_acquire(&pause_lock);
    atomic_store(stop, true);
    hps_cond_broadcast(&pause_ended);
    hps_lock_release(&pause_lock);
}
