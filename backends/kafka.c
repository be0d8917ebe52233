/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates from Apache Kafka. A consumer is one librdkafka handle; its callbacks run in the calls of
 * the thread that owns it, except for librdkafka's own log lines.
 *
 *     librdkafka's queue ─▶ held messages ─▶ records of a poll, up to its bounds
 *                                  └▶ errors of partitions, in their place ─▶ events
 *
 * What librdkafka has handed over and a poll had no room for is held for the next one; moving a
 * partition drops what is held of it.
 *
 * Commits go through the admin API: those of the consumer would keep new partitions from starting
 * for as long as the group's coordinator does not answer.
 */
#include "backends/kafka.h"

#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/topic_filter.h"

enum {
    HELD_MAX = 4096,        /* messages taken from librdkafka at once */
    TEXT_BYTES = 256,       /* of an event */
    BOUNDS_MS = 5000,       /* for the bounds of a gap; without an answer they are not known */
    DOWN_WAIT_MS = 200,     /* between looks whether the cluster is back */
    LETTER_ROOM_MS = 10000, /* for room among the letters that are on their way */
    CHECK_US = 1000000,     /* from an assignment to the look whether it is there */
    CHECK_MS = 1000,        /* for the answer to that */
    CLOSE_S = 5,            /* for librdkafka to end its threads */
    CONFIGS_MS = 5000,      /* for what the topics are set to, which is good to know, no more */
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
    {"socket.keepalive.enable", "true"},
    {"reconnect.backoff.max.ms", "2000"}, /* how late we may notice that the cluster is back */
    {"topic.metadata.propagation.max.ms", "1000"},
    {"fetch.queue.backoff.ms", "20"},
    /* A broker answers a connection in order: questions wait behind a fetch that waits. */
    {"fetch.wait.max.ms", "20"},
};

struct kafka {
    struct hps_update_log base;
    char *brokers;
    char *client_id;
    struct hps_kafka_property *properties; /* strings owned */
    uint32_t n_properties;
};

/* A partition that is read, or that has an end to be told. In order of (topic, number). */
struct part {
    rd_kafka_topic_t *topic; /* a reference */
    int32_t number;
    uint32_t tag;
    int64_t next; /* to be delivered; those before it never are */
    bool assigned;
    bool caught_up; /* to be told in this poll */
    bool stopped;   /* to be told, then forgotten */
    bool told;
    enum hps_consumer_event_kind stop;
    hps_status status;
    int64_t low;
    int64_t high;
    char text[TEXT_BYTES];
};

struct consumer {
    struct hps_consumer base;
    const struct kafka *log;
    char *model;
    char *group; /* NULL: no commits */
    struct hps_topic_filters *filters;
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    rd_kafka_queue_t *admin; /* answers of the admin API */
    atomic_bool awake;

    struct part *parts; /* [n_parts] */
    uint32_t n_parts;
    uint32_t parts_capacity;
    rd_kafka_message_t **held; /* [HELD_MAX] */
    uint32_t held_from;        /* those before were delivered by the last poll */
    uint32_t held_to;
    uint64_t message_bytes;              /* of one, about, lately */
    struct hps_consumer_record *records; /* [HELD_MAX] */
    struct hps_consumer_event *events;   /* [2 * parts_capacity + 2] */

    bool parts_changed; /* some part has something to tell */
    bool any_told;      /* some part is to be forgotten */
    uint64_t check_us;  /* when to look whether what was assigned is there; 0: it was */
    bool fatal;
    bool down;
    bool down_told;         /* DOWN with this reason */
    bool away_told;         /* DOWN, and not UP since */
    hps_status down_status; /* why, of the last broker that had a reason */
    char down_text[TEXT_BYTES];
    bool commits_fail;
    bool commits_fail_told;
    hps_status commits_status;
    char commits_text[TEXT_BYTES];

    rd_kafka_topic_partition_list_t *commits; /* not sent yet; NULL: none */
    bool committing;                          /* an answer is awaited */

    char *cluster_id;
    struct hps_consumer_topic *topics; /* [n_topics] names owned */
    uint32_t n_topics;

    rd_kafka_t *producer; /* of dead letters; made when there is one */
    hps_status letter_status;
    char letter_text[TEXT_BYTES];
};

/* ---- what librdkafka says ---- */

static hps_status status_of(rd_kafka_resp_err_t code)
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

static void text_set(char text[TEXT_BYTES], const char *from)
{
    snprintf(text, TEXT_BYTES, "%s", from == NULL ? "" : from);
}

/* Any thread of librdkafka. Its lines repeat what events tell once. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *line)
{
    (void)rk;
    (void)level;
    HPS_LOG(DEBUG, "kafka", "librdkafka", HPS_STR("facility", facility), HPS_STR("line", line));
}

/* In the order of (topic, number): the part, or where it would be. */
static uint32_t part_place(const struct consumer *c, const rd_kafka_topic_t *topic, int32_t number)
{
    uint32_t from = 0;
    uint32_t to = c->n_parts;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        const struct part *part = &c->parts[mid];
        if ((uintptr_t)part->topic < (uintptr_t)topic ||
            (part->topic == topic && part->number < number)) {
            from = mid + 1;
        } else {
            to = mid;
        }
    }
    return from;
}

static struct part *part_find(struct consumer *c, const rd_kafka_topic_t *topic, int32_t number)
{
    uint32_t i = part_place(c, topic, number);
    bool there = i < c->n_parts && c->parts[i].topic == topic && c->parts[i].number == number;
    return there ? &c->parts[i] : NULL;
}

static struct part *part_named(struct consumer *c, const char *topic, size_t size, int32_t number)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const char *name = rd_kafka_topic_name(c->parts[i].topic);
        if (c->parts[i].number == number && strlen(name) == size &&
            memcmp(name, topic, size) == 0) {
            return &c->parts[i];
        }
    }
    return NULL;
}

static void part_leave(struct consumer *c, struct part *part);

/* The partition has come to an end that is to be told. */
static void part_stop(struct consumer *c, struct part *part, enum hps_consumer_event_kind kind,
                      hps_status status, const char *text)
{
    if (part->stopped) {
        return;
    }
    part_leave(c, part);
    c->parts_changed = true;
    part->stopped = true;
    part->stop = kind;
    part->status = status;
    part->low = -1;
    part->high = -1;
    text_set(part->text, text);
}

