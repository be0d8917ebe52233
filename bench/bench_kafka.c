/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates through a real Kafka broker during lookups. Broker, producer, lookups and hpsd share the
 * first two cores. Every 10 ms the producer's thread writes a tick: rows, then a beacon row with
 * the number of the tick. Each lookup includes the beacon, which shows the newest visible tick.
 * Freshness is the time from handing the first row of a tick to the producer until a lookup returns
 * its beacon. Lookups run at a fixed rate, one at a time; latency counts from the time at which a
 * call was due. Threads: main, the producer's, for units also three clients' threads.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "bench/bench.h"
#include "bench/bench_e2e.h"
#include "bench/bench_reply.h"
#include "client/hist.h"
#include "client/lookup.h"
#include "client/update_writer.h"
#include "client/zipf.h"

enum {
    DIM = 128,
    ROW_BYTES = DIM * 4,
    N_ROWS = 1 << 18,
    BEACON = N_ROWS, /* the key after the table's last key */
    POOL_ROWS = 4096,
    TICKS_PER_S = 100,
    TICKS_MAX = 2000,
    CALLS_PER_S = 100,
    CALL_KEYS = 256,
    REPLY_BYTES_MAX = 1 << 20,
    BATCH_BYTES = 128 << 10,
    WARM_S = 5,
    IDLE_S = 5,
    RATE = 50000, /* rows a second, the rate of the target */
    RATE_S = 10,
    STEP_S = 4,
    BACKLOG_ROWS = 400000,
    ROUNDS = 3,
    UNIT_DIM = 32,
    UNIT_KEYS = 200000,
    UNIT_ASKERS = 3,
    UNIT_RATE = 1000, /* rows a second: ten a tick, and its beacon */
    UNIT_S = 6,
    UNIT_ROUNDS = 5,
    UNIT_REPLY_BYTES_MAX = 64 << 20,
    CONSISTENCY_UNIT = 2 /* of hps.v1.Consistency */
};
#define SECOND_NS   UINT64_C(1000000000)
#define FRESH_NS    SECOND_NS /* upper bound of the p99 */
#define PATIENCE_NS (60 * SECOND_NS)
#define TIMEOUT_US  UINT64_C(30000000)

struct world {
    struct bench_child broker;
    bool broker_runs;
    int broker_pid; /* of Java */
    char bootstrap[64];
    struct e2e_hpsd hpsd;
    struct hps_random random;
    hps_key keys[CALL_KEYS];
    uint8_t pool[POOL_ROWS * ROW_BYTES];
    struct hps_buf request, reply;
};

/* Ticks that one thread writes and another sees. */
struct stream {
    const struct world *world;
    uint32_t rows_per_tick, n_ticks;
    bool paced;
    float first; /* beacons count from here */
    pthread_t thread;
    _Atomic uint64_t sent_ns[TICKS_MAX];
    atomic_uint n_sent;
    atomic_bool ended;
    uint64_t start_ns, end_ns;
    hps_status status;
    struct hps_error err;
};

struct seen {
    struct hps_hist call_ns, fresh_ns;
    struct hps_hist age_ns; /* after each call: of the oldest tick that it did not see; 0: none */
    uint32_t n_ticks;
    uint64_t last_ns;
};

/* ---- the producer's thread ------------------------------------------------------------------- */

static hps_status topic(void *ctx, const char *name, uint32_t *out_topic,
                        uint32_t *out_n_partitions, struct hps_error *err)
{
    return hps_producer_topic(ctx, name, out_topic, out_n_partitions, err);
}

static hps_status send_record(void *ctx, const struct hps_producer_record *record,
                              struct hps_error *err)
{
    return hps_producer_send(ctx, record, err);
}

