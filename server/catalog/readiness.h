/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the daemon is ready, and why not. This module alone decides it. A change is shown in
 * /readyz, grpc.health.v1, hpsd_ready, `hpsctl status`, the service manager's status, the log, and
 * the `ready` line on stdout.
 *
 * Ready means: not draining, and hps_catalog_ready. Readiness can be lost (a shared store with the
 * only copy is down) and come back. A drain ends it for good. Changed on the main thread, read on
 * any thread.
 */
#ifndef HPS_SERVER_CATALOG_READINESS_H
#define HPS_SERVER_CATALOG_READINESS_H

#include "server/catalog/catalog.h"
#include "server/rpc/health.h"

struct hps_readiness;

struct hps_readiness_parts { /* all borrowed */
    struct hps_catalog *catalog;
    struct hps_health_service *health;
    struct hps_metric *ready; /* the gauge hpsd_ready */
    /* Called once, at the end of the refresh that first finds the daemon ready. */
    void (*first)(void *ctx);
    void *ctx;
};

/* Starts unready, with the reason "starting". NULL: out of memory. */
struct hps_readiness *hps_readiness_new(const struct hps_readiness_parts *parts);
void hps_readiness_free(struct hps_readiness *readiness); /* no effect if NULL */

/* Compute the readiness, and report a change. Main thread: on each tick, and before the reply to
 * /readyz or /metrics. */
void hps_readiness_refresh(struct hps_readiness *readiness);
/* Unready from now on, for good. Main thread. */
void hps_readiness_drain(struct hps_readiness *readiness);

/* Readiness at the last refresh. If unready, calls `fn` (may be NULL) with each reason, under a
 * lock: `fn` must not call this module. Any thread. */
bool hps_readiness_get(struct hps_readiness *readiness, void (*fn)(void *ctx, const char *reason),
                       void *ctx);

#endif
