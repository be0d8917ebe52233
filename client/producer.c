/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer. Callbacks run on the calling thread, within rd_kafka_poll. Only the log callback
 * runs on threads of librdkafka; it does nothing.
 */
#include "client/producer.h"

#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    TOPICS_MAX = 4096 + 1, /* the tables of a model, and the model */
    VALUES_MAX = 16,       /* of one rd_kafka_produceva */
    ASK_MS = 1000,         /* longest wait for one reply with metadata */
    UNKNOWN_US = 3000000,  /* time for a broker to create a topic automatically */
    WAIT_MS_MAX = 100,
    RANGES_MAX = 1 << 20 /* of a partition; then the last one is extended */
};

struct range {
    int64_t first, last;
};

/* Acknowledged records of a partition. */
struct placed {
    int64_t last; /* offset of the last record; -1: none */
    struct range *ranges;
    size_t n_ranges, capacity;
    uint64_t n_unplaced; /* since the last one with an offset */
};

struct topic {
    char *name;
    rd_kafka_topic_t *handle;
    uint32_t n_partitions;
    struct placed *placed; /* [n_partitions] */
};

struct hps_producer {
    rd_kafka_t *kafka;
    char *brokers;
    uint64_t timeout_us;
    struct topic *topics; /* [TOPICS_MAX] */
    uint32_t n_topics;
    struct hps_producer_counts counts;
    struct hps_error failed;  /* the first record that failed */
    struct hps_error trouble; /* the last error of the connection; OK: no error */
};

/* ---- errors ---------------------------------------------------------------------------------- */

static hps_status status_of(rd_kafka_resp_err_t code)
{
    switch (code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        return HPS_OK;
    case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT:
    case RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT:
        return HPS_DEADLINE;
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
    case RD_KAFKA_RESP_ERR__RESOLVE:
    case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE:
        return HPS_UNAVAILABLE;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR__SSL:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
        return HPS_UNAUTHENTICATED;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        return HPS_PERMISSION;
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return HPS_NOT_FOUND;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
        return HPS_EXHAUSTED;
    default:
        return HPS_INVALID;
    }
}

/* Advice for errors with an unclear text. */
static const char *advice_of(rd_kafka_resp_err_t code)
{
    switch (code) {
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
        return ": a compacted topic accepts only keyed records";
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
        return ": make records smaller, or raise message.max.bytes of the topic and of the client";
    default:
        return "";
    }
}

/* Makes space for another range; false: not possible. */
static bool ensure_range(struct placed *placed)
{
    HPS_ASSERT(placed->n_ranges <= placed->capacity);
    if (placed->n_ranges < placed->capacity) {
        return true;
    }
    size_t capacity = placed->capacity == 0 ? 4 : 2 * placed->capacity;
    struct range *grown =
        capacity > RANGES_MAX ? NULL : hps_realloc(placed->ranges, capacity * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    placed->ranges = grown;
    placed->capacity = capacity;
    return true;
}

/* The broker does not return the offset of a record that it had already (a retry). That offset is
 * between those of the neighbouring records. */
static void place(struct placed *placed, int64_t offset)
{
    HPS_ASSERT(placed->n_ranges == 0 || placed->last >= 0);
    struct range *last = placed->n_ranges > 0 ? &placed->ranges[placed->n_ranges - 1] : NULL;
    if (offset < 0) {
        placed->n_unplaced++;
        return;
    }
    bool next = last != NULL && offset > last->last;
    bool joined = next && (offset == last->last + 1 || placed->n_unplaced > 0);
    if (joined || (next && !ensure_range(placed))) {
        last->last = offset;
    } else if (ensure_range(placed)) {
        int64_t first = last == NULL && placed->n_unplaced > 0 ? 0 : offset;
        placed->ranges[placed->n_ranges++] = (struct range){first, offset};
    } else {
        placed->n_unplaced++; /* no memory for its range */
        return;
    }
    placed->n_unplaced = 0;
    placed->last = offset > placed->last ? offset : placed->last;
}

static void on_delivery(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque)
{
    struct hps_producer *producer = opaque;
    struct topic *topic = message->_private;

    (void)kafka;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        producer->counts.n_acknowledged++;
        producer->counts.bytes_acknowledged += message->len + message->key_len;
        HPS_ASSERT((uint32_t)message->partition < topic->n_partitions);
        place(&topic->placed[message->partition], message->offset);
        return;
    }
    if (producer->failed.status == HPS_OK && message->err != RD_KAFKA_RESP_ERR__PURGE_QUEUE &&
        message->err != RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) {
        hps_error_set(&producer->failed, status_of(message->err),
                      "%s partition %d: a record of %zu bytes was not delivered: %s%s%s%s",
                      topic->name, (int)message->partition, message->len,
                      rd_kafka_err2str(message->err), advice_of(message->err),
                      producer->trouble.status != HPS_OK ? "; " : "", producer->trouble.text);
    }
}

