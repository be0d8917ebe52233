/* SPDX-License-Identifier: Apache-2.0
 *
 * Base files on a disk that fails, and in a process that is killed. A child process loads, writes
 * and merges. It ends, like after kill -9, before the n-th call that changes a file, for each n. Or
 * that call finds a full disk. Or the power is cut, which takes all unsynced bytes. Afterwards the
 * store has exactly the acknowledged rows.
 */
#include "tests/unit/backends/basefile/basefile_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/lib/fault_heap.h"

/* ---- calls that change files ----------------------------------------------------------------- */

enum how_failed { COUNT, KILL, FULL, CUT };

/* ThreadSanitizer ends a child that starts threads, so it gets no kills. AddressSanitizer looks for
 * bad memory in a part of the steps; without a sanitizer all are tested. */
#if defined(HPS_TSAN)
enum { STEP = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { STEP = 9 };
#else
enum { STEP = 1 };
#endif

enum { N_FILES = 256 };

/* The synced part of a file. */
struct synced {
    char path[256];
    off_t size;
    bool named; /* the directory was synced after the file was created */
};

/* Shared by parent and child. */
static struct shared {
    atomic_int left;     /* calls until the failure; 0: none */
    atomic_uint n_calls; /* while armed */
    atomic_int how;
    atomic_bool armed;
    atomic_uint acked;  /* writes that were acknowledged */
    atomic_bool loaded; /* the commit of the load was acknowledged */
    uint32_t n_files;   /* files_lock, in the child */
    struct synced files[N_FILES];
} * shared;

static ino_t unreadable; /* reads of this file fail; 0: none */

/* Sets the path of an open file. Returns whether the file is below the directory of the test. */
static bool own_path(int fd, char path[1024])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 1023);
    path[n > 0 ? n : 0] = '\0';
    return strncmp(path, own.path, strlen(own.path)) == 0;
}

/* ---- power ----------------------------------------------------------------------------------- */

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;

static struct synced *synced_of(const char *path, off_t size, bool named)
{
    for (uint32_t i = 0; i < shared->n_files; i++) {
        if (strcmp(shared->files[i].path, path) == 0) {
            return &shared->files[i];
        }
    }
    assert_true(shared->n_files < N_FILES && strlen(path) < sizeof(shared->files[0].path));
    struct synced *file = &shared->files[shared->n_files++];
    *file = (struct synced){.size = size, .named = named};
    (void)snprintf(file->path, sizeof(file->path), "%s", path);
    return file;
}

/* Note an open file before a write, or after a sync. */
static void note(int fd, bool synced)
{
    struct stat info;
    char path[1024];
    if (shared == NULL || atomic_load(&shared->how) != CUT || !own_path(fd, path)) {
        return;
    }
    assert_int_equal(fstat(fd, &info), 0);
    pthread_mutex_lock(&files_lock);
    if (!S_ISDIR(info.st_mode)) {
        struct synced *file = synced_of(path, info.st_size, true);
        file->size = synced ? info.st_size : file->size;
    } else if (synced) {
        for (uint32_t i = 0; i < shared->n_files; i++) {
            shared->files[i].named = true;
        }
    }
    pthread_mutex_unlock(&files_lock);
}

/* Note a new base file, which may exist without the sync of its directory. RocksDB syncs names. */
static void note_created(const char *name)
{
    char path[1024];
    if (shared != NULL && atomic_load(&shared->how) == CUT && strncmp(name, "base-", 5) == 0) {
        (void)snprintf(path, sizeof(path), "%s/hpsd/%s", own.path, name);
        pthread_mutex_lock(&files_lock);
        (void)synced_of(path, 0, false);
        pthread_mutex_unlock(&files_lock);
    }
}

