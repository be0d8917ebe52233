/* SPDX-License-Identifier: Apache-2.0
 *
 * Narrow rows and pooling in the host map. FP16 and INT8 rows are looked up as stored and as FP32,
 * and compared with FP32 rows and with the ceiling for rows of that width (ceiling.h). Sums of 32
 * rows are compared with lookups of the same number of keys, and with torch.nn.EmbeddingBag, which
 * receives row numbers. Also reported: rows per byte. All cases run with random keys, and with
 * consecutive keys, which need no index; their ceiling is the gather alone.
 *
 * One thread, CPU time. Lookups and ceilings use batches of 1,024 keys, sums and their peers 512
 * bags. All steps take turns of equal length, so that each has the caches to itself. No key
 * repeats.
 */
#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "backends/store_pool.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "bench/ceiling.h"
#include "bench/embedding_bag.h"
#include "client/zipf.h"

enum {
    FEW = BENCH_CEILING_KEYS_MAX,
    BAG_KEYS = 32,
    N_BAGS = 512,
    MANY = N_BAGS * BAG_KEYS,
    ROUNDS = 5,
    PIECE = 1024,
    DIM_MAX = 128,
};
#define TURN_NS   UINT64_C(100000000) /* as in embedding_bag.py */
#define MAP_BYTES (UINT64_C(8) << 30)

/* How rows are stored; FP32 is the baseline. The last kind has FP16 scales. Its speed is not
 * measured. */
enum kind { FP32, FP16, INT8, KINDS, INT8_F16 = KINDS, TABLES };
static const enum hps_dtype dtypes[TABLES] = {
    HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_INT8_ROWWISE_F32, HPS_DTYPE_INT8_ROWWISE_F16};
static const char *const names[TABLES] = {"fp32", "fp16", "int8", "int8, fp16 scale"};

/* Timed steps of each kind of rows; from ALL on, batches have many keys. */
enum step { GATHER, STREAM, INDEX, RAW, TO_FP32, ALL, SUM, MEAN, STEPS };

struct times {
    double ns[KINDS][STEPS];            /* per key */
    double torch_sum_ns, torch_mean_ns; /* 0: no torch */
    bool dense;
};

struct work {
    bool dense; /* keys are row numbers */
    struct hps_store *store;
    struct hps_space *spaces[TABLES];
    struct hps_table tables[TABLES];
    struct bench_ceiling ceiling;
    struct bench_bags torch;
    uint8_t *out;
    uint8_t *streamed; /* for non-temporal stores, which would evict `out` */
    uint32_t offsets[N_BAGS + 1];
    hps_key keys[MANY];
    uint32_t slots[MANY];
    uint64_t places[FEW];
    struct hps_random random;
    struct hps_zipf zipf;
};

static hps_key key_of(const struct work *work, uint64_t row)
{
    return work->dense ? row : hps_mix64(row + 1);
}

static void draw(struct work *work, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row = hps_zipf_row(&work->zipf, hps_zipf_rank(&work->zipf, &work->random));
        work->places[i % FEW] = row; /* for steps with few keys */
        work->keys[i] = key_of(work, row);
        work->slots[i] = i;
    }
}

/* ---- timed steps ----------------------------------------------------------------------------- */

static hps_status do_lookup(struct work *work, enum kind kind, enum hps_dtype output, uint32_t n)
{
    const struct hps_table *table = &work->tables[kind];
    struct hps_call call = {0};
    struct hps_batch batch = {.keys = work->keys,
                              .slots = work->slots,
                              .rows = work->out,
                              .n = n,
                              .shape.stride = hps_dtype_row_bytes(output, table->dim),
                              .shape.dtype = output};

    batch.shape.rows = output != table->dtype ? work->out : NULL;
    hps_status status = work->store->ops->get(work->spaces[kind], &call, table, &batch);
    return status == HPS_OK && batch.n != 0 ? HPS_INTERNAL : status;
}

