/* SPDX-License-Identifier: Apache-2.0
 *
 * The lookup kernel compared with a copy and with gathers at known places: by row width, key
 * distribution and share of misses. Also converted and pooled rows, many small tables in one
 * launch, popularity counters, and each kernel alone for a profiler. Thread: main.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench/gpu/index.h"

enum { N_TABLES = 26, N_STREAMS = 8, FUSED_ROW_BYTES = 128, N_LATENCIES = 1000, N_PROFILED = 6 };

/* ---- rows as they are stored ----------------------------------------------------------------- */

struct gather_case {
    uint32_t row_bytes;
    double alpha;
    uint32_t unknown_percent;
    uint32_t filled_percent; /* of the rows that the range is made for */
    double target_percent;   /* of the copy's rate, on an H200; 0: none */
};

static void run_case(struct bench_rig *rig, const struct gather_case *is,
                     const struct bench_index *index, struct bench_work *copy)
{
    uint32_t before = rig->n_pieces;
    const struct bench_batch_spec spec = {
        .n_parts = 1,
        .n_keys = (uint32_t)(bench_fitting_bytes(rig, 256 << 20, 0.05, 16 << 10) / is->row_bytes /
                             32 * 32),
        .alpha = is->alpha,
        .unknown_percent = is->unknown_percent,
    };
    struct bench_batches batches;
    char name[96];

    bench_batches_open(rig, &batches, index, &spec);
    struct bench_work works[] = {
        *copy,
        {.name = "gather", .give = bench_batches_give_gather, .arg = &batches},
        {.name = "gather and sets", .give = bench_batches_give_gather_sets, .arg = &batches},
        {.name = "lookup", .give = bench_batches_give, .arg = &batches}};
    bench_turns(rig, works, 4);
    double hit_share = bench_batches_check(rig, &batches);
    (void)snprintf(name, sizeof(name), "%u B, %s, %u %% unknown%s", is->row_bytes,
                   is->alpha == 0 ? "uniform" : "zipf 1.05", is->unknown_percent,
                   is->filled_percent < 100 ? ", half full" : "");
    bench_result(rig, name, "hits", 100 * hit_share, "%", BENCH_NO_TARGET, 0);
    bench_result(rig, name, "rows in spills", 100 * index->spilled_share, "%", BENCH_NO_TARGET, 0);
    for (uint32_t w = 1; w < 4; w++) {
        struct bench_moved moved =
            bench_batches_moved(&batches, w == 3 ? hit_share : 1, w == 1 ? 8 : BENCH_INDEX_BYTES);
        bench_report_rows(rig, name, &works[w], &moved, &works[0], w == 3 ? is->target_percent : 0);
    }
    bench_result(rig, name, "gather and sets / lookup, time", works[2].us / works[3].us, "",
                 BENCH_NO_TARGET, 0);
    bench_free_to(rig, before);
}

/* Cases of one width and filling follow each other. */
static void run_cases(struct bench_rig *rig, const struct gather_case *cases, size_t n_cases,
                      uint64_t arena_bytes)
{
    uint64_t arena = bench_fitting_bytes(rig, arena_bytes, 0.4, 1 << 20);
    hps_devptr memory = bench_memory(rig, arena);
    struct bench_copy copy;
    struct bench_work work = bench_copy_open(rig, &copy);
    struct bench_index index = {0};

    for (size_t i = 0; i < n_cases && rig->status == HPS_OK; i++) {
        const struct gather_case *is = &cases[i];
        if (i == 0 || is->row_bytes != is[-1].row_bytes ||
            is->filled_percent != is[-1].filled_percent) {
            uint64_t n_rows = bench_index_rows(is->row_bytes, arena);
            bench_index_open(rig, &index, 0, is->row_bytes, n_rows,
                             n_rows * is->filled_percent / 100, memory);
        }
        run_case(rig, is, &index, &work);
    }
}

static const struct gather_case gather_cases[] = {
    {32, 0, 0, 100, 40}, {128, 0, 0, 100, 65}, {512, 0, 0, 100, 80}};

void bench_gather(struct bench_rig *rig)
{
    run_cases(rig, gather_cases, sizeof(gather_cases) / sizeof(gather_cases[0]),
              UINT64_C(32) << 30);
}

/* To compare variants of the kernels: from less memory, which is filled in less time. */
void bench_gather_small(struct bench_rig *rig)
{
    run_cases(rig, gather_cases, sizeof(gather_cases) / sizeof(gather_cases[0]), UINT64_C(4) << 30);
}

