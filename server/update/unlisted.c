/* SPDX-License-Identifier: Apache-2.0
 *
 * Partitions that another version of the model has, and that the log does not list to this one. A
 * list of topics leaves out those that the user may not see. A version that begins then would take
 * what it is shown for all there is, and call itself fresh without the rest. So what the others
 * have counts as missing until it is listed, until the log, asked for it by name, has said that it
 * is not there, or until no other version has it any more. A version that was fresh before stays
 * so while that is not known: what others have is new to it then, and found as any new topic is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/update/internal.h"

enum {
    LOOK_US = 100 * 1000,   /* between two looks at what the others have, and the log says */
    ABSENT_US = 1500 * 1000 /* for so long the log must say that it is not there */
};

static struct update_unlisted *find_unlisted(struct hps_update_stream *stream, const char *topic,
                                             int32_t number)
{
    for (uint32_t i = 0; i < stream->unlisted.n; i++) {
        struct update_unlisted *of = &stream->unlisted.list[i];
        if (of->number == number && strcmp(of->topic, topic) == 0) {
            return of;
        }
    }
    return NULL;
}

/* Versions have them in the same order, as a rule. */
static bool has_listed(struct hps_update_stream *stream, uint32_t i,
                       const struct hps_partition_view *theirs)
{
    const struct update_partition *mine = i < stream->n_partitions ? &stream->partitions[i] : NULL;
    if (mine != NULL && mine->number == theirs->partition &&
        strcmp(mine->topic, theirs->topic) == 0) {
        return true;
    }
    /* Of a topic that is listed a partition that was added is, too. */
    mine = update_find_partition(stream, theirs->topic, 0);
    return (mine != NULL && mine->listed.there) ||
           update_find_partition(stream, theirs->topic, theirs->partition) != NULL;
}

/* No memory: at the next look. */
static void add_unlisted(struct hps_update_stream *stream, const struct hps_partition_view *theirs,
                         int64_t version)
{
    struct update_unlisted *grown =
        hps_realloc(stream->unlisted.list, (stream->unlisted.n + 1) * sizeof(*grown));
    if (grown == NULL) {
        return;
    }
    stream->unlisted.list = grown;
    grown[stream->unlisted.n] =
        (struct update_unlisted){.number = theirs->partition,
                                 .version = version,
                                 .seen = true,
                                 .early = hps_update_as_of_ms(stream->version) == 0,
                                 .status = HPS_UNAVAILABLE};
    snprintf(grown[stream->unlisted.n].topic, sizeof(grown[0].topic), "%s", theirs->topic);
    stream->unlisted.n++;
}

static void note_theirs(void *ctx, const struct hps_stream_view *view)
{
    struct hps_update_stream *stream = ctx;
    if (strcmp(view->model, stream->model) != 0 || view->version == stream->number) {
        return;
    }
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        const struct hps_partition_view *theirs = &view->partitions[i];
        struct hps_update_route route;
        if (theirs->unlisted || has_listed(stream, i, theirs) ||
            !hps_update_route(stream->version, theirs->topic, &route)) {
            continue;
        }
        struct update_unlisted *of = find_unlisted(stream, theirs->topic, theirs->partition);
        if (of == NULL) {
            add_unlisted(stream, theirs, view->version);
        } else {
            of->seen = true;
        }
    }
}

static void tell_hidden(const struct hps_update_stream *stream, const struct update_unlisted *of)
{
    HPS_LOG(WARN, "updates",
            "topic hidden: another version reads it, but hpsd's Kafka user may not see it; "
            "grant Describe and Read",
            HPS_STR("model", stream->model), HPS_I64("version", stream->number),
            HPS_I64("other", of->version), HPS_STR("topic", of->topic),
            HPS_I64("partition", of->number));
}

/* Not there for long enough; or there, and the list that was asked for since is without it, as by
 * the filters it is not ours. */
