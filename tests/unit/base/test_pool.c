/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker threads: names, bounds, and that nothing queued is lost at the end.
 */
#include "base/pool.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/pause.h"

static atomic_uint n_run;

struct probe {
    struct hps_task task; /* first */
    sem_t started;
    sem_t go_on;
    char name[16];
    bool term_blocked;
};

static void run_count(struct hps_task *task)
{
    (void)task;
    atomic_fetch_add(&n_run, 1);
}

static void run_probe(struct hps_task *task)
{
    struct probe *probe = (struct probe *)task;
    sigset_t blocked;
    pthread_getname_np(pthread_self(), probe->name, sizeof(probe->name));
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    probe->term_blocked = sigismember(&blocked, SIGTERM) == 1;
    sem_post(&probe->started);
    sem_wait(&probe->go_on);
}

static void probe_init(struct probe *probe)
{
    memset(probe, 0, sizeof(*probe));
    probe->task.run = run_probe;
    sem_init(&probe->started, 0, 0);
    sem_init(&probe->go_on, 0, 0);
}

static void test_pool_when_freed_then_all_queued_have_run(void **state)
{
    (void)state;
    enum { N_TASKS = 1000 };
    static struct hps_task tasks[N_TASKS];
    struct hps_pool *pool = NULL;
    atomic_store(&n_run, 0);
    assert_int_equal(hps_pool_new("count", 3, 0, &pool), HPS_OK);
    assert_int_equal(hps_pool_threads(pool), 3);
    for (unsigned i = 0; i < N_TASKS; i++) {
        tasks[i].run = run_count;
        hps_status status =
            i % 3 == 0 ? hps_pool_post_low(pool, &tasks[i]) : hps_pool_post(pool, &tasks[i]);
        assert_int_equal(status, HPS_OK);
    }
    hps_pool_free(pool);
    assert_int_equal(atomic_load(&n_run), N_TASKS);
    hps_pool_free(NULL);
}

static void test_post_when_queue_full_then_exhausted_and_others_run(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    struct probe probe;
    struct hps_task tasks[3] = {{.run = run_count}, {.run = run_count}, {.run = run_count}};
    probe_init(&probe);
    atomic_store(&n_run, 0);
    assert_int_equal(hps_pool_new("full", 1, 2, &pool), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &probe.task), HPS_OK);
    sem_wait(&probe.started); /* the only worker is busy from here on */
    assert_int_equal(hps_pool_depth(pool), 0);
    assert_int_equal(hps_pool_post(pool, &tasks[0]), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &tasks[1]), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &tasks[2]), HPS_EXHAUSTED);
    assert_int_equal(hps_pool_depth(pool), 2);
    sem_post(&probe.go_on);
    hps_pool_free(pool);
    assert_int_equal(atomic_load(&n_run), 2);
}

static void test_pool_when_name_long_then_number_kept(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    struct probe probes[2];
    assert_int_equal(hps_pool_new("a-very-long-pool-name", 2, 0, &pool), HPS_OK);
    for (unsigned i = 0; i < 2; i++) {
        probe_init(&probes[i]);
        assert_int_equal(hps_pool_post(pool, &probes[i].task), HPS_OK);
    }
    for (unsigned i = 0; i < 2; i++) {
        sem_wait(&probes[i].started); /* both workers are inside at once */
    }
    for (unsigned i = 0; i < 2; i++) {
        sem_post(&probes[i].go_on);
        assert_memory_equal(probes[i].name, "a-very-long-p-", 14);
        assert_true(probes[i].term_blocked);
    }
    assert_int_equal(probes[0].name[14] + probes[1].name[14], '0' + '1');
    hps_pool_free(pool);
}