static hps_status pool(struct work *work, enum kind kind, enum hps_pooling pooling)
{
    const struct hps_table *table = &work->tables[kind];
    struct hps_call call = {0};
    uint32_t whole[(N_BAGS + 31) / 32];
    const struct hps_bags bags = {.keys = (const uint8_t *)work->keys,
                                  .offsets = work->offsets,
                                  .pooling = pooling,
                                  .out = {work->out, table->dim * sizeof(float), HPS_DTYPE_FP32},
                                  .whole = whole};

    hps_status status =
        work->store->ops->pool->bags(work->spaces[kind], &call, table, &bags, 0, N_BAGS);
    for (uint32_t b = 0; b < N_BAGS && status == HPS_OK; b++) {
        status = hps_bags_whole(&bags, b) ? HPS_OK : HPS_INTERNAL;
    }
    return status;
}

static hps_status run_step(struct work *work, enum kind kind, enum step step)
{
    switch (step) {
    case GATHER:
    case STREAM:
        bench_ceiling_gather(&work->ceiling, work->tables[kind].row_bytes, work->places, FEW,
                             step == STREAM ? work->streamed : work->out,
                             step == STREAM ? BENCH_COPY_STREAM : BENCH_COPY_VECTORS);
        return HPS_OK;
    case INDEX:
        bench_ceiling_touch(&work->ceiling, work->keys, FEW);
        return HPS_OK;
    case RAW:
        return do_lookup(work, kind, dtypes[kind], FEW);
    case TO_FP32:
        return do_lookup(work, kind, HPS_DTYPE_FP32, FEW);
    case ALL:
        return do_lookup(work, kind, HPS_DTYPE_FP32, MANY);
    case SUM:
        return pool(work, kind, HPS_POOLING_SUM);
    default:
        return pool(work, kind, HPS_POOLING_MEAN);
    }
}

/* out_ns: CPU time per key. */
static hps_status turn_of(struct work *work, enum kind kind, enum step step, double *out_ns)
{
    uint32_t n = step < ALL ? FEW : MANY;
    uint64_t spent_ns = 0, n_keys = 0;
    hps_status status = HPS_OK;

    while (status == HPS_OK && spent_ns < TURN_NS) {
        draw(work, n);
        uint64_t begin_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        status = run_step(work, kind, step);
        spent_ns += bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
        n_keys += n;
    }
    *out_ns = (double)spent_ns / (double)n_keys;
    return status;
}

static hps_status round_of(struct work *work, struct times *out_times)
{
    hps_status status = HPS_OK;

    for (unsigned i = 0; i < KINDS * STEPS && status == HPS_OK; i++) {
        enum kind kind = (enum kind)(i / STEPS);
        enum step step = (enum step)(i % STEPS);
        status = turn_of(work, kind, step, &out_times->ns[kind][step]);
    }
    out_times->dense = work->dense;
    out_times->torch_sum_ns = bench_bags_ns(&work->torch, "sum");
    out_times->torch_mean_ns = bench_bags_ns(&work->torch, "mean");
    return status;
}

/* ---- reports --------------------------------------------------------------------------------- */

/* The ceiling: the faster gather of rows of this width, plus the index line if there is an index.
 */
static double ceiling_ns(const struct times *times, enum kind kind)
{
    const double *ns = times->ns[kind];
    return (ns[GATHER] < ns[STREAM] ? ns[GATHER] : ns[STREAM]) + (times->dense ? 0 : ns[INDEX]);
}

static double ratio_of(const struct times *times, enum kind kind, enum step step)
{
    return times->ns[FP32][RAW] / times->ns[kind][step];
}

typedef double (*value_fn)(const struct times *times, enum kind kind);

static double raw_ns(const struct times *times, enum kind kind)
{
    return times->ns[kind][RAW];
}

static double to_fp32_ns(const struct times *times, enum kind kind)
{
    return times->ns[kind][TO_FP32];
}

static double all_ns(const struct times *times, enum kind kind)
{
    return times->ns[kind][ALL];
}

static double sum_ns(const struct times *times, enum kind kind)
{
    return times->ns[kind][SUM];
}

static double raw_ratio(const struct times *times, enum kind kind)
{
    return ratio_of(times, kind, RAW);
}

static double to_fp32_ratio(const struct times *times, enum kind kind)
{
    return ratio_of(times, kind, TO_FP32);
}

static double ceiling_ratio(const struct times *times, enum kind kind)
{
    return ceiling_ns(times, FP32) / ceiling_ns(times, kind);
}

static double raw_share(const struct times *times, enum kind kind)
{
    return raw_ratio(times, kind) / ceiling_ratio(times, kind);
}

