/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a version may take over from the active one: what it lacks of the updates that the other
 * has. As-of is the oldest of all partitions, and only a bound: behind one partition that nobody
 * can read, the active version may have read far beyond it in all others. So positions are
 * compared, too. Any thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "server/update/internal.h"

/* Of the active version, copied under its lock. */
struct active {
    int64_t as_of_ms;
    struct hps_partition_view *partitions;
    uint32_t n;
};

/* The version that is to take over; its lock is held. */
struct candidate {
    const struct hps_update_stream *stream;
    const struct hps_stream_view *view;
    int64_t now_ms;
    int64_t lag_max_ms;
};

/* ---- a partition ----------------------------------------------------------------------------- */

/* Versions have them in the same order, as a rule: `guess`. NULL: there is none. */
static const struct hps_partition_view *find_partition(const struct hps_stream_view *view,
                                                       const struct hps_partition_view *other,
                                                       uint32_t guess)
{
    for (uint32_t n = 0; n < view->n_partitions; n++) {
        const struct hps_partition_view *at = &view->partitions[(guess + n) % view->n_partitions];
        if (at->partition == other->partition && strcmp(at->topic, other->topic) == 0) {
            return at;
        }
    }
    return NULL;
}

static bool is_same_record(const struct hps_witness *a, const struct hps_witness *b)
{
    return a->known == b->known && (!a->known || (a->offset == b->offset &&
                                                  a->time_ms == b->time_ms && a->hash == b->hash));
}

/* Offsets of a topic that was recreated say nothing of the one before. Where ids of topics are not
 * known, two that have read up to the same record have read the same topic. */
static bool has_all_of(const struct hps_partition_view *mine,
                       const struct hps_partition_view *theirs)
{
    if (theirs->next < 0) {
        return true; /* it has nothing but its files yet */
    }
    if (mine->topic_id[0] != '\0' && theirs->topic_id[0] != '\0') {
        return mine->next >= theirs->next && strcmp(mine->topic_id, theirs->topic_id) == 0;
    }
    return mine->next == theirs->next && is_same_record(&mine->last, &theirs->last);
}

static bool is_fresh(const struct candidate *candidate, int64_t as_of_ms)
{
    return as_of_ms > 0 && candidate->now_ms - as_of_ms <= candidate->lag_max_ms;
}

/* False of a partition that the active version has, and that the other does not see: it has no such
 * table, or the topic is gone. */
static bool is_missed(const struct candidate *candidate, const struct hps_partition_view *theirs)
{
    struct hps_update_route route;

    return theirs->next >= 0 && theirs->state != HPS_PARTITION_GONE &&
           hps_update_route(candidate->stream->version, theirs->topic, &route) &&
           (route.whole_model || route.table_id != HPS_UPDATE_TABLE_NONE);
}

/* ---- a version ------------------------------------------------------------------------------- */

static hps_status say_behind(const struct candidate *candidate, struct hps_error *err)
{
    const struct hps_stream_view *view = candidate->view;

    if (view->as_of_ms == 0) {
        return hps_error_set(err, HPS_PRECONDITION,
                             "version %" PRId64 " of model \"%s\" has not caught up with its "
                             "updates yet (server.activate_lag_max_s): hpsctl wait-for now "
                             "--version %" PRId64,
                             view->version, view->model, view->version);
    }
    return hps_error_set(err, HPS_PRECONDITION,
                         "version %" PRId64 " of model \"%s\" may lack updates of the last %" PRId64
                         " s, server.activate_lag_max_s is %" PRId64
                         ": hpsctl wait-for now --version %" PRId64,
                         view->version, view->model, (candidate->now_ms - view->as_of_ms) / 1000,
                         candidate->lag_max_ms / 1000, view->version);
}

