/* SPDX-License-Identifier: Apache-2.0
 *
 * The bump allocator. One thread.
 */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"

static void test_alloc_when_many_sizes_then_aligned_and_apart(void **state)
{
    (void)state;
    struct hps_arena *arena = hps_arena_new(128, 1 << 20);
    uint8_t *kept[200];
    for (size_t i = 0; i < 200; i++) {
        kept[i] = hps_arena_alloc(arena, i);
        assert_non_null(kept[i]);
        assert_int_equal((uintptr_t)kept[i] % 16, 0);
        memset(kept[i], (int)i, i);
    }
    for (size_t i = 1; i < 200; i++) {
        assert_int_equal(kept[i][0], i);
        assert_int_equal(kept[i][i - 1], i);
    }
    hps_arena_free(arena);
    hps_arena_free(NULL);
}

static void test_alloc_when_max_passed_then_null_until_reset(void **state)
{
    (void)state;
    struct hps_arena *arena = hps_arena_new(64, 256);
    assert_null(hps_arena_alloc(arena, 257));
    assert_null(hps_arena_alloc(arena, SIZE_MAX));
    assert_non_null(hps_arena_alloc(arena, 64));
    assert_null(hps_arena_alloc(arena, 193));
    assert_non_null(hps_arena_alloc(arena, 192));
    assert_int_equal(hps_arena_used(arena), 256);
    assert_null(hps_arena_alloc(arena, 1));
    assert_null(hps_arena_alloc(arena, 0));
    hps_arena_reset(arena);
    assert_int_equal(hps_arena_used(arena), 0);
    assert_non_null(hps_arena_alloc(arena, 64));
    assert_non_null(hps_arena_alloc(arena, 1));
    hps_arena_free(arena);
}

static void test_alloc_when_unlimited_then_huge_is_null(void **state)
{
    (void)state;
    struct hps_arena *arena = hps_arena_new(0, SIZE_MAX);
    assert_non_null(arena);
    assert_null(hps_arena_alloc(arena, SIZE_MAX));
    assert_null(hps_arena_alloc(arena, SIZE_MAX - 20));
    assert_null(hps_arena_strndup(arena, "", SIZE_MAX));
    assert_non_null(hps_arena_alloc(arena, 100));
    hps_arena_free(arena);
}

static void test_reset_when_grown_then_first_chunk_serves_again(void **state)
{
    (void)state;
    hps_fault_heap_install(0);
    struct hps_arena *arena = hps_arena_new(1024, 1 << 20);
    void *first = hps_arena_alloc(arena, 1000);
    assert_non_null(hps_arena_alloc(arena, 5000));
    assert_int_equal(hps_fault_heap_live(), 3);
    hps_arena_reset(arena);
    assert_int_equal(hps_fault_heap_live(), 2);
    assert_ptr_equal(hps_arena_alloc(arena, 1000), first);
    assert_int_equal(hps_fault_heap_allocations(), 3);
    hps_arena_free(arena);
    hps_fault_heap_remove();
    assert_int_equal(hps_fault_heap_live(), 0);
}

static void test_calloc_when_given_then_zeroed_or_overflow(void **state)
{
    (void)state;
    static const uint8_t zeros[96];
    struct hps_arena *arena = hps_arena_new(256, 256);
    memset(hps_arena_alloc(arena, 256), 0xff, 256);
    hps_arena_reset(arena);
    uint8_t *ptr = hps_arena_calloc(arena, 12, 8);
    assert_memory_equal(ptr, zeros, sizeof(zeros));
    assert_null(hps_arena_calloc(arena, SIZE_MAX / 2, 3));
    assert_string_equal(hps_arena_strndup(arena, "embedding", 5), "embed");
    hps_arena_free(arena);
}

static void arena_scenario(void *ctx)
{
    (void)ctx;
    struct hps_arena *arena = hps_arena_new(32, 4096);
    if (arena == NULL) {
        return;
    }
    for (unsigned i = 0; i < 20; i++) {
        char *ptr = hps_arena_calloc(arena, 1, 100);
        if (ptr != NULL) {
            ptr[99] = 1;
        }
    }
    hps_arena_free(arena);
}

static void test_arena_when_each_allocation_fails_then_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(arena_scenario, NULL) >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_when_many_sizes_then_aligned_and_apart),
        cmocka_unit_test(test_alloc_when_max_passed_then_null_until_reset),
        cmocka_unit_test(test_alloc_when_unlimited_then_huge_is_null),
        cmocka_unit_test(test_reset_when_grown_then_first_chunk_serves_again),
        cmocka_unit_test(test_calloc_when_given_then_zeroed_or_overflow),
        cmocka_unit_test(test_arena_when_each_allocation_fails_then_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
