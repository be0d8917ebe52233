/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of replies: one counter and one queue in order of arrival, under one mutex that is held
 * for a few instructions. Any thread.
 */
#include "server/lookup/admission.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

struct hps_admission {
    struct hps_admission_options options;
    struct hps_lock lock;
    uint64_t bytes; /* of held tickets */
    uint32_t n_held;
    uint32_t n_waiting;
    uint64_t waiting_bytes; /* their work_bytes */
    struct hps_admission_ticket *first, *last;
};

struct hps_admission *hps_admission_new(const struct hps_admission_options *options)
{
    struct hps_admission *admission = hps_calloc(1, sizeof(*admission));

    if (admission == NULL) {
        return NULL;
    }
    admission->options = *options;
    hps_lock_init(&admission->lock, HPS_LOCK_ADMISSION);
    return admission;
}

void hps_admission_free(struct hps_admission *admission)
{
    if (admission == NULL) {
        return;
    }
    HPS_ASSERT(admission->n_held == 0);
    HPS_ASSERT(admission->n_waiting == 0);
    hps_lock_fini(&admission->lock);
    hps_free(admission);
}

static bool fits(const struct hps_admission *admission, uint64_t bytes)
{
    if (admission->n_held == 0) {
        return true;
    }
    return admission->bytes <= admission->options.bytes_max &&
           bytes <= admission->options.bytes_max - admission->bytes;
}

static void export_bytes(struct hps_admission *admission)
{
    if (admission->options.in_flight != NULL) {
        hps_metric_set(admission->options.in_flight, (double)admission->bytes);
    }
}

/* Lock held. */
static void admission_sane(const struct hps_admission *admission)
{
    hps_lock_assert_held(&admission->lock);
    HPS_ASSERT((admission->first == NULL) == (admission->last == NULL));
    HPS_ASSERT((admission->first == NULL) == (admission->n_waiting == 0));
    HPS_ASSERT(admission->n_waiting > 0 || admission->waiting_bytes == 0);
    HPS_ASSERT(admission->n_held > 0 || admission->bytes == 0);
    HPS_ASSERT(admission->first == NULL || admission->first->state == HPS_TICKET_WAITING);
}

static void hold(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    ticket->state = HPS_TICKET_HELD;
    admission->bytes += ticket->bytes;
    admission->n_held++;
    export_bytes(admission);
}

static void enqueue(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    ticket->state = HPS_TICKET_WAITING;
    ticket->prev = admission->last;
    ticket->next = NULL;
    if (admission->last != NULL) {
        admission->last->next = ticket;
    } else {
        admission->first = ticket;
    }
    admission->last = ticket;
    admission->n_waiting++;
    admission->waiting_bytes += ticket->work_bytes;
}

static void dequeue(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    HPS_ASSERT(ticket->state == HPS_TICKET_WAITING);
    HPS_ASSERT(admission->n_waiting > 0 && admission->waiting_bytes >= ticket->work_bytes);
    if (ticket->prev != NULL) {
        ticket->prev->next = ticket->next;
    } else {
        admission->first = ticket->next;
    }
    if (ticket->next != NULL) {
        ticket->next->prev = ticket->prev;
    } else {
        admission->last = ticket->prev;
    }
    ticket->prev = NULL;
    ticket->next = NULL;
    ticket->state = HPS_TICKET_IDLE;
    admission->n_waiting--;
    admission->waiting_bytes -= ticket->work_bytes;
}

/* Let in whoever fits, in order, and call them outside the lock. A granted ticket is its owner's as
 * soon as it has been called, so the list is kept in `next` and read before each call. */
static void grant_waiting(struct hps_admission *admission)
{
    struct hps_admission_ticket *granted = NULL;
    struct hps_admission_ticket **tail = &granted;

    hps_lock_acquire(&admission->lock);
    while (admission->first != NULL && fits(admission, admission->first->bytes)) {
        struct hps_admission_ticket *ticket = admission->first;
        dequeue(admission, ticket);
        hold(admission, ticket);
        *tail = ticket;
        tail = &ticket->next;
    }
    hps_lock_release(&admission->lock);
    while (granted != NULL) {
        struct hps_admission_ticket *ticket = granted;
        granted = ticket->next;
        ticket->next = NULL;
        ticket->on_granted(ticket);
    }
}

