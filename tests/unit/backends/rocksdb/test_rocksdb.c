/* SPDX-License-Identifier: Apache-2.0
 *
 * What only the persistent store promises: durability, whose directory it is, damage noticed,
 * crashes in the middle of a load, and a disk that fills up.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/rocksdb/rocksdb.h"
#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/work.h"

enum { ROW_BYTES = 512, FREE_MIN = 8 << 20 };

static char dir[256];
static struct hps_error error;
static const struct hps_call no_limit = {0};
static const struct hps_table table = {
    .name = "t", .id = 0, .dim = 128, .row_bytes = ROW_BYTES, .dtype = HPS_DTYPE_FP32};

/* ---- helpers ---- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dir, sizeof(dir), "%s/hps-rocksdb-XXXXXX", tmp != NULL ? tmp : "/tmp");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    (void)umount2(dir, MNT_DETACH); /* only mounted in one test */
    return nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static struct hps_rocksdb_options options_of(bool read_only)
{
    return (struct hps_rocksdb_options){
        .path = dir,
        .n_threads = 2,
        .batch_keys_max = 1000,
        .read_only = read_only,
        .disk_free_min_bytes = FREE_MIN,
    };
}

static hps_status try_open(bool read_only, struct hps_store **out_store)
{
    struct hps_rocksdb_options options = options_of(read_only);
    error.text[0] = '\0';
    return hps_rocksdb_open(&options, out_store, &error);
}

static struct hps_store *open_store(void)
{
    struct hps_store *store = NULL;
    if (try_open(false, &store) != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    return store;
}

static hps_status space_open(struct hps_store *store, const char *model, int64_t version,
                             struct hps_space **out_space)
{
    struct hps_space_id id = {.model = model, .version = version, .tables = &table, .n_tables = 1};
    return store->ops->space_open(store, &id, out_space, &error);
}

static struct hps_space *open_space(struct hps_store *store)
{
    struct hps_space *space = NULL;
    if (space_open(store, "m", 1, &space) != HPS_OK) {
        fail_msg("space_open: %s", error.text);
    }
    return space;
}

static void fill(uint8_t *row, hps_key key)
{
    for (unsigned i = 0; i < ROW_BYTES; i++) {
        row[i] = (uint8_t)(key * 31 + i * 7 + (key >> 8));
    }
}

static hps_status load_rows(struct hps_store *store, struct hps_store_load *load, hps_key from,
                            hps_key to)
{
    hps_status status = HPS_OK;
    uint8_t row[ROW_BYTES];
    for (hps_key key = from; key < to && status == HPS_OK; key++) {
        fill(row, key);
        status = store->ops->load_add(load, &table, &key, row, 1, &error);
    }
    return status;
}

static void load(struct hps_space *space, hps_key n)
{
    struct hps_store *store = space->store;
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->load_begin(space, n, n * ROW_BYTES, &rows, &error), HPS_OK);
    assert_int_equal(load_rows(store, rows, 0, n), HPS_OK);
    assert_int_equal(store->ops->load_commit(rows, &error), HPS_OK);
}

static hps_status get(struct hps_space *space, const struct hps_table *of, hps_key key,
                      bool *out_found)
{
    uint8_t row[2 * ROW_BYTES];
    uint8_t expected[ROW_BYTES];
    uint32_t slot = 0;
    hps_key keys[1] = {key};
    struct hps_batch batch = {keys, &slot, row, 1};
    hps_status status = space->store->ops->get(space, &no_limit, of, &batch);
    if (batch.n == 0) {
        fill(expected, key);
        assert_memory_equal(row, expected, ROW_BYTES);
    }
    *out_found = batch.n == 0;
    return status;
}

static bool has(struct hps_space *space, hps_key key)
{
    bool found = false;
    assert_int_equal(get(space, &table, key, &found), HPS_OK);
    return found;
}

static hps_status put(struct hps_space *space, hps_key key)
{
    uint8_t row[ROW_BYTES];
    fill(row, key);
    return space->store->ops->put(space, &no_limit, &table, &key, row, 1);
}

static const char *below(const char *name)
{
    static char path[600];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* Names, sizes and times of all files below hpsd, summed up. */
static uint64_t directory_sum(void)
{
    uint64_t sum = 0;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        if (strcmp(entry->d_name, "..") == 0) {
            continue; /* the lock file is made there */
        }
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        assert_int_equal(stat(below(name), &info), 0);
        for (const char *c = entry->d_name; *c != '\0'; c++) {
            sum = sum * 31 + (uint64_t)*c;
        }
        sum +=
            (uint64_t)info.st_size + (uint64_t)info.st_mtim.tv_nsec + (uint64_t)info.st_mtim.tv_sec;
    }
    closedir(listing);
    return sum;
}

