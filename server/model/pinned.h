/* SPDX-License-Identifier: Apache-2.0
 *
 * The versions of a model, pinned for as long as somebody describes them. Any thread that may wait
 * for a lock.
 */
#ifndef HPS_SERVER_MODEL_PINNED_H
#define HPS_SERVER_MODEL_PINNED_H

#include "base/arena.h"
#include "cache/version/models.h"

struct hps_model_pinned {
    struct hps_version **versions; /* [n] by number, in the arena */
    size_t n;
    int64_t active; /* 0: none is */
};

/* All of them; there is at least one.
 *
 * error   NOT_FOUND: no such model; UNAVAILABLE: it is expected; EXHAUSTED: the arena is full
 */
hps_status hps_model_pin_all(struct hps_models *models, const char *model, struct hps_arena *arena,
                             struct hps_model_pinned *out_pinned, struct hps_error *err)
    HPS_MUST_CHECK;
/* Leave the one that is asked for. NOT_FOUND: it is not there, and none is pinned any more. */
hps_status hps_model_choose(struct hps_model_pinned *pinned, const char *model, int64_t number,
                            struct hps_error *err) HPS_MUST_CHECK;
void hps_model_unpin(const struct hps_model_pinned *pinned);

#endif
