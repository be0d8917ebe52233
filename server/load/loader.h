/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows from files into the stores of a new version, streaming: sort (where keys do not ascend
 * already), then one pass into the persistent store and the host map together. Runs on the loader
 * thread.
 */
#ifndef HPS_SERVER_LOAD_LOADER_H
#define HPS_SERVER_LOAD_LOADER_H

#include "backends/stores.h"
#include "cache/version/version.h"
#include "server/load/source.h"

struct hps_load_env {
    struct hps_stores stores;            /* at least one */
    struct hps_breaker *durable_breaker; /* of the durable store; NULL: it is always asked */
    const char *spill_dir;               /* for the runs of a sort */
    uint64_t memory_bytes;               /* of a sort */
    uint64_t host_bytes_max;
    uint64_t host_rows_max; /* of a table whose only copy is in the host map; 0: no limit */
    uint32_t key_bytes;     /* 8 or 4, as supportlonglong says */
    bool nan_allowed;
    uint64_t disk_free_min_bytes;
    double shared_seed_ratio; /* share of the rows of a load that the shared store gets, above
                                 durable */
    bool shared_takes_missed; /* it gets rows that look-ups find below it */
};

/* How the stores know this version. Its load id must be known where there is a shared one. */
struct hps_space_id hps_load_space_id(const struct hps_version *version);

/* takes the space of a load that came to nothing (NULL is legal): its rows are deleted, unless the
 * store is a shared one with the only copy. What is there may be of earlier loads, with updates
 * that no file has. */
void hps_load_drop_space(const struct hps_load_env *env, struct hps_space *space);

/* Open the spaces of a version whose rows are in its stores already; or some of them, as err says.
 */
hps_status hps_load_open_spaces(const struct hps_load_env *env, struct hps_version *version,
                                struct hps_error *err) HPS_MUST_CHECK;

/* Bytes; available is what may be used. */
struct hps_load_plan {
    uint64_t n_rows;
    uint64_t row_bytes; /* of all rows */
    uint64_t disk_bytes_needed;
    uint64_t disk_bytes_available; /* 0 and needed 0: nothing goes to disk */
    uint64_t host_bytes_needed;
    uint64_t host_bytes_available;
    uint64_t n_rows_dropped;      /* beyond host_rows_max: no store will have them */
    uint64_t shared_bytes_needed; /* about; what there is is not known here */
    uint64_t device_bytes_needed; /* of a dry run; by its embedding caches, 0: it has none */
    uint64_t
        start_hash; /* set by whoever loads: of where updates begin (server/update/updates.h) */
};

/* About what the persistent store makes of the rows: 12 key bytes each, and 3 % of index and
 * filter.
 */
static inline uint64_t hps_load_store_bytes(const struct hps_load_plan *plan)
{
    return plan->row_bytes + plan->row_bytes / 32 + plan->n_rows * 16;
}

/* What a load has made of the rows of a table. */
struct hps_load_conversion {
    enum hps_dtype from, to; /* the same: nothing was converted */
    struct hps_row_loss loss;
};

/* Written by the loader, read by any thread. */
struct hps_load_progress {
    _Atomic(const char *) stage; /* "plan", "sort", "write", "ingest", "fill", "warm", "catch-up",
                                    "done"; static text */
    atomic_uint table;           /* index */
    _Atomic uint64_t rows_done;
    _Atomic uint64_t rows_total;
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t bytes_total;
    _Atomic uint64_t started_us;
    struct hps_load_conversion
        *conversions;   /* [n_tables of the version], the caller's, zeroed; read
                           once the load has ended. NULL: nobody wants them */
    atomic_bool cancel; /* set by anybody: the load ends with CANCELLED */
    uint64_t logged_us; /* hps_load_progress_log's */
};

/* Time left by the rate so far; 0: not known. */
uint64_t hps_load_remaining_ms(const struct hps_load_progress *progress, uint64_t now_us);
/* Log the progress of a load, every 10 s from its start on. table: the name of progress->table.
 * Any thread, one call at a time; cheap enough for a timer. */
void hps_load_progress_log(struct hps_load_progress *progress, const char *model, int64_t version,
                           const char *table, uint64_t now_us);

/* What the files of a table are, and what its rows will be. May block. error: as
 * hps_row_reader_open, with the table's name */
hps_status hps_load_describe(const struct hps_load_env *env, const struct hps_source_table *table,
                             struct hps_row_desc *out_desc, struct hps_error *err) HPS_MUST_CHECK;

/* Set table->default_row (owner: the table, also after an error) from the values that the
 * configuration has; name, dim, dtype and row_bytes are set. Any thread. error INVALID; NO_MEMORY
 */
hps_status hps_load_default_row(const struct hps_source_table *source, struct hps_table *table,
                                struct hps_error *err) HPS_MUST_CHECK;

/* Open every file once, set version->tables (names, widths, default rows) and say what a load
 * needs. host_used_bytes: by all resident versions. version has as many tables as the source. */
hps_status hps_load_plan(const struct hps_load_env *env, const struct hps_source *source,
                         uint64_t host_used_bytes, struct hps_version *version,
                         struct hps_load_plan *out_plan, struct hps_error *err) HPS_MUST_CHECK;

/* Load. On success version->tiers hold open spaces, load_id and duplicates are set; on failure
 * nothing is left in any store but one that hps_load_drop_space spares. Without room in the host
 * map, rows come into it as they are asked for; that needs a store below it, else EXHAUSTED. A
 * shared store may have the rows from elsewhere; above a persistent one it may be away. */
hps_status hps_load_run(const struct hps_load_env *env, const struct hps_source *source,
                        const struct hps_load_plan *plan, struct hps_version *version,
                        struct hps_load_progress *progress, struct hps_error *err) HPS_MUST_CHECK;

/* Put every row of the authoritative tier into the host map of a version, but for those that are
 * there, and mark it complete. Used after a restart, while the version already serves. */
hps_status hps_load_refill_host(const struct hps_load_env *env, struct hps_version *version,
                                const atomic_bool *cancel, struct hps_error *err) HPS_MUST_CHECK;
/* Bytes that a row takes in the host map, about: where it lies, and 24 of the index. */
static inline uint64_t hps_load_host_row_bytes(uint32_t row_bytes)
{
    uint64_t step = row_bytes < 256 ? 4 : 16;
    return (row_bytes + step - 1) / step * step + 24;
}
/* What the host map needs for all rows of these tables, or as many as it takes of each. */
uint64_t hps_load_host_bytes(const struct hps_load_env *env, const struct hps_table *tables,
                             uint32_t n_tables);

#endif
