/* SPDX-License-Identifier: Apache-2.0
 *
 * Admin methods for models, versions and keys. Runs on the admin pool.
 */
#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "cache/lookup/explain.h"
#include "cache/update/update.h"
#include "hps/v1/admin.pb-c.h"
#include "server/access/access.h"
#include "server/admin/op.h"

char *admin_dtype_text(enum hps_dtype dtype)
{
    return (char *)(uintptr_t)hps_dtype_name(dtype); /* strings of protobuf-c are not const */
}

Hps__V1__TableDiff **admin_table_diffs(struct hps_arena *arena, const struct hps_version_diff *diff)
{
    HPS_ASSERT(diff->n_tables == 0 || diff->tables != NULL);
    Hps__V1__TableDiff **pointers =
        hps_arena_calloc(arena, diff->n_tables + 1, sizeof(Hps__V1__TableDiff *));
    Hps__V1__TableDiff *messages = hps_arena_calloc(arena, diff->n_tables + 1, sizeof(*messages));
    if (pointers == NULL || messages == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < diff->n_tables; i++) {
        const struct hps_table_diff *table = &diff->tables[i];
        hps__v1__table_diff__init(&messages[i]);
        messages[i].table = hps_arena_strndup(arena, table->table, strlen(table->table));
        if (messages[i].table == NULL) {
            return NULL;
        }
        messages[i].dim_before = table->dim_before;
        messages[i].dim_after = table->dim_after;
        messages[i].data_type_before = admin_dtype_text(table->dtype_before);
        messages[i].data_type_after = admin_dtype_text(table->dtype_after);
        messages[i].row_count_before = table->n_rows_before;
        messages[i].row_count_after = table->n_rows_after;
        pointers[i] = &messages[i];
    }
    return pointers;
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct model_list {
    struct hps_unary *op;
    Hps__V1__ListModelsResponse *reply;
};

static Hps__V1__ModelInfo *add_model(const struct model_list *list, const char *name)
{
    Hps__V1__ModelInfo *model = hps_unary_add(list->op, &hps__v1__model_info__descriptor,
                                              &list->reply->models, &list->reply->n_models);
    if (model != NULL) {
        model->model = hps_unary_text(list->op, name);
    }
    return model;
}

static void add_version(struct hps_unary *op, Hps__V1__ModelInfo *model,
                        const struct hps_version_view *view)
{
    const struct hps_version *version = view->version;
    Hps__V1__VersionInfo *info =
        hps_unary_add(op, &hps__v1__version_info__descriptor, &model->versions, &model->n_versions);
    if (info == NULL) {
        return;
    }
    bool loaded = strcmp(view->state, "loading") != 0;
    info->version = version->number;
    info->state = (char *)view->state;
    info->label = hps_unary_text(op, version->label);
    info->config = hps_unary_text(op, version->config);
    info->lineage = hps_unary_text(op, version->lineage);
    info->source = hps_unary_text(op, version->source);
    info->source_fingerprint = hps_unary_text(op, version->fingerprint);
    info->load_id = hps_unary_text(op, loaded ? version->load_id : NULL);
    info->loaded_unix_ms = loaded ? (int64_t)version->loaded_unix_ms : 0;
    info->load_ratio = view->load_ratio;
    info->table_count = version->n_tables;
    info->row_count = view->n_rows;
    info->row_count_estimated = view->rows_estimated;
    info->dropped_row_count = view->n_rows_dropped;
    info->host_bytes = view->host_bytes;
    info->persistent_bytes = view->persistent_bytes;
    info->warm_key_count = view->n_keys_warm;
    info->hot_key_count = view->n_keys_hot;
    info->device_bytes = view->gpu_bytes;
    info->device_row_count = view->gpu_rows;
    info->device_note = hps_unary_text(op, view->gpu_note);
    info->duplicate_key_count = loaded ? version->duplicate_keys : 0;
}

static void add_view(void *ctx, const struct hps_version_view *view)
{
    const struct model_list *list = ctx;
    const Hps__V1__ListModelsResponse *reply = list->reply;
    if (!hps_unary_sees(list->op, view->model)) {
        return;
    }
    Hps__V1__ModelInfo *last = reply->n_models > 0 ? reply->models[reply->n_models - 1] : NULL;
    if (last == NULL || strcmp(last->model, view->model) != 0) {
        last = add_model(list, view->model);
        if (last == NULL) {
            return;
        }
        last->active_version = view->active_version;
        last->state = (char *)"active";
    }
    add_version(list->op, last, view);
}

/* The index of model `name` in the sorted list, or where it would be inserted. */
static size_t model_place(const Hps__V1__ListModelsResponse *reply, const char *name)
{
    size_t at = 0;
    while (at < reply->n_models && strcmp(reply->models[at]->model, name) < 0) {
        at++;
    }
    return at;
}

static void add_unserved(void *ctx, const struct hps_unserved_view *view)
{
    const struct model_list *list = ctx;
    Hps__V1__ListModelsResponse *reply = list->reply;
    if (!hps_unary_sees(list->op, view->model)) {
        return;
    }
    size_t at = model_place(reply, view->model);
    Hps__V1__ModelInfo *model = at < reply->n_models ? reply->models[at] : NULL;
    if (model == NULL || strcmp(model->model, view->model) != 0) {
        model = add_model(list, view->model);
        if (model == NULL) {
            return;
        }
        memmove(&reply->models[at + 1], &reply->models[at],
                (reply->n_models - 1 - at) * sizeof(Hps__V1__ModelInfo *));
        reply->models[at] = model;
    }
    model->state = (char *)view->state;
    model->reason = hps_unary_text(list->op, view->why);
}

void admin_list_models(struct hps_unary *op)
{
    struct model_list list = {op,
                              hps_unary_message(op, &hps__v1__list_models_response__descriptor)};
    if (list.reply == NULL) {
        return;
    }
    hps_catalog_each(admin_parts(op)->catalog, add_view, &list);
    hps_catalog_each_unserved(admin_parts(op)->catalog, add_unserved, &list);
    op->reply = &list.reply->base;
}

/* Append the tables of a version in the model's order. usages: of its embedding caches, [n_tables];
 * NULL: no caches */
static void add_infos(struct hps_unary *op, const struct hps_version *version,
                      const struct hps_embed_range_usage *usages, Hps__V1__TableInfo ***tables,
                      size_t *n_tables)
{
    HPS_ASSERT(version->n_tables <= version->n_places);
    for (uint32_t place = 0; place < version->n_places; place++) {
        uint32_t i = hps_version_table_at(version, place);
        Hps__V1__TableInfo *info =
            i != UINT32_MAX ? hps_unary_add(op, &hps__v1__table_info__descriptor, tables, n_tables)
                            : NULL;
        if (info == NULL) {
            continue;
        }
        const struct hps_table *table = &version->tables[i];
        bool estimated;
        info->model = hps_unary_text(op, version->model);
        info->version = version->number;
        info->table = hps_unary_text(op, table->name);
        info->dim = table->dim;
        info->data_type = admin_dtype_text(table->dtype);
        info->row_count = hps_update_table_rows(version, i, &estimated);
        info->row_count_estimated = estimated;
        info->device_bytes = usages != NULL ? usages[i].bytes : 0;
        info->device_row_count = usages != NULL ? usages[i].n_rows : 0;
        info->place = place;
        info->dense_row_count = hps_update_dense_rows(version, i);
    }
}

struct table_list {
    struct hps_unary *op;
    const char *model; /* "": all models */
    int64_t version;   /* 0: the active version */
    Hps__V1__ListTablesResponse *reply;
    bool found;
};

static void add_tables(void *ctx, const struct hps_version_view *view)
{
    struct table_list *list = ctx;
    int64_t wanted = list->version != 0 ? list->version : view->active_version;
    if ((list->model[0] != '\0' && strcmp(list->model, view->model) != 0) ||
        view->version->number != wanted || strcmp(view->state, "loading") == 0 ||
        !hps_unary_sees(list->op, view->model)) {
        return;
    }
    add_infos(list->op, view->version, view->gpu_usages, &list->reply->tables,
              &list->reply->n_tables);
    list->found = true;
}

void admin_list_tables(struct hps_unary *op)
{
    const Hps__V1__ListTablesRequest *request = (const Hps__V1__ListTablesRequest *)op->request;
    Hps__V1__ListTablesResponse *reply =
        hps_unary_message(op, &hps__v1__list_tables_response__descriptor);
    if (reply == NULL) {
        return;
    }
    struct table_list list = {op, request->model, request->version, reply, false};
    hps_catalog_each(admin_parts(op)->catalog, add_tables, &list);
    if (!list.found && (request->model[0] != '\0' || request->version != 0)) {
        if (request->version == 0) {
            hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND,
                                     "model \"%s\" has no active version", request->model));
        } else {
            hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND,
                                     "model \"%s\" has no resident version %lld", request->model,
                                     (long long)request->version));
        }
        return;
    }
    reply->key_bytes = admin_parts(op)->key_bytes;
    op->reply = &reply->base;
}