/* "hps_et.m.t [3]: topic does not exist (…)": the only word that comes of it, and of which. */
static void topic_gone(struct consumer *c, const char *reason)
{
    const char *bracket = strstr(reason, " [");
    if (bracket == NULL) {
        return;
    }
    char *end = NULL;
    long number = strtol(bracket + 2, &end, 10);
    struct part *part = part_named(c, reason, (size_t)(bracket - reason), (int32_t)number);
    if (*end == ']' && part != NULL) {
        part_stop(c, part, HPS_CONSUMER_GONE, HPS_NOT_FOUND, reason);
    }
}

/* In a call of the consumer's thread that serves its queue. */
static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct consumer *c = opaque;
    hps_status status = status_of((rd_kafka_resp_err_t)code);
    HPS_LOG(DEBUG, "kafka", "error", HPS_STR("code", rd_kafka_err2name(code)),
            HPS_STR("error", reason));
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        char text[TEXT_BYTES];
        rd_kafka_fatal_error(rk, text, sizeof(text));
        text_set(c->down_text, text);
        c->fatal = true;
    } else if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        if (c->down_text[0] == '\0') {
            text_set(c->down_text, reason);
        }
        c->down = true;
    } else if (status == HPS_NOT_FOUND) {
        topic_gone(c, reason);
    } else if (!c->down || (status == HPS_UNAUTHENTICATED && c->down_status != status)) {
        /* Of one broker: the reason, should it be the last one. That we are refused is told even
         * later. */
        c->down_status = status == HPS_UNAUTHENTICATED ? status : HPS_UNAVAILABLE;
        text_set(c->down_text, reason);
        c->down_told = false;
    }
    /* Told now, not when the wait is over. */
    rd_kafka_queue_yield(c->queue);
}

/* The cluster has answered. */
static void heard(struct consumer *c)
{
    c->down = false;
    c->down_told = false; /* of the next time */
    c->down_status = HPS_UNAVAILABLE;
    c->down_text[0] = '\0';
}

static hps_status fail(struct hps_error *err, rd_kafka_resp_err_t code, const char *what)
{
    return hps_error_set(err, status_of(code), "%s: %s", what, rd_kafka_err2str(code));
}

/* An answer, or none, to a question of ours. */
static hps_status answered(struct consumer *c, rd_kafka_resp_err_t code, const char *what,
                           struct hps_error *err)
{
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        heard(c);
        return HPS_OK;
    }
    if (c->down) {
        return hps_error_set(err, c->down_status, "%s: %s", what, c->down_text);
    }
    return fail(err, code, what);
}

/* ---- settings ---- */

static bool is_fixed(const char *name)
{
    for (size_t i = 0; i < sizeof(FIXED) / sizeof(FIXED[0]); i++) {
        if (strcmp(name, FIXED[i].name) == 0) {
            return true;
        }
    }
    return false;
}

static hps_status set(rd_kafka_conf_t *conf, const char *name, const char *value,
                      struct hps_error *err)
{
    char text[256];
    if (rd_kafka_conf_set(conf, name, value, text, sizeof(text)) != RD_KAFKA_CONF_OK) {
        return hps_error_set(err, HPS_INVALID, "Kafka property \"%s\": %s", name, text);
    }
    return HPS_OK;
}

/* Everything but what a handle has of its own. out_conf is the caller's. */
static hps_status make_conf(const struct kafka *log, rd_kafka_conf_t **out_conf,
                            struct hps_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    hps_status status = set(conf, "bootstrap.servers", log->brokers, err);
    for (size_t i = 0; i < sizeof(FIXED) / sizeof(FIXED[0]) && status == HPS_OK; i++) {
        status = set(conf, FIXED[i].name, FIXED[i].value, err);
    }
    for (size_t i = 0; i < sizeof(DEFAULTS) / sizeof(DEFAULTS[0]); i++) {
        hps_ignore(set(conf, DEFAULTS[i].name, DEFAULTS[i].value, NULL)); /* newer, or not there */
    }
    for (uint32_t i = 0; i < log->n_properties && status == HPS_OK; i++) {
        status = set(conf, log->properties[i].name, log->properties[i].value, err);
    }
    if (status != HPS_OK) {
        rd_kafka_conf_destroy(conf);
        return status;
    }
    rd_kafka_conf_set_log_cb(conf, on_log);
    *out_conf = conf;
    return HPS_OK;
}

static hps_status set_client_id(rd_kafka_conf_t *conf, const struct kafka *log, const char *name,
                                struct hps_error *err)
{
    char id[256];
    snprintf(id, sizeof(id), "%s-%s", log->client_id, name);
    return set(conf, "client.id", id, err);
}

/* ---- partitions ---- */

static void part_leave(struct consumer *c, struct part *part)
{
    if (!part->assigned) {
        return;
    }
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, rd_kafka_topic_name(part->topic), part->number);
    rd_kafka_error_t *error = rd_kafka_incremental_unassign(c->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        /* Only for a handle that has failed for good: poll tells of it. */
        rd_kafka_error_destroy(error);
    }
    part->assigned = false;
}

/* Have it read from what is next. */
static hps_status part_start(struct consumer *c, struct part *part, struct hps_error *err)
{
    const char *topic = rd_kafka_topic_name(part->topic);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, part->number)->offset = part->next;
    rd_kafka_error_t *error = rd_kafka_incremental_assign(c->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        hps_status status =
            hps_error_set(err, status_of(rd_kafka_error_code(error)), "%s [%" PRId32 "]: %s", topic,
                          part->number, rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
        return status;
    }
    part->assigned = true;
    return HPS_OK;
}

static void part_forget(struct consumer *c, struct part *part)
{
    uint32_t i = (uint32_t)(part - c->parts);
    part_leave(c, part);
    rd_kafka_topic_destroy(part->topic);
    c->n_parts--;
    memmove(part, part + 1, (c->n_parts - i) * sizeof(*part));
}

/* Messages that the last poll delivered are no longer borrowed. */
static void held_release(struct consumer *c)
{
    for (uint32_t i = 0; i < c->held_from; i++) {
        rd_kafka_message_destroy(c->held[i]);
    }
    memmove(c->held, c->held + c->held_from, (c->held_to - c->held_from) * sizeof(c->held[0]));
    c->held_to -= c->held_from;
    c->held_from = 0;
}

/* Drop what is held of a partition; of `topic` NULL: all. */
static void held_drop(struct consumer *c, const rd_kafka_topic_t *topic, int32_t number)
{
    uint32_t kept = 0;
    held_release(c);
    for (uint32_t i = 0; i < c->held_to; i++) {
        rd_kafka_message_t *message = c->held[i];
        if (topic == NULL || (message->rkt == topic && message->partition == number)) {
            rd_kafka_message_destroy(message);
        } else {
            c->held[kept++] = message;
        }
    }
    c->held_to = kept;
}

