/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: generates load on an hpsd. It measures latency as a client sees it and can check every
 * row. This file waits and prints (main thread). hps-bench_options.c reads the command line.
 * hps-bench_run.c generates the load and hps-bench_verify.c checks the rows (worker threads).
 */
#include "tools/hps-bench.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/text.h"
#include "tools/tool.h"

enum { POLL_MS = 50, PROGRESS_US = 1000 * 1000 };

static struct bench_live live;

/* ---- output ---------------------------------------------------------------------------------- */

static void merge(struct bench_counts *into, const struct bench_counts *from)
{
    HPS_ASSERT(into != from);
    into->n_ok += from->n_ok;
    into->n_unsent += from->n_unsent;
    into->n_keys += from->n_keys;
    into->n_unique += from->n_unique;
    into->n_defaulted += from->n_defaulted;
    into->n_unknown += from->n_unknown;
    into->reply_bytes += from->reply_bytes;
    into->n_rows_checked += from->n_rows_checked;
    into->n_rows_wrong += from->n_rows_wrong;
    for (unsigned i = 0; i < BENCH_CODES; i++) {
        into->n_by_code[i] += from->n_by_code[i];
    }
    for (unsigned i = 0; i < BENCH_TIERS_MAX && from->tiers[i].name[0] != '\0'; i++) {
        unsigned at = 0;
        while (at < BENCH_TIERS_MAX - 1 && into->tiers[at].name[0] != '\0' &&
               strcmp(into->tiers[at].name, from->tiers[i].name) != 0) {
            at++;
        }
        memcpy(into->tiers[at].name, from->tiers[i].name, sizeof(from->tiers[i].name));
        into->tiers[at].found_keys += from->tiers[i].found_keys;
    }
    if (into->error_text[0] == '\0') {
        memcpy(into->error_text, from->error_text, sizeof(from->error_text));
    }
    if (into->wrong_text[0] == '\0') {
        memcpy(into->wrong_text, from->wrong_text, sizeof(from->wrong_text));
    }
}

struct result {
    struct bench_counts counts;
    struct hps_hist latency_us;
    double seconds;
};

static double share(uint64_t part, uint64_t all)
{
    return all == 0 ? 0 : 100.0 * (double)part / (double)all;
}

static void print_table(const struct bench_plan *plan, const struct result *result)
{
    HPS_ASSERT(result->seconds > 0);
    const struct bench_counts *counts = &result->counts;
    const struct hps_hist *hist = &result->latency_us;
    double seconds = result->seconds;

    printf("%-12s %" PRIu64 " ok in %.2f s: %.0f requests/s, %.4g M keys/s, %.3f GB/s\n",
           "requests", counts->n_ok, seconds, (double)counts->n_ok / seconds,
           (double)counts->n_keys / seconds / 1e6, (double)counts->reply_bytes / seconds / 1e9);
    printf("%-12s p50 %" PRIu64 "  p90 %" PRIu64 "  p99 %" PRIu64 "  p99.9 %" PRIu64
           "  max %" PRIu64 " us%s\n",
           "latency", hps_hist_quantile(hist, 0.5), hps_hist_quantile(hist, 0.9),
           hps_hist_quantile(hist, 0.99), hps_hist_quantile(hist, 0.999), hist->max,
           plan->rate > 0 ? " from when each was due" : "");
    printf("%-12s %" PRIu64
           ", %.1f %% unique in their request, %.3f %% defaulted, %.3f %% unknown\n",
           "keys", counts->n_keys, share(counts->n_unique, counts->n_keys),
           share(counts->n_defaulted, counts->n_keys), share(counts->n_unknown, counts->n_keys));
    for (unsigned i = 0; i < BENCH_TIERS_MAX && counts->tiers[i].name[0] != '\0'; i++) {
        char name[HPS_TEXT_GROWTH * sizeof(counts->tiers[i].name) + 1];
        (void)hps_text_plain(counts->tiers[i].name, strlen(counts->tiers[i].name), name,
                             sizeof(name));
        printf("%-12s %" PRIu64 " unique keys from %s (%.1f %%)\n", i == 0 ? "tiers" : "",
               counts->tiers[i].found_keys, name,
               share(counts->tiers[i].found_keys, counts->n_unique));
    }
    for (int code = 1; code < BENCH_CODES; code++) {
        if (counts->n_by_code[code] > 0) {
            printf("%-12s %" PRIu64 " %s\n", "errors", counts->n_by_code[code],
                   hps_status_text(hps_status_of_grpc(code)));
        }
    }
    if (counts->error_text[0] != '\0') {
        printf("%-12s the first: %s\n", "", counts->error_text);
    }
    if (counts->n_unsent > 0) {
        printf("%-12s %" PRIu64
               " requests were due and not sent: the server is below this rate, or "
               "raise --concurrency\n",
               "unsent", counts->n_unsent);
    }
    if (plan->verify) {
        printf("%-12s %" PRIu64 " rows, %" PRIu64 " wrong%s%s\n", "verified",
               counts->n_rows_checked, counts->n_rows_wrong,
               counts->n_rows_wrong > 0 ? "; the first: " : "", counts->wrong_text);
    }
}

