/* SPDX-License-Identifier: Apache-2.0
 *
 * The external sort against a model: random keys with duplicates, few and many runs, several
 * passes.
 */
#include "base/rows/rowsort.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/tmpdir_fixture.h"

static int teardown_empty(void **state)
{
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 0); /* spill files have no name */
    return teardown(state);
}

/* What a row must hold: its key and when it was added, then filling that follows from both. */
static void fill_row(uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq)
{
    uint64_t words[2] = {key, seq};
    uint8_t filling = (uint8_t)hps_mix64(key ^ seq);

    memset(row, filling, row_bytes);
    memcpy(row, words, row_bytes < 16 ? row_bytes : 16);
}

struct script {
    size_t row_bytes;
    size_t memory_bytes;
    uint64_t n;
    uint64_t n_distinct; /* keys are hashes of numbers below it */
    uint64_t hint;
};

static hps_key script_key(const struct script *script, uint64_t seq)
{
    return hps_mix64(hps_mix64(seq + 1) % script->n_distinct);
}

static void add_all(struct hps_rowsort *sort, const struct script *script)
{
    enum { PIECE = 997 };
    hps_key keys[PIECE];
    uint8_t *rows = hps_alloc(PIECE * script->row_bytes);
    assert_non_null(rows);
    for (uint64_t seq = 0; seq < script->n;) {
        size_t m = script->n - seq < PIECE ? (size_t)(script->n - seq) : PIECE;
        for (size_t i = 0; i < m; i++) {
            keys[i] = script_key(script, seq + i);
            fill_row(rows + i * script->row_bytes, script->row_bytes, keys[i], seq + i);
        }
        assert_int_equal(hps_rowsort_add(sort, keys, rows, m, NULL), HPS_OK);
        seq += m;
    }
    hps_free(rows);
}

/* Read everything: ascending, every distinct key once, each with its last row. */
static void expect_all(struct hps_rowsort *sort, const struct script *script)
{
    enum { PIECE = 611 };
    hps_key keys[PIECE];
    uint8_t *rows = hps_alloc(PIECE * script->row_bytes);
    uint8_t *expected = hps_alloc(script->row_bytes);
    uint64_t *last_seq = hps_calloc(script->n_distinct, sizeof(*last_seq));
    assert_true(rows != NULL && expected != NULL && last_seq != NULL);
    uint64_t n_present = 0;
    for (uint64_t seq = 0; seq < script->n; seq++) {
        uint64_t *last = &last_seq[hps_mix64(seq + 1) % script->n_distinct];
        n_present += *last == 0;
        *last = seq + 1;
    }
    uint64_t sum_expected = 0;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < script->n_distinct; i++) {
        sum_expected += last_seq[i] != 0 ? hps_mix64(hps_mix64(i) ^ last_seq[i]) : 0;
    }
    uint64_t total = 0;
    hps_key before = 0;
    for (;;) {
        size_t n = 0;
        assert_int_equal(hps_rowsort_next(sort, PIECE, keys, rows, &n, NULL), HPS_OK);
        if (n == 0) {
            break;
        }
        for (size_t i = 0; i < n; i++, total++) {
            uint64_t seq;
            assert_true(total == 0 || before < keys[i]);
            before = keys[i];
            memcpy(&seq, rows + i * script->row_bytes + 8, 8);
            fill_row(expected, script->row_bytes, keys[i], seq);
            assert_memory_equal(rows + i * script->row_bytes, expected, script->row_bytes);
            assert_true(script_key(script, seq) == keys[i]);
            sum += hps_mix64(keys[i] ^ (seq + 1));
        }
    }
    assert_int_equal(total, n_present);
    assert_true(sum == sum_expected);
    struct hps_rowsort_progress progress;
    hps_rowsort_progress_get(sort, &progress);
    assert_int_equal(progress.n_rows_in, script->n);
    assert_int_equal(progress.n_rows_out, n_present);
    assert_int_equal(progress.n_duplicates, script->n - n_present);
    hps_free(rows);
    hps_free(expected);
    hps_free(last_seq);
}

static struct hps_rowsort *new_sort(const struct script *script)
{
    struct hps_rowsort_options options = {.row_bytes = (uint32_t)script->row_bytes,
                                          .memory_bytes = script->memory_bytes,
                                          .n_rows_hint = script->hint,
                                          .dir = dir.path};
    struct hps_rowsort *sort = NULL;
    assert_int_equal(hps_rowsort_new(&options, &sort, NULL), HPS_OK);
    return sort;
}

