/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of base files share: a store in a directory of the test, tables with rows of
 * several widths, and a model, which has the rows that the store must have. One thread.
 */
#ifndef HPS_TESTS_UNIT_BACKENDS_BASEFILE_BASEFILE_TEST_H
#define HPS_TESTS_UNIT_BACKENDS_BASEFILE_BASEFILE_TEST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/basefile/internal.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/hash.h"
#include "tests/lib/tmpdir.h"

enum {
    N_TABLES = 5,
    N_KEYS = 2000,   /* of a table, in the range of its base */
    N_FURTHER = 100, /* further keys, outside the range */
    MODEL_KEYS = N_KEYS + N_FURTHER,
    FREE_MIN = 8 << 20,
    ROW_BYTES_MAX = 4500,
};

static struct hps_tmpdir own;
static struct hps_error error;
static const struct hps_call no_limit = {0};
static struct hps_table tables[N_TABLES] = {
    {.name = "a", .id = 0, .dim = 16, .row_bytes = 64, .dtype = HPS_DTYPE_FP32},
    {.name = "b", .id = 1, .dim = 128, .row_bytes = 132, .dtype = HPS_DTYPE_INT8_ROWWISE_F32},
    {.name = "c", .id = 2, .dim = 130, .row_bytes = 520, .dtype = HPS_DTYPE_FP32},
    {.name = "d", .id = 3, .dim = 1125, .row_bytes = 4500, .dtype = HPS_DTYPE_FP32},
    {.name = "s", .id = 4, .dim = 16, .row_bytes = 64, .dtype = HPS_DTYPE_FP32}, /* sparse */
};
static const hps_key firsts[N_TABLES] = {0, 1000, UINT64_MAX - N_KEYS - N_FURTHER * 1000, 7, 0};
/* The write that each row has; 0: there is no row. */
static uint32_t model[N_TABLES][MODEL_KEYS];

static inline hps_key key_of(uint32_t table, uint32_t i)
{
    if (table == 4) {
        return (hps_key)i * 1000;
    }
    return i < N_KEYS ? firsts[table] + i : firsts[table] + N_KEYS + (hps_key)(i - N_KEYS) * 1000;
}

/* Byte i of a row is byte i % 8 of a word XOR i. Four bytes at a time, as a check fills 30 MB;
 * row_bytes is a multiple of 4. */
static inline void fill(uint8_t *row, uint32_t row_bytes, hps_key key, uint32_t seq)
{
    uint64_t word = hps_mix64(key * 31 + seq);
    for (uint32_t i = 0; i < row_bytes; i += 4) {
        uint32_t value = (uint32_t)(word >> i % 8 * 8) ^ (0x03020100U + (i & 0xff) * 0x01010101U);
        memcpy(row + i, &value, 4);
    }
}

struct open_options {
    bool off;
    bool read_only;
    bool no_uring;
    bool merges; /* in the background, after every change */
    bool usual;  /* merges as in hpsd */
    enum hps_read_mode mode;
    uint64_t memory_bytes;
    const atomic_uint_fast64_t *mapped_bytes;
};

static struct open_options how;

static inline hps_status try_open(struct hps_store **out_store)
{
    const struct hps_rocksdb_options options = {.path = own.path,
                                                .n_threads = 2,
                                                .batch_keys_max = 1000,
                                                .read_only = how.read_only,
                                                .disk_free_min_bytes = FREE_MIN,
                                                .base_files = !how.off};
    struct hps_store *inner = NULL;
    hps_status status = hps_rocksdb_open(&options, &inner, &error);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_basefile_options base = {.inner = inner,
                                              .path = own.path,
                                              .read_only = how.read_only,
                                              .write = !how.off,
                                              .read_mode = how.mode,
                                              .memory_bytes = how.memory_bytes,
                                              .mapped_bytes = how.mapped_bytes,
                                              .readers = hps_rocksdb_readers(inner),
                                              .no_uring = how.no_uring,
                                              .rows_min = 64,
                                              .merge_ppm = how.usual    ? 0
                                                           : how.merges ? 1
                                                                        : 2000000000};
    status = hps_basefile_open(&base, out_store, &error);
    if (status != HPS_OK) {
        inner->ops->close(inner);
    }
    return status;
}

