/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of operators for streams.
 */
#ifndef HPS_SERVER_UPDATE_STREAM_COMMAND_H
#define HPS_SERVER_UPDATE_STREAM_COMMAND_H

#include <stdint.h>

enum hps_update_command_kind {
    HPS_UPDATE_PAUSE,      /* stays in effect over restarts */
    HPS_UPDATE_RESUME,     /* also retries a partition that FAILED */
    HPS_UPDATE_SEEK,       /* a paused partition stays paused */
    HPS_UPDATE_ACCEPT_GAP, /* continue after the gap; the records in it are not applied */
    HPS_UPDATE_REFRESH     /* list the topics, ask the leader of each partition for its end, and
                              check that each topic is still the same */
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

#endif