/* Write into the default family as another program would, or a later build. */
static void raw_put(const char *path, const char *key, const char *value)
{
    char *text = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    const char *names[2] = {"default", "catalog"};
    const rocksdb_options_t *each[2] = {options, options};
    rocksdb_column_family_handle_t *handles[2] = {NULL, NULL};
    rocksdb_t *db = access(path, F_OK) == 0 ? rocksdb_open_column_families(options, path, 2, names,
                                                                           each, handles, &text)
                                            : rocksdb_open(options, path, &text);
    if (text != NULL) {
        fail_msg("raw open: %s", text);
    }
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    rocksdb_put(db, write, key, strlen(key), value, strlen(value), &text);
    assert_null(text);
    for (unsigned i = 0; i < 2; i++) {
        if (handles[i] != NULL) {
            rocksdb_column_family_handle_destroy(handles[i]);
        }
    }
    rocksdb_writeoptions_destroy(write);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
}

/* ---- durability ---- */

static void test_open_when_closed_before_then_rows_and_records_are_there(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    assert_int_equal(put(space, 7000), HPS_OK);
    hps_key gone = 11;
    assert_int_equal(store->ops->erase(space, &no_limit, &table, &gone, 1), HPS_OK);
    assert_int_equal(store->ops->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned round = 0; round < 2; round++) { /* then once read-only */
        assert_int_equal(try_open(round == 1, &store), HPS_OK);
        space = open_space(store);
        assert_true(has(space, 0));
        assert_true(has(space, 4999));
        assert_true(has(space, 7000));
        assert_false(has(space, 11));
        assert_false(has(space, 5000));
        store->ops->space_close(space);
        store->ops->close(store);
    }
}

static void test_open_when_read_only_then_writes_are_refused(void **state)
{
    (void)state;
    struct hps_store *store = NULL;
    assert_int_equal(try_open(true, &store), HPS_NOT_FOUND);
    store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 10);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(try_open(true, &store), HPS_OK);
    space = open_space(store);
    struct hps_space *other = NULL;
    struct hps_store_load *rows = NULL;
    assert_int_equal(space_open(store, "m", 2, &other), HPS_PRECONDITION);
    assert_int_equal(put(space, 1), HPS_PRECONDITION);
    assert_int_equal(store->ops->load_begin(space, 0, 0, &rows, &error), HPS_PRECONDITION);
    assert_int_equal(store->ops->record_put(store, "k", 1, "v", 1, &error), HPS_PRECONDITION);
    assert_int_equal(store->ops->record_delete(store, "k", 1, &error), HPS_PRECONDITION);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_PRECONDITION);
    space = open_space(store); /* a drop that fails gives the handle back all the same */
    assert_true(has(space, 9));
    store->ops->space_close(space);
    store->ops->close(store);
}

static void test_open_when_open_elsewhere_then_busy(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_store *other = NULL;
    assert_int_equal(try_open(false, &other), HPS_BUSY);
    assert_int_equal(try_open(true, &other), HPS_BUSY);
    assert_null(other);
    store->ops->close(store);
    store = open_store();
    store->ops->close(store);
}

/* ---- whose directory it is ---- */

static void test_open_when_format_is_newer_then_refused_and_untouched(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    store->ops->close(store);
    raw_put(below("hpsd"), "hpsd.format", "2");
    uint64_t before = directory_sum();
    assert_int_equal(try_open(false, &store), HPS_NEWER_FORMAT);
    assert_int_equal(try_open(true, &store), HPS_NEWER_FORMAT);
    assert_true(directory_sum() == before);
    raw_put(below("hpsd"), "hpsd.format", "one");
    assert_int_equal(try_open(false, &store), HPS_DATA_LOSS);
}

static void test_open_when_database_is_foreign_then_refused_and_untouched(void **state)
{
    (void)state;
    raw_put(below("hpsd"), "something", "else");
    uint64_t before = directory_sum();
    struct hps_store *store = NULL;
    assert_int_equal(try_open(false, &store), HPS_PRECONDITION);
    assert_non_null(strstr(error.text, "not ours"));
    assert_true(directory_sum() == before);
}

