/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a store that blocks is asked at all. Calls that fail one after another open the breaker:
 * the store is then skipped, but for one probe after each pause, which doubles until one succeeds.
 * One breaker per store, shared by all versions, or one per node of a store. Any thread.
 */
#ifndef HPS_BACKENDS_BREAKER_H
#define HPS_BACKENDS_BREAKER_H

#include "base/status.h"

struct hps_breaker;

struct hps_breaker_options {
    const char *tier;        /* in the log; static text */
    const char *node;        /* of that tier, in the log, borrowed; NULL: the whole of it */
    const char *reason;      /* why a call has failed, in the log, borrowed; NULL: its status */
    uint32_t failures_max;   /* in a row, that open it */
    uint64_t timeout_us;     /* a call that missed its deadline failed if it had this much time */
    uint64_t pause_us_first; /* from its opening to the first probe */
    uint64_t pause_us_max;
};

/* The default timeout_us suits an authoritative store: skipping that fails look-ups, so that a call
 * whose deadline was shorter than this must not count as a failure. */
#define HPS_BREAKER_DEFAULT(tier_)                                        \
    ((struct hps_breaker_options){.tier = (tier_),                        \
                                  .failures_max = 5,                      \
                                  .timeout_us = UINT64_C(1000) * 1000,    \
                                  .pause_us_first = UINT64_C(100) * 1000, \
                                  .pause_us_max = UINT64_C(10) * 1000 * 1000})

enum hps_breaker_pass {
    HPS_BREAKER_REFUSED, /* do not ask */
    HPS_BREAKER_PASSED,
    HPS_BREAKER_PROBE /* how it ends decides; no other call is let through meanwhile */
};

/* NULL: no memory. */
struct hps_breaker *hps_breaker_new(const struct hps_breaker_options *options);
void hps_breaker_free(struct hps_breaker *breaker); /* NULL is legal */

/* Before a call of the store. Unless refused, hps_breaker_leave must follow. */
enum hps_breaker_pass hps_breaker_enter(struct hps_breaker *breaker) HPS_MUST_CHECK;
/* After it. UNAVAILABLE is a failure, and so is DEADLINE after timeout_us; a shorter DEADLINE and
 * CANCELLED say nothing. Whatever else came back was an answer: damaged rows, say, are no reason to
 * keep away from sound ones. */
void hps_breaker_leave(struct hps_breaker *breaker, enum hps_breaker_pass pass, hps_status status,
                       uint64_t duration_us);

/* False: the store is skipped. */
bool hps_breaker_up(const struct hps_breaker *breaker);

#endif
