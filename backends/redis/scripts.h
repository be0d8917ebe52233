/* SPDX-License-Identifier: Apache-2.0
 *
 * Lua scripts that a Redis server runs, each as one atomic step. A command calls a script by its
 * SHA-1 hash. scripts.c documents the arguments and the reply of each script. All functions are
 * thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_SCRIPTS_H
#define HPS_BACKENDS_REDIS_SCRIPTS_H

#include "base/buf.h"

enum hps_redis_script {
    HPS_REDIS_APPLY,  /* apply records of the update log to a shard, and set its log positions */
    HPS_REDIS_SHRINK, /* as APPLY, on a full server, which allows only deletes */
    HPS_REDIS_INSERT, /* insert rows of a lower tier, if the shard's digest is the expected one */
    HPS_REDIS_RESET,  /* empty a shard */
    HPS_REDIS_COMMIT, /* make loaded rows visible as a shard */
    HPS_REDIS_EVICT,  /* evict a few rows */
    HPS_REDIS_TOUCH,  /* record that rows were used */
    HPS_REDIS_LEASE,  /* take, renew or give up a lease */
    HPS_REDIS_SCRIPTS /* number of scripts; as an argument: no script */
};

enum { HPS_REDIS_SHA_BYTES = 40 };

const char *hps_redis_script_text(enum hps_redis_script script);
/* Hash of the script in hexadecimal, the name by which Redis calls it. */
const char *hps_redis_script_sha(enum hps_redis_script script);

/* The name of a Redis key. */
struct hps_redis_name {
    const char *text;
    size_t size;
};
/* Append the beginning of a call, with the keys. The caller must append n_args arguments. */
hps_status hps_redis_script_begin(struct hps_buf *buf, enum hps_redis_script script,
                                  const struct hps_redis_name *keys, uint32_t n_keys,
                                  uint32_t n_args) HPS_MUST_CHECK;
/* Append the command that loads the script into a server. */
hps_status hps_redis_script_load(struct hps_buf *buf, enum hps_redis_script script) HPS_MUST_CHECK;

#endif