static void test_open_when_directory_holds_other_files_then_refused(void **state)
{
    (void)state;
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    struct hps_store *store = open_store(); /* an empty directory is taken */
    store->ops->close(store);
    assert_int_equal(nftw(below("hpsd"), remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(mkdir(below("hpsd"), 0700), 0);
    int fd = open(below("hpsd/notes.txt"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(try_open(false, &store), HPS_PRECONDITION);
    assert_int_equal(access(below("hpsd/notes.txt"), F_OK), 0);
}

static void test_open_when_creation_was_cut_short_then_created_again(void **state)
{
    (void)state;
    assert_int_equal(mkdir(below("hpsd.new"), 0700), 0);
    int fd = open(below("hpsd.new/MANIFEST-000001"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    struct hps_store *store = open_store();
    store->ops->close(store);
    assert_int_equal(access(below("hpsd.new"), F_OK), -1);
}

static void test_space_when_name_is_illegal_then_invalid(void **state)
{
    (void)state;
    static const char *const names[] = {"", "a@b", "a/b", "..", "a b", "\xc3\xa9"};
    struct hps_store *store = open_store();
    struct hps_space *space = NULL;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(space_open(store, names[i], 1, &space), HPS_INVALID);
    }
    char name[122];
    memset(name, 'x', 121);
    name[121] = '\0';
    assert_int_equal(space_open(store, name, 1, &space), HPS_INVALID);
    name[120] = '\0';
    assert_int_equal(space_open(store, "m", -1, &space), HPS_INVALID);
    assert_int_equal(space_open(store, name, INT64_MAX, &space), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
}

/* ---- damage ---- */

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)keys;
    (void)rows;
    *(uint64_t *)ctx += n;
    return HPS_OK;
}

/* Flip bytes in the first third of every table file: row blocks, not the index behind them. */
static unsigned damage_files(void)
{
    unsigned n = 0;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") == NULL || stat(below(name), &info) != 0 ||
            info.st_size < 100000) {
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

static void test_get_when_file_is_damaged_then_data_loss_and_never_a_wrong_row(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(damage_files(), 1);
    store = open_store();
    space = open_space(store);
    unsigned n_lost = 0;
    for (hps_key key = 0; key < 5000; key += 5) {
        bool found = false;
        hps_status status = get(space, &table, key, &found); /* checks the row if found */
        assert_true(status == HPS_OK || status == HPS_DATA_LOSS);
        assert_true(found == (status == HPS_OK));
        n_lost += status == HPS_DATA_LOSS;
    }
    assert_true(n_lost > 100);
    assert_true(n_lost < 900);
    uint64_t n_rows = 0;
    assert_int_equal(store->ops->scan(space, &table, count_rows, &n_rows, &error), HPS_DATA_LOSS);
    assert_non_null(strstr(error.text, ".sst"));
    store->ops->space_close(space);
    store->ops->close(store);
}

static void test_get_when_row_has_a_wrong_size_then_data_loss(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 3);
    struct hps_table other = table;
    other.row_bytes = 5;
    hps_key key = 1;
    const uint8_t row[5] = {0};
    assert_int_equal(store->ops->put(space, &no_limit, &other, &key, row, 1), HPS_OK);
    bool found = true;
    assert_int_equal(get(space, &table, 1, &found), HPS_DATA_LOSS);
    assert_false(found);
    assert_true(has(space, 0));
    assert_true(has(space, 2));
    store->ops->space_close(space);
    store->ops->close(store);
}

static hps_status put_many(struct hps_space *space, unsigned n)
{
    hps_status status = HPS_OK;
    for (unsigned i = 0; i < n && status == HPS_OK; i++) {
        status = put(space, (hps_key)i * 7 % 2000);
    }
    return status;
}

/* All writing stops where a compaction meets damage: after a restart it goes on, so that the
 * damaged version can be replaced. */
static void test_compaction_when_a_version_is_damaged_then_it_can_be_unloaded(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    assert_int_equal(put_many(space, 3000), HPS_OK);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_true(damage_files() > 0);
    store = open_store();
    space = open_space(store);
    struct hps_space *other = NULL;
    assert_int_equal(put_many(space, 100000), HPS_DATA_LOSS);
    assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
    assert_int_equal(put(other, 1), HPS_DATA_LOSS);
    assert_non_null(store->ops->writes_refused(store));
    store->ops->space_close(other);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned round = 0; round < 2; round++) {
        store = open_store();
        space = open_space(store);
        assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
        assert_int_equal(put_many(space, 3000), HPS_OK);
        assert_int_equal(put_many(other, 3000), HPS_OK);
        assert_int_equal(store->ops->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
        assert_null(store->ops->writes_refused(store));
        if (round == 0) {
            assert_int_equal(access(below("hpsd.damaged"), F_OK), 0);
            store->ops->space_close(space);
        } else {
            assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
        }
        store->ops->space_close(other);
        store->ops->close(store);
    }
    assert_int_equal(access(below("hpsd.damaged"), F_OK), -1);
    store = open_store();
    assert_int_equal(space_open(store, "m", 2, &other), HPS_OK);
    assert_true(has(other, 1999));
    store->ops->space_close(other);
    store->ops->close(store);
}

/* Cut the file of rows to `keep` of its bytes in 1000. */
static void cut_files(unsigned keep)
{
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[300];
        struct stat info;
        (void)snprintf(name, sizeof(name), "hpsd/%s", entry->d_name);
        if (strstr(name, ".sst") != NULL && stat(below(name), &info) == 0 &&
            info.st_size > 100000) { /* the rows, not the database's own */
            assert_int_equal(truncate(below(name), info.st_size * (off_t)keep / 1000), 0);
        }
    }
    closedir(listing);
}

static const enum hps_rocksdb_read_mode modes[] = {HPS_ROCKSDB_READ_MMAP, HPS_ROCKSDB_READ_DIRECT,
                                                   HPS_ROCKSDB_READ_BUFFERED,
                                                   HPS_ROCKSDB_READ_AUTO};

static hps_status open_mode(enum hps_rocksdb_read_mode mode, struct hps_store **out_store)
{
    struct hps_rocksdb_options options = options_of(false);
    options.read_mode = mode;
    options.memory_bytes = UINT64_MAX;
    return hps_rocksdb_open(&options, out_store, &error);
}

static void test_open_when_a_file_is_cut_short_then_data_loss_in_every_mode(void **state)
{
    (void)state;
    static const unsigned keeps[] = {999, 700, 300, 0};
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    store->ops->space_close(space);
    store->ops->close(store);
    for (unsigned k = 0; k < sizeof(keeps) / sizeof(keeps[0]); k++) {
        cut_files(keeps[k]);
        for (unsigned m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
            assert_int_equal(open_mode(modes[m], &store), HPS_DATA_LOSS);
            assert_non_null(strstr(error.text, ".sst"));
        }
    }
}

static hps_status get_parallel(struct hps_space *space, hps_key n, uint32_t *out_n_missing)
{
    hps_key *keys = hps_calloc(n, sizeof(*keys));
    uint32_t *slots = hps_calloc(n, sizeof(*slots));
    uint8_t *rows = hps_alloc(n * ROW_BYTES);
    uint8_t expected[ROW_BYTES];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = (hps_key)i * 4999 % n;
        slots[i] = i;
    }
    struct hps_batch batch = {keys, slots, rows, (uint32_t)n};
    hps_status status = space->store->ops->get(space, &no_limit, &table, &batch);
    for (uint32_t i = batch.n; i < n; i++) {
        fill(expected, keys[i]);
        assert_memory_equal(rows + (size_t)slots[i] * ROW_BYTES, expected, ROW_BYTES);
    }
    *out_n_missing = batch.n;
    hps_free(rows);
    hps_free(slots);
    hps_free(keys);
    return status;
}

static void *get_again(void *ctx)
{
    uint32_t n_missing = 1;
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(get_parallel(ctx, 20000, &n_missing), HPS_OK);
        assert_int_equal(n_missing, 10000);
    }
    return NULL;
}

static void test_get_when_large_and_read_in_any_mode_then_every_row_is_right(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 10000);
    for (unsigned m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
        store->ops->space_close(space);
        store->ops->close(store);
        assert_int_equal(open_mode(modes[m], &store), HPS_OK);
        space = open_space(store);
        pthread_t others[3]; /* more readers than the store has helpers */
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(pthread_create(&others[i], NULL, get_again, space), 0);
        }
        for (unsigned i = 0; i < 3; i++) {
            pthread_join(others[i], NULL);
        }
    }
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(damage_files(), 1);
    store = open_store();
    space = open_space(store);
    uint32_t n_missing = 0;
    assert_int_equal(get_parallel(space, 20000, &n_missing), HPS_DATA_LOSS);
    assert_true(n_missing > 10000);
    store->ops->space_close(space);
    store->ops->close(store);
}

