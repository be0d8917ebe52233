/* SPDX-License-Identifier: Apache-2.0
 *
 * The streams of all versions, and the calls that wait for updates.
 */
#ifndef HPS_SERVER_UPDATE_UPDATER_H
#define HPS_SERVER_UPDATE_UPDATER_H

#include "server/update/stream/stream.h"
#include "server/update/updates.h"

struct hps_updater {
    struct update_common common;
    struct hps_lock lock;              /* for streams, last_id and stopped */
    struct hps_update_stream *streams; /* newest first */
    uint64_t last_id;
    bool stopped;
    struct hps_lock waits_lock; /* for the members below, and the updater's members of waiters */
    LIST_HEAD(, hps_update_waiter) waiters; /* n_waiters */
    uint32_t n_waiters;
    bool waits_closed;
};

/* ---- updates.c ------------------------------------------------------------------------------- */

/* Open a stream (update_stream_open), and add the partitions that other versions of the model read.
 * On the thread that adds the version. */
hps_status update_open(struct hps_updater *updater, struct hps_update_stream *stream,
                       struct hps_error *err) HPS_MUST_CHECK;
/* Find the stream of a version; number 0: of the active version. NULL: not found, or it stops.
 * The updater's lock is held. */
struct hps_update_stream *update_stream_find(struct hps_updater *updater, const char *model,
                                             int64_t number);

/* ---- waits.c --------------------------------------------------------------------------------- */

/* Let the waiters of the stream check its view, at most every 10 ms. Thread `update`. */
void update_waits_show(struct hps_update_stream *stream);
/* The stream ends: end the waits for it. Thread `update`. */
void update_waits_end(struct hps_update_stream *stream);

#endif
