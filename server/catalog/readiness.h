/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the daemon is ready, and why not: the one owner of both. /readyz, grpc.health.v1,
 * hpsd_ready, `hpsctl status`, the service manager's line, the log and the `ready` line on stdout
 * all follow from one change of state here, and nobody else decides it.
 *
 * Ready is: not draining, and hps_catalog_ready. Readiness may be lost (an authoritative shared
 * store is down) and come back; a drain ends it for good. Changed on the main thread, read on any.
 */
#ifndef HPS_SERVER_CATALOG_READINESS_H
#define HPS_SERVER_CATALOG_READINESS_H

#include "server/catalog/catalog.h"
#include "server/rpc/health.h"

struct hps_readiness;

struct hps_readiness_parts { /* all borrowed */
    struct hps_catalog *catalog;
    struct hps_health_service *health;
    struct hps_metric *ready; /* the gauge */
    /* Called once, when it is ready for the first time and everybody is told so. */
    void (*first)(void *ctx);
    void *ctx;
};

/* Not ready, for the reason "starting". NULL: no memory. */
struct hps_readiness *hps_readiness_new(const struct hps_readiness_parts *parts);
void hps_readiness_free(struct hps_readiness *readiness); /* NULL is legal */

/* Find out, and tell whom it concerns of a change. Main thread; often enough for what depends on
 * it: each tick, and before /readyz or /metrics is answered. */
void hps_readiness_refresh(struct hps_readiness *readiness);
/* Unready from now on, for good. Main thread. */
void hps_readiness_drain(struct hps_readiness *readiness);

/* As of the last refresh. Otherwise `fn` gets each reason, under a lock: call nothing here. Any
 * thread. */
bool hps_readiness_get(struct hps_readiness *readiness, void (*fn)(void *ctx, const char *reason),
                       void *ctx);

#endif
