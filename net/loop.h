/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop: one thread, its descriptors, timers and hand-overs. Everything belongs to the thread
 * that runs the loop (before the first run and after the last one: to whoever holds it) and asserts
 * so, but hps_loop_post and hps_loop_stop, which any thread may call.
 *
 * A turn: wait for descriptors (at most until the next timer), run their callbacks and the posted
 * tasks, run due timers, run what was deferred before this point. Callbacks may free any object,
 * their own included.
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
/* Runs the posted tasks and deferrals that are left, then frees. Descriptors, timers and signals
 * must be gone. NULL is legal. */
void hps_loop_free(struct hps_loop *loop);
/* Until hps_loop_stop. The calling thread owns the loop meanwhile. */
void hps_loop_run(struct hps_loop *loop);
/* One turn that waits at most `timeout_us` (0 = poll). For tools and tests; not within a callback.
 */
void hps_loop_turn(struct hps_loop *loop, uint64_t timeout_us);
/* Make hps_loop_run return at the end of the turn; sticky: a run that begins later returns at once.
 * Any thread. */
void hps_loop_stop(struct hps_loop *loop);
/* Run `task` on the loop thread, in order of posting. Never fails. Any thread. */
void hps_loop_post(struct hps_loop *loop, struct hps_task *task);
/* Is the caller allowed to touch the loop: its running thread, or anybody while it does not run. */
bool hps_loop_is_mine(const struct hps_loop *loop);
/* The clock of base/clock.h as read at the last wake-up of this turn. */
uint64_t hps_loop_now_us(const struct hps_loop *loop);
/* The number of this turn, or of the next one between two. */
uint64_t hps_loop_turns(const struct hps_loop *loop);

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { HPS_LOOP_READ = 1, HPS_LOOP_WRITE = 2 };

typedef void (*hps_loop_fd_fn)(void *ctx, unsigned events);

#define HPS_LOOP_EVENT_BYTES 160

/* Embed. Level-triggered: the callback comes in every turn while the descriptor is ready for what
 * is wanted; once for reading and once for writing if both are. Errors and hang-ups show as
 * readiness of whatever is wanted. */
struct hps_loop_fd {
    struct hps_loop *loop; /* NULL: not added */
    hps_loop_fd_fn fn;
    void *ctx;
    int fd;
    unsigned events;
    _Alignas(16) unsigned char read_event[HPS_LOOP_EVENT_BYTES];
    _Alignas(16) unsigned char write_event[HPS_LOOP_EVENT_BYTES];
};

/* Watch `fd` (borrowed) for `events` (may be 0). NO_MEMORY, or INVALID if it cannot be polled. */
hps_status hps_loop_fd_add(struct hps_loop *loop, struct hps_loop_fd *handle, int fd,
                           unsigned events, hps_loop_fd_fn fn, void *ctx) HPS_MUST_CHECK;
/* Change what is wanted; cheap when nothing changes. */
hps_status hps_loop_fd_want(struct hps_loop_fd *handle, unsigned events) HPS_MUST_CHECK;
/* Stop watching, before the descriptor is closed. A zeroed or deleted handle is legal. */
void hps_loop_fd_del(struct hps_loop_fd *handle);

/* ---- timers ---------------------------------------------------------------------------------- */

typedef void (*hps_timer_fn)(void *ctx);

/* Embed. One-shot: fires once at or after its time, may be set again inside its callback. */
struct hps_timer {
    struct hps_loop *loop; /* NULL: not armed */
    hps_timer_fn fn;
    void *ctx;
    uint64_t at_us;
    uint64_t order;
    struct hps_timer *child, *next, *prev; /* pairing heap; prev is the parent for a first child */
};

void hps_timer_init(struct hps_timer *timer, hps_timer_fn fn, void *ctx);
/* Arm, or move an armed one, for time `at_us` of hps_clock_us(); never fails. */
void hps_timer_set(struct hps_loop *loop, struct hps_timer *timer, uint64_t at_us);
/* hps_timer_set at hps_loop_now_us + delay_us (saturating). */
void hps_timer_set_after(struct hps_loop *loop, struct hps_timer *timer, uint64_t delay_us);
void hps_timer_stop(struct hps_timer *timer); /* legal when not armed */
bool hps_timer_armed(const struct hps_timer *timer);

/* ---- later this turn ------------------------------------------------------------------------- */

/* Embed. Runs once at the end of the turn; set again inside its callback: at the end of the next
 * turn, after the descriptors had theirs. */
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

/* Block `signals` in the calling thread and deliver them as callbacks. Call before other threads
 * are started, since they inherit the mask. Freeing leaves the signals blocked. */
hps_status hps_loop_signals_new(struct hps_loop *loop, const int *signals, unsigned n_signals,
                                void (*fn)(void *ctx, int signal_number), void *ctx,
                                struct hps_loop_signals **out_signals, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_loop_signals_free(struct hps_loop_signals *signals);

#endif
