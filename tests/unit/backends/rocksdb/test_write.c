/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes: batches of a process that is killed at any moment, and a full disk, filled by the
 * store or by other files. The test program runs itself as the process to kill.
 */
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "backends/store_durable.h"
#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/pause.h"
#include "tests/lib/work.h"

/* ---- crashes --------------------------------------------------------------------------------- */

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

static uint64_t position(struct hps_space *space)
{
    uint64_t seq = 0;
    assert_int_equal(
        space->store->ops->durable->space_record_scan(space, read_position, &seq, &error), HPS_OK);
    return seq;
}

/* Apply batch number seq. All keys of one table get rows of seq; rows of the other table are put
 * and deleted in turn. */
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
    return space->store->ops->durable->apply(space, &no_limit, writes, 2, &record, 1, &error);
}

/* Main function of the child: apply batches until killed, and write a byte after each. */
static int apply_for_ever(const char *path, const char *wal_sync_ms)
{
    (void)snprintf(dir, HPS_TMPDIR_PATH_MAX, "%s", path);
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

/* Kill a child at any moment after this many batches. */
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

/* All rows of both tables belong to this position. */
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
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = KILL_KEYS};
        assert_int_equal(space->store->ops->get(space, &no_limit, &kill_tables[t], &batch), HPS_OK);
        assert_int_equal(batch.n, t == 0 || seq % 2 != 0 ? 0 : KILL_KEYS);
        for (uint32_t i = batch.n; i < KILL_KEYS; i++) {
            const uint8_t *row = rows + (size_t)slots[i] * kill_tables[t].row_bytes;
            uint64_t found = 0;
            memcpy(&found, row, t == 0 ? 8 : 1);
            assert_true(found == (t == 0 ? seq : (seq & 0xff)));
            assert_memory_equal(row, row + 8, kill_tables[t].row_bytes - 8); /* not torn */
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
        assert_true(after >= seq + n_batches); /* acknowledged batches are stored */
        seq = after;
        check_position(space, seq);
        store->ops->space_close(space);
        store->ops->close(store);
    }
}

/* ---- a disk that fills up -------------------------------------------------------------------- */

static hps_status fill_by_load(struct hps_space *space)
{
    struct hps_store *store = space->store;
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->bulk->begin(space, 0, 0, &rows, &error), HPS_OK);
    hps_status status = load_rows(store, rows, 0, 1000000);
    store->ops->bulk->abort(rows);
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

static void test_writes_when_disk_fills_up_then_exhausted_and_reads_continue(void **state)
{
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=96m") != 0) {
        print_message("SKIPPED: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    struct hps_store_load *rows = NULL;
    assert_int_equal(store->ops->bulk->begin(space, 1000000, 512000000, &rows, &error),
                     HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "needed"));
    assert_int_equal(fill_by_load(space), HPS_EXHAUSTED);
    assert_true(store->ops->durable->bytes_free(store) > 60 << 20); /* the load is removed */
    load(space, 1000);
    assert_int_equal(fill_by_put(space), HPS_EXHAUSTED);
    assert_true(has(space, 999));
    hps_status status = HPS_OK;
    for (hps_key key = 0; key < 10000 && status == HPS_OK; key++) { /* use the space left */
        status = put(space, key);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_int_equal(store->ops->durable->record_put(store, "k", 1, "v", 1, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
    store = open_store(); /* a restart works */
    store->ops->close(store);
}

/* RocksDB removes a file after its last user, for example a flush, has ended. */
static void wait_for_capacity(struct hps_store *store, uint64_t bytes)
{
    uint64_t give_up_us = hps_clock_us() + 60 * 1000 * 1000;
    char ballast[sizeof(own.path) + 32]; /* uses some of the capacity again */
    struct stat info;

    (void)snprintf(ballast, sizeof(ballast), "%s/hpsd.ballast", dir);
    while (store->ops->durable->bytes_free(store) +
               (stat(ballast, &info) == 0 ? (uint64_t)info.st_size : 0) <=
           bytes) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

/* Rows that are in memory when the disk fills up are flushed later, or their flush fails.
 * Neither may end the process or lose acknowledged rows. */
static void test_writes_when_other_files_fill_the_disk_then_reads_and_unloading_continue(
    void **state)
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
    assert_int_equal(store->ops->bulk->begin(other, 0, 0, &rows, &error), HPS_OK);
    assert_int_equal(load_rows(store, rows, 0, 1000), HPS_OK);
    for (hps_key key = 0; key < 3000; key++) { /* several times the memory for writes */
        assert_int_equal(put(space, key * 3), HPS_OK);
    }
    fill_from_outside();
    assert_int_equal(put(space, 1), HPS_EXHAUSTED);
    assert_int_equal(store->ops->durable->apply(space, &no_limit, NULL, 0, NULL, 0, &error),
                     HPS_OK);
    hps_status status = load_rows(store, rows, 1000, 30000);
    if (status == HPS_OK) {
        status = store->ops->bulk->commit(rows, &error);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    store->ops->bulk->abort(rows);
    store->ops->space_close(other);
    store->ops->space_close(space);
    fill_from_outside(); /* also the space that the load released */
    store->ops->close(store);
    store = open_store(); /* a restart works, too */
    space = open_space(store);
    assert_int_equal(space_open(store, "other", 1, &other), HPS_OK);
    for (hps_key key = 0; key < 9000; key++) {
        assert_true(has(space, key));
    }
    assert_int_equal(store->ops->durable->record_delete(store, "k", 1, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(other, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    wait_for_capacity(store, 4 << 20); /* the space of the rows is free again */
    store->ops->close(store);
    store = open_store();
    space = open_space(store);
    assert_false(has(space, 0));
    store->ops->space_close(space);
    store->ops->close(store);
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        return apply_for_ever(argv[2], argv[3]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_apply_when_killed_at_any_moment_then_rows_and_position_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_writes_when_disk_fills_up_then_exhausted_and_reads_continue, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_writes_when_other_files_fill_the_disk_then_reads_and_unloading_continue, setup,
            teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_write", tests, NULL, NULL);
}