static hps_status parts_reserve(struct consumer *c)
{
    if (c->n_parts < c->parts_capacity) {
        return HPS_OK;
    }
    uint32_t capacity = c->parts_capacity == 0 ? 8 : 2 * c->parts_capacity;
    void *parts = hps_realloc(c->parts, capacity * sizeof(c->parts[0]));
    if (parts == NULL) {
        return HPS_NO_MEMORY;
    }
    c->parts = parts;
    void *events = hps_realloc(c->events, (2 * (size_t)capacity + 2) * sizeof(c->events[0]));
    if (events == NULL) {
        return HPS_NO_MEMORY;
    }
    c->events = events;
    c->parts_capacity = capacity;
    return HPS_OK;
}

/* The part of that topic, which is taken, made if there is none. NULL: no memory. */
static struct part *part_make(struct consumer *c, rd_kafka_topic_t *topic, int32_t number)
{
    struct part *part = part_find(c, topic, number);
    if (part != NULL) {
        rd_kafka_topic_destroy(topic); /* it has a reference */
        return part;
    }
    if (parts_reserve(c) != HPS_OK) {
        rd_kafka_topic_destroy(topic);
        return NULL;
    }
    uint32_t i = part_place(c, topic, number);
    memmove(&c->parts[i + 1], &c->parts[i], (c->n_parts - i) * sizeof(c->parts[0]));
    c->n_parts++;
    c->parts[i] = (struct part){.topic = topic, .number = number};
    return &c->parts[i];
}

static hps_status kafka_assign(struct hps_consumer *base, const struct hps_consumer_position *at,
                               uint32_t tag, struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    if (at->offset < 0 || at->partition < 0) {
        return hps_error_set(err, HPS_INVALID, "%s [%" PRId32 "] at offset %" PRId64 ": below 0",
                             at->topic, at->partition, at->offset);
    }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(c->rk, at->topic, NULL);
    if (topic == NULL) {
        return fail(err, rd_kafka_last_error(), at->topic);
    }
    struct part *part = part_make(c, topic, at->partition);
    if (part == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for partition %" PRId32 " of %s",
                             at->partition, at->topic);
    }
    part_leave(c, part);
    held_drop(c, part->topic, part->number);
    *part =
        (struct part){.topic = part->topic, .number = part->number, .tag = tag, .next = at->offset};
    hps_status status = part_start(c, part, err);
    if (status != HPS_OK) {
        part_forget(c, part);
    }
    c->check_us = hps_clock_us() + CHECK_US;
    return status;
}

static void kafka_unassign(struct hps_consumer *base, const char *topic, int32_t number)
{
    struct consumer *c = (struct consumer *)base;
    struct part *part = part_named(c, topic, strlen(topic), number);
    if (part != NULL) {
        part_leave(c, part);
        held_drop(c, part->topic, part->number);
        part_forget(c, part);
    }
}

/* ---- commits ---- */

static void commits_note(struct consumer *c, rd_kafka_resp_err_t code)
{
    c->commits_fail = code != RD_KAFKA_RESP_ERR_NO_ERROR;
    c->commits_status = status_of(code);
    snprintf(c->commits_text, sizeof(c->commits_text), "group \"%s\": %s", c->group,
             rd_kafka_err2str(code));
}

/* Not by the admin calls: librdkafka ends the process when the answer to one that has timed out
 * comes after all, as after an outage. */
static void commits_send(struct consumer *c)
{
    if (c->commits == NULL || c->committing || c->down) {
        return;
    }
    rd_kafka_resp_err_t code = rd_kafka_commit_queue(c->rk, c->commits, c->admin, NULL, NULL);
    rd_kafka_topic_partition_list_destroy(c->commits);
    c->commits = NULL;
    c->committing = code == RD_KAFKA_RESP_ERR_NO_ERROR;
    if (!c->committing) {
        commits_note(c, code);
    }
}

/* What became of a commit: the first thing that went wrong. */
static void commits_answer(struct consumer *c, rd_kafka_event_t *event)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    const rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    for (int k = 0; list != NULL && k < list->cnt && code == RD_KAFKA_RESP_ERR_NO_ERROR; k++) {
        code = list->elems[k].err;
    }
    commits_note(c, code);
}

static void commits_serve(struct consumer *c)
{
    if (c->committing) {
        rd_kafka_event_t *event = rd_kafka_queue_poll(c->admin, 0);
        if (event != NULL) {
            commits_answer(c, event);
            rd_kafka_event_destroy(event);
            c->committing = false;
        }
    }
    commits_send(c);
}

static void kafka_commit(struct hps_consumer *base, const struct hps_consumer_position *positions,
                         uint32_t n_positions)
{
    struct consumer *c = (struct consumer *)base;
    if (c->group == NULL || n_positions == 0) {
        return;
    }
    if (c->commits == NULL) {
        c->commits = rd_kafka_topic_partition_list_new((int)n_positions);
    }
    for (uint32_t i = 0; i < n_positions; i++) {
        const struct hps_consumer_position *at = &positions[i];
        rd_kafka_topic_partition_t *place =
            rd_kafka_topic_partition_list_find(c->commits, at->topic, at->partition);
        if (place == NULL) {
            place = rd_kafka_topic_partition_list_add(c->commits, at->topic, at->partition);
        }
        place->offset = at->offset;
    }
    commits_serve(c);
}

/* ---- what is there ---- */

/* -1: there is no such topic. */
static int32_t partitions_in(const struct rd_kafka_metadata *all, const char *topic)
{
    for (int i = 0; i < all->topic_cnt; i++) {
        if (strcmp(all->topics[i].topic, topic) == 0) {
            return all->topics[i].partition_cnt;
        }
    }
    return -1;
}

/* Partitions that are read and not there any more. */
static void parts_check(struct consumer *c, const struct rd_kafka_metadata *all)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const char *topic = rd_kafka_topic_name(c->parts[i].topic);
        if (c->parts[i].number >= partitions_in(all, topic)) {
            char text[TEXT_BYTES];
            snprintf(text, sizeof(text), "%s [%" PRId32 "] is not there any more", topic,
                     c->parts[i].number);
            part_stop(c, &c->parts[i], HPS_CONSUMER_GONE, HPS_NOT_FOUND, text);
        }
    }
}

