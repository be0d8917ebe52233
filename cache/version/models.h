/* SPDX-License-Identifier: Apache-2.0
 *
 * Which versions are resident and which one of each model is active: one immutable snapshot behind
 * one pointer, so that a version switch is a single store and a request sees exactly one version.
 * Readers never wait; writers are serialised by the catalog.
 */
#ifndef HPS_CACHE_VERSION_MODELS_H
#define HPS_CACHE_VERSION_MODELS_H

#include "cache/version/version.h"

struct hps_models;

struct hps_models *hps_models_new(void);         /* NULL: no memory */
void hps_models_free(struct hps_models *models); /* must be empty */

/* Pin version `number` (0: the active one) of the model. NOT_FOUND with a text that names the model
 * or version, or UNAVAILABLE when the model has no active version yet, or is expected. Any thread.
 */
hps_status hps_models_pin(struct hps_models *models, const char *model, size_t model_size,
                          int64_t number, struct hps_version **out_version, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same for the version with that label (not empty); of several the one of the highest number.
 */
hps_status hps_models_pin_label(struct hps_models *models, const char *model, size_t model_size,
                                const char *label, size_t label_size,
                                struct hps_version **out_version, struct hps_error *err)
    HPS_MUST_CHECK;
/* Pin all resident versions of the model. Returns how many there are; if that is more than
 * `n_max`, none is pinned. Any thread.
 *
 * shape   out_versions[n_max], by their numbers; out_active: the number of the active one, 0: none
 */
size_t hps_models_pin_all(struct hps_models *models, const char *model, size_t model_size,
                          struct hps_version **out_versions, size_t n_max, int64_t *out_active);
/* The name of the table at a place of the model's order (hps_models_set_order), whether or not a
 * resident version has it. Returns how many places the model has. Takes a lock: for errors. Any
 * thread.
 *
 * shape   out_name[size] the name, cut if it is longer; "": the model has no such place
 */
uint32_t hps_models_table_at(struct hps_models *models, const char *model, uint32_t place,
                             char *out_name, size_t size);
/* Calls `fn` with the name of each model that has a version, in no order, until it returns false.
 * It must be quick, and call nothing of this: a change of what is resident waits for it. Any
 * thread. */
void hps_models_names(struct hps_models *models, bool (*fn)(void *ctx, const char *model),
                      void *ctx);

/* Catalog only, one caller at a time. EXISTS, NO_MEMORY */
hps_status hps_models_add(struct hps_models *models, struct hps_version *version) HPS_MUST_CHECK;
/* A model without versions is to have one: look-ups of it get UNAVAILABLE and `why`, a whole
 * sentence, instead of NOT_FOUND. NULL: it is not to have one any more, or has it: to be said after
 * the add. Any thread. NO_MEMORY */
hps_status hps_models_expect(struct hps_models *models, const char *model, const char *why)
    HPS_MUST_CHECK;
/* The model's order of tables, names[n], copied; it replaces the one before. n 0: the model is
 * gone, which needs no memory. Any thread. NO_MEMORY: the order is as it was. */
hps_status hps_models_set_order(struct hps_models *models, const char *model,
                                const char *const *names, uint32_t n) HPS_MUST_CHECK;
/* Make a resident version the active one (number 0: none). This and remove need no memory:
 * NOT_FOUND is all that can be wrong. */
hps_status hps_models_activate(struct hps_models *models, const char *model, int64_t number)
    HPS_MUST_CHECK;
/* Take a version out: no new pin can be had when this returns OK. */
hps_status hps_models_remove(struct hps_models *models, const char *model, int64_t number)
    HPS_MUST_CHECK;

#endif
