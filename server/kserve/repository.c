/* SPDX-License-Identifier: Apache-2.0
 *
 * Triton's model repository, which is the catalog: the index, loads as configured in models[], and
 * unloads. Loads and unloads may block: they run on the admin pool and are written to the audit
 * log.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "inference/grpc_service.pb-c.h"
#include "server/access/access.h"
#include "server/kserve/op.h"

/* hpsd has one repository, without a name. */
static bool has_repository(struct hps_unary *op, const char *name)
{
    if (name[0] == '\0') {
        return true;
    }
    hps_ignore(
        hps_error_set(&op->error, HPS_UNIMPLEMENTED,
                      "repository_name: got '%.120s', but there is one repository, which has "
                      "no name; leave it empty",
                      name));
    return false;
}

/* ---- index ----------------------------------------------------------------------------------- */

typedef Inference__RepositoryIndexResponse index_message;
typedef Inference__RepositoryIndexResponse__ModelIndex entry_message;

struct listing {
    struct hps_unary *op;
    bool ready_only;
    index_message *reply;
};

static entry_message *next_entry(struct listing *listing, const char *model)
{
    entry_message *entry =
        hps_unary_add(listing->op, &inference__repository_index_response__model_index__descriptor,
                      &listing->reply->models, &listing->reply->n_models);
    if (entry != NULL) {
        entry->name = hps_unary_text(listing->op, model);
    }
    return entry;
}

static bool is_listed(const struct listing *listing, const char *model)
{
    return hps_access_sees(listing->op->call, HPS_ROLE_READ, model);
}

/* Adds a version. A version that is not active is READY too, because a request can name its number.
 */
static void add_view(void *ctx, const struct hps_version_view *view)
{
    struct listing *listing = ctx;
    char reason[96] = "";
    const char *state = "READY";
    if (strcmp(view->state, "loading") == 0) {
        state = "LOADING";
        (void)snprintf(reason, sizeof(reason), "loading, %d %%", (int)(100 * view->load_ratio));
    } else if (strcmp(view->state, "unloading") == 0) {
        state = "UNLOADING";
        (void)snprintf(reason, sizeof(reason), "unloading: waiting for its last lookups");
    }
    bool ready = strcmp(state, "READY") == 0;
    if ((listing->ready_only && !ready) || !is_listed(listing, view->model)) {
        return;
    }
    entry_message *entry = next_entry(listing, view->model);
    if (entry != NULL) {
        entry->version = kserve_number(listing->op, view->version->number);
        entry->state = (char *)(uintptr_t)state;
        entry->reason = hps_unary_text(listing->op, reason);
    }
}

static bool has_entry(const struct listing *listing, const char *model)
{
    size_t i = 0;
    while (i < listing->reply->n_models && strcmp(listing->reply->models[i]->name, model) != 0) {
        i++;
    }
    return i < listing->reply->n_models;
}

/* Adds a model without any version. */
static void add_unserved(void *ctx, const struct hps_unserved_view *view)
{
    struct listing *listing = ctx;
    if (listing->ready_only || !is_listed(listing, view->model) ||
        has_entry(listing, view->model)) {
        return;
    }
    entry_message *entry = next_entry(listing, view->model);
    if (entry != NULL) {
        bool loading = strcmp(view->state, "loading") == 0;
        entry->state = (char *)(uintptr_t)(loading ? "LOADING" : "UNAVAILABLE");
        entry->reason = hps_unary_text(listing->op, view->why);
    }
}

void kserve_repository_index(struct hps_unary *op)
{
    const Inference__RepositoryIndexRequest *request =
        (const Inference__RepositoryIndexRequest *)op->request;
    index_message *reply = hps_unary_message(op, &inference__repository_index_response__descriptor);
    if (reply == NULL || !has_repository(op, request->repository_name)) {
        return;
    }
    struct listing listing = {op, request->ready, reply};
    hps_catalog_each(kserve_parts(op)->catalog, add_view, &listing);
    hps_catalog_each_unserved(kserve_parts(op)->catalog, add_unserved, &listing);
    op->reply = &reply->base;
}

/* ---- loads ----------------------------------------------------------------------------------- */

void kserve_repository_load(struct hps_unary *op)
{
    static const Inference__RepositoryModelLoadResponse reply = {
        .base = PROTOBUF_C_MESSAGE_INIT(&inference__repository_model_load_response__descriptor)};
    const Inference__RepositoryModelLoadRequest *request =
        (const Inference__RepositoryModelLoadRequest *)op->request;
    if (!has_repository(op, request->repository_name)) {
        return;
    }
    if (request->n_parameters > 0) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "parameter '%.120s': a load takes no parameters; it uses the "
                                 "entry of models[] for '%.120s'",
                                 request->parameters[0]->key, op->model));
        return;
    }
    op->error.status = hps_catalog_load_configured(kserve_parts(op)->catalog, op->model,
                                                   &kserve_of(op)->load, &op->error);
    if (kserve_of(op)->load != NULL) {
        struct hps_load_state state;
        hps_load_state_get(kserve_of(op)->load, &state);
        op->version = state.version;
        op->follow = kserve_follow_load;
    }
    op->reply = &reply.base;
}

/* ---- unloads --------------------------------------------------------------------------------- */

typedef Inference__RepositoryModelUnloadRequest__ParametersEntry unload_parameter;

/* Accepts unload_dependents, which has no effect: models do not depend on each other. */
static bool is_unload_parameter(struct hps_unary *op, const unload_parameter *parameter)
{
    const Inference__ModelRepositoryParameter *value = parameter->value;
    if (strcmp(parameter->key, "unload_dependents") == 0 && value != NULL &&
        value->parameter_choice_case ==
            INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM) {
        return true;
    }
    hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                             "parameter '%.120s': an unload takes only unload_dependents, a bool",
                             parameter->key));
    return false;
}

void kserve_repository_unload(struct hps_unary *op)
{
    static const Inference__RepositoryModelUnloadResponse reply = {
        .base = PROTOBUF_C_MESSAGE_INIT(&inference__repository_model_unload_response__descriptor)};
    const Inference__RepositoryModelUnloadRequest *request =
        (const Inference__RepositoryModelUnloadRequest *)op->request;
    struct hps_versions_gone gone;
    if (!has_repository(op, request->repository_name)) {
        return;
    }
    for (size_t i = 0; i < request->n_parameters; i++) {
        if (!is_unload_parameter(op, request->parameters[i])) {
            return;
        }
    }
    op->error.status =
        hps_catalog_unload_model(kserve_parts(op)->catalog, op->model, &gone, &op->error);
    if (op->error.status == HPS_NOT_FOUND) { /* already unloaded */
        op->error = (struct hps_error){0};
    }
    op->version = gone.n > 0 ? gone.numbers[gone.n - 1] : 0;
    op->reply = &reply.base;
}
