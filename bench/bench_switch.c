/* SPDX-License-Identifier: Apache-2.0
 *
 * Effect of a version switch on lookups: a reader pins and unpins the active version continuously
 * while the main thread switches between two versions. The same without switches is the control,
 * because on a shared machine the scheduler causes most of the maximum.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "cache/version/models.h"
#include "client/hist.h"

enum { N_TABLES = 26, N_SWITCHES = 2000, GAP_NS = 500 * 1000 };

struct reader {
    struct hps_models *models;
    atomic_bool stop;
    atomic_bool ready;
    uint64_t n_failed;
    struct hps_hist ns;           /* of every pin; reader's thread */
    atomic_ullong slowest_ns;     /* since the main thread last took it */
    struct hps_hist slowest_hist; /* per interval; main thread */
};

static void *read_pins(void *ctx)
{
    struct reader *reader = ctx;

    bench_bind(1);
    atomic_store(&reader->ready, true);
    while (!atomic_load_explicit(&reader->stop, memory_order_relaxed)) {
        struct hps_version *version = NULL;
        struct hps_error err;
        uint64_t start_ns = bench_now_ns();
        if (hps_models_pin(reader->models, "m", 1, 0, &version, &err) == HPS_OK) {
            hps_version_unpin(version);
        } else {
            reader->n_failed++;
        }
        uint64_t spent_ns = bench_now_ns() - start_ns;
        hps_hist_add(&reader->ns, spent_ns);
        if (spent_ns > atomic_load_explicit(&reader->slowest_ns, memory_order_relaxed)) {
            atomic_store_explicit(&reader->slowest_ns, spent_ns, memory_order_relaxed);
        }
    }
    return NULL;
}

/* N_SWITCHES intervals, with a switch in each or without. */
static hps_status measure(struct hps_models *models, bool switching, struct reader *reader,
                          struct hps_hist *switch_ns)
{
    hps_status status = HPS_OK;
    pthread_t thread;

    *reader = (struct reader){.models = models};
    if (pthread_create(&thread, NULL, read_pins, reader) != 0) {
        return HPS_EXHAUSTED;
    }
    while (!atomic_load(&reader->ready)) {
    }
    for (int i = 0; i < N_SWITCHES && status == HPS_OK; i++) {
        uint64_t start_ns = bench_now_ns();
        if (switching) {
            status = hps_models_activate(models, "m", 1 + (i & 1));
            hps_hist_add(switch_ns, bench_now_ns() - start_ns);
        }
        while (bench_now_ns() < start_ns + GAP_NS) {
        }
        hps_hist_add(&reader->slowest_hist, atomic_exchange(&reader->slowest_ns, 0));
    }
    atomic_store(&reader->stop, true);
    (void)pthread_join(thread, NULL);
    return status;
}

static double quantile_us(const struct hps_hist *hist, double share)
{
    return (double)hps_hist_quantile(hist, share) / 1e3;
}

static void report(const char *name, const char *metric, const struct hps_hist *hist, double share)
{
    bench_report(name, metric, quantile_us(hist, share), "us", BENCH_NO_TARGET, 0);
}

static void report_reader(const struct reader *reader, bool switching)
{
    const char *name = switching ? "pins during 2,000 switches" : "pins without switches";

    report(name, "p50", &reader->ns, 0.5);
    report(name, "slowest in 0.5 ms, p50", &reader->slowest_hist, 0.5);
    report(name, "slowest in 0.5 ms, p99", &reader->slowest_hist, 0.99);
    report(name, "max", &reader->ns, 1);
}

hps_status bench_switch(struct hps_error *err)
{
    struct hps_models *models = hps_models_new();
    struct hps_version *versions[2] = {hps_version_new("m", 1, N_TABLES),
                                       hps_version_new("m", 2, N_TABLES)};
    struct reader *reader = hps_calloc(1, sizeof(*reader));
    struct hps_hist *switch_ns = hps_calloc(1, sizeof(*switch_ns));
    hps_status status = HPS_NO_MEMORY;
    double slowest_us[2] = {0, 0};
    int n_added = 0;

    if (models == NULL || versions[0] == NULL || versions[1] == NULL || reader == NULL ||
        switch_ns == NULL) {
        goto out;
    }
    for (; n_added < 2; n_added++) {
        status = hps_models_add(models, versions[n_added]);
        if (status != HPS_OK) {
            goto out;
        }
    }
    status = hps_models_activate(models, "m", 1);
    for (int switching = 0; switching < 2 && status == HPS_OK; switching++) {
        status = measure(models, switching != 0, reader, switch_ns);
        report_reader(reader, switching != 0);
        slowest_us[switching] = quantile_us(&reader->slowest_hist, 0.99);
        if (reader->n_failed > 0) {
            status = HPS_INTERNAL;
        }
    }
    double above_us = slowest_us[1] - slowest_us[0];
    bench_report("switch", "pause above control, p99", above_us < 0 ? 0 : above_us, "us",
                 BENCH_AT_MOST, 1000);
    report("switch", "p50", switch_ns, 0.5);
    report("switch", "p99", switch_ns, 0.99);
out:
    for (int i = 0; i < n_added; i++) {
        hps_ignore(hps_models_remove(models, "m", 1 + i)); /* it exists */
    }
    for (int i = 0; i < 2; i++) {
        hps_version_free(versions[i]);
    }
    if (models != NULL) {
        hps_models_free(models);
    }
    hps_free(switch_ns);
    hps_free(reader);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "pins: %s", hps_status_text(status));
}
