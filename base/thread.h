/* SPDX-License-Identifier: Apache-2.0
 *
 * How a thread of hpsd begins: with all signals blocked, since those are the main thread's; and
 * with lower priority if nobody waits for its work (hps_thread_background). And how one pauses. Any
 * thread.
 */
#ifndef HPS_BASE_THREAD_H
#define HPS_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Start run(arg), to be joined by the caller. stack_bytes 0: the system's. EXHAUSTED: it cannot be
 * started; *out_thread is not set. */
hps_status hps_thread_start(size_t stack_bytes, void *(*run)(void *arg), void *arg,
                            pthread_t *out_thread) HPS_MUST_CHECK;
/* The calling thread works in the background, and so do those that it starts from now on: where
 * processors are short, threads that answer look-ups go first. It cannot be taken back. */
void hps_thread_background(void);

/* Wait for so long, or until hps_thread_interrupt(stop). Returns whether *stop is set. stop NULL:
 * nothing ends the pause. The one way
 * to let time pass: what has an end that can be told is waited for by a condition. */
bool hps_thread_pause(uint64_t us, const atomic_bool *stop);
/* Set *stop, and end the pauses of those that it stops. */
void hps_thread_interrupt(atomic_bool *stop);

#endif
