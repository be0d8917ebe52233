// SPDX-License-Identifier: Apache-2.0
//
// The device layer over the CUDA runtime, which is linked statically. So the program also starts
// without a driver, and then finds no device. For threads see device.h.
//
// An error of a call that does work, other than too little memory, counts as the loss of the
// device: work queued after it cannot be trusted. Any call may also report a sticky error, which
// the driver repeats until the process ends. That is a loss too.
#include <cuda_runtime.h>

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "base/heap.h"
#include "cache/device/ops.h"
}

enum {
    CAPABILITY_MIN = 80,
    POLL_NS = 20000, // between polls in calls that block
    SHARED_WITHOUT_ASKING = 48 * 1024,
};

struct cuda_stream {
    struct hps_stream_q base;
    cudaStream_t stream;
    struct cuda_stream *next;
};

struct cuda_event {
    struct hps_event base;
    cudaEvent_t event;
};

struct cuda_device {
    struct hps_device base;
    struct cuda_stream *streams;
    bool never_quiet; // a stream was freed after the loss while it still ran
};

static struct cuda_device *cuda_of(struct hps_device *device)
{
    return (struct cuda_device *)device;
}

static cudaStream_t stream_of(struct hps_stream_q *stream)
{
    return ((struct cuda_stream *)stream)->stream;
}

static cudaEvent_t event_of(struct hps_event *event)
{
    return ((struct cuda_event *)event)->event;
}

static void *pointer_of(hps_devptr ptr)
{
    return (void *)(uintptr_t)ptr;
}

// ---- errors ------------------------------------------------------------------------------------

static bool is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
    case cudaErrorOperatingSystem:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
        return false;
    default:
        return true;
    }
}

// For calls that do work: OK, AGAIN, NO_MEMORY, or DATA_LOSS.
static hps_status work_status(struct hps_device *device, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return HPS_OK;
    }
    (void)cudaGetLastError(); // a later call must not find an error that is not sticky
    if (error == cudaErrorNotReady) {
        return HPS_AGAIN;
    }
    if (error == cudaErrorMemoryAllocation) {
        return HPS_NO_MEMORY;
    }
    return hps_device_lose(device, "%s: %s (%s)", what, cudaGetErrorString(error),
                           cudaGetErrorName(error));
}

// For calls that make something: the reason goes into `err`.
static hps_status make_status(struct hps_device *device, cudaError_t error, struct hps_error *err,
                              const char *fmt, ...)
{
    if (error == cudaSuccess) {
        return HPS_OK;
    }
    (void)cudaGetLastError();
    char what[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    hps_status status = HPS_INVALID;
    if (error == cudaErrorMemoryAllocation) {
        status = HPS_NO_MEMORY;
    } else if (is_sticky(error)) {
        status = device == NULL
                     ? HPS_UNAVAILABLE
                     : hps_device_lose(device, "%s: %s", what, cudaGetErrorString(error));
    }
    return hps_error_set(err, status, "%s: %s (%s)", what, cudaGetErrorString(error),
                         cudaGetErrorName(error));
}

// The runtime's current device is per thread, and only this file sets it.
static cudaError_t enter_index(int index)
{
    static thread_local int current = -1;
    if (index == current) {
        return cudaSuccess;
    }
    cudaError_t error = cudaSetDevice(index);
    current = error == cudaSuccess ? index : -1;
    return error;
}

static cudaError_t enter(struct hps_device *device)
{
    return enter_index(device->info.index);
}

static void rest(void)
{
    struct timespec time = {0, POLL_NS};
    nanosleep(&time, NULL);
}

// ---- memory ------------------------------------------------------------------------------------

static bool cuda_quiet(struct hps_device *base)
{
    struct cuda_device *device = cuda_of(base);
    if (device->never_quiet) {
        return false;
    }
    (void)enter(base);
    for (struct cuda_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        // After a sticky error the driver has ended all work.
        if (cudaStreamQuery(stream->stream) == cudaErrorNotReady) {
            return false;
        }
    }
    return true;
}

// Freeing waits for the device, so memory of a lost device that still runs is left allocated.
static bool can_free(struct hps_device *device)
{
    if (hps_device_lost(device) && !cuda_quiet(device)) {
        return false;
    }
    return enter(device) == cudaSuccess;
}

static hps_status cuda_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                             struct hps_error *err)
{
    void *ptr = NULL;
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    cudaError_t error = enter(device);
    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&free_bytes, &all_bytes);
    }
    if (error == cudaSuccess) {
        error = cudaMalloc(&ptr, size);
    }
    if (error != cudaSuccess) {
        return make_status(device, error, err,
                           "device memory: %zu bytes are needed, %zu of %zu are free", size,
                           free_bytes, all_bytes);
    }
    *out_ptr = (hps_devptr)(uintptr_t)ptr;
    return HPS_OK;
}

