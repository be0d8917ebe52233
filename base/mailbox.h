/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over of tasks between threads: an intrusive queue, bounded or not. Any number of threads
 * post. There are two ways to receive. Any number of receivers wait for one task each
 * (hps_mailbox_wait). Or one receiver polls a descriptor and takes all tasks; it is an eventfd,
 * signalled only on empty -> non-empty. Low-priority tasks are taken only when no other task waits.
 */
#ifndef HPS_BASE_MAILBOX_H
#define HPS_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/status.h"

struct hps_mailbox;

/* Embed in the message; zero it before first use. The receiver calls `run` and owns the message
 * from then on. The mailbox owns the other fields while the task is queued. */
struct hps_task {
    struct hps_task *next;
    struct hps_task *prev;
    _Atomic(struct hps_mailbox *) in; /* its mailbox while it can be withdrawn */
    void (*run)(struct hps_task *task);
};

/* capacity 0: unbounded (for completions, which must never fail). NULL: no memory or descriptor. */
struct hps_mailbox *hps_mailbox_new(size_t capacity);
void hps_mailbox_free(struct hps_mailbox *mailbox); /* must be empty; no effect if NULL */
int hps_mailbox_fd(struct hps_mailbox *mailbox);    /* readable while tasks are queued */
/* takes `task`. EXHAUSTED: full; CLOSED: closed. On error the caller still owns it. Any thread. */
hps_status hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* takes `task`, at low priority. Low-priority tasks do not count towards depth and capacity, so the
 * sender must bound them, and they cannot be withdrawn. CLOSED: the caller still owns it. Any
 * thread. */
hps_status hps_mailbox_post_low(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* Take all queued tasks as a list in order of posting, low-priority ones last; NULL if empty.
 * Clears the descriptor. */
struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox);
/* Wait for one task and take it; NULL once closed and empty. Any number of receivers may wait. */
struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox);
/* Take back a task of hps_mailbox_post. True: it was still queued here; false: a receiver has taken
 * it. Takes constant time. Any thread. */
bool hps_mailbox_withdraw(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
void hps_mailbox_close(struct hps_mailbox *mailbox); /* wakes waiting receivers; later posts fail */
size_t hps_mailbox_depth(const struct hps_mailbox *mailbox);

#endif
