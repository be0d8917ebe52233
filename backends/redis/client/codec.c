/* SPDX-License-Identifier: Apache-2.0
 *
 * RESP2 with hiredis's reader and our own reply functions. A row goes from the reader's buffer to
 * its destination, everything else to a flat list. Commands are encoded here, because hiredis's
 * formatter wants an array of pointers to arguments and allocates each command. Our arguments are
 * thousands of contiguous keys. Not thread-safe.
 */
#include "backends/redis/client/codec.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/text.h"

#define READER_BYTES_KEPT (1024 * 1024) /* of an empty buffer */
#define NUMBER_TEXT_MAX   24            /* 20 digits, mark, CR and LF */

/* ---- commands -------------------------------------------------------------------------------- */

/* Write "*3\r\n" or "$8\r\n" to text and return its size. No printf, because it runs for millions
 * of keys. */
static size_t head_of(char mark, size_t number, char text[NUMBER_TEXT_MAX])
{
    char digits[NUMBER_TEXT_MAX];
    size_t n = 0;
    size_t size = 0;
    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    text[size++] = mark;
    while (n > 0) {
        text[size++] = digits[--n];
    }
    text[size++] = '\r';
    text[size++] = '\n';
    return size;
}

hps_status hps_redis_put_begin(struct hps_buf *buf, uint32_t n_args)
{
    HPS_ASSERT(n_args > 0);
    char head[NUMBER_TEXT_MAX];
    size_t head_size = head_of('*', n_args, head);
    return hps_buf_append(buf, head, head_size);
}

hps_status hps_redis_put_arg(struct hps_buf *buf, const void *data, size_t size)
{
    return hps_redis_put_args(buf, data, size, 1);
}

hps_status hps_redis_put_text(struct hps_buf *buf, const char *text)
{
    return hps_redis_put_arg(buf, text, strlen(text));
}

hps_status hps_redis_put_u64(struct hps_buf *buf, uint64_t value)
{
    char text[NUMBER_TEXT_MAX];
    int size = snprintf(text, sizeof(text), "%" PRIu64, value);
    return hps_redis_put_arg(buf, text, (size_t)size);
}

hps_status hps_redis_put_args(struct hps_buf *buf, const void *data, size_t size, uint32_t n)
{
    static const uint8_t line_end[] = {'\r', '\n'};
    const uint8_t *from = data;
    char head[NUMBER_TEXT_MAX];
    size_t head_size = head_of('$', size, head);
    hps_status status = hps_buf_reserve(buf, n * (head_size + size + 2));

    if (status != HPS_OK) {
        return status;
    }
    uint8_t *to = buf->data + buf->size;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(to, head, head_size);
        if (size > 0) {
            memcpy(to + head_size, from + i * size, size);
        }
        memcpy(to + head_size + size, line_end, sizeof(line_end));
        to += head_size + size + 2;
    }
    buf->size += n * (head_size + size + 2);
    return HPS_OK;
}

hps_status hps_redis_put_command(struct hps_buf *buf, uint32_t n_args, const char *const *args)
{
    hps_status status = hps_redis_put_begin(buf, n_args);
    for (uint32_t i = 0; i < n_args && status == HPS_OK; i++) {
        status = hps_redis_put_text(buf, args[i]);
    }
    return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

void hps_redis_values_init(struct hps_redis_values *values, uint32_t n_max, size_t text_max)
{
    *values = (struct hps_redis_values){.n_max = n_max};
    hps_buf_init(&values->text, text_max < UINT32_MAX ? text_max : UINT32_MAX);
}

void hps_redis_values_fini(struct hps_redis_values *values)
{
    hps_free(values->items);
    hps_buf_fini(&values->text);
    values->items = NULL;
    values->n = values->capacity = 0;
}

static hps_status values_add(struct hps_redis_values *values, struct hps_redis_value value)
{
    if (values->n == values->capacity) {
        uint32_t capacity = values->capacity > 0 ? 2 * values->capacity : 16;
        capacity = capacity < values->n_max ? capacity : values->n_max;
        if (values->n >= capacity) {
            return HPS_EXHAUSTED;
        }
        struct hps_redis_value *items = hps_realloc(values->items, capacity * sizeof(*items));
        if (!items) {
            return HPS_NO_MEMORY;
        }
        values->items = items;
        values->capacity = capacity;
    }
    values->items[values->n++] = value;
    return HPS_OK;
}

static hps_status values_add_text(struct hps_redis_values *values, enum hps_redis_type type,
                                  const char *text, size_t size)
{
    size_t at = values->text.size;
    hps_status status = hps_buf_reserve(&values->text, size + 1);
    if (status == HPS_OK) {
        status = values_add(values, (struct hps_redis_value){
                                        .type = type, .at = (uint32_t)at, .size = (uint32_t)size});
    }
    if (status == HPS_OK) {
        memcpy(values->text.data + at, text, size);
        values->text.data[at + size] = '\0';
        values->text.size = at + size + 1;
    }
    return status;
}

const char *hps_redis_values_text(const struct hps_redis_values *values, uint32_t i)
{
    HPS_ASSERT(i < values->n);
    const struct hps_redis_value *value = &values->items[i];
    bool has_text = value->type == HPS_REDIS_TEXT || value->type == HPS_REDIS_ERROR;
    return has_text ? (const char *)values->text.data + value->at : "";
}

bool hps_redis_values_i64(const struct hps_redis_values *values, uint32_t i, int64_t *out_number)
{
    HPS_ASSERT(i < values->n);
    const struct hps_redis_value *value = &values->items[i];
    if (value->type == HPS_REDIS_INT) {
        *out_number = value->number;
        return true;
    }
    if (value->type != HPS_REDIS_TEXT) {
        return false;
    }
    const char *text = hps_redis_values_text(values, i);
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || end != text + value->size || *text == ' ') {
        return false;
    }
    *out_number = number;
    return true;
}

