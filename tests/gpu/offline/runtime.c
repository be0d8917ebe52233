/* SPDX-License-Identifier: Apache-2.0
 *
 * As runtime.h says. Main thread.
 */
#include "tests/gpu/offline/runtime.h"

#include <cuda_runtime_api.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "cache/device/ops.h"
#include "cache/device/sim/sim.h"
#include "cache/embed/kernels.h"
#include "tests/gpu/check_kernels.h"

enum { THINGS_MAX = 4096, NO_FLAGS = 0, PROCESSORS = 132, CAPABILITY = 9, DRIVER = 13000 };
#define MEMORY_BYTES UINT64_C(0x10000000)

/* Everything that a program must give back. */
enum kind { FREE, DEVICE_MEMORY, HOST_MEMORY, REGISTERED, STREAM, EVENT };
struct thing {
    enum kind kind;
    void *address;     /* of memory: as the program knows it */
    hps_devptr device; /* of memory: as kernels see it */
    struct hps_stream_q *stream;
    struct hps_event *event; /* of a stream: recorded behind its work */
    bool busy;               /* a stream has had work since then */
};

static struct {
    struct hps_device *sim;
    struct thing things[THINGS_MAX];
    unsigned n_calls, fail_at;
    bool fail_set_device;
    cudaError_t sticky, last;
} runtime;

#define MISUSE(...) ((void)fprintf(stderr, "stand-in for the CUDA runtime: " __VA_ARGS__), abort())

/* ---- for the test ---------------------------------------------------------------------------- */

void runtime_fail_at(unsigned n, bool set_device)
{
    runtime.fail_at = n;
    runtime.fail_set_device = set_device;
}

unsigned runtime_calls(void)
{
    return runtime.n_calls;
}

size_t runtime_left(void)
{
    size_t n = 0;

    for (size_t i = 0; i < THINGS_MAX; i++) {
        n += runtime.things[i].kind != FREE ? 1 : 0;
    }
    return n;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        runtime.last = error;
    }
    return error;
}

/* Counts a call. Returns the sticky error, or success if the call shall do its work. */
static cudaError_t call(void)
{
    runtime.n_calls++;
    if (runtime.n_calls == runtime.fail_at) {
        runtime.sticky = cudaErrorIllegalAddress;
        if (runtime.sim != NULL) {
            hps_device_sim_fail(runtime.sim, 0);
            while (!runtime.sim->ops->quiet(runtime.sim)) { /* a driver ends what runs */
                (void)sched_yield();
            }
        }
    }
    return note(runtime.sticky);
}

#define CALL()                        \
    do {                              \
        cudaError_t answer_ = call(); \
        if (answer_ != cudaSuccess) { \
            return answer_;           \
        }                             \
    } while (0)

static cudaError_t error_of(hps_status status)
{
    switch (status) {
    case HPS_OK:
        return cudaSuccess;
    case HPS_AGAIN:
        return cudaErrorNotReady;
    case HPS_NO_MEMORY:
        return note(cudaErrorMemoryAllocation);
    case HPS_INVALID:
        return note(cudaErrorInvalidValue);
    default:
        return note(cudaErrorIllegalAddress);
    }
}

static struct thing *thing_new(enum kind kind)
{
    for (size_t i = 0; i < THINGS_MAX; i++) {
        if (runtime.things[i].kind == FREE) {
            runtime.things[i] = (struct thing){.kind = kind};
            return &runtime.things[i];
        }
    }
    MISUSE("more than %d allocations, streams and events\n", THINGS_MAX);
}

static void thing_free(struct thing *thing)
{
    thing->kind = FREE;
}

/* NULL: no such memory. */
static struct thing *memory_at(enum kind kind, const void *address)
{
    for (size_t i = 0; i < THINGS_MAX; i++) {
        if (runtime.things[i].kind == kind && runtime.things[i].address == address) {
            return &runtime.things[i];
        }
    }
    return NULL;
}

static struct thing *thing_of(enum kind kind, void *handle)
{
    struct thing *thing = handle;

    if (thing < runtime.things || thing >= runtime.things + THINGS_MAX || thing->kind != kind) {
        MISUSE("a %s that is not one\n", kind == STREAM ? "stream" : "event");
    }
    return thing;
}

static struct thing *working(cudaStream_t stream)
{
    struct thing *thing = thing_of(STREAM, stream);
    thing->busy = true;
    return thing;
}