void bench_widths(struct bench_rig *rig)
{
    static const struct gather_case cases[] = {
        {32, 1.05, 0, 100, 0}, {32, 0, 20, 100, 0},  {64, 0, 0, 100, 0},
        {64, 1.05, 0, 100, 0}, {128, 0, 0, 50, 0},   {128, 1.05, 0, 100, 0},
        {128, 0, 5, 100, 0},   {128, 0, 20, 100, 0}, {128, 1.05, 5, 100, 0},
        {256, 0, 0, 100, 0},   {256, 0, 20, 100, 0}, {512, 1.05, 0, 100, 0},
        {512, 0, 20, 100, 0}};

    run_cases(rig, cases, sizeof(cases) / sizeof(cases[0]), UINT64_C(8) << 30);
}

/* ---- rows that are converted or added -------------------------------------------------------- */

struct shape_case {
    struct hps_embed_shape shape;
    uint32_t bag; /* 0: no pooling */
};

/* An index and batches of a case. Rows of the type that is wanted are copied as they are stored. */
static void open_case(struct bench_rig *rig, const struct shape_case *is, struct bench_index *index,
                      struct bench_batches *batches)
{
    uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(is->shape.stored, is->shape.dim);
    uint32_t step = 32 * (is->bag > 0 ? is->bag : 1);
    uint64_t arena = bench_fitting_bytes(rig, UINT64_C(8) << 30, 0.3, 1 << 20);
    bool is_copied = is->shape.stored == is->shape.wanted && is->bag == 0;
    const struct bench_batch_spec spec = {.n_parts = 1,
                                          .n_keys = bench_count(rig, (1 << 20) / step * step, step),
                                          .shape = is_copied ? NULL : &is->shape,
                                          .bag = is->bag};
    uint64_t n_rows = bench_index_rows(row_bytes, arena);

    bench_index_open(rig, index, 0, row_bytes, n_rows, n_rows, bench_memory(rig, arena));
    bench_batches_open(rig, batches, index, &spec);
}

static void run_shapes(struct bench_rig *rig, const struct shape_case *cases, size_t n_cases)
{
    struct bench_copy copy;
    struct bench_work copied = bench_copy_open(rig, &copy);

    for (size_t i = 0; i < n_cases && rig->status == HPS_OK; i++) {
        const struct shape_case *is = &cases[i];
        uint32_t before = rig->n_pieces;
        struct bench_index index;
        struct bench_batches batches;
        char name[96];

        open_case(rig, is, &index, &batches);
        struct bench_work works[] = {
            copied, {.name = "lookup", .give = bench_batches_give, .arg = &batches}};
        bench_turns(rig, works, 2);
        double hit_share = bench_batches_check(rig, &batches);
        int size =
            snprintf(name, sizeof(name), "%s to %s, dim %u", hps_dtype_name(is->shape.stored),
                     hps_dtype_name(is->shape.wanted), is->shape.dim);
        if (is->bag > 0) {
            (void)snprintf(name + size, sizeof(name) - (size_t)size, ", bags of %u", is->bag);
        }
        struct bench_moved moved = bench_batches_moved(&batches, hit_share, BENCH_INDEX_BYTES);
        bench_result(rig, name, "hits", 100 * hit_share, "%", BENCH_NO_TARGET, 0);
        bench_report_rows(rig, name, &works[1], &moved, &works[0], 0);
        if (is->bag > 0) {
            bench_result(rig, name, "bags", batches.n_out / works[1].us, "M/s", BENCH_NO_TARGET, 0);
        }
        bench_free_to(rig, before);
    }
}

#define SHAPE(stored_type, columns, how)                                               \
    {                                                                                  \
        .stored = HPS_DTYPE_##stored_type, .dim = (columns), .wanted = HPS_DTYPE_FP32, \
        .pooling = HPS_POOLING_##how                                                   \
    }

void bench_pooled(struct bench_rig *rig)
{
    static const struct shape_case cases[] = {
        {SHAPE(FP32, 32, SUM), 10},  {SHAPE(FP32, 32, SUM), 30},
        {SHAPE(FP32, 32, SUM), 100}, {SHAPE(FP32, 128, SUM), 10},
        {SHAPE(FP32, 128, SUM), 30}, {SHAPE(FP32, 128, SUM), 100},
        {SHAPE(FP16, 32, SUM), 30},  {SHAPE(INT8_ROWWISE_F32, 32, SUM), 30}};

    run_shapes(rig, cases, sizeof(cases) / sizeof(cases[0]));
}

