/* SPDX-License-Identifier: Apache-2.0
 *
 * A lookup uses rows only if their positions are equal to the version's or later.
 */
#include <stdatomic.h>

#include "backends/redis/internal.h"
#include "backends/store_servers.h"
#include "tests/lib/fake_redis.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_fixture.h"
#include "tests/lib/redis_gate.h"

static struct hps_space *one;
static struct hps_space *two;

/* Two daemons at offset 10, with rows as of the record before it. */
static void two_at_10(uint32_t n)
{
    one = fx_daemon("one");
    two = fx_daemon("two");
    fx_at(one, 10);
    fx_at(two, 10);
    assert_int_equal(fx_insert(one, n, 9).n_inserted, n);
}

static void test_get_when_another_daemon_inserted_then_its_rows(void **state)
{
    (void)state;
    two_at_10(300);
    assert_int_equal(fx_found(two, 500, 9), 300);
    assert_int_equal(fx_found(two, 500, 9), 300); /* now with a known digest */
    assert_int_equal(fx_found(one, 500, 9), 300);
}

static void test_servers_when_keys_were_looked_up_then_their_hits_are_counted(void **state)
{
    (void)state;
    struct hps_store_server servers[2];
    struct hps_store_shared_stats stats;
    two_at_10(300);
    assert_int_equal(fx_found(two, 500, 9), 300);
    assert_int_equal(fx_found(two, 500, 9), 300);
    assert_int_equal(two->store->ops->servers->list(two->store, servers, 2), 1);
    assert_string_equal(servers[0].address, hps_redis_rig_address(fx_rig, 0));
    assert_string_equal(servers[0].role, "master");
    assert_true(servers[0].up);
    assert_int_equal(servers[0].n_keys, 1000);
    assert_int_equal(servers[0].n_keys_found, 600);
    assert_true(servers[0].latency_us > 0);
    assert_true(servers[0].n_connections > 0);
    two->store->ops->servers->stats(two->store, &stats);
    assert_string_equal(stats.kind, "standalone");
    assert_int_equal(stats.n_slots, HPS_REDIS_SLOTS);
    assert_int_equal(stats.n_slots_up, HPS_REDIS_SLOTS);
    assert_int_equal(stats.n_rows_found, 600);
    assert_int_equal(stats.n_rows_absent, 400);
}

static void test_get_when_the_version_is_ahead_then_all_are_missing(void **state)
{
    (void)state;
    struct hps_store_shared_stats counters;
    two_at_10(300);
    assert_int_equal(fx_found(two, 300, 9), 300);
    fx_at(two, 11);
    assert_int_equal(fx_found(two, 300, 9), 0);
    two->store->ops->servers->stats(two->store, &counters);
    assert_int_equal(counters.n_rows_found, 300);
    assert_int_equal(counters.n_rows_behind, 300);
}

static void test_get_when_shards_are_ahead_then_rows_unless_the_position_is_exact(void **state)
{
    (void)state;
    bool later = false;
    struct hps_store_shared_stats counters;
    const struct hps_call any = {.later = &later};
    const struct hps_call exact = {.exact_position = true, .later = &later};
    two_at_10(300);
    assert_int_equal(fx_found_by(two, &exact, 300, 9), 300);
    assert_int_equal(fx_found_by(two, &any, 300, 9), 300);
    assert_false(later);
    assert_int_equal(fx_apply(one, 10, 12, 300).n_applied, FX_SHARDS);
    assert_int_equal(fx_found_by(one, &any, 300, 11), 300);
    assert_false(later);
    assert_int_equal(fx_found_by(two, &any, 300, 11), 300); /* their positions were unknown */
    assert_true(later);
    later = false;
    assert_int_equal(fx_found_by(two, &any, 300, 11), 300); /* now known */
    assert_true(later);
    later = false;
    assert_int_equal(fx_found_by(two, &exact, 300, 11), 0);
    assert_int_equal(fx_found_by(one, &exact, 300, 11), 300);
    two->store->ops->servers->stats(two->store, &counters);
    assert_int_equal(counters.n_rows_ahead, 300);
    assert_int_equal(counters.n_rows_behind, 0);
    fx_at(two, 12);
    assert_int_equal(fx_found_by(two, &exact, 300, 11), 300);
    assert_false(later);
}

