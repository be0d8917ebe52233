/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads from models[]: the first version, awaited changed files, and loads on request. Loader and
 * admin threads.
 */
#include "server/catalog/internal.h"

int64_t catalog_configured_number(struct hps_catalog *catalog,
                                  const struct hps_config_model *config)
{
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, config->name, false);
    bool taken = model != NULL && catalog_entry(model, (int64_t)config->version) != NULL;
    hps_lock_release(&catalog->lock);
    return taken ? 0 : (int64_t)config->version;
}

/* Activate the version that has these files. */
static hps_status activate(struct hps_catalog *catalog, const char *name, int64_t number,
                           bool force, struct hps_error *err)
{
    struct hps_switched switched;
    hps_lock_acquire(&catalog->lock);
    const struct catalog_model *model = catalog_model(catalog, name, false);
    bool is_active = model != NULL && model->active == number;
    hps_lock_release(&catalog->lock);
    if (is_active) {
        return HPS_OK;
    }
    hps_status status = hps_catalog_activate(catalog, name, number, force, &switched, err);
    if (status == HPS_OK) {
        hps_version_diff_free(&switched.diff);
    }
    return status;
}

hps_status hps_catalog_load_configured(struct hps_catalog *catalog, const char *model,
                                       struct hps_load **out_load, struct hps_error *err)
{
    const struct hps_config_model *config = hps_config_model_find(catalog->options.config, model);
    struct hps_source source;
    if (config == NULL) {
        return hps_error_set(
            err, HPS_NOT_FOUND,
            "model \"%.130s\" is not in models[], so hpsd does not know its files; use hpsctl load",
            model);
    }
    hps_status status = catalog_define(catalog, config, err);
    if (status != HPS_OK) {
        return status;
    }
    int64_t same = catalog_find_defined(catalog, model);
    if (same != 0) {
        *out_load = NULL;
        return activate(catalog, model, same, false, err);
    }
    status = catalog_source_open_config(catalog, config, &source, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_load_request request = {.model = config->name,
                                             .version = catalog_configured_number(catalog, config),
                                             .label = config->label,
                                             .lineage = config->lineage,
                                             .activate = true};
    return catalog_load_begin(catalog, &request, &source, out_load, err);
}

hps_status catalog_load_config(struct hps_catalog *catalog, const struct hps_config_model *config,
                               bool awaited, struct hps_error *err)
{
    const struct hps_load_request request = {.model = config->name,
                                             .version = (int64_t)config->version,
                                             .label = config->label,
                                             .lineage = config->lineage,
                                             .activate = true,
                                             .only_first = !awaited,
                                             .force = awaited, /* there is no operator to confirm */
                                             .awaited = awaited};
    struct hps_source source;
    struct hps_load *load = NULL; /* NULL if nothing is loaded */
    hps_status status = catalog_define(catalog, config, err);
    int64_t same = status == HPS_OK && awaited ? catalog_find_defined(catalog, config->name) : 0;
    bool served = same != 0 && activate(catalog, config->name, same, true, err) == HPS_OK;
    if (status == HPS_OK && !served) {
        status = catalog_source_open_config(catalog, config, &source, err);
    }
    if (status == HPS_OK && !served) {
        status = catalog_load_begin(catalog, &request, &source, &load, err);
    }
    if (awaited && load == NULL) {
        hps_lock_acquire(&catalog->lock);
        catalog_await_end(catalog, catalog_model(catalog, config->name, false));
        hps_lock_release(&catalog->lock);
    }
    hps_load_unref(load);
    return status;
}