/* ---- crashes ---- */

enum { CRASHED = 42 };

/* What the child does: end in the middle of a load, as by a crash. */
static int load_and_crash(const char *path)
{
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    struct hps_store_load *rows = NULL;
    (void)snprintf(dir, sizeof(dir), "%s", path);
    bool good = try_open(false, &store) == HPS_OK && space_open(store, "m", 1, &space) == HPS_OK &&
                store->ops->load_begin(space, 0, 0, &rows, &error) == HPS_OK &&
                load_rows(store, rows, 0, 2000) == HPS_OK;
    _exit(good ? CRASHED : 1);
}

/* In a program of its own: RocksDB has threads here, and a fork would copy only this one. */
static void crash_in_load(void)
{
    char self[] = "/proc/self/exe";
    char *const arguments[] = {self, dir, NULL};
    pid_t child = 0;
    assert_int_equal(posix_spawn(&child, self, NULL, NULL, arguments, environ), 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), CRASHED);
}

static void test_open_when_a_load_was_cut_short_then_nothing_of_it_is_left(void **state)
{
    (void)state;
    crash_in_load();
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), 0);
    struct hps_store *store = open_store();
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), -1);
    struct hps_space *space = open_space(store);
    assert_false(has(space, 0));
    load(space, 100);
    assert_true(has(space, 99));
    assert_int_equal(access(below("hpsd/load-m@1"), F_OK), -1);
    store->ops->space_close(space);
    store->ops->close(store);
}

