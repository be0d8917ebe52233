/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a version may become the active one: it must not lack updates that the active version
 * has. As-of alone does not show this: it is the oldest as-of of all partitions, and one partition
 * may be unreadable while the active version reads all other ones. So the positions of each
 * partition are compared, too. Any thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "server/update/updater.h"

/* The version that may become the active one; its lock is held. */
struct candidate {
    const struct hps_update_stream *stream;
    const struct hps_stream_view *view;
    int64_t now_ms;
    int64_t lag_max_ms;
};

/* ---- a partition ----------------------------------------------------------------------------- */

/* Find the same partition in another view. guess: its index in `other`'s view, since the order is
 * usually the same. NULL: the view does not have it. */
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

/* Offsets can be compared only within one topic, not with a topic that was recreated. If topic ids
 * are not known, two versions that stopped at the same record have read the same topic. */
static bool has_all_of(const struct hps_partition_view *mine,
                       const struct hps_partition_view *theirs)
{
    if (theirs->next < 0) {
        return true; /* no update is applied yet */
    }
    if (mine->topic_id[0] != '\0' && theirs->topic_id[0] != '\0') {
        return mine->next >= theirs->next && strcmp(mine->topic_id, theirs->topic_id) == 0;
    }
    return mine->next == theirs->next && hps_witness_same(&mine->last, &theirs->last);
}

static bool is_fresh(const struct candidate *candidate, int64_t as_of_ms)
{
    return as_of_ms > 0 && candidate->now_ms - as_of_ms <= candidate->lag_max_ms;
}

/* Whether a partition that only the active version has may have updates for the candidate. False if
 * the candidate does not have the table, or the topic does not exist any more. */
static bool is_missed(const struct candidate *candidate, const struct hps_partition_view *theirs)
{
    struct hps_update_route route;

    return theirs->next >= 0 && theirs->state != HPS_PARTITION_GONE &&
           hps_update_route(candidate->stream->version, theirs->topic, &route);
}

/* ---- a version ------------------------------------------------------------------------------- */

static hps_status fail_behind(const struct candidate *candidate, struct hps_error *err)
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

static hps_status fail_lacking(const struct candidate *candidate,
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

/* active: the view of the active version. */
static hps_status compare(const struct candidate *candidate, const struct hps_stream_view *active,
                          struct hps_error *err)
{
    const struct hps_stream_view *view = candidate->view;

    if (view->frozen || is_fresh(candidate, view->as_of_ms)) {
        return HPS_OK;
    }
    if (active->as_of_ms > 0 && active->as_of_ms - view->as_of_ms > candidate->lag_max_ms) {
        return fail_behind(candidate, err);
    }
    for (uint32_t i = 0; i < active->n_partitions; i++) {
        const struct hps_partition_view *theirs = &active->partitions[i];
        const struct hps_partition_view *mine = find_partition(view, theirs, i);
        bool has = mine != NULL ? is_fresh(candidate, mine->as_of_ms) || has_all_of(mine, theirs)
                                : !is_missed(candidate, theirs);
        if (!has) {
            return fail_lacking(candidate, mine, theirs, err);
        }
    }
    return HPS_OK;
}

static hps_status compare_streams(struct hps_update_stream *stream,
                                  struct hps_update_stream *active_stream, int64_t lag_max_ms,
                                  struct hps_error *err)
{
    hps_lock_acquire(&active_stream->board->lock);
    struct hps_stream_view active = *active_stream->view;
    size_t size = active.n_partitions * sizeof(*active.partitions);
    struct hps_partition_view *partitions = hps_alloc(size);
    if (partitions != NULL && size > 0) {
        memcpy(partitions, active.partitions, size);
    }
    active.partitions = partitions;
    hps_lock_release(&active_stream->board->lock);
    if (partitions == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to compare positions");
    }
    hps_lock_acquire(&stream->board->lock);
    const struct candidate candidate = {.stream = stream,
                                        .view = stream->view,
                                        .now_ms = hps_clock_forward_ms(),
                                        .lag_max_ms = lag_max_ms};
    hps_status status = compare(&candidate, &active, err);
    hps_lock_release(&stream->board->lock);
    hps_free(partitions);
    return status;
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
    struct hps_update_stream *active = update_stream_find(updater, model, 0);
    if (stream != NULL && active != NULL && stream != active) {
        status = compare_streams(stream, active, lag_max, err);
    }
    hps_lock_release(&updater->lock);
    return status;
}
