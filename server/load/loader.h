/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads the rows of a new version from files into stores, as a stream. If the keys of a table are
 * not in ascending order, its rows are sorted first. The stores get their rows as follows:
 *
 * - One pass over the files writes the rows to the durable store (persistent_db) and to the host
 *   map. Either of the two may be missing.
 * - A shared store above a durable one gets its rows from the durable store after that pass.
 * - With a shared store but no durable one, a first pass computes version->load_id. A second pass
 *   writes the rows to the shared store, unless the store has them already. The host map, if there
 *   is one, starts empty.
 *
 * Runs on the loader thread, unless stated otherwise.
 */
#ifndef HPS_SERVER_LOAD_LOADER_H
#define HPS_SERVER_LOAD_LOADER_H

#include "backends/stores.h"
#include "cache/version/version.h"
#include "server/load/source.h"

struct hps_load_env {
    struct hps_stores stores;            /* at least one */
    struct hps_breaker *durable_breaker; /* circuit breaker of the durable store; may be NULL */
    const char *spill_dir;               /* directory for files of sorts that exceed memory_bytes */
    uint64_t memory_bytes;               /* memory that a sort may use */
    uint64_t host_bytes_max;             /* capacity of the host map */
    /* Limit on the rows of a table if the host map has the only copy; further rows are dropped. 0:
     * no limit. */
    uint64_t host_rows_max;
    uint32_t key_bytes;           /* bytes of a key in the files: 8, or 4 without supportlonglong */
    bool nan_allowed;             /* false: a row with a NaN fails the load */
    uint64_t disk_free_min_bytes; /* a sort leaves this much disk space free */
    bool base_files;              /* tables with nearly consecutive keys get base files */
    bool merges;                  /* updates are merged into these files, a copy at a time */
    /* The part of a load's rows, 0 to 1, that is written to a shared store above a durable one. */
    double shared_seed_ratio;
    /* True: a row that a lookup finds below the shared store is inserted into the shared store. */
    bool shared_takes_missed;
};

/* How the stores identify this version. With a shared store version->load_id must be set. */
struct hps_space_id hps_load_space_id(const struct hps_version *version);

/* Remove the space of a failed load, and delete its rows. Takes `space`; no effect if NULL.
 * Exception: a shared store without a durable store below it keeps the rows. An earlier load may
 * have written these rows, and updates may have changed them since. */
void hps_load_drop_space(const struct hps_load_env *env, struct hps_space *space);

/* Open the spaces of a version whose rows are in the stores already, and set version->tiers. After
 * an error, version->tiers has the spaces that were opened before it. */
hps_status hps_load_open_spaces(const struct hps_load_env *env, struct hps_version *version,
                                struct hps_error *err) HPS_MUST_CHECK;

/* What a load needs, and how much of it is available to the load. */
struct hps_load_plan {
    uint64_t n_rows;            /* rows in the files, including duplicates */
    uint64_t row_bytes;         /* bytes of these rows as stored; keys are not included */
    uint64_t store_bytes;       /* estimate of these rows in a durable store */
    uint64_t disk_bytes_needed; /* estimate for the durable store and the largest sort or merge */
    uint64_t disk_bytes_available; /* free for the durable store; 0: there is no durable store */
    uint64_t host_bytes_needed;    /* estimate for the host map; 0: the load does not fill it */
    uint64_t host_bytes_available; /* free in the host map */
    uint64_t n_rows_dropped;       /* rows beyond host_rows_max; no store will have them */
    uint64_t shared_bytes_needed;  /* estimate for the shared store; its capacity is not known */
    uint64_t device_bytes_needed;  /* of embedding caches; set by the caller in a dry run, else 0 */
    uint64_t start_hash;           /* hps_updater_start_hash, set by the caller; 0: no updater */
};

/* How a load converted the rows of a table. */
struct hps_load_conversion {
    enum hps_dtype from, to; /* row type of the file, and of the store; equal: not converted */
    struct hps_row_loss loss;
};

/* Progress of one load. The loader thread writes the atomic fields, except `cancel`; any thread may
 * read them. */
