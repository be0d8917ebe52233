/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties, handles and errors of librdkafka. See handle.h.
 */
#include "backends/kafka/handle.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/thread.h"

enum {
    CLOSE_S = 5, /* for librdkafka to end its threads */
};

/* Operators may not change these: the contract of update logs depends on them. NULL: hpsd sets it
 * for each handle, or by another option. */
static const struct hps_kafka_property FIXED[] = {
    {"enable.auto.commit", "false"},       {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "error"},        {"enable.partition.eof", "true"},
    {"allow.auto.create.topics", "false"}, {"group.id", NULL},
    {"bootstrap.servers", NULL},           {"metadata.broker.list", NULL},
};

/* The operator may override these. Properties that this librdkafka does not know are left out. */
static const struct hps_kafka_property DEFAULTS[] = {
    {"isolation.level", "read_committed"},
    {"check.crcs", "true"},
    {"socket.timeout.ms", "10000"}, /* time until a hanging broker is noticed */
    {"socket.connection.setup.timeout.ms", "10000"},
    {"socket.keepalive.enable", "true"},
    {"reconnect.backoff.max.ms", "2000"}, /* after an outage, delay at most */
    {"topic.metadata.propagation.max.ms", "1000"},
    {"fetch.queue.backoff.ms", "20"},
    {"fetch.error.backoff.ms", "100"},
    /* A broker answers a connection in order: other requests wait behind a fetch that waits. */
    {"fetch.wait.max.ms", "20"},
    /* Also the limit for an inflated zstd batch. librdkafka guesses the size, three times more in
     * each attempt, so a batch of a third of the limit can be read: two records of 128 MiB. */
    {"receive.message.max.bytes", "1073741824"},
};

/* Before 2.2 (fetch.queue.backoff.ms) librdkafka checks once a second whether a full queue has
 * capacity again, so it reads at most one queue per second. Its default queue, 64 MiB or 100,000
 * records, is several times smaller than the updates that hpsd can apply in a second. */
static const struct hps_kafka_property SLOW_QUEUE[] = {
    {"queued.max.messages.kbytes", "262144"},
    {"queued.min.messages", "300000"},
};
#define QUEUE_BACKOFF_VERSION 0x02020000

/* From 2.4 to 2.9 librdkafka does not remove a topic from its metadata cache by id if the same name
 * appears with another id: after a topic was recreated it uses freed memory. Expired entries are
 * removed, so entries must expire faster than a topic can be recreated. */
static const struct hps_kafka_property SHORT_CACHE = {"metadata.max.age.ms", "100"};
#define TOPIC_IDS_VERSION       0x02040000
#define TOPIC_IDS_FIXED_VERSION 0x020a0000

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- errors ---------------------------------------------------------------------------------- */

hps_status hps_kafka_status(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        return HPS_OK;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
        return HPS_NOT_FOUND;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        return HPS_PERMISSION;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
    case RD_KAFKA_RESP_ERR__SSL:
        return HPS_UNAUTHENTICATED;
    case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
    case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET:
#if RD_KAFKA_VERSION >= 0x020100ff
    case RD_KAFKA_RESP_ERR__LOG_TRUNCATION:
#endif
        return HPS_RANGE;
    case RD_KAFKA_RESP_ERR__BAD_MSG:
    case RD_KAFKA_RESP_ERR__BAD_COMPRESSION:
    case RD_KAFKA_RESP_ERR_INVALID_MSG:
        return HPS_DATA_LOSS;
    case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE:
    case RD_KAFKA_RESP_ERR__NOT_IMPLEMENTED:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE:
        return HPS_UNIMPLEMENTED;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
    case RD_KAFKA_RESP_ERR__INVALID_ARG:
        return HPS_INVALID;
    case RD_KAFKA_RESP_ERR__TIMED_OUT:
    case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
        return HPS_DEADLINE;
    case RD_KAFKA_RESP_ERR__FATAL:
    case RD_KAFKA_RESP_ERR__DESTROY:
        return HPS_INTERNAL;
    default:
        return HPS_UNAVAILABLE;
    }
}

bool hps_kafka_is_silence(rd_kafka_resp_err_t code)
{
    hps_status status = hps_kafka_status(code);
    return code < RD_KAFKA_RESP_ERR__END && /* librdkafka's own, not a broker's */
           (status == HPS_UNAVAILABLE || status == HPS_DEADLINE || status == HPS_UNAUTHENTICATED ||
            status == HPS_INTERNAL);
}

hps_status hps_kafka_fail(struct hps_error *err, rd_kafka_resp_err_t code, const char *what)
{
    return hps_error_set(err, hps_kafka_status(code), "%s: %s", what, rd_kafka_err2str(code));
}

