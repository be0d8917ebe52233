/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies taken piece by piece, made by protobuf-c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/buf.h"
#include "base/heap.h"
#include "client/intake.h"
#include "client/message.h"
#include "hps/v1/lookup.pb-c.h"

static char *text(const char *constant)
{
    return (char *)(uintptr_t)constant;
}

/* ---- rows of two tables ---------------------------------------------------------------------- */

static const float row_values[6] = {1.5F, -2, 3, 4, 5, 6};
static const uint16_t half_values[2] = {0x3C00, 0xC000};

/* A lookup of two keys of "items" and one of "users", and where its reply goes. */
struct taken {
    int64_t keys[2];
    float rows[6];
    uint16_t halves[2];
    uint8_t states[2];
    struct hpsd_query queries[2];
    struct hpsd_result results[2];
    struct hpsd_lookup lookup;
    struct hpsd_reply reply;
    struct hps_error err;
};

static void taken_init(struct taken *taken)
{
    *taken = (struct taken){0};
    taken->queries[0] = (struct hpsd_query){.table = "items",
                                            .keys = taken->keys,
                                            .n_keys = 2,
                                            .rows = taken->rows,
                                            .rows_size = sizeof(taken->rows),
                                            .key_status = taken->states};
    taken->queries[1] = (struct hpsd_query){.table = "users",
                                            .keys = taken->keys,
                                            .n_keys = 1,
                                            .rows = taken->halves,
                                            .rows_size = sizeof(taken->halves)};
    taken->lookup =
        (struct hpsd_lookup){.queries = taken->queries, .n_queries = 2, .output_type = HPSD_RAW};
}

/* Takes one message in pieces of `piece` bytes. */
static hps_status take(struct taken *taken, const uint8_t *data, size_t size, size_t piece)
{
    struct hps_intake intake;

    hps_intake_init(&intake, &taken->lookup, taken->queries, taken->results);
    hps_status status = hps_intake_begin(&intake, size, &taken->err);
    while (status == HPS_OK && size > 0) {
        size_t n = piece < size ? piece : size;
        uint8_t *alone = hps_alloc(n); /* ASan sees reads past it */
        assert_non_null(alone);
        memcpy(alone, data, n);
        status = hps_intake_feed(&intake, alone, n, &taken->err);
        hps_free(alone);
        data += n;
        size -= n;
    }
    if (status == HPS_OK) {
        status = hps_intake_end(&intake, &taken->reply, &taken->err);
    }
    hps_intake_fini(&intake);
    return status;
}

/* fp32 [2][3] with states and tiers, and fp16 [1][2]. */
static void make_reply(struct hps_buf *buf)
{
    static uint8_t states[2] = {HPSD_KEY_FOUND, HPSD_KEY_UNKNOWN};
    Hps__V1__TierCount tier = HPS__V1__TIER_COUNT__INIT;
    Hps__V1__TierCount *tiers[] = {&tier};
    Hps__V1__TableResult first = HPS__V1__TABLE_RESULT__INIT, second = HPS__V1__TABLE_RESULT__INIT;
    Hps__V1__TableResult *results[] = {&first, &second};
    Hps__V1__LookupResponse reply = HPS__V1__LOOKUP_RESPONSE__INIT;

    tier.tier = text("host");
    tier.found_keys = 1;
    first.table = text("items");
    first.dim = 3;
    first.data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP32;
    first.row_count = 2;
    first.unique_key_count = 300;
    first.unknown_key_count = 1;
    first.key_status = (ProtobufCBinaryData){sizeof(states), states};
    first.tier_counts = tiers;
    first.n_tier_counts = 1;
    first.rows = (ProtobufCBinaryData){sizeof(row_values), (uint8_t *)(uintptr_t)row_values};
    second.table = text("users");
    second.dim = 2;
    second.data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP16;
    second.row_count = 1;
    second.rows = (ProtobufCBinaryData){sizeof(half_values), (uint8_t *)(uintptr_t)half_values};
    reply.model = text("dlrm");
    reply.version = 3;
    reply.label = text("nightly");
    reply.update_sequence = 9;
    reply.event_time_unix_ms = 1234567890123;
    reply.results = results;
    reply.n_results = 2;
    hps_buf_init(buf, 4096);
    assert_int_equal(hps_message_encode(&reply.base, buf, NULL), HPS_OK);
}

