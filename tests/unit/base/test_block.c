/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled blocks, on one thread and shared between threads.
 */
#include "base/block.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "tests/lib/fault_heap.h"

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void test_new_when_any_size_then_aligned_power_of_two(void **state)
{
    (void)state;
    static const size_t sizes[][2] = {{0, 4096},          {1, 4096},
                                      {4096, 4096},       {4097, 8192},
                                      {100000, 131072},   {(2 << 20) - 1, 2 << 20},
                                      {2 << 20, 2 << 20}, {(2 << 20) + 1, 4 << 20}};
    struct hps_block_pool *pool = hps_block_pool_new(0);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hps_block *block = hps_block_new(pool, sizes[i][0]);
        assert_non_null(block);
        assert_int_equal(block->capacity, sizes[i][1]);
        assert_int_equal((uintptr_t)block->data % 64, 0);
        if (block->capacity >= 2 << 20) {
            assert_int_equal((uintptr_t)block->data % (2 << 20), 0);
        }
        block->data[0] = 1;
        block->data[block->capacity - 1] = 2;
        assert_int_equal(hps_block_pool_bytes(pool), block->capacity);
        hps_block_unref(block);
        assert_int_equal(hps_block_pool_bytes(pool), 0);
    }
    hps_block_unref(NULL);
    hps_block_pool_free(pool);
    hps_block_pool_free(NULL);
}

static void test_new_when_absurd_size_then_null(void **state)
{
    (void)state;
    struct hps_block_pool *pool = hps_block_pool_new(1 << 20);
    assert_null(hps_block_new(pool, SIZE_MAX));
    assert_null(hps_block_new(pool, ((size_t)1 << 46) + 1));
    assert_int_equal(hps_block_pool_bytes(pool), 0);
    hps_block_pool_free(pool);
}

static void test_new_when_the_pool_has_a_slab_then_slab_blocks_lie_in_it_while_they_fit(
    void **state)
{
    (void)state;
    struct hps_block_pool *pool = hps_block_pool_new(64 << 20);
    struct hps_block *blocks[4];
    size_t size = 0;
    assert_null(hps_block_pool_slab(pool, &size));
    assert_null(hps_block_new_slab(pool, 1));
    assert_int_equal(size, 0);
    assert_int_equal(hps_block_pool_slab_add(pool, (3 << 20) + 1), HPS_OK);
    uint8_t *slab = hps_block_pool_slab(pool, &size);
    assert_int_equal(size, 4 << 20);
    assert_null(hps_block_new_slab(pool, SIZE_MAX));
    assert_null(hps_block_new_slab(pool, (size_t)8 << 20));
    struct hps_block *other = hps_block_new(pool, 1); /* does not use the slab without need */
    assert_false(other->in_slab);
    hps_block_unref(other);
    for (int round = 0; round < 3; round++) { /* released memory can be used again, in any size */
        size_t each = (size_t)(1 << 20) << (round % 2);
        unsigned n = round % 2 == 0 ? 4 : 2;
        for (unsigned i = 0; i < n; i++) {
            blocks[i] = hps_block_new_slab(pool, each);
            assert_true(blocks[i]->in_slab);
            assert_true(blocks[i]->data >= slab && blocks[i]->data + each <= slab + size);
            memset(blocks[i]->data, (int)i, each);
        }
        assert_null(hps_block_new_slab(pool, 1));
        struct hps_block *beyond = hps_block_new(pool, 1);
        assert_false(beyond->in_slab);
        assert_true(beyond->data < slab || beyond->data >= slab + size);
        hps_block_unref(beyond);
        for (unsigned i = 0; i < n; i++) {
            assert_int_equal(blocks[i]->data[each - 1], i); /* no other block was written there */
            hps_block_unref(blocks[i]);
        }
    }
    assert_int_equal(hps_block_pool_bytes(pool), 0);
    hps_block_pool_free(pool);
}

static void test_unref_when_last_then_block_is_reused(void **state)
{
    (void)state;
    struct hps_block_pool *pool = hps_block_pool_new(16384);
    struct hps_block *block = hps_block_new(pool, 10000);
    hps_block_ref(block);
    hps_block_unref(block);
    block->data[9999] = 1; /* one reference is left */
    assert_int_equal(hps_block_pool_bytes(pool), 16384);
    hps_block_unref(block);
    struct hps_block *again = hps_block_new(pool, 9000);
    assert_ptr_equal(again, block);
    memset(again->data, 0, again->capacity);
    hps_block_unref(again);
    hps_block_pool_free(pool);
}

