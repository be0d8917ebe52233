/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device. Each stream is a thread that runs its steps one after another.
 *
 * ThreadSanitizer sees the following order, and no other. What the host did before it queued a step
 * comes before the step. The steps of a stream follow each other. A step after hps_stream_q_wait,
 * and the host after hps_event_done, come after the work before the event's record. Queues and
 * locks in this file are hidden from it: the file is compiled without it, and uses lock.h. So a
 * program that lacks an event has a race however its threads happen to run.
 *
 * Thread: of a stream unless stated otherwise.
 */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/thread.h"
#include "cache/device/ops.h"
#include "cache/device/sim/memory.h"
#include "cache/device/sim/run.h"
#include "cache/device/sim/sanitize.h"
#include "cache/device/sim/sim.h"

enum {
    MEMORY_BYTES_DEFAULT = 256 << 20,
    PROCESSORS = 4,
    EVENT_ORDERS = 8, /* records of an event that ThreadSanitizer tells apart */
    NAME_MAX_BYTES = 16,
    DEVICES = 8, /* that can be opened */
};
#define STALL_US UINT64_C(60000000) /* by default */

struct sim_device {
    struct hps_device base;
    struct hps_device_sim_config config;
    struct hps_sim_memory memory;
    struct hps_sim_pulse pulse; /* beats after every change that a thread may wait for */
    uint32_t n_streams;         /* ever made, for seeds */
    uint32_t n_open;            /* streams and events, to be freed before the device */
    uint32_t n_busy;            /* streams in a step */
    uint32_t held;
    uint32_t hung;
    uint32_t driver_hung;
    uint64_t n_done; /* pieces of work so far; the one numbered fail_at fails */
    uint64_t fail_at;
    uint64_t end_order; /* released by every step, for threads that wait for a lost device */
};

struct sim_event {
    struct hps_event base;
    uint32_t n_refs;
    uint32_t n_recorded;  /* by the host */
    uint32_t n_completed; /* number of the last completed record */
    uint64_t order[EVENT_ORDERS];
    uint64_t end_order; /* of the last use by the host */
};

enum step_kind { STEP_COPY, STEP_FILL, STEP_LAUNCH, STEP_RECORD, STEP_WAIT };

struct step {
    struct step *next;
    enum step_kind kind;
    uint32_t number;         /* of an event's record */
    struct sim_event *event; /* holds a reference */
    void *to;
    const void *from;
    size_t size;
    uint8_t value;
    const struct hps_kernel *kernel;
    uint32_t n_blocks;
    uint64_t order; /* of the host's work before it */
    uint8_t args[] __attribute__((aligned(16)));
};

struct sim_stream {
    struct hps_stream_q base;
    char name[NAME_MAX_BYTES];
    pthread_t thread;
    struct hps_simt *simt;
    uint64_t random;
    struct hps_sim_lock lock; /* of the queue */
    struct step *first;
    struct step **last;
    bool stopping;
    struct hps_sim_pulse given; /* a step is queued, or the stream is to stop */
};

static struct hps_sim_memory registered; /* host memory, registered by any device */

static struct sim_device *sim_of(struct hps_device *device)
{
    return (struct sim_device *)device;
}

static struct sim_device *device_of(struct sim_stream *stream)
{
    return (struct sim_device *)stream->base.device;
}

/* Called at the start of each driver call. Blocks while the driver hangs. */
static void enter_driver(struct hps_device *base)
{
    struct sim_device *device = sim_of(base);
    for (;;) {
        uint32_t beat = hps_sim_pulse(&device->pulse);
        if (__atomic_load_n(&device->driver_hung, __ATOMIC_ACQUIRE) == 0) {
            return;
        }
        hps_sim_pulse_wait(&device->pulse, beat);
    }
}

