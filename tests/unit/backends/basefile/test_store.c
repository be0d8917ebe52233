/* SPDX-License-Identifier: Apache-2.0
 *
 * The store with base files against a model of its rows: loads, updates, deletes, merges, restarts,
 * checkpoints, in each way of reading.
 */
#include "tests/unit/backends/basefile/basefile_test.h"

static const struct open_options ways[] = {
    {.mode = HPS_READ_AUTO, .memory_bytes = UINT64_MAX},
    {.mode = HPS_READ_AUTO, .memory_bytes = 0},
    {.mode = HPS_READ_BUFFERED},
    {.mode = HPS_READ_DIRECT, .no_uring = true},
    {.mode = HPS_READ_MMAP, .no_uring = true},
};

static void test_load_when_dense_then_rows_are_in_base_files(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        const struct hps_basefile *base = base_of(space, t);
        assert_int_equal(base != NULL, t != 4);
        if (base != NULL) {
            struct stat info;
            assert_int_equal(base->record.first, firsts[t]);
            assert_in_range(base->record.n, N_KEYS - 1, N_KEYS + 1);
            assert_int_equal(stat(path_of(space, t), &info), 0);
            assert_in_range(info.st_size, N_KEYS * tables[t].row_bytes,
                            (N_KEYS + 1) * tables[t].row_bytes * 102 / 100 +
                                HPS_BASEFILE_PAGE_BYTES);
        }
    }
    check_all(space);
    space = restart(space);
    check_all(space);
    close_all(space);
}

static void test_store_when_off_then_no_base_is_written_and_bases_are_served(void **state)
{
    (void)state;
    how.off = true;
    struct hps_space *space = open_space(open_store());
    load(space);
    check_all(space);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_null(base_of(space, t));
    }
    struct hps_store *store = space->store;
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
    how.off = false;
    space = open_space(open_store());
    load(space);
    how.off = true;
    space = restart(space);
    assert_int_equal(write_some(space, 2, 0, 400, 1, 3), HPS_OK);
    assert_int_equal(merge(space, 2), HPS_OK);
    check_all(space);
    close_all(space);
}

