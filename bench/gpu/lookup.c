/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-up kernel: rows per second by width and distribution beside a copy, a gather without a
 * search and torch's, all in turns; and many small tables in one launch beside a launch each.
 * Thread: main.
 */
#include <sched.h>
#include <stdio.h>

#include "bench/gpu/index.h"
#include "bench/gpu/torch.h"

enum {
    N_ROUNDS = 30,
    N_ROUNDS_SIM = 2,
    N_TABLES = 26,
    FUSED_ROW_BYTES = 128, /* dim 32 */
    N_LATENCIES = 1000,
    N_LATENCIES_SIM = 2,
};

/* Targets on an H200, by width: share of the copy's rate; and of torch's, where as many bytes more
 * are to be read (0.9 of that). */
static const struct {
    uint32_t row_bytes;
    double copy_percent, torch;
} widths[] = {
    {32, 40, 0.9 * 0.53}, {64, 0, 0}, {128, 65, 0.9 * 0.80}, {256, 0, 0}, {512, 80, 0.9 * 0.94}};

struct rounds {
    double copy[N_ROUNDS], direct[N_ROUNDS], look_up[N_ROUNDS], torch[N_ROUNDS];
    uint32_t n;
};

static void report_width(struct bench_rig *rig, const char *name, size_t w, struct rounds *rounds,
                         const struct bench_copy_work *copy, double gb, bool uniform)
{
    double copy_gb_s = bench_copy_gb_s(copy, bench_median(rounds->copy, rounds->n));
    double look_up_us = bench_median(rounds->look_up, rounds->n);
    double direct_us = bench_median(rounds->direct, rounds->n);
    double torch_us = bench_median(rounds->torch, rounds->n);
    double gb_s = gb / look_up_us * 1e6;
    enum bench_target kind =
        uniform && widths[w].copy_percent > 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET;

    bench_result(rig, name, "look-up", gb_s / 2 / widths[w].row_bytes, "G rows/s", BENCH_NO_TARGET,
                 0);
    bench_result(rig, name, "look-up, of copy", 100 * gb_s / copy_gb_s, "%", kind,
                 widths[w].copy_percent);
    bench_result(rig, name, "gather, of copy", 100 * gb / direct_us * 1e6 / copy_gb_s, "%",
                 BENCH_NO_TARGET, 0);
    bench_result(rig, name, "gather / look-up, time", direct_us / look_up_us, "", BENCH_NO_TARGET,
                 0);
    if (torch_us > 0) {
        bench_result(rig, name, "torch / look-up, time", torch_us / look_up_us, "", kind,
                     widths[w].torch);
    }
}

static void run_rounds(struct bench_rig *rig, struct rounds *rounds, struct bench_torch *torch,
                       struct bench_copy_work *copy, struct bench_batches *batches)
{
    uint32_t n = bench_count(rig, 4, 1);
    struct bench_work look_up = {bench_batches_give, batches, n, 0};
    struct bench_work direct = {bench_batches_give_direct, batches, n, 0};

    rounds->n = bench_count(rig, N_ROUNDS, N_ROUNDS_SIM);
    (void)bench_time_us(rig, &look_up);
    (void)bench_time_us(rig, &direct);
    for (uint32_t i = 0; i < rounds->n && rig->status == HPS_OK; i++) {
        rounds->copy[i] = bench_time_us(rig, &copy->work);
        rounds->direct[i] = bench_time_us(rig, &direct);
        rounds->look_up[i] = bench_time_us(rig, &look_up);
        rounds->torch[i] = bench_torch_us(torch);
    }
    (void)bench_time_us(rig, &look_up); /* whose hit words are then asked for */
}

static void run_width(struct bench_rig *rig, size_t w, const struct bench_index *index,
                      struct bench_torch *torch, struct bench_copy_work *copy, double alpha,
                      uint32_t unknown_percent)
{
    uint32_t row_bytes = widths[w].row_bytes, before = rig->n_pieces;
    uint32_t n_keys = (uint32_t)(bench_fitting_bytes(rig, 256 << 20, 1, 16 << 10) / row_bytes);
    struct bench_batches batches;
    struct bench_torch none = {0};
    struct rounds rounds;
    char name[64];

    bench_batches_open(rig, &batches, index, 1, n_keys, alpha, unknown_percent, false);
    bool has_torch = rig->status == HPS_OK && unknown_percent == 0 &&
                     bench_torch_case(torch, row_bytes, index->n_rows, n_keys, alpha);
    run_rounds(rig, &rounds, has_torch ? torch : &none, copy, &batches);
    double hit_share = bench_batches_hit_share(rig, &batches);
    (void)snprintf(name, sizeof(name), "%u B, %s%s", row_bytes,
                   alpha == 0 ? "uniform" : "zipf 1.05",
                   unknown_percent == 0   ? ""
                   : unknown_percent == 5 ? ", 5 % misses"
                                          : ", 20 % misses");
    double gb = 2 * hit_share * n_keys * (double)row_bytes / 1e9;
    bench_result(rig, name, "hits", 100 * hit_share, "%", BENCH_NO_TARGET, 0);
    if (rig->status == HPS_OK) {
        report_width(rig, name, w, &rounds, copy, gb, alpha == 0 && unknown_percent == 0);
    }
    bench_free_to(rig, before);
}

