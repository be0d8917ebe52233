/* SPDX-License-Identifier: Apache-2.0
 *
 * See index.h.
 */
#include "bench/gpu/index.h"

#include <string.h>

#include "base/row_sum.h"
#include "cache/embed/internal.h"

#define HIT_SHARE_MIN 0.99 /* of keys that were put in; a few find no place */

enum {
    FILL_BLOCKS = 2112,
    FILL_BLOCKS_SIM = 2,
    PERCENT = 100,
    UNKNOWN_TABLE = 9999,
    SAMPLES = 64, /* rows or bags that are checked */
    DIM_MAX = 512,
    ROW_BYTES_MAX = DIM_MAX * 4,
    VALUES_PER_LANE = 4, /* of rows that are converted or added */
};

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
                      uint32_t row_bytes, uint64_t n_rows, uint64_t n_filled, hps_devptr memory)
{
    struct hps_embed_layout layout;
    hps_devptr mapped;
    uint32_t before = rig->n_pieces;
    uint64_t *n_spilled = bench_host_memory(rig, sizeof(*n_spilled), &mapped);
    hps_devptr counter = bench_memory(rig, sizeof(*n_spilled));

    *index = (struct bench_index){.table = table, .row_bytes = row_bytes, .n_rows = n_filled};
    hps_embed_layout(row_bytes, bench_index_bytes(row_bytes, n_rows), UINT32_MAX, &layout);
    hps_embed_desc_init(&index->desc, memory, layout.n_sets, 42);
    index->desc.rows = memory + layout.rows;
    index->desc.sketch = memory + layout.sketch;
    index->desc.row_stride = layout.row_stride;
    index->n_slots = (uint64_t)layout.n_sets * HPS_EMBED_WAYS;
    bench_randomize(rig, index->desc.rows, layout.n_slots * layout.row_stride);
    if (rig->status == HPS_OK &&
        bench_ok(rig, hps_embed_clear(rig->stream, &index->desc), "clear") &&
        bench_ok(rig, hps_fill_on_device(rig->stream, counter, 0, sizeof(*n_spilled)), "clear")) {
        const struct bench_fill_args args = {
            .desc = index->desc, .n = n_filled, .n_spilled = counter, .table = table};
        (void)bench_ok(rig,
                       hps_launch(rig->stream, &bench_kernel_fill,
                                  bench_count(rig, FILL_BLOCKS, FILL_BLOCKS_SIM), &args),
                       "fill");
        bench_download(rig, n_spilled, counter, sizeof(*n_spilled));
    }
    index->spilled_share = rig->status == HPS_OK ? (double)*n_spilled / (double)n_filled : 0;
    bench_free_to(rig, before);
}

/* ---- batches --------------------------------------------------------------------------------- */

static bool is_pooled(const struct bench_batch_spec *spec)
{
    return spec->shape != NULL && spec->shape->pooling > HPS_POOLING_NONE;
}

static uint32_t tiles_per_part(const struct bench_batches *batches)
{
    return batches->spec.n_keys / HPS_EMBED_TILE_KEYS;
}

static struct hps_embed_part_desc part_of(const struct bench_batches *batches, uint32_t i)
{
    const struct bench_index *index = &batches->indices[i];
    const struct hps_embed_shape *shape = batches->spec.shape;
    struct hps_embed_part_desc part = {
        .sets = index->desc.sets,
        .rows = index->desc.rows,
        .sketch = index->desc.sketch,
        .seed = index->desc.seed,
        .out = batches->out + (uint64_t)i * batches->n_out * batches->out_bytes,
        .n_sets = index->desc.n_sets,
        .row_stride = index->desc.row_stride,
        .out_stride = batches->out_bytes,
        .row_units = index->row_bytes / 16,
        .unit_bytes = 16,
        .pooling = HPS_POOLING_NONE,
        .lanes = (uint8_t)bench_lanes(index->row_bytes),
    };

