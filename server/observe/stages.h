/* SPDX-License-Identifier: Apache-2.0
 *
 * Time of a lookup by stage. A lookup is in exactly one stage at a time, from its first byte to its
 * last, so the stages add up to its duration. The thread that owns the lookup begins the next
 * stage; one thread at a time.
 */
#ifndef HPS_SERVER_OBSERVE_STAGES_H
#define HPS_SERVER_OBSERVE_STAGES_H

#include <stdint.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/observe/metrics.h"

struct hps_stages {
    enum hps_stage now;
    uint64_t since_us; /* hps_clock_us */
    uint64_t us[HPS_STAGE_COUNT];
};

/* Begin: the lookup is in `stage` since since_us. */
static inline void hps_stages_begin(struct hps_stages *stages, enum hps_stage stage,
                                    uint64_t since_us)
{
    *stages = (struct hps_stages){.now = stage, .since_us = since_us};
}

/* The lookup enters `stage` at at_us. A time before the last change counts as that change. */
static inline void hps_stages_enter_at(struct hps_stages *stages, enum hps_stage stage,
                                       uint64_t at_us)
{
    HPS_ASSERT((unsigned)stage < HPS_STAGE_COUNT);
    if (at_us > stages->since_us) {
        stages->us[stages->now] += at_us - stages->since_us;
        stages->since_us = at_us;
    }
    stages->now = stage;
}

static inline void hps_stages_enter(struct hps_stages *stages, enum hps_stage stage)
{
    hps_stages_enter_at(stages, stage, hps_clock_us());
}

/* Move time from stage `from` to `to`, at most the time that `from` has. */
static inline void hps_stages_name(struct hps_stages *stages, enum hps_stage from,
                                   enum hps_stage to, uint64_t us)
{
    HPS_ASSERT(from != to);
    uint64_t moved = us < stages->us[from] ? us : stages->us[from];
    stages->us[from] -= moved;
    stages->us[to] += moved;
}

#endif
