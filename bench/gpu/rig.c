/* SPDX-License-Identifier: Apache-2.0
 *
 * See rig.h.
 */
#include "bench/gpu/rig.h"
#include "cache/device/sim/sim.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    ROUNDS = 30,
    ROUNDS_SIM = 2,
    ROUNDS_MIN = 5,       /* however long they take */
    TURNS_NS = 500000000, /* then there are no more rounds */
    ROUND_US = 1000,      /* of one work, if it does not take longer */
    N_MAX = 256,          /* pieces of it */
    RANDOM_BLOCKS = 2112,
    RANDOM_BLOCKS_SIM = 2,
};

void bench_rig_open(struct bench_rig *rig, bool sim, struct hps_error *err)
{
    const struct hps_sim_driver simulated =
        hps_sim_driver((struct hps_device_sim_config){.memory_bytes = UINT64_C(512) << 20});
    const struct hps_device_driver *driver = sim ? &simulated.driver : &hps_device_cuda;

    *rig = (struct bench_rig){.err = err, .sim = sim, .random = {1}};
    if (bench_ok(rig, hps_device_open(driver, 0, bench_kernels, n_bench_kernels, &rig->device, err),
                 "open") &&
        bench_ok(rig, hps_stream_q_new(rig->device, "bench", false, &rig->stream, err), "stream")) {
        (void)bench_ok(rig, hps_event_new(rig->device, &rig->event, err), "event");
    }
}

void bench_rig_close(struct bench_rig *rig)
{
    hps_stream_q_free(rig->stream);
    hps_event_free(rig->event);
    bench_free_to(rig, 0);
    hps_device_close(rig->device);
}