void hps_kafka_text_set(char text[HPS_KAFKA_TEXT_BYTES], const char *from)
{
    snprintf(text, HPS_KAFKA_TEXT_BYTES, "%s", from == NULL ? "" : from);
}

int hps_kafka_remaining_ms(uint64_t end_us)
{
    uint64_t now_us = hps_clock_us();
    uint64_t left_ms = now_us >= end_us ? 0 : (end_us - now_us) / 1000;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

_Static_assert((int)RD_KAFKA_TIMESTAMP_CREATE_TIME == (int)HPS_RECORD_TIME_CREATED &&
                   (int)RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME == (int)HPS_RECORD_TIME_APPENDED,
               "as in librdkafka");
struct hps_consumer_record hps_kafka_record(const rd_kafka_message_t *message)
{
    rd_kafka_timestamp_type_t type = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    int64_t time_ms = rd_kafka_message_timestamp(message, &type);
    return (struct hps_consumer_record){
        .partition = message->partition,
        .topic = rd_kafka_topic_name(message->rkt),
        .offset = message->offset,
        .time_unix_ms = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? 0 : time_ms,
        .time_of = (enum hps_record_time)type,
        .key = message->key,
        .key_size = message->key == NULL ? 0 : message->key_len,
        .value = message->payload,
        .value_size = message->payload == NULL ? 0 : message->len,
        .handle = message,
    };
}

/* Any thread of librdkafka. Events report the same once. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *line)
{
    (void)rk;
    (void)level;
    HPS_LOG(DEBUG, "kafka", "librdkafka", HPS_STR("facility", facility), HPS_STR("line", line));
}

/* ---- properties ------------------------------------------------------------------------------ */

static bool is_fixed(const char *name)
{
    for (size_t i = 0; i < COUNT(FIXED); i++) {
        if (strcmp(name, FIXED[i].name) == 0) {
            return true;
        }
    }
    return false;
}

static hps_status set(rd_kafka_conf_t *conf, const struct hps_kafka_property *property,
                      struct hps_error *err)
{
    char text[256];
    if (rd_kafka_conf_set(conf, property->name, property->value, text, sizeof(text)) !=
        RD_KAFKA_CONF_OK) {
        return hps_error_set(err, HPS_INVALID, "Kafka property \"%s\": %s", property->name, text);
    }
    return HPS_OK;
}

static hps_status set_all(rd_kafka_conf_t *conf, const struct hps_kafka_property *properties,
                          size_t n, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = set(conf, &properties[i], err);
    }
    return status;
}

hps_status hps_kafka_conf_new(const struct hps_kafka_options *options, rd_kafka_conf_t **out_conf,
                              struct hps_error *err)
{
    char *brokers = hps_strdup(options->brokers);
    if (brokers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
    }
    for (char *at = strchr(brokers, ';'); at != NULL; at = strchr(at, ';')) {
        *at = ',';
    }
    const struct hps_kafka_property named[] = {
        {"bootstrap.servers", brokers},
        {"client.id", options->client_id == NULL ? "hpsd" : options->client_id}};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    int version = rd_kafka_version();
    for (size_t i = 0; i < COUNT(DEFAULTS); i++) {
        hps_ignore(set(conf, &DEFAULTS[i], NULL)); /* this librdkafka may lack it */
    }
    hps_status status = set_all(conf, FIXED, COUNT(FIXED), err);
    if (status == HPS_OK) {
        status = set_all(conf, named, COUNT(named), err);
    }
    if (status == HPS_OK && version < QUEUE_BACKOFF_VERSION) {
        status = set_all(conf, SLOW_QUEUE, COUNT(SLOW_QUEUE), err);
    }
    if (status == HPS_OK && version >= TOPIC_IDS_VERSION && version < TOPIC_IDS_FIXED_VERSION) {
        status = set(conf, &SHORT_CACHE, err);
    }
    for (uint32_t i = 0; i < options->n_properties && status == HPS_OK; i++) {
        const struct hps_kafka_property *property = &options->properties[i];
        status = is_fixed(property->name)
                     ? hps_error_set(err, HPS_INVALID,
                                     "Kafka property \"%s\" is not to be set here", property->name)
                     : set(conf, property, err);
    }
    hps_free(brokers);
    if (status != HPS_OK) {
        rd_kafka_conf_destroy(conf);
        return status;
    }
    rd_kafka_conf_set_log_cb(conf, on_log);
    *out_conf = conf;
    return HPS_OK;
}

rd_kafka_conf_t *hps_kafka_conf(const rd_kafka_conf_t *shared, const struct hps_kafka_property *own,
                                size_t n_own)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(shared);
    hps_status status = set_all(conf, own, n_own, NULL);
    HPS_ASSERT(status == HPS_OK);
    return conf;
}

