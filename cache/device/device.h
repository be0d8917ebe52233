/* SPDX-License-Identifier: Apache-2.0
 *
 * The device layer: the interface of hpsd to a GPU, in about 30 calls. There are two
 * implementations, and the driver given to hps_device_open selects one:
 *
 * - CUDA (cuda.cu), in builds that have it;
 * - simulated (sim/sim.h), a separate library that only test programs link. Each stream is a
 *   thread, and kernels run as fibers from the same source (simt.h). Only events order two streams,
 *   and each step may be delayed at random. So ThreadSanitizer reports a missing event as a data
 *   race, and AddressSanitizer reports a store outside its target.
 *
 * Work given to one stream is done in order. Only events order the work of two streams. The host
 * sees a stream's work after it has seen an event complete (hps_event_done), or read a flag that a
 * kernel raised (simt.h). The same order is needed before the host overwrites
 * memory that the work reads.
 *
 * Threads: open, close, alloc, free and register: one thread at a time and never while serving,
 * because a driver may stop the device for them. The other calls: one thread at a time per stream.
 *
 * Errors carry the text of the driver. DATA_LOSS: the device is lost. This follows a sticky error
 * of the driver, hps_device_give_up or hps_device_sim_fail, and lasts until the process ends. Every
 * later call fails with DATA_LOSS too, and events never complete. Memory may still be freed: that
 * waits until the device cannot write to it, or leaks it if the driver cannot promise this.
 * NO_MEMORY: too little memory of the device or the host. Incorrect use, such as a copy past the
 * end of an allocation, ends the process of a simulated device with a message.
 */
#ifndef HPS_CACHE_DEVICE_DEVICE_H
#define HPS_CACHE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_stream_q; /* a queue of work on a device */
struct hps_event;

/* A device address. 0: none. */
typedef uint64_t hps_devptr;

enum hps_device_kind { HPS_DEVICE_CUDA, HPS_DEVICE_SIM };

struct hps_device_info {
    char name[64];
    char uuid[48];
    enum hps_device_kind kind;
    int index;             /* as in deployed_device_list */
    int driver_version;    /* 12080: 12.8; 0: simulated */
    int capability;        /* 90: sm_90; 0: simulated */
    uint32_t n_processors; /* streaming multiprocessors */
    uint64_t memory_bytes;
    uint64_t memory_free_bytes; /* when the device was opened */
};

struct hps_device;
struct hps_kernel;

/* Counts and opens devices of one kind. Borrowed for the call. */
struct hps_device_driver {
    hps_status (*count)(const struct hps_device_driver *driver, int *out_n, struct hps_error *err);
    hps_status (*open)(const struct hps_device_driver *driver, int index,
                       const struct hps_kernel *const *kernels, size_t n_kernels,
                       struct hps_device **out_device, struct hps_error *err);
    uint64_t stall_us_max; /* without progress for so long a device counts as lost; 0: 5 s */
};

/* GPUs, through the CUDA runtime. In a build without CUDA it counts no device. */
extern const struct hps_device_driver hps_device_cuda;

/* The CUDA toolkit of this build, such as "13.0", and its targets, such as "sm_80, sm_90, sm_100".
 * "none" and "" in a build without CUDA. */
const char *hps_device_cuda_version(void);
const char *hps_device_cuda_processors(void);

/* The number of devices that can be opened. If there is no GPU, returns OK and 0, with the reason
 * in `err` (driver missing, too old, no device visible). */
hps_status hps_device_count(const struct hps_device_driver *driver, int *out_n,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Open a device and load all `kernels`. NOT_FOUND: no such device; PRECONDITION: driver or device
 * too old, with both versions named. */
hps_status hps_device_open(const struct hps_device_driver *driver, int index,
                           const struct hps_kernel *const *kernels, size_t n_kernels,
                           struct hps_device **out_device, struct hps_error *err) HPS_MUST_CHECK;
/* Free streams and events first. No effect if NULL. */
void hps_device_close(struct hps_device *device);
const struct hps_device_info *hps_device_info(const struct hps_device *device);
/* Whether the device is lost, and why (OK and empty while it is not). Any thread. */
bool hps_device_lost(const struct hps_device *device);
void hps_device_lost_why(const struct hps_device *device, struct hps_error *out_why);
/* Declare the device lost, for example after a time-out. Any thread. */
void hps_device_give_up(struct hps_device *device, const char *why);
/* Whether a lost device can no longer write to any memory. Does not block. */
bool hps_device_quiet(struct hps_device *device);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Device memory, aligned to 256 bytes, contents undefined. */
hps_status hps_device_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                            struct hps_error *err) HPS_MUST_CHECK;
void hps_device_free(struct hps_device *device, hps_devptr ptr);
/* Page-locked host memory, zeroed. Kernels read and write it at *out_ptr. */
hps_status hps_device_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                 hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_free(struct hps_device *device, void *host);
/* Register the caller's memory, so that kernels and copies can access it. It must stay until
 * unregistered. Several devices may register the same memory, each once and as a whole; registering
 * part of a registered area is INVALID. */
