/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the measurements on a device: the device, a stream, memory of host and device that is
 * freed at the end, times and results. The simulated device uses tiny sizes and one or two runs.
 * This tests the measurement; its figures mean nothing.
 *
 * Thread: main. After the first failure, which `err` keeps, later calls have no effect.
 */
#ifndef HPS_BENCH_GPU_RIG_H
#define HPS_BENCH_GPU_RIG_H

#include "bench/bench.h"
#include "bench/gpu/kernels.h"
#include "cache/device/device.h"
#include "client/zipf.h"

enum { BENCH_PIECES_MAX = 256, BENCH_WORKS_MAX = 8 };

struct bench_rig {
    struct hps_device *device;
    struct hps_stream_q *stream;
    struct hps_event *event;
    struct hps_error *err;
    hps_status status;
    bool sim;
    const char *name;  /* of the measurement */
    const char *torch; /* the program that measures torch, or NULL */
    struct hps_random random;
    uint32_t n_pieces;
    struct {
        hps_devptr device;
        void *host;
    } pieces[BENCH_PIECES_MAX];
};

/* The GPU of index 0, or the simulated device. */
void bench_rig_open(struct bench_rig *rig, bool sim, struct hps_error *err);
void bench_rig_close(struct bench_rig *rig);
/* Note it unless it is OK. Returns whether nothing has failed. */
bool bench_ok(struct bench_rig *rig, hps_status status, const char *what);

/* 0 / NULL after a failure. */
hps_devptr bench_memory(struct bench_rig *rig, uint64_t size);
void *bench_host_memory(struct bench_rig *rig, uint64_t size, hps_devptr *out_ptr);
/* Free all memory but the first n pieces. The device must be idle. */
void bench_free_to(struct bench_rig *rig, uint32_t n);
/* Random data to `size` bytes, a multiple of 16, of device memory. */
void bench_randomize(struct bench_rig *rig, hps_devptr to, uint64_t size);
/* Copy, and wait. */
void bench_upload(struct bench_rig *rig, hps_devptr to, const void *host, uint64_t size);
void bench_download(struct bench_rig *rig, void *host, hps_devptr from, uint64_t size);
/* `of_gpu` bytes, but at most a share of the free memory; `of_sim` on the simulated device. */
uint64_t bench_fitting_bytes(const struct bench_rig *rig, uint64_t of_gpu, double share_max,
                             uint64_t of_sim);
static inline uint32_t bench_count(const struct bench_rig *rig, uint32_t of_gpu, uint32_t of_sim)
{
    return rig->sim ? of_sim : of_gpu;
}
/* The row of a key, as kernels and host make it. */
void bench_row(uint64_t key, uint8_t *row, uint32_t row_bytes);

/* ---- time ------------------------------------------------------------------------------------ */

/* Work that is timed. `give` gives one piece of it to the rig's stream, i counts them; `time_us`,
 * where it is set, does one itself and returns how long it took. */
struct bench_work {
    const char *name;
    hps_status (*give)(struct bench_rig *rig, void *arg, uint32_t i);
    void *arg;
    double (*time_us)(struct bench_rig *rig, void *arg);
    uint32_t n;  /* pieces between two looks at the clock; bench_turns chooses it */
    uint32_t at; /* pieces given so far */
    double us;   /* the result of bench_turns */
};
/* Time all works in turns. The `us` of each becomes the median over the rounds of the time of one
 * piece. There are fewer rounds where they take longer than half a second. */
void bench_turns(struct bench_rig *rig, struct bench_work *works, uint32_t n_works);
/* Wait until the stream is idle, without sleeping. */
void bench_wait(struct bench_rig *rig);
/* Of sorted values (bench_median sorts): the one that a share of them does not exceed. */
double bench_quantile(const double *sorted, uint32_t n, double share);

/* A copy within the device of random data. */
struct bench_copy {
    hps_devptr from, to;
    uint64_t size;
};
struct bench_work bench_copy_open(struct bench_rig *rig, struct bench_copy *copy);
/* Bytes read and written, in GB/s. */
double bench_copy_gb_s(const struct bench_work *copy);

/* ---- results --------------------------------------------------------------------------------- */

/* BENCH_AT_LEAST and so on count on a GPU alone. */
void bench_result(const struct bench_rig *rig, const char *name_of_case, const char *metric,
                  double value, const char *unit, enum bench_target kind, double target);

/* What one piece of a work moves: n rows, and the bytes of each. */
struct bench_moved {
    double n;
    double read;    /* of the row */
    double written; /* of the row: the one-sided rate */
    double index;   /* of keys and sets */
};
enum { BENCH_INDEX_BYTES = 8 + HPS_EMBED_SET_BYTES }; /* of a lookup: the key and its set */
/* Rows per second, one-sided GB/s, and the share of a copy's rate, of all bytes and of rows alone.
 * The target (0: none) is about all bytes. */
void bench_report_rows(const struct bench_rig *rig, const char *name_of_case,
                       const struct bench_work *work, const struct bench_moved *moved,
                       const struct bench_work *copy, double target_percent);

/* Lanes that move one row of a gather. */
uint32_t bench_lanes(uint32_t row_bytes);

/* ---- the measurements ------------------------------------------------------------------------ */

void bench_probe(struct bench_rig *rig);
void bench_ceilings(struct bench_rig *rig);
void bench_gather(struct bench_rig *rig);
void bench_gather_small(struct bench_rig *rig);
void bench_widths(struct bench_rig *rig);
void bench_fused(struct bench_rig *rig);
void bench_pooled(struct bench_rig *rig);
void bench_converted(struct bench_rig *rig);
void bench_observe(struct bench_rig *rig);
void bench_apply(struct bench_rig *rig);
void bench_delivery(struct bench_rig *rig);
void bench_misses(struct bench_rig *rig);
void bench_updates(struct bench_rig *rig);
void bench_claims(struct bench_rig *rig);
void bench_hit_rate(struct bench_rig *rig);
void bench_torch(struct bench_rig *rig);
/* profile_KERNEL: launches it a few times. */
void bench_profile(struct bench_rig *rig);
void bench_profile_apply(struct bench_rig *rig);

#endif
