/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: load on an hpsd, with latency as a client sees it and, if asked, every row checked.
 * This file parses, waits and prints (main thread); hps-bench_run.c makes the load (worker
 * threads).
 */
#include "tools/hps-bench.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heap.h"
#include "client/args.h"
#include "client/lookup.h"
#include "client/message.h"

enum {
    EXIT_REFUSED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DEADLINE = 4,
    EXIT_NEGATIVE = 5,
    THREADS_MAX = 64,
    CONNECTIONS_MAX = 16384,
    CALLS_MAX = 1 << 16,
    POLL_MS = 50,
    PROGRESS_US = 1000 * 1000,
};

static struct {
    struct hps_client_options connect;
    const char *admin;
    const char *model;
    const char *tables;
    const char *rate;
    const char *zipf;
    const char *miss_policy;
    const char *output_type;
    const char *output;
    uint64_t rows, duration_us, n_requests, n_connections, n_threads, concurrency, n_keys;
    uint64_t timeout_us, max_wait_us, seed, data_seed;
    bool stream, verify, hashed, quiet, help;
} flags = {
    .connect = {.address = "127.0.0.1:8601"},
    .model = "default",
    .tables = "all",
    .rate = "max",
    .zipf = "0",
    .miss_policy = "table",
    .output_type = "fp32",
    .output = "table",
    .n_connections = 1,
    .n_threads = 1,
    .concurrency = 8,
    .n_keys = 64,
    .timeout_us = 10 * 1000 * 1000,
    .seed = 1,
    .data_seed = 1,
};

static const struct hps_arg args[] = {
    {"addr", 0, HPS_ARG_TEXT, "ADDR", &flags.connect.address,
     "gRPC listener (default 127.0.0.1:8601), or unix:PATH"},
    {"admin", 0, HPS_ARG_TEXT, "ADDR", &flags.admin,
     "admin listener, asked for tables and row counts (else $HPSD_ADDR, else the service's)"},
    {"model", 0, HPS_ARG_TEXT, "NAME", &flags.model, "default: default"},
    {"tables", 0, HPS_ARG_TEXT, "all|A,B", &flags.tables, "tables of each request (default all)"},
    {"rows", 0, HPS_ARG_U64, "N", &flags.rows,
     "keys are of rows 0 to N-1; without it the server is asked"},
    {"duration", 'd', HPS_ARG_US, "SECONDS", &flags.duration_us, "default 10, unless --requests"},
    {"requests", 'n', HPS_ARG_U64, "N", &flags.n_requests, "end after N requests"},
    {"rate", 'r', HPS_ARG_TEXT, "N|max", &flags.rate,
     "requests a second, open loop: latency counts from when a request was due; max: closed loop"},
    {"connections", 'c', HPS_ARG_U64, "N", &flags.n_connections, "default 1"},
    {"concurrency", 'p', HPS_ARG_U64, "N", &flags.concurrency,
     "calls under way per connection (default 8)"},
    {"threads", 't', HPS_ARG_U64, "N", &flags.n_threads, "client threads (default 1)"},
    {"keys", 'k', HPS_ARG_U64, "N", &flags.n_keys, "keys per table and request (default 64)"},
    {"zipf", 'z', HPS_ARG_TEXT, "ALPHA[,Q]", &flags.zipf,
     "skew of keys (default 0: uniform); a share Q goes to the one hottest key"},
    {"miss-policy", 0, HPS_ARG_CHOICE, "table|exact|wait|memory-only|threshold", &flags.miss_policy,
     "what misses do (default: table, as the model is configured)"},
    {"max-wait", 0, HPS_ARG_US, "SECONDS", &flags.max_wait_us, "for --miss-policy wait"},
    {"output-type", 0, HPS_ARG_CHOICE, "fp32|fp16|bf16", &flags.output_type,
     "type of the rows (default fp32)"},
    {"stream", 0, HPS_ARG_FLAG, NULL, &flags.stream, "LookupStream instead of Lookup"},
    {"verify", 0, HPS_ARG_FLAG, NULL, &flags.verify,
     "check every row of a model made by hps-gen; exit 5 if one is wrong (1: a call failed)"},
    {"data-seed", 0, HPS_ARG_U64, "N", &flags.data_seed, "--seed that hps-gen had (default 1)"},
    {"hashed-keys", 0, HPS_ARG_FLAG, NULL, &flags.hashed, "hps-gen had --keys hashed"},
    {"seed", 0, HPS_ARG_U64, "N", &flags.seed, "of the keys that are drawn (default 1)"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &flags.timeout_us, "deadline of a call (default 10)"},
    {"token-file", 0, HPS_ARG_TEXT, "FILE", &flags.connect.token_file, "bearer token, one line"},
    {"tls", 0, HPS_ARG_FLAG, NULL, &flags.connect.tls, "TLS with the system's roots"},
    {"tls-ca", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_ca, "TLS with these roots (PEM)"},
    {"tls-cert", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_cert, "certificate of this client"},
    {"tls-key", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_key, "its key"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &flags.output, "how to print (default table)"},
    {"quiet", 'q', HPS_ARG_FLAG, NULL, &flags.quiet, "no line each second"},
    {"help", 'h', HPS_ARG_FLAG, NULL, &flags.help, "this text"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

static struct bench_live live;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    atomic_store(&live.stop, true);
}

/* ---- plan ------------------------------------------------------------------------------------ */

static uint32_t word_index(const char *choices, const char *word)
{
    uint32_t index = 0;

    for (const char *at = choices; *at != '\0'; index++) {
        size_t size = strcspn(at, "|");
        if (strlen(word) == size && memcmp(at, word, size) == 0) {
            break;
        }
        at += size + (at[size] == '|');
    }
    return index;
}

static hps_status parse_zipf(double *out_alpha, double *out_heavy, struct hps_error *err)
{
    char text[64];

    *out_heavy = 0;
    (void)snprintf(text, sizeof(text), "%s", flags.zipf);
    char *comma = strchr(text, ',');
    if (comma != NULL) {
        *comma = '\0';
    }
    if (!hps_args_f64(text, out_alpha) || *out_alpha < 0 || *out_alpha > 10 ||
        (comma != NULL &&
         (!hps_args_f64(comma + 1, out_heavy) || *out_heavy < 0 || *out_heavy > 1))) {
        return hps_error_set(err, HPS_INVALID,
                             "--zipf: \"%s\" is not ALPHA[,Q] with ALPHA 0 to 10, Q 0 to 1",
                             flags.zipf);
    }
    return HPS_OK;
}

static hps_status check_range(const char *name, uint64_t value, uint64_t min, uint64_t max,
                              struct hps_error *err)
{
    if (value >= min && value <= max) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID, "--%s: %" PRIu64 " is not %" PRIu64 " to %" PRIu64, name,
                         value, min, max);
}

