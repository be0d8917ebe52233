/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage to base files: torn pages, short and missing files, files of other versions and formats.
 */
#include "base/rows/crc32c.h"
#include "tests/unit/backends/basefile/basefile_test.h"

static uint8_t rows[(MODEL_KEYS + 1) * (size_t)520];
static uint8_t found[MODEL_KEYS + 1];

static uint64_t pages_damaged(struct hps_space *space)
{
    struct hps_store_usage usage;
    space->store->ops->space_usage(space, &usage);
    return usage.n_pages_damaged;
}

/* Look up all keys of table 2. Page 5 of its base is damaged. */
static void check_damaged(struct hps_space *space)
{
    const struct hps_basefile *base = base_of(space, 2);
    assert_int_equal(look_up(space, 2, 0, MODEL_KEYS, found, rows), HPS_DATA_LOSS);
    unsigned n_lost = 0;
    for (uint32_t i = 0; i < MODEL_KEYS; i++) {
        uint64_t offset = (key_of(2, i) - base->record.first) * 520;
        bool lost = i < N_KEYS && offset + 519 >= 5 * HPS_BASEFILE_PAGE_BYTES &&
                    offset < 6 * HPS_BASEFILE_PAGE_BYTES;
        assert_int_equal(found[i], model[2][i] != 0 && !lost);
        n_lost += lost ? 1 : 0;
    }
    assert_int_equal(n_lost, 9); /* two of them cross an end of the page */
}

static void run_damaged(struct open_options way)
{
    how = way;
    struct hps_space *space = open_space(open_store());
    load(space);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s", path_of(space, 2));
    close_all(space);
    flip(path, 5 * HPS_BASEFILE_PAGE_BYTES + 1000);
    space = open_space(open_store());
    assert_int_equal(pages_damaged(space), 0);
    check_damaged(space);
    check_damaged(space);
    assert_int_equal(pages_damaged(space), 1); /* counted once */
    check_some(space, 2, 50, 1000);
    check_some(space, 1, 0, MODEL_KEYS);
    struct scanned scanned = {.t = 2};
    assert_int_equal(space->store->ops->scan(space, &tables[2], scanned_rows, &scanned, &error),
                     HPS_DATA_LOSS);
    unsigned n = n_files();
    assert_int_equal(merge(space, 2), HPS_DATA_LOSS);
    assert_int_equal(n_files(), n); /* the merge left nothing behind */
    /* Updates of its keys repair them; then a merge removes the damage. */
    assert_int_equal(write_some(space, 2, 30, 30, 1, 8), HPS_OK);
    check_some(space, 2, 0, MODEL_KEYS);
    /* A new load repairs everything. */
    struct hps_store *store = space->store;
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    space = open_space(store);
    load(space);
    check_all(space);
    assert_int_equal(pages_damaged(space), 0);
    assert_int_equal(store->ops->space_drop(space, &error), HPS_OK);
    store->ops->close(store);
}

static void test_page_when_damaged_then_its_keys_fail_and_others_are_served(void **state)
{
    (void)state;
    run_damaged((struct open_options){.memory_bytes = UINT64_MAX});
    run_damaged((struct open_options){.mode = HPS_READ_DIRECT});
    run_damaged((struct open_options){.mode = HPS_READ_BUFFERED, .no_uring = true});
}

/* Copy a file. Fails the test if that fails. */
static void copy(const char *from, const char *to)
{
    static uint8_t bytes[4 << 20];
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t n = read(in, bytes, sizeof(bytes));
    assert_true(n > 0 && n < (ssize_t)sizeof(bytes));
    assert_int_equal(write(out, bytes, (size_t)n), n);
    assert_int_equal(close(in), 0);
    assert_int_equal(close(out), 0);
}

