/* SPDX-License-Identifier: Apache-2.0
 *
 * The partitions that a consumer reads: where each is, and what ends that. On the thread of the
 * consumer.
 *
 * What cannot be read (a bad checksum, a codec that nobody knows, more than may be inflated) is
 * left out. librdkafka tells the base offset of the batch, not its end, and would stay where it is.
 * So the partition is read at later offsets for as long as the same batch is refused there, first
 * in growing steps, then by halves:
 *
 *     batch         [ base .. in ............... ][ out
 *     read at            +1 +2   +4      +8            ─▶ the first that is not in it
 *
 * Whatever else comes from an offset, be it the end or nothing for a while, says that it is not in
 * the batch: so nothing that can be read is left out. Nothing is delivered meanwhile.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    CHECK_US = 1000000,   /* from an assignment to the look whether it is there, and between them */
    CHECK_MS = 200,       /* for the answer to that */
    SEARCH_US = 10000000, /* for what an offset brings */
    STRAYED_MAX = 20,     /* so often an answer from elsewhere is not taken for that of an offset */
};

static void part_leave(struct hps_kafka_consumer *c, struct hps_kafka_part *part);

/* ---- which there are ------------------------------------------------------------------------- */

/* In the order of (topic, number): the part, or where it would be. */
static uint32_t part_place(const struct hps_kafka_consumer *c, const rd_kafka_topic_t *topic,
                           int32_t number)
{
    uint32_t from = 0;
    uint32_t to = c->n_parts;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        const struct hps_kafka_part *part = &c->parts[mid];
        if ((uintptr_t)part->topic < (uintptr_t)topic ||
            (part->topic == topic && part->number < number)) {
            from = mid + 1;
        } else {
            to = mid;
        }
    }
    return from;
}

struct hps_kafka_part *hps_kafka_part_find(struct hps_kafka_consumer *c,
                                           const rd_kafka_topic_t *topic, int32_t number)
{
    uint32_t i = part_place(c, topic, number);
    bool there = i < c->n_parts && c->parts[i].topic == topic && c->parts[i].number == number;
    return there ? &c->parts[i] : NULL;
}

static struct hps_kafka_part *part_named(struct hps_kafka_consumer *c, const char *topic,
                                         size_t size, int32_t number)
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

hps_status hps_kafka_parts_reserve(struct hps_kafka_consumer *c)
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
    void *events = hps_realloc(c->events, (3 * (size_t)capacity + 2) * sizeof(c->events[0]));
    if (events == NULL) {
        return HPS_NO_MEMORY;
    }
    c->events = events;
    c->parts_capacity = capacity;
    return HPS_OK;
}

/* The part of that topic, which is taken, made if there is none. NULL: no memory. */
static struct hps_kafka_part *part_make(struct hps_kafka_consumer *c, rd_kafka_topic_t *topic,
                                        int32_t number)
{
    struct hps_kafka_part *part = hps_kafka_part_find(c, topic, number);
    if (part != NULL) {
        rd_kafka_topic_destroy(topic); /* it has a reference */
        return part;
    }
    if (hps_kafka_parts_reserve(c) != HPS_OK) {
        rd_kafka_topic_destroy(topic);
        return NULL;
    }
    uint32_t i = part_place(c, topic, number);
    memmove(&c->parts[i + 1], &c->parts[i], (c->n_parts - i) * sizeof(c->parts[0]));
    c->n_parts++;
    c->parts[i] = (struct hps_kafka_part){.topic = topic, .number = number};
    return &c->parts[i];
}

/* ---- reading --------------------------------------------------------------------------------- */

static void part_leave(struct hps_kafka_consumer *c, struct hps_kafka_part *part)
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

/* Have it read from `offset` on. */
static hps_status part_start(struct hps_kafka_consumer *c, struct hps_kafka_part *part,
                             int64_t offset, struct hps_error *err)
{
    const char *topic = rd_kafka_topic_name(part->topic);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, part->number)->offset = offset;
    rd_kafka_error_t *error = rd_kafka_incremental_assign(c->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error != NULL) {
        hps_status status =
            hps_error_set(err, hps_kafka_status(rd_kafka_error_code(error)), "%s [%" PRId32 "]: %s",
                          topic, part->number, rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
        return status;
    }
    part->assigned = true;
    return HPS_OK;
}