/* The only copy has later positions: nothing is lost, but a unit lookup cannot use its rows. */
static void test_get_when_the_only_copy_is_ahead_and_the_position_exact_then_aborted(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    const struct hps_call exact = {.exact_position = true};
    hps_key keys[2] = {1, 2};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[2 * FX_ROW];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 2};
    two_at_10(300);
    fx_daemon_close(two);
    options.authoritative = true;
    options.member = "two";
    two = fx_daemon_with(&options);
    fx_at(two, 10);
    assert_int_equal(fx_found_by(two, &exact, 300, 9), 300);
    assert_int_equal(fx_apply(one, 10, 12, 300).n_applied, FX_SHARDS);
    for (unsigned i = 0; i < 2; i++) { /* first with unknown positions, then with known ones */
        assert_int_equal(two->store->ops->get(two, &exact, &fx_tables[0], &batch), HPS_ABORTED);
        assert_int_equal(batch.n, 2);
    }
    assert_int_equal(fx_found(two, 300, 11), 300);
    fx_at(two, 12);
    assert_int_equal(fx_found_by(two, &exact, 300, 11), 300);
    fx_at(two, 13);
    assert_int_equal(two->store->ops->get(two, &exact, &fx_tables[0], &batch), HPS_UNAVAILABLE);
}

/* When a digest changes, the lookup requests its positions before it uses any row. */
static void test_get_when_another_daemon_writes_all_the_time_then_always_found(void **state)
{
    (void)state;
    two_at_10(100);
    for (int64_t offset = 10; offset < 60; offset++) {
        assert_int_equal(fx_apply(one, offset, offset + 1, 100).n_applied, FX_SHARDS);
        assert_int_equal(fx_found(two, 100, offset), 100);
    }
}

/* ---- delayed replies ------------------------------------------------------------------------- */

enum { LATE = 100 }; /* keys */

/* Text in every read command, and in commands that request positions. */
static const char of_read[] = "$5\r\nHMGET\r\n";
static const char of_positions[] = "$1\r\np\r\n";

/* Redis at offset 10 as daemon "two" wrote it, with its scripts loaded. Daemon "one" has not
 * read it yet; the gate can delay replies to it. */
struct late {
    struct hps_redis_gate *gate;
    struct hps_space *one;
    struct hps_space *two;
};

static struct late late_at_10(bool only_copy)
{
    struct hps_redis_store_options options = fx_options("one");
    struct late late = {.gate = hps_redis_gate_new(hps_redis_rig_address(fx_rig, 0))};
    late.two = fx_space(fx_open("two"));
    fx_at(late.two, 9);
    assert_int_equal(fx_insert(late.two, 1, 8).n_inserted, 1);
    assert_int_equal(fx_apply(late.two, 9, 10, LATE).n_applied, FX_SHARDS);
    options.redis.addresses = hps_redis_gate_address(late.gate);
    options.authoritative = only_copy;
    late.one = fx_space(fx_open_with(&options));
    fx_at(late.one, 10);
    return late;
}

static void late_close(const struct late *late)
{
    fx_close(late->one);
    fx_close(late->two);
    hps_redis_gate_free(late->gate);
}

/* A call of daemon "one" on its own thread. The thread makes no assertions. */
struct late_call {
    struct hps_space *space;
    bool exact;
    bool later;
    hps_status status;
    hps_key keys[LATE];
    uint32_t slots[LATE];
    uint8_t rows[LATE * FX_ROW];
    uint32_t n_found;
    struct hps_insert_report inserted;
    struct hps_log_report applied;
    pthread_t thread;
};

static void *late_get(void *ctx)
{
    struct late_call *late = ctx;
    const struct hps_call call = {.exact_position = late->exact, .later = &late->later};
    struct hps_batch batch = {
        .keys = late->keys, .slots = late->slots, .rows = late->rows, .n = LATE};
    late->status = late->space->store->ops->get(late->space, &call, &fx_tables[0], &batch);
    late->n_found = LATE - batch.n;
    return NULL;
}

