/* SPDX-License-Identifier: Apache-2.0
 *
 * See shape_checks.h.
 */
#include "tests/gpu/shape_checks.h"

#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "base/row_sum.h"
#include "tests/gpu/embed_rig.h"
#include "tests/lib/pause.h"

enum {
    N_KEYS = 120,
    N_CACHED = 100, /* the first ones */
    DIM_MAX = 264,
    ROW_BYTES_MAX = DIM_MAX * 4,
    N_DTYPES = HPS_DTYPE_STORED_END - 1,
    N_DIMS = 6,
    N_TABLES = N_DTYPES * N_DIMS,
    N_BAGS_MAX = 24,
    N_PART_KEYS_MAX = 300,
    QUERY_BYTES = 4 << 20,
    POISON = 0xb7,
    PATIENCE_US = 600000000,
};

static const uint32_t dims[N_DIMS] = {1, 3, 16, 33, 128, 261};

struct shape_table {
    struct hps_embed_range *range;
    enum hps_dtype stored;
    uint32_t dim;
    uint32_t row_bytes;
    uint8_t *rows; /* [N_KEYS][row_bytes] row of key i as stored */
};

/* A part in flight, and its request. */
struct shape_part {
    const struct shape_table *table;
    struct hps_embed_shape shape;
    uint32_t offsets[N_BAGS_MAX + 1];
    hps_key keys[N_PART_KEYS_MAX];
    float weights[N_PART_KEYS_MAX];
    uint32_t stride;
};

struct shape_rig {
    struct embed_rig rig;
    struct shape_table tables[N_TABLES];
    struct shape_part parts[N_TABLES];
    struct hps_embed_part asked[N_TABLES];
    uint64_t bytes; /* used bytes of the query's region */
};

/* ---- tables ---------------------------------------------------------------------------------- */

/* Values of all magnitudes, so that sums depend on the order of their rows. */
static float random_value(struct embed_rig *rig)
{
    float mantissa = (float)((int32_t)embed_random(rig, 1 << 24) - (1 << 23)) / (float)(1 << 23);

    return ldexpf(mantissa, (int)embed_random(rig, 20) - 10);
}

static void make_row(struct embed_rig *rig, struct shape_table *table, uint32_t key)
{
    float values[DIM_MAX];

    for (uint32_t i = 0; i < table->dim; i++) {
        values[i] = random_value(rig);
    }
    hps_row_convert(table->rows + (size_t)key * table->row_bytes, table->stored, values,
                    HPS_DTYPE_FP32, table->dim);
}

static void stage(struct embed_rig *rig, const struct shape_table *table, enum hps_embed_op op,
                  uint32_t first, uint32_t n)
{
    hps_key keys[N_KEYS];
    hps_status status = HPS_AGAIN;
    uint32_t taken = 0;

    for (uint32_t i = 0; i < n; i++) {
        keys[i] = first + i;
    }
    for (uint32_t at = 0; at < n && !rig->failed; at += taken) {
        status = hps_embed_stage(rig->cache, table->range, op, keys + at,
                                 table->rows + (size_t)(first + at) * table->row_bytes, n - at,
                                 NULL, &taken);
        if (status == HPS_AGAIN) {
            taken = 0;
            hps_embed_advance(rig->cache);
            brief_pause();
        } else {
            (void)embed_ok(rig, status, "stage");
        }
    }
}

static void table_open(struct embed_rig *rig, struct shape_table *table, enum hps_dtype stored,
                       uint32_t dim)
{
    const uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(stored, dim);
    const struct hps_embed_range_config config = {
        .row_bytes = row_bytes,
        .n_rows = N_KEYS,
        .bytes_max = hps_embed_range_bytes(row_bytes, N_KEYS, N_KEYS)};

    *table = (struct shape_table){.stored = stored, .dim = dim, .row_bytes = row_bytes};
    table->rows = embed_calloc(rig, N_KEYS, row_bytes);
    if (rig->failed ||
        !embed_ok(rig, hps_embed_range_new(rig->cache, &config, &table->range, rig->err),
                  "a range")) {
        return;
    }
    for (uint32_t i = 0; i < N_KEYS; i++) {
        make_row(rig, table, i);
    }
    stage(rig, table, HPS_EMBED_INSERT, 0, N_CACHED);
}