static void wait_until(uint64_t due_ns)
{
    const struct timespec due = {.tv_sec = (time_t)(due_ns / SECOND_NS),
                                 .tv_nsec = (long)(due_ns % SECOND_NS)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
}

static hps_status write_tick(struct stream *stream, struct hps_update_writer *writer, uint32_t tick,
                             struct hps_random *random, struct hps_error *err)
{
    static const char table[] = "feature_0";
    hps_key keys[POOL_ROWS];
    float beacon[DIM];
    uint32_t dim = stream->world->hpsd.dim;
    hps_status status = HPS_OK;

    atomic_store(&stream->sent_ns[tick], bench_now_ns());
    for (uint32_t done = 0; done < stream->rows_per_tick && status == HPS_OK;) {
        uint32_t left = stream->rows_per_tick - done;
        uint32_t n = left < POOL_ROWS ? left : POOL_ROWS;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = hps_random_next(random) % N_ROWS;
        }
        status = hps_update_writer_rows(writer, table, dim, HPS_DTYPE_FP32, keys,
                                        stream->world->pool, n, err);
        done += n;
    }
    for (uint32_t i = 0; i < DIM; i++) {
        beacon[i] = stream->first + (float)tick;
    }
    keys[0] = BEACON;
    if (status == HPS_OK) {
        status = hps_update_writer_rows(writer, table, dim, HPS_DTYPE_FP32, keys, beacon, 1, err);
    }
    if (status == HPS_OK) {
        status = hps_update_writer_flush(writer, err);
    }
    atomic_store(&stream->n_sent, tick + 1);
    return status;
}

static hps_status write_ticks(struct stream *stream, struct hps_producer *producer,
                              struct hps_error *err)
{
    const struct hps_update_sink sink = {producer, topic, send_record};
    const struct hps_update_writer_options options = {
        .model = "m", .form = HPS_UPDATE_PACKED, .key_bytes = 8, .batch_bytes = BATCH_BYTES};
    struct hps_update_writer *writer = NULL;
    struct hps_random random = {(uint64_t)stream->first + 7};
    hps_status status = hps_update_writer_new(&options, &sink, &writer, err);
    stream->start_ns = bench_now_ns();
    for (uint32_t tick = 0; tick < stream->n_ticks && status == HPS_OK; tick++) {
        if (stream->paced) {
            wait_until(stream->start_ns + tick * (SECOND_NS / TICKS_PER_S));
        }
        status = write_tick(stream, writer, tick, &random, err);
        if (status == HPS_OK) {
            status = hps_producer_poll(producer, 0, err);
        }
    }
    if (status == HPS_OK) {
        status = hps_producer_flush(producer, err);
    }
    stream->end_ns = bench_now_ns();
    hps_update_writer_free(writer);
    return status;
}