/* Each sort of write, merge and restart occurs in the first 15 rounds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 15 };
#else
enum { ROUNDS = 40 };
#endif

static void run_way(const struct open_options *way)
{
    how = *way;
    struct hps_space *space = open_space(open_store());
    load(space);
    check_all(space);
    uint64_t random = 1;
    for (uint32_t round = 2; round < ROUNDS; round++) {
        for (unsigned i = 0; i < 6; i++) {
            random = hps_mix64(random + round);
            uint32_t t = (uint32_t)(random % N_TABLES);
            uint32_t first = (uint32_t)(random >> 8) % MODEL_KEYS;
            uint32_t n = 1 + (uint32_t)(random >> 24) % 400;
            uint32_t step = 1 + (uint32_t)(random >> 40) % 5;
            assert_int_equal(write_some(space, t, first, n, step, i % 3 == 2 ? 0 : round), HPS_OK);
            check_some(space, t, first, n);
        }
        if (round % 5 == 0) {
            uint32_t t = (uint32_t)(random >> 50) % (N_TABLES - 1);
            if (merge(space, t) != HPS_OK) {
                fail_msg("merge: %s", error.text);
            }
            assert_int_equal(base_of(space, t)->n_changed, 0);
            check_all(space);
        }
        if (round % 7 == 0) {
            space = restart(space);
            check_all(space);
        }
    }
    assert_int_equal(n_files(), N_TABLES - 1);
    check_all(space);
    struct hps_store *store = space->store;
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    assert_int_equal(n_files(), 0);
    store->ops->close(store);
}

static void test_rows_when_written_and_merged_then_equal_the_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        memset(model, 0, sizeof(model));
        run_way(&ways[i]);
    }
}

static void test_get_when_auto_then_bases_are_mapped_if_they_fit_beside_the_inner_store(
    void **state)
{
    (void)state;
    static atomic_uint_fast64_t mapped_bytes;
    struct hps_space *space = open_space(open_store());
    load(space);
    how.memory_bytes = ((struct hps_basefile_store *)space->store)->bytes + 1000;
    how.mapped_bytes = &mapped_bytes;
    space = restart(space);
    atomic_store(&mapped_bytes, 1001);
    assert_false(is_mapped(space, 0));
    atomic_store(&mapped_bytes, 1000);
    assert_true(is_mapped(space, 0));
    close_all(space);
}

static void test_get_when_all_rings_are_in_use_then_threads_read_the_rows(void **state)
{
    (void)state;
    how.mode = HPS_READ_DIRECT;
    struct hps_space *space = open_space(open_store());
    struct hps_basefile_store *store = hps_basefile_of(space);
    load(space);
    struct hps_basefile_ring *rings = store->rings;
    store->rings = NULL;
    store->n_rings_left = 0;
    check_all(space);
    store->rings = rings;
    close_all(space);
}

static void test_apply_when_a_key_is_written_twice_then_the_last_write_wins(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    const struct hps_store_durable_ops *durable = space->store->ops->durable;
    load(space);
    for (uint32_t round = 0; round < 4; round++) {
        uint8_t row[64];
        hps_key key = 100;
        fill(row, 64, key, 5 + round);
        const struct hps_write upsert = {&tables[0], &key, row, 1};
        const struct hps_write delete = {&tables[0], &key, NULL, 1};
        bool ends = round % 2 == 0;
        const struct hps_write writes[2] = {ends ? upsert : delete, ends ? delete : upsert};
        assert_int_equal(durable->apply(space, &no_limit, writes, 2, NULL, 0, &error), HPS_OK);
        model[0][100] = ends ? 0 : 5 + round;
        check_some(space, 0, 90, 20);
        space = restart(space);
        durable = space->store->ops->durable;
        check_some(space, 0, 90, 20);
    }
    close_all(space);
}

static void test_load_when_aborted_or_dropped_then_no_files_are_left(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    struct hps_store_load *rows = NULL;
    assert_int_equal(load_rows(space, &rows), HPS_OK);
    assert_true(n_files() > 0);
    store->ops->bulk->abort(rows);
    assert_int_equal(n_files(), 0);
    check_all(space);
    load(space);
    check_all(space);
    assert_int_equal(store->ops->bulk->begin(space, 0, 0, &rows, &error), HPS_PRECONDITION);
    store->ops->space_close(space);
    /* As the server drops a version that a crash left behind: without its tables. */
    const struct hps_space_id id = {"m", 1, NULL, 0, 0};
    assert_int_equal(store->ops->space_open(store, &id, &space, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    assert_int_equal(n_files(), 0);
    store->ops->close(store);
}

static void test_open_when_the_directory_is_a_link_then_served(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    close_all(space);
    char from[HPS_TMPDIR_PATH_MAX], to[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(from, sizeof(from), "%s", hps_tmpdir_join(&own, "hpsd"));
    (void)snprintf(to, sizeof(to), "%s", hps_tmpdir_join(&own, "elsewhere"));
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink(to, from), 0);
    space = open_space(open_store());
    check_all(space);
    close_all(space);
}

static hps_status see_record(void *ctx, const void *key, size_t key_size, const void *value,
                             size_t value_size)
{
    (void)key, (void)key_size, (void)value, (void)value_size;
    ++*(unsigned *)ctx;
    return HPS_OK;
}

/* So loads need no disk space for it, and older builds find nothing unknown. */
static void test_load_when_no_table_has_a_base_then_no_record_is_written(void **state)
{
    (void)state;
    unsigned n = 0;
    how.off = true;
    struct hps_space *space = open_space(open_store());
    load(space);
    const struct hps_store_durable_ops *durable = space->store->ops->durable;
    assert_int_equal(durable->record_scan(space->store, "version-base/", see_record, &n, &error),
                     HPS_OK);
    assert_int_equal(n, 0);
    close_all(space);
}

static void test_open_when_files_are_left_over_then_they_are_removed(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    hps_tmpdir_write(&own, "hpsd/base-77", "x", 1);
    space = restart(space);
    assert_int_equal(n_files(), N_TABLES - 1);
    check_all(space);
    assert_int_equal(write_some(space, 1, 0, 100, 1, 4), HPS_OK);
    assert_int_equal(merge(space, 1), HPS_OK);
    assert_true(base_of(space, 1)->record.number > 77); /* no number is used again */
    close_all(space);
    how.read_only = true;
    space = open_space(open_store());
    check_all(space);
    close_all(space);
}

/* Take a checkpoint in `<parent>/copy`, change the store, and open the checkpoint. */
static void check_checkpoint(struct hps_tmpdir *parent)
{
    struct hps_space *space = open_space(open_store());
    struct hps_store *store = space->store;
    const struct hps_store_durable_ops *durable = store->ops->durable;
    load(space);
    assert_int_equal(write_some(space, 1, 10, 500, 3, 9), HPS_OK);
    char dir[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%s", hps_tmpdir_join(parent, "copy"));
    assert_int_equal(durable->checkpoint(store, dir, &error), HPS_OK);
    assert_int_equal(durable->checkpoint(store, dir, &error), HPS_EXISTS);
    uint32_t before[N_TABLES][MODEL_KEYS];
    memcpy(before, model, sizeof(model));
    assert_int_equal(write_some(space, 1, 0, 500, 1, 10), HPS_OK);
    assert_int_equal(merge(space, 1), HPS_OK);
    check_all(space);
    close_all(space);
    struct hps_tmpdir saved = own;
    (void)snprintf(own.path, sizeof(own.path), "%s", dir);
    memcpy(model, before, sizeof(model));
    space = open_space(open_store());
    assert_int_equal(n_files(), N_TABLES - 1);
    check_all(space);
    close_all(space);
    own = saved;
}

static void test_checkpoint_when_taken_then_it_is_a_store_of_its_own(void **state)
{
    (void)state;
    check_checkpoint(&own);
}

/* The bases seem too large for the other disk. */
static void check_no_space(struct hps_tmpdir *to)
{
    struct hps_space *space = open_space(open_store());
    load(space);
    struct hps_basefile_store *store = hps_basefile_of(space);
    char dir[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%s", hps_tmpdir_join(to, "full"));
    atomic_fetch_add(&store->bytes, UINT64_C(1) << 60);
    assert_int_equal(store->base.ops->durable->checkpoint(&store->base, dir, &error),
                     HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "bytes, "));
    atomic_fetch_sub(&store->bytes, UINT64_C(1) << 60);
    struct stat info;
    assert_int_not_equal(stat(hps_tmpdir_join(to, "full/hpsd"), &info), 0);
    assert_int_equal(store->base.ops->space_drop(space, &error), HPS_OK);
    store->base.ops->close(&store->base);
}

static void test_checkpoint_when_on_another_file_system_then_files_are_copied(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"/dev/shm", "/var/tmp"};
    char kept[HPS_TMPDIR_PATH_MAX];
    const char *set = getenv("TMPDIR");
    (void)snprintf(kept, sizeof(kept), "%s", set != NULL ? set : "/tmp");
    struct stat here, there;
    assert_int_equal(stat(own.path, &here), 0);
    for (unsigned i = 0; i < 2; i++) {
        if (stat(elsewhere[i], &there) == 0 && there.st_dev != here.st_dev) {
            struct hps_tmpdir other;
            assert_int_equal(setenv("TMPDIR", elsewhere[i], 1), 0);
            hps_tmpdir_open(&other);
            assert_int_equal(setenv("TMPDIR", kept, 1), 0);
            check_no_space(&other);
            check_checkpoint(&other);
            hps_tmpdir_close(&other);
            return;
        }
    }
    skip();
}

/* Else members of the group could read all files of a snapshot but these. */
static void test_files_when_written_then_they_have_the_mode_of_the_database(void **state)
{
    (void)state;
    mode_t before = umask(027);
    struct hps_space *space = open_space(open_store());
    load(space);
    assert_int_equal(write_some(space, 1, 0, 100, 1, 2), HPS_OK);
    assert_int_equal(merge(space, 1), HPS_OK);
    for (uint32_t t = 0; t < 2; t++) {
        struct stat info;
        assert_int_equal(stat(path_of(space, t), &info), 0);
        assert_int_equal(info.st_mode & 0777, 0640);
    }
    close_all(space);
    (void)umask(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_load_when_dense_then_rows_are_in_base_files, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_store_when_off_then_no_base_is_written_and_bases_are_served, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_when_written_and_merged_then_equal_the_model,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_auto_then_bases_are_mapped_if_they_fit_beside_the_inner_store, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_all_rings_are_in_use_then_threads_read_the_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_a_key_is_written_twice_then_the_last_write_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_load_when_aborted_or_dropped_then_no_files_are_left,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_the_directory_is_a_link_then_served, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_load_when_no_table_has_a_base_then_no_record_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_files_are_left_over_then_they_are_removed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_checkpoint_when_taken_then_it_is_a_store_of_its_own,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_checkpoint_when_on_another_file_system_then_files_are_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_files_when_written_then_they_have_the_mode_of_the_database, setup, teardown),
    };
    return cmocka_run_group_tests_name("basefile_store", tests, NULL, NULL);
}
