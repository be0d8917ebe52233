/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/triton/backend.h"

#include "base/clock.h"

enum { POLL_US = 20000, POLLS_IDLE = 50 }; /* it waits after POLLS_IDLE polls without a lookup */

static void poll_all(struct hps_triton_watch *watch)
{
    for (struct hps_triton_watched *at = watch->first; at != NULL; at = at->next) {
        bool cancelled = false;
        /* A request that cannot tell is not cancelled. */
        hps_ignore(
            hps_triton_taken(TRITONBACKEND_RequestIsCancelled(at->request, &cancelled), NULL));
        if (cancelled) {
            hpsd_cancel(at->client, at->id);
        }
    }
}

static void *run(void *arg)
{
    struct hps_triton_watch *watch = arg;
    unsigned n_idle = 0;

    hps_lock_acquire(&watch->lock);
    while (!watch->stopping) {
        if (n_idle >= POLLS_IDLE && watch->first == NULL) {
            watch->parked = true;
            hps_cond_wait(&watch->wake, &watch->lock);
            watch->parked = false;
            n_idle = 0;
            continue;
        }
        if (!hps_cond_wait_until(&watch->wake, &watch->lock, hps_clock_us() + POLL_US)) {
            n_idle = watch->first == NULL ? n_idle + 1 : 0;
            poll_all(watch);
        }
    }
    hps_lock_release(&watch->lock);
    return NULL;
}

hps_status hps_triton_watch_start(struct hps_triton_watch *watch)
{
    hps_lock_init(&watch->lock, HPS_LOCK_TRITON_WATCH);
    hps_cond_init(&watch->wake);
    if (TRITONBACKEND_RequestIsCancelled == NULL) {
        return HPS_OK; /* an older server: it cannot cancel */
    }
    return hps_worker_start(&watch->worker, "hps-watch", 0, run, watch);
}

void hps_triton_watch_stop(struct hps_triton_watch *watch)
{
    HPS_ASSERT(watch->first == NULL);
    hps_worker_stop(&watch->worker, &watch->lock, &watch->wake, &watch->stopping);
    hps_cond_fini(&watch->wake);
    hps_lock_fini(&watch->lock);
}

void hps_triton_watch_add(struct hps_triton_watch *watch, struct hps_triton_watched *watched,
                          uint64_t id)
{
    hps_lock_acquire(&watch->lock);
    /* The thread that started an attempt may add it after the next one has started. */
    watched->id = id > watched->id ? id : watched->id;
    if (!watched->ended && !watched->listed) {
        watched->listed = true;
        watched->prev = NULL;
        watched->next = watch->first;
        if (watch->first != NULL) {
            watch->first->prev = watched;
        }
        watch->first = watched;
        if (watch->parked) {
            hps_cond_signal(&watch->wake);
        }
    }
    hps_lock_release(&watch->lock);
}

void hps_triton_watch_end(struct hps_triton_watch *watch, struct hps_triton_watched *watched)
{
    hps_lock_acquire(&watch->lock);
    watched->ended = true;
    if (watched->listed) {
        watched->listed = false;
        if (watched->prev != NULL) {
            watched->prev->next = watched->next;
        } else {
            watch->first = watched->next;
        }
        if (watched->next != NULL) {
            watched->next->prev = watched->prev;
        }
    }
    hps_lock_release(&watch->lock);
}