static void *run_stream(void *ctx)
{
    static const char *const properties[] = {"linger.ms=2"};
    struct stream *stream = ctx;
    const struct hps_producer_options options = {.brokers = stream->world->bootstrap,
                                                 .properties = properties,
                                                 .n_properties = 1,
                                                 .timeout_us = TIMEOUT_US};
    struct hps_producer *producer = NULL;
    stream->status = hps_producer_open(&options, &producer, &stream->err);
    if (stream->status == HPS_OK) {
        stream->status = write_ticks(stream, producer, &stream->err);
    }
    hps_producer_close(producer);
    atomic_store(&stream->ended, true);
    return NULL;
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* A call of n_keys, the beacon first. out_beacon: 0 until there is one. */
static hps_status call(struct world *world, uint32_t n_keys, float *out_beacon,
                       struct hps_error *err)
{
    struct hps_client_lookup_query query = {.keys = world->keys, .n_keys = n_keys};
    const struct hps_client_lookup lookup = {.model = "m", .queries = &query, .n_queries = 1};
    struct bench_reply_result result = {0};

    world->keys[0] = BEACON;
    for (uint32_t i = 1; i < n_keys; i++) {
        world->keys[i] = hps_random_next(&world->random) % N_ROWS;
    }
    hps_buf_clear(&world->request);
    hps_buf_clear(&world->reply);
    hps_status status = hps_client_lookup_encode(&lookup, &world->request);
    if (status == HPS_OK) {
        status = hps_client_call(world->hpsd.client, HPS_CLIENT_LOOKUP_PATH, world->request.data,
                                 world->request.size, TIMEOUT_US, &world->reply, err);
    }
    struct hps_wire_reader reply = {world->reply.data, world->reply.size, 0};
    if (status == HPS_OK && !bench_reply_next(&reply, &result)) {
        status = hps_error_set(err, HPS_DATA_LOSS, "the reply has no result");
    }
    if (status == HPS_OK && result.rows_bytes == (size_t)n_keys * world->hpsd.dim * 4) {
        memcpy(out_beacon, result.rows, sizeof(*out_beacon));
    }
    return status;
}

static void note_beacon(const struct stream *stream, float beacon, struct seen *seen)
{
    uint64_t now_ns = bench_now_ns();
    while (seen->n_ticks < atomic_load(&stream->n_sent) &&
           stream->first + (float)seen->n_ticks <= beacon) {
        hps_hist_add(&seen->fresh_ns, now_ns - atomic_load(&stream->sent_ns[seen->n_ticks]));
        seen->n_ticks++;
        seen->last_ns = now_ns;
    }
    bool all = seen->n_ticks == atomic_load(&stream->n_sent);
    hps_hist_add(&seen->age_ns, all ? 0 : now_ns - atomic_load(&stream->sent_ns[seen->n_ticks]));
}

/* Run until the whole stream was seen (NULL: for a number of seconds). */
static hps_status do_lookup(struct world *world, const struct stream *stream, unsigned idle_s,
                            uint32_t n_keys, struct seen *seen, struct hps_error *err)
{
    uint64_t start_ns = bench_now_ns();
    uint64_t end_ns = start_ns + (stream == NULL ? idle_s * SECOND_NS : 2 * PATIENCE_NS);
    uint64_t due_ns = start_ns;
    hps_status status = HPS_OK;

    while (status == HPS_OK && due_ns < end_ns &&
           (stream == NULL || seen->n_ticks < stream->n_ticks)) {
        float beacon = 0;
        if (stream != NULL && atomic_load(&stream->ended) && stream->status != HPS_OK) {
            *err = stream->err;
            return stream->status;
        }
        wait_until(due_ns);
        status = call(world, n_keys, &beacon, err);
        hps_hist_add(&seen->call_ns, bench_now_ns() - due_ns);
        if (stream != NULL) {
            note_beacon(stream, beacon, seen);
        }
        due_ns += SECOND_NS / CALLS_PER_S;
    }
    if (status == HPS_OK && stream != NULL && seen->n_ticks < stream->n_ticks) {
        return hps_error_set(err, HPS_DEADLINE, "lookups saw %u of %u ticks", seen->n_ticks,
                             stream->n_ticks);
    }
    return status;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static float next_first = 1;

static hps_status start_stream(struct world *world, uint32_t rate, uint32_t n_ticks,
                               struct stream *stream, struct hps_error *err)
{
    *stream = (struct stream){.world = world,
                              .rows_per_tick = rate / TICKS_PER_S,
                              .n_ticks = n_ticks,
                              .paced = true,
                              .first = next_first};
    next_first += (float)n_ticks;
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "no thread for a producer");
    }
    return HPS_OK;
}

static hps_status run_stream_beside(struct world *world, uint32_t rate, uint32_t n_ticks,
                                    uint32_t n_keys, struct stream *stream, struct seen *seen,
                                    struct hps_error *err)
{
    *seen = (struct seen){0};
    hps_status status = start_stream(world, rate, n_ticks, stream, err);
    if (status != HPS_OK) {
        return status;
    }
    status = do_lookup(world, stream, 0, n_keys, seen, err);
    (void)pthread_join(stream->thread, NULL);
    return status;
}

