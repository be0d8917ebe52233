/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates from Apache Kafka: the log itself, its settings, librdkafka's handles and what its errors
 * mean. A log has
 *
 *     a handle per consumer   that reads, and does nothing else that may wait: consumer.c
 *     one for the leaders     of watched partitions, asked again and again: leaders.c
 *     one for recalls         of single records: recall.c
 *     one per group           that commits: commits.c
 *
 * the last three made when they are first wanted, and threads of its own for them, so that whatever
 * a broker does not answer holds up nobody else.
 */
#include "backends/kafka/kafka.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/thread.h"

enum {
    CLOSE_S = 5, /* for librdkafka to end its threads */
};

/* What is ours to say: reading would not be as the contract has it otherwise. */
static const struct hps_kafka_property FIXED[] = {
    {"enable.auto.commit", "false"},       {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "error"},        {"enable.partition.eof", "true"},
    {"allow.auto.create.topics", "false"},
};

/* Ours unless the operator says otherwise; what this librdkafka does not know is left out. */
static const struct hps_kafka_property DEFAULTS[] = {
    {"isolation.level", "read_committed"},
    {"check.crcs", "true"},
    {"socket.timeout.ms", "10000"}, /* a hanging broker is noticed within it */
    {"socket.connection.setup.timeout.ms", "10000"},
    {"socket.keepalive.enable", "true"},
    {"reconnect.backoff.max.ms", "2000"}, /* how late we may notice that the cluster is back */
    {"topic.metadata.propagation.max.ms", "1000"},
    {"fetch.queue.backoff.ms", "20"},
    {"fetch.error.backoff.ms", "100"},
    /* A broker answers a connection in order: questions wait behind a fetch that waits. */
    {"fetch.wait.max.ms", "20"},
    /* Also how much a batch of zstd may be when it is inflated: librdkafka guesses, three times as
     * much each time. So a third of it is read in any case: two records of 128 MiB in one batch. */
    {"receive.message.max.bytes", "1073741824"},
};

/* Before 2.2 (fetch.queue.backoff.ms) librdkafka looks once a second whether a queue that was full
 * has room again, so that no more than a queue is read in a second: of its own size, 64 MiB or
 * 100,000 records, while several times as much can be applied. */
static const struct hps_kafka_property SLOW_QUEUE[] = {
    {"queued.max.messages.kbytes", "262144"},
    {"queued.min.messages", "300000"},
};
#define QUEUE_BACKOFF_VERSION 0x02020000

/* From 2.4 to 2.9 librdkafka forgets to take a topic out of its cache of metadata by id when the
 * same name comes with another id: of a topic that was made anew it uses memory that it has freed.
 * What has expired is taken out, so nothing may be in the cache for longer than a topic takes to go
 * and come; the next question asks the brokers again. */
static const struct hps_kafka_property SHORT_CACHE = {"metadata.max.age.ms", "100"};
#define TOPIC_IDS_VERSION        0x02040000
#define TOPIC_IDS_MENDED_VERSION 0x020a0000

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- what librdkafka says -------------------------------------------------------------------- */

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

/* Any thread of librdkafka. Its lines repeat what events tell once. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *line)
{
    (void)rk;
    (void)level;
    HPS_LOG(DEBUG, "kafka", "librdkafka", HPS_STR("facility", facility), HPS_STR("line", line));
}

/* ---- settings -------------------------------------------------------------------------------- */