void bench_converted(struct bench_rig *rig)
{
    static const struct shape_case cases[] = {{SHAPE(FP16, 32, NONE), 0},
                                              {SHAPE(FP16, 128, NONE), 0},
                                              {SHAPE(INT8_ROWWISE_F32, 32, NONE), 0},
                                              {SHAPE(INT8_ROWWISE_F32, 128, NONE), 0},
                                              {SHAPE(INT8_ROWWISE_F16, 128, NONE), 0}};

    run_shapes(rig, cases, sizeof(cases) / sizeof(cases[0]));
}

/* ---- counters of popularity ------------------------------------------------------------------ */

/* Fails unless something was counted. */
static void check_counts(struct bench_rig *rig, const struct bench_index *index)
{
    hps_devptr unused;
    uint32_t before = rig->n_pieces, any = 0;
    uint64_t size = (uint64_t)index->desc.n_sets * HPS_EMBED_SKETCH_BYTES_PER_SET;

    size = size < 1 << 20 ? size : 1 << 20;
    uint8_t *counts = bench_host_memory(rig, size, &unused);
    bench_download(rig, counts, index->desc.sketch, size);
    for (uint64_t i = 0; i < size && rig->status == HPS_OK; i++) {
        any |= counts[i];
    }
    (void)bench_ok(rig, any != 0 ? HPS_OK : HPS_INTERNAL, "no key was counted");
    bench_free_to(rig, before);
}

void bench_observe(struct bench_rig *rig)
{
    static const struct shape_case is = {SHAPE(FP32, 32, NONE), 0};
    static const uint32_t steps[] = {1, 8};
    struct bench_index index;
    struct bench_batches batches;
    char name[64];

    open_case(rig, &is, &index, &batches);
    for (size_t i = 0; i < 2 && rig->status == HPS_OK; i++) {
        struct bench_work works[] = {
            {.name = "observe", .give = bench_batches_give_observe, .arg = &batches},
            {.name = "lookup", .give = bench_batches_give, .arg = &batches}};
        batches.observe_step = steps[i];
        bench_turns(rig, works, 2);
        double n_counted = (double)batches.spec.n_keys / steps[i];
        (void)snprintf(name, sizeof(name), "1 of %u keys counted", steps[i]);
        bench_result(rig, name, "counted", n_counted / works[0].us / 1000, "G keys/s",
                     BENCH_NO_TARGET, 0);
        bench_result(rig, name, "of the lookup's time", 100 * works[0].us / works[1].us, "%",
                     BENCH_NO_TARGET, 0);
    }
    check_counts(rig, &index);
}

/* ---- many tables ----------------------------------------------------------------------------- */

struct fused {
    struct bench_batches batches;
    struct hps_stream_q *streams[N_STREAMS];
    struct hps_event *events[N_STREAMS];
};

static hps_status give_fused(struct bench_rig *rig, void *arg, uint32_t i)
{
    return bench_batches_give(rig, &((struct fused *)arg)->batches, i);
}

static hps_status give_each(struct bench_rig *rig, void *arg, uint32_t i)
{
    return bench_batches_give_parts(rig, &((struct fused *)arg)->batches, i, NULL, 0);
}

/* The streams wait for the rig's, and that one for all of them. */
static hps_status give_on_streams(struct bench_rig *rig, void *arg, uint32_t i)
{
    struct fused *fused = arg;
    hps_status status = hps_event_record(rig->event, rig->stream);

    for (uint32_t s = 0; s < N_STREAMS && status == HPS_OK; s++) {
        status = hps_stream_q_wait(fused->streams[s], rig->event);
    }
    if (status == HPS_OK) {
        status = bench_batches_give_parts(rig, &fused->batches, i, fused->streams, N_STREAMS);
    }
    for (uint32_t s = 0; s < N_STREAMS && status == HPS_OK; s++) {
        status = hps_event_record(fused->events[s], fused->streams[s]);
        status = status == HPS_OK ? hps_stream_q_wait(rig->stream, fused->events[s]) : status;
    }
    return status;
}

