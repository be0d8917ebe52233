/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolves a host name for callers that must not block. A thread `resolve` waits for the system's
 * resolver, which cannot be cancelled. Use an object from one thread at a time.
 */
#ifndef HPS_NET_RESOLVE_H
#define HPS_NET_RESOLVE_H

#include "base/status.h"
#include "net/addr.h"

struct hps_resolve;

/* Starts to resolve `addr` for connecting. When the result is there, 1 is written to the eventfd
 * `wake_fd`. The caller may close `wake_fd` at any time, because this makes a duplicate. EXHAUSTED:
 * no thread or descriptor; NO_MEMORY. */
hps_status hps_resolve_new(const struct hps_addr *addr, int wake_fd,
                           struct hps_resolve **out_resolve, struct hps_error *err) HPS_MUST_CHECK;
/* The result: that of hps_addr_resolve, or AGAIN while it is pending. May be called again. Sets
 * *out_places only on OK. */
hps_status hps_resolve_take(const struct hps_resolve *resolve, struct hps_places *out_places,
                            struct hps_error *err) HPS_MUST_CHECK;
/* When the result came, by hps_clock_us; 0: not yet. */
uint64_t hps_resolve_ended_us(const struct hps_resolve *resolve);
/* Does not wait for the thread, which ends on its own. NULL has no effect. */
void hps_resolve_free(struct hps_resolve *resolve);

#endif
