/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of the device layer: checks that hold for every kind of device; the kind does the rest.
 * For threads see device.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"
#include "cache/device/ops.h"

/* ---- devices --------------------------------------------------------------------------------- */

#if !defined(HPS_CUDA)

static hps_status none_count(const struct hps_device_driver *driver, int *out_n,
                             struct hps_error *err)
{
    (void)driver;
    *out_n = 0;
    hps_ignore(hps_error_set(err, HPS_OK, "this build has no CUDA"));
    return HPS_OK;
}

const struct hps_device_driver hps_device_cuda = {.count = none_count};

const char *hps_device_cuda_version(void)
{
    return "none";
}

const char *hps_device_cuda_processors(void)
{
    return "";
}

#endif

hps_status hps_device_count(const struct hps_device_driver *driver, int *out_n,
                            struct hps_error *err)
{
    return driver->count(driver, out_n, err);
}

static void kernel_check(const struct hps_kernel *kernel)
{
    HPS_ASSERT(kernel->name != NULL);
    HPS_ASSERT(kernel->args_size > 0 && kernel->args_size <= HPS_KERNEL_ARGS_MAX);
    HPS_ASSERT(kernel->block_threads > 0 && kernel->block_threads % 32 == 0);
    HPS_ASSERT(kernel->block_threads <= HPS_KERNEL_THREADS_MAX);
    HPS_ASSERT(kernel->shared_size <= HPS_KERNEL_SHARED_MAX);
}

hps_status hps_device_open(const struct hps_device_driver *driver, int index,
                           const struct hps_kernel *const *kernels, size_t n_kernels,
                           struct hps_device **out_device, struct hps_error *err)
{
    for (size_t i = 0; i < n_kernels; i++) {
        kernel_check(kernels[i]);
    }
    int n = 0;
    struct hps_error none = {0};
    hps_status status = hps_device_count(driver, &n, &none);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s", none.text);
    }
    if (index < 0 || index >= n) {
        return hps_error_set(err, HPS_NOT_FOUND, "device %d: the machine has %d%s%s", index, n,
                             none.text[0] != 0 ? ": " : "", none.text);
    }
    const struct hps_kernel **copy = hps_calloc(n_kernels + 1, sizeof(const struct hps_kernel *));
    if (copy == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "device %d: no memory", index);
    }
    for (size_t i = 0; i < n_kernels; i++) {
        copy[i] = kernels[i];
    }
    struct hps_device *device = NULL;
    status = driver->open(driver, index, kernels, n_kernels, &device, err);
    if (status != HPS_OK) {
        hps_free(copy);
        return status;
    }
    device->kernels = copy;
    device->n_kernels = n_kernels;
    *out_device = device;
    return HPS_OK;
}

void hps_device_close(struct hps_device *device)
{
    if (device != NULL) {
        const void *kernels = device->kernels;
        device->ops->close(device);
        hps_free((void *)(uintptr_t)kernels);
    }
}