/* ---- loads and switches ---------------------------------------------------------------------- */

static int64_t *unloaded_copy(struct hps_unary *op, const struct hps_versions_gone *gone)
{
    HPS_ASSERT(gone->n == 0 || gone->numbers != NULL);
    int64_t *numbers = hps_unary_alloc(op, gone->n, sizeof(*numbers));
    if (numbers != NULL) {
        memcpy(numbers, gone->numbers, gone->n * sizeof(*numbers));
    }
    return numbers;
}

/* Copies; NULL: out of memory. */
static char **admin_texts(struct hps_unary *op, const struct hps_strings *strings)
{
    char **texts = hps_unary_alloc(op, strings->n, sizeof(char *));
    for (size_t i = 0; texts != NULL && i < strings->n; i++) {
        texts[i] = hps_unary_text(op, strings->items[i]);
    }
    return texts;
}

static void dry_run(struct hps_unary *op, const struct hps_load_request *request)
{
    struct hps_load_plan plan;
    struct hps_version *version = NULL;
    struct hps_switched effect;
    struct hps_strings notes;
    hps_status status = hps_catalog_load_plan(admin_parts(op)->catalog, request, &plan, &version,
                                              &effect, &notes, &op->error);
    if (status != HPS_OK) {
        return;
    }
    Hps__V1__LoadProgress *reply = hps_unary_message(op, &hps__v1__load_progress__descriptor);
    Hps__V1__LoadPlan *answer = hps_unary_message(op, &hps__v1__load_plan__descriptor);
    Hps__V1__TableDiff **diffs = admin_table_diffs(op->arena, &effect.diff);
    int64_t *unloaded = unloaded_copy(op, &effect.gone);
    char **texts = admin_texts(op, &notes);
    if (reply != NULL && answer != NULL && diffs != NULL && unloaded != NULL && texts != NULL) {
        reply->notes = texts;
        reply->n_notes = notes.n;
        answer->disk_bytes_needed = plan.disk_bytes_needed;
        answer->disk_bytes_available = plan.disk_bytes_available;
        answer->dropped_row_count = plan.n_rows_dropped;
        answer->host_bytes_needed = plan.host_bytes_needed;
        answer->host_bytes_available = plan.host_bytes_available;
        answer->redis_bytes_needed = plan.shared_bytes_needed;
        answer->device_bytes_needed = plan.device_bytes_needed;
        add_infos(op, version, NULL, &answer->tables, &answer->n_tables);
        answer->diffs = diffs;
        answer->n_diffs = effect.diff.n_tables;
        answer->unload_versions = unloaded;
        answer->n_unload_versions = effect.gone.n;
        reply->model = hps_unary_text(op, version->model);
        reply->version = version->number;
        reply->stage = (char *)"plan";
        reply->rows_total = plan.n_rows;
        reply->bytes_total = plan.row_bytes;
        reply->done = true;
        reply->active_version = effect.previous;
        reply->plan = answer;
        op->reply = &reply->base;
    }
    hps_strings_fini(&notes);
    hps_version_diff_free(&effect.diff);
    hps_version_free(version);
}

