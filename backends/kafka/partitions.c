/* SPDX-License-Identifier: Apache-2.0
 *
 * librdkafka cannot read some batches: the checksum is wrong, the codec is unknown, or the inflated
 * batch is too large. Such batches are skipped. librdkafka reports only the base offset of the
 * batch, and tries it again and again. So the partition is unassigned while a binary search finds
 * the end: an offset is in the batch if its recall fails with the same base offset. No readable
 * record is skipped.
 */
#include "backends/kafka/partitions.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

/* ---- the list -------------------------------------------------------------------------------- */

struct hps_kafka_partition *hps_kafka_partition_find(struct hps_kafka_partitions *of,
                                                     const char *topic, int32_t number)
{
    struct hps_kafka_partition *partition = LIST_FIRST(&of->all);
    while (partition != NULL && (partition->number != number ||
                                 strcmp(rd_kafka_topic_name(partition->topic), topic) != 0)) {
        partition = LIST_NEXT(partition, all);
    }
    return partition;
}

/* Have capacity for the events of n partitions. */
static hps_status events_reserve(struct hps_kafka_partitions *of, uint32_t n)
{
    uint32_t events_max = 3 * n + 2;
    if (events_max > of->events_max) {
        void *events = hps_realloc(of->events, events_max * sizeof(of->events[0]));
        if (events == NULL) {
            return HPS_NO_MEMORY;
        }
        of->events = events;
        of->events_max = events_max;
    }
    return HPS_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Have librdkafka not read the partition, and end a search. */
static void partition_leave(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition)
{
    if (partition->search.watch != NULL) {
        hps_kafka_watch_free(partition->search.watch);
        partition->search.watch = NULL;
        return;
    }
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, rd_kafka_topic_name(partition->topic),
                                      partition->number);
    rd_kafka_error_t *error = rd_kafka_incremental_unassign(of->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        /* It was not assigned, or the handle has failed, which poll reports. */
        rd_kafka_error_destroy(error);
    }
}

/* Read the partition from `next` on. */
static hps_status partition_start(struct hps_kafka_partitions *of,
                                  struct hps_kafka_partition *partition, struct hps_error *err)
{
    const char *topic = rd_kafka_topic_name(partition->topic);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition->number)->offset = partition->next;
    rd_kafka_error_t *error = rd_kafka_incremental_assign(of->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        hps_status status =
            hps_error_set(err, hps_kafka_status(rd_kafka_error_code(error)), "%s [%" PRId32 "]: %s",
                          topic, partition->number, rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
        return status;
    }
    return HPS_OK;
}

static void partition_free(struct hps_kafka_partition *partition)
{
    hps_kafka_watch_free(partition->search.watch);
    rd_kafka_topic_destroy(partition->topic);
    hps_free(partition);
}

static void partition_forget(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition)
{
    LIST_REMOVE(partition, all);
    of->n--;
    partition_leave(of, partition);
    partition_free(partition);
}

struct hps_consumer_event *hps_kafka_event_add(struct hps_kafka_partitions *of,
                                               const struct hps_kafka_partition *partition,
                                               enum hps_consumer_event_kind kind, hps_status status,
                                               const char *text)
{
    HPS_ASSERT(of->n_events < of->events_max);
    struct hps_consumer_event *event = &of->events[of->n_events++];
    *event = (struct hps_consumer_event){
        .kind = kind,
        .tag = partition == NULL ? HPS_CONSUMER_NO_TAG : partition->tag,
        .offset = partition == NULL ? -1 : partition->next,
        .high = -1,
        .status = status,
    };
    hps_kafka_text_set(event->text, text);
    return event;
}

/* End reading, and report why. Frees the partition. */
static void partition_stop(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition,
                           enum hps_consumer_event_kind kind, hps_status status, const char *text)
{
    hps_kafka_event_add(of, partition, kind, status, text);
    partition_forget(of, partition);
}

/* ---- held messages --------------------------------------------------------------------------- */

/* Free the messages that the last poll delivered. */
static void held_release(struct hps_kafka_partitions *of)
{
    HPS_ASSERT(of->held.from <= of->held.to && of->held.to <= HPS_KAFKA_HELD_MAX);
    for (uint32_t i = 0; i < of->held.from; i++) {
        rd_kafka_message_destroy(of->held.messages[i]);
    }
    memmove(of->held.messages, of->held.messages + of->held.from,
            (of->held.to - of->held.from) * sizeof(of->held.messages[0]));
    of->held.to -= of->held.from;
    of->held.from = 0;
}

/* Drop the messages of a partition from index `from` on. */
static void held_drop(struct hps_kafka_partitions *of, const struct hps_kafka_partition *partition,
                      uint32_t from)
{
    uint32_t kept = from;
    HPS_ASSERT(from <= of->held.to);
    for (uint32_t i = from; i < of->held.to; i++) {
        rd_kafka_message_t *message = of->held.messages[i];
        if (message->rkt == partition->topic && message->partition == partition->number) {
            rd_kafka_message_destroy(message);
        } else {
            of->held.messages[kept++] = message;
        }
    }
    of->held.to = kept < of->held.to ? kept : of->held.to;
}

