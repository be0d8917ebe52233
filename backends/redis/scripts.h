/* SPDX-License-Identifier: Apache-2.0
 *
 * Lua scripts that a Redis server runs, each as one atomic step. They are called by their hash.
 * scripts.c documents the arguments and the reply of each. Thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_SCRIPTS_H
#define HPS_BACKENDS_REDIS_SCRIPTS_H

#include "base/buf.h"

enum hps_redis_script {
    HPS_REDIS_APPLY,  /* apply updates to a shard, and set its positions */
    HPS_REDIS_SHRINK, /* the same if the server is full: only removes rows */
    HPS_REDIS_INSERT, /* insert rows of a lower tier if the digest is still the same */
    HPS_REDIS_RESET,  /* empty a shard */
    HPS_REDIS_COMMIT, /* make a loaded shard valid */
    HPS_REDIS_EVICT,  /* evict some rows */
    HPS_REDIS_TOUCH,  /* record the use of rows */
    HPS_REDIS_LEASE,  /* record that a daemon uses a version */
    HPS_REDIS_SCRIPTS
};

enum { HPS_REDIS_SHA_BYTES = 40 };

const char *hps_redis_script_text(enum hps_redis_script script);
/* In hexadecimal, as Redis names it. */
const char *hps_redis_script_sha(enum hps_redis_script script);

struct hps_redis_name {
    const char *text;
    size_t size;
};
/* Append the beginning of a call. The caller appends its n_args arguments. */
hps_status hps_redis_script_begin(struct hps_buf *buf, enum hps_redis_script script,
                                  const struct hps_redis_name *keys, uint32_t n_keys,
                                  uint32_t n_args) HPS_MUST_CHECK;
/* Append the command that loads the script into a server. */
hps_status hps_redis_script_load(struct hps_buf *buf, enum hps_redis_script script) HPS_MUST_CHECK;

#endif
