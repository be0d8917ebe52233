/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolves each name on its own thread: see resolve.h. The caller and the thread hold one reference
 * each; the last one frees the object.
 */
#include "net/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/thread.h"

struct hps_resolve {
    atomic_int refs;
    int wake_fd; /* our duplicate */
    struct hps_addr addr;
    _Atomic uint64_t ended_us; /* 0: not finished; else what follows is set and stays */
    hps_status status;
    struct hps_error err;
    struct hps_places places;
};

static void unref(struct hps_resolve *resolve)
{
    int refs = atomic_fetch_sub(&resolve->refs, 1);
    HPS_ASSERT(refs > 0 && refs <= 2);
    if (refs == 1) {
        close(resolve->wake_fd);
        hps_free(resolve);
    }
}

static void *resolve_run(void *ctx)
{
    struct hps_resolve *resolve = ctx;
    uint64_t one = 1;
    resolve->status = hps_addr_resolve(&resolve->addr, false, &resolve->places, &resolve->err);
    uint64_t now_us = hps_clock_us();
    atomic_store(&resolve->ended_us, now_us > 0 ? now_us : 1);
    (void)!write(resolve->wake_fd, &one, sizeof(one)); /* full: already readable */
    unref(resolve);
    return NULL;
}

hps_status hps_resolve_new(const struct hps_addr *addr, int wake_fd,
                           struct hps_resolve **out_resolve, struct hps_error *err)
{
    HPS_ASSERT(wake_fd >= 0);
    pthread_t thread;
    struct hps_resolve *resolve = hps_calloc(1, sizeof(*resolve));
    if (resolve == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to look a name up");
    }
    atomic_store(&resolve->refs, 2);
    resolve->addr = *addr;
    resolve->wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 0);
    if (resolve->wake_fd < 0) {
        hps_free(resolve);
        return hps_error_set(err, HPS_EXHAUSTED, "no descriptor to look a name up: %s",
                             strerror(errno));
    }
    if (hps_thread_start(0, resolve_run, resolve, &thread) != HPS_OK) {
        close(resolve->wake_fd);
        hps_free(resolve);
        return hps_error_set(err, HPS_EXHAUSTED, "no thread to look a name up");
    }
    (void)pthread_setname_np(thread, "resolve");
    (void)pthread_detach(thread);
    *out_resolve = resolve;
    return HPS_OK;
}

hps_status hps_resolve_take(const struct hps_resolve *resolve, struct hps_places *out_places,
                            struct hps_error *err)
{
    if (atomic_load(&resolve->ended_us) == 0) {
        return HPS_AGAIN;
    }
    if (resolve->status != HPS_OK) {
        return hps_error_set(err, resolve->status, "%s", resolve->err.text);
    }
    HPS_ASSERT(resolve->places.n > 0 && resolve->places.n_tried == 0);
    *out_places = resolve->places;
    return HPS_OK;
}

uint64_t hps_resolve_ended_us(const struct hps_resolve *resolve)
{
    return atomic_load(&resolve->ended_us);
}

void hps_resolve_free(struct hps_resolve *resolve)
{
    if (resolve != NULL) {
        unref(resolve);
    }
}
