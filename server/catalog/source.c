/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files a load at run time may read, and the source that they make: on the thread of whoever
 * asks for the load. And whether what is configured is what is served.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/catalog/internal.h"
#include "server/update/position.h"

/* A copy: no lock while the file system is asked. */
static hps_status copy_roots(struct hps_catalog *catalog, struct hps_strings *out_roots,
                             struct hps_error *err)
{
    hps_lock_acquire(&catalog->lock);
    hps_status status = hps_strings_copy(&catalog->model_roots, out_roots);
    hps_lock_release(&catalog->lock);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "no memory for server.model_roots");
}

/* A file or directory that must be below one of the roots, whatever links lead there. `what` it is,
 * for messages. */
static hps_status check_path(const struct hps_strings *names, const struct hps_roots *roots,
                             const char *what, const char *path, char out_resolved[PATH_MAX],
                             struct hps_error *err)
{
    hps_status status = hps_roots_resolve(roots, path, out_resolved, err);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    if (status != HPS_PERMISSION || realpath(path, out_resolved) == NULL) {
        return hps_error_set(err, HPS_NOT_FOUND,
                             "%s \"%s\" does not exist, or hpsd may not read it", what, path);
    }
    return hps_error_set(
        err, HPS_PERMISSION,
        "%s \"%s\" is not below any of server.model_roots (%zu; first \"%s\"); put it below "
        "one of them, or add its parent to server.model_roots and reload hpsd (SIGHUP)",
        what, path, names->n, names->n > 0 ? names->items[0] : "");
}

/* The files of a table by the path that the request has for them: of a pair also what both have in
 * common. Their names stay as they are, as other files stand beside them. */
static hps_status check_table(const struct hps_strings *names, const struct hps_roots *roots,
                              const struct hps_source_named *table, char out_path[PATH_MAX],
                              struct hps_error *err)
{
    char resolved[PATH_MAX];
    hps_status status = check_path(names, roots, "path", table->path, resolved, err);
    if (status == HPS_NOT_FOUND) {
        char rows[PATH_MAX];
        int n = snprintf(rows, sizeof(rows), "%s.rows.npy", table->path);
        if (n > 0 && n < PATH_MAX && realpath(rows, resolved) != NULL) {
            status = check_path(names, roots, "path", rows, resolved, err);
        }
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%.130s\"", table->name);
    }
    hps_source_canonical(table->path, out_path);
    return HPS_OK;
}

/* takes `roots` */
static hps_status open_tables(const struct hps_strings *names, struct hps_roots *roots,
                              const struct hps_load_request *request,
                              const struct hps_config_model *model, struct hps_source *out_source,
                              struct hps_error *err)
{
    struct hps_source_named *tables = NULL;
    char(*paths)[PATH_MAX] = NULL;
    hps_status status = HPS_OK;
    if (request->n_tables <= HPS_MODEL_TABLES_MAX) { /* else the open says so */
        tables = hps_calloc(request->n_tables, sizeof(*tables));
        paths = hps_calloc(request->n_tables, sizeof(*paths));
        if (tables == NULL || paths == NULL) {
            status =
                hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", request->n_tables);
        }
        for (size_t i = 0; status == HPS_OK && i < request->n_tables; i++) {
            tables[i] = request->tables[i];
            tables[i].path = paths[i];
            status = check_table(names, roots, &request->tables[i], paths[i], err);
        }
    }
    if (status == HPS_OK) {
        status = hps_source_open_tables(roots, tables, request->n_tables, model, out_source, err);
    } else {
        hps_roots_close(roots);
    }
    hps_free(paths);
    hps_free(tables);
    return status;
}

/* takes `roots` */
static hps_status open_dir(const struct hps_strings *names, struct hps_roots *roots,
                           const char *directory, const struct hps_config_model *model,
                           struct hps_source *out_source, struct hps_error *err)
{
    char resolved[PATH_MAX];
    hps_status status = check_path(names, roots, "directory", directory, resolved, err);
    if (status != HPS_OK) {
        hps_roots_close(roots);
        return status;
    }
    return hps_source_open_dir(roots, resolved, model, out_source, err);
}

