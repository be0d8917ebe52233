/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk load of an empty space. Sorted rows are written to files in the database's directory. One
 * call ingests all of them, so the space has all rows or none.
 *
 *     loader ─▶ blocks of rows ─▶ rocksdb-load ─▶ files in `<path>/hpsd/load-<family>` ─▶ commit
 *
 * One thread loads. The load's own thread, rocksdb-load, writes the files at the same time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/worker.h"

enum {
    LOAD_BLOCKS = 8,
    LOAD_BLOCK_BYTES = 1 << 20, /* and at least one row; a row has at most 256 KiB */
};

#define SST_BYTES   (UINT64_C(256) << 20)
#define CHECK_BYTES (UINT64_C(64) << 20)

/* Rows of one table to be written: n times key and row. */
struct load_block {
    uint32_t n;
    uint32_t entry_bytes;
    char *data; /* [LOAD_BLOCK_BYTES] */
};

/* The loading thread fills blocks; the load's own thread writes them to files. */
struct hps_store_load {
    struct hps_rocksdb *store;
    struct hps_rocksdb_space *space;
    char *dir;

    bool any; /* a row was added; the next two fields are its place */
    uint32_t table;
    hps_key key;

    struct load_block blocks[LOAD_BLOCKS];
    struct hps_worker thread;
    struct hps_lock lock;
    struct hps_cond changed;
    uint64_t n_filled;  /* number of blocks; under `lock`, like the fields up to `error` */
    uint64_t n_written; /* number of blocks */
    bool ended;         /* no more blocks follow; the thread ends once all are written */
    hps_status status;  /* of the thread; after a failure further blocks are dropped */
    struct hps_error error;

    rocksdb_sstfilewriter_t *writer; /* NULL between files; of the thread, like the fields below */
    bool aligned;                    /* the blocks of the current or next file */
    char **files;
    size_t n_files;
    uint64_t file_bytes;
    uint64_t unchecked_bytes; /* written since free space was last checked */
};

/* ---- claiming the space ---------------------------------------------------------------------- */

static bool key_is_record(const char *key, size_t size)
{
    uint32_t prefix = 0;
    if (size >= HPS_ROCKSDB_RECORD_PREFIX_BYTES) {
        memcpy(&prefix, key, sizeof(prefix));
    }
    return prefix == HPS_ROCKSDB_RECORD_TABLE;
}

static hps_status space_check_empty(struct hps_rocksdb_space *space, struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(&space->base);
    rocksdb_iterator_t *iter =
        rocksdb_create_iterator_cf(store->db, store->read, space->family->handle);
    rocksdb_iter_seek_to_first(iter);
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    hps_status status = HPS_OK;
    if (text != NULL) {
        status = hps_rocksdb_fail_text(text, err, "cannot read the family");
    } else if (rocksdb_iter_valid(iter)) {
        size_t size = 0;
        const char *key = rocksdb_iter_key(iter, &size);
        status = key_is_record(key, size)
                     ? HPS_OK
                     : hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is not empty",
                                     space->family->name);
    }
    rocksdb_iter_destroy(iter);
    return status;
}

static hps_status load_claim(struct hps_rocksdb_space *space, bool claim, struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(&space->base);
    hps_status status = HPS_OK;
    hps_lock_acquire(&store->lock);
    if (claim && space->loading) {
        status = hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is being loaded already",
                               space->family->name);
    } else {
        HPS_ASSERT(claim || space->loading);
        space->loading = claim;
    }
    hps_lock_release(&store->lock);
    return status;
}

/* ---- ending a load --------------------------------------------------------------------------- */

/* Let the thread write all blocks and end. */
static void load_join(struct hps_store_load *load)
{
    hps_worker_stop(&load->thread, &load->lock, &load->changed, &load->ended);
}

