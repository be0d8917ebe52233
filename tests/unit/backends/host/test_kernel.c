/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel that this CPU supports returns the same bytes and key order as the scalar kernel.
 * Rows that a lookup converts equal rows that are converted separately.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "backends/host/kernel.h"
#include "base/hash.h"
#include "base/heap.h"

enum { N_ROWS = 5000, N_MAX = 700 };

struct map {
    struct hps_host_budget budget;
    struct hps_host_account account;
    struct hps_epoch *epoch;
    struct hps_host_index index;
    struct hps_host_rows rows;
    uint32_t n_rows;
};

static void map_open(struct map *map, uint32_t row_bytes)
{
    map->budget = (struct hps_host_budget){.bytes_max = UINT64_C(1) << 30};
    hps_host_account_init(&map->account, &map->budget);
    map->epoch = hps_epoch_new();
    assert_int_equal(hps_host_index_open(&map->index, &map->account, map->epoch, 99, 0), HPS_OK);
    assert_int_equal(hps_host_rows_open(&map->rows, &map->account, row_bytes, 0, 0), HPS_OK);
    map->n_rows = row_bytes < 4096 ? N_ROWS : N_ROWS / 10;
    for (uint32_t i = 0; i < map->n_rows; i++) { /* usually stops in the middle of a growth */
        if (hps_host_rows_ready(&map->rows) == 0) {
            assert_int_equal(hps_host_rows_grow(&map->rows), HPS_OK);
        }
        uint32_t row = hps_host_rows_take(&map->rows);
        uint8_t *bytes = hps_host_row_at(&map->rows, row);
        for (uint32_t b = 0; b < row_bytes; b++) {
            bytes[b] = (uint8_t)(i * 31 + b * 7);
        }
        assert_int_equal(hps_host_index_ensure_capacity(&map->index), HPS_OK);
        assert_int_equal(hps_host_index_add(&map->index, hps_mix64(i), row, false), HPS_OK);
        (void)hps_host_index_step(&map->index);
    }
}

static void map_close(struct map *map)
{
    hps_host_index_close(&map->index);
    hps_host_rows_close(&map->rows);
    hps_epoch_free(map->epoch);
}

struct answer {
    hps_key keys[N_MAX];
    uint32_t slots[N_MAX];
    uint8_t *rows;
    uint32_t n_missing;
};

/* Look up n keys; one in `missing` does not exist (0: all exist). Rows are `gap` bytes apart. */
static void ask(const struct map *map, const struct hps_host_kernel *kernel, uint32_t n,
                unsigned missing, bool stream, uint32_t gap, struct answer *out_answer)
{
    for (uint32_t i = 0; i < n; i++) {
        bool there = missing == 0 || hps_mix64(i + n) % missing != 0;
        out_answer->keys[i] = hps_mix64(hps_mix64(i * 3 + n) % map->n_rows + (there ? 0 : N_ROWS));
        out_answer->slots[i] = n - 1 - i;
    }
    for (uint32_t i = n; i < N_MAX; i++) { /* a kernel that looks these up writes the next row */
        out_answer->keys[i] = hps_mix64(0);
        out_answer->slots[i] = n;
    }
    memset(out_answer->rows, 0xee, (size_t)(n + 1) * (map->rows.row_bytes + gap));
    struct hps_batch batch = {.keys = out_answer->keys, .slots = out_answer->slots, .n = n};
    struct hps_host_lookup lookup = hps_host_lookup(&map->index, &map->rows);
    lookup.note = HPS_HOST_NOTE_TOUCH;
    lookup.out = (struct hps_host_out){
        .rows = out_answer->rows, .stride = map->rows.row_bytes + gap, .stream = stream};
    hps_host_lookup_run(&lookup, kernel, &batch, 0, n);
    out_answer->n_missing = batch.n;
}

static void compare(const struct map *map, const struct hps_host_kernel *kernel,
                    const struct hps_host_kernel *scalar, struct answer *a, struct answer *b)
{
    static const uint32_t counts[] = {0, 1, 11, 12, 13, 31, 32, 33, 255, 256, 257, 700};
    static const uint32_t gaps[] = {0, 1, 64, 0};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (unsigned missing = 0; missing < 4; missing++) {
            bool stream = map->rows.row_bytes % 64 == 0 && missing % 2 == 1;
            uint32_t gap = stream ? 64 : gaps[missing];
            ask(map, scalar, counts[c], missing, false, gap, a);
            ask(map, kernel, counts[c], missing, stream, gap, b);
            assert_int_equal(a->n_missing, b->n_missing);
            assert_memory_equal(a->keys, b->keys, counts[c] * sizeof(a->keys[0]));
            assert_memory_equal(a->slots, b->slots, counts[c] * sizeof(a->slots[0]));
            assert_memory_equal(a->rows, b->rows,
                                (size_t)(counts[c] + 1) * (map->rows.row_bytes + gap));
            assert_true(missing != 0 || a->n_missing == 0);
            assert_true(missing != 1 || a->n_missing == counts[c]);
        }
    }
}