static void table_close(struct shape_table *table)
{
    hps_embed_range_free(table->range);
    hps_free(table->rows);
}

static struct shape_rig *shape_rig_open(struct hps_device *device, uint32_t mapped_bytes_max,
                                        uint32_t batch_keys_max, bool on_device,
                                        struct hps_error *err)
{
    const struct hps_embed_cache_config config = {.arena_bytes = 16 << 20,
                                                  .gather_bytes = 8 << 20,
                                                  .stage_bytes = 1 << 20,
                                                  .timeout_us = PATIENCE_US,
                                                  .seed = 42,
                                                  .n_batches = 2,
                                                  .batch_keys_max = batch_keys_max,
                                                  .batch_parts_max = N_TABLES,
                                                  .mapped_bytes_max = mapped_bytes_max,
                                                  .sample_rate = 1};
    static struct shape_rig the_one; /* too large for a stack */
    struct shape_rig *rig = &the_one;

    *rig = (struct shape_rig){0};
    embed_rig_open(&rig->rig, device, &config, QUERY_BYTES, on_device ? 1 : 0, err);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        table_open(&rig->rig, &rig->tables[i], (enum hps_dtype)(i / N_DIMS + 1), dims[i % N_DIMS]);
    }
    return rig;
}

static bool shape_rig_close(struct shape_rig *rig)
{
    for (uint32_t i = 0; i < N_TABLES; i++) {
        table_close(&rig->tables[i]);
    }
    return embed_rig_close(&rig->rig);
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t value_bytes_of(const struct shape_part *part)
{
    return part->shape.wanted == HPS_DTYPE_FP32 ? 4 : 2;
}

static uint32_t rows_of(const struct shape_part *part, const struct hps_embed_part *asked)
{
    return part->shape.pooling == HPS_POOLING_NONE ? asked->n : part->shape.n_bags;
}

/* One key in fifty is not cached. */
static void draw_keys(struct embed_rig *rig, struct shape_part *part, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t below = embed_random(rig, 8) == 0 ? N_KEYS : N_CACHED;
        part->keys[i] = embed_random(rig, below);
        part->weights[i] = embed_random(rig, 8) == 0 ? 0 : random_value(rig);
    }
}

/* Bags of up to 12 keys, some empty. */
static void draw_bags(struct embed_rig *rig, struct shape_part *part)
{
    part->shape.n_bags = embed_random(rig, N_BAGS_MAX + 1);
    part->offsets[0] = embed_random(rig, 3); /* part of a longer list */
    for (uint32_t b = 0; b < part->shape.n_bags; b++) {
        part->offsets[b + 1] = part->offsets[b] + embed_random(rig, 13);
    }
    part->shape.offsets = part->offsets;
}

/* Place the rows: adjacent, or in columns of wider rows. */
static void place(struct shape_rig *rig, struct shape_part *part, struct hps_embed_part *asked,
                  bool apart)
{
    uint32_t value_bytes = value_bytes_of(part);
    uint32_t row_bytes = part->table->dim * value_bytes;
    uint32_t column = apart ? embed_random(&rig->rig, 9) * value_bytes : 0;

    part->stride = row_bytes + (apart ? (1 + embed_random(&rig->rig, 9)) * value_bytes : 0);
    asked->stride = apart ? part->stride : 0;
    asked->offset = rig->bytes + column;
    rig->bytes += column + (uint64_t)rows_of(part, asked) * part->stride;
    rig->bytes = (rig->bytes + 63) / 64 * 64;
    (void)embed_expect(&rig->rig, rig->bytes < QUERY_BYTES, "the query is full");
}