void bench_widths(struct bench_rig *rig)
{
    uint64_t arena = bench_fitting_bytes(rig, UINT64_C(32) << 30, 0.4, 1 << 20);
    hps_devptr memory = bench_memory(rig, arena);
    struct bench_copy_work copy;
    struct bench_torch torch;

    bench_copy_make(rig, &copy);
    bench_torch_open(&torch, rig->torch);
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]) && rig->status == HPS_OK; w++) {
        struct bench_index index;
        bench_index_open(rig, &index, 0, widths[w].row_bytes,
                         bench_index_rows(widths[w].row_bytes, arena), memory);
        run_width(rig, w, &index, &torch, &copy, 0, 0);
        run_width(rig, w, &index, &torch, &copy, 1.05, 0);
        if (widths[w].row_bytes == 128) {
            run_width(rig, w, &index, &torch, &copy, 0, 5);
            run_width(rig, w, &index, &torch, &copy, 0, 20);
        }
    }
    bench_torch_close(&torch);
    bench_free_to(rig, 0);
}

/* ---- many tables ----------------------------------------------------------------------------- */

static hps_status give_each(struct bench_rig *rig, void *arg, uint32_t i)
{
    struct bench_batches *batches = arg;
    hps_status status = HPS_OK;

    batches->launch_parts = 1;
    for (uint32_t part = 0; part < batches->n_parts && status == HPS_OK; part++) {
        batches->first_part = part;
        status = bench_batches_give(rig, batches, i);
    }
    batches->first_part = 0;
    batches->launch_parts = batches->n_parts;
    return status;
}

/* From the launch of a batch, whose keys lie in mapped memory, to its flag. */
static double latency_us(struct bench_rig *rig, struct bench_batches *batches)
{
    uint32_t n = bench_count(rig, N_LATENCIES, N_LATENCIES_SIM);
    static double us[N_LATENCIES];

    for (uint32_t i = 0; i < n && rig->status == HPS_OK; i++) {
        uint64_t began = bench_now_ns();
        if (!bench_ok(rig, bench_batches_give(rig, batches, i), "look-up")) {
            break;
        }
        while (hps_flag_load(batches->flag_host) != batches->sequence &&
               !hps_device_lost(rig->device)) {
            if (rig->sim) {
                (void)sched_yield();
            }
        }
        us[i] = (double)(bench_now_ns() - began) / 1000;
    }
    return bench_median(us, n);
}

static void open_tables(struct bench_rig *rig, struct bench_index indices[N_TABLES])
{
    uint64_t n_rows = bench_count(rig, 1000000, 300);

    for (uint32_t i = 0; i < N_TABLES && rig->status == HPS_OK; i++) {
        hps_devptr memory = bench_memory(rig, bench_index_bytes(FUSED_ROW_BYTES, n_rows));
        bench_index_open(rig, &indices[i], i, FUSED_ROW_BYTES, n_rows, memory);
    }
}

void bench_fused(struct bench_rig *rig)
{
    struct bench_index indices[N_TABLES];
    struct bench_batches batches;
    uint32_t n_keys = bench_count(rig, 2048, 64);
    char name[64];

    open_tables(rig, indices);
    for (int mapped = 0; mapped < 2 && rig->status == HPS_OK; mapped++) {
        bench_batches_open(rig, &batches, indices, N_TABLES, n_keys, 1.05, 0, mapped != 0);
        struct bench_work fused = {bench_batches_give, &batches, bench_count(rig, 100, 1), 0};
        struct bench_work each = {give_each, &batches, bench_count(rig, 10, 1), 0};
        double fused_us = bench_median_us(rig, &fused), each_us = bench_median_us(rig, &each);
        (void)snprintf(name, sizeof(name), "%u tables x %u keys, %s", (unsigned)N_TABLES, n_keys,
                       mapped != 0 ? "keys mapped" : "keys on device");
        bench_result(rig, name, "one launch", fused_us, "us", BENCH_AT_MOST, 15);
        bench_result(rig, name, "a launch each", each_us, "us", BENCH_NO_TARGET, 0);
        bench_result(rig, name, "each / one", each_us / fused_us, "", BENCH_AT_LEAST, 4);
        if (mapped != 0) {
            bench_result(rig, name, "launch to flag, p50", latency_us(rig, &batches), "us",
                         BENCH_AT_MOST, 25);
        }
    }
    bench_free_to(rig, 0);
}

/* ---- for a profiler -------------------------------------------------------------------------- */

void bench_profile(struct bench_rig *rig)
{
    uint64_t arena = bench_fitting_bytes(rig, UINT64_C(8) << 30, 0.3, 1 << 20);
    hps_devptr memory = bench_memory(rig, arena);
    uint32_t n_keys = bench_count(rig, 1 << 20, 64);
    struct bench_index index;
    struct bench_batches batches;

    bench_index_open(rig, &index, 0, 128, bench_index_rows(128, arena), memory);
    bench_batches_open(rig, &batches, &index, 1, n_keys, 0, 0, false);
    struct bench_work work = {bench_batches_give, &batches, 4, 0};
    double us = rig->status == HPS_OK ? bench_time_us(rig, &work) : 0;
    bench_result(rig, "128 B, uniform", "one launch", us, "us", BENCH_NO_TARGET, 0);
    bench_free_to(rig, 0);
}