static void test_kernels_when_any_batch_then_same_result_as_the_scalar_one(void **state)
{
    (void)state;
    static const uint32_t widths[] = {2,  4,  9,  15, 16,  17,  20,  24,  31,  32,  33,
                                      36, 64, 68, 72, 100, 132, 136, 256, 512, 520, 32768};
    unsigned n = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n);
    struct answer *a = hps_calloc(2, sizeof(*a));
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        struct map map;
        map_open(&map, widths[w]);
        a[0].rows = hps_alloc_aligned(64, (size_t)(N_MAX + 1) * (widths[w] + 64));
        a[1].rows = hps_alloc_aligned(64, (size_t)(N_MAX + 1) * (widths[w] + 64));
        for (unsigned k = 0; k < n; k++) {
            if (kernels[k].runs()) {
                compare(&map, &kernels[k], &kernels[n - 1], &a[0], &a[1]);
            } else {
                print_message("kernel %s: not on this CPU\n", kernels[k].name);
            }
        }
        hps_free_aligned(a[0].rows);
        hps_free_aligned(a[1].rows);
        map_close(&map);
    }
    hps_free(a);
}

/* Check that every kernel finds all keys or none (`there`), in large and in small batches. */
static void ask_each(const struct map *map, const hps_key *keys, uint32_t n, bool there)
{
    enum { BLOCK = 70 };
    unsigned n_kernels = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n_kernels);
    struct hps_host_lookup lookup = hps_host_lookup(&map->index, &map->rows);
    uint8_t rows[BLOCK * 16];
    lookup.out = (struct hps_host_out){.rows = rows, .stride = 16};
    for (unsigned k = 0; k < n_kernels; k++) {
        for (uint32_t i = 0; kernels[k].runs() && i < 2 * n; i++) {
            uint32_t n_keys = i < n ? 1 : BLOCK;
            hps_key copies[BLOCK];
            uint32_t slots[BLOCK];
            for (uint32_t c = 0; c < n_keys; c++) {
                copies[c] = keys[i % n];
                slots[c] = c;
            }
            struct hps_batch batch = {.keys = copies, .slots = slots, .n = n_keys};
            hps_host_lookup_run(&lookup, &kernels[k], &batch, 0, n_keys);
            assert_int_equal(batch.n, there ? 0 : n_keys);
        }
    }
}

/* Probe a bucket for the contents of its lanes that are not live keys, as if they hashed to this
 * bucket. */
static void probe_lanes(const struct map *map, struct hps_host_bucket *bucket)
{
    enum { LANES = 8 };
    unsigned n = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n);
    const struct hps_host_lookup lookup = hps_host_lookup(&map->index, &map->rows);
    uint32_t live = hps_host_state(bucket) & HPS_HOST_LIVE_ALL;
    hps_key lanes[LANES];
    memcpy(lanes, (const void *)bucket, sizeof(lanes));
    for (unsigned lane = 0; lane < LANES; lane++) {
        for (unsigned k = 0; (live >> lane & 1) == 0 && k < n; k++) {
            struct hps_host_buckets alone = {.n_homes = 1, .array = bucket}; /* home of all keys */
            struct hps_host_block block = {.now = &alone, .n = 1};
            if (kernels[k].runs()) {
                kernels[k].probe(&lookup, &lanes[lane], &block);
                assert_null(block.rows[0]);
            }
        }
    }
}

/* Bytes of a bucket that are not keys: row ids, state, and keys in free or erased slots. */
static void test_kernels_when_key_equals_other_bytes_of_a_bucket_then_not_found(void **state)
{
    (void)state;
    static const hps_key odd[] = {0, UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, 1, UINT32_MAX};
    enum { N_ODD = sizeof(odd) / sizeof(odd[0]) };
    struct map map;
    map_open(&map, 16);
    while (hps_host_index_step(&map.index)) {
    }
    uint32_t generation;
    uint64_t slot;
    hps_host_index_kill(&map.index, hps_host_index_find(&map.index, hps_mix64(0)), &generation,
                        &slot); /* hps_mix64(0) is 0 */
    hps_host_index_bury(&map.index, generation, slot);
    ask_each(&map, odd, N_ODD, false);
    const struct hps_host_buckets *now = atomic_load(&map.index.now);
    for (uint64_t b = 0; b < now->n_homes; b++) {
        probe_lanes(&map, &now->array[b]);
    }
    for (uint32_t i = 0; i < N_ODD; i++) {
        assert_int_equal(hps_host_index_ensure_capacity(&map.index), HPS_OK);
        assert_int_equal(hps_host_index_add(&map.index, odd[i], i, false), HPS_OK);
    }
    ask_each(&map, odd, N_ODD, true);
    for (uint32_t i = 0; i < N_ODD; i++) {
        hps_host_index_kill(&map.index, hps_host_index_find(&map.index, odd[i]), &generation,
                            &slot);
        ask_each(&map, &odd[i], 1, false); /* its slot still contains it */
        hps_host_index_bury(&map.index, generation, slot);
    }
    ask_each(&map, odd, N_ODD, false);
    map_close(&map);
}

