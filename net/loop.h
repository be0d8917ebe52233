/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop: one thread with its descriptors, timers and posted tasks. While hps_loop_run runs,
 * only its thread may call the functions of this header; most of them assert this. There are three
 * exceptions, which any thread may call: hps_loop_post, hps_loop_stop and hps_loop_is_mine. While
 * the loop does not run, its owner may call all functions from one thread at a time.
 *
 * One iteration of the loop is called a turn. A turn does these steps in order:
 *
 *   1. wait until a descriptor is ready or a task is posted, at most until the next timer
 *   2. run the callbacks of ready descriptors, and the posted tasks
 *   3. run the timers that are due
 *   4. run the callbacks that hps_loop_later_set deferred before this step began
 *   5. do work of connections (hps_loop_work)
 *
 * Posted tasks, timers and work have about a millisecond each. What is left is done in the next
 * turn, which does not wait. A callback may free any object, also its own.
 */
#ifndef HPS_NET_LOOP_H
#define HPS_NET_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/mailbox.h"
#include "base/status.h"
#include "net/run.h"

struct hps_loop;

hps_status hps_loop_new(struct hps_loop **out_loop, struct hps_error *err) HPS_MUST_CHECK;
/* Runs the remaining posted tasks and deferred callbacks, then frees the loop. All descriptors,
 * timers and signals must have been removed before. NULL has no effect. */
void hps_loop_free(struct hps_loop *loop);
/* Runs turns until hps_loop_stop is called. The calling thread owns the loop until this returns. */
void hps_loop_run(struct hps_loop *loop);
/* Runs one turn, which waits at most `timeout_us` (0: does not wait). For tools and tests. Not
 * within a callback. */
void hps_loop_turn(struct hps_loop *loop, uint64_t timeout_us);
/* Makes hps_loop_run return at the end of the current turn. The loop cannot run again: later calls
 * of hps_loop_run return at once. Any thread. */
void hps_loop_stop(struct hps_loop *loop);
/* Runs `task` on the loop thread. Tasks run in the order in which they are posted. Cannot fail. Any
 * thread. */
void hps_loop_post(struct hps_loop *loop, struct hps_task *task);
/* The same for the result of work for a client, by its number (hps_sock_client). Such tasks run in
 * the order in which they are posted for the client, in its slices (net/run.h). */
void hps_loop_post_for(struct hps_loop *loop, struct hps_task *task, uint64_t client);
/* Whether the calling thread may use the loop: it is the thread that runs the loop, or the loop
 * does not run. Any thread. */
bool hps_loop_is_mine(const struct hps_loop *loop);
/* The time of the current turn: the value of hps_clock_us that the turn read last. Between turns:
 * the current time. */
uint64_t hps_loop_now_us(const struct hps_loop *loop);
/* The work of the loop's connections. */
struct hps_run *hps_loop_work(struct hps_loop *loop);

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { HPS_LOOP_READ = 1, HPS_LOOP_WRITE = 2 };

typedef void (*hps_loop_fd_fn)(void *ctx, unsigned events);

#define HPS_LOOP_EVENT_BYTES 160

/* A watched descriptor, embedded in a struct of its user. Level-triggered: each turn calls `fn`
 * while the descriptor is ready for a wanted event. If it is ready for both reading and writing,
 * `fn` is called once for each. An error or a hang-up counts as ready for every wanted event. */
struct hps_loop_fd {
    struct hps_loop *loop; /* NULL: not added */
    hps_loop_fd_fn fn;
    void *ctx;
    int fd;
    unsigned events;
    _Alignas(16) unsigned char read_event[HPS_LOOP_EVENT_BYTES];
    _Alignas(16) unsigned char write_event[HPS_LOOP_EVENT_BYTES];
};

/* Watches `fd` (borrowed) for `events`: HPS_LOOP_READ, HPS_LOOP_WRITE, both, or 0 for none.
 *
 * error   NO_MEMORY; INVALID: the descriptor cannot be polled
 */
hps_status hps_loop_fd_add(struct hps_loop *loop, struct hps_loop_fd *handle, int fd,
                           unsigned events, hps_loop_fd_fn fn, void *ctx) HPS_MUST_CHECK;
/* Changes the wanted events. Cheap if they stay the same. */
hps_status hps_loop_fd_want(struct hps_loop_fd *handle, unsigned events) HPS_MUST_CHECK;
/* Stops watching the descriptor. Call it before the descriptor is closed. No effect on a handle
 * that is zeroed or already deleted. */
void hps_loop_fd_del(struct hps_loop_fd *handle);

/* ---- timers ---------------------------------------------------------------------------------- */

typedef void (*hps_timer_fn)(void *ctx);

/* A timer, embedded in a struct of its user. Calls `fn` once, at or after its time. The callback
 * may set the timer again. */
struct hps_timer {
    struct hps_loop *loop; /* NULL: not armed */
    hps_timer_fn fn;
    void *ctx;
    uint64_t at_us;
    uint64_t order;
    struct hps_timer *child, *next, *prev; /* pairing heap; prev is the parent for a first child */
};

void hps_timer_init(struct hps_timer *timer, hps_timer_fn fn, void *ctx);
/* Sets the timer to time `at_us` of hps_clock_us, also if it is armed already. Cannot fail. */
void hps_timer_set(struct hps_loop *loop, struct hps_timer *timer, uint64_t at_us);
/* Sets the timer to hps_loop_now_us + delay_us, or to UINT64_MAX if the sum overflows. */
void hps_timer_set_after(struct hps_loop *loop, struct hps_timer *timer, uint64_t delay_us);
void hps_timer_stop(struct hps_timer *timer); /* no effect if not armed */
bool hps_timer_armed(const struct hps_timer *timer);

/* ---- later this turn ------------------------------------------------------------------------- */

/* A deferred callback, embedded in a struct of its user. `fn` runs once, at the end of the turn in
 * which it was set. If `fn` sets it again, it runs again at the end of the next turn. */
struct hps_loop_later {
    struct hps_loop *loop; /* NULL: not queued */
    void (*fn)(void *ctx);
    void *ctx;
    TAILQ_ENTRY(hps_loop_later) link;
};

void hps_loop_later_init(struct hps_loop_later *later, void (*fn)(void *ctx), void *ctx);
void hps_loop_later_set(struct hps_loop *loop, struct hps_loop_later *later); /* idempotent */
void hps_loop_later_stop(struct hps_loop_later *later);                       /* idempotent */
bool hps_loop_later_is_set(const struct hps_loop_later *later);

/* ---- signals --------------------------------------------------------------------------------- */

struct hps_loop_signals;

/* Blocks `signals` in the calling thread. The loop then calls `fn` when the process gets one of
 * these signals. Call it before other threads start, because they inherit the signal mask.
 * hps_loop_signals_free leaves the signals blocked. */
hps_status hps_loop_signals_new(struct hps_loop *loop, const int *signals, unsigned n_signals,
                                void (*fn)(void *ctx, int signal_number), void *ctx,
                                struct hps_loop_signals **out_signals, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_loop_signals_free(struct hps_loop_signals *signals);

#endif
