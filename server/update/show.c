/* SPDX-License-Identifier: Apache-2.0
 *
 * What others see of a stream: a copy made after each turn, and the metrics of its version. On the
 * stream's thread `update`, but for the metrics.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "server/observe/metrics.h"
#include "server/update/internal.h"

enum { RATE_US = 2 * 1000 * 1000 };
#define SAME_UNKNOWN "not checked yet whether the topic was recreated"

/* ---- partitions ------------------------------------------------------------------------------ */

/* What it is to be called by those who wait for its updates. */
static enum hps_partition_state shown_state(const struct hps_update_stream *stream,
                                            const struct update_partition *partition)
{
    bool blocked = partition->phase == UPDATE_BLOCKED;
    bool runs = update_reads(partition);
    return stream->freeze.frozen && (runs || blocked) ? HPS_PARTITION_FROZEN
           : stream->batch.held && runs               ? HPS_PARTITION_HELD
           : runs && update_leader_silent(partition)  ? HPS_PARTITION_UNREACHABLE
                                                      : update_partition_state(partition->phase);
}

static bool is_known_same(const struct hps_update_stream *stream,
                          const struct update_partition *partition)
{
    int64_t until_ms = update_same_until_ms(stream, partition);
    return !update_is_unproved(partition) && hps_clock_forward_ms() <= until_ms;
}

static void write_reason(const struct hps_update_stream *stream,
                         const struct update_partition *partition, enum hps_partition_state state,
                         char out[static 200])
{
    const struct hps_leader_response *word = &partition->proof.word;
    if (state == HPS_PARTITION_FROZEN) {
        (void)snprintf(out, 200,
                       "a version of another lineage became active: records that name no version "
                       "are passed over until `hpsctl updates seek`");
    } else if (state == HPS_PARTITION_HELD) {
        (void)snprintf(out, 200, "a batch cannot be applied: %.170s", stream->batch.held_text);
    } else if (state == HPS_PARTITION_UNREACHABLE) {
        (void)snprintf(out, 200, "the leader does not answer%s%.150s",
                       word->text[0] != '\0' ? ": " : "", word->text);
    } else if (state == HPS_PARTITION_RUNNING && !is_known_same(stream, partition)) {
        (void)snprintf(out, 200, SAME_UNKNOWN);
    } else if (state == HPS_PARTITION_RUNNING &&
               hps_update_keys_misencoded(stream->batch.keys, partition->route.table_id)) {
        (void)snprintf(out, 200,
                       "keys misencoded: big-endian, or decimal text; publish keys as int64 "
                       "little-endian");
    } else if (state == HPS_PARTITION_RUNNING &&
               partition->listed.compaction == HPS_COMPACTION_UNKNOWN &&
               partition->note[0] == '\0') {
        (void)snprintf(out, 200,
                       "topic settings unreadable: deletes that compaction removed would go "
                       "unnoticed; grant DescribeConfigs");
    } else if (state == HPS_PARTITION_RUNNING && partition->told_form) {
        (void)snprintf(out, 200, "records that are not keyed on a compacted topic");
    } else if (state == HPS_PARTITION_RUNNING) {
        (void)snprintf(out, 200, "%s", partition->note);
    } else {
        (void)snprintf(out, 200, "%s", partition->reason);
    }
}

static double rate(struct update_rate *rate, uint64_t n)
{
    uint64_t now_us = hps_clock_us();
    if (rate->since_us == 0 || n < rate->n) {
        *rate = (struct update_rate){.since_us = now_us, .n = n};
    } else if (now_us >= rate->since_us + RATE_US) {
        rate->per_s = (double)(n - rate->n) * 1e6 / (double)(now_us - rate->since_us);
        rate->since_us = now_us;
        rate->n = n;
    }
    return rate->per_s;
}

/* The end of another topic, which grows as any other, says nothing of what is missing. One that
 * runs may have read what its leader has not told yet. */
static bool is_other(const struct update_partition *partition)
{
    bool runs = update_reads(partition);
    return partition->phase == UPDATE_OTHER || (!runs && partition->high < partition->applied.next);
}

