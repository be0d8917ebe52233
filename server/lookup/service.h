/* SPDX-License-Identifier: Apache-2.0
 *
 * The service hps.v1.ParameterServer: lookups, from the request message to the reply. The loop
 * thread of a connection decodes small messages, and runs small lookups in memory tiers. Workers
 * decode larger messages. Workers or I/O threads run all other lookups. All loops share one
 * service.
 */
#ifndef HPS_SERVER_LOOKUP_SERVICE_H
#define HPS_SERVER_LOOKUP_SERVICE_H

#include "base/block.h"
#include "base/pool.h"
#include "cache/version/models.h"
#include "net/grpc.h"
#include "net/limits.h"
#include "server/observe/metrics.h"
#include "server/observe/slowlog.h"

struct hps_lookup_limits {
    uint32_t tables_max;      /* limit on the queries of a request */
    uint32_t keys_max;        /* limit on the keys of a request */
    uint64_t queue_us_max;    /* longest wait for reply memory that other connections hold */
    uint64_t reply_bytes_max; /* limit on the bytes of a reply and the rows that are added for it */
    /* A lookup within the next two limits runs on the loop thread, a larger one on a worker.
     * On a worker a lookup costs about 1.5 times as much, because one core writes the rows and
     * another sends them. But while a loop runs a lookup, all its connections wait, so these limits
     * bound the time of one lookup. */
    uint64_t inline_bytes_max; /* limit on the bytes of the rows */
    uint32_t inline_keys_max;  /* limit on the keys */
    /* Bytes of the largest message that the loop thread decodes. Workers decode larger messages.
     * Compressed messages count with their inflated size. */
    uint32_t inline_message_bytes;
    /* Maximum number of unused request objects, each with its arenas, that the service keeps for
     * reuse, for all loops together. */
    uint32_t arenas_idle_max;
};

/* Default limits. The caller overwrites the fields that are configured. */
#define HPS_LOOKUP_LIMITS_DEFAULT                                   \
    ((struct hps_lookup_limits){.tables_max = 1024,                 \
                                .keys_max = 2 * 1024 * 1024,        \
                                .queue_us_max = 250 * 1000,         \
                                .reply_bytes_max = UINT64_MAX,      \
                                .inline_bytes_max = 1024 * 1024,    \
                                .inline_keys_max = 8192,            \
                                .inline_message_bytes = 128 * 1024, \
                                .arenas_idle_max = 256})

/* Pointers are borrowed for the life of the service. */
struct hps_lookup_service_parts {
    struct hps_models *models;
    struct hps_pool *workers; /* threads for large messages, and large lookups in memory tiers */
    /* I/O threads, which query the tiers that may block. So workers never wait for a slow disk. */
    struct hps_pool *io;
    struct hps_insertion *insertion; /* NULL: there is no asynchronous insertion */
    struct hps_block_pool *blocks;
    struct hps_slowlog *slowlog;
    const struct hps_service_metrics *metrics;
    struct hps_lookup_limits limits;
    enum hps_lookup_path path;
    /* 4: keys of requests are narrowed to 4 bytes (hps_keys_narrow). 8 or 0: keys do not change. */
    uint32_t key_bytes;
};

struct hps_lookup_service;

/* Creates a service. Returns NULL if there is no memory. */
struct hps_lookup_service *hps_lookup_service_new(const struct hps_lookup_service_parts *parts);
/* Sets tables_max, keys_max, queue_us_max and reply_bytes_max for later requests. The other limits
 * do not change. Any thread. */
void hps_lookup_service_limits_set(struct hps_lookup_service *service,
                                   const struct hps_lookup_limits *limits);
/* Frees the service. Call it after all loops are drained and all workers are stopped. No effect if
 * NULL. */
void hps_lookup_service_free(struct hps_lookup_service *service);
/* The methods Lookup and LookupStream, for hps_grpc_server_add. */
const struct hps_grpc_service *hps_lookup_service_grpc(const struct hps_lookup_service *service);

#endif
