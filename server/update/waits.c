/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that wait for updates. After turns of a stream, each waiter of its version checks the view
 * of the stream, until it is done. Any thread.
 */
#include <inttypes.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/update/updater.h"

enum {
    CHECK_US = 10 * 1000, /* the shortest time between two checks of one stream */
    WAITS_MAX = 256,      /* calls that wait at a time, in all */
    WAITS_OF_ONE_MAX = 64 /* ... of one client */
};

/* updater->waits_lock is held, as for the static functions below. */
static void take_out(struct hps_updater *updater, struct hps_update_waiter *waiter)
{
    LIST_REMOVE(waiter, all);
    updater->n_waiters--;
    waiter->state = HPS_UPDATE_WAITER_DONE;
}

/* Let the waiter check the view. A waiter without a check waits for the end of a refresh. */
static enum hps_update_check look(struct hps_update_stream *stream,
                                  struct hps_update_waiter *waiter)
{
    const struct update_refresh *refresh = stream->refresh;
    bool ended = refresh->done_us >= waiter->begin_us;
    if (waiter->check == NULL) {
        return ended ? HPS_UPDATE_CHECK_DONE : HPS_UPDATE_CHECK_WAIT;
    }
    waiter->refreshed = waiter->refreshed || (ended && refresh->error.status == HPS_OK);
    return waiter->check(waiter, stream->view);
}

static void check(struct hps_update_stream *stream, struct hps_update_waiter *waiter)
{
    struct update_refresh *refresh = stream->refresh;
    uint64_t now_us = hps_clock_us();
    hps_lock_assert_held(&stream->board->lock);
    switch (look(stream, waiter)) {
    case HPS_UPDATE_CHECK_DONE:
        take_out(stream->updater, waiter);
        waiter->done(waiter, HPS_UPDATE_END_DONE);
        break;
    case HPS_UPDATE_CHECK_REFRESH:
        if (refresh->asked_us <= refresh->done_us && now_us >= refresh->rest_until_us) {
            refresh->asked_us = now_us;
        }
        break;
    case HPS_UPDATE_CHECK_WAIT:
        break;
    }
}

void update_waits_show(struct hps_update_stream *stream)
{
    struct hps_updater *updater = stream->updater;
    uint64_t now_us = hps_clock_us();
    if (now_us < stream->board->check_due_us) {
        return;
    }
    stream->board->check_due_us = now_us + CHECK_US;
    hps_lock_acquire(&stream->board->lock);
    hps_lock_acquire(&updater->waits_lock);
    if (!LIST_EMPTY(&updater->waiters)) {
        update_view_now(stream);
    }
    for (struct hps_update_waiter *at = LIST_FIRST(&updater->waiters), *next; at != NULL;
         at = next) {
        next = LIST_NEXT(at, all);
        if (at->stream == stream) {
            check(stream, at);
        }
    }
    hps_lock_release(&updater->waits_lock);
    hps_lock_release(&stream->board->lock);
}

/* End the waits of `stream`; NULL: all waits, since the server stops. */
static void end_all(struct hps_updater *updater, const struct hps_update_stream *stream)
{
    for (struct hps_update_waiter *at = LIST_FIRST(&updater->waiters), *next; at != NULL;
         at = next) {
        next = LIST_NEXT(at, all);
        if (stream == NULL || at->stream == stream) {
            take_out(updater, at);
            at->done(at, stream == NULL ? HPS_UPDATE_END_STOPS : HPS_UPDATE_END_VERSION);
        }
    }
}

void update_waits_end(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->updater->waits_lock);
    end_all(stream->updater, stream);
    hps_lock_release(&stream->updater->waits_lock);
}

void hps_updater_waits_close(struct hps_updater *updater)
{
    if (updater != NULL) {
        hps_lock_acquire(&updater->waits_lock);
        updater->waits_closed = true;
        end_all(updater, NULL);
        hps_lock_release(&updater->waits_lock);
    }
}