/* CPU time of hpsd, the broker, and this process. */
static void read_cpus(const struct world *world, double out_ns[3])
{
    const pid_t pids[3] = {world->hpsd.child.pid, world->broker_pid, 0};
    for (int i = 0; i < 3; i++) {
        clockid_t clock;
        bool known = clock_getcpuclockid(pids[i], &clock) == 0;
        out_ns[i] = known ? (double)bench_clock_ns(clock) : 0;
    }
}

/* CPU time per second at this rate, which does not depend on other programs. */
static void report_cpus(const char *name, const double before_ns[3], const double after_ns[3])
{
    static const char *const metrics[3] = {"CPU of hpsd", "CPU of the broker",
                                           "CPU of producer and lookups"};
    for (int i = 0; i < 3; i++) {
        bench_report(name, metrics[i], (after_ns[i] - before_ns[i]) / 1e9 / RATE_S, "cores",
                     BENCH_NO_TARGET, 0);
    }
}

static double ms_of(const struct hps_hist *hist, double share)
{
    return (double)hps_hist_quantile(hist, share) / 1e6;
}

static hps_status control(const struct world *world, const char *verb, struct hps_error *err)
{
    const char *const argv[] = {
        HPS_BIN_DIR "/hpsctl", "--addr", world->hpsd.admin, "updates", verb, "--all", NULL};
    return bench_child_run(argv, err);
}

/* Measure lookups with producer and broker while updates are paused: this latency is not caused by
 * updates. Then apply the backlog. */
static hps_status run_paused(struct world *world, struct stream *stream, struct seen *seen,
                             double *out_p99_ms, struct hps_error *err)
{
    hps_status status = control(world, "pause", err);
    if (status != HPS_OK) {
        return status;
    }
    status = start_stream(world, RATE, IDLE_S * TICKS_PER_S, stream, err);
    if (status != HPS_OK) {
        return status;
    }
    *seen = (struct seen){0};
    status = do_lookup(world, NULL, IDLE_S, CALL_KEYS, seen, err);
    *out_p99_ms = ms_of(&seen->call_ns, 0.99);
    (void)pthread_join(stream->thread, NULL);
    if (status == HPS_OK) {
        status = control(world, "resume", err);
    }
    *seen = (struct seen){0};
    return status == HPS_OK ? do_lookup(world, stream, 0, CALL_KEYS, seen, err) : status;
}

static hps_status run_promised(struct world *world, struct stream *stream, struct seen *seen,
                               struct hps_error *err)
{
    static const char name[] = "50,000 rows/s, 100 lookups/s";
    hps_status status =
        run_stream_beside(world, RATE, WARM_S * TICKS_PER_S, CALL_KEYS, stream, seen, err);
    if (status != HPS_OK) {
        return status;
    }
    bench_report("first 5 s, broker warm-up", "freshness max", ms_of(&seen->fresh_ns, 1), "ms",
                 BENCH_NO_TARGET, 0);
    *seen = (struct seen){0};
    status = do_lookup(world, NULL, IDLE_S, CALL_KEYS, seen, err);
    double idle_ms = ms_of(&seen->call_ns, 0.99);
    bench_report("no updates", "lookups of 256 keys, p50", ms_of(&seen->call_ns, 0.5), "ms",
                 BENCH_NO_TARGET, 0);
    bench_report("no updates", "lookups of 256 keys, p99", idle_ms, "ms", BENCH_NO_TARGET, 0);
    double before_ns[3], after_ns[3], paused_ms = 0;
    if (status == HPS_OK) {
        status = run_paused(world, stream, seen, &paused_ms, err);
    }
    read_cpus(world, before_ns);
    if (status == HPS_OK) {
        status = run_stream_beside(world, RATE, RATE_S * TICKS_PER_S, CALL_KEYS, stream, seen, err);
    }
    read_cpus(world, after_ns);
    if (status != HPS_OK) {
        return status;
    }
    bench_report(name, "freshness p50", ms_of(&seen->fresh_ns, 0.5), "ms", BENCH_NO_TARGET, 0);
    bench_report(name, "freshness p99", ms_of(&seen->fresh_ns, 0.99), "ms", BENCH_AT_MOST, 1000);
    bench_report(name, "freshness max", ms_of(&seen->fresh_ns, 1), "ms", BENCH_NO_TARGET, 0);
    bench_report(name, "lookups, p50", ms_of(&seen->call_ns, 0.5), "ms", BENCH_NO_TARGET, 0);
    bench_report(name, "lookups, p99", ms_of(&seen->call_ns, 0.99), "ms", BENCH_NO_TARGET, 0);
    bench_report("the same, updates paused", "lookups, p99", paused_ms, "ms", BENCH_NO_TARGET, 0);
    bench_report(name, "lookups, p99 / paused", ms_of(&seen->call_ns, 0.99) / paused_ms, "ratio",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "lookups, p99 / without", ms_of(&seen->call_ns, 0.99) / idle_ms, "ratio",
                 BENCH_AT_MOST, 1.5);
    report_cpus(name, before_ns, after_ns);
    return HPS_OK;
}

