/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store, and the only file that knows RocksDB. Calls block on disk, so they come
 * from worker threads; any number at a time.
 *
 * On disk: `<path>/hpsd` is the database, `<path>/hpsd.lock` keeps it to one process. The default
 * family holds one record, the format. "catalog" holds the records, `<model>@<version>` one
 * version: its keys are table id and key, both big-endian, so that key order is load order.
 *
 * RocksDB aborts the process when the disk is full under its write-ahead log, so every write looks
 * at the free space first and stops well before.
 */
#include "backends/rocksdb.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "backends/key_sort.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

#define MIB            (UINT64_C(1) << 20)
#define GIB            (UINT64_C(1) << 30)
#define FORMAT_KEY     "hpsd.format"
#define CATALOG        "catalog"
#define DEFAULT_FAMILY "default"
/* No directory can be made there, so RocksDB goes without its own log file. */
#define NO_LOG_DIR "/dev/null/none"

enum {
    KEY_BYTES = 12,   /* table u32, key u64 */
    ENTRY_BYTES = 24, /* key and the block format's own share of a row, rounded up */
    NAME_MAX_BYTES = 160,
    MODEL_MAX_BYTES = 120,
    PATH_MAX_BYTES = 3900, /* leaves room for names below it within PATH_MAX */
    SCAN_ROWS = 1024,
    BLOCK_BYTES = 4096, /* one disk read per row; 1 KB blocks measured no better */
    BATCH_KEYS_MAX = 1 << 16,
    FLOOR_BYTES = 64 << 10, /* catalog records may still be written at the free-space guard */
};

#define SST_BYTES          (256 * MIB)
#define WRITE_BUFFER_BYTES (256 * MIB)
#define WAL_BYTES          (256 * MIB)
#define CHECK_BYTES        (64 * MIB)
#define BATCH_BYTES        (16 * MIB)

struct family {
    char *name;
    rocksdb_column_family_handle_t *handle;
    bool open; /* there is a space handle of it */
    struct family *next;
};

struct rocks {
    struct hps_store base;
    char *path; /* of the database */
    int lock_fd;
    bool read_only;
    uint32_t batch_keys_max;
    uint64_t disk_free_min_bytes;
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_options_t *sst_options;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read;
    rocksdb_readoptions_t *read_scan;
    rocksdb_writeoptions_t *write;
    rocksdb_writeoptions_t *write_synced;
    rocksdb_ingestexternalfileoptions_t *ingest;
    rocksdb_envoptions_t *env_options;
    rocksdb_column_family_handle_t *default_family;
    rocksdb_column_family_handle_t *catalog;
    pthread_mutex_t lock; /* families and their flags */
    struct family *families;
};

struct rocks_space {
    struct hps_space base;
    struct family *family;
    bool loading; /* under the store's lock */
};

struct hps_store_load {
    struct rocks *store;
    struct rocks_space *space;
    rocksdb_sstfilewriter_t *writer; /* NULL between files */
    char *dir;
    char **files;
    size_t n_files;
    uint64_t file_bytes;
    uint64_t unchecked_bytes; /* written since the free space was looked at */
    bool any;                 /* a row was added: the two below hold the last one's place */
    uint32_t table;
    hps_key key;
};

/* ---- errors ---- */

static hps_status text_status(const char *text)
{
    if (strncmp(text, "Corruption", 10) == 0) {
        return HPS_DATA_LOSS;
    }
    if (strstr(text, "/LOCK") != NULL) {
        return HPS_BUSY;
    }
    if (strstr(text, "No space left") != NULL || strstr(text, "Space limit") != NULL) {
        return HPS_EXHAUSTED;
    }
    if (strstr(text, "imed out") != NULL) {
        return HPS_DEADLINE;
    }
    if (strncmp(text, "Invalid argument", 16) == 0 || strncmp(text, "Not implemented", 15) == 0) {
        return HPS_INTERNAL;
    }
    return HPS_IO;
}

/* takes `text`, which RocksDB allocated. */
static hps_status fail_text(char *text, struct hps_error *err, const char *what)
{
    hps_status status = hps_error_set(err, text_status(text), "rocksdb: %s: %s", what, text);
    rocksdb_free(text);
    return status;
}

/* As fail_text, for calls that have no hps_error to fill: the message goes to the log. */
static hps_status log_text(char *text, const char *what)
{
    hps_status status = text_status(text);
    if (status != HPS_DEADLINE) {
        HPS_LOG(ERROR, "rocksdb", what, HPS_STR("status", hps_status_text(status)),
                HPS_STR("error", text));
    }
    rocksdb_free(text);
    return status;
}

static hps_status fail_errno(struct hps_error *err, const char *what, const char *path)
{
    hps_status status = errno == ENOSPC ? HPS_EXHAUSTED : HPS_IO;
    return hps_error_set(err, status, "rocksdb: %s %s: %s", what, path, strerror(errno));
}

static hps_status fail_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: out of memory");
}

static hps_status fail_read_only(const struct rocks *store, struct hps_error *err)
{
    return hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is open read-only", store->path);
}

/* ---- files ---- */

/* owner: the caller's (hps_free). NULL: no memory. */
static char *path_join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = hps_alloc(size);
    if (path != NULL) {
        (void)snprintf(path, size, "%s/%s", dir, name);
    }
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static hps_status remove_tree(const char *path, struct hps_error *err)
{
    if (nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return fail_errno(err, "cannot remove", path);
    }
    return HPS_OK;
}

enum dir_state { DIR_ABSENT, DIR_EMPTY, DIR_DATABASE, DIR_OTHER };