static void run(const struct script *script, struct hps_rowsort_progress *out_progress)
{
    struct hps_rowsort *sort = new_sort(script);
    add_all(sort, script);
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    expect_all(sort, script);
    hps_rowsort_progress_get(sort, out_progress);
    hps_rowsort_free(sort);
}

static void test_sort_when_all_fits_then_in_memory(void **state)
{
    (void)state;
    struct hps_rowsort_progress progress;
    run(&(struct script){.row_bytes = 20, .memory_bytes = 1 << 20, .n = 9000, .n_distinct = 5000},
        &progress);
    assert_int_equal(progress.n_runs, 0);
    assert_int_equal(progress.bytes_spilled, 0);
}

static void test_sort_when_hint_is_exact_then_no_spill(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 20000; n = n * 3 + 1) {
        struct hps_rowsort_progress progress;
        run(
            &(struct script){
                .row_bytes = 16, .memory_bytes = 8 << 20, .n = n, .n_distinct = n, .hint = n},
            &progress);
        assert_int_equal(progress.n_runs, 0);
    }
}

static void test_sort_when_budget_is_passed_then_runs_are_merged(void **state)
{
    (void)state;
    struct hps_rowsort_progress progress;
    run(&(struct script){.row_bytes = 64, .memory_bytes = 1 << 20, .n = 60000, .n_distinct = 50000},
        &progress);
    assert_true(progress.n_runs >= 4);
    assert_true(progress.bytes_spilled >= UINT64_C(60000) * 60);
    assert_true(progress.bytes_spilled <= UINT64_C(60000) * 72);
}

/* Two areas from the start: one is spilled while the other is filled. */
static void test_sort_when_hint_is_over_budget_then_spilled_beside_and_right(void **state)
{
    (void)state;
    struct hps_rowsort_progress progress;
    struct script script = {
        .row_bytes = 64, .memory_bytes = 1 << 20, .n = 60000, .n_distinct = 50000, .hint = 60000};
    run(&script, &progress);
    assert_true(progress.n_runs >= 8);
    script.n_distinct = 7; /* the last of each comes from the last area */
    run(&script, &progress);
    struct hps_rowsort *sort = new_sort(&script);
    add_all(sort, &script);
    hps_rowsort_free(sort); /* in the middle of a spill, perhaps */
}

static void test_sort_when_few_distinct_keys_then_last_of_many_runs_wins(void **state)
{
    (void)state;
    struct hps_rowsort_progress progress;
    run(&(struct script){.row_bytes = 64, .memory_bytes = 1 << 20, .n = 60000, .n_distinct = 7},
        &progress);
    assert_true(progress.n_runs >= 4);
}

static void test_sort_when_more_runs_than_buffers_then_several_passes(void **state)
{
    (void)state;
    struct script script = {
        .row_bytes = 4096, .memory_bytes = 1 << 20, .n = 9000, .n_distinct = 6000};
    struct hps_rowsort_progress progress;
    run(&script, &progress);
    /* Some 220 rows fit, so 40 runs; 15 buffers of 64 KiB: more than one pass. */
    assert_true(progress.n_runs > 40);
    assert_true(progress.bytes_spilled > UINT64_C(9000) * 4096);
}

static void test_sort_when_hint_is_far_too_small_then_still_right(void **state)
{
    (void)state;
    struct hps_rowsort_progress progress;
    run(
        &(struct script){
            .row_bytes = 16, .memory_bytes = 1 << 20, .n = 30000, .n_distinct = 20000, .hint = 1},
        &progress);
    assert_true(progress.n_runs > 500);
}

static void test_sort_when_row_is_as_wide_as_allowed_then_right(void **state)
{
    (void)state;
    size_t row_bytes = (1 << 20) / 16 - 8;
    struct hps_rowsort_progress progress;
    run(
        &(struct script){
            .row_bytes = row_bytes, .memory_bytes = 1 << 20, .n = 200, .n_distinct = 150},
        &progress);
    assert_true(progress.n_runs > 10);
}