static void test_intake_when_cut_anywhere_then_rows_in_place(void **state)
{
    struct taken taken;
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    for (size_t piece = 1; piece <= buf.size; piece++) {
        taken_init(&taken);
        assert_int_equal(take(&taken, buf.data, buf.size, piece), HPS_OK);
        assert_memory_equal(taken.rows, row_values, sizeof(row_values));
        assert_memory_equal(taken.halves, half_values, sizeof(half_values));
        assert_memory_equal(taken.states, ((uint8_t[]){1, 3}), 2);
        assert_int_equal(taken.reply.version, 3);
        assert_string_equal(taken.reply.label, "nightly");
        assert_int_equal(taken.reply.update_sequence, 9);
        assert_true(taken.reply.event_time_unix_ms == 1234567890123);
        assert_int_equal(taken.reply.bytes, buf.size);
        assert_int_equal(taken.results[0].n_unique, 300);
        assert_int_equal(taken.results[0].n_unknown, 1);
        assert_int_equal(taken.results[0].n_tiers, 1);
        assert_string_equal(taken.results[0].tiers[0].name, "host");
        assert_int_equal(taken.results[0].tiers[0].found_keys, 1);
        assert_int_equal(taken.results[1].dtype, HPSD_FP16);
        assert_int_equal(taken.results[1].stride, 4);
    }
    hps_buf_fini(&buf);
}

/* Received where the intake says, as the network does. */
static void test_intake_when_received_in_place_then_moved_to_each_table(void **state)
{
    enum { N = 40000, TABLES = 3 };
    static float values[N], rows[N];
    static int64_t keys[N];
    struct hpsd_query queries[TABLES];
    struct hpsd_result results[TABLES];
    Hps__V1__TableResult tables[TABLES];
    Hps__V1__TableResult *pointers[TABLES];
    Hps__V1__LookupResponse message = HPS__V1__LOOKUP_RESPONSE__INIT;
    const size_t n[TABLES] = {5000, 5000, 30000};
    struct hpsd_lookup lookup = {
        .queries = queries, .n_queries = TABLES, .rows = rows, .rows_size = sizeof(rows)};
    struct hpsd_reply reply;
    struct hps_intake intake;
    struct hps_buf buf;
    unsigned n_rooms = 0;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        values[i] = (float)i;
    }
    for (size_t t = 0, at = 0; t < TABLES; at += n[t++]) {
        queries[t] = (struct hpsd_query){.table = "t", .keys = keys, .n_keys = n[t]};
        hps__v1__table_result__init(&tables[t]);
        tables[t].dim = 1;
        tables[t].row_count = (uint32_t)n[t];
        tables[t].rows = (ProtobufCBinaryData){n[t] * sizeof(float), (uint8_t *)(values + at)};
        pointers[t] = &tables[t];
    }
    message.results = pointers;
    message.n_results = TABLES;
    hps_buf_init(&buf, 1 << 20);
    assert_int_equal(hps_message_encode(&message.base, &buf, NULL), HPS_OK);
    hps_intake_init(&intake, &lookup, queries, results);
    assert_int_equal(hps_intake_begin(&intake, buf.size, NULL), HPS_OK);
    for (size_t at = 0; at < buf.size;) {
        size_t room = 0;
        uint8_t *to = hps_intake_room(&intake, buf.size - at, &room);
        if (to == NULL) {
            room = 1;
        } else {
            assert_true(to >= (uint8_t *)rows && to + room <= (uint8_t *)(rows + N));
            memcpy(to, buf.data + at, room);
            n_rooms++;
        }
        assert_int_equal(hps_intake_feed(&intake, to == NULL ? buf.data + at : to, room, NULL),
                         HPS_OK);
        at += room;
    }
    assert_int_equal(hps_intake_end(&intake, &reply, NULL), HPS_OK);
    assert_memory_equal(rows, values, sizeof(rows));
    assert_in_range(n_rooms, 1, 3);
    hps_intake_fini(&intake);
    hps_buf_fini(&buf);
}

/* With any byte changed, a reply is refused or taken within its bounds (ASan looks). */
static void test_intake_when_bytes_are_bad_then_never_past_the_memory(void **state)
{
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    for (size_t size = 0; size < buf.size; size++) {
        struct taken *taken = hps_alloc(sizeof(*taken));
        assert_non_null(taken);
        taken_init(taken);
        hps_status status = take(taken, buf.data, size, SIZE_MAX);
        assert_true(status == HPS_DATA_LOSS || (status == HPS_OK && taken->reply.bytes == size));
        hps_free(taken);
    }
    for (size_t at = 0; at < buf.size; at++) {
        uint8_t kept = buf.data[at];
        for (unsigned value = 0; value < 256; value++) {
            struct taken taken;
            float *rows = hps_alloc(sizeof(taken.rows));
            assert_non_null(rows);
            taken_init(&taken);
            taken.queries[0].rows = rows;
            buf.data[at] = (uint8_t)value;
            hps_status status = take(&taken, buf.data, buf.size, 7);
            assert_true(status == HPS_OK || status == HPS_DATA_LOSS || status == HPS_RANGE);
            hps_free(rows);
        }
        buf.data[at] = kept;
    }
    hps_buf_fini(&buf);
}