    if (shape != NULL) {
        part.unit_bytes = 0;
        part.row_units = shape->dim;
        part.stored = (uint8_t)shape->stored;
        part.wanted = (uint8_t)shape->wanted;
        part.pooling = (uint8_t)shape->pooling;
        part.lanes = (uint8_t)bench_lanes(shape->dim * (16 / VALUES_PER_LANE));
    }
    return part;
}

/* Parts, tiles and bags. */
static void make_records(struct bench_rig *rig, struct bench_batches *batches)
{
    const struct bench_batch_spec *spec = &batches->spec;
    hps_devptr unused;
    uint32_t before = rig->n_pieces, n_bags = is_pooled(spec) ? spec->n_parts * batches->n_out : 0;
    uint64_t parts_size = spec->n_parts * sizeof(struct hps_embed_part_desc);
    uint64_t tiles_size = batches->n_tiles * sizeof(struct hps_embed_tile);
    uint64_t bags_size = (n_bags + 1) * sizeof(struct hps_embed_bag);
    struct hps_embed_part_desc *parts = bench_host_memory(rig, parts_size, &unused);
    struct hps_embed_tile *tiles = bench_host_memory(rig, tiles_size, &unused);
    struct hps_embed_bag *bags = bench_host_memory(rig, bags_size, &unused);

    for (uint32_t i = 0; i < spec->n_parts && rig->status == HPS_OK; i++) {
        parts[i] = part_of(batches, i);
    }
    for (uint32_t i = 0; i < batches->n_tiles && rig->status == HPS_OK; i++) {
        uint32_t first_key = i * HPS_EMBED_TILE_KEYS;
        tiles[i] = (struct hps_embed_tile){.part = first_key / spec->n_keys,
                                           .first_key = first_key,
                                           .first_row = first_key % spec->n_keys,
                                           .n = HPS_EMBED_TILE_KEYS};
    }
    for (uint32_t i = 0; i < n_bags && rig->status == HPS_OK; i++) {
        bags[i] = (struct hps_embed_bag){.part = i / batches->n_out,
                                         .first_key = i * spec->bag,
                                         .n = spec->bag,
                                         .row = i % batches->n_out};
    }
    bench_upload(rig, batches->parts, parts, parts_size);
    bench_upload(rig, batches->tiles, tiles, tiles_size);
    bench_upload(rig, batches->bags, bags, bags_size);
    bench_free_to(rig, before);
}

static void draw(struct bench_rig *rig, const struct bench_batches *batches, uint64_t *keys,
                 uint64_t *ids)
{
    const struct bench_batch_spec *spec = &batches->spec;

    for (uint32_t part = 0; part < spec->n_parts && rig->status == HPS_OK; part++) {
        const struct bench_index *index = &batches->indices[part];
        struct hps_zipf zipf;
        hps_zipf_init(&zipf, index->n_rows, spec->alpha, 0);
        for (uint32_t i = 0; i < spec->n_keys; i++) {
            uint64_t row = hps_zipf_rank(&zipf, &rig->random) - 1;
            bool unknown = spec->unknown_percent > 0 &&
                           hps_random_next(&rig->random) % PERCENT < spec->unknown_percent;
            keys[part * spec->n_keys + i] =
                bench_key(unknown ? (uint32_t)UNKNOWN_TABLE : index->table, row);
            if (part == 0) { /* as far apart as hashing puts them */
                ids[i] = (uint64_t)(((unsigned __int128)hps_mix64(row) * index->n_slots) >> 64);
            }
        }
    }
}