static void test_sort_when_input_ascends_then_one_run(void **state)
{
    (void)state;
    struct script script = {.row_bytes = 64, .memory_bytes = 1 << 20};
    struct hps_rowsort *sort = new_sort(&script);
    uint8_t row[64];
    for (uint64_t i = 0; i < 60000; i++) {
        hps_key key = i * 3;
        fill_row(row, sizeof(row), key, i);
        assert_int_equal(hps_rowsort_add(sort, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    for (uint64_t i = 0; i < 60000; i++) {
        hps_key key;
        size_t n;
        assert_int_equal(hps_rowsort_next(sort, 1, &key, row, &n, NULL), HPS_OK);
        assert_true(n == 1 && key == i * 3);
    }
    struct hps_rowsort_progress progress;
    hps_rowsort_progress_get(sort, &progress);
    assert_int_equal(progress.n_runs, 1);
    hps_rowsort_free(sort);
}

static void test_sort_when_keys_have_high_bits_then_unsigned_order(void **state)
{
    (void)state;
    struct script script = {.row_bytes = 4, .memory_bytes = 1 << 20};
    struct hps_rowsort *sort = new_sort(&script);
    const hps_key keys[6] = {UINT64_MAX, 0, UINT64_C(1) << 63, 1, UINT64_MAX, 0};
    const uint32_t rows[6] = {0, 1, 2, 3, 4, 5};
    hps_key got[6];
    uint32_t got_rows[6];
    size_t n = 0;
    assert_int_equal(hps_rowsort_add(sort, keys, rows, 6, NULL), HPS_OK);
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    assert_int_equal(hps_rowsort_next(sort, 6, got, got_rows, &n, NULL), HPS_OK);
    assert_int_equal(n, 4);
    assert_true(got[0] == 0 && got[1] == 1 && got[2] == UINT64_C(1) << 63 && got[3] == UINT64_MAX);
    assert_true(got_rows[0] == 5 && got_rows[1] == 3 && got_rows[2] == 2 && got_rows[3] == 4);
    hps_rowsort_free(sort);
}

static void test_sort_when_empty_then_no_rows(void **state)
{
    (void)state;
    struct script script = {.row_bytes = 4, .memory_bytes = 1 << 20};
    struct hps_rowsort *sort = new_sort(&script);
    hps_key key;
    uint32_t row;
    size_t n = 9;
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    assert_int_equal(hps_rowsort_next(sort, 1, &key, &row, &n, NULL), HPS_OK);
    assert_int_equal(n, 0);
    hps_rowsort_free(sort);
}

static void test_new_when_budget_too_small_then_invalid(void **state)
{
    (void)state;
    struct hps_rowsort *sort = NULL;
    struct hps_error err = {0};
    struct hps_rowsort_options options = {.row_bytes = 4, .memory_bytes = (1 << 20) - 1};
    assert_int_equal(hps_rowsort_new(&options, &sort, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "1048575"));
    options = (struct hps_rowsort_options){.row_bytes = 1 << 17, .memory_bytes = 1 << 20};
    assert_int_equal(hps_rowsort_new(&options, &sort, &err), HPS_INVALID);
    assert_null(sort);
    hps_rowsort_free(NULL);
}

/* A table on disk with keys[n] and rows of one value, its key's place. */
static struct hps_row_reader *put_table(const hps_key *keys, size_t n)
{
    struct hps_row_writer_options options = {HPS_ROW_FORM_HUGECTR, 1, HPS_DTYPE_FP32};
    struct hps_row_writer *writer = NULL;
    struct hps_row_reader *reader = NULL;
    const char *path = hps_tmpdir_join(&dir, "t");
    assert_int_equal(hps_row_writer_open(path, &options, &writer, NULL), HPS_OK);
    for (size_t i = 0; i < n; i++) {
        float row = (float)i;
        assert_int_equal(hps_row_writer_append(writer, &keys[i], &row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
    struct hps_row_options reader_options = {0};
    assert_int_equal(hps_row_reader_open(path, &reader_options, &reader, NULL), HPS_OK);
    return reader;
}

static void remove_table(void)
{
    assert_int_equal(remove(hps_tmpdir_join(&dir, "t/key")), 0);
    assert_int_equal(remove(hps_tmpdir_join(&dir, "t/emb_vector")), 0);
    assert_int_equal(remove(hps_tmpdir_join(&dir, "t")), 0);
}

static void test_take_when_sorted_or_not_then_same_rows(void **state)
{
    (void)state;
    const hps_key ascending[4] = {1, 2, 8, 9};
    const hps_key shuffled[5] = {8, 1, 9, 2, 8};
    for (int sorted = 0; sorted < 2; sorted++) {
        struct script script = {.row_bytes = 4, .memory_bytes = 1 << 20};
        struct hps_rowsort *sort = new_sort(&script);
        struct hps_row_reader *reader =
            put_table(sorted != 0 ? ascending : shuffled, sorted != 0 ? 4 : 5);
        hps_key keys[5];
        float rows[5];
        size_t n = 0;
        assert_int_equal(hps_rowsort_take(sort, reader, NULL), HPS_OK);
        assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
        assert_int_equal(hps_rowsort_next(sort, 5, keys, rows, &n, NULL), HPS_OK);
        assert_int_equal(n, 4);
        assert_memory_equal(keys, ascending, sizeof(ascending));
        assert_true(rows[2] == (sorted != 0 ? 2.0f : 4.0f));
        struct hps_rowsort_progress progress;
        hps_rowsort_progress_get(sort, &progress);
        assert_int_equal(progress.n_rows_in, sorted != 0 ? 4 : 5);
        assert_int_equal(progress.n_duplicates, sorted != 0 ? 0 : 1);
        hps_rowsort_free(sort);
        hps_row_reader_close(reader);
        remove_table();
    }
}

static void test_take_when_larger_than_budget_then_spilled_and_right(void **state)
{
    (void)state;
    enum { N = 70000 };
    static hps_key keys[N];
    for (size_t i = 0; i < N; i++) {
        keys[i] = N - 1 - i;
    }
    struct script script = {.row_bytes = 4, .memory_bytes = 1 << 20};
    struct hps_rowsort *sort = new_sort(&script);
    struct hps_row_reader *reader = put_table(keys, N);
    assert_int_equal(hps_rowsort_take(sort, reader, NULL), HPS_OK);
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    static hps_key got[N];
    static float rows[N];
    size_t n = 0;
    assert_int_equal(hps_rowsort_next(sort, N, got, rows, &n, NULL), HPS_OK);
    assert_int_equal(n, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(got[i] == i && rows[i] == (float)(N - 1 - i));
    }
    struct hps_rowsort_progress progress;
    hps_rowsort_progress_get(sort, &progress);
    assert_true(progress.n_runs > 1);
    hps_rowsort_free(sort);
    hps_row_reader_close(reader);
    remove_table();
}

/* Add until it fails; the failure must be this one. */
static void expect_add_fails(struct hps_rowsort *sort, hps_status expected, struct hps_error *err)
{
    uint8_t row[64] = {0};
    hps_status status = HPS_OK;
    for (uint64_t i = 0; i < 100000 && status == HPS_OK; i++) {
        hps_key key = hps_mix64(i);
        status = hps_rowsort_add(sort, &key, row, 1, err);
    }
    assert_int_equal(status, expected);
}

static void test_add_when_disk_is_full_then_exhausted(void **state)
{
    (void)state;
    struct script script = {.row_bytes = 64, .memory_bytes = 1 << 20};
    struct hps_rowsort *sort = new_sort(&script);
    struct hps_error err = {0};
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit limit = {.rlim_cur = 2 << 20, .rlim_max = old.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_add_fails(sort, HPS_EXHAUSTED, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
    assert_non_null(strstr(err.text, dir.path));
    hps_rowsort_free(sort);
}

static void test_add_when_free_space_would_pass_floor_then_exhausted(void **state)
{
    (void)state;
    struct hps_rowsort_options options = {.row_bytes = 64,
                                          .memory_bytes = 1 << 20,
                                          .dir = dir.path,
                                          .disk_free_bytes_min = UINT64_MAX / 2};
    struct hps_rowsort *sort = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_rowsort_new(&options, &sort, NULL), HPS_OK);
    expect_add_fails(sort, HPS_EXHAUSTED, &err);
    assert_non_null(strstr(err.text, "bytes free"));
    hps_rowsort_free(sort);
}

static void test_add_when_directory_is_absent_then_not_found(void **state)
{
    (void)state;
    struct hps_rowsort_options options = {
        .row_bytes = 64, .memory_bytes = 1 << 20, .dir = "/no/such/place"};
    struct hps_rowsort *sort = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_rowsort_new(&options, &sort, NULL), HPS_OK);
    expect_add_fails(sort, HPS_NOT_FOUND, &err);
    assert_non_null(strstr(err.text, "/no/such/place"));
    hps_rowsort_free(sort);
}

static void test_calls_when_cancelled_then_cancelled(void **state)
{
    (void)state;
    atomic_bool cancel = false;
    struct hps_rowsort_options options = {
        .row_bytes = 4, .memory_bytes = 1 << 20, .dir = dir.path, .cancel = &cancel};
    struct hps_rowsort *sort = NULL;
    hps_key key = 1;
    uint32_t row = 1;
    assert_int_equal(hps_rowsort_new(&options, &sort, NULL), HPS_OK);
    assert_int_equal(hps_rowsort_add(sort, &key, &row, 1, NULL), HPS_OK);
    atomic_store(&cancel, true);
    assert_int_equal(hps_rowsort_add(sort, &key, &row, 1, NULL), HPS_CANCELLED);
    hps_rowsort_free(sort);
}

/* What the sort holds of the heap, as its budget counts it. */
struct meter {
    size_t live;
    size_t peak;
};

static void *meter_alloc(void *ctx, size_t size)
{
    struct meter *meter = (struct meter *)ctx;
    size_t *block = test_malloc(size + 16);
    block[0] = size;
    meter->live += size;
    meter->peak = meter->live > meter->peak ? meter->live : meter->peak;
    return block + 2;
}

static void *meter_calloc(void *ctx, size_t size)
{
    return memset(meter_alloc(ctx, size), 0, size);
}

static void meter_free(void *ctx, void *ptr)
{
    size_t *block = (size_t *)ptr - 2;
    ((struct meter *)ctx)->live -= block[0];
    test_free(block);
}

static void test_memory_when_spilling_then_never_above_budget(void **state)
{
    (void)state;
    struct meter meter = {0};
    const struct hps_heap heap = {
        .ctx = &meter, .alloc = meter_alloc, .calloc = meter_calloc, .free = meter_free};
    enum { BUDGET = 1 << 20 };
    struct hps_rowsort_options options = {
        .row_bytes = 256, .memory_bytes = BUDGET, .dir = dir.path};
    struct hps_rowsort *sort = NULL;
    uint8_t row[256] = {0};
    hps_heap_set(&heap);
    assert_int_equal(hps_rowsort_new(&options, &sort, NULL), HPS_OK);
    for (uint64_t i = 0; i < 60000; i++) {
        hps_key key = hps_mix64(i);
        assert_int_equal(hps_rowsort_add(sort, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_rowsort_finish(sort, NULL), HPS_OK);
    uint64_t total = 0;
    for (size_t n = 1; n > 0; total += n) {
        hps_key key;
        assert_int_equal(hps_rowsort_next(sort, 1, &key, row, &n, NULL), HPS_OK);
    }
    assert_int_equal(total, 60000);
    hps_rowsort_free(sort);
    hps_heap_set(NULL);
    assert_int_equal(meter.live, 0);
    assert_true(meter.peak <= BUDGET);
    assert_true(meter.peak > BUDGET / 2); /* and it is used */
}

static void some_spills(void *ctx)
{
    (void)ctx;
    struct hps_rowsort_options options = {
        .row_bytes = 1024, .memory_bytes = 1 << 20, .dir = dir.path};
    struct hps_rowsort *sort = NULL;
    uint8_t row[1024] = {0};
    hps_status status = hps_rowsort_new(&options, &sort, NULL);
    for (uint64_t i = 0; i < 2000 && status == HPS_OK; i++) {
        hps_key key = hps_mix64(i);
        status = hps_rowsort_add(sort, &key, row, 1, NULL);
    }
    if (status == HPS_OK) {
        status = hps_rowsort_finish(sort, NULL);
    }
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_rowsort_free(sort);
}

static void test_sort_when_memory_fails_then_survived(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(some_spills, NULL) >= 4);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown_empty)
    const struct CMUnitTest tests[] = {
        T(test_sort_when_all_fits_then_in_memory),
        T(test_sort_when_hint_is_exact_then_no_spill),
        T(test_sort_when_budget_is_passed_then_runs_are_merged),
        T(test_sort_when_hint_is_over_budget_then_spilled_beside_and_right),
        T(test_sort_when_few_distinct_keys_then_last_of_many_runs_wins),
        T(test_sort_when_more_runs_than_buffers_then_several_passes),
        T(test_sort_when_hint_is_far_too_small_then_still_right),
        T(test_sort_when_row_is_as_wide_as_allowed_then_right),
        T(test_sort_when_input_ascends_then_one_run),
        T(test_sort_when_keys_have_high_bits_then_unsigned_order),
        T(test_sort_when_empty_then_no_rows),
        T(test_new_when_budget_too_small_then_invalid),
        T(test_take_when_sorted_or_not_then_same_rows),
        T(test_take_when_larger_than_budget_then_spilled_and_right),
        T(test_add_when_disk_is_full_then_exhausted),
        T(test_add_when_free_space_would_pass_floor_then_exhausted),
        T(test_add_when_directory_is_absent_then_not_found),
        T(test_calls_when_cancelled_then_cancelled),
        T(test_memory_when_spilling_then_never_above_budget),
        T(test_sort_when_memory_fails_then_survived),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
