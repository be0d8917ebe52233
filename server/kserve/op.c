/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the work of all methods: memory for replies, and the versions that they need.
 */
#include "server/kserve/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "server/lookup/known.h"

/* ---- memory ---------------------------------------------------------------------------------- */

char *kserve_join(struct hps_unary *op, const char *first, const char *second)
{
    size_t size = strlen(first) + strlen(second) + 1;
    char *text = hps_unary_alloc(op, size, 1);
    if (text != NULL) {
        snprintf(text, size, "%s%s", first, second);
    }
    return text;
}

char *kserve_number(struct hps_unary *op, int64_t number)
{
    char text[24];
    int size = snprintf(text, sizeof(text), "%" PRId64, number);
    HPS_ASSERT(size > 0 && (size_t)size < sizeof(text));
    return hps_unary_text(op, text);
}

void *kserve_messages(struct hps_unary *op, const ProtobufCMessageDescriptor *type, size_t n)
{
    void **messages = hps_unary_alloc(op, n, sizeof(void *));
    for (size_t i = 0; messages != NULL && i < n; i++) {
        messages[i] = hps_unary_message(op, type);
        if (messages[i] == NULL) {
            return NULL;
        }
    }
    return messages;
}

/* ---- versions -------------------------------------------------------------------------------- */

static void not_found(struct hps_unary *op, bool model_known)
{
    const struct kserve_text name = {kserve_of(op)->name, strlen(kserve_of(op)->name)};

    kserve_say_not_found(name, model_known ? &kserve_of(op)->version : NULL, &op->error);
    if (!model_known) {
        hps_known_models(kserve_parts(op)->models, op->call, HPS_ROLE_READ, &op->error);
    }
}

/* Pins the version that the request names. */
static hps_status pin_one(struct hps_unary *op, struct hps_version **out_version)
{
    const struct kserve_version *version = &kserve_of(op)->version;
    size_t size = strlen(op->model);
    return version->number != 0
               ? hps_models_pin(kserve_parts(op)->models, op->model, size, version->number,
                                out_version, &op->error)
               : hps_models_pin_label(kserve_parts(op)->models, op->model, size, version->label.at,
                                      version->label.size, out_version, &op->error);
}

static struct hps_version *active_of(const struct hps_model_pinned *pinned)
{
    struct hps_version *active = NULL;
    for (size_t i = 0; i < pinned->n; i++) {
        if (pinned->versions[i]->number == pinned->active) {
            active = pinned->versions[i];
        }
    }
    return active;
}

static hps_status pin_all(struct hps_unary *op, struct hps_model_pinned *pinned,
                          struct hps_version **out_chosen)
{
    hps_status status =
        hps_model_pin_all(kserve_parts(op)->models, op->model, op->arena, pinned, &op->error);
    if (status != HPS_OK) {
        return status;
    }
    *out_chosen = active_of(pinned);
    if (*out_chosen != NULL) {
        return HPS_OK;
    }
    hps_model_unpin(pinned);
    return hps_error_set(&op->error, HPS_UNAVAILABLE, "model '%.130s' has no active version",
                         kserve_of(op)->name);
}

bool kserve_pin(struct hps_unary *op, struct hps_model_pinned *out_pinned,
                struct hps_version **out_chosen)
{
    bool one = kserve_of(op)->version.number != 0 || kserve_of(op)->version.label.size > 0;
    hps_status status;
    HPS_ASSERT(op->model != NULL);
    if (one) {
        *out_pinned = (struct hps_model_pinned){.n = 1};
        out_pinned->versions = hps_unary_alloc(op, 1, sizeof(struct hps_version *));
        status = out_pinned->versions != NULL ? pin_one(op, out_chosen) : HPS_EXHAUSTED;
    } else {
        status = pin_all(op, out_pinned, out_chosen);
    }
    if (status == HPS_OK && one) {
        out_pinned->versions[0] = *out_chosen;
    }
    if (status == HPS_NOT_FOUND) {
        int64_t active = 0;
        size_t n = hps_models_pin_all(kserve_parts(op)->models, op->model, strlen(op->model), NULL,
                                      0, &active);
        not_found(op, one && n > 0);
    }
    return status == HPS_OK;
}