hps_status catalog_source_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct hps_source *out_source, struct hps_error *err)
{
    const struct hps_config_model *model =
        hps_config_model_find(catalog->options.config, request->model);
    struct hps_strings names;
    struct hps_roots *roots = NULL;
    hps_status status = copy_roots(catalog, &names, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_roots_open("server.model_roots", (const char *const *)names.items, names.n, &roots,
                            err);
    if (status == HPS_OK) {
        status = request->n_tables > 0
                     ? open_tables(&names, roots, request, model, out_source, err)
                     : open_dir(&names, roots, request->directory, model, out_source, err);
        if (status == HPS_OK && request->row_dtype.given) {
            hps_source_set_row_dtype(out_source, request->row_dtype.dtype);
        }
    }
    hps_strings_fini(&names);
    return status;
}

hps_status catalog_source_open_config(struct hps_catalog *catalog,
                                      const struct hps_config_model *config,
                                      struct hps_source *out_source, struct hps_error *err)
{
    struct hps_strings names;
    hps_status status = copy_roots(catalog, &names, err);
    if (status == HPS_OK) {
        status = hps_source_open_config(&names, config, out_source, err);
        hps_strings_fini(&names);
    }
    return status;
}

/* ---- what is configured, and what is served -------------------------------------------------- */

/* Has a table rows of another type than models[] wants of the same files? Files that cannot be read
 * tell nothing. */
static bool rows_differ(const struct hps_catalog *catalog, const struct hps_source *source,
                        const struct hps_version *version)
{
    struct hps_row_desc desc;
    struct hps_error err;
    for (uint32_t i = 0; i < source->n_tables; i++) {
        const struct hps_source_table *table = &source->tables[i];
        for (uint32_t k = 0; k < version->n_tables; k++) {
            if (strcmp(version->tables[k].name, table->files.name) == 0 &&
                hps_load_describe(&catalog->options.env, table, &desc, &err) == HPS_OK &&
                desc.dtype != version->tables[k].dtype) {
                return true;
            }
        }
    }
    return false;
}

/* The command that loads what is configured. */
static void load_command(const struct hps_config *config, const struct catalog_model *model,
                         char out_command[2 * PATH_MAX])
{
    char file[PATH_MAX];
    bool found = realpath(config->file, file) != NULL;
    if (config->from_tables) {
        snprintf(out_command, 2 * PATH_MAX, "hpsctl load %s --table NAME=PATH --activate",
                 model->name);
    } else {
        snprintf(out_command, 2 * PATH_MAX, "hpsctl load %s --config %s --activate", model->name,
                 found ? file : config->file);
    }
}

static void log_drift(const struct hps_config *config, const struct catalog_model *model)
{
    char command[2 * PATH_MAX];
    load_command(config, model, command);
    HPS_LOG(WARN, "catalog",
            "configured files changed since they were loaded: the earlier rows are served; to load "
            "the files run command",
            HPS_STR("model", model->name), HPS_I64("version", model->active),
            HPS_STR("command", command));
}

static void log_row_dtype(const struct hps_config *config, const struct catalog_model *model)
{
    char command[2 * PATH_MAX];
    load_command(config, model, command);
    HPS_LOG(WARN, "catalog",
            "configured row_dtype not served: rows of another type were loaded from the same "
            "files; to load them anew run command",
            HPS_STR("model", model->name), HPS_I64("version", model->active),
            HPS_STR("command", command));
}

/* The store has the rows. With --table the files were to be served, whatever it has. */
static void log_unread(const struct hps_config *config, const struct catalog_model *model,
                       const struct hps_error *err)
{
    if (config->from_tables) {
        HPS_LOG(WARN, "catalog",
                "files of --table not served: a file cannot be read, and the rows of an earlier "
                "run are served; restore the file and restart hpsd",
                HPS_STR("model", model->name), HPS_I64("version", model->active),
                HPS_STR("error", err->text));
    }
}

/* ABORTED, which ends the search: a record of this partition was read. */
static hps_status find_read(void *ctx, const void *key, size_t key_size, const void *value,
                            size_t value_size)
{
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t partition;
    struct hps_position position;
    (void)ctx;
    if (!hps_position_key_parse(key, key_size, topic, &partition)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    return status == HPS_OK && position.last.known ? HPS_ABORTED : status;
}

/* By another configuration, that is: there are none with --table. They are in no file. */
static bool has_updates(struct hps_version *version)
{
    return hps_update_positions(version, find_read, NULL) != HPS_OK;
}

void catalog_check_files(const struct hps_catalog *catalog, struct catalog_model *model)
{
    const struct hps_config *config = catalog->options.config;
    const struct catalog_entry *entry = catalog_entry(model, model->active);
    struct hps_source source;
    struct hps_error err = {0};
    if (model->config == NULL || entry == NULL) {
        return;
    }
    if (hps_source_open_config(&catalog->model_roots, model->config, &source, &err) != HPS_OK) {
        log_unread(config, model, &err);
        return;
    }
    model->drift = !hps_source_has_print(&source, entry->version->fingerprint);
    bool other_rows =
        !model->drift && !config->from_tables && rows_differ(catalog, &source, entry->version);
    hps_source_close(&source);
    if (model->drift && config->from_tables && !has_updates(entry->version)) {
        model->awaits = true;
        HPS_LOG(
            INFO, "catalog",
            "files of --table changed since an earlier run: they are loaded as the next version",
            HPS_STR("model", model->name), HPS_I64("version", model->active));
    } else if (model->drift) {
        log_drift(config, model);
    } else if (other_rows) {
        model->drift = true;
        log_row_dtype(config, model);
    }
}

void catalog_await_end(struct hps_catalog *catalog, struct catalog_model *model)
{
    if (!model->awaits) {
        return;
    }
    model->awaits = false;
    catalog_refill_model(catalog, model); /* nothing was refilled as long as that was awaited */
    if (model->drift && !atomic_load(&catalog->closing)) {
        HPS_LOG(WARN, "catalog",
                "files of --table not served: their load failed, and the rows of an earlier run "
                "are served; fix the files and restart hpsd",
                HPS_STR("model", model->name), HPS_I64("version", model->active));
    }
}

int64_t catalog_find_print(struct hps_catalog *catalog, const char *name,
                           const struct hps_source *source)
{
    int64_t number = 0;
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    for (struct catalog_entry *entry = model == NULL ? NULL : model->entries; entry != NULL;
         entry = entry->next) {
        if (entry->state == ENTRY_RESIDENT &&
            hps_source_has_print(source, entry->version->fingerprint)) {
            number = entry->version->number;
        }
    }
    hps_lock_release(&catalog->lock);
    return number;
}
