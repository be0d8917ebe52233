/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows and deletes from files of tables, or from the difference of two sets of them. One thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/modeldir.h"
#include "base/rows/npy.h"
#include "base/rows/rowfile.h"
#include "base/rows/rowsort.h"
#include "config/manifest.h"
#include "tools/hps-publish.h"

enum {
    PIECE_BYTES = 1 << 20,
    PIECE_ROWS_MAX = 1 << 14,
    SORT_BYTES = 128 << 20,
    DISK_FREE_BYTES_MIN = 64 << 20
};

/* The tables at one path. */
struct source {
    struct hps_model_dir dir;
    struct hps_manifest manifest; /* of dir */
    struct hps_model_table one;
    const struct hps_model_table *tables; /* [n], of dir or one */
    size_t n;
};

static void source_close(struct source *source)
{
    hps_model_dir_close(&source->dir);
    hps_manifest_close(&source->manifest);
    hps_model_table_close(&source->one);
}

static bool exists_in(const char *dir, const char *name)
{
    char *path = hps_file_path("%s/%s", dir, name);
    bool exists = path != NULL && access(path, F_OK) == 0;

    hps_free(path);
    return exists;
}

/* "items" for path/items.rows.npy, path/items.npy and path/items/. NULL: no memory. */
static char *table_name_of(const char *path)
{
    HPS_ASSERT(path != NULL);
    static const char *const tails[] = {".rows.npy", ".keys.npy", ".npy"};
    size_t end = strlen(path);

    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        size_t size = strlen(tails[i]);
        if (end - begin > size && memcmp(path + end - size, tails[i], size) == 0) {
            end -= size;
            break;
        }
    }
    return hps_strndup(path + begin, end - begin);
}

static hps_status source_open_one(struct source *source, const char *table, const char *path,
                                  struct hps_error *err)
{
    char *name = table != NULL ? hps_strdup(table) : table_name_of(path);

    if (name == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_status status = HPS_OK;
    if (!hps_model_name_valid(name)) {
        status = hps_error_set(err, HPS_INVALID,
                               "%s: \"%s\" is not a table name; give one with --table", path, name);
    } else {
        status = hps_model_table_open(name, path, NULL, &source->one, err);
    }
    hps_free(name);
    source->tables = &source->one;
    source->n = status == HPS_OK;
    return status;
}

/* Opens a table or a directory of tables; with `table` only that one. */
static hps_status source_open(struct source *source, const char *table, const char *path,
                              struct hps_error *err)
{
    struct stat st;