static void test_pool_when_started_then_creator_keeps_its_signals(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    sigset_t blocked;
    assert_int_equal(hps_pool_new("sig", 1, 0, &pool), HPS_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    assert_int_equal(sigismember(&blocked, SIGTERM), 0);
    hps_pool_free(pool);
}

static void pool_scenario(void *ctx)
{
    (void)ctx;
    struct hps_pool *pool = NULL;
    if (hps_pool_new("fault", 2, 1, &pool) != HPS_OK) {
        assert_null(pool);
    }
    hps_pool_free(pool);
}

static void test_pool_when_each_allocation_fails_then_no_leak(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(pool_scenario, NULL), 1);
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* A pool. Its only thread for any task is held until held_close. Tasks write their letters. */
struct held {
    struct hps_pool *pool;
    struct probe probe;
    atomic_uint n_notes;
    char notes[64];
};

struct note {
    struct hps_task task; /* first */
    struct held *held;
    char letter;
    uint64_t takes_us;
};

static void run_note(struct hps_task *task)
{
    struct note *note = (struct note *)task;

    if (note->takes_us > 0) {
        hps_clock_advance(note->takes_us);
    }
    note->held->notes[atomic_fetch_add(&note->held->n_notes, 1)] = note->letter;
}

static void held_open(struct held *held, unsigned n_quick, size_t queue_max)
{
    const struct hps_pool_options options = {
        .name = "held", .n_threads = 1, .n_quick = n_quick, .queue_max = queue_max};

    memset(held, 0, sizeof(*held));
    probe_init(&held->probe);
    assert_int_equal(hps_pool_start(&options, &held->pool), HPS_OK);
    assert_int_equal(hps_pool_post(held->pool, &held->probe.task), HPS_OK);
    sem_wait(&held->probe.started);
}

/* Lets the thread go on, and waits until all tasks have run. */
static void held_close(struct held *held)
{
    sem_post(&held->probe.go_on);
    hps_pool_free(held->pool);
}

/* Clients are the letters. Their hashes are always the same, and different from each other. */
static uint64_t client_of(char letter)
{
    return hps_hash_secret() ^ ((uint64_t)letter | 0x20);
}

/* Capital letters are quick. */
static hps_status post_note(struct held *held, struct note *note, char letter, uint64_t takes_us)
{
    bool quick = letter >= 'A' && letter <= 'Z';
    struct hps_error err;

    *note =
        (struct note){.task.run = run_note, .held = held, .letter = letter, .takes_us = takes_us};
    return hps_pool_post_for(held->pool, &note->task, client_of(letter),
                             quick ? 1000 : HPS_POOL_LONG, &err);
}

/* posted, then the order in which they run on one thread. A task takes 100 ms, and a quick one
 * takes nothing. */
static const struct {
    const char *posted, *run;
} orders[] = {
    {"aaab", "abaa"},           /* a client has its turn when another one has had its time */
    {"aaabbb", "ababab"},       /* equal parts */
    {"aaAA", "AAaa"},           /* the quick tasks of a client do not wait for its others */
    {"aaaBBBB", "BBBBaaa"},     /* nor tasks of other clients */
    {"abcabcABC", "ABCabcabc"}, /* many clients */
};

static void test_tasks_when_clients_share_a_thread_then_in_turn(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct note notes[16];
        struct held held;
        hps_clock_fake(1000 * 1000);
        held_open(&held, 0, 0);
        for (size_t n = 0; orders[i].posted[n] != '\0'; n++) {
            char letter = orders[i].posted[n];
            assert_int_equal(post_note(&held, &notes[n], letter, letter >= 'a' ? 100000 : 0),
                             HPS_OK);
        }
        held_close(&held);
        assert_string_equal(held.notes, orders[i].run);
        hps_clock_real();
    }
}

static void test_quick_when_all_threads_are_busy_then_it_runs(void **state)
{
    (void)state;
    struct note notes[2];
    struct probe quick;
    struct held held;
    struct hps_error err;

    held_open(&held, 1, 0);
    probe_init(&quick);
    assert_int_equal(post_note(&held, &notes[0], 'a', 0), HPS_OK);
    assert_int_equal(
        hps_pool_post_for(held.pool, &quick.task, client_of('a'), HPS_POOL_QUICK, &err), HPS_OK);
    sem_wait(&quick.started); /* would never come without a thread for it */
    sem_post(&quick.go_on);
    assert_int_equal(hps_pool_depth(held.pool), 1); /* that thread takes no other task */
    held_close(&held);
    assert_string_equal(held.notes, "a");
}