static inline struct hps_store *open_store(void)
{
    struct hps_store *store = NULL;
    if (try_open(&store) != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    hps_store_check(store->ops);
    return store;
}

static inline hps_status try_space(struct hps_store *store, struct hps_space **out_space)
{
    const struct hps_space_id id = {"m", 1, tables, N_TABLES, 0};
    return store->ops->space_open(store, &id, out_space, &error);
}

static inline struct hps_space *open_space(struct hps_store *store)
{
    struct hps_space *space = NULL;
    if (try_space(store, &space) != HPS_OK) {
        fail_msg("space_open: %s", error.text);
    }
    return space;
}

static inline void close_all(struct hps_space *space)
{
    struct hps_store *store = space->store;
    store->ops->space_close(space);
    store->ops->close(store);
}

/* Close and open again. */
static inline struct hps_space *restart(struct hps_space *space)
{
    close_all(space);
    return open_space(open_store());
}

static inline int setup(void **state)
{
    (void)state;
    hps_tmpdir_open(&own);
    memset(model, 0, sizeof(model));
    how = (struct open_options){.memory_bytes = UINT64_MAX};
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    hps_tmpdir_close(&own);
    return 0;
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* The rows that a load writes: one in 97 keys of the range does not exist. */
static inline bool is_loaded(uint32_t i)
{
    return i % 97 != 13;
}

static inline hps_status load_rows(struct hps_space *space, struct hps_store_load **out_load)
{
    static uint8_t rows[MODEL_KEYS * 520];
    static hps_key keys[MODEL_KEYS];
    const struct hps_store_bulk_ops *bulk = space->store->ops->bulk;
    hps_status status = bulk->begin(space, 0, 0, out_load, &error);
    for (uint32_t t = 0; t < N_TABLES && status == HPS_OK; t++) {
        uint32_t n_max = (uint32_t)(sizeof(rows) / tables[t].row_bytes);
        n_max = n_max < 500 ? n_max : 500;
        uint32_t n = 0;
        for (uint32_t i = 0; i < MODEL_KEYS && status == HPS_OK; i++) {
            if (is_loaded(i)) {
                keys[n] = key_of(t, i);
                fill(rows + (size_t)n++ * tables[t].row_bytes, tables[t].row_bytes, key_of(t, i),
                     1);
            }
            if (n == n_max || i == MODEL_KEYS - 1) {
                status = bulk->add(*out_load, &tables[t], keys, rows, n, &error);
                n = 0;
            }
        }
    }
    return status;
}

static inline void load(struct hps_space *space)
{
    struct hps_store_load *rows = NULL;
    hps_status status = load_rows(space, &rows);
    if (status == HPS_OK) {
        status = space->store->ops->bulk->commit(rows, &error);
    }
    if (status != HPS_OK) {
        fail_msg("load: %s", error.text);
    }
    for (uint32_t t = 0; t < N_TABLES; t++) {
        for (uint32_t i = 0; i < MODEL_KEYS; i++) {
            model[t][i] = is_loaded(i) ? 1 : 0;
        }
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Write the keys [first, first + n) of the model, every `step`-th of them. seq 0: delete them. */
static inline hps_status write_some(struct hps_space *space, uint32_t t, uint32_t first, uint32_t n,
                                    uint32_t step, uint32_t seq)
{
    static uint8_t rows[512 * ROW_BYTES_MAX];
    hps_key keys[512];
    uint32_t n_keys = 0;
    for (uint32_t i = first; i < first + n && i < MODEL_KEYS && n_keys < 512; i += step) {
        keys[n_keys] = key_of(t, i);
        fill(rows + (size_t)n_keys++ * tables[t].row_bytes, tables[t].row_bytes, key_of(t, i), seq);
    }
    const struct hps_write write = {&tables[t], keys, seq != 0 ? rows : NULL, n_keys};
    const struct hps_record record = {"pos", 3, &seq, sizeof(seq)};
    hps_status status =
        space->store->ops->durable->apply(space, &no_limit, &write, 1, &record, 1, &error);
    for (uint32_t i = first, k = 0; status == HPS_OK && k < n_keys; i += step, k++) {
        model[t][i] = seq;
    }
    return status;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Look up the keys [first, first + n) of the model, and one unknown key. */
static inline hps_status look_up(struct hps_space *space, uint32_t t, uint32_t first, uint32_t n,
                                 uint8_t *found, uint8_t *rows)
{
    static hps_key keys[MODEL_KEYS + 1];
    static uint32_t slots[MODEL_KEYS + 1];
    n = first + n < MODEL_KEYS ? n : MODEL_KEYS - first;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)((uint64_t)i * 7919 % n); /* in no order */
        keys[i] = key_of(t, first + at);
        slots[i] = at;
    }
    keys[n] = key_of(t, MODEL_KEYS - 1) + 5;
    slots[n] = n;
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = n + 1};
    hps_status status = space->store->ops->get(space, &no_limit, &tables[t], &batch);
    memset(found, 1, n + 1);
    for (uint32_t i = 0; i < batch.n; i++) {
        found[slots[i]] = 0;
    }
    return status;
}

static inline void check_some(struct hps_space *space, uint32_t t, uint32_t first, uint32_t n)
{
    static uint8_t rows[(MODEL_KEYS + 1) * (size_t)ROW_BYTES_MAX];
    static uint8_t found[MODEL_KEYS + 1];
    uint8_t expected[ROW_BYTES_MAX];
    assert_int_equal(look_up(space, t, first, n, found, rows), HPS_OK);
    n = first + n < MODEL_KEYS ? n : MODEL_KEYS - first;
    assert_int_equal(found[n], 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t seq = model[t][first + i];
        if (found[i] != (seq != 0)) {
            fail_msg("table %u key %u: found %d, write %u", t, first + i, found[i], seq);
        }
        if (seq != 0) {
            fill(expected, tables[t].row_bytes, key_of(t, first + i), seq);
            assert_memory_equal(rows + (size_t)i * tables[t].row_bytes, expected,
                                tables[t].row_bytes);
        }
    }
}

struct scanned {
    uint32_t t;
    uint32_t at; /* index in the model of the next key */
};

static inline hps_status scanned_rows(void *ctx, const hps_key *keys, const uint8_t *rows,
                                      uint32_t n)
{
    struct scanned *scanned = ctx;
    uint8_t expected[ROW_BYTES_MAX];
    const struct hps_table *table = &tables[scanned->t];
    for (uint32_t i = 0; i < n; i++) {
        while (scanned->at < MODEL_KEYS && model[scanned->t][scanned->at] == 0) {
            scanned->at++;
        }
        assert_true(scanned->at < MODEL_KEYS);
        if (keys[i] != key_of(scanned->t, scanned->at)) {
            fail_msg("scan of table %u: key %llu instead of number %u", scanned->t,
                     (unsigned long long)keys[i], scanned->at);
        }
        fill(expected, table->row_bytes, keys[i], model[scanned->t][scanned->at]);
        assert_memory_equal(rows + (size_t)i * table->row_bytes, expected, table->row_bytes);
        scanned->at++;
    }
    return HPS_OK;
}

static inline void scanned_end(const struct scanned *scanned)
{
    for (uint32_t i = scanned->at; i < MODEL_KEYS; i++) {
        assert_int_equal(model[scanned->t][i], 0);
    }
}

struct viewed {
    struct scanned scanned;
    unsigned n_tables;
    unsigned n_records;
};

static inline hps_status viewed_record(void *ctx, const void *key, size_t key_size,
                                       const void *value, size_t value_size)
{
    (void)value;
    assert_int_equal(key_size, 3);
    assert_memory_equal(key, "pos", 3);
    assert_int_equal(value_size, 4);
    ((struct viewed *)ctx)->n_records++;
    return HPS_OK;
}

static inline hps_status viewed_begin(void *ctx, const struct hps_table *table)
{
    struct viewed *viewed = ctx;
    if (viewed->n_tables > 0) {
        scanned_end(&viewed->scanned);
    }
    assert_ptr_equal(table, &tables[viewed->n_tables]);
    viewed->scanned = (struct scanned){.t = viewed->n_tables++};
    return HPS_OK;
}

static inline hps_status viewed_rows(void *ctx, const struct hps_table *table, const hps_key *keys,
                                     const uint8_t *rows, uint32_t n)
{
    struct viewed *viewed = ctx;
    assert_int_equal(table->id, viewed->scanned.t);
    return scanned_rows(&viewed->scanned, keys, rows, n);
}

/* The store has exactly the rows of the model: lookups, scans and a view agree. */
static inline void check_all(struct hps_space *space)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        struct scanned scanned = {.t = t};
        check_some(space, t, 0, MODEL_KEYS);
        check_some(space, t, 1234, 1);
        if (space->store->ops->scan(space, &tables[t], scanned_rows, &scanned, &error) != HPS_OK) {
            fail_msg("scan: %s", error.text);
        }
        scanned_end(&scanned);
    }
    struct viewed viewed = {0};
    const struct hps_view view = {.tables = tables,
                                  .n_tables = N_TABLES,
                                  .ctx = &viewed,
                                  .record = viewed_record,
                                  .begin = viewed_begin,
                                  .rows = viewed_rows};
    if (space->store->ops->durable->view(space, &view, &error) != HPS_OK) {
        fail_msg("view: %s", error.text);
    }
    assert_int_equal(viewed.n_tables, N_TABLES);
    scanned_end(&viewed.scanned);
}

