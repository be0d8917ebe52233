/* SPDX-License-Identifier: Apache-2.0
 *
 * A way to one Redis server on which its answers can be kept waiting, so that a test can do
 * something between the moment at which the server gave an answer and that at which it is read.
 * Calls fail the test when they fail; one thread.
 */
#ifndef HPS_TESTS_LIB_REDIS_GATE_H
#define HPS_TESTS_LIB_REDIS_GATE_H

#include <stdint.h>

struct hps_redis_gate;

/* server: "127.0.0.1:port" */
struct hps_redis_gate *hps_redis_gate_new(const char *server);
void hps_redis_gate_free(struct hps_redis_gate *gate); /* NULL is legal */
/* Where clients connect to; valid as long as the gate. */
const char *hps_redis_gate_address(const struct hps_redis_gate *gate);

/* The next n connections by which a command with this word in it comes: their answers wait from
 * that command on. `word` is borrowed until the gate is opened. */
void hps_redis_gate_shut(struct hps_redis_gate *gate, const char *word, uint32_t n);
/* Until the server has begun to answer on n of them. */
void hps_redis_gate_await(struct hps_redis_gate *gate, uint32_t n);
/* What waits goes on, and nothing waits any more. */
void hps_redis_gate_open(struct hps_redis_gate *gate);

#endif
