/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer is one handle of librdkafka. Its callbacks run in calls of the consumer's thread,
 * except for librdkafka's own log lines.
 *
 *     librdkafka's queue ─▶ held messages ─▶ records of a poll, up to its limits
 *                                  └▶ errors of partitions, in their place ─▶ events
 *
 * Messages that do not fit into a poll are held for the next one. Moving a partition drops its held
 * messages.
 */
#include "backends/kafka/consumer.h"

#include <string.h>

#include "backends/kafka/offsets.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    DOWN_WAIT_MS = 200, /* between checks whether the cluster is back */
    SEARCH_WAIT_MS = 5, /* between checks for the end of a bad batch */
    TEXT_US = 60000000, /* an error of one broker so long ago is not why all brokers are down */
};

/* ---- the link -------------------------------------------------------------------------------- */

/* FATAL is final. */
static void link_set(struct hps_kafka_link *link, enum hps_kafka_link_phase to)
{
    HPS_ASSERT(link->phase != HPS_KAFKA_FATAL || to == HPS_KAFKA_FATAL);
    link->phase = to;
}

static hps_status link_status(const struct hps_kafka_link *link)
{
    return link->phase == HPS_KAFKA_DOWN ? link->status : HPS_OK;
}

/* The next poll has to report it. */
static bool link_has_news(const struct hps_kafka_link *link)
{
    return link->phase == HPS_KAFKA_FATAL || link_status(link) != link->reported;
}

/* Runs in a call of the consumer's thread that serves its queue. */
static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct hps_kafka_consumer *c = opaque;
    hps_status status = hps_kafka_status((rd_kafka_resp_err_t)code);
    HPS_LOG(DEBUG, "kafka", "librdkafka error: see code and error",
            HPS_STR("code", rd_kafka_err2name(code)), HPS_STR("error", reason));
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        char text[HPS_KAFKA_TEXT_BYTES];
        rd_kafka_fatal_error(rk, text, sizeof(text));
        hps_kafka_text_set(c->link.text, text);
        link_set(&c->link, HPS_KAFKA_FATAL);
    } else if (c->link.phase == HPS_KAFKA_FATAL || status == HPS_NOT_FOUND) {
        ; /* the reason is set; lists of topics show which partitions do not exist */
    } else if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        if (c->link.text[0] == '\0' || hps_clock_us() > c->link.text_us + TEXT_US) {
            c->link.status = HPS_UNAVAILABLE;
            hps_kafka_text_set(c->link.text, reason);
        }
        link_set(&c->link, HPS_KAFKA_DOWN);
    } else if (c->link.phase == HPS_KAFKA_UP || status == HPS_UNAUTHENTICATED) {
        /* The error of one broker: the reason if all brokers fail. A refusal is reported even after
         * DOWN. */
        c->link.status = status == HPS_UNAUTHENTICATED ? status : HPS_UNAVAILABLE;
        hps_kafka_text_set(c->link.text, reason);
        c->link.text_us = hps_clock_us();
    }
    /* End the wait, so that the poll reports the event now. */
    rd_kafka_queue_yield(c->queue);
}

/* The cluster has responded. */
static void link_responded(struct hps_kafka_consumer *c)
{
    if (c->link.phase != HPS_KAFKA_FATAL) {
        link_set(&c->link, HPS_KAFKA_UP);
        c->link.status = HPS_UNAVAILABLE;
        c->link.text[0] = '\0';
    }
}

/* ---- polling --------------------------------------------------------------------------------- */

static void record_add(struct hps_kafka_consumer *c, uint32_t n,
                       struct hps_kafka_partition *partition, const rd_kafka_message_t *message)
{
    HPS_ASSERT(n < HPS_KAFKA_HELD_MAX && message->offset >= partition->next);
    c->records[n] = hps_kafka_record(message);
    c->records[n].tag = partition->tag;
    partition->next = message->offset + 1;
}

/* Make records of held messages, up to the limits. Messages of a partition come in runs. */
static uint32_t records_gather(struct hps_kafka_consumer *c, uint32_t records_max,
                               uint64_t bytes_max)
{
    struct hps_kafka_held *held = &c->partitions->held;
    struct hps_kafka_partition *partition = NULL;
    uint32_t n = 0;
    uint64_t bytes = 0;
    while (held->from < held->to) {
        const rd_kafka_message_t *message = held->messages[held->from];
        bool is_record = message->err == RD_KAFKA_RESP_ERR_NO_ERROR;
        uint64_t more = is_record ? message->len + message->key_len : 0;
        if (is_record && (n == records_max || (n > 0 && bytes + more > bytes_max))) {
            break;
        }
        held->from++;
        if (message->rkt == NULL) {
            continue; /* an error of the group, which hpsd has not joined */
        }
        if (partition == NULL || partition->topic != message->rkt ||
            partition->number != message->partition) {
            partition = hps_kafka_partition_find(c->partitions, rd_kafka_topic_name(message->rkt),
                                                 message->partition);
        }
        if (partition == NULL || partition->search.watch != NULL) {
            continue;
        }
        if (!is_record) {
            hps_kafka_partition_failed(c->partitions, partition, message);
            partition = NULL; /* it may be forgotten */
        } else if (message->offset >= partition->next) {
            record_add(c, n++, partition, message);
            bytes += more;
        }
    }
    if (n > 0) {
        held->message_bytes = (7 * held->message_bytes + bytes / n) / 8 + 1;
    }
    return n;
}

