/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin method that writes the rows of a version as model files. Runs on the admin pool.
 *
 * The files are written into the hidden directory ".export" of the target. At the end manifest.json
 * is written, then the files are moved into the target. So a load refuses the target until it is
 * complete, because its manifest names files that are missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/store_durable.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/dir.h"
#include "base/rows/fileio.h"
#include "base/rows/roots.h"
#include "base/rows/rowfile.h"
#include "cache/update/update.h"
#include "config/manifest.h"
#include "hps/v1/admin.pb-c.h"
#include "server/admin/op.h"
#include "server/update/partition/position.h"

#define PARTS_NAME    ".export"
#define MANIFEST_NAME "manifest.json"

/* One export at a time: it may take long, and other calls need threads of the pool. */
static atomic_bool under_way;
static atomic_bool cancel; /* the process ends */

struct export
{
    enum hps_row_form form;
    struct hps_dir target;
    struct hps_dir parts;         /* fd -1: not made */
    struct hps_strings moved;     /* entries of the target */
    struct hps_manifest manifest; /* tables and positions so far */
    struct hps_row_writer *writer;
    uint64_t n_bytes;
    struct hps_error *err;
};

void hps_admin_export_cancel(void)
{
    atomic_store(&cancel, true);
}

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for an export");
}

/* ---- the target ------------------------------------------------------------------------------ */

static hps_status refuse_entry(void *ctx, const struct hps_dir *dir, const char *name,
                               struct hps_error *err)
{
    (void)ctx;
    return hps_error_set(err, HPS_EXISTS,
                         "%s: has the entry \"%.100s\", expected an empty directory", dir->path,
                         name);
}

/* Open or create the last directory of `path`. The directory above it must be below a root. */
static hps_status open_target(const struct hps_strings *names, const char *path,
                              struct hps_dir *out_dir, struct hps_error *err)
{
    struct hps_roots *roots = NULL;
    struct hps_dir above = {.fd = -1};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    char *name = hps_strndup(path + begin, n - begin);
    above.path = hps_strndup(path, begin);
    hps_status status = name == NULL || above.path == NULL ? no_memory(err) : HPS_OK;
    if (status == HPS_OK &&
        (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)) {
        status = hps_error_set(err, HPS_INVALID,
                               "directory: got \"%.200s\", expected a name at its end", path);
    }
    if (status == HPS_OK) {
        status = hps_roots_open("server.export_roots", (const char *const *)names->items, names->n,
                                &roots, err);
    }
    if (status == HPS_OK) {
        status = hps_roots_open_path(roots, above.path, O_RDONLY | O_DIRECTORY, &above.fd, err);
    }
    if (status == HPS_OK) {
        status = hps_dir_open_in(&above, name, true, out_dir, err);
    }
    if (status == HPS_OK) {
        status = hps_dir_each(out_dir, refuse_entry, NULL, err);
        if (status != HPS_OK) {
            hps_dir_close(out_dir);
        }
    }
    hps_dir_close(&above);
    hps_roots_close(roots);
    hps_free(name);
    return status;
}

/* A path in `dir` that does not change if another directory is put in its place. owner: the caller
 */
static char *path_in(const struct hps_dir *dir, const char *name, const char *tail)
{
    return hps_file_path("/proc/self/fd/%d/%s%s", dir->fd, name, tail);
}

/* ---- the rows -------------------------------------------------------------------------------- */

static hps_status take_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct export *export = ctx;
    struct hps_manifest *manifest = &export->manifest;
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    struct hps_position position;
    const void *name = NULL;
    size_t name_size = 0;
    int32_t partition = 0;
    if (!hps_update_is_position(key, key_size, &name, &name_size) ||
        !hps_position_key_parse(name, name_size, topic, &partition)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    if (status != HPS_OK) {
        return hps_error_set(export->err, status, "the position of %s/%" PRId32 " is damaged",
                             topic, partition);
    }
    struct hps_manifest_position *positions =
        hps_realloc(manifest->positions, (manifest->n_positions + 1) * sizeof(*positions));
    if (positions == NULL) {
        return no_memory(export->err);
    }
    manifest->positions = positions;
    positions[manifest->n_positions++] =
        (struct hps_manifest_position){.cluster = hps_strdup(position.cluster),
                                       .topic = hps_strdup(topic),
                                       .partition = partition,
                                       .offset = position.next};
    bool good = positions[manifest->n_positions - 1].cluster != NULL &&
                positions[manifest->n_positions - 1].topic != NULL;
    return good ? HPS_OK : no_memory(export->err);
}

