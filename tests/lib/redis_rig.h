/* SPDX-License-Identifier: Apache-2.0
 *
 * Real redis-server processes from the distribution's package, on random loopback ports, each with
 * its own directory. They end with the test program. The rig queries servers with hiredis, not with
 * hpsd's client. Failures fail the test. One thread.
 */
#ifndef HPS_TESTS_LIB_REDIS_RIG_H
#define HPS_TESTS_LIB_REDIS_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    HPS_REDIS_RIG_NODES_MAX = 16,
    HPS_REDIS_RIG_SKIP = 77, /* exit code of a test program that skipped its tests */
};

struct hps_redis_rig;

/* Whether redis-server is installed. If not, prints that tests are skipped. */
bool hps_redis_rig_present(void);

/* Start one server. `args`, NULL or ended by NULL, are appended to the rig's own arguments. */
struct hps_redis_rig *hps_redis_rig_standalone(const char *const *args);
/* Start a cluster. Nodes 0 to n_masters - 1 are masters with equal shares of the slots; the
 * replicas of master m are nodes n_masters + m, n_masters * 2 + m, … Returns when they agree. */
struct hps_redis_rig *hps_redis_rig_cluster(uint32_t n_masters, uint32_t n_replicas_each,
                                            const char *const *args);
void hps_redis_rig_free(struct hps_redis_rig *rig); /* may be NULL */

uint32_t hps_redis_rig_nodes(const struct hps_redis_rig *rig);
uint16_t hps_redis_rig_port(const struct hps_redis_rig *rig, uint32_t node);
pid_t hps_redis_rig_pid(const struct hps_redis_rig *rig, uint32_t node);
/* The addresses of all nodes, "127.0.0.1:7001,127.0.0.1:7002"; valid as long as the rig. */
const char *hps_redis_rig_addresses(const struct hps_redis_rig *rig);
/* "127.0.0.1:7001"; valid as long as the rig. */
const char *hps_redis_rig_address(const struct hps_redis_rig *rig, uint32_t node);
const char *hps_redis_rig_dir(const struct hps_redis_rig *rig, uint32_t node);
/* A port on which nothing listens. The kernel chooses it for no other socket while the program
 * runs, but a server may bind it by its number. */
uint16_t hps_redis_rig_free_port(void);

/* Kill a node with SIGKILL, and wait for its end. Its ports stay reserved, and refuse connections
 * until it restarts. */
void hps_redis_rig_kill(struct hps_redis_rig *rig, uint32_t node);
/* Restart a node on its port. Its data is lost unless `args` made Redis store it. */
void hps_redis_rig_start(struct hps_redis_rig *rig, uint32_t node);
/* Append options for servers that are started from now on. */
void hps_redis_rig_more_args(struct hps_redis_rig *rig, const char *const *args);
void hps_redis_rig_pause(struct hps_redis_rig *rig, uint32_t node);  /* SIGSTOP */
void hps_redis_rig_resume(struct hps_redis_rig *rig, uint32_t node); /* SIGCONT */

/* Run a command, of words separated by one space, and return the reply: texts and numbers as they
 * are, '-' and an error, "(nil)"; an array has one element per line. Valid until the next call. */
const char *hps_redis_rig_ask(struct hps_redis_rig *rig, uint32_t node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Repeat a command until its reply contains `wanted`. */
void hps_redis_rig_await(struct hps_redis_rig *rig, uint32_t node, const char *wanted,
                         const char *command);

/* Begin to move a slot to another master. The old master still serves the keys that it has, and
 * replies ASK for others. */
void hps_redis_rig_migrate_begin(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                 uint32_t to);
/* Move at most `n` keys of the slot from `from` to `to`; returns the number of moved keys. */
uint32_t hps_redis_rig_migrate_keys(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                    uint32_t to, uint32_t n);
/* Make `to` the owner of the slot, and wait until all running nodes know. No node may be paused. */
void hps_redis_rig_migrate_end(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                               uint32_t to);
/* Make a replica the master without an election, and wait until all running nodes know. No node may
 * be paused. */
void hps_redis_rig_takeover(struct hps_redis_rig *rig, uint32_t replica);

#endif
