/* SPDX-License-Identifier: Apache-2.0
 *
 * The device layer: the interface of hpsd to a GPU, in about 30 calls. There are two
 * implementations, and the driver given to hps_device_open selects one:
 *
 * - CUDA (cuda.cu), in builds that have it;
 * - simulated (sim/sim.h), a separate library that only hpsd-sim and test programs link. Each
 *   stream is a thread. The threads of a kernel run as fibers, from the same source as on a GPU
 *   (simt.h). ThreadSanitizer sees no order between two streams except that of events, so it
 *   reports a missing event as a data race. A random delay before each step of a stream can be
 *   configured. AddressSanitizer reports a store outside of an allocation.
 *
 * A *stream* is a queue of work (copies, fills, launches of kernels) that the device does in order.
 * Only *events* order the work of two streams. The host sees the results of work once an event that
 * was recorded after the work has completed (hps_event_done). Alternatively, the host can wait for
 * a flag that a kernel raises (hps_flag_load). Before the host overwrites memory that the work
 * reads, it must also wait for an event or a flag.
 *
 * Threads: only one thread at a time may open, close, allocate, free, register or unregister. Do
 * not do this while lookups run, because a driver may stop the device for these calls. For all
 * other calls, only one thread at a time may use a stream and the events recorded on it.
 *
 * Errors: `err` has the text of the driver. NO_MEMORY: too little memory of the device or the host.
 * DATA_LOSS: the device is lost, until the process ends. It is lost after an error from which the
 * driver cannot recover, or after hps_device_give_up or hps_device_sim_fail. From then on every
 * call for this device that returns a status returns DATA_LOSS, and events never complete. Memory
 * of a lost device can still be freed. If the device may still write to the memory, the CUDA driver
 * leaks it, and the simulated device waits. On a simulated device, incorrect use, such as a copy
 * past the end of an allocation, ends the process with a message.
 */
#ifndef HPS_CACHE_DEVICE_DEVICE_H
#define HPS_CACHE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_stream_q;
struct hps_event;

/* The address of device memory, or the address at which the device accesses host memory. 0 is no
 * address. */
typedef uint64_t hps_devptr;

enum hps_device_kind { HPS_DEVICE_CUDA, HPS_DEVICE_SIM };

struct hps_device_info {
    char name[64];
    char uuid[48];
    enum hps_device_kind kind;
    int index;             /* number of the device, as in the option deployed_device_list */
    int driver_version;    /* CUDA version of the driver, 12080 for 12.8; 0: simulated device */
    int capability;        /* compute capability, 90 for sm_90; 0: simulated device */
    uint32_t n_processors; /* streaming multiprocessors */
    uint64_t memory_bytes;
    uint64_t memory_free_bytes; /* at the time when the device was opened */
};

struct hps_device;
struct hps_kernel;

/* Counts and opens devices of one kind: see hps_device_count and hps_device_open. */
struct hps_device_driver {
    hps_status (*count)(const struct hps_device_driver *driver, int *out_n, struct hps_error *err);
    hps_status (*open)(const struct hps_device_driver *driver, int index,
                       const struct hps_kernel *const *kernels, size_t n_kernels,
                       struct hps_device **out_device, struct hps_error *err);
    uint64_t stall_us_max; /* default time without progress after which the gpu tier declares a
                              device lost; 0: 5 s */
};

/* The driver for GPUs, through the CUDA runtime. In a build without CUDA it counts 0 devices. */
extern const struct hps_device_driver hps_device_cuda;

/* The version of the CUDA toolkit of this build, such as "13.0"; "none" in a build without CUDA. */
const char *hps_device_cuda_version(void);
/* The GPU architectures for which this build has kernels, such as "sm_80, sm_90, sm_100"; "" in a
 * build without CUDA. */
const char *hps_device_cuda_processors(void);

/* Set *out_n to the number of devices that can be opened. If there is no GPU, returns OK, sets
 * *out_n to 0, and writes the reason into `err`, such as a missing or old driver. */
