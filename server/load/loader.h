/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads the rows of a new version from files into stores, as a stream. It sorts the rows if their
 * keys do not ascend. Then it writes the persistent store and the host map in one pass. Runs on the
 * loader thread.
 */
#ifndef HPS_SERVER_LOAD_LOADER_H
#define HPS_SERVER_LOAD_LOADER_H

#include "backends/stores.h"
#include "cache/version/version.h"
#include "server/load/source.h"

struct hps_load_env {
    struct hps_stores stores;            /* at least one */
    struct hps_breaker *durable_breaker; /* of the durable store; NULL: no breaker */
    const char *spill_dir;               /* for the spilled runs of a sort */
    uint64_t memory_bytes;               /* for a sort */
    uint64_t host_bytes_max;
    uint64_t host_rows_max; /* limit of a table with its only copy in the host map; 0: none */
    uint32_t key_bytes;     /* 8, or 4 without supportlonglong */
    bool nan_allowed;
    uint64_t disk_free_min_bytes;
    /* share of a load's rows that a shared store above a durable one gets */
    double shared_seed_ratio;
    bool shared_takes_missed; /* the shared store gets rows that lookups find below it */
};

/* How the stores identify this version. With a shared store its load id must be known. */
struct hps_space_id hps_load_space_id(const struct hps_version *version);

/* Remove the space of a failed load. takes `space`, which may be NULL. Its rows are deleted, unless
 * the store is a shared one with the only copy. That store may have rows of earlier loads, with
 * updates that no file has. */
void hps_load_drop_space(const struct hps_load_env *env, struct hps_space *space);

/* Open the spaces of a version that is in the stores already. On an error version->tiers has the
 * spaces that were opened before it. */
hps_status hps_load_open_spaces(const struct hps_load_env *env, struct hps_version *version,
                                struct hps_error *err) HPS_MUST_CHECK;

/* Needs of a load, in bytes. `available`: bytes that the load may use. */
struct hps_load_plan {
    uint64_t n_rows;
    uint64_t row_bytes; /* of all rows */
    uint64_t disk_bytes_needed;
    uint64_t disk_bytes_available; /* both 0: nothing is written to disk */
    uint64_t host_bytes_needed;
    uint64_t host_bytes_available;
    uint64_t n_rows_dropped;      /* beyond host_rows_max: no store will have them */
    uint64_t shared_bytes_needed; /* estimate; the capacity is not known here */
    uint64_t device_bytes_needed; /* of a dry run, for embedding caches; 0: none */
    uint64_t start_hash; /* of where updates begin (server/update/updates.h); set by the caller */
};

/* Estimated bytes in the persistent store: the rows, 3 % for index and filter, and 16 bytes for
 * each key. */
static inline uint64_t hps_load_store_bytes(const struct hps_load_plan *plan)
{
    return plan->row_bytes + plan->row_bytes / 32 + plan->n_rows * 16;
}

/* How a load converted the rows of a table. */
struct hps_load_conversion {
    enum hps_dtype from, to; /* equal: nothing was converted */
    struct hps_row_loss loss;
};

/* Written by the loader thread, read by any thread. */
struct hps_load_progress {
    /* "plan", "sort", "write", "ingest", "fill", "warm", "catch-up", "done"; static text */
    _Atomic(const char *) stage;
    atomic_uint table; /* index of the current table */
    _Atomic uint64_t rows_done;
    _Atomic uint64_t rows_total;
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t bytes_total;
    _Atomic uint64_t started_us;
    /* [n_tables of the version], the caller's, zeroed; read after the load. May be NULL. */
    struct hps_load_conversion *conversions;
    atomic_bool cancel; /* set by any thread: the load ends with CANCELLED */
    uint64_t logged_us; /* used by hps_load_progress_log */
};

/* Remaining time at the average rate so far, in milliseconds; 0: unknown. */
uint64_t hps_load_remaining_ms(const struct hps_load_progress *progress, uint64_t now_us);
/* Log the progress of a load, once in 10 s. table: the name of progress->table. Any thread, one
 * call at a time; cheap enough for a timer. */
void hps_load_progress_log(struct hps_load_progress *progress, const char *model, int64_t version,
                           const char *table, uint64_t now_us);

/* Describe the files of a table and the rows that they will give. May block. error: as
 * hps_row_reader_open, with the table's name */
hps_status hps_load_describe(const struct hps_load_env *env, const struct hps_source_table *table,
                             struct hps_row_desc *out_desc, struct hps_error *err) HPS_MUST_CHECK;

/* Set table->default_row from the configured values; name, dim, dtype and row_bytes must be set.
 * Any thread. owner of the row: the table, also after an error.
 * error   INVALID; NO_MEMORY */
hps_status hps_load_default_row(const struct hps_source_table *source, struct hps_table *table,
                                struct hps_error *err) HPS_MUST_CHECK;

/* Open every file once, set version->tables (names, widths, default rows), and compute what a load
 * needs. host_used_bytes: bytes that all resident versions use. The version has as many tables as
 * the source. May block. */
hps_status hps_load_plan(const struct hps_load_env *env, const struct hps_source *source,
                         uint64_t host_used_bytes, struct hps_version *version,
                         struct hps_load_plan *out_plan, struct hps_error *err) HPS_MUST_CHECK;

/* Load the version. On success version->tiers has open spaces, and load_id and the number of
 * duplicates are set. After a failure no store keeps rows of the load, except as in
 * hps_load_drop_space. If the rows do not fit in the host map, lookups insert them later; that
 * needs a store below it, else EXHAUSTED. A shared store may already have the rows from another
 * daemon. Above a persistent store it may be unreachable. */
hps_status hps_load_run(const struct hps_load_env *env, const struct hps_source *source,
                        const struct hps_load_plan *plan, struct hps_version *version,
                        struct hps_load_progress *progress, struct hps_error *err) HPS_MUST_CHECK;

/* Insert every row of the lowest tier that the host map lacks, and mark the map complete. Used
 * after a restart, while the version serves. The lowest tier is not a shared store. */
hps_status hps_load_refill_host(const struct hps_load_env *env, struct hps_version *version,
                                const atomic_bool *cancel, struct hps_error *err) HPS_MUST_CHECK;
/* Estimated bytes of a row in the host map: its place, and 24 bytes of index. */
static inline uint64_t hps_load_host_row_bytes(uint32_t row_bytes)
{
    uint64_t step = row_bytes < 256 ? 4 : 16;
    return (row_bytes + step - 1) / step * step + 24;
}
/* Estimated bytes in the host map for all rows of these tables, at most host_rows_max of each if it
 * has the only copy. */
uint64_t hps_load_host_bytes(const struct hps_load_env *env, const struct hps_table *tables,
                             uint32_t n_tables);

#endif
