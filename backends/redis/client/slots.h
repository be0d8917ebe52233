/* SPDX-License-Identifier: Apache-2.0
 *
 * What Redis Cluster says about slots: the slot of a key, the nodes of a slot, and redirections to
 * another node (MOVED, ASK). Any thread.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_SLOTS_H
#define HPS_BACKENDS_REDIS_CLIENT_SLOTS_H

#include "backends/redis/client/codec.h"
#include "net/addr.h"

/* A node has slots first to last; its master is listed before its replicas. */
typedef void (*hps_redis_slots_fn)(void *ctx, uint16_t first, uint16_t last, bool master,
                                   const struct hps_addr *addr);

/* Tell what a reply to CLUSTER SLOTS says. A node without a known address is the one that was
 * asked, or on its host. IO: no such reply, from which nothing has been taken. */
hps_status hps_redis_slots_read(const struct hps_redis_values *values, const struct hps_addr *asked,
                                hps_redis_slots_fn fn, void *ctx, struct hps_error *err)
    HPS_MUST_CHECK;

struct hps_redis_redirect {
    bool ask; /* for this once; else MOVED, for good */
    uint16_t slot;
    struct hps_addr addr;
};

/* From "MOVED 3999 127.0.0.1:6381" or "ASK …". False: the error is another one. */
bool hps_redis_redirect_read(const char *error, const struct hps_addr *asked,
                             struct hps_redis_redirect *out_redirect);

#endif