static void check_flags(unsigned flags, unsigned wanted)
{
    if (flags != wanted) {
        MISUSE("flags %#x, not %#x\n", flags, wanted);
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = runtime.last;
    runtime.last = runtime.sticky;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                            : "an error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "another";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    CALL();
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    CALL();
    *version = DRIVER;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    static struct hps_sim_driver driver;
    static _Thread_local int current = -1;
    cudaError_t answer = call();

    if (answer != cudaSuccess && runtime.fail_set_device) {
        return answer;
    }
    if (device != 0) {
        return note(cudaErrorInvalidDevice);
    }
    if (runtime.sim == NULL && answer == cudaSuccess) {
        struct hps_error err = {0};
        driver =
            hps_sim_driver((struct hps_device_sim_config){.seed = 7, .memory_bytes = MEMORY_BYTES});
        if (driver.driver.open(&driver.driver, 0, NULL, 0, &runtime.sim, &err) != HPS_OK) {
            MISUSE("%s\n", err.text);
        }
    }
    if (device == current) {
        MISUSE("the device is set that is the thread's already\n");
    }
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    CALL();
    (void)device;
    memset(properties, 0, sizeof(*properties));
    (void)snprintf(properties->name, sizeof(properties->name), "stand-in");
    properties->major = CAPABILITY;
    properties->multiProcessorCount = PROCESSORS;
    properties->totalGlobalMem = MEMORY_BYTES;
    properties->canMapHostMemory = 1;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    CALL();
    *free_bytes = MEMORY_BYTES;
    *all_bytes = MEMORY_BYTES;
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **out, size_t size)
{
    hps_devptr device = 0;
    struct hps_error err;

    CALL();
    cudaError_t error = error_of(runtime.sim->ops->alloc(runtime.sim, size, &device, &err));
    if (error == cudaSuccess) {
        struct thing *thing = thing_new(DEVICE_MEMORY);
        thing->device = device;
        thing->address = (void *)(uintptr_t)device;
        *out = thing->address;
    }
    return error;
}

cudaError_t cudaFree(void *address)
{
    struct thing *thing = memory_at(DEVICE_MEMORY, address);

    CALL();
    if (thing == NULL) {
        MISUSE("free of %p, which is not allocated\n", address);
    }
    runtime.sim->ops->free(runtime.sim, thing->device);
    thing_free(thing);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    struct thing memory = {0};
    struct hps_error err;

    CALL();
    check_flags(flags, cudaHostAllocMapped | cudaHostAllocPortable);
    cudaError_t error = error_of(
        runtime.sim->ops->host_alloc(runtime.sim, size, &memory.address, &memory.device, &err));
    if (error == cudaSuccess) {
        memory.kind = HOST_MEMORY;
        *thing_new(HOST_MEMORY) = memory;
        memset(memory.address, 0xee, size); /* a driver does not clear it */
        *out = memory.address;
    }
    return error;
}

cudaError_t cudaFreeHost(void *address)
{
    struct thing *thing = memory_at(HOST_MEMORY, address);

    CALL();
    if (thing == NULL) {
        MISUSE("free of host memory %p, which is not allocated\n", address);
    }
    runtime.sim->ops->host_free(runtime.sim, address);
    thing_free(thing);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags)
{
    hps_devptr device = 0;
    struct hps_error err;

    CALL();
    check_flags(flags, cudaHostRegisterMapped | cudaHostRegisterPortable);
    hps_status status = runtime.sim->ops->host_register(runtime.sim, address, size, &err);
    if (status == HPS_INVALID) {
        return note(cudaErrorHostMemoryAlreadyRegistered);
    }
    if (status == HPS_OK) {
        status = runtime.sim->ops->host_map(runtime.sim, address, size, &device, &err);
    }
    if (status == HPS_OK) {
        struct thing *thing = thing_new(REGISTERED);
        thing->address = address;
        thing->device = device;
    }
    return error_of(status);
}

cudaError_t cudaHostUnregister(void *address)
{
    struct thing *thing = memory_at(REGISTERED, address);

    CALL();
    if (thing == NULL) {
        return note(cudaErrorHostMemoryNotRegistered);
    }
    runtime.sim->ops->host_unmap(runtime.sim, address);
    runtime.sim->ops->host_unregister(runtime.sim, address);
    thing_free(thing);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *address, unsigned flags)
{
    struct thing *thing = memory_at(HOST_MEMORY, address);

    CALL();
    check_flags(flags, NO_FLAGS);
    thing = thing != NULL ? thing : memory_at(REGISTERED, address);
    if (thing == NULL) {
        return note(cudaErrorInvalidValue);
    }
    *out = (void *)(uintptr_t)thing->device;
    return cudaSuccess;
}

/* ---- streams and events ---------------------------------------------------------------------- */

enum { PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5 };

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CALL();
    *least = PRIORITY_LEAST;
    *greatest = PRIORITY_GREATEST;
    return cudaSuccess;
}