static void search_end(struct hps_kafka_consumer *c, struct hps_kafka_part *part)
{
    if (part->search.going) {
        part->search.going = false;
        c->n_searching--;
    }
}

static void part_forget(struct hps_kafka_consumer *c, struct hps_kafka_part *part)
{
    uint32_t i = (uint32_t)(part - c->parts);
    part_leave(c, part);
    search_end(c, part);
    rd_kafka_topic_destroy(part->topic);
    c->n_parts--;
    memmove(part, part + 1, (c->n_parts - i) * sizeof(*part));
}

/* The partition has come to an end that is to be told. */
static void part_stop(struct hps_kafka_consumer *c, struct hps_kafka_part *part,
                      enum hps_consumer_event_kind kind, hps_status status, const char *text)
{
    if (part->stopped) {
        return;
    }
    part_leave(c, part);
    search_end(c, part);
    c->parts_changed = true;
    part->stopped = true;
    part->stop = kind;
    part->status = status;
    part->low = -1;
    part->high = -1;
    hps_kafka_text_set(part->text, text);
}

void hps_kafka_parts_sweep(struct hps_kafka_consumer *c)
{
    for (uint32_t i = c->n_parts; c->any_told && i-- > 0;) {
        if (c->parts[i].told) {
            part_forget(c, &c->parts[i]);
        }
    }
    c->any_told = false;
}

/* ---- messages that are held ------------------------------------------------------------------ */

void hps_kafka_held_release(struct hps_kafka_consumer *c)
{
    for (uint32_t i = 0; i < c->held_from; i++) {
        rd_kafka_message_destroy(c->held[i]);
    }
    memmove(c->held, c->held + c->held_from, (c->held_to - c->held_from) * sizeof(c->held[0]));
    c->held_to -= c->held_from;
    c->held_from = 0;
}

/* Drop what is held of a partition from place `from` on. */
static void held_drop(struct hps_kafka_consumer *c, const struct hps_kafka_part *part,
                      uint32_t from)
{
    uint32_t kept = from;
    for (uint32_t i = from; i < c->held_to; i++) {
        rd_kafka_message_t *message = c->held[i];
        if (message->rkt == part->topic && message->partition == part->number) {
            rd_kafka_message_destroy(message);
        } else {
            c->held[kept++] = message;
        }
    }
    c->held_to = kept < c->held_to ? kept : c->held_to;
}

void hps_kafka_held_drop_all(struct hps_kafka_consumer *c)
{
    for (uint32_t i = 0; i < c->held_to; i++) {
        rd_kafka_message_destroy(c->held[i]);
    }
    c->held_from = 0;
    c->held_to = 0;
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
    struct hps_kafka_part *part = part_make(c, topic, at->partition);
    if (part == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for partition %" PRId32 " of %s",
                             at->partition, at->topic);
    }
    part_leave(c, part);
    search_end(c, part);
    hps_kafka_held_release(c);
    held_drop(c, part, 0);
    *part = (struct hps_kafka_part){
        .topic = part->topic, .number = part->number, .tag = tag, .next = at->offset};
    hps_status status = part_start(c, part, part->next, err);
    if (status != HPS_OK) {
        part_forget(c, part);
    }
    c->check_us = hps_clock_us() + CHECK_US;
    return status;
}

void hps_kafka_unassign(struct hps_consumer *base, const char *topic, int32_t number)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    struct hps_kafka_part *part = part_named(c, topic, strlen(topic), number);
    if (part != NULL) {
        part_leave(c, part);
        hps_kafka_held_release(c);
        held_drop(c, part, 0);
        part_forget(c, part);
    }
}

/* ---- gone ------------------------------------------------------------------------------------ */

void hps_kafka_part_gone(struct hps_kafka_consumer *c, const char *reason)
{
    const char *bracket = strstr(reason, " [");
    if (bracket == NULL) {
        return;
    }
    char *end = NULL;
    long number = strtol(bracket + 2, &end, 10);
    struct hps_kafka_part *part =
        part_named(c, reason, (size_t)(bracket - reason), (int32_t)number);
    if (*end == ']' && part != NULL) {
        part_stop(c, part, HPS_CONSUMER_GONE, HPS_NOT_FOUND, reason);
    }
}

