/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store with tables larger than the memory for their files. Lookups of random keys
 * are compared with the disk's own random reads of 4 KiB in the same run. The tables "base" and
 * "dense" have consecutive keys, with and without a base file; "sparse" has gaps between its keys.
 * Further cases: a start with an empty page cache, warm lookups compared with pread of a flat
 * file, and updates while the table is merged.
 *
 * Needs 14 GiB in /var/tmp and 4 GiB of free memory. Main thread, and one thread for each call in
 * flight.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/basefile/basefile.h"
#include "backends/rocksdb/rocksdb.h"
#include "backends/store_bulk.h"
#include "base/hash.h"
#include "base/rows/rowgen.h"
#include "base/thread.h"
#include "bench/bench.h"
#include "bench/disk.h"

enum {
    DIM = 128,
    ROW_BYTES = DIM * 4,
    N_ROWS = 6 << 20,
    N_WARM = 1 << 20, /* rows of the warm cases */
    GAP = 1024,       /* mean distance of the keys of the sparse table */
    PIECE = 4096,     /* rows per call of a load */
    KEYS = 1000,      /* per call */
    KEYS_MAX = 10000,
    FEW_KEYS = 100,
    FEW_CALLS = 200,
    WARM_CALLS = 100,
    UPDATE_TURNS = 5,
    STRIDE = 6007, /* between the keys of a batch of updates; prime */
    CALLERS_MAX = 16,
    READERS = 16, /* the daemon's default */
    ROUNDS = 3,
    N_LEVELS = 3,
    N_TABLES = 3,
    CHECK_EACH = 97,
};
#define DISK_BYTES (UINT64_C(14) << 30)
#define SETTLE_US  UINT64_C(300000)
#define WINDOW_US  UINT64_C(2500000)
#define COLD_US    UINT64_C(1000000)

static const unsigned levels[N_LEVELS] = {1, 4, CALLERS_MAX}; /* calls in flight */
static const double level_targets[N_LEVELS] = {0.6, 0.85, 0.85};
static const float zeros[DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};
static _Atomic uint64_t n_wrong;

/* A database with one table. */
struct place {
    char dir[128];
    const char *name;
    bool base;
    bool sparse;
    bool merges;             /* a base is always merged */
    double load_rate;        /* rows per second */
    struct hps_store *store; /* NULL: not open */
    struct hps_space *space;
};

struct world {
    char dir[64];
    char flat[128]; /* file with the rows of the tables with consecutive keys */
    struct place places[N_TABLES];
    struct bench_disk disk;
};

