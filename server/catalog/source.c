/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files a load at run time may read, and how they are opened. On the thread that requests the
 * load.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/heap.h"
#include "server/catalog/internal.h"

/* Copies the roots, so that no lock is held during file system calls. */
static hps_status copy_roots(struct hps_catalog *catalog, struct hps_strings *out_roots,
                             struct hps_error *err)
{
    hps_lock_acquire(&catalog->lock);
    hps_status status = hps_strings_copy(&catalog->model_roots, out_roots);
    hps_lock_release(&catalog->lock);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "no memory for server.model_roots");
}

/* Resolve a file or directory. After links are followed it must be below a root. what: its name in
 * messages. */
static hps_status check_path(const struct hps_strings *names, const struct hps_roots *roots,
                             const char *what, const char *path, char out_resolved[PATH_MAX],
                             struct hps_error *err)
{
    hps_status status = hps_roots_resolve(roots, path, out_resolved, err);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    if (status != HPS_PERMISSION) {
        return hps_error_set(err, HPS_NOT_FOUND, "%s \"%s\" does not exist", what, path);
    }
    const char *first = names->n > 0 ? names->items[0] : "";
    char absolute[PATH_MAX]; /* a root may be relative to the directory in which hpsd was started */
    return hps_error_set(
        err, HPS_PERMISSION,
        "%s \"%s\" is not below any of server.model_roots (%zu; first \"%s\"), or hpsd may not "
        "read it; put it below one of them, or add its parent to server.model_roots and reload "
        "hpsd (SIGHUP)",
        what, path, names->n, realpath(first, absolute) != NULL ? absolute : first);
}

/* Check the files of a table; `path` may be the common prefix of a pair of files. File names are
 * not resolved, because the other files are found next to them. */
static hps_status check_table(const struct hps_strings *names, const struct hps_roots *roots,
                              const struct hps_source_named *table, char out_path[PATH_MAX],
                              struct hps_error *err)
{
    char resolved[PATH_MAX], file[PATH_MAX];
    struct stat info;
    size_t n_file = hps_safetensors_file_size(table->path);
    snprintf(file, sizeof(file), "%.*s", n_file < PATH_MAX ? (int)n_file : 0, table->path);
    hps_status status = check_path(names, roots, "path", file, resolved, err);
    if (status == HPS_NOT_FOUND) {
        char rows[PATH_MAX];
        int n = snprintf(rows, sizeof(rows), "%s.rows.npy", table->path);
        if (n > 0 && n < PATH_MAX && lstat(rows, &info) == 0) {
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
    if (request->n_tables <= HPS_MODEL_TABLES_MAX) { /* otherwise the open reports it */
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
    const struct hps_config_model *model = request->entry;
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