/* Raise the rate in steps until rows are not fresh or the producer cannot keep up. */
static hps_status run_steps(struct world *world, struct stream *stream, struct seen *seen,
                            struct hps_error *err)
{
    static const uint32_t rates[] = {10000, 20000, 35000, 50000, 75000, 100000, 150000, 200000};
    double largest = 0;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        char name[48];
        hps_status status =
            run_stream_beside(world, rates[i], STEP_S * TICKS_PER_S, CALL_KEYS, stream, seen, err);
        if (status != HPS_OK) {
            return status;
        }
        double rate = (double)rates[i] * STEP_S * (double)SECOND_NS /
                      (double)(stream->end_ns - stream->start_ns);
        (void)snprintf(name, sizeof(name), "%u rows/s offered", rates[i]);
        bench_report(name, "written", rate, "rows/s", BENCH_NO_TARGET, 0);
        bench_report(name, "freshness p99", ms_of(&seen->fresh_ns, 0.99), "ms", BENCH_NO_TARGET, 0);
        if (hps_hist_quantile(&seen->fresh_ns, 0.99) >= FRESH_NS || rate < 0.9 * rates[i]) {
            break;
        }
        largest = rates[i];
    }
    bench_report("largest rate", "with freshness p99 below 1 s", largest, "rows/s", BENCH_NO_TARGET,
                 0);
    return HPS_OK;
}

/* Apply a backlog at full speed. */
static hps_status run_backlog(struct world *world, struct stream *stream, struct seen *seen,
                              double *out_rows_per_s, struct hps_error *err)
{
    enum { TICKS = 100 };
    hps_status status = control(world, "pause", err);
    if (status != HPS_OK) {
        return status;
    }
    *seen = (struct seen){0};
    *stream = (struct stream){.world = world,
                              .rows_per_tick = BACKLOG_ROWS / TICKS,
                              .n_ticks = TICKS,
                              .first = next_first};
    next_first += TICKS;
    (void)run_stream(stream);
    if (stream->status != HPS_OK) {
        *err = stream->err;
        return stream->status;
    }
    uint64_t start_ns = bench_now_ns();
    status = control(world, "resume", err);
    if (status == HPS_OK) {
        status = do_lookup(world, stream, 0, 1, seen, err);
    }
    if (status == HPS_OK) {
        *out_rows_per_s = (double)BACKLOG_ROWS * 1e9 / (double)(seen->last_ns - start_ns);
    }
    return status;
}