static void report(const char *title, const char *metric, double value, const char *unit)
{
    bench_report(title, metric, value, unit, BENCH_NO_TARGET, 0);
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct caller {
    pthread_t thread;
    const struct place *place;
    const atomic_bool *stop;
    uint64_t seed;
    uint64_t n_rows; /* keys are drawn from the first rows */
    uint32_t n_keys; /* per call */
    _Atomic uint64_t n_done;
    hps_key drawn[KEYS_MAX], keys[KEYS_MAX];
    uint32_t slots[KEYS_MAX];
    uint8_t rows[KEYS_MAX][ROW_BYTES];
};

static struct caller all_callers[CALLERS_MAX];

static void caller_init(struct caller *caller, const struct place *place, uint32_t n_keys)
{
    static uint64_t n_inits;

    caller->place = place;
    caller->seed = ++n_inits << 40;
    caller->n_rows = N_ROWS;
    caller->n_keys = n_keys;
    caller->n_done = 0;
}

static hps_key key_of(const struct place *place, uint64_t row)
{
    return place->sparse ? row * GAP + hps_mix64(row) % GAP : row;
}

static void draw(struct caller *caller)
{
    for (uint32_t i = 0; i < caller->n_keys; i++) {
        caller->drawn[i] = key_of(caller->place, hps_mix64(caller->seed++) % caller->n_rows);
    }
}

/* Look up the drawn keys. Returns the time in ns. */
static uint64_t look_up(struct caller *caller)
{
    const struct hps_call call = {0};
    struct hps_space *space = caller->place->space;
    uint8_t expected[ROW_BYTES];

    for (uint32_t i = 0; i < caller->n_keys; i++) {
        caller->keys[i] = caller->drawn[i];
        caller->slots[i] = i;
    }
    struct hps_batch batch = {caller->keys, caller->slots, caller->rows[0], caller->n_keys, {0}};
    uint64_t start_ns = bench_now_ns();
    hps_status status = space->store->ops->get(space, &call, &table, &batch);
    uint64_t ns = bench_now_ns() - start_ns;
    n_wrong += status != HPS_OK || batch.n != 0;
    for (uint32_t i = 0; i < caller->n_keys; i += CHECK_EACH) {
        hps_rowgen_row(1, 0, caller->drawn[i], DIM, expected);
        n_wrong += memcmp(caller->rows[i], expected, ROW_BYTES) != 0;
    }
    return ns;
}

static void *caller_run(void *arg)
{
    struct caller *caller = arg;

    while (!atomic_load(caller->stop)) {
        draw(caller);
        (void)look_up(caller);
        caller->n_done += caller->n_keys;
    }
    return NULL;
}

/* Totals, or in the result of a measurement: keys per second, µs and bytes per key. */
struct counts {
    double keys, ns, cpu, disk_bytes;
};

static struct counts counts_now(const struct caller *callers, unsigned n)
{
    struct counts counts = {.ns = (double)bench_now_ns(),
                            .cpu = (double)bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e3};
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        counts.disk_bytes = (double)usage.ru_inblock * 512;
    }
    for (unsigned i = 0; i < n; i++) {
        counts.keys += (double)callers[i].n_done;
    }
    return counts;
}

