/* SPDX-License-Identifier: Apache-2.0
 *
 * What rows and deletes become, as the sink sees it: bytes, topics, partitions and order.
 */
#include "client/update_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/heap.h"
#include "hps/v1/update.pb-c.h"
#include "tests/lib/fault_heap.h"

enum { RECORDS_MAX = 256, TOPICS_MAX = 8, DIM = 2 };

struct taken {
    uint32_t topic;
    int32_t partition;
    uint8_t *key;
    size_t key_size;
    uint8_t *value;
    size_t value_size;
    uint64_t headers[2];
    char names[2][32];
    size_t n_headers;
};

/* A sink that keeps everything. */
static struct {
    char topics[TOPICS_MAX][HPS_UPDATE_TOPIC_BYTES_MAX];
    uint32_t n_topics;
    uint32_t n_partitions;
    struct taken records[RECORDS_MAX];
    size_t n;
    size_t fail_at; /* this record is refused; 0: none */
} sink;

static uint8_t *copy(const void *data, size_t size)
{
    uint8_t *bytes = data == NULL ? NULL : hps_alloc(size);

    if (bytes != NULL) {
        memcpy(bytes, data, size);
    }
    return bytes;
}

static hps_status sink_topic(void *ctx, const char *name, uint32_t *out_topic,
                             uint32_t *out_n_partitions, struct hps_error *err)
{
    (void)ctx;
    if (strcmp(name, "hps_et.m.absent") == 0) {
        return hps_error_set(err, HPS_NOT_FOUND, "no topic %s", name);
    }
    for (*out_topic = 0; *out_topic < sink.n_topics; (*out_topic)++) {
        if (strcmp(sink.topics[*out_topic], name) == 0) {
            break;
        }
    }
    if (*out_topic == sink.n_topics) {
        assert_true(sink.n_topics < TOPICS_MAX);
        memcpy(sink.topics[sink.n_topics++], name, strlen(name) + 1);
    }
    *out_n_partitions = sink.n_partitions;
    return HPS_OK;
}

static hps_status sink_send(void *ctx, const struct hps_producer_record *record,
                            struct hps_error *err)
{
    (void)ctx;
    if (sink.fail_at != 0 && sink.n + 1 == sink.fail_at) {
        return hps_error_set(err, HPS_DEADLINE, "refused");
    }
    assert_true(sink.n < RECORDS_MAX);
    struct taken *taken = &sink.records[sink.n++];
    *taken = (struct taken){.topic = record->topic,
                            .partition = record->partition,
                            .key = copy(record->key, record->key_size),
                            .key_size = record->key_size,
                            .value = copy(record->value, record->value_size),
                            .value_size = record->value_size,
                            .n_headers = record->n_headers};
    for (size_t i = 0; i < record->n_headers; i++) {
        memcpy(taken->names[i], record->headers[i].name, strlen(record->headers[i].name) + 1);
        if (strcmp(taken->names[i], "hps-dtype") == 0) {
            taken->headers[i] = record->headers[i].size;
        } else {
            assert_true(hps_update_header_decode(record->headers[i].value, record->headers[i].size,
                                                 &taken->headers[i]));
        }
    }
    return HPS_OK;
}

static int sink_clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sink.n; i++) {
        hps_free(sink.records[i].key);
        hps_free(sink.records[i].value);
    }
    memset(&sink, 0, sizeof(sink));
    sink.n_partitions = 1;
    return 0;
}

static struct hps_update_writer *writer_new(struct hps_update_writer_options options)
{
    const struct hps_update_sink to = {NULL, sink_topic, sink_send};
    struct hps_update_writer *writer = NULL;

    options.model = "m";
    options.key_bytes = options.key_bytes != 0 ? options.key_bytes : 8;
    options.batch_bytes = options.batch_bytes != 0 ? options.batch_bytes : 1 << 16;
    assert_int_equal(hps_update_writer_new(&options, &to, &writer, NULL), HPS_OK);
    return writer;
}