/* The base of table 1 is lost: its changed rows are served, and the other tables. */
static void check_lost(struct hps_space *space, uint32_t changed)
{
    assert_true(pages_damaged(space) >= base_of(space, 1)->n_pages);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(look_up(space, 1, 0, MODEL_KEYS, found, rows), HPS_DATA_LOSS);
        for (uint32_t i = 0; i < MODEL_KEYS; i++) {
            assert_int_equal(found[i], model[1][i] != 0 &&
                                           (i == changed ||
                                            !hps_basefile_covers(base_of(space, 1), key_of(1, i))));
        }
    }
    check_some(space, 1, changed, 1);
    check_some(space, 2, 0, MODEL_KEYS);
    struct scanned scanned = {.t = 1};
    assert_int_equal(space->store->ops->scan(space, &tables[1], scanned_rows, &scanned, &error),
                     HPS_DATA_LOSS);
    assert_false(hps_basefile_merge_due(base_of(space, 1)));
}

/* Close the store and let `damage` change the file of table 1: the store opens, also after a write
 * of a lost key and another start. */
static void expect_loss(struct hps_space **space, uint32_t changed,
                        void (*damage)(const char *path))
{
    char path[1024];
    char kept[HPS_TMPDIR_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s", path_of(*space, 1));
    (void)snprintf(kept, sizeof(kept), "%s", hps_tmpdir_join(&own, "kept"));
    copy(path, kept);
    close_all(*space);
    damage(path);
    *space = open_space(open_store());
    assert_int_equal(write_some(*space, 1, changed, 1, 1, 9), HPS_OK);
    check_lost(*space, changed);
    *space = restart(*space);
    check_lost(*space, changed);
    struct hps_store *store = (*space)->store;
    assert_int_equal(store->ops->space_drop(*space, &error), HPS_OK);
    *space = open_space(store);
    load(*space);
    check_all(*space);
    assert_int_equal(n_files(), N_TABLES - 1);
}

static void cut(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
}

static void lengthen(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size + HPS_BASEFILE_PAGE_BYTES), 0);
}

static void empty(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}

