/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedding cache, driven as by the daemon's device thread, and filled with tables of random
 * rows.
 *
 * Thread: main.
 */
#ifndef HPS_BENCH_GPU_CACHE_H
#define HPS_BENCH_GPU_CACHE_H

#include "bench/gpu/rig.h"
#include "cache/embed/cache.h"

enum {
    BENCH_TABLES = 26,   /* at most */
    BENCH_TICKETS = 4,   /* batches in flight, as in the daemon */
    BENCH_POOL = 131072, /* rows of the first table that lie ready to be staged */
};

struct bench_cache_spec {
    uint32_t n_tables;
    const uint32_t *row_bytes; /* [n_tables] */
    uint32_t n_rows;           /* of each table */
    uint32_t n_cached;         /* that each has room for; 0: all of them, and all are put in */
    uint32_t n_keys;           /* of each table in a batch, at most */
    uint32_t n_in_region;      /* rows of each table that the region has room for */
    bool on_device;            /* rows go to device memory */
    bool matrix;               /* rows i of all tables lie together, as in a matrix that the
                                  daemon answers; else the rows of a table do */
    uint32_t mapped_bytes_max; /* 0: the default */
    double alpha;              /* of Zipf's law; 0: uniform */
};

struct bench_cache {
    struct bench_rig *rig;
    struct bench_cache_spec spec;
    struct hps_embed_cache *cache;
    struct hps_embed_range *ranges[BENCH_TABLES];
    struct hps_embed_region *region;
    uint8_t *host;     /* of the region, or NULL */
    hps_devptr device; /* likewise */
    struct hps_zipf zipf;
    uint8_t *rows;       /* [SLICE_ROWS_MAX] being made */
    uint64_t *pool_keys; /* [n_pool] keys of the first table, */
    uint8_t *pool;       /* and their rows */
    uint32_t n_pool;
    uint64_t next_unknown;
};

void bench_cache_open(struct bench_rig *rig, struct bench_cache *cache,
                      const struct bench_cache_spec *spec);
void bench_cache_close(struct bench_cache *cache);

/* Stage n keys as fast as the cache takes them. rows NULL: the row of each key is made here. */
void bench_cache_stage(struct bench_cache *cache, uint32_t table, enum hps_embed_op op,
                       const uint64_t *keys, const uint8_t *rows, uint32_t n);
/* Until nothing is in flight. */
void bench_cache_drain(struct bench_cache *cache);
/* The share of the rows that are in spills. Nothing is in flight. */
double bench_cache_spilled_share(struct bench_cache *cache);

/* Draw n keys of each table, to keys[table * stride] and on. missing_percent of them belong to no
 * table and are never drawn again. */
void bench_cache_draw(struct bench_cache *cache, uint64_t *keys, uint32_t stride, uint32_t n,
                      uint32_t missing_percent);
/* Submit n keys of each table from keys[table * stride] on; rows go behind the first `skipped` keys
 * of each table in the region. Waits until the cache takes it. NULL: a failure. */
struct hps_embed_ticket *bench_cache_submit(struct bench_cache *cache, const uint64_t *keys,
                                            uint32_t stride, uint32_t n, uint32_t skipped);
/* Whether it has ended, well or not. */
bool bench_cache_ended(struct bench_cache *cache, struct hps_embed_ticket *ticket);
/* Of a part of n keys of a lookup that has ended: move the keys that it has missed to the front.
 * Returns how many they are. */
uint32_t bench_cache_missing(const struct hps_embed_ticket *ticket, uint32_t part, uint64_t *keys,
                             uint32_t n);
/* One lookup alone, from submit to the end, in us. */
double bench_cache_lookup_us(struct bench_cache *cache, const uint64_t *keys, uint32_t n);
/* Look up some of the first n_rows rows of each table: fails unless a sample of the rows is what
 * their keys must have, and min_share of them are there. Nothing else is in flight. */
void bench_cache_check(struct bench_cache *cache, uint32_t n_rows, double min_share);

#endif