static hps_status run_backlogs(struct world *world, struct stream *stream, struct seen *seen,
                               struct hps_error *err)
{
    static const char name[] = "a backlog of 400,000 rows";
    double ours[ROUNDS], plain[ROUNDS], ratios[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        hps_status status = run_backlog(world, stream, seen, &ours[i], err);
        if (status == HPS_OK) {
            status = bench_write_batches(BACKLOG_ROWS, &plain[i], err);
        }
        if (status != HPS_OK) {
            return status;
        }
        ratios[i] = ours[i] / plain[i];
    }
    bench_report(name, "applied through Kafka", bench_median(ours, ROUNDS), "rows/s",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "bare write batches", bench_median(plain, ROUNDS), "rows/s", BENCH_NO_TARGET,
                 0);
    bench_report(name, "through Kafka / write batches", bench_median(ratios, ROUNDS), "ratio",
                 BENCH_AT_LEAST, 0.8);
    return HPS_OK;
}

/* ---- the world ------------------------------------------------------------------------------- */

static hps_status open_world(struct world *world, bool with_host_map, uint32_t dim,
                             struct hps_error *err)
{
    const char *const argv[] = {"/usr/bin/python3", HPS_KAFKA_RIG, "run", "hps_et.m", NULL};
    char line[256];

    for (uint32_t i = 0; i < POOL_ROWS; i++) {
        hps_rowgen_row(9, 0, i, dim, world->pool + (size_t)i * dim * 4);
    }
    hps_buf_init(&world->request, REPLY_BYTES_MAX);
    hps_buf_init(&world->reply, REPLY_BYTES_MAX);
    hps_status status =
        bench_child_start(argv, BENCH_CHILD_ANY_CPU, &world->broker, line, sizeof(line), err);
    if (status != HPS_OK) {
        return status;
    }
    world->broker_runs = true;
    if (sscanf(line, "ready bootstrap=%63s pid=%d", world->bootstrap, &world->broker_pid) != 2) {
        return hps_error_set(err, HPS_INTERNAL, "unexpected output of tests/lib/kafka.py: %s",
                             line);
    }
    world->hpsd = (struct e2e_hpsd){
        .with_host_map = with_host_map, .n_rows = N_ROWS, .dim = dim, .brokers = world->bootstrap};
    status = e2e_hpsd_make(&world->hpsd, err);
    return status == HPS_OK ? e2e_hpsd_start(&world->hpsd, err) : status;
}

static void close_world(struct world *world)
{
    e2e_hpsd_remove(&world->hpsd);
    if (world->broker_runs) {
        bench_child_stop(&world->broker);
    }
    hps_buf_fini(&world->request);
    hps_buf_fini(&world->reply);
}

/* This thread and its children. */
static void bind_to_two(cpu_set_t *out_before)
{
    cpu_set_t two;
    CPU_ZERO(&two);
    CPU_SET(0, &two);
    CPU_SET(1, &two);
    (void)sched_getaffinity(0, sizeof(*out_before), out_before);
    (void)sched_setaffinity(0, sizeof(two), &two);
}

/* ---- units ----------------------------------------------------------------------------------- */

/* A client that looks up the same rows repeatedly, with or without CONSISTENCY_UNIT. */
struct asker {
    const struct world *world;
    bool unit;
    atomic_bool *stop;
    pthread_t thread;
    uint32_t n_answers, n_refused; /* refused: see is_refusal */
    hps_status status;
    struct hps_error err;
};

static bool is_refusal(hps_status status)
{
    return status == HPS_UNAVAILABLE || status == HPS_EXHAUSTED || status == HPS_ABORTED;
}

static hps_status ask_units(struct asker *asker, struct hps_client *client, struct hps_buf *request)
{
    struct hps_buf reply;
    hps_status status = HPS_OK;

    hps_buf_init(&reply, UNIT_REPLY_BYTES_MAX);
    while (!atomic_load(asker->stop) && status == HPS_OK) {
        hps_buf_clear(&reply);
        status = hps_client_call(client, HPS_CLIENT_LOOKUP_PATH, request->data, request->size,
                                 TIMEOUT_US, &reply, &asker->err);
        asker->n_answers += status == HPS_OK ? 1 : 0;
        asker->n_refused += is_refusal(status) ? 1 : 0;
        status = is_refusal(status) ? HPS_OK : status;
    }
    hps_buf_fini(&reply);
    return status;
}

