/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that each kind of device (CUDA, simulated) implements. device.c implements
 * device.h: it checks the arguments of a call, then calls an operation. After the loss of the
 * device, it calls only operations that do not return a status. Included by C and CUDA C++.
 */
#ifndef HPS_CACHE_DEVICE_OPS_H
#define HPS_CACHE_DEVICE_OPS_H

#include "cache/device/device.h"

enum hps_copy_kind { HPS_COPY_TO_DEVICE, HPS_COPY_TO_HOST, HPS_COPY_ON_DEVICE };

/* An operation without a comment does the same as the function of a similar name in device.h. */
struct hps_device_ops {
    void (*close)(struct hps_device *);
    hps_status (*alloc)(struct hps_device *, size_t size, hps_devptr *out_ptr, struct hps_error *);
    void (*free)(struct hps_device *, hps_devptr ptr);
    hps_status (*host_alloc)(struct hps_device *, size_t size, void **out_host, hps_devptr *out_ptr,
                             struct hps_error *);
    void (*host_free)(struct hps_device *, void *host);
    /* Register host memory for the whole process. device.c calls host_register when the first
     * device registers the memory, and host_unregister when the last device unregisters it. */
    hps_status (*host_register)(struct hps_device *, void *host, size_t size, struct hps_error *);
    void (*host_unregister)(struct hps_device *, void *host);
    /* Map registered host memory into the address space of this device, and end the mapping. */
    hps_status (*host_map)(struct hps_device *, void *host, size_t size, hps_devptr *out_ptr,
                           struct hps_error *);
    void (*host_unmap)(struct hps_device *, void *host);
    bool (*quiet)(struct hps_device *);
    void (*lost)(struct hps_device *); /* called after the device was marked lost: wakes threads
                                          that wait for the device; NULL if no thread can wait */

    hps_status (*stream_new)(struct hps_device *, const char *name, bool low_priority,
                             struct hps_stream_q **out_stream, struct hps_error *);
    void (*stream_free)(struct hps_stream_q *);
    hps_status (*event_new)(struct hps_device *, struct hps_event **out_event, struct hps_error *);
    void (*event_free)(struct hps_event *);
    hps_status (*event_record)(struct hps_event *, struct hps_stream_q *);
    hps_status (*stream_wait)(struct hps_stream_q *, struct hps_event *);
    hps_status (*event_done)(struct hps_event *);
    hps_status (*event_wait)(struct hps_event *);

    hps_status (*copy)(struct hps_stream_q *, enum hps_copy_kind, void *to, const void *from,
                       size_t size);
    hps_status (*fill)(struct hps_stream_q *, void *to, uint8_t value, size_t size);
    hps_status (*launch)(struct hps_stream_q *, const struct hps_kernel *, uint32_t n_blocks,
                         const void *args);
};

/* Each kind of device has its own structs for devices, streams and events. The structs below are
 * their first members. */
struct hps_device {
    const struct hps_device_ops *ops;
    struct hps_device_info info;
    const struct hps_kernel *const *kernels; /* [n_kernels] loaded; the array is owned */
    size_t n_kernels;
    int lost;      /* 0: not lost; 1: lost, `why` is being written; 2: lost, `why` is complete */
    char why[256]; /* why the device is lost */
};
struct hps_stream_q {
    struct hps_device *device;
};
struct hps_event {
    struct hps_device *device;
};

/* Mark the device lost. If it is lost already, the first reason is kept. Returns DATA_LOSS. Any
 * thread. */
hps_status hps_device_lose(struct hps_device *device, const char *fmt, ...) HPS_PRINTF(2, 3);

enum {
    HPS_KERNEL_ARGS_MAX = 4000,
    HPS_KERNEL_THREADS_MAX = 1024,
    HPS_KERNEL_SHARED_MAX = 96 * 1024, /* bytes per block that every supported GPU has */
};

#endif
