/* SPDX-License-Identifier: Apache-2.0
 *
 * The database: creating it, checking that it belongs to hpsd and has a format that this build
 * reads, opening it with all its families, and checking its file sizes. At a start: on
 * rocksdb-open, while the thread that opens the store waits.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

#define CATALOG        "catalog"
#define DEFAULT_FAMILY "default"

/* ---- creating the database ------------------------------------------------------------------- */

/* Create the database under another name, then rename it. So a database without a format record
 * never has the final name, even after a crash. */
static hps_status database_create(struct hps_rocksdb *store, const char *dir, struct hps_error *err)
{
    char *fresh = hps_rocksdb_dir_join(dir, "hpsd.new");
    if (fresh == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    char *text = NULL;
    rocksdb_t *db = NULL;
    rocksdb_column_family_handle_t *catalog = NULL;
    char format[16];
    int format_size = snprintf(format, sizeof(format), "%d", HPS_ROCKSDB_FORMAT_FIRST);
    hps_status status = hps_rocksdb_dir_remove_tree(fresh, err);
    if (status != HPS_OK) {
        goto done;
    }
    rocksdb_options_set_create_if_missing(store->options, 1);
    db = rocksdb_open(store->options, fresh, &text);
    rocksdb_options_set_create_if_missing(store->options, 0);
    if (text == NULL) {
        catalog = rocksdb_create_column_family(db, store->options, CATALOG, &text);
    }
    if (text == NULL) {
        rocksdb_column_family_handle_destroy(catalog);
        rocksdb_put(db, store->write_synced, HPS_ROCKSDB_FORMAT_KEY, strlen(HPS_ROCKSDB_FORMAT_KEY),
                    format, (size_t)format_size, &text);
    }
    if (db != NULL) {
        rocksdb_close(db);
    }
    if (text != NULL) {
        status = hps_rocksdb_fail_text(text, err, "cannot create the database");
    } else if (rename(fresh, store->dir.path) != 0) {
        status = hps_rocksdb_dir_fail(err, "cannot create", store->dir.path);
    } else {
        atomic_store(&store->format, HPS_ROCKSDB_FORMAT_FIRST);
        status = hps_rocksdb_dir_sync(dir, err);
    }
done:
    hps_free(fresh);
    return status;
}

/* ---- checking that it is hpsd's -------------------------------------------------------------- */

static hps_status format_check(struct hps_rocksdb *store, const char *value, size_t size,
                               struct hps_error *err)
{
    uint64_t format = 0;
    bool number = size > 0 && size < 10;
    for (size_t i = 0; number && i < size; i++) {
        number = value[i] >= '0' && value[i] <= '9';
        format = format * 10 + (uint64_t)(value[i] - '0');
    }
    if (!number || format == 0) {
        return hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s: unreadable format record",
                             store->dir.path);
    }
    if (format > HPS_ROCKSDB_FORMAT) {
        return hps_error_set(err, HPS_NEWER_FORMAT,
                             "rocksdb: %s has format %" PRIu64 ", this build reads up to %d: start "
                             "the build that wrote it, or a later one",
                             store->dir.path, format, HPS_ROCKSDB_FORMAT);
    }
    atomic_store(&store->format, format);
    return HPS_OK;
}

/* Read the format record without changing anything in the directory. */
static hps_status database_check(struct hps_rocksdb *store, struct hps_error *err)
{
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_db_log_dir(options, HPS_ROCKSDB_NO_LOG_DIR);
    char *text = NULL;
    rocksdb_t *db = rocksdb_open_for_read_only(options, store->dir.path, 0, &text);
    rocksdb_options_destroy(options);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot open the database");
    }
    size_t size = 0;
    char *value = rocksdb_get(db, store->read, HPS_ROCKSDB_FORMAT_KEY,
                              strlen(HPS_ROCKSDB_FORMAT_KEY), &size, &text);
    hps_status status;
    if (text != NULL) {
        status = hps_rocksdb_fail_text(text, err, "cannot read the format record");
    } else if (value == NULL) {
        status = hps_error_set(
            err, HPS_PRECONDITION,
            "rocksdb: %s is not a database of hpsd (no %s record): name another persistent_db.path",
            store->dir.path, HPS_ROCKSDB_FORMAT_KEY);
    } else {
        status = format_check(store, value, size, err);
    }
    rocksdb_free(value);
    rocksdb_close(db);
    return status;
}

