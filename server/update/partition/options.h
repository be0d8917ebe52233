/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings of the updater, and the state that its streams share.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_OPTIONS_H
#define HPS_SERVER_UPDATE_PARTITION_OPTIONS_H

#include <stdatomic.h>

#include "backends/update_log.h"
#include "config/config.h"

struct hps_metrics;

/* The updater borrows the objects behind the pointers for its life. Of the configuration it reads
 * options that a reload does not change; hps_updater_new also reads the others. */
struct hps_updater_options {
    struct hps_update_log *log;
    struct hps_metrics *metrics;
    const struct hps_config *config;
    const char *const *filters;
    uint32_t n_filters;
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
