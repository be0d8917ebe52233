/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer is one librdkafka handle; its callbacks run in the calls of the thread that owns it,
 * except for librdkafka's own log lines.
 *
 *     librdkafka's queue ─▶ held messages ─▶ records of a poll, up to its bounds
 *                                  └▶ errors of partitions, in their place ─▶ events
 *
 * What librdkafka has handed over and a poll had no room for is held for the next one; moving a
 * partition drops what is held of it.
 *
 * Nothing is committed here: librdkafka starts no partition while a commit of the same handle has
 * no answer, be it for a minute. Reading from given offsets needs nothing of the group.
 */
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    DOWN_WAIT_MS = 200, /* between looks whether the cluster is back */
    SEARCH_WAIT_MS = 5, /* between looks how a search for the end of a bad batch stands */
};

/* ---- the link -------------------------------------------------------------------------------- */

#define TO(phase) (1U << (phase))

static const unsigned LINK_STEPS[HPS_KAFKA_LINK_PHASES] = {
    [HPS_KAFKA_UP] = TO(HPS_KAFKA_FALLING) | TO(HPS_KAFKA_FATAL),
    [HPS_KAFKA_FALLING] = TO(HPS_KAFKA_UP) | TO(HPS_KAFKA_DOWN) | TO(HPS_KAFKA_FATAL),
    [HPS_KAFKA_DOWN] = TO(HPS_KAFKA_CHANGED) | TO(HPS_KAFKA_RISING) | TO(HPS_KAFKA_FATAL),
    [HPS_KAFKA_CHANGED] = TO(HPS_KAFKA_DOWN) | TO(HPS_KAFKA_RISING) | TO(HPS_KAFKA_FATAL),
    [HPS_KAFKA_RISING] = TO(HPS_KAFKA_UP) | TO(HPS_KAFKA_CHANGED) | TO(HPS_KAFKA_FATAL),
    [HPS_KAFKA_FATAL] = TO(HPS_KAFKA_FATAL),
};

void hps_kafka_link_set(struct hps_kafka_consumer *c, enum hps_kafka_link_phase to)
{
    HPS_ASSERT(c->link.phase < HPS_KAFKA_LINK_PHASES);
    HPS_ASSERT((LINK_STEPS[c->link.phase] & TO(to)) != 0);
    c->link.phase = to;
}

/* ---- what holds ------------------------------------------------------------------------------ */

static void partition_sane(const struct hps_kafka_partition *partition)
{
    HPS_ASSERT(partition->topic != NULL);
    HPS_ASSERT(partition->phase < HPS_KAFKA_PHASES);
    HPS_ASSERT(partition->phase != HPS_KAFKA_LEFT);
    HPS_ASSERT(partition->next >= 0);
    HPS_ASSERT(!partition->bad || partition->search.from <= partition->next);
    if (partition->phase == HPS_KAFKA_SEARCHES) {
        const struct hps_kafka_search *search = &partition->search;
        HPS_ASSERT(!partition->caught_up && !partition->bad);
        HPS_ASSERT(search->from <= search->in && search->in < search->at);
        HPS_ASSERT(search->at < search->out && search->watch != NULL);
    }
}

void hps_kafka_consumer_sane(const struct hps_kafka_consumer *c)
{
    HPS_ASSERT(c->n_partitions <= c->partitions_capacity);
    HPS_ASSERT(c->held.from <= c->held.to && c->held.to <= HPS_KAFKA_HELD_MAX);
    HPS_ASSERT(c->held.message_bytes > 0);
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        const struct hps_kafka_partition *partition = &c->partitions[i];
        partition_sane(partition);
        HPS_ASSERT(c->has_news || (partition->phase != HPS_KAFKA_STOPPED && !partition->caught_up &&
                                   !partition->bad));
        if (i > 0) {
            HPS_DEBUG_ASSERT((uintptr_t)partition[-1].topic < (uintptr_t)partition->topic ||
                             (partition[-1].topic == partition->topic &&
                              partition[-1].number < partition->number));
        }
    }
}

/* ---- what librdkafka says -------------------------------------------------------------------- */

static void all_brokers_down(struct hps_kafka_consumer *c)
{
    if (c->link.phase == HPS_KAFKA_UP) {
        hps_kafka_link_set(c, HPS_KAFKA_FALLING);
    } else if (c->link.phase == HPS_KAFKA_RISING) { /* who was told DOWN was not told UP yet */
        hps_kafka_link_set(c, HPS_KAFKA_CHANGED);
    }
}