static void on_error(rd_kafka_t *kafka, int code, const char *reason, void *opaque)
{
    struct hps_producer *producer = opaque;
    char text[256];

    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(kafka, text, sizeof(text));
        if (producer->failed.status == HPS_OK) {
            hps_error_set(&producer->failed, status_of(fatal), "%s", text);
        }
        return;
    }
    /* "All brokers are down" says less than the error before it. */
    if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || producer->trouble.status == HPS_OK) {
        hps_error_set(&producer->trouble, status_of((rd_kafka_resp_err_t)code), "%s", reason);
    }
}

static void on_log(const rd_kafka_t *kafka, int level, const char *facility, const char *text)
{
    (void)kafka; /* errors are reported to on_error */
    (void)level;
    (void)facility;
    (void)text;
}

/* ---- open and close -------------------------------------------------------------------------- */

static hps_status set_property(rd_kafka_conf_t *conf, const char *name, const char *value,
                               struct hps_error *err)
{
    char text[256];

    if (rd_kafka_conf_set(conf, name, value, text, sizeof(text)) != RD_KAFKA_CONF_OK) {
        return hps_error_set(err, HPS_INVALID, "property \"%s\": %s", name, text);
    }
    return HPS_OK;
}

static hps_status set_given(rd_kafka_conf_t *conf, const char *pair, struct hps_error *err)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *equals = pair + strspn(pair, legal);

    if (equals[0] != '=' || equals == pair) { /* the text may be a password */
        return hps_error_set(err, HPS_INVALID, "a property is malformed: expected NAME=VALUE");
    }
    char *name = hps_strndup(pair, (size_t)(equals - pair));
    if (name == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_status status = set_property(conf, name, equals + 1, err);
    hps_free(name);
    return status;
}

static hps_status set_all(rd_kafka_conf_t *conf, const struct hps_producer *producer,
                          const struct hps_producer_options *options, struct hps_error *err)
{
    char timeout_ms[24];
    uint64_t ms = producer->timeout_us / 1000;

    (void)snprintf(timeout_ms, sizeof(timeout_ms), "%llu",
                   (unsigned long long)(ms == 0          ? 1
                                        : ms > INT32_MAX ? INT32_MAX
                                                         : ms));
    const char *const ours[][2] = {
        {"bootstrap.servers", producer->brokers}, {"client.id", "hps-publish"},
        {"enable.idempotence", "true"}, /* with it acks=all, and retries keep the order */
        {"message.timeout.ms", timeout_ms},       {"linger.ms", "5"},
        {"queue.buffering.max.kbytes", "65536"},  {"reconnect.backoff.max.ms", "1000"},
    };
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        hps_status status = set_property(conf, ours[i][0], ours[i][1], err);
        if (status != HPS_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < options->n_properties; i++) {
        hps_status status = set_given(conf, options->properties[i], err);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

/* Refuses properties with which a record would count as acknowledged although it is not stored, or
 * with which acknowledgements would not be counted. */
static hps_status check_reports(const rd_kafka_conf_t *conf, struct hps_error *err)
{
    static const char *const expected[][3] = {{"acks", "all", "-1"},
                                              {"delivery.report.only.error", "false", "false"}};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        char value[16] = "";
        size_t size = sizeof(value);
        if (rd_kafka_conf_get(conf, expected[i][0], value, &size) == RD_KAFKA_CONF_OK &&
            strcmp(value, expected[i][1]) != 0 && strcmp(value, expected[i][2]) != 0) {
            return hps_error_set(err, HPS_INVALID,
                                 "property \"%s\": got %s, expected %s: a record is published only "
                                 "when all in-sync replicas have acknowledged it",
                                 expected[i][0], value, expected[i][1]);
        }
    }
    return HPS_OK;
}

static hps_status make_client(struct hps_producer *producer,
                              const struct hps_producer_options *options, struct hps_error *err)
{
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();

    hps_status status = set_all(conf, producer, options, err);
    if (status == HPS_OK) {
        status = check_reports(conf, err);
    }
    if (status != HPS_OK) {
        rd_kafka_conf_destroy(conf);
        return status;
    }
    rd_kafka_conf_set_opaque(conf, producer);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_log_cb(conf, on_log);
    producer->kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (producer->kafka == NULL) {
        rd_kafka_conf_destroy(conf); /* rd_kafka_new takes it only on success */
        return hps_error_set(err, HPS_INVALID, "%s", text);
    }
    return HPS_OK;
}

/* The error if no broker answered. */
static hps_status unreached(const struct hps_producer *producer, struct hps_error *err)
{
    hps_status status = producer->trouble.status == HPS_UNAUTHENTICATED ||
                                producer->trouble.status == HPS_PERMISSION
                            ? producer->trouble.status
                            : HPS_UNAVAILABLE;

    return hps_error_set(err, status, "no answer from %s within %.1f s%s%s", producer->brokers,
                         (double)producer->timeout_us / 1e6,
                         producer->trouble.status != HPS_OK ? ": " : "", producer->trouble.text);
}

static int wait_ms(uint64_t end_us, int at_most)
{
    uint64_t now_us = hps_clock_us();
    uint64_t left_ms = end_us > now_us ? (end_us - now_us + 999) / 1000 : 0;

    return left_ms < (uint64_t)at_most ? (int)left_ms : at_most;
}

static hps_status wait_for_broker(struct hps_producer *producer, struct hps_error *err)
{
    uint64_t end_us = hps_clock_us() + producer->timeout_us;

    do {
        const struct rd_kafka_metadata *found = NULL;
        rd_kafka_resp_err_t code =
            rd_kafka_metadata(producer->kafka, 0, NULL, &found, wait_ms(end_us, ASK_MS) + 1);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            rd_kafka_metadata_destroy(found);
            producer->trouble = (struct hps_error){0};
            return HPS_OK;
        }
        rd_kafka_poll(producer->kafka, wait_ms(end_us, WAIT_MS_MAX));
    } while (hps_clock_us() < end_us && producer->failed.status == HPS_OK);
    return unreached(producer, err);
}