static const hps_key KEYS[] = {1, UINT64_MAX};
static const float ROWS[] = {1.0F, -2.0F, 0.5F, 3.0F};

static void test_keyed_when_rows_and_deletes_then_a_record_each_at_once(void **state)
{
    (void)state;
    sink.n_partitions = 3;
    struct hps_update_writer *writer = writer_new((struct hps_update_writer_options){
        .form = HPS_UPDATE_KEYED, .version = 7, .row_version_given = true, .row_version = 9});

    assert_int_equal(hps_update_writer_rows(writer, "t", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 2, NULL),
                     HPS_OK);
    assert_int_equal(hps_update_writer_deletes(writer, "t", KEYS + 1, 1, NULL), HPS_OK);
    assert_int_equal(sink.n, 3);
    assert_string_equal(sink.topics[0], "hps_et.m.t");
    for (size_t i = 0; i < 3; i++) {
        const struct taken *taken = &sink.records[i];
        hps_key key = KEYS[i > 0];
        assert_int_equal(taken->partition, hps_update_partition(key, 3));
        assert_int_equal(taken->key_size, 8);
        assert_memory_equal(taken->key, &key, 8);
        assert_int_equal(taken->n_headers, 2);
        assert_string_equal(taken->names[0], "hps-version");
        assert_int_equal(taken->headers[0], 7);
        assert_string_equal(taken->names[1], "hps-row-version");
        assert_int_equal(taken->headers[1], 9);
    }
    assert_int_equal(sink.records[1].value_size, 8);
    assert_memory_equal(sink.records[1].value, ROWS + 2, 8);
    assert_null(sink.records[2].value);
    const struct hps_update_written *written = hps_update_writer_written(writer);
    assert_int_equal(written->n_rows, 2);
    assert_int_equal(written->n_deletes, 1);
    assert_int_equal(written->n_records, 3);
    assert_int_equal(written->bytes, 16 + 16 + 8);
    hps_update_writer_free(writer);
}

static void test_keyed_when_rows_are_float16_then_sent_as_float32(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff};
    static const float floats[] = {1.0F, -2.0F, 0x1p-24F, 65504.0F};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_KEYED});

    assert_int_equal(hps_update_writer_rows(writer, "t", 4, HPS_DTYPE_FP16, KEYS, halves, 1, NULL),
                     HPS_OK);
    assert_int_equal(sink.records[0].value_size, sizeof(floats));
    assert_memory_equal(sink.records[0].value, floats, sizeof(floats));
    hps_update_writer_free(writer);
}

/* Dims are odd, so that scales lie unaligned. */
static const uint8_t INT8_ROW[] = {0, 100, 255, 0, 0, 0x80, 0x3f, 0, 0, 0, 0};
static const float INT8_VALUES[] = {0, 100, 255};

static void test_keyed_when_rows_are_int8_then_sent_as_they_are(void **state)
{
    (void)state;
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_KEYED});

    assert_int_equal(
        hps_update_writer_rows(writer, "t", 3, HPS_DTYPE_INT8_ROWWISE_F32, KEYS, INT8_ROW, 1, NULL),
        HPS_OK);
    assert_int_equal(sink.records[0].value_size, sizeof(INT8_ROW));
    assert_memory_equal(sink.records[0].value, INT8_ROW, sizeof(INT8_ROW));
    hps_update_writer_free(writer);
}