/* In a call of the consumer's thread that serves its queue. */
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
        hps_kafka_link_set(c, HPS_KAFKA_FATAL);
    } else if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        if (c->link.text[0] == '\0') {
            hps_kafka_text_set(c->link.text, reason);
        }
        all_brokers_down(c);
    } else if (status == HPS_NOT_FOUND) {
        hps_kafka_partition_gone(c, reason);
    } else if (c->link.phase == HPS_KAFKA_FATAL) {
        ; /* that is the reason */
    } else if (!hps_kafka_is_down(c) ||
               (status == HPS_UNAUTHENTICATED && c->link.status != status)) {
        /* Of one broker: the reason, should it be the last one. That we are refused is told even
         * later. */
        c->link.status = status == HPS_UNAUTHENTICATED ? status : HPS_UNAVAILABLE;
        hps_kafka_text_set(c->link.text, reason);
        if (c->link.phase == HPS_KAFKA_DOWN) {
            hps_kafka_link_set(c, HPS_KAFKA_CHANGED);
        }
    }
    /* Told now, not when the wait is over. */
    rd_kafka_queue_yield(c->queue);
}

void hps_kafka_answered(struct hps_kafka_consumer *c)
{
    if (c->link.phase == HPS_KAFKA_FALLING) { /* nobody has been told */
        hps_kafka_link_set(c, HPS_KAFKA_UP);
    } else if (hps_kafka_is_down(c)) {
        hps_kafka_link_set(c, HPS_KAFKA_RISING);
    }
    if (c->link.phase != HPS_KAFKA_FATAL) {
        c->link.status = HPS_UNAVAILABLE;
        c->link.text[0] = '\0';
    }
}

/* ---- polling --------------------------------------------------------------------------------- */

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

static void record_add(struct hps_kafka_consumer *c, uint32_t n,
                       struct hps_kafka_partition *partition, const rd_kafka_message_t *message)
{
    rd_kafka_timestamp_type_t type = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    int64_t time_ms = rd_kafka_message_timestamp(message, &type);
    HPS_ASSERT(n < HPS_KAFKA_HELD_MAX && message->offset >= partition->next);
    c->records[n] = (struct hps_consumer_record){
        .tag = partition->tag,
        .partition = partition->number,
        .topic = rd_kafka_topic_name(partition->topic),
        .offset = message->offset,
        .time_unix_ms = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? 0 : time_ms,
        .time_of = time_of(type),
        .key = message->key,
        .key_size = message->key == NULL ? 0 : message->key_len,
        .value = message->payload,
        .value_size = message->payload == NULL ? 0 : message->len,
        .handle = message,
    };
    partition->next = message->offset + 1;
}

/* Records out of what is held, up to the bounds. Messages of a partition come in runs. */
static uint32_t records_gather(struct hps_kafka_consumer *c, uint32_t records_max,
                               uint64_t bytes_max)
{
    struct hps_kafka_partition *partition = NULL;
    uint32_t n = 0;
    uint64_t bytes = 0;
    while (c->held.from < c->held.to) {
        const rd_kafka_message_t *message = c->held.messages[c->held.from];
        bool is_record = message->err == RD_KAFKA_RESP_ERR_NO_ERROR;
        uint64_t more = is_record ? message->len + message->key_len : 0;
        if (is_record && (n == records_max || (n > 0 && bytes + more > bytes_max))) {
            break;
        }
        c->held.from++;
        if (message->rkt == NULL) {
            continue; /* of the group, in which we are not */
        }
        if (partition == NULL || partition->topic != message->rkt ||
            partition->number != message->partition) {
            partition = hps_kafka_partition_find(c, message->rkt, message->partition);
        }
        if (partition == NULL || !hps_kafka_is_assigned(partition)) {
            continue;
        }
        if (!is_record) {
            hps_kafka_partition_failed(c, partition, message);
        } else if (message->offset >= partition->next) {
            record_add(c, n++, partition, message);
            bytes += more;
        }
    }
    if (n > 0) {
        c->held.message_bytes = (7 * c->held.message_bytes + bytes / n) / 8 + 1;
    }
    return n;
}

/* Is the cluster back? A broker that is connected shows by having been asked. */
static void look_whether_up(struct hps_kafka_consumer *c)
{
    const struct rd_kafka_metadata *metadata = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(c->rk, 0, NULL, &metadata, 1);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_metadata_destroy(metadata);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR__TIMED_OUT) {
        hps_kafka_answered(c);
    }
}

/* Take messages from librdkafka. It would wait until there are as many as asked for, so it is asked
 * to wait for one only. */