/* From the launch of a batch to its flag. Its keys lie in mapped memory. */
static void report_latency(struct bench_rig *rig, const char *name, struct bench_batches *batches)
{
    uint32_t n = bench_count(rig, N_LATENCIES, 2);
    static double us[N_LATENCIES];

    for (uint32_t i = 0; i < n && rig->status == HPS_OK; i++) {
        uint64_t began = bench_now_ns();
        if (!bench_ok(rig, bench_batches_give(rig, batches, i), "lookup")) {
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
    bench_result(rig, name, "launch to flag, p50", bench_median(us, n), "us", BENCH_AT_MOST, 25);
    bench_result(rig, name, "launch to flag, p99", bench_quantile(us, n, 0.99), "us",
                 BENCH_NO_TARGET, 0);
}

static void run_fused(struct bench_rig *rig, struct fused *fused, const struct bench_index *indices,
                      bool mapped)
{
    const struct bench_batch_spec spec = {
        .n_parts = N_TABLES, .n_keys = bench_count(rig, 2048, 64), .alpha = 1.05, .mapped = mapped};
    char name[64];

    bench_batches_open(rig, &fused->batches, indices, &spec);
    struct bench_work works[] = {
        {.name = "26 launches", .give = give_each, .arg = fused},
        {.name = "26 launches on 8 streams", .give = give_on_streams, .arg = fused},
        {.name = "one launch", .give = give_fused, .arg = fused}};
    (void)snprintf(name, sizeof(name), "%u tables x %u keys, %s", (unsigned)N_TABLES, spec.n_keys,
                   mapped ? "keys mapped" : "keys on device");
    bench_turns(rig, works, 3);
    (void)bench_batches_check(rig, &fused->batches);
    bench_result(rig, name, works[2].name, works[2].us, "us", BENCH_AT_MOST, 15);
    for (uint32_t w = 0; w < 2; w++) {
        char metric[64];
        bench_result(rig, name, works[w].name, works[w].us, "us", BENCH_NO_TARGET, 0);
        (void)snprintf(metric, sizeof(metric), "%s / one", works[w].name);
        bench_result(rig, name, metric, works[w].us / works[2].us, "",
                     w == 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, 4);
    }
    if (mapped) {
        report_latency(rig, name, &fused->batches);
    }
}

void bench_fused(struct bench_rig *rig)
{
    struct bench_index indices[N_TABLES];
    struct fused fused = {0};
    uint64_t n_rows = bench_count(rig, 1000000, 300);

    for (uint32_t i = 0; i < N_TABLES && rig->status == HPS_OK; i++) {
        hps_devptr memory = bench_memory(rig, bench_index_bytes(FUSED_ROW_BYTES, n_rows));
        bench_index_open(rig, &indices[i], i, FUSED_ROW_BYTES, n_rows, n_rows, memory);
    }
    for (uint32_t s = 0; s < N_STREAMS && rig->status == HPS_OK; s++) {
        if (bench_ok(rig,
                     hps_stream_q_new(rig->device, "parts", false, &fused.streams[s], rig->err),
                     "stream")) {
            (void)bench_ok(rig, hps_event_new(rig->device, &fused.events[s], rig->err), "event");
        }
    }
    for (int mapped = 0; mapped < 2 && rig->status == HPS_OK; mapped++) {
        run_fused(rig, &fused, indices, mapped != 0);
    }
    for (uint32_t s = 0; s < N_STREAMS; s++) {
        hps_stream_q_free(fused.streams[s]);
        hps_event_free(fused.events[s]);
    }
}

/* ---- for a profiler -------------------------------------------------------------------------- */

void bench_profile(struct bench_rig *rig)
{
    static const struct {
        const char *name;
        hps_status (*give)(struct bench_rig *rig, void *batches, uint32_t i);
        struct shape_case is;
    } kernels[] = {
        {"profile_lookup", bench_batches_give, {SHAPE(FP32, 32, NONE), 0}},
        {"profile_gather", bench_batches_give_gather_sets, {SHAPE(FP32, 32, NONE), 0}},
        {"profile_observe", bench_batches_give_observe, {SHAPE(FP32, 32, NONE), 0}},
        {"profile_convert", bench_batches_give, {SHAPE(INT8_ROWWISE_F32, 128, NONE), 0}},
        {"profile_pool", bench_batches_give, {SHAPE(FP32, 32, SUM), 30}},
    };
    struct bench_index index;
    struct bench_batches batches;
    size_t k = 0;

    while (strcmp(kernels[k].name, rig->name) != 0) {
        k++;
    }
    open_case(rig, &kernels[k].is, &index, &batches);
    for (uint32_t i = 0; i < N_PROFILED && rig->status == HPS_OK; i++) {
        (void)bench_ok(rig, kernels[k].give(rig, &batches, i), rig->name);
    }
    bench_wait(rig);
    bench_result(rig, "launches", "each", N_PROFILED, "", BENCH_NO_TARGET, 0);
}
