/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store with base files: opening and closing it, removing leftover files, records of
 * the store, and checkpoints. basefile.h describes the threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/fileio.h"

/* ---- leftover files -------------------------------------------------------------------------- */

/* "base-<number>". 0: another name. */
static uint64_t name_number(const char *name)
{
    char same[HPS_BASEFILE_NAME_BYTES];
    size_t n = strlen(HPS_BASEFILE_PREFIX);
    uint64_t number = strncmp(name, HPS_BASEFILE_PREFIX, n) == 0 ? strtoull(name + n, NULL, 10) : 0;
    hps_basefile_name(same, number);
    return strcmp(name, same) == 0 && number < HPS_BASEFILE_NUMBER_MAX ? number : 0;
}

struct cleaning {
    struct hps_basefile_store *store;
    struct hps_basefile_records named; /* the bases of all spaces */
};

/* No base gets this number again. */
static void number_seen(struct hps_basefile_store *store, uint64_t number)
{
    if (number > atomic_load(&store->number)) {
        atomic_store(&store->number, number);
    }
}

/* Remove the file if no record names it. */
static hps_status file_visit(void *ctx, const struct hps_dir *dir, const char *name,
                             struct hps_error *err)
{
    struct cleaning *cleaning = ctx;
    uint64_t number = name_number(name);
    bool keep = number == 0;
    (void)dir, (void)err;
    number_seen(cleaning->store, number);
    for (size_t i = 0; i < cleaning->named.n && !keep; i++) {
        keep = cleaning->named.at[i].number == number;
    }
    if (!keep) {
        hps_basefile_base_remove(cleaning->store, number);
    }
    return HPS_OK;
}

/* Remove leftover files, and find the newest number of files and records: a file may be lost. */
static hps_status files_clean(struct hps_basefile_store *store, struct hps_error *err)
{
    struct cleaning cleaning = {.store = store, .named = {.err = err}};
    hps_status status = hps_basefile_records_read(store->inner, &cleaning.named);
    for (size_t i = 0; i < cleaning.named.n; i++) {
        number_seen(store, cleaning.named.at[i].number);
    }
    if (status == HPS_OK && !store->options.read_only) {
        status = hps_dir_each(&store->dir, file_visit, &cleaning, err);
    }
    hps_free(cleaning.named.at);
    return status;
}

/* Open the directory of the database, which may be a link. */
static hps_status dir_open(struct hps_basefile_store *store, const char *path,
                           struct hps_error *err)
{
    char *database = hps_file_path("%s/hpsd", path);
    if (database == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory");
    }
    hps_status status = hps_dir_open(database, &store->dir, err);
    hps_free(database);
    return status == HPS_OK ? files_clean(store, err) : status;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static hps_status copy_bytes(const struct hps_dir *from, const char *name, int to_dir,
                             struct hps_error *err)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    int in = -1;
    hps_status status = hps_dir_open_file(from, name, O_RDONLY, &in, err);
    if (status == HPS_OK) {
        status = hps_file_take_read(in, name, &bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    int out = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, HPS_BASEFILE_MODE);
    status = out >= 0 ? hps_file_copy(in, out, name, bytes, NULL, &crc, err)
                      : hps_file_error(err, errno, "cannot create", name);
    if (out >= 0) {
        close(out);
    }
    close(in);
    return status;
}

static hps_status copy_file(const struct hps_dir *from, uint64_t number, int to_dir,
                            struct hps_error *err)
{
    char name[HPS_BASEFILE_NAME_BYTES];
    hps_basefile_name(name, number);
    if (linkat(from->fd, name, to_dir, name, 0) == 0 || errno == ENOENT) {
        return HPS_OK; /* also if the table has no base, or the file is lost */
    }
    return errno == EXDEV ? copy_bytes(from, name, to_dir, err)
                          : hps_file_error(err, errno, "cannot link", name);
}

/* Copies must fit on the other disk. */
static hps_status check_space(const struct hps_basefile_store *store, const struct hps_dir *to,
                              struct hps_error *err)
{
    struct stat here, there;
    struct statvfs disk;
    if (fstat(store->dir.fd, &here) != 0 || fstat(to->fd, &there) != 0 ||
        fstatvfs(to->fd, &disk) != 0) {
        return hps_file_error(err, errno, "cannot stat", to->path);
    }
    uint64_t bytes_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    uint64_t bytes = atomic_load(&store->bytes);
    return here.st_dev == there.st_dev || bytes <= bytes_free
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED,
                               "%s: base files need %" PRIu64 " bytes, %" PRIu64 " free", to->path,
                               bytes, bytes_free);
}

/* Link the files that records name. */
static hps_status named_copy(const struct hps_basefile_store *store, const struct hps_dir *to,
                             struct hps_error *err)
{
    struct hps_basefile_records named = {.err = err};
    hps_status status = hps_basefile_records_read(store->inner, &named);
    for (size_t i = 0; i < named.n && status == HPS_OK; i++) {
        status = copy_file(&store->dir, named.at[i].number, to->fd, err);
    }
    hps_free(named.at);
    return status == HPS_OK ? hps_dir_sync(to, err) : status;
}

/* Complete `<dir>/hpsd`, where the inner store has made its checkpoint. */
static hps_status files_copy(struct hps_basefile_store *store, const char *dir,
                             struct hps_error *err)
{
    struct hps_dir parent = {.fd = -1};
    struct hps_dir to = {.fd = -1};
    hps_status status = hps_dir_open(dir, &parent, err);
    if (status == HPS_OK) {
        status = hps_dir_open_in(&parent, "hpsd", false, &to, err);
    }
    if (status == HPS_OK) {
        status = check_space(store, &to, err);
    }
    if (status == HPS_OK) {
        status = named_copy(store, &to, err);
    }
    if (status != HPS_OK && parent.fd >= 0) { /* without its bases it is no store */
        struct hps_error ignored;
        hps_ignore(hps_dir_remove(&parent, "hpsd", &ignored));
    }
    hps_dir_close(&to);
    hps_dir_close(&parent);
    return status;
}

