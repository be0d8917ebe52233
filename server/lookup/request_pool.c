/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of requests. Their arenas are kept for reuse, so that a new request seldom allocates
 * much. Shared by all loops. Any thread.
 */
#include "base/heap.h"
#include "server/lookup/internal.h"

enum { SCRATCH_BYTES_MAX = 64 * 1024 * 1024 };

/* No effect if NULL. */
static void free_arenas(struct request_arenas *arenas)
{
    if (arenas == NULL) {
        return;
    }
    hps_arena_free(arenas->arena);
    hps_arena_free(arenas->scratch);
    hps_free(arenas);
}

static struct request_arenas *make_arenas(void)
{
    struct request_arenas *arenas = hps_calloc(1, sizeof(*arenas));

    if (arenas == NULL) {
        return NULL;
    }
    /* No limit here: the decoder limits queries and keys, and these limits may change while the
     * arenas are unused. */
    arenas->arena = hps_arena_new(REQUEST_ARENA_BYTES, SIZE_MAX);
    arenas->scratch = hps_arena_new(REQUEST_SCRATCH_BYTES, SCRATCH_BYTES_MAX);
    if (arenas->arena == NULL || arenas->scratch == NULL) {
        free_arenas(arenas);
        return NULL;
    }
    return arenas;
}

struct request *request_take(struct hps_lookup_service *service)
{
    struct request *request = hps_calloc(1, sizeof(*request));

    if (request == NULL) {
        return NULL;
    }
    hps_lock_acquire(&service->lock);
    struct request_arenas *arenas = service->idle;
    if (arenas != NULL) {
        HPS_ASSERT(service->n_idle > 0);
        service->idle = arenas->next_idle;
        service->n_idle--;
    }
    service->n_used++;
    hps_lock_release(&service->lock);
    request->arenas = arenas != NULL ? arenas : make_arenas();
    if (request->arenas == NULL) {
        request_give(service, request);
        return NULL;
    }
    request->arena = request->arenas->arena;
    request->scratch = request->arenas->scratch;
    return request;
}

void request_give_arenas(struct hps_lookup_service *service, struct request *request)
{
    struct request_arenas *arenas = request->arenas;

    if (arenas == NULL) {
        return;
    }
    request->arenas = NULL;
    request->arena = NULL;
    request->scratch = NULL;
    hps_arena_reset(arenas->arena);
    hps_arena_reset(arenas->scratch);
    hps_lock_acquire(&service->lock);
    bool keep = service->n_idle < service->parts.limits.arenas_idle_max;
    if (keep) {
        arenas->next_idle = service->idle;
        service->idle = arenas;
        service->n_idle++;
    }
    hps_lock_release(&service->lock);
    if (!keep) {
        free_arenas(arenas);
    }
}

void request_give(struct hps_lookup_service *service, struct request *request)
{
    request_give_arenas(service, request);
    hps_lock_acquire(&service->lock);
    HPS_ASSERT(service->n_used > 0);
    service->n_used--;
    hps_lock_release(&service->lock);
    hps_free(request);
}

void request_free_idle(struct hps_lookup_service *service)
{
    HPS_ASSERT(service->n_used == 0);
    while (service->idle != NULL) {
        struct request_arenas *arenas = service->idle;
        service->idle = arenas->next_idle;
        free_arenas(arenas);
    }
}
