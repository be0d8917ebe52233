/* SPDX-License-Identifier: Apache-2.0
 *
 * Check and Watch. Watchers of all loops are in one list, and a change is posted to the loop of
 * each. Functions that take a call run on the loop thread of its connection, all others on any
 * thread.
 */
#include "server/rpc/health.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"
#include "grpc/health/v1/health.pb-c.h"
#include "server/rpc/message.h"

#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

/* One Watch: the user data of its call, freed when the call closes. */
struct watcher {
    struct watcher *next, *prev;
    struct hps_health_service *service;
    struct hps_grpc_call *call;
    serving_status sent; /* last status sent; loop thread */
    bool known;          /* the service name is known */
};

struct notice {
    struct hps_task task;
    struct hps_grpc_call *call; /* referenced */
};

struct hps_health_service {
    struct hps_grpc_service grpc;
    struct hps_grpc_method methods[2];
    const char *const *names;
    unsigned n_names;
    atomic_bool serving;
    atomic_bool closed;
    struct hps_lock lock; /* protects the list */
    struct watcher *watchers;
};

static bool known_name(const struct hps_health_service *service, const char *name)
{
    if (name[0] == '\0') {
        return true;
    }
    for (unsigned i = 0; i < service->n_names; i++) {
        if (strcmp(service->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* out_known: the service name is known. False: the call has failed. */
static bool read_request(struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         bool *out_known)
{
    struct hps_health_service *service = hps_grpc_call_ctx(call);
    struct hps_arena *arena = hps_arena_new(1024, HPS_MESSAGE_BYTES_MAX);
    ProtobufCMessage *message =
        arena == NULL ? NULL
                      : hps_message_unpack(&grpc__health__v1__health_check_request__descriptor,
                                           arena, data, size);
    if (message == NULL) {
        hps_arena_free(arena);
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_INVALID),
                             "request: not a grpc.health.v1.HealthCheckRequest");
        return false;
    }
    *out_known = known_name(service, ((Grpc__Health__V1__HealthCheckRequest *)message)->service);
    hps_arena_free(arena);
    return true;
}

static void send_status(struct hps_grpc_call *call, serving_status status)
{
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    reply.status = status;
    hps_message_send(call, &reply.base);
}

static serving_status now(const struct hps_health_service *service)
{
    return atomic_load(&service->serving) ? STATUS(SERVING) : STATUS(NOT_SERVING);
}

static void on_check(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    bool known;
    if (!read_request(call, data, size, &known)) {
        return;
    }
    if (!known) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NOT_FOUND), "service: unknown");
        return;
    }
    send_status(call, now(hps_grpc_call_ctx(call)));
    hps_grpc_call_finish(call, 0, NULL);
}

/* Send the status if it differs from the last one sent. */
static void watch_update(struct hps_grpc_call *call, struct watcher *watcher)
{
    HPS_ASSERT(watcher->call == call);
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(call)));
    serving_status status = watcher->known ? now(watcher->service) : STATUS(SERVICE_UNKNOWN);
    if (status != watcher->sent) {
        watcher->sent = status;
        send_status(call, status);
    }
    if (atomic_load(&watcher->service->closed)) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_UNAVAILABLE), "the server is draining");
    }
}

static void on_watch(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_health_service *service = hps_grpc_call_ctx(call);
    bool known;
    if (!read_request(call, data, size, &known)) {
        return;
    }
    struct watcher *watcher = hps_calloc(1, sizeof(*watcher));
    if (watcher == NULL) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for a watch");
        return;
    }
    watcher->service = service;
    watcher->call = call;
    watcher->known = known;
    watcher->sent = STATUS(UNKNOWN);
    hps_lock_acquire(&service->lock);
    watcher->next = service->watchers;
    if (service->watchers != NULL) {
        service->watchers->prev = watcher;
    }
    service->watchers = watcher;
    hps_lock_release(&service->lock);
    hps_grpc_call_set_user(call, watcher);
    watch_update(call, watcher);
}

static void on_watch_close(struct hps_grpc_call *call)
{
    struct watcher *watcher = hps_grpc_call_user(call);
    if (watcher == NULL) {
        return;
    }
    struct hps_health_service *service = watcher->service;
    hps_grpc_call_set_user(call, NULL);
    hps_lock_acquire(&service->lock);
    HPS_ASSERT(watcher->prev != NULL || service->watchers == watcher);
    if (watcher->next != NULL) {
        watcher->next->prev = watcher->prev;
    }
    if (watcher->prev != NULL) {
        watcher->prev->next = watcher->next;
    } else {
        service->watchers = watcher->next;
    }
    hps_lock_release(&service->lock);
    hps_free(watcher);
}

static void run_notice(struct hps_task *task)
{
    struct notice *notice = (struct notice *)task;
    struct watcher *watcher = hps_grpc_call_user(notice->call);
    if (watcher != NULL) {
        watch_update(notice->call, watcher);
    }
    hps_grpc_call_unref(notice->call);
    hps_free(notice);
}

static void notify_all(struct hps_health_service *service)
{
    hps_lock_acquire(&service->lock);
    for (struct watcher *watcher = service->watchers; watcher != NULL; watcher = watcher->next) {
        struct notice *notice = hps_calloc(1, sizeof(*notice));
        if (notice == NULL) {
            continue; /* the next change notifies this watcher */
        }
        notice->task.run = run_notice;
        notice->call = watcher->call;
        hps_grpc_call_ref(watcher->call);
        hps_loop_post(hps_grpc_call_loop(watcher->call), &notice->task);
    }
    hps_lock_release(&service->lock);
}

struct hps_health_service *hps_health_service_new(const char *const *names, unsigned n_names)
{
    struct hps_health_service *service = hps_calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    hps_lock_init(&service->lock, HPS_LOCK_HEALTH);
    service->names = names;
    service->n_names = n_names;
    service->methods[0] = (struct hps_grpc_method){.path = "/grpc.health.v1.Health/Check",
                                                   .open = true,
                                                   .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                                   .on_message = on_check};
    service->methods[1] = (struct hps_grpc_method){.path = "/grpc.health.v1.Health/Watch",
                                                   .open = true,
                                                   .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                                   .on_message = on_watch,
                                                   .on_close = on_watch_close};
    service->grpc = (struct hps_grpc_service){.name = "grpc.health.v1.Health",
                                              .methods = service->methods,
                                              .n_methods = 2,
                                              .ctx = service};
    return service;
}

void hps_health_service_free(struct hps_health_service *service)
{
    if (service == NULL) {
        return;
    }
    HPS_ASSERT(service->watchers == NULL);
    hps_lock_fini(&service->lock);
    hps_free(service);
}

const struct hps_grpc_service *hps_health_service_grpc(const struct hps_health_service *service)
{
    return &service->grpc;
}

void hps_health_service_set(struct hps_health_service *service, bool serving)
{
    if (atomic_exchange(&service->serving, serving) != serving) {
        notify_all(service);
    }
}

bool hps_health_service_get(const struct hps_health_service *service)
{
    return atomic_load(&service->serving);
}

void hps_health_service_close(struct hps_health_service *service)
{
    atomic_store(&service->closed, true);
    notify_all(service);
}