/* ---- assigning ------------------------------------------------------------------------------- */

hps_status hps_kafka_partitions_assign(struct hps_kafka_partitions *of,
                                       const struct hps_consumer_position *at, uint32_t tag,
                                       struct hps_error *err)
{
    if (at->offset < 0 || at->partition < 0) {
        return hps_error_set(err, HPS_INVALID, "%s [%" PRId32 "] at offset %" PRId64 ": below 0",
                             at->topic, at->partition, at->offset);
    }
    hps_kafka_partitions_unassign(of, at->topic, at->partition);
    struct hps_kafka_partition *partition = hps_calloc(1, sizeof(*partition));
    if (partition == NULL || events_reserve(of, of->n + 1) != HPS_OK) {
        hps_free(partition);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for partition %" PRId32 " of %s",
                             at->partition, at->topic);
    }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(of->rk, at->topic, NULL);
    if (topic == NULL) {
        hps_free(partition);
        return hps_kafka_fail(err, rd_kafka_last_error(), at->topic);
    }
    *partition = (struct hps_kafka_partition){
        .topic = topic, .number = at->partition, .tag = tag, .next = at->offset, .stale_at = -1};
    LIST_INSERT_HEAD(&of->all, partition, all);
    of->n++;
    held_release(of);
    held_drop(of, partition, 0); /* of an earlier assignment that has ended with an error */
    hps_status status = partition_start(of, partition, err);
    if (status != HPS_OK) {
        partition_forget(of, partition);
    }
    return status;
}

void hps_kafka_partitions_unassign(struct hps_kafka_partitions *of, const char *topic,
                                   int32_t number)
{
    struct hps_kafka_partition *partition = hps_kafka_partition_find(of, topic, number);
    if (partition != NULL) {
        held_release(of);
        held_drop(of, partition, 0);
        partition_forget(of, partition);
    }
}