static void *late_insert(void *ctx)
{
    struct late_call *late = ctx;
    late->status =
        late->space->store->ops->insert(late->space, &fx_call, &fx_tables[0], late->keys,
                                        late->slots, late->rows, LATE, NULL, &late->inserted);
    return NULL;
}

/* Apply record 10. */
static void *late_apply(void *ctx)
{
    struct late_call *late = ctx;
    const struct hps_write write = {&fx_tables[0], late->keys, late->rows, LATE};
    const uint32_t from = 0;
    const struct hps_log_span span = {FX_PARTITION, 0, 10, 11};
    const struct hps_log_batch batch = {&write, &from, 1, &span, 1, false};
    late->status =
        late->space->store->ops->log->apply(late->space, &fx_call, &batch, &late->applied);
    return NULL;
}

/* Begin a call with rows of an offset. Its replies are delayed from the first command that
 * contains `word`. */
static void late_begin(const struct late *late, struct late_call *call, void *(*run)(void *),
                       const char *word, int64_t offset)
{
    call->space = late->one;
    for (uint32_t i = 0; i < LATE; i++) {
        call->keys[i] = i;
        call->slots[i] = i;
        fx_fill(call->rows + (size_t)i * FX_ROW, FX_ROW, i, offset);
    }
    hps_redis_gate_shut(late->gate, word, 1);
    assert_int_equal(pthread_create(&call->thread, NULL, run, call), 0);
    hps_redis_gate_await(late->gate, 1);
}

static void late_end(const struct late *late, struct late_call *call)
{
    hps_redis_gate_open(late->gate);
    assert_int_equal(pthread_join(call->thread, NULL), 0);
    assert_int_equal(call->status, HPS_OK);
}

/* The call found all rows of this offset, and none of later positions than the daemon's. */
static void assert_late_rows(const struct late_call *call, int64_t offset)
{
    assert_int_equal(call->n_found, LATE);
    assert_false(call->later);
    for (uint32_t i = 0; i < LATE; i++) {
        uint8_t row[FX_ROW];
        fx_fill(row, FX_ROW, call->keys[i], offset);
        assert_memory_equal(call->rows + (size_t)call->slots[i] * FX_ROW, row, FX_ROW);
    }
}

/* The known state of every shard equals the daemon's position. */
static void assert_all_exact(struct hps_space *space)
{
    struct redis_space *own = redis_space_of(space);
    hps_lock_acquire(&own->lock);
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        assert_true(own->shards[i].exact);
    }
    hps_lock_release(&own->lock);
}

static uint64_t n_behind(struct hps_space *space)
{
    struct hps_store_shared_stats stats;
    space->store->ops->servers->stats(space->store, &stats);
    return stats.n_rows_behind;
}

static void test_get_when_a_batch_is_applied_before_the_reply_then_rows_of_the_request(void **state)
{
    static const struct {
        bool only_copy, exact;
    } cases[] = {{false, false}, {true, false}, {true, true}};
    for (uint32_t i = 0; i < 3; i++) {
        (void)fx_clean(state);
        struct late late = late_at_10(cases[i].only_copy);
        struct late_call call = {.exact = cases[i].exact};
        late_begin(&late, &call, late_get, of_read, 0);
        assert_int_equal(fx_apply(late.one, 10, 11, LATE).n_applied, FX_SHARDS);
        late_end(&late, &call);
        assert_late_rows(&call, 9); /* the rows of the time when it began */
        assert_int_equal(n_behind(late.one), 0);
        assert_all_exact(late.one);
        const struct hps_call wanted = {.exact_position = cases[i].exact};
        assert_int_equal(fx_found_by(late.one, &wanted, LATE, 10), LATE);
        late_close(&late);
    }
}

/* The lookup sends a second request for positions that are unknown. */
static void test_get_when_the_version_moves_between_its_two_requests_then_its_rows(void **state)
{
    (void)state;
    struct late late = late_at_10(true);
    struct late_call call = {.exact = false};
    assert_int_equal(fx_found(late.one, LATE, 9), LATE);
    for (uint32_t i = 0; i <= REDIS_ASK_READS; i++) { /* until it requests digests only */
        assert_int_equal(fx_found(late.one, LATE, 9), LATE);
    }
    assert_int_equal(fx_apply(late.two, 10, 11, LATE).n_applied, FX_SHARDS);
    late_begin(&late, &call, late_get, of_positions, 0);
    assert_int_equal(fx_apply(late.one, 10, 12, LATE).n_applied, FX_SHARDS);
    late_end(&late, &call);
    assert_late_rows(&call, 10);
    assert_all_exact(late.one);
    late_close(&late);
}