static void fetch(struct hps_kafka_consumer *c, uint32_t timeout_ms, uint32_t n_max)
{
    HPS_ASSERT(c->held.to == 0 && n_max > 0 && n_max <= HPS_KAFKA_HELD_MAX);
    ssize_t n = rd_kafka_consume_batch_queue(c->queue, 0, c->held.messages, n_max);
    bool told = c->link.phase == HPS_KAFKA_UP || c->link.phase == HPS_KAFKA_DOWN ||
                c->link.phase == HPS_KAFKA_CHANGED;
    bool quiet = n <= 0 && !c->has_news && told;
    if (quiet && !atomic_exchange(&c->awake, false) && timeout_ms > 0) {
        uint32_t wait_ms = timeout_ms > INT32_MAX ? INT32_MAX : timeout_ms;
        if (hps_kafka_is_down(c) && wait_ms > DOWN_WAIT_MS) {
            wait_ms = DOWN_WAIT_MS;
        }
        if (c->searches && wait_ms > SEARCH_WAIT_MS) {
            wait_ms = SEARCH_WAIT_MS;
        }
        n = rd_kafka_consume_batch_queue(c->queue, (int)wait_ms, c->held.messages, 1);
        if (n == 1 && n_max > 1) {
            ssize_t more =
                rd_kafka_consume_batch_queue(c->queue, 0, c->held.messages + 1, n_max - 1);
            n += more > 0 ? more : 0;
        }
    }
    c->held.to = n > 0 ? (uint32_t)n : 0;
    if (hps_kafka_is_down(c) && n <= 0) {
        look_whether_up(c);
    }
}

static struct hps_consumer_event *event_add(struct hps_kafka_consumer *c, uint32_t *n,
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

static void events_of_log(struct hps_kafka_consumer *c, uint32_t *n)
{
    hps_status status = HPS_OK;
    if (c->link.phase == HPS_KAFKA_FALLING || c->link.phase == HPS_KAFKA_CHANGED) {
        event_add(c, n, HPS_CONSUMER_DOWN, c->link.status, c->link.text);
        hps_kafka_link_set(c, HPS_KAFKA_DOWN);
    } else if (c->link.phase == HPS_KAFKA_RISING) {
        event_add(c, n, HPS_CONSUMER_UP, HPS_OK, "the cluster answers again");
        hps_kafka_link_set(c, HPS_KAFKA_UP);
    }
    struct hps_kafka_commits_seen *commits = &c->commits;
    if (c->group != NULL && hps_kafka_commits_news(c->log->commits, c->group, &commits->n_changes,
                                                   &status, commits->text)) {
        if (status != HPS_OK || commits->fail) {
            event_add(c, n, HPS_CONSUMER_COMMITS, status,
                      status != HPS_OK ? commits->text : "commits work again");
        }
        commits->fail = status != HPS_OK;
    }
}

static void events_of_part(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                           uint32_t *n)
{
    struct hps_consumer_event *event;
    if (partition->bad) {
        event = event_add(c, n, HPS_CONSUMER_BAD, partition->search.status, partition->search.text);
        event->tag = partition->tag;
        event->offset = partition->search.from;
        event->high = partition->next;
        partition->bad = false;
    }
    if (partition->caught_up) {
        event = event_add(c, n, HPS_CONSUMER_CAUGHT_UP, HPS_OK, "caught up");
        event->tag = partition->tag;
        event->offset = partition->next;
        event->high = partition->next;
        partition->caught_up = false;
    }
    if (partition->phase == HPS_KAFKA_STOPPED) {
        const struct hps_kafka_stop *stop = &partition->stop;
        event = event_add(c, n, stop->kind, stop->status, stop->text);
        event->tag = partition->tag;
        event->offset = partition->next;
        event->low = stop->low;
        event->high = stop->high;
        hps_kafka_phase_set(partition, HPS_KAFKA_TOLD);
    }
}

/* All events that there are to tell; there is room for three of each partition and two of the log.
 */
static uint32_t events_gather(struct hps_kafka_consumer *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_partitions && c->has_news; i++) {
        events_of_part(c, &c->partitions[i], &n);
    }
    c->has_news = false;
    events_of_log(c, &n);
    HPS_ASSERT(n <= 3 * (size_t)c->partitions_capacity + 2);
    return n;
}

