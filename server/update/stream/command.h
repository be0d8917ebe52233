/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of operators for streams.
 */
#ifndef HPS_SERVER_UPDATE_STREAM_COMMAND_H
#define HPS_SERVER_UPDATE_STREAM_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum hps_update_command_kind {
    HPS_UPDATE_PAUSE,     /* stays in effect over restarts */
    HPS_UPDATE_RESUME,    /* also retries a partition that FAILED */
    HPS_UPDATE_SEEK,      /* a paused partition stays paused */
    HPS_UPDATE_ACCEPT_GAP /* continue after the gap; the records in it are not applied */
};
enum hps_update_seek {
    HPS_UPDATE_SEEK_OFFSET,
    HPS_UPDATE_SEEK_EARLIEST,
    HPS_UPDATE_SEEK_LATEST,
    HPS_UPDATE_SEEK_TIME
};

struct hps_update_command {
    enum hps_update_command_kind kind;
    const char *model; /* "": every model */
    int64_t version;   /* 0: every version */
    const char *topic; /* "": every topic */
    int32_t partition; /* -1: every partition */
    enum hps_update_seek to;
    int64_t value; /* an offset, or Unix ms */
};

struct hps_updater;

/* A command on its way through the streams that it is for. It is in the queue of one stream at a
 * time, until the stream's thread has carried it out. Embed it, zeroed. The caller sets the first
 * two members. */
struct hps_update_work {
    struct hps_update_command command; /* its texts are borrowed */
    /* The command has ended: `n` and `error` have the result. Takes `work`. Thread `update`, or the
     * caller of hps_updater_command, without locks. */
    void (*done)(struct hps_update_work *work);
    uint32_t n; /* partitions that it changed */
    /* NOT_FOUND: no such model, version or partition; PRECONDITION: there is no gap to accept;
     * EXHAUSTED: too many commands wait; UNAVAILABLE: the log does not answer, the version is
     * removed, or before a SEEK or ACCEPT_GAP a half-applied batch must be completed, or the
     * position of a shared tier with the only copy must be known */
    struct hps_error error;
    struct hps_updater *updater; /* this and the rest belong to the updater */
    uint64_t before_id;
    uint32_t n_streams, n_partitions;
    uint32_t n_changed; /* by the last stream */
    /* The last stream has carried it out, or has ended. Takes `work`. Thread `update`, without
     * locks. */
    void (*advance)(struct hps_update_work *work);
    struct hps_update_work *next; /* in the queue */
};

#endif
