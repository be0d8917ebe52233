/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in the host map while another thread replaces its rows, compared with lookups without
 * updates. Two controls show what the machine costs: a second thread that writes as many rows to
 * other memory, and a gather of rows at known places that the other thread overwrites in place. All
 * cases run with random keys, and with consecutive keys, which need no index.
 *
 * The target is for the CPU time of a lookup; the reader never waits, so CPU time measures speed.
 * A second pass checks every row, which consists of its key and a sequence number, repeated. A torn
 * row mixes two writes. A stale row is older than an update that had returned before the lookup
 * began. Reader on the main thread, writer on its own.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "client/zipf.h"

enum {
    N_ROWS = 512 * 1024,
    DIM = 128,
    ROW_BYTES = DIM * 4,
    ROW_PAIRS = ROW_BYTES / 16,
    READ_BATCH = 1024,
    WRITE_BATCH = 256,
    N_DRAWN = 1 << 20, /* keys drawn before the measurement */
    ROUNDS = 5,
    N_RATES = 3,
    AHEAD = 16, /* rows that a gather fetches ahead */
};
#define ROUND_NS UINT64_C(250000000)
#define CHECK_NS UINT64_C(2000000000)

static const double rates[N_RATES] = {100e3, 300e3, 1e6}; /* rows a second */
static const float zeros[DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};

enum mode { IDLE, CONTROL, UPDATES };

struct world {
    struct hps_store *store;
    struct hps_space *space;
    uint32_t *drawn;              /* [N_DRAWN] */
    uint8_t *out;                 /* [READ_BATCH][ROW_BYTES] */
    uint8_t *elsewhere;           /* [N_ROWS][ROW_BYTES], what the control writes */
    _Atomic(uint32_t) *sequences; /* [N_ROWS] of the last update that returned */
    uint32_t read_at;
    bool dense;   /* keys are row numbers */
    bool gathers; /* the reader reads what the control writes, without a map */
};

struct writer {
    struct world *world;
    enum mode mode;
    double rate;
    atomic_bool ready;
    atomic_bool stop;
    uint64_t n_written;
    uint64_t ns;
    hps_status status;
    uint32_t sequence; /* of all rows: one counter, so that it never goes back */
    uint32_t rows[WRITE_BATCH];
    hps_key keys[WRITE_BATCH];
    uint64_t data[WRITE_BATCH][ROW_PAIRS][2];
};

static hps_key key_of(const struct world *world, uint32_t row)
{
    return world->dense ? row : hps_mix64((uint64_t)row + 1);
}

static void make_row(uint64_t out[ROW_PAIRS][2], hps_key key, uint32_t sequence)
{
    for (unsigned i = 0; i < ROW_PAIRS; i++) {
        out[i][0] = key;
        out[i][1] = sequence;
    }
}

/* Whether the row comes from one write of this key. */
static bool row_whole(const uint8_t *row, hps_key key, uint64_t *out_sequence)
{
    uint64_t pairs[ROW_PAIRS][2];
    bool whole = true;

    memcpy(pairs, row, sizeof(pairs));
    for (unsigned i = 0; i < ROW_PAIRS; i++) {
        whole = whole && pairs[i][0] == key && pairs[i][1] == pairs[0][1];
    }
    *out_sequence = pairs[0][1];
    return whole;
}

/* ---- the writer ------------------------------------------------------------------------------ */

static hps_status write_batch(struct writer *writer)
{
    struct world *world = writer->world;
    struct hps_call call = {0};
    hps_status status = HPS_OK;

    for (unsigned i = 0; i < WRITE_BATCH; i++) {
        make_row(writer->data[i], writer->keys[i], ++writer->sequence);
    }
    if (writer->mode == UPDATES) {
        status = world->store->ops->put(world->space, &call, &table, writer->keys,
                                        (const uint8_t *)writer->data, WRITE_BATCH);
    }
    for (unsigned i = 0; i < WRITE_BATCH && status == HPS_OK; i++) {
        if (writer->mode == UPDATES) {
            atomic_store_explicit(&world->sequences[writer->rows[i]],
                                  (uint32_t)writer->data[i][0][1], memory_order_release);
        } else {
            memcpy(world->elsewhere + (size_t)writer->rows[i] * ROW_BYTES, writer->data[i],
                   ROW_BYTES);
        }
    }
    return status;
}