static double lookup_share(const struct times *times, enum kind kind)
{
    return ceiling_ns(times, kind) / times->ns[kind][RAW];
}

static double sum_ratio(const struct times *times, enum kind kind)
{
    return times->ns[kind][ALL] / times->ns[kind][SUM];
}

static double torch_sum_ratio(const struct times *times, enum kind kind)
{
    return times->torch_sum_ns / times->ns[kind][SUM];
}

static double torch_mean_ratio(const struct times *times, enum kind kind)
{
    return times->torch_mean_ns / times->ns[kind][MEAN];
}

struct row {
    const char *metric; /* follows the kind's name */
    const char *unit;
    value_fn value;
    bool others; /* all kinds but FP32 */
};

static const struct row report_rows[] = {
    {"ceiling", "ns/key", ceiling_ns, false},
    {"lookup, raw", "ns/key", raw_ns, false},
    {"ceiling/lookup", "ratio", lookup_share, false},
    {"lookup, to fp32", "ns/key", to_fp32_ns, true},
    {"lookup of 16,384 to fp32", "ns/key", all_ns, false},
    {"sum of 32", "ns/key", sum_ns, false},
    {"raw/fp32, ceilings", "ratio", ceiling_ratio, true},
    {"raw/fp32", "ratio", raw_ratio, true},
    {"raw/fp32, of the ceilings'", "ratio", raw_share, true},
    {"to fp32/fp32", "ratio", to_fp32_ratio, true},
    {"sum of 32/lookup", "ratio", sum_ratio, false},
};
static const struct row torch_rows[] = {
    {"sum/EmbeddingBag", "ratio", torch_sum_ratio, false},
    {"mean/EmbeddingBag", "ratio", torch_mean_ratio, false},
};

enum keys { ANY_KEYS, RANDOM, CONSECUTIVE };

/* Least values of ratios. */
static const struct goal {
    const char *metric;
    enum keys keys;
    enum kind kind;
    uint32_t dim; /* 0: all */
    double least;
} goals[] = {
    {"ceiling/lookup", CONSECUTIVE, FP32, 16, 0.85},
    {"ceiling/lookup", CONSECUTIVE, FP32, 128, 0.95},
    {"ceiling/lookup", RANDOM, FP32, 16, 0.8},
    {"ceiling/lookup", RANDOM, FP32, 128, 0.75},
    {"sum/EmbeddingBag", CONSECUTIVE, FP32, 16, 1.0},
    {"sum/EmbeddingBag", CONSECUTIVE, FP32, 64, 0.95},
    {"sum/EmbeddingBag", CONSECUTIVE, FP32, 128, 0.95},
    {"mean/EmbeddingBag", CONSECUTIVE, FP32, 16, 1.0},
    {"mean/EmbeddingBag", CONSECUTIVE, FP32, 64, 0.95},
    {"mean/EmbeddingBag", CONSECUTIVE, FP32, 128, 0.95},
    {"sum/EmbeddingBag", CONSECUTIVE, INT8, 128, 1.5},
    {"sum/EmbeddingBag", RANDOM, FP32, 64, 0.7},
    {"sum/EmbeddingBag", RANDOM, FP32, 128, 0.8},
    {"raw/fp32, of the ceilings'", ANY_KEYS, FP16, 128, 0.9},
    {"raw/fp32, of the ceilings'", ANY_KEYS, INT8, 128, 0.9},
    {"to fp32/fp32", ANY_KEYS, FP16, 128, 1.05},
    {"to fp32/fp32", ANY_KEYS, INT8, 128, 1.25},
    {"sum of 32/lookup", ANY_KEYS, FP32, 0, 1.1},
    {"sum of 32/lookup", ANY_KEYS, FP16, 0, 1.1},
    {"sum of 32/lookup", ANY_KEYS, INT8, 0, 1.1},
};

/* 0: none */
static double goal_of(const char *metric, bool dense, enum kind kind, uint32_t dim)
{
    for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++) {
        const struct goal *goal = &goals[i];
        if (strcmp(goal->metric, metric) == 0 && goal->kind == kind &&
            (goal->dim == 0 || goal->dim == dim) &&
            (goal->keys == ANY_KEYS || (goal->keys == CONSECUTIVE) == dense)) {
            return goal->least;
        }
    }
    return 0;
}

