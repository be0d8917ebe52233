/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over of tasks between threads: a list under one mutex. Receivers wait on the condition
 * variable or poll the eventfd. The eventfd is written only after hps_mailbox_fd was called, so
 * that pools of waiting threads make no system calls for it.
 */
#include "base/mailbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

struct list {
    struct hps_task *head;
    struct hps_task *tail; /* undefined while head is NULL */
};

struct hps_mailbox {
    struct hps_lock lock;
    struct hps_cond filled;
    struct list tasks;   /* lock */
    struct list low;     /* lock; taken when `tasks` is empty */
    atomic_size_t depth; /* length of `tasks`; written under lock */
    size_t capacity;     /* 0: unbounded */
    int fd;
    bool polled;   /* lock; hps_mailbox_fd was called */
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
    hps_lock_init(&mailbox->lock, HPS_LOCK_MAILBOX);
    hps_cond_init(&mailbox->filled);
    atomic_init(&mailbox->depth, 0);
    mailbox->capacity = capacity;
    return mailbox;
}

static void list_add(struct list *list, struct hps_task *task)
{
    HPS_ASSERT(task != NULL);
    HPS_ASSERT(list->head == NULL || list->tail != task); /* posted twice */
    task->next = NULL;
    task->prev = list->head != NULL ? list->tail : NULL;
    if (list->head == NULL) {
        list->head = task;
    } else {
        list->tail->next = task;
    }
    list->tail = task;
}

static void list_remove(struct list *list, struct hps_task *task)
{
    if (task->prev != NULL) {
        task->prev->next = task->next;
    } else {
        HPS_ASSERT(list->head == task);
        list->head = task->next;
    }
    if (task->next != NULL) {
        task->next->prev = task->prev;
    } else {
        HPS_ASSERT(list->tail == task);
        list->tail = task->prev;
    }
    task->next = NULL;
    task->prev = NULL;
}

/* NULL: empty. */
static struct hps_task *list_take(struct list *list)
{
    struct hps_task *task = list->head;

    if (task != NULL) {
        list_remove(list, task);
    }
    return task;
}

/* lock is held. A receiver may post the task to another mailbox, under the lock of that one. So
 * under this lock only the answer "queued here" is reliable. */
static void set_in(struct hps_task *task, struct hps_mailbox *mailbox)
{
    atomic_store_explicit(&task->in, mailbox, memory_order_relaxed);
}

/* lock is held. */
static bool is_empty(const struct hps_mailbox *mailbox)
{
    hps_lock_assert_held(&mailbox->lock);
    return mailbox->tasks.head == NULL && mailbox->low.head == NULL;
}

void hps_mailbox_free(struct hps_mailbox *mailbox)
{
    if (mailbox == NULL) {
        return;
    }
    /* A sender may still be about to unlock after its task was taken. */
    hps_lock_acquire(&mailbox->lock);
    bool empty = is_empty(mailbox);
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
    bool want = mailbox->polled && !is_empty(mailbox);
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

hps_status hps_mailbox_post(struct hps_mailbox *mailbox, struct hps_task *task)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&mailbox->lock);
    size_t depth = atomic_load_explicit(&mailbox->depth, memory_order_relaxed);
    if (mailbox->closed) {
        status = HPS_CLOSED;
    } else if (mailbox->capacity != 0 && depth >= mailbox->capacity) {
        status = HPS_EXHAUSTED;
    } else {
        list_add(&mailbox->tasks, task);
        set_in(task, mailbox);
        atomic_store_explicit(&mailbox->depth, depth + 1, memory_order_relaxed);
        fd_update(mailbox);
        hps_cond_signal(&mailbox->filled);
    }
    hps_lock_release(&mailbox->lock);
    return status;
}

hps_status hps_mailbox_post_low(struct hps_mailbox *mailbox, struct hps_task *task)
{
    hps_lock_acquire(&mailbox->lock);
    hps_status status = mailbox->closed ? HPS_CLOSED : HPS_OK;
    if (status == HPS_OK) {
        list_add(&mailbox->low, task);
        set_in(task, NULL);
        fd_update(mailbox);
        hps_cond_signal(&mailbox->filled);
    }
    hps_lock_release(&mailbox->lock);
    return status;
}

struct hps_task *hps_mailbox_take_all(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    struct hps_task *tasks = mailbox->tasks.head;
    for (struct hps_task *task = tasks; task != NULL; task = task->next) {
        set_in(task, NULL);
    }
    if (tasks == NULL) {
        tasks = mailbox->low.head;
    } else {
        mailbox->tasks.tail->next = mailbox->low.head;
    }
    mailbox->tasks.head = NULL;
    mailbox->low.head = NULL;
    atomic_store_explicit(&mailbox->depth, 0, memory_order_relaxed);
    fd_update(mailbox);
    hps_lock_release(&mailbox->lock);
    return tasks;
}

struct hps_task *hps_mailbox_wait(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    while (is_empty(mailbox) && !mailbox->closed) {
        hps_cond_wait(&mailbox->filled, &mailbox->lock);
    }
    struct hps_task *task = list_take(&mailbox->tasks);
    if (task != NULL) {
        set_in(task, NULL);
        size_t before = atomic_fetch_sub_explicit(&mailbox->depth, 1, memory_order_relaxed);
        HPS_ASSERT(before > 0);
    } else {
        task = list_take(&mailbox->low);
    }
    fd_update(mailbox);
    hps_lock_release(&mailbox->lock);
    return task;
}

bool hps_mailbox_withdraw(struct hps_mailbox *mailbox, struct hps_task *task)
{
    hps_lock_acquire(&mailbox->lock);
    bool waits = atomic_load_explicit(&task->in, memory_order_relaxed) == mailbox;
    if (waits) {
        list_remove(&mailbox->tasks, task);
        set_in(task, NULL);
        size_t depth = atomic_fetch_sub_explicit(&mailbox->depth, 1, memory_order_relaxed);
        HPS_ASSERT(depth > 0);
        fd_update(mailbox);
    }
    hps_lock_release(&mailbox->lock);
    return waits;
}

void hps_mailbox_close(struct hps_mailbox *mailbox)
{
    hps_lock_acquire(&mailbox->lock);
    mailbox->closed = true;
    hps_cond_broadcast(&mailbox->filled);
    hps_lock_release(&mailbox->lock);
}

size_t hps_mailbox_depth(const struct hps_mailbox *mailbox)
{
    return atomic_load_explicit(&mailbox->depth, memory_order_relaxed);
}