static inline struct hps_basefile *base_of(struct hps_space *space, uint32_t t)
{
    return hps_basefile_base_of((struct hps_basefile_space *)space, &tables[t]);
}

/* Merge table t. No call uses the space. */
static inline hps_status merge(struct hps_space *space, uint32_t t)
{
    struct hps_basefile_space *dense = (struct hps_basefile_space *)space;
    struct hps_basefile *old = NULL;
    hps_status status = hps_basefile_merge_begin(dense, t, &old, &error);
    /* base-merge holds this lock while it reads a base. Later it finds the new base. */
    hps_lock_acquire(&hps_basefile_of(space)->lock);
    hps_lock_release(&hps_basefile_of(space)->lock);
    hps_basefile_merge_end(dense, old);
    return status;
}

/* Whether lookups of table t use the mapping of its base. */
static inline bool is_mapped(struct hps_space *space, uint32_t t)
{
    check_some(space, t, 0, 100);
    return atomic_load(&base_of(space, t)->pages[0]) == HPS_BASEFILE_GOOD;
}

/* The path of the base that table t has. */
static inline const char *path_of(struct hps_space *space, uint32_t t)
{
    static char path[1024];
    (void)snprintf(path, sizeof(path), "%s/hpsd/%s", own.path, base_of(space, t)->name);
    return path;
}

/* Number of files of bases. */
static inline unsigned n_files(void)
{
    DIR *files = opendir(hps_tmpdir_join(&own, "hpsd"));
    unsigned n = 0;
    assert_non_null(files);
    for (const struct dirent *file = readdir(files); file != NULL; file = readdir(files)) {
        n += strncmp(file->d_name, "base-", 5) == 0 ? 1 : 0;
    }
    assert_int_equal(closedir(files), 0);
    return n;
}

static inline void flip(const char *path, off_t at)
{
    uint8_t byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

#endif