static void test_rows_when_sent_as_another_type_then_converted(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0, 0x5640, 0x5bf8};
    static const float large[] = {0, 70000, 1};
    struct hps_error err = {0};
    struct hps_update_writer *writer = writer_new((struct hps_update_writer_options){
        .form = HPS_UPDATE_KEYED, .row_dtype = HPS_DTYPE_INT8_ROWWISE_F32});
    assert_int_equal(
        hps_update_writer_rows(writer, "wide", 3, HPS_DTYPE_FP32, KEYS, INT8_VALUES, 1, NULL),
        HPS_OK);
    assert_int_equal(
        hps_update_writer_rows(writer, "half", 3, HPS_DTYPE_FP16, KEYS, halves, 1, NULL), HPS_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(sink.records[i].value_size, sizeof(INT8_ROW));
        assert_memory_equal(sink.records[i].value, INT8_ROW, sizeof(INT8_ROW));
    }
    assert_int_equal(hps_update_writer_rows(writer, "int8", 3, HPS_DTYPE_INT8_ROWWISE_F16, KEYS,
                                            INT8_ROW, 1, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "already quantised"));
    hps_update_writer_free(writer);

    writer = writer_new(
        (struct hps_update_writer_options){.form = HPS_UPDATE_KEYED, .row_dtype = HPS_DTYPE_FP16});
    assert_int_equal(
        hps_update_writer_rows(writer, "t", 3, HPS_DTYPE_INT8_ROWWISE_F32, KEYS, INT8_ROW, 1, NULL),
        HPS_OK);
    assert_int_equal(sink.records[2].value_size, sizeof(halves));
    assert_memory_equal(sink.records[2].value, halves, sizeof(halves));
    assert_int_equal(
        hps_update_writer_rows(writer, "u", 3, HPS_DTYPE_FP32, KEYS + 1, large, 1, &err),
        HPS_INVALID);
    assert_non_null(strstr(err.text, "table u, key -1: fp16 cannot hold value 1"));
    assert_int_equal(sink.n, 3);
    hps_update_writer_free(writer);
}

static void test_hctr_when_rows_are_int8_then_only_as_float32(void **state)
{
    (void)state;
    struct hps_error err = {0};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_HCTR});
    assert_int_equal(
        hps_update_writer_rows(writer, "t", 3, HPS_DTYPE_INT8_ROWWISE_F32, KEYS, INT8_ROW, 1, &err),
        HPS_INVALID);
    assert_non_null(strstr(err.text, "hctr records have only float32"));
    hps_update_writer_free(writer);
    writer = writer_new(
        (struct hps_update_writer_options){.form = HPS_UPDATE_HCTR, .row_dtype = HPS_DTYPE_FP32});
    assert_int_equal(
        hps_update_writer_rows(writer, "t", 3, HPS_DTYPE_INT8_ROWWISE_F32, KEYS, INT8_ROW, 1, NULL),
        HPS_OK);
    assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
    assert_int_equal(sink.records[0].value_size, 8 + 8 + 12);
    assert_memory_equal(sink.records[0].value + 16, INT8_VALUES, 12);
    hps_update_writer_free(writer);
}

static void test_hctr_when_flushed_then_one_record_per_partition_byte_for_byte(void **state)
{
    (void)state;
    static const uint8_t expected[] = {'H',  'C',  'T', 'R',  8,    0,    0,    0,    1,    0,
                                       0,    0,    0,   0,    0,    0,    0,    0,    0x80, 0x3f,
                                       0,    0,    0,   0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0,   0,    0,    0x3f, 0,    0,    0x40, 0x40};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_HCTR});

    assert_int_equal(hps_update_writer_rows(writer, "t", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 1, NULL),
                     HPS_OK);
    assert_int_equal(
        hps_update_writer_rows(writer, "t", DIM, HPS_DTYPE_FP32, KEYS + 1, ROWS + 2, 1, NULL),
        HPS_OK);
    assert_int_equal(sink.n, 0);
    assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
    assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
    assert_int_equal(sink.n, 1);
    assert_null(sink.records[0].key);
    assert_int_equal(sink.records[0].n_headers, 0);
    assert_int_equal(sink.records[0].value_size, sizeof(expected));
    assert_memory_equal(sink.records[0].value, expected, sizeof(expected));
    hps_update_writer_free(writer);
}

