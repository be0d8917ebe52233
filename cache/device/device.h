/* SPDX-License-Identifier: Apache-2.0
 *
 * The device layer: all that hpsd asks of a GPU, in about 30 calls. Two implementations, chosen
 * by the driver that a device is opened with:
 *
 * - CUDA (cuda.cu), in builds that have it;
 * - simulated (sim/sim.h), a library of its own that only tests' programs link: one thread per
 *   stream, events are the only order between streams, kernels run as fibers from the same source
 *   (simt.h), and each step may be delayed at random. A forgotten event is a data race that
 *   ThreadSanitizer sees; a store beside its target is one that AddressSanitizer sees.
 *
 * Work given to a stream is done in order. Work of two streams is ordered by events alone, and what
 * the host reads or writes is ordered with a stream's work by an event that the host has seen
 * complete (hps_event_done), or by a flag that a kernel raised (simt.h).
 *
 * Thread: open, close, alloc, free, register: one thread at a time, and never while serving, as a
 * driver may stop the device for them. The rest: one thread at a time per stream.
 *
 * Errors: a call that fails says what the driver said. LOST: once any call of a device has answered
 * DATA_LOSS the device is gone for the life of the process (a driver's sticky error,
 * hps_device_give_up or hps_device_sim_fail); every later call answers the same, events never
 * complete, and memory may still be freed: that waits until nothing writes to it any more, or lets
 * it leak where a driver cannot promise that. NO_MEMORY: the device's memory, or the host's, is not
 * enough. What a program must never do (a copy beside an allocation, say) ends the simulated
 * device's process with a message.
 */
#ifndef HPS_CACHE_DEVICE_DEVICE_H
#define HPS_CACHE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_stream_q; /* a queue of work on a device */
struct hps_event;

/* An address as kernels see it. 0: none. */
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
    uint64_t memory_free_bytes; /* when it was opened */
};

struct hps_device;
struct hps_kernel;

/* What opens devices of a kind. Borrowed for the call. */
struct hps_device_driver {
    hps_status (*count)(const struct hps_device_driver *driver, int *out_n, struct hps_error *err);
    hps_status (*open)(const struct hps_device_driver *driver, int index,
                       const struct hps_kernel *const *kernels, size_t n_kernels,
                       struct hps_device **out_device, struct hps_error *err);
    uint64_t stall_us_max; /* without progress for so long a device counts as lost; 0: 5 s */
};

/* GPUs, through the CUDA runtime; in a build without CUDA there is none. */
extern const struct hps_device_driver hps_device_cuda;

/* The toolkit that this build has CUDA from, "13.0", and for what, "sm_80, sm_90, sm_100"; "none"
 * and
 * "" in a build without. */
const char *hps_device_cuda_version(void);
const char *hps_device_cuda_processors(void);

/* Devices that can be opened, 0 where there is no GPU. With the reason of that in `err` (driver
 * missing, too old, none visible): OK all the same. */
hps_status hps_device_count(const struct hps_device_driver *driver, int *out_n,
                            struct hps_error *err) HPS_MUST_CHECK;
/* NOT_FOUND: no such device; PRECONDITION: driver or device older than needed, both versions named.
 * Loads every kernel of `kernels`. */