static void test_touch_when_found_then_heat_rises_to_three(void **state)
{
    (void)state;
    struct map map;
    uint8_t row[64];
    map_open(&map, 64);
    struct hps_host_lookup lookup = hps_host_lookup(&map.index, &map.rows);
    struct hps_host_place place = hps_host_index_find(&map.index, hps_mix64(7));
    lookup.out = (struct hps_host_out){.rows = row, .stride = 64};
    for (unsigned i = 0; i < 12; i++) {
        hps_key key = hps_mix64(7);
        uint32_t slot = 0;
        struct hps_batch batch = {.keys = &key, .slots = &slot, .n = 1};
        lookup.note = i % 2 == 0 ? HPS_HOST_NOTE_NOTHING : HPS_HOST_NOTE_TOUCH;
        assert_int_equal(hps_host_heat(place), i / 2 < 3 ? i / 2 : 3);
        hps_host_lookup_run(&lookup, hps_host_kernel(), &batch, 0, 1);
    }
    map_close(&map);
}

/* Includes keys in buckets after their home bucket. */
static void test_probe_when_places_are_noted_then_they_are_the_places_of_the_keys(void **state)
{
    (void)state;
    unsigned n = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n);
    struct map map;
    map_open(&map, 16);
    struct hps_host_lookup lookup = hps_host_lookup(&map.index, &map.rows);
    lookup.note = HPS_HOST_NOTE_PLACE;
    for (uint32_t first = 0; first + HPS_HOST_BLOCK_KEYS <= N_ROWS; first += HPS_HOST_BLOCK_KEYS) {
        for (unsigned k = 0; k < n; k++) {
            hps_key keys[HPS_HOST_BLOCK_KEYS];
            struct hps_host_block block = {.now = atomic_load(&map.index.now),
                                           .n = HPS_HOST_BLOCK_KEYS};
            for (uint32_t i = 0; i < block.n; i++) {
                keys[i] = hps_mix64(first + i);
            }
            if (kernels[k].runs()) {
                kernels[k].probe(&lookup, keys, &block);
                assert_int_equal(block.n_found, block.n);
            }
            for (uint32_t i = 0; i < block.n_found; i++) {
                struct hps_host_place place = hps_host_index_find(&map.index, keys[i]);
                assert_ptr_equal(block.buckets[i], place.bucket);
                assert_int_equal(block.places[i], place.slot);
                assert_int_equal(hps_host_heat(place), 0);
            }
        }
    }
    map_close(&map);
}

/* ---- where rows go --------------------------------------------------------------------------- */

static void test_out_when_rows_are_many_and_aligned_then_they_stream(void **state)
{
    (void)state;
    const struct hps_table table = {.dim = 16, .row_bytes = 64, .dtype = HPS_DTYPE_FP32};
    const struct hps_table odd = {.dim = 15, .row_bytes = 60, .dtype = HPS_DTYPE_FP32};
    struct hps_batch batch = {.rows = (uint8_t *)4096, .n = 1 << 24};
    assert_true(hps_host_out(&table, &batch).stream);
    assert_false(hps_host_out(&odd, &batch).stream);
    batch.shape = (struct hps_shape){(uint8_t *)8192, 128, HPS_DTYPE_FP32};
    assert_true(hps_host_out(&table, &batch).stream);
    batch.shape.stride = 100;
    assert_false(hps_host_out(&table, &batch).stream);
    batch = (struct hps_batch){.rows = (uint8_t *)4097, .n = 1 << 24};
    assert_false(hps_host_out(&table, &batch).stream);
    batch = (struct hps_batch){.rows = (uint8_t *)4096, .n = 16};
    assert_false(hps_host_out(&table, &batch).stream);
}

/* A map with rows of one type, and the type of the reply. */
struct typed {
    struct map map;
    struct hps_table table;
    enum hps_dtype to;
    uint32_t to_bytes;
    uint32_t gap; /* bytes between two rows of the reply */
};