/* Check whether the cluster is back: a timeout means that a request was sent to a broker. */
static void check_whether_up(struct hps_kafka_consumer *c)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(c->rk, 0, NULL, &metadata, 1);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_metadata_destroy(metadata);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR__TIMED_OUT) {
        link_responded(c);
    }
}

/* Take messages from librdkafka. It waits until it has the requested number, so the call that waits
 * requests only one. */
static void fetch(struct hps_kafka_consumer *c, uint32_t timeout_ms, uint32_t n_max)
{
    struct hps_kafka_held *held = &c->partitions->held;
    HPS_ASSERT(held->to == 0 && n_max > 0 && n_max <= HPS_KAFKA_HELD_MAX);
    ssize_t n = rd_kafka_consume_batch_queue(c->queue, 0, held->messages, n_max);
    bool down = c->link.phase == HPS_KAFKA_DOWN;
    bool quiet = n <= 0 && c->partitions->n_events == 0 && !link_has_news(&c->link);
    if (quiet && !atomic_exchange(&c->awake, false) && timeout_ms > 0) {
        uint32_t wait_ms = timeout_ms > INT32_MAX ? INT32_MAX : timeout_ms;
        if (down && wait_ms > DOWN_WAIT_MS) {
            wait_ms = DOWN_WAIT_MS;
        }
        if (c->searches && wait_ms > SEARCH_WAIT_MS) {
            wait_ms = SEARCH_WAIT_MS;
        }
        n = rd_kafka_consume_batch_queue(c->queue, (int)wait_ms, held->messages, 1);
        if (n == 1 && n_max > 1) {
            ssize_t more = rd_kafka_consume_batch_queue(c->queue, 0, held->messages + 1, n_max - 1);
            n += more > 0 ? more : 0;
        }
    }
    held->to = n > 0 ? (uint32_t)n : 0;
    if (c->link.phase == HPS_KAFKA_DOWN && n <= 0) {
        check_whether_up(c);
    }
}

static void events_of_log(struct hps_kafka_consumer *c)
{
    char text[HPS_KAFKA_TEXT_BYTES];
    if (link_has_news(&c->link)) {
        bool down = c->link.phase == HPS_KAFKA_DOWN;
        c->link.reported = link_status(&c->link);
        hps_kafka_event_add(c->partitions, NULL, down ? HPS_CONSUMER_DOWN : HPS_CONSUMER_UP,
                            c->link.reported, down ? c->link.text : "the cluster responds again");
    }
    if (c->log->commits != NULL &&
        hps_kafka_commits_turn(c->log->commits, &c->commits_status, text)) {
        hps_kafka_event_add(c->partitions, NULL, HPS_CONSUMER_COMMITS, c->commits_status,
                            c->commits_status != HPS_OK ? text : "commits work again");
    }
}

static hps_status kafka_poll(struct hps_consumer *base, uint32_t timeout_ms, uint32_t records_max,
                             uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                             struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    HPS_ASSERT(records_max > 0);
    hps_kafka_partitions_begin(c->partitions);
    uint32_t n_max = records_max < HPS_KAFKA_HELD_MAX ? records_max : HPS_KAFKA_HELD_MAX;
    const struct hps_kafka_held *held = &c->partitions->held;
    if (held->to == 0) {
        uint64_t fit = bytes_max / held->message_bytes + 1;
        fetch(c, timeout_ms, fit < n_max ? (uint32_t)fit : n_max);
    }
    if (c->link.phase == HPS_KAFKA_FATAL) {
        return hps_error_set(err, HPS_INTERNAL, "Kafka consumer: %s", c->link.text);
    }
    uint32_t n_records = records_gather(c, n_max, bytes_max);
    c->searches = hps_kafka_partitions_search(c->partitions);
    events_of_log(c);
    *out_poll = (struct hps_consumer_poll){
        .records = c->records,
        .n_records = n_records,
        .events = c->partitions->events,
        .n_events = c->partitions->n_events,
    };
    hps_kafka_partitions_sane(c->partitions);
    return HPS_OK;
}

static void kafka_wake(struct hps_consumer *base)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
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

/* ---- the other calls ------------------------------------------------------------------------- */

static void kafka_topics(struct hps_consumer *base, uint64_t since_us,
                         struct hps_consumer_topics *out_topics)
{
    *out_topics = *hps_kafka_topics_get(((struct hps_kafka_consumer *)base)->topics, since_us);
}

static hps_status kafka_watch(struct hps_consumer *base, const char *topic, int32_t partition,
                              struct hps_watch **out_watch, struct hps_error *err)
{
    return hps_kafka_watch(&((struct hps_kafka_consumer *)base)->watches, topic, partition,
                           out_watch, err);
}

