/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolves a host name for callers that must not block. For each resolution a thread named
 * `resolve` waits for the system's resolver, which cannot be cancelled. Use a struct hps_resolve
 * from one thread at a time.
 */
#ifndef HPS_NET_RESOLVE_H
#define HPS_NET_RESOLVE_H

#include "base/status.h"
#include "net/addr.h"

struct hps_resolve;

/* Starts to resolve `addr` for connecting. When the result is available, 1 is written to the
 * eventfd `wake_fd`. The caller may close `wake_fd` at any time, because this function duplicates
 * it.
 *
 * error   EXHAUSTED: no thread or descriptor; NO_MEMORY
 */
hps_status hps_resolve_new(const struct hps_addr *addr, int wake_fd,
                           struct hps_resolve **out_resolve, struct hps_error *err) HPS_MUST_CHECK;
/* Returns the result of hps_addr_resolve, or AGAIN while it is pending. May be called
 * repeatedly. */
hps_status hps_resolve_take(const struct hps_resolve *resolve, struct hps_places *out_places,
                            struct hps_error *err) HPS_MUST_CHECK;
/* When the result became available, by hps_clock_us. 0: it is pending. */
uint64_t hps_resolve_ended_us(const struct hps_resolve *resolve);
/* Frees the object without waiting for its thread, which ends later. NULL has no effect. */
void hps_resolve_free(struct hps_resolve *resolve);

#endif