/* The thread has ended, or was not started. */
static void load_free(struct hps_store_load *load)
{
    struct hps_error error;
    if (load->writer != NULL) {
        rocksdb_sstfilewriter_destroy(load->writer);
    }
    if (load->dir != NULL && hps_rocksdb_dir_remove_tree(load->dir, &error) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "load directory left behind: cannot be removed",
                HPS_STR("error", error.text));
    }
    for (size_t i = 0; i < load->n_files; i++) {
        hps_free(load->files[i]);
    }
    for (size_t i = 0; i < LOAD_BLOCKS; i++) {
        hps_free(load->blocks[i].data);
    }
    hps_free((void *)load->files);
    hps_free(load->dir);
    hps_ignore(load_claim(load->space, false, NULL)); /* releasing a claim cannot fail */
    hps_cond_fini(&load->changed);
    hps_lock_fini(&load->lock);
    hps_free(load);
}

void hps_rocksdb_load_abort(struct hps_store_load *load)
{
    hps_lock_acquire(&load->lock);
    load->status = load->status == HPS_OK ? HPS_CANCELLED : load->status;
    hps_lock_release(&load->lock);
    load_join(load);
    load_free(load);
}

/* ---- files ----------------------------------------------------------------------------------- */

static hps_status load_dir_make(struct hps_store_load *load, struct hps_error *err)
{
    char name[HPS_ROCKSDB_NAME_MAX_BYTES + 8];
    (void)snprintf(name, sizeof(name), "load-%s", load->space->family->name);
    load->dir = hps_rocksdb_dir_join(load->store->dir.path, name);
    if (load->dir == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    hps_status status = hps_rocksdb_dir_remove_tree(load->dir, err);
    if (status == HPS_OK && mkdir(load->dir, 0750) != 0) {
        status = hps_rocksdb_dir_fail(err, "cannot create", load->dir);
    }
    return status;
}

static hps_status load_file_open(struct hps_store_load *load, struct hps_error *err)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "%06zu.sst", load->n_files);
    char **files = hps_realloc((void *)load->files, (load->n_files + 1) * sizeof(*files));
    if (files == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    load->files = files;
    files[load->n_files] = hps_rocksdb_dir_join(load->dir, name);
    if (files[load->n_files] == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    load->n_files++;
    load->file_bytes = 0;
    load->writer = rocksdb_sstfilewriter_create(load->store->env_options,
                                                load->aligned ? load->store->sst_aligned
                                                              : load->store->sst_options);
    char *text = NULL;
    rocksdb_sstfilewriter_open(load->writer, files[load->n_files - 1], &text);
    return text == NULL ? HPS_OK : hps_rocksdb_fail_text(text, err, "cannot write a load file");
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
    return text == NULL ? HPS_OK : hps_rocksdb_fail_text(text, err, "cannot finish a load file");
}

/* Little more than half of the minimum free space is written between two checks of it. */
static hps_status load_check_space(struct hps_store_load *load, uint64_t bytes,
                                   struct hps_error *err)
{
    uint64_t reserve = load->store->dir.disk_free_min_bytes;
    load->unchecked_bytes += bytes;
    if (load->writer != NULL &&
        load->unchecked_bytes < hps_rocksdb_clamp(reserve / 2, 1, CHECK_BYTES)) {
        return HPS_OK;
    }
    load->unchecked_bytes = 0;
    return hps_rocksdb_dir_guard(&load->store->dir, bytes, err);
}

static hps_status load_write_entry(struct hps_store_load *load, const char *entry,
                                   uint32_t entry_bytes, struct hps_error *err)
{
    uint64_t bytes = (uint64_t)entry_bytes + HPS_DISK_ENTRY_BYTES - HPS_ROCKSDB_KEY_BYTES;
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
    char *text = NULL;
    rocksdb_sstfilewriter_put(load->writer, entry, HPS_ROCKSDB_KEY_BYTES,
                              entry + HPS_ROCKSDB_KEY_BYTES, entry_bytes - HPS_ROCKSDB_KEY_BYTES,
                              &text);
    if (text != NULL) {
        return hps_rocksdb_fail_text(text, err, "cannot write a load file");
    }
    load->file_bytes += bytes;
    return HPS_OK;
}

static hps_status load_write_block(struct hps_store_load *load, const struct load_block *block,
                                   struct hps_error *err)
{
    hps_status status = HPS_OK;
    bool aligned = hps_disk_aligned(block->entry_bytes - HPS_ROCKSDB_KEY_BYTES);
    if (aligned != load->aligned) {
        status = load_file_finish(load, err);
        load->aligned = aligned;
    }
    for (uint32_t i = 0; i < block->n && status == HPS_OK; i++) {
        status = load_write_entry(load, block->data + (size_t)i * block->entry_bytes,
                                  block->entry_bytes, err);
    }
    return status;
}

/* The thread of a load: writes blocks in order, then finishes the last file. */
static void *load_run(void *arg)
{
    struct hps_store_load *load = arg;
    struct hps_error error = {0};
    hps_status status = HPS_OK;
    hps_lock_acquire(&load->lock);
    for (;;) {
        while (load->n_written == load->n_filled && !load->ended) {
            hps_cond_wait(&load->changed, &load->lock);
        }
        HPS_ASSERT(load->n_written <= load->n_filled);
        bool more = load->n_written < load->n_filled;
        const struct load_block *block = &load->blocks[load->n_written % LOAD_BLOCKS];
        bool wanted = load->status == HPS_OK;
        hps_lock_release(&load->lock);
        if (wanted) {
            status = more ? load_write_block(load, block, &error) : load_file_finish(load, &error);
        }
        hps_lock_acquire(&load->lock);
        if (wanted && load->status == HPS_OK && status != HPS_OK) {
            load->status = status;
            load->error = error;
        }
        if (!more) {
            break;
        }
        load->n_written++;
        hps_cond_signal(&load->changed);
    }
    hps_lock_release(&load->lock);
    return NULL;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static hps_status load_status(struct hps_store_load *load, struct hps_error *err)
{
    hps_lock_acquire(&load->lock);
    hps_status status = load->status;
    if (status != HPS_OK && err != NULL) {
        *err = load->error;
    }
    hps_lock_release(&load->lock);
    return status;
}

/* Pass the current block to the thread, and wait until the next one is free. */
static hps_status load_hand_over(struct hps_store_load *load, struct hps_error *err)
{
    hps_lock_acquire(&load->lock);
    if (load->blocks[load->n_filled % LOAD_BLOCKS].n > 0) {
        load->n_filled++;
        hps_cond_signal(&load->changed);
    }
    while (load->n_filled - load->n_written == LOAD_BLOCKS) {
        hps_cond_wait(&load->changed, &load->lock);
    }
    HPS_ASSERT(load->n_filled - load->n_written < LOAD_BLOCKS);
    load->blocks[load->n_filled % LOAD_BLOCKS].n = 0;
    hps_lock_release(&load->lock);
    return load_status(load, err);
}

static hps_status load_add_row(struct hps_store_load *load, const struct hps_table *table,
                               hps_key key, const uint8_t *row, struct hps_error *err)
{
    if (load->any && (table->id < load->table || (table->id == load->table && key <= load->key))) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: table %s: got key %" PRIu64
                             ", expected keys in ascending order",
                             table->name, key);
    }
    uint32_t entry_bytes = HPS_ROCKSDB_KEY_BYTES + table->row_bytes;
    struct load_block *block = &load->blocks[load->n_filled % LOAD_BLOCKS];
    if (block->n > 0 &&
        (load->table != table->id || (size_t)(block->n + 1) * entry_bytes > LOAD_BLOCK_BYTES)) {
        hps_status status = load_hand_over(load, err);
        if (status != HPS_OK) {
            return status;
        }
        block = &load->blocks[load->n_filled % LOAD_BLOCKS];
    }
    char *entry = block->data + (size_t)block->n * entry_bytes;
    hps_rocksdb_key_encode(entry, table->id, key);
    memcpy(entry + HPS_ROCKSDB_KEY_BYTES, row, table->row_bytes);
    block->entry_bytes = entry_bytes;
    block->n++;
    HPS_DEBUG_ASSERT((size_t)block->n * entry_bytes <= LOAD_BLOCK_BYTES);
    load->any = true;
    load->table = table->id;
    load->key = key;
    return HPS_OK;
}