static void set_driver_hung(struct sim_device *device, bool hung)
{
    __atomic_store_n(&device->driver_hung, hung ? 1 : 0, __ATOMIC_RELEASE);
    hps_sim_pulse_beat(&device->pulse);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void event_unref(struct sim_event *event)
{
    if (__atomic_sub_fetch(&event->n_refs, 1, __ATOMIC_ACQ_REL) == 0) {
        HPS_ORDER_ACQUIRE(&event->end_order);
        hps_free(event);
    }
}

static bool event_is_past(struct sim_event *event, uint32_t number)
{
    uint32_t completed = __atomic_load_n(&event->n_completed, __ATOMIC_ACQUIRE);
    return (int32_t)(completed - number) >= 0;
}

/* Wait until that record has completed. Any thread. */
static hps_status event_await(struct sim_device *device, struct sim_event *event, uint32_t number)
{
    for (;;) {
        uint32_t beat = hps_sim_pulse(&device->pulse);
        if (hps_device_lost(&device->base)) {
            return HPS_DATA_LOSS;
        }
        if (event_is_past(event, number)) {
            HPS_ORDER_ACQUIRE(&event->order[number % EVENT_ORDERS]);
            return HPS_OK;
        }
        hps_sim_pulse_wait(&device->pulse, beat);
    }
}

static void event_complete(struct sim_device *device, struct sim_event *event, uint32_t number)
{
    HPS_ORDER_RELEASE(&event->order[number % EVENT_ORDERS]);
    uint32_t completed = __atomic_load_n(&event->n_completed, __ATOMIC_RELAXED);
    while ((int32_t)(number - completed) > 0 &&
           !__atomic_compare_exchange_n(&event->n_completed, &completed, number, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    hps_sim_pulse_beat(&device->pulse);
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void step_delay(struct sim_stream *stream)
{
    uint32_t delay_us_max = device_of(stream)->config.delay_us_max;
    if (delay_us_max == 0) {
        return;
    }
    stream->random ^= stream->random << 13;
    stream->random ^= stream->random >> 7;
    stream->random ^= stream->random << 17;
    uint64_t delay_us = (stream->random >> 20) % (delay_us_max + 1ULL);
    struct timespec delay = {(time_t)(delay_us / 1000000), (long)(delay_us % 1000000) * 1000};
    (void)ppoll(NULL, 0, &delay, NULL); /* in nanosleep ThreadSanitizer visits each fiber */
}

/* Counts a piece of work. False: the device fails with it. */
static bool step_survives(struct sim_device *device)
{
    uint64_t n = __atomic_add_fetch(&device->n_done, 1, __ATOMIC_ACQ_REL);
    if (n == device->config.hang_at) {
        set_driver_hung(device, true);
    }
    if (n >= __atomic_load_n(&device->fail_at, __ATOMIC_ACQUIRE)) {
        hps_ignore(hps_device_lose(&device->base, "simulated failure of work %" PRIu64, n));
        return false;
    }
    return true;
}

/* Blocks while the device hangs. The step then continues, even if the device was lost. */
static void stick_while_hung(struct sim_device *device)
{
    for (;;) {
        uint32_t beat = hps_sim_pulse(&device->pulse);
        if (__atomic_load_n(&device->hung, __ATOMIC_ACQUIRE) == 0) {
            return;
        }
        hps_sim_pulse_wait(&device->pulse, beat);
    }
}

static void step_run(struct sim_stream *stream, const struct step *step)
{
    struct sim_device *device = device_of(stream);
    if (step->kind == STEP_WAIT) {
        hps_ignore(event_await(device, step->event, step->number)); /* lost: no later step runs */
        return;
    }
    if (step->kind == STEP_RECORD) {
        event_complete(device, step->event, step->number);
        return;
    }
    if (!step_survives(device)) {
        return;
    }
    stick_while_hung(device);
    if (step->kind == STEP_COPY) {
        memmove(step->to, step->from, step->size);
    } else if (step->kind == STEP_FILL) {
        memset(step->to, step->value, step->size);
    } else if (hps_simt_run(stream->simt, step->kernel, step->n_blocks, step->args) != HPS_OK) {
        hps_ignore(hps_device_lose(&device->base, "kernel %s: no memory for its fibers",
                                   step->kernel->name));
    }
}

static void step_free(struct step *step)
{
    if (step->event != NULL) {
        event_unref(step->event);
    }
    hps_free(step);
}

/* The next step; NULL: the stream is to stop. */
static struct step *stream_take(struct sim_stream *stream)
{
    for (;;) {
        uint32_t beat = hps_sim_pulse(&stream->given);
        hps_sim_lock(&stream->lock);
        struct step *step = stream->first;
        bool stopping = stream->stopping;
        if (step != NULL) {
            stream->first = step->next;
            if (step->next == NULL) {
                stream->last = &stream->first;
            }
        }
        hps_sim_unlock(&stream->lock);
        if (step != NULL || stopping) {
            return step;
        }
        hps_sim_pulse_wait(&stream->given, beat);
    }
}

static void await_release(struct sim_device *device)
{
    for (;;) {
        uint32_t beat = hps_sim_pulse(&device->pulse);
        if (__atomic_load_n(&device->held, __ATOMIC_ACQUIRE) == 0 ||
            hps_device_lost(&device->base)) {
            return;
        }
        hps_sim_pulse_wait(&device->pulse, beat);
    }
}

static void *stream_main(void *arg)
{
    struct sim_stream *stream = arg;
    struct sim_device *device = device_of(stream);
    pthread_setname_np(pthread_self(), stream->name);
    if (hps_simt_new(device->config.seed == 0 ? 0 : stream->random, &stream->simt) != HPS_OK) {
        hps_ignore(hps_device_lose(&device->base, "stream %s: no memory", stream->name));
    }
    struct step *step;
    while ((step = stream_take(stream)) != NULL) {
        HPS_ORDER_ACQUIRE(&step->order);
        step_delay(stream);
        await_release(device);
        /* Increment before checking for the loss. hps_device_quiet checks in the other order, so it
         * never misses a step that still writes. */
        __atomic_add_fetch(&device->n_busy, 1, __ATOMIC_SEQ_CST);
        if (!hps_device_lost(&device->base)) {
            step_run(stream, step);
        }
        HPS_ORDER_RELEASE(&device->end_order);
        __atomic_sub_fetch(&device->n_busy, 1, __ATOMIC_SEQ_CST);
        if (hps_device_lost(&device->base)) {
            hps_sim_pulse_beat(&device->pulse);
        }
        step_free(step);
    }
    hps_simt_free(stream->simt);
    return NULL;
}

/* ---- queueing steps (the host's threads) ----------------------------------------------------- */

static struct step *step_new(enum step_kind kind, size_t args_size)
{
    struct step *step = hps_alloc(sizeof(*step) + args_size);
    if (step != NULL) {
        memset(step, 0, sizeof(*step));
        step->kind = kind;
    }
    return step;
}

static void stream_give(struct hps_stream_q *base, struct step *step)
{
    struct sim_stream *stream = (struct sim_stream *)base;
    HPS_ORDER_RELEASE(&step->order);
    hps_sim_lock(&stream->lock);
    *stream->last = step;
    stream->last = &step->next;
    hps_sim_unlock(&stream->lock);
    hps_sim_pulse_beat(&stream->given);
}

static hps_status sim_copy(struct hps_stream_q *stream, enum hps_copy_kind kind, void *to,
                           const void *from, size_t size)
{
    enter_driver(stream->device);
    struct hps_sim_memory *memory = &sim_of(stream->device)->memory;
    hps_sim_memory_check(memory, to, size, kind == HPS_COPY_TO_HOST, "copy to");
    hps_sim_memory_check(memory, from, size, kind == HPS_COPY_TO_DEVICE, "copy from");
    struct step *step = step_new(STEP_COPY, 0);
    if (step == NULL) {
        return HPS_NO_MEMORY;
    }
    step->to = to;
    step->from = from;
    step->size = size;
    stream_give(stream, step);
    return HPS_OK;
}

static hps_status sim_fill(struct hps_stream_q *stream, void *to, uint8_t value, size_t size)
{
    enter_driver(stream->device);
    hps_sim_memory_check(&sim_of(stream->device)->memory, to, size, false, "fill");
    struct step *step = step_new(STEP_FILL, 0);
    if (step == NULL) {
        return HPS_NO_MEMORY;
    }
    step->to = to;
    step->value = value;
    step->size = size;
    stream_give(stream, step);
    return HPS_OK;
}

static hps_status sim_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                             uint32_t n_blocks, const void *args)
{
    enter_driver(stream->device);
    struct step *step = step_new(STEP_LAUNCH, kernel->args_size);
    if (step == NULL) {
        return HPS_NO_MEMORY;
    }
    memcpy(step->args, args, kernel->args_size);
    step->kernel = kernel;
    step->n_blocks = n_blocks;
    stream_give(stream, step);
    return HPS_OK;
}

static hps_status give_event(struct hps_stream_q *stream, enum step_kind kind,
                             struct sim_event *event, uint32_t number)
{
    struct step *step = step_new(kind, 0);
    if (step == NULL) {
        return HPS_NO_MEMORY;
    }
    __atomic_add_fetch(&event->n_refs, 1, __ATOMIC_RELAXED);
    step->event = event;
    step->number = number;
    stream_give(stream, step);
    return HPS_OK;
}

static hps_status sim_event_record(struct hps_event *base, struct hps_stream_q *stream)
{
    enter_driver(stream->device);
    struct sim_event *event = (struct sim_event *)base;
    hps_status status = give_event(stream, STEP_RECORD, event, event->n_recorded + 1);
    if (status == HPS_OK) {
        event->n_recorded++;
    }
    return status;
}

static hps_status sim_stream_wait(struct hps_stream_q *stream, struct hps_event *base)
{
    enter_driver(stream->device);
    struct sim_event *event = (struct sim_event *)base;
    return event->n_recorded == 0 ? HPS_OK
                                  : give_event(stream, STEP_WAIT, event, event->n_recorded);
}

static hps_status sim_event_done(struct hps_event *base)
{
    enter_driver(base->device);
    struct sim_event *event = (struct sim_event *)base;
    if (!event_is_past(event, event->n_recorded)) {
        return HPS_AGAIN;
    }
    HPS_ORDER_ACQUIRE(&event->order[event->n_recorded % EVENT_ORDERS]);
    return HPS_OK;
}

static hps_status sim_event_wait(struct hps_event *base)
{
    enter_driver(base->device);
    struct sim_event *event = (struct sim_event *)base;
    return event_await(sim_of(base->device), event, event->n_recorded);
}

/* ---- making and freeing (the host's threads) ------------------------------------------------- */

static hps_status sim_event_new(struct hps_device *device, struct hps_event **out_event,
                                struct hps_error *err)
{
    struct sim_event *event = hps_calloc(1, sizeof(*event));
    if (event == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "event: no memory");
    }
    event->base.device = device;
    event->n_refs = 1;
    __atomic_add_fetch(&sim_of(device)->n_open, 1, __ATOMIC_RELAXED);
    *out_event = &event->base;
    return HPS_OK;
}

static void sim_event_free(struct hps_event *base)
{
    __atomic_sub_fetch(&sim_of(base->device)->n_open, 1, __ATOMIC_RELAXED);
    HPS_ORDER_RELEASE(&((struct sim_event *)base)->end_order);
    event_unref((struct sim_event *)base);
}

static hps_status sim_stream_new(struct hps_device *base, const char *name, bool low_priority,
                                 struct hps_stream_q **out_stream, struct hps_error *err)
{
    (void)low_priority;
    struct sim_device *device = sim_of(base);
    struct sim_stream *stream = hps_calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "stream %s: no memory", name);
    }
    uint32_t number = __atomic_add_fetch(&device->n_streams, 1, __ATOMIC_RELAXED);
    stream->base.device = base;
    stream->last = &stream->first;
    stream->random = (device->config.seed + number) * 0x9e3779b97f4a7c15ULL | 1;
    snprintf(stream->name, sizeof(stream->name), "sim-%s", name);
    if (hps_thread_start(0, stream_main, stream, &stream->thread) != HPS_OK) {
        hps_free(stream);
        return hps_error_set(err, HPS_EXHAUSTED, "stream %s: no thread", name);
    }
    __atomic_add_fetch(&device->n_open, 1, __ATOMIC_RELAXED);
    *out_stream = &stream->base;
    return HPS_OK;
}

