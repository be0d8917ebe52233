/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hps-bench, and the plan made from it. Main thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "tools/hps-bench.h"
#include "tools/rows.h"
#include "tools/tool.h"

enum { THREADS_MAX = 64, CONNECTIONS_MAX = 16384, CALLS_MAX = 1 << 16, KEYS_MAX = 2 << 20 };

#define DURATION_US_DEFAULT (UINT64_C(10) * 1000 * 1000)
#define TIMEOUT_US_MAX      (UINT64_C(86400) * 1000 * 1000)

/* The plan from the options, and options that need conversion. */
static struct bench_plan plan = {
    .model = "default",
    .n_connections = 1,
    .n_threads = 1,
    .concurrency = 8,
    .n_keys = 64,
    .timeout_us = 10 * 1000 * 1000,
    .seed = 1,
    .data_seed = 1,
};

static struct {
    const char *admin;
    const char *tables;
    const char *rate;
    const char *zipf;
    const char *miss_policy;
    const char *output_type;
    const char *pooling;
    const char *row_layout;
    const char *output;
    uint64_t n_rows, max_wait_us;
    bool retry;
} flags = {
    .tables = "all",
    .rate = "max",
    .zipf = "0",
    .miss_policy = "table",
    .output_type = "fp32",
    .pooling = "none",
    .row_layout = "per-table",
    .output = "table",
};

static const struct hps_arg args[] = {
    {"addr", 0, HPS_ARG_TEXT, "ADDR", &tool_connect.address,
     "gRPC listener of the server, HOST:PORT or unix:PATH, or several, separated by commas "
     "(default 127.0.0.1:8601)"},
    {"retry", 0, HPS_ARG_FLAG, NULL, &flags.retry,
     "repeat calls that fail, also at the other servers of --addr, as applications do"},
    {"admin", 0, HPS_ARG_TEXT, "ADDR", &flags.admin,
     "admin listener, which reports tables and row counts; not used with --rows (default "
     "$HPSD_ADDR, else " TOOL_ADMIN_ADDRESS ")"},
    {"model", 0, HPS_ARG_TEXT, "NAME", &plan.model, "name of the model (default \"default\")"},
    {"tables", 0, HPS_ARG_TEXT, "all|A,B", &flags.tables, "tables of each request (default all)"},
    {"rows", 0, HPS_ARG_U64, "N", &flags.n_rows,
     "draw keys from 0 to N-1 for the tables of --tables; the admin listener is not used"},
    {"duration", 'd', HPS_ARG_US, "SECONDS", &plan.duration_us,
     "how long to run (default 10, unless --requests is given)"},
    {"requests", 'n', HPS_ARG_U64, "N", &plan.n_requests, "end after N requests"},
    {"rate", 'r', HPS_ARG_TEXT, "N|max", &flags.rate,
     "N: open loop of N requests a second, latency counts from when a request was due; max "
     "(default): closed loop, a reply starts the next request"},
    {"connections", 'c', HPS_ARG_U64, "N", &plan.n_connections, "connections (default 1)"},
    {"concurrency", 'p', HPS_ARG_U64, "N", &plan.concurrency,
     "calls in flight per connection (default 8)"},
    {"threads", 't', HPS_ARG_U64, "N", &plan.n_threads,
     "client threads, each with its share of the connections (default 1)"},
    {"keys", 'k', HPS_ARG_U64, "N", &plan.n_keys, "keys per table and request (default 64)"},
    {"hotness", 0, HPS_ARG_TEXT, "N,N,...", &plan.hotness,
     "multi-hot: --keys are samples, and each has this many keys in each table; with --pooling "
     "these are a bag"},
    {"zipf", 'z', HPS_ARG_TEXT, "ALPHA[,Q[,S]]", &flags.zipf,
     "skew of the keys, 0 to 10 (default 0: uniform); a share Q of the draws, 0 to 1, goes to the "
     "hottest key, or evenly to the share S of the keys, 0 to 1"},
    {"miss-policy", 0, HPS_ARG_CHOICE, ROWS_MISS_POLICIES, &flags.miss_policy,
     "what the server does on a miss (default table: as the model is configured)"},
    {"max-wait", 0, HPS_ARG_US, "SECONDS", &flags.max_wait_us,
     "limit for --miss-policy wait (default 0)"},
    {"output-type", 0, HPS_ARG_CHOICE, ROWS_OUTPUT_TYPES, &flags.output_type,
     "type of the rows in replies (default fp32); raw: as stored"},
    {"pooling", 0, HPS_ARG_CHOICE, ROWS_POOLINGS, &flags.pooling,
     "the server combines the rows of each bag of keys (default none: one row for each key)"},
    {"bag-keys", 0, HPS_ARG_U64, "N", &plan.n_bag_keys,
     "keys of a bag, with --pooling (default: the --keys of a table are one bag)"},
    {"weighted", 0, HPS_ARG_FLAG, NULL, &plan.weighted,
     "with --pooling: a weight for each key, 0 to 2 at random"},
    {"row-layout", 0, HPS_ARG_CHOICE, ROWS_LAYOUTS, &flags.row_layout,
     "layout of the rows of several tables (default per-table); concat: one matrix"},
    {"stream", 0, HPS_ARG_FLAG, NULL, &plan.stream, "call LookupStream instead of Lookup"},
    {"verify", 0, HPS_ARG_FLAG, NULL, &plan.verify,
     "check every row of a model made by hps-gen; exit 5 if one is wrong"},
    {"data-seed", 0, HPS_ARG_U64, "N", &plan.data_seed,
     "--verify: the --seed of hps-gen (default 1)"},
    {"hashed-keys", 0, HPS_ARG_FLAG, NULL, &plan.hashed, "--verify: hps-gen used --keys hashed"},
    {"seed", 0, HPS_ARG_U64, "N", &plan.seed, "seed of the random keys (default 1)"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &plan.timeout_us, "deadline of a call (default 10)"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &flags.output, "output format (default table)"},
    {"quiet", 'q', HPS_ARG_FLAG, NULL, &plan.quiet, "do not print a line each second on stderr"},
    HPS_ARGS_END,
};

