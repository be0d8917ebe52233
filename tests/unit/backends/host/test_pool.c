/* SPDX-License-Identifier: Apache-2.0
 *
 * Bags that are pooled in the host map: any sizes, bags across blocks of keys, missing keys,
 * concurrent writers, and eviction. Each bag is compared with a sum that is computed key by key.
 * The tests run for tables with an index, with a dense range, and with both.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/host/internal.h"
#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/work.h"

enum { N_ROWS = 3000, DIM_MAX = 132, LARGE_KEYS = 100000, N_KEYS_MAX = LARGE_KEYS + 40000 };

static struct hps_error error;
static const struct hps_call no_limit;

struct fixture {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    uint8_t *rows; /* [N_ROWS][row_bytes] as stored; row i belongs to key_of(i) */
};

static enum mode { SPARSE, DENSE, MIXED, MODES } mode;

static hps_key key_of(uint32_t i)
{
    return mode == DENSE || (mode == MIXED && i % 8 != 0) ? i : hps_mix64(i + 1);
}

/* Begin a dense range at key 0. */
static void begin_range(struct fixture *f)
{
    hps_key keys[64];
    for (uint32_t i = 0; i < 64; i++) {
        keys[i] = i;
    }
    assert_int_equal(f->store->ops->limits->reserve(f->space, &f->table, keys, 64, &error), HPS_OK);
}

static void values_of(uint32_t i, uint32_t dim, float *out)
{
    for (uint32_t d = 0; d < dim; d++) {
        out[d] = (float)(int32_t)(hps_mix64(i * UINT64_C(4096) + d) % 40001 - 20000) / 3777.0f;
    }
}

static void put(struct fixture *f, hps_key key, const uint8_t *row)
{
    assert_int_equal(f->store->ops->put(f->space, &no_limit, &f->table, &key, row, 1), HPS_OK);
}

static void open_map(struct fixture *f, enum hps_dtype dtype, uint32_t dim)
{
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &f->table, .n_tables = 1};
    float values[DIM_MAX];
    f->table = (struct hps_table){.name = "t",
                                  .dim = dim,
                                  .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, dim),
                                  .dtype = dtype};
    const struct hps_host_map_options options = {.bytes_max = UINT64_C(1) << 30,
                                                 .dense = mode != SPARSE};
    assert_int_equal(hps_host_map_open_with(&options, &f->store, &error), HPS_OK);
    assert_int_equal(f->store->ops->space_open(f->store, &id, &f->space, &error), HPS_OK);
    begin_range(f);
    f->rows = hps_alloc((size_t)N_ROWS * f->table.row_bytes);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        uint8_t *row = f->rows + (size_t)i * f->table.row_bytes;
        values_of(i, dim, values);
        hps_row_convert(row, dtype, values, HPS_DTYPE_FP32, dim);
        put(f, key_of(i), row);
    }
    static const uint64_t n_dense[MODES] = {0, N_ROWS, N_ROWS / 8 * 7};
    assert_int_equal(f->store->ops->limits->dense_rows(f->space, &f->table), n_dense[mode]);
}