static cudaError_t thing_event(struct thing *thing)
{
    struct hps_error err = {0};

    if (runtime.sim->ops->event_new(runtime.sim, &thing->event, &err) != HPS_OK) {
        MISUSE("%s\n", err.text);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    struct hps_error err = {0};

    CALL();
    check_flags(flags, cudaStreamNonBlocking);
    struct thing *thing = thing_new(STREAM);
    if (runtime.sim->ops->stream_new(runtime.sim, "stand-in", priority == PRIORITY_LEAST,
                                     &thing->stream, &err) != HPS_OK) {
        MISUSE("%s\n", err.text);
    }
    *out = (cudaStream_t)thing;
    return thing_event(thing);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    struct thing *thing = thing_of(STREAM, stream);

    CALL();
    if (thing->busy) {
        thing->busy = false;
        hps_ignore(runtime.sim->ops->event_record(thing->event, thing->stream));
    }
    return error_of(runtime.sim->ops->event_done(thing->event));
}

/* The handle is freed even if the call fails. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct thing *thing = thing_of(STREAM, stream);

    runtime.sim->ops->event_free(thing->event);
    runtime.sim->ops->stream_free(thing->stream);
    thing_free(thing);
    return call();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    CALL();
    check_flags(flags, cudaEventDisableTiming);
    struct thing *thing = thing_new(EVENT);
    *out = (cudaEvent_t)thing;
    return thing_event(thing);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct thing *thing = thing_of(EVENT, event);

    runtime.sim->ops->event_free(thing->event);
    thing_free(thing);
    return call();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CALL();
    return error_of(
        runtime.sim->ops->event_record(thing_of(EVENT, event)->event, working(stream)->stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CALL();
    check_flags(flags, NO_FLAGS);
    return error_of(
        runtime.sim->ops->stream_wait(working(stream)->stream, thing_of(EVENT, event)->event));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CALL();
    return error_of(runtime.sim->ops->event_done(thing_of(EVENT, event)->event));
}

/* ---- work ------------------------------------------------------------------------------------ */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CALL();
    return error_of(runtime.sim->ops->copy(working(stream)->stream,
                                           kind == cudaMemcpyHostToDevice   ? HPS_COPY_TO_DEVICE
                                           : kind == cudaMemcpyDeviceToHost ? HPS_COPY_TO_HOST
                                                                            : HPS_COPY_ON_DEVICE,
                                           to, from, size));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    CALL();
    return error_of(runtime.sim->ops->fill(working(stream)->stream, to, (uint8_t)value, size));
}

/* A kernel's handle is its description. */
#define HANDLE(kernel)               \
    const void *kernel##_cuda(void); \
    const void *kernel##_cuda(void)  \
    {                                \
        return &(kernel);            \
    }
HANDLE(hps_embed_kernel_lookup)
HANDLE(hps_embed_kernel_pool)
HANDLE(hps_embed_kernel_observe)
HANDLE(hps_embed_kernel_halve)
HANDLE(hps_embed_kernel_apply)
HANDLE(check_warp)
HANDLE(check_block)
HANDLE(check_memory)
HANDLE(check_atomic)

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    CALL();
    (void)kernel;
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = HPS_KERNEL_THREADS_MAX;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    CALL();
    (void)kernel, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *handle, dim3 blocks, dim3 threads, void **args,
                             size_t shared_size, cudaStream_t stream)
{
    const struct hps_kernel *kernel = handle;

    CALL();
    if (threads.x != kernel->block_threads || shared_size != kernel->shared_size ||
        blocks.x > INT32_MAX || blocks.y * blocks.z * threads.y * threads.z != 1) {
        MISUSE("kernel %s: %u blocks of %u threads, %zu bytes shared\n", kernel->name, blocks.x,
               threads.x, shared_size);
    }
    return error_of(runtime.sim->ops->launch(working(stream)->stream, kernel, blocks.x, args[0]));
}