/* Of a leader that does not answer the end is an old one; that of a topic that has yet to be proved
 * the same, now or since the start, may be another's. */
static bool is_lag_known(const struct hps_update_stream *stream,
                         const struct update_partition *partition)
{
    bool begun = partition->phase != UPDATE_STARTS && partition->phase != UPDATE_GONE;
    return update_is_published(partition) && begun && partition->high >= 0 &&
           partition->same.at_ms > 0 && is_known_same(stream, partition) && !is_other(partition) &&
           !update_leader_silent(partition);
}

/* Records that its rows lack; of a version that is frozen from the first on that was passed over.
 */
static uint64_t lag_of(const struct update_partition *partition)
{
    const struct hps_position *applied = &partition->applied;
    int64_t from = applied->frozen != HPS_POSITION_WHOLE ? applied->frozen : applied->next;
    bool counts = update_is_published(partition) && !is_other(partition) && partition->high > from;
    return counts ? (uint64_t)(partition->high - from) : 0;
}

static void show_partition(const struct hps_update_stream *stream,
                           struct update_partition *partition, struct hps_partition_view *view)
{
    memcpy(view->topic, partition->topic, sizeof(view->topic));
    view->partition = partition->number;
    view->state = shown_state(stream, partition);
    memcpy(view->topic_id, partition->applied.topic_id, sizeof(view->topic_id));
    view->next = update_is_published(partition) ? partition->applied.next : -1;
    view->last = partition->applied.last;
    view->high = partition->high;
    view->heard_ms = partition->proof.heard_ms;
    view->lag = lag_of(partition);
    view->lag_known = is_lag_known(stream, partition);
    uint64_t asked_us = partition->proof.word.asked_us;
    view->word_until_us = asked_us > 0 ? asked_us + UPDATE_LEADER_SILENT_US : 0;
    view->same_until_ms = update_same_until_ms(stream, partition);
    view->as_of_ms = partition->proof.as_of_ms;
    view->same_ms = partition->same.at_ms;
    view->skipped =
        update_is_published(partition) ? partition->applied.skipped : HPS_POSITION_WHOLE;
    view->skipped_end = partition->skipped_end;
    view->frozen = partition->applied.frozen;
    view->records_per_s = rate(&partition->rate, partition->n_records);
    write_reason(stream, partition, view->state, view->reason);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static bool view_room(struct hps_update_stream *stream)
{
    if (stream->shown.capacity >= stream->n_partitions) {
        return true;
    }
    struct hps_partition_view *grown =
        hps_realloc(stream->shown.partitions, stream->capacity * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    stream->shown.partitions = grown;
    stream->shown.capacity = stream->capacity;
    return true;
}

/* Returns the oldest as-of, which is that of the version; 0 if one is not known. */
static int64_t show_partitions(struct hps_update_stream *stream, uint32_t *out_n)
{
    int64_t as_of_ms = 0;
    uint32_t n = 0;
    *out_n = 0;
    if (!view_room(stream)) {
        return 0;
    }
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        if (!update_is_absent(&stream->partitions[i])) {
            show_partition(stream, &stream->partitions[i], &stream->shown.partitions[n]);
            int64_t its_ms = stream->shown.partitions[n].as_of_ms;
            as_of_ms = n == 0 || its_ms < as_of_ms ? its_ms : as_of_ms;
            n++;
        }
    }
    *out_n = n;
    return as_of_ms;
}

/* After the view without them is shown. */
static void forget_absent(const struct hps_update_stream *stream)
{
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *of = &stream->partitions[i];
        if (update_is_absent(of) && atomic_load(&stream->active)) {
            update_forget_gauges(stream->updater->options.metrics, of->topic, of->number);
        }
    }
}

static bool leaders_up(const struct hps_update_stream *stream)
{
    bool up = true;
    for (uint32_t i = 0; i < stream->n_partitions; i++) {
        const struct update_partition *partition = &stream->partitions[i];
        up = up && (partition->phase == UPDATE_GONE || !update_leader_silent(partition));
    }
    return up;
}