static hps_status check_flags(struct bench_plan *plan, struct hps_error *err)
{
    const struct {
        const char *name;
        uint64_t value, min, max;
    } ranges[] = {
        {"connections", flags.n_connections, 1, CONNECTIONS_MAX},
        {"threads", flags.n_threads, 1, THREADS_MAX},
        {"concurrency", flags.concurrency, 1, CALLS_MAX},
        {"concurrency x connections", flags.concurrency * flags.n_connections, 1, CALLS_MAX},
        {"keys", flags.n_keys, 1, 2 << 20},
        {"timeout", flags.timeout_us, 1, UINT64_C(86400) * 1000 * 1000},
        {"max-wait", flags.max_wait_us, 0, UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        hps_status status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (strcmp(flags.rate, "max") != 0 &&
        (!hps_args_f64(flags.rate, &plan->rate) || plan->rate <= 0)) {
        return hps_error_set(err, HPS_INVALID, "--rate: \"%s\" is neither a number above 0 nor max",
                             flags.rate);
    }
    return HPS_OK;
}

static hps_status make_plan(struct bench_plan *plan, struct hps_error *err)
{
    const char *environment = getenv("HPSD_ADDR");
    double alpha = 0, heavy = 0;
    hps_status status = check_flags(plan, err);

    if (status == HPS_OK) {
        status = parse_zipf(&alpha, &heavy, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    plan->connect = flags.connect;
    plan->model = flags.model;
    plan->method = flags.stream ? HPS_LOOKUP_STREAM_PATH : HPS_LOOKUP_PATH;
    plan->stream = flags.stream;
    plan->verify = flags.verify;
    plan->hashed = flags.hashed;
    plan->duration_us =
        flags.duration_us == 0 && flags.n_requests == 0 ? 10 * 1000 * 1000 : flags.duration_us;
    plan->n_requests = flags.n_requests;
    plan->n_connections = flags.n_connections;
    plan->n_threads = flags.n_threads < flags.n_connections ? flags.n_threads : flags.n_connections;
    plan->concurrency = flags.concurrency;
    plan->n_keys = flags.n_keys;
    plan->timeout_us = flags.timeout_us;
    plan->max_wait_us = (uint32_t)flags.max_wait_us;
    plan->miss_policy = word_index("table|exact|wait|memory-only|threshold", flags.miss_policy);
    plan->output_type = word_index("|fp32|fp16|bf16", flags.output_type);
    plan->seed = flags.seed;
    plan->data_seed = flags.data_seed;
    if (flags.rows != 0) {
        status = bench_tables_given(plan, flags.tables, flags.rows, err);
    } else {
        struct hps_client_options admin = flags.connect;
        admin.address = flags.admin != NULL ? flags.admin
                        : environment != NULL && environment[0] != '\0'
                            ? environment
                            : "unix:/run/hpsd/admin.sock";
        status = bench_tables_ask(plan, &admin, flags.tables, err);
        if (status == HPS_UNAVAILABLE) {
            (void)hps_error_prefix(
                err, status,
                "the tables' row counts are asked of the admin listener (--admin "
                "ADDR; or give --tables and --rows)");
        }
    }
    for (uint64_t i = 0; status == HPS_OK && i < plan->n_tables; i++) {
        hps_zipf_init(&plan->tables[i].zipf, plan->tables[i].n_rows, alpha, heavy);
    }
    return status;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void merge(struct bench_counts *into, const struct bench_counts *from)
{
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
        printf("%-12s %" PRIu64 " unique keys from %s (%.1f %%)\n", i == 0 ? "tiers" : "",
               counts->tiers[i].found_keys, counts->tiers[i].name,
               share(counts->tiers[i].found_keys, counts->n_unique));
    }
    for (int code = 1; code < BENCH_CODES; code++) {
        if (counts->n_by_code[code] > 0) {
            printf("%-12s %" PRIu64 " %s\n", "errors", counts->n_by_code[code],
                   hps_status_text(hps_client_status(code)));
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

static hps_status json_lists(const struct bench_counts *counts, struct hps_buf *buf)
{
    hps_status status = hps_buf_printf(buf, ",\"tiers\":{");

    for (unsigned i = 0; i < BENCH_TIERS_MAX && counts->tiers[i].name[0] != '\0'; i++) {
        if (status == HPS_OK && i > 0) {
            status = hps_buf_append(buf, ",", 1);
        }
        if (status == HPS_OK) {
            status = hps_json_text(buf, counts->tiers[i].name, strlen(counts->tiers[i].name));
        }
        if (status == HPS_OK) {
            status = hps_buf_printf(buf, ":%" PRIu64, counts->tiers[i].found_keys);
        }
    }
    const char *separator = "},\"errors\":{";
    for (int code = 1; code < BENCH_CODES && status == HPS_OK; code++) {
        if (counts->n_by_code[code] > 0) {
            status =
                hps_buf_printf(buf, "%s\"%s\":%" PRIu64, separator,
                               hps_status_text(hps_client_status(code)), counts->n_by_code[code]);
            separator = ",";
        }
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(buf, "%s}", separator[0] == ',' ? "" : separator);
    }
    return status;
}

static hps_status print_json(const struct bench_plan *plan, const struct result *result)
{
    const struct bench_counts *counts = &result->counts;
    const struct hps_hist *hist = &result->latency_us;
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_status status = hps_buf_printf(
        &buf,
        "{\"seconds\":%.6f,\"requests\":%" PRIu64 ",\"requests_per_s\":%.3f,\"keys\":%" PRIu64
        ",\"keys_per_s\":%.1f,\"reply_bytes\":%" PRIu64 ",\"bytes_per_s\":%.1f"
        ",\"latency_us\":{\"mean\":%.1f,\"p50\":%" PRIu64 ",\"p90\":%" PRIu64 ",\"p99\":%" PRIu64
        ",\"p99_9\":%" PRIu64 ",\"max\":%" PRIu64 "}",
        result->seconds, counts->n_ok, (double)counts->n_ok / result->seconds, counts->n_keys,
        (double)counts->n_keys / result->seconds, counts->reply_bytes,
        (double)counts->reply_bytes / result->seconds,
        hist->n == 0 ? 0.0 : (double)hist->sum / (double)hist->n, hps_hist_quantile(hist, 0.5),
        hps_hist_quantile(hist, 0.9), hps_hist_quantile(hist, 0.99), hps_hist_quantile(hist, 0.999),
        hist->max);
    if (status == HPS_OK) {
        status = hps_buf_printf(&buf,
                                ",\"unique_keys\":%" PRIu64 ",\"defaulted_keys\":%" PRIu64
                                ",\"unknown_keys\":%" PRIu64 ",\"unsent\":%" PRIu64
                                ",\"rows_checked\":%" PRIu64 ",\"rows_wrong\":%" PRIu64
                                ",\"verify\":%s,\"open_loop\":%s",
                                counts->n_unique, counts->n_defaulted, counts->n_unknown,
                                counts->n_unsent, counts->n_rows_checked, counts->n_rows_wrong,
                                plan->verify ? "true" : "false", plan->rate > 0 ? "true" : "false");
    }
    if (status == HPS_OK) {
        status = json_lists(counts, &buf);
    }
    if (status == HPS_OK) {
        status = hps_buf_append(&buf, ",\"first_error\":", 15);
    }
    if (status == HPS_OK) {
        status = hps_json_text(&buf, counts->error_text, strlen(counts->error_text));
    }
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

    (void)nanosleep(&time, NULL); /* cut short by a signal is fine */
}

static void watch(void)
{
    uint64_t start_us = atomic_load(&live.start_us);
    uint64_t shown_us = start_us;
    unsigned long long requests = 0, keys = 0, bytes = 0;

    while (atomic_load(&live.n_running) > 0) {
        pause_ms(POLL_MS);
        uint64_t now_us = hps_clock_us();
        if (flags.quiet || now_us < shown_us + PROGRESS_US) {
            continue;
        }
        double seconds = (double)(now_us - shown_us) / 1e6;
        unsigned long long r = atomic_load(&live.requests_done), k = atomic_load(&live.keys_done),
                           b = atomic_load(&live.bytes_done);
        (void)fprintf(stderr,
                      "%4.0f s  %8.0f requests/s  %8.3f M keys/s  %6.3f GB/s  %llu errors\n",
                      (double)(now_us - start_us) / 1e6, (double)(r - requests) / seconds,
                      (double)(k - keys) / seconds / 1e6, (double)(b - bytes) / seconds / 1e9,
                      atomic_load(&live.errors));
        requests = r;
        keys = k;
        bytes = b;
        shown_us = now_us;
    }
}

static unsigned start_workers(const struct bench_plan *plan, struct bench_worker *workers)
{
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

static int exit_of(hps_status status)
{
    return status == HPS_UNAVAILABLE ? EXIT_UNREACHABLE
           : status == HPS_DEADLINE  ? EXIT_DEADLINE
                                     : EXIT_REFUSED;
}

/* Says so where any call failed: figures of those that went well hide the others. */
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
    struct result *result = hps_calloc(1, sizeof(*result));
    int code = n < plan->n_threads || result == NULL ? EXIT_REFUSED : 0;

    for (unsigned i = 0; i < n && result != NULL; i++) {
        if (workers[i].status != HPS_OK && code == 0) {
            (void)fprintf(stderr, "hps-bench: %s\n", workers[i].err.text);
            code = exit_of(workers[i].status);
        }
        merge(&result->counts, &workers[i].counts);
        hps_hist_merge(&result->latency_us, &workers[i].latency_us);
    }
    if (code == 0) {
        result->seconds = (double)(hps_clock_us() - atomic_load(&live.start_us)) / 1e6;
        if (flags.output[0] == 'j') {
            code = print_json(plan, result) == HPS_OK ? 0 : EXIT_REFUSED;
        } else {
            print_table(plan, result);
        }
        bool wrong = result->counts.n_rows_wrong > 0 || result->counts.n_by_code[15] > 0;
        bool failed = any_failed(&result->counts) || result->counts.n_ok == 0;
        code = code != 0 ? code : plan->verify && wrong ? EXIT_NEGATIVE : failed ? EXIT_REFUSED : 0;
    }
    hps_free(result);
    return code;
}

static int run(const struct bench_plan *plan)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    struct bench_worker *workers = hps_calloc(plan->n_threads, sizeof(*workers));

    if (workers == NULL) {
        (void)fprintf(stderr, "hps-bench: no memory\n");
        return EXIT_REFUSED;
    }
    (void)sigaction(SIGINT, &action, NULL);
    unsigned n = start_workers(plan, workers);
    watch();
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    int code = conclude(plan, workers, n);
    hps_free(workers);
    return code;
}

int main(int argc, char **argv)
{
    const struct hps_arg *const tables[] = {args};
    struct bench_plan plan = {0};
    struct hps_error err = {0};
    int n_words = 0;
    hps_status status =
        hps_args_parse(tables, 1, false, argc - (argc > 0), argv + 1, &n_words, &err);

    if (status == HPS_OK && flags.help) {
        printf("usage: hps-bench [option...]\n\nLoad on an hpsd, from a client's view.\n\n");
        hps_args_print(args);
        return 0;
    }
    if (status == HPS_OK && n_words > 0) {
        status = hps_error_set(&err, HPS_INVALID, "\"%s\" is no option", argv[1]);
    }
    if (status == HPS_OK) {
        status = make_plan(&plan, &err);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "hps-bench: %s\n", err.text);
        hps_free(plan.tables);
        return status == HPS_INVALID ? EXIT_USAGE : exit_of(status);
    }
    int code = run(&plan);
    hps_free(plan.tables);
    return code;
}