/* Parse a row_dtype of the request. False: invalid, op->error is set. */
static bool read_row_dtype(struct hps_unary *op, const char *word, struct hps_row_wish *out_wish)
{
    struct hps_row_wish wish = {.given = word[0] != '\0'};
    bool good =
        !wish.given || strcmp(word, "file") == 0 ||
        (hps_dtype_parse(word, strlen(word), &wish.dtype) && hps_dtype_is_stored(wish.dtype));
    if (!good) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "row_dtype: got \"%.60s\", expected fp32, fp16, bf16, "
                                 "int8_rowwise_f32, int8_rowwise_f16 or file",
                                 word));
        return false;
    }
    *out_wish = wish;
    return true;
}

/* The tables of the request; NULL: op->error is set. */
static struct hps_source_named *load_tables(struct hps_unary *op,
                                            const Hps__V1__LoadModelRequest *message)
{
    struct hps_source_named *tables = hps_unary_alloc(op, message->n_tables, sizeof(*tables));
    for (size_t i = 0; tables != NULL && i < message->n_tables; i++) {
        tables[i].name = message->tables[i]->table;
        tables[i].path = message->tables[i]->path;
        if (!read_row_dtype(op, message->tables[i]->row_dtype, &tables[i].row_dtype)) {
            return NULL;
        }
    }
    return tables;
}

