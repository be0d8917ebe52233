/* SPDX-License-Identifier: Apache-2.0
 *
 * What the persistent store keeps of models and versions: the records of the catalog. Used under
 * the catalog's switch_lock, or while nobody else uses the catalog.
 */
#ifndef HPS_SERVER_LOAD_RECORDS_H
#define HPS_SERVER_LOAD_RECORDS_H

#include "cache/version/version.h"
#include "server/load/table_order.h"

/* What is kept of a model beside its versions. Pointers are borrowed. */
struct hps_model_record {
    const char *model;
    int64_t active;            /* 0: none */
    int64_t previous;          /* what rollback goes back to; 0: nothing */
    uint64_t n_switches;       /* activations so far */
    const char *const *tables; /* [n_tables] in the model's order */
    uint32_t n_tables;
    const int64_t *past; /* [n_past] versions that have been active, the latest first */
    uint32_t n_past;
};

/* All write synced and may block. */
hps_status hps_records_put_version(struct hps_store *store, const struct hps_version *version,
                                   struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_version(struct hps_store *store, const char *model, int64_t number,
                                      struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_put_model(struct hps_store *store, const struct hps_model_record *record,
                                 struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_model(struct hps_store *store, const char *model,
                                    struct hps_error *err) HPS_MUST_CHECK;

/* The version is unloaded, or about to be, but its rows in a store that others share may still be
 * there. */
hps_status hps_records_put_unused(struct hps_store *store, const struct hps_version *version,
                                  struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_records_delete_unused(struct hps_store *store, const struct hps_version *version,
                                     struct hps_error *err) HPS_MUST_CHECK;

enum { HPS_UNUSED_MAX = 16 };

struct hps_unused_list {
    struct hps_version *versions[HPS_UNUSED_MAX]; /* [n] the caller's; without tiers */
    uint32_t n;
};

/* Some of them. Versions that were read before an error are in the list. */
hps_status hps_records_read_unused(struct hps_store *store, struct hps_unused_list *out_list,
                                   struct hps_error *err) HPS_MUST_CHECK;

struct hps_records_reader {
    void *ctx;
    /* takes `version` (no tiers yet), whatever it returns */
    hps_status (*version)(void *ctx, struct hps_version *version, struct hps_error *err);
    /* `record` of an earlier build has no tables and no past versions */
    hps_status (*model)(void *ctx, const struct hps_model_record *record);
};

/* Every record, versions before models. DATA_LOSS names the record that cannot be read. */
hps_status hps_records_read(struct hps_store *store, const struct hps_records_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