static void *run_asker(void *ctx)
{
    struct asker *asker = ctx;
    struct hps_client_options options = {.address = asker->world->hpsd.address};
    hps_key *keys = hps_alloc(UNIT_KEYS * sizeof(*keys));
    struct hps_client_lookup_query query = {.keys = keys, .n_keys = UNIT_KEYS};
    const struct hps_client_lookup lookup = {.model = "m",
                                             .queries = &query,
                                             .n_queries = 1,
                                             .consistency = asker->unit ? CONSISTENCY_UNIT : 0};
    struct hps_client *client = NULL;
    struct hps_buf request;

    hps_buf_init(&request, UNIT_REPLY_BYTES_MAX);
    for (uint32_t i = 0; keys != NULL && i < UNIT_KEYS; i++) {
        keys[i] = i;
    }
    asker->status = keys == NULL ? HPS_NO_MEMORY : hps_client_lookup_encode(&lookup, &request);
    if (asker->status == HPS_OK) {
        asker->status = hps_client_open(&options, &client, &asker->err);
    }
    if (asker->status == HPS_OK) {
        asker->status = ask_units(asker, client, &request);
    }
    hps_client_close(client);
    hps_buf_fini(&request);
    hps_free(keys);
    return NULL;
}

/* Results of one round of each way. */
struct units_seen {
    double age_ms[3]; /* p50, p99, max */
    uint32_t n_answers, n_refused;
};

static hps_status run_askers(struct world *world, unsigned n_askers, bool unit,
                             struct stream *stream, struct seen *seen, struct units_seen *out_seen,
                             struct hps_error *err)
{
    static const double shares[3] = {0.5, 0.99, 1};
    struct asker askers[UNIT_ASKERS];
    atomic_bool stop = false;

    *out_seen = (struct units_seen){0};
    hps_status status = HPS_OK;
    unsigned n_started = 0;
    while (status == HPS_OK && n_started < n_askers) {
        struct asker *asker = &askers[n_started];
        *asker = (struct asker){.world = world, .unit = unit, .stop = &stop};
        status = pthread_create(&asker->thread, NULL, run_asker, asker) == 0
                     ? HPS_OK
                     : hps_error_set(err, HPS_EXHAUSTED, "no thread for a client");
        n_started += status == HPS_OK ? 1 : 0;
    }
    if (status == HPS_OK) {
        status = run_stream_beside(world, UNIT_RATE, UNIT_S * TICKS_PER_S, 1, stream, seen, err);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < n_started; i++) {
        (void)pthread_join(askers[i].thread, NULL);
        out_seen->n_answers += askers[i].n_answers;
        out_seen->n_refused += askers[i].n_refused;
        if (status == HPS_OK && askers[i].status != HPS_OK) {
            *err = askers[i].err;
            status = askers[i].status;
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        out_seen->age_ms[i] = ms_of(&seen->age_ns, shares[i]);
    }
    return status;
}

enum { NOBODY, ROWS, UNITS, N_WAYS };

static void report_units(const struct units_seen seen[N_WAYS][UNIT_ROUNDS])
{
    static const char *const names[N_WAYS] = {"100 updates/s", "3 clients, 200,000 rows",
                                              "3 clients, units of 200,000"};
    static const char *const metrics[3] = {"oldest unseen update, p50", "oldest unseen update, p99",
                                           "oldest unseen update, max"};
    double ratios[2][UNIT_ROUNDS];
    for (unsigned way = 0; way < N_WAYS; way++) {
        double ms[UNIT_ROUNDS], answers[UNIT_ROUNDS], refused = 0;
        for (unsigned m = 0; m < 3; m++) {
            for (unsigned i = 0; i < UNIT_ROUNDS; i++) {
                ms[i] = seen[way][i].age_ms[m];
            }
            bench_report(names[way], metrics[m], bench_median(ms, UNIT_ROUNDS), "ms",
                         BENCH_NO_TARGET, 0);
        }
        for (unsigned i = 0; i < UNIT_ROUNDS; i++) {
            answers[i] = (double)seen[way][i].n_answers / UNIT_S;
            refused += seen[way][i].n_refused;
        }
        if (way != NOBODY) {
            bench_report(names[way], "replies", bench_median(answers, UNIT_ROUNDS), "/s",
                         BENCH_NO_TARGET, 0);
            bench_report(names[way], "refused, in total", refused, "", BENCH_NO_TARGET, 0);
        }
    }
    for (unsigned i = 0; i < UNIT_ROUNDS; i++) {
        for (unsigned m = 0; m < 2; m++) {
            ratios[m][i] = seen[UNITS][i].age_ms[m] / seen[ROWS][i].age_ms[m];
        }
    }
    bench_report("units / rows", metrics[0], bench_median(ratios[0], UNIT_ROUNDS), "ratio",
                 BENCH_AT_MOST, 2);
    bench_report("units / rows", metrics[1], bench_median(ratios[1], UNIT_ROUNDS), "ratio",
                 BENCH_AT_MOST, 2);
}

static hps_status run_units(struct world *world, struct stream *stream, struct seen *seen,
                            struct hps_error *err)
{
    struct units_seen all[N_WAYS][UNIT_ROUNDS];
    hps_status status = run_askers(world, 0, false, stream, seen, &all[0][0], err); /* warm */