const struct hps_device_info *hps_device_info(const struct hps_device *device)
{
    return &device->info;
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Relaxed: the loss of a device must not order anything for ThreadSanitizer. */
bool hps_device_lost(const struct hps_device *device)
{
    return __atomic_load_n(&device->lost, __ATOMIC_RELAXED) != 0;
}

void hps_device_lost_why(const struct hps_device *device, struct hps_error *out_why)
{
    memset(out_why, 0, sizeof(*out_why));
    if (!hps_device_lost(device)) {
        return;
    }
    bool said = __atomic_load_n(&device->lost, __ATOMIC_ACQUIRE) == 2;
    hps_ignore(hps_error_set(out_why, HPS_DATA_LOSS, "device %d (%s) is lost%s%s",
                             device->info.index, device->info.name, said ? ": " : "",
                             said ? device->why : ""));
}

hps_status hps_device_lose(struct hps_device *device, const char *fmt, ...)
{
    int no = 0;
    if (__atomic_compare_exchange_n(&device->lost, &no, 1, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(device->why, sizeof(device->why), fmt, args);
        va_end(args);
        __atomic_store_n(&device->lost, 2, __ATOMIC_RELEASE);
        if (device->ops->lost != NULL) {
            device->ops->lost(device);
        }
    }
    return HPS_DATA_LOSS;
}

void hps_device_give_up(struct hps_device *device, const char *why)
{
    hps_ignore(hps_device_lose(device, "%s", why));
}

bool hps_device_quiet(struct hps_device *device)
{
    HPS_ASSERT(hps_device_lost(device));
    return device->ops->quiet(device);
}

static hps_status lost_error(const struct hps_device *device, struct hps_error *err)
{
    struct hps_error why;
    hps_device_lost_why(device, &why);
    return hps_error_set(err, HPS_DATA_LOSS, "%s", why.text);
}

/* ---- memory ---------------------------------------------------------------------------------- */

hps_status hps_device_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                            struct hps_error *err)
{
    HPS_ASSERT(size > 0);
    return hps_device_lost(device) ? lost_error(device, err)
                                   : device->ops->alloc(device, size, out_ptr, err);
}

void hps_device_free(struct hps_device *device, hps_devptr ptr)
{
    if (ptr != 0) {
        device->ops->free(device, ptr);
    }
}

hps_status hps_device_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                 hps_devptr *out_ptr, struct hps_error *err)
{
    HPS_ASSERT(size > 0);
    return hps_device_lost(device) ? lost_error(device, err)
                                   : device->ops->host_alloc(device, size, out_host, out_ptr, err);
}

void hps_device_host_free(struct hps_device *device, void *host)
{
    if (host != NULL) {
        device->ops->host_free(device, host);
    }
}

/* Registered host memory. A driver registers it once per process, for all devices. */
struct registration {
    struct registration *next;
    enum hps_device_kind kind;
    void *host;
    size_t size;
    uint32_t n_devices;
};

static struct hps_lock registrations_lock = HPS_LOCK_STATIC(GPU_REGISTRATIONS);
static struct registration *registrations; /* registrations_lock */

/* The link to the registration, or to the end of the list. Lock held. */
static struct registration **find_registration(enum hps_device_kind kind, const void *host)
{
    struct registration **at = &registrations;

    while (*at != NULL && ((*at)->kind != kind || (*at)->host != host)) {
        at = &(*at)->next;
    }
    return at;
}

/* Add a device to the registration. Lock held. */
static hps_status registration_take(struct hps_device *device, void *host, size_t size,
                                    struct hps_error *err)
{
    struct registration **at = find_registration(device->info.kind, host);

    if (*at != NULL && (*at)->size == size) {
        (*at)->n_devices++;
        return HPS_OK;
    }
    struct registration *registration = hps_calloc(1, sizeof(*registration));
    if (registration == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "device %d: no memory", device->info.index);
    }
    hps_status status = device->ops->host_register(device, host, size, err);
    if (status != HPS_OK) {
        hps_free(registration);
        return status;
    }
    *registration = (struct registration){
        .next = *at, .kind = device->info.kind, .host = host, .size = size, .n_devices = 1};
    *at = registration;
    return HPS_OK;
}

/* Remove a device from the registration. Lock held. */
static void registration_give(struct hps_device *device, void *host)
{
    struct registration **at = find_registration(device->info.kind, host);
    struct registration *registration = *at;

    HPS_ASSERT(registration != NULL);
    if (--registration->n_devices == 0) {
        device->ops->host_unregister(device, host);
        *at = registration->next;
        hps_free(registration);
    }
}

hps_status hps_device_host_register(struct hps_device *device, void *host, size_t size,
                                    hps_devptr *out_ptr, struct hps_error *err)
{
    HPS_ASSERT(host != NULL);
    HPS_ASSERT(size > 0);
    if (hps_device_lost(device)) {
        return lost_error(device, err);
    }
    hps_lock_acquire(&registrations_lock);
    hps_status status = registration_take(device, host, size, err);
    if (status == HPS_OK) {
        status = device->ops->host_map(device, host, size, out_ptr, err);
        if (status != HPS_OK) {
            registration_give(device, host);
        }
    }
    hps_lock_release(&registrations_lock);
    return status;
}

void hps_device_host_unregister(struct hps_device *device, void *host)
{
    if (host != NULL) {
        hps_lock_acquire(&registrations_lock);
        device->ops->host_unmap(device, host);
        registration_give(device, host);
        hps_lock_release(&registrations_lock);
    }
}

