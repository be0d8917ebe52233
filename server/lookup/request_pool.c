/* SPDX-License-Identifier: Apache-2.0
 *
 * Idle requests with their arenas, so that a new request seldom allocates. Shared by all loops. Any
 * thread.
 */
#include "base/heap.h"
#include "server/lookup/internal.h"

enum {
    ARENA_BYTES_FIRST = 32 * 1024,
    SCRATCH_BYTES_FIRST = 16 * 1024,
    SCRATCH_BYTES_MAX = 64 * 1024 * 1024
};

/* No effect if NULL. */
static void free_request(struct request *request)
{
    if (request == NULL) {
        return;
    }
    hps_arena_free(request->arena);
    hps_arena_free(request->scratch);
    hps_free(request);
}

static struct request *make_request(void)
{
    struct request *request = hps_calloc(1, sizeof(*request));

    if (request == NULL) {
        return NULL;
    }
    /* No limit here: the decoder limits queries and keys, and these limits may change while the
     * request is idle. */
    request->arena = hps_arena_new(ARENA_BYTES_FIRST, SIZE_MAX);
    request->scratch = hps_arena_new(SCRATCH_BYTES_FIRST, SCRATCH_BYTES_MAX);
    if (request->arena == NULL || request->scratch == NULL) {
        free_request(request);
        return NULL;
    }
    return request;
}

struct request *request_take(struct hps_lookup_service *service)
{
    struct request *request;

    hps_lock_acquire(&service->lock);
    request = service->idle;
    if (request != NULL) {
        HPS_ASSERT(service->n_idle > 0);
        service->idle = request->next_idle;
        service->n_idle--;
    }
    service->n_used++;
    hps_lock_release(&service->lock);
    if (request == NULL) {
        request = make_request();
    }
    if (request == NULL) {
        hps_lock_acquire(&service->lock);
        service->n_used--;
        hps_lock_release(&service->lock);
    }
    return request;
}

void request_give(struct hps_lookup_service *service, struct request *request)
{
    bool keep;

    HPS_ASSERT(request->phase == PHASE_ENDED);
    hps_arena_reset(request->arena);
    hps_arena_reset(request->scratch);
    hps_lock_acquire(&service->lock);
    HPS_ASSERT(service->n_used > 0);
    keep = service->n_idle < service->parts.limits.arenas_idle_max;
    if (keep) {
        request->next_idle = service->idle;
        service->idle = request;
        service->n_idle++;
    }
    service->n_used--;
    hps_lock_release(&service->lock);
    if (!keep) {
        free_request(request);
    }
}

void request_free_idle(struct hps_lookup_service *service)
{
    HPS_ASSERT(service->n_used == 0);
    while (service->idle != NULL) {
        struct request *request = service->idle;
        service->idle = request->next_idle;
        free_request(request);
    }
}
