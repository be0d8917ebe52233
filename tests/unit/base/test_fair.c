/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which flows get their turns. One thread.
 */
#include "base/fair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { QUANTUM = 10, N_FLOWS = 26, ITEMS_MAX = 64 };

/* A script adds and takes items of flows named by letters; those from p on are quick.
 *
 *     a    adds an item to flow a
 *     .N   takes the next item, whose work costs N
 *     !N   takes the next item of the quick flows
 *     -a   removes the first item of flow a
 *     $aN  the flow a has used N more
 *
 * `taken` has the letters of the items taken, in order; `_` for none. */
static const struct row {
    const char *name, *script, *taken;
} rows[] = {
    {"empty", ". !", "__"},
    {"one flow, in order of time", "aaa .90 .90 .90 .", "aaa_"},
    {"flows take turns", "aaabbb .1 .1 .1 .1 .1 .1", "ababab"},
    {"a large cost gives way for as many rounds", "aab .30 bbb .10 .10 .10 .10 .1", "abbbab"},
    {"a flow that comes later does not wait for the items of the others", "aaaa .10 b .10 .10",
     "aba"},
    {"no round is saved up", "aaaaa .10 .10 .10 bbb .10 .10 .10 .10 .10", "aaababab"},
    {"debts end when the queue is empty", "a .500 a .1 ab .1 .1", "aaab"},
    {"a debt is kept while others are served", "aab .20 a .1 bb .9 .10 .1", "abbba"},
    {"a debt has a limit", "abbb .9999 .620 a .10 .1 .1", "abbab"},
    {"a cost counts while the item runs", "aab .0 $a20 .1", "ab"},
    {"a cost counts after the queue was empty", "a .0 $a20 ab .1 .1", "aba"},
    {"quick flows first within a round", "aap .1 .10 .10", "paa"},
    {"quick flows do not pass rounds", "aapp .10 .10 .10 .10", "papa"},
    {"quick flows alone", "aapp !10 !10 !10 .1", "pp_a"},
    {"quick flows share", "appqq !10 !10 !10 !10", "pqpq"},
    {"quick flows share after many rounds",
     "ppqqppqqppqq !320 !320 !320 !320 !320 !320 !320 !320 !320 !320 !320 !320", "pqpqpqpqpqpq"},
    {"a removed item is not taken", "aab -a .1 .1 .1", "ba_"},
    {"the only item of a flow is removed", "abc -b .1 .1 .1", "ac_"},
};

struct queue {
    struct hps_fair fair;
    struct hps_fair_flow flows[N_FLOWS];
    struct hps_fair_item items[ITEMS_MAX];
    uint32_t n_items;
    char taken[ITEMS_MAX];
};

static struct hps_fair_flow *flow_of(struct queue *queue, char letter)
{
    struct hps_fair_flow *flow = &queue->flows[letter - 'a'];

    if (flow->n_items == 0) {
        flow->is_quick = letter >= 'p';
    }
    return flow;
}

static void take(struct queue *queue, bool quick, uint64_t cost)
{
    struct hps_fair_item *item = hps_fair_first(&queue->fair, quick);
    char letter = '_';

    if (item != NULL) {
        assert_ptr_equal(item, hps_fair_first(&queue->fair, quick)); /* still queued */
        hps_fair_remove(&queue->fair, item);
        assert_false(item->queued);
        hps_fair_spend(&queue->fair, item->flow, cost);
        letter = (char)('a' + (item->flow - queue->flows));
    }
    queue->taken[strlen(queue->taken)] = letter;
}

static void run(struct queue *queue, const char *script)
{
    for (const char *at = script; *at != '\0'; at++) {
        char *end = NULL;
        struct hps_fair_link *first = NULL;

        switch (*at) {
        case ' ':
            break;
        case '.':
        case '!':
            take(queue, *at == '!', strtoul(at + 1, &end, 10));
            at = end - 1;
            break;
        case '-':
            first = flow_of(queue, *++at)->items.first;
            hps_fair_remove(&queue->fair, (struct hps_fair_item *)first); /* its first member */
            break;
        case '$':
            hps_fair_spend(&queue->fair, flow_of(queue, at[1]), strtoul(at + 2, &end, 10));
            at = end - 1;
            break;
        default:
            hps_fair_add(&queue->fair, flow_of(queue, *at), &queue->items[queue->n_items++]);
        }
    }
}

static void test_turns_when_flows_have_items_then_time_is_shared(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct queue queue = {.n_items = 0};
        hps_fair_init(&queue.fair, QUANTUM);
        run(&queue, rows[i].script);
        if (strcmp(queue.taken, rows[i].taken) != 0) {
            fail_msg("%s: '%s' took %s, not %s", rows[i].name, rows[i].script, queue.taken,
                     rows[i].taken);
        }
    }
}

/* Flows that always have items get equal time, whatever one item costs. */
static void test_time_when_costs_differ_then_equal_parts(void **state)
{
    (void)state;
    static const uint64_t costs[] = {1, 7, 64, 300};
    struct queue queue = {.n_items = 0};
    uint64_t used[4] = {0};

    hps_fair_init(&queue.fair, QUANTUM);
    for (uint32_t i = 0; i < 8; i++) {
        hps_fair_add(&queue.fair, &queue.flows[i % 4], &queue.items[i]);
    }
    for (uint32_t i = 0; i < 100000; i++) {
        struct hps_fair_item *item = hps_fair_first(&queue.fair, false);
        uint64_t flow = (uint64_t)(item->flow - queue.flows);
        hps_fair_remove(&queue.fair, item);
        hps_fair_spend(&queue.fair, item->flow, costs[flow]);
        hps_fair_add(&queue.fair, item->flow, item);
        used[flow] += costs[flow];
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(used[i], used[0] - 300 - QUANTUM, used[0] + 300 + QUANTUM);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_when_flows_have_items_then_time_is_shared),
        cmocka_unit_test(test_time_when_costs_differ_then_equal_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