    *source = (struct source){0};
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (!directory || exists_in(path, "emb_vector") || exists_in(path, "key")) {
        return source_open_one(source, table, path, err);
    }
    hps_status status = hps_model_dir_open(path, NULL, &source->dir, err);
    if (status == HPS_OK) {
        status = hps_manifest_open(&source->dir, &source->manifest, err);
    }
    if (status != HPS_OK) {
        source_close(source);
        return status;
    }
    source->tables = source->dir.tables;
    source->n = source->dir.n_tables;
    if (table == NULL) {
        return HPS_OK;
    }
    for (size_t i = 0; i < source->dir.n_tables; i++) {
        if (strcmp(source->dir.tables[i].name, table) == 0) {
            source->tables = &source->dir.tables[i];
            source->n = 1;
            return HPS_OK;
        }
    }
    status = hps_error_set(err, HPS_NOT_FOUND, "%s has no table %s", path, table);
    source_close(source);
    return status;
}

/* ---- all rows -------------------------------------------------------------------------------- */

/* Buffers for rows of one table. */
struct piece {
    hps_key *keys;
    uint8_t *rows;
    size_t capacity;
};

static hps_status piece_init(struct piece *piece, size_t row_bytes, struct hps_error *err)
{
    HPS_ASSERT(row_bytes > 0 && piece->keys == NULL);
    piece->capacity = PIECE_BYTES / row_bytes;
    if (piece->capacity > PIECE_ROWS_MAX) {
        piece->capacity = PIECE_ROWS_MAX;
    }
    if (piece->capacity == 0) {
        piece->capacity = 1;
    }
    piece->keys = hps_alloc(piece->capacity * sizeof(*piece->keys));
    piece->rows = hps_alloc(piece->capacity * row_bytes);
    if (piece->keys == NULL || piece->rows == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    return HPS_OK;
}

static void piece_fini(struct piece *piece)
{
    hps_free(piece->keys);
    hps_free(piece->rows);
}

/* As in a load, rows of uint16 or <V2 are BF16 if their manifest or the option says so. */
static hps_status reader_open(const struct publish_input *input, const struct source *source,
                              const struct hps_model_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
{
    const struct hps_manifest_table *said = hps_manifest_find(&source->manifest, table->name);
    bool bf16 = input->row_dtype == HPS_DTYPE_BF16;
    const struct hps_row_options options = {.form = table->form,
                                            .key_bytes = 8,
                                            .nan_allowed = input->nan_allowed,
                                            .dtype = said != NULL && said->dtype != 0 ? said->dtype
                                                     : bf16 ? HPS_DTYPE_BF16
                                                            : 0};

    return hps_row_reader_open(table->path, &options, out_reader, err);
}

static size_t row_bytes_of(const struct hps_row_desc *desc)
{
    return (size_t)hps_dtype_row_bytes(desc->dtype, desc->dim);
}

static hps_status publish_reader(struct publish *publish, const char *name,
                                 struct hps_row_reader *reader, struct hps_error *err)
{
    HPS_ASSERT(reader != NULL);
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    struct piece piece = {0};
    size_t n = 1;

    hps_status status = piece_init(&piece, row_bytes_of(desc), err);
    while (status == HPS_OK && n > 0) {
        status = hps_row_reader_next(reader, piece.capacity, piece.keys, piece.rows, &n, err);
        if (status == HPS_OK) {
            status =
                publish_rows(publish, name, desc->dim, desc->dtype, piece.keys, piece.rows, n, err);
        }
    }
    if (status == HPS_OK) {
        status = publish_flush(publish, err);
    }
    piece_fini(&piece);
    return status;
}

hps_status publish_from(struct publish *publish, const struct publish_input *input,
                        const char *path, struct hps_error *err)
{
    struct source source;

    hps_status status = source_open(&source, input->table, path, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_row_reader **readers = hps_calloc(source.n, sizeof(*readers));
    if (readers == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "out of memory");
        goto close_source;
    }
    /* Opens all files before it sends a row, so that most errors appear now. */
    for (size_t i = 0; i < source.n && status == HPS_OK; i++) {
        status = reader_open(input, &source, &source.tables[i], &readers[i], err);
        if (status == HPS_OK) {
            const struct hps_row_desc *desc = hps_row_reader_desc(readers[i]);
            publish_expect(publish, desc->n_rows);
            status = publish_table(publish, source.tables[i].name, desc->dim, desc->dtype, err);
        }
    }
    for (size_t i = 0; i < source.n && status == HPS_OK; i++) {
        status = publish_reader(publish, source.tables[i].name, readers[i], err);
    }
    for (size_t i = 0; i < source.n; i++) {
        hps_row_reader_close(readers[i]);
    }
    hps_free(readers);

close_source:
    source_close(&source);
    return status;
}

/* ---- difference ------------------------------------------------------------------------------ */

/* The rows of one table by ascending key. */
struct side {
    struct hps_row_reader *reader;
    struct hps_rowsort *sort;
    struct piece piece;
    size_t n;
    size_t at;
};

static void side_close(struct side *side)
{
    hps_rowsort_free(side->sort);
    hps_row_reader_close(side->reader);
    piece_fini(&side->piece);
}

static hps_status side_open(struct side *side, const struct publish_input *input,
                            const struct source *source, const struct hps_model_table *table,
                            struct hps_error *err)
{
    const char *dir = getenv("TMPDIR");

    hps_status status = reader_open(input, source, table, &side->reader, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_row_desc *desc = hps_row_reader_desc(side->reader);
    const struct hps_rowsort_options options = {
        .row_bytes = (uint32_t)row_bytes_of(desc),
        .memory_bytes = SORT_BYTES,
        .n_rows_hint = desc->n_rows,
        .dir = dir != NULL && dir[0] != '\0' ? dir : "/tmp",
        .disk_free_bytes_min = DISK_FREE_BYTES_MIN,
    };
    status = piece_init(&side->piece, row_bytes_of(desc), err);
    if (status == HPS_OK) {
        status = hps_rowsort_new(&options, &side->sort, err);
    }
    if (status == HPS_OK) {
        status = hps_rowsort_take(side->sort, side->reader, err);
    }
    if (status == HPS_OK) {
        status = hps_rowsort_finish(side->sort, err);
    }
    return status;
}

/* Makes keys[at] the next key; n is 0 at the end. */
static hps_status side_fill(struct side *side, struct hps_error *err)
{
    HPS_ASSERT(side->at <= side->n);
    if (side->at < side->n) {
        return HPS_OK;
    }
    side->at = 0;
    return hps_rowsort_next(side->sort, side->piece.capacity, side->piece.keys, side->piece.rows,
                            &side->n, err);
}

static hps_status diff_sides(struct publish *publish, const char *name, struct side *old,
                             struct side *new, struct hps_error *err)
{
    HPS_ASSERT(old->n == 0 && new->n == 0);
    const struct hps_row_desc *desc = hps_row_reader_desc(new->reader);
    size_t row_bytes = row_bytes_of(desc);

    for (;;) {
        hps_status status = side_fill(old, err);
        if (status == HPS_OK) {
            status = side_fill(new, err);
        }
        if (status != HPS_OK || (old->n == 0 && new->n == 0)) {
            return status;
        }
        const hps_key *was = old->n > 0 ? &old->piece.keys[old->at] : NULL;
        const hps_key *is = new->n > 0 ? &new->piece.keys[new->at] : NULL;
        const uint8_t *row = new->piece.rows + new->at *row_bytes;
        if (is == NULL || (was != NULL && *was < *is)) {
            status = publish_deletes(publish, name, was, 1, err);
            old->at++;
        } else if (was == NULL || *is < *was) {
            status = publish_rows(publish, name, desc->dim, desc->dtype, is, row, 1, err);
            new->at++;
        } else {
            if (memcmp(old->piece.rows + old->at * row_bytes, row, row_bytes) != 0) {
                status = publish_rows(publish, name, desc->dim, desc->dtype, is, row, 1, err);
            }
            old->at++;
            new->at++;
        }
        if (status != HPS_OK) {
            return status;
        }
    }
}

static const struct hps_model_table *source_find(const struct source *source, const char *name)
{
    HPS_ASSERT(source->tables != NULL || source->n == 0);
    for (size_t i = 0; i < source->n; i++) {
        if (strcmp(source->tables[i].name, name) == 0) {
            return &source->tables[i];
        }
    }
    return NULL;
}

/* Publishes the difference of a table that both sources have. */
static hps_status diff_table(struct publish *publish, const struct publish_input *input,
                             const struct source *old_source, const struct source *new_source,
                             const struct hps_model_table *new_table, struct hps_error *err)
{
    const struct hps_model_table *old_table = source_find(old_source, new_table->name);
    struct side old = {0};
    struct side new = {0};

    HPS_ASSERT(old_table != NULL);
    hps_status status = side_open(&old, input, old_source, old_table, err);
    if (status == HPS_OK) {
        status = side_open(&new, input, new_source, new_table, err);
    }
    if (status == HPS_OK) {
        const struct hps_row_desc *was = hps_row_reader_desc(old.reader);
        const struct hps_row_desc *is = hps_row_reader_desc(new.reader);
        if (was->dim != is->dim || was->dtype != is->dtype) {
            status = hps_error_set(
                err, HPS_INVALID,
                "table %s: rows of %u values as %s in %s, and of %u as %s in %s: a table changes "
                "its width or type only with a new version; load a new one",
                new_table->name, was->dim, hps_dtype_name(was->dtype), old_table->path, is->dim,
                hps_dtype_name(is->dtype), new_table->path);
        }
    }
    if (status == HPS_OK) {
        status = diff_sides(publish, new_table->name, &old, &new, err);
    }
    if (status == HPS_OK) {
        status = publish_flush(publish, err);
    }
    side_close(&old);
    side_close(&new);
    return status;
}

/* Tables are added and removed with a version, not by updates. */
static hps_status same_tables(const struct source *a, const struct source *b, const char *a_path,
                              const char *b_path, struct hps_error *err)
{
    for (size_t i = 0; i < a->n; i++) {
        if (source_find(b, a->tables[i].name) == NULL) {
            return hps_error_set(err, HPS_INVALID,
                                 "table %s is in %s but not in %s: a model changes its tables only "
                                 "with a new version; load a new one",
                                 a->tables[i].name, a_path, b_path);
        }
    }
    return HPS_OK;
}

/* Sorting takes a while before rows are sent, so the servers are checked first. */
static hps_status announce(struct publish *publish, const struct publish_input *input,
                           const struct source *source, const struct hps_model_table *table,
                           struct hps_error *err)
{
    struct hps_row_reader *reader = NULL;

    hps_status status = reader_open(input, source, table, &reader, err);
    if (status == HPS_OK) {
        const struct hps_row_desc *desc = hps_row_reader_desc(reader);
        status = publish_table(publish, table->name, desc->dim, desc->dtype, err);
    }
    hps_row_reader_close(reader);
    return status;
}

hps_status publish_diff(struct publish *publish, const struct publish_input *input,
                        const char *old_path, const char *new_path, struct hps_error *err)
{
    struct source old;
    struct source new;

    hps_status status = source_open(&new, input->table, new_path, err);
    if (status != HPS_OK) {
        return status;
    }
    /* Two single tables are compared, whatever the names of their files. */
    const char *one = new.tables == &new.one ? new.one.name : input->table;
    status = source_open(&old, one, old_path, err);
    if (status != HPS_OK) {
        goto close_new;
    }
    status = same_tables(&old, &new, old_path, new_path, err);
    if (status == HPS_OK) {
        status = same_tables(&new, &old, new_path, old_path, err);
    }
    for (size_t i = 0; i < new.n &&status == HPS_OK; i++) {
        status = announce(publish, input, &new, &new.tables[i], err);
    }
    for (size_t i = 0; i < new.n &&status == HPS_OK; i++) {
        status = diff_table(publish, input, &old, &new, &new.tables[i], err);
    }
    source_close(&old);

close_new:
    source_close(&new);
    return status;
}

/* ---- keys of a .npy -------------------------------------------------------------------------- */

static hps_status npy_keys(struct publish *publish, const char *table, const char *path, int fd,
                           uint64_t size, struct hps_error *err)
{
    HPS_ASSERT(table != NULL);
    static hps_key keys[PIECE_ROWS_MAX];
    uint8_t head[4096];
    struct hps_npy npy;

    size_t head_size = size < sizeof(head) ? (size_t)size : sizeof(head);
    hps_status status = hps_file_pread(fd, path, head, head_size, 0, err);
    if (status == HPS_OK) {
        status = hps_npy_parse(head, head_size, &npy, err);
        if (status != HPS_OK) {
            return hps_error_prefix(err, status, "%s", path);
        }
    }
    if (status == HPS_OK && !hps_npy_is_keys(&npy)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: expected one dimension of int64, uint64, int32 or uint32", path);
    }
    uint64_t key_bytes = status == HPS_OK ? hps_npy_type_bytes(npy.type) : 0;
    for (uint64_t done = 0; status == HPS_OK && done < npy.shape[0];) {
        uint64_t left = npy.shape[0] - done;
        size_t n = left < PIECE_ROWS_MAX ? (size_t)left : PIECE_ROWS_MAX;
        status =
            hps_file_pread(fd, path, keys, n * key_bytes, npy.data_offset + done * key_bytes, err);
        if (status == HPS_OK) {
            hps_npy_widen_keys(npy.type, keys, n);
            status = publish_deletes(publish, table, keys, n, err);
        }
        done += n;
    }
    return status;
}

hps_status publish_deletes_file(struct publish *publish, const struct publish_input *input,
                                const char *path, struct hps_error *err)
{
    uint64_t size;
    int fd;

    hps_status status = hps_file_open_read(path, &fd, &size, err);
    if (status != HPS_OK) {
        return status;
    }
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".npy") == 0) {
        HPS_ASSERT(input->table != NULL);
        status = npy_keys(publish, input->table, path, fd, size, err);
    } else {
        struct publish_input keys = *input;
        keys.keys_only = true;
        status = publish_lines(publish, &keys, fd, err);
        if (status != HPS_OK) {
            hps_ignore(hps_error_prefix(err, status, "%s", path));
        }
    }
    (void)close(fd);
    return status == HPS_OK ? publish_flush(publish, err) : status;
}
