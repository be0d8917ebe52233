/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of the machine: copies within the device and across the bus, kernel stores and loads in
 * host memory, and random gathers from growing memory, which show the reach of the address
 * translation. Thread: main.
 */
#include <stdio.h>

#include "bench/gpu/rig.h"

enum { BLOCKS = 1056, BLOCKS_SIM = 2 };

/* ---- across the bus -------------------------------------------------------------------------- */

struct crossing {
    void *host;
    hps_devptr mapped, memory;
    uint64_t size;
};

static hps_status give_in(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct crossing *crossing = arg;

    (void)i;
    return hps_copy_to_device(rig->stream, crossing->memory, crossing->host, crossing->size);
}

static hps_status give_out(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct crossing *crossing = arg;

    (void)i;
    return hps_copy_to_host(rig->stream, crossing->host, crossing->memory, crossing->size);
}

static hps_status move(struct bench_rig *rig, hps_devptr to, hps_devptr from, uint64_t size)
{
    const struct bench_copy_args args = {from, to, size / 16};

    return hps_launch(rig->stream, &bench_kernel_copy, bench_count(rig, BLOCKS, BLOCKS_SIM), &args);
}

static hps_status give_mapped_load(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct crossing *crossing = arg;

    (void)i;
    return move(rig, crossing->memory, crossing->mapped, crossing->size);
}

static hps_status give_mapped_store(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct crossing *crossing = arg;

    (void)i;
    return move(rig, crossing->mapped, crossing->memory, crossing->size);
}

static void crossings(struct bench_rig *rig)
{
    static const struct {
        const char *name;
        hps_status (*give)(struct bench_rig *, void *, uint32_t);
    } ways[] = {{"host to device", give_in},
                {"device to host", give_out},
                {"mapped, load", give_mapped_load},
                {"mapped, store", give_mapped_store}};
    uint64_t size_max = bench_fitting_bytes(rig, UINT64_C(64) << 20, 1, 256 << 10);
    uint32_t before = rig->n_pieces;
    struct crossing crossing;
    char metric[32];

    crossing.memory = bench_memory(rig, size_max);
    crossing.host = bench_host_memory(rig, size_max, &crossing.mapped);
    bench_randomize(rig, crossing.memory, size_max);
    bench_download(rig, crossing.host, crossing.memory, size_max);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        for (uint64_t size = 64 << 10; size <= size_max && rig->status == HPS_OK; size *= 4) {
            struct bench_work work = {.name = ways[w].name, .give = ways[w].give, .arg = &crossing};
            crossing.size = size;
            if (w >= 2 && size > UINT64_C(16) << 20) {
                break;
            }
            bench_turns(rig, &work, 1);
            (void)snprintf(metric, sizeof(metric), "%llu KiB", (unsigned long long)(size >> 10));
            bench_result(rig, ways[w].name, metric, (double)size / work.us / 1000, "GB/s",
                         BENCH_NO_TARGET, 0);
        }
    }
    bench_free_to(rig, before);
}

/* ---- random rows ----------------------------------------------------------------------------- */

static hps_status give_gather(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_gather_args *args = arg;

    (void)i;
    return hps_launch(rig->stream, &bench_kernel_gather,
                      (args->n + BENCH_THREADS - 1) / BENCH_THREADS, args);
}

static void gather_from(struct bench_rig *rig, struct bench_gather_args *args, uint64_t *ids,
                        uint32_t row_bytes, uint64_t footprint, uint64_t out_bytes)
{
    struct bench_work work = {.name = "gather", .give = give_gather, .arg = args};
    uint64_t n_rows = footprint / row_bytes;
    char name[64], metric[64];

    args->row_bytes = row_bytes;
    args->row_stride = row_bytes;
    args->n = (uint32_t)(out_bytes / row_bytes);
    args->lanes = bench_lanes(row_bytes);
    for (uint32_t i = 0; i < args->n; i++) {
        ids[i] = hps_random_next(&rig->random) % n_rows;
    }
    bench_upload(rig, args->ids, ids, (uint64_t)args->n * sizeof(*ids));
    bench_turns(rig, &work, 1);
    (void)snprintf(name, sizeof(name), "random rows of %u B", row_bytes);
    (void)snprintf(metric, sizeof(metric), "from %.3g GB", (double)footprint / 1e9);
    bench_result(rig, name, metric, 2 * (double)args->n * row_bytes / work.us / 1000, "GB/s",
                 BENCH_NO_TARGET, 0);
}

static void random_rows(struct bench_rig *rig)
{
    static const uint32_t widths[] = {32, 64, 128, 256, 512};
    static const double footprints[] = {1e9, 8e9, 32e9, 100e9};
    uint64_t out_bytes = bench_fitting_bytes(rig, UINT64_C(128) << 20, 1, 64 << 10);
    uint64_t all = bench_fitting_bytes(rig, UINT64_C(100000000000), 0.85, 1 << 20) / 16 * 16;
    uint32_t before = rig->n_pieces;
    hps_devptr unused;
    struct bench_gather_args args = {.rows = bench_memory(rig, all),
                                     .ids = bench_memory(rig, out_bytes / 4),
                                     .out = bench_memory(rig, out_bytes)};
    uint64_t *ids = bench_host_memory(rig, out_bytes / 4, &unused);

    bench_randomize(rig, args.rows, all);
    for (size_t f = 0; f < sizeof(footprints) / sizeof(footprints[0]); f++) {
        bool fits = !rig->sim && footprints[f] <= (double)all;
        uint64_t footprint = fits ? (uint64_t)footprints[f] : all;
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]) && rig->status == HPS_OK; w++) {
            gather_from(rig, &args, ids, widths[w], footprint, out_bytes);
        }
        if (!fits) {
            break; /* the last one was all there is */
        }
    }
    bench_free_to(rig, before);
}

void bench_ceilings(struct bench_rig *rig)
{
    struct bench_copy copy;
    uint32_t before = rig->n_pieces;
    struct bench_work work = bench_copy_open(rig, &copy);

    bench_turns(rig, &work, 1);
    bench_result(rig, "copy within the device", "read and written", bench_copy_gb_s(&work), "GB/s",
                 BENCH_NO_TARGET, 0);
    bench_free_to(rig, before);
    crossings(rig);
    random_rows(rig);
}
