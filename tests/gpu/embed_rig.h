/* SPDX-License-Identifier: Apache-2.0
 *
 * An embedding cache on a device of any kind, and a dictionary beside it that says what it must
 * answer. No test library: the device run has none.
 *
 * A row is made from its table, its key and a version that grows with every write, so a row that is
 * torn, stale or another key's is seen. Of a table whose keys all have a place in their sets and
 * the spills of those the dictionary knows every hit ("exact"); of any other it learns from
 * lookups of all keys what was evicted or refused, and everything else must still be right.
 *
 * Thread: the caller's. The first thing that differs is kept in `err`, and all that follows does
 * nothing.
 */
#ifndef HPS_TESTS_GPU_EMBED_RIG_H
#define HPS_TESTS_GPU_EMBED_RIG_H

#include "cache/embed/internal.h"
#include "client/zipf.h"

#define EMBED_WHOLE 0

enum { EMBED_QUERIES = 4, EMBED_QUERY_PARTS = 64, EMBED_PADDING = 32 };

struct embed_table {
    struct hps_embed_range *range;
    uint32_t row_bytes;
    uint32_t n_keys;
    bool exact;
    bool retired;
    hps_key *keys;      /* [n_keys] that may be there */
    uint32_t *versions; /* [n_keys] 0: not there */
};

/* One lookup under way, and what it must answer. */
struct embed_query {
    struct hps_embed_region *region;
    uint8_t *host;     /* of a region in host memory, or where the rows are copied to be seen */
    hps_devptr device; /* of a region in device memory, or 0 */
    struct hps_embed_ticket *ticket;
    uint32_t n_parts;
    struct embed_table *tables[EMBED_QUERY_PARTS];
    struct hps_embed_part parts[EMBED_QUERY_PARTS];
    hps_key *keys;      /* [batch_keys_max] */
    uint32_t *indices;  /* [batch_keys_max] in the table, or UINT32_MAX: a key it never has */
    uint32_t *expected; /* [batch_keys_max] versions */
    uint32_t n_keys;
    uint64_t bytes; /* of the region, used */
};

struct embed_rig {
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_cache_config config;
    struct hps_stream_q *stream; /* the rig's own */
    struct hps_event *event;
    struct hps_error *err;
    bool failed;
    struct hps_random random;
    uint32_t version;     /* the last one made */
    uint64_t query_bytes; /* of one region */
    struct embed_query queries[EMBED_QUERIES];
    uint8_t *rows; /* to be staged */
    uint64_t rows_bytes;
    uint64_t n_hits; /* seen */
};

/* n_device: how many of the queries write to device memory, from the first on. */
void embed_rig_open(struct embed_rig *rig, struct hps_device *device,
                    const struct hps_embed_cache_config *config, uint64_t query_bytes,
                    unsigned n_device, struct hps_error *err);
/* Whether nothing has differed. */
bool embed_rig_close(struct embed_rig *rig);
/* Note it unless it is OK. Returns whether it is. */
bool embed_ok(struct embed_rig *rig, hps_status status, const char *what);
bool embed_expect(struct embed_rig *rig, bool holds, const char *fmt, ...) HPS_PRINTF(3, 4);
/* As hps_calloc; the rig notes a failure. */
void *embed_calloc(struct embed_rig *rig, size_t count, size_t size);

/* A range of about n_slots, and n_keys keys that all fit. stride: 0 random, else key i is i *
 * stride (those that would not fit are left out). */
void embed_table_open(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                      uint64_t n_slots, uint32_t n_keys, uint64_t stride);
/* The same with given keys; exact only if they fit. n_slots EMBED_WHOLE: of a table that has n_keys
 * rows, all of which are to be cached. */
void embed_table_open_keys(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                           uint64_t n_slots, const hps_key *keys, uint32_t n_keys);
/* Zeroes: closed. */
void embed_table_close(struct embed_table *table);
/* Of a range of about n_slots: n keys of one set, from the start on. The set is that of the first.
 * After a failure the keys are not set. */
void embed_keys_of_one_set(const struct embed_rig *rig, uint64_t n_slots, uint32_t row_bytes,
                           hps_key start, hps_key *keys, uint32_t n);

void embed_row(const struct embed_table *table, hps_key key, uint32_t version, uint8_t *row);

/* Stage a change of n keys, given by index into the table's; all of it, however long it takes. */
void embed_change(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                  const uint32_t *indices, uint32_t n);
/* The same of n random keys; repeats may happen. */
void embed_change_random(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                         uint32_t n);

/* Put a part of n keys into a query: random ones, of which unknown_percent are never there, or all
 * of the table's in order. */
void embed_query_random(struct embed_rig *rig, struct embed_query *query, struct embed_table *table,
                        uint32_t n, uint32_t unknown_percent);
void embed_query_all(struct embed_rig *rig, struct embed_query *query, struct embed_table *table);
/* Submit what was put together; what the dictionary says now must be answered. */
void embed_begin(struct embed_rig *rig, struct embed_query *query);
/* The same without waiting: false if the cache has no place before others have ended; then
 * embed_begin_later is to be called, which waits. */
bool embed_begin_now(struct embed_rig *rig, struct embed_query *query);
void embed_begin_later(struct embed_rig *rig, struct embed_query *query);
/* Wait, compare, release; the query is empty again. */
void embed_finish(struct embed_rig *rig, struct embed_query *query);
/* Forget it without waiting. */
void embed_drop(struct embed_rig *rig, struct embed_query *query);
/* Begin and finish a lookup of all keys; of a table that is not exact learn what is there. */
void embed_lookup_all(struct embed_rig *rig, struct embed_table *table);
/* Until nothing is under way. */
void embed_drain(struct embed_rig *rig);
/* Resident rows by the counters and by the dictionary are the same. Nothing is under way. */
void embed_expect_counts(struct embed_rig *rig, struct embed_table *table);

uint32_t embed_random(struct embed_rig *rig, uint32_t below);

#endif