/* librdkafka does not always say that what was assigned is not there: look once. */
static void parts_check_late(struct consumer *c)
{
    const struct rd_kafka_metadata *all = NULL;
    if (c->check_us == 0 || hps_clock_us() < c->check_us || c->down) {
        return;
    }
    c->check_us = hps_clock_us() + CHECK_US;
    if (rd_kafka_metadata(c->rk, 1, NULL, &all, CHECK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        c->check_us = 0;
        parts_check(c, all);
        rd_kafka_metadata_destroy(all);
    }
}

/* ---- polling ---- */

/* librdkafka has stopped at `offset`, which the log does not have. An error that was on its way
 * when the partition was moved cannot be told from one of where it is now, unless by its offset:
 * then it is asked again. */
static void gap_found(struct consumer *c, struct part *part, int64_t offset)
{
    int64_t low = -1;
    int64_t high = -1;
    char text[TEXT_BYTES];
    const char *topic = rd_kafka_topic_name(part->topic);
    rd_kafka_resp_err_t code =
        rd_kafka_query_watermark_offsets(c->rk, topic, part->number, &low, &high, BOUNDS_MS);
    bool known = code == RD_KAFKA_RESP_ERR_NO_ERROR && low >= 0 && high >= 0;
    if (offset != part->next && known && part->next >= low && part->next <= high) {
        part_leave(c, part);
        if (part_start(c, part, NULL) == HPS_OK) {
            return;
        }
    }
    if (known) {
        snprintf(text, sizeof(text),
                 "%s [%" PRId32 "]: offset %" PRId64 " is not there, only %" PRId64 " to %" PRId64,
                 topic, part->number, part->next, low, high);
    } else {
        snprintf(text, sizeof(text), "%s [%" PRId32 "]: offset %" PRId64 " is not there", topic,
                 part->number, part->next);
    }
    part_stop(c, part, HPS_CONSUMER_GAP, HPS_RANGE, text);
    part->low = known ? low : -1;
    part->high = known ? high : -1;
}

static bool is_gap(rd_kafka_resp_err_t code)
{
#if RD_KAFKA_VERSION >= 0x020100ff
    if (code == RD_KAFKA_RESP_ERR__LOG_TRUNCATION) {
        return true;
    }
#endif
    return code == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET;
}

/* A message that is none: something happened to a partition. */
static void message_failed(struct consumer *c, struct part *part, const rd_kafka_message_t *message)
{
    if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        if (message->offset >= part->next) {
            part->next = message->offset; /* past markers of transactions, if any */
            part->caught_up = true;
            c->parts_changed = true;
        }
        return;
    }
    if (is_gap(message->err)) {
        gap_found(c, part, message->offset);
        return;
    }
    hps_status status = status_of(message->err);
    switch ((int)status) {
    case HPS_NOT_FOUND:
        part_stop(c, part, HPS_CONSUMER_GONE, status, rd_kafka_message_errstr(message));
        break;
    case HPS_PERMISSION:
    case HPS_DATA_LOSS:
    case HPS_UNIMPLEMENTED:
    case HPS_INVALID:
        part_stop(c, part, HPS_CONSUMER_FAILED, status, rd_kafka_message_errstr(message));
        break;
    default: /* librdkafka tries again */
        HPS_LOG(DEBUG, "kafka", "fetch failed", HPS_STR("topic", rd_kafka_topic_name(part->topic)),
                HPS_I64("partition", part->number),
                HPS_STR("error", rd_kafka_message_errstr(message)));
    }
}

static enum hps_record_time time_of(rd_kafka_timestamp_type_t type)
{
    switch (type) {
    case RD_KAFKA_TIMESTAMP_CREATE_TIME:
        return HPS_RECORD_TIME_CREATED;
    case RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME:
        return HPS_RECORD_TIME_APPENDED;
    default:
        return HPS_RECORD_TIME_NONE;
    }
}

static void record_add(struct consumer *c, uint32_t n, struct part *part,
                       const rd_kafka_message_t *message)
{
    rd_kafka_timestamp_type_t type = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    int64_t time_ms = rd_kafka_message_timestamp(message, &type);
    c->records[n] = (struct hps_consumer_record){
        .tag = part->tag,
        .partition = part->number,
        .topic = rd_kafka_topic_name(part->topic),
        .offset = message->offset,
        .time_unix_ms = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? 0 : time_ms,
        .time_of = time_of(type),
        .key = message->key,
        .key_size = message->key == NULL ? 0 : message->key_len,
        .value = message->payload,
        .value_size = message->payload == NULL ? 0 : message->len,
        .handle = message,
    };
    part->next = message->offset + 1;
}

/* Records out of what is held, up to the bounds. Messages of a partition come in runs. */
static uint32_t records_gather(struct consumer *c, uint32_t records_max, uint64_t bytes_max)
{
    struct part *part = NULL;
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (; c->held_from < c->held_to; c->held_from++) {
        const rd_kafka_message_t *message = c->held[c->held_from];
        if (message->rkt == NULL) {
            continue; /* of the group, in which we are not */
        }
        if (part == NULL || part->topic != message->rkt || part->number != message->partition) {
            part = part_find(c, message->rkt, message->partition);
        }
        if (part == NULL || !part->assigned) {
            continue;
        }
        if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
            message_failed(c, part, message);
            continue;
        }
        if (message->offset < part->next) {
            continue;
        }
        uint64_t more = message->len + message->key_len;
        if (n == records_max || (n > 0 && bytes + more > bytes_max)) {
            break;
        }
        record_add(c, n++, part, message);
        bytes += more;
    }
    if (n > 0) {
        c->message_bytes = (7 * c->message_bytes + bytes / n) / 8 + 1;
    }
    return n;
}

/* Is the cluster back? A broker that is connected shows by having been asked. */
static void look_whether_up(struct consumer *c)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(c->rk, 0, NULL, &metadata, 1);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_metadata_destroy(metadata);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR__TIMED_OUT) {
        heard(c);
    }
}

/* Take messages from librdkafka. It would wait until there are as many as asked for, so it is asked
 * to wait for one only. */
static void fetch(struct consumer *c, uint32_t timeout_ms, uint32_t n_max)
{
    ssize_t n = rd_kafka_consume_batch_queue(c->queue, 0, c->held, n_max);
    bool quiet = n <= 0 && !c->parts_changed && !c->fatal && c->down == c->away_told;
    if (quiet && !atomic_exchange(&c->awake, false) && timeout_ms > 0) {
        uint32_t wait_ms = timeout_ms > INT32_MAX ? INT32_MAX : timeout_ms;
        if (c->down && wait_ms > DOWN_WAIT_MS) {
            wait_ms = DOWN_WAIT_MS;
        }
        n = rd_kafka_consume_batch_queue(c->queue, (int)wait_ms, c->held, 1);
        if (n == 1 && n_max > 1) {
            ssize_t more = rd_kafka_consume_batch_queue(c->queue, 0, c->held + 1, n_max - 1);
            n += more > 0 ? more : 0;
        }
    }
    c->held_to = n > 0 ? (uint32_t)n : 0;
    if (c->down && n <= 0) {
        look_whether_up(c);
    }
}