void update_stream_show(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->lock);
    uint32_t n = 0;
    int64_t as_of_ms = show_partitions(stream, &n);
    struct hps_stream_view *view = &stream->view;
    view->listed = update_is_listed(stream);
    view->frozen = stream->freeze.frozen;
    stream->shown.frozen_by = stream->freeze.by;
    view->connected = update_is_connected(stream);
    snprintf(view->away, sizeof(view->away), "%s",
             update_is_connected(stream) ? "" : stream->link.text);
    view->leaders_up = leaders_up(stream);
    view->shared = stream->share.space != NULL;
    view->shared_behind = update_share_lags(stream);
    view->shared_apart = stream->share.phase == UPDATE_SHARE_APART;
    snprintf(view->held, sizeof(view->held), "%s",
             stream->batch.held ? stream->batch.held_text : "");
    view->sequence = hps_update_sequence(stream->version);
    view->n_records = stream->counts.n_records;
    view->n_rejected = stream->counts.n_rejected;
    view->n_keys = stream->counts.n_keys;
    view->records_per_s = rate(&stream->counts.record_rate, stream->counts.n_records);
    view->keys_per_s = rate(&stream->counts.key_rate, stream->counts.n_keys);
    view->event_time_ms = stream->counts.event_time_ms;
    view->as_of_ms = as_of_ms;
    view->partitions = stream->shown.partitions;
    view->n_partitions = n;
    view->rejected = stream->shown.rejected;
    view->n_rejected_views = stream->shown.n_rejected;
    view->n_rejected_numbers = atomic_load(&stream->updater->n_rejected_numbers);
    update_view_sane(stream);
    hps_lock_release(&stream->lock);
    forget_absent(stream);
    hps_update_times_set(stream->version, stream->counts.event_time_ms, as_of_ms);
    update_waits_look(stream);
}

void update_view_age(struct hps_update_stream *stream)
{
    hps_lock_assert_held(&stream->lock);
    uint64_t now_us = hps_clock_us();
    int64_t now_ms = hps_clock_forward_ms();
    for (uint32_t i = 0; i < stream->view.n_partitions; i++) {
        struct hps_partition_view *of = &stream->shown.partitions[i];
        bool silent = now_us > of->word_until_us;
        bool same = now_ms <= of->same_until_ms;
        if ((silent || !same) && of->state == HPS_PARTITION_RUNNING) {
            (void)snprintf(of->reason, sizeof(of->reason), "%s",
                           silent
                               ? "not updated for more than 2 s: hpsd waits for an answer of the "
                                 "log, or for a store"
                               : SAME_UNKNOWN);
        }
        of->lag_known = of->lag_known && !silent && same;
        bool awaited = of->state != HPS_PARTITION_GONE;
        stream->view.leaders_up = stream->view.leaders_up && !(silent && awaited);
    }
    update_view_sane(stream);
}

void update_view_now(struct hps_update_stream *stream)
{
    bool freezes = atomic_load(&stream->freeze.asked_by) > stream->shown.frozen_by;
    stream->view.active = atomic_load(&stream->active);
    stream->view.frozen = stream->view.frozen || freezes;
    update_view_age(stream);
}

/* ---- records that are in no row -------------------------------------------------------------- */

/* Which of them it is; n_rejected_views: none. */
static uint32_t find_rejected(const struct hps_update_stream *stream, const char *topic,
                              int32_t partition, int64_t offset)
{
    uint32_t i = 0;
    while (i < stream->shown.n_rejected && (stream->shown.rejected[i].offset != offset ||
                                            stream->shown.rejected[i].partition != partition ||
                                            strcmp(stream->shown.rejected[i].topic, topic) != 0)) {
        i++;
    }
    return i;
}