hps_status hps_rocksdb_load_add(struct hps_store_load *load, const struct hps_table *table,
                                const hps_key *keys, const uint8_t *rows, uint32_t n,
                                struct hps_error *err)
{
    hps_status status = HPS_OK;
    HPS_ASSERT(HPS_ROCKSDB_KEY_BYTES + table->row_bytes <= LOAD_BLOCK_BYTES);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = load_add_row(load, table, keys[i], rows + (size_t)i * table->row_bytes, err);
    }
    return status;
}

/* ---- begin and commit ------------------------------------------------------------------------ */

static hps_status load_blocks_make(struct hps_store_load *load, struct hps_error *err)
{
    for (size_t i = 0; i < LOAD_BLOCKS; i++) {
        load->blocks[i].data = hps_alloc(LOAD_BLOCK_BYTES);
        if (load->blocks[i].data == NULL) {
            return hps_rocksdb_fail_memory(err);
        }
    }
    return HPS_OK;
}

/* Estimated bytes of a load on disk. The tables may lack their numbers of rows. */
static uint64_t load_bytes(const struct hps_rocksdb_space *space, uint64_t rows_expected,
                           uint64_t bytes_expected)
{
    uint64_t n_rows = 0;
    uint64_t needed = 0;
    bool aligned = false;
    for (uint32_t i = 0; i < space->n_tables; i++) {
        const struct hps_table *table = &space->tables[i];
        n_rows += table->n_rows;
        needed += hps_disk_table_bytes(table->n_rows, table->row_bytes);
        aligned = aligned || hps_disk_aligned(table->row_bytes);
    }
    if (n_rows == rows_expected) {
        return needed;
    }
    if (__builtin_mul_overflow(rows_expected, (uint64_t)HPS_DISK_ENTRY_BYTES, &needed) ||
        __builtin_add_overflow(needed, bytes_expected, &needed) ||
        __builtin_add_overflow(needed, aligned ? needed / HPS_DISK_ALIGN_SHARE : 0, &needed)) {
        return UINT64_MAX;
    }
    return needed;
}