void hps_kafka_conf_at_most(rd_kafka_conf_t *conf, const char *name, long max)
{
    char text[32] = "";
    size_t size = sizeof(text);
    if (rd_kafka_conf_get(conf, name, text, &size) != RD_KAFKA_CONF_OK ||
        strtol(text, NULL, 10) > max) {
        snprintf(text, sizeof(text), "%ld", max);
        rd_kafka_conf_set(conf, name, text, NULL, 0);
    }
}

/* ---- handles --------------------------------------------------------------------------------- */

hps_status hps_kafka_handle_open(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *name,
                                 const char *what, rd_kafka_t **out_rk, struct hps_error *err)
{
    char shared_id[256] = "";
    char id[512];
    char text[256];
    size_t size = sizeof(shared_id);
    HPS_ASSERT(conf != NULL && name != NULL && what != NULL);
    /* Each handle adds its name, so that quotas and a broker's log can tell them apart. */
    rd_kafka_conf_get(conf, "client.id", shared_id, &size);
    snprintf(id, sizeof(id), "%s-%s", shared_id, name);
    const struct hps_kafka_property client_id = {"client.id", id};
    hps_status status = set(conf, &client_id, err);
    rd_kafka_t *rk = status == HPS_OK ? rd_kafka_new(type, conf, text, sizeof(text)) : NULL;
    if (rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return status != HPS_OK ? status : hps_error_set(err, HPS_INVALID, "%s: %s", what, text);
    }
    *out_rk = rk;
    return HPS_OK;
}

static void *destroy_run(void *arg)
{
    /* The consumer has joined no group, so it leaves none. */
    rd_kafka_destroy_flags(arg, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return NULL;
}

/* librdkafka 2.0 may never close a handle that has read a topic which was deleted since. The daemon
 * must stop all the same, so the handle is leaked then. */
void hps_kafka_handle_close(rd_kafka_t *rk)
{
    pthread_t thread;
    struct timespec until;
    if (rk == NULL) {
        return;
    }
    if (hps_thread_start(0, destroy_run, rk, &thread) != HPS_OK) {
        destroy_run(rk);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
        pthread_detach(thread);
        HPS_LOG(
            WARN, "kafka",
            "consumer leaked: librdkafka did not close it in time; its threads run until hpsd ends",
            HPS_I64("waited_s", CLOSE_S));
    }
}

/* ---- offsets --------------------------------------------------------------------------------- */

/* Query again for a partition that this handle does not know: it may be newer than its metadata. */
static rd_kafka_resp_err_t query_unknown(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list,
                                         rd_kafka_resp_err_t code, uint64_t end_us)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, list->elems[0].topic, NULL);
    if (topic != NULL &&
        rd_kafka_metadata(rk, 0, topic, &metadata, hps_kafka_remaining_ms(end_us)) == 0) {
        rd_kafka_metadata_destroy(metadata);
        code = rd_kafka_offsets_for_times(rk, list, hps_kafka_remaining_ms(end_us));
    }
    if (topic != NULL) {
        rd_kafka_topic_destroy(topic);
    }
    return code;
}

void hps_kafka_offsets_query(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list, int from, int n,
                             uint64_t end_us)
{
    HPS_ASSERT(from >= 0 && n > 0 && from + n <= list->cnt);
    rd_kafka_topic_partition_list_t *part = rd_kafka_topic_partition_list_new(n);
    for (int i = from; i < from + n; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        rd_kafka_topic_partition_list_add(part, at->topic, at->partition)->offset = at->offset;
    }
    rd_kafka_resp_err_t code = rd_kafka_offsets_for_times(rk, part, hps_kafka_remaining_ms(end_us));
    if (n == 1 && (code == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION ||
                   code == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC)) {
        code = query_unknown(rk, part, code, end_us);
    }
    /* After a silence, shorter lists would fail, too. */
    bool done = code == RD_KAFKA_RESP_ERR_NO_ERROR || n == 1 || hps_kafka_is_silence(code);
    for (int i = 0; i < n && done; i++) {
        list->elems[from + i].offset = part->elems[i].offset;
        list->elems[from + i].err = code != RD_KAFKA_RESP_ERR_NO_ERROR ? code : part->elems[i].err;
    }
    rd_kafka_topic_partition_list_destroy(part);
    if (!done) { /* depth: the logarithm of list->cnt */
        hps_kafka_offsets_query(rk, list, from, n / 2, end_us);
        hps_kafka_offsets_query(rk, list, from + n / 2, n - n / 2, end_us);
    }
}
