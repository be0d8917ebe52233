/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.ParameterServer: from a request message to its answer. Small messages are decoded, and
 * small look-ups of memory tiers run, on the loop thread of their connection; all others on
 * workers. Any number of loops share one service.
 */
#ifndef HPS_SERVER_LOOKUP_SERVICE_H
#define HPS_SERVER_LOOKUP_SERVICE_H

#include "base/block.h"
#include "base/pool.h"
#include "cache/version/models.h"
#include "net/grpc.h"
#include "server/lookup/admission.h"
#include "server/observe/metrics.h"
#include "server/observe/slowlog.h"

struct hps_lookup_limits {
    uint32_t tables_max;   /* queries of one request */
    uint32_t keys_max;     /* of one request */
    uint64_t queue_us_max; /* wait for room of other replies */
    /* Rows of a look-up that may run on a loop thread. Handed over they cost half as much again,
     * as they are written on one core and read on another; but a loop whose clients all ask for
     * more at once answers nobody else meanwhile. */
    uint64_t inline_bytes_max;
    uint32_t inline_keys_max;
    uint32_t inline_message_bytes; /* of a request, inflated, that is decoded there */
    uint32_t arenas_idle_max;      /* kept for reuse */
};

/* What SURFACE says; the caller overrides what its configuration names. */
#define HPS_LOOKUP_LIMITS_DEFAULT                                   \
    ((struct hps_lookup_limits){.tables_max = 1024,                 \
                                .keys_max = 2 * 1024 * 1024,        \
                                .queue_us_max = 250 * 1000,         \
                                .inline_bytes_max = 256 * 1024,     \
                                .inline_keys_max = 8192,            \
                                .inline_message_bytes = 128 * 1024, \
                                .arenas_idle_max = 256})

/* All borrowed for the life of the service. */
struct hps_lookup_service_parts {
    struct hps_models *models;
    struct hps_pool *workers;        /* large look-ups of memory tiers */
    struct hps_pool *io;             /* tiers that may block, so that a slow disk takes no worker */
    struct hps_insertion *insertion; /* behind answers; NULL: nothing is inserted so */
    struct hps_block_pool *blocks;
    struct hps_admission *admission;
    struct hps_slowlog *slowlog;
    const struct hps_service_metrics *metrics;
    struct hps_lookup_limits limits;
    enum hps_lookup_path path;
    uint32_t key_bytes; /* 8 (or 0); 4: keys of requests are narrowed (hps_keys_narrow) */
};

struct hps_lookup_service;

/* NULL: no memory. */
struct hps_lookup_service *hps_lookup_service_new(const struct hps_lookup_service_parts *parts);
/* For requests that come from now on: tables, keys and the wait; the others stay. Any thread. */
void hps_lookup_service_limits_set(struct hps_lookup_service *service,
                                   const struct hps_lookup_limits *limits);
/* No request may be left: loops drained, workers stopped. NULL is legal. */
void hps_lookup_service_free(struct hps_lookup_service *service);
/* For hps_grpc_server_add. */
const struct hps_grpc_service *hps_lookup_service_grpc(const struct hps_lookup_service *service);

#endif