/* Remove the bytes and names that the child did not sync. */
static void lose(void)
{
    for (uint32_t i = 0; i < shared->n_files; i++) {
        if (shared->files[i].named) {
            (void)syscall(SYS_truncate, shared->files[i].path, shared->files[i].size);
        } else {
            (void)syscall(SYS_unlink, shared->files[i].path);
        }
    }
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Whether the call must fail. A full disk only hits base files: RocksDB's own writes are tested in
 * test_fault_rocksdb.c. */
static bool fails(int fd, const char *name)
{
    char path[1024] = "";
    if (shared == NULL || !atomic_load(&shared->armed) || (fd >= 0 && !own_path(fd, path))) {
        return false;
    }
    bool base = strstr(path, "/base-") != NULL || (name != NULL && strstr(name, "base-") != NULL);
    bool full = atomic_load(&shared->how) == FULL;
    if (full && !base) {
        return false;
    }
    atomic_fetch_add(&shared->n_calls, 1);
    if (atomic_load(&shared->left) == 0 || atomic_fetch_sub(&shared->left, 1) != 1) {
        return false;
    }
    if (!full) {
        syscall(SYS_exit_group, 9);
    }
    errno = ENOSPC;
    return true;
}

/* hpsd calls pwrite and openat. In this program these names mean the next two functions' symbols
 * with 64 at the end, which RocksDB calls. */
ssize_t pwrite_small(int fd, const void *data, size_t n, off_t offset) __asm__("pwrite");
ssize_t pread_small(int fd, void *data, size_t n, off_t offset) __asm__("pread");
int openat_small(int dir, const char *name, int flags, ...) __asm__("openat");

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    note(fd, false);
    return fails(fd, NULL) ? -1 : syscall(SYS_pwrite64, fd, data, n, offset);
}

ssize_t pwrite_small(int fd, const void *data, size_t n, off_t offset)
{
    return pwrite(fd, data, n, offset);
}

static bool unwritable; /* the disk fails after writes have succeeded; the kernel tells it once */

int sync_file_range(int fd, off64_t offset, off64_t n, unsigned flags)
{
    if (unwritable && (flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
        unwritable = false;
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_sync_file_range, fd, offset, n, flags);
}

ssize_t pread_small(int fd, void *data, size_t n, off_t offset)
{
    struct stat info;
    if (unreadable != 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_ino == unreadable) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, data, n, offset);
}

ssize_t write(int fd, const void *data, size_t n)
{
    note(fd, false);
    return fails(fd, NULL) ? -1 : syscall(SYS_write, fd, data, n);
}

int fsync(int fd)
{
    if (fails(fd, NULL)) {
        return -1;
    }
    note(fd, true);
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    if (fails(fd, NULL)) {
        return -1;
    }
    note(fd, true);
    return (int)syscall(SYS_fdatasync, fd);
}

int unlinkat(int dir, const char *name, int flags)
{
    bool failed = atomic_load(&shared->how) != FULL && fails(dir, name);
    return failed ? -1 : (int)syscall(SYS_unlinkat, dir, name, flags);
}

static int open_or_fail(int dir, const char *name, int flags, mode_t mode)
{
    if ((flags & O_CREAT) != 0 && fails(dir, name)) {
        return -1;
    }
    if ((flags & O_CREAT) != 0) {
        note_created(name);
    }
    return (int)syscall(SYS_openat, dir, name, flags, mode);
}

int openat(int dir, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_or_fail(dir, name, flags, mode);
}

int openat_small(int dir, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_or_fail(dir, name, flags, mode);
}

/* ---- the child ------------------------------------------------------------------------------- */

static const struct hps_record version = {"version/1", 9, "1", 1};

/* Write number w: upserts and deletes. The parent knows its effect, too. */
static hps_status write_number(struct hps_space *space, uint32_t w)
{
    return write_some(space, 1, w * 150 % 1600, 300, 1 + w % 3, w % 3 == 2 ? 0 : w + 2);
}

static void write_on(struct hps_space *space, uint32_t n)
{
    const struct hps_store_durable_ops *durable = space->store->ops->durable;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t w = atomic_load(&shared->acked);
        if (write_number(space, w) != HPS_OK) {
            return;
        }
        /* A record of the store is on disk, with all earlier writes. */
        if (atomic_load(&shared->how) == CUT &&
            durable->record_put(space->store, "sync", 4, "", 0, &error) != HPS_OK) {
            return;
        }
        atomic_store(&shared->acked, w + 1);
    }
}

