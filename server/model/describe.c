/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the reply to GetModel from the pinned versions of a model and the streams of their updates.
 * See server/model/describe.h.
 */
#include "server/model/describe.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "cache/update/update.h"
#include "server/model/pinned.h"

static hps_status too_large(struct hps_error *err)
{
    return hps_error_set(
        err, HPS_EXHAUSTED,
        "the versions of the model do not fit into one reply; request one version");
}

/* ---- constant data --------------------------------------------------------------------------- */

/* NULL: the arena is full. */
static char *copy_of(struct hps_arena *arena, const char *text)
{
    return hps_arena_strndup(arena, text != NULL ? text : "", text != NULL ? strlen(text) : 0);
}

static bool add_tables(const struct hps_version *version, struct hps_arena *arena,
                       Hps__V1__ModelVersion *of)
{
    HPS_ASSERT(version->n_tables <= version->n_places);
    size_t n = version->n_tables + (size_t)1; /* the version may have no tables */
    Hps__V1__ModelTable *tables = hps_arena_calloc(arena, n, sizeof(*tables));
    of->tables = hps_arena_calloc(arena, n, sizeof(Hps__V1__ModelTable *));
    if (tables == NULL || of->tables == NULL) {
        return false;
    }
    for (uint32_t place = 0; place < version->n_places; place++) {
        uint32_t i = hps_version_table_at(version, place);
        if (i == UINT32_MAX) {
            continue;
        }
        bool estimated = false;
        hps__v1__model_table__init(&tables[i]);
        tables[i].table = copy_of(arena, version->tables[i].name);
        tables[i].dim = version->tables[i].dim;
        tables[i].data_type = (Hps__V1__DataType)version->tables[i].dtype;
        tables[i].row_count = hps_update_table_rows(version, i, &estimated);
        tables[i].row_count_estimated = estimated;
        tables[i].place = place;
        tables[i].dense_row_count = hps_update_dense_rows(version, i);
        if (tables[i].table == NULL) {
            return false;
        }
        of->tables[of->n_tables++] = &tables[i];
    }
    return true;
}

/* NULL: the arena is full. */
static Hps__V1__ModelVersion *describe_version(struct hps_version *version, struct hps_arena *arena)
{
    Hps__V1__ModelVersion *of = hps_arena_alloc(arena, sizeof(*of));
    if (of == NULL) {
        return NULL;
    }
    hps__v1__model_version__init(of);
    of->version = version->number;
    of->label = copy_of(arena, version->label);
    of->lineage = copy_of(arena, version->lineage);
    of->loaded_unix_ms = (int64_t)version->loaded_unix_ms;
    of->update_sequence = hps_update_sequence(version);
    of->event_time_unix_ms = hps_update_event_time_ms(version);
    of->as_of_unix_ms = hps_clock_wall_of(hps_update_as_of_ms(version));
    bool whole = of->label != NULL && of->lineage != NULL && add_tables(version, arena, of);
    return whole ? of : NULL;
}

/* ---- positions of updates -------------------------------------------------------------------- */

struct describing {
    struct hps_arena *arena;
    Hps__V1__GetModelResponse *reply;
    bool full; /* the arena is full */
};

static Hps__V1__ModelVersion *version_of(const Hps__V1__GetModelResponse *reply,
                                         const struct hps_stream_view *view)
{
    for (size_t i = 0; i < reply->n_versions; i++) {
        if (strcmp(reply->model, view->model) == 0 &&
            reply->versions[i]->version == view->version) {
            return reply->versions[i];
        }
    }
    return NULL;
}

static Hps__V1__UpdatePosition *position_of(const struct hps_partition_view *view,
                                            struct hps_arena *arena)
{
    Hps__V1__UpdatePosition *of = hps_arena_alloc(arena, sizeof(*of));
    if (of == NULL) {
        return NULL;
    }
    hps__v1__update_position__init(of);
    of->topic = copy_of(arena, view->topic);
    of->partition = view->partition;
    of->next_offset = view->next;
    return of->topic != NULL ? of : NULL;
}

/* Adds the positions of a stream. A view is made after the state that it shows, so lookups see at
 * least that state. */
static void add_stream(void *ctx, const struct hps_stream_view *view)
{
    struct describing *describing = ctx;
    Hps__V1__ModelVersion *of = version_of(describing->reply, view);
    if (of == NULL || of->positions != NULL) {
        return;
    }
    of->rejected_record_count = view->n_rejected;
    of->positions = hps_arena_calloc(describing->arena, view->n_partitions + (size_t)1,
                                     sizeof(Hps__V1__UpdatePosition *));
    describing->full = describing->full || of->positions == NULL;
    for (uint32_t i = 0; i < view->n_partitions && !describing->full; i++) {
        if (view->partitions[i].next >= 0) { /* else not known yet */
            of->positions[of->n_positions] = position_of(&view->partitions[i], describing->arena);
            describing->full = of->positions[of->n_positions++] == NULL;
        }
    }
}

/* ---- the reply ------------------------------------------------------------------------------- */

static hps_status describe_all(const struct hps_model_pinned *pinned, const char *model,
                               struct hps_updater *updater, struct describing *describing,
                               struct hps_error *err)
{
    Hps__V1__GetModelResponse *reply = describing->reply;
    hps__v1__get_model_response__init(reply);
    reply->model = copy_of(describing->arena, model);
    reply->active_version = pinned->active;
    reply->versions =
        hps_arena_calloc(describing->arena, pinned->n, sizeof(Hps__V1__ModelVersion *));
    if (reply->model == NULL || reply->versions == NULL) {
        return too_large(err);
    }
    for (size_t i = 0; i < pinned->n; i++) {
        reply->versions[i] = describe_version(pinned->versions[i], describing->arena);
        if (reply->versions[i] == NULL) {
            return too_large(err);
        }
        reply->n_versions++;
    }
    hps_updater_each(updater, add_stream, describing);
    return describing->full ? too_large(err) : HPS_OK;
}

hps_status hps_model_describe(struct hps_models *models, struct hps_updater *updater,
                              const Hps__V1__GetModelRequest *request, struct hps_arena *arena,
                              Hps__V1__GetModelResponse *reply, struct hps_error *err)
{
    struct describing describing = {.arena = arena, .reply = reply};
    struct hps_model_pinned pinned = {0};
    hps_status status = hps_model_pin_all(models, request->model, arena, &pinned, err);
    if (status != HPS_OK) {
        return status;
    }
    if (request->version != 0) {
        status = hps_model_choose(&pinned, request->model, request->version, err);
    }
    if (status == HPS_OK) {
        status = describe_all(&pinned, request->model, updater, &describing, err);
    }
    hps_model_unpin(&pinned);
    return status;
}
