/* SPDX-License-Identifier: Apache-2.0
 *
 * Server CPU time of a request of many tables, compared with its two unavoidable parts: the same
 * lookups in this process, and a bare socket server, a thread that sends the same number of bytes.
 * All three take turns. hpsd and this process look up the same uniform keys. Main thread.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_e2e.h"
#include "cache/lookup/lookup.h"
#include "client/lookup.h"
#include "client/zipf.h"

enum {
    ROUNDS = 15,
    N_TABLES = 26,
    PUT_ROWS = 1024, /* at a time */
    ROW_BYTES_MAX = 512,
    REQUEST_BYTES_MAX = 1 << 20
};

/* A request: n_keys of each table. */
struct shape {
    uint32_t n_keys, dim, n_rows;
    unsigned n_calls; /* in a round */
};

static const struct shape shapes[] = {{64, 128, 1 << 20, 64}, {2048, 16, 4 << 20, 16}};

/* ---- lookups in this process ----------------------------------------------------------------- */

struct memory {
    struct hps_store *store;
    struct hps_version *version;
    struct hps_block_pool *blocks;
    struct hps_arena *arena, *scratch;
    struct hps_lookup_part parts[N_TABLES];
};

static hps_status memory_fill(struct memory *memory, uint32_t n_rows, struct hps_error *err)
{
    const struct hps_call call = {0};
    struct hps_space *space = memory->version->tiers[0];
    static uint8_t rows[PUT_ROWS * ROW_BYTES_MAX];
    hps_key keys[PUT_ROWS];

    for (uint32_t i = 0; i < PUT_ROWS; i++) {
        keys[i] = i;
    }
    hps_status status =
        space->store->ops->limits->reserve(space, &memory->version->tables[0], keys, PUT_ROWS, err);
    for (uint32_t at = 0; at < n_rows && status == HPS_OK; at += PUT_ROWS) {
        for (uint32_t i = 0; i < PUT_ROWS; i++) {
            keys[i] = at + i;
        }
        status =
            space->store->ops->put(space, &call, &memory->version->tables[0], keys, rows, PUT_ROWS);
    }
    return status == HPS_OK ? HPS_OK : hps_error_set(err, status, "rows could not be inserted");
}

static hps_status memory_open(struct memory *memory, const struct shape *shape,
                              struct hps_error *err)
{
    const struct hps_host_map_options options = {.bytes_max = UINT64_C(4) << 30, .dense = true};
    struct hps_version *version = memory->version = hps_version_new("m", 1, 1);

    if (version != NULL) {
        hps_version_pin(version);
    }
    memory->blocks = hps_block_pool_new(0);
    memory->arena = hps_arena_new(1 << 20, 1 << 26);
    memory->scratch = hps_arena_new(1 << 20, 1 << 26);
    if (version == NULL || memory->blocks == NULL || memory->arena == NULL ||
        memory->scratch == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = shape->dim,
                                            .row_bytes = shape->dim * 4,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = shape->n_rows,
                                            .default_row = hps_calloc(shape->dim, 4)};
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    hps_status status = hps_host_map_open_with(&options, &memory->store, err);
    if (status == HPS_OK) {
        status = memory->store->ops->space_open(memory->store, &id, &version->tiers[0], err);
    }
    if (status == HPS_OK) {
        version->n_tiers = 1;
        memory->store->ops->limits->space_active(version->tiers[0], true);
        status = memory_fill(memory, shape->n_rows, err);
    }
    return status;
}

static void memory_close(struct memory *memory)
{
    if (memory->version != NULL && memory->version->n_tiers > 0) {
        memory->store->ops->space_close(memory->version->tiers[0]);
    }
    if (memory->version != NULL) {
        hps_version_unpin(memory->version);
    }
    hps_version_free(memory->version);
    if (memory->store != NULL) {
        memory->store->ops->close(memory->store);
    }
    hps_arena_free(memory->arena);
    hps_arena_free(memory->scratch);
    if (memory->blocks != NULL) {
        hps_block_pool_free(memory->blocks);
    }
}

/* keys: [N_TABLES][n_keys] */
static hps_status memory_lookup(struct memory *memory, const hps_key *keys, uint32_t n_keys,
                                struct hps_error *err)
{
    struct hps_lookup lookup = {.version = memory->version,
                                .arena = memory->arena,
                                .scratch = memory->scratch,
                                .blocks = memory->blocks,
                                .parts = memory->parts,
                                .n_parts = N_TABLES,
                                .miss_policy = HPS_MISS_EXACT,
                                .unknown_policy = HPS_UNKNOWN_DEFAULT_ROW};
    bool done = false;

