/* SPDX-License-Identifier: Apache-2.0
 *
 * See index.h.
 */
#include "bench/gpu/index.h"

#include "cache/embed/internal.h"

enum { FILL_BLOCKS = 2112, FILL_BLOCKS_SIM = 2, PERCENT = 100, UNKNOWN_TABLE = 9999 };

uint64_t bench_index_bytes(uint32_t row_bytes, uint64_t n_rows)
{
    return hps_embed_range_bytes(row_bytes, n_rows, n_rows);
}

uint64_t bench_index_rows(uint32_t row_bytes, uint64_t bytes)
{
    struct hps_embed_layout layout;

    hps_embed_layout(row_bytes, bytes, UINT32_MAX, &layout);
    return (uint64_t)(layout.n_sets - 1) * HPS_EMBED_WAYS / 10 * 6; /* one set for rounding */
}

void bench_index_open(struct bench_rig *rig, struct bench_index *index, uint32_t table,
                      uint32_t row_bytes, uint64_t n_rows, hps_devptr memory)
{
    struct hps_embed_layout layout;
    hps_devptr mapped;
    uint32_t before = rig->n_pieces;
    uint64_t *n_placed = bench_host_memory(rig, sizeof(*n_placed), &mapped);
    hps_devptr counter = bench_memory(rig, sizeof(*n_placed));

    *index = (struct bench_index){.table = table, .row_bytes = row_bytes, .n_rows = n_rows};
    hps_embed_layout(row_bytes, bench_index_bytes(row_bytes, n_rows), UINT32_MAX, &layout);
    hps_embed_desc_init(&index->desc, memory, layout.n_sets, 42);
    index->desc.rows = memory + layout.rows;
    index->desc.sketch = memory + layout.sketch;
    index->desc.row_stride = layout.row_stride;
    index->n_slots = (uint64_t)layout.n_sets * HPS_EMBED_WAYS;
    if (rig->status == HPS_OK &&
        bench_ok(rig, hps_embed_clear(rig->stream, &index->desc), "clear") &&
        bench_ok(rig, hps_fill_on_device(rig->stream, counter, 0, sizeof(*n_placed)), "clear")) {
        const struct bench_fill_args args = {
            .desc = index->desc, .n = n_rows, .n_placed = counter, .table = table};
        (void)bench_ok(rig,
                       hps_launch(rig->stream, &bench_kernel_fill,
                                  bench_count(rig, FILL_BLOCKS, FILL_BLOCKS_SIM), &args),
                       "fill");
        bench_download(rig, n_placed, counter, sizeof(*n_placed));
    }
    index->resident_share = rig->status == HPS_OK ? (double)*n_placed / (double)n_rows : 0;
    bench_free_to(rig, before);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void make_tiles(struct bench_rig *rig, struct bench_batches *batches)
{
    uint32_t n_all = batches->n_parts * batches->n_keys;
    hps_devptr unused;
    uint32_t before = rig->n_pieces;
    uint64_t parts_size = batches->n_parts * sizeof(struct hps_embed_part_desc);
    uint64_t tiles_size = (uint64_t)n_all / HPS_EMBED_TILE_KEYS * sizeof(struct hps_embed_tile);
    struct hps_embed_part_desc *parts = bench_host_memory(rig, parts_size, &unused);
    struct hps_embed_tile *tiles = bench_host_memory(rig, tiles_size, &unused);
    uint64_t out = batches->out;

    batches->n_tiles = n_all / HPS_EMBED_TILE_KEYS;
    for (uint32_t i = 0; i < batches->n_parts && rig->status == HPS_OK; i++) {
        const struct bench_index *index = &batches->indices[i];
        parts[i] = (struct hps_embed_part_desc){
            .sets = index->desc.sets,
            .rows = index->desc.rows,
            .seed = index->desc.seed,
            .out = out,
            .n_sets = index->desc.n_sets,
            .row_stride = index->desc.row_stride,
            .out_stride = index->row_bytes,
            .row_units = index->row_bytes / 16,
            .unit_bytes = 16,
            .lanes = (uint8_t)bench_lanes(index->row_bytes),
        };
        out += (uint64_t)batches->n_keys * index->row_bytes;
    }
    for (uint32_t i = 0; i < batches->n_tiles && rig->status == HPS_OK; i++) {
        uint32_t first_key = i * HPS_EMBED_TILE_KEYS;
        tiles[i] = (struct hps_embed_tile){.part = first_key / batches->n_keys,
                                           .first_key = first_key,
                                           .first_row = first_key % batches->n_keys,
                                           .n = HPS_EMBED_TILE_KEYS};
    }
    bench_upload(rig, batches->parts, parts, parts_size);
    bench_upload(rig, batches->tiles, tiles, tiles_size);
    bench_free_to(rig, before);
}

static void draw(struct bench_rig *rig, const struct bench_batches *batches, double alpha,
                 uint32_t unknown_percent, uint64_t *keys, uint32_t *slots)
{
    for (uint32_t part = 0; part < batches->n_parts && rig->status == HPS_OK; part++) {
        const struct bench_index *index = &batches->indices[part];
        struct hps_zipf zipf;
        hps_zipf_init(&zipf, index->n_rows, alpha, 0);
        for (uint32_t i = 0; i < batches->n_keys; i++) {
            uint64_t row = hps_zipf_row(&zipf, hps_zipf_rank(&zipf, &rig->random));
            bool unknown = hps_random_next(&rig->random) % PERCENT < unknown_percent;
            keys[part * batches->n_keys + i] =
                bench_key(unknown ? (uint32_t)UNKNOWN_TABLE : index->table, row);
            if (part == 0) { /* as far apart as hashing would put them */
                slots[i] = (uint32_t)((hps_mix64(row) >> 32) * index->n_slots >> 32);
            }
        }
    }
}

void bench_batches_open(struct bench_rig *rig, struct bench_batches *batches,
                        const struct bench_index *indices, uint32_t n_parts, uint32_t n_keys,
                        double alpha, uint32_t unknown_percent, bool mapped)
{
    uint64_t n_all = (uint64_t)n_parts * n_keys, out_bytes = 0;

    for (uint32_t i = 0; i < n_parts; i++) {
        out_bytes += (uint64_t)n_keys * indices[i].row_bytes;
    }
    *batches = (struct bench_batches){.indices = indices, .n_parts = n_parts, .n_keys = n_keys};
    batches->launch_parts = n_parts;
    batches->parts = bench_memory(rig, n_parts * sizeof(struct hps_embed_part_desc));
    batches->tiles = bench_memory(rig, n_all / HPS_EMBED_TILE_KEYS * sizeof(struct hps_embed_tile));
    batches->hits = bench_memory(rig, n_all / HPS_EMBED_TILE_KEYS * sizeof(uint32_t));
    batches->blocks_done = bench_memory(rig, 256);
    batches->flag_host = bench_host_memory(rig, 256, &batches->flag);
    batches->out = bench_memory(rig, out_bytes);
    if (rig->status == HPS_OK) {
        (void)bench_ok(rig, hps_fill_on_device(rig->stream, batches->blocks_done, 0, 256), "clear");
    }
    make_tiles(rig, batches);
    for (uint32_t b = 0; b < BENCH_BATCHES && rig->status == HPS_OK; b++) {
        hps_devptr keys_mapped, unused;
        batches->slots[b] = bench_memory(rig, (uint64_t)n_keys * sizeof(uint32_t));
        hps_devptr keys_memory = mapped ? 0 : bench_memory(rig, n_all * sizeof(uint64_t));
        uint64_t *keys = bench_host_memory(rig, n_all * sizeof(uint64_t), &keys_mapped);
        uint32_t before = rig->n_pieces;
        uint32_t *slots = bench_host_memory(rig, (uint64_t)n_keys * sizeof(uint32_t), &unused);
        draw(rig, batches, alpha, unknown_percent, keys, slots);
        bench_upload(rig, batches->slots[b], slots, (uint64_t)n_keys * sizeof(uint32_t));
        batches->keys[b] = mapped ? keys_mapped : keys_memory;
        if (!mapped) {
            bench_upload(rig, keys_memory, keys, n_all * sizeof(uint64_t));
        }
        bench_free_to(rig, before);
    }
}

double bench_batches_hit_share(struct bench_rig *rig, const struct bench_batches *batches)
{
    hps_devptr unused;
    uint32_t before = rig->n_pieces;
    uint64_t n_hit = 0, size = batches->n_tiles * sizeof(uint32_t);
    uint32_t *hits = bench_host_memory(rig, size, &unused);

    bench_download(rig, hits, batches->hits, size);
    for (uint32_t i = 0; i < batches->n_tiles && rig->status == HPS_OK; i++) {
        for (uint32_t word = hits[i]; word != 0; word &= word - 1) {
            n_hit++;
        }
    }
    bench_free_to(rig, before);
    return (double)n_hit / ((double)batches->n_tiles * HPS_EMBED_TILE_KEYS);
}

hps_status bench_batches_give(struct bench_rig *rig, void *arg, uint32_t i)
{
    struct bench_batches *batches = arg;
    uint32_t tiles_per_part = batches->n_keys / HPS_EMBED_TILE_KEYS;
    uint32_t first = batches->first_part * tiles_per_part;
    const struct hps_embed_lookup_args args = {
        .parts = batches->parts,
        .tiles = batches->tiles + first * sizeof(struct hps_embed_tile),
        .keys = batches->keys[i % BENCH_BATCHES],
        .hits = batches->hits + first * sizeof(uint32_t),
        .blocks_done = batches->blocks_done,
        .flag = batches->flag,
        .n_tiles = batches->launch_parts * tiles_per_part,
        .sequence = ++batches->sequence,
    };

    return hps_launch(rig->stream, &hps_embed_kernel_lookup,
                      (args.n_tiles + HPS_EMBED_BLOCK_WARPS - 1) / HPS_EMBED_BLOCK_WARPS, &args);
}

hps_status bench_batches_give_direct(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_batches *batches = arg;
    const struct bench_index *index = &batches->indices[0];
    const struct bench_gather_args args = {
        .rows = index->desc.rows,
        .ids = batches->slots[i % BENCH_BATCHES],
        .out = batches->out,
        .n = batches->n_keys,
        .row_bytes = index->row_bytes,
        .lanes = bench_lanes(index->row_bytes),
    };

    return hps_launch(rig->stream, &bench_kernel_gather,
                      (args.n + BENCH_THREADS - 1) / BENCH_THREADS, &args);
}
