/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes of small rows to the host map, which never block readers, compared with a plain hash map
 * under a lock that overwrites rows in place. Rows of 64 bytes, batches of 10,000 random existing
 * keys. One thread, CPU time; both take turns.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "client/zipf.h"

enum { DIM = 16, ROW_BYTES = DIM * 4, BATCH = 10000, ROUNDS = 5 };
#define N_ROWS   (UINT64_C(2) << 20)
#define N_SLOTS  (UINT64_C(4) << 20) /* of the plain map, half of them used */
#define ROUND_NS UINT64_C(400000000)

/* Open addressing, linear probing; key 0 marks a free slot. */
struct plain {
    pthread_mutex_t lock;
    hps_key *keys;  /* [N_SLOTS] */
    uint32_t *rows; /* [N_SLOTS] */
    uint8_t *data;  /* [N_ROWS][ROW_BYTES] */
    uint32_t n;
};

struct work {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    struct plain plain;
    struct hps_random random;
    hps_key keys[BATCH];
    uint8_t rows[BATCH][ROW_BYTES];
};

static hps_key key_of(uint64_t row)
{
    return hps_mix64(row + 1);
}

static void plain_put(struct plain *plain, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)pthread_mutex_lock(&plain->lock);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = hps_mix64(keys[i]) % N_SLOTS;
        while (plain->keys[at] != keys[i] && plain->keys[at] != 0) {
            at = (at + 1) % N_SLOTS;
        }
        if (plain->keys[at] == 0) {
            plain->keys[at] = keys[i];
            plain->rows[at] = plain->n++;
        }
        memcpy(plain->data + (size_t)plain->rows[at] * ROW_BYTES, rows + (size_t)i * ROW_BYTES,
               ROW_BYTES);
    }
    (void)pthread_mutex_unlock(&plain->lock);
}

static hps_status host_put(struct work *work, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct hps_call call = {0};
    return work->store->ops->put(work->space, &call, &work->table, keys, rows, n);
}

static void draw(struct work *work)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        work->keys[i] = key_of(hps_random_next(&work->random) % N_ROWS);
        memset(work->rows[i], (int)(i & 0xff), ROW_BYTES);
    }
}

/* Nanoseconds per row of both. */
static hps_status round_of(struct work *work, double *out_host, double *out_plain)
{
    uint64_t host_ns = 0, plain_ns = 0, n_batches = 0;
    uint64_t end_ns = bench_now_ns() + ROUND_NS;
    hps_status status = HPS_OK;

    while (status == HPS_OK && (n_batches == 0 || bench_now_ns() < end_ns)) {
        draw(work);
        uint64_t begin_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        status = host_put(work, work->keys, work->rows[0], BATCH);
        host_ns += bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
        draw(work);
        begin_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        plain_put(&work->plain, work->keys, work->rows[0], BATCH);
        plain_ns += bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
        n_batches++;
    }
    *out_host = (double)host_ns / (double)(n_batches * BATCH);
    *out_plain = (double)plain_ns / (double)(n_batches * BATCH);
    return status;
}

static hps_status measure(struct work *work)
{
    static const char name[] = "dim 16, 2 M rows, uniform";
    double host_ns[ROUNDS], plain_ns[ROUNDS], ratio[ROUNDS];

    for (unsigned i = 0; i < ROUNDS; i++) {
        hps_status status = round_of(work, &host_ns[i], &plain_ns[i]);
        if (status != HPS_OK) {
            return status;
        }
        ratio[i] = plain_ns[i] / host_ns[i];
    }
    bench_report(name, "host map", bench_median(host_ns, ROUNDS), "ns/row", BENCH_NO_TARGET, 0);
    bench_report(name, "plain map", bench_median(plain_ns, ROUNDS), "ns/row", BENCH_NO_TARGET, 0);
    bench_report(name, "host map/plain map, rows/s", bench_median(ratio, ROUNDS), "ratio",
                 BENCH_AT_LEAST, 1);
    return HPS_OK;
}

static hps_status fill(struct work *work)
{
    hps_status status = HPS_OK;

    for (uint64_t row = 0; row < N_ROWS && status == HPS_OK; row += BATCH) {
        uint32_t n = N_ROWS - row < BATCH ? (uint32_t)(N_ROWS - row) : BATCH;
        for (uint32_t i = 0; i < n; i++) {
            work->keys[i] = key_of(row + i);
        }
        status = host_put(work, work->keys, work->rows[0], n);
        plain_put(&work->plain, work->keys, work->rows[0], n);
    }
    return status;
}

static hps_status open_maps(struct work *work, struct hps_error *err)
{
    static const float zeros[DIM];
    struct hps_space_id id = {"m", 1, &work->table, 1, 0};
    struct plain *plain = &work->plain;

    work->random.state = 1;
    work->table = (struct hps_table){"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};
    plain->keys = hps_calloc(N_SLOTS, sizeof(*plain->keys));
    plain->rows = hps_calloc(N_SLOTS, sizeof(*plain->rows));
    plain->data = hps_calloc(N_ROWS, ROW_BYTES);
    if (plain->keys == NULL || plain->rows == NULL || plain->data == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a plain map");
    }
    hps_status status = hps_host_map_open(UINT64_C(1) << 30, &work->store, err);
    if (status == HPS_OK) {
        status = work->store->ops->space_open(work->store, &id, &work->space, err);
    }
    return status == HPS_OK
               ? work->store->ops->limits->reserve(work->space, &work->table, NULL, 0, err)
               : status;
}

hps_status bench_writes(struct hps_error *err)
{
    struct work *work = hps_calloc(1, sizeof(*work));
    hps_status status = HPS_NO_MEMORY;

    bench_bind(1);
    if (work == NULL || pthread_mutex_init(&work->plain.lock, NULL) != 0) {
        hps_free(work);
        return hps_error_set(err, status, "no memory");
    }
    status = open_maps(work, err);
    if (status == HPS_OK) {
        status = fill(work);
        status = status == HPS_OK ? measure(work) : status;
        if (status != HPS_OK) {
            (void)hps_error_set(err, status, "writes: %s", hps_status_text(status));
        }
    }
    if (work->space != NULL) {
        work->store->ops->space_close(work->space);
    }
    if (work->store != NULL) {
        work->store->ops->close(work->store);
    }
    hps_free(work->plain.keys);
    hps_free(work->plain.rows);
    hps_free(work->plain.data);
    (void)pthread_mutex_destroy(&work->plain.lock);
    hps_free(work);
    return status;
}
