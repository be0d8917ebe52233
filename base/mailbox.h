/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue that passes tasks between threads, intrusive and unbounded. Any number of threads post
 * tasks. One thread receives them: it waits for the next task (hps_mailbox_wait), or polls a
 * descriptor and takes all tasks (hps_mailbox_take_all). The descriptor is an eventfd that is
 * readable while tasks are queued.
 */
#ifndef HPS_BASE_MAILBOX_H
#define HPS_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/fair.h"
#include "base/status.h"

struct hps_mailbox;
struct hps_pool;

/* To be embedded in a message and zeroed before its first use. The receiver calls `run`, and `run`
 * owns the message from then on. A mailbox or a pool (base/pool.h) owns the other fields while the
 * task is queued there. */
struct hps_task {
    void (*run)(struct hps_task *task);
    struct hps_task *next;         /* in a mailbox */
    uint64_t client;               /* in a loop (net/loop.h): the client of the task; 0: none */
    struct hps_fair_item item;     /* in a pool */
    uint64_t cost;                 /* in a pool: its estimated time, in nanoseconds */
    _Atomic(struct hps_pool *) in; /* the pool from which the task can be withdrawn */
};

struct hps_mailbox *hps_mailbox_new(void);          /* NULL: no memory or no descriptor */
void hps_mailbox_free(struct hps_mailbox *mailbox); /* must be empty; no effect if NULL */
int hps_mailbox_fd(struct hps_mailbox *mailbox);    /* readable while tasks are queued */
/* Append a task, which the mailbox then owns. Any thread. */
void hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task);
/* Take all queued tasks as a list in order of posting; NULL if empty. Clears the descriptor. */
struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox);
/* Wait for one task and take it. */
struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox);

#endif