/* A post wakes one thread. The quick task wakes the thread for any task; this one takes the long
 * task, because the client of the quick one has used its time of this round. */
static void test_quick_when_the_woken_thread_takes_a_long_task_then_another_runs_it(void **state)
{
    enum { N_ROUNDS = 50 };
    struct note notes[N_ROUNDS];
    struct probe quick, slow;
    struct held held;
    struct hps_error err;

    (void)state;
    hps_clock_fake(1000 * 1000);
    held_open(&held, 1, 0);
    probe_init(&quick);
    probe_init(&slow);
    sem_post(&held.probe.go_on);
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        assert_int_equal(post_note(&held, &notes[i], 'A', 100000), HPS_OK);
        AWAIT(atomic_load(&held.n_notes) == i + 1);
        brief_pause(); /* until the threads wait; without this the test proves less */
        sem_post(&quick.go_on);
        assert_int_equal(hps_pool_post_for(held.pool, &quick.task, client_of('a'), 0, &err),
                         HPS_OK);
        assert_int_equal(
            hps_pool_post_for(held.pool, &slow.task, client_of('b'), HPS_POOL_LONG, &err), HPS_OK);
        sem_wait(&quick.started); /* would never come while the long task runs */
        sem_post(&slow.go_on);
        sem_wait(&slow.started);
    }
    hps_pool_free(held.pool);
    hps_clock_real();
}

static void test_queue_when_a_client_has_its_share_then_others_have_space(void **state)
{
    (void)state;
    enum { QUEUE_MAX = 10 };
    struct note notes[QUEUE_MAX + 1];
    struct held held;
    struct hps_error err;
    unsigned n = 0;

    held_open(&held, 0, QUEUE_MAX);
    hps_pool_share_set(held.pool, 0.25);
    while (post_note(&held, &notes[n], n % 2 == 0 ? 'a' : 'A', 0) == HPS_OK) {
        n++;
    }
    assert_int_equal(n, 8);
    assert_int_equal(hps_pool_post_for(held.pool, &notes[n].task, client_of('a'), 0, &err),
                     HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "8 calls wait for a thread of the pool 'held', 8 of them"));
    assert_int_equal(post_note(&held, &notes[8], 'b', 0), HPS_OK);
    assert_int_equal(post_note(&held, &notes[9], 'c', 0), HPS_OK);
    assert_int_equal(post_note(&held, &notes[10], 'd', 0), HPS_EXHAUSTED); /* it is full */
    assert_true(hps_pool_withdraw(held.pool, &notes[9].task));
    hps_pool_share_set(held.pool, 0);
    assert_int_equal(post_note(&held, &notes[9], 'a', 0), HPS_OK);
    held_close(&held);
    assert_int_equal(strlen(held.notes), QUEUE_MAX);
}

static void test_withdraw_when_a_task_waits_then_it_is_the_callers_again(void **state)
{
    (void)state;
    struct note notes[4];
    struct held held;

    held_open(&held, 0, 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(post_note(&held, &notes[i], (char)('a' + i), 0), HPS_OK);
    }
    notes[3] = (struct note){.task.run = run_note, .held = &held, .letter = 'l'};
    assert_false(hps_pool_withdraw(held.pool, &notes[3].task)); /* not posted */
    assert_int_equal(hps_pool_post_low(held.pool, &notes[3].task), HPS_OK);
    assert_false(hps_pool_withdraw(held.pool, &notes[3].task)); /* of low priority */
    assert_true(hps_pool_withdraw(held.pool, &notes[1].task));
    assert_false(hps_pool_withdraw(held.pool, &notes[1].task)); /* no longer there */
    assert_int_equal(hps_pool_depth(held.pool), 2);
    assert_false(hps_pool_withdraw(held.pool, &held.probe.task)); /* it runs */
    assert_int_equal(hps_pool_post(held.pool, &notes[1].task), HPS_OK);
    held_close(&held);
    assert_string_equal(held.notes + 3, "l"); /* after all others */
}