static const struct hps_arg_removed removed[] = {
    {"protocol", "hps-bench calls only hps.v1; for KServe use perf_analyzer of Triton"},
    {NULL, NULL},
};

static const struct hps_program program = {
    .self =
        {
            .name = "hps-bench",
            .words = "",
            .summary = "Put load on hpsd; print throughput and latency as clients see them.",
            .args = args,
            .shared_args = tool_connect_args,
            .example = "hps-bench --model dlrm --duration 30 --rate 2000 --keys 128 --zipf 0.99",
        },
    .exit_codes = TOOL_EXIT_CODES "\n"
                                  "5 --verify found a wrong row",
    .removed = removed,
};

/* ALPHA, Q and S of --zipf; 0 for those that are not given. */
static hps_status parse_zipf(double out_numbers[3], struct hps_error *err)
{
    char text[64];
    char *rest = text;
    bool good = true;

    out_numbers[1] = out_numbers[2] = 0;
    (void)snprintf(text, sizeof(text), "%s", flags.zipf);
    for (int i = 0; i < 3 && rest != NULL; i++) {
        char *comma = i < 2 ? strchr(rest, ',') : NULL;
        if (comma != NULL) {
            *comma++ = '\0';
        }
        good = good && hps_args_f64(rest, &out_numbers[i]) && out_numbers[i] >= 0 &&
               out_numbers[i] <= (i == 0 ? 10 : 1);
        rest = comma;
    }
    return good ? HPS_OK
                : hps_error_set(
                      err, HPS_INVALID,
                      "--zipf \"%s\": expected ALPHA[,Q[,S]], ALPHA 0 to 10, Q and S 0 to 1",
                      flags.zipf);
}

static hps_status check_pooling(struct hps_error *err)
{
    bool pooled = plan.pooling != HPSD_POOLING_NONE;
    const struct hps_arg_range ranges[] = {{"bag-keys", plan.n_bag_keys, 1, plan.n_keys}};

    if (!pooled && (plan.n_bag_keys > 0 || plan.weighted)) {
        return hps_error_set(err, HPS_INVALID, "--%s needs --pooling",
                             plan.weighted ? "weighted" : "bag-keys");
    }
    if (plan.n_bag_keys > 0 && plan.hotness != NULL) {
        return hps_error_set(err, HPS_INVALID, "--hotness excludes --bag-keys");
    }
    if (plan.output_type == HPSD_RAW && (pooled || plan.concat)) {
        return hps_error_set(err, HPS_INVALID, "--output-type raw excludes --%s",
                             pooled ? "pooling" : "row-layout concat");
    }
    return plan.n_bag_keys == 0 ? HPS_OK : hps_args_ranges(ranges, 1, err);
}

static hps_status check_flags(struct hps_error *err)
{
    const struct hps_arg_range ranges[] = {
        {"connections", plan.n_connections, 1, CONNECTIONS_MAX},
        {"threads", plan.n_threads, 1, THREADS_MAX},
        {"concurrency", plan.concurrency, 1, CALLS_MAX},
        {"concurrency x --connections", plan.concurrency * plan.n_connections, 1, CALLS_MAX},
        {"keys", plan.n_keys, 1, KEYS_MAX},
        {"timeout in us", plan.timeout_us, 1, TIMEOUT_US_MAX},
        {"max-wait in us", flags.max_wait_us, 0, UINT32_MAX},
    };

    if (strcmp(flags.rate, "max") != 0 &&
        (!hps_args_f64(flags.rate, &plan.rate) || plan.rate <= 0)) {
        return hps_error_set(err, HPS_INVALID, "--rate \"%s\": expected a number above 0, or max",
                             flags.rate);
    }
    hps_status status = hps_args_ranges(ranges, sizeof(ranges) / sizeof(ranges[0]), err);
    return status == HPS_OK ? check_pooling(err) : status;
}