/* A row that is older than the lookup counts as missing, with or without positions in the reply. */
static void test_get_when_the_reply_is_older_than_the_request_then_missing(void **state)
{
    (void)state;
    struct late late = late_at_10(false);
    struct late_call call = {.exact = false};
    fx_at(late.one, 11);
    late_begin(&late, &call, late_get, of_read, 0);
    fx_at(late.one, 10); /* the current position does not matter */
    late_end(&late, &call);
    assert_int_equal(call.n_found, 0);
    assert_int_equal(n_behind(late.one), LATE);
    late_close(&late);
}

/* A late insertion does not replace the newer state that a lookup has recorded. */
static void test_insert_when_refused_after_a_newer_state_is_known_then_that_state_stays(
    void **state)
{
    (void)state;
    struct late late = late_at_10(false);
    struct late_call call = {.exact = false};
    assert_int_equal(fx_found(late.one, LATE, 9), LATE);
    assert_int_equal(fx_apply(late.two, 10, 11, LATE).n_applied, FX_SHARDS);
    late_begin(&late, &call, late_insert, hps_redis_script_sha(HPS_REDIS_INSERT), 9);
    assert_int_equal(fx_found(late.one, LATE, 10), LATE);
    late_end(&late, &call);
    assert_int_equal(call.inserted.n_stale, LATE);
    fx_at(late.one, 11);
    assert_all_exact(late.one);
    late_close(&late);
}