static void test_intake_when_memory_is_small_then_range(void **state)
{
    struct taken taken;
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    taken_init(&taken);
    taken.queries[0].rows_size = 23;
    assert_int_equal(take(&taken, buf.data, buf.size, SIZE_MAX), HPS_RANGE);
    assert_non_null(strstr(taken.err.text, "queries[0]"));
    taken_init(&taken);
    taken.queries[0].rows = NULL;
    taken.queries[1].rows = NULL;
    taken.lookup.rows = taken.rows;
    taken.lookup.rows_size = sizeof(row_values) + 3;
    assert_int_equal(take(&taken, buf.data, buf.size, SIZE_MAX), HPS_RANGE);
    assert_non_null(strstr(taken.err.text, "queries[1]"));
    hps_buf_fini(&buf);
}

static void test_intake_when_reset_then_the_next_reply_is_whole(void **state)
{
    struct taken taken;
    struct hps_intake intake;
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    taken_init(&taken);
    hps_intake_init(&intake, &taken.lookup, taken.queries, taken.results);
    for (size_t cut = 0; cut < buf.size; cut++) {
        assert_int_equal(hps_intake_begin(&intake, buf.size, NULL), HPS_OK);
        assert_int_equal(hps_intake_feed(&intake, buf.data, cut, NULL), HPS_OK);
        hps_intake_reset(&intake);
        assert_int_equal(hps_intake_begin(&intake, buf.size, NULL), HPS_OK);
        assert_int_equal(hps_intake_feed(&intake, buf.data, buf.size, NULL), HPS_OK);
        assert_int_equal(hps_intake_end(&intake, &taken.reply, NULL), HPS_OK);
        assert_int_equal(taken.results[0].n_tiers, 1);
        assert_memory_equal(taken.rows, row_values, sizeof(row_values));
        hps_intake_reset(&intake);
    }
    hps_intake_fini(&intake);
    hps_buf_fini(&buf);
}

static void test_intake_when_results_are_not_of_the_lookup_then_data_loss(void **state)
{
    static const uint32_t offsets[] = {0, 2, 2};
    static const struct {
        uint32_t n_rows, dim, n_status;
        int dtype;
        bool bags;
    } lies[] = {
        {2, 3, 0, 1, false},  /* rows of another size */ {3, 2, 0, 1, false},
        {1, 4, 0, 1, false},  /* fewer rows */ {2, 2, 1, 1, false},
        {2, 2, 3, 1, false},  {2, 2, 0, 6, false},
        {2, 2, 0, 15, false}, {2, 2, 0, -1, false},
        {2, 0, 0, 4, true},   {UINT32_MAX, 2, 0, 1, false},
        {2, 4, 0, 2, false}, /* float16, but float32 is requested */
    };
    uint8_t rows[16] = {0}, states[4] = {1, 1, 1, 1};

    (void)state;
    for (size_t i = 0; i <= sizeof(lies) / sizeof(lies[0]); i++) {
        Hps__V1__TableResult table = HPS__V1__TABLE_RESULT__INIT;
        Hps__V1__TableResult *results[] = {&table};
        Hps__V1__LookupResponse message = HPS__V1__LOOKUP_RESPONSE__INIT;
        struct taken taken;
        struct hps_buf buf;
        bool lie = i < sizeof(lies) / sizeof(lies[0]);
        taken_init(&taken);
        taken.lookup.n_queries = 1;
        taken.lookup.output_type = HPSD_FP32;
        table.dim = lie ? lies[i].dim : 2;
        table.row_count = lie ? lies[i].n_rows : 2;
        table.data_type = (Hps__V1__DataType)(lie ? lies[i].dtype : 1);
        table.rows = (ProtobufCBinaryData){sizeof(rows), rows};
        table.key_status = (ProtobufCBinaryData){lie ? lies[i].n_status : 2, states};
        if (lie && lies[i].bags) {
            taken.queries[0].pooling = HPSD_POOLING_SUM;
            taken.queries[0].offsets = offsets;
            taken.queries[0].n_bags = 2;
        }
        message.results = results;
        message.n_results = 1;
        hps_buf_init(&buf, 4096);
        assert_int_equal(hps_message_encode(&message.base, &buf, NULL), HPS_OK);
        assert_int_equal(take(&taken, buf.data, buf.size, SIZE_MAX), lie ? HPS_DATA_LOSS : HPS_OK);
        hps_buf_fini(&buf);
    }
}