/* Options with a fixed set of words. Another word was rejected before. */
static void take_choices(void)
{
    enum hps_dtype output = HPS_DTYPE_FP32;
    enum hps_pooling pooling = HPS_POOLING_NONE;
    uint32_t miss_policy = 0;

    (void)hps_args_choice(ROWS_MISS_POLICIES, flags.miss_policy, &miss_policy);
    (void)hps_dtype_parse(flags.output_type, strlen(flags.output_type), &output);
    (void)hps_pooling_parse(flags.pooling, strlen(flags.pooling), &pooling);
    plan.miss_policy = (enum hpsd_miss_policy)miss_policy;
    plan.output_type = (enum hpsd_dtype)output;
    plan.pooling = pooling == HPS_POOLING_NONE ? HPSD_POOLING_NONE : (enum hpsd_pooling)pooling;
    plan.concat = strcmp(flags.row_layout, "concat") == 0;
    plan.json = flags.output[0] == 'j';
}

/* Finds the tables and their numbers of rows: from the options, or from the server. */
static hps_status find_tables(struct hps_error *err)
{
    struct hps_client_options admin = tool_connect;

    if (flags.n_rows != 0) {
        return bench_tables_given(&plan, flags.tables, flags.n_rows, err);
    }
    admin.address = flags.admin != NULL ? flags.admin : tool_admin_address();
    hps_status status = tool_address_check("--admin (or $HPSD_ADDR)", admin.address, err);
    if (status == HPS_OK) {
        status = bench_tables_ask(&plan, &admin, flags.tables, err);
    }
    return status != HPS_UNAVAILABLE
               ? status
               : hps_error_prefix(err, status,
                                  "the admin listener, which reports tables and row counts (set "
                                  "--admin, or give --tables and --rows)");
}

/* Addresses that are separated by commas. */
static hps_status addresses_check(const char *list, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (const char *one = list, *next; status == HPS_OK && one != NULL; one = next) {
        const char *comma = strchr(one, ',');
        char address[512]; /* hpsd_open rejects longer ones */
        snprintf(address, sizeof(address), "%.*s",
                 (int)(comma != NULL ? (size_t)(comma - one) : strlen(one)), one);
        next = comma != NULL ? comma + 1 : NULL;
        status = tool_address_check("--addr", address, err);
    }
    return status;
}

bool bench_options(int argc, char **argv, struct bench_plan *out_plan, int *out_code)
{
    struct hps_args read;
    struct hps_error err = {0};
    double zipf[3]; /* ALPHA, Q and S */

    tool_connect.address = "127.0.0.1:8601";
    if (!hps_args_start(&program, argc, argv, &read, out_code)) {
        return false;
    }
    take_choices();
    if (check_flags(&err) != HPS_OK || parse_zipf(zipf, &err) != HPS_OK) {
        *out_code = hps_args_wrong(&program, NULL, "%s", err.text);
        return false;
    }
    if (plan.duration_us == 0 && plan.n_requests == 0) {
        plan.duration_us = DURATION_US_DEFAULT;
    }
    if (addresses_check(tool_connect.address, &err) != HPS_OK) {
        *out_code = hps_args_wrong(&program, NULL, "%s", err.text);
        return false;
    }
    plan.connect = tool_hpsd_options(&tool_connect);
    plan.connect.single_attempt = !flags.retry;
    plan.n_threads = plan.n_threads < plan.n_connections ? plan.n_threads : plan.n_connections;
    plan.max_wait_us = (uint32_t)flags.max_wait_us;
    hps_status status = find_tables(&err);
    if (status == HPS_OK) {
        status = bench_tables_share_keys(&plan, KEYS_MAX, &err);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "hps-bench: %s\n", err.text);
        bench_tables_free(&plan);
        *out_code = status == HPS_INVALID ? TOOL_USAGE : tool_exit_of(status);
        return false;
    }
    for (uint64_t i = 0; i < plan.n_tables; i++) {
        struct hps_zipf *of = &plan.tables[i].zipf;
        hps_zipf_init(of, plan.tables[i].n_rows, zipf[0], zipf[1]);
        uint64_t n_heavy = (uint64_t)(zipf[2] * (double)of->n);
        of->n_heavy = n_heavy > 0 ? n_heavy : 1;
    }
    *out_plan = plan;
    return true;
}
