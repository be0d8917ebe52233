/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the update path. Only the version's updater thread may call these
 * functions, unless stated otherwise.
 */
#ifndef HPS_CACHE_UPDATE_INTERNAL_H
#define HPS_CACHE_UPDATE_INTERNAL_H

#include "base/lock.h"
#include "cache/update/update.h"

/* One position of the source of updates (hps_update_batch.positions), in its stored form. */
struct update_position {
    struct update_position *next;
    struct hps_record record; /* points into `bytes` */
    size_t name_size;         /* size of the key that the source gave */
    /* The record's key, then its value. The key is a prefix, then the key that the source gave. */
    uint8_t bytes[];
};

struct hps_updates {
    /* hps_update_apply is running; an assertion checks that no second thread calls it. */
    atomic_bool busy;
    _Atomic uint64_t sequence;               /* see hps_update_sequence */
    _Atomic int64_t event_time_ms, as_of_ms; /* see hps_update_times_set */
    struct hps_lock lock; /* protects `positions`, batch_waits, batch_runs and `held` */
    struct update_position *positions; /* list of the published positions */
    struct hps_cond changed;           /* signalled when batch_runs or `held` becomes false */
    bool batch_waits;                  /* a batch waits for the end of a hold */
    bool batch_runs;                   /* a batch is being applied to the tiers */
    bool held; /* a lookup holds updates back, or will do so after the current batch */

    /* [n_tables] hidden tables of the durable store; each has the row versions of one table. NULL:
     * the version has no row versions */
    struct hps_table *version_tables;

    /* [n_tables] rows that batches have added to the loaded rows, less rows that they removed */
    _Atomic int64_t *rows_changed;
    atomic_bool rows_updated; /* batches have changed rows, so the row counts may be estimates */

    /* The updater thread only: the sum of the shared tier's reports since the last call of
     * hps_update_shared_take. */
    struct hps_log_report shared;
};

/* ---- hold.c ---------------------------------------------------------------------------------- */

/* Call update_turn_begin before a batch is applied to the tiers, and update_turn_end after it.
 * update_turn_begin waits for the end of a hold (hps_update_hold), for at most
 * HPS_UPDATE_HOLD_US_MAX. */
void update_turn_begin(struct hps_updates *updates);
void update_turn_end(struct hps_updates *updates);

/* ---- reading one tier ------------------------------------------------------------------------ */

/* Read the rows that one tier has of the batch's keys. Without a deadline, because an updater must
 * wait until its stores have replied.
 *
 * error   the errors of `get` in struct hps_store_ops; keys found before an error stay found
 */
static inline hps_status update_read_tier(struct hps_space *space, const struct hps_table *table,
                                          struct hps_batch *batch)
{
    const struct hps_call no_limit = {0};

    return space->store->ops->get(space, &no_limit, table, batch);
}

/* ---- plan.c: the writes of a batch ----------------------------------------------------------- */

struct update_plan {
    /* [n_writes + n_version_writes]. The first n_writes write or delete rows; each key of a table
     * occurs in only one of them. The others write row versions, only to the durable store. */
    struct hps_write *writes;
    /* For each of `writes`, memory that update_plan_free frees; NULL: the write uses memory of the
     * batch. */
    void **owned;
    uint32_t *spans; /* [n_writes] index of the batch's span from which each write comes */
    uint32_t n_writes;
    uint32_t n_version_writes;
    uint64_t n_older;   /* keys left out because a higher row version is stored */
    uint64_t n_put;     /* keys with new rows */
    uint64_t n_deleted; /* keys to be deleted */
};

/* Check a batch and keep the last write of each key. With `compare`, keep the write with the
 * highest row version instead; leave the key out if a higher row version is stored. INVALID,
 * NO_MEMORY; with `compare` also errors of the durable store. */
hps_status update_plan_make(const struct hps_version *version, const struct hps_update_batch *batch,
                            bool compare, struct update_plan *out_plan, struct hps_error *err)
    HPS_MUST_CHECK;