static hps_status dir_look(const char *path, enum dir_state *out_state, struct hps_error *err)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        if (errno != ENOENT) {
            return fail_errno(err, "cannot open", path);
        }
        *out_state = DIR_ABSENT;
        return HPS_OK;
    }
    enum dir_state state = DIR_EMPTY;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strcmp(entry->d_name, "CURRENT") == 0) {
            state = DIR_DATABASE;
        } else if (state == DIR_EMPTY && strcmp(entry->d_name, ".") != 0 &&
                   strcmp(entry->d_name, "..") != 0) {
            state = DIR_OTHER;
        }
    }
    closedir(dir);
    *out_state = state;
    return HPS_OK;
}

/* Loads that a crash cut short. */
static hps_status remove_stale_loads(const char *path, struct hps_error *err)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return fail_errno(err, "cannot open", path);
    }
    hps_status status = HPS_OK;
    for (const struct dirent *entry = readdir(dir); entry != NULL && status == HPS_OK;
         entry = readdir(dir)) {
        if (strncmp(entry->d_name, "load-", 5) == 0) {
            char *load = path_join(path, entry->d_name);
            status = load != NULL ? remove_tree(load, err) : fail_memory(err);
            hps_free(load);
        }
    }
    closedir(dir);
    return status;
}

static hps_status sync_dir(const char *path, struct hps_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return fail_errno(err, "cannot open", path);
    }
    hps_status status = fsync(fd) == 0 ? HPS_OK : fail_errno(err, "cannot sync", path);
    close(fd);
    return status;
}

/* One process writes, or any number read. The kernel lets go of the lock when the process ends. */
static hps_status take_lock(struct rocks *store, const char *dir, struct hps_error *err)
{
    char *path = path_join(dir, "hpsd.lock");
    if (path == NULL) {
        return fail_memory(err);
    }
    hps_status status = HPS_OK;
    int flags = store->read_only ? O_RDONLY : O_RDWR | O_CREAT;
    int fd = open(path, flags | O_CLOEXEC, 0640);
    if (fd < 0 && !(store->read_only && errno == ENOENT)) {
        status = fail_errno(err, "cannot open", path);
    } else if (fd >= 0 && flock(fd, (store->read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        status =
            errno != EWOULDBLOCK
                ? fail_errno(err, "cannot lock", path)
                : hps_error_set(err, HPS_BUSY, "rocksdb: %s is taken by another process", path);
        close(fd);
        fd = -1;
    }
    store->lock_fd = fd;
    hps_free(path);
    return status;
}

/* ---- free space ---- */

/* Bytes that may be used before `reserve` is touched. */
static uint64_t free_above(const struct rocks *store, uint64_t reserve)
{
    struct statvfs fs;
    if (statvfs(store->path, &fs) != 0) {
        return 0;
    }
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return bytes > reserve ? bytes - reserve : 0;
}

static uint64_t rocks_bytes_free(struct hps_store *base)
{
    const struct rocks *store = (const struct rocks *)base;
    return free_above(store, store->disk_free_min_bytes);
}

static hps_status guard_space(struct rocks *store, uint64_t bytes, uint64_t reserve,
                              struct hps_error *err)
{
    uint64_t bytes_free = free_above(store, reserve);
    if (bytes > bytes_free) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "rocksdb: %s: %" PRIu64 " bytes needed, %" PRIu64
                             " free above the %" PRIu64 " kept (disk_free_min_bytes)",
                             store->path, bytes, bytes_free, reserve);
    }
    return HPS_OK;
}

/* For catalog records and families, which are small and must go on at the guard. */
static hps_status guard_small(struct rocks *store, uint64_t bytes, struct hps_error *err)
{
    uint64_t quarter = store->disk_free_min_bytes / 4;
    return guard_space(store, bytes + FLOOR_BYTES, quarter, err);
}

static hps_status disk_free_min(struct rocks *store, const char *dir, uint64_t configured,
                                struct hps_error *err)
{
    struct statvfs fs;
    if (statvfs(dir, &fs) != 0) {
        return fail_errno(err, "cannot read the free space of", dir);
    }
    uint64_t twentieth = (uint64_t)fs.f_blocks * fs.f_frsize / 20;
    uint64_t automatic = twentieth > 2 * GIB ? twentieth : 2 * GIB;
    store->disk_free_min_bytes = configured != 0 ? configured : automatic;
    return HPS_OK;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* ---- options ---- */

/* filter: only for files that flushes and compactions write. Most rows lie in ingested files at the
 * bottom, where a filter would cost memory for every row and only help keys that exist nowhere. */
static rocksdb_options_t *options_new(const struct rocks *store,
                                      const struct hps_rocksdb_options *given, bool filter)
{
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_size(table, BLOCK_BYTES);
    rocksdb_block_based_options_set_format_version(table, 5);
    if (store->cache != NULL) {
        rocksdb_block_based_options_set_block_cache(table, store->cache);
    } else {
        rocksdb_block_based_options_set_no_block_cache(table, 1);
    }
    if (filter) {
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom(10));
        rocksdb_options_set_optimize_filters_for_hits(options, 1);
    }
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);
    rocksdb_options_set_compression(options, rocksdb_no_compression); /* floats do not compress */
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_max_open_files(options, -1);
    rocksdb_options_set_max_background_jobs(options,
                                            given->n_threads > 2 ? (int)given->n_threads : 2);
    /* What is in memory is written out in the background, beside the free-space guard: keep it to a
     * part of what the guard holds back. */
    uint64_t buffers = clamp(store->disk_free_min_bytes / 8, MIB, WRITE_BUFFER_BYTES);
    rocksdb_options_set_db_write_buffer_size(options, (size_t)buffers);
    rocksdb_options_set_write_buffer_size(options, (size_t)(buffers / 4));
    rocksdb_options_set_target_file_size_base(options, buffers / 4);
    rocksdb_options_set_max_total_wal_size(options, clamp(buffers, MIB, WAL_BYTES));
    rocksdb_options_set_manifest_preallocation_size(options, 64 << 10);
    /* A torn tail is what a crash leaves; a hole in the middle is data loss and must be seen. */
    rocksdb_options_set_wal_recovery_mode(options,
                                          rocksdb_tolerate_corrupted_tail_records_recovery);
    rocksdb_options_set_info_log_level(options, 2 /* warnings */);
    rocksdb_options_set_keep_log_file_num(options, 4);
    rocksdb_options_set_max_log_file_size(options, 16 << 20);
    if (store->read_only) {
        rocksdb_options_set_db_log_dir(options, NO_LOG_DIR);
    }
    return options;
}

