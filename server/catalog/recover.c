/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery at a start. Versions in the persistent store are served as before. Remains of other
 * versions after a crash are removed, and memory is filled in the background. Runs on the thread
 * that opens the catalog; the loader thread fills memory.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/catalog/internal.h"
#include "server/load/records.h"

/* ---- versions, and remains of others --------------------------------------------------------- */

static hps_status adopt_version(void *ctx, struct hps_version *version, struct hps_error *err)
{
    struct hps_catalog *catalog = ctx;
    struct catalog_model *model = catalog_model(catalog, version->model, true);
    if (model == NULL) {
        hps_version_free(version);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    if (catalog_entry_add(catalog, model, version, ENTRY_LOADING) == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    return HPS_OK;
}

struct orphans {
    struct hps_catalog *catalog;
    struct hps_error *err;
    struct orphan {
        struct orphan *next;
        char model[128];
        int64_t version;
    } * list;
};

static hps_status find_orphan(void *ctx, const char *name, int64_t number)
{
    struct orphans *orphans = ctx;
    struct catalog_model *model = catalog_model(orphans->catalog, name, false);
    if (model != NULL && catalog_entry(model, number) != NULL) {
        return HPS_OK;
    }
    struct orphan *orphan = hps_calloc(1, sizeof(*orphan));
    if (orphan == NULL) {
        return hps_error_set(orphans->err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    snprintf(orphan->model, sizeof(orphan->model), "%s", name);
    orphan->version = number;
    orphan->next = orphans->list;
    orphans->list = orphan;
    return HPS_OK;
}

static void drop_orphan(struct hps_store *store, const struct orphan *orphan)
{
    struct hps_error err = {0};
    struct hps_space *space = NULL;
    const struct hps_space_id id = {orphan->model, orphan->version, NULL, 0, 0};
    hps_status status = store->ops->space_open(store, &id, &space, &err);
    if (status == HPS_OK) {
        status = store->ops->space_drop(space, &err);
    }
    if (status == HPS_OK) {
        HPS_LOG(INFO, "catalog",
                "unfinished version removed: an earlier run ended while loading or unloading it",
                HPS_STR("model", orphan->model), HPS_I64("version", orphan->version));
    } else {
        HPS_LOG(WARN, "catalog",
                "unfinished version not removed: its rows use disk space until the next start",
                HPS_STR("model", orphan->model), HPS_I64("version", orphan->version),
                HPS_STR("error", err.text));
    }
}

/* Spaces that no record names are left from a load or an unload that a crash ended. If one cannot
 * be removed, it only takes disk space; the complete versions are served. */
static hps_status drop_orphans(struct hps_catalog *catalog, struct hps_error *err)
{
    struct hps_store *store = catalog_durable(catalog);
    HPS_ASSERT(store != NULL);
    struct orphans orphans = {catalog, err, NULL};
    hps_status status = store->ops->durable->space_list(store, find_orphan, &orphans, err);
    while (orphans.list != NULL) {
        struct orphan *orphan = orphans.list;
        orphans.list = orphan->next;
        if (status == HPS_OK) {
            drop_orphan(store, orphan);
        }
        hps_free(orphan);
    }
    return status;
}

static hps_status open_spaces(struct hps_catalog *catalog, struct catalog_entry *entry,
                              struct hps_error *err)
{
    struct hps_version *version = entry->version;
    HPS_ASSERT(entry->state == ENTRY_LOADING && version->n_tiers == 0);
    hps_status status = hps_load_open_spaces(&catalog->options.env, version, err);
    if (status != HPS_OK) {
        return status;
    }
    catalog_entry_spaces(entry);
    catalog_gpu_open(catalog, entry);
    catalog_version_metrics(catalog, version);
    hps_warmup_attach(catalog->warmup, version);
    if (version->label[0] != '\0' && !hps_label_valid(version->label)) {
        HPS_LOG(WARN, "catalog",
                "label not usable everywhere: KServe reads digits as a number, and other labels "
                "need escaping in a path; use the number of the version, or load it again with "
                "another --label",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("label", version->label));
    }
    status = hps_update_open(version, err);
    if (status == HPS_OK) {
        status = hps_updater_place(version, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    status = hps_models_add(catalog->options.models, version);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the model set");
    }
    entry->state = ENTRY_RESIDENT;
    hps_updater_add(catalog->options.updater, version, entry->model->n_switches);
    return HPS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { REFILL_ROUNDS = 3 };

/* Round 0: hot keys and whole caches of the active version. Round 1: its other rows. Round 2: the
 * other versions. */
static void refill_model(struct hps_catalog *catalog, struct catalog_model *model, int round)
{
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        bool active = entry->version->number == model->active;
        if (entry->state != ENTRY_RESIDENT) {
            continue;
        }
        if (active && round == 0) {
            catalog_warm_behind(catalog, catalog->loader, entry->version);
        } else if (round == (active ? 1 : 2) && !atomic_load(&entry->version->host_complete)) {
            catalog_warm_refill(catalog, catalog->loader, entry->version);
        }
        if (!active && round == 2) {
            catalog_warm_whole(catalog, catalog->loader, entry->version);
        }
    }
}

/* Queue the refills of all models, round by round. Models that await their next version are left
 * out. */
static void start_refills(struct hps_catalog *catalog)
{
    for (int round = 0; round < REFILL_ROUNDS; round++) {
        for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
            if (!model->awaits) { /* it would take memory of the next version */
                refill_model(catalog, model, round);
            }
        }
    }
}

void catalog_refill_model(struct hps_catalog *catalog, struct catalog_model *model)
{
    for (int round = 0; round < REFILL_ROUNDS; round++) {
        refill_model(catalog, model, round);
    }
}

/* ---- models ---------------------------------------------------------------------------------- */

/* A model with versions must have an active one. The first load writes the version's record before
 * the model's record, and a crash may come between the two. */
static void settle_active(struct hps_catalog *catalog, struct catalog_model *model)
{
    struct hps_error err;
    if (catalog_entry(model, model->previous) == NULL) {
        model->record_outdated = model->record_outdated || model->previous != 0;
        model->previous = 0; /* unloaded after the record was written */
    }
    if (catalog_entry(model, model->active) != NULL) {
        return;
    }
    model->active = 0;
    for (const struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        model->active = entry->version->number;
    }
    if (model->active == 0) {
        return;
    }
    model->previous = model->previous == model->active ? 0 : model->previous;
    if (model->n_switches == 0) {
        /* its record is lost: use a number above any earlier one */
        model->n_switches = hps_clock_wall_ms();
    }
    HPS_LOG(WARN, "catalog",
            "newest version activated: the version recorded as active does not exist",
            HPS_STR("model", model->name), HPS_I64("version", model->active));
    catalog_note_active(model, catalog_entry(model, model->active));
    const struct catalog_model_change change = {
        .active = model->active, .previous = model->previous, .n_switches = model->n_switches};
    if (catalog_put_model(catalog, model, &change, &err) != HPS_OK) {
        HPS_LOG(WARN, "catalog",
                "active version not recorded: its record could not be written; the next switch "
                "writes it",
                HPS_STR("model", model->name), HPS_STR("error", err.text));
    }
}

/* After a crash such models have a record and no version. */
static void forget_empty_models(struct hps_catalog *catalog)
{
    for (struct catalog_model *model = catalog->models, *next; model != NULL; model = next) {
        next = model->next;
        if (model->entries == NULL && model->config == NULL) {
            catalog_model_free(catalog, model);
        }
    }
}

hps_status catalog_recover(struct hps_catalog *catalog, struct hps_error *err)
{
    struct hps_store *durable = catalog_durable(catalog);
    const struct hps_records_reader reader = {catalog, adopt_version, catalog_adopt_model};
    hps_status status = hps_records_read(durable, &reader, err);
    if (status == HPS_OK) {
        status = drop_orphans(catalog, err);
    }
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        if (status == HPS_OK && (catalog_settle_order(model) != HPS_OK ||
                                 catalog_tell_order(catalog, model) != HPS_OK)) {
            status = hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
        }
        for (struct catalog_entry *entry = model->entries; status == HPS_OK && entry != NULL;
             entry = entry->next) {
            status = open_spaces(catalog, entry, err);
        }
        if (status == HPS_OK) {
            settle_active(catalog, model);
            status = catalog_repair_model(catalog, model, err);
        }
        if (status == HPS_OK && catalog_entry(model, model->active) != NULL) {
            status = hps_models_activate(catalog->options.models, model->name, model->active);
            catalog_share_memory(model);
            catalog_gpu_active(catalog_entry(model, model->active), true);
            hps_updater_activated(catalog->options.updater,
                                  catalog_entry(model, model->active)->version, model->n_switches);
            catalog_show_active(catalog, model);
            catalog_check_files(catalog, model);
        }
    }
    if (status == HPS_OK) {
        forget_empty_models(catalog);
        hps_warmup_read(catalog->warmup);
        start_refills(catalog);
    }
    return status;
}