/* Calls of n callers at once. The measurement begins settle_us after their start. */
static hps_status measure(const struct place *place, unsigned n, uint64_t settle_us,
                          uint64_t window_us, struct counts *out, struct hps_error *err)
{
    struct caller *callers = all_callers;
    atomic_bool stop = false;
    hps_status status = HPS_OK;
    unsigned n_started = 0;

    for (; n_started < n && status == HPS_OK; n_started += status == HPS_OK) {
        caller_init(&callers[n_started], place, KEYS);
        callers[n_started].stop = &stop;
        if (pthread_create(&callers[n_started].thread, NULL, caller_run, &callers[n_started]) !=
            0) {
            status = hps_error_set(err, HPS_EXHAUSTED, "no thread");
        }
    }
    if (status == HPS_OK) {
        (void)hps_thread_pause(settle_us, NULL);
        struct counts from = counts_now(callers, n);
        (void)hps_thread_pause(window_us, NULL);
        struct counts to = counts_now(callers, n);
        double n_keys = to.keys - from.keys + 1e-9, ns = to.ns - from.ns;
        *out = (struct counts){n_keys * 1e9 / ns, ns, (to.cpu - from.cpu) / n_keys,
                               (to.disk_bytes - from.disk_bytes) / n_keys};
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < n_started; i++) {
        (void)pthread_join(callers[i].thread, NULL);
    }
    return status;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void place_close(struct place *place)
{
    if (place->space != NULL) {
        place->store->ops->space_close(place->space);
    }
    if (place->store != NULL) {
        place->store->ops->close(place->store);
    }
    place->space = NULL;
    place->store = NULL;
}

/* memory_bytes: the page cache that the store expects for its files. */
static hps_status place_open(struct place *place, uint64_t memory_bytes, struct hps_error *err)
{
    const struct hps_rocksdb_options options = {
        .path = place->dir,
        .n_threads = READERS,
        .batch_keys_max = 1 << 16,
        .disk_free_min_bytes = 64 << 20,
        .block_cache_bytes = 0, /* as the daemon with a host map */
        .wal_sync_ms = 1000,
        .memory_bytes = memory_bytes,
        .base_files = place->base,
    };
    const struct hps_space_id id = {"m", 1, &table, 1, 0};
    struct hps_basefile_options base = {.path = place->dir,
                                        .write = true,
                                        .memory_bytes = memory_bytes,
                                        .merge_ppm = place->merges};
    hps_status status = hps_rocksdb_open(&options, &place->store, err);

    if (status == HPS_OK && place->base) {
        base.inner = place->store;
        base.readers = hps_rocksdb_readers(place->store);
        status = hps_basefile_open(&base, &place->store, err);
    }
    return status == HPS_OK ? place->store->ops->space_open(place->store, &id, &place->space, err)
                            : status;
}

static void rows_make(const struct place *place, uint64_t first, hps_key keys[PIECE],
                      uint8_t rows[PIECE][ROW_BYTES])
{
    for (uint32_t i = 0; i < PIECE; i++) {
        keys[i] = key_of(place, first + i);
        hps_rowgen_row(1, 0, keys[i], DIM, rows[i]);
    }
}

/* The time includes that of making the rows, during which RocksDB's load writes earlier ones. */
static hps_status place_load(struct place *place, struct hps_error *err)
{
    static uint8_t rows[PIECE][ROW_BYTES];
    static hps_key keys[PIECE];
    const struct hps_store_ops *ops = place->store->ops;
    struct hps_store_load *load = NULL;
    struct hps_store_usage usage;

    uint64_t start_ns = bench_now_ns();
    hps_status status =
        ops->bulk->begin(place->space, N_ROWS, (uint64_t)N_ROWS * ROW_BYTES, &load, err);
    for (uint64_t row = 0; status == HPS_OK && row < N_ROWS; row += PIECE) {
        rows_make(place, row, keys, rows);
        status = ops->bulk->add(load, &table, keys, rows[0], PIECE, err);
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(load, err);
    } else if (load != NULL) {
        ops->bulk->abort(load);
    }
    if (status == HPS_OK) {
        place->load_rate = N_ROWS * 1e9 / (double)(bench_now_ns() - start_ns);
        ops->space_usage(place->space, &usage);
        report(place->name, "load", place->load_rate, "rows/s");
        report(place->name, "bytes on disk / bytes of rows",
               (double)usage.used_bytes / N_ROWS / ROW_BYTES, "ratio");
    }
    sync(); /* the next load has the disk for itself */
    return status;
}

/* The file with the rows of the tables with consecutive keys. */
static hps_status flat_make(const struct world *world, struct hps_error *err)
{
    static uint8_t rows[PIECE][ROW_BYTES];
    static hps_key keys[PIECE];
    FILE *flat = fopen(world->flat, "we");
    bool good = flat != NULL;

    for (uint64_t row = 0; good && row < N_ROWS; row += PIECE) {
        rows_make(&world->places[0], row, keys, rows);
        good = fwrite(rows, sizeof(rows), 1, flat) == 1;
    }
    good = flat != NULL && fclose(flat) == 0 && good;
    sync();
    return good ? HPS_OK : hps_error_set(err, HPS_IO, "%s cannot be written", world->flat);
}

static hps_status places_make(struct world *world, struct hps_error *err)
{
    static const char *const names[N_TABLES] = {"base", "dense", "sparse"};
    hps_status status = HPS_OK;

    for (int i = 0; i < N_TABLES && status == HPS_OK; i++) {
        struct place *place = &world->places[i];
        place->name = names[i];
        place->base = i == 0;
        place->sparse = i == 2;
        (void)snprintf(place->dir, sizeof(place->dir), "%s/%s", world->dir, names[i]);
        status = mkdir(place->dir, 0700) == 0
                     ? place_open(place, UINT64_MAX, err)
                     : hps_error_set(err, HPS_IO, "no directory %s", place->dir);
        status = status == HPS_OK ? place_load(place, err) : status;
        place_close(place);
    }
    if (status != HPS_OK) {
        return status;
    }
    bench_report("base", "load / load of dense",
                 world->places[0].load_rate / world->places[1].load_rate, "ratio", BENCH_AT_LEAST,
                 1);
    return flat_make(world, err);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void report_level(const struct place *place, unsigned level,
                         const struct counts results[ROUNDS], const double disk[ROUNDS])
{
    double keys[ROUNDS], ratios[ROUNDS], cpu[ROUNDS], bytes[ROUNDS];
    char title[96];

    for (int i = 0; i < ROUNDS; i++) {
        keys[i] = results[i].keys;
        ratios[i] = results[i].keys / disk[i];
        cpu[i] = results[i].cpu;
        bytes[i] = results[i].disk_bytes;
    }
    (void)snprintf(title, sizeof(title), "%s, 1,000 keys, %u in flight", place->name,
                   levels[level]);
    report(title, "keys", bench_median(keys, ROUNDS), "1/s");
    bench_report(title, "keys / disk reads", bench_median(ratios, ROUNDS), "ratio",
                 place->base ? BENCH_AT_LEAST : BENCH_NO_TARGET, level_targets[level]);
    report(title, "CPU per key", bench_median(cpu, ROUNDS), "us");
    report(title, "disk read per key", bench_median(bytes, ROUNDS), "bytes");
}

static hps_status bench_rates(struct world *world, struct hps_error *err)
{
    static const char title[] = "disk, random 4 KiB";
    struct counts results[N_TABLES][N_LEVELS][ROUNDS];
    double disk[ROUNDS], one[ROUNDS];
    hps_status status = HPS_OK;

    for (int i = 0; i < ROUNDS && status == HPS_OK; i++) {
        status = bench_disk_rate(&world->disk, 1, &one[i], err);
        status = status == HPS_OK ? bench_disk_best(&world->disk, &disk[i], err) : status;
        for (int at = 0; at < N_LEVELS * N_TABLES && status == HPS_OK; at++) {
            status = measure(&world->places[at % N_TABLES], levels[at / N_TABLES], SETTLE_US,
                             WINDOW_US, &results[at % N_TABLES][at / N_TABLES][i], err);
        }
    }
    if (status != HPS_OK) {
        return status;
    }
    for (unsigned at = 0; at < N_LEVELS * N_TABLES; at++) {
        report_level(&world->places[at / N_LEVELS], at % N_LEVELS,
                     results[at / N_LEVELS][at % N_LEVELS], disk);
    }
    report(title, "depth 1", bench_median(one, ROUNDS), "1/s");
    report(title, "best depth", bench_median(disk, ROUNDS), "1/s");
    return HPS_OK;
}

static hps_status bench_few(struct world *world, struct hps_error *err)
{
    static const char title[] = "100 keys, one call, p50";
    double us[N_TABLES][FEW_CALLS], disk_us[FEW_CALLS];
    struct caller *callers = all_callers;
    hps_status status = HPS_OK;
    char metric[64];

    for (int t = 0; t < N_TABLES; t++) {
        caller_init(&callers[t], &world->places[t], FEW_KEYS);
    }
    for (int i = 0; i < FEW_CALLS && status == HPS_OK; i++) {
        status = bench_disk_burst(&world->disk, FEW_KEYS, &disk_us[i], err);
        for (int t = 0; t < N_TABLES; t++) {
            draw(&callers[t]);
            us[t][i] = (double)look_up(&callers[t]) / 1e3;
        }
    }
    if (status == HPS_OK) {
        double disk = bench_median(disk_us, FEW_CALLS);
        report(title, "100 disk reads, depth 100", disk, "us");
        for (int t = 0; t < N_TABLES; t++) {
            const struct place *place = &world->places[t];
            (void)snprintf(metric, sizeof(metric), "%s / disk reads", place->name);
            bench_report(title, metric, bench_median(us[t], FEW_CALLS) / disk, "ratio",
                         place->base ? BENCH_AT_MOST : BENCH_NO_TARGET, 1.5);
        }
    }
    return status;
}

/* The files fit into memory, but the page cache is empty. */
static hps_status bench_cold(struct world *world, struct hps_error *err)
{
    double disk = 0;
    hps_status status = bench_disk_best(&world->disk, &disk, err);

    for (int at = 0; at < N_TABLES * 2 && status == HPS_OK; at++) {
        struct place *place = &world->places[at / 2];
        struct counts result = {0};
        char title[96];
        bench_chill(place->dir);
        status = place_open(place, UINT64_MAX, err);
        status =
            status == HPS_OK ? measure(place, levels[at % 2], 0, COLD_US, &result, err) : status;
        place_close(place);
        (void)snprintf(title, sizeof(title), "%s, cold start, %u in flight", place->name,
                       levels[at % 2]);
        report(title, "keys", result.keys, "1/s");
        report(title, "keys / disk reads", result.keys / disk, "ratio");
        report(title, "disk read per key", result.disk_bytes, "bytes");
    }
    return status;
}

/* Rows per second of warm lookups, and of pread from the flat file with the same keys. */
static void warm_round(struct caller *caller, int flat_fd, double *out_store, double *out_flat)
{
    uint64_t store_ns = 0, flat_ns = 0;
    double n = (double)WARM_CALLS * caller->n_keys;

    for (int i = 0; i < WARM_CALLS; i++) {
        draw(caller);
        store_ns += look_up(caller);
        uint64_t start_ns = bench_now_ns();
        for (uint32_t k = 0; k < caller->n_keys; k++) {
            n_wrong += pread(flat_fd, caller->rows[k], ROW_BYTES,
                             (off_t)(caller->drawn[k] * ROW_BYTES)) != ROW_BYTES;
        }
        flat_ns += bench_now_ns() - start_ns;
    }
    *out_store = n * 1e9 / (double)(store_ns + 1);
    *out_flat = n * 1e9 / (double)(flat_ns + 1);
}

static hps_status bench_warm(struct world *world, struct place *place, struct hps_error *err)
{
    static const uint32_t sizes[] = {KEYS, KEYS_MAX};
    struct caller *caller = &all_callers[0];
    int flat_fd = open(world->flat, O_RDONLY | O_CLOEXEC);
    hps_status status = place_open(place, UINT64_MAX, err);

    caller_init(caller, place, KEYS_MAX);
    for (uint64_t row = 0; status == HPS_OK && row < N_WARM; row += KEYS_MAX) {
        for (uint32_t i = 0; i < KEYS_MAX; i++) {
            caller->drawn[i] = key_of(place, row + i);
        }
        (void)look_up(caller);
    }
    for (int size = 0; size < 2 && status == HPS_OK; size++) {
        double store[ROUNDS], flat, ratios[ROUNDS];
        char title[96];
        caller->n_rows = N_WARM;
        caller->n_keys = sizes[size];
        for (int i = -1; i < ROUNDS; i++) { /* the first round only warms */
            int to = i < 0 ? 0 : i;
            warm_round(caller, flat_fd, &store[to], &flat);
            ratios[to] = store[to] / flat;
        }
        (void)snprintf(title, sizeof(title), "%s, warm, mapped, %u keys", place->name, sizes[size]);
        report(title, "keys", bench_median(store, ROUNDS), "1/s");
        bench_report(title, "keys / pread", bench_median(ratios, ROUNDS), "ratio",
                     place->base ? BENCH_AT_LEAST : BENCH_NO_TARGET, 0.9);
    }
    place_close(place);
    close(flat_fd);
    return status;
}

/* Write batches of updates for a second. Returns rows per second. */
static double update_turn(const struct place *place, uint64_t *seed, hps_status *status,
                          struct hps_error *err)
{
    static uint8_t rows[KEYS][ROW_BYTES];
    static hps_key keys[KEYS];
    const struct hps_call call = {0};
    const struct hps_write write = {&table, keys, rows[0], KEYS};
    uint64_t start_ns = bench_now_ns(), end_ns = start_ns, n = 0;

    for (; *status == HPS_OK && end_ns - start_ns < UINT64_C(1000000000); n += KEYS) {
        uint64_t first = hps_mix64((*seed)++);
        for (uint64_t i = 0; i < KEYS; i++) {
            keys[i] = (first % N_ROWS + i * STRIDE) % N_ROWS;
        }
        *status = place->store->ops->durable->apply(place->space, &call, &write, 1, NULL, 0, err);
        end_ns = bench_now_ns();
    }
    return (double)n * 1e9 / (double)(end_ns - start_ns);
}

/* The last case, because it changes the rows. */
static hps_status bench_updates(struct world *world, struct hps_error *err)
{
    struct place *base = &world->places[0], *dense = &world->places[1];
    double ratios[UPDATE_TURNS], rates[UPDATE_TURNS];
    uint64_t seed = 1;

    base->merges = true;
    hps_status status = place_open(base, 256 << 20, err);
    status = status == HPS_OK ? place_open(dense, 256 << 20, err) : status;
    (void)update_turn(base, &seed, &status, err); /* the merge begins */
    for (int i = 0; i < UPDATE_TURNS && status == HPS_OK; i++) {
        rates[i] = update_turn(base, &seed, &status, err);
        ratios[i] = rates[i] / update_turn(dense, &seed, &status, err);
    }
    if (status == HPS_OK) {
        report("base, updates during a merge", "rows", bench_median(rates, UPDATE_TURNS), "1/s");
        bench_report("base, updates during a merge", "rows / rows of dense",
                     bench_median(ratios, UPDATE_TURNS), "ratio", BENCH_AT_LEAST, 0.7);
    }
    place_close(base);
    place_close(dense);
    return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

static hps_status run(struct world *world, struct hps_error *err)
{
    hps_status status = places_make(world, err);

    status = status == HPS_OK ? bench_disk_open(&world->disk, world->flat, err) : status;
    for (int i = 0; i < N_TABLES && status == HPS_OK; i++) {
        status = place_open(&world->places[i], 256 << 20, err);
    }
    status = status == HPS_OK ? bench_rates(world, err) : status;
    status = status == HPS_OK ? bench_few(world, err) : status;
    for (int i = 0; i < N_TABLES; i++) {
        place_close(&world->places[i]);
    }
    status = status == HPS_OK ? bench_cold(world, err) : status;
    for (int i = 0; i < 2 && status == HPS_OK; i++) { /* base, dense */
        status = bench_warm(world, &world->places[i], err);
    }
    status = status == HPS_OK ? bench_updates(world, err) : status;
    return status == HPS_OK && n_wrong != 0
               ? hps_error_set(err, HPS_INTERNAL, "%llu wrong rows", (unsigned long long)n_wrong)
               : status;
}

hps_status bench_ssd(struct hps_error *err)
{
    struct world world = {.dir = "/var/tmp/hps-bench-XXXXXX"};
    struct statvfs disk;

    if (statvfs("/var/tmp", &disk) != 0 || disk.f_bavail * disk.f_frsize < DISK_BYTES) {
        bench_left_out("ssd", "/var/tmp has less than 14 GiB free");
        return HPS_OK;
    }
    if (mkdtemp(world.dir) == NULL) {
        return hps_error_set(err, HPS_IO, "no directory %s", world.dir);
    }
    (void)snprintf(world.flat, sizeof(world.flat), "%s/flat", world.dir);
    hps_status status = run(&world, err);
    bench_disk_close(&world.disk);
    bench_remove(world.dir);
    return status;
}