static void options_fill(struct rocks *store, const struct hps_rocksdb_options *given)
{
    if (given->block_cache_bytes != 0) {
        store->cache = rocksdb_cache_create_lru((size_t)given->block_cache_bytes);
    }
    store->options = options_new(store, given, true);
    store->sst_options = options_new(store, given, false);
    store->read = rocksdb_readoptions_create();
    store->read_scan = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(store->read_scan, 0);
    rocksdb_readoptions_set_readahead_size(store->read_scan, 2 * MIB);
    /* A batch that names a dropped family would otherwise poison the database, over restarts too.
     */
    store->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_ignore_missing_column_families(store->write, 1);
    store->write_synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->write_synced, 1);
    store->ingest = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(store->ingest, 1);
    store->env_options = rocksdb_envoptions_create();
}

static void options_free(struct rocks *store)
{
    if (store->options == NULL) {
        return;
    }
    rocksdb_envoptions_destroy(store->env_options);
    rocksdb_ingestexternalfileoptions_destroy(store->ingest);
    rocksdb_writeoptions_destroy(store->write_synced);
    rocksdb_writeoptions_destroy(store->write);
    rocksdb_readoptions_destroy(store->read_scan);
    rocksdb_readoptions_destroy(store->read);
    rocksdb_options_destroy(store->sst_options);
    rocksdb_options_destroy(store->options);
    if (store->cache != NULL) {
        rocksdb_cache_destroy(store->cache);
    }
}

/* ---- family names ---- */

static bool model_legal(const char *model, size_t size)
{
    if (size == 0 || size > MODEL_MAX_BYTES) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        char c = model[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-')) {
            return false;
        }
    }
    return true;
}

static hps_status family_name(const struct hps_space_id *id, char *out_name, struct hps_error *err)
{
    if (!model_legal(id->model, strlen(id->model)) || id->version < 0) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: cannot store model \"%s\" version %" PRId64
                             ": names are 1 to %d of a-z A-Z 0-9 _ -, versions not negative",
                             id->model, id->version, MODEL_MAX_BYTES);
    }
    (void)snprintf(out_name, NAME_MAX_BYTES, "%s@%" PRId64, id->model, id->version);
    return HPS_OK;
}

/* Split "<model>@<version>". out_model has room for MODEL_MAX_BYTES and a NUL. */
static bool family_parse(const char *name, char *out_model, int64_t *out_version)
{
    const char *at = strrchr(name, '@');
    if (at == NULL || !model_legal(name, (size_t)(at - name)) || at[1] < '0' || at[1] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    long long version = strtoll(at + 1, &end, 10);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    memcpy(out_model, name, (size_t)(at - name));
    out_model[at - name] = '\0';
    *out_version = version;
    return true;
}

/* ---- open ---- */

/* Make the database beside its place and move it there, so that one without a format record is
 * never ours, not even after a crash. */
static hps_status database_create(struct rocks *store, const char *dir, struct hps_error *err)
{
    char *fresh = path_join(dir, "hpsd.new");
    if (fresh == NULL) {
        return fail_memory(err);
    }
    char *text = NULL;
    rocksdb_t *db = NULL;
    rocksdb_column_family_handle_t *catalog = NULL;
    char format[16];
    int format_size = snprintf(format, sizeof(format), "%d", HPS_ROCKSDB_FORMAT);
    hps_status status = remove_tree(fresh, err);
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
        rocksdb_put(db, store->write_synced, FORMAT_KEY, strlen(FORMAT_KEY), format,
                    (size_t)format_size, &text);
    }
    if (db != NULL) {
        rocksdb_close(db);
    }
    if (text != NULL) {
        status = fail_text(text, err, "cannot create the database");
    } else if (rename(fresh, store->path) != 0) {
        status = fail_errno(err, "cannot create", store->path);
    } else {
        status = sync_dir(dir, err);
    }
done:
    hps_free(fresh);
    return status;
}

static hps_status format_check(const struct rocks *store, const char *value, size_t size,
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
                             store->path);
    }
    if (format > HPS_ROCKSDB_FORMAT) {
        return hps_error_set(err, HPS_NEWER_FORMAT,
                             "rocksdb: %s has format %" PRIu64 ", this build reads up to %d",
                             store->path, format, HPS_ROCKSDB_FORMAT);
    }
    return HPS_OK;
}

/* Read the format record without touching anything in the directory. */
static hps_status database_check(const struct rocks *store, struct hps_error *err)
{
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_db_log_dir(options, NO_LOG_DIR);
    char *text = NULL;
    rocksdb_t *db = rocksdb_open_for_read_only(options, store->path, 0, &text);
    rocksdb_options_destroy(options);
    if (text != NULL) {
        return fail_text(text, err, "cannot open the database");
    }
    size_t size = 0;
    char *value = rocksdb_get(db, store->read, FORMAT_KEY, strlen(FORMAT_KEY), &size, &text);
    hps_status status;
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the format record");
    } else if (value == NULL) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "rocksdb: %s is not ours (it has no %s record) and is left alone",
                               store->path, FORMAT_KEY);
    } else {
        status = format_check(store, value, size, err);
    }
    rocksdb_free(value);
    rocksdb_close(db);
    return status;
}

