/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission by the size of the *result*, before any work: the bytes of all replies that have not
 * ended stay under one cap. What does not fit waits for a bounded time, in order of arrival; but a
 * small reply that fits goes past large ones that do not:
 *
 *   - small is at most 1/64 of the cap, as asked; small ones stay in order among themselves;
 *   - what went past holds at most 1/8 of the cap at a time;
 *   - none goes past a large one that only such keep out: it is let in when they have ended.
 *
 * Any thread.
 */
#ifndef HPS_SERVER_LOOKUP_ADMISSION_H
#define HPS_SERVER_LOOKUP_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/metric.h"
#include "base/status.h"

struct hps_admission;
struct hps_admission_line;

enum hps_admission_state { HPS_TICKET_IDLE, HPS_TICKET_WAITING, HPS_TICKET_HELD };

/* Embedded in the request; zeroed before its first use. It is the admission's, but for client and
 * on_granted. */
struct hps_admission_ticket {
    uint64_t client; /* who asks: a number of hps_sock_client */
    uint64_t bytes;
    uint64_t work_bytes;
    enum hps_admission_state state;  /* under the lock, as the rest */
    bool passed;                     /* held: it went past a large one */
    uint64_t order;                  /* waiting: of arrival */
    struct hps_admission_line *line; /* that it waits in; NULL: none */
    struct hps_admission_ticket *prev, *next;
    /* The ticket is held now; called by the thread that released the room, outside all locks. */
    void (*on_granted)(struct hps_admission_ticket *ticket);
};

struct hps_admission_options {
    uint64_t bytes_max;           /* of all replies together */
    uint64_t reply_bytes_max;     /* of one */
    uint32_t waiting_max;         /* tickets */
    double share;                 /* of bytes_max, for one client while others wait; 0: none */
    struct hps_metric *in_flight; /* gauge; may be NULL */
};

/* NULL: no memory. */
struct hps_admission *hps_admission_new(const struct hps_admission_options *options);
/* No ticket may be held or waiting. NULL is legal. */
void hps_admission_free(struct hps_admission *admission);

/* Ask for room for a reply of `reply_bytes`, rows that are added for it included, and
 * `work_bytes` more to make it, of which what came with the request. out_held: there was;
 * otherwise on_granted follows, maybe before this returns, unless the wait is cancelled. A lone
 * reply is let in whatever bytes_max is. While several clients wait, those that hold a share
 * already come after all others; and of the half of the line that is left once the other half is
 * taken, nobody gets more than that share.
 *
 * error   RANGE: more than reply_bytes_max; EXHAUSTED: waiting_max tickets wait already, or with
 * this one their work_bytes would be above bytes_max (they hold their keys meanwhile; a lone one
 * may wait whatever it is), or this client's share of either is used up
 */
hps_status hps_admission_ask(struct hps_admission *admission, struct hps_admission_ticket *ticket,
                             uint64_t reply_bytes, uint64_t work_bytes, bool *out_held,
                             struct hps_error *err) HPS_MUST_CHECK;

/* Stop waiting. True: the ticket is idle and on_granted is not called; false: it did not wait. */
bool hps_admission_cancel(struct hps_admission *admission, struct hps_admission_ticket *ticket);

/* Give back what the ticket holds (nothing, if idle). It must not be waiting. */
void hps_admission_release(struct hps_admission *admission, struct hps_admission_ticket *ticket);

/* From now on; what is held stays. More room lets in who waits. */
void hps_admission_limits_set(struct hps_admission *admission, uint64_t bytes_max,
                              uint64_t reply_bytes_max, double share);

uint64_t hps_admission_bytes(struct hps_admission *admission);
uint32_t hps_admission_waiting(struct hps_admission *admission);

#endif