    hps_arena_reset(memory->arena);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        memory->parts[t] =
            (struct hps_lookup_part){.table = &memory->version->tables[0],
                                     .keys = (const uint8_t *)(keys + (size_t)t * n_keys),
                                     .n_keys = n_keys};
    }
    hps_status status = hps_lookup_plan(&lookup, err);
    if (status == HPS_OK) {
        status = hps_lookup_take_block(&lookup);
    }
    if (status == HPS_OK) {
        status = hps_lookup_run_memory(&lookup, &done, err);
    }
    for (uint32_t t = 0; t < N_TABLES && status == HPS_OK; t++) {
        status = done && memory->parts[t].n_unknown == 0
                     ? HPS_OK
                     : hps_error_set(err, HPS_DATA_LOSS, "inserted rows are missing");
    }
    hps_lookup_release(&lookup);
    hps_block_unref(lookup.block);
    return status;
}

/* ---- the bare server ------------------------------------------------------------------------- */

struct bare {
    int fds[2]; /* the client's end, the server's */
    size_t request_bytes, reply_bytes;
    uint8_t *reply, *received; /* [reply_bytes] each */
    uint8_t request[REQUEST_BYTES_MAX];
    pthread_t thread;
    clockid_t clock;
    bool running;
};

/* False: the connection has ended. */
static bool receive_all(int fd, uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = recv(fd, data, size, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        data += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool send_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        data += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void *bare_run(void *ctx)
{
    struct bare *bare = ctx;

    while (receive_all(bare->fds[1], bare->request, bare->request_bytes) &&
           send_all(bare->fds[1], bare->reply, bare->reply_bytes)) {
    }
    return NULL;
}

static hps_status bare_open(struct bare *bare, size_t request_bytes, size_t reply_bytes,
                            struct hps_error *err)
{
    bare->request_bytes = request_bytes;
    bare->reply_bytes = reply_bytes;
    bare->reply = hps_calloc(reply_bytes, 1);
    bare->received = hps_calloc(reply_bytes, 1);
    if (request_bytes > sizeof(bare->request) || bare->reply == NULL || bare->received == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for replies");
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bare->fds) != 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "no sockets");
    }
    bare->running = pthread_create(&bare->thread, NULL, bare_run, bare) == 0;
    if (!bare->running || pthread_getcpuclockid(bare->thread, &bare->clock) != 0) {
        return hps_error_set(err, HPS_EXHAUSTED, "no thread");
    }
    return HPS_OK;
}

static void bare_close(struct bare *bare)
{
    if (bare->running) {
        close(bare->fds[0]);
        (void)pthread_join(bare->thread, NULL);
        close(bare->fds[1]);
    }
    hps_free(bare->reply);
    hps_free(bare->received);
}

/* ---- all three ------------------------------------------------------------------------------- */

enum side { HPSD, IN_PROCESS, BARE, N_SIDES };

static const char *const side_names[N_SIDES] = {"hpsd", "lookups in process", "bare server"};

struct requests {
    const struct shape *shape;
    struct e2e_hpsd hpsd;
    struct memory memory;
    struct bare bare;
    struct hps_random random;
    hps_key *keys;           /* [n_calls][N_TABLES][n_keys] */
    struct hps_buf *encoded; /* [n_calls] */
    size_t reply_bytes;      /* of the last answer */
    double us[N_SIDES][ROUNDS];
};

static hps_key *keys_of(const struct requests *r, unsigned call)
{
    return r->keys + (size_t)call * N_TABLES * r->shape->n_keys;
}

/* One table serves as 26 tables. */
static hps_status draw(struct requests *r, struct hps_error *err)
{
    struct hps_client_lookup_query queries[N_TABLES];
    const struct hps_client_lookup lookup = {
        .model = "m", .queries = queries, .n_queries = N_TABLES};
    hps_status status = HPS_OK;

    for (unsigned call = 0; call < r->shape->n_calls && status == HPS_OK; call++) {
        hps_key *keys = keys_of(r, call);
        for (uint32_t i = 0; i < N_TABLES * r->shape->n_keys; i++) {
            keys[i] = hps_random_next(&r->random) % r->shape->n_rows;
        }
        for (uint32_t t = 0; t < N_TABLES; t++) {
            queries[t] = (struct hps_client_lookup_query){.table = "feature_0",
                                                          .keys = keys + t * r->shape->n_keys,
                                                          .n_keys = r->shape->n_keys};
        }
        hps_buf_clear(&r->encoded[call]);
        status = hps_client_lookup_encode(&lookup, &r->encoded[call]);
    }
    return status == HPS_OK ? HPS_OK : hps_error_set(err, status, "a request: %s", "no memory");
}

static hps_status on_reply(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    struct requests *r = ctx;
    size_t rows_bytes = (size_t)N_TABLES * r->shape->n_keys * r->shape->dim * 4;

    (void)data;
    r->reply_bytes = size;
    return size >= rows_bytes ? HPS_OK : hps_error_set(err, HPS_DATA_LOSS, "the reply lacks rows");
}