/* If the queue were searched for the task, this would take minutes. */
static void test_withdraw_when_very_many_wait_then_each_in_constant_time(void **state)
{
    enum { N_TASKS = 400 * 1000 };
    (void)state;
    struct note *notes = hps_calloc(N_TASKS, sizeof(*notes));
    struct held held;

    assert_non_null(notes);
    held_open(&held, 0, 0);
    for (unsigned i = 0; i < N_TASKS; i++) {
        assert_int_equal(post_note(&held, &notes[i], 'a', 0), HPS_OK);
    }
    for (unsigned i = N_TASKS - 1; i > 0; i--) {
        assert_true(hps_pool_withdraw(held.pool, &notes[i].task));
    }
    held_close(&held);
    assert_string_equal(held.notes, "a");
    hps_free(notes);
}

/* ---- work in pieces -------------------------------------------------------------------------- */

enum { N_PIECES = 200 };

struct pieces {
    atomic_uint n_times[N_PIECES];
    atomic_uint n_at_once;
    sem_t both; /* two threads are at it */
};

static void run_piece(void *ctx, uint32_t i)
{
    struct pieces *pieces = ctx;

    atomic_fetch_add(&pieces->n_times[i], 1);
}

static void assert_each_once(struct pieces *pieces, uint32_t n)
{
    for (uint32_t i = 0; i < N_PIECES; i++) {
        assert_int_equal(atomic_exchange(&pieces->n_times[i], 0), i < n ? 1 : 0);
    }
}

static void test_split_when_pieces_are_few_or_many_then_each_is_run_once(void **state)
{
    (void)state;
    static struct pieces pieces;
    struct hps_pool *pool = NULL;
    assert_int_equal(hps_pool_new("split", 3, 2, &pool), HPS_OK); /* not every helper can wait */
    for (unsigned round = 0; round < 200; round++) {
        uint32_t n = round % 2 == 0 ? round % 7 : N_PIECES;
        hps_pool_split(round % 3 == 0 ? NULL : pool, n, run_piece, &pieces);
        assert_each_once(&pieces, n);
    }
    hps_pool_free(pool);
}

/* Each piece ends when another one has begun on another thread. */
static void run_meeting(void *ctx, uint32_t i)
{
    struct pieces *pieces = ctx;

    run_piece(ctx, i);
    if (atomic_fetch_add(&pieces->n_at_once, 1) == 1) {
        sem_post(&pieces->both);
        sem_post(&pieces->both);
    }
    sem_wait(&pieces->both);
}

static void test_split_when_a_thread_is_free_then_it_helps(void **state)
{
    (void)state;
    static struct pieces pieces;
    struct hps_pool *pool = NULL;
    sem_init(&pieces.both, 0, 0);
    assert_int_equal(hps_pool_new("split", 1, 0, &pool), HPS_OK);
    hps_pool_split(pool, 2, run_meeting, &pieces); /* would never end on one thread */
    assert_each_once(&pieces, 2);
    hps_pool_free(pool);
}

struct splitter {
    struct hps_task task; /* first */
    struct hps_pool *pool;
    struct pieces pieces;
};

static void run_splitter(struct hps_task *task)
{
    struct splitter *splitter = (struct splitter *)task;

    hps_pool_split(splitter->pool, N_PIECES, run_piece, &splitter->pieces);
}

static void test_split_when_every_thread_of_the_pool_splits_then_all_end(void **state)
{
    (void)state;
    enum { N_SPLITTERS = 40 };
    static struct splitter splitters[N_SPLITTERS];
    struct hps_pool *pool = NULL;
    assert_int_equal(hps_pool_new("split", 2, 0, &pool), HPS_OK);
    for (unsigned i = 0; i < N_SPLITTERS; i++) {
        splitters[i].task.run = run_splitter;
        splitters[i].pool = pool;
        assert_int_equal(hps_pool_post(pool, &splitters[i].task), HPS_OK);
    }
    hps_pool_free(pool);
    for (unsigned i = 0; i < N_SPLITTERS; i++) {
        assert_each_once(&splitters[i].pieces, N_PIECES);
    }
}