/* takes `handle`, on failure too. */
static hps_status family_add(struct rocks *store, const char *name,
                             rocksdb_column_family_handle_t *handle, struct family **out_family,
                             struct hps_error *err)
{
    struct family *family = hps_calloc(1, sizeof(*family));
    char *copy = hps_strdup(name);
    if (family == NULL || copy == NULL) {
        hps_free(family);
        hps_free(copy);
        rocksdb_column_family_handle_destroy(handle);
        return fail_memory(err);
    }
    family->name = copy;
    family->handle = handle;
    family->next = store->families;
    store->families = family;
    if (out_family != NULL) {
        *out_family = family;
    }
    return HPS_OK;
}

/* Put the handles where they belong. takes them all, on failure too. */
static hps_status families_take(struct rocks *store, char **names, size_t n,
                                rocksdb_column_family_handle_t **handles, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], DEFAULT_FAMILY) == 0) {
            store->default_family = handles[i];
        } else if (strcmp(names[i], CATALOG) == 0) {
            store->catalog = handles[i];
        } else if (status == HPS_OK) {
            status = family_add(store, names[i], handles[i], NULL, err);
        } else {
            rocksdb_column_family_handle_destroy(handles[i]);
        }
    }
    if (status == HPS_OK && store->catalog == NULL) {
        status = hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s has no catalog", store->path);
    }
    return status;
}

static hps_status database_open(struct rocks *store, struct hps_error *err)
{
    char *text = NULL;
    size_t n = 0;
    char **names = rocksdb_list_column_families(store->options, store->path, &n, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot list the families");
    }
    hps_status status = HPS_OK;
    const rocksdb_options_t **options = hps_calloc(n, sizeof(*options));
    rocksdb_column_family_handle_t **handles = hps_calloc(n, sizeof(*handles));
    if (options == NULL || handles == NULL) {
        status = fail_memory(err);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        options[i] = store->options;
    }
    if (store->read_only) {
        store->db = rocksdb_open_for_read_only_column_families(store->options, store->path, (int)n,
                                                               (const char *const *)names, options,
                                                               handles, 0, &text);
    } else {
        store->db =
            rocksdb_open_column_families(store->options, store->path, (int)n,
                                         (const char *const *)names, options, handles, &text);
    }
    if (text != NULL) {
        status = fail_text(text, err, "cannot open the database");
    } else {
        status = families_take(store, names, n, handles, err);
    }
done:
    hps_free((void *)options);
    hps_free(handles);
    rocksdb_list_column_families_destroy(names, n);
    return status;
}

static void family_free(struct family *family)
{
    rocksdb_column_family_handle_destroy(family->handle);
    hps_free(family->name);
    hps_free(family);
}

/* Also for a half-opened store. Every handle goes before the database. */
static void rocks_close(struct hps_store *base)
{
    struct rocks *store = (struct rocks *)base;
    while (store->families != NULL) {
        struct family *family = store->families;
        HPS_ASSERT(!family->open);
        store->families = family->next;
        family_free(family);
    }
    if (store->catalog != NULL) {
        rocksdb_column_family_handle_destroy(store->catalog);
    }
    if (store->default_family != NULL) {
        rocksdb_column_family_handle_destroy(store->default_family);
    }
    if (store->db != NULL) {
        rocksdb_close(store->db);
    }
    options_free(store);
    if (store->lock_fd >= 0) {
        close(store->lock_fd);
    }
    pthread_mutex_destroy(&store->lock);
    hps_free(store->path);
    hps_free(store);
}

static hps_status rocks_open(struct rocks *store, const struct hps_rocksdb_options *given,
                             struct hps_error *err)
{
    if (!store->read_only && mkdir(given->path, 0750) != 0 && errno != EEXIST) {
        return fail_errno(err, "cannot create", given->path);
    }
    hps_status status = disk_free_min(store, given->path, given->disk_free_min_bytes, err);
    if (status != HPS_OK) {
        return status;
    }
    status = take_lock(store, given->path, err);
    if (status != HPS_OK) {
        return status;
    }
    options_fill(store, given);
    enum dir_state state = DIR_OTHER;
    status = dir_look(store->path, &state, err);
    if (status != HPS_OK) {
        return status;
    }
    if (state == DIR_OTHER) {
        return hps_error_set(
            err, HPS_PRECONDITION,
            "rocksdb: %s is not ours (not empty, and no database) and is left alone", store->path);
    }
    if (state != DIR_DATABASE && store->read_only) {
        return hps_error_set(err, HPS_NOT_FOUND, "rocksdb: there is no database in %s",
                             store->path);
    }
    if (state == DIR_DATABASE) {
        status = database_check(store, err);
        if (status == HPS_OK && !store->read_only) {
            status = remove_stale_loads(store->path, err);
        }
    } else {
        status = database_create(store, given->path, err);
    }
    return status == HPS_OK ? database_open(store, err) : status;
}

/* ---- spaces ---- */

static struct rocks *rocks_of(struct hps_space *space)
{
    return (struct rocks *)space->store;
}

static rocksdb_column_family_handle_t *handle_of(struct hps_space *space)
{
    return ((struct rocks_space *)space)->family->handle;
}