static void load_model(struct hps_unary *op, const Hps__V1__LoadModelRequest *message)
{
    HPS_ASSERT(admin_of(op)->load == NULL);
    struct hps_row_wish row_dtype;
    if (!read_row_dtype(op, message->row_dtype, &row_dtype)) {
        return;
    }
    const struct hps_load_request request = {.model = message->model,
                                             .directory = message->directory,
                                             .tables = load_tables(op, message),
                                             .n_tables = message->n_tables,
                                             .config = message->config,
                                             .version = message->version,
                                             .label = message->label,
                                             .lineage = message->lineage,
                                             .row_dtype = row_dtype,
                                             .activate = message->activate,
                                             .force = message->force,
                                             .replace = message->replace};
    if (request.tables == NULL && request.n_tables > 0) {
        return;
    }
    if (message->dry_run) {
        dry_run(op, &request);
    } else {
        op->error.status =
            hps_catalog_load(admin_parts(op)->catalog, &request, &admin_of(op)->load, &op->error);
    }
}

void admin_load_model(struct hps_unary *op)
{
    const Hps__V1__LoadModelRequest *message = (const Hps__V1__LoadModelRequest *)op->request;
    op->version = message->version;
    if (message->config[0] != '\0') {
        load_model(op, message);
    } else if (message->directory[0] == '\0' && message->n_tables == 0) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "got none of directory, tables and config, expected one of them"));
    } else if (message->directory[0] != '\0' && message->n_tables > 0) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "directory: got \"%s\" and %zu tables, expected only one of them",
                                 message->directory, message->n_tables));
    } else {
        load_model(op, message);
    }
    if (admin_of(op)->load != NULL) {
        struct hps_load_state state;
        hps_load_state_get(admin_of(op)->load, &state);
        op->version = state.version;
        op->follow = admin_follow_load;
    }
}

/* takes the differences */
static void reply_activated(struct hps_unary *op, struct hps_switched *switched)
{
    HPS_ASSERT(op->reply == NULL);
    Hps__V1__ActivateVersionResponse *reply =
        hps_unary_message(op, &hps__v1__activate_version_response__descriptor);
    Hps__V1__TableDiff **diffs = admin_table_diffs(op->arena, &switched->diff);
    int64_t *unloaded = unloaded_copy(op, &switched->gone);
    if (reply != NULL && unloaded != NULL) {
        reply->version = switched->version;
        reply->previous_version = switched->previous;
        reply->pause_us = switched->pause_us;
        reply->diffs = diffs;
        /* Out of memory: the version is active, and no difference is reported. */
        reply->n_diffs = diffs != NULL ? switched->diff.n_tables : 0;
        reply->unload_versions = unloaded;
        reply->n_unload_versions = switched->gone.n;
        op->reply = &reply->base;
    }
    hps_version_diff_free(&switched->diff);
}

static void on_switched(struct hps_switch *waiter, const struct hps_error *error)
{
    struct hps_unary *op = &HPS_CONTAINER_OF(waiter, struct admin_op, waiter)->rpc;
    op->error = *error;
    if (error->status == HPS_OK) {
        reply_activated(op, &waiter->switched);
    }
    hps_unary_finish(op);
}

void admin_activate(struct hps_unary *op)
{
    const Hps__V1__ActivateVersionRequest *request =
        (const Hps__V1__ActivateVersionRequest *)op->request;
    op->version = request->version;
    admin_of(op)->waiter.done = on_switched;
    admin_of(op)->waiter.force = request->force;
    hps_catalog_switch(admin_parts(op)->catalog, request->model, request->version,
                       &admin_of(op)->waiter);
}