static void cuda_free(struct hps_device *device, hps_devptr ptr)
{
    if (can_free(device)) {
        hps_ignore(work_status(device, cudaFree(pointer_of(ptr)), "free"));
    }
}

static hps_status cuda_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                  hps_devptr *out_ptr, struct hps_error *err)
{
    void *host = NULL;
    void *ptr = NULL;
    cudaError_t error = enter(device);
    if (error == cudaSuccess) {
        error = cudaHostAlloc(&host, size, cudaHostAllocMapped | cudaHostAllocPortable);
    }
    if (error == cudaSuccess) {
        error = cudaHostGetDevicePointer(&ptr, host, 0);
    }
    if (error != cudaSuccess) {
        if (host != NULL) {
            (void)cudaFreeHost(host);
        }
        return make_status(device, error, err, "page-locked memory of the host, %zu bytes", size);
    }
    memset(host, 0, size);
    *out_host = host;
    *out_ptr = (hps_devptr)(uintptr_t)ptr;
    return HPS_OK;
}

static void cuda_host_free(struct hps_device *device, void *host)
{
    if (can_free(device)) {
        hps_ignore(work_status(device, cudaFreeHost(host), "free of host memory"));
    }
}

// Portable: for all devices. A second registration fails, by whichever device.
static hps_status cuda_host_register(struct hps_device *device, void *host, size_t size,
                                     struct hps_error *err)
{
    cudaError_t error = enter(device);
    if (error == cudaSuccess) {
        error = cudaHostRegister(host, size, cudaHostRegisterMapped | cudaHostRegisterPortable);
    }
    return make_status(device, error, err, "host memory at %p, %zu bytes", host, size);
}

static void cuda_host_unregister(struct hps_device *device, void *host)
{
    if (can_free(device)) {
        hps_ignore(work_status(device, cudaHostUnregister(host), "unregister"));
    }
}

static hps_status cuda_host_map(struct hps_device *device, void *host, size_t size,
                                hps_devptr *out_ptr, struct hps_error *err)
{
    void *ptr = NULL;
    cudaError_t error = enter(device);
    if (error == cudaSuccess) {
        error = cudaHostGetDevicePointer(&ptr, host, 0);
    }
    if (error != cudaSuccess) {
        return make_status(device, error, err, "host memory at %p, %zu bytes", host, size);
    }
    *out_ptr = (hps_devptr)(uintptr_t)ptr;
    return HPS_OK;
}

// Registered memory has an address on every device until it is unregistered.
static void cuda_host_unmap(struct hps_device *device, void *host)
{
    (void)device;
    (void)host;
}

// ---- streams and events ------------------------------------------------------------------------

static hps_status cuda_stream_new(struct hps_device *base, const char *name, bool low_priority,
                                  struct hps_stream_q **out_stream, struct hps_error *err)
{
    struct cuda_device *device = cuda_of(base);
    struct cuda_stream *stream = (struct cuda_stream *)hps_calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "stream %s: no memory", name);
    }
    int least = 0;
    int greatest = 0;
    cudaError_t error = enter(base);
    if (error == cudaSuccess) {
        error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    }
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking,
                                             low_priority ? least : greatest);
    }
    if (error != cudaSuccess) {
        hps_free(stream);
        return make_status(base, error, err, "stream %s", name);
    }
    stream->base.device = base;
    stream->next = device->streams;
    device->streams = stream;
    *out_stream = &stream->base;
    return HPS_OK;
}

static void cuda_stream_free(struct hps_stream_q *base)
{
    struct cuda_stream *stream = (struct cuda_stream *)base;
    struct cuda_device *device = cuda_of(base->device);
    (void)enter(base->device);
    cudaError_t error = cudaStreamQuery(stream->stream);
    while (error == cudaErrorNotReady && !hps_device_lost(base->device)) {
        rest();
        error = cudaStreamQuery(stream->stream);
    }
    if (error == cudaErrorNotReady) {
        device->never_quiet = true;
    } else {
        hps_ignore(work_status(base->device, error, "stream"));
    }
    (void)cudaStreamDestroy(stream->stream);
    struct cuda_stream **at = &device->streams;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    hps_free(stream);
}