static void ask_for(struct shape_rig *rig, uint32_t i, enum hps_dtype wanted,
                    enum hps_pooling pooling)
{
    struct shape_part *part = &rig->parts[i];
    struct hps_embed_part *asked = &rig->asked[i];
    uint32_t n = 1 + embed_random(&rig->rig, 80);

    part->table = &rig->tables[i];
    part->shape = (struct hps_embed_shape){.stored = part->table->stored,
                                           .dim = part->table->dim,
                                           .wanted = wanted,
                                           .pooling = pooling};
    if (pooling != HPS_POOLING_NONE) {
        draw_bags(&rig->rig, part);
        n = part->offsets[part->shape.n_bags] - part->offsets[0];
        part->shape.weights =
            embed_random(&rig->rig, 2) == 0 ? (const uint8_t *)part->weights : NULL;
    }
    draw_keys(&rig->rig, part, n);
    *asked = (struct hps_embed_part){.range = part->table->range,
                                     .keys = (const uint8_t *)part->keys,
                                     .n = n,
                                     .region = rig->rig.queries[0].region,
                                     .shape = &part->shape};
    place(rig, part, asked, embed_random(&rig->rig, 2) == 0);
}

/* ---- looking up ------------------------------------------------------------------------------ */

static void end_of(struct embed_rig *rig, hps_status status)
{
    if (embed_ok(rig, status, "work")) {
        (void)embed_ok(rig, hps_event_record(rig->event, rig->stream), "record");
        (void)embed_ok(rig, hps_event_wait(rig->event), "wait");
    }
}

static void poison(struct shape_rig *rig)
{
    struct embed_query *query = &rig->rig.queries[0];

    memset(query->host, POISON, QUERY_BYTES);
    if (query->device != 0) {
        end_of(&rig->rig, hps_fill_on_device(rig->rig.stream, query->device, POISON, QUERY_BYTES));
    }
}

static void submit(struct shape_rig *rig, uint32_t n_parts, struct hps_embed_ticket **out_ticket)
{
    hps_status status = HPS_AGAIN;

    while (status == HPS_AGAIN && !rig->rig.failed) {
        status = hps_embed_submit(rig->rig.cache, rig->asked, n_parts, out_ticket);
        hps_embed_advance(rig->rig.cache);
    }
    (void)embed_ok(&rig->rig, status, "submit");
}