static void sim_stream_free(struct hps_stream_q *base)
{
    enter_driver(base->device);
    struct sim_stream *stream = (struct sim_stream *)base;
    struct sim_device *device = device_of(stream);
    hps_sim_lock(&stream->lock);
    stream->stopping = true;
    hps_sim_unlock(&stream->lock);
    hps_sim_pulse_beat(&stream->given);
    pthread_join(stream->thread, NULL);
    hps_free(stream);
    __atomic_sub_fetch(&device->n_open, 1, __ATOMIC_RELAXED);
}

/* ---- memory (the host's threads) ------------------------------------------------------------- */

static bool sim_quiet(struct hps_device *device)
{
    if (__atomic_load_n(&sim_of(device)->n_busy, __ATOMIC_SEQ_CST) != 0) {
        return false;
    }
    HPS_ORDER_ACQUIRE(&sim_of(device)->end_order);
    return true;
}

static void await_quiet_if_lost(struct sim_device *device)
{
    while (hps_device_lost(&device->base)) {
        uint32_t beat = hps_sim_pulse(&device->pulse);
        if (sim_quiet(&device->base)) {
            return;
        }
        hps_sim_pulse_wait(&device->pulse, beat);
    }
}

static hps_status sim_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                            struct hps_error *err)
{
    void *memory = NULL;
    hps_status status =
        hps_sim_memory_new(&sim_of(device)->memory, HPS_SIM_DEVICE, size, &memory, err);
    if (status == HPS_OK) {
        *out_ptr = (hps_devptr)(uintptr_t)memory;
    }
    return status;
}

