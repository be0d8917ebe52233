/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis servers that are none: loopback ports within the test program, where a function of the test
 * answers. For what a real server cannot be made to do at will: maps of nodes that come and go,
 * answers that stop half-way, silence. Calls fail the test when they fail.
 */
#ifndef HPS_TESTS_LIB_FAKE_REDIS_H
#define HPS_TESTS_LIB_FAKE_REDIS_H

#include <stddef.h>
#include <stdint.h>

enum { HPS_FAKE_REDIS_NODES_MAX = 8, HPS_FAKE_REDIS_ANSWER_MAX = 1 << 20 };

struct hps_fake_redis;

enum hps_fake_redis_then {
    HPS_FAKE_REDIS_GO_ON,
    HPS_FAKE_REDIS_HANG_UP /* once the answer is gone */
};

/* What `node` says to a command (its words with one space between them), as Redis's protocol has
 * it, into `out_answer` [HPS_FAKE_REDIS_ANSWER_MAX]; nothing: silence. On the fake's own thread. */
typedef enum hps_fake_redis_then (*hps_fake_redis_fn)(void *ctx, uint32_t node, const char *command,
                                                      char *out_answer);

struct hps_fake_redis *hps_fake_redis_new(uint32_t n_nodes, hps_fake_redis_fn answer, void *ctx);
void hps_fake_redis_free(struct hps_fake_redis *fake);
uint16_t hps_fake_redis_port(const struct hps_fake_redis *fake, uint32_t node);
const char *hps_fake_redis_address(const struct hps_fake_redis *fake, uint32_t node);

/* The answer to what a connection begins with (CLIENT, AUTH, PING, HELLO of a cluster's node, …);
 * to other commands "+OK". */
void hps_fake_redis_usual(const char *command, char *out_answer);
/* A hps_fake_redis_fn: of a server on its own. */
enum hps_fake_redis_then hps_fake_redis_alone(void *ctx, uint32_t node, const char *command,
                                              char *out_answer);
/* CLUSTER SLOTS of equal shares for the first n_masters nodes. */
void hps_fake_redis_map(const struct hps_fake_redis *fake, uint32_t n_masters, char *out_answer);

#endif