static void await(struct shape_rig *rig, struct hps_embed_ticket *ticket)
{
    struct embed_query *query = &rig->rig.queries[0];
    hps_status status = HPS_AGAIN;

    while (status == HPS_AGAIN && !rig->rig.failed) {
        status = hps_embed_poll(ticket);
        brief_pause();
    }
    (void)embed_ok(&rig->rig, status, "poll");
    if (query->device != 0 && !rig->rig.failed) {
        end_of(&rig->rig,
               hps_copy_to_host(rig->rig.stream, query->host, query->device, QUERY_BYTES));
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static void check_row(struct shape_rig *rig, uint32_t i, uint32_t row, const uint8_t *expected)
{
    const struct shape_part *part = &rig->parts[i];
    size_t row_bytes = (size_t)part->table->dim * value_bytes_of(part);
    const uint8_t *got =
        rig->rig.queries[0].host + rig->asked[i].offset + (uint64_t)row * part->stride;

    rig->rig.n_hits++;
    (void)embed_expect(&rig->rig, memcmp(got, expected, row_bytes) == 0,
                       "%s to %s, %u values, pooling %s, stride %u: row %u differs",
                       hps_dtype_name(part->shape.stored), hps_dtype_name(part->shape.wanted),
                       part->table->dim, hps_pooling_name(part->shape.pooling), part->stride, row);
}

static const uint8_t *row_of(const struct shape_part *part, uint32_t i)
{
    return part->table->rows + (size_t)part->keys[i] * part->table->row_bytes;
}

static void check_bag(struct shape_rig *rig, uint32_t i, uint32_t bag, uint32_t first, uint32_t n)
{
    const struct shape_part *part = &rig->parts[i];
    const uint8_t *weights = part->shape.weights;
    const uint8_t *rows[N_PART_KEYS_MAX];
    float sum[DIM_MAX] = {0};
    uint8_t expected[ROW_BYTES_MAX];
    struct hps_bag_weights all = {0};

    weights = weights == NULL ? NULL : weights + (size_t)first * sizeof(float);
    for (uint32_t k = 0; k < n; k++) {
        rows[k] = row_of(part, first + k);
    }
    hps_row_sum_add(sum, part->shape.stored, part->table->dim, rows, weights, n);
    hps_bag_weights_add(&all, weights, n);
    hps_row_sum_end(expected, part->shape.wanted, sum, part->table->dim, part->shape.pooling, &all);
    check_row(rig, i, bag, expected);
}

static void check_part(struct shape_rig *rig, const struct hps_embed_ticket *ticket, uint32_t i)
{
    const struct shape_part *part = &rig->parts[i];
    const uint32_t *hits = hps_embed_hits(ticket, i);
    uint8_t expected[ROW_BYTES_MAX];

    for (uint32_t k = 0; k < rig->asked[i].n; k++) {
        bool hit = (hits[k / 32] >> k % 32 & 1) != 0;
        (void)embed_expect(&rig->rig, hit == (part->keys[k] < N_CACHED), "key %u: hit %d", k, hit);
        if (hit && part->shape.pooling == HPS_POOLING_NONE) {
            hps_row_convert(expected, part->shape.wanted, row_of(part, k), part->shape.stored,
                            part->table->dim);
            check_row(rig, i, k, expected);
        }
    }
    for (uint32_t b = 0; b < part->shape.n_bags; b++) {
        uint32_t first = part->offsets[b] - part->offsets[0];
        uint32_t end = part->offsets[b + 1] - part->offsets[0], k = first;
        while (k < end && part->keys[k] < N_CACHED) {
            k++;
        }
        if (k == end && first < end) {
            check_bag(rig, i, b, first, end - first);
        }
    }
}

/* Gaps between rows were not written. */
static void check_between(struct shape_rig *rig, uint32_t i)
{
    const struct shape_part *part = &rig->parts[i];
    size_t row_bytes = (size_t)part->table->dim * value_bytes_of(part);
    const uint8_t *at = rig->rig.queries[0].host + rig->asked[i].offset;

    for (uint32_t row = 0; row < rows_of(part, &rig->asked[i]); row++, at += part->stride) {
        for (size_t byte = row_bytes; byte < part->stride; byte++) {
            if (!embed_expect(&rig->rig, at[byte] == POISON, "a byte behind row %u", row)) {
                return;
            }
        }
    }
}

static void do_lookup(struct shape_rig *rig, uint32_t n_parts)
{
    struct hps_embed_ticket *ticket = NULL;

    if (rig->rig.failed) {
        return;
    }
    poison(rig);
    submit(rig, n_parts, &ticket);
    await(rig, ticket);
    for (uint32_t i = 0; i < n_parts && !rig->rig.failed; i++) {
        check_part(rig, ticket, i);
        check_between(rig, i);
    }
    hps_embed_release(ticket);
    rig->bytes = 0;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static bool check_shapes(struct hps_device *device, struct hps_error *err,
                         uint32_t mapped_bytes_max, bool on_device)
{
    struct shape_rig *rig = shape_rig_open(device, mapped_bytes_max, 8192, on_device, err);

    for (unsigned wanted = HPS_DTYPE_FP32; wanted <= HPS_DTYPE_BF16; wanted++) {
        for (unsigned pooling = HPS_POOLING_NONE; pooling <= HPS_POOLING_MEAN_BY_COUNT; pooling++) {
            for (uint32_t i = 0; i < N_TABLES; i++) {
                ask_for(rig, i, (enum hps_dtype)wanted, (enum hps_pooling)pooling);
            }
            do_lookup(rig, N_TABLES);
        }
    }
    for (uint32_t round = 0; round < 4; round++) { /* all types in one batch */
        for (uint32_t i = 0; i < N_TABLES; i++) {
            ask_for(rig, i, (enum hps_dtype)(1 + embed_random(&rig->rig, 3)),
                    (enum hps_pooling)(1 + embed_random(&rig->rig, 5)));
        }
        do_lookup(rig, N_TABLES);
    }
    (void)embed_expect(&rig->rig, rig->rig.n_hits > 1000, "only %u rows",
                       (unsigned)rig->rig.n_hits);
    return shape_rig_close(rig);
}

bool shape_check_mapped(struct hps_device *device, struct hps_error *err)
{
    return check_shapes(device, err, UINT32_MAX, false);
}

bool shape_check_gathered(struct hps_device *device, struct hps_error *err)
{
    return check_shapes(device, err, 1, false);
}

bool shape_check_on_device(struct hps_device *device, struct hps_error *err)
{
    return check_shapes(device, err, 1, true);
}

/* Look up bags of the given sizes of one table, FP32. */
static void lookup_bags(struct shape_rig *rig, uint32_t table, const uint32_t *sizes, uint32_t n)
{
    struct shape_part *part = &rig->parts[0];

    ask_for(rig, 0, HPS_DTYPE_FP32, HPS_POOLING_MEAN);
    part->table = &rig->tables[table];
    part->shape.stored = part->table->stored;
    part->shape.dim = part->table->dim;
    part->shape.n_bags = n;
    for (uint32_t b = 0; b < n; b++) {
        part->offsets[b + 1] = part->offsets[b] + sizes[b];
    }
    rig->asked[0].range = part->table->range;
    rig->asked[0].n = part->offsets[n] - part->offsets[0];
    draw_keys(&rig->rig, part, rig->asked[0].n);
    for (uint32_t i = 0; i < rig->asked[0].n; i++) {
        part->keys[i] %= N_CACHED;
    }
    rig->bytes = 0;
    place(rig, part, &rig->asked[0], false);
    do_lookup(rig, 1);
}

bool shape_check_sizes(struct hps_device *device, struct hps_error *err)
{
    static const uint32_t sizes[][N_BAGS_MAX] = {
        {N_PART_KEYS_MAX},
        {0, 1, 0, 0, 4, 5, 3, 0, 31, 32, 33, 64, 1, 1, 0},
        {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    struct shape_rig *rig = shape_rig_open(device, 1, N_PART_KEYS_MAX, false, err);

    for (uint32_t table = 0; table < N_TABLES; table += 5) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            lookup_bags(rig, table, sizes[i], N_BAGS_MAX);
        }
    }
    return shape_rig_close(rig);
}

bool shape_check_updates(struct hps_device *device, struct hps_error *err)
{
    struct shape_rig *rig = shape_rig_open(device, 4096, 8192, false, err);

    for (uint32_t round = 0; round < 8; round++) {
        for (uint32_t i = 0; i < N_TABLES; i++) {
            uint32_t first = embed_random(&rig->rig, N_CACHED / 2);
            for (uint32_t key = first; key < first + N_CACHED / 2; key++) {
                make_row(&rig->rig, &rig->tables[i], key);
            }
            stage(&rig->rig, &rig->tables[i], HPS_EMBED_UPDATE, first, N_CACHED / 2);
            ask_for(rig, i, HPS_DTYPE_FP32, round % 2 == 0 ? HPS_POOLING_SUM : HPS_POOLING_NONE);
        }
        do_lookup(rig, N_TABLES);
    }
    return shape_rig_close(rig);
}