/* Load, and record the version, as the server does. */
static bool load_and_record(struct hps_space *space)
{
    struct hps_store *store = space->store;
    struct hps_store_load *rows = NULL;
    hps_status status = load_rows(space, &rows);
    if (status == HPS_OK) {
        status = store->ops->bulk->commit(rows, &error);
    }
    if (status == HPS_OK) {
        status = store->ops->durable->record_put(store, version.key, version.key_size,
                                                 version.value, version.value_size, &error);
        atomic_store(&shared->loaded, status == HPS_OK);
    } else if (rows != NULL) {
        store->ops->bulk->abort(rows);
    }
    if (status == HPS_EXHAUSTED) {
        assert_int_equal(n_files(), 0);
    }
    return status == HPS_OK;
}

static void arm(bool armed)
{
    atomic_store(&shared->armed, armed);
}

static void child_load(void)
{
    struct hps_space *space = open_space(open_store());
    arm(true);
    if (load_and_record(space)) {
        write_on(space, 1);
    }
    arm(false);
    close_all(space);
}

static void child_merge(void)
{
    struct hps_space *space = open_space(open_store());
    if (!load_and_record(space)) {
        return;
    }
    write_on(space, 4);
    for (unsigned round = 0; round < 2; round++) {
        unsigned n = n_files();
        arm(true);
        hps_status status = merge(space, 1);
        write_on(space, 1);
        arm(false);
        assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
        assert_int_equal(n_files(), n);
        write_on(space, 2);
    }
    close_all(space);
}

static void child_drop(void)
{
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    if (!load_and_record(space)) {
        return;
    }
    arm(true);
    if (store->ops->durable->record_delete(store, version.key, version.key_size, &error) ==
        HPS_OK) {
        hps_ignore(store->ops->space_drop(space, &error));
    }
    arm(false);
    store->ops->close(store);
}

/* Run `work` in a child. Returns whether it ended by itself. */
static bool run_child(void (*work)(void), enum how_failed how_failed, int n)
{
    int status = 0;
    atomic_store(&shared->left, n);
    atomic_store(&shared->how, how_failed);
    atomic_store(&shared->n_calls, 0);
    atomic_store(&shared->acked, 0);
    atomic_store(&shared->loaded, false);
    shared->n_files = 0;
    arm(false);
    pid_t child = fork();
    if (child == 0) {
        work();
        syscall(SYS_exit_group, 0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    arm(false);
    atomic_store(&shared->how, COUNT);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 9)) {
        fail_msg("child: status %x at call %d", status, n);
    }
    if (how_failed == CUT && WEXITSTATUS(status) != 0) {
        lose();
    }
    return WEXITSTATUS(status) == 0;
}

/* ---- the parent ------------------------------------------------------------------------------ */

static hps_status saw_record(void *ctx, const void *key, size_t key_size, const void *value,
                             size_t value_size)
{
    (void)key, (void)key_size, (void)value, (void)value_size;
    *(bool *)ctx = true;
    return HPS_OK;
}

static void model_fill(bool exists)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        for (uint32_t i = 0; i < MODEL_KEYS; i++) {
            model[t][i] = exists && is_loaded(i) ? 1 : 0;
        }
    }
}

static void model_write(uint32_t w)
{
    uint32_t step = 1 + w % 3;
    for (uint32_t i = w * 150 % 1600; i < w * 150 % 1600 + 300; i += step) {
        model[1][i] = w % 3 == 2 ? 0 : w + 2;
    }
}

static hps_status position(void *ctx, const void *key, size_t key_size, const void *value,
                           size_t value_size)
{
    (void)key, (void)key_size;
    assert_int_equal(value_size, sizeof(uint32_t));
    memcpy(ctx, value, value_size);
    return HPS_OK;
}