struct hps_load_progress {
    /* "plan", "sort", "write", "ingest", "fill", "warm", "catch-up" or "done". Static text. */
    _Atomic(const char *) stage;
    atomic_uint table; /* index of the table that is being loaded */
    _Atomic uint64_t rows_done;
    _Atomic uint64_t rows_total;
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t bytes_total;
    _Atomic uint64_t started_us; /* hps_clock_us; 0: not started */
    /* [n_tables of the version]: the caller provides it zeroed, and reads it after the load. NULL:
     * conversions are not reported. */
    struct hps_load_conversion *conversions;
    atomic_bool cancel; /* set by any thread: the load ends with CANCELLED */
    uint64_t logged_us; /* hps_load_progress_log alone uses it: one call at a time */
};

/* Estimate of the remaining time in milliseconds, from the average rate so far. 0: unknown, or all
 * rows are done. now_us: hps_clock_us. Any thread. */
uint64_t hps_load_remaining_ms(const struct hps_load_progress *progress, uint64_t now_us);
/* Log the progress of a load. No effect within 10 s of the load's start, or of the last call that
 * logged. table: the name of the table with the index progress->table. Any thread, one call at a
 * time; cheap enough for a timer. */
void hps_load_progress_log(struct hps_load_progress *progress, const char *model, int64_t version,
                           const char *table, uint64_t now_us);

/* Describe the rows that a load would read from the files of a table. Any thread; may block.
 * error   as hps_row_reader_open; the text has the table's name */
hps_status hps_load_describe(const struct hps_load_env *env, const struct hps_source_table *table,
                             struct hps_row_desc *out_desc, struct hps_error *err) HPS_MUST_CHECK;

/* Set table->default_row from the default values of `source`. The table's name, dim, dtype and
 * row_bytes must be set. The table owns the row, also after an error. Any thread.
 * error   INVALID: the number of values is wrong, or a value does not fit the type; NO_MEMORY */
hps_status hps_load_default_row(const struct hps_source_table *source, struct hps_table *table,
                                struct hps_error *err) HPS_MUST_CHECK;

/* Open every file once, set version->tables (names, widths, types, default rows), and compute what
 * a load needs. host_used_bytes: bytes that all versions use in the host map. The version must have
 * as many tables as the source. Any thread; may block. */
hps_status hps_load_plan(const struct hps_load_env *env, const struct hps_source *source,
                         uint64_t host_used_bytes, struct hps_version *version,
                         struct hps_load_plan *out_plan, struct hps_error *err) HPS_MUST_CHECK;

/* Load the version. On success version->tiers has open spaces, and version->load_id and
 * duplicate_keys are set. After a failure no store keeps rows of the load, except as in
 * hps_load_drop_space. May block.
 *
 * If the rows do not fit in the host map and a store below it has them, the map starts empty, and
 * lookups insert rows. If another daemon has loaded the same rows into a shared store, the load
 * uses these rows. If a shared store above a durable one is unreachable, the load succeeds, and the
 * shared store starts empty.
 * error   CANCELLED; EXHAUSTED: disk or memory is too small; PRECONDITION: a file changed during
 *         the load; errors of the files and stores */
hps_status hps_load_run(const struct hps_load_env *env, const struct hps_source *source,
                        const struct hps_load_plan *plan, struct hps_version *version,
                        struct hps_load_progress *progress, struct hps_error *err) HPS_MUST_CHECK;

/* Insert all rows of the lowest tier into the host map, and set version->host_complete. Used after
 * a restart, while the version serves and takes updates. If an update may have changed a row after
 * it was read, the row is read again before it is inserted (cache/version/stamps.h). The lowest
 * tier must not be a shared store. May block.
 * error   CANCELLED; EXHAUSTED: not all rows fit; ABORTED: updates changed some rows each time they
 *         were read; errors of the stores */
hps_status hps_load_refill_host(const struct hps_load_env *env, struct hps_version *version,
                                const atomic_bool *cancel, struct hps_error *err) HPS_MUST_CHECK;
/* Estimated bytes of a row in the host map: its slot in a slab, and 24 bytes of index. */
static inline uint64_t hps_load_host_row_bytes(uint32_t row_bytes)
{
    uint64_t step = row_bytes < 256 ? 4 : 16;
    return (row_bytes + step - 1) / step * step + 24;
}
/* Estimated bytes that all rows of these tables need in the host map. If the map has the only copy,
 * at most host_rows_max rows of each table count. Any thread. */
uint64_t hps_load_host_bytes(const struct hps_load_env *env, const struct hps_table *tables,
                             uint32_t n_tables);

#endif