/* Every key in its own partition, in order, and no record larger than asked for. */
static void test_hctr_when_many_rows_then_batches_of_each_partition_in_order(void **state)
{
    (void)state;
    enum { N = 1000, BATCH = 2048 };
    static hps_key keys[N];
    static float rows[N][DIM];
    const struct hps_update_shape shape = {.key_bytes = 4, .dim = DIM};
    uint32_t last[3] = {0};
    size_t n = 0;

    sink.n_partitions = 3;
    struct hps_update_writer *writer = writer_new((struct hps_update_writer_options){
        .form = HPS_UPDATE_HCTR, .key_bytes = 4, .batch_bytes = BATCH});
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i + 1;
        rows[i][0] = (float)i;
    }
    assert_int_equal(hps_update_writer_rows(writer, "t", DIM, HPS_DTYPE_FP32, keys, rows, N, NULL),
                     HPS_OK);
    assert_true(sink.n > 3);
    assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
    for (size_t r = 0; r < sink.n; r++) {
        const struct taken *taken = &sink.records[r];
        struct hps_update_record record;
        hps_key got[N];
        float got_rows[N][DIM];
        assert_true(taken->value_size <= BATCH);
        assert_int_equal(hps_update_record_decode(NULL, 0, taken->value, taken->value_size, &shape,
                                                  &record, NULL),
                         HPS_OK);
        hps_update_record_copy(&record, got, (uint8_t *)got_rows);
        for (uint32_t i = 0; i < record.n; i++, n++) {
            assert_int_equal(hps_update_partition(got[i], 3), taken->partition);
            assert_true(got[i] > last[taken->partition]);
            last[taken->partition] = (uint32_t)got[i];
            assert_true(got_rows[i][0] == (float)(got[i] - 1));
        }
    }
    assert_int_equal(n, N);
    hps_update_writer_free(writer);
}

static void test_hctr_when_key_too_wide_or_deleted_then_refused(void **state)
{
    (void)state;
    static const hps_key wide[] = {UINT64_C(1) << 32};
    struct hps_error err = {0};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_HCTR, .key_bytes = 4});

    assert_int_equal(hps_update_writer_rows(writer, "t", DIM, HPS_DTYPE_FP32, wide, ROWS, 1, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "4294967296"));
    assert_int_equal(hps_update_writer_deletes(writer, "t", KEYS, 1, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "cannot delete"));
    assert_int_equal(sink.n, 0);
    hps_update_writer_free(writer);
}

static Hps__V1__UpdateBatch *unpack(const struct taken *taken)
{
    const struct hps_update_shape shape = {.key_bytes = 8, .dim = 0};
    struct hps_update_record record;

    assert_int_equal(hps_update_record_decode(taken->key, taken->key_size, taken->value,
                                              taken->value_size, &shape, &record, NULL),
                     HPS_OK);
    assert_int_equal(record.form, HPS_UPDATE_PACKED);
    Hps__V1__UpdateBatch *batch =
        hps__v1__update_batch__unpack(NULL, record.body_size, record.body);
    assert_non_null(batch);
    return batch;
}

static void test_packed_when_flushed_then_a_batch_that_protobuf_reads(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0x3c00, 0xc000};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_PACKED,
                                                      .version = 3,
                                                      .row_version_given = true,
                                                      .row_dtype = HPS_DTYPE_FP16});

    assert_int_equal(hps_update_writer_rows(writer, "t", 2, HPS_DTYPE_FP16, KEYS, halves, 1, NULL),
                     HPS_OK);
    assert_int_equal(hps_update_writer_deletes(writer, "t", KEYS, 2, NULL), HPS_OK);
    assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
    assert_int_equal(sink.n, 1);
    assert_string_equal(sink.topics[0], "hps_et.m");
    assert_int_equal(sink.records[0].n_headers, 0);
    Hps__V1__UpdateBatch *batch = unpack(&sink.records[0]);
    assert_int_equal(batch->version, 3);
    assert_int_equal(batch->n_tables, 1);
    const Hps__V1__TableUpdate *update = batch->tables[0];
    assert_string_equal(update->table, "t");
    assert_int_equal(update->data_type, HPS__V1__DATA_TYPE__DATA_TYPE_FP16);
    assert_int_equal(update->dim, 2);
    assert_int_equal(update->keys.len, 8);
    assert_memory_equal(update->keys.data, KEYS, 8);
    assert_int_equal(update->rows.len, 4);
    assert_memory_equal(update->rows.data, halves, 4);
    assert_int_equal(update->deletes.len, 16);
    assert_memory_equal(update->deletes.data, KEYS, 16);
    hps__v1__update_batch__free_unpacked(batch, NULL);
    hps_update_writer_free(writer);
}