static hps_status finish_table(struct export *export)
{
    struct hps_row_writer *writer = export->writer;
    export->writer = NULL;
    return writer == NULL ? HPS_OK : hps_row_writer_close(writer, export->err);
}

static hps_status begin_table(void *ctx, const struct hps_table *table)
{
    struct export *export = ctx;
    struct hps_row_writer_options options = {
        .form = export->form, .dim = table->dim, .dtype = table->dtype};
    hps_status status = finish_table(export);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_manifest_table *said = &export->manifest.tables[export->manifest.n_tables];
    said->name = hps_strdup(table->name);
    said->dim = table->dim;
    said->dtype = table->dtype;
    said->n_rows_known = true;
    char *path = path_in(&export->parts, table->name,
                         export->form == HPS_ROW_FORM_HUGECTR       ? ""
                         : export->form == HPS_ROW_FORM_SAFETENSORS ? ".safetensors"
                                                                    : ".rows.npy");
    if (said->name == NULL || path == NULL) {
        status = no_memory(export->err);
    } else {
        status = hps_row_writer_open(path, &options, &export->writer, export->err);
    }
    export->manifest.n_tables++;
    hps_free(path);
    return status;
}

static hps_status take_rows(void *ctx, const struct hps_table *table, const hps_key *keys,
                            const uint8_t *rows, uint32_t n)
{
    struct export *export = ctx;
    (void)table;
    if (atomic_load_explicit(&cancel, memory_order_relaxed)) {
        return hps_error_set(export->err, HPS_CANCELLED, "the server stops");
    }
    export->manifest.tables[export->manifest.n_tables - 1].n_rows += n;
    return hps_row_writer_append(export->writer, keys, rows, n, export->err);
}

/* ---- the end --------------------------------------------------------------------------------- */

static hps_status move_entry(void *ctx, const struct hps_dir *dir, const char *name,
                             struct hps_error *err)
{
    struct export *export = ctx;
    if (hps_dir_has(&export->target, name)) {
        return refuse_entry(NULL, &export->target, name, err);
    }
    if (hps_strings_append(&export->moved, name) != HPS_OK) {
        return no_memory(err);
    }
    if (renameat(dir->fd, name, export->target.fd, name) == 0) {
        return HPS_OK;
    }
    hps_free(export->moved.items[--export->moved.n]);
    return hps_error_set(err, HPS_IO, "%s: cannot move \"%s\" into it", export->target.path, name);
}

static hps_status count_entry(void *ctx, const struct hps_dir *dir, const char *name,
                              struct hps_error *err)
{
    uint64_t *n_bytes = ctx;
    struct stat info;
    if (fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return hps_error_set(err, HPS_IO, "%s: cannot stat \"%s\"", dir->path, name);
    }
    if (S_ISDIR(info.st_mode)) {
        struct hps_dir table = {.fd = -1};
        hps_status status = hps_dir_open_in(dir, name, false, &table, err);
        if (status == HPS_OK) {
            status = hps_dir_each(&table, count_entry, ctx, err);
            hps_dir_close(&table);
        }
        return status;
    }
    *n_bytes += (uint64_t)info.st_size;
    return HPS_OK;
}