static struct hps_consumer_event *event_add(struct consumer *c, uint32_t *n,
                                            enum hps_consumer_event_kind kind, hps_status status,
                                            const char *text)
{
    struct hps_consumer_event *event = &c->events[(*n)++];
    *event = (struct hps_consumer_event){
        .kind = kind,
        .tag = HPS_CONSUMER_NO_TAG,
        .offset = -1,
        .low = -1,
        .high = -1,
        .status = status,
        .text = text,
    };
    return event;
}

static void events_of_log(struct consumer *c, uint32_t *n)
{
    if (c->down && !c->down_told) {
        event_add(c, n, HPS_CONSUMER_DOWN, c->down_status, c->down_text);
        c->down_told = true;
        c->away_told = true;
    } else if (!c->down && c->away_told) {
        event_add(c, n, HPS_CONSUMER_UP, HPS_OK, "the cluster answers again");
        c->away_told = false;
    }
    if (c->commits_fail != c->commits_fail_told) {
        event_add(c, n, HPS_CONSUMER_COMMITS, c->commits_fail ? c->commits_status : HPS_OK,
                  c->commits_fail ? c->commits_text : "commits work again");
        c->commits_fail_told = c->commits_fail;
    }
}

/* All events that there are to tell; there is room for two of each part and two of the log. */
static uint32_t events_gather(struct consumer *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_parts && c->parts_changed; i++) {
        struct part *part = &c->parts[i];
        struct hps_consumer_event *event;
        if (part->caught_up) {
            event = event_add(c, &n, HPS_CONSUMER_CAUGHT_UP, HPS_OK, "caught up");
            event->tag = part->tag;
            event->offset = part->next;
            event->high = part->next;
            part->caught_up = false;
        }
        if (part->stopped) {
            event = event_add(c, &n, part->stop, part->status, part->text);
            event->tag = part->tag;
            event->offset = part->next;
            event->low = part->low;
            event->high = part->high;
            part->told = true;
            c->any_told = true;
        }
    }
    c->parts_changed = false;
    events_of_log(c, &n);
    return n;
}

/* Parts whose end was told by the last poll. */
static void parts_sweep(struct consumer *c)
{
    for (uint32_t i = c->n_parts; c->any_told && i-- > 0;) {
        if (c->parts[i].told) {
            part_forget(c, &c->parts[i]);
        }
    }
    c->any_told = false;
}

static hps_status kafka_poll(struct hps_consumer *base, uint32_t timeout_ms, uint32_t records_max,
                             uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                             struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    HPS_ASSERT(records_max > 0);
    held_release(c);
    parts_sweep(c);
    parts_check_late(c);
    commits_serve(c);
    uint32_t n_max = records_max < HELD_MAX ? records_max : HELD_MAX;
    if (c->held_to == 0) {
        uint64_t fit = bytes_max / c->message_bytes + 1;
        fetch(c, timeout_ms, fit < n_max ? (uint32_t)fit : n_max);
    }
    if (c->fatal) {
        return hps_error_set(err, HPS_INTERNAL, "Kafka consumer: %s", c->down_text);
    }
    uint32_t n_records = records_gather(c, n_max, bytes_max);
    *out_poll = (struct hps_consumer_poll){
        .records = c->records,
        .n_records = n_records,
        .events = c->events,
        .n_events = events_gather(c),
    };
    return HPS_OK;
}

static void kafka_wake(struct hps_consumer *base)
{
    struct consumer *c = (struct consumer *)base;
    atomic_store(&c->awake, true);
    rd_kafka_queue_yield(c->queue);
}

static bool kafka_header(const struct hps_consumer_record *record, const char *name,
                         const void **out_value, size_t *out_size)
{
    rd_kafka_headers_t *headers = NULL;
    return rd_kafka_message_headers(record->handle, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR &&
           rd_kafka_header_get_last(headers, name, out_value, out_size) ==
               RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* ---- topics ---- */

static int remaining_ms(uint64_t end_us)
{
    uint64_t now_us = hps_clock_us();
    uint64_t left_ms = now_us >= end_us ? 0 : (end_us - now_us) / 1000;
    return left_ms > INT32_MAX ? INT32_MAX : (int)left_ms;
}

static void topics_free(struct hps_consumer_topic *topics, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        hps_free((char *)topics[i].name);
    }
    hps_free(topics);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hps_consumer_topic *)a)->name,
                  ((const struct hps_consumer_topic *)b)->name);
}

/* The consumer's topics among all. */
static hps_status topics_pick(const struct consumer *c, const struct rd_kafka_metadata *all,
                              struct hps_consumer_topic **out_topics, uint32_t *out_n)
{
    struct hps_consumer_topic *topics = hps_calloc((size_t)all->topic_cnt + 1, sizeof(*topics));
    uint32_t n = 0;
    if (topics == NULL) {
        return HPS_NO_MEMORY;
    }
    for (int i = 0; i < all->topic_cnt; i++) {
        const struct rd_kafka_metadata_topic *topic = &all->topics[i];
        if (topic->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || topic->partition_cnt == 0 ||
            !hps_topic_filters_match(c->filters, topic->topic, c->model)) {
            continue;
        }
        topics[n] = (struct hps_consumer_topic){
            .name = hps_strdup(topic->topic),
            .n_partitions = topic->partition_cnt,
            .delete_retention_ms = -1,
        };
        if (topics[n++].name == NULL) {
            topics_free(topics, n);
            return HPS_NO_MEMORY;
        }
    }
    qsort(topics, n, sizeof(*topics), by_name);
    *out_topics = topics;
    *out_n = n;
    return HPS_OK;
}

static void topic_configure(struct hps_consumer_topic *topic,
                            const rd_kafka_ConfigResource_t *resource)
{
    size_t n = 0;
    long long kept_ms = 0;
    bool by_size = true;
    if (rd_kafka_ConfigResource_error(resource) != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return; /* not ours to see */
    }
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
    for (size_t i = 0; i < n; i++) {
        const char *name = rd_kafka_ConfigEntry_name(entries[i]);
        const char *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (value != NULL && strcmp(name, "cleanup.policy") == 0) {
            topic->compaction =
                strstr(value, "compact") != NULL ? HPS_COMPACTION_YES : HPS_COMPACTION_NO;
        } else if (value != NULL && strcmp(name, "delete.retention.ms") == 0) {
            topic->delete_retention_ms = strtoll(value, NULL, 10);
        } else if (value != NULL && strcmp(name, "retention.ms") == 0) {
            kept_ms = strtoll(value, NULL, 10);
        } else if (value != NULL && strcmp(name, "retention.bytes") == 0) {
            by_size = strtoll(value, NULL, 10) >= 0;
        }
    }
    topic->kept_ms = by_size || kept_ms < 0 ? 0 : kept_ms;
}

