/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue that passes tasks between threads, intrusive, bounded or unbounded. Any number of threads
 * post tasks. There are two ways to receive them. Either any number of threads wait for one task
 * each (hps_mailbox_wait), or one thread polls a descriptor and takes all tasks
 * (hps_mailbox_take_all). The descriptor is an eventfd that is readable while tasks are queued.
 * Low-priority tasks are taken after all other tasks.
 */
#ifndef HPS_BASE_MAILBOX_H
#define HPS_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/status.h"

struct hps_mailbox;

/* To be embedded in a message and zeroed before its first use. The receiver calls `run`, and `run`
 * owns the message from then on. The mailbox owns the other fields while the task is queued. */
struct hps_task {
    struct hps_task *next;
    struct hps_task *prev;
    _Atomic(struct hps_mailbox *) in; /* the mailbox from which the task can be withdrawn */
    void (*run)(struct hps_task *task);
};

/* Create a mailbox. At most `capacity` tasks can be queued; with 0 there is no limit, for senders
 * that cannot handle a failure. NULL: no memory or no descriptor. */
struct hps_mailbox *hps_mailbox_new(size_t capacity);
void hps_mailbox_free(struct hps_mailbox *mailbox); /* must be empty; no effect if NULL */
int hps_mailbox_fd(struct hps_mailbox *mailbox);    /* readable while tasks are queued */
/* Append a task. On OK the mailbox owns the task, else the caller. EXHAUSTED: the mailbox is full;
 * CLOSED: the mailbox is closed. Any thread. */
hps_status hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* Append a task with low priority. On OK the mailbox owns the task, else the caller. Low-priority
 * tasks do not count towards the capacity, so the sender must limit their number. They cannot be
 * withdrawn. CLOSED: the mailbox is closed. Any thread. */
hps_status hps_mailbox_post_low(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* Take all queued tasks as a list in order of posting, low-priority ones last; NULL if empty.
 * Clears the descriptor. */
struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox);
/* Wait for one task and take it. NULL: the mailbox is closed and empty. Any number of threads may
 * wait. */
struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox);
/* Remove a task that was posted by hps_mailbox_post. True: the task was still queued, and the
 * caller owns it again. False: a receiver has taken it. Constant time. Any thread. */
bool hps_mailbox_withdraw(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
void hps_mailbox_close(struct hps_mailbox *mailbox); /* later posts fail; wakes receivers */
/* Number of queued tasks. Low-priority tasks do not count. */
size_t hps_mailbox_depth(const struct hps_mailbox *mailbox);

#endif