static void part_not_there(struct hps_kafka_consumer *c, struct hps_kafka_part *part)
{
    char text[HPS_KAFKA_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s [%" PRId32 "] is not there any more",
             rd_kafka_topic_name(part->topic), part->number);
    part_stop(c, part, HPS_CONSUMER_GONE, HPS_NOT_FOUND, text);
}

void hps_kafka_parts_check(struct hps_kafka_consumer *c, const struct rd_kafka_metadata *all)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct rd_kafka_metadata_topic *topic =
            hps_kafka_topic_in(all, rd_kafka_topic_name(c->parts[i].topic));
        if (topic == NULL || c->parts[i].number >= topic->partition_cnt) {
            part_not_there(c, &c->parts[i]);
        }
    }
}

/* Of those that are watched it is known anyway. True: there are others. */
static bool watched_check(struct hps_kafka_consumer *c)
{
    bool others = false;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        struct hps_kafka_part *part = &c->parts[i];
        if (part->watch == NULL) {
            part->watch = hps_kafka_watch_find(c, rd_kafka_topic_name(part->topic), part->number);
        }
        if (part->watch == NULL) {
            others = true;
        } else if (hps_kafka_watch_absent(part->watch)) {
            part_not_there(c, part);
        }
    }
    return others;
}

void hps_kafka_parts_check_late(struct hps_kafka_consumer *c)
{
    const struct rd_kafka_metadata *all = NULL;
    if (c->check_us == 0 || hps_clock_us() < c->check_us || c->down) {
        return;
    }
    c->check_us = hps_clock_us() + CHECK_US;
    if (!watched_check(c)) {
        return;
    }
    if (rd_kafka_metadata(c->rk, 1, NULL, &all, CHECK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        c->check_us = 0;
        hps_kafka_parts_check(c, all);
        rd_kafka_metadata_destroy(all);
    }
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* librdkafka has stopped at `offset`, which the log does not have. An error that was on its way
 * when the partition was moved cannot be told from one of where it is now, unless by its offset:
 * then it is asked again. */
static void gap_found(struct hps_kafka_consumer *c, struct hps_kafka_part *part, int64_t offset)
{
    int64_t low = -1;
    int64_t high = -1;
    char text[HPS_KAFKA_TEXT_BYTES];
    const char *topic = rd_kafka_topic_name(part->topic);
    hps_kafka_bounds_ask(c, topic, part->number, &low, &high);
    bool known = low >= 0 && high >= 0;
    bool there = known ? part->next >= low && part->next <= high : !part->asked_again;
    if (offset != part->next && there) {
        part->asked_again = true;
        part_leave(c, part);
        if (part_start(c, part, part->next, NULL) == HPS_OK) {
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

/* ---- what cannot be read --------------------------------------------------------------------- */

/* librdkafka cannot make records of what the broker has sent, and will not the next time. */
static bool is_unreadable(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__BAD_MSG || code == RD_KAFKA_RESP_ERR__BAD_COMPRESSION ||
           code == RD_KAFKA_RESP_ERR__NOT_IMPLEMENTED;
}

/* Read it at `offset`, and nothing that came from elsewhere. */
static void search_at(struct hps_kafka_consumer *c, struct hps_kafka_part *part, int64_t offset)
{
    struct hps_error err = {0};
    part->search.at = offset;
    part->search.until_us = hps_clock_us() + SEARCH_US;
    part_leave(c, part);
    held_drop(c, part, c->held_from);
    if (part_start(c, part, offset, &err) != HPS_OK) {
        part_stop(c, part, HPS_CONSUMER_FAILED, HPS_DATA_LOSS, err.text);
    }
}

/* Something is known of the offset that is read now, or the search begins. */
static void search_on(struct hps_kafka_consumer *c, struct hps_kafka_part *part)
{
    struct hps_kafka_search *search = &part->search;
    search->n_strayed = 0;
    if (search->out == search->in + 1) {
        search_end(c, part);
        part->next = search->out;
        part->bad = true;
        c->parts_changed = true;
        search_at(c, part, part->next);
    } else if (search->out < 0) {
        search_at(c, part, search->in + search->step);
        search->step *= 2;
    } else {
        search_at(c, part, search->in + (search->out - search->in) / 2);
    }
}

static void search_begin(struct hps_kafka_consumer *c, struct hps_kafka_part *part,
                         const rd_kafka_message_t *message)
{
    part->search = (struct hps_kafka_search){
        .going = true,
        .from = message->offset > part->next ? message->offset : part->next,
        .base = message->offset,
        .in = message->offset > part->next ? message->offset : part->next,
        .out = -1,
        .step = 1,
        .status = hps_kafka_status(message->err),
    };
    snprintf(part->search.text, sizeof(part->search.text), "%s [%" PRId32 "]: %s",
             rd_kafka_topic_name(part->topic), part->number, rd_kafka_message_errstr(message));
    part->caught_up = false;
    c->n_searching++;
    search_on(c, part);
}

/* The partition was read at search.at, and it is in the batch, or not. */
static void search_found(struct hps_kafka_consumer *c, struct hps_kafka_part *part, bool inside)
{
    if (inside) {
        part->search.in = part->search.at;
    } else {
        part->search.out = part->search.at;
    }
    search_on(c, part);
}

/* Behind a batch whose checksum is wrong librdkafka may go on at an offset that nobody asked for.
 * That the log does not have that one says nothing of where it was to read. */
static bool search_strayed(const struct hps_kafka_part *part, const rd_kafka_message_t *message)
{
    const struct hps_kafka_search *search = &part->search;
    return search->going && is_gap(message->err) && message->offset != search->at &&
           search->n_strayed < STRAYED_MAX;
}

bool hps_kafka_part_takes(struct hps_kafka_consumer *c, struct hps_kafka_part *part,
                          const rd_kafka_message_t *message)
{
    if (!part->search.going) {
        return true;
    }
    if (message->offset >= part->search.at) {
        search_found(c, part, false); /* it comes again, once what was left out was told */
    }
    return false;
}

void hps_kafka_parts_search(struct hps_kafka_consumer *c)
{
    uint64_t now_us = c->n_searching > 0 ? hps_clock_us() : 0;
    for (uint32_t i = 0; i < c->n_parts && c->n_searching > 0; i++) {
        struct hps_kafka_part *part = &c->parts[i];
        if (!part->search.going) {
            continue;
        }
        if (c->down) {
            part->search.until_us = now_us + SEARCH_US;
        } else if (now_us >= part->search.until_us) {
            search_found(c, part, false);
        }
    }
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void end_reached(struct hps_kafka_consumer *c, struct hps_kafka_part *part, int64_t offset)
{
    if (offset >= part->next) {
        part->next = offset; /* past markers of transactions, if any */
        part->caught_up = true;
        c->parts_changed = true;
    }
}

void hps_kafka_part_failed(struct hps_kafka_consumer *c, struct hps_kafka_part *part,
                           const rd_kafka_message_t *message)
{
    bool end = message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
    hps_status status = hps_kafka_status(message->err);
    if (search_strayed(part, message)) {
        part->search.n_strayed++;
        search_at(c, part, part->search.at);
    } else if (part->search.going && (end || is_gap(message->err) || is_unreadable(message->err))) {
        search_found(c, part, is_unreadable(message->err) && message->offset == part->search.base);
    } else if (end) {
        end_reached(c, part, message->offset);
    } else if (is_gap(message->err)) {
        gap_found(c, part, message->offset);
    } else if (is_unreadable(message->err)) {
        search_begin(c, part, message);
    } else if (status == HPS_NOT_FOUND) {
        part_stop(c, part, HPS_CONSUMER_GONE, status, rd_kafka_message_errstr(message));
    } else if (status == HPS_PERMISSION || status == HPS_DATA_LOSS || status == HPS_UNIMPLEMENTED ||
               status == HPS_INVALID) {
        part_stop(c, part, HPS_CONSUMER_FAILED, status, rd_kafka_message_errstr(message));
    } else { /* librdkafka tries again */
        HPS_LOG(DEBUG, "kafka", "fetch failed", HPS_STR("topic", rd_kafka_topic_name(part->topic)),
                HPS_I64("partition", part->number),
                HPS_STR("error", rd_kafka_message_errstr(message)));
    }
}