/* ---- streams and events ---------------------------------------------------------------------- */

hps_status hps_stream_q_new(struct hps_device *device, const char *name, bool low_priority,
                            struct hps_stream_q **out_stream, struct hps_error *err)
{
    return hps_device_lost(device)
               ? lost_error(device, err)
               : device->ops->stream_new(device, name, low_priority, out_stream, err);
}

void hps_stream_q_free(struct hps_stream_q *stream)
{
    if (stream != NULL) {
        stream->device->ops->stream_free(stream);
    }
}

hps_status hps_event_new(struct hps_device *device, struct hps_event **out_event,
                         struct hps_error *err)
{
    return hps_device_lost(device) ? lost_error(device, err)
                                   : device->ops->event_new(device, out_event, err);
}

void hps_event_free(struct hps_event *event)
{
    if (event != NULL) {
        event->device->ops->event_free(event);
    }
}

hps_status hps_event_record(struct hps_event *event, struct hps_stream_q *stream)
{
    HPS_ASSERT(event->device == stream->device);
    return hps_device_lost(stream->device) ? HPS_DATA_LOSS
                                           : stream->device->ops->event_record(event, stream);
}

hps_status hps_stream_q_wait(struct hps_stream_q *stream, struct hps_event *event)
{
    HPS_ASSERT(event->device == stream->device);
    return hps_device_lost(stream->device) ? HPS_DATA_LOSS
                                           : stream->device->ops->stream_wait(stream, event);
}

hps_status hps_event_done(struct hps_event *event)
{
    return hps_device_lost(event->device) ? HPS_DATA_LOSS : event->device->ops->event_done(event);
}

hps_status hps_event_wait(struct hps_event *event)
{
    return hps_device_lost(event->device) ? HPS_DATA_LOSS : event->device->ops->event_wait(event);
}

/* ---- work ------------------------------------------------------------------------------------ */

static hps_status copy(struct hps_stream_q *stream, enum hps_copy_kind kind, void *to,
                       const void *from, size_t size)
{
    if (size == 0) {
        return hps_device_lost(stream->device) ? HPS_DATA_LOSS : HPS_OK;
    }
    return hps_device_lost(stream->device)
               ? HPS_DATA_LOSS
               : stream->device->ops->copy(stream, kind, to, from, size);
}

hps_status hps_copy_to_device(struct hps_stream_q *stream, hps_devptr to, const void *from,
                              size_t size)
{
    return copy(stream, HPS_COPY_TO_DEVICE, (void *)(uintptr_t)to, from, size);
}

hps_status hps_copy_to_host(struct hps_stream_q *stream, void *to, hps_devptr from, size_t size)
{
    return copy(stream, HPS_COPY_TO_HOST, to, (const void *)(uintptr_t)from, size);
}

hps_status hps_copy_on_device(struct hps_stream_q *stream, hps_devptr to, hps_devptr from,
                              size_t size)
{
    return copy(stream, HPS_COPY_ON_DEVICE, (void *)(uintptr_t)to, (const void *)(uintptr_t)from,
                size);
}

hps_status hps_fill_on_device(struct hps_stream_q *stream, hps_devptr to, uint8_t value,
                              size_t size)
{
    if (size == 0) {
        return hps_device_lost(stream->device) ? HPS_DATA_LOSS : HPS_OK;
    }
    return hps_device_lost(stream->device)
               ? HPS_DATA_LOSS
               : stream->device->ops->fill(stream, (void *)(uintptr_t)to, value, size);
}

static bool kernel_is_loaded(const struct hps_device *device, const struct hps_kernel *kernel)
{
    for (size_t i = 0; i < device->n_kernels; i++) {
        if (device->kernels[i] == kernel) {
            return true;
        }
    }
    return false;
}

hps_status hps_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                      uint32_t n_blocks, const void *args)
{
    HPS_ASSERT(n_blocks > 0);
    HPS_ASSERT(kernel_is_loaded(stream->device, kernel));
    return hps_device_lost(stream->device)
               ? HPS_DATA_LOSS
               : stream->device->ops->launch(stream, kernel, n_blocks, args);
}
