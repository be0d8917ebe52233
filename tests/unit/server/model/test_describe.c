/* SPDX-License-Identifier: Apache-2.0
 *
 * What GetModel tells of a model, over a stream of updates that the test turns by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "server/model/describe.h"
#include "tests/lib/stream_rig.h"

struct described {
    struct rig *rig;
    struct hps_models *models;
    struct hps_arena *arena;
    Hps__V1__GetModelResponse reply;
    struct hps_error err;
};

static int setup(void **state)
{
    void *rig = NULL;
    struct described *t = hps_calloc(1, sizeof(*t));
    assert_non_null(t);
    rig_setup(&rig);
    t->rig = rig;
    t->models = hps_models_new();
    t->arena = hps_arena_new(4096, 1 << 20);
    assert_non_null(t->models);
    assert_non_null(t->arena);
    assert_int_equal(hps_models_add(t->models, t->rig->fx.version), HPS_OK);
    *state = t;
    return 0;
}

static int end(void **state)
{
    struct described *t = *state;
    void *rig = t->rig;
    if (t->rig->updater != NULL) {
        t->rig->updater->streams = NULL;
    }
    assert_int_equal(hps_models_remove(t->models, "m", 7), HPS_OK);
    hps_models_free(t->models);
    hps_arena_free(t->arena);
    hps_free(t);
    return teardown(&rig);
}

static void open_listed_stream(struct described *t)
{
    open_stream(t->rig);
    t->rig->updater->streams = t->rig->stream;
}

static hps_status describe(struct described *t, const char *model, int64_t version)
{
    Hps__V1__GetModelRequest request = HPS__V1__GET_MODEL_REQUEST__INIT;
    request.model = (char *)(uintptr_t)model;
    request.version = version;
    hps_arena_reset(t->arena);
    return hps_model_describe(t->models, t->rig->updater, &request, t->arena, &t->reply, &t->err);
}

static void test_describe_when_nothing_updates_it_then_tables_and_no_positions(void **state)
{
    struct described *t = *state;
    const uint32_t places[FIXTURE_TABLES] = {2, 0}; /* of another version's three */
    assert_int_equal(hps_version_set_places(t->rig->fx.version, places, 3), HPS_OK);
    t->rig->fx.version->tables[FIXTURE_USERS].n_rows = 12;
    assert_int_equal(describe(t, "m", 0), HPS_OK);
    assert_string_equal(t->reply.model, "m");
    assert_int_equal(t->reply.active_version, 0);
    assert_int_equal(t->reply.n_versions, 1);
    const Hps__V1__ModelVersion *version = t->reply.versions[0];
    assert_int_equal(version->version, 7);
    assert_string_equal(version->lineage, "run");
    assert_int_equal(version->loaded_unix_ms, 1000);
    assert_int_equal(version->n_positions, 0);
    assert_int_equal(version->n_tables, FIXTURE_TABLES);
    assert_string_equal(version->tables[0]->table, "users");
    assert_int_equal(version->tables[0]->place, 0);
    assert_int_equal(version->tables[0]->dim, FIXTURE_DIM);
    assert_int_equal(version->tables[0]->data_type, HPS__V1__DATA_TYPE__DATA_TYPE_FP16);
    assert_int_equal(version->tables[0]->row_count, 12);
    assert_string_equal(version->tables[1]->table, "items");
    assert_int_equal(version->tables[1]->place, 2);
}