/* What the topics are set to, as far as we may know: without it they are UNKNOWN. */
static void topics_configure(struct consumer *c, struct hps_consumer_topic *topics, uint32_t n,
                             int timeout_ms)
{
    rd_kafka_ConfigResource_t **asked = hps_calloc((size_t)n + 1, sizeof(asked[0]));
    if (asked == NULL || n == 0) {
        hps_free(asked);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        asked[i] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topics[i].name);
    }
    rd_kafka_queue_t *queue = rd_kafka_queue_new(c->rk);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(c->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, NULL, 0);
    rd_kafka_DescribeConfigs(c->rk, asked, n, options, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, timeout_ms);
    const rd_kafka_DescribeConfigs_result_t *result =
        event == NULL ? NULL : rd_kafka_event_DescribeConfigs_result(event);
    size_t n_resources = 0;
    const rd_kafka_ConfigResource_t **resources =
        result == NULL ? NULL : rd_kafka_DescribeConfigs_result_resources(result, &n_resources);
    for (size_t i = 0; i < n_resources; i++) {
        struct hps_consumer_topic key = {.name = rd_kafka_ConfigResource_name(resources[i])};
        struct hps_consumer_topic *topic = bsearch(&key, topics, n, sizeof(*topics), by_name);
        if (topic != NULL) {
            topic_configure(topic, resources[i]);
        }
    }
    if (event != NULL) {
        rd_kafka_event_destroy(event);
    }
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(queue);
    rd_kafka_ConfigResource_destroy_array(asked, n);
    hps_free(asked);
}

/* It is the controller that is asked for settings: one that is no broker would be waited for. */
static bool has_controller(struct consumer *c, const struct rd_kafka_metadata *all)
{
    int32_t controller = rd_kafka_controllerid(c->rk, 0);
    for (int i = 0; i < all->broker_cnt; i++) {
        if (all->brokers[i].id == controller) {
            return true;
        }
    }
    return false;
}

static hps_status cluster_id_get(struct consumer *c, int timeout_ms, char **out_id)
{
    char *id = rd_kafka_clusterid(c->rk, timeout_ms);
    *out_id = hps_strdup(id == NULL ? "" : id);
    if (id != NULL) {
        rd_kafka_mem_free(c->rk, id);
    }
    return *out_id == NULL ? HPS_NO_MEMORY : HPS_OK;
}

static hps_status kafka_topics(struct hps_consumer *base, uint32_t timeout_ms,
                               struct hps_consumer_topics *out_topics, struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms;
    const struct rd_kafka_metadata *all = NULL;
    struct hps_consumer_topic *topics = NULL;
    char *cluster_id = NULL;
    uint32_t n = 0;
    rd_kafka_resp_err_t code = rd_kafka_metadata(c->rk, 1, NULL, &all, remaining_ms(end_us));
    hps_status status = answered(c, code, "no list of topics", err);
    if (status != HPS_OK) {
        return status;
    }
    parts_check(c, all);
    status = topics_pick(c, all, &topics, &n);
    bool configured = has_controller(c, all);
    rd_kafka_metadata_destroy(all);
    if (status == HPS_OK) {
        status = cluster_id_get(c, remaining_ms(end_us), &cluster_id);
    }
    if (status != HPS_OK) {
        topics_free(topics, n);
        return hps_error_set(err, status, "no memory for topics");
    }
    int configs_ms = remaining_ms(end_us);
    if (configured) {
        topics_configure(c, topics, n, configs_ms < CONFIGS_MS ? configs_ms : CONFIGS_MS);
    }
    topics_free(c->topics, c->n_topics);
    hps_free(c->cluster_id);
    c->topics = topics;
    c->n_topics = n;
    c->cluster_id = cluster_id;
    *out_topics = (struct hps_consumer_topics){cluster_id, topics, n};
    return HPS_OK;
}

/* ---- offsets ---- */

/* Ask one thing of the partitions that are fine so far: RD_KAFKA_OFFSET_BEGINNING, _END, or, 0, the
 * time of each that wants one. Answers are in their list; -1: none. */
static hps_status offsets_ask(struct consumer *c, const struct hps_consumer_offsets *parts,
                              uint32_t n_parts, int64_t what, uint64_t end_us,
                              rd_kafka_topic_partition_list_t **out_list, struct hps_error *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)n_parts);
    for (uint32_t i = 0; i < n_parts; i++) {
        bool wanted = parts[i].status == HPS_OK && (what != 0 || parts[i].time_unix_ms >= 0);
        if (wanted &&
            rd_kafka_topic_partition_list_find(list, parts[i].topic, parts[i].partition) == NULL) {
            rd_kafka_topic_partition_list_add(list, parts[i].topic, parts[i].partition)->offset =
                what != 0 ? what : parts[i].time_unix_ms;
        }
    }
    hps_status status = HPS_OK;
    if (list->cnt > 0) {
        status = answered(c, rd_kafka_offsets_for_times(c->rk, list, remaining_ms(end_us)),
                          "no answer to which offsets there are", err);
    }
    if (status != HPS_OK) {
        rd_kafka_topic_partition_list_destroy(list);
        return status;
    }
    *out_list = list;
    return HPS_OK;
}

/* The answer for one; a partition without a leader has none. */
static int64_t offset_in(rd_kafka_topic_partition_list_t *list, struct hps_consumer_offsets *part)
{
    const rd_kafka_topic_partition_t *place =
        rd_kafka_topic_partition_list_find(list, part->topic, part->partition);
    if (place == NULL) {
        return -1;
    }
    if (place->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        part->status = status_of(place->err);
        return -1;
    }
    return place->offset;
}

static void offsets_fill(struct hps_consumer_offsets *parts, uint32_t n_parts,
                         rd_kafka_topic_partition_list_t *lows,
                         rd_kafka_topic_partition_list_t *highs)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].status != HPS_OK) {
            continue;
        }
        parts[i].low = offset_in(lows, &parts[i]);
        parts[i].high = offset_in(highs, &parts[i]);
        parts[i].at_time = parts[i].high;
        if (parts[i].status == HPS_OK && (parts[i].low < 0 || parts[i].high < 0)) {
            parts[i].status = HPS_UNAVAILABLE;
        }
    }
}

