/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.Admin: one method per verb of hpsctl. Work runs on the admin pool, because it may block;
 * answers go back through the call's loop.
 */
#ifndef HPS_SERVER_ADMIN_SERVICE_H
#define HPS_SERVER_ADMIN_SERVICE_H

#include "server/catalog/catalog.h"
#include "server/catalog/readiness.h"
#include "server/observe/metrics.h"
#include "server/observe/slowlog.h"
#include "server/rpc/unary.h"

/* What only the daemon as a whole knows; filled by its callback. Text is borrowed from the daemon.
 */
struct hps_admin_status {
    bool draining;
    uint64_t started_us;
    const char *const *grpc_addresses;
    unsigned n_grpc_addresses;
    const char *const *kserve_addresses;
    unsigned n_kserve_addresses;
    const char *http_address;
    const char *admin_address;
    uint64_t connections;
};

struct hps_admin_parts { /* copied; what they point to is borrowed */
    struct hps_pool *pool;
    struct hps_catalog *catalog;
    struct hps_readiness *readiness;
    struct hps_models *models;
    struct hps_devices *devices; /* NULL: none */
    struct hps_block_pool *blocks;
    struct hps_updater *updater; /* NULL: versions take no updates */
    uint32_t key_bytes; /* 8; 4: HPS's records have such keys, and all others are narrowed */
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    const struct hps_service_metrics *metrics;
    void *ctx;
    void (*status)(void *ctx, struct hps_admin_status *out_status); /* any thread */
    void (*drain)(void *ctx);                                       /* any thread */
    /* Append the configuration that holds, as JSON. Any thread. NO_MEMORY. */
    hps_status (*print_config)(void *ctx, struct hps_buf *buf);
};

/* NULL: no memory. */
struct hps_unary_service *hps_admin_service_new(const struct hps_admin_parts *parts);
/* A snapshot under way ends soon, with CANCELLED: its checksums may take as long as the disk takes
 * to read all rows. For good. Any thread. */
void hps_admin_snapshot_cancel(void);

#endif