static void lose(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void flip_bits(const char *path)
{
    flip(path, (off_t)hps_basefile_pages(N_KEYS, 132) * HPS_BASEFILE_PAGE_BYTES + 8);
}

static void flip_sum(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    flip(path, info.st_size - 1);
}

static void test_base_when_its_file_does_not_fit_then_its_keys_fail_until_a_new_load(void **state)
{
    (void)state;
    static const enum hps_read_mode modes[] = {HPS_READ_MMAP, HPS_READ_DIRECT};
    void (*const damages[])(const char *path) = {cut, lengthen, empty, lose, flip_bits, flip_sum};
    struct hps_space *space = open_space(open_store());
    load(space);
    for (uint32_t i = 0; i < 6; i++) {
        how.mode = modes[i % 2];
        expect_loss(&space, 100 + i, damages[i]);
    }
    close_all(space);
}

static void test_space_when_its_record_is_newer_or_damaged_then_open_fails(void **state)
{
    (void)state;
    static const hps_status expected[] = {HPS_NEWER_FORMAT, HPS_DATA_LOSS, HPS_DATA_LOSS};
    struct hps_space *space = open_space(open_store());
    struct hps_store *store = space->store;
    load(space);
    for (unsigned i = 0; i < 3; i++) {
        const struct hps_store_durable_ops *durable = store->ops->durable;
        struct hps_basefile_record values[N_TABLES] = {0};
        for (uint32_t t = 0; t < N_TABLES; t++) {
            const struct hps_basefile *base = base_of(space, t);
            values[t] = base != NULL ? base->record : (struct hps_basefile_record){.format = 1};
        }
        struct hps_basefile_record changed[N_TABLES];
        memcpy(changed, values, sizeof(values));
        changed[0].format += i == 0 ? 1 : 0;
        changed[1].n_rows += i == 2 ? N_KEYS : 0;
        size_t bytes = sizeof(changed) - (i == 1 ? 1 : 0);
        store->ops->space_close(space);
        assert_int_equal(durable->record_put(store, "version-base/m@1", 16, changed, bytes, &error),
                         HPS_OK);
        assert_int_equal(try_space(store, &space), expected[i]);
        assert_int_equal(
            durable->record_put(store, "version-base/m@1", 16, values, sizeof(values), &error),
            HPS_OK);
        space = open_space(store);
    }
    check_all(space);
    close_all(space);
}

/* The base of an earlier version under the name of the current one. */
static void test_base_when_its_file_is_of_another_version_then_its_keys_fail(void **state)
{
    (void)state;
    char now[1024];
    struct hps_space *space = open_space(open_store());
    load(space);
    copy(path_of(space, 1), hps_tmpdir_join(&own, "old"));
    assert_int_equal(write_some(space, 1, 0, 100, 1, 4), HPS_OK);
    assert_int_equal(merge(space, 1), HPS_OK);
    (void)snprintf(now, sizeof(now), "%s", path_of(space, 1));
    close_all(space);
    copy(hps_tmpdir_join(&own, "old"), now);
    space = open_space(open_store());
    assert_int_equal(look_up(space, 1, 0, N_KEYS, found, rows), HPS_DATA_LOSS);
    check_some(space, 2, 0, MODEL_KEYS);
    close_all(space);
}

/* Later builds must read these bytes. If they change, the format gets another number. */
static void test_file_when_written_then_its_bytes_are_of_format_1(void **state)
{
    (void)state;
    static uint8_t bytes[256 << 10];
    struct hps_space *space = open_space(open_store());
    load(space);
    const struct hps_basefile_record record = base_of(space, 0)->record;
    int fd = open(path_of(space, 0), O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, bytes, sizeof(bytes));
    assert_int_equal(close(fd), 0);
    /* 2,001 rows of 64 bytes fill 32 pages; 32 words of bits and 32 checksums follow. */
    assert_int_equal(n, 32 * 4096 + 32 * 8 + 32 * 4);
    assert_int_equal(hps_crc32c(0, bytes, (size_t)n), 0x0dcdb69b);
    const struct hps_basefile_record expected = {.format = 1,
                                                 .crc = hps_crc32c(0, bytes + 32 * 4096, 32 * 12),
                                                 .number = 1,
                                                 .first = 0,
                                                 .n = 2001,
                                                 .n_rows = 1980};
    assert_int_equal(sizeof(record), 40);
    assert_memory_equal(&record, &expected, sizeof(record));
    close_all(space);
}

/* Else the removal of the version that has lost its file would remove a file of another version. */
static void test_base_when_the_newest_file_is_lost_then_its_number_is_not_used_again(void **state)
{
    (void)state;
    struct hps_space *space = open_space(open_store());
    load(space);
    for (uint32_t t = 0; t < N_TABLES - 1; t++) {
        assert_int_equal(unlink(path_of(space, t)), 0);
    }
    close_all(space);
    space = open_space(open_store()); /* all keys of its bases fail */
    struct hps_store *store = space->store;
    assert_int_equal(look_up(space, 1, 0, N_KEYS, found, rows), HPS_DATA_LOSS);
    store->ops->space_close(space);
    const struct hps_space_id second = {"m", 2, tables, N_TABLES, 0};
    const struct hps_space_id lost = {"m", 1, NULL, 0, 0};
    struct hps_space *dropped = NULL;
    assert_int_equal(store->ops->space_open(store, &second, &space, &error), HPS_OK);
    load(space);
    assert_int_equal(store->ops->space_open(store, &lost, &dropped, &error), HPS_OK);
    assert_int_equal(store->ops->space_drop(dropped, &error), HPS_OK);
    assert_int_equal(n_files(), N_TABLES - 1);
    store->ops->space_close(space);
    assert_int_equal(store->ops->space_open(store, &second, &space, &error), HPS_OK);
    check_all(space);
    close_all(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_page_when_damaged_then_its_keys_fail_and_others_are_served, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_base_when_its_file_does_not_fit_then_its_keys_fail_until_a_new_load, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_space_when_its_record_is_newer_or_damaged_then_open_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_base_when_its_file_is_of_another_version_then_its_keys_fail, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_when_written_then_its_bytes_are_of_format_1,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_base_when_the_newest_file_is_lost_then_its_number_is_not_used_again, setup,
            teardown),
    };
    return cmocka_run_group_tests_name("basefile_file", tests, NULL, NULL);
}
