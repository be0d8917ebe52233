/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting threads, and pausing them. A thread of hpsd starts with all signals blocked, because the
 * main thread handles signals. Threads without urgent work lower their priority
 * (hps_thread_background). Any thread.
 */
#ifndef HPS_BASE_THREAD_H
#define HPS_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Start a thread that calls run(arg); the caller joins it. stack_bytes 0: the system's default.
 * EXHAUSTED: the thread cannot be started. */
hps_status hps_thread_start(size_t stack_bytes, void *(*run)(void *arg), void *arg,
                            pthread_t *out_thread) HPS_MUST_CHECK;
/* Lower the priority of the calling thread, and of threads that it starts from now on. If CPUs are
 * short, threads that answer lookups run first. This cannot be undone. */
void hps_thread_background(void);

/* Pause for `us` microseconds, or until hps_thread_interrupt(stop) is called. Returns whether *stop
 * is set. If stop is NULL, the pause cannot be interrupted. Use this only to let time pass. To wait
 * for an event, use a condition (base/lock.h). */
bool hps_thread_pause(uint64_t us, const atomic_bool *stop);
/* Set *stop, and end all pauses that use it. */
void hps_thread_interrupt(atomic_bool *stop);

#endif
