/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the persistent store share: a directory for each test, the store in it, a
 * table, rows that tell their key, and what is done to the files from outside. One thread.
 */
#ifndef HPS_TESTS_UNIT_BACKENDS_ROCKSDB_ROCKSDB_TEST_H
#define HPS_TESTS_UNIT_BACKENDS_ROCKSDB_ROCKSDB_TEST_H

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/rocksdb/rocksdb.h"
#include "backends/store_bulk.h"
#include "tests/lib/tmpdir.h"

enum { ROW_BYTES = 512, FREE_MIN = 8 << 20 };

static struct hps_tmpdir own;
static char *const dir = own.path; /* of the test that runs */
static struct hps_error error;
static const struct hps_call no_limit = {0};
static const struct hps_table table = {
    .name = "t", .id = 0, .dim = 128, .row_bytes = ROW_BYTES, .dtype = HPS_DTYPE_FP32};

static inline int setup(void **state)
{
    (void)state;
    hps_tmpdir_open(&own);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    (void)umount2(dir, MNT_DETACH); /* only mounted in one test */
    hps_tmpdir_close(&own);
    return 0;
}

static inline struct hps_rocksdb_options options_of(bool read_only)
{
    return (struct hps_rocksdb_options){
        .path = dir,
        .n_threads = 2,
        .batch_keys_max = 1000,
        .read_only = read_only,
        .disk_free_min_bytes = FREE_MIN,
    };
}

static const enum hps_read_mode modes[] = {HPS_READ_MMAP, HPS_READ_DIRECT, HPS_READ_BUFFERED,
                                           HPS_READ_AUTO};

static inline hps_status open_mode(enum hps_read_mode mode, struct hps_store **out_store)
{
    struct hps_rocksdb_options options = options_of(false);
    options.read_mode = mode;
    options.memory_bytes = UINT64_MAX;
    return hps_rocksdb_open(&options, out_store, &error);
}

static inline hps_status try_open(bool read_only, struct hps_store **out_store)
{
    struct hps_rocksdb_options options = options_of(read_only);
    error.text[0] = '\0';
    return hps_rocksdb_open(&options, out_store, &error);
}

static inline struct hps_store *open_store(void)
{
    struct hps_store *store = NULL;
    if (try_open(false, &store) != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    return store;
}

static inline hps_status space_open(struct hps_store *store, const char *model, int64_t version,
                                    struct hps_space **out_space)
{
    struct hps_space_id id = {.model = model, .version = version, .tables = &table, .n_tables = 1};
    return store->ops->space_open(store, &id, out_space, &error);
}

static inline struct hps_space *open_space(struct hps_store *store)
{
    struct hps_space *space = NULL;
    if (space_open(store, "m", 1, &space) != HPS_OK) {
        fail_msg("space_open: %s", error.text);
    }
    return space;
}

static inline void fill(uint8_t *row, hps_key key)
{
    for (unsigned i = 0; i < ROW_BYTES; i++) {
        row[i] = (uint8_t)(key * 31 + i * 7 + (key >> 8));
    }
}

static inline hps_status load_rows(struct hps_store *store, struct hps_store_load *load,
                                   hps_key from, hps_key to)
{
    hps_status status = HPS_OK;
    uint8_t row[ROW_BYTES];
    for (hps_key key = from; key < to && status == HPS_OK; key++) {
        fill(row, key);
        status = store->ops->bulk->add(load, &table, &key, row, 1, &error);
    }
    return status;
}

static inline void load(struct hps_space *space, hps_key n)
{
    struct hps_store *store = space->store;
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->bulk->begin(space, n, n * ROW_BYTES, &rows, &error), HPS_OK);
    assert_int_equal(load_rows(store, rows, 0, n), HPS_OK);
    assert_int_equal(store->ops->bulk->commit(rows, &error), HPS_OK);
}

static inline hps_status get(struct hps_space *space, const struct hps_table *of, hps_key key,
                             bool *out_found)
{
    uint8_t row[2 * ROW_BYTES];
    uint8_t expected[ROW_BYTES];
    uint32_t slot = 0;
    hps_key keys[1] = {key};
    struct hps_batch batch = {.keys = keys, .slots = &slot, .rows = row, .n = 1};
    hps_status status = space->store->ops->get(space, &no_limit, of, &batch);
    if (batch.n == 0) {
        fill(expected, key);
        assert_memory_equal(row, expected, ROW_BYTES);
    }
    *out_found = batch.n == 0;
    return status;
}

static inline bool has(struct hps_space *space, hps_key key)
{
    bool found = false;
    assert_int_equal(get(space, &table, key, &found), HPS_OK);
    return found;
}

static inline hps_status put(struct hps_space *space, hps_key key)
{
    uint8_t row[ROW_BYTES];
    fill(row, key);
    return space->store->ops->put(space, &no_limit, &table, &key, row, 1);
}

static inline hps_status read_position(void *ctx, const void *key, size_t key_size,
                                       const void *value, size_t value_size)
{
    (void)key;
    (void)key_size;
    memcpy(ctx, value, value_size);
    return HPS_OK;
}

static inline const char *below(const char *name)
{
    return hps_tmpdir_join(&own, name);
}

/* Read the next table file of a listing of "hpsd". Returns false at the end. */
static inline bool next_table_file(DIR *listing, char name[300], struct stat *info)
{
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        (void)snprintf(name, 300, "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") != NULL && stat(below(name), info) == 0) {
            return true;
        }
    }
    return false;
}

/* Flip bytes in the first third of every table file: row blocks, not the index behind them. */
static inline unsigned damage_files(void)
{
    unsigned n = 0;
    char name[300];
    struct stat info;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    while (next_table_file(listing, name, &info)) {
        if (info.st_size < 100000) {
            continue;
        }
        int fd = open(below(name), O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        for (off_t at = 1000; at < info.st_size / 3; at += 4096) {
            assert_int_equal(pwrite(fd, "damage", 6, at), 6);
        }
        close(fd);
        n++;
    }
    closedir(listing);
    return n;
}

/* Take the last byte, as another program would. */
static inline void fill_from_outside(void)
{
    struct statvfs fs;
    int fd = open(below("others"), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    static const uint8_t bytes[4096];
    while (write(fd, bytes, sizeof(bytes)) > 0) {
    }
    close(fd);
    assert_int_equal(statvfs(dir, &fs), 0);
    assert_int_equal(fs.f_bavail, 0);
}

#endif