static hps_status publish(struct export *export)
{
    if (hps_dir_has(&export->target, MANIFEST_NAME)) {
        return refuse_entry(NULL, &export->target, MANIFEST_NAME, export->err);
    }
    char *path = path_in(&export->target, MANIFEST_NAME, "");
    hps_status status =
        path == NULL ? no_memory(export->err)
                     : hps_dir_each(&export->parts, count_entry, &export->n_bytes, export->err);
    if (status == HPS_OK && hps_strings_append(&export->moved, MANIFEST_NAME) != HPS_OK) {
        status = no_memory(export->err);
    }
    if (status == HPS_OK) {
        status = hps_manifest_write(&export->manifest, path, export->err);
    }
    if (status == HPS_OK) {
        status = hps_dir_each(&export->parts, move_entry, export, export->err);
    }
    if (status == HPS_OK) {
        status = hps_dir_remove(&export->target, PARTS_NAME, export->err);
    }
    if (status == HPS_OK) {
        status = hps_dir_sync(&export->target, export->err);
    }
    hps_free(path);
    return status;
}

/* If another export has made the directory of parts in the meantime, it is not touched. */
static hps_status make_parts(struct export *export)
{
    if (mkdirat(export->target.fd, PARTS_NAME, 0700) != 0) {
        return errno == EEXIST ? refuse_entry(NULL, &export->target, PARTS_NAME, export->err)
                               : hps_file_error(export->err, errno, "cannot make a directory in",
                                                export->target.path);
    }
    return hps_dir_open_in(&export->target, PARTS_NAME, false, &export->parts, export->err);
}

/* Remove what the export has made. Other entries that appeared in the target stay. */
static void remove_own(struct export *export)
{
    struct hps_error ignored;
    hps_row_writer_abort(export->writer);
    for (size_t i = 0; i < export->moved.n; i++) {
        hps_ignore(hps_dir_remove(&export->target, export->moved.items[i], &ignored));
    }
    if (export->parts.fd >= 0) {
        hps_ignore(hps_dir_remove(&export->target, PARTS_NAME, &ignored));
    }
}

static hps_status export_rows(struct export *export, struct hps_space *space,
                              const struct hps_version *version, const char *directory)
{
    const struct hps_view view = {.tables = version->tables,
                                  .n_tables = version->n_tables,
                                  .ctx = export,
                                  .record = take_record,
                                  .begin = begin_table,
                                  .rows = take_rows};
    hps_status status = make_parts(export);
    export->manifest.tables = hps_calloc(version->n_tables, sizeof(*export->manifest.tables));
    export->manifest.lineage = version->lineage != NULL ? hps_strdup(version->lineage) : NULL;
    if (status == HPS_OK && (export->manifest.tables == NULL ||
                             (version->lineage != NULL && export->manifest.lineage == NULL))) {
        status = no_memory(export->err);
    }
    if (status == HPS_OK) {
        status = space->store->ops->durable->view(space, &view, export->err);
    }
    if (status == HPS_OK) {
        status = finish_table(export);
    }
    if (status == HPS_OK) {
        status = publish(export);
    }
    if (status != HPS_OK) {
        remove_own(export);
        status = hps_error_prefix(export->err, status, "%s is not exported to %.200s",
                                  version->model, directory);
    }
    hps_dir_close(&export->parts);
    return status;
}

/* ---- the method ------------------------------------------------------------------------------ */

static hps_status choose_form(const char *format, const struct hps_version *version,
                              enum hps_row_form *out_form, struct hps_error *err)
{
    bool is_hugectr = strcmp(format, "hugectr") == 0;
    bool is_tensors = strcmp(format, "safetensors") == 0;
    if (!is_hugectr && !is_tensors && format[0] != '\0' && strcmp(format, "npy") != 0) {
        return hps_error_set(err, HPS_INVALID,
                             "format: got \"%.40s\", expected npy, safetensors or hugectr", format);
    }
    for (uint32_t i = 0; i < version->n_tables && is_hugectr; i++) {
        if (version->tables[i].dtype != HPS_DTYPE_FP32) {
            return hps_error_set(err, HPS_PRECONDITION,
                                 "table \"%s\" has rows of %s, which the format hugectr cannot "
                                 "store; expected --format npy",
                                 version->tables[i].name, hps_dtype_name(version->tables[i].dtype));
        }
    }
    *out_form = is_hugectr   ? HPS_ROW_FORM_HUGECTR
                : is_tensors ? HPS_ROW_FORM_SAFETENSORS
                             : HPS_ROW_FORM_NPY_PAIR;
    return HPS_OK;
}