bool hps_redis_values_u64(const struct hps_redis_values *values, uint32_t i, uint64_t *out_number)
{
    HPS_ASSERT(i < values->n);
    const struct hps_redis_value *value = &values->items[i];
    if (value->type == HPS_REDIS_INT && value->number >= 0) {
        *out_number = (uint64_t)value->number;
        return true;
    }
    if (value->type != HPS_REDIS_TEXT) {
        return false;
    }
    const char *text = hps_redis_values_text(values, i);
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    bool digits = *text >= '0' && *text <= '9';
    if (errno != 0 || !digits || end != text + value->size) {
        return false;
    }
    *out_number = number;
    return true;
}

uint32_t hps_redis_values_next(const struct hps_redis_values *values, uint32_t i)
{
    uint64_t n_left = 1; /* values left to skip; a truncated array ends at n */
    while (n_left > 0 && i < values->n) {
        n_left += values->items[i].type == HPS_REDIS_ARRAY ? values->items[i].size : 0;
        n_left--;
        i++;
    }
    return i;
}

/* ---- replies --------------------------------------------------------------------------------- */

struct hps_redis_reader {
    redisReader *resp;
    size_t bytes_max;
    struct hps_redis_reply *reply; /* in progress; NULL: none */
    struct hps_redis_rows *rows;   /* where the last row went */
    uint32_t rows_begin;           /* index of the first key of `rows` */
    hps_status failed;             /* error of the reply functions */
    const char *why;               /* static text */
};

static char taken; /* returned by the reply functions; to hiredis, NULL means out of memory */

static void *fail(struct hps_redis_reader *reader, hps_status status, const char *why)
{
    reader->failed = status;
    reader->why = why;
    return NULL;
}

static void *added(struct hps_redis_reader *reader, hps_status status)
{
    return status == HPS_OK ? &taken : fail(reader, status, "a reply larger than the limit");
}

static const struct {
    const char *code;
    hps_status status;
} error_codes[] = {
    {"NOSCRIPT", HPS_NOT_FOUND},      {"OOM", HPS_EXHAUSTED},
    {"NOPERM", HPS_PERMISSION},       {"NOAUTH", HPS_PERMISSION},
    {"WRONGPASS", HPS_PERMISSION},    {"LOADING", HPS_UNAVAILABLE},
    {"CLUSTERDOWN", HPS_UNAVAILABLE}, {"MASTERDOWN", HPS_UNAVAILABLE},
    {"BUSY", HPS_UNAVAILABLE},        {"READONLY", HPS_UNAVAILABLE},
    {"MISCONF", HPS_UNAVAILABLE},     {"NOREPLICAS", HPS_UNAVAILABLE},
    {"MOVED", HPS_UNAVAILABLE},       {"ASK", HPS_UNAVAILABLE},
    {"TRYAGAIN", HPS_UNAVAILABLE},    {"WRONGTYPE", HPS_INVALID},
};

enum { N_CODES = sizeof(error_codes) / sizeof(error_codes[0]) };

_Static_assert((int)N_CODES < (int)HPS_REDIS_ERROR_KINDS,
               "the last kind is that of all other errors");

