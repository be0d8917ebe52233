/* SPDX-License-Identifier: Apache-2.0
 *
 * The buddy allocator against a map of which page belongs to whom.
 */
#include "base/buddy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tests/lib/fault_heap.h"

enum { PAGES = 1000, PIECES = 300, PAGE = 4096 };

static void test_take_when_random_then_pieces_are_aligned_and_never_overlap(void **state)
{
    (void)state;
    static uint16_t owner[PAGES];
    struct piece {
        uint64_t offset;
        unsigned bits;
    } pieces[PIECES] = {{0}};
    struct hps_buddy *buddy = hps_buddy_new((uint64_t)PAGES * PAGE + 17);
    assert_non_null(buddy);
    for (uint64_t step = 0; step < 20000; step++) {
        uint64_t random = hps_mix64(step + 1);
        uint16_t i = (uint16_t)(random % PIECES);
        struct piece *piece = &pieces[i];
        if (piece->bits != 0) {
            for (uint64_t p = 0; p < UINT64_C(1) << (piece->bits - 12); p++) {
                assert_int_equal(owner[piece->offset / PAGE + p], i + 1);
                owner[piece->offset / PAGE + p] = 0;
            }
            hps_buddy_give(buddy, piece->offset, piece->bits);
            piece->bits = 0;
        } else {
            unsigned bits = 12 + (unsigned)(random >> 32) % 7;
            uint64_t offset = hps_buddy_take(buddy, bits);
            if (offset != UINT64_MAX) {
                *piece = (struct piece){.offset = offset, .bits = bits};
                assert_int_equal(offset % (UINT64_C(1) << bits), 0);
                for (uint64_t p = 0; p < UINT64_C(1) << (bits - 12); p++) {
                    assert_int_equal(owner[offset / PAGE + p], 0);
                    owner[offset / PAGE + p] = (uint16_t)(i + 1);
                }
            }
        }
    }
    hps_buddy_free(buddy);
}

static void test_take_when_all_came_back_then_the_whole_is_one_piece_again(void **state)
{
    (void)state;
    struct hps_buddy *buddy = hps_buddy_new(1 << 20);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(hps_buddy_take(buddy, 12), (uint64_t)i * PAGE);
    }
    assert_int_equal(hps_buddy_take(buddy, 1), UINT64_MAX);
    for (int i = 0; i < 256; i++) {
        hps_buddy_give(buddy, (uint64_t)(i * 37 % 256) * PAGE, 12);
    }
    assert_int_equal(hps_buddy_take(buddy, 20), 0);
    assert_int_equal(hps_buddy_take(buddy, 12), UINT64_MAX);
    hps_buddy_give(buddy, 0, 20);
    assert_int_equal(hps_buddy_take(buddy, 21), UINT64_MAX);
    assert_int_equal(hps_buddy_take(buddy, 63), UINT64_MAX);
    hps_buddy_free(buddy);
}

static void make_and_free(void *ctx)
{
    (void)ctx;
    hps_buddy_free(hps_buddy_new(64 * PAGE));
}

static void test_new_when_nothing_to_give_or_no_memory_then_null(void **state)
{
    (void)state;
    assert_null(hps_buddy_new(0));
    assert_null(hps_buddy_new(PAGE - 1));
    assert_null(hps_buddy_new(UINT64_MAX));
    hps_buddy_free(NULL);
    assert_int_equal(hps_fault_heap_run(make_and_free, NULL), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_when_random_then_pieces_are_aligned_and_never_overlap),
        cmocka_unit_test(test_take_when_all_came_back_then_the_whole_is_one_piece_again),
        cmocka_unit_test(test_new_when_nothing_to_give_or_no_memory_then_null),
    };
    return cmocka_run_group_tests_name("buddy", tests, NULL, NULL);
}