static void sim_free(struct hps_device *device, hps_devptr ptr)
{
    enter_driver(device);
    await_quiet_if_lost(sim_of(device));
    hps_sim_memory_free(&sim_of(device)->memory, HPS_SIM_DEVICE, (void *)(uintptr_t)ptr);
}

static hps_status sim_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                 hps_devptr *out_ptr, struct hps_error *err)
{
    hps_status status =
        hps_sim_memory_new(&sim_of(device)->memory, HPS_SIM_HOST, size, out_host, err);
    if (status == HPS_OK) {
        *out_ptr = (hps_devptr)(uintptr_t)*out_host;
    }
    return status;
}

static void sim_host_free(struct hps_device *device, void *host)
{
    enter_driver(device);
    await_quiet_if_lost(sim_of(device));
    hps_sim_memory_free(&sim_of(device)->memory, HPS_SIM_HOST, host);
}

/* A driver has one list of registered memory for all devices. */
static hps_status sim_host_register(struct hps_device *device, void *host, size_t size,
                                    struct hps_error *err)
{
    (void)device;
    return hps_sim_memory_register(&registered, host, size, err);
}

static void sim_host_unregister(struct hps_device *device, void *host)
{
    (void)device;
    hps_sim_memory_free(&registered, HPS_SIM_REGISTERED, host);
}