/* Under the store's lock. */
static hps_status family_get(struct rocks *store, const char *name, struct family **out_family,
                             struct hps_error *err)
{
    for (struct family *f = store->families; f != NULL; f = f->next) {
        if (strcmp(f->name, name) == 0) {
            if (f->open) {
                return hps_error_set(err, HPS_EXISTS, "rocksdb: %s is open already", name);
            }
            *out_family = f;
            return HPS_OK;
        }
    }
    if (store->read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = guard_small(store, 0, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_column_family_handle_t *handle =
        rocksdb_create_column_family(store->db, store->options, name, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot create the family");
    }
    return family_add(store, name, handle, out_family, err);
}

static hps_status rocks_space_open(struct hps_store *base, const struct hps_space_id *id,
                                   struct hps_space **out_space, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    char name[NAME_MAX_BYTES];
    hps_status status = family_name(id, name, err);
    if (status != HPS_OK) {
        return status;
    }
    struct rocks_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL) {
        return fail_memory(err);
    }
    pthread_mutex_lock(&store->lock);
    status = family_get(store, name, &space->family, err);
    if (status == HPS_OK) {
        space->family->open = true;
    }
    pthread_mutex_unlock(&store->lock);
    if (status != HPS_OK) {
        hps_free(space);
        return status;
    }
    space->base.store = base;
    *out_space = &space->base;
    return HPS_OK;
}

static void rocks_space_close(struct hps_space *base)
{
    struct rocks *store = rocks_of(base);
    struct rocks_space *space = (struct rocks_space *)base;
    pthread_mutex_lock(&store->lock);
    HPS_ASSERT(!space->loading);
    space->family->open = false;
    pthread_mutex_unlock(&store->lock);
    hps_free(space);
}

static hps_status rocks_space_drop(struct hps_space *base, struct hps_error *err)
{
    struct rocks *store = rocks_of(base);
    struct family *family = ((struct rocks_space *)base)->family;
    if (store->read_only) {
        rocks_space_close(base);
        return fail_read_only(store, err);
    }
    char *text = NULL;
    rocksdb_drop_column_family(store->db, family->handle, &text);
    if (text != NULL) {
        rocks_space_close(base);
        return fail_text(text, err, "cannot drop the family");
    }
    pthread_mutex_lock(&store->lock);
    struct family **link = &store->families;
    while (*link != family) {
        link = &(*link)->next;
    }
    *link = family->next;
    pthread_mutex_unlock(&store->lock);
    family_free(family); /* the files go with the last handle */
    hps_free(base);
    return HPS_OK;
}

static uint64_t property(struct hps_space *space, const char *name)
{
    uint64_t value = 0;
    if (rocksdb_property_int_cf(rocks_of(space)->db, handle_of(space), name, &value) != 0) {
        return 0;
    }
    return value;
}

static void rocks_space_usage(struct hps_space *space, struct hps_store_usage *out_usage)
{
    *out_usage = (struct hps_store_usage){
        .n_rows = property(space, "rocksdb.estimate-num-keys"),
        .used_bytes = property(space, "rocksdb.live-sst-files-size") +
                      property(space, "rocksdb.cur-size-all-mem-tables"),
    };
}

/* ---- reads ---- */

static void key_encode(char *out, uint32_t table, hps_key key)
{
    uint32_t table_be = __builtin_bswap32(table);
    uint64_t key_be = __builtin_bswap64(key);
    memcpy(out, &table_be, sizeof(table_be));
    memcpy(out + sizeof(table_be), &key_be, sizeof(key_be));
}

static uint64_t read_u64_be(const char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return __builtin_bswap64(value);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are swapped to big-endian");

/* Arrays for one multi-get of up to n_max keys, in one piece of memory. */
struct multi_get {
    const char **keys;
    size_t *sizes;
    rocksdb_pinnableslice_t **values;
    char **errors;
    char *bytes;
};

static size_t multi_get_bytes(uint32_t n_max)
{
    return n_max * (sizeof(char *) + sizeof(size_t) + 2 * sizeof(void *) + KEY_BYTES);
}

static void multi_get_init(struct multi_get *get, void *memory, uint32_t n_max)
{
    get->keys = memory;
    get->sizes = (size_t *)(void *)(get->keys + n_max);
    get->values = (rocksdb_pinnableslice_t **)(void *)(get->sizes + n_max);
    get->errors = (char **)(void *)(get->values + n_max);
    get->bytes = (char *)(get->errors + n_max);
    for (uint32_t i = 0; i < n_max; i++) {
        get->keys[i] = get->bytes + (size_t)i * KEY_BYTES;
        get->sizes[i] = KEY_BYTES;
    }
}

/* Copy one answer to its row. The value is not freed. */
static hps_status answer_take(struct hps_space *space, const struct hps_table *table,
                              const rocksdb_pinnableslice_t *value, hps_key key, uint8_t *row)
{
    size_t size = 0;
    const char *data = rocksdb_pinnableslice_value(value, &size);
    if (size != table->row_bytes) {
        HPS_LOG(ERROR, "rocksdb", "row of a wrong size",
                HPS_STR("family", ((struct rocks_space *)space)->family->name),
                HPS_STR("table", table->name), HPS_U64("key", key), HPS_U64("bytes", size),
                HPS_U64("expected", table->row_bytes));
        return HPS_DATA_LOSS;
    }
    memcpy(row, data, size);
    return HPS_OK;
}

/* Look up keys [lo, hi) of the sorted batch, where [hi, n) is known to be missing. */
static hps_status get_chunk(struct hps_space *space, const struct hps_table *table,
                            const rocksdb_readoptions_t *read, struct multi_get *get,
                            struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    uint32_t n = hi - lo;
    for (uint32_t i = 0; i < n; i++) {
        key_encode(get->bytes + (size_t)i * KEY_BYTES, table->id, batch->keys[lo + i]);
    }
    memset(get->values, 0, n * sizeof(*get->values));
    memset(get->errors, 0, n * sizeof(*get->errors));
    rocksdb_batched_multi_get_cf(rocks_of(space)->db, read, handle_of(space), n, get->keys,
                                 get->sizes, get->values, get->errors, true);
    hps_status status = HPS_OK;
    for (uint32_t i = n; i-- > 0;) {
        if (get->errors[i] != NULL) {
            if (status == HPS_OK) {
                status = log_text(get->errors[i], "read failed");
            } else {
                rocksdb_free(get->errors[i]);
            }
        }
        if (get->values[i] == NULL) {
            continue;
        }
        uint8_t *row = batch->rows + (size_t)batch->slots[lo + i] * table->row_bytes;
        hps_status taken = answer_take(space, table, get->values[i], batch->keys[lo + i], row);
        rocksdb_pinnableslice_destroy(get->values[i]);
        if (taken == HPS_OK) {
            hps_batch_found(batch, lo + i);
        } else {
            status = taken;
        }
    }
    return status;
}

/* RocksDB's deadline is wall-clock time. owner: the caller's. */
static rocksdb_readoptions_t *read_until(uint64_t deadline_us, uint64_t now_us)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t wall_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    rocksdb_readoptions_t *read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_deadline(read, wall_us + (deadline_us - now_us));
    return read;
}

static hps_status get_all(struct hps_space *space, const struct hps_call *call,
                          const struct hps_table *table, struct hps_batch *batch,
                          struct multi_get *get, uint32_t n_chunk)
{
    hps_status status = HPS_OK;
    uint32_t hi = batch->n;
    while (hi > 0 && status == HPS_OK) {
        uint32_t lo = hi > n_chunk ? hi - n_chunk : 0;
        if (call->deadline_us == 0) {
            status = get_chunk(space, table, rocks_of(space)->read, get, batch, lo, hi);
        } else {
            uint64_t now_us = hps_clock_us();
            if (now_us >= call->deadline_us) {
                return HPS_DEADLINE;
            }
            rocksdb_readoptions_t *read = read_until(call->deadline_us, now_us);
            status = get_chunk(space, table, read, get, batch, lo, hi);
            rocksdb_readoptions_destroy(read);
        }
        hi = lo;
    }
    return status;
}

static hps_status rocks_get(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, struct hps_batch *batch)
{
    if (batch->n == 0) {
        return HPS_OK;
    }
    uint32_t n_max = rocks_of(space)->batch_keys_max;
    uint32_t n_chunk = batch->n < n_max ? batch->n : n_max;
    size_t bytes = multi_get_bytes(n_chunk);
    void *heap = NULL;
    void *memory = call->scratch != NULL ? hps_arena_alloc(call->scratch, bytes) : NULL;
    if (memory == NULL) {
        memory = heap = hps_alloc(bytes);
    }
    if (memory == NULL) {
        return HPS_NO_MEMORY;
    }
    struct multi_get get;
    multi_get_init(&get, memory, n_chunk);
    hps_key_sort(batch->keys, batch->slots, batch->n);
    hps_status status = get_all(space, call, table, batch, &get, n_chunk);
    hps_free(heap);
    return status;
}

struct scan_buffer {
    hps_key *keys;
    uint8_t *rows;
    uint32_t n;
};

static hps_status scan_rows(rocksdb_iterator_t *iter, const struct hps_table *table,
                            struct scan_buffer *buffer,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    char prefix[KEY_BYTES];
    key_encode(prefix, table->id, 0);
    hps_status status = HPS_OK;
    for (rocksdb_iter_seek(iter, prefix, KEY_BYTES); rocksdb_iter_valid(iter);
         rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        const char *row = rocksdb_iter_value(iter, &size);
        if (key_size != KEY_BYTES || memcmp(key, prefix, sizeof(uint32_t)) != 0) {
            break;
        }
        hps_key number = read_u64_be(key + sizeof(uint32_t));
        if (size != table->row_bytes) {
            return hps_error_set(err, HPS_DATA_LOSS,
                                 "rocksdb: table %s key %" PRIu64 ": %zu bytes instead of %" PRIu32,
                                 table->name, number, size, table->row_bytes);
        }
        buffer->keys[buffer->n] = number;
        memcpy(buffer->rows + (size_t)buffer->n * size, row, size);
        if (++buffer->n == SCAN_ROWS) {
            buffer->n = 0;
            status = fn(ctx, buffer->keys, buffer->rows, SCAN_ROWS);
            if (status != HPS_OK) {
                return status;
            }
        }
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        return fail_text(text, err, "scan failed");
    }
    return buffer->n > 0 ? fn(ctx, buffer->keys, buffer->rows, buffer->n) : HPS_OK;
}

static hps_status rocks_scan(struct hps_space *space, const struct hps_table *table,
                             hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                              uint32_t n),
                             void *ctx, struct hps_error *err)
{
    struct rocks *store = rocks_of(space);
    struct scan_buffer buffer = {
        .keys = hps_alloc(SCAN_ROWS * sizeof(hps_key)),
        .rows = hps_alloc((size_t)SCAN_ROWS * table->row_bytes),
    };
    hps_status status;
    if (buffer.keys == NULL || buffer.rows == NULL) {
        status = fail_memory(err);
    } else {
        rocksdb_iterator_t *iter =
            rocksdb_create_iterator_cf(store->db, store->read_scan, handle_of(space));
        status = scan_rows(iter, table, &buffer, fn, ctx, err);
        rocksdb_iter_destroy(iter);
    }
    hps_free(buffer.keys);
    hps_free(buffer.rows);
    return status;
}

