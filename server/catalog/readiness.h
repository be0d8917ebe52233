/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the daemon is ready, and why not. This module alone decides it. The state is shown in
 * /readyz, grpc.health.v1, hpsd_ready, `hpsctl status`, the service manager's status and the log.
 * The `ready` line on stdout is printed only once, when the daemon becomes ready for the first
 * time.
 *
 * The daemon is ready if hps_catalog_ready is true and the daemon is not draining. Readiness can be
 * lost and come back, for example if a shared store with the only copy of rows is unreachable for a
 * time. A drain ends readiness for good. The main thread changes the state; any thread may read it.
 */
#ifndef HPS_SERVER_CATALOG_READINESS_H
#define HPS_SERVER_CATALOG_READINESS_H

#include "server/catalog/catalog.h"
#include "server/rpc/health.h"

struct hps_readiness;

struct hps_readiness_parts { /* copied; its pointers are borrowed until hps_readiness_free */
    struct hps_catalog *catalog;
    struct hps_health_service *health;
    struct hps_metric *ready; /* the gauge hpsd_ready */
    /* Called once, at the end of the first refresh that finds the daemon ready. Main thread. */
    void (*first)(void *ctx);
    void *ctx;
};

/* Until the first refresh the daemon is unready, and the reason is "starting". NULL: out of memory.
 */
struct hps_readiness *hps_readiness_new(const struct hps_readiness_parts *parts);
void hps_readiness_free(struct hps_readiness *readiness); /* no effect if NULL */

/* Compute the readiness, and report a change. The main thread calls it on each tick, and before it
 * replies to /readyz or /metrics. */
void hps_readiness_refresh(struct hps_readiness *readiness);
/* The daemon drains: make it unready for good. Main thread. */
void hps_readiness_drain(struct hps_readiness *readiness);

/* Whether the daemon was ready at the last refresh. If not, calls `fn` (may be NULL) with each
 * reason, under a lock: `fn` must not call this module. Any thread. */
bool hps_readiness_get(struct hps_readiness *readiness, void (*fn)(void *ctx, const char *reason),
                       void *ctx);

#endif
