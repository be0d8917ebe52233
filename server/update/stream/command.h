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

/* A command for one stream, in the queue of the stream until its thread has carried it out. */
struct update_call {
    const struct hps_update_command *command;
    uint32_t n; /* partitions that the command names */
    uint32_t n_changed;
    struct hps_error error;
    /* It is carried out, or the stream has ended. Takes the call. Thread `update`, without locks.
     */
    void (*done)(struct update_call *call);
    struct update_call *next;
};

#endif