/* ---- writes ---- */

/* rows NULL: delete the keys. */
static hps_status write_chunk(struct hps_space *space, const struct hps_table *table,
                              const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct rocks *store = rocks_of(space);
    struct hps_error error;
    size_t row_bytes = rows != NULL ? table->row_bytes : 0;
    /* twice: into the log now and into a file when the memory is written out */
    hps_status status = guard_space(store, 2 * n * (uint64_t)(row_bytes + ENTRY_BYTES),
                                    store->disk_free_min_bytes, &error);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "write refused", HPS_STR("error", error.text));
        return status;
    }
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (uint32_t i = 0; i < n; i++) {
        char key[KEY_BYTES];
        key_encode(key, table->id, keys[i]);
        if (rows != NULL) {
            rocksdb_writebatch_put_cf(batch, handle_of(space), key, KEY_BYTES,
                                      (const char *)rows + (size_t)i * row_bytes, row_bytes);
        } else {
            rocksdb_writebatch_delete_cf(batch, handle_of(space), key, KEY_BYTES);
        }
    }
    char *text = NULL;
    rocksdb_write(store->db, store->write, batch, &text);
    rocksdb_writebatch_destroy(batch);
    return text == NULL ? HPS_OK : log_text(text, "write failed");
}

static hps_status write_all(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                            uint32_t n)
{
    struct rocks *store = rocks_of(space);
    if (store->read_only) {
        return HPS_PRECONDITION;
    }
    uint64_t n_fit = clamp(BATCH_BYTES / (table->row_bytes + ENTRY_BYTES), 1, UINT32_MAX);
    uint32_t n_chunk = (uint32_t)clamp(store->batch_keys_max, 1, n_fit);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i += n_chunk) {
        if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
            return HPS_DEADLINE;
        }
        n_chunk = n - i < n_chunk ? n - i : n_chunk;
        status = write_chunk(space, table, keys + i,
                             rows != NULL ? rows + (size_t)i * table->row_bytes : NULL, n_chunk);
    }
    return status;
}

