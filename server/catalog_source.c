/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files a load at run time may read, and the source that they make. On the thread of whoever
 * asks for the load.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "server/catalog_internal.h"

/* Is `path` one of the roots or below it? Both resolved, so that no link leads out. */
static bool below_root(const char *path, const char *root)
{
    char resolved[PATH_MAX];
    if (realpath(root, resolved) == NULL) {
        return false;
    }
    size_t size = strlen(resolved);
    return strncmp(path, resolved, size) == 0 &&
           (path[size] == '\0' || path[size] == '/' || strcmp(resolved, "/") == 0);
}

/* A file or directory that must be below one of the roots, whatever links lead there. `what` it is,
 * for messages. */
static hps_status check_path(const struct hps_strings *roots, const char *what, const char *path,
                             char out_resolved[PATH_MAX], struct hps_error *err)
{
    bool allowed = false;
    bool there = realpath(path, out_resolved) != NULL;
    if (!there) {
        snprintf(out_resolved, PATH_MAX, "%s", path);
    }
    for (size_t i = 0; i < roots->n && !allowed; i++) {
        allowed = below_root(out_resolved, roots->items[i]);
    }
    if (!there) {
        return hps_error_set(err, HPS_NOT_FOUND, "%s \"%s\" is not there, or hpsd may not see it",
                             what, path);
    }
    if (!allowed) {
        return hps_error_set(
            err, HPS_PERMISSION,
            "%s \"%s\" is not below any of server.model_roots (%zu; first \"%s\"); put it below "
            "one of them, or add its parent to server.model_roots and reload hpsd (SIGHUP)",
            what, path, roots->n, roots->n > 0 ? roots->items[0] : "");
    }
    return HPS_OK;
}

/* The files of a table by the path that the request has for them: of a pair also what both have in
 * common. Their names stay as they are, as other files stand beside them. */
static hps_status check_table(const struct hps_strings *roots, const struct hps_source_named *table,
                              char out_path[PATH_MAX], struct hps_error *err)
{
    char resolved[PATH_MAX];
    hps_status status = check_path(roots, "path", table->path, resolved, err);
    if (status == HPS_NOT_FOUND) {
        char rows[PATH_MAX];
        int n = snprintf(rows, sizeof(rows), "%s.rows.npy", table->path);
        if (n > 0 && n < PATH_MAX && realpath(rows, resolved) != NULL) {
            status = check_path(roots, "path", rows, resolved, err);
        }
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%.130s\"", table->name);
    }
    hps_source_canonical(table->path, out_path);
    return HPS_OK;
}

static hps_status open_tables(const struct hps_strings *roots,
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
            tables[i] = (struct hps_source_named){request->tables[i].name, paths[i]};
            status = check_table(roots, &request->tables[i], paths[i], err);
        }
    }
    if (status == HPS_OK) {
        status = hps_source_open_tables(tables, request->n_tables, model, out_source, err);
    }
    hps_free(paths);
    hps_free(tables);
    return status;
}

hps_status catalog_source_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct hps_source *out_source, struct hps_error *err)
{
    const struct hps_config_model *model =
        hps_config_model_find(catalog->options.config, request->model);
    char resolved[PATH_MAX];
    struct hps_strings roots; /* a copy: no lock while the file system is asked */
    pthread_mutex_lock(&catalog->lock);
    hps_status status = hps_strings_copy(&catalog->model_roots, &roots);
    pthread_mutex_unlock(&catalog->lock);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for server.model_roots");
    }
    if (request->n_tables > 0) {
        status = open_tables(&roots, request, model, out_source, err);
    } else {
        status = check_path(&roots, "directory", request->directory, resolved, err);
        if (status == HPS_OK) {
            status = hps_source_open_dir(resolved, model, out_source, err);
        }
    }
    hps_strings_fini(&roots);
    return status;
}