hps_status hps_producer_open(const struct hps_producer_options *options,
                             struct hps_producer **out_producer, struct hps_error *err)
{
    HPS_ASSERT(options->brokers != NULL);
    HPS_ASSERT(options->n_properties == 0 || options->properties != NULL);
    struct hps_producer *producer = hps_calloc(1, sizeof(*producer));
    hps_status status = HPS_NO_MEMORY;

    if (producer == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    producer->timeout_us = options->timeout_us;
    producer->topics = hps_calloc(TOPICS_MAX, sizeof(*producer->topics));
    producer->brokers = hps_strdup(options->brokers);
    if (producer->topics == NULL || producer->brokers == NULL) {
        hps_error_set(err, HPS_NO_MEMORY, "out of memory");
        goto fail;
    }
    for (char *at = producer->brokers; *at != '\0'; at++) {
        *at = *at == ';' ? ',' : *at; /* the documents of HPS separate brokers with ';' */
    }
    status = make_client(producer, options, err);
    if (status != HPS_OK) {
        goto fail;
    }
    status = wait_for_broker(producer, err);
    if (status != HPS_OK) {
        goto fail;
    }
    *out_producer = producer;
    return HPS_OK;

fail:
    hps_producer_close(producer);
    return status;
}

void hps_producer_close(struct hps_producer *producer)
{
    if (producer == NULL) {
        return;
    }
    if (producer->kafka != NULL) {
        (void)rd_kafka_purge(producer->kafka, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        while (rd_kafka_outq_len(producer->kafka) > 0) {
            rd_kafka_poll(producer->kafka, WAIT_MS_MAX); /* reports the purged records */
        }
    }
    for (uint32_t i = 0; i < producer->n_topics; i++) {
        rd_kafka_topic_destroy(producer->topics[i].handle);
        hps_free(producer->topics[i].name);
        for (uint32_t p = 0; p < producer->topics[i].n_partitions; p++) {
            hps_free(producer->topics[i].placed[p].ranges);
        }
        hps_free(producer->topics[i].placed);
    }
    if (producer->kafka != NULL) {
        rd_kafka_destroy(producer->kafka);
    }
    hps_free(producer->topics);
    hps_free(producer->brokers);
    hps_free(producer);
}

/* ---- topics ---------------------------------------------------------------------------------- */

/* Requests the partitions of a topic until it exists or certainly does not. */
static hps_status ask_partitions(struct hps_producer *producer, rd_kafka_topic_t *handle,
                                 const char *name, uint32_t *out_n, struct hps_error *err)
{
    HPS_ASSERT(handle != NULL);
    uint64_t begin_us = hps_clock_us();
    rd_kafka_resp_err_t code;

    for (;;) {
        const struct rd_kafka_metadata *found = NULL;
        code = rd_kafka_metadata(producer->kafka, 0, handle, &found,
                                 wait_ms(begin_us + producer->timeout_us, ASK_MS) + 1);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            const struct rd_kafka_metadata_topic *topic =
                found->topic_cnt == 1 ? &found->topics[0] : NULL;
            code = topic == NULL ? RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART : topic->err;
            uint32_t n = topic == NULL ? 0 : (uint32_t)topic->partition_cnt;
            rd_kafka_metadata_destroy(found);
            if (code == RD_KAFKA_RESP_ERR_NO_ERROR && n > 0) {
                *out_n = n;
                return HPS_OK;
            }
        }
        uint64_t past_us = hps_clock_us() - begin_us;
        hps_status status = status_of(code);
        bool unknown = status == HPS_NOT_FOUND;
        if (past_us >= producer->timeout_us || (unknown && past_us >= UNKNOWN_US) ||
            status == HPS_PERMISSION || status == HPS_INVALID) {
            break;
        }
        rd_kafka_poll(producer->kafka, WAIT_MS_MAX);
    }
    if (status_of(code) == HPS_NOT_FOUND) {
        return hps_error_set(err, HPS_NOT_FOUND, "topic %s does not exist on %s: create it first",
                             name, producer->brokers);
    }
    if (status_of(code) == HPS_PERMISSION || status_of(code) == HPS_INVALID) {
        return hps_error_set(err, status_of(code), "topic %s: %s", name, rd_kafka_err2str(code));
    }
    return unreached(producer, err);
}

hps_status hps_producer_topic(struct hps_producer *producer, const char *name, uint32_t *out_topic,
                              uint32_t *out_n_partitions, struct hps_error *err)
{
    HPS_ASSERT(producer->n_topics <= TOPICS_MAX);
    struct topic topic = {0};
    hps_status status;

    for (uint32_t i = 0; i < producer->n_topics; i++) {
        if (strcmp(producer->topics[i].name, name) == 0) {
            *out_topic = i;
            *out_n_partitions = producer->topics[i].n_partitions;
            return HPS_OK;
        }
    }
    if (producer->n_topics == TOPICS_MAX) {
        return hps_error_set(err, HPS_EXHAUSTED, "more than %d topics", TOPICS_MAX);
    }
    topic.name = hps_strdup(name);
    topic.handle = rd_kafka_topic_new(producer->kafka, name, NULL);
    if (topic.name == NULL || topic.handle == NULL) {
        status = hps_error_set(err, HPS_INVALID, "topic %s: %s", name,
                               rd_kafka_err2str(rd_kafka_last_error()));
        goto fail;
    }
    status = ask_partitions(producer, topic.handle, name, &topic.n_partitions, err);
    if (status != HPS_OK) {
        goto fail;
    }
    topic.placed = hps_calloc(topic.n_partitions, sizeof(*topic.placed));
    if (topic.placed == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "out of memory");
        goto fail;
    }
    for (uint32_t i = 0; i < topic.n_partitions; i++) {
        topic.placed[i].last = -1;
    }
    *out_topic = producer->n_topics;
    *out_n_partitions = topic.n_partitions;
    producer->topics[producer->n_topics++] = topic;
    return HPS_OK;

fail:
    if (topic.handle != NULL) {
        rd_kafka_topic_destroy(topic.handle);
    }
    hps_free(topic.name);
    return status;
}