hps_status hps_device_count(const struct hps_device_driver *driver, int *out_n,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Open a device and load all `kernels`. NOT_FOUND: no such device; PRECONDITION: driver or device
 * is too old; `err` names the actual and the required version. */
hps_status hps_device_open(const struct hps_device_driver *driver, int index,
                           const struct hps_kernel *const *kernels, size_t n_kernels,
                           struct hps_device **out_device, struct hps_error *err) HPS_MUST_CHECK;
/* Close a device. All its streams, events, allocations and registrations must have been freed. No
 * effect if NULL. */
void hps_device_close(struct hps_device *device);
const struct hps_device_info *hps_device_info(const struct hps_device *device);
/* Whether the device is lost. Any thread. */
bool hps_device_lost(const struct hps_device *device);
/* Why the device is lost. While it is not lost, *out_why is OK with an empty text. Any thread. */
void hps_device_lost_why(const struct hps_device *device, struct hps_error *out_why);
/* Declare the device lost, for example after a time-out. Any thread. */
void hps_device_give_up(struct hps_device *device, const char *why);
/* Whether a lost device can no longer write to any memory. The device must be lost. Does not block.
 */
bool hps_device_quiet(struct hps_device *device);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocate device memory, aligned to 256 bytes. Its contents are undefined. */
hps_status hps_device_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                            struct hps_error *err) HPS_MUST_CHECK;
void hps_device_free(struct hps_device *device, hps_devptr ptr); /* no effect if ptr is 0 */
/* Allocate page-locked host memory, zeroed. Kernels access it at *out_ptr. */
hps_status hps_device_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                 hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_free(struct hps_device *device, void *host); /* no effect if NULL */
/* Register the caller's memory, so that the device can access it: copies at `host`, kernels at
 * *out_ptr. The memory must stay allocated until it is unregistered. Several devices may register
 * the same memory, each device once, with the same address and size. INVALID: the memory overlaps
 * other registered memory. */
hps_status hps_device_host_register(struct hps_device *device, void *host, size_t size,
                                    hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_unregister(struct hps_device *device, void *host); /* no effect if NULL */

/* ---- streams and events ---------------------------------------------------------------------- */

/* low_priority: the device prefers the work of other streams. */
hps_status hps_stream_q_new(struct hps_device *device, const char *name, bool low_priority,
                            struct hps_stream_q **out_stream, struct hps_error *err) HPS_MUST_CHECK;
/* Free a stream. Waits for the end of its work, unless the device is lost. No effect if NULL. */
void hps_stream_q_free(struct hps_stream_q *stream);
hps_status hps_event_new(struct hps_device *device, struct hps_event **out_event,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Free an event, at any time. Records of the event and waits for it that are already queued on
 * streams still take effect. No effect if NULL. */
void hps_event_free(struct hps_event *event);
/* Record the event: it completes when all work that was queued on the stream before this call has
 * ended. An event may be recorded again; first call hps_stream_q_wait for every stream that must
 * wait for the earlier record. */
hps_status hps_event_record(struct hps_event *event, struct hps_stream_q *stream) HPS_MUST_CHECK;
/* Work queued on the stream after this call waits for the last record of the event. */
hps_status hps_stream_q_wait(struct hps_stream_q *stream, struct hps_event *event) HPS_MUST_CHECK;
/* Check an event. OK: the event's last record has completed, and the work before that record is
 * visible to the caller. AGAIN: not yet. DATA_LOSS: the device is lost. An event that was never
 * recorded is complete. Does not block. */
hps_status hps_event_done(struct hps_event *event) HPS_MUST_CHECK;
/* Wait until the last record of the event has completed (OK), or the device is lost (DATA_LOSS).
 * Call it only while the daemon starts or stops, because it blocks. */
hps_status hps_event_wait(struct hps_event *event) HPS_MUST_CHECK;

/* ---- work ------------------------------------------------------------------------------------ */

/* Queue a copy or a fill of `size` bytes. Host memory must be registered, or from
 * hps_device_host_alloc. The caller must not write to `from`, nor access `to`, until an event
 * recorded after the copy has completed. */
hps_status hps_copy_to_device(struct hps_stream_q *stream, hps_devptr to, const void *from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_copy_to_host(struct hps_stream_q *stream, void *to, hps_devptr from, size_t size)
    HPS_MUST_CHECK;
hps_status hps_copy_on_device(struct hps_stream_q *stream, hps_devptr to, hps_devptr from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_fill_on_device(struct hps_stream_q *stream, hps_devptr to, uint8_t value,
                              size_t size) HPS_MUST_CHECK;

/* A kernel. Its source is a .cuh file that uses simt.h. It is compiled for CUDA in builds that have
 * CUDA, and for the simulated device. */
struct hps_kernel {
    const char *name;
    size_t args_size;              /* bytes of the kernel's argument, a struct; at most 4,000 */
    uint32_t block_threads;        /* threads of a block, a multiple of 32 */
    uint32_t shared_size;          /* bytes of shared memory per block */
    void (*sim)(const void *args); /* the body for the simulated device, run by each fiber; NULL:
                                      sim/kernels.c has it */
    const void *(*cuda)(void); /* returns the __global__ function; NULL in builds without CUDA */
};

/* These macros define `const struct hps_kernel kernel`; use them in a .c file. `threads` must be
 * the number of threads that HPS_KERNEL (simt.h) has for this kernel. */
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
/* Queue a launch of n_blocks blocks, at least 1. args is copied. The device must have been opened
 * with this kernel. */
hps_status hps_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                      uint32_t n_blocks, const void *args) HPS_MUST_CHECK;

/* Read a flag in host memory, to which a kernel stores a value by hps_flag_raise (simt.h). Once the
 * caller reads that value, the caller sees all that the kernel did before it stored the value. */
static inline uint32_t hps_flag_load(const uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

#endif