static bool is_fixed(const char *name)
{
    static const char *const NAMED[] = {"group.id", "bootstrap.servers", "metadata.broker.list"};
    for (size_t i = 0; i < COUNT(FIXED); i++) {
        if (strcmp(name, FIXED[i].name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < COUNT(NAMED); i++) {
        if (strcmp(name, NAMED[i]) == 0) {
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

hps_status hps_kafka_conf(const struct hps_kafka *log, const struct hps_kafka_property *own,
                          size_t n_own, rd_kafka_conf_t **out_conf, struct hps_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    HPS_ASSERT(log->brokers != NULL && (own != NULL || n_own == 0));
    const struct hps_kafka_property brokers = {"bootstrap.servers", log->brokers};
    hps_status status = set(conf, &brokers, err);
    if (status == HPS_OK) {
        status = set_all(conf, FIXED, COUNT(FIXED), err);
    }
    for (size_t i = 0; i < COUNT(DEFAULTS); i++) {
        hps_ignore(set(conf, &DEFAULTS[i], NULL)); /* newer, or not there */
    }
    if (status == HPS_OK && rd_kafka_version() < QUEUE_BACKOFF_VERSION) {
        status = set_all(conf, SLOW_QUEUE, COUNT(SLOW_QUEUE), err);
    }
    if (status == HPS_OK && rd_kafka_version() >= TOPIC_IDS_VERSION &&
        rd_kafka_version() < TOPIC_IDS_MENDED_VERSION) {
        status = set(conf, &SHORT_CACHE, err);
    }
    if (status == HPS_OK) {
        status = set_all(conf, log->properties, log->n_properties, err);
    }
    if (status == HPS_OK) {
        status = set_all(conf, own, n_own, err);
    }
    if (status != HPS_OK) {
        rd_kafka_conf_destroy(conf);
        return status;
    }
    rd_kafka_conf_set_log_cb(conf, on_log);
    *out_conf = conf;
    return HPS_OK;
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

hps_status hps_kafka_handle_open(const struct hps_kafka *log, rd_kafka_type_t type,
                                 rd_kafka_conf_t *conf, const char *name, const char *what,
                                 rd_kafka_t **out_rk, struct hps_error *err)
{
    char id[256];
    char text[256];
    HPS_ASSERT(conf != NULL && name != NULL && what != NULL);
    snprintf(id, sizeof(id), "%s-%s", log->client_id, name);
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
    /* There is no group to leave. */
    rd_kafka_destroy_flags(arg, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return NULL;
}

/* librdkafka 2.0 waits for ever for a handle that has read a topic which was deleted since. That
 * must not keep a daemon from stopping: then the handle is left to itself. */
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

/* ---- the log --------------------------------------------------------------------------------- */

static void kafka_close(struct hps_update_log *base)
{
    struct hps_kafka *log = (struct hps_kafka *)base;
    hps_kafka_commits_free(log->commits);
    hps_kafka_recalls_free(log->recalls);
    hps_kafka_leaders_free(log->leaders);
    for (uint32_t i = 0; i < log->n_properties; i++) {
        hps_free((char *)log->properties[i].name);
        hps_free((char *)log->properties[i].value);
    }
    hps_free(log->properties);
    hps_free(log->client_id);
    hps_free(log->brokers);
    hps_free(log);
}

static const struct hps_update_log_ops LOG_OPS = {
    .name = "kafka",
    .close = kafka_close,
    .consumer_open = hps_kafka_consumer_open,
};

/* Each handle adds its name, so that quotas and a broker's log can tell them apart. */
static hps_status client_id_set(struct hps_kafka *log, const char *value, struct hps_error *err)
{
    hps_free(log->client_id);
    log->client_id = hps_strdup(value);
    return log->client_id != NULL
               ? HPS_OK
               : hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
}

static hps_status properties_copy(struct hps_kafka *log, const struct hps_kafka_options *options,
                                  struct hps_error *err)
{
    log->properties = hps_calloc((size_t)options->n_properties + 1, sizeof(log->properties[0]));
    if (log->properties == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
    }
    for (uint32_t i = 0; i < options->n_properties; i++) {
        const struct hps_kafka_property *from = &options->properties[i];
        if (is_fixed(from->name)) {
            return hps_error_set(err, HPS_INVALID, "Kafka property \"%s\" is not to be set here",
                                 from->name);
        }
        if (strcmp(from->name, "client.id") == 0) {
            hps_status status = client_id_set(log, from->value, err);
            if (status != HPS_OK) {
                return status;
            }
            continue;
        }
        struct hps_kafka_property *to = &log->properties[log->n_properties++];
        HPS_ASSERT(log->n_properties <= options->n_properties);
        to->name = hps_strdup(from->name);
        to->value = hps_strdup(from->value);
        if (to->name == NULL || to->value == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
        }
    }
    return HPS_OK;
}

hps_status hps_kafka_open(const struct hps_kafka_options *options, struct hps_update_log **out_log,
                          struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    struct hps_kafka *log = hps_calloc(1, sizeof(*log));
    if (log == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
    }
    log->base.ops = &LOG_OPS;
    log->brokers = hps_strdup(options->brokers);
    log->client_id = hps_strdup(options->client_id == NULL ? "hpsd" : options->client_id);
    hps_status status = HPS_OK;
    if (log->brokers == NULL || log->client_id == NULL ||
        hps_kafka_leaders_new(log, &log->leaders) != HPS_OK ||
        hps_kafka_recalls_new(log, &log->recalls) != HPS_OK ||
        hps_kafka_commits_new(log, &log->commits) != HPS_OK) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
        goto fail;
    }
    for (char *at = strchr(log->brokers, ';'); at != NULL; at = strchr(at, ';')) {
        *at = ',';
    }
    status = properties_copy(log, options, err);
    if (status == HPS_OK) {
        status = hps_kafka_conf(log, NULL, 0, &conf, err); /* only to know that it can be made */
    }
    if (status != HPS_OK) {
        goto fail;
    }
    rd_kafka_conf_destroy(conf);
    *out_log = &log->base;
    return HPS_OK;
fail:
    kafka_close(&log->base);
    return status;
}

hps_status hps_kafka_check(const struct hps_kafka_options *options, struct hps_error *err)
{
    const struct hps_kafka_property group = {"group.id", "hpsd.check"};
    const struct hps_kafka_property nobody = {"bootstrap.servers", NULL};
    struct hps_update_log *log = NULL;
    rd_kafka_conf_t *conf = NULL;
    rd_kafka_t *rk = NULL;
    hps_status status = hps_kafka_open(options, &log, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_kafka *kafka = (const struct hps_kafka *)log;
    status = hps_kafka_conf(kafka, &group, 1, &conf, err);
    if (status == HPS_OK) {
        status = set(conf, &nobody, err); /* without brokers nothing is connected to */
        if (status != HPS_OK) {
            rd_kafka_conf_destroy(conf);
        }
    }
    if (status == HPS_OK) {
        status = hps_kafka_handle_open(kafka, RD_KAFKA_CONSUMER, conf, "check", "Kafka consumer",
                                       &rk, err);
    }
    hps_kafka_handle_close(rk);
    log->ops->close(log);
    return status;
}
