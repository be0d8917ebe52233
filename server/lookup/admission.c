/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of replies: one counter, and lines in order of arrival, under one mutex that is held
 * for a few instructions. Large replies wait in one line, small ones in another, so that who comes
 * next is the first of either; and those of clients that hold a share already in two such lines of
 * their own, which move on when the others are empty. Any thread.
 */
#include "server/lookup/admission.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

enum {
    SMALL_SHARE = 64, /* of bytes_max: up to this a ticket is small */
    PASSED_SHARE = 8, /* of bytes_max: so much may those hold that went past a large one */
    N_CLIENTS = 2048, /* that are told from one another, mostly */
};

/* What the clients have whose numbers fall here: mostly one, and nobody can aim, as the numbers are
 * hashed with a secret. */
struct hps_admission_client {
    uint64_t held_bytes;
    uint64_t waiting_bytes; /* work_bytes of those that wait */
    uint32_t n_waiting;
};

struct hps_admission_line {
    struct hps_admission_ticket *first, *last;
};

/* Those that wait, by size. */
struct group {
    struct hps_admission_line small, large;
};

struct hps_admission {
    struct hps_admission_options options;
    struct hps_lock lock;
    uint64_t bytes; /* of held tickets */
    uint32_t n_held;
    uint64_t passed_bytes; /* of those of them that went past a large one */
    uint32_t n_passed;
    uint32_t n_waiting;
    uint64_t waiting_bytes; /* their work_bytes */
    uint64_t n_queued;      /* ever: the order of arrival */
    struct group within;    /* of clients that hold less than a share */
    struct group over;      /* of the others */
    struct hps_admission_client clients[N_CLIENTS];
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

/* ---- clients; lock held ---------------------------------------------------------------------- */

static struct hps_admission_client *client_of(struct hps_admission *admission,
                                              const struct hps_admission_ticket *ticket)
{
    return &admission->clients[ticket->client % N_CLIENTS];
}

static uint64_t share_of(const struct hps_admission *admission, uint64_t all)
{
    double share = admission->options.share;
    uint64_t part = (uint64_t)((double)all * share);

    if (share <= 0 || share >= 1) {
        return UINT64_MAX;
    }
    return part > 0 ? part : 1;
}

/* Its client holds a share already. One that holds less may have a reply of any size. */
static bool is_over(struct hps_admission *admission, const struct hps_admission_ticket *ticket)
{
    uint64_t held = client_of(admission, ticket)->held_bytes;

    return held > 0 && held >= share_of(admission, admission->options.bytes_max);
}

/* ---- sizes; lock held ------------------------------------------------------------------------ */

static bool fits_beside(const struct hps_admission *admission, uint32_t n_held, uint64_t held_bytes,
                        uint64_t bytes)
{
    uint64_t bytes_max = admission->options.bytes_max;

    return n_held == 0 || (held_bytes <= bytes_max && bytes <= bytes_max - held_bytes);
}

static bool fits(const struct hps_admission *admission, uint64_t bytes)
{
    return fits_beside(admission, admission->n_held, admission->bytes, bytes);
}

static bool is_small(const struct hps_admission *admission, uint64_t bytes)
{
    return bytes <= admission->options.bytes_max / SMALL_SHARE;
}

/* ---- lines; lock held ------------------------------------------------------------------------ */

static void append(struct hps_admission *admission, struct hps_admission_line *line,
                   struct hps_admission_ticket *ticket)
{
    HPS_ASSERT(ticket->line == NULL);
    ticket->order = admission->n_queued++;
    ticket->line = line;
    ticket->prev = line->last;
    ticket->next = NULL;
    if (line->last != NULL) {
        line->last->next = ticket;
    } else {
        line->first = ticket;
    }
    line->last = ticket;
}

static void take_out(struct hps_admission_ticket *ticket)
{
    struct hps_admission_line *line = ticket->line;

    HPS_ASSERT(line != NULL);
    if (ticket->prev != NULL) {
        ticket->prev->next = ticket->next;
    } else {
        line->first = ticket->next;
    }
    if (ticket->next != NULL) {
        ticket->next->prev = ticket->prev;
    } else {
        line->last = ticket->prev;
    }
    ticket->prev = NULL;
    ticket->next = NULL;
    ticket->line = NULL;
}

static bool is_empty(const struct group *group)
{
    return group->small.first == NULL && group->large.first == NULL;
}

static struct group *group_for(struct hps_admission *admission,
                               const struct hps_admission_ticket *ticket)
{
    return is_over(admission, ticket) ? &admission->over : &admission->within;
}

static struct hps_admission_line *line_for(struct hps_admission *admission,
                                           const struct hps_admission_ticket *ticket)
{
    struct group *group = group_for(admission, ticket);

    return is_small(admission, ticket->bytes) ? &group->small : &group->large;
}

static void sort_line(struct hps_admission *admission, struct hps_admission_line *line, bool over)
{
    struct hps_admission_ticket *ticket = line->first;

    while (ticket != NULL && is_over(admission, ticket) != over) {
        take_out(ticket);
        append(admission, line_for(admission, ticket), ticket);
        ticket = line->first;
    }
}

/* Clients hold more, or less, than when theirs came: let the first of each line be one that belongs
 * there. Whoever is moved goes to the end. */
static void sort_first(struct hps_admission *admission)
{
    sort_line(admission, &admission->over.small, true);
    sort_line(admission, &admission->over.large, true);
    sort_line(admission, &admission->within.small, false);
    sort_line(admission, &admission->within.large, false);
}

/* ---- who may be let in; lock held ------------------------------------------------------------ */

/* The first large one does not fit. A small one of so many bytes goes past it, unless those that
 * did so before hold their share, or are all that keeps the large one out. */
static bool may_pass(const struct hps_admission *admission,
                     const struct hps_admission_ticket *large, uint64_t bytes)
{
    uint64_t passed_max = admission->options.bytes_max / PASSED_SHARE;
    uint64_t passed = admission->passed_bytes;

    if (passed > passed_max || bytes > passed_max - passed) {
        return false;
    }
    return fits(admission, bytes) &&
           !fits_beside(admission, admission->n_held - admission->n_passed,
                        admission->bytes - passed, large->bytes);
}

/* Who waits and is next to be let in; NULL: nobody may be. */
static struct hps_admission_ticket *next_in_line(struct hps_admission *admission, bool *out_passes)
{
    sort_first(admission);
    const struct group *group =
        is_empty(&admission->within) ? &admission->over : &admission->within;
    struct hps_admission_ticket *small = group->small.first;
    struct hps_admission_ticket *large = group->large.first;

