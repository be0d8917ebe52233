/* SPDX-License-Identifier: Apache-2.0
 *
 * A circuit breaker for a store, or a node of a store, whose calls may block. Consecutive failures
 * open it. While it is open, callers skip the store. One probe call is let through after each
 * pause, and the pause doubles until a probe succeeds.
 *
 * All versions share the breaker of a store. Each node of a store may have its own breaker, too.
 * Thread-safe.
 */
#ifndef HPS_BACKENDS_BREAKER_H
#define HPS_BACKENDS_BREAKER_H

#include "base/status.h"

struct hps_breaker;

struct hps_breaker_options {
    const char *tier; /* for the log; static text */
    const char *node; /* node name for the log, borrowed; NULL: the breaker is for the whole tier */
    /* Text that is logged as the reason when the breaker opens; borrowed. Its owner may change the
     * text before hps_breaker_leave. NULL or "": the text of the status is logged. */
    const char *reason;
    uint32_t failures_max; /* consecutive failures that open the breaker */
    /* A call that missed its deadline counts as a failure if it took at least this long. */
    uint64_t timeout_us;
    uint64_t pause_us_first; /* from opening to the first probe */
    uint64_t pause_us_max;   /* limit of the pause, which doubles after each failed probe */
};

/* Defaults. timeout_us suits the lowest store. Lookups fail while that store is skipped, so a call
 * with a short deadline must not count as a failure. */
#define HPS_BREAKER_DEFAULT(tier_)                                        \
    ((struct hps_breaker_options){.tier = (tier_),                        \
                                  .failures_max = 5,                      \
                                  .timeout_us = UINT64_C(1000) * 1000,    \
                                  .pause_us_first = UINT64_C(100) * 1000, \
                                  .pause_us_max = UINT64_C(10) * 1000 * 1000})

enum hps_breaker_pass {
    HPS_BREAKER_REFUSED, /* do not call the store */
    HPS_BREAKER_PASSED,  /* call the store */
    /* Call the store as a probe. Other calls are refused until the probe ends. A success closes the
     * breaker. */
    HPS_BREAKER_PROBE
};

/* Returns NULL if memory is short. */
struct hps_breaker *hps_breaker_new(const struct hps_breaker_options *options);
void hps_breaker_free(struct hps_breaker *breaker); /* NULL: no effect */

/* To be called before each call of the store. Unless it returns REFUSED, the caller must call the
 * store and then hps_breaker_leave. */
enum hps_breaker_pass hps_breaker_enter(struct hps_breaker *breaker) HPS_MUST_CHECK;
/* Report the result of the call of the store, which took duration_us. `pass` is the result of
 * hps_breaker_enter. UNAVAILABLE is a failure. DEADLINE is a failure if the call took timeout_us or
 * longer. DEADLINE of a shorter call and CANCELLED are neither failures nor successes; after a
 * probe with such a result, the next call is a probe. Every other status is a success, since the
 * store has responded. For example, damaged rows do not make a store unreachable. */
void hps_breaker_leave(struct hps_breaker *breaker, enum hps_breaker_pass pass, hps_status status,
                       uint64_t duration_us);

/* False while the breaker is open and the store is skipped. */
bool hps_breaker_up(const struct hps_breaker *breaker);

#endif
