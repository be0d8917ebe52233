/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store on a failing disk: calls of RocksDB fail with errors of the kernel. Reads
 * continue, acknowledged writes exist after a restart, and the store reports that it refuses
 * writes.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/rocksdb/rocksdb.h"
#include "backends/store_durable.h"
#include "tests/lib/failing_disk.h"
#include "tests/lib/pause.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 503, ROW_BYTES = DIM + 8, FREE_MIN = 8 << 20, BATCH = 200 };

static struct hps_tmpdir tmp;
static struct hps_error error;
static const struct hps_call no_limit = {0};
static const struct hps_table table = {
    .name = "t", .id = 0, .dim = DIM, .row_bytes = ROW_BYTES, .dtype = HPS_DTYPE_INT8_ROWWISE_F32};

/* ---- helpers --------------------------------------------------------------------------------- */

static int setup(void **state)
{
    (void)state;
    hps_tmpdir_open(&tmp);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    failing_disk_repair();
    (void)umount2(tmp.path, MNT_DETACH); /* only mounted in one test */
    hps_tmpdir_close(&tmp);
    return 0;
}

static struct hps_store *open_store(uint32_t wal_sync_ms)
{
    const struct hps_rocksdb_options options = {.path = tmp.path,
                                                .n_threads = 2,
                                                .batch_keys_max = 1000,
                                                .disk_free_min_bytes = FREE_MIN,
                                                .wal_sync_ms = wal_sync_ms};
    struct hps_store *store = NULL;
    if (hps_rocksdb_open(&options, &store, &error) != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    return store;
}

static struct hps_space *open_space(struct hps_store *store)
{
    const struct hps_space_id id = {"m", 1, &table, 1, 0};
    struct hps_space *space = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &space, &error), HPS_OK);
    return space;
}

/* Apply a batch of rows from key `first` on, with its end as the position. */
static hps_status apply(struct hps_space *space, hps_key first)
{
    static uint8_t rows[BATCH * ROW_BYTES];
    hps_key keys[BATCH];
    for (unsigned i = 0; i < BATCH; i++) {
        keys[i] = first + i;
        memset(rows + (size_t)i * ROW_BYTES, (int)(keys[i] % 251), ROW_BYTES);
    }
    hps_key next = first + BATCH;
    const struct hps_write write = {&table, keys, rows, BATCH};
    const struct hps_record record = {"p", 1, &next, sizeof(next)};
    return space->store->ops->durable->apply(space, &no_limit, &write, 1, &record, 1, &error);
}

/* Apply batches until one fails. Returns its first key. */
static hps_key apply_until_refused(struct hps_space *space)
{
    for (hps_key key = 0; key < 1000000; key += BATCH) {
        if (apply(space, key) != HPS_OK) {
            return key;
        }
    }
    fail_msg("RocksDB takes writes on a disk that fails");
    return 0;
}

static hps_status position_read(void *ctx, const void *key, size_t key_size, const void *value,
                                size_t value_size)
{
    (void)key;
    (void)key_size;
    memcpy(ctx, value, value_size);
    return HPS_OK;
}

/* All keys below `end` exist. */
static void check_keys(struct hps_space *space, hps_key end)
{
    static uint8_t rows[BATCH * ROW_BYTES];
    for (hps_key first = 0; first < end; first += BATCH) {
        hps_key keys[BATCH];
        uint32_t slots[BATCH];
        for (uint32_t i = 0; i < BATCH; i++) {
            keys[i] = first + i;
            slots[i] = i;
        }
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = BATCH};
        assert_int_equal(space->store->ops->get(space, &no_limit, &table, &batch), HPS_OK);
        assert_int_equal(batch.n, 0);
        for (uint32_t i = 0; i < BATCH; i++) {
            assert_int_equal(rows[(size_t)i * ROW_BYTES], (first + i) % 251);
        }
    }
}

/* The same, and the position is at least `end`. */
static void check_rows(struct hps_space *space, hps_key end)
{
    hps_key position = 0;
    assert_int_equal(
        space->store->ops->durable->space_record_scan(space, position_read, &position, &error),
        HPS_OK);
    assert_true(position >= end); /* a refused batch may be stored completely nevertheless */
    check_keys(space, position);
}

static bool refused(struct hps_store *store)
{
    return store->ops->durable->writes_refused(store) != NULL;
}

static void close_all(struct hps_space *space)
{
    struct hps_store *store = space->store;
    store->ops->space_close(space);
    store->ops->close(store);
}

static bool restart_asked(struct hps_store *store)
{
    const char *why = store->ops->durable->writes_refused(store);
    return why != NULL && strstr(why, "only after a restart") != NULL;
}

/* Wait until a store that had a full disk takes writes again: by itself, or after a restart if
 * it requests one. *out_asked: whether it did. */