/* The first piece of the helper posts a task. The pieces of the caller wait until it has run. */
struct called_away {
    struct hps_task task; /* first */
    struct hps_pool *pool;
    pthread_t caller;
    atomic_uint n_helped;
    sem_t ran;
};

static void run_called_away(struct hps_task *task)
{
    sem_post(&((struct called_away *)task)->ran);
}

static void run_until_called_away(void *ctx, uint32_t i)
{
    struct called_away *away = ctx;

    (void)i;
    if (pthread_equal(pthread_self(), away->caller)) {
        sem_wait(&away->ran);
        sem_post(&away->ran);
    } else if (atomic_fetch_add(&away->n_helped, 1) == 0) {
        assert_int_equal(hps_pool_post(away->pool, &away->task), HPS_OK);
    }
}

static void test_split_when_a_task_is_queued_then_the_helper_runs_it(void **state)
{
    (void)state;
    struct called_away away = {.task.run = run_called_away, .caller = pthread_self()};

    sem_init(&away.ran, 0, 0);
    assert_int_equal(hps_pool_new("away", 1, 0, &away.pool), HPS_OK);
    hps_pool_split(away.pool, N_PIECES, run_until_called_away, &away);
    assert_int_equal(atomic_load(&away.n_helped), 1);
    hps_pool_free(away.pool);
}

/* A split that another thread waits for. On the pool's thread, its first piece ends when a second
 * split has begun, and its later pieces end when the second split has ended. */
struct earlier {
    struct hps_pool *pool;
    pthread_t thread;
    atomic_uint n_helped;
    sem_t begun, other_begun, other_done;
    struct pieces pieces, meeting;
};

static void run_earlier(void *ctx, uint32_t i)
{
    struct earlier *earlier = ctx;

    sem_post(&earlier->begun);
    bool first = !pthread_equal(pthread_self(), earlier->thread) &&
                 atomic_fetch_add(&earlier->n_helped, 1) == 0;
    sem_wait(first ? &earlier->other_begun : &earlier->other_done);
    run_piece(&earlier->pieces, i);
}

static void *split_earlier(void *arg)
{
    struct earlier *earlier = arg;

    earlier->thread = pthread_self();
    hps_pool_split(earlier->pool, 3, run_earlier, earlier);
    return NULL;
}

static void run_other(void *ctx, uint32_t i)
{
    struct earlier *earlier = ctx;

    sem_post(&earlier->other_begun);
    run_meeting(&earlier->meeting, i);
}

static void test_split_when_the_threads_are_busy_and_help_late_then_they_join_between_pieces(
    void **state)
{
    (void)state;
    static struct earlier earlier;
    const struct hps_pool_options options = {.name = "late", .n_threads = 1, .helps_late = true};
    pthread_t thread;
    sem_init(&earlier.begun, 0, 0);
    sem_init(&earlier.other_begun, 0, 0);
    sem_init(&earlier.other_done, 0, 0);
    sem_init(&earlier.meeting.both, 0, 0);
    assert_int_equal(hps_pool_start(&options, &earlier.pool), HPS_OK);
    assert_int_equal(pthread_create(&thread, NULL, split_earlier, &earlier), 0);
    sem_wait(&earlier.begun);
    sem_wait(&earlier.begun);                             /* its thread and the pool's are busy */
    hps_pool_split(earlier.pool, 2, run_other, &earlier); /* would never end on one thread */
    for (int i = 0; i < 3; i++) {
        sem_post(&earlier.other_done);
    }
    pthread_join(thread, NULL);
    assert_each_once(&earlier.pieces, 3);
    assert_each_once(&earlier.meeting, 2);
    hps_pool_free(earlier.pool);
}