static void close_map(struct fixture *f)
{
    f->store->ops->space_close(f->space);
    f->store->ops->close(f->store);
    hps_free(f->rows);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Bags, and the row number of each key; N_ROWS and above: no row. */
struct asked {
    uint32_t ids[N_KEYS_MAX];
    uint32_t offsets[2048];
    uint32_t n_bags;
    uint8_t keys[N_KEYS_MAX * 8 + 3]; /* from the third byte on, unaligned */
    uint8_t weights[N_KEYS_MAX * 4 + 1];
    bool weighted;
};

static uint32_t n_keys_of(const struct asked *asked)
{
    return asked->offsets[asked->n_bags];
}

static void bag_push(struct asked *asked, uint32_t n, uint64_t seed, bool lacks_one)
{
    uint32_t begin = n_keys_of(asked);
    assert_true(begin + n <= N_KEYS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t random = hps_mix64(seed * 1000003 + i);
        float weight = (float)(int32_t)(random >> 40 & 0xff) / 64.0f - 1.5f;
        uint32_t id = (uint32_t)(random % N_ROWS);
        asked->ids[begin + i] = lacks_one && i == seed % n ? N_ROWS + id : id;
        hps_key key = key_of(asked->ids[begin + i]);
        memcpy(asked->keys + 3 + (size_t)(begin + i) * 8, &key, 8);
        memcpy(asked->weights + 1 + (size_t)(begin + i) * 4, &weight, 4);
    }
    asked->n_bags++;
    asked->offsets[asked->n_bags] = begin + n;
}

/* Make bags of many sizes. One bag in `lacks` (0: none) has a key without a row. */
static struct asked *ask_mixed(uint32_t n_bags, uint32_t lacks, bool weighted)
{
    static const uint32_t sizes[] = {1, 0, 3, 32, 0, 0, 255, 1, 256, 257, 2, 40, 700, 5, 1, 33};
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    asked->weighted = weighted;
    for (uint32_t b = 0; b < n_bags; b++) {
        uint32_t n = sizes[hps_mix64(b) % (sizeof(sizes) / sizeof(sizes[0]))];
        bag_push(asked, n, b, n > 0 && lacks != 0 && hps_mix64(b + 77) % lacks == 0);
    }
    return asked;
}

static bool bag_is_whole(const struct asked *asked, uint32_t bag)
{
    bool whole = true;
    for (uint32_t i = asked->offsets[bag]; i < asked->offsets[bag + 1]; i++) {
        whole = whole && asked->ids[i] < N_ROWS;
    }
    return whole;
}

/* Compute a bag key by key. */
static void bag_expect(const struct fixture *f, const struct asked *asked, uint32_t bag,
                       enum hps_pooling pooling, enum hps_dtype to, uint8_t *out)
{
    float sum[DIM_MAX] = {0};
    struct hps_bag_weights weights = {0};
    for (uint32_t i = asked->offsets[bag]; i < asked->offsets[bag + 1]; i++) {
        const uint8_t *row = f->rows + (size_t)asked->ids[i] * f->table.row_bytes;
        const uint8_t *weight = asked->weighted ? asked->weights + 1 + (size_t)i * 4 : NULL;
        hps_row_sum_add(sum, f->table.dtype, f->table.dim, &row, weight, 1);
        hps_bag_weights_add(&weights, weight, 1);
    }
    hps_row_sum_end(out, to, sum, f->table.dim, pooling, &weights);
}

struct pooled {
    struct hps_bags bags;
    uint8_t *rows;
    uint32_t *whole;
    uint32_t to_bytes;
};

static void pooled_open(struct pooled *p, const struct fixture *f, const struct asked *asked,
                        enum hps_pooling pooling, enum hps_dtype to, uint32_t gap)
{
    p->to_bytes = (uint32_t)hps_dtype_row_bytes(to, f->table.dim);
    size_t stride = p->to_bytes + gap;
    p->rows = hps_alloc((size_t)asked->n_bags * stride + 1);
    p->whole = hps_alloc((asked->n_bags / 32 + 1) * sizeof(*p->whole));
    memset(p->rows, 0xee, (size_t)asked->n_bags * stride + 1);
    memset(p->whole, 0x5a, (asked->n_bags / 32 + 1) * sizeof(*p->whole));
    p->bags = (struct hps_bags){.keys = n_keys_of(asked) == 0 ? NULL : asked->keys + 3,
                                .weights = asked->weighted ? asked->weights + 1 : NULL,
                                .offsets = asked->offsets,
                                .pooling = pooling,
                                .out = {p->rows, stride, to},
                                .whole = p->whole};
}

static void pooled_close(struct pooled *p)
{
    hps_free(p->rows);
    hps_free(p->whole);
}

static hps_status pool(const struct fixture *f, const struct pooled *p, uint32_t first, uint32_t n)
{
    return f->store->ops->pool->bags(f->space, &no_limit, &f->table, &p->bags, first, n);
}

static void pooled_check(const struct fixture *f, const struct asked *asked, const struct pooled *p)
{
    uint8_t wanted[DIM_MAX * 4];
    size_t stride = p->bags.out.stride;
    for (uint32_t b = 0; b < asked->n_bags; b++) {
        const uint8_t *row = p->rows + b * stride;
        assert_int_equal(hps_bags_whole(&p->bags, b), bag_is_whole(asked, b));
        for (size_t at = p->to_bytes; at < stride; at++) {
            assert_int_equal(row[at], 0xee);
        }
        if (bag_is_whole(asked, b)) {
            bag_expect(f, asked, b, p->bags.pooling, p->bags.out.dtype, wanted);
            assert_memory_equal(row, wanted, p->to_bytes);
        }
    }
    assert_int_equal(p->rows[asked->n_bags * stride], 0xee);
}

static void check_all(const struct fixture *f, const struct asked *asked, enum hps_pooling pooling,
                      enum hps_dtype to, uint32_t gap)
{
    struct pooled p;
    pooled_open(&p, f, asked, pooling, to, gap);
    assert_int_equal(pool(f, &p, 0, asked->n_bags), HPS_OK);
    pooled_check(f, asked, &p);
    pooled_close(&p);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_bags_when_of_any_type_and_pooling_then_equal_to_key_by_key(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 7, 16, 131};
    for (unsigned dtype = HPS_DTYPE_FP32; dtype < HPS_DTYPE_STORED_END; dtype++) {
        struct fixture f;
        open_map(&f, (enum hps_dtype)dtype, dims[dtype % 4]);
        for (unsigned weighted = 0; weighted < 2; weighted++) {
            struct asked *asked = ask_mixed(90 + dtype, 4, weighted == 1);
            for (unsigned pooling = HPS_POOLING_SUM; pooling <= HPS_POOLING_MEAN_BY_COUNT;
                 pooling++) {
                for (unsigned to = HPS_DTYPE_FP32; to <= HPS_DTYPE_BF16; to++) {
                    check_all(&f, asked, (enum hps_pooling)pooling, (enum hps_dtype)to,
                              pooling % 2 == 0 ? 0 : 5);
                }
            }
            hps_free(asked);
        }
        close_map(&f);
    }
}

static void test_bag_when_of_100000_keys_then_pooled_together_with_small_ones(void **state)
{
    (void)state;
    struct fixture f;
    open_map(&f, HPS_DTYPE_FP16, 16);
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    bag_push(asked, 3, 1, false);
    bag_push(asked, LARGE_KEYS, 2, false);
    bag_push(asked, 0, 3, false);
    bag_push(asked, 5, 4, true);
    bag_push(asked, 700, 600, true); /* lacks its 601st key, in the third block */
    bag_push(asked, 7, 6, false);
    check_all(&f, asked, HPS_POOLING_MEAN, HPS_DTYPE_FP32, 0);
    hps_free(asked);
    close_map(&f);
}

static void test_bags_when_none_or_all_are_empty_then_zeros(void **state)
{
    (void)state;
    struct fixture f;
    open_map(&f, HPS_DTYPE_FP32, 4);
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    check_all(&f, asked, HPS_POOLING_SUM, HPS_DTYPE_FP32, 0);
    for (uint32_t b = 0; b < 65; b++) {
        bag_push(asked, 0, b, false);
    }
    check_all(&f, asked, HPS_POOLING_SQRTN, HPS_DTYPE_FP16, 0);
    hps_free(asked);
    close_map(&f);
}

struct piece {
    const struct fixture *f;
    const struct pooled *p;
    uint32_t first;
    uint32_t n;
    hps_status status;
    pthread_t thread;
};

static void *piece_run(void *ctx)
{
    struct piece *piece = ctx;
    piece->status = pool(piece->f, piece->p, piece->first, piece->n);
    return NULL;
}

static void test_bags_when_pooled_concurrently_then_all_are_complete(void **state)
{
    (void)state;
    enum { N_PIECES = 4, N_BAGS = 32 * N_PIECES - 9 };
    struct fixture f;
    struct piece pieces[N_PIECES];
    struct pooled p;
    open_map(&f, HPS_DTYPE_INT8_ROWWISE_F16, 33);
    struct asked *asked = ask_mixed(N_BAGS, 6, true);
    pooled_open(&p, &f, asked, HPS_POOLING_MEAN, HPS_DTYPE_FP32, 1);
    for (uint32_t i = 0; i < N_PIECES; i++) {
        uint32_t n = i + 1 < N_PIECES ? 32 : N_BAGS - i * 32;
        pieces[i] = (struct piece){.f = &f, .p = &p, .first = i * 32, .n = n};
        assert_int_equal(pthread_create(&pieces[i].thread, NULL, piece_run, &pieces[i]), 0);
    }
    for (uint32_t i = 0; i < N_PIECES; i++) {
        assert_int_equal(pthread_join(pieces[i].thread, NULL), 0);
        assert_int_equal(pieces[i].status, HPS_OK);
    }
    pooled_check(&f, asked, &p);
    pooled_close(&p);
    hps_free(asked);
    close_map(&f);
}

static void test_bags_when_the_deadline_is_past_then_none_is_marked_complete(void **state)
{
    (void)state;
    struct fixture f;
    struct pooled p;
    open_map(&f, HPS_DTYPE_FP32, 4);
    struct asked *asked = ask_mixed(40, 0, false);
    pooled_open(&p, &f, asked, HPS_POOLING_SUM, HPS_DTYPE_FP32, 0);
    const struct hps_call late = {.deadline_us = 1};
    assert_int_equal(f.store->ops->pool->bags(f.space, &late, &f.table, &p.bags, 0, 40),
                     HPS_DEADLINE);
    for (uint32_t b = 0; b < 40; b++) {
        assert_false(hps_bags_whole(&p.bags, b));
    }
    pooled_close(&p);
    hps_free(asked);
    close_map(&f);
}

static bool is_third_look(const void *ctx)
{
    unsigned *n_looks = *(unsigned *const *)ctx;
    return ++*n_looks == 3;
}

static void test_bag_of_100000_keys_when_cancelled_then_pooling_stops_within_it(void **state)
{
    (void)state;
    struct fixture f;
    struct pooled p;
    unsigned n_looks = 0;
    unsigned *looks = &n_looks;
    open_map(&f, HPS_DTYPE_FP32, 4);
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    bag_push(asked, 3, 1, false);
    bag_push(asked, LARGE_KEYS, 2, false);
    pooled_open(&p, &f, asked, HPS_POOLING_SUM, HPS_DTYPE_FP32, 0);
    const struct hps_call left = {.cancelled = is_third_look, .cancelled_ctx = &looks};
    assert_int_equal(f.store->ops->pool->bags(f.space, &left, &f.table, &p.bags, 0, 2),
                     HPS_CANCELLED);
    assert_int_equal(n_looks, 3);
    assert_false(hps_bags_whole(&p.bags, 0));
    assert_false(hps_bags_whole(&p.bags, 1));
    pooled_close(&p);
    hps_free(asked);
    close_map(&f);
}

/* ---- eviction -------------------------------------------------------------------------------- */

static unsigned heat_of(struct fixture *f, uint32_t id)
{
    struct hps_host_table *host = host_table_of(f->space, &f->table);
    return hps_host_heat(hps_host_index_find(&host->index, key_of(id)));
}

/* Each pooled key counts as used once. Keys of a bag that lacks a key are looked up later, and
 * count then. */
static void test_bags_when_uses_are_noted_then_only_of_pooled_keys(void **state)
{
    (void)state;
    struct fixture f;
    unsigned n_lacking = 0;
    if (mode != SPARSE) { /* rows of a range are never evicted */
        skip();
    }
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    open_map(&f, HPS_DTYPE_FP32, 4);
    bag_push(asked, 20, 1, false);
    bag_push(asked, 20, 2, true);
    struct pooled p;
    pooled_open(&p, &f, asked, HPS_POOLING_SUM, HPS_DTYPE_FP32, 0);
    assert_int_equal(pool(&f, &p, 0, 2), HPS_OK);
    assert_int_equal(heat_of(&f, asked->ids[0]), 0);
    atomic_store(&host_table_of(f.space, &f.table)->touched, true);
    assert_int_equal(pool(&f, &p, 0, 2), HPS_OK);
    pooled_check(&f, asked, &p);
    for (uint32_t i = 0; i < 20; i++) {
        assert_in_range(heat_of(&f, asked->ids[i]), 1, 3);
    }
    for (uint32_t i = 20; i < 40; i++) {
        bool shared = false;
        for (uint32_t j = 0; j < 20; j++) {
            shared = shared || asked->ids[j] == asked->ids[i];
        }
        if (asked->ids[i] < N_ROWS && !shared) {
            assert_int_equal(heat_of(&f, asked->ids[i]), 0);
            n_lacking++;
        }
    }
    assert_true(n_lacking > 0);
    pooled_close(&p);
    hps_free(asked);
    close_map(&f);
}

/* ---- concurrent writers ---------------------------------------------------------------------- */

struct writer {
    struct fixture *f;
    atomic_bool stop;
    hps_status status;
    uint32_t n_written;
};

static void write_row(struct writer *writer, hps_key key, const uint8_t *row)
{
    const struct fixture *f = writer->f;
    const struct hps_store_ops *ops = f->store->ops;
    hps_status status = row != NULL ? ops->put(f->space, &no_limit, &f->table, &key, row, 1)
                                    : ops->erase(f->space, &no_limit, &f->table, &key, 1);
    writer->status = status != HPS_OK ? status : writer->status;
}

/* Write rows with one value in all columns, add and erase keys, and make the index grow. */
static void *write_rows(void *ctx)
{
    struct writer *writer = ctx;
    struct fixture *f = writer->f;
    for (uint32_t i = 0; !atomic_load(&writer->stop) || i < 5000; i++) {
        float values[DIM_MAX];
        uint8_t row[DIM_MAX * 4];
        uint32_t id = (uint32_t)(hps_mix64(i) % N_ROWS);
        for (uint32_t d = 0; d < f->table.dim; d++) {
            values[d] = (float)(i % 64);
        }
        hps_row_convert(row, f->table.dtype, values, HPS_DTYPE_FP32, f->table.dim);
        write_row(writer, key_of(id), row);
        write_row(writer, key_of(N_ROWS + i % 20000), row);
        write_row(writer, key_of(N_ROWS + (i + 10000) % 20000), NULL);
        writer->n_written++;
    }
    return NULL;
}

/* All columns of a row have one value, so the sum of rows has one value unless a row is torn. */
static void test_bags_when_rows_change_concurrently_then_none_is_torn(void **state)
{
    (void)state;
    enum { ROUNDS = HPS_TEST_WORK(200) };
    struct fixture f;
    struct writer writer = {.f = &f};
    struct pooled p;
    pthread_t thread;
    uint8_t zeros[DIM_MAX * 4] = {0};
    open_map(&f, HPS_DTYPE_FP32, 32);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        put(&f, key_of(i), zeros);
    }
    struct asked *asked = ask_mixed(30, 0, false);
    pooled_open(&p, &f, asked, HPS_POOLING_SUM, HPS_DTYPE_FP32, 0);
    assert_int_equal(pthread_create(&thread, NULL, write_rows, &writer), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        assert_int_equal(pool(&f, &p, 0, asked->n_bags), HPS_OK);
        for (uint32_t b = 0; b < asked->n_bags; b++) {
            float sum[DIM_MAX];
            memcpy(sum, p.rows + b * p.bags.out.stride, p.to_bytes);
            assert_true(hps_bags_whole(&p.bags, b));
            for (uint32_t d = 1; d < f.table.dim; d++) {
                assert_true(sum[d] == sum[0]);
            }
        }
    }
    atomic_store(&writer.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(writer.status, HPS_OK);
    assert_true(writer.n_written >= 5000);
    pooled_close(&p);
    hps_free(asked);
    close_map(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bags_when_of_any_type_and_pooling_then_equal_to_key_by_key),
        cmocka_unit_test(test_bag_when_of_100000_keys_then_pooled_together_with_small_ones),
        cmocka_unit_test(test_bags_when_none_or_all_are_empty_then_zeros),
        cmocka_unit_test(test_bags_when_pooled_concurrently_then_all_are_complete),
        cmocka_unit_test(test_bags_when_the_deadline_is_past_then_none_is_marked_complete),
        cmocka_unit_test(test_bag_of_100000_keys_when_cancelled_then_pooling_stops_within_it),
        cmocka_unit_test(test_bags_when_uses_are_noted_then_only_of_pooled_keys),
        cmocka_unit_test(test_bags_when_rows_change_concurrently_then_none_is_torn),
    };
    static const char *const names[MODES] = {"host_pool", "host_pool_dense", "host_pool_mixed"};
    int n_failed = 0;
    for (unsigned i = 0; i < MODES; i++) {
        mode = (enum mode)i;
        n_failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
    }
    return n_failed;
}
