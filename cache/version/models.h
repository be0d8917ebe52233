/* SPDX-License-Identifier: Apache-2.0
 *
 * The model set: the resident versions of each model, and which one is active. Readers load one
 * pointer to an immutable snapshot of the set. A writer replaces the pointer, so a request sees
 * either the version before a switch or the version after it. Readers never wait. The catalog
 * (server/catalog) calls hps_models_add, _activate and _remove, one at a time.
 */
#ifndef HPS_CACHE_VERSION_MODELS_H
#define HPS_CACHE_VERSION_MODELS_H

#include "cache/version/version.h"

struct hps_models;

/* Returns NULL if there is no memory. */
struct hps_models *hps_models_new(void);
void hps_models_free(struct hps_models *models); /* the set must be empty */

/* Pin version `number` (0: the active one) of the model. Thread-safe.
 *
 * error   NOT_FOUND: unknown model or version, `err` names it. UNAVAILABLE: the model has no active
 *         version, or the model is announced (hps_models_expect) and has no version yet
 */
hps_status hps_models_pin(struct hps_models *models, const char *model, size_t model_size,
                          int64_t number, struct hps_version **out_version, struct hps_error *err)
    HPS_MUST_CHECK;
/* Like hps_models_pin, for the version with this label, which must not be empty. If several
 * versions have the label, pins the one with the highest number. */
hps_status hps_models_pin_label(struct hps_models *models, const char *model, size_t model_size,
                                const char *label, size_t label_size,
                                struct hps_version **out_version, struct hps_error *err)
    HPS_MUST_CHECK;
/* Pin all resident versions of the model. Returns their number; if it exceeds `n_max`, none is
 * pinned. Thread-safe.
 *
 * shape   out_versions[n_max], by ascending number
 *         out_active: the number of the active version; 0: the model has no active version
 */
size_t hps_models_pin_all(struct hps_models *models, const char *model, size_t model_size,
                          struct hps_version **out_versions, size_t n_max, int64_t *out_active);
/* Write the name of the table at index `place` of the model's order of tables
 * (hps_models_set_order). The table need not exist in a resident version. Returns the number of
 * tables in the order. For error messages only, because the call takes a lock. Thread-safe.
 *
 * shape   out_name[size] the name, truncated to fit; "": the order has no such index
 */
uint32_t hps_models_table_at(struct hps_models *models, const char *model, uint32_t place,
                             char *out_name, size_t size);
/* Call `fn` with the name of each model that has a version, in no order, until it returns false.
 * `fn` must be quick, since writers wait for it, and must not call functions of this header.
 * Thread-safe. */
void hps_models_names(struct hps_models *models, bool (*fn)(void *ctx, const char *model),
                      void *ctx);

/* Add a version to the set. The caller must not free it before hps_models_remove has removed it and
 * all its pins have been released. One caller at a time. EXISTS: the model has a version of that
 * number; NO_MEMORY */
hps_status hps_models_add(struct hps_models *models, struct hps_version *version) HPS_MUST_CHECK;
/* Announce a model that has no version yet. Requests for it then get UNAVAILABLE with the text
 * `why`, a complete sentence, instead of NOT_FOUND. `why` NULL ends the announcement; do this after
 * hps_models_add has added the model's first version. Thread-safe. NO_MEMORY */
hps_status hps_models_expect(struct hps_models *models, const char *model, const char *why)
    HPS_MUST_CHECK;
/* Set the model's order of tables to names[n], which is copied. n 0 removes the order and cannot
 * fail. Thread-safe. NO_MEMORY: the old order stays. */
hps_status hps_models_set_order(struct hps_models *models, const char *model,
                                const char *const *names, uint32_t n) HPS_MUST_CHECK;
/* Make a resident version the active one; number 0: the model then has no active version. This call
 * and hps_models_remove cannot fail for lack of memory. One caller at a time. NOT_FOUND: no such
 * resident version */
hps_status hps_models_activate(struct hps_models *models, const char *model, int64_t number)
    HPS_MUST_CHECK;
/* Take a version out of the set. After OK, hps_models_pin no longer finds it. One caller at a time.
 * NOT_FOUND: no such resident version */
hps_status hps_models_remove(struct hps_models *models, const char *model, int64_t number)
    HPS_MUST_CHECK;

#endif