void update_plan_free(struct update_plan *plan); /* may be zeroed */

/* ---- shared.c -------------------------------------------------------------------------------- */

/* Whether the store of the space is shared with other daemons. */
bool update_is_shared(const struct hps_space *space);
/* Apply a batch and its plan to a shared tier. Errors as of apply in struct hps_store_log_ops. */
hps_status update_shared_write(struct hps_version *version, struct hps_space *space,
                               const struct hps_update_batch *batch, const struct update_plan *plan,
                               struct hps_error *err) HPS_MUST_CHECK;

/* ---- versions.c ------------------------------------------------------------------------------ */

/* Make updates->version_tables if the version has row versions. PRECONDITION: there is no durable
 * store; NO_MEMORY */
hps_status update_versions_open(const struct hps_version *version, struct hps_updates *updates,
                                struct hps_error *err) HPS_MUST_CHECK;
/* For each key of a part, set lost[i] to 1 if the durable store has a higher row version of keys[i]
 * than the part. A key whose lost[i] is 1 before the call is skipped.
 *
 * shape   lost: [part->n]; out_n_older: how many keys this call has set
 * error   NO_MEMORY, or an error of the store
 */
hps_status update_versions_compare(const struct hps_version *version,
                                   const struct hps_update_part *part, uint8_t *lost,
                                   uint32_t *out_n_older, struct hps_error *err) HPS_MUST_CHECK;

/* ---- rows.c: how many rows there are --------------------------------------------------------- */

enum { UPDATE_ROWS_KEY_BYTES = 16 }; /* size of a record's key, "update/rows/" and a table id */

/* The row counts after a batch. */
struct update_rows {
    /* [n_tables] the values of hps_updates.rows_changed after the batch; NULL: the batch has no
     * writes. */
    int64_t *changed;
    bool *touched; /* [n_tables] the batch writes to the table */
    /* [n_writes] memory for the keys of the records that store the counts. */
    char (*keys)[UPDATE_ROWS_KEY_BYTES];
    uint32_t n_tables;
};

/* Initialize *out_rows with the counts before the batch. NO_MEMORY */
hps_status update_rows_make(const struct hps_version *version, const struct update_plan *plan,
                            struct update_rows *out_rows) HPS_MUST_CHECK;
/* Count a write that adds n keys to its table or, if it is a delete, removes n keys. */
void update_rows_note(struct update_rows *rows, const struct hps_write *write, uint64_t n);
/* Estimate how many keys each write of the plan adds or removes, and add the numbers to *rows.
 * Reads a sample of the keys from the version's tiers. NO_MEMORY */
hps_status update_rows_sample(const struct hps_version *version, const struct update_plan *plan,
                              struct update_rows *rows) HPS_MUST_CHECK;
/* Publish the counts of an applied batch. */
void update_rows_publish(struct hps_updates *updates, const struct update_rows *rows);
void update_rows_free(struct update_rows *rows); /* may be zeroed */

/* ---- state.c: sequence and positions, stored and published ----------------------------------- */

/* The records that the durable store writes together with the rows of a batch. */
struct update_records {
    struct hps_record *records; /* [n] positions, row counts of tables, the sequence */
    uint32_t n;
    struct update_position *positions; /* list, in the order of the batch */
    uint64_t sequence;                 /* the sequence after the batch */
};

/* Make the records of a batch. They point into *out_records and *rows, which must not move.
 * INVALID: the key of a position is too long; NO_MEMORY. */
hps_status update_records_make(const struct hps_version *version,
                               const struct hps_update_batch *batch, struct update_rows *rows,
                               struct update_records *out_records, struct hps_error *err)
    HPS_MUST_CHECK;
/* Publish the positions and the sequence of the batch. */
void update_records_publish(struct hps_updates *updates, struct update_records *records);
void update_records_free(struct update_records *records); /* may be zeroed */

#endif