static void test_unit_when_tables_alternate_then_one_record_in_order(void **state)
{
    (void)state;
    struct hps_update_writer *writer = writer_new((struct hps_update_writer_options){
        .form = HPS_UPDATE_PACKED, .units = true, .batch_bytes = 1024});

    for (unsigned unit = 0; unit < 2; unit++) {
        assert_int_equal(
            hps_update_writer_rows(writer, "a", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 2, NULL), HPS_OK);
        assert_int_equal(hps_update_writer_deletes(writer, "b", KEYS, 1, NULL), HPS_OK);
        /* A row after the delete of its key: it must come behind. */
        assert_int_equal(
            hps_update_writer_rows(writer, "b", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 1, NULL), HPS_OK);
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(
                hps_update_writer_rows(writer, "a", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 1, NULL),
                HPS_OK);
        }
        assert_int_equal(sink.n, unit);
        assert_int_equal(hps_update_writer_flush(writer, NULL), HPS_OK);
        assert_int_equal(sink.n, unit + 1);
        Hps__V1__UpdateBatch *batch = unpack(&sink.records[unit]);
        assert_int_equal(batch->n_tables, 4);
        static const struct {
            const char *table;
            size_t rows;
            size_t deletes;
        } expected[] = {{"a", 2, 0}, {"b", 0, 1}, {"b", 1, 0}, {"a", 100, 0}};
        for (size_t i = 0; i < 4; i++) {
            assert_string_equal(batch->tables[i]->table, expected[i].table);
            assert_int_equal(batch->tables[i]->keys.len, 8 * expected[i].rows);
            assert_int_equal(batch->tables[i]->rows.len, 8 * expected[i].rows);
            assert_int_equal(batch->tables[i]->deletes.len, 8 * expected[i].deletes);
        }
        hps__v1__update_batch__free_unpacked(batch, NULL);
    }
    hps_update_writer_free(writer);
}

static void test_unit_when_topic_has_partitions_then_refused(void **state)
{
    (void)state;
    struct hps_error err = {0};
    sink.n_partitions = 2;
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_PACKED, .units = true});

    assert_int_equal(hps_update_writer_rows(writer, "a", DIM, HPS_DTYPE_FP32, KEYS, ROWS, 2, &err),
                     HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "2 partitions"));
    hps_update_writer_free(writer);
}

static void test_rows_when_shape_changes_or_name_is_bad_then_refused(void **state)
{
    (void)state;
    struct hps_error err = {0};
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_KEYED});

    assert_int_equal(hps_update_writer_rows(writer, "t", 2, HPS_DTYPE_FP32, KEYS, ROWS, 1, NULL),
                     HPS_OK);
    assert_int_equal(hps_update_writer_rows(writer, "t", 4, HPS_DTYPE_FP32, KEYS, ROWS, 1, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "table t"));
    assert_int_equal(hps_update_writer_rows(writer, "a.b", 2, HPS_DTYPE_FP32, KEYS, ROWS, 1, &err),
                     HPS_INVALID);
    assert_non_null(strstr(err.text, "a.b"));
    assert_int_equal(
        hps_update_writer_rows(writer, "absent", 2, HPS_DTYPE_FP32, KEYS, ROWS, 1, &err),
        HPS_NOT_FOUND);
    assert_int_equal(sink.n, 1);
    hps_update_writer_free(writer);
}