    for (unsigned i = 0; i < UNIT_ROUNDS && status == HPS_OK; i++) {
        for (unsigned way = 0; way < N_WAYS && status == HPS_OK; way++) {
            status = run_askers(world, way == NOBODY ? 0 : UNIT_ASKERS, way == UNITS, stream, seen,
                                &all[way][i], err);
        }
    }
    if (status == HPS_OK) {
        report_units(all);
    }
    return status;
}

/* ---- benchmarks ------------------------------------------------------------------------------ */

static hps_status run_throughput(struct world *world, struct stream *stream, struct seen *seen,
                                 struct hps_error *err)
{
    hps_status status = run_promised(world, stream, seen, err);
    if (status == HPS_OK) {
        status = run_steps(world, stream, seen, err);
    }
    return status == HPS_OK ? run_backlogs(world, stream, seen, err) : status;
}

static hps_status run(const char *name, bool with_host_map, uint32_t dim,
                      hps_status (*fn)(struct world *world, struct stream *stream,
                                       struct seen *seen, struct hps_error *err),
                      struct hps_error *err)
{
    const char *const missing[] = {"/usr/bin/python3", HPS_KAFKA_RIG, "missing", NULL};
    cpu_set_t before;

    if (bench_child_run(missing, err) != HPS_OK) {
        bench_left_out(name, "no Kafka broker; `tests/lib/kafka.py missing` prints the reason");
        return HPS_OK;
    }
    struct world *world = hps_calloc(1, sizeof(*world));
    struct stream *stream = hps_calloc(1, sizeof(*stream));
    struct seen *seen = hps_calloc(1, sizeof(*seen));
    hps_status status = hps_error_set(err, HPS_NO_MEMORY, "no memory");
    bind_to_two(&before);
    if (world != NULL && stream != NULL && seen != NULL) {
        world->random.state = 1;
        status = open_world(world, with_host_map, dim, err);
        if (status == HPS_OK) {
            status = fn(world, stream, seen, err);
        }
        close_world(world);
    }
    (void)sched_setaffinity(0, sizeof(before), &before);
    hps_free(seen);
    hps_free(stream);
    hps_free(world);
    return status;
}

hps_status bench_kafka(struct hps_error *err)
{
    return run("kafka", true, DIM, run_throughput, err);
}

hps_status bench_units(struct hps_error *err)
{
    return run("units", false, UNIT_DIM, run_units, err);
}