static hps_status cuda_event_new(struct hps_device *device, struct hps_event **out_event,
                                 struct hps_error *err)
{
    struct cuda_event *event = (struct cuda_event *)hps_calloc(1, sizeof(*event));
    if (event == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "event: no memory");
    }
    cudaError_t error = enter(device);
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
    }
    if (error != cudaSuccess) {
        hps_free(event);
        return make_status(device, error, err, "event");
    }
    event->base.device = device;
    *out_event = &event->base;
    return HPS_OK;
}

static void cuda_event_free(struct hps_event *event)
{
    (void)enter(event->device);
    (void)cudaEventDestroy(event_of(event));
    hps_free(event);
}

static hps_status cuda_event_record(struct hps_event *event, struct hps_stream_q *stream)
{
    cudaError_t error = enter(stream->device);
    if (error == cudaSuccess) {
        error = cudaEventRecord(event_of(event), stream_of(stream));
    }
    return work_status(stream->device, error, "record of an event");
}

static hps_status cuda_stream_wait(struct hps_stream_q *stream, struct hps_event *event)
{
    cudaError_t error = enter(stream->device);
    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(stream_of(stream), event_of(event), 0);
    }
    return work_status(stream->device, error, "wait for an event");
}

static hps_status cuda_event_done(struct hps_event *event)
{
    cudaError_t error = enter(event->device);
    if (error == cudaSuccess) {
        error = cudaEventQuery(event_of(event));
    }
    return work_status(event->device, error, "query of an event");
}

// Polls instead of blocking in the driver, so that hps_device_give_up ends the wait.
static hps_status cuda_event_wait(struct hps_event *event)
{
    hps_status status = cuda_event_done(event);
    while (status == HPS_AGAIN) {
        if (hps_device_lost(event->device)) {
            return HPS_DATA_LOSS;
        }
        rest();
        status = cuda_event_done(event);
    }
    return status;
}

// ---- work --------------------------------------------------------------------------------------

static hps_status cuda_copy(struct hps_stream_q *stream, enum hps_copy_kind kind, void *to,
                            const void *from, size_t size)
{
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDefault};
    cudaError_t error = enter(stream->device);
    if (error == cudaSuccess) {
        error = cudaMemcpyAsync(to, from, size, kinds[kind], stream_of(stream));
    }
    return work_status(stream->device, error, "copy");
}

static hps_status cuda_fill(struct hps_stream_q *stream, void *to, uint8_t value, size_t size)
{
    cudaError_t error = enter(stream->device);
    if (error == cudaSuccess) {
        error = cudaMemsetAsync(to, value, size, stream_of(stream));
    }
    return work_status(stream->device, error, "fill");
}

static hps_status cuda_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                              uint32_t n_blocks, const void *args)
{
    void *params[] = {(void *)(uintptr_t)args};
    cudaError_t error = enter(stream->device);
    if (error == cudaSuccess) {
        error = cudaLaunchKernel(kernel->cuda(), dim3(n_blocks), dim3(kernel->block_threads),
                                 params, kernel->shared_size, stream_of(stream));
    }
    return work_status(stream->device, error, kernel->name);
}

// ---- devices -----------------------------------------------------------------------------------

static void cuda_close(struct hps_device *device)
{
    hps_free(device);
}

static const struct hps_device_ops cuda_ops = {
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .host_map = cuda_host_map,
    .host_unmap = cuda_host_unmap,
    .quiet = cuda_quiet,
    .lost = NULL,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_done = cuda_event_done,
    .event_wait = cuda_event_wait,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .launch = cuda_launch,
};