/* ---- records --------------------------------------------------------------------------------- */

static hps_status failure(const struct hps_producer *producer, struct hps_error *err)
{
    if (producer->failed.status != HPS_OK && err != NULL) {
        *err = producer->failed;
    }
    return producer->failed.status;
}

hps_status hps_producer_poll(struct hps_producer *producer, uint64_t wait_us, struct hps_error *err)
{
    uint64_t ms = (wait_us + 999) / 1000;

    (void)rd_kafka_poll(producer->kafka, ms > INT32_MAX ? INT32_MAX : (int)ms);
    return failure(producer, err);
}

/* One attempt. RD_KAFKA_RESP_ERR__QUEUE_FULL: retry later. */
static rd_kafka_resp_err_t produce(struct hps_producer *producer,
                                   const struct hps_producer_record *record, struct topic *topic)
{
    HPS_ASSERT(record->key != NULL || record->key_size == 0);
    HPS_ASSERT(record->value != NULL || record->value_size == 0);
    rd_kafka_vu_t values[VALUES_MAX] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = topic->handle},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = record->partition},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = topic},
    };
    size_t n = 4;

    /* librdkafka takes pointers that are not const, but does not write or free here. */
    values[n].vtype = RD_KAFKA_VTYPE_KEY;
    memcpy(&values[n].u.mem.ptr, &record->key, sizeof(record->key));
    values[n++].u.mem.size = record->key_size;
    values[n].vtype = RD_KAFKA_VTYPE_VALUE;
    memcpy(&values[n].u.mem.ptr, &record->value, sizeof(record->value));
    values[n++].u.mem.size = record->value_size;
    HPS_ASSERT(n + record->n_headers <= VALUES_MAX);
    for (size_t i = 0; i < record->n_headers; i++) {
        values[n].vtype = RD_KAFKA_VTYPE_HEADER;
        values[n].u.header.name = record->headers[i].name;
        values[n].u.header.val = record->headers[i].value;
        values[n++].u.header.size = (ssize_t)record->headers[i].size;
    }
    rd_kafka_error_t *error = rd_kafka_produceva(producer->kafka, values, n);
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    if (error != NULL) {
        rd_kafka_error_destroy(error);
    }
    return code;
}