static void test_writer_when_sink_fails_then_its_error_and_nothing_counted(void **state)
{
    (void)state;
    struct hps_error err = {0};
    sink.fail_at = 2;
    struct hps_update_writer *writer =
        writer_new((struct hps_update_writer_options){.form = HPS_UPDATE_KEYED});

    assert_int_equal(hps_update_writer_rows(writer, "t", 2, HPS_DTYPE_FP32, KEYS, ROWS, 2, &err),
                     HPS_DEADLINE);
    assert_int_equal(hps_update_writer_written(writer)->n_rows, 1);
    assert_int_equal(hps_update_writer_written(writer)->n_records, 1);
    hps_update_writer_free(writer);
}

static hps_status quiet_send(void *ctx, const struct hps_producer_record *record,
                             struct hps_error *err)
{
    (void)ctx;
    (void)record;
    (void)err;
    return HPS_OK;
}

/* Everything that a writer does; whatever fails, nothing is left behind. */
static void write_all(void *ctx)
{
    static const enum hps_update_form forms[] = {HPS_UPDATE_KEYED, HPS_UPDATE_HCTR,
                                                 HPS_UPDATE_PACKED, HPS_UPDATE_PACKED};
    static const uint16_t halves[4] = {0};
    const struct hps_update_sink to = {NULL, sink_topic, quiet_send};

    (void)ctx;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        const struct hps_update_writer_options options = {
            .model = "m",
            .form = forms[i],
            .key_bytes = 8,
            .batch_bytes = 1 << 16,
            .units = i == 3,
            .row_dtype = i % 2 == 0 ? HPS_DTYPE_INT8_ROWWISE_F16 : 0};
        struct hps_update_writer *writer = NULL;
        hps_status status = hps_update_writer_new(&options, &to, &writer, NULL);
        if (status == HPS_OK) {
            status = hps_update_writer_rows(writer, "a", 2, HPS_DTYPE_FP16, KEYS, halves, 2, NULL);
        }
        if (status == HPS_OK && forms[i] != HPS_UPDATE_HCTR) {
            status = hps_update_writer_deletes(writer, "b", KEYS, 2, NULL);
        }
        if (status == HPS_OK) {
            status = hps_update_writer_flush(writer, NULL);
        }
        assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
        hps_update_writer_free(writer);
    }
}

static void test_writer_when_any_allocation_fails_then_no_memory_and_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(write_all, NULL) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_keyed_when_rows_and_deletes_then_a_record_each_at_once,
                               sink_clear),
        cmocka_unit_test_setup(test_keyed_when_rows_are_float16_then_sent_as_float32, sink_clear),
        cmocka_unit_test_setup(test_keyed_when_rows_are_int8_then_sent_as_they_are, sink_clear),
        cmocka_unit_test_setup(test_rows_when_sent_as_another_type_then_converted, sink_clear),
        cmocka_unit_test_setup(test_hctr_when_rows_are_int8_then_only_as_float32, sink_clear),
        cmocka_unit_test_setup(test_hctr_when_flushed_then_one_record_per_partition_byte_for_byte,
                               sink_clear),
        cmocka_unit_test_setup(test_hctr_when_many_rows_then_batches_of_each_partition_in_order,
                               sink_clear),
        cmocka_unit_test_setup(test_hctr_when_key_too_wide_or_deleted_then_refused, sink_clear),
        cmocka_unit_test_setup(test_packed_when_flushed_then_a_batch_that_protobuf_reads,
                               sink_clear),
        cmocka_unit_test_setup(test_unit_when_tables_alternate_then_one_record_in_order,
                               sink_clear),
        cmocka_unit_test_setup(test_unit_when_topic_has_partitions_then_refused, sink_clear),
        cmocka_unit_test_setup(test_rows_when_shape_changes_or_name_is_bad_then_refused,
                               sink_clear),
        cmocka_unit_test_setup_teardown(
            test_writer_when_sink_fails_then_its_error_and_nothing_counted, sink_clear, sink_clear),
        cmocka_unit_test_setup(test_writer_when_any_allocation_fails_then_no_memory_and_no_leak,
                               sink_clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
