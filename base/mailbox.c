/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over between threads: a list under one mutex. Many threads post; receivers wait on the
 * condition variable or poll the eventfd. The eventfd is written only once somebody has asked for
 * it, so that pools of waiting threads pay no system calls.
 */
#include "base/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"

struct hps_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct hps_task *head; /* lock */
    struct hps_task *tail; /* lock; undefined while head is NULL */
    atomic_size_t depth;   /* written under lock */
    size_t capacity;       /* 0: unbounded */
    int fd;
    bool polled;   /* lock; somebody has the descriptor */
    bool signaled; /* lock; the descriptor is readable */
    bool closed;   /* lock */
};

struct hps_mailbox *hps_mailbox_new(size_t capacity)
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
    pthread_mutex_init(&mailbox->lock, NULL);
    pthread_cond_init(&mailbox->filled, NULL);
    atomic_init(&mailbox->depth, 0);
    mailbox->capacity = capacity;
    return mailbox;
}

void hps_mailbox_free(struct hps_mailbox *mailbox)
{
    if (mailbox == NULL) {
        return;
    }
    /* A sender whose task has been taken may still be about to unlock. */
    pthread_mutex_lock(&mailbox->lock);
    bool empty = mailbox->head == NULL;
    pthread_mutex_unlock(&mailbox->lock);
    HPS_ASSERT(empty);
    close(mailbox->fd);
    pthread_cond_destroy(&mailbox->filled);
    pthread_mutex_destroy(&mailbox->lock);
    hps_free(mailbox);
}

/* Make the descriptor readable exactly when there are tasks. lock is held. */
static void fd_update(struct hps_mailbox *mailbox)
{
    bool want = mailbox->polled && mailbox->head != NULL;
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
    pthread_mutex_lock(&mailbox->lock);
    mailbox->polled = true;
    fd_update(mailbox);
    pthread_mutex_unlock(&mailbox->lock);
    return mailbox->fd;
}

hps_status hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task)
{
    hps_status status = HPS_OK;
    pthread_mutex_lock(&mailbox->lock);
    size_t depth = atomic_load_explicit(&mailbox->depth, memory_order_relaxed);
    if (mailbox->closed) {
        status = HPS_CLOSED;
    } else if (mailbox->capacity != 0 && depth >= mailbox->capacity) {
        status = HPS_EXHAUSTED;
    } else {
        task->next = NULL;
        if (mailbox->head == NULL) {
            mailbox->head = task;
        } else {
            mailbox->tail->next = task;
        }
        mailbox->tail = task;
        atomic_store_explicit(&mailbox->depth, depth + 1, memory_order_relaxed);
        fd_update(mailbox);
        pthread_cond_signal(&mailbox->filled);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    struct hps_task *tasks = mailbox->head;
    mailbox->head = NULL;
    atomic_store_explicit(&mailbox->depth, 0, memory_order_relaxed);
    fd_update(mailbox);
    pthread_mutex_unlock(&mailbox->lock);
    return tasks;
}

struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    while (mailbox->head == NULL && !mailbox->closed) {
        pthread_cond_wait(&mailbox->filled, &mailbox->lock);
    }
    struct hps_task *task = mailbox->head;
    if (task != NULL) {
        mailbox->head = task->next;
        task->next = NULL;
        atomic_fetch_sub_explicit(&mailbox->depth, 1, memory_order_relaxed);
        fd_update(mailbox);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return task;
}

bool hps_mailbox_withdraw(struct hps_mailbox *mailbox, struct hps_task *task)
{
    struct hps_task *before = NULL;
    pthread_mutex_lock(&mailbox->lock);
    struct hps_task *at = mailbox->head;
    while (at != NULL && at != task) {
        before = at;
        at = at->next;
    }
    if (at != NULL) {
        if (before == NULL) {
            mailbox->head = task->next;
        } else {
            before->next = task->next;
        }
        mailbox->tail = mailbox->tail == task ? before : mailbox->tail;
        task->next = NULL;
        atomic_fetch_sub_explicit(&mailbox->depth, 1, memory_order_relaxed);
        fd_update(mailbox);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return at != NULL;
}

void hps_mailbox_close(struct hps_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    mailbox->closed = true;
    pthread_cond_broadcast(&mailbox->filled);
    pthread_mutex_unlock(&mailbox->lock);
}

size_t hps_mailbox_depth(const struct hps_mailbox *mailbox)
{
    return atomic_load_explicit(&mailbox->depth, memory_order_relaxed);
}