static hps_status add(struct hps_updater *updater, struct hps_update_waiter *waiter,
                      struct hps_error *err)
{
    unsigned n_of_one = 0;
    bool full = updater->n_waiters >= WAITS_MAX;
    if (waiter->state != HPS_UPDATE_WAITER_NEW) {
        return hps_error_set(err, HPS_CANCELLED, "the call ended before its turn");
    }
    if (updater->waits_closed) {
        return hps_error_set(err, HPS_UNAVAILABLE, "the server stops");
    }
    const struct hps_update_waiter *at;
    LIST_FOREACH (at, &updater->waiters, all) {
        n_of_one += at->client == waiter->client;
    }
    if (full || n_of_one >= WAITS_OF_ONE_MAX) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "call rejected: %u calls of %s wait for updates, which is the most; "
                             "retry when one has ended",
                             full ? updater->n_waiters : n_of_one,
                             full ? "all clients" : "this client");
    }
    waiter->state = HPS_UPDATE_WAITER_WAITS;
    LIST_INSERT_HEAD(&updater->waiters, waiter, all);
    updater->n_waiters++;
    return HPS_OK;
}

/* The updater's lock is held. If the result is OK, the waiter may be done, and freed. */
static hps_status wait_for(struct hps_update_stream *stream, struct hps_update_waiter *waiter,
                           struct hps_error *err)
{
    struct hps_updater *updater = stream->updater;
    hps_lock_acquire(&stream->board->lock);
    hps_lock_acquire(&updater->waits_lock);
    waiter->stream = stream;
    hps_status status = add(updater, waiter, err);
    if (status == HPS_OK) {
        update_view_now(stream);
        check(stream, waiter);
    }
    hps_lock_release(&updater->waits_lock);
    update_wake(stream);
    hps_lock_release(&stream->board->lock);
    return status;
}

hps_status hps_updater_wait(struct hps_updater *updater, const char *model, int64_t version,
                            struct hps_update_waiter *waiter, struct hps_error *err)
{
    hps_status status;
    HPS_ASSERT(waiter->check != NULL && waiter->done != NULL);
    hps_lock_acquire(&updater->lock);
    struct hps_update_stream *stream = update_stream_find(updater, model, version);
    if (stream != NULL) {
        waiter->begin_us = hps_clock_us();
        waiter->refreshed = false;
        status = wait_for(stream, waiter, err);
    } else {
        status =
            hps_error_set(err, HPS_NOT_FOUND,
                          "version %" PRId64 " of model \"%s\" takes no updates", version, model);
    }
    hps_lock_release(&updater->lock);
    return status;
}

/* Request a refresh of the stream, unless one that began after `since_us` has ended. Then the
 * result is that of the refresh, else AGAIN. */
static hps_status ask_refresh(struct hps_update_stream *stream, uint64_t since_us,
                              struct hps_error *err)
{
    struct update_refresh *refresh = stream->refresh;
    hps_lock_acquire(&stream->board->lock);
    hps_status status = refresh->done_us >= since_us ? refresh->error.status : HPS_AGAIN;
    if (status == HPS_AGAIN) {
        refresh->asked_us = refresh->asked_us > since_us ? refresh->asked_us : since_us;
        update_wake(stream);
    } else if (status != HPS_OK) {
        *err = refresh->error;
    }
    hps_lock_release(&stream->board->lock);
    return status;
}

hps_status hps_updater_refresh(struct hps_updater *updater, struct hps_update_waiter *waiter,
                               struct hps_error *err)
{
    hps_status status = HPS_OK;
    struct hps_update_stream *pending = NULL;
    HPS_ASSERT(waiter->check == NULL && waiter->wants != NULL && waiter->done != NULL);
    waiter->begin_us = waiter->begin_us != 0 ? waiter->begin_us : hps_clock_us();
    hps_lock_acquire(&updater->lock);
    for (struct hps_update_stream *stream = updater->streams;
         stream != NULL && (status == HPS_OK || status == HPS_AGAIN); stream = stream->next) {
        if (!update_stops(stream) && waiter->wants(waiter, stream->model, stream->number)) {
            status = ask_refresh(stream, waiter->begin_us, err);
            pending = status == HPS_AGAIN ? stream : pending;
        }
    }
    if (pending != NULL && (status == HPS_OK || status == HPS_AGAIN)) {
        status = wait_for(pending, waiter, err);
        status = status == HPS_OK ? HPS_AGAIN : status;
    }
    hps_lock_release(&updater->lock);
    return status;
}

bool hps_updater_wait_end(struct hps_updater *updater, struct hps_update_waiter *waiter)
{
    hps_lock_acquire(&updater->waits_lock);
    bool waits = waiter->state == HPS_UPDATE_WAITER_WAITS;
    if (waits) {
        take_out(updater, waiter);
    }
    waiter->state = HPS_UPDATE_WAITER_DONE;
    hps_lock_release(&updater->waits_lock);
    return waits;
}
