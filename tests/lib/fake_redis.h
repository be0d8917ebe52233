/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake Redis servers: loopback ports in the test program, where a function of the test replies. For
 * behaviour that a real server cannot show on demand: changing cluster maps, truncated replies,
 * silence. Failing calls fail the test.
 */
#ifndef HPS_TESTS_LIB_FAKE_REDIS_H
#define HPS_TESTS_LIB_FAKE_REDIS_H

#include <stddef.h>
#include <stdint.h>

enum { HPS_FAKE_REDIS_NODES_MAX = 8, HPS_FAKE_REDIS_ANSWER_MAX = 1 << 20 };

struct hps_fake_redis;

enum hps_fake_redis_then {
    HPS_FAKE_REDIS_GO_ON,
    HPS_FAKE_REDIS_HANG_UP /* after the reply has been sent */
};

/* Write the reply of `node` to a command (words separated by one space), in Redis's protocol, into
 * `out_answer` [HPS_FAKE_REDIS_ANSWER_MAX]. An empty reply is not sent. On the fake's thread. */
typedef enum hps_fake_redis_then (*hps_fake_redis_fn)(void *ctx, uint32_t node, const char *command,
                                                      char *out_answer);

struct hps_fake_redis *hps_fake_redis_new(uint32_t n_nodes, hps_fake_redis_fn answer, void *ctx);
void hps_fake_redis_free(struct hps_fake_redis *fake);
uint16_t hps_fake_redis_port(const struct hps_fake_redis *fake, uint32_t node);
const char *hps_fake_redis_address(const struct hps_fake_redis *fake, uint32_t node);

/* The reply to commands that begin a connection (CLIENT, AUTH, PING, HELLO of a cluster's node, …);
 * "+OK" to other commands. */
void hps_fake_redis_usual(const char *command, char *out_answer);
/* A hps_fake_redis_fn of a standalone server. */
enum hps_fake_redis_then hps_fake_redis_alone(void *ctx, uint32_t node, const char *command,
                                              char *out_answer);
/* A reply to CLUSTER SLOTS: the first n_masters nodes have equal shares. */
void hps_fake_redis_map(const struct hps_fake_redis *fake, uint32_t n_masters, char *out_answer);

#endif