/* Stand in the queue, which is bounded. Lock held. */
static hps_status wait_in_line(struct hps_admission *admission, struct hps_admission_ticket *ticket,
                               struct hps_error *err)
{
    uint64_t bytes_max = admission->options.bytes_max;

    if (admission->n_waiting >= admission->options.waiting_max) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "look-up rejected: %u others wait for reply memory, limit is %u; "
                             "retry later",
                             admission->n_waiting, admission->options.waiting_max);
    }
    if (admission->n_waiting > 0 && (admission->waiting_bytes > bytes_max ||
                                     ticket->work_bytes > bytes_max - admission->waiting_bytes)) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "look-up rejected: %u others that need %" PRIu64
                             " bytes wait for reply memory, limit is %" PRIu64
                             " (reply_bytes_in_flight); retry later",
                             admission->n_waiting, admission->waiting_bytes, bytes_max);
    }
    enqueue(admission, ticket);
    return HPS_OK;
}

hps_status hps_admission_ask(struct hps_admission *admission, struct hps_admission_ticket *ticket,
                             uint64_t reply_bytes, uint64_t work_bytes, bool *out_held,
                             struct hps_error *err)
{
    hps_status status = HPS_OK;

    HPS_ASSERT(ticket->on_granted != NULL);
    HPS_ASSERT(reply_bytes <= UINT64_MAX - work_bytes);
    hps_lock_acquire(&admission->lock);
    admission_sane(admission);
    HPS_ASSERT(ticket->state == HPS_TICKET_IDLE);
    ticket->bytes = reply_bytes + work_bytes;
    ticket->work_bytes = work_bytes;
    if (reply_bytes > admission->options.reply_bytes_max) {
        status = hps_error_set(err, HPS_RANGE,
                               "the reply would have %" PRIu64 " bytes, limit is %" PRIu64
                               " (reply_bytes_max); ask for fewer keys",
                               reply_bytes, admission->options.reply_bytes_max);
    } else if (admission->first == NULL && fits(admission, ticket->bytes)) {
        hold(admission, ticket);
        *out_held = true;
    } else {
        status = wait_in_line(admission, ticket, err);
        *out_held = false;
    }
    hps_lock_release(&admission->lock);
    return status;
}

bool hps_admission_cancel(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    bool waited;

    hps_lock_acquire(&admission->lock);
    admission_sane(admission);
    waited = ticket->state == HPS_TICKET_WAITING;
    if (waited) {
        dequeue(admission, ticket);
    }
    hps_lock_release(&admission->lock);
    if (waited) { /* it may have stood before one that fits */
        grant_waiting(admission);
    }
    return waited;
}

void hps_admission_release(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    bool held;

    hps_lock_acquire(&admission->lock);
    HPS_ASSERT(ticket->state != HPS_TICKET_WAITING);
    held = ticket->state == HPS_TICKET_HELD;
    if (held) {
        HPS_ASSERT(admission->n_held > 0 && admission->bytes >= ticket->bytes);
        ticket->state = HPS_TICKET_IDLE;
        admission->bytes -= ticket->bytes;
        admission->n_held--;
        export_bytes(admission);
    }
    hps_lock_release(&admission->lock);
    if (held) {
        grant_waiting(admission);
    }
}

void hps_admission_limits_set(struct hps_admission *admission, uint64_t bytes_max,
                              uint64_t reply_bytes_max)
{
    hps_lock_acquire(&admission->lock);
    admission->options.bytes_max = bytes_max;
    admission->options.reply_bytes_max = reply_bytes_max;
    hps_lock_release(&admission->lock);
    grant_waiting(admission);
}

uint64_t hps_admission_bytes(struct hps_admission *admission)
{
    hps_lock_acquire(&admission->lock);
    uint64_t bytes = admission->bytes;
    hps_lock_release(&admission->lock);
    return bytes;
}

uint32_t hps_admission_waiting(struct hps_admission *admission)
{
    hps_lock_acquire(&admission->lock);
    uint32_t n = admission->n_waiting;
    hps_lock_release(&admission->lock);
    return n;
}
