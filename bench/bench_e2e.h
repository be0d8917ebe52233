/* SPDX-License-Identifier: Apache-2.0
 *
 * The hpsd that bench_e2e*.c, bench_kafka.c and bench_failover.c measure: built from this tree,
 * with one generated table, in its own directory and process, reached over a Unix socket. Main
 * thread.
 */
#ifndef HPS_BENCH_BENCH_E2E_H
#define HPS_BENCH_BENCH_E2E_H

#include <stdbool.h>

#include "bench/child.h"
#include "client/client.h"

enum { E2E_ROWS = 1 << 20, E2E_DIM = 32, E2E_ROW_BYTES = E2E_DIM * 4 };

struct e2e_hpsd {
    bool with_host_map; /* else RocksDB alone */
    const char *redis;  /* cluster addresses; excludes a host map; NULL: none */
    uint32_t n_rows, dim;
    const char *brokers; /* of Kafka; NULL: no updates */
    bool indexed;        /* the host map has an index for all rows */
    char dir[32];        /* set by e2e_hpsd_make, as all fields below; has table and database */
    char address[64];
    char admin[64];
    struct bench_child child;
    bool running;
    struct hps_client *client;
};

/* Make the directory and the table. The caller sets the fields before it. */
hps_status e2e_hpsd_make(struct e2e_hpsd *hpsd, struct hps_error *err) HPS_MUST_CHECK;
/* Start it, connect, and wait until it serves. The first start loads the table. */
hps_status e2e_hpsd_start(struct e2e_hpsd *hpsd, struct hps_error *err) HPS_MUST_CHECK;
void e2e_hpsd_stop(struct e2e_hpsd *hpsd);
/* Drop the database's files from the page cache, except mapped pages. */
void e2e_hpsd_chill(const struct e2e_hpsd *hpsd);
/* Read the database's files into the page cache. */
void e2e_hpsd_warm(const struct e2e_hpsd *hpsd);
/* CPU time of its process. */
hps_status e2e_hpsd_cpu_us(const struct e2e_hpsd *hpsd, double *out_us, struct hps_error *err)
    HPS_MUST_CHECK;
/* Bytes that it has read from disk; 0 if the kernel does not report them. */
double e2e_hpsd_disk_bytes(const struct e2e_hpsd *hpsd);
void e2e_hpsd_remove(struct e2e_hpsd *hpsd); /* stops it if it runs */

/* The cases of bags, for bench_request. */
hps_status bench_e2e_pooled(struct hps_error *err) HPS_MUST_CHECK;

#endif