static hps_status kafka_offsets(struct hps_consumer *base, struct hps_consumer_offsets *parts,
                                uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    return hps_kafka_offsets(c->rk, &c->watches, parts, n_parts, timeout_ms, err);
}

static hps_status kafka_assign(struct hps_consumer *base, const struct hps_consumer_position *at,
                               uint32_t tag, struct hps_error *err)
{
    return hps_kafka_partitions_assign(((struct hps_kafka_consumer *)base)->partitions, at, tag,
                                       err);
}

static void kafka_unassign(struct hps_consumer *base, const char *topic, int32_t partition)
{
    hps_kafka_partitions_unassign(((struct hps_kafka_consumer *)base)->partitions, topic,
                                  partition);
}

static void kafka_commit(struct hps_consumer *base, const struct hps_consumer_position *positions,
                         uint32_t n_positions)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    if (c->log->commits != NULL) {
        hps_kafka_commits_add(c->log->commits, positions, n_positions);
    }
}

static hps_status kafka_dead_letter(struct hps_consumer *base, const char *topic,
                                    const struct hps_consumer_record *record, const char *reason,
                                    uint32_t timeout_ms, struct hps_error *err)
{
    return hps_kafka_dead_letters_send(&((struct hps_kafka_consumer *)base)->dead_letters, topic,
                                       record, reason, timeout_ms, err);
}

static void kafka_dead_letter_flush(struct hps_consumer *base, uint32_t timeout_ms,
                                    struct hps_dead_letters *out_letters)
{
    hps_kafka_dead_letters_flush(&((struct hps_kafka_consumer *)base)->dead_letters, timeout_ms,
                                 out_letters);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void consumer_close(struct hps_consumer *base)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    hps_kafka_dead_letters_close(&c->dead_letters);
    hps_kafka_partitions_close(c->partitions);
    hps_kafka_watches_free(&c->watches);
    hps_kafka_topics_close(c->topics);
    if (c->queue != NULL) {
        rd_kafka_queue_destroy(c->queue);
    }
    hps_kafka_handle_close(c->rk);
    hps_free(c->topics);
    hps_free(c->partitions);
    hps_free(c->records);
    hps_free(c);
}

static const struct hps_consumer_ops CONSUMER_OPS = {
    .close = consumer_close,
    .topics = kafka_topics,
    .watch = kafka_watch,
    .leader_response = hps_kafka_leader_response,
    .recall = hps_kafka_recall,
    .recalled = hps_kafka_recalled,
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

/* librdkafka reads nothing through a handle without a group. */
static hps_status handle_open(struct hps_kafka_consumer *c,
                              const struct hps_consumer_options *options, struct hps_error *err)
{
    const char *name = c->log->group == NULL ? "hpsd" : c->log->group;
    const struct hps_kafka_property group = {"group.id", name};
    rd_kafka_conf_t *conf = hps_kafka_conf(c->log->shared, &group, 1);
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_error_cb(conf, on_error);
    hps_status status = hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, options->name,
                                              "Kafka consumer", &c->rk, err);
    if (status == HPS_OK) {
        rd_kafka_poll_set_consumer(c->rk);
        c->queue = rd_kafka_queue_get_consumer(c->rk);
    }
    return status;
}

hps_status hps_kafka_consumer_open(struct hps_update_log *base,
                                   const struct hps_consumer_options *options,
                                   struct hps_consumer **out_consumer, struct hps_error *err)
{
    struct hps_kafka_consumer *c = hps_calloc(1, sizeof(*c));
    struct hps_kafka_topics *topics = hps_calloc(1, sizeof(*topics));
    struct hps_kafka_partitions *partitions = hps_calloc(1, sizeof(*partitions));
    if (c == NULL || topics == NULL || partitions == NULL) {
        hps_free(c);
        hps_free(topics);
        hps_free(partitions);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a consumer");
    }
    struct hps_kafka *log = (struct hps_kafka *)base;
    c->base.ops = &CONSUMER_OPS;
    c->log = log;
    c->topics = topics;
    c->partitions = partitions;
    c->link.status = HPS_UNAVAILABLE;
    c->dead_letters.shared = log->shared;
    c->watches = (struct hps_kafka_watches){.leaders = log->leaders, .recalls = log->recalls};
    c->records = hps_calloc(HPS_KAFKA_HELD_MAX, sizeof(c->records[0]));
    hps_status status = handle_open(c, options, err);
    if (status == HPS_OK) {
        status = hps_kafka_topics_open(c->topics, log->leaders, options, err);
    }
    if (status == HPS_OK &&
        (c->records == NULL ||
         hps_kafka_partitions_open(c->partitions, c->rk, &c->watches) != HPS_OK)) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a consumer");
    }
    if (status != HPS_OK) {
        consumer_close(&c->base);
        return status;
    }
    *out_consumer = &c->base;
    return HPS_OK;
}