static void on_assert(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void test_post_when_the_pool_helps_late_then_an_assertion_fails(void **state)
{
    (void)state;
    const struct hps_pool_options options = {.name = "late", .n_threads = 1, .helps_late = true};
    struct hps_pool *pool = NULL;
    struct hps_task task = {.run = run_count};
    struct hps_error err;
    assert_int_equal(hps_pool_start(&options, &pool), HPS_OK);
    hps_assert_hook(on_assert);
    expect_assert_failure(hps_ignore(hps_pool_post(pool, &task)));
    expect_assert_failure(hps_ignore(hps_pool_post_for(pool, &task, client_of('a'), 0, &err)));
    expect_assert_failure(hps_ignore(hps_pool_post_low(pool, &task)));
    hps_assert_hook(NULL);
    hps_pool_free(pool);
}

struct lone {
    struct hps_task task; /* first */
    struct hps_pool *pool;
    struct pieces pieces;
    size_t depth;
};

static void run_lone(struct hps_task *task)
{
    struct lone *lone = (struct lone *)task;

    hps_pool_split(lone->pool, N_PIECES, run_piece, &lone->pieces);
    lone->depth = hps_pool_depth(lone->pool);
}

static void test_split_when_no_thread_is_free_then_nothing_is_queued(void **state)
{
    (void)state;
    static struct lone lone;
    struct hps_pool *pool = NULL;
    assert_int_equal(hps_pool_new("split", 1, 1, &pool), HPS_OK);
    lone.task.run = run_lone;
    lone.pool = pool;
    assert_int_equal(hps_pool_post(pool, &lone.task), HPS_OK);
    hps_pool_free(pool);
    assert_each_once(&lone.pieces, N_PIECES);
    assert_int_equal(lone.depth, 0);
}

static void *no_alloc(void *ctx, size_t size)
{
    (void)ctx;
    (void)size;
    return NULL;
}

static void test_split_when_there_is_no_memory_then_the_caller_does_it_all(void **state)
{
    (void)state;
    static struct pieces pieces;
    struct hps_pool *pool = NULL;
    const struct hps_heap none = {.alloc = no_alloc, .calloc = no_alloc};
    assert_int_equal(hps_pool_new("split", 2, 0, &pool), HPS_OK);
    hps_heap_set(&none);
    hps_pool_split(pool, N_PIECES, run_piece, &pieces);
    hps_heap_set(NULL);
    assert_each_once(&pieces, N_PIECES);
    hps_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_when_freed_then_all_queued_have_run),
        cmocka_unit_test(test_post_when_queue_full_then_exhausted_and_others_run),
        cmocka_unit_test(test_pool_when_name_long_then_number_kept),
        cmocka_unit_test(test_pool_when_started_then_creator_keeps_its_signals),
        cmocka_unit_test(test_pool_when_each_allocation_fails_then_no_leak),
        cmocka_unit_test(test_tasks_when_clients_share_a_thread_then_in_turn),
        cmocka_unit_test(test_quick_when_all_threads_are_busy_then_it_runs),
        cmocka_unit_test(test_quick_when_the_woken_thread_takes_a_long_task_then_another_runs_it),
        cmocka_unit_test(test_queue_when_a_client_has_its_share_then_others_have_space),
        cmocka_unit_test(test_withdraw_when_a_task_waits_then_it_is_the_callers_again),
        cmocka_unit_test(test_withdraw_when_very_many_wait_then_each_in_constant_time),
        cmocka_unit_test(test_split_when_a_task_is_queued_then_the_helper_runs_it),
        cmocka_unit_test(test_split_when_pieces_are_few_or_many_then_each_is_run_once),
        cmocka_unit_test(test_split_when_a_thread_is_free_then_it_helps),
        cmocka_unit_test(test_split_when_every_thread_of_the_pool_splits_then_all_end),
        cmocka_unit_test(
            test_split_when_the_threads_are_busy_and_help_late_then_they_join_between_pieces),
        cmocka_unit_test(test_post_when_the_pool_helps_late_then_an_assertion_fails),
        cmocka_unit_test(test_split_when_no_thread_is_free_then_nothing_is_queued),
        cmocka_unit_test(test_split_when_there_is_no_memory_then_the_caller_does_it_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