static hps_status say_lacks(const struct candidate *candidate,
                            const struct hps_partition_view *mine,
                            const struct hps_partition_view *theirs, struct hps_error *err)
{
    const struct hps_stream_view *view = candidate->view;

    return hps_error_set(err, HPS_PRECONDITION,
                         "version %" PRId64 " of model \"%s\" may lack updates that the active "
                         "version has: it is at offset %" PRId64 " of topic '%s' partition %" PRId32
                         ", the active one is at %" PRId64
                         " (server.activate_lag_max_s): hpsctl wait-for now --version %" PRId64,
                         view->version, view->model, mine != NULL ? mine->next : -1, theirs->topic,
                         theirs->partition, theirs->next, view->version);
}

static hps_status compare(const struct candidate *candidate, const struct active *active,
                          struct hps_error *err)
{
    const struct hps_stream_view *view = candidate->view;

    if (view->frozen || is_fresh(candidate, view->as_of_ms)) {
        return HPS_OK;
    }
    if (active->as_of_ms > 0 && active->as_of_ms - view->as_of_ms > candidate->lag_max_ms) {
        return say_behind(candidate, err);
    }
    for (uint32_t i = 0; i < active->n; i++) {
        const struct hps_partition_view *theirs = &active->partitions[i];
        const struct hps_partition_view *mine = find_partition(view, theirs, i);
        bool has = mine != NULL ? is_fresh(candidate, mine->as_of_ms) || has_all_of(mine, theirs)
                                : !is_missed(candidate, theirs);
        if (!has) {
            return say_lacks(candidate, mine, theirs, err);
        }
    }
    return HPS_OK;
}

static hps_status copy_active(struct hps_update_stream *stream, struct active *out_active,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;

    hps_lock_acquire(&stream->lock);
    const struct hps_stream_view *view = &stream->view;
    *out_active = (struct active){.as_of_ms = view->as_of_ms, .n = view->n_partitions};
    out_active->partitions = hps_alloc(view->n_partitions * sizeof(*view->partitions));
    if (out_active->partitions == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory to compare positions");
    } else if (view->n_partitions > 0) {
        memcpy(out_active->partitions, view->partitions,
               view->n_partitions * sizeof(*view->partitions));
    }
    hps_lock_release(&stream->lock);
    return status;
}

static hps_status compare_streams(struct hps_update_stream *stream,
                                  struct hps_update_stream *active_stream, int64_t lag_max_ms,
                                  struct hps_error *err)
{
    struct active active;
    hps_status status = copy_active(active_stream, &active, err);

    if (status == HPS_OK) {
        hps_lock_acquire(&stream->lock);
        const struct candidate candidate = {.stream = stream,
                                            .view = &stream->view,
                                            .now_ms = hps_clock_forward_ms(),
                                            .lag_max_ms = lag_max_ms};
        status = compare(&candidate, &active, err);
        hps_lock_release(&stream->lock);
    }
    hps_free(active.partitions);
    return status;
}

static struct hps_update_stream *find_active(struct hps_updater *updater, const char *model)
{
    struct hps_update_stream *stream = updater->streams;

    while (stream != NULL && (!atomic_load(&stream->active) || strcmp(stream->model, model) != 0 ||
                              update_stops(stream))) {
        stream = stream->next;
    }
    return stream;
}

hps_status hps_updater_check_lag(struct hps_updater *updater, const char *model, int64_t number,
                                 uint64_t lag_max_ms, struct hps_error *err)
{
    int64_t lag_max = lag_max_ms > INT64_MAX ? INT64_MAX : (int64_t)lag_max_ms;
    hps_status status = HPS_OK;

    if (updater == NULL) {
        return HPS_OK;
    }
    hps_lock_acquire(&updater->lock);
    struct hps_update_stream *stream = update_stream_find(updater, model, number);
    struct hps_update_stream *active = find_active(updater, model);
    if (stream != NULL && active != NULL && stream != active) {
        status = compare_streams(stream, active, lag_max, err);
    }
    hps_lock_release(&updater->lock);
    return status;
}