static hps_status rocks_put(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                            uint32_t n)
{
    return write_all(space, call, table, keys, rows, n);
}

static hps_status rocks_erase(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    return write_all(space, call, table, keys, NULL, n);
}

/* ---- loads ---- */

static hps_status space_check_empty(struct rocks_space *space, struct hps_error *err)
{
    struct rocks *store = rocks_of(&space->base);
    rocksdb_iterator_t *iter =
        rocksdb_create_iterator_cf(store->db, store->read, space->family->handle);
    rocksdb_iter_seek_to_first(iter);
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    hps_status status = HPS_OK;
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the family");
    } else if (rocksdb_iter_valid(iter)) {
        status =
            hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is not empty", space->family->name);
    }
    rocksdb_iter_destroy(iter);
    return status;
}

static hps_status load_claim(struct rocks_space *space, bool claim, struct hps_error *err)
{
    struct rocks *store = rocks_of(&space->base);
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    if (claim && space->loading) {
        status = hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is being loaded already",
                               space->family->name);
    } else {
        space->loading = claim;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static void load_free(struct hps_store_load *load)
{
    struct hps_error error;
    if (load->writer != NULL) {
        rocksdb_sstfilewriter_destroy(load->writer);
    }
    if (load->dir != NULL && remove_tree(load->dir, &error) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "left a load directory", HPS_STR("error", error.text));
    }
    for (size_t i = 0; i < load->n_files; i++) {
        hps_free(load->files[i]);
    }
    hps_free((void *)load->files);
    hps_free(load->dir);
    hps_ignore(load_claim(load->space, false, NULL)); /* giving up a claim cannot fail */
    hps_free(load);
}

static hps_status load_dir_make(struct hps_store_load *load, struct hps_error *err)
{
    char name[NAME_MAX_BYTES + 8];
    (void)snprintf(name, sizeof(name), "load-%s", load->space->family->name);
    load->dir = path_join(load->store->path, name);
    if (load->dir == NULL) {
        return fail_memory(err);
    }
    hps_status status = remove_tree(load->dir, err);
    if (status == HPS_OK && mkdir(load->dir, 0750) != 0) {
        status = fail_errno(err, "cannot create", load->dir);
    }
    return status;
}

static hps_status rocks_load_begin(struct hps_space *base, uint64_t rows_expected,
                                   uint64_t bytes_expected, struct hps_store_load **out_load,
                                   struct hps_error *err)
{
    struct rocks_space *space = (struct rocks_space *)base;
    struct rocks *store = rocks_of(base);
    if (store->read_only) {
        return fail_read_only(store, err);
    }
    uint64_t needed;
    if (__builtin_mul_overflow(rows_expected, (uint64_t)ENTRY_BYTES, &needed) ||
        __builtin_add_overflow(needed, bytes_expected, &needed)) {
        needed = UINT64_MAX;
    }
    hps_status status = guard_space(store, needed, store->disk_free_min_bytes, err);
    if (status == HPS_OK) {
        status = space_check_empty(space, err);
    }
    if (status == HPS_OK) {
        status = load_claim(space, true, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    if (load == NULL) {
        hps_ignore(load_claim(space, false, NULL)); /* giving up a claim cannot fail */
        return fail_memory(err);
    }
    load->store = store;
    load->space = space;
    status = load_dir_make(load, err);
    if (status != HPS_OK) {
        load_free(load);
        return status;
    }
    *out_load = load;
    return HPS_OK;
}

static hps_status load_file_open(struct hps_store_load *load, struct hps_error *err)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "%06zu.sst", load->n_files);
    char **files = hps_realloc((void *)load->files, (load->n_files + 1) * sizeof(*files));
    if (files == NULL) {
        return fail_memory(err);
    }
    load->files = files;
    files[load->n_files] = path_join(load->dir, name);
    if (files[load->n_files] == NULL) {
        return fail_memory(err);
    }
    load->n_files++;
    load->file_bytes = 0;
    load->writer = rocksdb_sstfilewriter_create(load->store->env_options, load->store->sst_options);
    char *text = NULL;
    rocksdb_sstfilewriter_open(load->writer, files[load->n_files - 1], &text);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot write a load file");
}

static hps_status load_file_finish(struct hps_store_load *load, struct hps_error *err)
{
    if (load->writer == NULL) {
        return HPS_OK;
    }
    char *text = NULL;
    rocksdb_sstfilewriter_finish(load->writer, &text);
    rocksdb_sstfilewriter_destroy(load->writer);
    load->writer = NULL;
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot finish a load file");
}

/* Between two looks at the free space at most half of what the guard holds back is written. */
static hps_status load_check_space(struct hps_store_load *load, uint64_t bytes,
                                   struct hps_error *err)
{
    uint64_t reserve = load->store->disk_free_min_bytes;
    load->unchecked_bytes += bytes;
    if (load->writer != NULL && load->unchecked_bytes < clamp(reserve / 2, 1, CHECK_BYTES)) {
        return HPS_OK;
    }
    load->unchecked_bytes = 0;
    return guard_space(load->store, bytes, reserve, err);
}

