/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of models and versions in the persistent store. The caller holds the catalog's
 * switch_lock, or no other thread uses the catalog yet. The functions with `unused` in their name
 * do not need the lock.
 */
#ifndef HPS_SERVER_LOAD_RECORDS_H
#define HPS_SERVER_LOAD_RECORDS_H

#include "cache/version/version.h"
#include "server/load/table_order.h"

/* The record of a model. Versions have their own records. Pointers are borrowed. */
struct hps_model_record {
    const char *model;
    int64_t active;            /* number of the active version; 0: none */
    int64_t previous;          /* version that rollback activates; 0: none */
    uint64_t n_switches;       /* number of activations */
    const char *const *tables; /* [n_tables] in the model's order */
    uint32_t n_tables;
    const int64_t *past; /* [n_past] versions that are or have been active, latest first */
    uint32_t n_past;
};

/* All calls with `put` or `delete` in their name return after the change is on disk, and may block.
 * `store` is the persistent store. */
hps_status hps_records_put_version(struct hps_store *store, const struct hps_version *version,
                                   struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_version(struct hps_store *store, const char *model, int64_t number,
                                      struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_put_model(struct hps_store *store, const struct hps_model_record *record,
                                 struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_model(struct hps_store *store, const char *model,
                                    struct hps_error *err) HPS_MUST_CHECK;

/* Record that a shared store may have rows of an unpublished version, which is being loaded or
 * unloaded. If the process ends in that time, the record lets a later process delete the rows.
 * Delete the record when the rows are deleted, or when the version is published. */
hps_status hps_records_put_unused(struct hps_store *store, const struct hps_version *version,
                                  struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_unused(struct hps_store *store, const struct hps_version *version,
                                     struct hps_error *err) HPS_MUST_CHECK;

enum { HPS_UNUSED_MAX = 16 };

struct hps_unused_list {
    struct hps_version *versions[HPS_UNUSED_MAX]; /* [n] versions that have no tiers */
    uint32_t n;
};

/* Read up to HPS_UNUSED_MAX records of hps_records_put_unused; unreadable records are skipped. The
 * caller frees the versions with hps_version_free, also after an error. */
hps_status hps_records_read_unused(struct hps_store *store, struct hps_unused_list *out_list,
                                   struct hps_error *err) HPS_MUST_CHECK;

struct hps_records_reader {
    void *ctx;
    /* Takes `version`, also on failure. The version has no tiers yet. */
    hps_status (*version)(void *ctx, struct hps_version *version, struct hps_error *err);
    /* `record` is valid during the call. If an earlier build wrote it, it has no tables and no past
     * versions. */
    hps_status (*model)(void *ctx, const struct hps_model_record *record);
};

/* Call reader->version for every record of a version, and then reader->model for every record of a
 * model. If a callback returns an error, the scan ends and returns this error.
 * error   DATA_LOSS: a record cannot be read; the text has its key; errors of the store */
hps_status hps_records_read(struct hps_store *store, const struct hps_records_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
