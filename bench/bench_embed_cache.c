/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU time of the thread that submits batches to the embedding cache, on a simulated device. It
 * includes the simulated device's queues, but no launches of a driver. Main thread.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "cache/device/sim/sim.h"
#include "cache/embed/cache.h"
#include "cache/embed/kernels.h"

enum {
    N_TABLES = 26,
    ROW_BYTES = 128, /* dim 32 */
    N_ROWS = 4096,
    N_INSERTED = 64, /* per table and batch */
    N_ROUNDS = 9,
    KEYS_MAX = 2048, /* of one table */
};

static const uint32_t keys_per_table[] = {64, KEYS_MAX};

struct rig {
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_region *region;
    hps_devptr memory;
    struct hps_embed_range *ranges[N_TABLES];
    hps_key keys[KEYS_MAX];
    uint8_t rows[N_INSERTED * ROW_BYTES];
    double submit_us[N_ROUNDS], finish_us[N_ROUNDS], stage_us[N_ROUNDS];
};

static double since_us(uint64_t *at)
{
    uint64_t now = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID), before = *at;
    *at = now;
    return (double)(now - before) / 1000;
}

static hps_status open_rig(struct rig *rig, struct hps_error *err)
{
    const struct hps_embed_cache_config config = {.arena_bytes = 64 << 20, .n_batches = 2};
    const struct hps_embed_range_config range = {
        ROW_BYTES, 10 * N_ROWS, hps_embed_range_bytes(ROW_BYTES, 10 * N_ROWS, N_ROWS)};
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    size_t size = (size_t)N_TABLES * KEYS_MAX * ROW_BYTES;
    hps_status status =
        hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels, &rig->device, err);

    if (status == HPS_OK) {
        status = hps_embed_cache_open(rig->device, &config, &rig->cache, err);
    }
    if (status == HPS_OK) {
        status = hps_device_alloc(rig->device, size, &rig->memory, err);
    }
    if (status == HPS_OK) {
        status = hps_embed_region_device(rig->cache, rig->memory, size, &rig->region, err);
    }
    for (unsigned i = 0; i < N_TABLES && status == HPS_OK; i++) {
        status = hps_embed_range_new(rig->cache, &range, &rig->ranges[i], err);
    }
    return status;
}

static void close_rig(struct rig *rig)
{
    for (unsigned i = 0; i < N_TABLES; i++) {
        hps_embed_range_free(rig->ranges[i]);
    }
    hps_ignore(hps_embed_region_free(rig->region)); /* nothing is in flight */
    hps_embed_cache_close(rig->cache);
    if (rig->memory != 0) {
        hps_device_free(rig->device, rig->memory);
    }
    hps_device_close(rig->device);
}

static hps_status stage_all(struct rig *rig, uint32_t round)
{
    hps_status status = HPS_OK;

    for (unsigned i = 0; i < N_TABLES && status == HPS_OK; i++) {
        uint32_t n_taken;
        status = hps_embed_stage(rig->cache, rig->ranges[i], HPS_EMBED_INSERT,
                                 rig->keys + (round * N_INSERTED) % (KEYS_MAX - N_INSERTED),
                                 rig->rows, N_INSERTED, NULL, &n_taken);
    }
    return status;
}

static hps_status run_batch(struct rig *rig, uint32_t round, uint32_t n_keys)
{
    struct hps_embed_part parts[N_TABLES];
    struct hps_embed_ticket *ticket;
    uint64_t at = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    hps_status status = stage_all(rig, round);

    hps_embed_advance(rig->cache); /* submits staged rows to the device */
    rig->stage_us[round] = since_us(&at);
    for (unsigned i = 0; i < N_TABLES; i++) {
        parts[i] = (struct hps_embed_part){.range = rig->ranges[i],
                                           .keys = (const uint8_t *)rig->keys,
                                           .n = n_keys,
                                           .region = rig->region,
                                           .offset = (uint64_t)i * KEYS_MAX * ROW_BYTES};
    }
    status = status == HPS_OK ? hps_embed_submit(rig->cache, parts, N_TABLES, &ticket) : status;
    if (status != HPS_OK) {
        return status;
    }
    rig->submit_us[round] = since_us(&at);
    while ((status = hps_embed_poll(ticket)) == HPS_AGAIN) {
        (void)sched_yield();
    }
    (void)since_us(&at); /* excludes the wait for the simulated device */
    status = status == HPS_OK ? hps_embed_poll(ticket) : status;
    hps_embed_release(ticket);
    hps_embed_advance(rig->cache);
    rig->finish_us[round] = since_us(&at);
    while (!hps_embed_idle(rig->cache)) {
        hps_embed_advance(rig->cache);
        (void)sched_yield();
    }
    return status;
}

static hps_status run_host(struct rig *rig, uint32_t n_keys, struct hps_error *err)
{
    char name[64];

    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        hps_status status = run_batch(rig, round, n_keys);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "a batch: %s", hps_status_text(status));
        }
    }
    (void)snprintf(name, sizeof(name), "host, %u tables x %u keys", (unsigned)N_TABLES, n_keys);
    double submit_us = bench_median(rig->submit_us, N_ROUNDS);
    bench_report(name, "submit", submit_us, "us", BENCH_NO_TARGET, 0);
    bench_report(name, "submit, per key", 1000 * submit_us / (N_TABLES * (double)n_keys), "ns",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "finish", bench_median(rig->finish_us, N_ROUNDS), "us", BENCH_NO_TARGET, 0);
    double stage_us = bench_median(rig->stage_us, N_ROUNDS);
    bench_report(name, "insertion, per row", 1000 * stage_us / (N_TABLES * (double)N_INSERTED),
                 "ns", BENCH_NO_TARGET, 0);
    return HPS_OK;
}

hps_status bench_embed_cache(struct hps_error *err)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));

    if (rig == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for keys");
    }
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        rig->keys[i] = hps_mix64(i);
    }
    hps_status status = open_rig(rig, err);
    for (size_t i = 0; i < sizeof(keys_per_table) / sizeof(keys_per_table[0]); i++) {
        status = status == HPS_OK ? run_host(rig, keys_per_table[i], err) : status;
    }
    close_rig(rig);
    hps_free(rig);
    return status;
}