    *out_passes = false;
    if (large == NULL || (small != NULL && small->order < large->order)) {
        return small != NULL && fits(admission, small->bytes) ? small : NULL;
    }
    if (fits(admission, large->bytes)) {
        return large;
    }
    *out_passes = small != NULL && may_pass(admission, large, small->bytes);
    return *out_passes ? small : NULL;
}

/* Whether a ticket that has just come is let in at once. */
static bool may_enter(struct hps_admission *admission, const struct hps_admission_ticket *ticket,
                      bool *out_passes)
{
    uint64_t bytes = ticket->bytes;

    *out_passes = false;
    if (admission->n_waiting == 0) {
        return fits(admission, bytes);
    }
    sort_first(admission);
    const struct group *group = group_for(admission, ticket);
    const struct hps_admission_ticket *large = group->large.first;
    if (group == &admission->over && !is_empty(&admission->within)) {
        return false;
    }
    if (is_empty(group)) {
        return fits(admission, bytes);
    }
    *out_passes = group->small.first == NULL && is_small(admission, bytes) &&
                  !fits(admission, large->bytes) && may_pass(admission, large, bytes);
    return *out_passes;
}

/* ---- what is held, who waits; lock held ------------------------------------------------------ */

static void export_bytes(struct hps_admission *admission)
{
    if (admission->options.in_flight != NULL) {
        hps_metric_set(admission->options.in_flight, (double)admission->bytes);
    }
}

static void admission_sane(const struct hps_admission *admission)
{
    const struct hps_admission_line *lines[] = {&admission->within.small, &admission->within.large,
                                                &admission->over.small, &admission->over.large};
    bool empty = true;

    hps_lock_assert_held(&admission->lock);
    for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        HPS_ASSERT((lines[i]->first == NULL) == (lines[i]->last == NULL));
        empty = empty && lines[i]->first == NULL;
    }
    HPS_ASSERT(empty == (admission->n_waiting == 0));
    HPS_ASSERT(admission->n_waiting > 0 || admission->waiting_bytes == 0);
    HPS_ASSERT(admission->n_held > 0 || admission->bytes == 0);
    HPS_ASSERT(admission->n_passed <= admission->n_held);
    HPS_ASSERT(admission->passed_bytes <= admission->bytes);
    HPS_ASSERT(admission->n_passed > 0 || admission->passed_bytes == 0);
}

static void hold(struct hps_admission *admission, struct hps_admission_ticket *ticket, bool passes)
{
    ticket->state = HPS_TICKET_HELD;
    ticket->passed = passes;
    client_of(admission, ticket)->held_bytes += ticket->bytes;
    admission->bytes += ticket->bytes;
    admission->n_held++;
    if (passes) {
        admission->passed_bytes += ticket->bytes;
        admission->n_passed++;
    }
    export_bytes(admission);
}

static void let_go(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    HPS_ASSERT(ticket->state == HPS_TICKET_HELD);
    struct hps_admission_client *client = client_of(admission, ticket);
    HPS_ASSERT(admission->n_held > 0 && admission->bytes >= ticket->bytes);
    HPS_ASSERT(client->held_bytes >= ticket->bytes);
    ticket->state = HPS_TICKET_IDLE;
    client->held_bytes -= ticket->bytes;
    admission->bytes -= ticket->bytes;
    admission->n_held--;
    if (ticket->passed) {
        HPS_ASSERT(admission->n_passed > 0 && admission->passed_bytes >= ticket->bytes);
        ticket->passed = false;
        admission->passed_bytes -= ticket->bytes;
        admission->n_passed--;
    }
    export_bytes(admission);
}