static void report(const char *name, uint32_t dim, const struct times *times, enum kind kind,
                   const struct row *row)
{
    double values[ROUNDS];
    char metric[64];
    double target = goal_of(row->metric, times->dense, kind, dim);

    for (unsigned i = 0; i < ROUNDS; i++) {
        values[i] = row->value(&times[i], kind);
    }
    (void)snprintf(metric, sizeof(metric), "%s %s", names[kind], row->metric);
    bench_report(name, metric, bench_median(values, ROUNDS), row->unit,
                 target != 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, target);
}

static void report_all(const char *name, uint32_t dim, const struct times *times)
{
    for (size_t r = 0; r < sizeof(report_rows) / sizeof(report_rows[0]); r++) {
        for (unsigned kind = report_rows[r].others ? FP16 : FP32; kind < KINDS; kind++) {
            report(name, dim, times, (enum kind)kind, &report_rows[r]);
        }
    }
    for (size_t r = 0; r < sizeof(torch_rows) / sizeof(torch_rows[0]); r++) {
        for (unsigned kind = FP32; times[0].torch_sum_ns > 0 && kind < KINDS; kind++) {
            report(name, dim, times, (enum kind)kind, &torch_rows[r]);
        }
    }
}

static void report_bytes(const struct work *work, const char *name, uint32_t dim)
{
    static const double most[TABLES] = {[FP32] = 65, [INT8_F16] = 21}; /* of full ranges, dim 16 */
    double bytes[TABLES];

    for (unsigned kind = 0; kind < TABLES; kind++) {
        struct hps_store_usage usage;
        char metric[64];
        bool limited = work->dense && dim == 16 && most[kind] != 0;
        work->store->ops->space_usage(work->spaces[kind], &usage);
        bytes[kind] = (double)usage.used_bytes / (double)usage.n_rows;
        (void)snprintf(metric, sizeof(metric), "%s, with index", names[kind]);
        bench_report(name, metric, bytes[kind], "B/row", limited ? BENCH_AT_MOST : BENCH_NO_TARGET,
                     most[kind]);
    }
    bench_report(name, "rows per byte, fp16/fp32", bytes[FP32] / bytes[FP16], "ratio",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "rows per byte, int8/fp32", bytes[FP32] / bytes[INT8], "ratio",
                 dim == 128 ? BENCH_AT_LEAST : BENCH_NO_TARGET, 3.3);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static hps_status fill(struct work *work, enum kind kind)
{
    const struct hps_table *table = &work->tables[kind];
    struct hps_call call = {0};
    hps_key keys[PIECE];
    float values[DIM_MAX];
    uint8_t *rows = hps_alloc((size_t)PIECE * table->row_bytes);
    hps_status status = rows != NULL ? HPS_OK : HPS_NO_MEMORY;

    for (uint64_t row = 0; row < table->n_rows && status == HPS_OK; row += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            keys[i] = key_of(work, row + i);
            for (uint32_t d = 0; d < table->dim; d++) {
                values[d] = (float)((row + i + d * 7) % 251) / 251.0f - 0.5f;
            }
            hps_row_convert(rows + (size_t)i * table->row_bytes, table->dtype, values,
                            HPS_DTYPE_FP32, table->dim);
        }
        status = work->store->ops->put(work->spaces[kind], &call, table, keys, rows, PIECE);
    }
    hps_free(rows);
    return status;
}

static hps_status open_tables(struct work *work, uint32_t dim, uint64_t n_rows,
                              struct hps_error *err)
{
    static const float zeros[DIM_MAX];
    const struct hps_host_map_options options = {.bytes_max = MAP_BYTES, .dense = work->dense};
    hps_key first[PIECE]; /* as a load does; else the index stays half grown */
    hps_status status = hps_host_map_open_with(&options, &work->store, err);

    for (uint32_t i = 0; i < PIECE; i++) {
        first[i] = i;
    }
    for (unsigned kind = 0; kind < TABLES && status == HPS_OK; kind++) {
        struct hps_table *table = &work->tables[kind];
        struct hps_space_id id = {"m", (int64_t)kind + 1, table, 1, 0};
        *table = (struct hps_table){.name = "t",
                                    .dim = dim,
                                    .row_bytes = (uint32_t)hps_dtype_row_bytes(dtypes[kind], dim),
                                    .dtype = dtypes[kind],
                                    .n_rows = n_rows,
                                    .default_row = zeros};
        status = work->store->ops->space_open(work->store, &id, &work->spaces[kind], err);
        if (status == HPS_OK) {
            status =
                work->store->ops->limits->reserve(work->spaces[kind], table, first, PIECE, err);
        }
        if (status == HPS_OK) {
            status = fill(work, (enum kind)kind);
        }
    }
    return status;
}