/* ---- a matrix -------------------------------------------------------------------------------- */

enum { MATRIX_TABLES = 2, MATRIX_ROWS = 2 };

/* Columns 0 to 1 are of one table, 2 to 4 of the other. */
struct matrix_reply {
    Hps__V1__TableResult tables[MATRIX_TABLES];
    Hps__V1__TableResult *results[MATRIX_TABLES];
    Hps__V1__LookupResponse message;
    float values[MATRIX_ROWS * 5 + 1];
};

static void make_matrix(struct matrix_reply *reply)
{
    hps__v1__lookup_response__init(&reply->message);
    for (size_t i = 0; i < MATRIX_ROWS * 5; i++) {
        reply->values[i] = (float)i;
    }
    for (unsigned t = 0; t < MATRIX_TABLES; t++) {
        hps__v1__table_result__init(&reply->tables[t]);
        reply->tables[t].table = text(t == 0 ? "items" : "users");
        reply->tables[t].dim = t == 0 ? 2 : 3;
        reply->tables[t].column = t == 0 ? 0 : 2;
        reply->tables[t].row_count = MATRIX_ROWS;
        reply->results[t] = &reply->tables[t];
    }
    reply->message.results = reply->results;
    reply->message.n_results = MATRIX_TABLES;
    reply->message.matrix =
        (ProtobufCBinaryData){MATRIX_ROWS * 5 * sizeof(float), (uint8_t *)reply->values};
}

static hps_status take_matrix(const struct matrix_reply *reply, struct taken *taken)
{
    struct hps_buf buf;

    taken_init(taken);
    taken->queries[0].rows = taken->queries[1].rows = NULL;
    taken->queries[1].n_keys = MATRIX_ROWS;
    taken->lookup.concat = true;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_message_encode(&reply->message.base, &buf, NULL), HPS_OK);
    hps_status status = take(taken, buf.data, buf.size, 5);
    hps_buf_fini(&buf);
    return status;
}

static void test_intake_when_one_matrix_then_columns_are_rows_of_their_tables(void **state)
{
    struct matrix_reply reply;
    struct taken taken;

    (void)state;
    make_matrix(&reply);
    assert_int_equal(take_matrix(&reply, &taken), HPS_OK);
    assert_memory_equal(taken.reply.memory, reply.values, MATRIX_ROWS * 5 * sizeof(float));
    assert_ptr_equal(taken.results[0].rows, taken.reply.memory);
    assert_ptr_equal(taken.results[1].rows, (float *)taken.reply.memory + 2);
    assert_int_equal(taken.results[1].stride, 5 * sizeof(float));
    hpsd_free(taken.reply.memory);
}

static void test_intake_when_columns_do_not_make_the_matrix_then_data_loss(void **state)
{
    struct matrix_reply reply;
    struct taken taken;
    uint8_t row[8] = {0};

    (void)state;
    for (int lie = 0; lie < 10; lie++) {
        make_matrix(&reply);
        switch (lie) {
        case 0:
            reply.message.matrix.len += 4;
            break;
        case 1:
            reply.message.matrix.len -= 4;
            break;
        case 2:
            reply.tables[1].column = 3;
            break;
        case 3:
            reply.tables[1].dim = 4;
            break;
        case 4:
            reply.tables[1].dim = 2; /* a column has no table */
            break;
        case 5:
            reply.tables[1].row_count = 1;
            break;
        case 6:
            reply.tables[1].data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP16;
            break;
        case 7:
            reply.tables[0].rows = (ProtobufCBinaryData){sizeof(row), row};
            break;
        case 8:
            reply.message.n_results = 1;
            break;
        default:
            reply.tables[0].row_count = reply.tables[1].row_count = UINT32_MAX;
            break;
        }
        assert_int_equal(take_matrix(&reply, &taken), HPS_DATA_LOSS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intake_when_cut_anywhere_then_rows_in_place),
        cmocka_unit_test(test_intake_when_received_in_place_then_moved_to_each_table),
        cmocka_unit_test(test_intake_when_bytes_are_bad_then_never_past_the_memory),
        cmocka_unit_test(test_intake_when_memory_is_small_then_range),
        cmocka_unit_test(test_intake_when_reset_then_the_next_reply_is_whole),
        cmocka_unit_test(test_intake_when_results_are_not_of_the_lookup_then_data_loss),
        cmocka_unit_test(test_intake_when_one_matrix_then_columns_are_rows_of_their_tables),
        cmocka_unit_test(test_intake_when_columns_do_not_make_the_matrix_then_data_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