static const char *version_text(int version, char text[24])
{
    snprintf(text, 24, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

extern "C" const char *hps_device_cuda_version(void)
{
    return HPS_CUDA_VERSION;
}

extern "C" const char *hps_device_cuda_processors(void)
{
    return HPS_CUDA_PROCESSORS;
}

static hps_status cuda_count(const struct hps_device_driver *self, int *out_n,
                             struct hps_error *err)
{
    (void)self;
    int n = 0;
    int driver = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    if (error == cudaSuccess && n > 0) {
        *out_n = n;
        return HPS_OK;
    }
    *out_n = 0;
    char text[24];
    if (error == cudaErrorInsufficientDriver) {
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
            (void)hps_error_set(err, HPS_OK, "no NVIDIA driver is installed");
        } else {
            (void)hps_error_set(err, HPS_OK,
                                "the driver has CUDA %s, older than this build's %s allows",
                                version_text(driver, text), HPS_CUDA_VERSION);
        }
    } else if (error == cudaSuccess || error == cudaErrorNoDevice) {
        (void)hps_error_set(err, HPS_OK, "the driver reports no device");
    } else {
        (void)hps_error_set(err, HPS_OK, "%s (%s)", cudaGetErrorString(error),
                            cudaGetErrorName(error));
    }
    return HPS_OK;
}

static void info_fill(struct hps_device_info *info, int index, const struct cudaDeviceProp *prop)
{
    info->kind = HPS_DEVICE_CUDA;
    info->index = index;
    snprintf(info->name, sizeof(info->name), "%.63s", prop->name);
    const unsigned char *id = (const unsigned char *)prop->uuid.bytes;
    snprintf(info->uuid, sizeof(info->uuid),
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", id[0],
             id[1], id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9], id[10], id[11], id[12],
             id[13], id[14], id[15]);
    info->capability = prop->major * 10 + prop->minor;
    info->n_processors = (uint32_t)prop->multiProcessorCount;
    info->memory_bytes = prop->totalGlobalMem;
}

// Loaded here, so that the first launch of a kernel does not load it.
static hps_status kernel_load(const struct hps_kernel *kernel, struct hps_error *err)
{
    struct cudaFuncAttributes attributes;
    if (kernel->cuda == NULL) {
        return hps_error_set(err, HPS_INTERNAL, "kernel %s: not built for CUDA", kernel->name);
    }
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel->cuda());
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return hps_error_set(err, HPS_PRECONDITION, "kernel %s: this build is for %s only",
                             kernel->name, HPS_CUDA_PROCESSORS);
    }
    if (error == cudaSuccess && kernel->shared_size > SHARED_WITHOUT_ASKING) {
        error = cudaFuncSetAttribute(kernel->cuda(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)kernel->shared_size);
    }
    if (error == cudaSuccess && kernel->block_threads > (uint32_t)attributes.maxThreadsPerBlock) {
        return hps_error_set(err, HPS_PRECONDITION, "kernel %s: %u threads a block, at most %d fit",
                             kernel->name, kernel->block_threads, attributes.maxThreadsPerBlock);
    }
    return make_status(NULL, error, err, "kernel %s", kernel->name);
}

static hps_status device_ask(struct hps_device_info *info, int index, struct hps_error *err)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    cudaError_t error = enter_index(index);
    if (error == cudaSuccess) {
        error = cudaGetDeviceProperties(&prop, index);
    }
    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&free_bytes, &all_bytes);
    }
    if (error == cudaSuccess) {
        error = cudaDriverGetVersion(&info->driver_version);
    }
    if (error != cudaSuccess) {
        return make_status(NULL, error, err, "device %d", index);
    }
    info_fill(info, index, &prop);
    info->memory_free_bytes = free_bytes;
    if (info->capability < CAPABILITY_MIN) {
        return hps_error_set(err, HPS_PRECONDITION,
                             "device %d (%s) is sm_%d, at least sm_%d is needed", index, info->name,
                             info->capability, (int)CAPABILITY_MIN);
    }
    if (!prop.canMapHostMemory || !prop.unifiedAddressing) {
        return hps_error_set(err, HPS_PRECONDITION, "device %d (%s) cannot map memory of the host",
                             index, info->name);
    }
    return HPS_OK;
}

static hps_status cuda_open(const struct hps_device_driver *self, int index,
                            const struct hps_kernel *const *kernels, size_t n_kernels,
                            struct hps_device **out_device, struct hps_error *err)
{
    (void)self;
    struct cuda_device *device = (struct cuda_device *)hps_calloc(1, sizeof(*device));
    if (device == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "device %d: no memory", index);
    }
    device->base.ops = &cuda_ops;
    hps_status status = device_ask(&device->base.info, index, err);
    for (size_t i = 0; i < n_kernels && status == HPS_OK; i++) {
        status = kernel_load(kernels[i], err);
    }
    if (status != HPS_OK) {
        hps_free(device);
        return status;
    }
    *out_device = &device->base;
    return HPS_OK;
}

extern "C" const struct hps_device_driver hps_device_cuda = {cuda_count, cuda_open, 0};