enum { KILL_KEYS = 40, KILLS = HPS_TEST_WORK(60) };

static const struct hps_table kill_tables[2] = {
    {.name = "t", .id = 0, .dim = 128, .row_bytes = ROW_BYTES, .dtype = HPS_DTYPE_FP32},
    {.name = "u", .id = 1, .dim = 4, .row_bytes = 16, .dtype = HPS_DTYPE_FP32},
};

static struct hps_space *kill_space(struct hps_store *store)
{
    struct hps_space_id id = {.model = "m", .version = 1, .tables = kill_tables, .n_tables = 2};
    struct hps_space *space = NULL;
    return store->ops->space_open(store, &id, &space, &error) == HPS_OK ? space : NULL;
}

static hps_status read_position(void *ctx, const void *key, size_t key_size, const void *value,
                                size_t value_size)
{
    (void)key;
    (void)key_size;
    memcpy(ctx, value, value_size);
    return HPS_OK;
}

static uint64_t position(struct hps_space *space)
{
    uint64_t seq = 0;
    assert_int_equal(space->store->ops->space_record_scan(space, read_position, &seq, &error),
                     HPS_OK);
    return seq;
}

/* Batch number seq: all keys of one table get rows of seq, those of the other come and go. */
static hps_status apply_batch(struct hps_space *space, uint64_t seq)
{
    static hps_key keys[KILL_KEYS];
    static uint8_t wide[KILL_KEYS * ROW_BYTES];
    static uint8_t narrow[KILL_KEYS * 16];
    for (unsigned i = 0; i < KILL_KEYS; i++) {
        keys[i] = (hps_key)i * 977;
        memset(narrow + (size_t)i * 16, (int)(seq & 0xff), 16);
        for (unsigned j = 0; j < ROW_BYTES; j += 8) {
            memcpy(wide + (size_t)i * ROW_BYTES + j, &seq, 8);
        }
    }
    const struct hps_write writes[2] = {
        {&kill_tables[0], keys, wide, KILL_KEYS},
        {&kill_tables[1], keys, seq % 2 != 0 ? narrow : NULL, KILL_KEYS}};
    const struct hps_record record = {"p", 1, &seq, sizeof(seq)};
    return space->store->ops->apply(space, &no_limit, writes, 2, &record, 1, &error);
}

/* What the child does: apply batches for ever, and say a byte after each. */
static int apply_for_ever(const char *path, const char *wal_sync_ms)
{
    (void)snprintf(dir, sizeof(dir), "%s", path);
    struct hps_rocksdb_options options = options_of(false);
    options.wal_sync_ms = (uint32_t)strtoul(wal_sync_ms, NULL, 10);
    struct hps_store *store = NULL;
    hps_status status = hps_rocksdb_open(&options, &store, &error);
    struct hps_space *space = status == HPS_OK ? kill_space(store) : NULL;
    uint64_t seq = space != NULL ? position(space) : 0;
    while (space != NULL && apply_batch(space, ++seq) == HPS_OK &&
           write(STDOUT_FILENO, ".", 1) == 1) {
    }
    return 1;
}