static void typed_row(const struct hps_table *table, uint32_t row, uint8_t *out)
{
    float values[260];
    for (uint32_t d = 0; d < table->dim; d++) {
        values[d] = (float)(int32_t)(hps_mix64(row * 1000 + d) % 20001 - 10000) / 777.0f;
    }
    hps_row_convert(out, table->dtype, values, HPS_DTYPE_FP32, table->dim);
}

/* Look up n keys in mixed slots. If `missing`, one key in five does not exist. */
static void typed_ask(const struct typed *t, const struct hps_host_kernel *kernel, uint32_t n,
                      bool missing, uint8_t *rows)
{
    static hps_key keys[N_MAX];
    static uint32_t slots[N_MAX];
    size_t stride = t->to_bytes + t->gap;
    struct hps_batch batch = {.keys = keys, .slots = slots, .n = n};
    struct hps_host_lookup lookup = hps_host_lookup(&t->map.index, &t->map.rows);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = hps_mix64(i * 7 % N_MAX + (missing && i % 5 == 3 ? N_ROWS : 0));
        slots[i] = (i * 11 + 5) % n;
    }
    batch.shape = (struct hps_shape){rows, stride, t->to};
    memset(rows, 0xee, n * stride + 1);
    lookup.out = hps_host_out(&t->table, &batch);
    hps_host_lookup_run(&lookup, kernel, &batch, 0, n);
    assert_int_equal(batch.n, missing ? (n + 1) / 5 : 0);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t stored[260 * 4], wanted[260 * 4 + 70];
        bool there = !missing || i % 5 != 3;
        typed_row(&t->table, i * 7 % N_MAX, stored);
        memset(wanted, 0xee, sizeof(wanted));
        if (there) {
            hps_row_convert(wanted, t->to, stored, t->table.dtype, t->table.dim);
        }
        assert_memory_equal(rows + (i * 11 + 5) % n * stride, wanted, stride);
    }
    assert_int_equal(rows[n * stride], 0xee);
}

static void typed_check(const struct typed *t)
{
    enum { N_ASKED = 501 }; /* not a multiple of 11, so that all slots differ */
    unsigned n = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n);
    size_t bytes = (size_t)N_ASKED * (t->to_bytes + t->gap) + 64;
    uint8_t *rows = hps_alloc_aligned(64, bytes);
    for (unsigned k = 0; k < n; k++) {
        for (unsigned i = 0; kernels[k].runs() && i < 4; i++) {
            uint32_t n_asked = i < 2 ? N_ASKED : 7;
            typed_ask(t, &kernels[k], n_asked, i % 2 == 1, rows + t->gap % 8);
        }
    }
    hps_free_aligned(rows);
}

static void typed_open(struct typed *t, enum hps_dtype dtype, uint32_t dim)
{
    uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, dim);
    t->table = (struct hps_table){.dim = dim, .row_bytes = row_bytes, .dtype = dtype};
    map_open(&t->map, row_bytes);
    for (uint32_t i = 0; i < N_MAX; i++) {
        struct hps_host_place place = hps_host_index_find(&t->map.index, hps_mix64(i));
        typed_row(&t->table, i, hps_host_row_at(&t->map.rows, hps_host_row_of(place)));
    }
}

static void test_rows_when_of_any_type_and_shape_then_equal_to_separate_conversion(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 2, 3, 15, 16, 64, 128, 131, 257};
    static const uint32_t gaps[] = {0, 1, 4, 64};
    for (unsigned dtype = HPS_DTYPE_FP32; dtype < HPS_DTYPE_STORED_END; dtype++) {
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
            struct typed t;
            typed_open(&t, (enum hps_dtype)dtype, dims[d]);
            for (unsigned to = HPS_DTYPE_FP32; to < HPS_DTYPE_STORED_END; to++) {
                t.to = (enum hps_dtype)to;
                t.to_bytes = (uint32_t)hps_dtype_row_bytes(t.to, dims[d]);
                bool legal = to <= HPS_DTYPE_BF16 || to == dtype;
                for (size_t g = 0; legal && g < sizeof(gaps) / sizeof(gaps[0]); g++) {
                    t.gap = gaps[g];
                    typed_check(&t);
                }
            }
            map_close(&t.map);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_when_any_batch_then_same_result_as_the_scalar_one),
        cmocka_unit_test(test_kernels_when_key_equals_other_bytes_of_a_bucket_then_not_found),
        cmocka_unit_test(test_touch_when_found_then_heat_rises_to_three),
        cmocka_unit_test(test_probe_when_places_are_noted_then_they_are_the_places_of_the_keys),
        cmocka_unit_test(test_out_when_rows_are_many_and_aligned_then_they_stream),
        cmocka_unit_test(test_rows_when_of_any_type_and_shape_then_equal_to_separate_conversion),
    };
    return cmocka_run_group_tests_name("host_kernel", tests, NULL, NULL);
}