static void json_lists(const struct bench_counts *counts, struct hps_buf *buf)
{
    hps_buf_put(buf, ",\"tiers\":{");
    for (unsigned i = 0; i < BENCH_TIERS_MAX && counts->tiers[i].name[0] != '\0'; i++) {
        hps_buf_put(buf, i == 0 ? "" : ",");
        hps_json_text(buf, counts->tiers[i].name, strlen(counts->tiers[i].name));
        hps_buf_putf(buf, ":%" PRIu64, counts->tiers[i].found_keys);
    }
    hps_buf_put(buf, "},\"errors\":{");
    const char *separator = "";
    for (int code = 1; code < BENCH_CODES; code++) {
        if (counts->n_by_code[code] > 0) {
            hps_buf_putf(buf, "%s\"%s\":%" PRIu64, separator,
                         hps_status_text(hps_status_of_grpc(code)), counts->n_by_code[code]);
            separator = ",";
        }
    }
    hps_buf_put(buf, "}");
}

static hps_status print_json(const struct bench_plan *plan, const struct result *result)
{
    HPS_ASSERT(result->seconds > 0);
    const struct bench_counts *counts = &result->counts;
    const struct hps_hist *hist = &result->latency_us;
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_buf_putf(&buf,
                 "{\"seconds\":%.6f,\"requests\":%" PRIu64
                 ",\"requests_per_s\":%.3f,\"keys\":%" PRIu64
                 ",\"keys_per_s\":%.1f,\"reply_bytes\":%" PRIu64 ",\"bytes_per_s\":%.1f"
                 ",\"latency_us\":{\"mean\":%.1f,\"p50\":%" PRIu64 ",\"p90\":%" PRIu64
                 ",\"p99\":%" PRIu64 ",\"p99_9\":%" PRIu64 ",\"max\":%" PRIu64 "}",
                 result->seconds, counts->n_ok, (double)counts->n_ok / result->seconds,
                 counts->n_keys, (double)counts->n_keys / result->seconds, counts->reply_bytes,
                 (double)counts->reply_bytes / result->seconds,
                 hist->n == 0 ? 0.0 : (double)hist->sum / (double)hist->n,
                 hps_hist_quantile(hist, 0.5), hps_hist_quantile(hist, 0.9),
                 hps_hist_quantile(hist, 0.99), hps_hist_quantile(hist, 0.999), hist->max);
    hps_buf_putf(&buf,
                 ",\"unique_keys\":%" PRIu64 ",\"defaulted_keys\":%" PRIu64
                 ",\"unknown_keys\":%" PRIu64 ",\"unsent\":%" PRIu64 ",\"rows_checked\":%" PRIu64
                 ",\"rows_wrong\":%" PRIu64 ",\"verify\":%s,\"open_loop\":%s",
                 counts->n_unique, counts->n_defaulted, counts->n_unknown, counts->n_unsent,
                 counts->n_rows_checked, counts->n_rows_wrong, plan->verify ? "true" : "false",
                 plan->rate > 0 ? "true" : "false");
    json_lists(counts, &buf);
    hps_buf_put(&buf, ",\"first_error\":");
    hps_json_text(&buf, counts->error_text, strlen(counts->error_text));
    hps_status status = buf.status;
    if (status == HPS_OK) {
        printf("%.*s}\n", (int)buf.size, (const char *)buf.data);
    }
    hps_buf_fini(&buf);
    return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

static void pause_ms(long ms)
{
    struct timespec time = {.tv_nsec = ms * 1000 * 1000};

    (void)nanosleep(&time, NULL); /* a signal may end it early */
}

/* Prints a line each second until the workers have ended. Stops them when the user interrupts. */
static void watch(const struct bench_plan *plan)
{
    HPS_ASSERT(atomic_load(&live.start_us) != 0);
    uint64_t start_us = atomic_load(&live.start_us);
    struct tool_progress progress = {.out = plan->quiet ? NULL : stderr, .shown_us = start_us};
    unsigned long long requests = 0, keys = 0, bytes = 0;

    while (atomic_load(&live.n_running) > 0) {
        uint64_t shown_us = progress.shown_us;
        pause_ms(POLL_MS);
        if (tool_interrupted()) {
            atomic_store(&live.stop, true);
        }
        if (!tool_progress_due(&progress, PROGRESS_US)) {
            continue;
        }
        double seconds = (double)(progress.shown_us - shown_us) / 1e6;
        unsigned long long r = atomic_load(&live.requests_done), k = atomic_load(&live.keys_done),
                           b = atomic_load(&live.bytes_done);
        (void)fprintf(stderr,
                      "%4.0f s  %8.0f requests/s  %8.3f M keys/s  %6.3f GB/s  %llu errors\n",
                      (double)(progress.shown_us - start_us) / 1e6,
                      (double)(r - requests) / seconds, (double)(k - keys) / seconds / 1e6,
                      (double)(b - bytes) / seconds / 1e9, atomic_load(&live.errors));
        requests = r;
        keys = k;
        bytes = b;
    }
}

static unsigned start_workers(const struct bench_plan *plan, struct bench_worker *workers)
{
    HPS_ASSERT(atomic_load(&live.n_running) == 0);
    unsigned n = 0;

    for (; n < plan->n_threads; n++) {
        workers[n] = (struct bench_worker){.plan = plan, .live = &live, .index = n};
        atomic_fetch_add(&live.n_running, 1);
        if (pthread_create(&workers[n].thread, NULL, bench_worker_run, &workers[n]) != 0) {
            atomic_fetch_sub(&live.n_running, 1);
            atomic_store(&live.stop, true);
            (void)fprintf(stderr, "hps-bench: thread %u cannot be started\n", n);
            break;
        }
    }
    while (atomic_load(&live.n_ready) < n) {
        pause_ms(1);
    }
    atomic_store(&live.start_us, hps_clock_us());
    return n;
}

/* Reports failed calls: the figures of the successful ones do not show them. */
static bool any_failed(const struct bench_counts *counts)
{
    uint64_t n_failed = 0;

    for (int code = 1; code < BENCH_CODES; code++) {
        n_failed += counts->n_by_code[code];
    }
    if (n_failed > 0) {
        (void)fprintf(stderr, "hps-bench: %" PRIu64 " of %" PRIu64 " calls failed (%.3g %%): %s\n",
                      n_failed, n_failed + counts->n_ok, share(n_failed, n_failed + counts->n_ok),
                      counts->error_text);
    }
    return n_failed > 0;
}

static int conclude(const struct bench_plan *plan, struct bench_worker *workers, unsigned n)
{
    HPS_ASSERT(n <= plan->n_threads);
    struct result *result = hps_calloc(1, sizeof(*result));
    int code = n < plan->n_threads || result == NULL ? TOOL_REFUSED : 0;

    for (unsigned i = 0; i < n && result != NULL; i++) {
        if (workers[i].status != HPS_OK && code == 0) {
            (void)fprintf(stderr, "hps-bench: %s\n", workers[i].err.text);
            code = tool_exit_of(workers[i].status);
        }
        merge(&result->counts, &workers[i].counts);
        hps_hist_merge(&result->latency_us, &workers[i].latency_us);
    }
    if (code == 0) {
        result->seconds = (double)(hps_clock_us() - atomic_load(&live.start_us)) / 1e6;
        if (plan->json) {
            code = print_json(plan, result) == HPS_OK ? 0 : TOOL_REFUSED;
        } else {
            print_table(plan, result);
        }
        bool wrong = result->counts.n_rows_wrong > 0 || result->counts.n_by_code[15] > 0;
        bool failed = any_failed(&result->counts) || result->counts.n_ok == 0;
        code = code != 0 ? code : plan->verify && wrong ? TOOL_NEGATIVE : failed ? TOOL_REFUSED : 0;
    }
    hps_free(result);
    return code;
}

static int run(const struct bench_plan *plan)
{
    HPS_ASSERT(plan->n_threads > 0);
    struct bench_worker *workers = hps_calloc(plan->n_threads, sizeof(*workers));

    if (workers == NULL) {
        (void)fprintf(stderr, "hps-bench: no memory\n");
        return TOOL_REFUSED;
    }
    tool_interrupts_note(false);
    unsigned n = start_workers(plan, workers);
    watch(plan);
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    int code = conclude(plan, workers, n);
    hps_free(workers);
    return code;
}

int main(int argc, char **argv)
{
    struct bench_plan plan;
    int code;

    if (!bench_options(argc, argv, &plan, &code)) {
        return code;
    }
    code = run(&plan);
    bench_tables_free(&plan);
    return code;
}