hps_status hps_producer_send(struct hps_producer *producer,
                             const struct hps_producer_record *record, struct hps_error *err)
{
    HPS_ASSERT(record->topic < producer->n_topics);
    struct topic *topic = &producer->topics[record->topic];

    HPS_ASSERT((uint32_t)record->partition < topic->n_partitions);
    for (;;) {
        (void)rd_kafka_poll(producer->kafka, 0);
        hps_status status = failure(producer, err);
        if (status != HPS_OK) {
            return status;
        }
        rd_kafka_resp_err_t code = produce(producer, record, topic);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            producer->counts.n_sent++;
            return HPS_OK;
        }
        if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL) {
            (void)rd_kafka_poll(producer->kafka, 0); /* a fatal error has a better reason */
            status = failure(producer, err);
            return status != HPS_OK
                       ? status
                       : hps_error_set(err, status_of(code), "%s: a record of %zu bytes: %s%s",
                                       topic->name, record->value_size, rd_kafka_err2str(code),
                                       advice_of(code));
        }
        if (rd_kafka_outq_len(producer->kafka) == 0) {
            return hps_error_set(err, HPS_EXHAUSTED,
                                 "%s: a record of %zu bytes is larger than the client's queue: "
                                 "raise queue.buffering.max.kbytes",
                                 topic->name, record->value_size);
        }
        (void)rd_kafka_poll(producer->kafka, WAIT_MS_MAX); /* ends, because records time out */
    }
}

hps_status hps_producer_flush(struct hps_producer *producer, struct hps_error *err)
{
    while (producer->failed.status == HPS_OK && rd_kafka_outq_len(producer->kafka) > 0) {
        (void)rd_kafka_flush(producer->kafka, WAIT_MS_MAX); /* each record ends in its time */
    }
    return failure(producer, err);
}

void hps_producer_counts_get(const struct hps_producer *producer,
                             struct hps_producer_counts *out_counts)
{
    *out_counts = producer->counts;
    for (uint32_t t = 0; t < producer->n_topics; t++) {
        for (uint32_t i = 0; i < producer->topics[t].n_partitions; i++) {
            out_counts->n_unplaced += producer->topics[t].placed[i].n_unplaced;
        }
    }
}

void hps_producer_positions(const struct hps_producer *producer, hps_producer_position_fn fn,
                            void *ctx)
{
    for (uint32_t t = 0; t < producer->n_topics; t++) {
        const struct topic *topic = &producer->topics[t];
        for (uint32_t i = 0; i < topic->n_partitions; i++) {
            if (topic->placed[i].last >= 0) {
                fn(ctx, topic->name, i, topic->placed[i].last);
            }
        }
    }
}

void hps_producer_ranges(const struct hps_producer *producer, hps_producer_range_fn fn, void *ctx)
{
    for (uint32_t t = 0; t < producer->n_topics; t++) {
        const struct topic *topic = &producer->topics[t];
        for (uint32_t i = 0; i < topic->n_partitions; i++) {
            const struct placed *placed = &topic->placed[i];
            for (size_t r = 0; r < placed->n_ranges; r++) {
                fn(ctx, topic->name, i, placed->ranges[r].first, placed->ranges[r].last);
            }
        }
    }
}