static hps_status kafka_poll(struct hps_consumer *base, uint32_t timeout_ms, uint32_t records_max,
                             uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                             struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    HPS_ASSERT(records_max > 0);
    hps_kafka_held_release(c);
    hps_kafka_partitions_sweep(c);
    hps_kafka_partitions_check_late(c);
    uint32_t n_max = records_max < HPS_KAFKA_HELD_MAX ? records_max : HPS_KAFKA_HELD_MAX;
    if (c->held.to == 0) {
        uint64_t fit = bytes_max / c->held.message_bytes + 1;
        fetch(c, timeout_ms, fit < n_max ? (uint32_t)fit : n_max);
    }
    if (c->link.phase == HPS_KAFKA_FATAL) {
        return hps_error_set(err, HPS_INTERNAL, "Kafka consumer: %s", c->link.text);
    }
    uint32_t n_records = records_gather(c, n_max, bytes_max);
    c->searches = hps_kafka_partitions_search(c);
    *out_poll = (struct hps_consumer_poll){
        .records = c->records,
        .n_records = n_records,
        .events = c->events,
        .n_events = events_gather(c),
    };
    hps_kafka_consumer_sane(c);
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

/* ---- opening and closing --------------------------------------------------------------------- */

static void consumer_close(struct hps_consumer *base)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    hps_kafka_dead_letters_close(c);
    if (c->held.messages != NULL) {
        hps_kafka_held_drop_all(c);
    }
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        hps_kafka_recall_free(c->partitions[i].search.watch);
        rd_kafka_topic_destroy(c->partitions[i].topic);
    }
    hps_kafka_watches_free(c);
    if (c->answers != NULL) {
        rd_kafka_queue_destroy(c->answers);
    }
    if (c->queue != NULL) {
        rd_kafka_queue_destroy(c->queue);
    }
    hps_kafka_handle_close(c->rk);
    hps_kafka_topics_free(c->list.topics, c->list.n);
    hps_topic_filters_free(c->filters);
    hps_free(c->list.cluster_id);
    hps_free(c->events);
    hps_free(c->records);
    hps_free(c->held.messages);
    hps_free(c->partitions);
    hps_free(c->group);
    hps_free(c->model);
    hps_free(c);
}

static const struct hps_consumer_ops CONSUMER_OPS = {
    .close = consumer_close,
    .topics = hps_kafka_topics,
    .watch = hps_kafka_watch,
    .leader_response = hps_kafka_heard,
    .recall = hps_kafka_recall,
    .recalled = hps_kafka_recalled,
    .offsets = hps_kafka_offsets,
    .assign = hps_kafka_assign,
    .unassign = hps_kafka_unassign,
    .poll = kafka_poll,
    .wake = kafka_wake,
    .header = kafka_header,
    .commit = hps_kafka_commit,
    .dead_letter = hps_kafka_dead_letter,
    .dead_letter_flush = hps_kafka_dead_letter_flush,
};

/* The librdkafka handle and its queues. librdkafka reads nothing for a handle without a group. */
static hps_status handle_open(struct hps_kafka_consumer *c,
                              const struct hps_consumer_options *options, struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    const struct hps_kafka_property group = {"group.id",
                                             c->group == NULL ? c->log->client_id : c->group};
    hps_status status = hps_kafka_conf(c->log, &group, 1, &conf, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_error_cb(conf, on_error);
    status = hps_kafka_handle_open(c->log, RD_KAFKA_CONSUMER, conf, options->name, "Kafka consumer",
                                   &c->rk, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_poll_set_consumer(c->rk);
    c->queue = rd_kafka_queue_get_consumer(c->rk);
    c->answers = rd_kafka_queue_new(c->rk);
    return HPS_OK;
}

hps_status hps_kafka_consumer_open(struct hps_update_log *base,
                                   const struct hps_consumer_options *options,
                                   struct hps_consumer **out_consumer, struct hps_error *err)
{
    struct hps_kafka_consumer *c = hps_calloc(1, sizeof(*c));
    if (c == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a consumer");
    }
    c->base.ops = &CONSUMER_OPS;
    c->log = (struct hps_kafka *)base;
    c->held.message_bytes = 1024;
    c->link.status = HPS_UNAVAILABLE;
    c->model = hps_strdup(options->model);
    c->group = options->group == NULL ? NULL : hps_strdup(options->group);
    c->held.messages = hps_calloc(HPS_KAFKA_HELD_MAX, sizeof(c->held.messages[0]));
    c->records = hps_calloc(HPS_KAFKA_HELD_MAX, sizeof(c->records[0]));
    hps_status status = HPS_OK;
    if (c->model == NULL || (options->group != NULL && c->group == NULL) ||
        c->held.messages == NULL || c->records == NULL ||
        hps_kafka_partitions_reserve(c) != HPS_OK) {
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
    consumer_close(&c->base);
    return status;
}