static void *write_rows(void *ctx)
{
    struct writer *writer = ctx;
    struct hps_random random = {writer->sequence + 1};
    uint64_t start_ns = bench_now_ns();

    bench_bind(0);
    atomic_store(&writer->ready, true);
    while (!atomic_load_explicit(&writer->stop, memory_order_relaxed) && writer->status == HPS_OK) {
        double due_ns = (double)writer->n_written / writer->rate * 1e9;
        if ((double)(bench_now_ns() - start_ns) < due_ns) {
            continue;
        }
        for (unsigned i = 0; i < WRITE_BATCH; i++) {
            writer->rows[i] = writer->world->drawn[hps_random_next(&random) % N_DRAWN];
            writer->keys[i] = key_of(writer->world, writer->rows[i]);
        }
        writer->status = write_batch(writer);
        writer->n_written += WRITE_BATCH;
    }
    writer->ns = bench_now_ns() - start_ns;
    return NULL;
}

/* ---- the reader ------------------------------------------------------------------------------ */

struct reading {
    uint64_t n_keys;
    uint64_t ns;     /* inside get */
    uint64_t cpu_ns; /* of the reader's thread, inside get */
    uint64_t n_torn;
    uint64_t n_stale;
};

static void check_rows(const struct world *world, const uint32_t *rows, const uint32_t *before,
                       struct reading *reading)
{
    for (unsigned i = 0; i < READ_BATCH; i++) {
        uint64_t sequence;
        if (!row_whole(world->out + (size_t)i * ROW_BYTES, key_of(world, rows[i]), &sequence)) {
            reading->n_torn++;
        } else if (sequence < before[i]) {
            reading->n_stale++;
        }
    }
}

static void gather(struct world *world, const uint32_t *rows)
{
    for (unsigned i = 0; i < READ_BATCH; i++) {
        const uint8_t *ahead =
            world->elsewhere + (size_t)rows[i + AHEAD < READ_BATCH ? i + AHEAD : i] * ROW_BYTES;
        for (unsigned line = 0; line < ROW_BYTES; line += 64) {
            __builtin_prefetch(ahead + line);
        }
        memcpy(world->out + (size_t)i * ROW_BYTES, world->elsewhere + (size_t)rows[i] * ROW_BYTES,
               ROW_BYTES);
    }
}

static hps_status do_lookup(struct world *world, const uint32_t *rows, struct hps_batch *batch)
{
    struct hps_call call = {0};

    if (world->gathers) {
        gather(world, rows);
        batch->n = 0;
        return HPS_OK;
    }
    return world->store->ops->get(world->space, &call, &table, batch);
}

static hps_status read_batch(struct world *world, bool check, struct reading *reading)
{
    hps_key keys[READ_BATCH];
    uint32_t slots[READ_BATCH], before[READ_BATCH];
    const uint32_t *rows = world->drawn + world->read_at;
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = world->out, .n = READ_BATCH};

    world->read_at = (world->read_at + READ_BATCH) % N_DRAWN;
    for (unsigned i = 0; i < READ_BATCH; i++) {
        keys[i] = key_of(world, rows[i]);
        slots[i] = i;
        if (check) {
            before[i] = atomic_load_explicit(&world->sequences[rows[i]], memory_order_acquire);
        }
    }
    uint64_t start_ns = bench_now_ns(), start_cpu_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    hps_status status = do_lookup(world, rows, &batch);
    reading->cpu_ns += bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - start_cpu_ns;
    reading->ns += bench_now_ns() - start_ns;
    reading->n_keys += READ_BATCH;
    if (status == HPS_OK && batch.n != 0) {
        status = HPS_NOT_FOUND;
    }
    if (status == HPS_OK && check) {
        check_rows(world, rows, before, reading);
    }
    return status;
}