static hps_status store_checkpoint(struct hps_store *base, const char *dir, struct hps_error *err)
{
    struct hps_basefile_store *store = (struct hps_basefile_store *)base;
    hps_lock_acquire(&store->names);
    hps_status status = store->inner->ops->durable->checkpoint(store->inner, dir, err);
    if (status == HPS_OK) {
        status = files_copy(store, dir, err);
    }
    hps_lock_release(&store->names);
    return status;
}

/* ---- calls of the inner store ---------------------------------------------------------------- */

static struct hps_store *inner_of(struct hps_store *base)
{
    return ((struct hps_basefile_store *)base)->inner;
}

static hps_status store_space_record_scan(struct hps_space *base, hps_record_fn fn, void *ctx,
                                          struct hps_error *err)
{
    struct hps_space *inner = ((struct hps_basefile_space *)base)->inner;
    return inner->store->ops->durable->space_record_scan(inner, fn, ctx, err);
}

static hps_status store_record_put(struct hps_store *base, const void *key, size_t key_size,
                                   const void *value, size_t value_size, struct hps_error *err)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->record_put(inner, key, key_size, value, value_size, err);
}

static hps_status store_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                      struct hps_error *err)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->record_delete(inner, key, key_size, err);
}

static hps_status store_record_scan(struct hps_store *base, const char *prefix, hps_record_fn fn,
                                    void *ctx, struct hps_error *err)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->record_scan(inner, prefix, fn, ctx, err);
}

static hps_status store_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                   struct hps_error *err)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->space_list(inner, fn, ctx, err);
}

static uint64_t store_bytes_free(struct hps_store *base)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->bytes_free(inner);
}

static const char *store_writes_refused(struct hps_store *base)
{
    struct hps_store *inner = inner_of(base);
    return inner->ops->durable->writes_refused(inner);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Free all but the inner store. */
static void store_free(struct hps_basefile_store *store)
{
    hps_basefile_rings_close(store);
    hps_dir_close(&store->dir);
    hps_cond_fini(&store->wake);
    hps_lock_fini(&store->lock);
    hps_lock_fini(&store->names);
    hps_free(store);
}

static void store_close(struct hps_store *base)
{
    struct hps_basefile_store *store = (struct hps_basefile_store *)base;
    struct hps_store *inner = store->inner;
    HPS_ASSERT(store->spaces == NULL);
    hps_worker_stop(&store->merger, &store->lock, &store->wake, &store->closing);
    store_free(store);
    inner->ops->close(inner);
}

static const struct hps_store_durable_ops durable_ops = {
    .apply = hps_basefile_apply,
    .space_record_scan = store_space_record_scan,
    .view = hps_basefile_view,
    .record_put = store_record_put,
    .record_delete = store_record_delete,
    .record_scan = store_record_scan,
    .space_list = store_space_list,
    .bytes_free = store_bytes_free,
    .writes_refused = store_writes_refused,
    .checkpoint = store_checkpoint,
};

static const struct hps_store_ops store_ops = {
    .bulk = &hps_basefile_bulk_ops,
    .durable = &durable_ops,
    .close = store_close,
    .space_open = hps_basefile_space_open,
    .space_close = hps_basefile_space_close,
    .space_drop = hps_basefile_space_drop,
    .space_usage = hps_basefile_space_usage,
    .get = hps_store_get_one,
    .get_many = hps_basefile_get_many,
    .insert = hps_store_insert_none, /* it is the lowest store */
    .put = hps_store_put_applied,
    .erase = hps_store_erase_applied,
    .scan = hps_basefile_scan,
};

/* Open the directory, probe io_uring and start the thread. */
static hps_status store_start(struct hps_basefile_store *store, const char *path,
                              struct hps_error *err)
{
    hps_status status = dir_open(store, path, err);
    if (status != HPS_OK || (store->number == 0 && !store->options.write)) {
        return status; /* no reads and no merges */
    }
    bool uring = !store->options.no_uring && hps_basefile_rings_open(store);
    HPS_LOG(INFO, "rocksdb", "base files: reads", HPS_STR("by", uring ? "io_uring" : "pread"));
    if (store->options.read_only) {
        return HPS_OK;
    }
    status = hps_worker_start(&store->merger, "base-merge", 0, hps_basefile_merger_run, store);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "rocksdb: no thread to merge base files");
}

hps_status hps_basefile_open(const struct hps_basefile_options *options,
                             struct hps_store **out_store, struct hps_error *err)
{
    const struct hps_store_ops *inner = options->inner->ops;
    struct hps_basefile_store *store = hps_calloc(1, sizeof(*store));
    HPS_ASSERT(inner->durable != NULL && inner->durable->view != NULL && inner->bulk != NULL);
    if (store == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory");
    }
    store->base.ops = &store->ops;
    store->ops = store_ops;
    store->ops.name = inner->name;
    store->ops.tier = inner->tier;
    store->ops.caps = inner->caps;
    store->inner = options->inner;
    store->options = *options;
    store->dir.fd = -1;
    hps_lock_init(&store->names, HPS_LOCK_BASEFILE_NAMES);
    hps_lock_init(&store->lock, HPS_LOCK_BASEFILE);
    hps_cond_init(&store->wake);
    hps_status status = store_start(store, options->path, err);
    if (status != HPS_OK) {
        store_free(store);
        return status;
    }
    *out_store = &store->base;
    return HPS_OK;
}