/* One that was read again, after a failure or a seek, is the newest again. */
void update_show_rejected(struct hps_update_stream *stream, const char *topic, int32_t partition,
                          int64_t offset, const char *reason, const char *text)
{
    hps_lock_acquire(&stream->lock);
    uint32_t n = stream->shown.n_rejected;
    uint32_t at = find_rejected(stream, topic, partition, offset);
    if (at == n && n == HPS_REJECTED_VIEWS_MAX) {
        at = 0; /* the oldest goes */
    }
    if (at < n) {
        n--;
        memmove(stream->shown.rejected + at, stream->shown.rejected + at + 1,
                (n - at) * sizeof(stream->shown.rejected[0]));
    }
    struct hps_rejected_view *view = &stream->shown.rejected[n];
    uint64_t number = atomic_fetch_add(&stream->updater->n_rejected_numbers, 1) + 1;
    *view = (struct hps_rejected_view){.partition = partition,
                                       .offset = offset,
                                       .read_ms = hps_clock_forward_ms(),
                                       .number = number,
                                       .reason = reason};
    snprintf(view->topic, sizeof(view->topic), "%s", topic);
    snprintf(view->text, sizeof(view->text), "%s", text);
    stream->shown.n_rejected = n + 1;
    hps_lock_release(&stream->lock);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void set(struct hps_metrics *metrics, enum hps_metric_id id, const char *a, const char *b,
                const char *c, double value)
{
    hps_metric_set(hps_server_metric(metrics, id, a, b, c, NULL), value);
}

/* What is not known is as old as can be: nobody is to take it for fresh. */
static double age_s(int64_t as_of_ms)
{
    return as_of_ms <= 0 ? INFINITY : (double)(hps_clock_forward_ms() - as_of_ms) / 1000;
}

static void show_partition_gauges(struct hps_metrics *metrics, const struct hps_partition_view *of)
{
    char number[16];
    snprintf(number, sizeof(number), "%" PRId32, of->partition);
    set(metrics, HPS_M_UPDATE_LAG, of->topic, number, NULL,
        of->lag_known ? (double)of->lag : INFINITY);
    set(metrics, HPS_M_UPDATE_LAG_SECONDS, of->topic, number, NULL, age_s(of->as_of_ms));
    set(metrics, HPS_M_UPDATE_GAP, of->topic, number, NULL, of->state == HPS_PARTITION_GAP ? 1 : 0);
    for (int state = 0; state < HPS_PARTITION_STATES; state++) {
        set(metrics, HPS_M_UPDATE_PARTITION_STATE, of->topic, number,
            hps_partition_state_text((enum hps_partition_state)state),
            (int)of->state == state ? 1 : 0);
    }
}

void update_forget_gauges(struct hps_metrics *metrics, const char *topic, int32_t partition)
{
    char number[16];
    snprintf(number, sizeof(number), "%" PRId32, partition);
    const struct hps_metric_label labels[] = {{"topic", topic}, {"partition", number}};
    hps_metrics_remove(metrics, labels, 2);
}

void update_show_gauges(void *ctx, const struct hps_stream_view *view)
{
    struct hps_metrics *metrics = ctx;
    if (!view->active) {
        return;
    }
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        show_partition_gauges(metrics, &view->partitions[i]);
    }
    set(metrics, HPS_M_UPDATE_STALENESS, view->model, NULL, NULL, age_s(view->as_of_ms));
    set(metrics, HPS_M_UPDATE_SOURCE_UP, view->model, NULL, NULL,
        view->connected && view->leaders_up ? 1 : 0);
    set(metrics, HPS_M_UPDATE_FROZEN, view->model, NULL, NULL, view->frozen ? 1 : 0);
    set(metrics, HPS_M_UPDATE_HELD, view->model, NULL, NULL, view->held[0] != '\0' ? 1 : 0);
    if (view->shared) {
        set(metrics, HPS_M_UPDATE_SHARED_BEHIND, view->model, NULL, NULL,
            view->shared_behind ? 1 : 0);
        set(metrics, HPS_M_UPDATE_SHARED_APART, view->model, NULL, NULL,
            view->shared_apart ? 1 : 0);
    }
}
