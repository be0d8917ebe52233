/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys in order, slots beside their keys, on the inputs that break naive sorts.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include "base/heap.h"
#include "base/key_sort.h"

enum { N_MAX = 5000 };

static hps_key keys[N_MAX];
static hps_key before[N_MAX];
static uint32_t slots[N_MAX];

static void check_sorted(size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        before[i] = keys[i];
        slots[i] = i;
    }
    hps_key_sort(keys, slots, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(keys[i] == before[slots[i]]);
        assert_true(i == 0 || keys[i - 1] <= keys[i]);
    }
    hps_key_sort(before, NULL, n);
    assert_memory_equal(before, keys, n * sizeof(*keys));
}

static void test_sort_when_any_order_then_ascending_and_slots_follow(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 23, 24, 25, 26, 1000, N_MAX};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        size_t n = sizes[s];
        for (unsigned kind = 0; kind < 6; kind++) {
            for (uint64_t i = 0; i < n; i++) {
                const hps_key kinds[] = {
                    i,
                    n - i,
                    UINT64_C(0x9e3779b97f4a7c15) * i,
                    7,
                    UINT64_C(1) << (i % 64),
                    UINT64_MAX - (i * 77) % 100,
                };
                keys[i] = kinds[kind];
            }
            check_sorted(n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort_when_any_order_then_ascending_and_slots_follow),
    };
    return cmocka_run_group_tests_name("key_sort", tests, NULL, NULL);
}
