/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer of a stream, and whether the log answers it. On the stream's thread `update`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "base/log.h"
#include "server/update/source/source.h"

void update_link_close(struct hps_update_stream *stream)
{
    if (stream->consumer == NULL) {
        return;
    }
    hps_lock_acquire(&stream->board->lock);
    stream->board->wakeable = NULL;
    hps_lock_release(&stream->board->lock);
    update_forget_responses(stream);
    stream->consumer->ops->close(stream->consumer);
    stream->consumer = NULL;
    stream->link->answers = false;
}

bool update_link_open(struct hps_update_stream *stream)
{
    const struct hps_updater_options *options = &stream->common->options;
    struct hps_error err = {0};
    char name[160];
    snprintf(name, sizeof(name), "%s-%" PRId64, stream->model, stream->number);
    const char **topics = NULL;
    uint32_t n_topics = 0;
    hps_status status = hps_update_topics(stream->version, options->filters, options->n_filters,
                                          &topics, &n_topics, &err);
    if (status == HPS_OK) {
        const struct hps_consumer_options wanted = {
            .name = name,
            .topics = topics,
            .n_topics = n_topics,
            .settings_ms = stream->source->metadata_refresh_interval_ms};
        status = options->log->ops->consumer_open(options->log, &wanted, &stream->consumer, &err);
    }
    hps_free(topics);
    if (status != HPS_OK) {
        UPDATE_LOG(stream, ERROR,
                   "update source failed: no consumer can be opened; retried every 5 s, check the "
                   "update_source options",
                   HPS_STR("error", err.text));
        stream->link->outage_logged = true;
        snprintf(stream->link->text, sizeof(stream->link->text), "%.199s", err.text);
        stream->consumer = NULL;
        return false;
    }
    hps_lock_acquire(&stream->board->lock);
    stream->board->wakeable = stream->consumer;
    hps_lock_release(&stream->board->lock);
    stream->link->heard_us = hps_clock_us();
    stream->begin_due_us = 0;
    return true;
}

hps_status update_unreachable(const struct hps_update_stream *stream, struct hps_error *err)
{
    return hps_error_set(err, HPS_UNAVAILABLE, "the update source does not answer%s%s",
                         stream->link->text[0] != '\0' ? ": " : "", stream->link->text);
}

void update_link_down(struct hps_update_stream *stream, const char *text)
{
    uint64_t now_us = hps_clock_us();
    UPDATE_LOG(stream, WARN,
               "update source unreachable: lookups get stale rows until it is reconnected; retried",
               HPS_STR("error", text));
    stream->link->answers = false;
    stream->link->outage_logged = true;
    if (now_us > stream->topics->listed_us) { /* earlier lists do not show that it answers */
        stream->topics->listed_us = now_us;
    }
    update_start_over(stream);
    stream->begin_due_us = 0;
    snprintf(stream->link->text, sizeof(stream->link->text), "%.199s", text);
}