/* The space of the version in the durable store; NULL: there is no such store. */
static struct hps_space *durable_space(const struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        const struct hps_store *store = version->tiers[i]->store;
        if (store->ops->durable != NULL && store->ops->durable->view != NULL) {
            return version->tiers[i];
        }
    }
    return NULL;
}

static void put_reply(struct hps_unary *op, const struct export *export,
                      const struct hps_version *version, Hps__V1__ExportVersionResponse *reply)
{
    reply->version = version->number;
    reply->byte_count = export->n_bytes;
    for (size_t i = 0; i < export->manifest.n_tables; i++) {
        Hps__V1__ExportedTable *table = hps_unary_add(op, &hps__v1__exported_table__descriptor,
                                                      &reply->tables, &reply->n_tables);
        if (table == NULL) {
            return;
        }
        table->table = hps_unary_text(op, export->manifest.tables[i].name);
        table->row_count = export->manifest.tables[i].n_rows;
    }
    op->reply = &reply->base;
}

static void export_version(struct hps_unary *op, const struct hps_version *version,
                           Hps__V1__ExportVersionResponse *reply)
{
    const Hps__V1__ExportVersionRequest *request =
        (const Hps__V1__ExportVersionRequest *)op->request;
    const struct hps_strings *roots = admin_parts(op)->export_roots;
    struct export export = {.target.fd = -1, .parts.fd = -1, .err = &op->error};
    struct hps_space *space = durable_space(version);
    uint64_t start_us = hps_clock_us();
    hps_status status = choose_form(request->format, version, &export.form, &op->error);
    if (status == HPS_OK && space == NULL) {
        status = hps_error_set(&op->error, HPS_PRECONDITION,
                               "an export needs persistent_db, which is disabled");
    }
    if (status == HPS_OK && (roots == NULL || roots->n == 0)) {
        status = hps_error_set(&op->error, HPS_PRECONDITION,
                               "server.export_roots is empty; expected the directories below which "
                               "exports may be written");
    }
    if (status == HPS_OK) {
        status = open_target(roots, request->directory, &export.target, &op->error);
    }
    if (status == HPS_OK) {
        status = export_rows(&export, space, version, request->directory);
        if (status == HPS_OK) {
            HPS_LOG(INFO, "export", "version exported", HPS_STR("model", version->model),
                    HPS_I64("version", version->number), HPS_STR("directory", request->directory),
                    HPS_U64("bytes", export.n_bytes),
                    HPS_U64("duration_us", hps_clock_us() - start_us));
            put_reply(op, &export, version, reply);
        }
    }
    hps_dir_close(&export.target);
    hps_manifest_close(&export.manifest);
    hps_strings_fini(&export.moved);
}

void admin_export_version(struct hps_unary *op)
{
    const Hps__V1__ExportVersionRequest *request =
        (const Hps__V1__ExportVersionRequest *)op->request;
    struct hps_version *version = NULL;
    if (request->directory[0] != '/') {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "directory: got \"%.200s\", expected an absolute path",
                                 request->directory));
        return;
    }
    Hps__V1__ExportVersionResponse *reply =
        hps_unary_message(op, &hps__v1__export_version_response__descriptor);
    if (reply == NULL ||
        hps_models_pin(admin_parts(op)->models, request->model, strlen(request->model),
                       request->version, &version, &op->error) != HPS_OK) {
        return;
    }
    if (atomic_exchange(&under_way, true)) {
        hps_ignore(hps_error_set(&op->error, HPS_BUSY, "another export is in progress"));
    } else {
        export_version(op, version, reply);
        atomic_store(&under_way, false);
    }
    hps_version_unpin(version);
}
