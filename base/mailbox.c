/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over of tasks between threads: a list under one mutex. The receiver waits on the condition
 * variable or polls the eventfd. The eventfd is written only after hps_mailbox_fd was called, so
 * that a receiver that only waits makes no system calls for it.
 */
#include "base/mailbox.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

struct hps_mailbox {
    struct hps_lock lock;
    struct hps_cond filled;
    struct hps_task *first; /* lock */
    struct hps_task *last;  /* lock; undefined while `first` is NULL */
    int fd;
    bool polled;   /* lock; hps_mailbox_fd was called */
    bool signaled; /* lock; the descriptor is readable */
};

struct hps_mailbox *hps_mailbox_new(void)
{
    struct hps_mailbox *mailbox = hps_calloc(1, sizeof(*mailbox));
    if (mailbox == NULL) {
        return NULL;
    }
    mailbox->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mailbox->fd < 0) {
        hps_free(mailbox);
        return NULL;
    }
    hps_lock_init(&mailbox->lock, HPS_LOCK_MAILBOX);
    hps_cond_init(&mailbox->filled);
    return mailbox;
}

void hps_mailbox_free(struct hps_mailbox *mailbox)
{
    if (mailbox == NULL) {
        return;
    }
    /* A sender may still be about to unlock after its task was taken. */
    hps_lock_acquire(&mailbox->lock);
    bool empty = mailbox->first == NULL;
    hps_lock_release(&mailbox->lock);
    HPS_ASSERT(empty);
    close(mailbox->fd);
    hps_cond_fini(&mailbox->filled);
    hps_lock_fini(&mailbox->lock);
    hps_free(mailbox);
}

/* Make the descriptor readable if and only if tasks are queued. lock is held. */
static void fd_update(struct hps_mailbox *mailbox)
{
    bool want = mailbox->polled && mailbox->first != NULL;
    if (want == mailbox->signaled) {
        return;
    }
    uint64_t count = 1;
    ssize_t rc;
    do {
        rc = want ? write(mailbox->fd, &count, sizeof(count))
                  : read(mailbox->fd, &count, sizeof(count));
    } while (rc < 0 && errno == EINTR);
    HPS_ASSERT(rc == (ssize_t)sizeof(count));
    mailbox->signaled = want;
}

int hps_mailbox_fd(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    mailbox->polled = true;
    fd_update(mailbox);
    hps_lock_release(&mailbox->lock);
    return mailbox->fd;
}

void hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task)
{
    hps_lock_acquire(&mailbox->lock);
    HPS_ASSERT(mailbox->first == NULL || mailbox->last != task); /* posted twice */
    task->next = NULL;
    if (mailbox->first == NULL) {
        mailbox->first = task;
    } else {
        mailbox->last->next = task;
    }
    mailbox->last = task;
    fd_update(mailbox);
    hps_cond_signal(&mailbox->filled);
    hps_lock_release(&mailbox->lock);
}

struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    struct hps_task *tasks = mailbox->first;
    mailbox->first = NULL;
    fd_update(mailbox);
    hps_lock_release(&mailbox->lock);
    return tasks;
}

struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    while (mailbox->first == NULL) {
        hps_cond_wait(&mailbox->filled, &mailbox->lock);
    }
    struct hps_task *task = mailbox->first;
    mailbox->first = task->next;
    fd_update(mailbox);
    hps_lock_release(&mailbox->lock);
    return task;
}