/* Open the store that the child has left, and compare it with the acknowledged writes. */
static void check_left(void)
{
    bool recorded = false;
    struct hps_store *store = open_store();
    assert_int_equal(
        store->ops->durable->record_scan(store, "version/", saw_record, &recorded, &error), HPS_OK);
    struct hps_space *space = open_space(store);
    if (!recorded) { /* the server drops such a space, and loads the version again */
        assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
        assert_int_equal(n_files(), 0);
        space = open_space(store);
        load(space);
    } else {
        model_fill(true);
        uint32_t acked = atomic_load(&shared->acked);
        for (uint32_t w = 0; w < acked; w++) {
            model_write(w);
        }
        /* The last write may have been complete but not acknowledged: the position tells. */
        uint32_t at = 1;
        assert_int_equal(store->ops->durable->space_record_scan(space, position, &at, &error),
                         HPS_OK);
        if (at == (acked % 3 == 2 ? 0 : acked + 2)) {
            model_write(acked);
        }
        assert_int_equal(n_files(), N_TABLES - 1);
    }
    check_all(space);
    /* The store can be changed. */
    assert_int_equal(merge(space, 1), HPS_OK);
    assert_int_equal(write_some(space, 1, 100, 300, 1, 77), HPS_OK);
    check_all(space);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    assert_int_equal(
        store->ops->durable->record_delete(store, version.key, version.key_size, &error), HPS_OK);
    assert_int_equal(n_files(), 0);
    store->ops->close(store);
    /* A store that is opened often flushes old WALs, for which a forked child has no threads. */
    hps_tmpdir_close(&own);
    hps_tmpdir_open(&own);
}

/* Fail at each call. Returns the number of calls. */
static int fail_each(void (*work)(void), enum how_failed how_failed)
{
    if (STEP == 0) {
        skip();
    }
    assert_true(run_child(work, how_failed, 0));
    int n_calls = (int)atomic_load(&shared->n_calls);
    check_left();
    /* A missing sync shows at many steps. */
    for (int n = 1; n <= n_calls; n += how_failed == CUT ? 3 * STEP : STEP) {
        hps_ignore(run_child(work, how_failed, n) ? HPS_OK : HPS_CANCELLED);
        check_left();
    }
    return n_calls;
}

static void test_load_when_killed_at_each_step_then_nothing_or_all_is_served(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_load, KILL), 20, 1000);
}

static void test_merge_when_killed_at_each_step_then_every_acknowledged_row_is_there(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_merge, KILL), 20, 1000);
}

static void test_drop_when_killed_at_each_step_then_all_or_nothing_is_left(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_drop, KILL), 3, 1000);
}

static void test_load_when_the_disk_is_full_at_each_write_then_it_fails_whole(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_load, FULL), 10, 1000);
}

static void test_merge_when_the_disk_is_full_at_each_write_then_rows_stay(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_merge, FULL), 10, 1000);
}

/* ---- an unreadable file ---------------------------------------------------------------------- */

static void test_open_when_the_end_of_a_base_is_unreadable_then_only_its_keys_fail(void **state)
{
    (void)state;
    static uint8_t rows[(MODEL_KEYS + 1) * 132];
    static uint8_t found[MODEL_KEYS + 1];
    struct stat info;
    struct hps_space *space = open_space(open_store());
    load(space);
    assert_int_equal(stat(path_of(space, 1), &info), 0);
    unreadable = info.st_ino;
    space = restart(space);
    assert_int_equal(look_up(space, 1, 0, N_KEYS, found, rows), HPS_DATA_LOSS);
    check_some(space, 1, N_KEYS + 1, N_FURTHER - 1); /* keys after the base */
    check_some(space, 2, 0, MODEL_KEYS);
    unreadable = 0;
    space = restart(space);
    check_all(space);
    close_all(space);
}

static void test_load_when_power_is_cut_at_each_step_then_nothing_or_all_is_served(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_load, CUT), 20, 1000);
}

static void test_merge_when_power_is_cut_at_each_step_then_every_synced_row_is_there(void **state)
{
    (void)state;
    assert_in_range(fail_each(child_merge, CUT), 20, 1000);
}

/* ---- an unwritable file ---------------------------------------------------------------------- */

static void test_load_when_the_disk_fails_once_after_a_write_then_it_fails(void **state)
{
    (void)state;
    enum { N = 400, ROUNDS = 10 }; /* 18 MB */
    static uint8_t rows[N * 4500];
    hps_key keys[N];
    struct hps_store_load *rows_load = NULL;
    struct hps_space *space = open_space(open_store());
    const struct hps_store_bulk_ops *bulk = space->store->ops->bulk;
    assert_int_equal(bulk->begin(space, 0, 0, &rows_load, &error), HPS_OK);
    unwritable = true;
    hps_status status = HPS_OK;
    for (uint32_t round = 0; round < ROUNDS && status == HPS_OK; round++) {
        for (uint32_t i = 0; i < N; i++) {
            keys[i] = round * N + i;
        }
        status = bulk->add(rows_load, &tables[3], keys, rows, N, &error);
    }
    assert_int_equal(status, HPS_IO);
    bulk->abort(rows_load);
    assert_int_equal(n_files(), 0);
    load(space);
    check_all(space);
    close_all(space);
}

