/* SPDX-License-Identifier: Apache-2.0
 *
 * The partitions that a consumer reads: where each is, and what ends that. On the thread of the
 * consumer.
 *
 * Records that librdkafka cannot read (a wrong checksum, an unknown codec, more than may be
 * inflated) are left out. librdkafka reports the base offset of their batch and not its end, and
 * stays there. So the partition is unassigned while the end is found by halves: an offset is in the
 * batch if to read it there, through the handles of recall.c, fails with the same base offset.
 * Nothing that can be read is left out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    CHECK_US = 1000000, /* from an assignment to the look whether it is there, and between them */
    CHECK_MS = 200,     /* for the answer to that */
};

/* ---- phases ---------------------------------------------------------------------------------- */

#define TO(phase) (1U << (phase))

static const unsigned STEPS[HPS_KAFKA_PHASES] = {
    [HPS_KAFKA_LEFT] = TO(HPS_KAFKA_READS) | TO(HPS_KAFKA_SEARCHES) | TO(HPS_KAFKA_STOPPED),
    [HPS_KAFKA_READS] = TO(HPS_KAFKA_LEFT),
    [HPS_KAFKA_SEARCHES] = TO(HPS_KAFKA_LEFT),
    [HPS_KAFKA_STOPPED] = TO(HPS_KAFKA_TOLD),
    [HPS_KAFKA_TOLD] = 0, /* assigned anew it is another one, as after STOPPED */
};

void hps_kafka_phase_set(struct hps_kafka_partition *partition, enum hps_kafka_phase to)
{
    HPS_ASSERT(partition->phase < HPS_KAFKA_PHASES);
    HPS_ASSERT((STEPS[partition->phase] & TO(to)) != 0);
    partition->phase = to;
}

/* ---- which there are ------------------------------------------------------------------------- */

/* In the order of (topic, number): the partition, or where it would be. */
static uint32_t partition_place(const struct hps_kafka_consumer *c, const rd_kafka_topic_t *topic,
                                int32_t number)
{
    uint32_t from = 0;
    uint32_t to = c->n_partitions;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        const struct hps_kafka_partition *partition = &c->partitions[mid];
        if ((uintptr_t)partition->topic < (uintptr_t)topic ||
            (partition->topic == topic && partition->number < number)) {
            from = mid + 1;
        } else {
            to = mid;
        }
    }
    return from;
}

struct hps_kafka_partition *hps_kafka_partition_find(struct hps_kafka_consumer *c,
                                                     const rd_kafka_topic_t *topic, int32_t number)
{
    uint32_t i = partition_place(c, topic, number);
    bool there =
        i < c->n_partitions && c->partitions[i].topic == topic && c->partitions[i].number == number;
    return there ? &c->partitions[i] : NULL;
}

static struct hps_kafka_partition *partition_named(struct hps_kafka_consumer *c, const char *topic,
                                                   size_t size, int32_t number)
{
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        const char *name = rd_kafka_topic_name(c->partitions[i].topic);
        if (c->partitions[i].number == number && strlen(name) == size &&
            memcmp(name, topic, size) == 0) {
            return &c->partitions[i];
        }
    }
    return NULL;
}

hps_status hps_kafka_partitions_reserve(struct hps_kafka_consumer *c)
{
    if (c->n_partitions < c->partitions_capacity) {
        return HPS_OK;
    }
    uint32_t capacity = c->partitions_capacity == 0 ? 8 : 2 * c->partitions_capacity;
    void *partitions = hps_realloc(c->partitions, capacity * sizeof(c->partitions[0]));
    if (partitions == NULL) {
        return HPS_NO_MEMORY;
    }
    c->partitions = partitions;
    void *events = hps_realloc(c->events, (3 * (size_t)capacity + 2) * sizeof(c->events[0]));
    if (events == NULL) {
        return HPS_NO_MEMORY;
    }
    c->events = events;
    c->partitions_capacity = capacity;
    return HPS_OK;
}

/* The partition of that topic, which is taken, made if there is none. NULL: no memory. */
static struct hps_kafka_partition *partition_make(struct hps_kafka_consumer *c,
                                                  rd_kafka_topic_t *topic, int32_t number)
{
    struct hps_kafka_partition *partition = hps_kafka_partition_find(c, topic, number);
    if (partition != NULL) {
        rd_kafka_topic_destroy(topic); /* it has a reference */
        return partition;
    }
    if (hps_kafka_partitions_reserve(c) != HPS_OK) {
        rd_kafka_topic_destroy(topic);
        return NULL;
    }
    uint32_t i = partition_place(c, topic, number);
    memmove(&c->partitions[i + 1], &c->partitions[i],
            (c->n_partitions - i) * sizeof(c->partitions[0]));
    c->n_partitions++;
    c->partitions[i] = (struct hps_kafka_partition){.topic = topic, .number = number};
    return &c->partitions[i];
}

