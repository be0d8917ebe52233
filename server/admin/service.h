/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.Admin: one method for each verb of hpsctl. Works run on the admin pool, because they may
 * block. Replies go through the call's loop.
 */
#ifndef HPS_SERVER_ADMIN_SERVICE_H
#define HPS_SERVER_ADMIN_SERVICE_H

#include "server/catalog/catalog.h"
#include "server/catalog/readiness.h"
#include "server/observe/metrics.h"
#include "server/observe/slowlog.h"
#include "server/rpc/unary.h"

/* State of the whole daemon, filled by its callback. Text is borrowed from the daemon. */
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

struct hps_admin_parts { /* copied; pointers in it are borrowed */
    struct hps_pool *pool;
    struct hps_catalog *catalog;
    struct hps_readiness *readiness;
    struct hps_models *models;
    struct hps_devices *devices; /* NULL: no embedding caches */
    struct hps_block_pool *blocks;
    struct hps_updater *updater; /* NULL: versions take no updates */
    /* 8, or 4: records in the format of HPS have keys of 4 bytes, and other keys are narrowed */
    uint32_t key_bytes;
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    const struct hps_service_metrics *metrics;
    void *ctx;
    void (*status)(void *ctx, struct hps_admin_status *out_status); /* any thread */
    void (*drain)(void *ctx);                                       /* any thread */
    /* Append the current configuration as JSON. Any thread. NO_MEMORY. */
    hps_status (*print_config)(void *ctx, struct hps_buf *buf);
};

/* NULL: out of memory. */
struct hps_unary_service *hps_admin_service_new(const struct hps_admin_parts *parts);
/* Cancel a running snapshot, and all later ones. It ends soon, although its checksums may need to
 * read all rows. Any thread. */
void hps_admin_snapshot_cancel(void);

#endif