/* ---- no memory ------------------------------------------------------------------------------- */

/* A call may fail once, because one allocation fails. Then it succeeds. */
static void expect_once(hps_status first, hps_status (*call)(struct hps_space *space),
                        struct hps_space *space)
{
    if (first != HPS_OK) {
        assert_int_equal(first, HPS_NO_MEMORY);
        assert_int_equal(call(space), HPS_OK);
    }
}

static hps_status load_all(struct hps_space *space)
{
    struct hps_store_load *rows = NULL;
    const struct hps_store_bulk_ops *bulk = space->store->ops->bulk;
    hps_status status = load_rows(space, &rows);
    status = status == HPS_OK ? bulk->commit(rows, &error) : status;
    if (status != HPS_OK && rows != NULL) {
        bulk->abort(rows);
    }
    return status;
}

static hps_status write_again(struct hps_space *space)
{
    return write_some(space, 1, 100, 600, 2, 5);
}

static hps_status merge_again(struct hps_space *space)
{
    return merge(space, 1);
}

static hps_status look_up_again(struct hps_space *space)
{
    static uint8_t rows[(MODEL_KEYS + 1) * 132];
    static uint8_t found[MODEL_KEYS + 1];
    return look_up(space, 1, 0, MODEL_KEYS, found, rows);
}

static hps_status scan_again(struct hps_space *space)
{
    struct scanned scanned = {.t = 1};
    hps_status status = space->store->ops->scan(space, &tables[1], scanned_rows, &scanned, &error);
    if (status == HPS_OK) {
        scanned_end(&scanned);
    }
    return status;
}

static void scarce(void *ctx)
{
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    hps_status status = try_open(&store);
    (void)ctx;
    model_fill(true);
    if (status != HPS_OK) {
        assert_int_equal(status, HPS_NO_MEMORY);
        store = open_store();
    }
    status = try_space(store, &space);
    if (status != HPS_OK) { /* RocksDB may have the family already: only a new start sees it */
        assert_int_equal(status, HPS_NO_MEMORY);
        store->ops->close(store);
        store = open_store();
        space = open_space(store);
    }
    expect_once(load_all(space), load_all, space);
    expect_once(write_again(space), write_again, space);
    expect_once(look_up_again(space), look_up_again, space);
    expect_once(scan_again(space), scan_again, space);
    expect_once(merge_again(space), merge_again, space);
    store->ops->space_close(space);
    status = try_space(store, &space);
    if (status != HPS_OK) {
        assert_int_equal(status, HPS_NO_MEMORY);
        space = open_space(store);
    }
    expect_once(look_up_again(space), look_up_again, space);
    expect_once(scan_again(space), scan_again, space);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    assert_in_range(n_files(), 0, N_TABLES - 1); /* without memory for the names, files stay */
    store->ops->close(store);
}

static void test_store_when_an_allocation_fails_then_the_call_fails_and_the_next_succeeds(
    void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(scarce, NULL) > 50);
}

static int share(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_load_when_killed_at_each_step_then_nothing_or_all_is_served, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_killed_at_each_step_then_every_acknowledged_row_is_there, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_drop_when_killed_at_each_step_then_all_or_nothing_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_the_disk_is_full_at_each_write_then_it_fails_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_the_disk_is_full_at_each_write_then_rows_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_the_end_of_a_base_is_unreadable_then_only_its_keys_fail, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_the_disk_fails_once_after_a_write_then_it_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_power_is_cut_at_each_step_then_nothing_or_all_is_served, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_merge_when_power_is_cut_at_each_step_then_every_synced_row_is_there, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_store_when_an_allocation_fails_then_the_call_fails_and_the_next_succeeds, setup,
            teardown),
    };
    return cmocka_run_group_tests_name("fault_basefile", tests, share, NULL);
}
