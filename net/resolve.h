/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolving a host name, for callers that must not block: a thread `resolve` waits instead, for as
 * long as the system's resolver takes, which cannot be cancelled. One thread at a time.
 */
#ifndef HPS_NET_RESOLVE_H
#define HPS_NET_RESOLVE_H

#include "base/status.h"
#include "net/addr.h"

struct hps_resolve;

/* Begin to look `addr` up, for connecting. When that is over a 1 is written to the eventfd
 * `wake_fd`, which may be closed before. EXHAUSTED: no thread or descriptor; NO_MEMORY. */
hps_status hps_resolve_new(const struct hps_addr *addr, int wake_fd,
                           struct hps_resolve **out_resolve, struct hps_error *err) HPS_MUST_CHECK;
/* What has come of it, as often as wanted: as of hps_addr_resolve, or AGAIN, it is not over;
 * *out_places stays as it is unless OK. */
hps_status hps_resolve_take(const struct hps_resolve *resolve, struct hps_places *out_places,
                            struct hps_error *err) HPS_MUST_CHECK;
/* When it was over, by hps_clock_us; 0: it is not. */
uint64_t hps_resolve_ended_us(const struct hps_resolve *resolve);
/* Waits for nothing: a thread that is not done is left to itself. NULL is legal. */
void hps_resolve_free(struct hps_resolve *resolve);

#endif