/* Find the database, or create it in an empty place. */
static hps_status database_find(struct hps_rocksdb *store, const char *dir, struct hps_error *err)
{
    enum hps_rocksdb_dir_state state = HPS_ROCKSDB_DIR_OTHER;
    hps_status status = hps_rocksdb_dir_look(&store->dir, &state, err);
    if (status != HPS_OK) {
        return status;
    }
    if (state == HPS_ROCKSDB_DIR_OTHER) {
        return hps_error_set(
            err, HPS_PRECONDITION,
            "rocksdb: %s is not empty and has no database of hpsd: name another persistent_db.path",
            store->dir.path);
    }
    if (state != HPS_ROCKSDB_DIR_DATABASE && store->dir.read_only) {
        return hps_error_set(err, HPS_NOT_FOUND, "rocksdb: there is no database in %s",
                             store->dir.path);
    }
    if (state != HPS_ROCKSDB_DIR_DATABASE) {
        return database_create(store, dir, err);
    }
    status = database_check(store, err);
    if (status == HPS_OK && !store->dir.read_only) {
        status = hps_rocksdb_dir_remove_leftovers(&store->dir, err);
    }
    return status;
}

/* ---- opening the database -------------------------------------------------------------------- */

/* Store the handles. Takes ownership of all of them, also on failure. */
static hps_status families_take(struct hps_rocksdb *store, char **names, size_t n,
                                rocksdb_column_family_handle_t **handles, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], DEFAULT_FAMILY) == 0) {
            store->default_family = handles[i];
        } else if (strcmp(names[i], CATALOG) == 0) {
            store->catalog = handles[i];
        } else if (status == HPS_OK) {
            status = hps_rocksdb_family_add(store, names[i], handles[i], NULL, err);
        } else {
            rocksdb_column_family_handle_destroy(handles[i]);
        }
    }
    if (status == HPS_OK && store->catalog == NULL) {
        status = hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s has no catalog", store->dir.path);
    }
    return status;
}

static void families_mark(struct hps_rocksdb *store, const char *damaged)
{
    for (struct hps_rocksdb_family *f = store->families; f != NULL; f = f->next) {
        f->damaged = hps_rocksdb_damaged_names(damaged, f->name);
        if (f->damaged) {
            HPS_LOG(WARN, "rocksdb",
                    "version damaged: hpsd no longer compacts it; replace the version",
                    HPS_STR("family", f->name));
        }
    }
}

static hps_status database_open(struct hps_rocksdb *store, struct hps_error *err)
{
    char *text = NULL;
    size_t n = 0;
    HPS_ASSERT(store->db == NULL && store->families == NULL);
    char **names = rocksdb_list_column_families(store->options, store->dir.path, &n, &text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot list the column families");
    }
    hps_status status = HPS_OK;
    const rocksdb_options_t **options = hps_calloc(n, sizeof(*options));
    rocksdb_column_family_handle_t **handles = hps_calloc(n, sizeof(*handles));
    rocksdb_options_t *untouched = rocksdb_options_create_copy(store->options);
    char *damaged = NULL;
    rocksdb_options_set_disable_auto_compactions(untouched, 1);
    if (options == NULL || handles == NULL) {
        status = hps_rocksdb_fail_memory(err);
        goto done;
    }
    damaged = hps_rocksdb_damaged_read(store, err, &status);
    if (status != HPS_OK) {
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        options[i] = hps_rocksdb_damaged_names(damaged, names[i]) ? untouched : store->options;
    }
    if (store->dir.read_only) {
        store->db = rocksdb_open_for_read_only_column_families(store->options, store->dir.path,
                                                               (int)n, (const char *const *)names,
                                                               options, handles, 0, &text);
    } else {
        store->db =
            rocksdb_open_column_families(store->options, store->dir.path, (int)n,
                                         (const char *const *)names, options, handles, &text);
    }
    status = text != NULL ? hps_rocksdb_fail_text(text, err, "cannot open the database")
                          : families_take(store, names, n, handles, err);
    families_mark(store, damaged);
done:
    rocksdb_options_destroy(untouched);
    hps_free(damaged);
    hps_free((void *)options);
    hps_free(handles);
    rocksdb_list_column_families_destroy(names, n);
    return status;
}