static bool is_settled(const struct hps_update_stream *stream, struct update_unlisted *of,
                       const struct hps_leader_word *word)
{
    uint64_t now_us = hps_clock_us();
    if (word->status != HPS_NOT_FOUND) {
        of->none_us = 0;
    } else if (of->none_us == 0) {
        of->none_us = now_us;
    }
    bool absent = of->none_us > 0 && now_us - of->none_us > ABSENT_US;
    bool unlisted = word->status == HPS_OK && of->there_ms > 0;
    return absent || (unlisted && stream->topics.listed_ms > of->there_ms);
}

/* A watch asks for the topic by name, and so learns what a list does not tell. */
static void hear_unlisted(struct hps_update_stream *stream, struct update_unlisted *of)
{
    const struct hps_consumer_ops *ops = stream->consumer->ops;
    struct hps_leader_word word = {0};
    struct hps_watch *watch = NULL;
    struct hps_error err = {0};
    if (of->status == HPS_NOT_FOUND ||
        ops->watch(stream->consumer, of->topic, of->number, &watch, &err) != HPS_OK) {
        return; /* that is for good; no memory: the next time */
    }
    ops->heard(watch, &word);
    if (is_settled(stream, of, &word)) {
        of->status = HPS_NOT_FOUND;
        return;
    }
    if (word.status == HPS_PERMISSION && of->status != HPS_PERMISSION) {
        tell_hidden(stream, of);
    }
    if (word.status == HPS_OK && word.asked_us > 0 && of->there_ms == 0) {
        of->there_ms = (int64_t)hps_clock_wall_ms();
        update_list_soon(stream);
    }
    of->status = word.status == HPS_PERMISSION ? HPS_PERMISSION
                 : of->there_ms > 0            ? HPS_OK
                                               : HPS_UNAVAILABLE;
}

void update_hear_unlisted(struct hps_update_stream *stream)
{
    uint32_t n = 0;
    uint64_t now_us = hps_clock_us();
    if (!update_is_listed(stream) || now_us < stream->unlisted.due_us) {
        return;
    }
    stream->unlisted.due_us = now_us + LOOK_US;
    for (uint32_t i = 0; i < stream->unlisted.n; i++) {
        stream->unlisted.list[i].seen = false;
    }
    hps_updater_each(stream->updater, note_theirs, stream);
    for (uint32_t i = 0; i < stream->unlisted.n; i++) {
        struct update_unlisted *of = &stream->unlisted.list[i];
        if (of->seen) {
            hear_unlisted(stream, of);
            stream->unlisted.list[n++] = *of;
        } else if (of->shown && atomic_load(&stream->active) &&
                   update_find_partition(stream, of->topic, of->number) == NULL) {
            update_forget_gauges(stream->updater->options.metrics, of->topic, of->number);
        }
    }
    stream->unlisted.n = n;
}

static bool is_missing(const struct update_unlisted *of)
{
    return of->status == HPS_PERMISSION || (of->early && of->status != HPS_NOT_FOUND);
}

bool update_show_unlisted(const struct update_unlisted *of, struct hps_partition_view *out_view)
{
    if (!is_missing(of)) {
        return false;
    }
    *out_view = (struct hps_partition_view){
        .partition = of->number,
        .state = of->status == HPS_PERMISSION ? HPS_PARTITION_GONE : HPS_PARTITION_STARTING,
        .next = -1,
        .high = -1,
        .unlisted = true,
        .skipped = HPS_POSITION_WHOLE};
    snprintf(out_view->topic, sizeof(out_view->topic), "%s", of->topic);
    snprintf(out_view->reason, sizeof(out_view->reason),
             "version %" PRId64 " reads the topic, and %s", of->version,
             of->status == HPS_PERMISSION
                 ? "hpsd's Kafka user may not see the topic: grant Describe and Read"
             : of->status == HPS_OK ? "the next list of topics is awaited"
                                    : "not checked yet whether the topic exists");
    return true;
}

void update_forget_unlisted(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->unlisted.n; i++) {
        struct update_unlisted *of = &stream->unlisted.list[i];
        bool gone = of->shown && !is_missing(of);
        of->shown = is_missing(of);
        if (gone && atomic_load(&stream->active)) {
            update_forget_gauges(stream->updater->options.metrics, of->topic, of->number);
        }
    }
}