static struct hps_space *wait_for_writes(struct hps_space *space, bool *out_asked)
{
    struct hps_store *store = space->store;
    while (store->ops->durable->writes_refused(store) != NULL && !restart_asked(store)) {
        brief_pause();
    }
    *out_asked = restart_asked(store);
    if (*out_asked) {
        assert_int_equal(apply(space, 0), HPS_EXHAUSTED);
        assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error),
                         HPS_EXHAUSTED);
        assert_non_null(strstr(error.text, "only after a restart"));
        close_all(space);
        space = open_space(open_store(1));
    }
    return space;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The first sync of the WAL fails: in the store's thread, or in RocksDB before a flush. */
static void sync_fails(uint32_t wal_sync_ms)
{
    struct hps_store *store = open_store(wal_sync_ms);
    struct hps_space *space = open_space(store);
    assert_false(refused(store));
    atomic_store(&failing_disk.wal_sync_errno, EIO);
    hps_key end = apply_until_refused(space);
    assert_int_equal(apply(space, end), HPS_IO);
    assert_true(refused(store));
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_IO);
    unsigned n_syncs = atomic_load(&failing_disk.n_wal_syncs);
    atomic_store(&failing_disk.wal_sync_errno, 0);
    check_rows(space, end);
    for (unsigned i = 0; i < 20; i++) { /* and the WAL is not synced in the background */
        assert_int_equal(apply(space, end), HPS_IO);
    }
    close_all(space);
    assert_int_equal(atomic_load(&failing_disk.n_wal_syncs), n_syncs);
    store = open_store(wal_sync_ms);
    space = open_space(store);
    check_rows(space, end);
    assert_int_equal(apply(space, 0), HPS_OK);
    assert_false(refused(store));
    close_all(space);
}

static void test_sync_when_the_wal_fails_then_writes_are_refused_and_no_row_is_lost(void **state)
{
    (void)state;
    sync_fails(1);
}

static void test_flush_when_the_wal_fails_then_writes_are_refused_and_no_row_is_lost(void **state)
{
    (void)state;
    sync_fails(200); /* RocksDB syncs first, then the thread */
}

static void test_write_when_synced_and_the_wal_fails_then_refused_and_no_row_is_lost(void **state)
{
    (void)state;
    sync_fails(0);
}

/* A failing disk is not full: the error must not ask the operator to free space. */
static void test_write_when_the_wal_cannot_be_written_then_io_until_a_restart(void **state)
{
    (void)state;
    struct hps_store *store = open_store(1);
    struct hps_space *space = open_space(store);
    assert_int_equal(apply(space, 0), HPS_OK);
    atomic_store(&failing_disk.wal_write_errno, EIO);
    assert_int_equal(apply(space, BATCH), HPS_IO);
    assert_true(refused(store));
    atomic_store(&failing_disk.wal_write_errno, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(apply(space, BATCH), HPS_IO);
    }
    assert_non_null(strstr(store->ops->durable->writes_refused(store), "restart hpsd"));
    check_rows(space, BATCH);
    close_all(space);
    store = open_store(1);
    space = open_space(store);
    check_rows(space, BATCH);
    assert_int_equal(apply(space, BATCH), HPS_OK);
    assert_false(refused(store));
    close_all(space);
}

/* ---- a disk that other files fill ------------------------------------------------------------ */

enum { DISK_KEYS = 100 * BATCH };

