/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop: one thread with its descriptors, timers and posted tasks. While hps_loop_run runs,
 * only the thread that runs it may call the functions here; they assert that. Any thread may call
 * hps_loop_post and hps_loop_stop. While the loop does not run, its owner may call all functions
 * from one thread at a time.
 *
 * A turn does this in order: wait for descriptors, at most until the next timer; run their
 * callbacks and the posted tasks; run due timers; run what was deferred before this point. A
 * callback may free any object, also its own.
 */
#ifndef HPS_NET_LOOP_H
#define HPS_NET_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mailbox.h"
#include "base/status.h"

struct hps_loop;

hps_status hps_loop_new(struct hps_loop **out_loop, struct hps_error *err) HPS_MUST_CHECK;
/* Runs the remaining tasks and deferrals, then frees the loop. All descriptors, timers and signals
 * must have been removed before. NULL has no effect. */
void hps_loop_free(struct hps_loop *loop);
/* Runs until hps_loop_stop. The calling thread owns the loop while it runs. */
void hps_loop_run(struct hps_loop *loop);
/* Runs one turn, which waits at most `timeout_us` (0: does not wait). For tools and tests. Not
 * within a callback. */
void hps_loop_turn(struct hps_loop *loop, uint64_t timeout_us);
/* Makes hps_loop_run return at the end of the turn. It stays set: a later run returns at once. Any
 * thread. */
void hps_loop_stop(struct hps_loop *loop);
/* Runs `task` on the loop thread. Tasks run in the order in which they are posted. Cannot fail. Any
 * thread. */
void hps_loop_post(struct hps_loop *loop, struct hps_task *task);
/* Whether the caller may use the loop: it is the running thread, or the loop does not run. */
bool hps_loop_is_mine(const struct hps_loop *loop);
/* The time of hps_clock_us as this turn last read it; between turns the time now. */
uint64_t hps_loop_now_us(const struct hps_loop *loop);
/* The number of the current turn; between turns, of the next one. */
uint64_t hps_loop_turns(const struct hps_loop *loop);

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { HPS_LOOP_READ = 1, HPS_LOOP_WRITE = 2 };

typedef void (*hps_loop_fd_fn)(void *ctx, unsigned events);

#define HPS_LOOP_EVENT_BYTES 160

/* Embedded by its user. Level-triggered: each turn calls `fn` while the descriptor is ready for an
 * event that is wanted. If it is ready for both reading and writing, `fn` is called once for each.
 * An error or a hang-up counts as ready for every wanted event. */
struct hps_loop_fd {
    struct hps_loop *loop; /* NULL: not added */
    hps_loop_fd_fn fn;
    void *ctx;
    int fd;
    unsigned events;
    _Alignas(16) unsigned char read_event[HPS_LOOP_EVENT_BYTES];
    _Alignas(16) unsigned char write_event[HPS_LOOP_EVENT_BYTES];
};

/* Watches `fd` (borrowed) for `events` (may be 0). NO_MEMORY; INVALID: the descriptor cannot be
 * polled. */
hps_status hps_loop_fd_add(struct hps_loop *loop, struct hps_loop_fd *handle, int fd,
                           unsigned events, hps_loop_fd_fn fn, void *ctx) HPS_MUST_CHECK;
/* Changes the events that are wanted. Cheap if they stay the same. */
hps_status hps_loop_fd_want(struct hps_loop_fd *handle, unsigned events) HPS_MUST_CHECK;
/* Stops watching. Call it before the descriptor is closed. No effect on a zeroed or deleted
 * handle. */
void hps_loop_fd_del(struct hps_loop_fd *handle);

/* ---- timers ---------------------------------------------------------------------------------- */

typedef void (*hps_timer_fn)(void *ctx);

/* Embedded by its user. Fires once, at or after its time. Its callback may set it again. */
struct hps_timer {
    struct hps_loop *loop; /* NULL: not armed */
    hps_timer_fn fn;
    void *ctx;
    uint64_t at_us;
    uint64_t order;
    struct hps_timer *child, *next, *prev; /* pairing heap; prev is the parent for a first child */
};

void hps_timer_init(struct hps_timer *timer, hps_timer_fn fn, void *ctx);
/* Arms the timer, or moves an armed one, to time `at_us` of hps_clock_us(). Cannot fail. */
void hps_timer_set(struct hps_loop *loop, struct hps_timer *timer, uint64_t at_us);
/* hps_timer_set at hps_loop_now_us + delay_us (saturating). */
void hps_timer_set_after(struct hps_loop *loop, struct hps_timer *timer, uint64_t delay_us);
void hps_timer_stop(struct hps_timer *timer); /* no effect if not armed */
bool hps_timer_armed(const struct hps_timer *timer);

/* ---- later this turn ------------------------------------------------------------------------- */

/* Embedded by its user. Runs once at the end of the turn. If its callback sets it again, it runs at
 * the end of the next turn, after the descriptors. */
struct hps_loop_later {
    struct hps_loop *loop; /* NULL: not queued */
    void (*fn)(void *ctx);
    void *ctx;
    struct hps_loop_later *next, *prev;
};

void hps_loop_later_init(struct hps_loop_later *later, void (*fn)(void *ctx), void *ctx);
void hps_loop_later_set(struct hps_loop *loop, struct hps_loop_later *later); /* idempotent */
void hps_loop_later_stop(struct hps_loop_later *later);                       /* idempotent */
bool hps_loop_later_is_set(const struct hps_loop_later *later);

/* ---- signals --------------------------------------------------------------------------------- */

struct hps_loop_signals;

/* Blocks `signals` in the calling thread and delivers them as callbacks on the loop. Call it before
 * other threads start, because they inherit the mask. Freeing leaves the signals blocked. */
hps_status hps_loop_signals_new(struct hps_loop *loop, const int *signals, unsigned n_signals,
                                void (*fn)(void *ctx, int signal_number), void *ctx,
                                struct hps_loop_signals **out_signals, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_loop_signals_free(struct hps_loop_signals *signals);

#endif
