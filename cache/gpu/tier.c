/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu tier: start, stop, and the thread that owns the device and its cache. See tier.h.
 */
#include "cache/gpu/tier.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/embed/kernels.h"
#include "cache/gpu/internal.h"

enum {
    TURNS_WITHOUT_SLEEP = 64,  /* without progress, while work is in flight */
    PAUSE_NS = 20 * 1000,      /* after them; a posted task wakes the thread */
    FREE_PERCENT = 80,         /* of the device's free memory, for the arena */
    QUEUE_BYTES_MAX = 8 << 20, /* of queued insertions, by default */
    WAITING_MAX = 4096,        /* lookups, by default */
    STALL_US_MAX = 5000000,    /* by default */
    GATHER_BYTES = 64 << 20,   /* for the rows of one batch, by default */
    PUBLISH_US = 10 * 1000,    /* between two publications while there is work */
    WATCHES = 8,               /* checks of the driver in stall_us_max */
    STREAM_NAME_BYTES = 16
};

/* ---- calls ----------------------------------------------------------------------------------- */

struct gpu_call {
    struct hps_task task;
    struct hps_gpu_tier *tier;
    void (*fn)(void *ctx);
    void *ctx;
    struct hps_lock lock;
    struct hps_cond done;
    bool is_done; /* lock */
};

static bool under_way(const struct hps_gpu_tier *tier)
{
    return tier->head != NULL || tier->n_batches > 0 || tier->changes.staging != NULL ||
           tier->packed || tier->wanted ||
           (!atomic_load(&tier->lost) && !hps_embed_idle(tier->cache));
}

/* Publish the usage of the tier. If work is in flight, another publication is due at its end. */
static void publish(struct hps_gpu_tier *tier)
{
    struct gpu_published *published = &tier->published;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    published->at_us = hps_clock_us();
    published->due = under_way(tier);
    hps_lock_acquire(&published->lock);
    hps_embed_cache_usage(tier->cache, &published->usage);
    gpu_spaces_publish(tier);
    hps_lock_release(&published->lock);
}

void gpu_tier_settled(struct hps_gpu_tier *tier)
{
    hps_lock_acquire(&tier->published.lock);
    hps_cond_broadcast(&tier->published.settled);
    hps_lock_release(&tier->published.lock);
}

static void on_call(struct hps_task *task)
{
    struct gpu_call *call = HPS_CONTAINER_OF(task, struct gpu_call, task);

    call->fn(call->ctx);
    publish(call->tier);
    hps_lock_acquire(&call->lock);
    call->is_done = true;
    hps_cond_signal(&call->done);
    hps_lock_release(&call->lock);
}

