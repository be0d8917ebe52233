/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of models and versions in the persistent store. Used under the catalog's switch_lock, or
 * before other threads use the catalog.
 */
#ifndef HPS_SERVER_LOAD_RECORDS_H
#define HPS_SERVER_LOAD_RECORDS_H

#include "cache/version/version.h"
#include "server/load/table_order.h"

/* The record of a model, without its versions. Pointers are borrowed. */
struct hps_model_record {
    const char *model;
    int64_t active;            /* 0: none */
    int64_t previous;          /* version that rollback activates; 0: none */
    uint64_t n_switches;       /* number of activations */
    const char *const *tables; /* [n_tables] in the model's order */
    uint32_t n_tables;
    const int64_t *past; /* [n_past] versions that have been active, latest first */
    uint32_t n_past;
};

/* The calls below write with a sync, and may block. */
hps_status hps_records_put_version(struct hps_store *store, const struct hps_version *version,
                                   struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_version(struct hps_store *store, const char *model, int64_t number,
                                      struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_put_model(struct hps_store *store, const struct hps_model_record *record,
                                 struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_model(struct hps_store *store, const char *model,
                                    struct hps_error *err) HPS_MUST_CHECK;

/* Record that a shared store may still have rows of a version that is unloaded, or about to be.
 * Delete the record after the rows. */
hps_status hps_records_put_unused(struct hps_store *store, const struct hps_version *version,
                                  struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_unused(struct hps_store *store, const struct hps_version *version,
                                     struct hps_error *err) HPS_MUST_CHECK;

enum { HPS_UNUSED_MAX = 16 };

struct hps_unused_list {
    struct hps_version *versions[HPS_UNUSED_MAX]; /* [n] owned by the caller; without tiers */
    uint32_t n;
};

/* Read up to HPS_UNUSED_MAX records. After an error the list has the versions read before it. */
hps_status hps_records_read_unused(struct hps_store *store, struct hps_unused_list *out_list,
                                   struct hps_error *err) HPS_MUST_CHECK;

struct hps_records_reader {
    void *ctx;
    /* takes `version`, which has no tiers yet, also on failure */
    hps_status (*version)(void *ctx, struct hps_version *version, struct hps_error *err);
    /* a record of an earlier build has no tables and no past versions */
    hps_status (*model)(void *ctx, const struct hps_model_record *record);
};

/* Read every record, versions before models. DATA_LOSS names the unreadable record. */
hps_status hps_records_read(struct hps_store *store, const struct hps_records_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