static void offsets_fill_times(struct hps_consumer_offsets *parts, uint32_t n_parts,
                               rd_kafka_topic_partition_list_t *times)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].status != HPS_OK || parts[i].time_unix_ms < 0) {
            continue;
        }
        int64_t at = offset_in(times, &parts[i]);
        if (at == parts[i].time_unix_ms && at > parts[i].high) {
            parts[i].status = HPS_UNAVAILABLE; /* the question, not an answer */
        } else if (at >= parts[i].low && at < parts[i].high) {
            parts[i].at_time = at;
        }
    }
}

/* Which of them are there at all: of one that is not, librdkafka waits for a leader. */
static hps_status offsets_check(struct consumer *c, struct hps_consumer_offsets *parts,
                                uint32_t n_parts, uint64_t end_us, struct hps_error *err)
{
    const struct rd_kafka_metadata *all = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(c->rk, 1, NULL, &all, remaining_ms(end_us));
    hps_status status = answered(c, code, "no list of topics", err);
    if (status != HPS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        bool there =
            parts[i].partition >= 0 && parts[i].partition < partitions_in(all, parts[i].topic);
        parts[i].low = -1;
        parts[i].high = -1;
        parts[i].at_time = -1;
        parts[i].status = there ? HPS_OK : HPS_NOT_FOUND;
    }
    rd_kafka_metadata_destroy(all);
    return HPS_OK;
}

static hps_status kafka_offsets(struct hps_consumer *base, struct hps_consumer_offsets *parts,
                                uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms;
    rd_kafka_topic_partition_list_t *lows = NULL;
    rd_kafka_topic_partition_list_t *highs = NULL;
    rd_kafka_topic_partition_list_t *times = NULL;
    hps_status status = offsets_check(c, parts, n_parts, end_us, err);
    if (status == HPS_OK) {
        status = offsets_ask(c, parts, n_parts, RD_KAFKA_OFFSET_BEGINNING, end_us, &lows, err);
    }
    if (status == HPS_OK) {
        status = offsets_ask(c, parts, n_parts, RD_KAFKA_OFFSET_END, end_us, &highs, err);
    }
    if (status == HPS_OK) {
        offsets_fill(parts, n_parts, lows, highs);
        status = offsets_ask(c, parts, n_parts, 0, end_us, &times, err);
    }
    if (status == HPS_OK) {
        offsets_fill_times(parts, n_parts, times);
    }
    rd_kafka_topic_partition_list_t *lists[] = {lows, highs, times};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (lists[i] != NULL) {
            rd_kafka_topic_partition_list_destroy(lists[i]);
        }
    }
    return status;
}

/* ---- dead letters ---- */

/* Sending it again is of no use. */
static bool letter_refused(hps_status status)
{
    return status == HPS_INVALID || status == HPS_PERMISSION || status == HPS_NOT_FOUND;
}

/* In calls of the consumer's thread that serve the producer. What may go well another time is told
 * before what will not. */
static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct consumer *c = opaque;
    (void)rk;
    hps_status status = status_of(message->err);
    if (status != HPS_OK && (c->letter_status == HPS_OK ||
                             (letter_refused(c->letter_status) && !letter_refused(status)))) {
        c->letter_status = status;
        text_set(c->letter_text, rd_kafka_err2str(message->err));
    }
}

