/* SPDX-License-Identifier: Apache-2.0
 *
 * Lua scripts that a Redis server runs, each as one atomic step. They are called by their hash.
 * scripts.c documents the arguments and the reply of each. Thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_SCRIPTS_H
#define HPS_BACKENDS_REDIS_SCRIPTS_H

#include "base/buf.h"

enum hps_redis_script {
    HPS_REDIS_APPLY,  /* what the log says of a shard */
    HPS_REDIS_SHRINK, /* the same when the server is full: it must only take rows out */
    HPS_REDIS_INSERT, /* rows found below */
    HPS_REDIS_RESET,  /* empty a shard */
    HPS_REDIS_COMMIT, /* what was loaded becomes a shard */
    HPS_REDIS_EVICT,  /* a few rows go */
    HPS_REDIS_TOUCH,  /* rows that were asked for */
    HPS_REDIS_LEASE,  /* who uses a version */
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
/* The beginning of a call; n_args more arguments are for the caller to append. */
hps_status hps_redis_script_begin(struct hps_buf *buf, enum hps_redis_script script,
                                  const struct hps_redis_name *keys, uint32_t n_keys,
                                  uint32_t n_args) HPS_MUST_CHECK;
/* The command that makes the script known to a server. */
hps_status hps_redis_script_load(struct hps_buf *buf, enum hps_redis_script script) HPS_MUST_CHECK;

#endif