void admin_rollback(struct hps_unary *op)
{
    const Hps__V1__RollbackModelRequest *request =
        (const Hps__V1__RollbackModelRequest *)op->request;
    struct hps_switched switched;
    if (hps_catalog_rollback(admin_parts(op)->catalog, request->model, &switched, &op->error) ==
        HPS_OK) {
        op->version = switched.version;
        reply_activated(op, &switched);
    }
}

static void on_unloaded(struct hps_unload *unload, const struct hps_error *error)
{
    struct hps_unary *op = &HPS_CONTAINER_OF(unload, struct admin_op, unload)->rpc;
    op->error = *error;
    hps_unary_finish(op);
}

void admin_unload(struct hps_unary *op)
{
    static const Hps__V1__UnloadVersionResponse reply = HPS__V1__UNLOAD_VERSION_RESPONSE__INIT;
    const Hps__V1__UnloadVersionRequest *request =
        (const Hps__V1__UnloadVersionRequest *)op->request;
    op->version = request->version;
    op->reply = &reply.base;
    admin_of(op)->unload.done = on_unloaded;
    struct hps_error error = {0};
    if (hps_catalog_unload(admin_parts(op)->catalog, request->model, request->version,
                           &admin_of(op)->unload, &error) != HPS_OK) {
        op->error = error; /* on success `op` may have been freed */
        hps_unary_finish(op);
    }
}

/* ---- one key --------------------------------------------------------------------------------- */

static void add_answer(struct hps_unary *op, const struct hps_table *table,
                       const struct hps_key_answer *from, bool may_look_up,
                       Hps__V1__ExplainKeyResponse *reply)
{
    Hps__V1__TierAnswer *answer =
        hps_unary_add(op, &hps__v1__tier_answer__descriptor, &reply->tiers, &reply->n_tiers);
    if (answer == NULL) {
        return;
    }
    answer->tier = (char *)hps_tier_name(from->tier);
    answer->found = from->found;
    answer->duration_us = from->duration_us;
    if (from->error != NULL) {
        answer->error = hps_unary_text(op, from->error);
    }
    if (from->found && may_look_up) {
        answer->row.data = from->row;
        answer->row.len = table->row_bytes;
    }
    if (from->found) {
        reply->state = HPS__V1__KEY_STATE__KEY_STATE_FOUND;
    }
}

static void explain(struct hps_unary *op, struct hps_version *version,
                    const struct hps_table *table, hps_key key)
{
    Hps__V1__ExplainKeyResponse *reply =
        hps_unary_message(op, &hps__v1__explain_key_response__descriptor);
    struct hps_key_answer of_tiers[HPS_TIERS_MAX];
    uint32_t n = 0;
    if (reply == NULL) {
        return;
    }
    if (admin_parts(op)->key_bytes == 4) {
        hps_keys_narrow(&key, 1);
    }
    hps_status status =
        hps_explain_key(version, table, key, admin_parts(op)->blocks, op->arena, of_tiers, &n);
    if (status != HPS_OK) {
        hps_ignore(
            hps_error_set(&op->error, status, "no memory for the rows of %u tiers", HPS_TIERS_MAX));
        return;
    }
    bool may_look_up = hps_access_sees(op->call, HPS_ROLE_LOOKUP, op->model);
    reply->version = version->number;
    reply->state = HPS__V1__KEY_STATE__KEY_STATE_UNKNOWN;
    for (uint32_t i = 0; i < n; i++) {
        add_answer(op, table, &of_tiers[i], may_look_up, reply);
    }
    op->reply = &reply->base;
}

void admin_explain_key(struct hps_unary *op)
{
    const Hps__V1__ExplainKeyRequest *request = (const Hps__V1__ExplainKeyRequest *)op->request;
    struct hps_version *version;
    if (hps_models_pin(admin_parts(op)->models, request->model, strlen(request->model),
                       request->version, &version, &op->error) != HPS_OK) {
        return;
    }
    uint32_t table = hps_version_table(version, request->table, strlen(request->table));
    if (table == UINT32_MAX) {
        hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND, "table \"%s\" is not in model \"%s\"",
                                 request->table, request->model));
    } else {
        explain(op, version, &version->tables[table], (hps_key)request->key);
    }
    hps_version_unpin(version);
}