static hps_status load_add_row(struct hps_store_load *load, const struct hps_table *table,
                               hps_key key, const uint8_t *row, struct hps_error *err)
{
    if (load->any && (table->id < load->table || (table->id == load->table && key <= load->key))) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: table %s: key %" PRIu64 " is not above the one before it",
                             table->name, key);
    }
    uint64_t bytes = (uint64_t)table->row_bytes + ENTRY_BYTES;
    hps_status status = HPS_OK;
    if (load->file_bytes + bytes > SST_BYTES) {
        status = load_file_finish(load, err);
    }
    if (status == HPS_OK) {
        status = load_check_space(load, bytes, err);
    }
    if (status == HPS_OK && load->writer == NULL) {
        status = load_file_open(load, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char encoded[KEY_BYTES];
    char *text = NULL;
    key_encode(encoded, table->id, key);
    rocksdb_sstfilewriter_put(load->writer, encoded, KEY_BYTES, (const char *)row, table->row_bytes,
                              &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot write a load file");
    }
    load->file_bytes += bytes;
    load->any = true;
    load->table = table->id;
    load->key = key;
    return HPS_OK;
}

static hps_status rocks_load_add(struct hps_store_load *load, const struct hps_table *table,
                                 const hps_key *keys, const uint8_t *rows, uint32_t n,
                                 struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = load_add_row(load, table, keys[i], rows + (size_t)i * table->row_bytes, err);
    }
    return status;
}

static hps_status rocks_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct rocks *store = load->store;
    hps_status status = load_file_finish(load, err);
    if (status == HPS_OK) {
        status = guard_small(store, 0, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (load->n_files > 0) {
        char *text = NULL;
        rocksdb_ingest_external_file_cf(store->db, load->space->family->handle,
                                        (const char *const *)load->files, load->n_files,
                                        store->ingest, &text);
        if (text != NULL) {
            return fail_text(text, err, "cannot ingest the load");
        }
    }
    load_free(load);
    return HPS_OK;
}

/* ---- records ---- */

static hps_status rocks_record_put(struct hps_store *base, const void *key, size_t key_size,
                                   const void *value, size_t value_size, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    if (store->read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = guard_small(store, key_size + value_size, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_put_cf(store->db, store->write_synced, store->catalog, key, key_size, value, value_size,
                   &text);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot write a record");
}

static hps_status rocks_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                      struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    if (store->read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = guard_small(store, key_size, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_delete_cf(store->db, store->write_synced, store->catalog, key, key_size, &text);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot delete a record");
}

static hps_status rocks_record_scan(struct hps_store *base, hps_record_fn fn, void *ctx,
                                    struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    rocksdb_iterator_t *iter = rocksdb_create_iterator_cf(store->db, store->read, store->catalog);
    hps_status status = HPS_OK;
    for (rocksdb_iter_seek_to_first(iter); status == HPS_OK && rocksdb_iter_valid(iter);
         rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t value_size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        const char *value = rocksdb_iter_value(iter, &value_size);
        status = fn(ctx, key, key_size, value, value_size);
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the records");
    }
    rocksdb_iter_destroy(iter);
    return status;
}

/* The names are copied first: `fn` may open or drop what it is told. */
static hps_status rocks_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                   struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    pthread_mutex_lock(&store->lock);
    size_t n = 0;
    for (const struct family *f = store->families; f != NULL; f = f->next) {
        n++;
    }
    char(*names)[NAME_MAX_BYTES] = hps_calloc(n, sizeof(*names));
    size_t i = 0;
    for (const struct family *f = store->families; names != NULL && f != NULL; f = f->next) {
        (void)snprintf(names[i++], NAME_MAX_BYTES, "%s", f->name);
    }
    pthread_mutex_unlock(&store->lock);
    if (names == NULL) {
        return fail_memory(err);
    }
    hps_status status = HPS_OK;
    for (i = 0; i < n && status == HPS_OK; i++) {
        char model[MODEL_MAX_BYTES + 1];
        int64_t version;
        if (family_parse(names[i], model, &version)) {
            status = fn(ctx, model, version);
        }
    }
    hps_free(names);
    return status;
}

static const struct hps_store_ops rocks_ops = {
    .name = "rocksdb",
    .tier = HPS_TIER_ROCKSDB,
    .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING,
    .close = rocks_close,
    .space_open = rocks_space_open,
    .space_close = rocks_space_close,
    .space_drop = rocks_space_drop,
    .space_usage = rocks_space_usage,
    .get = rocks_get,
    .put = rocks_put,
    .erase = rocks_erase,
    .load_begin = rocks_load_begin,
    .load_add = rocks_load_add,
    .load_commit = rocks_load_commit,
    .load_abort = load_free,
    .scan = rocks_scan,
    .record_put = rocks_record_put,
    .record_delete = rocks_record_delete,
    .record_scan = rocks_record_scan,
    .space_list = rocks_space_list,
    .bytes_free = rocks_bytes_free,
};

hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err)
{
    if (strlen(options->path) > PATH_MAX_BYTES) {
        return hps_error_set(err, HPS_INVALID, "rocksdb: path of %zu bytes, %d at most",
                             strlen(options->path), PATH_MAX_BYTES);
    }
    struct rocks *store = hps_calloc(1, sizeof(*store));
    char *path = path_join(options->path, "hpsd");
    if (store == NULL || path == NULL) {
        hps_free(path);
        hps_free(store);
        return fail_memory(err);
    }
    store->base.ops = &rocks_ops;
    store->path = path;
    store->lock_fd = -1;
    store->read_only = options->read_only;
    store->batch_keys_max = (uint32_t)clamp(options->batch_keys_max, 1, BATCH_KEYS_MAX);
    pthread_mutex_init(&store->lock, NULL);
    hps_status status = rocks_open(store, options, err);
    if (status != HPS_OK) {
        rocks_close(&store->base);
        return status;
    }
    *out_store = &store->base;
    return HPS_OK;
}
