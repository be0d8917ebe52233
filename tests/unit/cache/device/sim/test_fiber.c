/* SPDX-License-Identifier: Apache-2.0
 *
 * Switches keep the registers that a function relies on. Stacks have the requested depth, and an
 * overflow faults.
 */
#include "cache/device/sim/fiber.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/device/sim/sanitize.h"

enum { FIBERS = 100, STACK_BYTES = 256 * 1024, ROUNDS = 50 };

static uint64_t order;

/* ThreadSanitizer sees no ordering in a switch, so declare it. */
static void go(struct hps_fiber *from, struct hps_fiber *to)
{
    HPS_ORDER_RELEASE(&order);
    hps_fiber_switch(from, to);
    HPS_ORDER_ACQUIRE(&order);
}

struct ring {
    struct hps_fiber *thread;
    struct hps_fiber *fibers[FIBERS];
    unsigned order[FIBERS * ROUNDS];
    unsigned n;
};

struct member {
    struct ring *ring;
    unsigned index;
    double sum; /* of the results between switches */
};

/* Enough live values that some are in registers, which a switch must keep. */
static void member_run(void *arg)
{
    HPS_ORDER_ACQUIRE(&order);
    struct member *member = arg;
    struct ring *ring = member->ring;
    double a = member->index;
    uint64_t b = member->index;
    uint64_t c = ~b;
    uint64_t d = b * 3;
    for (;;) {
        ring->order[ring->n++] = member->index;
        struct hps_fiber *next =
            member->index + 1 < FIBERS ? ring->fibers[member->index + 1] : ring->thread;
        go(ring->fibers[member->index], next);
        a += 1;
        b += 2;
        c -= 2;
        d += 6;
        member->sum = a + (double)(b + c == UINT64_MAX) + (double)(d == b * 3);
    }
}

static void test_switch_when_repeated_in_a_ring_then_each_keeps_its_state(void **state)
{
    (void)state;
    static struct ring ring;
    static struct member members[FIBERS];
    assert_int_equal(hps_fiber_of_thread(&ring.thread), HPS_OK);
    for (unsigned i = 0; i < FIBERS; i++) {
        members[i] = (struct member){&ring, i, 0};
        assert_int_equal(hps_fiber_new(STACK_BYTES, i, member_run, &members[i], &ring.fibers[i]),
                         HPS_OK);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        go(ring.thread, ring.fibers[0]);
        assert_int_equal(ring.n, (round + 1) * FIBERS);
    }
    for (unsigned i = 0; i < FIBERS; i++) {
        assert_int_equal(ring.order[i + FIBERS], i);
        assert_true(members[i].sum == i + (ROUNDS - 1) + 2.0);
        hps_fiber_free(ring.fibers[i]);
    }
    hps_fiber_free(ring.thread);
    hps_fiber_free(NULL);
}

struct diver {
    struct hps_fiber *thread;
    struct hps_fiber *fiber;
    unsigned depth;
    unsigned reached;
};

/* A frame of more than 1 KiB. Half-way down, it switches to the thread and back. */
static unsigned dive(struct diver *diver, unsigned depth)
{
    volatile uint8_t frame[1024];
    memset((void *)(uintptr_t)frame, (int)depth, sizeof(frame));
    if (depth == diver->depth / 2) {
        go(diver->fiber, diver->thread);
    }
    unsigned reached = depth < diver->depth ? dive(diver, depth + 1) : depth;
    return frame[depth % sizeof(frame)] == (uint8_t)depth ? reached : 0;
}

static void diver_run(void *arg)
{
    HPS_ORDER_ACQUIRE(&order);
    struct diver *diver = arg;
    diver->reached = dive(diver, 0);
    for (;;) {
        go(diver->fiber, diver->thread);
    }
}

static unsigned diver_reaches(unsigned depth)
{
    struct diver diver = {.depth = depth};
    assert_int_equal(hps_fiber_of_thread(&diver.thread), HPS_OK);
    assert_int_equal(hps_fiber_new(STACK_BYTES, 3, diver_run, &diver, &diver.fiber), HPS_OK);
    go(diver.thread, diver.fiber);
    assert_int_equal(diver.reached, 0);
    go(diver.thread, diver.fiber);
    hps_fiber_free(diver.fiber);
    hps_fiber_free(diver.thread);
    return diver.reached;
}

static void test_stack_when_deep_then_holds(void **state)
{
    (void)state;
    assert_int_equal(diver_reaches(120), 120);
}

static void test_stack_when_too_deep_then_faults_instead_of_corrupting(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGSEGV, SIG_DFL);
        (void)!freopen("/dev/null", "w", stderr);
        diver_reaches(1000);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_switch_when_repeated_in_a_ring_then_each_keeps_its_state),
        cmocka_unit_test(test_stack_when_deep_then_holds),
        cmocka_unit_test(test_stack_when_too_deep_then_faults_instead_of_corrupting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