unsigned hps_redis_error_kind(const char *text, size_t size)
{
    const char *space = memchr(text, ' ', size);
    size_t code_size = space ? (size_t)(space - text) : size;
    unsigned kind = 0;
    while (kind < N_CODES && !hps_text_is(error_codes[kind].code, text, code_size)) {
        kind++;
    }
    return kind;
}

static hps_status error_status(const char *text, size_t size)
{
    unsigned kind = hps_redis_error_kind(text, size);
    if (kind < N_CODES) {
        return error_codes[kind].status;
    }
    /* Scripts that may read while the cluster is down get an error without a code when they
     * write. */
    static const char down[] = "cluster is down";
    return memmem(text, size, down, sizeof(down) - 1) != NULL ? HPS_UNAVAILABLE : HPS_ABORTED;
}

static void *take_error(struct hps_redis_reply *reply, const char *text, size_t size)
{
    /* Redis repeats the arguments of unknown commands, and AUTH has a password. */
    static const char args[] = ", with args beginning with";
    const char *end = memmem(text, size, args, sizeof(args) - 1);
    size = end != NULL ? (size_t)(end - text) : size;
    (void)hps_text_plain(text, size, reply->error, sizeof(reply->error));
    reply->status = error_status(text, size);
    return &taken;
}

/* Index of the element of the outermost array that `task` belongs to. */
static uint32_t element_of(const redisReadTask *task)
{
    while (task->parent->parent) {
        task = task->parent;
    }
    return (uint32_t)task->idx;
}

/* True for a row, false for a value. Only elements of the outermost array are rows. */
static bool among_rows(const struct hps_redis_reply *reply, const redisReadTask *task)
{
    return reply->rows && task->parent && element_of(task) >= reply->rows->n_lead;
}

static void *take_row(struct hps_redis_reader *reader, const redisReadTask *task, const char *data,
                      size_t size)
{
    if (task->type != REDIS_REPLY_STRING || task->parent->parent) {
        return fail(reader, HPS_IO, "a reply that is not a row");
    }
    uint32_t i = (uint32_t)task->idx - reader->reply->rows->n_lead - reader->rows_begin;
    for (; i >= reader->rows->n; reader->rows = reader->rows->more) {
        i -= reader->rows->n;
        reader->rows_begin += reader->rows->n;
        HPS_ASSERT(reader->rows->more); /* on_array_of has checked the length */
    }
    struct hps_redis_rows *rows = reader->rows;
    if (size != rows->row_bytes) {
        rows->found[i] = HPS_REDIS_ROW_MISFIT;
        rows->n_misfit++;
        return &taken;
    }
    size_t row = rows->slots ? rows->slots[i] : i;
    memcpy(rows->rows + row * rows->row_bytes, data, size);
    rows->found[i] = HPS_REDIS_ROW_FOUND;
    rows->n_found++;
    return &taken;
}

static void *on_string(const redisReadTask *task, char *data, size_t size)
{
    struct hps_redis_reader *reader = task->privdata;
    struct hps_redis_reply *reply = reader->reply;

    if (!task->parent && task->type == REDIS_REPLY_ERROR) {
        return take_error(reply, data, size);
    }
    if (among_rows(reply, task)) {
        return take_row(reader, task, data, size);
    }
    if (!task->parent && reply->rows) {
        return fail(reader, HPS_IO, "a reply that is not a list of rows");
    }
    if (!reply->values) {
        return &taken;
    }
    enum hps_redis_type type = task->type == REDIS_REPLY_ERROR ? HPS_REDIS_ERROR : HPS_REDIS_TEXT;
    return added(reader, values_add_text(reply->values, type, data, size));
}

static void *add_value(const redisReadTask *task, struct hps_redis_value value)
{
    struct hps_redis_reader *reader = task->privdata;
    struct hps_redis_reply *reply = reader->reply;

    if (among_rows(reply, task) || (!task->parent && reply->rows)) {
        return fail(reader, HPS_IO, "a reply that is not a list of rows");
    }
    return reply->values ? added(reader, values_add(reply->values, value)) : &taken;
}

static void *on_array_of(const redisReadTask *task, size_t n)
{
    struct hps_redis_reader *reader = task->privdata;
    const struct hps_redis_rows *rows = reader->reply->rows;

    if (!task->parent && rows) {
        size_t n_wanted = rows->n_lead;
        for (; rows; rows = rows->more) {
            n_wanted += rows->n;
        }
        return n == n_wanted ? &taken : fail(reader, HPS_IO, "a wrong number of rows in a reply");
    }
    if (n > UINT32_MAX) {
        return fail(reader, HPS_EXHAUSTED, "an array too long");
    }
    return add_value(task, (struct hps_redis_value){.type = HPS_REDIS_ARRAY, .size = (uint32_t)n});
}