static void test_describe_when_updates_come_then_positions_and_how_many_were_rejected(void **state)
{
    struct described *t = *state;
    const struct hps_fake_record bad = {.value = "nothing known", .value_size = 13};
    open_listed_stream(t);
    put(t->rig, 1, 10);
    hps_fake_log_append(t->rig->log, ITEMS, 0, &bad);
    put(t->rig, 2, 20);
    turns(t->rig, 3);
    assert_int_equal(hps_models_activate(t->models, "m", 7), HPS_OK);
    assert_int_equal(describe(t, "m", 7), HPS_OK);
    assert_int_equal(t->reply.active_version, 7);
    const Hps__V1__ModelVersion *version = t->reply.versions[0];
    assert_int_equal(version->rejected_record_count, 1);
    assert_int_equal(version->n_positions, 1);
    assert_string_equal(version->positions[0]->topic, ITEMS);
    assert_int_equal(version->positions[0]->partition, 0);
    assert_int_equal(version->positions[0]->next_offset, 3);
    assert_true(version->update_sequence > 0);
    put(t->rig, 3, 30);
    turns(t->rig, 3);
    assert_int_equal(describe(t, "m", 7), HPS_OK);
    assert_int_equal(t->reply.versions[0]->positions[0]->next_offset, 4);
}

static void test_describe_when_a_position_is_not_known_yet_then_it_is_left_out(void **state)
{
    struct described *t = *state;
    open_listed_stream(t);
    assert_int_equal(describe(t, "m", 0), HPS_OK);
    assert_int_equal(t->reply.versions[0]->n_positions, 0);
}

static void test_describe_when_there_is_none_then_says_what_is_missing(void **state)
{
    struct described *t = *state;
    assert_int_equal(describe(t, "nope", 0), HPS_NOT_FOUND);
    assert_non_null(strstr(t->err.text, "nope"));
    assert_int_equal(describe(t, "m", 8), HPS_NOT_FOUND);
    assert_non_null(strstr(t->err.text, "version 8"));
    assert_int_equal(hps_models_expect(t->models, "soon", "model \"soon\" is loading"), HPS_OK);
    assert_int_equal(describe(t, "soon", 0), HPS_UNAVAILABLE);
    assert_string_equal(t->err.text, "model \"soon\" is loading");
}

static void test_describe_when_there_are_many_versions_then_all_or_the_one(void **state)
{
    enum { N = 20 };
    struct described *t = *state;
    struct hps_version *others[N];
    for (int64_t i = 0; i < N; i++) {
        others[i] = hps_version_new("m", 100 - i, 0);
        assert_int_equal(hps_models_add(t->models, others[i]), HPS_OK);
    }
    assert_int_equal(describe(t, "m", 0), HPS_OK);
    assert_int_equal(t->reply.n_versions, N + 1);
    for (size_t i = 1; i <= N; i++) {
        assert_true(t->reply.versions[i - 1]->version < t->reply.versions[i]->version);
    }
    assert_int_equal(describe(t, "m", 90), HPS_OK);
    assert_int_equal(t->reply.n_versions, 1);
    assert_int_equal(t->reply.versions[0]->version, 90);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(hps_models_remove(t->models, "m", others[i]->number), HPS_OK);
        assert_true(hps_version_idle(others[i])); /* no pin is left */
        hps_version_free(others[i]);
    }
}

/* Whatever has room: an error, and no pin that is left, which the end looks at. */
static void test_describe_when_the_arena_is_small_then_exhausted_and_nothing_is_held(void **state)
{
    struct described *t = *state;
    unsigned n_failed = 0;
    open_listed_stream(t);
    put(t->rig, 1, 10);
    turns(t->rig, 3);
    for (size_t bytes = 16; bytes <= 2048; bytes += 16) {
        hps_arena_free(t->arena);
        t->arena = hps_arena_new(16, bytes);
        assert_non_null(t->arena);
        hps_status status = describe(t, "m", 0);
        assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
        n_failed += status != HPS_OK;
    }
    assert_true(n_failed > 10 && n_failed < 128);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, end)
    const struct CMUnitTest tests[] = {
        TEST(test_describe_when_nothing_updates_it_then_tables_and_no_positions),
        TEST(test_describe_when_updates_come_then_positions_and_how_many_were_rejected),
        TEST(test_describe_when_a_position_is_not_known_yet_then_it_is_left_out),
        TEST(test_describe_when_there_is_none_then_says_what_is_missing),
        TEST(test_describe_when_there_are_many_versions_then_all_or_the_one),
        TEST(test_describe_when_the_arena_is_small_then_exhausted_and_nothing_is_held),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
