/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests: taken from those that are idle, ended with an error where there is no answer, accounted
 * for and given back when nobody holds them any more. On the loop thread of the connection; the
 * idle ones are shared by all loops.
 */
#include <string.h>

#include "base/heap.h"
#include "server/lookup/internal.h"

enum {
    ARENA_BYTES_FIRST = 32 * 1024,
    SCRATCH_BYTES_FIRST = 16 * 1024,
    SCRATCH_BYTES_MAX = 64 * 1024 * 1024
};

/* What a client that was refused for want of room should wait before it tries again. */
static const char PUSHBACK_NAME[] = "grpc-retry-pushback-ms";
static const char PUSHBACK_MS[] = "100";

/* ---- idle ones ------------------------------------------------------------------------------- */

void request_free(struct request *request)
{
    if (request == NULL) {
        return;
    }
    hps_arena_free(request->arena);
    hps_arena_free(request->scratch);
    hps_free(request);
}

static struct request *request_make(void)
{
    struct request *request = hps_calloc(1, sizeof(*request));

    if (request == NULL) {
        return NULL;
    }
    /* No limit of its own: the decoder's limits on queries and keys are the limit, and they may
     * change while this waits for its next request. */
    request->arena = hps_arena_new(ARENA_BYTES_FIRST, SIZE_MAX);
    request->scratch = hps_arena_new(SCRATCH_BYTES_FIRST, SCRATCH_BYTES_MAX);
    if (request->arena == NULL || request->scratch == NULL) {
        request_free(request);
        return NULL;
    }
    return request;
}

struct request *request_take(struct hps_lookup_service *service)
{
    struct request *request;

    pthread_mutex_lock(&service->lock);
    request = service->idle;
    if (request != NULL) {
        service->idle = request->next_idle;
        service->n_idle--;
    }
    service->n_used++;
    pthread_mutex_unlock(&service->lock);
    if (request == NULL) {
        request = request_make();
    }
    if (request == NULL) {
        pthread_mutex_lock(&service->lock);
        service->n_used--;
        pthread_mutex_unlock(&service->lock);
    }
    return request;
}

static void request_give(struct hps_lookup_service *service, struct request *request)
{
    bool keep;

    hps_arena_reset(request->arena);
    hps_arena_reset(request->scratch);
    pthread_mutex_lock(&service->lock);
    keep = service->n_idle < service->parts.limits.arenas_idle_max;
    if (keep) {
        request->next_idle = service->idle;
        service->idle = request;
        service->n_idle++;
    }
    service->n_used--;
    pthread_mutex_unlock(&service->lock);
    if (!keep) {
        request_free(request);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static int code_of_closed(const struct request *request)
{
    uint64_t deadline_us = request->lookup.deadline_us;

    /* An answer that the client did not take to its end was no success. */
    if (request->code > 0 || (request->code == 0 && !hps_grpc_call_cancelled(request->call))) {
        return request->code;
    }
    return hps_status_grpc_code(
        deadline_us != 0 && request->closed_us >= deadline_us ? HPS_DEADLINE : HPS_CANCELLED);
}

void request_name_work(struct request *request)
{
    static const enum hps_stage stages[HPS_TIER_COUNT] = {[HPS_TIER_HOST] = HPS_STAGE_HOST,
                                                          [HPS_TIER_REDIS] = HPS_STAGE_REDIS,
                                                          [HPS_TIER_ROCKSDB] = HPS_STAGE_ROCKSDB};
    struct hps_lookup *lookup = &request->lookup;

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        if (kind != HPS_TIER_GPU) { /* nobody works while it is asked */
            hps_stages_name(&request->stages, HPS_STAGE_WORK, stages[kind], lookup->tier_us[kind]);
        }
        lookup->tier_us[kind] = 0;
    }
    hps_stages_name(&request->stages, HPS_STAGE_WORK, HPS_STAGE_WAIT, lookup->others_us);
    lookup->others_us = 0;
}

static void account(struct request *request)
{
    const struct hps_service_metrics *metrics = request->service->parts.metrics;
    struct hps_slow_request *slow = &request->slow;

    slow->grpc_code = code_of_closed(request);
    slow->duration_us = request->closed_us - request->start_us;
    slow->n_keys = request->lookup.n_keys;
    hps_stages_enter_at(&request->stages, request->stages.now, request->closed_us);
    request_name_work(request);
    memcpy(slow->stage_us, request->stages.us, sizeof(slow->stage_us));
    if (request->encoded) {
        for (unsigned i = 0; i < HPS_STAGE_COUNT; i++) {
            hps_metric_observe_us(metrics->stage_duration[i], slow->stage_us[i]);
        }
    }
    hps_slowlog_add(request->service->parts.slowlog, slow);
    hps_metric_gauge_add(metrics->requests_in_flight, -1);
}

void request_end(struct request *request)
{
    struct hps_lookup_service *service = request->service;

    HPS_ASSERT(request->closed);
    account(request);
    request_unpin(request);
    hps_block_unref(request->lookup.block);
    hps_admission_release(service->parts.admission, &request->ticket);
    hps_grpc_call_unref(request->call);
    request_give(service, request);
}

/* ---- errors ---------------------------------------------------------------------------------- */

void request_fail(struct request *request, hps_status status, const struct hps_error *err)
{
    if (request->closed || request->code >= 0) {
        return;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    request->code = hps_status_grpc_code(status);
    hps_grpc_call_fail(request->call, err);
}

void request_reject(struct request *request, enum hps_reject reason, const struct hps_error *err)
{
    hps_metric_add(request->service->parts.metrics->rejected[reason], 1);
    if (request->closed) {
        return;
    }
    /* Without the hint the client falls back to its own pace. */
    hps_ignore(hps_grpc_call_add_trailer(request->call, PUSHBACK_NAME, PUSHBACK_MS,
                                         sizeof(PUSHBACK_MS) - 1));
    request_fail(request, err->status, err);
}