static hps_status sim_host_map(struct hps_device *device, void *host, size_t size,
                               hps_devptr *out_ptr, struct hps_error *err)
{
    hps_status status = hps_sim_memory_register(&sim_of(device)->memory, host, size, err);
    if (status == HPS_OK) {
        *out_ptr = (hps_devptr)(uintptr_t)host;
    }
    return status;
}

static void sim_host_unmap(struct hps_device *device, void *host)
{
    enter_driver(device);
    await_quiet_if_lost(sim_of(device));
    hps_sim_memory_free(&sim_of(device)->memory, HPS_SIM_REGISTERED, host);
}

/* ---- devices --------------------------------------------------------------------------------- */

static void sim_lost(struct hps_device *device)
{
    hps_sim_pulse_beat(&sim_of(device)->pulse);
}

static void sim_close(struct hps_device *device)
{
    enter_driver(device);
    HPS_ASSERT(sim_of(device)->n_open == 0);
    hps_sim_memory_fini(&sim_of(device)->memory);
    hps_free(device);
}

static const struct hps_device_ops sim_ops = {
    .close = sim_close,
    .alloc = sim_alloc,
    .free = sim_free,
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .host_register = sim_host_register,
    .host_unregister = sim_host_unregister,
    .host_map = sim_host_map,
    .host_unmap = sim_host_unmap,
    .quiet = sim_quiet,
    .lost = sim_lost,
    .stream_new = sim_stream_new,
    .stream_free = sim_stream_free,
    .event_new = sim_event_new,
    .event_free = sim_event_free,
    .event_record = sim_event_record,
    .stream_wait = sim_stream_wait,
    .event_done = sim_event_done,
    .event_wait = sim_event_wait,
    .copy = sim_copy,
    .fill = sim_fill,
    .launch = sim_launch,
};

