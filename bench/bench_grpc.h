/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by bench_grpc.c and its servers. The model name of a LookupRequest selects the reply: "a"
 * 64 bytes, "b" 512 KB, "c" 13.6 MB of rows, the same bytes each time. With a "g" appended, the
 * server gathers rows of 512 bytes at random for each reply.
 */
#ifndef HPS_BENCH_BENCH_GRPC_H
#define HPS_BENCH_BENCH_GRPC_H

#include <stdatomic.h>
#include <time.h>

#include "base/block.h"
#include "base/status.h"
#include "client/zipf.h"

enum {
    REPLY_KINDS = 3,
    REPLY_HEAD_BYTES_MAX = 32,
    GATHER_ROW_BYTES = 512,
    GATHER_ROWS = 512 * 1024, /* of the table */
};

/* Replies of one server thread. */
struct replies {
    struct hps_block_pool *pool;
    struct hps_block *heads[REPLY_KINDS]; /* protobuf before the rows */
    size_t head_bytes[REPLY_KINDS];
    struct hps_block *rows[REPLY_KINDS];
    size_t rows_bytes[REPLY_KINDS];
    uint8_t *table;
    struct hps_random random;
};

/* The request of a kind: 3 or 4 bytes. */
size_t reply_request(unsigned kind, bool gather, uint8_t out[4]);
hps_status replies_init(struct replies *replies) HPS_MUST_CHECK;
void replies_fini(struct replies *replies);
/* The rows that a request selects, as a new reference; kind 0 if it matches no kind. */
struct hps_block *reply_rows(struct replies *replies, const uint8_t *request, size_t size,
                             unsigned *out_kind);

/* A server on its own thread or process. */
struct bench_server {
    char address[64];
    clockid_t cpu_clock; /* time that the server's thread or process ran */
    void *impl;
    void (*stop)(void *impl);
};
hps_status bench_server_grpc(struct bench_server *out_server, struct hps_error *err) HPS_MUST_CHECK;
hps_status bench_server_raw(struct bench_server *out_server, struct hps_error *err) HPS_MUST_CHECK;
/* libgrpc++ in another process; NOT_FOUND: not built. */
hps_status bench_server_cpp(struct bench_server *out_server, struct hps_error *err) HPS_MUST_CHECK;

/* Keep `n` calls in flight until `ns` have passed. */
struct bench_load {
    unsigned kind;
    bool gather;
    unsigned n;
    uint64_t ns;
};
struct bench_result {
    double calls_per_s;
    double bytes_per_s;
    double p50_us;
    double cpu_us;    /* of the client, per call */
    uint64_t n_calls; /* including warm-up calls, which the figures above exclude */
};
hps_status bench_load_grpc(const char *address, const struct bench_load *load,
                           struct bench_result *out_result, struct hps_error *err) HPS_MUST_CHECK;
hps_status bench_load_raw(const char *address, const struct bench_load *load,
                          struct bench_result *out_result, struct hps_error *err) HPS_MUST_CHECK;

#endif