/* ---- reading --------------------------------------------------------------------------------- */

static void partition_leave(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition)
{
    if (partition->phase == HPS_KAFKA_SEARCHES) {
        hps_kafka_recall_free(partition->search.watch);
        partition->search.watch = NULL;
        hps_kafka_phase_set(partition, HPS_KAFKA_LEFT);
    }
    if (!hps_kafka_is_assigned(partition)) {
        return;
    }
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, rd_kafka_topic_name(partition->topic),
                                      partition->number);
    rd_kafka_error_t *error = rd_kafka_incremental_unassign(c->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        /* Only for a handle that has failed for good: poll tells of it. */
        rd_kafka_error_destroy(error);
    }
    hps_kafka_phase_set(partition, HPS_KAFKA_LEFT);
}

/* Have it read from `next` on. */
static hps_status partition_start(struct hps_kafka_consumer *c,
                                  struct hps_kafka_partition *partition, struct hps_error *err)
{
    const char *topic = rd_kafka_topic_name(partition->topic);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition->number)->offset = partition->next;
    rd_kafka_error_t *error = rd_kafka_incremental_assign(c->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        hps_status status =
            hps_error_set(err, hps_kafka_status(rd_kafka_error_code(error)), "%s [%" PRId32 "]: %s",
                          topic, partition->number, rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
        return status;
    }
    hps_kafka_phase_set(partition, HPS_KAFKA_READS);
    return HPS_OK;
}

static void partition_forget(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition)
{
    uint32_t i = (uint32_t)(partition - c->partitions);
    HPS_ASSERT(i < c->n_partitions);
    partition_leave(c, partition);
    rd_kafka_topic_destroy(partition->topic);
    c->n_partitions--;
    memmove(partition, partition + 1, (c->n_partitions - i) * sizeof(*partition));
}

/* The partition has come to an end that is to be told. */
static void partition_stop(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                           enum hps_consumer_event_kind kind, hps_status status, const char *text)
{
    if (partition->phase == HPS_KAFKA_STOPPED || partition->phase == HPS_KAFKA_TOLD) {
        return;
    }
    partition_leave(c, partition);
    hps_kafka_phase_set(partition, HPS_KAFKA_STOPPED);
    c->has_news = true;
    partition->stop =
        (struct hps_kafka_stop){.kind = kind, .status = status, .low = -1, .high = -1};
    hps_kafka_text_set(partition->stop.text, text);
}

void hps_kafka_partitions_sweep(struct hps_kafka_consumer *c)
{
    for (uint32_t i = c->n_partitions; i-- > 0;) {
        if (c->partitions[i].phase == HPS_KAFKA_TOLD) {
            partition_forget(c, &c->partitions[i]);
        }
    }
}

/* ---- messages that are held ------------------------------------------------------------------ */

void hps_kafka_held_release(struct hps_kafka_consumer *c)
{
    HPS_ASSERT(c->held.from <= c->held.to && c->held.to <= HPS_KAFKA_HELD_MAX);
    for (uint32_t i = 0; i < c->held.from; i++) {
        rd_kafka_message_destroy(c->held.messages[i]);
    }
    memmove(c->held.messages, c->held.messages + c->held.from,
            (c->held.to - c->held.from) * sizeof(c->held.messages[0]));
    c->held.to -= c->held.from;
    c->held.from = 0;
}

/* Drop what is held of a partition from place `from` on. */
static void held_drop(struct hps_kafka_consumer *c, const struct hps_kafka_partition *partition,
                      uint32_t from)
{
    uint32_t kept = from;
    HPS_ASSERT(from <= c->held.to);
    for (uint32_t i = from; i < c->held.to; i++) {
        rd_kafka_message_t *message = c->held.messages[i];
        if (message->rkt == partition->topic && message->partition == partition->number) {
            rd_kafka_message_destroy(message);
        } else {
            c->held.messages[kept++] = message;
        }
    }
    c->held.to = kept < c->held.to ? kept : c->held.to;
}

void hps_kafka_held_drop_all(struct hps_kafka_consumer *c)
{
    for (uint32_t i = 0; i < c->held.to; i++) {
        rd_kafka_message_destroy(c->held.messages[i]);
    }
    c->held.from = 0;
    c->held.to = 0;
}

/* ---- assigning ------------------------------------------------------------------------------- */

