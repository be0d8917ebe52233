/* SPDX-License-Identifier: Apache-2.0
 *
 * Applying changes alone: slices that the cache has staged and applied once are applied again and
 * again, without copying them to the device. Thread: main.
 */
#include <stdio.h>

#include "bench/gpu/cache.h"
#include "cache/embed/internal.h"

enum { N_SLICES = 4, N_PROFILED = 6 };

struct apply_case {
    uint32_t row_bytes;
    uint32_t n_rows; /* of each of N_SLICES slices */
    bool insert;     /* into empty sets, else updates of rows that are there */
};

struct applying {
    struct bench_cache cache;
    struct hps_embed_apply_args args[N_SLICES];
    uint32_t n_rows; /* of all slices */
};

/* How the cache has launched a slice, but for its rows: its records lie in device memory, groups in
 * front of entries. */
static struct hps_embed_apply_args args_of(const struct hps_embed_slice *slice)
{
    uint64_t at = slice->n_ranges * sizeof(struct hps_embed_desc);
    const struct hps_embed_group *groups = (const struct hps_embed_group *)(slice->host + at);
    uint32_t n_groups = 0;

    for (uint32_t n = 0; n < slice->n_entries; n_groups++) {
        n += groups[n_groups].n;
    }
    return (struct hps_embed_apply_args){
        .descs = slice->device,
        .groups = slice->device + at,
        .entries = slice->device + at + n_groups * sizeof(struct hps_embed_group),
        .counts = slice->counts_device,
        .counts_out = slice->counts_mapped,
        .blocks_done = slice->blocks_done,
        .n_groups = n_groups,
        .n_ranges = slice->n_ranges,
    };
}

static hps_status give_apply(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct applying *applying = arg;
    const uint32_t warps = hps_embed_kernel_apply.block_threads / 32;
    hps_status status = HPS_OK;

    (void)i;
    for (uint32_t s = 0; s < N_SLICES && status == HPS_OK; s++) {
        const struct hps_embed_apply_args *args = &applying->args[s];
        status = hps_launch(rig->stream, &hps_embed_kernel_apply,
                            (args->n_groups + warps - 1) / warps, args);
    }
    return status;
}

static hps_status give_clear(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct applying *applying = arg;

    (void)i;
    return hps_embed_clear(rig->stream, &applying->cache.ranges[0]->desc);
}

static hps_status give_clear_and_apply(struct bench_rig *rig, void *arg, uint32_t i)
{
    hps_status status = give_clear(rig, arg, i);

    return status == HPS_OK ? give_apply(rig, arg, i) : status;
}

/* Stages a slice and has it applied; then keeps its rows, which lie at the begin of the staging
 * area, as nothing else was in flight. */
static void keep_slice(struct bench_rig *rig, struct applying *applying, bool insert, uint32_t s,
                       uint32_t piece)
{
    struct bench_cache *cache = &applying->cache;
    struct hps_embed_apply_args *args = &applying->args[s];
    uint64_t size = (uint64_t)piece * cache->spec.row_bytes[0];

    bench_cache_stage(cache, 0, insert ? HPS_EMBED_INSERT : HPS_EMBED_UPDATE,
                      cache->pool_keys + s * piece, cache->pool + s * size, piece);
    bench_cache_drain(cache);
    hps_devptr rows = bench_memory(rig, size);
    if (rig->status != HPS_OK) {
        return;
    }
    const struct hps_embed_slice *slice =
        &cache->cache->slices[cache->cache->n_applied % HPS_EMBED_SLICES];
    *args = args_of(slice);
    args->rows = rows;
    if (bench_ok(rig, slice->n_entries == piece ? HPS_OK : HPS_INTERNAL, "a slice has all rows") &&
        bench_ok(rig, hps_copy_on_device(rig->stream, rows, cache->cache->stage.device, size),
                 "rows")) {
        bench_wait(rig);
    }
}

/* The slices, and then rows that nothing has been written to. */
static void open_case(struct bench_rig *rig, const struct apply_case *is, struct applying *applying)
{
    uint32_t piece = bench_count(rig, is->n_rows, 64);
    const struct bench_cache_spec spec = {.n_tables = 1,
                                          .row_bytes = &is->row_bytes,
                                          .n_rows = bench_count(rig, 1 << 18, 500),
                                          .n_keys = 64,
                                          .n_in_region = 64};

    bench_cache_open(rig, &applying->cache, &spec);
    for (uint32_t s = 0; s < N_SLICES && rig->status == HPS_OK; s++) {
        keep_slice(rig, applying, is->insert, s, piece);
    }
    applying->n_rows = N_SLICES * piece;
    if (rig->status == HPS_OK) {
        const struct hps_embed_range *range = applying->cache.ranges[0];
        bench_randomize(rig, range->desc.rows, range->usage.n_slots * range->desc.row_stride);
    }
}

static void run_case(struct bench_rig *rig, const struct apply_case *is, struct bench_work *copied)
{
    struct applying applying;
    char name[64];

    open_case(rig, is, &applying);
    struct bench_work works[] = {
        *copied,
        {.name = "apply", .arg = &applying, .give = is->insert ? give_clear_and_apply : give_apply},
        {.name = "clear", .arg = &applying, .give = give_clear}};
    bench_turns(rig, works, is->insert ? 3 : 2);
    works[1].us -= works[2].us;
    (void)bench_ok(rig, rig->status == HPS_OK ? works[1].give(rig, &applying, 0) : rig->status, "");
    bench_wait(rig);
    bench_cache_check(&applying.cache, applying.n_rows, 0.99);
    (void)snprintf(name, sizeof(name), "%s, %u x %u rows of %u B", is->insert ? "insert" : "update",
                   (unsigned)N_SLICES, applying.n_rows / N_SLICES, is->row_bytes);
    const struct bench_moved moved = {.n = applying.n_rows,
                                      .read = is->row_bytes,
                                      .written = is->row_bytes,
                                      .index = BENCH_INDEX_BYTES};
    bench_report_rows(rig, name, &works[1], &moved, &works[0], 0);
    bench_cache_close(&applying.cache);
}

void bench_apply(struct bench_rig *rig)
{
    static const struct apply_case cases[] = {
        {512, 16384, false}, {128, 16384, false}, {32, 16384, false}, {512, 4096, false},
        {512, 512, false},   {512, 16384, true},  {128, 16384, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rig->status == HPS_OK; i++) {
        struct bench_copy copy;
        struct bench_work copied = bench_copy_open(rig, &copy);
        run_case(rig, &cases[i], &copied); /* which frees the copy, too */
    }
}

void bench_profile_apply(struct bench_rig *rig)
{
    static const struct apply_case is = {512, 16384, false};
    struct applying applying;

    open_case(rig, &is, &applying);
    for (uint32_t i = 0; i < N_PROFILED && rig->status == HPS_OK; i++) {
        (void)bench_ok(rig, give_apply(rig, &applying, i), "apply");
    }
    bench_wait(rig);
    bench_result(rig, "launches", "each", N_PROFILED * N_SLICES, "", BENCH_NO_TARGET, 0);
    bench_cache_close(&applying.cache);
}
