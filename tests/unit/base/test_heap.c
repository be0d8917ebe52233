/* SPDX-License-Identifier: Apache-2.0
 *
 * The replaceable heap, and the failing heap that the other tests use. One thread.
 */
#include "base/heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"

static void test_alloc_when_size_zero_then_usable(void **state)
{
    (void)state;
    char *ptr = hps_alloc(0);
    assert_non_null(ptr);
    ptr[0] = 1;
    ptr = hps_realloc(ptr, 0);
    assert_non_null(ptr);
    hps_free(ptr);
    hps_free(NULL);
    hps_free_aligned(NULL);
}

static void test_calloc_when_product_overflows_then_null(void **state)
{
    (void)state;
    assert_null(hps_calloc(SIZE_MAX / 2, 3));
    assert_null(hps_alloc_aligned(64, SIZE_MAX - 8));
}

static void test_calloc_when_given_then_zeroed(void **state)
{
    (void)state;
    static const uint8_t zeros[300];
    uint8_t *ptr = hps_calloc(100, 3);
    assert_non_null(ptr);
    assert_memory_equal(ptr, zeros, sizeof(zeros));
    hps_free(ptr);
}

enum { SMALL_BYTES = 1024, LARGE_BYTES = 64 * 1024 };

static uint8_t memory_of_the_heap[LARGE_BYTES];
static size_t size_allocated;
static size_t size_zeroed;

static void *note_alloc(void *ctx, size_t size)
{
    (void)ctx;
    size_allocated = size;
    return memory_of_the_heap;
}

static void *note_calloc(void *ctx, size_t size)
{
    (void)ctx;
    size_zeroed = size;
    return size <= LARGE_BYTES ? memory_of_the_heap : NULL;
}

static const struct hps_heap noting_heap = {.alloc = note_alloc, .calloc = note_calloc};

static void test_calloc_when_large_then_the_heap_zeroes(void **state)
{
    (void)state;
    /* Whoever touches it again would touch every page. */
    memory_of_the_heap[LARGE_BYTES - 1] = 1;
    hps_heap_set(&noting_heap);
    assert_ptr_equal(hps_calloc(LARGE_BYTES / 4, 4), memory_of_the_heap);
    assert_int_equal(size_zeroed, LARGE_BYTES);
    assert_null(hps_calloc(LARGE_BYTES, 2));
    hps_heap_set(NULL);
    assert_int_equal(memory_of_the_heap[LARGE_BYTES - 1], 1);
}

static void test_calloc_when_small_then_a_plain_block_that_is_zeroed(void **state)
{
    (void)state;
    size_zeroed = 0;
    memset(memory_of_the_heap, 1, SMALL_BYTES + 1);
    hps_heap_set(&noting_heap);
    assert_ptr_equal(hps_calloc(SMALL_BYTES / 4, 4), memory_of_the_heap);
    hps_heap_set(NULL);
    assert_int_equal(size_allocated, SMALL_BYTES);
    assert_int_equal(size_zeroed, 0);
    assert_int_equal(memory_of_the_heap[0], 0);
    assert_int_equal(memory_of_the_heap[SMALL_BYTES - 1], 0);
    assert_int_equal(memory_of_the_heap[SMALL_BYTES], 1);
}

static void test_alloc_aligned_when_any_size_then_aligned(void **state)
{
    (void)state;
    for (size_t align = sizeof(void *); align <= 4096; align *= 2) {
        for (size_t size = 0; size < 70; size += 23) {
            uint8_t *ptr = hps_alloc_aligned(align, size);
            assert_non_null(ptr);
            assert_int_equal((uintptr_t)ptr % align, 0);
            memset(ptr, 0xff, size);
            hps_free_aligned(ptr);
        }
    }
}

static void test_strndup_when_given_then_terminated_copy(void **state)
{
    (void)state;
    char *copy = hps_strndup("hello", 3);
    assert_string_equal(copy, "hel");
    hps_free(copy);
    copy = hps_strdup("");
    assert_string_equal(copy, "");
    hps_free(copy);
}

static void test_fault_heap_when_nth_then_only_that_fails(void **state)
{
    (void)state;
    hps_fault_heap_install(2);
    void *first = hps_alloc(8);
    void *second = hps_alloc(8);
    void *third = hps_alloc(8);
    size_t live = hps_fault_heap_live();
    hps_free(first);
    hps_free(third);
    hps_fault_heap_remove();
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    assert_int_equal(live, 2);
    assert_int_equal(hps_fault_heap_live(), 0);
    assert_int_equal(hps_fault_heap_allocations(), 3);
}

static void every_allocation(void *ctx)
{
    (void)ctx;
    char *a = hps_alloc(10);
    char *b = a != NULL ? hps_realloc(a, 20) : NULL;
    hps_free(b != NULL ? b : a);
    hps_free(hps_calloc(3, 3));
    hps_free_aligned(hps_alloc_aligned(64, 64));
    hps_free(hps_strdup("x"));
}

static void test_heap_when_each_allocation_fails_then_null_and_no_leak(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(every_allocation, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_when_size_zero_then_usable),
        cmocka_unit_test(test_calloc_when_product_overflows_then_null),
        cmocka_unit_test(test_calloc_when_given_then_zeroed),
        cmocka_unit_test(test_calloc_when_large_then_the_heap_zeroes),
        cmocka_unit_test(test_calloc_when_small_then_a_plain_block_that_is_zeroed),
        cmocka_unit_test(test_alloc_aligned_when_any_size_then_aligned),
        cmocka_unit_test(test_strndup_when_given_then_terminated_copy),
        cmocka_unit_test(test_fault_heap_when_nth_then_only_that_fails),
        cmocka_unit_test(test_heap_when_each_allocation_fails_then_null_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
