/* SPDX-License-Identifier: Apache-2.0
 *
 * A lookup from the bytes of its request to the bytes of its reply, with each allocation and
 * each call of each tier failing in turn. It ends with an error or with the right rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "server/lookup/decode.h"
#include "server/lookup/encode.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS = 2500, REPEAT = 500 };

/* LookupRequest{queries: {keys: KEYS keys}}. The last REPEAT keys repeat the first ones. */
struct scenario {
    struct fixture fx;
    uint8_t request[KEYS * 8 + 8];
    size_t request_size;
    bool unit;        /* with an update during the lookup */
    unsigned n_calls; /* of on_call */
    unsigned n_reread, n_reread_failed;
    unsigned n_ok;
    unsigned n_failed;
};

static uint8_t *put_size(uint8_t *at, uint8_t tag, size_t size)
{
    *at++ = tag;
    *at++ = (uint8_t)(size | 0x80);
    *at++ = (uint8_t)(size >> 7 | 0x80);
    *at++ = (uint8_t)(size >> 14);
    return at;
}

static void write_request(struct scenario *s)
{
    uint8_t *at = put_size(s->request, 0x1a, KEYS * 8 + 4);

    at = put_size(at, 0x12, KEYS * 8);
    for (uint32_t i = 0; i < KEYS; i++) {
        hps_key key = i % (KEYS - REPEAT);
        memcpy(at, &key, sizeof(key));
        at += sizeof(key);
    }
    s->request_size = (size_t)(at - s->request);
}

static hps_status encode_both(struct hps_lookup *lookup, struct hps_block *rows,
                              struct hps_block_pool *pool)
{
    struct hps_encoded encoded;
    struct hps_stream *stream = NULL;
    hps_status status = hps_encode_lookup(lookup, NULL, rows, pool, lookup->arena, &encoded);

    if (status != HPS_OK) {
        return status;
    }
    hps_encoded_release(&encoded);
    status = hps_stream_new(lookup, NULL, rows, pool, lookup->arena, &stream);
    while (status == HPS_OK && !hps_stream_done(stream)) {
        status = hps_stream_next(stream, &encoded);
        if (status == HPS_OK) {
            hps_encoded_release(&encoded);
        }
    }
    return status;
}

static void check_rows(const struct scenario *s, const struct hps_lookup_part *part)
{
    uint8_t row[FIXTURE_DIM_MAX * 4];

    for (uint32_t i = 0; i < part->n_keys; i++) {
        fixture_row(&s->fx.tables[0], i % (KEYS - REPEAT), row);
        assert_memory_equal(part->rows + (size_t)i * part->row_bytes, row, part->row_bytes);
    }
    assert_null(part->key_status);
}

/* Apply a batch of a few keys after the read of memory. Their rows stay the same. */
static bool on_call(const void *ctx)
{
    struct scenario *s = (struct scenario *)ctx;
    const hps_key keys[3] = {1, 500, KEYS - REPEAT - 1};

    if (++s->n_calls == 3) {
        hps_stamps_begin(s->fx.version.stamps);
        hps_stamps_mark(s->fx.version.stamps, 0, keys, 3);
        hps_stamps_end(s->fx.version.stamps);
    }
    return false;
}

static hps_status do_lookup(struct scenario *s, struct hps_arena *arena, struct hps_arena *scratch,
                            struct hps_block_pool *pool)
{
    static const struct hps_decode_limits limits = {
        .tables_max = 4, .keys_max = KEYS, .request_id_max = 16};
    struct hps_lookup_request request;
    struct hps_lookup_part part = {.table = &s->fx.tables[0]};
    struct hps_lookup lookup = {.version = &s->fx.version,
                                .arena = arena,
                                .scratch = scratch,
                                .parts = &part,
                                .n_parts = 1,
                                .unit = s->unit,
                                .cancelled = s->unit ? on_call : NULL,
                                .cancelled_ctx = s};
    struct hps_block *rows = NULL;
    struct hps_error err;
    bool done = false;
    hps_status status =
        hps_decode_lookup(s->request, s->request_size, &limits, arena, &request, &err);

    if (status != HPS_OK) {
        return status;
    }
    part.keys = request.queries[0].keys;
    part.n_keys = request.queries[0].n_keys;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
    rows = hps_block_new(pool, lookup.rows_bytes);
    if (rows == NULL) {
        return HPS_NO_MEMORY;
    }
    lookup.rows = rows->data;
    status = hps_lookup_run_memory(&lookup, &done, &err);
    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(&lookup, &err);
    }
    if (lookup.torn) {
        status = hps_lookup_reread(&lookup, &err);
        s->n_reread++;
        s->n_reread_failed += status == HPS_OK ? 0 : 1;
    }
    if (status == HPS_OK) {
        check_rows(s, &part);
        status = encode_both(&lookup, rows, pool);
    }
    hps_block_unref(rows);
    return status;
}

