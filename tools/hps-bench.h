/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of hps-bench. The main thread reads the options, starts the workers and
 * prints. Each worker has a client with its share of the connections. Its lookups start when others
 * end, on the thread of the client; a thread of its own starts the first ones.
 */
#ifndef HPS_TOOLS_HPS_BENCH_H
#define HPS_TOOLS_HPS_BENCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/dtype.h"
#include "base/lock.h"
#include "base/row_sum.h"
#include "base/types.h"
#include "client/client.h"
#include "client/hist.h"
#include "client/hpsd.h"
#include "client/zipf.h"

enum { BENCH_CODES = 17, BENCH_TIERS_MAX = 8, BENCH_NAME_BYTES = 121, BENCH_TIER_NAME_BYTES = 24 };

struct bench_table {
    char name[BENCH_NAME_BYTES];
    uint32_t number; /* table number of base/rows/rowgen.h */
    uint64_t n_rows;
    enum hps_dtype dtype; /* type of the stored rows */
    struct hps_zipf zipf;
    uint64_t n_keys;    /* per request */
    uint64_t first_key; /* sum of n_keys of the tables before */
    uint64_t n_bags;    /* per request; 0: no pooling, then `offsets` is NULL */
    uint32_t *offsets;  /* [n_bags + 1], hps_free. Bag b has keys [offsets[b], offsets[b + 1]). */
};

/* The options, in the form that workers need. Constant while workers run. Strings are in argv. */
struct bench_plan {
    struct hpsd_options connect;
    const char *model;
    bool stream;
    bool verify;
    bool hashed;          /* keys as written by hps-gen --keys hashed */
    uint64_t duration_us; /* 0: run until n_requests */
    uint64_t n_requests;  /* 0: run until duration_us */
    double rate;          /* open loop: requests per second of all workers; 0: closed loop */
    uint64_t n_connections;
    uint64_t n_threads;
    uint64_t concurrency; /* calls in flight per connection */
    uint64_t n_keys;      /* per table and request; with `hotness` samples per request */
    uint64_t n_keys_all;  /* of a request */
    const char *hotness;  /* numbers of each table: keys of a sample; NULL: not given */
    uint64_t timeout_us;
    enum hpsd_miss_policy miss_policy;
    uint32_t max_wait_us;
    enum hpsd_dtype output_type;
    bool concat;               /* replies have one matrix with the rows of all tables */
    enum hpsd_pooling pooling; /* of every table; NONE: the next two fields are 0 */
    uint64_t n_bag_keys; /* keys of a bag; the last bag of a table has the rest; 0: all keys */
    bool weighted;       /* every key has a weight */
    uint64_t seed;       /* of the random keys */
    uint64_t data_seed;  /* --seed of hps-gen, for `verify` */
    struct bench_table *tables; /* [n_tables], bench_tables_free */
    uint64_t n_tables;
    bool json;
    bool quiet;
};

struct bench_tier {
    char name[BENCH_TIER_NAME_BYTES];
    uint64_t found_keys;
};

/* The results of one worker. */
struct bench_counts {
    uint64_t n_ok;
    uint64_t n_by_code[BENCH_CODES];
    uint64_t n_unsent; /* open loop: requests that were due but were not sent */
    uint64_t n_keys;
    uint64_t n_unique;
    uint64_t n_defaulted;
    uint64_t n_unknown;
    uint64_t reply_bytes;
    uint64_t n_rows_checked;
    uint64_t n_rows_wrong;
    struct bench_tier tiers[BENCH_TIERS_MAX];
    char error_text[480]; /* error of the first call that failed */
    char wrong_text[320]; /* difference in the first wrong row */
};

/* Shared by all workers and the main thread: progress, and when to start and stop. */
struct bench_live {
    atomic_ullong requests_started;
    atomic_ullong requests_done;
    atomic_ullong keys_done;
    atomic_ullong bytes_done;
    atomic_ullong errors;
    atomic_uint n_ready;    /* workers that have connected, or failed to connect */
    atomic_uint n_running;  /* workers that have not ended */
    atomic_ullong start_us; /* when the load begins, by hps_clock_us; 0: not yet */
    atomic_bool stop;
};

/* Buffers in which bench_verify computes the expected rows. */
struct bench_check {
    uint32_t dim;     /* capacity of the buffers, in values */
    float *row;       /* [dim]; start of the memory of all four arrays, which hps_free frees */
    float *expected;  /* [dim] */
    float *tolerance; /* [dim] */
    float *got;       /* [dim] */
    uint8_t *bytes;   /* one row of any type */
};

struct bench_worker {
    const struct bench_plan *plan;
    struct bench_live *live;
    unsigned index;
    pthread_t thread;
    hps_status status; /* result of connecting to the server */
    struct hpsd_error err;
    struct hpsd_client *client;
    struct bench_slot *slots; /* [n_slots] each makes one call at a time */
    uint64_t n_slots;
    struct hps_lock lock; /* protects the fields below while the load runs */
    struct hps_cond wake; /* a slot is idle that its own call could not start again */
    struct bench_counts counts;
    struct hps_hist latency_us;
    uint64_t n_idle;
    struct bench_slot *idle; /* list of the n_idle slots without a call */
    uint64_t n_due_taken;    /* number of requests that were started so far */
    uint64_t end_us;         /* when to stop, by hps_clock_us; 0: no time limit */
    struct hps_random random;
    struct bench_check check;
};

/* Reads the command line and fills `out_plan`, also its tables. False: exit with *out_code; the
 * error has been printed. */
bool bench_options(int argc, char **argv, struct bench_plan *out_plan, int *out_code)
    HPS_MUST_CHECK;
/* Body of a worker thread; `ctx` is its struct bench_worker. */
void *bench_worker_run(void *ctx);
/* Checks the rows of a query against the rows that hps-gen writes (base/rows/rowgen.h). Adds to
 * n_rows_checked and n_rows_wrong of the worker. The query must have received key states. */
void bench_verify(struct bench_worker *worker, const struct bench_table *table,
                  const struct hpsd_query *query, const struct hpsd_result *result);
void bench_check_free(struct bench_check *check);
/* Fills plan->tables with the tables that Admin/ListTables at `admin` reports. names:
 * comma-separated, or "all". */
hps_status bench_tables_ask(struct bench_plan *plan, const struct hps_client_options *admin,
                            const char *names, struct hps_error *err) HPS_MUST_CHECK;
/* Fills plan->tables with the tables `names` (comma-separated), each with n_rows rows, without a
 * call to the server. */
hps_status bench_tables_given(struct bench_plan *plan, const char *names, uint64_t n_rows,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Sets the keys and bags of the tables, and plan->n_keys_all. */
hps_status bench_tables_share_keys(struct bench_plan *plan, uint64_t n_keys_max,
                                   struct hps_error *err) HPS_MUST_CHECK;
void bench_tables_free(struct bench_plan *plan);

#endif