hps_status hps_device_host_register(struct hps_device *device, void *host, size_t size,
                                    hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_unregister(struct hps_device *device, void *host);

/* ---- streams and events ---------------------------------------------------------------------- */

/* low_priority: for work that may wait. Streams do not wait for each other without events. */
hps_status hps_stream_q_new(struct hps_device *device, const char *name, bool low_priority,
                            struct hps_stream_q **out_stream, struct hps_error *err) HPS_MUST_CHECK;
/* Waits for the stream's work unless the device is lost. No effect if NULL. */
void hps_stream_q_free(struct hps_stream_q *stream);
hps_status hps_event_new(struct hps_device *device, struct hps_event **out_event,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Allowed at any time: a pending record of the event or wait for it still completes. No effect if
 * NULL. */
void hps_event_free(struct hps_event *event);
/* The event completes once all work given to the stream before has ended. It may be recorded again
 * after hps_stream_q_wait has been called for every stream that is to wait for this record. */
hps_status hps_event_record(struct hps_event *event, struct hps_stream_q *stream) HPS_MUST_CHECK;
/* Work given to the stream after this call waits for the last record of the event. */
hps_status hps_stream_q_wait(struct hps_stream_q *stream, struct hps_event *event) HPS_MUST_CHECK;
/* OK: completed, and the work before it is visible to the caller; AGAIN: not yet; DATA_LOSS. An
 * event that was never recorded is complete. Does not block. */
hps_status hps_event_done(struct hps_event *event) HPS_MUST_CHECK;
/* The same, but blocks. For start and stop only. */
hps_status hps_event_wait(struct hps_event *event) HPS_MUST_CHECK;

/* ---- work ------------------------------------------------------------------------------------ */

/* Host memory must be registered or from hps_device_host_alloc. It must not change until an event
 * recorded after the copy has completed. */
hps_status hps_copy_to_device(struct hps_stream_q *stream, hps_devptr to, const void *from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_copy_to_host(struct hps_stream_q *stream, void *to, hps_devptr from, size_t size)
    HPS_MUST_CHECK;
hps_status hps_copy_on_device(struct hps_stream_q *stream, hps_devptr to, hps_devptr from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_fill_on_device(struct hps_stream_q *stream, hps_devptr to, uint8_t value,
                              size_t size) HPS_MUST_CHECK;

/* A kernel: one source (a .cuh that uses simt.h), compiled for CUDA in builds that have it, and for
 * the simulated device in test programs. */
struct hps_kernel {
    const char *name;
    size_t args_size;              /* of its argument, a struct; at most 4,000 */
    uint32_t block_threads;        /* a multiple of 32 */
    uint32_t shared_size;          /* bytes of shared memory per block */
    void (*sim)(const void *args); /* run by each fiber; NULL: listed in sim/kernels.c */
    const void *(*cuda)(void);     /* the __global__ function; NULL in builds without CUDA */
};

/* In a .c file: defines `const struct hps_kernel kernel`. threads must match the kernel's
 * declaration. */
#if defined(HPS_CUDA)
#define HPS_KERNEL_DEFINE_AS(kernel, args_type, threads, shared_bytes, sim)                  \
    const void *kernel##_cuda(void);                                                         \
    const struct hps_kernel kernel = {#kernel, sizeof(args_type), (threads), (shared_bytes), \
                                      sim,     kernel##_cuda}
#else
#define HPS_KERNEL_DEFINE_AS(kernel, args_type, threads, shared_bytes, sim)                       \
    const struct hps_kernel kernel = {#kernel, sizeof(args_type), (threads), (shared_bytes), sim, \
                                      NULL}
#endif
#define HPS_KERNEL_DEFINE(kernel, args_type, threads, shared_bytes) \
    HPS_KERNEL_DEFINE_AS(kernel, args_type, threads, shared_bytes, NULL)
/* args is copied. n_blocks: at least 1. The device must have been opened with this kernel. */
hps_status hps_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                      uint32_t n_blocks, const void *args) HPS_MUST_CHECK;

/* The value that a kernel stored by hps_flag_raise (simt.h) in mapped memory. Everything the kernel
 * did before that is then visible to the caller. */
static inline uint32_t hps_flag_load(const uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

#endif