static uint64_t disk_free(void)
{
    struct statvfs fs;
    assert_int_equal(statvfs(tmp.path, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

static atomic_bool fill_now;

static void *fill_run(void *arg)
{
    int fd = *(int *)arg;
    off_t at = 0;
    while (!atomic_load(&fill_now)) {
        brief_pause();
    }
    for (unsigned i = 0; i < 1000; i++) { /* also space that is released now */
        off_t bytes = (off_t)disk_free();
        at += bytes > 0 && fallocate(fd, 0, at, bytes) == 0 ? bytes : 0;
        brief_pause();
    }
    return NULL;
}

/* Compactions, flushes and the WAL run out of space together, while all of them write. */
static void test_compaction_when_other_files_fill_the_disk_then_writes_wait_for_space(void **state)
{
    (void)state;
    pthread_t filler;
    if (mount("tmpfs", tmp.path, "tmpfs", 0, "size=128m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    int fd = open(hps_tmpdir_join(&tmp, "others"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    atomic_store(&fill_now, false);
    assert_int_equal(pthread_create(&filler, NULL, fill_run, &fd), 0);
    struct hps_store *store = open_store(1);
    struct hps_space *space = open_space(store);
    hps_status status = HPS_OK;
    for (unsigned round = 0; status == HPS_OK; round++) { /* the same keys: much to compact */
        atomic_store(&fill_now, round == 5);
        assert_true(round < 1000);
        for (hps_key key = 0; key < DISK_KEYS && status == HPS_OK; key += BATCH) {
            status = apply(space, key);
        }
    }
    pthread_join(filler, NULL);
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_true(refused(store));
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(apply(space, 0), HPS_EXHAUSTED);
    }
    check_keys(space, DISK_KEYS);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    bool asked = false;
    do { /* the store detects it by itself */
        space = wait_for_writes(space, &asked);
        status = apply(space, 0);
    } while (status == HPS_EXHAUSTED);
    assert_int_equal(status, HPS_OK);
    store = space->store;
    check_keys(space, DISK_KEYS);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    close_all(space);
    store = open_store(1);
    space = open_space(store);
    check_keys(space, DISK_KEYS);
    close_all(space);
}

/* The disk is full when the WAL is written, as the first file or later. The process continues,
 * and so do writes once there is space. */
static void wal_meets_full_disk(struct hps_store *store, hps_key end)
{
    struct hps_space *space = open_space(store);
    for (hps_key first = 0; first < end; first += BATCH) {
        assert_int_equal(apply(space, first), HPS_OK);
    }
    atomic_store(&failing_disk.wal_write_errno, ENOSPC);
    assert_int_equal(apply(space, end), HPS_EXHAUSTED);
    assert_int_equal(apply(space, end), HPS_EXHAUSTED);
    assert_true(refused(store));
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_EXHAUSTED);
    if (end > 0) {
        check_rows(space, end);
    }
    atomic_store(&failing_disk.wal_write_errno, 0);
    while (refused(store)) {
        brief_pause();
    }
    assert_int_equal(apply(space, end), HPS_OK);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    check_rows(space, end + BATCH);
    close_all(space);
    store = open_store(1);
    space = open_space(store);
    check_rows(space, end + BATCH);
    close_all(space);
}

static void test_write_when_the_wal_meets_a_full_disk_then_refused_until_space_is_free(void **state)
{
    (void)state;
    /* Fewer batches than the budget of the WAL. If the failed write flushes the memory, writes
     * continue only after a restart. */
    wal_meets_full_disk(open_store(1), 2 * BATCH);
}

static void test_write_when_memory_is_empty_and_the_wal_meets_a_full_disk_then_the_same(
    void **state)
{
    (void)state;
    struct hps_store *store = open_store(1);
    for (unsigned i = 0; i < 17; i++) { /* all memory has been flushed, see wals_limit */
        store->ops->close(store);
        store = open_store(1);
    }
    wal_meets_full_disk(store, 0);
}

enum { NEW_WALS = 40, RESTARTS = 3 };

/* The first write of a new WAL meets a full disk. If this write has started a flush of all
 * memory, RocksDB does not recover by itself. Which write does so depends on RocksDB's threads. */
static void test_write_when_a_new_wal_meets_a_full_disk_then_it_recovers_or_requests_a_restart(
    void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store(1));
    unsigned n_asked = 0;
    hps_key end = 0;
    for (unsigned i = 0; i < NEW_WALS && n_asked < RESTARTS; i++) {
        bool asked = false;
        atomic_store(&failing_disk.n_new_wals, 1 + i % 12);
        while (apply(space, end) == HPS_OK) {
            end += BATCH;
        }
        assert_true(refused(space->store));
        atomic_store(&failing_disk.wal_write_errno, 0);
        space = wait_for_writes(space, &asked);
        n_asked += asked;
        assert_int_equal(apply(space, end), HPS_OK);
        if (asked) {
            check_rows(space, end + BATCH);
        }
    }
    check_rows(space, end + BATCH);
    close_all(space);
    print_message("restarts asked for: %u\n", n_asked);
}

static void test_close_when_the_wal_was_not_synced_since_a_write_then_it_is_synced(void **state)
{
    (void)state;
    struct hps_store *store = open_store(1 << 30); /* not while the test runs */
    struct hps_space *space = open_space(store);
    assert_int_equal(apply(space, 0), HPS_OK);
    unsigned n_syncs = atomic_load(&failing_disk.n_wal_syncs);
    close_all(space);
    assert_true(atomic_load(&failing_disk.n_wal_syncs) > n_syncs);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_sync_when_the_wal_fails_then_writes_are_refused_and_no_row_is_lost),
        T(test_flush_when_the_wal_fails_then_writes_are_refused_and_no_row_is_lost),
        T(test_write_when_synced_and_the_wal_fails_then_refused_and_no_row_is_lost),
        T(test_write_when_the_wal_cannot_be_written_then_io_until_a_restart),
        T(test_write_when_the_wal_meets_a_full_disk_then_refused_until_space_is_free),
        T(test_write_when_memory_is_empty_and_the_wal_meets_a_full_disk_then_the_same),
        T(test_compaction_when_other_files_fill_the_disk_then_writes_wait_for_space),
        T(test_write_when_a_new_wal_meets_a_full_disk_then_it_recovers_or_requests_a_restart),
        T(test_close_when_the_wal_was_not_synced_since_a_write_then_it_is_synced),
    };
    return cmocka_run_group_tests_name("fault_rocksdb", tests, NULL, NULL);
}