hps_status hps_device_open(const struct hps_device_driver *driver, int index,
                           const struct hps_kernel *const *kernels, size_t n_kernels,
                           struct hps_device **out_device, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_close(struct hps_device *device); /* streams and events first; NULL is legal */
const struct hps_device_info *hps_device_info(const struct hps_device *device);
/* Whether the device is gone, and what was said then (OK and empty while it is not). Any thread. */
bool hps_device_lost(const struct hps_device *device);
void hps_device_lost_why(const struct hps_device *device, struct hps_error *out_why);
/* The caller has waited long enough: the device is lost from now on. Any thread. */
void hps_device_give_up(struct hps_device *device, const char *why);
/* Of a lost device: whether it can no longer write to any memory. Does not block. */
bool hps_device_quiet(struct hps_device *device);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of the device, aligned to 256 bytes, contents undefined. */
hps_status hps_device_alloc(struct hps_device *device, size_t size, hps_devptr *out_ptr,
                            struct hps_error *err) HPS_MUST_CHECK;
void hps_device_free(struct hps_device *device, hps_devptr ptr);
/* Of the host, page-locked, readable and writable by kernels at *out_ptr; zeroed. */
hps_status hps_device_host_alloc(struct hps_device *device, size_t size, void **out_host,
                                 hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_free(struct hps_device *device, void *host);
/* Make the caller's memory such. It must stay until unregistered. Several devices may register the
 * same memory, each once and all of it; parts of what is registered are INVALID. */
hps_status hps_device_host_register(struct hps_device *device, void *host, size_t size,
                                    hps_devptr *out_ptr, struct hps_error *err) HPS_MUST_CHECK;
void hps_device_host_unregister(struct hps_device *device, void *host);

/* ---- streams and events ---------------------------------------------------------------------- */

/* low_priority: for work that may wait. Streams do not wait for each other by themselves. */
hps_status hps_stream_q_new(struct hps_device *device, const char *name, bool low_priority,
                            struct hps_stream_q **out_stream, struct hps_error *err) HPS_MUST_CHECK;
/* Waits for its work unless the device is lost. NULL is legal. */
void hps_stream_q_free(struct hps_stream_q *stream);
hps_status hps_event_new(struct hps_device *device, struct hps_event **out_event,
                         struct hps_error *err) HPS_MUST_CHECK;
/* At any time: a record of it that is under way, or a wait for it, is not disturbed. NULL is legal.
 */
void hps_event_free(struct hps_event *event);
/* The event completes when all that was given to the stream before has. May be used again, once
 * hps_stream_q_wait has been called for all that are to wait for it. */
hps_status hps_event_record(struct hps_event *event, struct hps_stream_q *stream) HPS_MUST_CHECK;
/* What is given to the stream from now on waits for the event as it was last recorded. */
hps_status hps_stream_q_wait(struct hps_stream_q *stream, struct hps_event *event) HPS_MUST_CHECK;
/* OK: completed, and what came before it is visible to the caller; AGAIN: not yet; DATA_LOSS. An
 * event never recorded is complete. Does not block. */
hps_status hps_event_done(struct hps_event *event) HPS_MUST_CHECK;
/* The same, blocking. For start and stop only. */
hps_status hps_event_wait(struct hps_event *event) HPS_MUST_CHECK;

/* ---- work ------------------------------------------------------------------------------------ */

/* Host memory must be registered or from host_alloc, and stay as it is until an event behind the
 * copy has completed. */
hps_status hps_copy_to_device(struct hps_stream_q *stream, hps_devptr to, const void *from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_copy_to_host(struct hps_stream_q *stream, void *to, hps_devptr from, size_t size)
    HPS_MUST_CHECK;
hps_status hps_copy_on_device(struct hps_stream_q *stream, hps_devptr to, hps_devptr from,
                              size_t size) HPS_MUST_CHECK;
hps_status hps_fill_on_device(struct hps_stream_q *stream, hps_devptr to, uint8_t value,
                              size_t size) HPS_MUST_CHECK;

/* A kernel: one source (a .cuh over simt.h), compiled for CUDA in builds that have it, and for the
 * simulated device in tests' programs. */
struct hps_kernel {
    const char *name;
    size_t args_size;              /* of the struct that is its only argument, at most 4,000 */
    uint32_t block_threads;        /* a multiple of 32 */
    uint32_t shared_size;          /* bytes of shared memory per block */
    void (*sim)(const void *args); /* run by each fiber; NULL: sim/kernels.c knows it */
    const void *(*cuda)(void);     /* the __global__ function; NULL in builds without CUDA */
};

/* In a .c file: `const struct hps_kernel kernel`. threads must be what the kernel was declared
 * with. */
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
/* args is copied. n_blocks: 1 or more. The kernel is one that the device was opened with. */
hps_status hps_launch(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                      uint32_t n_blocks, const void *args) HPS_MUST_CHECK;

/* What a kernel passed to the host by hps_flag_raise (simt.h) in mapped memory; all that came
 * before that is then visible to the caller. */
static inline uint32_t hps_flag_load(const uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

#endif
