/* SPDX-License-Identifier: Apache-2.0
 *
 * The versions of a model, pinned while they are described. Any thread that may wait for a lock.
 */
#ifndef HPS_SERVER_MODEL_PINNED_H
#define HPS_SERVER_MODEL_PINNED_H

#include "base/arena.h"
#include "cache/version/models.h"

struct hps_model_pinned {
    struct hps_version **versions; /* [n] by ascending number; the array is in the arena */
    size_t n;
    int64_t active; /* 0: no version is active */
};

/* Pins all versions of a model: at least one, if the result is OK. The caller unpins them with
 * hps_model_unpin.
 *
 * error   NOT_FOUND: no such model; UNAVAILABLE: no version can serve yet, because the model is
 *         loading or its load failed; EXHAUSTED: the arena is full */
hps_status hps_model_pin_all(struct hps_models *models, const char *model, struct hps_arena *arena,
                             struct hps_model_pinned *out_pinned, struct hps_error *err)
    HPS_MUST_CHECK;
/* Unpins all versions except version `number`, which alone stays in *pinned.
 * error   NOT_FOUND: there is no such version; all versions are then unpinned */
hps_status hps_model_choose(struct hps_model_pinned *pinned, const char *model, int64_t number,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Unpins the versions that are in *pinned. */
void hps_model_unpin(const struct hps_model_pinned *pinned);

#endif