static void make_keys(struct bench_rig *rig, struct bench_batches *batches, uint32_t b)
{
    uint64_t ids_size = batches->spec.n_keys * sizeof(uint64_t);
    uint64_t keys_size = batches->spec.n_parts * ids_size;
    hps_devptr mapped, unused;

    batches->ids[b] = bench_memory(rig, ids_size);
    batches->keys[b] = batches->spec.mapped ? 0 : bench_memory(rig, keys_size);
    batches->keys_host[b] = bench_host_memory(rig, keys_size, &mapped);
    uint32_t before = rig->n_pieces;
    uint64_t *ids = bench_host_memory(rig, ids_size, &unused);
    draw(rig, batches, batches->keys_host[b], ids);
    bench_upload(rig, batches->ids[b], ids, ids_size);
    if (batches->spec.mapped) {
        batches->keys[b] = mapped;
    } else {
        bench_upload(rig, batches->keys[b], batches->keys_host[b], keys_size);
    }
    bench_free_to(rig, before);
}

void bench_batches_open(struct bench_rig *rig, struct bench_batches *batches,
                        const struct bench_index *indices, const struct bench_batch_spec *spec)
{
    uint64_t n_all = (uint64_t)spec->n_parts * spec->n_keys;
    const struct hps_embed_shape *shape = spec->shape;

    *batches = (struct bench_batches){.spec = *spec, .indices = indices, .observe_step = 1};
    batches->n_tiles = (uint32_t)(n_all / HPS_EMBED_TILE_KEYS);
    batches->n_out = is_pooled(spec) ? spec->n_keys / spec->bag : spec->n_keys;
    batches->out_bytes = shape == NULL ? indices[0].row_bytes
                                       : (uint32_t)hps_dtype_row_bytes(shape->wanted, shape->dim);
    uint64_t n_bags = is_pooled(spec) ? (uint64_t)spec->n_parts * batches->n_out : 0;
    batches->parts = bench_memory(rig, spec->n_parts * sizeof(struct hps_embed_part_desc));
    batches->tiles = bench_memory(rig, batches->n_tiles * sizeof(struct hps_embed_tile));
    batches->bags = bench_memory(rig, (n_bags + 1) * sizeof(struct hps_embed_bag));
    batches->found =
        bench_memory(rig, (is_pooled(spec) ? n_all : 1) * sizeof(struct hps_embed_found));
    batches->hits = bench_memory(rig, batches->n_tiles * sizeof(uint32_t));
    batches->blocks_done = bench_memory(rig, 256);
    batches->flag_host = bench_host_memory(rig, 256, &batches->flag);
    batches->out = bench_memory(rig, (uint64_t)spec->n_parts * batches->n_out * batches->out_bytes);
    if (rig->status == HPS_OK) {
        (void)bench_ok(rig, hps_fill_on_device(rig->stream, batches->blocks_done, 0, 256), "clear");
    }
    make_records(rig, batches);
    for (uint32_t b = 0; b < BENCH_BATCHES && rig->status == HPS_OK; b++) {
        make_keys(rig, batches, b);
    }
}

struct bench_moved bench_batches_moved(const struct bench_batches *batches, double hit_share,
                                       double index_bytes)
{
    double n_keys = (double)batches->spec.n_parts * batches->spec.n_keys;
    double n_out = (double)batches->spec.n_parts * batches->n_out;

    return (struct bench_moved){
        .n = hit_share * n_keys,
        .read = batches->indices[0].row_bytes,
        .written = batches->out_bytes * n_out / n_keys,
        .index = index_bytes / hit_share, /* of keys that miss, too */
    };
}

/* ---- whether it is right --------------------------------------------------------------------- */

static bool is_hit(const uint32_t *hits, uint32_t key)
{
    return (hits[key / HPS_EMBED_TILE_KEYS] >> key % HPS_EMBED_TILE_KEYS & 1) != 0;
}

