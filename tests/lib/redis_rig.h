/* SPDX-License-Identifier: Apache-2.0
 *
 * Real redis-server processes of the distribution's package, on random loopback ports, each with a
 * directory of its own; they end with the test program. Nothing here uses our client: what a server
 * holds is asked for by a few lines of RESP of the rig's own. Failures fail the test. One thread.
 */
#ifndef HPS_TESTS_LIB_REDIS_RIG_H
#define HPS_TESTS_LIB_REDIS_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    HPS_REDIS_RIG_NODES_MAX = 16,
    HPS_REDIS_RIG_SKIP = 77, /* what a test program exits with when it has skipped its tests */
};

struct hps_redis_rig;

/* Whether there is a redis-server; if not, says loudly that tests are skipped. */
bool hps_redis_rig_present(void);

/* One server; `args` (NULL: none, else ended by NULL) are put behind those of the rig. */
struct hps_redis_rig *hps_redis_rig_standalone(const char *const *args);
/* A cluster: masters are nodes 0 to n_masters - 1 with equal shares of the slots, the replicas of
 * master m are nodes n_masters + m, n_masters * 2 + m, … Returns when all of them are of one mind.
 */
struct hps_redis_rig *hps_redis_rig_cluster(uint32_t n_masters, uint32_t n_replicas_each,
                                            const char *const *args);
void hps_redis_rig_free(struct hps_redis_rig *rig); /* NULL is legal */

uint32_t hps_redis_rig_nodes(const struct hps_redis_rig *rig);
uint16_t hps_redis_rig_port(const struct hps_redis_rig *rig, uint32_t node);
pid_t hps_redis_rig_pid(const struct hps_redis_rig *rig, uint32_t node);
/* "127.0.0.1:7001,127.0.0.1:7002": all of them; valid as long as the rig. */
const char *hps_redis_rig_addresses(const struct hps_redis_rig *rig);
/* "127.0.0.1:7001"; valid as long as the rig. */
const char *hps_redis_rig_address(const struct hps_redis_rig *rig, uint32_t node);
const char *hps_redis_rig_dir(const struct hps_redis_rig *rig, uint32_t node);
/* One that nobody listens at, nor gets from the kernel as long as the program runs; a server that
 * asks for it by its number may have it. */
uint16_t hps_redis_rig_free_port(void);

/* SIGKILL; waits for it. Its ports stay its own: until it starts again, they refuse. */
void hps_redis_rig_kill(struct hps_redis_rig *rig, uint32_t node);
/* Start it again on its port; what it had in memory is gone unless `args` made it persist. */
void hps_redis_rig_start(struct hps_redis_rig *rig, uint32_t node);
/* Options for the servers that are started from now on, behind those that there are. */
void hps_redis_rig_more_args(struct hps_redis_rig *rig, const char *const *args);
void hps_redis_rig_pause(struct hps_redis_rig *rig, uint32_t node);  /* SIGSTOP */
void hps_redis_rig_resume(struct hps_redis_rig *rig, uint32_t node); /* SIGCONT */

/* Run a command of words that are separated by one space each, and return the answer: texts and
 * numbers as they are, errors behind a '-', nil as "(nil)", of arrays each element on a line.
 * Valid until the next call. */
const char *hps_redis_rig_ask(struct hps_redis_rig *rig, uint32_t node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ask until the answer has `wanted` in it. */
void hps_redis_rig_await(struct hps_redis_rig *rig, uint32_t node, const char *wanted,
                         const char *command);

/* Begin to move a slot from a master to another: keys still there are answered there, others ASK.
 */
void hps_redis_rig_migrate_begin(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                 uint32_t to);
/* Move the keys of the slot that are at `from`, at most `n`. Returns how many were moved. */
uint32_t hps_redis_rig_migrate_keys(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                    uint32_t to, uint32_t n);
/* The slot is `to`'s now; returns when all that run have heard of it. None may be paused. */
void hps_redis_rig_migrate_end(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                               uint32_t to);
/* Have a replica take its master's place without asking anybody; returns when all that run have
 * heard of it. None may be paused. */
void hps_redis_rig_takeover(struct hps_redis_rig *rig, uint32_t replica);

#endif