void gpu_tier_call(struct hps_gpu_tier *tier, void (*fn)(void *ctx), void *ctx)
{
    struct gpu_call call = {.task.run = on_call, .tier = tier, .fn = fn, .ctx = ctx};

    HPS_ASSERT(!gpu_tier_is_mine(tier));
    hps_lock_init(&call.lock, HPS_LOCK_GPU_CALL);
    hps_cond_init(&call.done);
    hps_mailbox_post(tier->mailbox, &call.task);
    hps_lock_acquire(&call.lock);
    while (!call.is_done) {
        hps_cond_wait(&call.done, &call.lock);
    }
    hps_lock_release(&call.lock);
    hps_cond_fini(&call.done);
    hps_lock_fini(&call.lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

void gpu_tier_lose(struct hps_gpu_tier *tier, const char *text)
{
    struct hps_error why;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    if (atomic_exchange(&tier->lost, true)) {
        return;
    }
    hps_device_lost_why(tier->device, &why);
    gpu_lookups_end(tier);
    gpu_changes_end(tier);
    tier->wanted = false; /* no cache will be made any more */
    gpu_tier_settled(tier);
    HPS_ASSERT(tier->head == NULL && tier->n_batches == 0 && !tier->packed);
    HPS_ASSERT(tier->changes.staging == NULL);
    HPS_LOG(ERROR, "gpu", "device lost: lookups continue without it; restart hpsd to use it again",
            HPS_I64("device", tier->options.index), HPS_STR("error", why.text),
            HPS_STR("noticed", text));
}

static bool run_mail(struct hps_task *mail)
{
    bool any = mail != NULL;

    while (mail != NULL) {
        struct hps_task *task = mail;
        mail = task->next;
        task->run(task);
    }
    return any;
}

/* Do everything that can be done now, once. Returns whether there was anything. */
static bool turn(struct hps_gpu_tier *tier)
{
    bool any = run_mail(hps_mailbox_take_all(tier->mailbox));

    if (atomic_load(&tier->lost)) {
        return any;
    }
    if (gpu_changes_stage(tier)) {
        tier->published.due = true;
        any = true;
    }
    any |= gpu_lookups_submit(tier);
    any |= gpu_lookups_poll(tier);
    if (!atomic_load(&tier->lost)) {
        hps_embed_advance(tier->cache);
        gpu_changes_note(tier);
        tier->published.due |= tier->wanted; /* the usage changes with the caches */
        any |= gpu_spaces_settle(tier);
    }
    if (hps_embed_lost(tier->cache)) { /* with no work in flight that would report it */
        gpu_tier_lose(tier, "it no longer runs work");
    }
    return any;
}

/* Show the watch that the tier's thread is not stuck. */
static void tell_progress(struct hps_gpu_tier *tier)
{
    atomic_fetch_add_explicit(&tier->n_steps, 2, memory_order_relaxed);
}

/* Wait for the next task and run it. */
static void wait_for_mail(struct hps_gpu_tier *tier)
{
    atomic_fetch_add_explicit(&tier->n_steps, 1, memory_order_relaxed);
    struct hps_task *task = hps_mailbox_wait(tier->mailbox);
    atomic_fetch_add_explicit(&tier->n_steps, 1, memory_order_relaxed);
    task->run(task);
}

static void brief_pause(struct hps_gpu_tier *tier)
{
    struct pollfd mail = {.fd = hps_mailbox_fd(tier->mailbox), .events = POLLIN};
    const struct timespec time = {.tv_nsec = PAUSE_NS};

    (void)ppoll(&mail, 1, &time, NULL); /* a signal or an error only shortens the wait */
    tell_progress(tier);
}

/* The thread sleeps only when nothing is in flight, so then all staged changes have ended. */
static void serve(struct hps_gpu_tier *tier)
{
    uint32_t n_idle_turns = 0;

    /* The kernel may add 50 us to each wait by default. Only an unknown option is an error. */
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    while (!tier->stopping) {
        tell_progress(tier);
        if (turn(tier)) {
            n_idle_turns = 0;
        } else if (!under_way(tier)) {
            if (tier->published.due) {
                publish(tier);
            }
            wait_for_mail(tier);
        } else if (++n_idle_turns > TURNS_WITHOUT_SLEEP) {
            brief_pause(tier);
        }
        if (tier->published.due && hps_clock_us() - tier->published.at_us >= PUBLISH_US) {
            publish(tier);
        }
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

static void defaults(struct hps_gpu_tier_options *options)
{
    options->queue_bytes_max =
        options->queue_bytes_max == 0 ? QUEUE_BYTES_MAX : options->queue_bytes_max;
    options->waiting_max = options->waiting_max == 0 ? WAITING_MAX : options->waiting_max;
    if (options->cache.n_batches == 0 || options->cache.n_batches > GPU_BATCHES_MAX) {
        options->cache.n_batches = 4;
    }
    if (options->cache.gather_bytes == 0) {
        options->cache.gather_bytes = GATHER_BYTES;
    }
    if (options->stall_us_max == 0) {
        options->stall_us_max = options->driver->stall_us_max;
    }
    options->stall_us_max = options->stall_us_max == 0 ? STALL_US_MAX : options->stall_us_max;
    options->cache.timeout_us = options->stall_us_max;
}

static hps_status open_device(struct hps_gpu_tier *tier, struct hps_error *err)
{
    struct hps_gpu_tier_options *options = &tier->options;
    hps_status status = hps_device_open(options->driver, options->index, hps_embed_kernels,
                                        hps_embed_n_kernels, &tier->device, err);

    if (status != HPS_OK) {
        return status;
    }
    if (options->cache.arena_bytes == 0) {
        uint64_t free_bytes = hps_device_info(tier->device)->memory_free_bytes;
        options->cache.arena_bytes = free_bytes / 100 * FREE_PERCENT;
    }
    status = hps_embed_cache_open(tier->device, &options->cache, &tier->cache, err);
    if (status != HPS_OK) {
        return status;
    }
    tier->slab = hps_block_pool_slab(options->blocks, &tier->slab_size);
    HPS_ASSERT(tier->slab != NULL);
    return hps_embed_region_host(tier->cache, tier->slab, tier->slab_size, &tier->region, err);
}

static _Noreturn void end_process(const struct hps_gpu_tier *tier, const char *text)
{
    HPS_LOG(ERROR, "gpu", text, HPS_I64("device", tier->options.index),
            HPS_F64("seconds", (double)tier->options.stall_us_max / 1e6));
    _exit(1);
}

/* Wait until the device cannot write to the slab. A lost device may still be running a step. */
static void release_region(struct hps_gpu_tier *tier)
{
    hps_status status = hps_embed_region_free(tier->region);
    uint64_t end_us = hps_clock_us() + tier->options.stall_us_max;

    while (status == HPS_AGAIN) {
        if (hps_embed_lost(tier->cache) && hps_clock_us() >= end_us) {
            end_process(tier, "device not stopped: it is lost, and may still write to memory; "
                              "hpsd exits with code 1");
        }
        hps_embed_advance(tier->cache); /* notices a device that makes no progress */
        brief_pause(tier);
        status = hps_embed_region_free(tier->region);
    }
}

/* Wait in short calls: the watch would take one long call of the driver for a hang. */
static void await_idle(struct hps_gpu_tier *tier)
{
    while (!hps_embed_idle(tier->cache)) {
        hps_embed_advance(tier->cache);
        brief_pause(tier);
    }
}

static void release_device(struct hps_gpu_tier *tier)
{
    HPS_ASSERT(gpu_tier_is_mine(tier));
    if (tier->cache != NULL) {
        await_idle(tier);
    }
    release_region(tier);
    hps_embed_cache_close(tier->cache);
    hps_device_close(tier->device);
}

/* Both threads have ended, or never began. */
static void release(struct hps_gpu_tier *tier)
{
    gpu_changes_fini(tier);
    gpu_lookups_fini(tier);
    hps_mailbox_free(tier->mailbox);
    hps_cond_fini(&tier->watch.changed);
    hps_lock_fini(&tier->watch.lock);
    hps_cond_fini(&tier->published.settled);
    hps_lock_fini(&tier->published.lock);
    hps_free(tier);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct hps_gpu_tier *tier = arg;

    atomic_store(&tier->owner, pthread_self());
    serve(tier);
    release_device(tier);
    return NULL;
}

/* Counts checks rather than time, so that a pause of the whole process is not taken for a hang. */
static void *watch_main(void *arg)
{
    struct hps_gpu_tier *tier = arg;
    struct gpu_watch *watch = &tier->watch;
    uint64_t seen = 0;
    unsigned n_looks = 0; /* consecutive checks that saw the same step */

    hps_lock_acquire(&watch->lock);
    while (!watch->stopping) {
        uint64_t step = atomic_load(&tier->n_steps);
        n_looks = step % 2 != 0 && step == seen ? n_looks + 1 : 0;
        seen = step;
        if (n_looks > WATCHES) {
            end_process(tier, "device hung: a call of its driver has not returned; hpsd exits "
                              "with code 1");
        }
        uint64_t until_us = hps_clock_us() + tier->options.stall_us_max / WATCHES + 1;
        while (!watch->stopping && hps_cond_wait_until(&watch->changed, &watch->lock, until_us)) {
        }
    }
    hps_lock_release(&watch->lock);
    return NULL;
}

static void stop(void *ctx)
{
    ((struct hps_gpu_tier *)ctx)->stopping = true;
}

/* Hands the device over to the tier's thread, also on an error. */
static hps_status start_threads(struct hps_gpu_tier *tier, struct hps_error *err)
{
    char name[STREAM_NAME_BYTES];

    publish(tier);
    snprintf(name, sizeof(name), "gpu-%d", tier->options.index);
    if (hps_worker_start(&tier->worker, name, 0, thread_main, tier) != HPS_OK) {
        release_device(tier);
        return hps_error_set(err, HPS_NO_MEMORY, "no thread for device %d", tier->options.index);
    }
    atomic_store(&tier->owner, tier->worker.thread); /* the thread may not have begun */
    snprintf(name, sizeof(name), "gpu-%d-watch", tier->options.index);
    if (hps_worker_start(&tier->watch.worker, name, 0, watch_main, tier) != HPS_OK) {
        gpu_tier_call(tier, stop, tier);
        hps_worker_join(&tier->worker);
        return hps_error_set(err, HPS_NO_MEMORY, "no second thread for device %d",
                             tier->options.index);
    }
    return HPS_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

hps_status hps_gpu_tier_open(const struct hps_gpu_tier_options *options,
                             struct hps_gpu_tier **out_tier, struct hps_error *err)
{
    struct hps_gpu_tier *tier = hps_calloc(1, sizeof(*tier));

    if (tier == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for device %d", options->index);
    }
    tier->options = *options;
    defaults(&tier->options);
    atomic_init(&tier->lost, false);
    atomic_init(&tier->owner, pthread_self());
    hps_lock_init(&tier->published.lock, HPS_LOCK_GPU_USAGE);
    hps_cond_init(&tier->published.settled);
    hps_lock_init(&tier->watch.lock, HPS_LOCK_GPU_WATCH);
    hps_cond_init(&tier->watch.changed);
    atomic_init(&tier->n_steps, 1);
    tier->mailbox = hps_mailbox_new();
    gpu_changes_init(tier);
    hps_status status = tier->mailbox == NULL ? HPS_NO_MEMORY : gpu_lookups_init(tier);
    if (status != HPS_OK) {
        hps_error_set(err, status, "no memory for the queues of device %d", options->index);
    } else {
        status = open_device(tier, err);
        if (status != HPS_OK) {
            release_device(tier);
        }
    }
    if (status == HPS_OK) {
        status = start_threads(tier, err);
    }
    if (status != HPS_OK) {
        release(tier);
        return status;
    }
    *out_tier = tier;
    return HPS_OK;
}

static void nothing(void *ctx)
{
    (void)ctx;
}

void hps_gpu_tier_sync(struct hps_gpu_tier *tier)
{
    gpu_tier_call(tier, nothing, NULL);
}

void hps_gpu_tier_drain(struct hps_gpu_tier *tier)
{
    if (tier == NULL) {
        return;
    }
    hps_lock_acquire(&tier->published.lock);
    while (atomic_load(&tier->n_waiting) > 0) {
        hps_cond_wait(&tier->published.settled, &tier->published.lock);
    }
    hps_lock_release(&tier->published.lock);
    hps_gpu_tier_sync(tier); /* the last done() has returned */
}

void hps_gpu_tier_close(struct hps_gpu_tier *tier)
{
    if (tier == NULL) {
        return;
    }
    HPS_ASSERT(atomic_load(&tier->n_waiting) == 0);
    gpu_tier_call(tier, stop, tier);
    hps_worker_join(&tier->worker);
    hps_worker_stop(&tier->watch.worker, &tier->watch.lock, &tier->watch.changed,
                    &tier->watch.stopping);
    HPS_ASSERT(tier->spaces == NULL);
    release(tier);
}

const struct hps_device_info *hps_gpu_tier_info(const struct hps_gpu_tier *tier)
{
    return hps_device_info(tier->device);
}

bool hps_gpu_tier_lost(const struct hps_gpu_tier *tier)
{
    return atomic_load(&tier->lost);
}

void hps_gpu_tier_usage(struct hps_gpu_tier *tier, struct hps_embed_cache_usage *out_usage)
{
    hps_lock_acquire(&tier->published.lock);
    *out_usage = tier->published.usage;
    hps_lock_release(&tier->published.lock);
}