hps_status hps_kafka_assign(struct hps_consumer *base, const struct hps_consumer_position *at,
                            uint32_t tag, struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    if (at->offset < 0 || at->partition < 0) {
        return hps_error_set(err, HPS_INVALID, "%s [%" PRId32 "] at offset %" PRId64 ": below 0",
                             at->topic, at->partition, at->offset);
    }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(c->rk, at->topic, NULL);
    if (topic == NULL) {
        return hps_kafka_fail(err, rd_kafka_last_error(), at->topic);
    }
    struct hps_kafka_partition *partition = partition_make(c, topic, at->partition);
    if (partition == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for partition %" PRId32 " of %s",
                             at->partition, at->topic);
    }
    partition_leave(c, partition);
    hps_kafka_held_release(c);
    held_drop(c, partition, 0);
    *partition = (struct hps_kafka_partition){
        .topic = partition->topic, .number = partition->number, .tag = tag, .next = at->offset};
    hps_status status = partition_start(c, partition, err);
    if (status != HPS_OK) {
        partition_forget(c, partition);
    }
    c->check_us = hps_clock_us() + CHECK_US;
    return status;
}

void hps_kafka_unassign(struct hps_consumer *base, const char *topic, int32_t number)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    struct hps_kafka_partition *partition = partition_named(c, topic, strlen(topic), number);
    if (partition != NULL) {
        partition_leave(c, partition);
        hps_kafka_held_release(c);
        held_drop(c, partition, 0);
        partition_forget(c, partition);
    }
}

/* ---- gone ------------------------------------------------------------------------------------ */

void hps_kafka_partition_gone(struct hps_kafka_consumer *c, const char *reason)
{
    const char *bracket = strstr(reason, " [");
    if (bracket == NULL) {
        return;
    }
    char *end = NULL;
    long number = strtol(bracket + 2, &end, 10);
    struct hps_kafka_partition *partition =
        partition_named(c, reason, (size_t)(bracket - reason), (int32_t)number);
    if (*end == ']' && partition != NULL) {
        partition_stop(c, partition, HPS_CONSUMER_GONE, HPS_NOT_FOUND, reason);
    }
}

static void partition_not_there(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition)
{
    char text[HPS_KAFKA_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s [%" PRId32 "] is not there any more",
             rd_kafka_topic_name(partition->topic), partition->number);
    partition_stop(c, partition, HPS_CONSUMER_GONE, HPS_NOT_FOUND, text);
}

void hps_kafka_partitions_check(struct hps_kafka_consumer *c, const struct rd_kafka_metadata *all)
{
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        const struct rd_kafka_metadata_topic *topic =
            hps_kafka_topic_in(all, rd_kafka_topic_name(c->partitions[i].topic));
        if (topic == NULL || c->partitions[i].number >= topic->partition_cnt) {
            partition_not_there(c, &c->partitions[i]);
        }
    }
}

/* Of those that are watched it is known anyway. True: there are others. */
static bool watched_check(struct hps_kafka_consumer *c)
{
    bool others = false;
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        struct hps_kafka_partition *partition = &c->partitions[i];
        if (partition->watch == NULL) {
            partition->watch =
                hps_kafka_watch_find(c, rd_kafka_topic_name(partition->topic), partition->number);
        }
        if (partition->watch == NULL) {
            others = true;
        } else if (hps_kafka_watch_absent(partition->watch)) {
            partition_not_there(c, partition);
        }
    }
    return others;
}