/* Read for `ns` with a writer of this mode and rate, or with none. */
static hps_status run_round(struct world *world, struct writer *writer, bool check, uint64_t ns,
                            struct reading *out_reading)
{
    struct reading reading = {0};
    hps_status status = HPS_OK;
    pthread_t thread;

    atomic_store(&writer->stop, false);
    atomic_store(&writer->ready, false);
    writer->n_written = 0;
    writer->status = HPS_OK;
    if (writer->mode != IDLE) {
        if (pthread_create(&thread, NULL, write_rows, writer) != 0) {
            return HPS_EXHAUSTED;
        }
        while (!atomic_load(&writer->ready)) {
        }
    }
    uint64_t end_ns = bench_now_ns() + ns;
    while (status == HPS_OK && bench_now_ns() < end_ns) {
        status = read_batch(world, check, &reading);
    }
    atomic_store(&writer->stop, true);
    if (writer->mode != IDLE) {
        (void)pthread_join(thread, NULL);
        status = status != HPS_OK ? status : writer->status;
    }
    *out_reading = reading;
    return status;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Keys a second of get, and of the CPU time in there. */
struct speed {
    double by_clock[ROUNDS];
    double by_cpu[ROUNDS];
};

struct rounds {
    struct speed idle;
    struct speed control[N_RATES];
    struct speed gather_idle;
    struct speed gather[N_RATES];
    struct speed updates[N_RATES];
    double written[N_RATES][ROUNDS]; /* rows a second */
    long n_waits[N_RATES];           /* voluntary waits of the reader during updates */
};

static hps_status run_mode(struct world *world, struct writer *writer, enum mode mode, double rate,
                           unsigned round, struct speed *speed)
{
    struct reading reading;

    writer->mode = mode;
    writer->rate = rate;
    hps_status status = run_round(world, writer, false, ROUND_NS, &reading);
    speed->by_clock[round] = (double)reading.n_keys * 1e9 / (double)(reading.ns + 1);
    speed->by_cpu[round] = (double)reading.n_keys * 1e9 / (double)(reading.cpu_ns + 1);
    return status;
}

static long count_waits(void)
{
    struct rusage usage = {0};

    (void)getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static hps_status run_gathers(struct world *world, struct writer *writer, unsigned round,
                              struct rounds *rounds)
{
    world->gathers = true;
    hps_status status = run_mode(world, writer, IDLE, 0, round, &rounds->gather_idle);
    for (unsigned r = 0; r < N_RATES && status == HPS_OK; r++) {
        status = run_mode(world, writer, CONTROL, rates[r], round, &rounds->gather[r]);
    }
    world->gathers = false;
    return status;
}

static hps_status run_rounds(struct world *world, struct writer *writer, struct rounds *rounds)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        hps_status status = run_mode(world, writer, IDLE, 0, round, &rounds->idle);
        if (status == HPS_OK) {
            status = run_gathers(world, writer, round, rounds);
        }
        for (unsigned r = 0; r < N_RATES && status == HPS_OK; r++) {
            status = run_mode(world, writer, CONTROL, rates[r], round, &rounds->control[r]);
            if (status == HPS_OK) {
                long n_waits = count_waits();
                status = run_mode(world, writer, UPDATES, rates[r], round, &rounds->updates[r]);
                rounds->n_waits[r] += count_waits() - n_waits - 1; /* 1: joining the writer */
                rounds->written[r][round] = (double)writer->n_written * 1e9 / (double)writer->ns;
            }
        }
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

static void report_ratio(const char *name, const char *metric, const double *above,
                         const double *below, enum bench_target kind, double target)
{
    double ratios[ROUNDS];

    for (unsigned i = 0; i < ROUNDS; i++) {
        ratios[i] = above[i] / below[i];
    }
    bench_report(name, metric, bench_median(ratios, ROUNDS), "ratio", kind, target);
}

static void report_rounds(const struct world *world, struct rounds *rounds)
{
    const char *keys = world->dense ? ", dense" : "";
    char name[40];

    for (unsigned r = 0; r < N_RATES; r++) {
        const struct speed *idle = &rounds->idle, *control = &rounds->control[r];
        struct speed *updates = &rounds->updates[r];
        (void)snprintf(name, sizeof(name), "%g k updates/s%s", rates[r] / 1e3, keys);
        report_ratio(name, "readers/idle, CPU", updates->by_cpu, idle->by_cpu, BENCH_AT_LEAST,
                     0.95);
        bench_report(name, "readers' waits", (double)rounds->n_waits[r], "times", BENCH_NO_TARGET,
                     0);
        report_ratio(name, "readers/idle", updates->by_clock, idle->by_clock, BENCH_NO_TARGET, 0);
        report_ratio(name, "control/idle", control->by_clock, idle->by_clock, BENCH_NO_TARGET, 0);
        report_ratio(name, "readers/control", updates->by_clock, control->by_clock, BENCH_NO_TARGET,
                     0);
        report_ratio(name, "gather during writes/idle, CPU", rounds->gather[r].by_cpu,
                     rounds->gather_idle.by_cpu, BENCH_NO_TARGET, 0);
        report_ratio(name, "control/idle, CPU", control->by_cpu, idle->by_cpu, BENCH_NO_TARGET, 0);
        report_ratio(name, "readers/control, CPU", updates->by_cpu, control->by_cpu,
                     BENCH_NO_TARGET, 0);
        bench_report(name, "readers", bench_median(updates->by_clock, ROUNDS), "keys/s",
                     BENCH_NO_TARGET, 0);
        bench_report(name, "updates", bench_median(rounds->written[r], ROUNDS), "rows/s",
                     BENCH_NO_TARGET, 0);
    }
    (void)snprintf(name, sizeof(name), "no updates%s", keys);
    bench_report(name, "readers", bench_median(rounds->idle.by_clock, ROUNDS), "keys/s",
                 BENCH_NO_TARGET, 0);
}

/* Test the check itself: this row mixes two writes. */
static bool check_works(void)
{
    uint64_t row[ROW_PAIRS][2];
    uint64_t sequence;

    make_row(row, 1, 1);
    bool whole = row_whole((const uint8_t *)row, 1, &sequence);
    row[ROW_PAIRS - 1][1] = 2;
    return whole && !row_whole((const uint8_t *)row, 1, &sequence) &&
           !row_whole((const uint8_t *)row, 2, &sequence);
}

static hps_status run_checked(struct world *world, struct writer *writer)
{
    const char *name =
        world->dense ? "1000 k updates/s, dense, checked" : "1000 k updates/s, checked";
    struct reading reading;

    writer->mode = UPDATES;
    writer->rate = rates[N_RATES - 1];
    hps_status status = run_round(world, writer, true, CHECK_NS, &reading);
    if (status == HPS_OK) {
        bench_report(name, "rows read", (double)reading.n_keys, "rows", BENCH_NO_TARGET, 0);
        bench_report(name, "rows written", (double)writer->n_written, "rows", BENCH_NO_TARGET, 0);
        bench_report(name, "torn", (double)reading.n_torn, "rows", BENCH_AT_MOST, 0);
        bench_report(name, "stale", (double)reading.n_stale, "rows", BENCH_AT_MOST, 0);
    }
    return status;
}

/* ---- making the world ------------------------------------------------------------------------ */

static hps_status fill(struct world *world, struct writer *writer)
{
    struct hps_call call = {0};
    hps_status status = HPS_OK;

    for (uint32_t row = 0; row < N_ROWS && status == HPS_OK; row += WRITE_BATCH) {
        for (uint32_t i = 0; i < WRITE_BATCH; i++) {
            writer->keys[i] = key_of(world, row + i);
            make_row(writer->data[i], writer->keys[i], 0);
        }
        status = world->store->ops->put(world->space, &call, &table, writer->keys,
                                        (const uint8_t *)writer->data, WRITE_BATCH);
    }
    return status;
}

static hps_status world_open(struct world *world, struct hps_error *err)
{
    struct hps_random random = {1};
    struct hps_space_id id = {"m", 1, &table, 1, 0};
    struct hps_zipf zipf;

    world->drawn = hps_calloc(N_DRAWN, sizeof(*world->drawn));
    world->out = hps_alloc_aligned(64, (size_t)READ_BATCH * ROW_BYTES);
    world->elsewhere = hps_alloc_aligned(2 << 20, (size_t)N_ROWS * ROW_BYTES);
    world->sequences = hps_calloc(N_ROWS, sizeof(*world->sequences));
    if (world->drawn == NULL || world->out == NULL || world->elsewhere == NULL ||
        world->sequences == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %d rows", N_ROWS);
    }
    memset(world->elsewhere, 0, (size_t)N_ROWS * ROW_BYTES);
    hps_zipf_init(&zipf, N_ROWS, 0.99, 0);
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        world->drawn[i] = (uint32_t)hps_zipf_row(&zipf, hps_zipf_rank(&zipf, &random));
    }
    const struct hps_host_map_options options = {.bytes_max = UINT64_C(2) << 30,
                                                 .dense = world->dense};
    hps_key first[WRITE_BATCH]; /* as a load does */
    hps_status status = hps_host_map_open_with(&options, &world->store, err);
    for (uint32_t i = 0; i < WRITE_BATCH; i++) {
        first[i] = i;
    }
    if (status == HPS_OK) {
        status = world->store->ops->space_open(world->store, &id, &world->space, err);
    }
    return status != HPS_OK
               ? status
               : world->store->ops->limits->reserve(world->space, &table, first, WRITE_BATCH, err);
}

static void world_close(struct world *world)
{
    if (world->space != NULL) {
        world->store->ops->space_close(world->space);
    }
    if (world->store != NULL) {
        world->store->ops->close(world->store);
    }
    hps_free((void *)world->sequences);
    hps_free_aligned(world->elsewhere);
    hps_free_aligned(world->out);
    hps_free(world->drawn);
}

static hps_status run_keys(bool dense, struct hps_error *err)
{
    struct world world = {.dense = dense};
    struct rounds *rounds = hps_calloc(1, sizeof(*rounds));
    struct writer *writer = hps_calloc(1, sizeof(*writer));
    hps_status status = HPS_NO_MEMORY;

    if (rounds == NULL || writer == NULL) {
        (void)hps_error_set(err, status, "no memory");
        goto out;
    }
    writer->world = &world;
    status = world_open(&world, err);
    if (status != HPS_OK) {
        goto out;
    }
    status = check_works() ? fill(&world, writer) : HPS_INTERNAL;
    if (status == HPS_OK) {
        status = run_rounds(&world, writer, rounds);
    }
    if (status == HPS_OK) {
        report_rounds(&world, rounds);
        status = run_checked(&world, writer);
    }
    if (status != HPS_OK) {
        (void)hps_error_set(err, status, "lookups during updates: %s", hps_status_text(status));
    }
out:
    world_close(&world);
    hps_free(writer);
    hps_free(rounds);
    return status;
}

hps_status bench_concurrency(struct hps_error *err)
{
    bench_bind(1);
    hps_status status = run_keys(false, err);
    return status == HPS_OK ? run_keys(true, err) : status;
}
