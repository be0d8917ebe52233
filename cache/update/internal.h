/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the update path. For the updater's thread, unless stated otherwise.
 */
#ifndef HPS_CACHE_UPDATE_INTERNAL_H
#define HPS_CACHE_UPDATE_INTERNAL_H

#include "base/lock.h"
#include "cache/update/update.h"

/* One position in its stored form. */
struct update_position {
    struct update_position *next;
    struct hps_record record;
    size_t name_size; /* of the source's key */
    uint8_t bytes[];  /* prefix, the source's key, value */
};

struct hps_updates {
    atomic_bool busy; /* a batch is being applied; there is one updater */
    _Atomic uint64_t sequence;
    _Atomic int64_t event_time_ms, as_of_ms;
    _Atomic uint64_t as_of_us;         /* when as_of_ms last changed, hps_clock_us */
    struct hps_lock lock;              /* of the fields up to `held` */
    struct update_position *positions; /* published */
    struct hps_cond changed;           /* signalled when any of the next three changes */
    bool batch_waits;                  /* for the end of a hold */
    bool batch_runs;
    bool held; /* a lookup holds updates back, or waits for the current batch to do so */

    /* [n_tables] hidden tables, one per table, that hold row versions in the durable store; NULL:
     * row versions are not compared */
    struct hps_table *version_tables;

    /* [n_tables] rows that batches added to the loaded ones, less those removed */
    _Atomic int64_t *rows_changed;
    atomic_bool rows_updated; /* some batch had, or may have had, rows or deletes */

    struct hps_log_report shared; /* updater's thread only: the sum since it was last taken */
};

/* ---- hold.c ---------------------------------------------------------------------------------- */

/* Wait for the end of a hold, at most HPS_UPDATE_HOLD_US_MAX. */
void update_turn_begin(struct hps_updates *updates);
void update_turn_end(struct hps_updates *updates);

/* ---- reading one tier ------------------------------------------------------------------------ */

/* Read the rows that one tier has of the batch's keys. No deadline: updaters wait for their stores.
 *
 * error   as the store's get; answered keys stay answered
 */
static inline hps_status update_read_tier(struct hps_space *space, const struct hps_table *table,
                                          struct hps_batch *batch)
{
    const struct hps_call no_limit = {0};

    return space->store->ops->get(space, &no_limit, table, batch);
}

/* ---- plan.c: the writes of a batch ----------------------------------------------------------- */

struct update_plan {
    struct hps_write *writes; /* [n_writes] a key of a table occurs once in all of them */
    void **owned;    /* [n_writes] memory to free; NULL: the write borrows from the batch */
    uint32_t *spans; /* [n_writes] the batch's span of each write */
    uint32_t n_writes;
    uint32_t n_version_writes; /* writes of row versions after them, for the durable store */
    uint64_t n_older;          /* keys left out because a higher version is stored */
    uint64_t n_put;
    uint64_t n_deleted;
};

/* Check a batch and keep the last write of each key. compare: keep the write with the highest row
 * version, unless a higher one is stored. INVALID, NO_MEMORY; compare: also errors of the durable
 * store. */
hps_status update_plan_make(const struct hps_version *version, const struct hps_update_batch *batch,
                            bool compare, struct update_plan *out_plan, struct hps_error *err)
    HPS_MUST_CHECK;
void update_plan_free(struct update_plan *plan); /* may be zeroed */

/* ---- shared.c -------------------------------------------------------------------------------- */

bool update_is_shared(const struct hps_space *space);
/* Apply a batch and its plan to a shared tier. Errors of log->apply. */
hps_status update_shared_write(struct hps_version *version, struct hps_space *space,
                               const struct hps_update_batch *batch, const struct update_plan *plan,
                               struct hps_error *err) HPS_MUST_CHECK;

/* ---- versions.c ------------------------------------------------------------------------------ */

/* PRECONDITION, NO_MEMORY */
hps_status update_versions_open(const struct hps_version *version, struct hps_updates *updates,
                                struct hps_error *err) HPS_MUST_CHECK;
/* Mark in `lost` [part->n] the keys of a part that have a higher stored version. Keys marked
 * already are not read. NO_MEMORY, or an error of the store. */
hps_status update_versions_compare(const struct hps_version *version,
                                   const struct hps_update_part *part, uint8_t *lost,
                                   uint32_t *out_n_older, struct hps_error *err) HPS_MUST_CHECK;

/* ---- rows.c: how many rows there are --------------------------------------------------------- */

enum { UPDATE_ROWS_KEY_BYTES = 16 };

/* The row counts after a batch. */
struct update_rows {
    int64_t *changed; /* [n_tables] by all updates so far; NULL: the batch has no writes */
    bool *touched;    /* [n_tables] the batch writes to the table */
    char (*keys)[UPDATE_ROWS_KEY_BYTES]; /* [n_writes] memory for record keys */
    uint32_t n_tables;
};

/* Start with the counts before the batch. NO_MEMORY */
hps_status update_rows_make(const struct hps_version *version, const struct update_plan *plan,
                            struct update_rows *out_rows) HPS_MUST_CHECK;
/* The write adds n new keys, or removes n keys. */
void update_rows_note(struct update_rows *rows, const struct hps_write *write, uint64_t n);
/* Estimate this for all writes by reading a sample of their keys. NO_MEMORY */
hps_status update_rows_sample(const struct hps_version *version, const struct update_plan *plan,
                              struct update_rows *rows) HPS_MUST_CHECK;
/* Publish the counts of an applied batch. */
void update_rows_publish(struct hps_updates *updates, const struct update_rows *rows);
void update_rows_free(struct update_rows *rows); /* may be zeroed */

/* ---- state.c: sequence and positions, stored and published ----------------------------------- */

struct update_records {
    struct hps_record *records; /* [n] positions, row counts of tables, the sequence */
    uint32_t n;
    struct update_position *positions; /* in the order of the batch */
    uint64_t sequence;
};

/* INVALID, NO_MEMORY. The records point into out_records and `rows`, which must not move. */
hps_status update_records_make(const struct hps_version *version,
                               const struct hps_update_batch *batch, struct update_rows *rows,
                               struct update_records *out_records, struct hps_error *err)
    HPS_MUST_CHECK;
/* Publish the positions and the sequence of the batch. */
void update_records_publish(struct hps_updates *updates, struct update_records *records);
void update_records_free(struct update_records *records); /* may be zeroed */

#endif