/* The batch is in Redis, but its daemon has not received the reply. */
static void test_apply_when_a_lookup_reads_its_result_first_then_the_known_state_stays(void **state)
{
    (void)state;
    struct late late = late_at_10(true);
    struct late_call call = {.exact = false};
    assert_int_equal(fx_found(late.one, LATE, 9), LATE);
    late_begin(&late, &call, late_apply, hps_redis_script_sha(HPS_REDIS_APPLY), 10);
    assert_int_equal(fx_found(late.one, LATE, 10), LATE);
    late_end(&late, &call);
    assert_int_equal(call.applied.n_applied, FX_SHARDS);
    assert_all_exact(late.one);
    late_close(&late);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void test_get_when_commands_are_small_then_the_same_rows(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.fields_max = 7;
    struct hps_space *space = fx_daemon_with(&options);
    assert_int_equal(fx_insert(space, 1000, 3).n_inserted, 1000);
    assert_int_equal(fx_found(space, 1200, 3), 1000);
    static hps_key keys[1100];
    static uint8_t rows[1100 * FX_ROW];
    struct hps_write write;
    for (uint32_t i = 0; i < 1100; i++) {
        keys[i] = i;
    }
    fx_write(&write, keys, rows, 1100, 4);
    assert_int_equal(space->store->ops->put(space, &fx_call, &fx_tables[0], keys, rows, 1100),
                     HPS_OK);
    assert_int_equal(fx_found(space, 1200, 4), 1100);
    assert_int_equal(space->store->ops->erase(space, &fx_call, &fx_tables[0], keys, 1100), HPS_OK);
    assert_int_equal(fx_found(space, 1200, 4), 0);
}

static void test_get_when_a_value_is_of_another_size_then_missing(void **state)
{
    (void)state;
    struct hps_space *space = fx_daemon("one");
    assert_int_equal(fx_insert(space, 100, 3).n_inserted, 100);
    (void)hps_redis_rig_ask(
        fx_rig, 0,
        "EVAL local\tk=redis.call('KEYS','hpsd*[0-9]}')for\ti=1,#k\tdo\tfor\tj,f\tin\tipairs("
        "redis.call('HKEYS',k[i]))do\tif\t#f==12\tthen\tredis.call('HSET',k[i],f,'short')end\tend"
        "\tend 0");
    assert_int_equal(fx_found(space, 100, 3), 0);
}

static void test_get_many_when_tables_differ_then_each_its_own(void **state)
{
    (void)state;
    enum { N = 200 };
    struct hps_space *space = fx_daemon("one");
    const struct hps_store_ops *ops = space->store->ops;
    static uint8_t wide[N * FX_ROW];
    static uint8_t narrow[N * FX_NARROW_ROW];
    hps_key keys[2][N];
    uint32_t slots[2][N];
    uint8_t row[FX_NARROW_ROW];
    for (uint32_t i = 0; i < N; i++) {
        keys[0][i] = i;
        keys[1][i] = i;
        slots[0][i] = i;
        slots[1][i] = N - 1 - i;
        fx_fill(narrow + (size_t)i * FX_NARROW_ROW, FX_NARROW_ROW, i, 5);
    }
    assert_int_equal(fx_insert(space, N / 2, 5).n_inserted, N / 2);
    assert_int_equal(ops->put(space, &fx_call, &fx_tables[1], keys[1], narrow, N), HPS_OK);
    memset(narrow, 0, sizeof(narrow));
    struct hps_part_batch parts[3] = {
        {&fx_tables[0], {.keys = keys[0], .slots = slots[0], .rows = wide, .n = N}},
        {&fx_tables[1], {.keys = keys[1], .slots = slots[1], .rows = narrow, .n = N}},
        {&fx_tables[1], {.keys = keys[1], .slots = slots[1], .rows = narrow, .n = 0}}};
    assert_int_equal(ops->get_many(space, &fx_call, parts, 3), HPS_OK);
    assert_int_equal(parts[0].batch.n, N / 2);
    assert_int_equal(parts[1].batch.n, 0);
    for (uint32_t i = 0; i < N; i++) {
        fx_fill(row, FX_NARROW_ROW, keys[1][i], 5);
        assert_memory_equal(narrow + (size_t)slots[1][i] * FX_NARROW_ROW, row, FX_NARROW_ROW);
    }
}

/* A lookup gives up a node that does not reply, even if it has time left: other tiers may have
 * the rows. */
static void test_get_when_the_server_is_paused_and_time_is_left_then_it_is_given_up(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.redis.command_timeout_us = 20000;
    options.redis.failures_max = UINT32_MAX;
    struct hps_space *space = fx_daemon_with(&options);
    hps_key keys[1] = {1};
    uint32_t slots[1] = {0};
    uint8_t row[FX_ROW];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = row, .n = 1};
    (void)fx_insert(space, 10, 3);
    hps_redis_rig_pause(fx_rig, 0);
    const struct hps_call call = {.deadline_us = hps_clock_us() + FX_WAIT_US};
    hps_status status = space->store->ops->get(space, &call, &fx_tables[0], &batch);
    hps_redis_rig_resume(fx_rig, 0);
    assert_int_equal(status, HPS_UNAVAILABLE);
    assert_true(hps_clock_us() < call.deadline_us);
}

/* A server that changes its digests at some time and then does not reply for its second shard. */
struct half {
    struct hps_fake_redis *fake;
    atomic_bool changed;
    atomic_uint n_short;    /* requests without positions, before the change */
    atomic_uint n_answered; /* replies after the change */
    atomic_uint n_again;    /* requests with positions after the change */
};

static enum hps_fake_redis_then half_answer(void *ctx, uint32_t node, const char *command,
                                            char *out_answer)
{
    struct half *half = ctx;
    bool changed = atomic_load(&half->changed);
    bool asks = strstr(command, " g p") != NULL;
    (void)node;
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        hps_fake_redis_map(half->fake, 1, out_answer);
    } else if (strncmp(command, "HMGET", 5) != 0) {
        hps_fake_redis_usual(command, out_answer);
    } else if (!changed || strstr(command, "/1}") == NULL) {
        snprintf(out_answer, HPS_FAKE_REDIS_ANSWER_MAX, "*%d\r\n$20\r\n%020d\r\n%s$-1\r\n",
                 asks ? 3 : 2, changed, asks ? "$0\r\n\r\n" : "");
        atomic_fetch_add(&half->n_short, !changed && !asks);
        atomic_fetch_add(&half->n_answered, changed);
        atomic_fetch_add(&half->n_again, changed && asks);
    }
    return HPS_FAKE_REDIS_GO_ON;
}

