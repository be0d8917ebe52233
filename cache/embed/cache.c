/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing the embedding cache, noticing completed work, and the loss of the device. See
 * internal.h for threads.
 */
#include "cache/embed/cache.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/embed/internal.h"

enum {
    EMPTY_SETS = 2,
    LINE = 128, /* of the device: counters of different blocks share no line */
    STAGE_BYTES_MIN = HPS_EMBED_ROW_BYTES_MAX,
    COUNTS_BYTES = HPS_EMBED_SLICE_RANGES * sizeof(struct hps_embed_counts),
    N_BATCHES_MAX = 64,
    PARTS_MAX = 1 << 20,
};

#define STAGE_BYTES_MAX (UINT64_C(16) << 32) /* the most that entries can address */

/* ---- configuration --------------------------------------------------------------------------- */

static void set_default(uint64_t *value, uint64_t or_else)
{
    *value = *value != 0 ? *value : or_else;
}

static void set_default_u32(uint32_t *value, uint32_t or_else)
{
    *value = *value != 0 ? *value : or_else;
}

static hps_status check(const char *name, uint64_t value, uint64_t min, uint64_t max,
                        struct hps_error *err)
{
    return value >= min && value <= max
               ? HPS_OK
               : hps_error_set(
                     err, HPS_INVALID, "embedding cache: %s: got %llu, expected %llu to %llu", name,
                     (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

static hps_status make_config(const struct hps_embed_cache_config *from,
                              struct hps_embed_cache_config *config, struct hps_error *err)
{
    *config = *from;
    config->arena_bytes -= config->arena_bytes % 256;
    set_default(&config->gather_bytes, UINT64_C(64) << 20);
    set_default(&config->stage_bytes, UINT64_C(32) << 20);
    set_default(&config->timeout_us, UINT64_C(5000000));
    set_default(&config->seed, hps_hash_secret());
    set_default_u32(&config->n_batches, 4);
    set_default_u32(&config->batch_keys_max, HPS_EMBED_BATCH_KEYS_MAX);
    set_default_u32(&config->batch_parts_max, 4096);
    set_default_u32(&config->mapped_bytes_max, 65536);
    set_default_u32(&config->sample_rate, 8);
    hps_status status = check("arena_bytes", config->arena_bytes, 256, UINT64_MAX / 2, err);
    status = status != HPS_OK
                 ? status
                 : check("stage_bytes", config->stage_bytes, STAGE_BYTES_MIN, STAGE_BYTES_MAX, err);
    status =
        status != HPS_OK ? status : check("n_batches", config->n_batches, 1, N_BATCHES_MAX, err);
    status = status != HPS_OK ? status
                              : check("batch_keys_max", config->batch_keys_max, 1,
                                      HPS_EMBED_BATCH_KEYS_MAX, err);
    return status != HPS_OK ? status
                            : check("batch_parts_max", config->batch_parts_max, 1, PARTS_MAX, err);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Offsets in `small`. */
static uint64_t ticket_counter_at(uint32_t i)
{
    return (uint64_t)i * LINE;
}

static uint64_t slice_counters_at(const struct hps_embed_cache *cache, uint32_t i)
{
    return ticket_counter_at(cache->config.n_batches) + (uint64_t)i * (LINE + COUNTS_BYTES);
}

static uint64_t empty_at(const struct hps_embed_cache *cache)
{
    return slice_counters_at(cache, HPS_EMBED_SLICES);
}

static uint64_t small_bytes(const struct hps_embed_cache *cache)
{
    return empty_at(cache) + hps_embed_index_bytes(EMPTY_SETS);
}

static uint64_t found_bytes(const struct hps_embed_cache *cache)
{
    return cache->config.batch_keys_max * sizeof(struct hps_embed_found);
}

static uint64_t device_bytes(const struct hps_embed_cache *cache)
{
    return cache->config.arena_bytes + cache->config.gather_bytes + cache->config.stage_bytes +
           small_bytes(cache) + found_bytes(cache) + HPS_EMBED_SLICES * hps_embed_slice_bytes();
}

static hps_status alloc_heap(struct hps_embed_cache *cache, struct hps_error *err)
{
    const struct hps_embed_cache_config *config = &cache->config;

    cache->tickets = hps_calloc(config->n_batches, sizeof(*cache->tickets));
    cache->slices = hps_calloc(HPS_EMBED_SLICES, sizeof(*cache->slices));
    cache->intake.entries = hps_calloc(HPS_EMBED_SLICE_ROWS_MAX, sizeof(*cache->intake.entries));
    cache->intake.order = hps_calloc(HPS_EMBED_SLICE_ROWS_MAX, sizeof(*cache->intake.order));
    cache->intake.order_other =
        hps_calloc(HPS_EMBED_SLICE_ROWS_MAX, sizeof(*cache->intake.order_other));
    cache->intake.seen = hps_calloc(HPS_EMBED_SEEN, sizeof(*cache->intake.seen));
    cache->intake.repeated = hps_calloc(HPS_EMBED_SLICE_ROWS_MAX, sizeof(*cache->intake.repeated));
    bool ok = cache->tickets != NULL && cache->slices != NULL && cache->intake.entries != NULL &&
              cache->intake.order != NULL && cache->intake.order_other != NULL &&
              cache->intake.seen != NULL && cache->intake.repeated != NULL;
    for (uint32_t i = 0; i < config->n_batches && ok; i++) {
        struct hps_embed_ticket *ticket = &cache->tickets[i];
        ticket->cache = cache;
        ticket->uses = hps_calloc(config->batch_parts_max, sizeof(*ticket->uses));
        ok = ticket->uses != NULL;
    }
    return ok ? HPS_OK : hps_error_set(err, HPS_NO_MEMORY, "no memory for an embedding cache");
}

static hps_status alloc_device(struct hps_embed_cache *cache, struct hps_error *err)
{
    struct hps_device *device = cache->device;
    hps_status status = hps_device_alloc(device, cache->config.arena_bytes, &cache->arena, err);

    if (status == HPS_OK) {
        status = hps_device_alloc(device, cache->config.gather_bytes, &cache->gather, err);
    }
    if (status == HPS_OK) {
        status = hps_device_alloc(device, cache->config.stage_bytes, &cache->stage.device, err);
    }
    if (status == HPS_OK) {
        status = hps_device_alloc(device, small_bytes(cache), &cache->small, err);
    }
    if (status == HPS_OK) {
        status = hps_device_alloc(device, found_bytes(cache), &cache->found, err);
    }
    for (uint32_t i = 0; i < HPS_EMBED_SLICES && status == HPS_OK; i++) {
        status = hps_device_alloc(device, hps_embed_slice_bytes(), &cache->slices[i].device, err);
    }
    return status == HPS_OK
               ? status
               : hps_error_prefix(err, status,
                                  "embedding cache: %llu bytes of device memory are needed, %llu "
                                  "were free",
                                  (unsigned long long)device_bytes(cache),
                                  (unsigned long long)hps_device_info(device)->memory_free_bytes);
}

static hps_status alloc_host(struct hps_embed_cache *cache, struct hps_error *err)
{
    struct hps_device *device = cache->device;
    hps_devptr unused;
    void *host;
    hps_status status =
        hps_device_host_alloc(device, cache->config.stage_bytes, &host, &unused, err);

    cache->stage.host = status == HPS_OK ? host : NULL;
    for (uint32_t i = 0; i < cache->config.n_batches && status == HPS_OK; i++) {
        struct hps_embed_ticket *ticket = &cache->tickets[i];
        status = hps_device_host_alloc(device, hps_embed_block_of(&cache->config).end, &host,
                                       &ticket->device, err);
        ticket->host = status == HPS_OK ? host : NULL;
        ticket->blocks_done = cache->small + ticket_counter_at(i);
    }
    for (uint32_t i = 0; i < HPS_EMBED_SLICES && status == HPS_OK; i++) {
        struct hps_embed_slice *slice = &cache->slices[i];
        slice->blocks_done = cache->small + slice_counters_at(cache, i);
        slice->counts_device = slice->blocks_done + LINE;
        status = hps_device_host_alloc(device, hps_embed_slice_bytes(), &host, &unused, err);
        slice->host = status == HPS_OK ? host : NULL;
        if (status == HPS_OK) {
            status = hps_device_host_alloc(device, COUNTS_BYTES, &host, &slice->counts_mapped, err);
            slice->counts = status == HPS_OK ? host : NULL;
        }
    }
    return status;
}

static hps_status make_streams(struct hps_embed_cache *cache, struct hps_error *err)
{
    struct hps_device *device = cache->device;
    hps_status status = hps_stream_q_new(device, "in", true, &cache->in, err);

    status = status == HPS_OK ? hps_stream_q_new(device, "work", false, &cache->work, err) : status;
    status = status == HPS_OK ? hps_stream_q_new(device, "out", false, &cache->out, err) : status;
    status =
        status == HPS_OK ? hps_stream_q_new(device, "watch", true, &cache->watch, err) : status;
    status = status == HPS_OK ? hps_event_new(device, &cache->clearing.done, err) : status;
    for (uint32_t i = 0; i < cache->config.n_batches && status == HPS_OK; i++) {
        struct hps_embed_ticket *ticket = &cache->tickets[i];
        status = hps_event_new(device, &ticket->worked, err);
        status = status == HPS_OK ? hps_event_new(device, &ticket->copied_out, err) : status;
        status = status == HPS_OK ? hps_event_new(device, &ticket->watched, err) : status;
    }
    for (uint32_t i = 0; i < HPS_EMBED_SLICES && status == HPS_OK; i++) {
        struct hps_embed_slice *slice = &cache->slices[i];
        status = hps_event_new(device, &slice->copied_in, err);
        status = status == HPS_OK ? hps_event_new(device, &slice->applied, err) : status;
    }
    return status;
}

/* Set the counters to 0 and the empty index to markers, on `work`, where all their readers run.
 * Also zero the gather buffer: places of keys that miss are copied out too, and must not contain
 * another program's data. */
static hps_status clear(struct hps_embed_cache *cache, struct hps_error *err)
{
    hps_status status = hps_fill_on_device(cache->work, cache->small, 0, small_bytes(cache));

    if (status == HPS_OK) {
        status = hps_fill_on_device(cache->work, cache->gather, 0, cache->config.gather_bytes);
    }
    hps_embed_desc_init(&cache->empty, cache->small + empty_at(cache), EMPTY_SETS,
                        cache->config.seed);
    if (status == HPS_OK) {
        status = hps_embed_clear(cache->work, &cache->empty);
    }
    return status == HPS_OK ? status : hps_error_set(err, status, "the device is lost");
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_streams(struct hps_embed_cache *cache)
{
    hps_stream_q_free(cache->in);
    hps_stream_q_free(cache->work);
    hps_stream_q_free(cache->out);
    hps_stream_q_free(cache->watch);
    hps_event_free(cache->clearing.done);
    for (uint32_t i = 0; cache->tickets != NULL && i < cache->config.n_batches; i++) {
        hps_event_free(cache->tickets[i].worked);
        hps_event_free(cache->tickets[i].copied_out);
        hps_event_free(cache->tickets[i].watched);
    }
    for (uint32_t i = 0; cache->slices != NULL && i < HPS_EMBED_SLICES; i++) {
        hps_event_free(cache->slices[i].copied_in);
        hps_event_free(cache->slices[i].applied);
    }
}

static void free_memory(struct hps_embed_cache *cache)
{
    struct hps_device *device = cache->device;

    for (uint32_t i = 0; cache->tickets != NULL && i < cache->config.n_batches; i++) {
        hps_device_host_free(device, cache->tickets[i].host);
        hps_free(cache->tickets[i].uses);
    }
    for (uint32_t i = 0; cache->slices != NULL && i < HPS_EMBED_SLICES; i++) {
        hps_device_host_free(device, cache->slices[i].host);
        hps_device_host_free(device, cache->slices[i].counts);
        hps_device_free(device, cache->slices[i].device);
    }
    hps_device_host_free(device, cache->stage.host);
    hps_device_free(device, cache->arena);
    hps_device_free(device, cache->gather);
    hps_device_free(device, cache->stage.device);
    hps_device_free(device, cache->small);
    hps_device_free(device, cache->found);
    hps_free(cache->tickets);
    hps_free(cache->slices);
    hps_free(cache->intake.entries);
    hps_free(cache->intake.order);
    hps_free(cache->intake.order_other);
    hps_free(cache->intake.seen);
    hps_free(cache->intake.repeated);
    hps_free(cache);
}

hps_status hps_embed_cache_open(struct hps_device *device,
                                const struct hps_embed_cache_config *config,
                                struct hps_embed_cache **out_cache, struct hps_error *err)
{
    struct hps_embed_cache *cache = hps_calloc(1, sizeof(*cache));

    if (cache == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for an embedding cache");
    }
    cache->device = device;
    hps_status status = make_config(config, &cache->config, err);
    if (status != HPS_OK) {
        hps_free(cache);
        return status;
    }
    cache->gather_ring.size = cache->config.gather_bytes;
    cache->stage.ring.size = cache->config.stage_bytes;
    status = alloc_heap(cache, err);
    status = status == HPS_OK ? alloc_device(cache, err) : status;
    status = status == HPS_OK ? alloc_host(cache, err) : status;
    status = status == HPS_OK ? make_streams(cache, err) : status;
    status = status == HPS_OK ? clear(cache, err) : status;
    if (status != HPS_OK) {
        free_streams(cache);
        free_memory(cache);
        return status;
    }
    *out_cache = cache;
    return HPS_OK;
}

void hps_embed_cache_close(struct hps_embed_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    for (uint32_t i = 0; i < cache->config.n_batches; i++) {
        HPS_ASSERT(!cache->tickets[i].held);
    }
    free_streams(cache); /* waits */
    hps_embed_batches_drop(cache);
    while (cache->ranges != NULL) {
        struct hps_embed_range *range = cache->ranges;
        HPS_ASSERT(range->freed);
        cache->ranges = range->next;
        hps_free(range);
    }
    free_memory(cache);
}

/* ---- noticing completed work ----------------------------------------------------------------- */

hps_status hps_embed_lose(struct hps_embed_cache *cache)
{
    if (!cache->lost) {
        cache->lost = true;
        hps_device_give_up(cache->device, "work of the embedding cache could not be queued");
    }
    return HPS_DATA_LOSS;
}

static bool under_way(const struct hps_embed_cache *cache)
{
    return cache->n_running > 0 || cache->n_applied < cache->n_closed ||
           cache->clearing.n_ranges > 0;
}

void hps_embed_progress(struct hps_embed_cache *cache)
{
    cache->progress_us = hps_clock_us();
}

uint64_t hps_embed_begins(struct hps_embed_cache *cache)
{
    uint64_t now_us = hps_clock_us();

    if (!under_way(cache)) {
        cache->progress_us = now_us;
    }
    return now_us;
}

void hps_embed_given(struct hps_embed_cache *cache, uint64_t began_us)
{
    cache->progress_us += hps_clock_us() - began_us;
}

bool hps_embed_ended(struct hps_embed_cache *cache, struct hps_event *event)
{
    hps_status status = cache->lost ? HPS_AGAIN : hps_event_done(event);

    if (status != HPS_OK && status != HPS_AGAIN) {
        hps_ignore(hps_embed_lose(cache)); /* the next call returns it */
    }
    return status == HPS_OK;
}

static void notice(struct hps_embed_cache *cache)
{
    hps_embed_batches_advance(cache);
    hps_embed_slices_advance(cache);
    hps_embed_ranges_advance(cache);
}

/* Declare the device lost if it made no progress for too long. */
static void check_time(struct hps_embed_cache *cache)
{
    if (cache->lost || !under_way(cache) ||
        hps_clock_us() - cache->progress_us <= cache->config.timeout_us) {
        return;
    }
    notice(cache);
    if (!cache->lost && under_way(cache) &&
        hps_clock_us() - cache->progress_us > cache->config.timeout_us) {
        cache->lost = true;
        hps_device_give_up(cache->device, "work of the embedding cache timed out");
    }
}

void hps_embed_check(struct hps_embed_cache *cache, struct hps_event *event)
{
    hps_ignore(hps_embed_ended(cache, event) ? HPS_OK : HPS_AGAIN); /* notices a loss */
    check_time(cache);
}

void hps_embed_advance(struct hps_embed_cache *cache)
{
    notice(cache);
    check_time(cache);
    hps_ignore(hps_embed_slice_close(cache)); /* the next call returns a loss */
}

bool hps_embed_idle(const struct hps_embed_cache *cache)
{
    bool staged = cache->n_opened > cache->n_closed &&
                  cache->slices[cache->n_opened % HPS_EMBED_SLICES].n_entries > 0;
    return cache->lost || (!under_way(cache) && !staged && cache->n_retiring == 0);
}

bool hps_embed_lost(const struct hps_embed_cache *cache)
{
    return cache->lost;
}