bool bench_ok(struct bench_rig *rig, hps_status status, const char *what)
{
    if (status != HPS_OK && rig->status == HPS_OK) {
        rig->status = status;
        hps_ignore(hps_error_prefix(rig->err, status, "%s: %s", what, hps_status_text(status)));
    }
    return rig->status == HPS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

hps_devptr bench_memory(struct bench_rig *rig, uint64_t size)
{
    hps_devptr memory = 0;

    if (rig->status == HPS_OK && rig->n_pieces < BENCH_PIECES_MAX &&
        bench_ok(rig, hps_device_alloc(rig->device, size, &memory, rig->err), "memory")) {
        rig->pieces[rig->n_pieces].host = NULL;
        rig->pieces[rig->n_pieces++].device = memory;
    }
    return memory;
}

void *bench_host_memory(struct bench_rig *rig, uint64_t size, hps_devptr *out_ptr)
{
    void *host = NULL;

    *out_ptr = 0;
    if (rig->status == HPS_OK && rig->n_pieces < BENCH_PIECES_MAX &&
        bench_ok(rig, hps_device_host_alloc(rig->device, size, &host, out_ptr, rig->err),
                 "host memory")) {
        rig->pieces[rig->n_pieces].device = 0;
        rig->pieces[rig->n_pieces++].host = host;
    }
    return host;
}

void bench_free_to(struct bench_rig *rig, uint32_t n)
{
    while (rig->n_pieces > n) {
        rig->n_pieces--;
        if (rig->pieces[rig->n_pieces].host != NULL) {
            hps_device_host_free(rig->device, rig->pieces[rig->n_pieces].host);
        } else {
            hps_device_free(rig->device, rig->pieces[rig->n_pieces].device);
        }
    }
}

void bench_upload(struct bench_rig *rig, hps_devptr to, const void *host, uint64_t size)
{
    if (rig->status == HPS_OK &&
        bench_ok(rig, hps_copy_to_device(rig->stream, to, host, size), "copy")) {
        bench_wait(rig);
    }
}

void bench_download(struct bench_rig *rig, void *host, hps_devptr from, uint64_t size)
{
    if (rig->status == HPS_OK &&
        bench_ok(rig, hps_copy_to_host(rig->stream, host, from, size), "copy")) {
        bench_wait(rig);
    }
}

void bench_randomize(struct bench_rig *rig, hps_devptr to, uint64_t size)
{
    const struct bench_random_args args = {to, size / 16, hps_random_next(&rig->random)};

    if (rig->status == HPS_OK &&
        bench_ok(rig,
                 hps_launch(rig->stream, &bench_kernel_random,
                            bench_count(rig, RANDOM_BLOCKS, RANDOM_BLOCKS_SIM), &args),
                 "random data")) {
        bench_wait(rig);
    }
}

void bench_row(uint64_t key, uint8_t *row, uint32_t row_bytes)
{
    for (uint32_t at = 0; at < row_bytes; at += sizeof(uint64_t)) {
        uint64_t word = bench_word(key, at / sizeof(uint64_t));
        memcpy(row + at, &word, row_bytes - at < sizeof(word) ? row_bytes - at : sizeof(word));
    }
}

uint64_t bench_fitting_bytes(const struct bench_rig *rig, uint64_t of_gpu, double share_max,
                             uint64_t of_sim)
{
    if (rig->sim || rig->device == NULL) {
        return of_sim;
    }
    double free_bytes = (double)hps_device_info(rig->device)->memory_free_bytes;
    uint64_t max = (uint64_t)(free_bytes * share_max);
    return of_gpu < max ? of_gpu : max;
}

/* ---- time ------------------------------------------------------------------------------------ */

void bench_wait(struct bench_rig *rig)
{
    hps_status status = hps_event_record(rig->event, rig->stream);

    status = status == HPS_OK ? hps_event_done(rig->event) : status;
    while (status == HPS_AGAIN) {
        if (rig->sim) {
            (void)sched_yield();
        }
        status = hps_event_done(rig->event);
    }
    (void)bench_ok(rig, status, "the device's work");
}

static double time_us(struct bench_rig *rig, struct bench_work *work)
{
    uint64_t began = bench_now_ns();

    if (work->time_us != NULL) {
        return work->time_us(rig, work->arg);
    }
    for (uint32_t k = 0; k < work->n && rig->status == HPS_OK; k++) {
        (void)bench_ok(rig, work->give(rig, work->arg, work->at++), work->name);
    }
    if (rig->status == HPS_OK) {
        bench_wait(rig);
    }
    return (double)(bench_now_ns() - began) / 1000 / work->n;
}

/* Once to warm up, and once to see how many of it make a round. */
static void warm_up(struct bench_rig *rig, struct bench_work *work)
{
    work->n = 1;
    (void)time_us(rig, work);
    double us = time_us(rig, work);
    if (!rig->sim && us < ROUND_US) {
        double n = ROUND_US / (us > 1 ? us : 1);
        work->n = n < N_MAX ? (uint32_t)n : N_MAX;
    }
}

void bench_turns(struct bench_rig *rig, struct bench_work *works, uint32_t n_works)
{
    static double us[BENCH_WORKS_MAX][ROUNDS];
    uint32_t n_rounds_max = bench_count(rig, ROUNDS, ROUNDS_SIM), n_rounds = 0;

    for (uint32_t w = 0; w < n_works && rig->status == HPS_OK; w++) {
        warm_up(rig, &works[w]);
    }
    uint64_t began = bench_now_ns();
    while (rig->status == HPS_OK && n_rounds < n_rounds_max &&
           (n_rounds < ROUNDS_MIN || bench_now_ns() - began < TURNS_NS)) {
        for (uint32_t w = 0; w < n_works; w++) {
            us[w][n_rounds] = time_us(rig, &works[w]);
        }
        n_rounds++;
    }
    for (uint32_t w = 0; w < n_works; w++) {
        works[w].us = bench_median(us[w], n_rounds);
    }
}

double bench_quantile(const double *sorted, uint32_t n, double share)
{
    uint32_t i = (uint32_t)(share * n);

    return n == 0 ? 0 : sorted[i < n ? i : n - 1];
}

static hps_status give_copy(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_copy *copy = arg;

    (void)i;
    return hps_copy_on_device(rig->stream, copy->to, copy->from, copy->size);
}

struct bench_work bench_copy_open(struct bench_rig *rig, struct bench_copy *copy)
{
    copy->size = bench_fitting_bytes(rig, UINT64_C(2) << 30, 0.1, 1 << 20) / 16 * 16;
    copy->from = bench_memory(rig, copy->size);
    copy->to = bench_memory(rig, copy->size);
    bench_randomize(rig, copy->from, copy->size);
    return (struct bench_work){.name = "copy", .give = give_copy, .arg = copy};
}

double bench_copy_gb_s(const struct bench_work *copy)
{
    return 2 * (double)((const struct bench_copy *)copy->arg)->size / copy->us / 1000;
}

/* ---- results --------------------------------------------------------------------------------- */

void bench_result(const struct bench_rig *rig, const char *name_of_case, const char *metric,
                  double value, const char *unit, enum bench_target kind, double target)
{
    if (rig->status == HPS_OK && isfinite(value)) { /* JSON has no other numbers */
        bench_report(name_of_case, metric, value, unit, rig->sim ? BENCH_NO_TARGET : kind, target);
    }
}

void bench_report_rows(const struct bench_rig *rig, const char *name_of_case,
                       const struct bench_work *work, const struct bench_moved *moved,
                       const struct bench_work *copy, double target_percent)
{
    double rows_per_ns = moved->n / work->us / 1000, copy_gb_s = bench_copy_gb_s(copy);
    double rows_gb_s = rows_per_ns * (moved->read + moved->written);
    double all_gb_s = rows_gb_s + rows_per_ns * moved->index;
    char metric[64];

    (void)snprintf(metric, sizeof(metric), "%s, rows", work->name);
    bench_result(rig, name_of_case, metric, rows_per_ns, "G/s", BENCH_NO_TARGET, 0);
    (void)snprintf(metric, sizeof(metric), "%s, one-sided", work->name);
    bench_result(rig, name_of_case, metric, rows_per_ns * moved->written, "GB/s", BENCH_NO_TARGET,
                 0);
    (void)snprintf(metric, sizeof(metric), "%s, of copy", work->name);
    bench_result(rig, name_of_case, metric, 100 * all_gb_s / copy_gb_s, "%",
                 target_percent > 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, target_percent);
    (void)snprintf(metric, sizeof(metric), "%s, rows of copy", work->name);
    bench_result(rig, name_of_case, metric, 100 * rows_gb_s / copy_gb_s, "%", BENCH_NO_TARGET, 0);
}

uint32_t bench_lanes(uint32_t row_bytes)
{
    uint32_t lanes = 1;

    while (lanes < 32 && lanes * 16 < row_bytes) {
        lanes *= 2;
    }
    return lanes;
}

void bench_probe(struct bench_rig *rig)
{
    const struct hps_device_info *info = hps_device_info(rig->device);
    char name[128];

    (void)snprintf(name, sizeof(name), "%.60s", info->name);
    bench_result(rig, name, "driver, as CUDA", info->driver_version / 1000.0, "version",
                 BENCH_NO_TARGET, 0);
    bench_result(rig, name, "compute capability", info->capability / 10.0, "version",
                 BENCH_NO_TARGET, 0);
    bench_result(rig, name, "multiprocessors", info->n_processors, "", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "memory", (double)info->memory_bytes / 1e9, "GB", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "memory, free", (double)info->memory_free_bytes / 1e9, "GB",
                 BENCH_NO_TARGET, 0);
}
