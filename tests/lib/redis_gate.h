/* SPDX-License-Identifier: Apache-2.0
 *
 * A proxy of one Redis server that can hold back replies. So a test can act after the server has
 * sent a reply, and before the client reads it. Failing calls fail the test; one thread.
 */
#ifndef HPS_TESTS_LIB_REDIS_GATE_H
#define HPS_TESTS_LIB_REDIS_GATE_H

#include <stdint.h>

struct hps_redis_gate;

/* server: "127.0.0.1:port" */
struct hps_redis_gate *hps_redis_gate_new(const char *server);
void hps_redis_gate_free(struct hps_redis_gate *gate); /* may be NULL */
/* The address for clients; valid as long as the gate. */
const char *hps_redis_gate_address(const struct hps_redis_gate *gate);

/* Select the next n connections that send a command with this word, and hold back their replies
 * from that command on. `word` is borrowed until the gate is opened. */
void hps_redis_gate_shut(struct hps_redis_gate *gate, const char *word, uint32_t n);
/* Wait until the server has begun to reply on n of them. */
void hps_redis_gate_await(struct hps_redis_gate *gate, uint32_t n);
/* Send all held replies, and stop holding back. */
void hps_redis_gate_open(struct hps_redis_gate *gate);

#endif