void hps_kafka_partitions_check_late(struct hps_kafka_consumer *c)
{
    const struct rd_kafka_metadata *all = NULL;
    if (c->check_us == 0 || hps_clock_us() < c->check_us || hps_kafka_is_down(c)) {
        return;
    }
    c->check_us = hps_clock_us() + CHECK_US;
    if (!watched_check(c)) {
        return;
    }
    if (rd_kafka_metadata(c->rk, 1, NULL, &all, CHECK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        c->check_us = 0;
        hps_kafka_partitions_check(c, all);
        rd_kafka_metadata_destroy(all);
    }
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* librdkafka has stopped at `offset`, which the log does not have. An error that was on its way
 * when the partition was moved cannot be told from one of where it is now, unless by its offset:
 * then it is asked again. */
static void gap_found(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                      int64_t offset)
{
    HPS_ASSERT(partition->phase == HPS_KAFKA_READS);
    int64_t low = -1;
    int64_t high = -1;
    char text[HPS_KAFKA_TEXT_BYTES];
    const char *topic = rd_kafka_topic_name(partition->topic);
    hps_kafka_bounds_ask(c, topic, partition->number, &low, &high);
    bool known = low >= 0 && high >= 0;
    bool there =
        known ? partition->next >= low && partition->next <= high : !partition->asked_again;
    if (offset != partition->next && there) {
        partition->asked_again = true;
        partition_leave(c, partition);
        if (partition_start(c, partition, NULL) == HPS_OK) {
            return;
        }
    }
    if (known) {
        snprintf(text, sizeof(text),
                 "%s [%" PRId32 "]: offset %" PRId64 " does not exist, only %" PRId64
                 " to %" PRId64,
                 topic, partition->number, partition->next, low, high);
    } else {
        snprintf(text, sizeof(text), "%s [%" PRId32 "]: offset %" PRId64 " does not exist", topic,
                 partition->number, partition->next);
    }
    partition_stop(c, partition, HPS_CONSUMER_GAP, HPS_RANGE, text);
    partition->stop.low = known ? low : -1;
    partition->stop.high = known ? high : -1;
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

/* ---- what cannot be read --------------------------------------------------------------------- */

/* librdkafka cannot make records of what the broker has sent, and will not the next time. */
static bool is_unreadable(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__BAD_MSG || code == RD_KAFKA_RESP_ERR__BAD_COMPRESSION ||
           code == RD_KAFKA_RESP_ERR__NOT_IMPLEMENTED;
}

/* End the search, and read from `next` on. */
static void search_end(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition)
{
    struct hps_error err = {0};
    partition_leave(c, partition);
    if (partition_start(c, partition, &err) != HPS_OK) {
        partition_stop(c, partition, HPS_CONSUMER_FAILED, HPS_DATA_LOSS, err.text);
    }
}

static void search_on(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition)
{
    struct hps_kafka_search *search = &partition->search;
    HPS_ASSERT(search->in < search->out);
    if (search->out > search->in + 1) {
        search->at = search->in + (search->out - search->in) / 2;
        hps_kafka_recall(search->watch, search->at);
        return;
    }
    partition->next = search->out;
    partition->bad = true;
    c->has_news = true;
    search_end(c, partition);
}

/* The record at `next` is in a bad batch. If the end of the log is not known, read it again. */
static void search_begin(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                         const rd_kafka_message_t *message)
{
    const char *topic = rd_kafka_topic_name(partition->topic);
    struct hps_kafka_search *search = &partition->search;
    int64_t low;
    partition_leave(c, partition);
    held_drop(c, partition, c->held.from);
    hps_kafka_phase_set(partition, HPS_KAFKA_SEARCHES);
    partition->next = message->offset > partition->next ? message->offset : partition->next;
    partition->caught_up = false;
    *search = (struct hps_kafka_search){.watch = hps_kafka_recall_new(c, topic, partition->number),
                                        .from = partition->next,
                                        .base = message->offset,
                                        .in = partition->next,
                                        .status = hps_kafka_status(message->err)};
    snprintf(search->text, sizeof(search->text), "%s [%" PRId32 "]: %s", topic, partition->number,
             rd_kafka_message_errstr(message));
    hps_kafka_bounds_ask(c, topic, partition->number, &low, &search->out);
    if (search->watch != NULL && search->out > search->in) {
        search_on(c, partition);
    } else {
        search_end(c, partition);
    }
}

/* Any answer but this batch's error counts as an offset behind the batch. If that is wrong, the
 * consumer meets the rest of the batch, and searches again. */
bool hps_kafka_partitions_search(struct hps_kafka_consumer *c)
{
    bool any = false;
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        struct hps_kafka_partition *partition = &c->partitions[i];
        struct hps_kafka_search *search = &partition->search;
        struct hps_recalled now;
        if (partition->phase != HPS_KAFKA_SEARCHES) {
            continue;
        }
        if (hps_kafka_recalled(search->watch, &now)) {
            bool inside = now.status != HPS_OK && now.offset == search->base;
            search->in = inside ? search->at : search->in;
            search->out = inside ? search->out : search->at;
            search_on(c, partition);
        }
        any = any || partition->phase == HPS_KAFKA_SEARCHES;
    }
    return any;
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void end_reached(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                        int64_t offset)
{
    if (offset >= partition->next) {
        partition->next = offset; /* past markers of transactions, if any */
        partition->caught_up = true;
        c->has_news = true;
    }
}

void hps_kafka_partition_failed(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                                const rd_kafka_message_t *message)
{
    bool end = message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
    hps_status status = hps_kafka_status(message->err);
    if (end) {
        end_reached(c, partition, message->offset);
    } else if (is_gap(message->err)) {
        gap_found(c, partition, message->offset);
    } else if (is_unreadable(message->err)) {
        search_begin(c, partition, message);
    } else if (status == HPS_NOT_FOUND) {
        partition_stop(c, partition, HPS_CONSUMER_GONE, status, rd_kafka_message_errstr(message));
    } else if (status == HPS_PERMISSION || status == HPS_DATA_LOSS || status == HPS_UNIMPLEMENTED ||
               status == HPS_INVALID) {
        partition_stop(c, partition, HPS_CONSUMER_FAILED, status, rd_kafka_message_errstr(message));
    } else { /* librdkafka tries again */
        HPS_LOG(DEBUG, "kafka", "fetch failed: librdkafka retries",
                HPS_STR("topic", rd_kafka_topic_name(partition->topic)),
                HPS_I64("partition", partition->number),
                HPS_STR("error", rd_kafka_message_errstr(message)));
    }
}
