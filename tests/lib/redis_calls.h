/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands as lists of words for tests, and waiting for results of a cluster. One thread per
 * struct.
 */
#ifndef HPS_TESTS_LIB_REDIS_CALLS_H
#define HPS_TESTS_LIB_REDIS_CALLS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backends/redis/client/client.h"
#include "base/clock.h"

enum { REDIS_CALLS_MAX = 256 };

#define REDIS_PATIENCE_US (UINT64_C(60) * 1000 * 1000)

struct redis_calls {
    struct hps_redis_command commands[REDIS_CALLS_MAX];
    struct hps_redis_values values[REDIS_CALLS_MAX];
    struct hps_buf bytes[REDIS_CALLS_MAX];
    uint32_t n;
};

/* A deadline that even a slow machine meets. */
static inline uint64_t redis_soon_us(void)
{
    return hps_clock_us() + REDIS_PATIENCE_US;
}

/* The master of a slot if three masters share the slots as in `redis-cli --cluster create`. */
static inline uint32_t redis_master_of(uint16_t slot)
{
    return slot < 5461 ? 0 : slot < 10922 ? 1 : 2;
}

/* A key of one of three masters that begins with `prefix`. */
static inline const char *redis_key_at(uint32_t master, const char *prefix, char key[64])
{
    unsigned i = 0;
    do {
        snprintf(key, 64, "%s%u", prefix, i++);
    } while (redis_master_of(hps_redis_slot(key, strlen(key))) != master);
    return key;
}

static inline void redis_calls_init(struct redis_calls *calls)
{
    memset(calls, 0, sizeof(*calls));
}

static inline void redis_calls_fini(struct redis_calls *calls)
{
    for (uint32_t i = 0; i < calls->n; i++) {
        hps_redis_values_fini(&calls->values[i]);
        hps_buf_fini(&calls->bytes[i]);
    }
}

static inline void redis_calls_addv(struct redis_calls *calls, const char *key, va_list words)
{
    const char *args[32];
    uint32_t n_args = 0;
    uint32_t i = calls->n++;
    assert_true(i < REDIS_CALLS_MAX);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *)) {
        assert_true(n_args < 32);
        args[n_args++] = word;
    }
    hps_redis_values_init(&calls->values[i], 100000, (size_t)64 << 20);
    hps_buf_init(&calls->bytes[i], (size_t)64 << 20);
    assert_int_equal(hps_redis_put_command(&calls->bytes[i], n_args, args), HPS_OK);
    calls->commands[i] = (struct hps_redis_command){.slot = hps_redis_slot(key, strlen(key)),
                                                    .bytes = calls->bytes[i].data,
                                                    .size = calls->bytes[i].size};
    calls->commands[i].reply.values = &calls->values[i];
}

/* Add a command. Its words end with NULL; `key` determines the slot. */
static inline void redis_calls_add(struct redis_calls *calls, const char *key, ...)
{
    va_list words;
    va_start(words, key);
    redis_calls_addv(calls, key, words);
    va_end(words);
}

static inline hps_status redis_calls_run(struct redis_calls *calls,
                                         struct hps_redis_cluster *cluster, uint64_t deadline_us)
{
    return hps_redis_cluster_run(cluster, calls->commands, calls->n, deadline_us);
}

/* The reply to one command: text, "(nil)", a number, or '-' and an error. Valid until the next
 * call. */
static inline const char *redis_text(struct hps_redis_cluster *cluster, const char *key, ...)
{
    static char text[4096];
    static struct redis_calls calls;
    va_list words;
    redis_calls_init(&calls);
    va_start(words, key);
    redis_calls_addv(&calls, key, words);
    va_end(words);
    if (redis_calls_run(&calls, cluster, redis_soon_us()) != HPS_OK) {
        snprintf(text, sizeof(text), "-%s", calls.commands[0].reply.error);
    } else if (calls.values[0].items[0].type == HPS_REDIS_INT) {
        snprintf(text, sizeof(text), "%lld", (long long)calls.values[0].items[0].number);
    } else {
        bool nil = calls.values[0].items[0].type == HPS_REDIS_NIL;
        snprintf(text, sizeof(text), "%s",
                 nil ? "(nil)" : hps_redis_values_text(&calls.values[0], 0));
    }
    redis_calls_fini(&calls);
    return text;
}

/* The status of one command with the cluster's command timeout. */
static inline hps_status redis_status(struct hps_redis_cluster *cluster, const char *key, ...)
{
    static struct redis_calls calls;
    va_list words;
    redis_calls_init(&calls);
    va_start(words, key);
    redis_calls_addv(&calls, key, words);
    va_end(words);
    hps_status status = redis_calls_run(&calls, cluster, 0);
    redis_calls_fini(&calls);
    return status;
}

/* Repeat GET of the key until the status is `wanted`. */
static inline void redis_await_status(struct hps_redis_cluster *cluster, const char *key,
                                      hps_status wanted)
{
    uint64_t until_us = redis_soon_us();
    hps_status status;
    while ((status = redis_status(cluster, key, "GET", key, NULL)) != wanted) {
        if (hps_clock_us() > until_us) {
            fail_msg("status is still %s", hps_status_text(status));
        }
    }
}

static inline struct hps_redis_cluster *redis_open_with(const struct hps_redis_options *options)
{
    struct hps_redis_cluster *cluster = NULL;
    struct hps_error err = {0};
    if (hps_redis_cluster_open(options, &cluster, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    return cluster;
}

/* Open a cluster with long timeouts, for tests that do not test timeouts. */
static inline struct hps_redis_cluster *redis_open(const char *addresses)
{
    struct hps_redis_options options = HPS_REDIS_OPTIONS_DEFAULT;
    options.addresses = addresses;
    options.command_timeout_us = REDIS_PATIENCE_US;
    options.connect_timeout_us = REDIS_PATIENCE_US;
    return redis_open_with(&options);
}

#endif
