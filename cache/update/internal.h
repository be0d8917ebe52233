/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the update path share. On the updater's thread, unless said otherwise.
 */
#ifndef HPS_CACHE_UPDATE_INTERNAL_H
#define HPS_CACHE_UPDATE_INTERNAL_H

#include "base/lock.h"
#include "cache/update/update.h"

/* A position as it is stored. */
struct update_position {
    struct update_position *next;
    struct hps_record record;
    size_t name_size; /* of the source's key */
    uint8_t bytes[];  /* prefix, the source's key, value */
};

struct hps_updates {
    atomic_bool busy; /* a batch is being applied: there is one updater */
    _Atomic uint64_t sequence;
    _Atomic int64_t event_time_ms, as_of_ms;
    _Atomic uint64_t as_of_us;         /* when as_of_ms came to be what it is, hps_clock_us */
    struct hps_lock lock;              /* all that follows */
    struct update_position *positions; /* the published ones */
    struct hps_cond changed;           /* one of the next three is another */
    bool batch_waits;                  /* for the end of a hold */
    bool batch_runs;
    bool held; /* a look-up holds updates back, or waits for the batch under way to do so */

    /* [n_tables] NULL: not compared. Row versions as the rows of a table beside each table, in the
     * durable store alone. */
    struct hps_table *version_tables;

    /* [n_tables] rows that batches have added to those of the load, less what they took away */
    _Atomic int64_t *rows_changed;
    atomic_bool rows_updated; /* some batch has had rows or deletes, for all that is known */

    struct hps_log_report shared; /* thread `update` alone: since it was last taken */
};

/* ---- hold.c ---------------------------------------------------------------------------------- */

/* Wait for the end of a hold, HPS_UPDATE_HOLD_US_MAX at most. */
void update_turn_begin(struct hps_updates *updates);
void update_turn_end(struct hps_updates *updates);

/* ---- reading one tier ------------------------------------------------------------------------ */

/* What one tier has now of the batch's keys: for who is about to write it, or counts what a batch
 * will change there. No limit: whoever updates waits for its stores.
 * error   what the store says; answered keys stay answered */
static inline hps_status update_read_tier(struct hps_space *space, const struct hps_table *table,
                                          struct hps_batch *batch)
{
    const struct hps_call no_limit = {0};

    return space->store->ops->get(space, &no_limit, table, batch);
}

/* ---- plan.c: what a batch comes to ----------------------------------------------------------- */

struct update_plan {
    struct hps_write *writes; /* [n_writes] together, a key of a table occurs once */
    void **owned;             /* [n_writes] NULL: the write borrows from the batch */
    uint32_t *spans;          /* [n_writes] of the batch that each is from */
    uint32_t n_writes;
    uint32_t n_version_writes; /* behind them: of row versions, for the durable store */
    uint64_t n_older;          /* keys left out for a higher version that is stored */
    uint64_t n_put;
    uint64_t n_deleted;
};

/* Check a batch and keep the last write of each key; compare: that with the highest row version, if
 * none that is stored is higher. INVALID, RANGE, NO_MEMORY. */
hps_status update_plan_make(const struct hps_version *version, const struct hps_update_batch *batch,
                            bool compare, struct update_plan *out_plan, struct hps_error *err)
    HPS_MUST_CHECK;
void update_plan_free(struct update_plan *plan); /* a zeroed one is legal */

/* ---- shared.c -------------------------------------------------------------------------------- */

bool update_is_shared(const struct hps_space *space);
/* Apply a batch, and the plan of it, to a shared tier. What log->apply answers. */
hps_status update_shared_write(struct hps_version *version, struct hps_space *space,
                               const struct hps_update_batch *batch, const struct update_plan *plan,
                               struct hps_error *err) HPS_MUST_CHECK;

/* ---- versions.c ------------------------------------------------------------------------------ */

/* PRECONDITION, NO_MEMORY */
hps_status update_versions_open(const struct hps_version *version, struct hps_updates *updates,
                                struct hps_error *err) HPS_MUST_CHECK;
/* Mark the keys of a part in `lost` [part->n] whose stored version is higher; those marked already
 * are not asked for. NO_MEMORY, or what the store answered. */
hps_status update_versions_compare(const struct hps_version *version,
                                   const struct hps_update_part *part, uint8_t *lost,
                                   uint32_t *out_n_older, struct hps_error *err) HPS_MUST_CHECK;

/* ---- rows.c: how many rows there are --------------------------------------------------------- */

enum { UPDATE_ROWS_KEY_BYTES = 16 };

/* What a batch makes of it. */
struct update_rows {
    int64_t *changed; /* [n_tables] of the updates behind the batch; NULL: it has no writes */
    bool *touched;    /* [n_tables] by the batch */
    char (*keys)[UPDATE_ROWS_KEY_BYTES]; /* [n_writes] of the records, one a table */
    uint32_t n_tables;
};

/* As before the batch. NO_MEMORY */
hps_status update_rows_make(const struct hps_version *version, const struct update_plan *plan,
                            struct update_rows *out_rows) HPS_MUST_CHECK;
/* The write puts n new keys, or takes n away. */
void update_rows_note(struct update_rows *rows, const struct hps_write *write, uint64_t n);
/* The same of all writes, by asking the version for some of their keys. NO_MEMORY */
hps_status update_rows_sample(const struct hps_version *version, const struct update_plan *plan,
                              struct update_rows *rows) HPS_MUST_CHECK;
/* The batch is applied. */
void update_rows_publish(struct hps_updates *updates, const struct update_rows *rows);
void update_rows_free(struct update_rows *rows); /* a zeroed one is legal */

/* ---- state.c: sequence and positions, stored and published ----------------------------------- */

struct update_records {
    struct hps_record *records; /* [n] the positions, rows of tables, then the sequence */
    uint32_t n;
    struct update_position *positions; /* in the order of the batch */
    uint64_t sequence;
};

/* INVALID, NO_MEMORY. The records point into out_records and `rows`: they must not move. */
hps_status update_records_make(const struct hps_version *version,
                               const struct hps_update_batch *batch, struct update_rows *rows,
                               struct update_records *out_records, struct hps_error *err)
    HPS_MUST_CHECK;
/* Make the batch's positions and its sequence the published ones. */
void update_records_publish(struct hps_updates *updates, struct update_records *records);
void update_records_free(struct update_records *records); /* a zeroed one is legal */

#endif