static hps_status producer_open(struct consumer *c, struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    char text[256];
    if (c->producer != NULL) {
        return HPS_OK;
    }
    hps_status status = make_conf(c->log, &conf, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    c->producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (c->producer == NULL) {
        rd_kafka_conf_destroy(conf);
        return hps_error_set(err, HPS_INVALID, "producer of dead letters: %s", text);
    }
    return HPS_OK;
}

/* The record's own headers, and where it is from. */
static rd_kafka_headers_t *letter_headers(const struct hps_consumer_record *record,
                                          const char *reason)
{
    rd_kafka_headers_t *headers = NULL;
    char partition[16];
    char offset[24];
    if (rd_kafka_message_headers(record->handle, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        headers = rd_kafka_headers_copy(headers);
    } else {
        headers = rd_kafka_headers_new(4);
    }
    snprintf(partition, sizeof(partition), "%" PRId32, record->partition);
    snprintf(offset, sizeof(offset), "%" PRId64, record->offset);
    rd_kafka_header_add(headers, "hps-reason", -1, reason, -1);
    rd_kafka_header_add(headers, "hps-topic", -1, record->topic, -1);
    rd_kafka_header_add(headers, "hps-partition", -1, partition, -1);
    rd_kafka_header_add(headers, "hps-offset", -1, offset, -1);
    return headers;
}

static hps_status kafka_dead_letter(struct hps_consumer *base, const char *topic,
                                    const struct hps_consumer_record *record, const char *reason,
                                    struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * LETTER_ROOM_MS;
    hps_status status = producer_open(c, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_headers_t *headers = letter_headers(record, reason);
    for (;;) {
        rd_kafka_resp_err_t code = rd_kafka_producev(
            c->producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
            RD_KAFKA_V_KEY((void *)record->key, record->key_size),
            RD_KAFKA_V_VALUE((void *)record->value, record->value_size),
            RD_KAFKA_V_TIMESTAMP(record->time_unix_ms), RD_KAFKA_V_HEADERS(headers),
            RD_KAFKA_V_END);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            return HPS_OK; /* which took the headers */
        }
        if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL || hps_clock_us() >= end_us) {
            rd_kafka_headers_destroy(headers);
            return fail(err, code, "dead letter");
        }
        rd_kafka_poll(c->producer, 100);
    }
}

static hps_status kafka_dead_letter_flush(struct hps_consumer *base, uint32_t timeout_ms,
                                          struct hps_error *err)
{
    struct consumer *c = (struct consumer *)base;
    if (c->producer == NULL) {
        return HPS_OK;
    }
    rd_kafka_resp_err_t code =
        rd_kafka_flush(c->producer, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        /* They will be sent again: let go of those that are still here. */
        rd_kafka_purge(c->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        rd_kafka_flush(c->producer, 1000);
        c->letter_status = HPS_OK;
        return fail(err, code, "dead letters");
    }
    hps_status status = c->letter_status;
    c->letter_status = HPS_OK;
    if (status != HPS_OK) {
        return hps_error_set(err, status, "dead letters: %s", c->letter_text);
    }
    return HPS_OK;
}

/* ---- opening and closing ---- */

static void *destroy_run(void *arg)
{
    /* There is no group to leave. */
    rd_kafka_destroy_flags(arg, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return NULL;
}

/* librdkafka 2.0 waits for ever for a handle that has read a topic which was deleted since. That
 * must not keep a daemon from stopping: then the handle is left to itself. */
static void handle_destroy(rd_kafka_t *rk)
{
    pthread_t thread;
    struct timespec until;
    if (hps_thread_start(0, destroy_run, rk, &thread) != HPS_OK) {
        destroy_run(rk);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
        pthread_detach(thread);
        HPS_LOG(WARN, "kafka", "a consumer does not end, its threads are left behind",
                HPS_I64("waited_s", CLOSE_S));
    }
}

static void kafka_consumer_close(struct hps_consumer *base)
{
    struct consumer *c = (struct consumer *)base;
    if (c->producer != NULL) {
        rd_kafka_purge(c->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        rd_kafka_destroy(c->producer);
    }
    if (c->held != NULL) {
        held_drop(c, NULL, 0);
    }
    for (uint32_t i = 0; i < c->n_parts; i++) {
        rd_kafka_topic_destroy(c->parts[i].topic);
    }
    if (c->commits != NULL) {
        rd_kafka_topic_partition_list_destroy(c->commits);
    }
    if (c->admin != NULL) {
        rd_kafka_queue_destroy(c->admin);
    }
    if (c->queue != NULL) {
        rd_kafka_queue_destroy(c->queue);
    }
    if (c->rk != NULL) {
        handle_destroy(c->rk);
    }
    topics_free(c->topics, c->n_topics);
    hps_topic_filters_free(c->filters);
    hps_free(c->cluster_id);
    hps_free(c->events);
    hps_free(c->records);
    hps_free(c->held);
    hps_free(c->parts);
    hps_free(c->group);
    hps_free(c->model);
    hps_free(c);
}

static const struct hps_consumer_ops CONSUMER_OPS = {
    .close = kafka_consumer_close,
    .topics = kafka_topics,
    .offsets = kafka_offsets,
    .assign = kafka_assign,
    .unassign = kafka_unassign,
    .poll = kafka_poll,
    .wake = kafka_wake,
    .header = kafka_header,
    .commit = kafka_commit,
    .dead_letter = kafka_dead_letter,
    .dead_letter_flush = kafka_dead_letter_flush,
};

/* The librdkafka handle and its queues. librdkafka reads nothing for a handle without a group. */
static hps_status handle_open(struct consumer *c, const struct hps_consumer_options *options,
                              struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    char text[256];
    hps_status status = make_conf(c->log, &conf, err);
    if (status != HPS_OK) {
        return status;
    }
    status = set_client_id(conf, c->log, options->name, err);
    if (status == HPS_OK) {
        status = set(conf, "group.id", c->group == NULL ? c->log->client_id : c->group, err);
    }
    if (status != HPS_OK) {
        rd_kafka_conf_destroy(conf);
        return status;
    }
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_error_cb(conf, on_error);
    c->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text));
    if (c->rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return hps_error_set(err, HPS_INVALID, "Kafka consumer: %s", text);
    }
    rd_kafka_poll_set_consumer(c->rk);
    c->queue = rd_kafka_queue_get_consumer(c->rk);
    c->admin = rd_kafka_queue_new(c->rk);
    return HPS_OK;
}

static hps_status kafka_consumer_open(struct hps_update_log *base,
                                      const struct hps_consumer_options *options,
                                      struct hps_consumer **out_consumer, struct hps_error *err)
{
    struct consumer *c = hps_calloc(1, sizeof(*c));
    if (c == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a consumer");
    }
    c->base.ops = &CONSUMER_OPS;
    c->log = (const struct kafka *)base;
    c->message_bytes = 1024;
    c->down_status = HPS_UNAVAILABLE;
    c->model = hps_strdup(options->model);
    c->group = options->group == NULL ? NULL : hps_strdup(options->group);
    c->held = hps_calloc(HELD_MAX, sizeof(c->held[0]));
    c->records = hps_calloc(HELD_MAX, sizeof(c->records[0]));
    hps_status status = HPS_OK;
    if (c->model == NULL || (options->group != NULL && c->group == NULL) || c->held == NULL ||
        c->records == NULL || parts_reserve(c) != HPS_OK) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a consumer");
        goto fail;
    }
    status = hps_topic_filters_new(options->filters, options->n_filters, &c->filters, err);
    if (status == HPS_OK) {
        status = handle_open(c, options, err);
    }
    if (status != HPS_OK) {
        goto fail;
    }
    *out_consumer = &c->base;
    return HPS_OK;
fail:
    kafka_consumer_close(&c->base);
    return status;
}

static void kafka_close(struct hps_update_log *base)
{
    struct kafka *log = (struct kafka *)base;
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
    .consumer_open = kafka_consumer_open,
};

static hps_status properties_copy(struct kafka *log, const struct hps_kafka_options *options,
                                  struct hps_error *err)
{
    log->properties = hps_calloc((size_t)options->n_properties + 1, sizeof(log->properties[0]));
    if (log->properties == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
    }
    for (uint32_t i = 0; i < options->n_properties; i++) {
        const struct hps_kafka_property *from = &options->properties[i];
        if (is_fixed(from->name) || strcmp(from->name, "group.id") == 0 ||
            strcmp(from->name, "client.id") == 0 || strcmp(from->name, "bootstrap.servers") == 0 ||
            strcmp(from->name, "metadata.broker.list") == 0) {
            return hps_error_set(err, HPS_INVALID, "Kafka property \"%s\" is not to be set here",
                                 from->name);
        }
        log->properties[i].name = hps_strdup(from->name);
        log->properties[i].value = hps_strdup(from->value);
        log->n_properties++;
        if (log->properties[i].name == NULL || log->properties[i].value == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory for Kafka properties");
        }
    }
    return HPS_OK;
}

hps_status hps_kafka_open(const struct hps_kafka_options *options, struct hps_update_log **out_log,
                          struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    struct kafka *log = hps_calloc(1, sizeof(*log));
    if (log == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
    }
    log->base.ops = &LOG_OPS;
    log->brokers = hps_strdup(options->brokers);
    log->client_id = hps_strdup(options->client_id == NULL ? "hpsd" : options->client_id);
    hps_status status = HPS_OK;
    if (log->brokers == NULL || log->client_id == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
        goto fail;
    }
    for (char *at = strchr(log->brokers, ';'); at != NULL; at = strchr(at, ';')) {
        *at = ',';
    }
    status = properties_copy(log, options, err);
    if (status == HPS_OK) {
        status = make_conf(log, &conf, err); /* only to know that it can be made */
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
