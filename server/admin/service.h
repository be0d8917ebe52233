/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.Admin: the methods that hpsctl calls. The loop of the call's connection runs Ping,
 * SetLogLevel and Drain. The work of other methods may block, so it runs on the admin pool; then
 * the loop sends the reply.
 */
#ifndef HPS_SERVER_ADMIN_SERVICE_H
#define HPS_SERVER_ADMIN_SERVICE_H

#include "server/catalog/catalog.h"
#include "server/catalog/readiness.h"
#include "server/observe/metrics.h"
#include "server/observe/slowlog.h"
#include "server/rpc/unary.h"

/* State of the daemon, filled by hps_admin_parts.status. The daemon owns the texts. */
struct hps_admin_status {
    bool draining;
    uint64_t started_us; /* hps_clock_us */
    const char *const *grpc_addresses;
    unsigned n_grpc_addresses;
    const char *const *kserve_addresses;
    unsigned n_kserve_addresses;
    const char *http_address;  /* "": no such listener */
    const char *admin_address; /* "": no such listener */
    uint64_t connections;      /* open now, on all listeners */
};

struct hps_admin_parts {   /* copied; its pointers are borrowed for the life of the service */
    struct hps_pool *pool; /* runs the work of the methods */
    struct hps_catalog *catalog;
    struct hps_readiness *readiness;
    struct hps_models *models;
    struct hps_devices *devices; /* NULL: no embedding caches */
    struct hps_block_pool *blocks;
    struct hps_updater *updater; /* NULL: versions take no updates */
    /* Bytes of a key in model files and HCTR records: 8, or 4 with `supportlonglong: false`. With
     * 4, keys from other sources are narrowed (hps_keys_narrow). */
    uint32_t key_bytes;
    struct hps_slowlog *slowlog;
    struct hps_audit *audit;
    const struct hps_service_metrics *metrics;
    /* Directories below which exports are written; may be NULL. */
    const struct hps_strings *export_roots;
    void *ctx;
    /* The callbacks are called on any thread. */
    void (*status)(void *ctx, struct hps_admin_status *out_status);
    void (*drain)(void *ctx); /* begins to drain the daemon, and returns at once */
    /* Append the current configuration as JSON to `buf`. Error: NO_MEMORY. */
    hps_status (*print_config)(void *ctx, struct hps_buf *buf);
};

/* The caller frees the service with hps_unary_service_free. NULL: out of memory. */
struct hps_unary_service *hps_admin_service_new(const struct hps_admin_parts *parts);
/* Make a running ExportVersion and all later ones fail with CANCELLED. Returns at once. Any thread.
 */
void hps_admin_export_cancel(void);
/* Make a running CreateSnapshot and all later ones fail with CANCELLED. Returns at once. The
 * running call checks for it only while it computes the checksums of its files. Any thread. */
void hps_admin_snapshot_cancel(void);

#endif