void hps_kafka_partitions_begin(struct hps_kafka_partitions *of)
{
    held_release(of);
    of->n_events = 0;
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Errors of other offsets in a row, between which no record is delivered. */
enum { STALE_ERRORS_MAX = 8 };

/* librdkafka has stopped at `offset`, which the log does not have. The error may be of another
 * offset: of one before a seek, or of one that librdkafka read from a damaged batch. Then the
 * partition is assigned again at `next`. */
static void gap_found(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition,
                      int64_t offset)
{
    HPS_ASSERT(partition->search.watch == NULL);
    if (partition->stale_at != partition->next) {
        partition->stale_at = partition->next;
        partition->n_stale = 0;
    }
    if (offset != partition->next && partition->n_stale < STALE_ERRORS_MAX) {
        partition->n_stale++;
        partition_leave(of, partition);
        if (partition_start(of, partition, NULL) == HPS_OK) {
            return;
        }
    }
    partition_stop(of, partition, HPS_CONSUMER_GAP, HPS_RANGE, "the offset does not exist");
}

/* ---- bad batches ----------------------------------------------------------------------------- */

/* librdkafka cannot read the batch, and a retry would fail, too. */
static bool is_unreadable(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__BAD_MSG || code == RD_KAFKA_RESP_ERR__BAD_COMPRESSION ||
           code == RD_KAFKA_RESP_ERR__NOT_IMPLEMENTED;
}

/* End the search, and read from `next` on. */
static void search_end(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition)
{
    struct hps_error err = {0};
    partition_leave(of, partition);
    if (partition_start(of, partition, &err) != HPS_OK) {
        partition_stop(of, partition, HPS_CONSUMER_FAILED, HPS_DATA_LOSS, err.text);
    }
}

static void search_continue(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition)
{
    struct hps_kafka_search *search = &partition->search;
    HPS_ASSERT(search->in < search->out);
    if (search->out > search->in + 1) {
        search->at = search->in + (search->out - search->in) / 2;
        hps_kafka_recall(search->watch, search->at);
        return;
    }
    partition->next = search->out;
    struct hps_consumer_event *event =
        hps_kafka_event_add(of, partition, HPS_CONSUMER_BAD, search->status, search->text);
    event->offset = search->from;
    event->high = search->out;
    search_end(of, partition);
}

/* The record at `next` is in a bad batch. If the end of the log is not known, read again. */
static void search_begin(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition,
                         const rd_kafka_message_t *message)
{
    const char *topic = rd_kafka_topic_name(partition->topic);
    struct hps_kafka_search *search = &partition->search;
    struct hps_watch *watch = NULL;
    struct hps_leader_response leader = {.high = -1};
    partition_leave(of, partition);
    held_drop(of, partition, of->held.from);
    partition->next = message->offset > partition->next ? message->offset : partition->next;
    *search = (struct hps_kafka_search){.from = partition->next,
                                        .base = message->offset,
                                        .in = partition->next,
                                        .status = hps_kafka_status(message->err)};
    hps_ignore(/* without memory the partition is read again */ hps_kafka_watch_new(
        of->watches, topic, partition->number, &search->watch));
    snprintf(search->text, sizeof(search->text), "%s [%" PRId32 "]: %s", topic, partition->number,
             rd_kafka_message_errstr(message));
    if (hps_kafka_watch(of->watches, topic, partition->number, &watch, NULL) == HPS_OK) {
        hps_kafka_leader_response(watch, &leader);
    }
    search->out = leader.high;
    if (search->watch != NULL && search->out > search->in) {
        search_continue(of, partition);
    } else {
        search_end(of, partition);
    }
}

/* Any result except the error of this batch counts as an offset after the batch. If that is wrong,
 * the consumer reads the rest of the batch, and searches again. */
bool hps_kafka_partitions_search(struct hps_kafka_partitions *of)
{
    bool any = false;
    for (struct hps_kafka_partition *partition = LIST_FIRST(&of->all), *following;
         partition != NULL; partition = following) {
        following = LIST_NEXT(partition, all); /* the search may forget the partition */
        struct hps_kafka_search *search = &partition->search;
        struct hps_recalled now;
        if (search->watch == NULL) {
            continue;
        }
        any = true; /* or it has ended in this call */
        if (hps_kafka_recalled(search->watch, &now)) {
            bool inside = now.status != HPS_OK && now.offset == search->base;
            search->in = inside ? search->at : search->in;
            search->out = inside ? search->out : search->at;
            search_continue(of, partition);
        }
    }
    return any;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void end_reached(struct hps_kafka_partitions *of, struct hps_kafka_partition *partition,
                        int64_t offset)
{
    if (offset < partition->next) {
        return;
    }
    partition->next = offset; /* after the markers of transactions */
    uint32_t i = 0;
    while (i < of->n_events &&
           (of->events[i].kind != HPS_CONSUMER_CAUGHT_UP || of->events[i].tag != partition->tag)) {
        i++;
    }
    if (i == of->n_events) {
        hps_kafka_event_add(of, partition, HPS_CONSUMER_CAUGHT_UP, HPS_OK, "caught up");
    }
    of->events[i].offset = of->events[i].high = offset;
}

void hps_kafka_partition_failed(struct hps_kafka_partitions *of,
                                struct hps_kafka_partition *partition,
                                const rd_kafka_message_t *message)
{
    bool end = message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
    hps_status status = hps_kafka_status(message->err);
    if (end) {
        end_reached(of, partition, message->offset);
    } else if (status == HPS_RANGE) {
        gap_found(of, partition, message->offset);
    } else if (is_unreadable(message->err)) {
        search_begin(of, partition, message);
    } else if (status == HPS_NOT_FOUND) {
        partition_stop(of, partition, HPS_CONSUMER_GONE, status, rd_kafka_message_errstr(message));
    } else if (status == HPS_PERMISSION || status == HPS_DATA_LOSS || status == HPS_UNIMPLEMENTED ||
               status == HPS_INVALID) {
        partition_stop(of, partition, HPS_CONSUMER_FAILED, status,
                       rd_kafka_message_errstr(message));
    } else { /* librdkafka retries */
        HPS_LOG(DEBUG, "kafka", "fetch failed: librdkafka retries",
                HPS_STR("topic", rd_kafka_topic_name(partition->topic)),
                HPS_I64("partition", partition->number),
                HPS_STR("error", rd_kafka_message_errstr(message)));
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_kafka_partitions_open(struct hps_kafka_partitions *of, rd_kafka_t *rk,
                                     struct hps_kafka_watches *watches)
{
    *of = (struct hps_kafka_partitions){.rk = rk, .watches = watches, .held.message_bytes = 1024};
    of->held.messages = hps_calloc(HPS_KAFKA_HELD_MAX, sizeof(of->held.messages[0]));
    return of->held.messages == NULL ? HPS_NO_MEMORY : events_reserve(of, 0);
}

void hps_kafka_partitions_close(struct hps_kafka_partitions *of)
{
    for (uint32_t i = 0; i < of->held.to; i++) {
        rd_kafka_message_destroy(of->held.messages[i]);
    }
    while (!LIST_EMPTY(&of->all)) {
        struct hps_kafka_partition *partition = LIST_FIRST(&of->all);
        LIST_REMOVE(partition, all);
        partition_free(partition);
    }
    hps_free(of->held.messages);
    hps_free(of->events);
}

static void partition_sane(const struct hps_kafka_partition *partition)
{
    HPS_ASSERT(partition->topic != NULL && partition->next >= 0);
    if (partition->search.watch != NULL) {
        const struct hps_kafka_search *search = &partition->search;
        HPS_ASSERT(search->from <= search->in && search->in < search->at);
        HPS_ASSERT(search->at < search->out);
    }
}

void hps_kafka_partitions_sane(const struct hps_kafka_partitions *of)
{
    uint32_t n = 0;
    HPS_ASSERT(of->n_events <= of->events_max);
    HPS_ASSERT(of->held.from <= of->held.to && of->held.to <= HPS_KAFKA_HELD_MAX);
    const struct hps_kafka_partition *partition;
    LIST_FOREACH (partition, &of->all, all) {
        partition_sane(partition);
        n++;
    }
    HPS_ASSERT(n == of->n);
}