hps_status hps_rocksdb_load_begin(struct hps_space *base, uint64_t rows_expected,
                                  uint64_t bytes_expected, struct hps_store_load **out_load,
                                  struct hps_error *err)
{
    struct hps_rocksdb_space *space = (struct hps_rocksdb_space *)base;
    struct hps_rocksdb *store = hps_rocksdb_of(base);
    if (store->dir.read_only) {
        return hps_rocksdb_fail_read_only(store, err);
    }
    hps_status status =
        hps_rocksdb_dir_guard(&store->dir, load_bytes(space, rows_expected, bytes_expected), err);
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
        hps_ignore(load_claim(space, false, NULL)); /* releasing a claim cannot fail */
        return hps_rocksdb_fail_memory(err);
    }
    load->store = store;
    load->space = space;
    hps_lock_init(&load->lock, HPS_LOCK_ROCKSDB_LOAD);
    hps_cond_init(&load->changed);
    status = load_blocks_make(load, err);
    if (status == HPS_OK) {
        status = load_dir_make(load, err);
    }
    if (status == HPS_OK &&
        hps_worker_start(&load->thread, "rocksdb-load", 0, load_run, load) != HPS_OK) {
        status = hps_error_set(err, HPS_EXHAUSTED, "rocksdb: no thread to load with");
    }
    if (status != HPS_OK) {
        load_free(load);
        return status;
    }
    *out_load = load;
    return HPS_OK;
}

hps_status hps_rocksdb_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct hps_rocksdb *store = load->store;
    hps_status status = load_hand_over(load, err);
    load_join(load);
    if (status == HPS_OK) {
        status = load_status(load, err);
    }
    if (status == HPS_OK) {
        status = hps_rocksdb_dir_guard_small(&store->dir, 0, err);
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
            return hps_rocksdb_fail_text(text, err, "cannot ingest the load");
        }
    }
    load_free(load);
    hps_rocksdb_mode_review(store);
    return HPS_OK;
}
