/* SPDX-License-Identifier: Apache-2.0
 *
 * What every update log must do, as one suite of tests. A program per log says how to make one, and
 * how records come to it.
 */
#ifndef HPS_TESTS_CONTRACT_LOG_CONTRACT_H
#define HPS_TESTS_CONTRACT_LOG_CONTRACT_H

#include "tests/lib/fake_log.h"

struct log_contract {
    const char *name;
    void *ctx;
    /* Open the log, empty. */
    struct hps_update_log *(*open)(void *ctx);
    /* The log is closed: forget all it held. May be NULL. */
    void (*clean)(void *ctx);
    void (*make_topic)(void *ctx, const char *topic, int32_t n_partitions);
    void (*append)(void *ctx, const char *topic, int32_t partition,
                   const struct hps_fake_record *record);
    bool has_times; /* answers for the offset of a time */
};

/* Run the suite; the result is for main to return. */
int log_contract_run(const struct log_contract *contract);

#endif