/* The row of one key as it is wanted, or the sum of the bag of n keys. */
static void expected_of(const struct bench_batches *batches, uint32_t row_bytes,
                        const uint64_t *keys, uint32_t n, uint8_t *to)
{
    const struct hps_embed_shape *shape = batches->spec.shape;
    struct hps_bag_weights weights = {0};
    float sum[DIM_MAX] = {0};
    uint8_t row[ROW_BYTES_MAX];
    const uint8_t *rows = row;

    for (uint32_t i = 0; i < n; i++) {
        bench_row(keys[i], row, row_bytes);
        if (is_pooled(&batches->spec)) {
            hps_row_sum_add(sum, shape->stored, shape->dim, &rows, NULL, 1);
        }
    }
    if (is_pooled(&batches->spec)) {
        hps_bag_weights_add(&weights, NULL, n);
        hps_row_sum_end(to, shape->wanted, sum, shape->dim, shape->pooling, &weights);
    } else if (shape != NULL) {
        hps_row_convert(to, shape->wanted, row, shape->stored, shape->dim);
    } else {
        memcpy(to, row, row_bytes);
    }
}

static void check_one(struct bench_rig *rig, const struct bench_batches *batches,
                      const uint32_t *hits, uint32_t out, uint8_t *got)
{
    uint32_t n = is_pooled(&batches->spec) ? batches->spec.bag : 1;
    const uint64_t *keys = batches->keys_host[batches->last] + (uint64_t)out * n;
    uint8_t expected[ROW_BYTES_MAX];

    for (uint32_t i = 0; i < n; i++) {
        if (!is_hit(hits, out * n + i)) {
            return;
        }
    }
    expected_of(batches, batches->indices[out / batches->n_out].row_bytes, keys, n, expected);
    bench_download(rig, got, batches->out + (uint64_t)out * batches->out_bytes, batches->out_bytes);
    if (rig->status == HPS_OK && memcmp(got, expected, batches->out_bytes) != 0) {
        (void)bench_ok(rig, HPS_INTERNAL,
                       "a row that a lookup has answered differs from its key's");
    }
}

double bench_batches_check(struct bench_rig *rig, const struct bench_batches *batches)
{
    hps_devptr unused;
    uint32_t before = rig->n_pieces, n_out = batches->spec.n_parts * batches->n_out;
    uint64_t n_hit = 0, size = batches->n_tiles * sizeof(uint32_t);
    uint32_t *hits = bench_host_memory(rig, size, &unused);
    uint8_t *got = bench_host_memory(rig, ROW_BYTES_MAX, &unused);

    bench_download(rig, hits, batches->hits, size);
    for (uint32_t i = 0; i < batches->n_tiles && rig->status == HPS_OK; i++) {
        n_hit += (uint64_t)__builtin_popcount(hits[i]);
    }
    for (uint32_t i = 0; i < SAMPLES && rig->status == HPS_OK; i++) {
        check_one(rig, batches, hits, (uint32_t)(hps_random_next(&rig->random) % n_out), got);
    }
    double hit_share = (double)n_hit / ((double)batches->n_tiles * HPS_EMBED_TILE_KEYS);
    if (batches->spec.unknown_percent == 0 && hit_share < HIT_SHARE_MIN) {
        (void)bench_ok(rig, HPS_INTERNAL, "a lookup misses keys that are in the index");
    }
    bench_free_to(rig, before);
    return hit_share;
}

/* ---- launches -------------------------------------------------------------------------------- */

static uint32_t blocks_for(const struct hps_kernel *kernel, uint64_t n_warps)
{
    uint32_t per_block = kernel->block_threads / HPS_EMBED_TILE_KEYS;

    return (uint32_t)((n_warps + per_block - 1) / per_block);
}

/* The lookup of n parts. flag: it raises it. */
static hps_status do_lookup(struct hps_stream_q *stream, const struct bench_batches *batches,
                            uint32_t b, uint32_t first_part, uint32_t n_parts, bool flag)
{
    uint64_t first = (uint64_t)first_part * tiles_per_part(batches);
    const struct hps_embed_lookup_args args = {
        .parts = batches->parts,
        .tiles = batches->tiles + first * sizeof(struct hps_embed_tile),
        .keys = batches->keys[b],
        .found = batches->found,
        .hits = batches->hits + first * sizeof(uint32_t),
        .blocks_done = batches->blocks_done,
        .flag = flag ? batches->flag : 0,
        .n_tiles = n_parts * tiles_per_part(batches),
        .sequence = batches->sequence,
    };

    return hps_launch(stream, &hps_embed_kernel_lookup,
                      blocks_for(&hps_embed_kernel_lookup, args.n_tiles), &args);
}