static void *on_integer(const redisReadTask *task, long long number)
{
    return add_value(task, (struct hps_redis_value){.type = HPS_REDIS_INT, .number = number});
}

static void *on_nil(const redisReadTask *task)
{
    struct hps_redis_reader *reader = task->privdata;
    if (among_rows(reader->reply, task) && !task->parent->parent) {
        return &taken; /* `found` is ABSENT already */
    }
    return add_value(task, (struct hps_redis_value){.type = HPS_REDIS_NIL});
}

static void on_free(void *object)
{
    (void)object;
}

#if HIREDIS_MAJOR >= 1
static void *on_array(const redisReadTask *task, size_t n)
{
    return on_array_of(task, n);
}
/* Not part of RESP2. */
static void *on_double(const redisReadTask *task, double value, char *text, size_t size)
{
    (void)value;
    (void)text;
    (void)size;
    return fail(task->privdata, HPS_IO, "a reply of another RESP version");
}
static void *on_bool(const redisReadTask *task, int value)
{
    (void)value;
    return fail(task->privdata, HPS_IO, "a reply of another RESP version");
}
static redisReplyObjectFunctions reply_functions = {.createString = on_string,
                                                    .createArray = on_array,
                                                    .createInteger = on_integer,
                                                    .createDouble = on_double,
                                                    .createNil = on_nil,
                                                    .createBool = on_bool,
                                                    .freeObject = on_free};
#else
static void *on_array(const redisReadTask *task, int n)
{
    return on_array_of(task, n > 0 ? (size_t)n : 0);
}
static redisReplyObjectFunctions reply_functions = {.createString = on_string,
                                                    .createArray = on_array,
                                                    .createInteger = on_integer,
                                                    .createNil = on_nil,
                                                    .freeObject = on_free};
#endif

struct hps_redis_reader *hps_redis_reader_new(size_t bytes_max)
{
    struct hps_redis_reader *reader = hps_calloc(1, sizeof(*reader));
    if (!reader) {
        return NULL;
    }
    reader->resp = redisReaderCreateWithFunctions(&reply_functions);
    if (!reader->resp) {
        hps_free(reader);
        return NULL;
    }
    reader->resp->privdata = reader;
    reader->resp->maxbuf = READER_BYTES_KEPT;
    reader->bytes_max = bytes_max;
    return reader;
}

void hps_redis_reader_free(struct hps_redis_reader *reader)
{
    if (reader) {
        redisReaderFree(reader->resp);
        hps_free(reader);
    }
}

size_t hps_redis_reader_pending(const struct hps_redis_reader *reader)
{
    return reader->resp->len - reader->resp->pos;
}

hps_status hps_redis_reader_feed(struct hps_redis_reader *reader, const void *data, size_t size)
{
    if (hps_redis_reader_pending(reader) + size > reader->bytes_max) {
        return HPS_EXHAUSTED;
    }
    return redisReaderFeed(reader->resp, data, size) == REDIS_OK ? HPS_OK : HPS_NO_MEMORY;
}

static void reply_begin(struct hps_redis_reply *reply)
{
    reply->status = HPS_OK;
    reply->error[0] = '\0';
    if (reply->values) {
        reply->values->n = 0;
        hps_buf_clear(&reply->values->text);
    }
    for (struct hps_redis_rows *rows = reply->rows; rows; rows = rows->more) {
        rows->n_found = 0;
        rows->n_misfit = 0;
        memset(rows->found, HPS_REDIS_ROW_ABSENT, rows->n);
    }
}

hps_status hps_redis_reader_next(struct hps_redis_reader *reader, struct hps_redis_reply *reply,
                                 struct hps_error *err)
{
    void *object = NULL;

    HPS_ASSERT(!reader->reply || reader->reply == reply);
    if (!reader->reply) {
        reply_begin(reply);
        reader->reply = reply;
        reader->rows = reply->rows;
        reader->rows_begin = 0;
    }
    if (redisReaderGetReply(reader->resp, &object) != REDIS_OK) {
        if (reader->failed != HPS_OK) {
            return hps_error_set(err, reader->failed, "%s", reader->why);
        }
        bool memory = reader->resp->err == REDIS_ERR_OOM;
        return hps_error_set(err, memory ? HPS_NO_MEMORY : HPS_IO, "%s", reader->resp->errstr);
    }
    if (!object) {
        return HPS_AGAIN;
    }
    reader->reply = NULL;
    return HPS_OK;
}
