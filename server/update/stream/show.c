/* SPDX-License-Identifier: Apache-2.0
 *
 * The view of a stream: a copy of its state after each turn, and the metrics of its version. On the
 * stream's thread `update`; the metrics on any thread.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "server/observe/metrics.h"
#include "server/update/stream/stream.h"

enum { RATE_US = 2 * 1000 * 1000 };
#define FROZEN_REASON                                                                       \
    "a version of another lineage became active: records that name no version are skipped " \
    "until `hpsctl updates seek`"
#define SAME_UNKNOWN "not checked yet whether the topic was recreated"

/* ---- partitions ------------------------------------------------------------------------------ */

/* The state in the view. No partition starts while the batch is held. */
static enum hps_partition_state shown_state(const struct hps_update_stream *stream,
                                            const struct update_partition *partition)
{
    bool blocked = partition->phase == UPDATE_BLOCKED;
    bool runs = update_phase_reads(partition->phase);
    bool waits = runs || partition->phase == UPDATE_STARTING;
    return stream->frozen && (runs || blocked)       ? HPS_PARTITION_FROZEN
           : stream->batch->held && waits            ? HPS_PARTITION_HELD
           : runs && update_leader_silent(partition) ? HPS_PARTITION_UNREACHABLE
                                                     : update_partition_state(partition->phase);
}

/* What operators should know of a partition that runs; "": nothing. */
static const char *note_of(const struct hps_update_stream *stream,
                           const struct update_partition *partition)
{
    if (!update_is_same(partition)) {
        return SAME_UNKNOWN;
    }
    if (hps_update_keys_misencoded(stream->batch->keys, partition->route.table_id)) {
        return "keys misencoded: big-endian, or decimal text; publish keys as int64 little-endian";
    }
    if (partition->listed->compaction == HPS_COMPACTION_UNKNOWN && partition->note[0] == '\0') {
        return "topic settings unreadable: deletes that compaction removed would go unnoticed; "
               "grant DescribeConfigs";
    }
    return partition->form_logged ? "records that are not keyed on a compacted topic"
                                  : partition->note;
}