static void close_tables(struct work *work)
{
    for (unsigned kind = 0; kind < TABLES; kind++) {
        if (work->spaces[kind] != NULL) {
            work->store->ops->space_close(work->spaces[kind]);
        }
        work->spaces[kind] = NULL;
    }
    if (work->store != NULL) {
        work->store->ops->close(work->store);
    }
    work->store = NULL;
}

static hps_status measure(struct work *work, uint32_t dim, uint64_t n_rows)
{
    hps_status status = HPS_OK;

    for (int skewed = 0; skewed < 2 && status == HPS_OK; skewed++) {
        double alpha = skewed ? 0.99 : 0;
        struct times times[ROUNDS];
        char name[64];
        hps_zipf_init(&work->zipf, n_rows, alpha, 0);
        bench_bags_case(&work->torch, dim, n_rows, alpha);
        for (unsigned i = 0; i < ROUNDS && status == HPS_OK; i++) {
            status = round_of(work, &times[i]);
        }
        if (status == HPS_OK) {
            (void)snprintf(name, sizeof(name), "dim %u, %llu M rows, %s%s", dim,
                           (unsigned long long)(n_rows >> 20), skewed ? "zipf 0.99" : "uniform",
                           work->dense ? ", dense" : "");
            report_all(name, dim, times);
        }
    }
    return status;
}

static hps_status run_dim(struct work *work, uint32_t dim, uint64_t n_rows, struct hps_error *err)
{
    char name[64];
    hps_status status =
        bench_ceiling_open(&work->ceiling, n_rows * dim * sizeof(float), n_rows, err);

    if (status == HPS_OK) {
        status = open_tables(work, dim, n_rows, err);
    }
    if (status == HPS_OK) {
        (void)snprintf(name, sizeof(name), "dim %u, %llu M rows%s", dim,
                       (unsigned long long)(n_rows >> 20), work->dense ? ", dense" : "");
        report_bytes(work, name, dim);
        status = measure(work, dim, n_rows);
    }
    if (status != HPS_OK) {
        (void)hps_error_set(err, status, "dim %u: %s", dim, hps_status_text(status));
    }
    close_tables(work);
    bench_ceiling_close(&work->ceiling);
    return status;
}

hps_status bench_bytes(struct hps_error *err)
{
    static const struct {
        uint32_t dim;
        uint64_t n_rows;
    } sizes[] = {{16, UINT64_C(8) << 20}, {64, UINT64_C(2) << 20}, {128, UINT64_C(2) << 20}};
    enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };
    struct work *work = hps_calloc(1, sizeof(*work));
    hps_status status = HPS_NO_MEMORY;

    if (work == NULL) {
        return hps_error_set(err, status, "no memory");
    }
    bench_bind(1);
    work->random.state = 1;
    work->out = hps_alloc_aligned(64, (size_t)MANY * DIM_MAX * sizeof(float));
    work->streamed = hps_alloc_aligned(64, (size_t)MANY * DIM_MAX * sizeof(float));
    status = work->out != NULL && work->streamed != NULL ? HPS_OK
                                                         : hps_error_set(err, status, "no memory");
    for (uint32_t b = 0; b <= N_BAGS; b++) {
        work->offsets[b] = b * BAG_KEYS;
    }
    bench_bags_open(&work->torch);
    for (size_t i = 0; i < 2 * N_SIZES && status == HPS_OK; i++) {
        work->dense = i % 2 == 0;
        status = run_dim(work, sizes[i / 2].dim, sizes[i / 2].n_rows, err);
    }
    if (work->torch.to == NULL) {
        bench_left_out("torch.nn.EmbeddingBag", "HPS_PYTHON has no torch, or its process ended");
    }
    bench_bags_close(&work->torch);
    hps_free_aligned(work->out);
    hps_free_aligned(work->streamed);
    hps_free(work);
    return status;
}
