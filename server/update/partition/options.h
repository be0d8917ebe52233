/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings of the updater, and the state that its streams share.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_OPTIONS_H
#define HPS_SERVER_UPDATE_PARTITION_OPTIONS_H

#include <stdatomic.h>

#include "backends/update_log.h"

struct hps_metrics;

/* Where a partition starts that has no stored position and no position in a manifest. */
enum hps_update_start {
    HPS_UPDATE_START_FILES, /* the time of the version's oldest file, less the slack */
    HPS_UPDATE_START_EARLIEST,
    HPS_UPDATE_START_LATEST, /* the first record of a partition that the log adds later */
    HPS_UPDATE_START_TIME
};

/* The updater borrows the objects behind the pointers for its life. */
struct hps_updater_options {
    struct hps_update_log *log;
    struct hps_metrics *metrics;
    const char *const *filters;
    uint32_t n_filters;
    const char *dead_letter_topic; /* NULL: bad records are not kept */
    enum hps_update_start start;
    int64_t start_time_ms; /* HPS_UPDATE_START_TIME */
    uint64_t start_slack_ms;
    uint32_t key_bytes; /* of HCTR records: 8 or 4 */
    bool nan_allowed;
    uint32_t rows_max;       /* of one batch; its last record may exceed it */
    uint64_t bytes_max;      /* of one batch; its last record may exceed it */
    uint64_t rows_per_s_max; /* of each stream; 0: no limit */
    uint32_t poll_ms;
    uint32_t topics_ms;  /* interval between lists of topics */
    uint32_t backoff_ms; /* after a failure */
    uint32_t commit_ms;  /* age of a position when it is committed: the store has synced its log */
};

/* State that all streams share. Any thread. */
struct update_common {
    struct hps_updater_options options;
    uint64_t instance; /* a random number of this start of the daemon */
    atomic_bool nan_allowed;
    _Atomic uint64_t rows_per_s_max;
    _Atomic uint64_t n_rejected_numbers; /* of rejected records: hps_rejected_view.number */
    /* Whether updates of a version of the model are applied. Any thread, without locks. */
    bool (*is_loaded)(struct update_common *common, const char *model, int64_t version);
};

#endif