static void enqueue(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    struct hps_admission_client *client = client_of(admission, ticket);

    ticket->state = HPS_TICKET_WAITING;
    append(admission, line_for(admission, ticket), ticket);
    client->n_waiting++;
    client->waiting_bytes += ticket->work_bytes;
    admission->n_waiting++;
    admission->waiting_bytes += ticket->work_bytes;
}

static void dequeue(struct hps_admission *admission, struct hps_admission_ticket *ticket)
{
    struct hps_admission_client *client = client_of(admission, ticket);

    HPS_ASSERT(ticket->state == HPS_TICKET_WAITING);
    HPS_ASSERT(client->n_waiting > 0 && client->waiting_bytes >= ticket->work_bytes);
    HPS_ASSERT(admission->n_waiting > 0 && admission->waiting_bytes >= ticket->work_bytes);
    take_out(ticket);
    ticket->state = HPS_TICKET_IDLE;
    client->n_waiting--;
    client->waiting_bytes -= ticket->work_bytes;
    admission->n_waiting--;
    admission->waiting_bytes -= ticket->work_bytes;
}

/* ---- asking and giving back ------------------------------------------------------------------ */

/* Let in whoever may be, and call them outside the lock. A granted ticket is its owner's as soon as
 * it has been called, so the list is kept in `next` and read before each call. */
static void grant_waiting(struct hps_admission *admission)
{
    struct hps_admission_ticket *granted = NULL;
    struct hps_admission_ticket **tail = &granted;
    struct hps_admission_ticket *ticket;
    bool passes;

    hps_lock_acquire(&admission->lock);
    while ((ticket = next_in_line(admission, &passes)) != NULL) {
        dequeue(admission, ticket);
        hold(admission, ticket, passes);
        *tail = ticket;
        tail = &ticket->next;
    }
    hps_lock_release(&admission->lock);
    while (granted != NULL) {
        ticket = granted;
        granted = ticket->next;
        ticket->next = NULL;
        ticket->on_granted(ticket);
    }
}

/* Half of the room to wait is taken, and of what is left this client would have more than a share.
 * Lock held. */
static bool waits_too_much(struct hps_admission *admission,
                           const struct hps_admission_ticket *ticket)
{
    const struct hps_admission_client *client = client_of(admission, ticket);
    uint64_t bytes_max = admission->options.bytes_max;
    uint32_t n_max = admission->options.waiting_max;

    return (admission->n_waiting >= n_max / 2 && client->n_waiting >= share_of(admission, n_max)) ||
           (admission->waiting_bytes >= bytes_max / 2 &&
            client->waiting_bytes >= share_of(admission, bytes_max));
}

/* Stand in line; all are bounded together. Lock held. */
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
    if (waits_too_much(admission, ticket)) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "look-up rejected: %u others wait for reply memory, %u of them of "
                             "this client, whose share that is (peer_share); retry later",
                             admission->n_waiting, client_of(admission, ticket)->n_waiting);
    }
    enqueue(admission, ticket);
    return HPS_OK;
}

hps_status hps_admission_ask(struct hps_admission *admission, struct hps_admission_ticket *ticket,
                             uint64_t reply_bytes, uint64_t work_bytes, bool *out_held,
                             struct hps_error *err)
{
    hps_status status = HPS_OK;
    bool passes;

    HPS_ASSERT(ticket->on_granted != NULL);
    HPS_ASSERT(reply_bytes <= UINT64_MAX - work_bytes);
    hps_lock_acquire(&admission->lock);
    HPS_DEBUG_SANE(admission_sane(admission));
    HPS_ASSERT(ticket->state == HPS_TICKET_IDLE);
    ticket->bytes = reply_bytes + work_bytes;
    ticket->work_bytes = work_bytes;
    if (reply_bytes > admission->options.reply_bytes_max) {
        status = hps_error_set(err, HPS_RANGE,
                               "the reply and the rows that are added for it would have %" PRIu64
                               " bytes, limit is %" PRIu64 " (reply_bytes_max); ask for fewer keys",
                               reply_bytes, admission->options.reply_bytes_max);
    } else if (may_enter(admission, ticket, &passes)) {
        hold(admission, ticket, passes);
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
    HPS_DEBUG_SANE(admission_sane(admission));
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
        let_go(admission, ticket);
    }
    hps_lock_release(&admission->lock);
    if (held) {
        grant_waiting(admission);
    }
}

void hps_admission_limits_set(struct hps_admission *admission, uint64_t bytes_max,
                              uint64_t reply_bytes_max, double share)
{
    hps_lock_acquire(&admission->lock);
    admission->options.bytes_max = bytes_max;
    admission->options.reply_bytes_max = reply_bytes_max;
    admission->options.share = share;
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
