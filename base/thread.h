/* SPDX-License-Identifier: Apache-2.0
 *
 * Start of threads, and pauses. A thread of hpsd starts with all signals blocked, because the main
 * thread handles them. Threads without urgent work lower their priority (hps_thread_background).
 * Any thread.
 */
#ifndef HPS_BASE_THREAD_H
#define HPS_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Start run(arg); the caller joins the thread. stack_bytes 0: the system's default. EXHAUSTED: it
 * cannot be started; *out_thread is not set. */
hps_status hps_thread_start(size_t stack_bytes, void *(*run)(void *arg), void *arg,
                            pthread_t *out_thread) HPS_MUST_CHECK;
/* Lower the priority of the calling thread, and of threads that it starts from now on. If CPUs are
 * short, threads that answer lookups run first. This cannot be undone. */
void hps_thread_background(void);

/* Wait for `us`, or until hps_thread_interrupt(stop). Returns whether *stop is set. With stop NULL
 * the pause cannot be interrupted. Use this only to let time pass; wait for an event with a
 * condition. */
bool hps_thread_pause(uint64_t us, const atomic_bool *stop);
/* Set *stop, and end all pauses that use it. */
void hps_thread_interrupt(atomic_bool *stop);

#endif
