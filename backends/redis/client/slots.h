/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of Redis Cluster: the slot of a key, the map of slots to nodes, and redirections to another
 * node (MOVED, ASK). Thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_SLOTS_H
#define HPS_BACKENDS_REDIS_CLIENT_SLOTS_H

#include "backends/redis/client/codec.h"
#include "net/addr.h"

/* Receives a range of slots, `first` to `last`, and a node that has them: the master, or a replica.
 * Called for a master before its replicas. */
typedef void (*hps_redis_slots_fn)(void *ctx, uint16_t first, uint16_t last, bool master,
                                   const struct hps_addr *addr);

/* Pass each entry of a CLUSTER SLOTS reply to `fn`. `asked` is the address of the node that sent
 * the reply; if the reply has a node without a host, the node is on the host of `asked`. IO: not a
 * CLUSTER SLOTS reply; `fn` was not called. */
hps_status hps_redis_slots_read(const struct hps_redis_values *values, const struct hps_addr *asked,
                                hps_redis_slots_fn fn, void *ctx, struct hps_error *err)
    HPS_MUST_CHECK;

struct hps_redis_redirect {
    bool ask; /* ASK: for this command only; false: MOVED, for all commands of the slot */
    uint16_t slot;
    struct hps_addr addr;
};

/* Parse an error reply "MOVED 3999 127.0.0.1:6381" or "ASK …" of the node at `asked`. False:
 * `error` is another error. */
bool hps_redis_redirect_read(const char *error, const struct hps_addr *asked,
                             struct hps_redis_redirect *out_redirect);

#endif
