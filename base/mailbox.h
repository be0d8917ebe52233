/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over between threads: an intrusive queue of tasks, bounded or not. Any number of threads
 * post. Either any number of receivers wait for one task each (hps_mailbox_wait), or one polls a
 * descriptor (an eventfd, signalled only on empty -> non-empty) and takes all. Tasks that are not
 * urgent are taken when no other waits.
 */
#ifndef HPS_BASE_MAILBOX_H
#define HPS_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/status.h"

struct hps_mailbox;

/* Embed in the message, zeroed before its first use; `run` is called by the receiver, which owns
 * the message from then on. The rest is the mailbox's while the task waits there. */
struct hps_task {
    struct hps_task *next;
    struct hps_task *prev;
    _Atomic(struct hps_mailbox *) in; /* where it waits, if it can be withdrawn */
    void (*run)(struct hps_task *task);
};

/* capacity 0: unbounded (for completions, which must never fail). NULL: no memory or descriptor. */
struct hps_mailbox *hps_mailbox_new(size_t capacity);
void hps_mailbox_free(struct hps_mailbox *mailbox); /* must be empty */
int hps_mailbox_fd(struct hps_mailbox *mailbox);    /* readable while there are tasks */
/* takes `task`. EXHAUSTED: full; CLOSED: closed. Then the caller still owns it. Any thread. */
hps_status hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* takes `task`, which is taken when no task of hps_mailbox_post waits. They are not counted in the
 * depth nor bounded by the capacity: who posts them bounds them; and cannot be withdrawn. CLOSED:
 * as above. Any thread. */
hps_status hps_mailbox_post_low(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
/* All waiting tasks as a list in order of posting, those that are not urgent last, NULL if none;
 * clears the descriptor. */
struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox);
/* Wait for and take one task; NULL once closed and empty. Any number of receivers may wait. */
struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox);
/* Take back a task of hps_mailbox_post: true if it still waited here, else a receiver has it, or
 * has had it. As quick however many wait. Any thread. */
bool hps_mailbox_withdraw(struct hps_mailbox *mailbox, struct hps_task *task) HPS_MUST_CHECK;
void hps_mailbox_close(struct hps_mailbox *mailbox); /* wakes waiters; posts fail from now on */
size_t hps_mailbox_depth(const struct hps_mailbox *mailbox);

#endif