static void write_reason(const struct hps_update_stream *stream,
                         const struct update_partition *partition, enum hps_partition_state state,
                         char out[static 200])
{
    const struct hps_leader_response *response = &partition->proof->response;
    switch (state) {
    case HPS_PARTITION_FROZEN:
        (void)snprintf(out, 200, FROZEN_REASON);
        break;
    case HPS_PARTITION_HELD:
        (void)snprintf(out, 200, "a batch cannot be applied: %.170s", stream->batch->held_text);
        break;
    case HPS_PARTITION_UNREACHABLE:
        (void)snprintf(out, 200, "the leader does not answer%s%.150s",
                       response->text[0] != '\0' ? ": " : "", response->text);
        break;
    default:
        (void)snprintf(out, 200, "%s",
                       state == HPS_PARTITION_RUNNING ? note_of(stream, partition)
                                                      : partition->reason);
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

/* Whether the known end is of another topic: the lag cannot be computed from it. A partition that
 * runs may have read more records than its leader had at the last response. */
static bool is_other(const struct update_partition *partition)
{
    bool runs = update_phase_reads(partition->phase);
    return partition->phase == UPDATE_REPLACED ||
           (!runs && partition->high < partition->applied->next);
}

/* Whether the lag can be computed. The end of a topic that is not proved to be the same may be of
 * another topic. age_view adds the age of the claims. */
static bool is_lag_known(const struct update_partition *partition)
{
    bool begun = partition->phase != UPDATE_STARTING && partition->phase != UPDATE_MISSING;
    return update_is_published(partition) && begun && partition->high >= 0 &&
           partition->identity->at_ms > 0 && update_is_same(partition) && !is_other(partition);
}

/* The number of records that are not applied. A frozen version counts from the first record that it
 * skipped. */
static uint64_t lag_of(const struct update_partition *partition)
{
    const struct hps_position *applied = partition->applied;
    int64_t from = applied->frozen != HPS_POSITION_WHOLE ? applied->frozen : applied->next;
    bool counts = update_is_published(partition) && !is_other(partition) && partition->high > from;
    return counts ? (uint64_t)(partition->high - from) : 0;
}

static void show_partition(const struct hps_update_stream *stream,
                           struct update_partition *partition, struct hps_partition_view *view)
{
    const struct hps_position *applied = partition->applied;
    bool published = update_is_published(partition);
    uint64_t asked_us = partition->proof->response.asked_us;
    memcpy(view->topic, partition->topic, sizeof(view->topic));
    view->partition = partition->number;
    view->state = shown_state(stream, partition);
    memcpy(view->topic_id, applied->topic_id, sizeof(view->topic_id));
    view->next = published ? applied->next : -1;
    view->last = applied->last;
    view->high = partition->high;
    view->response_asked_ms = partition->proof->response_asked_ms;
    view->lag = lag_of(partition);
    view->lag_known = is_lag_known(partition);
    view->response_until_us = asked_us > 0 ? asked_us + UPDATE_LEADER_SILENT_US : 0;
    view->same_until_ms = update_same_until_ms(partition);
    view->as_of_ms = partition->proof->as_of_ms;
    view->same_ms = partition->identity->at_ms;
    view->skipped = published ? applied->skipped : HPS_POSITION_WHOLE;
    view->skipped_end = partition->skipped_end;
    view->frozen = applied->frozen;
    view->records_per_s = rate(&partition->rate, partition->n_records);
    write_reason(stream, partition, view->state, view->reason);
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* Copies the partitions. Returns the as-of of the version: the oldest of its partitions; 0 if one
 * is not known, or without memory. */
static int64_t show_partitions(struct hps_update_stream *stream, uint32_t *out_n)
{
    struct update_shown *shown = stream->shown;
    int64_t as_of_ms = 0;
    *out_n = 0;
    if (shown->capacity < stream->n_partitions) {
        struct hps_partition_view *grown =
            hps_realloc(shown->partitions, stream->capacity * sizeof(*grown));
        if (grown == NULL) {
            return 0;
        }
        shown->partitions = grown;
        shown->capacity = stream->capacity;
    }
    UPDATE_EACH (stream, partition) {
        /* A partition that only another version has read, and that is missing, lacks no update. */
        if (!partition->other || partition->phase != UPDATE_MISSING) {
            struct hps_partition_view *view = &shown->partitions[*out_n];
            show_partition(stream, partition, view);
            as_of_ms = *out_n == 0 || view->as_of_ms < as_of_ms ? view->as_of_ms : as_of_ms;
            ++*out_n;
        }
    }
    /* Partitions that no list has shown yet may have records since the newest list. */
    int64_t listed_ms = stream->topics->listed_ms;
    return as_of_ms < listed_ms ? as_of_ms : listed_ms;
}

/* Withdraws claims from the view that have become too old: the end of a silent leader, and the
 * identity of a topic that was not proved lately. */
static void age_view(struct hps_update_stream *stream)
{
    uint64_t now_us = hps_clock_us();
    int64_t now_ms = hps_clock_forward_ms();
    for (uint32_t i = 0; i < stream->view->n_partitions; i++) {
        struct hps_partition_view *of = &stream->shown->partitions[i];
        bool silent = now_us > of->response_until_us;
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
        stream->view->leaders_up = stream->view->leaders_up && !(silent && awaited);
    }
}

void update_stream_show(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->board->lock);
    struct hps_stream_view *view = stream->view;
    view->as_of_ms = show_partitions(stream, &view->n_partitions);
    view->listed = stream->topics->listed;
    view->frozen = stream->frozen;
    stream->shown->frozen_by = stream->freeze.by;
    view->connected = update_is_connected(stream);
    snprintf(view->connection_error, sizeof(view->connection_error), "%s",
             view->connected ? "" : stream->link->text);
    view->leaders_up = true; /* but see age_view */
    view->shared = stream->shares;
    view->shared_behind = stream->share->phase == UPDATE_SHARE_BEHIND;
    view->shared_apart = stream->share->phase == UPDATE_SHARE_BYPASSED;
    snprintf(view->held, sizeof(view->held), "%s",
             stream->batch->held ? stream->batch->held_text : "");
    view->sequence = hps_update_sequence(stream->version);
    view->n_records = stream->counts->n_records;
    view->n_rejected = stream->counts->n_rejected;
    view->n_keys = stream->counts->n_keys;
    view->records_per_s = rate(&stream->counts->record_rate, stream->counts->n_records);
    view->keys_per_s = rate(&stream->counts->key_rate, stream->counts->n_keys);
    view->event_time_ms = stream->counts->event_time_ms;
    view->partitions = stream->shown->partitions;
    view->rejected = stream->shown->rejected;
    view->n_rejected_views = stream->shown->n_rejected;
    view->n_rejected_numbers = atomic_load(&stream->common->n_rejected_numbers);
    age_view(stream);
    int64_t as_of_ms = view->as_of_ms;
    hps_lock_release(&stream->board->lock);
    hps_update_times_set(stream->version, stream->counts->event_time_ms, as_of_ms);
}

void update_view_now(struct hps_update_stream *stream)
{
    hps_lock_assert_held(&stream->board->lock);
    bool freezes = atomic_load(&stream->freeze.asked_by) > stream->shown->frozen_by;
    stream->view->active = atomic_load(&stream->active);
    stream->view->frozen = stream->view->frozen || freezes;
    for (uint32_t i = 0; i < stream->view->n_partitions && freezes; i++) {
        struct hps_partition_view *of = &stream->shown->partitions[i];
        if (of->state == HPS_PARTITION_RUNNING || of->state == HPS_PARTITION_HELD) {
            of->state = HPS_PARTITION_FROZEN;
            (void)snprintf(of->reason, sizeof(of->reason), FROZEN_REASON);
        }
    }
    age_view(stream);
}

/* ---- rejected records ------------------------------------------------------------------------ */

/* Its index in shown->rejected, or n_rejected. */
static uint32_t find_rejected(const struct update_shown *shown,
                              const struct update_partition *partition, int64_t offset)
{
    uint32_t i = 0;
    while (i < shown->n_rejected && (shown->rejected[i].offset != offset ||
                                     shown->rejected[i].partition != partition->number ||
                                     strcmp(shown->rejected[i].topic, partition->topic) != 0)) {
        i++;
    }
    return i;
}

/* A record that is read again, after a failure or a seek, becomes the newest again. */
void update_show_rejected(struct hps_update_stream *stream,
                          const struct update_partition *partition, int64_t offset,
                          const char *reason, const char *text)
{
    struct update_shown *shown = stream->shown;
    hps_lock_acquire(&stream->board->lock);
    uint32_t n = shown->n_rejected;
    uint32_t at = find_rejected(shown, partition, offset);
    if (at == n && n == HPS_REJECTED_VIEWS_MAX) {
        at = 0; /* drop the oldest */
    }
    if (at < n) {
        n--;
        memmove(shown->rejected + at, shown->rejected + at + 1,
                (n - at) * sizeof(shown->rejected[0]));
    }
    struct hps_rejected_view *view = &shown->rejected[n];
    uint64_t number = atomic_fetch_add(&stream->common->n_rejected_numbers, 1) + 1;
    *view = (struct hps_rejected_view){.partition = partition->number,
                                       .offset = offset,
                                       .read_ms = hps_clock_forward_ms(),
                                       .number = number,
                                       .reason = reason};
    snprintf(view->topic, sizeof(view->topic), "%s", partition->topic);
    snprintf(view->text, sizeof(view->text), "%s", text);
    shown->n_rejected = n + 1;
    hps_lock_release(&stream->board->lock);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void set(struct hps_metrics *metrics, enum hps_metric_id id, const char *a, const char *b,
                const char *c, double value)
{
    hps_metric_set(hps_server_metric(metrics, id, a, b, c, NULL), value);
}

/* The age of an unknown as-of is infinite, so that it does not count as fresh. */
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
    set(metrics, HPS_M_UPDATE_GAP, of->topic, number, NULL, of->state == HPS_PARTITION_GAP);
    for (int state = 0; state < HPS_PARTITION_STATES; state++) {
        set(metrics, HPS_M_UPDATE_PARTITION_STATE, of->topic, number,
            hps_partition_state_text((enum hps_partition_state)state), (int)of->state == state);
    }
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
        view->connected && view->leaders_up);
    set(metrics, HPS_M_UPDATE_FROZEN, view->model, NULL, NULL, view->frozen);
    set(metrics, HPS_M_UPDATE_HELD, view->model, NULL, NULL, view->held[0] != '\0');
    if (view->shared) {
        set(metrics, HPS_M_UPDATE_SHARED_BEHIND, view->model, NULL, NULL, view->shared_behind);
        set(metrics, HPS_M_UPDATE_SHARED_APART, view->model, NULL, NULL, view->shared_apart);
    }
}