static hps_status database_start(struct hps_rocksdb *store, const struct hps_rocksdb_options *given,
                                 struct hps_error *err)
{
    hps_status status = database_find(store, given->path, err);
    if (status == HPS_OK) {
        status = hps_rocksdb_mode_choose(store, given, err);
    }
    if (status == HPS_OK && !store->dir.read_only) { /* opening writes a little data */
        status = hps_rocksdb_dir_guard_vital(&store->dir, 0, err);
    }
    if (status == HPS_OK) {
        hps_rocksdb_options_set_mode(store);
        status = database_open(store, err);
    }
    return status;
}

struct opening {
    struct hps_rocksdb *store;
    const struct hps_rocksdb_options *given;
    struct hps_error *err;
    hps_status status;
};

/* RocksDB's threads for flushes and compactions inherit the scheduling of the thread that opens it,
 * so it opens on a background thread. */
static void *opening_run(void *arg)
{
    struct opening *opening = arg;
    hps_thread_background();
    hps_rocksdb_catch_exceptions();
    opening->status = database_start(opening->store, opening->given, opening->err);
    return NULL;
}

hps_status hps_rocksdb_database_start_behind(struct hps_rocksdb *store,
                                             const struct hps_rocksdb_options *given,
                                             struct hps_error *err)
{
    struct opening opening = {.store = store, .given = given, .err = err};
    struct hps_worker opener = {0};
    hps_status status = hps_worker_start(&opener, "rocksdb-open", 0, opening_run, &opening);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "rocksdb: no thread to open the database");
    }
    hps_worker_join(&opener);
    return opening.status;
}

/* ---- file sizes ------------------------------------------------------------------------------ */

/* Reading a mapped file that is shorter than recorded would end the process. So all sizes are
 * checked before the first lookup. */
hps_status hps_rocksdb_files_check(const struct hps_rocksdb *store, struct hps_error *err)
{
    HPS_ASSERT(store->db != NULL);
    const rocksdb_livefiles_t *files = rocksdb_livefiles(store->db);
    int n = rocksdb_livefiles_count(files);
    hps_status status = HPS_OK;
    for (int i = 0; i < n && status == HPS_OK; i++) {
        struct stat info = {0};
        const char *name = rocksdb_livefiles_name(files, i); /* begins with a slash */
        char *path = hps_rocksdb_dir_join(store->dir.path, name + 1);
        if (path == NULL) {
            status = hps_rocksdb_fail_memory(err);
        } else if (stat(path, &info) != 0) {
            /* It was compacted away since. A file that is really missing fails the open. */
            status = errno == ENOENT ? HPS_OK : hps_rocksdb_dir_fail(err, "cannot stat", path);
        } else if ((size_t)info.st_size != rocksdb_livefiles_size(files, i)) {
            status = hps_error_set(err, HPS_DATA_LOSS,
                                   "rocksdb: %s has %" PRId64 " bytes, the database records %zu",
                                   path, (int64_t)info.st_size, rocksdb_livefiles_size(files, i));
        }
        hps_free(path);
    }
    rocksdb_livefiles_destroy(files);
    return status;
}
