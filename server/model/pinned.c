/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins of all versions of a model. See server/model/pinned.h.
 */
#include "server/model/pinned.h"

#include <inttypes.h>
#include <string.h>

enum { VERSIONS_USUAL = 8 };

static hps_status too_large(struct hps_error *err)
{
    return hps_error_set(
        err, HPS_EXHAUSTED,
        "the versions of the model do not fit into one reply; request one version");
}

void hps_model_unpin(const struct hps_model_pinned *pinned)
{
    for (size_t i = 0; i < pinned->n; i++) {
        hps_version_unpin(pinned->versions[i]);
    }
}

hps_status hps_model_pin_all(struct hps_models *models, const char *model, struct hps_arena *arena,
                             struct hps_model_pinned *out_pinned, struct hps_error *err)
{
    struct hps_model_pinned pinned = {0};
    for (size_t n_max = VERSIONS_USUAL;; n_max = 2 * pinned.n) {
        pinned.versions = hps_arena_alloc(arena, n_max * sizeof(struct hps_version *));
        if (pinned.versions == NULL) {
            return too_large(err);
        }
        pinned.n = hps_models_pin_all(models, model, strlen(model), pinned.versions, n_max,
                                      &pinned.active);
        if (pinned.n <= n_max) {
            break;
        }
    }
    if (pinned.n == 0) {
        /* Sets the error, or pins a version that was added in the meantime. */
        hps_status status =
            hps_models_pin(models, model, strlen(model), 0, &pinned.versions[0], err);
        if (status != HPS_OK) {
            return status;
        }
        pinned.n = 1;
        pinned.active = pinned.versions[0]->number;
    }
    *out_pinned = pinned;
    return HPS_OK;
}

hps_status hps_model_choose(struct hps_model_pinned *pinned, const char *model, int64_t number,
                            struct hps_error *err)
{
    struct hps_version *chosen = NULL;
    for (size_t i = 0; i < pinned->n; i++) {
        if (pinned->versions[i]->number == number) {
            chosen = pinned->versions[i];
        } else {
            hps_version_unpin(pinned->versions[i]);
        }
    }
    pinned->n = chosen != NULL;
    pinned->versions[0] = chosen;
    return chosen != NULL
               ? HPS_OK
               : hps_error_set(err, HPS_NOT_FOUND,
                               "version %" PRId64 " of model \"%s\" is not loaded", number, model);
}