static hps_status pool(struct bench_rig *rig, const struct bench_batches *batches)
{
    const struct hps_embed_pool_args args = {
        .parts = batches->parts,
        .bags = batches->bags,
        .found = batches->found,
        .blocks_done = batches->blocks_done,
        .flag = batches->flag,
        .n_bags = batches->spec.n_parts * batches->n_out,
        .lanes = bench_lanes(batches->spec.shape->dim * (16 / VALUES_PER_LANE)),
        .sequence = batches->sequence,
    };
    uint64_t n_threads = (uint64_t)args.n_bags * args.lanes;

    return hps_launch(rig->stream, &hps_embed_kernel_pool,
                      blocks_for(&hps_embed_kernel_pool, (n_threads + 31) / 32), &args);
}

hps_status bench_batches_give(struct bench_rig *rig, void *arg, uint32_t i)
{
    struct bench_batches *batches = arg;
    bool pooled = is_pooled(&batches->spec);

    batches->sequence++;
    batches->last = i % BENCH_BATCHES;
    hps_status status =
        do_lookup(rig->stream, batches, batches->last, 0, batches->spec.n_parts, !pooled);
    return status == HPS_OK && pooled ? pool(rig, batches) : status;
}

hps_status bench_batches_give_parts(struct bench_rig *rig, const struct bench_batches *batches,
                                    uint32_t i, struct hps_stream_q *const *streams,
                                    uint32_t n_streams)
{
    hps_status status = HPS_OK;

    for (uint32_t part = 0; part < batches->spec.n_parts && status == HPS_OK; part++) {
        struct hps_stream_q *stream = n_streams > 0 ? streams[part % n_streams] : rig->stream;
        status = do_lookup(stream, batches, i % BENCH_BATCHES, part, 1, false);
    }
    return status;
}

static hps_status give_gather(struct bench_rig *rig, const struct bench_batches *batches,
                              uint32_t i, uint64_t sets)
{
    const struct bench_index *index = &batches->indices[0];
    const struct bench_gather_args args = {
        .rows = index->desc.rows,
        .sets = sets,
        .ids = batches->ids[i % BENCH_BATCHES],
        .out = batches->out,
        .n = batches->spec.n_keys,
        .row_stride = index->desc.row_stride,
        .row_bytes = index->row_bytes,
        .lanes = bench_lanes(index->row_bytes),
    };

    return hps_launch(rig->stream, &bench_kernel_gather,
                      blocks_for(&bench_kernel_gather, (args.n + 31) / 32), &args);
}

hps_status bench_batches_give_gather(struct bench_rig *rig, void *batches, uint32_t i)
{
    return give_gather(rig, batches, i, 0);
}

hps_status bench_batches_give_gather_sets(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_batches *batches = arg;

    return give_gather(rig, batches, i, batches->indices[0].desc.sets);
}

hps_status bench_batches_give_observe(struct bench_rig *rig, void *arg, uint32_t i)
{
    const struct bench_batches *batches = arg;
    const struct hps_embed_observe_args args = {
        .parts = batches->parts,
        .tiles = batches->tiles,
        .keys = batches->keys[i % BENCH_BATCHES],
        .n_tiles = batches->n_tiles,
        .first = i % batches->observe_step % batches->n_tiles,
        .step = batches->observe_step,
    };
    uint32_t n = (args.n_tiles - args.first + args.step - 1) / args.step;

    return hps_launch(rig->stream, &hps_embed_kernel_observe,
                      blocks_for(&hps_embed_kernel_observe, n), &args);
}