static void test_unref_when_idle_bound_reached_then_freed(void **state)
{
    (void)state;
    hps_fault_heap_install(0);
    struct hps_block_pool *pool = hps_block_pool_new(2 * 4096 + 100);
    struct hps_block *blocks[4];
    for (unsigned i = 0; i < 4; i++) {
        blocks[i] = hps_block_new(pool, 4096);
    }
    size_t live_full = hps_fault_heap_live();
    for (unsigned i = 0; i < 4; i++) {
        hps_block_unref(blocks[i]);
    }
    size_t live_idle = hps_fault_heap_live();
    hps_block_pool_free(pool);
    hps_fault_heap_remove();
    assert_int_equal(live_full, 1 + 4 * 2); /* the pool; each block and its data */
    assert_int_equal(live_idle, 1 + 2 * 2);
    assert_int_equal(hps_fault_heap_live(), 0);
}

static void test_pool_free_when_block_in_use_then_assert(void **state)
{
    (void)state;
    struct hps_block_pool *pool = hps_block_pool_new(4096);
    struct hps_block *block = hps_block_new(pool, 1);
    hps_assert_hook(hook);
    expect_assert_failure(hps_block_pool_free(pool));
    hps_assert_hook(NULL);
    hps_block_unref(block);
    hps_block_pool_free(pool);
}

static void block_scenario(void *ctx)
{
    (void)ctx;
    struct hps_block_pool *pool = hps_block_pool_new(1 << 22);
    if (pool == NULL) {
        return;
    }
    struct hps_block *small = hps_block_new(pool, 100);
    struct hps_block *large = hps_block_new(pool, 3 << 20);
    hps_block_unref(small);
    hps_block_unref(large);
    hps_block_pool_free(pool);
}

static void test_block_when_each_allocation_fails_then_no_leak(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(block_scenario, NULL), 4);
}

struct shared {
    struct hps_block_pool *pool;
    struct hps_block *block;
};

/* Each thread allocates and releases blocks, and holds the shared block for a while. */
static void *take_and_give(void *arg)
{
    struct shared *shared = arg;
    uintptr_t bad = 0;
    for (unsigned i = 0; i < 3000; i++) {
        struct hps_block *own = hps_block_new(shared->pool, (size_t)1 << (10 + i % 5));
        hps_block_ref(shared->block);
        if (own != NULL) {
            memset(own->data, (int)(i & 0xff), 512);
            bad += own->data[511] != (uint8_t)i;
        }
        bad += shared->block->data[7] != 77;
        hps_block_unref(shared->block);
        hps_block_unref(own);
    }
    hps_block_unref(shared->block);
    return (void *)bad;
}

static void test_block_when_many_threads_then_each_owns_its_bytes(void **state)
{
    (void)state;
    enum { N_THREADS = 4 };
    struct shared shared = {hps_block_pool_new(64 << 10), NULL};
    shared.block = hps_block_new(shared.pool, 100);
    shared.block->data[7] = 77;
    pthread_t threads[N_THREADS];
    for (unsigned i = 0; i < N_THREADS; i++) {
        hps_block_ref(shared.block);
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &shared), 0);
    }
    hps_block_unref(shared.block);
    for (unsigned i = 0; i < N_THREADS; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    assert_int_equal(hps_block_pool_bytes(shared.pool), 0);
    hps_block_pool_free(shared.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_when_any_size_then_aligned_power_of_two),
        cmocka_unit_test(test_new_when_absurd_size_then_null),
        cmocka_unit_test(
            test_new_when_the_pool_has_a_slab_then_slab_blocks_lie_in_it_while_they_fit),
        cmocka_unit_test(test_unref_when_last_then_block_is_reused),
        cmocka_unit_test(test_unref_when_idle_bound_reached_then_freed),
        cmocka_unit_test(test_pool_free_when_block_in_use_then_assert),
        cmocka_unit_test(test_block_when_each_allocation_fails_then_no_leak),
        cmocka_unit_test(test_block_when_many_threads_then_each_owns_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
