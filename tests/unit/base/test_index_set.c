/* SPDX-License-Identifier: Apache-2.0
 *
 * The set of numbered items, and the way from a member to its struct. One thread.
 */
#include "base/index_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/container.h"

enum { N_ITEMS = 1000, N_PLACES = 2048 };

struct wanted {
    const uint32_t *items;
    uint32_t item;
};

static bool is_item(const void *ctx, uint32_t i)
{
    const struct wanted *wanted = ctx;

    return wanted->items[i] == wanted->item;
}

static uint32_t *find(const struct hps_index_set *set, uint64_t hash, const uint32_t *items,
                      uint32_t item)
{
    const struct wanted wanted = {items, item};

    return hps_index_set_find(set, hash, is_item, &wanted);
}

static void test_places_when_asked_then_a_power_of_two_at_most_half_taken(void **state)
{
    (void)state;
    for (uint64_t n = 0; n <= 1 << 20; n = 3 * n + 1) {
        uint64_t n_places = hps_index_set_places(n);
        assert_true(n_places >= 2 * n && n_places >= 16);
        assert_int_equal(n_places & (n_places - 1), 0);
    }
}

/* hash_mask: how many hashes there are; 0: all items aim at one place. */
static void add_and_find(uint64_t hash_mask)
{
    static uint32_t items[N_ITEMS], places[N_PLACES];
    struct hps_index_set set;
    memset(places, 0xff, sizeof(places)); /* whatever was there */
    hps_index_set_init(&set, places, N_PLACES);
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        items[i] = 7 * i;
        uint32_t *place = find(&set, (items[i] & hash_mask) - 1, items, items[i]);
        assert_int_equal(*place, 0);
        *place = i + 1;
    }
    for (uint32_t item = 0; item < 7 * N_ITEMS; item++) {
        uint32_t expected = item % 7 == 0 ? item / 7 + 1 : 0;
        assert_int_equal(*find(&set, (item & hash_mask) - 1, items, item), expected);
    }
}

static void test_find_when_hashes_differ_then_each_item_has_its_place(void **state)
{
    (void)state;
    add_and_find(UINT64_MAX);
}

static void test_find_when_hashes_are_the_same_then_around_the_end(void **state)
{
    (void)state;
    add_and_find(0); /* the last place is where all begin */
}

static void test_container_when_member_of_a_member_then_the_struct(void **state)
{
    (void)state;
    struct outer {
        char name;
        struct {
            int before;
            uint64_t member;
        } inner;
    } outer = {0};
    uint64_t *member = &outer.inner.member;
    assert_ptr_equal(HPS_CONTAINER_OF(member, struct outer, inner.member), &outer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_when_asked_then_a_power_of_two_at_most_half_taken),
        cmocka_unit_test(test_find_when_hashes_differ_then_each_item_has_its_place),
        cmocka_unit_test(test_find_when_hashes_are_the_same_then_around_the_end),
        cmocka_unit_test(test_container_when_member_of_a_member_then_the_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
