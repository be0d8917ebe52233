/* SPDX-License-Identifier: Apache-2.0
 *
 * An embedding cache on a device of any kind, and a dictionary of its expected results. It uses
 * no test library, because the device run cannot.
 *
 * A row is made from its table, its key and a version that grows with every write. So torn rows,
 * stale rows and rows of other keys are detected. If all keys of a table fit into their sets and
 * spills, the dictionary knows every hit ("exact"). For any other table, lookups of all keys
 * show which keys were evicted or refused; all other results must still be right.
 *
 * Thread: the caller's. The first difference is kept in `err`, and later calls have no effect.
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
    hps_key *keys;      /* [n_keys] that may be cached */
    uint32_t *versions; /* [n_keys] 0: not cached */
};

/* A lookup in flight and its expected result. */
struct embed_query {
    struct hps_embed_region *region;
    uint8_t *host;     /* of a region in host memory, or a copy of the rows */
    hps_devptr device; /* of a region in device memory, or 0 */
    struct hps_embed_ticket *ticket;
    uint32_t n_parts;
    struct embed_table *tables[EMBED_QUERY_PARTS];
    struct hps_embed_part parts[EMBED_QUERY_PARTS];
    hps_key *keys;      /* [batch_keys_max] */
    uint32_t *indices;  /* [batch_keys_max] in the table; UINT32_MAX: a key that it never has */
    uint32_t *expected; /* [batch_keys_max] versions */
    uint32_t n_keys;
    uint64_t bytes; /* used bytes of the region */
};

struct embed_rig {
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_cache_config config;
    struct hps_stream_q *stream; /* owned by the rig */
    struct hps_event *event;
    struct hps_error *err;
    bool failed;
    struct hps_random random;
    uint32_t version;     /* the last version made */
    uint64_t query_bytes; /* of one region */
    struct embed_query queries[EMBED_QUERIES];
    uint8_t *rows; /* rows to stage */
    uint64_t rows_bytes;
    uint64_t n_hits; /* hits so far */
};

/* n_device: how many of the queries, from the first on, write to device memory. */
void embed_rig_open(struct embed_rig *rig, struct hps_device *device,
                    const struct hps_embed_cache_config *config, uint64_t query_bytes,
                    unsigned n_device, struct hps_error *err);
/* Returns whether there was no difference. */
bool embed_rig_close(struct embed_rig *rig);
/* Record a status other than HPS_OK. Returns whether it is HPS_OK. */
bool embed_ok(struct embed_rig *rig, hps_status status, const char *what);
bool embed_expect(struct embed_rig *rig, bool holds, const char *fmt, ...) HPS_PRINTF(3, 4);
/* Like hps_calloc; the rig records a failure. */
void *embed_calloc(struct embed_rig *rig, size_t count, size_t size);

/* Open a range of about n_slots and n_keys keys that all fit. stride: 0: random keys; else key i
 * is i * stride, without the keys that do not fit. */
void embed_table_open(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                      uint64_t n_slots, uint32_t n_keys, uint64_t stride);
/* The same with given keys; exact only if they fit. n_slots EMBED_WHOLE: the table has n_keys
 * rows, and all of them are cached. */
void embed_table_open_keys(struct embed_rig *rig, struct embed_table *table, uint32_t row_bytes,
                           uint64_t n_slots, const hps_key *keys, uint32_t n_keys);
/* A zeroed table is closed. */
void embed_table_close(struct embed_table *table);
/* Find n keys of one set, from `start` on, in a range of about n_slots. The first key selects
 * the set. After a failure, `keys` is not set. */
void embed_keys_of_one_set(const struct embed_rig *rig, uint64_t n_slots, uint32_t row_bytes,
                           hps_key start, hps_key *keys, uint32_t n);

void embed_row(const struct embed_table *table, hps_key key, uint32_t version, uint8_t *row);

/* Stage a change of n keys, given by their index in the table. Waits until all are staged. */
void embed_change(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                  const uint32_t *indices, uint32_t n);
/* The same for n random keys, which may repeat. */
void embed_change_random(struct embed_rig *rig, struct embed_table *table, enum hps_embed_op op,
                         uint32_t n);

/* Add a part to a query: n random keys, unknown_percent of them never cached, or all keys of the
 * table in order. */
void embed_query_random(struct embed_rig *rig, struct embed_query *query, struct embed_table *table,
                        uint32_t n, uint32_t unknown_percent);
void embed_query_all(struct embed_rig *rig, struct embed_query *query, struct embed_table *table);
/* Submit the query. The result must equal the dictionary at this time. */
void embed_begin(struct embed_rig *rig, struct embed_query *query);
/* The same without a wait. False: the cache must end other lookups first; then call
 * embed_begin_later, which waits. */
bool embed_begin_now(struct embed_rig *rig, struct embed_query *query);
void embed_begin_later(struct embed_rig *rig, struct embed_query *query);
/* Wait, compare, release. The query is empty afterwards. */
void embed_finish(struct embed_rig *rig, struct embed_query *query);
/* Reset the query without a wait. */
void embed_drop(struct embed_rig *rig, struct embed_query *query);
/* Begin and finish a lookup of all keys. If the table is not exact, learn which keys are cached. */
void embed_lookup_all(struct embed_rig *rig, struct embed_table *table);
/* Wait until no operation is in flight. */
void embed_drain(struct embed_rig *rig);
/* The counters and the dictionary must have the same number of cached rows. No operation may be
 * in flight. */
void embed_expect_counts(struct embed_rig *rig, struct embed_table *table);

uint32_t embed_random(struct embed_rig *rig, uint32_t below);

#endif
