/* SPDX-License-Identifier: Apache-2.0
 *
 * Partitions that another version of the model has, and that the log does not list to this one. A
 * list of topics leaves out those that the user may not see. A version that begins then would take
 * what it is shown for all there is, and call itself fresh without the rest. So what the others
 * have counts as missing until it is listed, or until the log, asked for it by name, says that it
 * is not there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/updates_internal.h"

enum { GATHER_US = 100 * 1000 }; /* between two looks at what the others have */

static struct update_unlisted *find_unlisted(struct hps_update_stream *stream, const char *topic,
                                             int32_t number)
{
    for (uint32_t i = 0; i < stream->n_unlisted; i++) {
        struct update_unlisted *of = &stream->unlisted[i];
        if (of->number == number && strcmp(of->topic, topic) == 0) {
            return of;
        }
    }
    return NULL;
}

/* No memory: at the next look. */
static void add_unlisted(struct hps_update_stream *stream, const struct hps_partition_view *theirs,
                         int64_t version)
{
    struct update_unlisted *grown =
        hps_realloc(stream->unlisted, (stream->n_unlisted + 1) * sizeof(*grown));
    if (grown == NULL) {
        return;
    }
    stream->unlisted = grown;
    grown[stream->n_unlisted] = (struct update_unlisted){
        .number = theirs->partition, .version = version, .status = HPS_UNAVAILABLE};
    snprintf(grown[stream->n_unlisted].topic, sizeof(grown[0].topic), "%s", theirs->topic);
    stream->n_unlisted++;
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
        if (update_find_partition(stream, theirs->topic, theirs->partition) == NULL &&
            find_unlisted(stream, theirs->topic, theirs->partition) == NULL &&
            hps_update_route(stream->version, theirs->topic, &route)) {
            add_unlisted(stream, theirs, view->version);
        }
    }
}

/* It asks for the topic by name, and so learns what a list does not tell. */
static void hear_unlisted(struct hps_update_stream *stream, struct update_unlisted *of)
{
    const struct hps_consumer_ops *ops = stream->consumer->ops;
    struct hps_leader_word word = {0};
    struct hps_watch *watch = NULL;
    struct hps_error err = {0};
    if (ops->watch(stream->consumer, of->topic, of->number, &watch, &err) != HPS_OK) {
        return; /* no memory: the next time */
    }
    ops->heard(watch, &word);
    bool told = of->status == HPS_PERMISSION;
    of->status = word.asked_us == 0 && word.status == HPS_OK ? HPS_UNAVAILABLE : word.status;
    if (of->status == HPS_PERMISSION && !told) {
        HPS_LOG(WARN, "updates",
                "a topic is hidden: another version has it, and this user may not see it; grant "
                "Describe and Read",
                HPS_STR("model", stream->model), HPS_I64("version", stream->number),
                HPS_I64("other", of->version), HPS_STR("topic", of->topic),
                HPS_I64("partition", of->number));
    }
}

void update_hear_unlisted(struct hps_update_stream *stream)
{
    uint32_t n = 0;
    uint64_t now_us = hps_clock_us();
    if (now_us >= stream->unlisted_due_us) {
        stream->unlisted_due_us = now_us + GATHER_US;
        hps_updater_each(stream->updater, note_theirs, stream);
    }
    for (uint32_t i = 0; i < stream->n_unlisted; i++) {
        struct update_unlisted *of = &stream->unlisted[i];
        if (update_find_partition(stream, of->topic, of->number) == NULL) {
            hear_unlisted(stream, of);
            stream->unlisted[n++] = *of;
        }
    }
    stream->n_unlisted = n;
}

bool update_show_unlisted(const struct update_unlisted *of, struct hps_partition_view *out_view)
{
    if (of->status == HPS_NOT_FOUND) {
        return false;
    }
    *out_view = (struct hps_partition_view){
        .partition = of->number,
        .state = of->status == HPS_PERMISSION ? HPS_PARTITION_GONE : HPS_PARTITION_STARTING,
        .next = -1,
        .high = -1,
        .skipped = HPS_POSITION_WHOLE};
    snprintf(out_view->topic, sizeof(out_view->topic), "%s", of->topic);
    snprintf(out_view->reason, sizeof(out_view->reason), "version %" PRId64 " has it, and %s",
             of->version,
             of->status == HPS_PERMISSION ? "this user may not see it: grant Describe and Read"
             : of->status == HPS_OK       ? "the next list of topics is to name it"
                                          : "it is not known yet whether it is there");
    return true;
}

void update_forget_unlisted(struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_unlisted; i++) {
        struct update_unlisted *of = &stream->unlisted[i];
        bool gone = of->shown && of->status == HPS_NOT_FOUND;
        of->shown = of->status != HPS_NOT_FOUND;
        if (gone && atomic_load(&stream->active)) {
            update_forget_gauges(stream->updater->options.metrics, of->topic, of->number);
        }
    }
}