static hps_status call_one(struct requests *r, enum side side, unsigned call, struct hps_error *err)
{
    const struct hps_buf *request = &r->encoded[call];

    if (side == HPSD) {
        return hps_client_stream(r->hpsd.client, HPS_CLIENT_LOOKUP_PATH, request->data,
                                 request->size, 0, on_reply, r, NULL, err);
    }
    if (side == IN_PROCESS) {
        return memory_lookup(&r->memory, keys_of(r, call), r->shape->n_keys, err);
    }
    bool ok = send_all(r->bare.fds[0], request->data, request->size) &&
              receive_all(r->bare.fds[0], r->bare.received, r->bare.reply_bytes);
    return ok ? HPS_OK : hps_error_set(err, HPS_UNAVAILABLE, "the bare server has ended");
}

/* CPU time of the answering side. */
static hps_status clock_us(struct requests *r, enum side side, double *out_us,
                           struct hps_error *err)
{
    if (side == HPSD) {
        return e2e_hpsd_cpu_us(&r->hpsd, out_us, err);
    }
    *out_us = (double)bench_clock_ns(side == BARE ? r->bare.clock : CLOCK_THREAD_CPUTIME_ID) / 1e3;
    return HPS_OK;
}

static hps_status run_side(struct requests *r, enum side side, double *out_us,
                           struct hps_error *err)
{
    double before_us = 0, after_us = 0;
    hps_status status = clock_us(r, side, &before_us, err);

    for (unsigned call = 0; call < r->shape->n_calls && status == HPS_OK; call++) {
        status = call_one(r, side, call, err);
    }
    if (status == HPS_OK) {
        status = clock_us(r, side, &after_us, err);
    }
    *out_us = (after_us - before_us) / r->shape->n_calls;
    return status;
}

static void report(struct requests *r)
{
    double ratios[ROUNDS];
    char name[64];

    for (unsigned i = 0; i < ROUNDS; i++) {
        ratios[i] = r->us[HPSD][i] / (r->us[IN_PROCESS][i] + r->us[BARE][i]);
    }
    (void)snprintf(name, sizeof(name), "%d x %u keys, dim %u", N_TABLES, r->shape->n_keys,
                   r->shape->dim);
    bench_report(name, "hpsd/(in process + bare server), CPU", bench_median(ratios, ROUNDS),
                 "ratio", BENCH_AT_MOST, 1.25);
    for (unsigned side = 0; side < N_SIDES; side++) {
        bench_report(name, side_names[side], bench_median(r->us[side], ROUNDS), "us",
                     BENCH_NO_TARGET, 0);
    }
}

/* The first round opens buffers and windows, and is not counted. */
static hps_status run_rounds(struct requests *r, struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (unsigned round = 0; round <= ROUNDS && status == HPS_OK; round++) {
        status = draw(r, err);
        for (unsigned side = 0; side < N_SIDES && status == HPS_OK; side++) {
            double us = 0;
            if (side == BARE && !r->bare.running) {
                status = bare_open(&r->bare, r->encoded[0].size, r->reply_bytes, err);
            }
            if (status == HPS_OK) {
                status = run_side(r, side, &us, err);
            }
            if (round > 0) {
                r->us[side][round - 1] = us;
            }
        }
    }
    if (status == HPS_OK) {
        report(r);
    }
    return status;
}

static hps_status run_shape(struct requests *r, struct hps_error *err)
{
    const struct shape *shape = r->shape;

    r->hpsd = (struct e2e_hpsd){.with_host_map = true, .n_rows = shape->n_rows, .dim = shape->dim};
    r->keys = hps_calloc((size_t)shape->n_calls * N_TABLES * shape->n_keys, sizeof(*r->keys));
    r->encoded = hps_calloc(shape->n_calls, sizeof(*r->encoded));
    if (r->keys == NULL || r->encoded == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for keys");
    }
    for (unsigned call = 0; call < shape->n_calls; call++) {
        hps_buf_init(&r->encoded[call], REQUEST_BYTES_MAX);
    }
    hps_status status = e2e_hpsd_make(&r->hpsd, err);
    if (status == HPS_OK) {
        status = e2e_hpsd_start(&r->hpsd, err);
    }
    if (status == HPS_OK) {
        status = memory_open(&r->memory, shape, err);
    }
    return status == HPS_OK ? run_rounds(r, err) : status;
}

hps_status bench_request(struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && status == HPS_OK; i++) {
        struct requests *r = hps_calloc(1, sizeof(*r));
        if (r == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory");
        }
        r->shape = &shapes[i];
        status = run_shape(r, err);
        for (unsigned call = 0; r->encoded != NULL && call < r->shape->n_calls; call++) {
            hps_buf_fini(&r->encoded[call]);
        }
        hps_free(r->encoded);
        hps_free(r->keys);
        bare_close(&r->bare);
        memory_close(&r->memory);
        e2e_hpsd_remove(&r->hpsd);
        hps_free(r);
    }
    return status == HPS_OK ? bench_e2e_pooled(err) : status;
}