/* Remove rows from the host tier that earlier rounds inserted, so that every round is like the
 * first. */
static void empty_host(struct scenario *s)
{
    struct hps_space *space = s->fx.version.tiers[FIXTURE_HOST];
    struct hps_call call = {0};

    for (hps_key key = 1; key < KEYS; key++) {
        assert_int_equal(space->store->ops->erase(space, &call, &s->fx.tables[0], &key, 1), HPS_OK);
    }
}

static void run_scenario(void *ctx)
{
    struct scenario *s = ctx;
    struct hps_arena *arena = hps_arena_new(1024, 1 << 20);
    struct hps_arena *scratch = hps_arena_new(1024, 1 << 20);
    struct hps_block_pool *pool = hps_block_pool_new(0);

    s->n_calls = 0;
    if (arena != NULL && scratch != NULL && pool != NULL) {
        hps_status status = do_lookup(s, arena, scratch, pool);
        s->n_ok += status == HPS_OK ? 1 : 0;
        s->n_failed += status == HPS_OK ? 0 : 1;
        assert_int_equal(hps_block_pool_bytes(pool), 0);
    }
    hps_arena_free(arena);
    hps_arena_free(scratch);
    if (pool != NULL) {
        hps_block_pool_free(pool);
    }
    empty_host(s);
}

static int setup(void **state)
{
    struct scenario *s = hps_calloc(1, sizeof(*s));

    assert_non_null(s);
    fixture_open(&s->fx, 0);
    for (hps_key key = 0; key < KEYS - REPEAT; key++) {
        fixture_put(&s->fx, FIXTURE_DISK, 0, key);
        fixture_put(&s->fx, FIXTURE_HOST, 0, key); /* so that its arrays never grow again */
    }
    write_request(s);
    empty_host(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scenario *s = *state;

    fixture_close(&s->fx);
    hps_free(s);
    return 0;
}

static void test_lookup_when_memory_runs_out_then_error_or_right_rows(void **state)
{
    struct scenario *s = *state;
    size_t n = hps_fault_heap_run(run_scenario, s);

    assert_true(n > 8);
    assert_true(s->n_ok >= 1);     /* the last one, with enough memory */
    assert_true(s->n_failed >= 3); /* arena, rows, heads */
}

static void test_unit_when_memory_runs_out_during_the_reread_then_error_or_right_rows(void **state)
{
    struct scenario *s = *state;

    s->unit = true;
    s->fx.version.stamps = hps_stamps_new();
    assert_non_null(s->fx.version.stamps);
    assert_true(hps_fault_heap_run(run_scenario, s) > 8);
    assert_true(s->n_ok >= 1);
    assert_true(s->n_reread > s->n_reread_failed);
    assert_true(s->n_reread_failed >= 2); /* its arena, its rows */
    hps_stamps_free(s->fx.version.stamps);
}

static void test_lookup_when_host_calls_fail_then_rows_are_right(void **state)
{
    struct scenario *s = *state;
    static const enum hps_fake_op ops[] = {HPS_FAKE_GET, HPS_FAKE_INSERT};
    static const hps_status kinds[] = {HPS_UNAVAILABLE, HPS_IO, HPS_EXHAUSTED, HPS_NO_MEMORY};

    for (unsigned op = 0; op < 2; op++) {
        for (unsigned kind = 0; kind < 4; kind++) {
            for (uint32_t skip = 0; skip < 3; skip++) {
                hps_fake_fail(s->fx.stores[FIXTURE_HOST], ops[op], kinds[kind], skip, 1, 17);
                run_scenario(s);
                hps_fake_fail(s->fx.stores[FIXTURE_HOST], ops[op], HPS_OK, 0, 0, 0);
            }
        }
    }
    assert_int_equal(s->n_failed, 0);
    assert_int_equal(s->n_ok, 24);
}

static void test_lookup_when_last_tier_fails_then_it_fails(void **state)
{
    struct scenario *s = *state;

    hps_fake_fail(s->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 100);
    run_scenario(s);
    assert_int_equal(s->n_failed, 1);
    run_scenario(s); /* and recovers afterwards */
    assert_int_equal(s->n_ok, 1);
}

int main(void)
{
#define FAULT_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        FAULT_TEST(test_lookup_when_memory_runs_out_then_error_or_right_rows),
        FAULT_TEST(test_unit_when_memory_runs_out_during_the_reread_then_error_or_right_rows),
        FAULT_TEST(test_lookup_when_host_calls_fail_then_rows_are_right),
        FAULT_TEST(test_lookup_when_last_tier_fails_then_it_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