static void test_get_when_a_server_stops_half_way_then_one_timeout_only(void **state)
{
    (void)state;
    struct half half = {.changed = false};
    half.fake = hps_fake_redis_new(1, half_answer, &half);
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    options.redis.addresses = hps_fake_redis_address(half.fake, 0);
    options.redis.command_timeout_us = 200 * 1000;
    options.redis.failures_max = UINT32_MAX;
    options.n_shards = 2;
    options.member = "one";
    struct hps_space *space = fx_daemon_with(&options);
    hps_key keys[2] = {0, 1};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[2 * FX_ROW];
    while (hps_redis_shard(0, keys[0], 2) != 0) {
        keys[0] += 2;
    }
    while (hps_redis_shard(0, keys[1], 2) != 1) {
        keys[1] += 2;
    }
    for (uint64_t end_us = hps_clock_us() + FX_WAIT_US; atomic_load(&half.n_short) < 2;) {
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 2};
        hps_ignore(space->store->ops->get(space, &fx_call, &fx_tables[0], &batch));
        assert_true(hps_clock_us() < end_us);
    }
    atomic_store(&half.changed, true);
    while (atomic_load(&half.n_answered) == 0) {
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 2};
        assert_int_not_equal(space->store->ops->get(space, &fx_call, &fx_tables[0], &batch),
                             HPS_OK);
        assert_int_equal(batch.n, 2);
    }
    assert_int_equal(atomic_load(&half.n_again), 0);
    fx_daemon_close(space);
    hps_fake_redis_free(half.fake);
}

static void test_get_when_the_server_is_paused_then_unavailable_in_time(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    struct hps_space *space = fx_daemon_with(&options);
    hps_key keys[1] = {1};
    uint32_t slots[1] = {0};
    uint8_t row[FX_ROW];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = row, .n = 1};
    assert_int_equal(fx_insert(space, 10, 3).n_inserted, 10);
    hps_redis_rig_pause(fx_rig, 0);
    const struct hps_call soon = {.deadline_us = hps_clock_us() + 30000};
    assert_int_equal(space->store->ops->get(space, &soon, &fx_tables[0], &batch), HPS_DEADLINE);
    assert_int_equal(batch.n, 1);
    hps_redis_rig_resume(fx_rig, 0);
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (space->store->ops->get(space, &fx_call, &fx_tables[0], &batch) != HPS_OK) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
    assert_int_equal(batch.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(test_get_when_another_daemon_inserted_then_its_rows),
        FX_TEST(test_servers_when_keys_were_looked_up_then_their_hits_are_counted),
        FX_TEST(test_get_when_the_version_is_ahead_then_all_are_missing),
        FX_TEST(test_get_when_shards_are_ahead_then_rows_unless_the_position_is_exact),
        FX_TEST(test_get_when_another_daemon_writes_all_the_time_then_always_found),
        FX_TEST(test_get_when_a_batch_is_applied_before_the_reply_then_rows_of_the_request),
        FX_TEST(test_get_when_the_version_moves_between_its_two_requests_then_its_rows),
        FX_TEST(test_get_when_the_reply_is_older_than_the_request_then_missing),
        FX_TEST(test_insert_when_refused_after_a_newer_state_is_known_then_that_state_stays),
        FX_TEST(test_apply_when_a_lookup_reads_its_result_first_then_the_known_state_stays),
        FX_TEST(test_get_when_commands_are_small_then_the_same_rows),
        FX_TEST(test_get_when_a_value_is_of_another_size_then_missing),
        FX_TEST(test_get_many_when_tables_differ_then_each_its_own),
        FX_TEST(test_get_when_the_only_copy_is_ahead_and_the_position_exact_then_aborted),
        FX_TEST(test_get_when_the_server_is_paused_and_time_is_left_then_it_is_given_up),
        FX_TEST(test_get_when_a_server_stops_half_way_then_one_timeout_only),
        FX_TEST(test_get_when_the_server_is_paused_then_unavailable_in_time),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