/* Kill a child after so many batches, and wherever it then is. */
static void kill_after(unsigned n_batches, char *wal_sync_ms)
{
    char self[] = "/proc/self/exe";
    char mode[] = "apply";
    char *const arguments[] = {self, mode, dir, wal_sync_ms, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    assert_int_equal(posix_spawn(&child, self, &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[1]);
    for (unsigned i = 0; i < n_batches; i++) {
        char byte;
        assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    close(pipe_fds[0]);
}

/* Every row of both tables is that of the position. */
static void check_position(struct hps_space *space, uint64_t seq)
{
    static uint8_t rows[KILL_KEYS * ROW_BYTES];
    hps_key keys[KILL_KEYS];
    uint32_t slots[KILL_KEYS];
    for (unsigned t = 0; t < 2; t++) {
        for (uint32_t i = 0; i < KILL_KEYS; i++) {
            keys[i] = (hps_key)i * 977;
            slots[i] = i;
        }
        struct hps_batch batch = {keys, slots, rows, KILL_KEYS};
        assert_int_equal(space->store->ops->get(space, &no_limit, &kill_tables[t], &batch), HPS_OK);
        assert_int_equal(batch.n, t == 0 || seq % 2 != 0 ? 0 : KILL_KEYS);
        for (uint32_t i = batch.n; i < KILL_KEYS; i++) {
            const uint8_t *row = rows + (size_t)slots[i] * kill_tables[t].row_bytes;
            uint64_t found = 0;
            memcpy(&found, row, t == 0 ? 8 : 1);
            assert_true(found == (t == 0 ? seq : (seq & 0xff)));
            assert_memory_equal(row, row + 8, kill_tables[t].row_bytes - 8); /* of one piece */
        }
    }
}

static void test_apply_when_killed_at_any_moment_then_rows_and_position_agree(void **state)
{
    (void)state;
    char wal_sync_ms[] = "1000";
    uint64_t seq = 0;
    unsigned seed = 12345;
    for (unsigned i = 0; i < KILLS; i++) {
        seed = seed * 1103515245 + 12345;
        unsigned n_batches = 1 + (seed >> 16) % 40;
        wal_sync_ms[0] = i % 4 != 0 ? '1' : '0'; /* "0000": each write is synced */
        kill_after(n_batches, wal_sync_ms);
        struct hps_store *store = open_store();
        struct hps_space *space = kill_space(store);
        assert_non_null(space);
        uint64_t after = position(space);
        assert_true(after >= seq + n_batches); /* what was said to be written is there */
        seq = after;
        check_position(space, seq);
        store->ops->space_close(space);
        store->ops->close(store);
    }
}

/* Files in the database whose names end in `suffix`. */
static unsigned count_files(const char *suffix)
{
    unsigned n = 0;
    DIR *listing = opendir(below("hpsd"));
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        const char *found = strstr(entry->d_name, suffix);
        n += found != NULL && found[strlen(suffix)] == '\0';
    }
    closedir(listing);
    return n;
}

static void test_open_when_again_and_again_then_logs_do_not_pile_up(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    assert_int_equal(put(space, 1), HPS_OK);
    assert_int_equal(store->ops->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    unsigned n_max = 0;
    for (unsigned i = 0; i < 60; i++) {
        store->ops->space_close(space);
        store->ops->close(store);
        store = open_store();
        space = open_space(store);
        unsigned n = count_files(".log");
        n_max = n > n_max ? n : n_max;
    }
    assert_in_range(n_max, 2, 20);
    assert_in_range(count_files(".sst"), 1, 30);
    assert_true(has(space, 1));
    store->ops->space_close(space);
    store->ops->close(store);
}

/* ---- checkpoints ---- */

/* Files of rows below `at` that another directory holds too. */
static unsigned linked_files(const char *at)
{
    unsigned n = 0;
    DIR *listing = opendir(at);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        char name[1100];
        struct stat info;
        (void)snprintf(name, sizeof(name), "%s/%s", at, entry->d_name);
        n += strstr(name, ".sst") != NULL && stat(name, &info) == 0 && info.st_nlink > 1;
    }
    closedir(listing);
    return n;
}

static void test_checkpoint_when_opened_then_holds_what_was_there(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    const struct hps_record record = {"p", 1, "7", 1};
    char target[300];
    (void)snprintf(target, sizeof(target), "%s/copy", dir);
    load(space, 3000);
    assert_int_equal(put(space, 5000), HPS_OK);
    assert_int_equal(store->ops->apply(space, &no_limit, NULL, 0, &record, 1, &error), HPS_OK);
    assert_int_equal(store->ops->checkpoint(store, target, &error), HPS_OK);
    assert_int_equal(store->ops->checkpoint(store, target, &error), HPS_EXISTS);
    assert_true(linked_files(below("copy/hpsd")) > 0);
    assert_int_equal(put(space, 6000), HPS_OK); /* is later than the copy */
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    struct hps_rocksdb_options options = options_of(false);
    options.path = target;
    struct hps_store *copy = NULL;
    assert_int_equal(hps_rocksdb_open(&options, &copy, &error), HPS_OK);
    space = open_space(copy);
    uint64_t position_there = 0;
    assert_true(has(space, 0));
    assert_true(has(space, 2999));
    assert_true(has(space, 5000));
    assert_false(has(space, 6000));
    assert_int_equal(copy->ops->space_record_scan(space, read_position, &position_there, &error),
                     HPS_OK);
    assert_int_equal(position_there, '7');
    copy->ops->space_close(space);
    copy->ops->close(copy);
    store->ops->close(store);
}

static void test_checkpoint_when_read_only_or_on_another_full_disk_then_refused(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    assert_int_equal(mkdir(below("other"), 0700), 0);
    char target[300];
    (void)snprintf(target, sizeof(target), "%s/other", dir);
    bool mounted = mount("tmpfs", target, "tmpfs", 0, "size=1m") == 0;
    if (mounted) {
        assert_int_equal(store->ops->checkpoint(store, target, &error), HPS_EXHAUSTED);
        assert_non_null(strstr(error.text, "needed"));
        assert_int_equal(umount2(target, MNT_DETACH), 0);
        assert_int_equal(mount("tmpfs", target, "tmpfs", 0, "size=32m"), 0);
        assert_int_equal(store->ops->checkpoint(store, target, &error), HPS_OK);
        assert_int_equal(linked_files(below("other/hpsd")), 0); /* copies */
        assert_int_equal(umount2(target, MNT_DETACH), 0);
    }
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(try_open(true, &store), HPS_OK);
    assert_int_equal(store->ops->checkpoint(store, target, &error), HPS_PRECONDITION);
    store->ops->close(store);
}

/* ---- a disk that fills up ---- */

static hps_status fill_by_load(struct hps_space *space)
{
    struct hps_store *store = space->store;
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->load_begin(space, 0, 0, &rows, &error), HPS_OK);
    hps_status status = load_rows(store, rows, 0, 1000000);
    store->ops->load_abort(rows);
    return status;
}

static hps_status fill_by_put(struct hps_space *space)
{
    enum { N = 500 };
    hps_key keys[N];
    uint8_t *rows = hps_alloc((size_t)N * ROW_BYTES);
    hps_status status = HPS_OK;
    for (hps_key key = 0; status == HPS_OK && key < 1000000; key += N) {
        for (unsigned i = 0; i < N; i++) {
            keys[i] = key + i;
            fill(rows + (size_t)i * ROW_BYTES, keys[i]);
        }
        status = space->store->ops->put(space, &no_limit, &table, keys, rows, N);
    }
    hps_free(rows);
    return status;
}

static void test_writes_when_disk_fills_up_then_exhausted_and_serving_goes_on(void **state)
{
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=96m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->load_begin(space, 1000000, 512000000, &rows, &error),
                     HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "needed"));
    assert_int_equal(fill_by_load(space), HPS_EXHAUSTED);
    assert_true(store->ops->bytes_free(store) > 60 << 20); /* the aborted load is gone */
    load(space, 1000);
    assert_int_equal(fill_by_put(space), HPS_EXHAUSTED);
    assert_true(has(space, 999));
    hps_status status = HPS_OK;
    for (hps_key key = 0; key < 10000 && status == HPS_OK; key++) { /* what a batch left over */
        status = put(space, key);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_int_equal(store->ops->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
    store = open_store(); /* and it opens again */
    store->ops->close(store);
}

/* Take the last byte, as another program would. */
static void fill_from_outside(void)
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

/* RocksDB removes files when whoever still has them, a flush say, has ended. */
static void wait_for_room(struct hps_store *store, uint64_t bytes)
{
    uint64_t give_up_us = hps_clock_us() + 60 * 1000 * 1000;

    while (store->ops->bytes_free(store) <= bytes) {
        assert_true(hps_clock_us() < give_up_us);
        sched_yield();
    }
}

/* A version of the same number, loaded before the next start, must see nothing of the old one: not
 * its positions either, which are no rows. */
static void test_drop_when_the_disk_has_no_room_then_a_new_space_begins_empty(void **state)
{
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=96m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    const struct hps_record record = {"p", 1, "7", 1};
    uint64_t position_there = 0;
    assert_int_equal(store->ops->apply(space, &no_limit, NULL, 0, &record, 1, &error), HPS_OK);
    assert_int_equal(unlink(below("hpsd.ballast")), 0); /* else a drop finds room in any case */
    fill_from_outside();
    assert_int_equal(store->ops->space_drop(space, &error), HPS_EXHAUSTED);
    assert_int_equal(unlink(below("others")), 0);
    space = open_space(store);
    load(space, 10);
    assert_int_equal(store->ops->space_record_scan(space, read_position, &position_there, &error),
                     HPS_OK);
    assert_int_equal(position_there, 0);
    store->ops->space_close(space);
    store->ops->close(store);
}

/* What was in memory when the disk filled up is written out by and by, or fails to be: neither may
 * end the process, and nothing that was acknowledged may be lost. */
static void test_writes_when_others_fill_the_disk_then_serving_and_unloading_go_on(void **state)
{
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=96m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    struct hps_space *other = NULL;
    struct hps_store_load *rows = NULL;
    load(space, 20000);
    assert_int_equal(space_open(store, "other", 1, &other), HPS_OK);
    assert_int_equal(store->ops->load_begin(other, 0, 0, &rows, &error), HPS_OK);
    assert_int_equal(load_rows(store, rows, 0, 1000), HPS_OK);
    for (hps_key key = 0; key < 3000; key++) { /* several times the memory for writes */
        assert_int_equal(put(space, key * 3), HPS_OK);
    }
    fill_from_outside();
    assert_int_equal(put(space, 1), HPS_EXHAUSTED);
    assert_int_equal(store->ops->apply(space, &no_limit, NULL, 0, NULL, 0, &error), HPS_OK);
    hps_status status = load_rows(store, rows, 1000, 30000);
    if (status == HPS_OK) {
        status = store->ops->load_commit(rows, &error);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    store->ops->load_abort(rows);
    store->ops->space_close(other);
    store->ops->space_close(space);
    fill_from_outside(); /* what the load gave back, too */
    store->ops->close(store);
    store = open_store(); /* a restart works, too */
    space = open_space(store);
    assert_int_equal(space_open(store, "other", 1, &other), HPS_OK);
    for (hps_key key = 0; key < 9000; key++) {
        assert_true(has(space, key));
    }
    assert_int_equal(store->ops->record_delete(store, "k", 1, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(other, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    wait_for_room(store, 4 << 20); /* the rows gave their room back */
    store->ops->close(store);
    store = open_store();
    space = open_space(store);
    assert_false(has(space, 0));
    store->ops->space_close(space);
    store->ops->close(store);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        return load_and_crash(argv[1]);
    }
    if (argc == 4) {
        return apply_for_ever(argv[2], argv[3]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_open_when_closed_before_then_rows_and_records_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_read_only_then_writes_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_open_when_open_elsewhere_then_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_format_is_newer_then_refused_and_untouched,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_database_is_foreign_then_refused_and_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_directory_holds_other_files_then_refused,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_creation_was_cut_short_then_created_again,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_space_when_name_is_illegal_then_invalid, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_file_is_damaged_then_data_loss_and_never_a_wrong_row, setup, teardown),
        cmocka_unit_test_setup_teardown(test_get_when_row_has_a_wrong_size_then_data_loss, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_compaction_when_a_version_is_damaged_then_it_can_be_unloaded, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_a_file_is_cut_short_then_data_loss_in_every_mode, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_large_and_read_in_any_mode_then_every_row_is_right, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_a_load_was_cut_short_then_nothing_of_it_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_killed_at_any_moment_then_rows_and_position_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_again_and_again_then_logs_do_not_pile_up,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_writes_when_disk_fills_up_then_exhausted_and_serving_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_drop_when_the_disk_has_no_room_then_a_new_space_begins_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_writes_when_others_fill_the_disk_then_serving_and_unloading_go_on, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_checkpoint_when_opened_then_holds_what_was_there,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_checkpoint_when_read_only_or_on_another_full_disk_then_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb", tests, NULL, NULL);
}