static hps_status sim_count(const struct hps_device_driver *driver, int *out_n,
                            struct hps_error *err)
{
    (void)driver, (void)err;
    *out_n = DEVICES;
    return HPS_OK;
}

static hps_status sim_open(const struct hps_device_driver *driver, int index,
                           const struct hps_kernel *const *kernels, size_t n_kernels,
                           struct hps_device **out_device, struct hps_error *err)
{
    const struct hps_device_sim_config *config = &((const struct hps_sim_driver *)driver)->config;
    struct sim_device *device = hps_calloc(1, sizeof(*device));
    if (device == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "simulated device %d: no memory", index);
    }
    for (size_t i = 0; i < n_kernels; i++) {
        (void)hps_sim_body_of(kernels[i]); /* asserts that the kernel is known */
    }
    device->base.ops = &sim_ops;
    device->config = *config;
    device->fail_at = config->fail_at == 0 ? UINT64_MAX : config->fail_at;
    device->memory.limit_bytes =
        config->memory_bytes == 0 ? MEMORY_BYTES_DEFAULT : config->memory_bytes;
    struct hps_device_info *info = &device->base.info;
    snprintf(info->name, sizeof(info->name), "simulated device %d", index);
    snprintf(info->uuid, sizeof(info->uuid), "SIM-%d", index);
    info->kind = HPS_DEVICE_SIM;
    info->index = index;
    info->n_processors = PROCESSORS;
    info->memory_bytes = device->memory.limit_bytes;
    info->memory_free_bytes = device->memory.limit_bytes;
    *out_device = &device->base;
    return HPS_OK;
}

struct hps_sim_driver hps_sim_driver(struct hps_device_sim_config config)
{
    uint64_t stall_us = config.stall_us != 0 ? config.stall_us : STALL_US;
    return (struct hps_sim_driver){
        .driver = {.count = sim_count, .open = sim_open, .stall_us_max = stall_us},
        .config = config};
}

void hps_device_sim_fail(struct hps_device *base, uint64_t n)
{
    struct sim_device *device = sim_of(base);
    HPS_ASSERT(base->info.kind == HPS_DEVICE_SIM);
    if (n == 0) {
        hps_ignore(hps_device_lose(base, "simulated failure"));
        return;
    }
    uint64_t done = __atomic_load_n(&device->n_done, __ATOMIC_ACQUIRE);
    __atomic_store_n(&device->fail_at, done + n, __ATOMIC_RELEASE);
}

void hps_device_sim_hold(struct hps_device *base, bool held)
{
    HPS_ASSERT(base->info.kind == HPS_DEVICE_SIM);
    __atomic_store_n(&sim_of(base)->held, held ? 1 : 0, __ATOMIC_RELEASE);
    hps_sim_pulse_beat(&sim_of(base)->pulse);
}

void hps_device_sim_hang(struct hps_device *base, bool hung)
{
    HPS_ASSERT(base->info.kind == HPS_DEVICE_SIM);
    __atomic_store_n(&sim_of(base)->hung, hung ? 1 : 0, __ATOMIC_RELEASE);
    hps_sim_pulse_beat(&sim_of(base)->pulse);
}

void hps_device_sim_driver_hang(struct hps_device *base, bool hung)
{
    HPS_ASSERT(base->info.kind == HPS_DEVICE_SIM);
    set_driver_hung(sim_of(base), hung);
}

void *hps_device_sim_host(struct hps_device *base, hps_devptr ptr)
{
    HPS_ASSERT(base->info.kind == HPS_DEVICE_SIM);
    return (void *)(uintptr_t)ptr;
}
