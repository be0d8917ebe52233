/* SPDX-License-Identifier: Apache-2.0
 *
 * The C client of hpsd: looks up embedding rows. Link with `pkg-config --cflags --libs
 * hpsd-client`; docs/c.md says how to link it statically.
 *
 *     struct hpsd_options options = {.addresses = "127.0.0.1:8601"};
 *     struct hpsd_client *client;
 *     struct hpsd_error error;
 *     struct hpsd_reply reply;
 *     const int64_t keys[] = {1, 2, -3};
 *     float rows[3][32];
 *     struct hpsd_query query = {.table = "items", .keys = keys, .n_keys = 3,
 *                                .rows = rows, .rows_size = sizeof rows};
 *     struct hpsd_lookup lookup = {.model = "dlrm", .queries = &query, .n_queries = 1};
 *
 *     if (hpsd_open(&options, &client, &error) != HPSD_OK ||
 *         hpsd_lookup(client, &lookup, &reply, &error) != HPSD_OK) {
 *         puts(error.text);
 *     }
 *
 * Initialise every struct that you pass in with {0} or a designated initialiser. A field that is 0
 * or NULL has its default. Times are in microseconds, sizes in bytes. Text is UTF-8 and ends with
 * NUL. Keys, offsets, weights and rows are little-endian, as on the CPUs for which hpsd is built.
 *
 * Threads. All functions may be called from any thread. Each client has a thread, which blocks
 * all signals. Callbacks run on this thread: they must not block, and may start further
 * lookups.
 *
 * Errors. A function that fails returns its status and sets *error, unless `error` is NULL. Outputs
 * are set only on success.
 *
 * Fork. A child of fork() cannot use the clients of its parent: every call fails with
 * HPSD_FAILED_PRECONDITION, and hpsd_close has no effect. Open a client in the child.
 */
#ifndef HPSD_H
#define HPSD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- errors ---------------------------------------------------------------------------------- */

/* The status codes of gRPC, with their numbers. */
enum hpsd_status {
    HPSD_OK = 0,
    HPSD_CANCELLED = 1, /* hpsd_cancel or hpsd_close, or a proxy has reset the call */
    HPSD_UNKNOWN = 2,
    HPSD_INVALID_ARGUMENT = 3,  /* found by this library or by the server; the text names it */
    HPSD_DEADLINE_EXCEEDED = 4, /* a server got the request, but did not reply in time */
    HPSD_NOT_FOUND = 5,         /* no such model, version, table or file */
    HPSD_ALREADY_EXISTS = 6,
    HPSD_PERMISSION_DENIED = 7,  /* the caller lacks the role for this model */
    HPSD_RESOURCE_EXHAUSTED = 8, /* a quota, a limit of the server, or memory */
    HPSD_FAILED_PRECONDITION = 9,
    HPSD_ABORTED = 10,      /* HPSD_CONSISTENCY_UNIT: updates changed the rows in every attempt */
    HPSD_OUT_OF_RANGE = 11, /* the rows do not fit into the caller's memory */
    HPSD_UNIMPLEMENTED = 12,
    HPSD_INTERNAL = 13,
    HPSD_UNAVAILABLE = 14, /* no server could answer within the timeout, in spite of retries */
    HPSD_DATA_LOSS = 15,   /* the reply is malformed, or stored rows are damaged */
    HPSD_UNAUTHENTICATED = 16,
};

struct hpsd_error {
    enum hpsd_status status;
    char text[512]; /* for people; printable, one line */
};

/* "ok", "not found", "unavailable" and so on. Accepts any number. */
const char *hpsd_status_text(enum hpsd_status status);

/* ---- clients --------------------------------------------------------------------------------- */

/* Strings are borrowed during hpsd_open only. Files are read by hpsd_open only. */
struct hpsd_options {
    /* Required. "HOST:PORT", "[IPV6]:PORT" or "unix:PATH", or several of them, separated by commas.
     * docs/lookups.md says how a client chooses among several servers. */
    const char *addresses;
    const char *token;      /* bearer token, sent with each call */
    const char *token_file; /* file with the token in its first line, instead of `token` */
    /* Send the token to other hosts also without TLS. Otherwise hpsd_open refuses this with
     * HPSD_INVALID_ARGUMENT. */
    bool token_in_clear;
    bool tls;             /* use TLS; implied by the other tls_ fields; not for unix: addresses */
    const char *tls_ca;   /* PEM file; default: the CAs of the system */
    const char *tls_cert; /* PEM file: certificate of this client; default: none */
    const char *tls_key;  /* PEM file; default: the key is in tls_cert */
    const char *tls_name; /* name in the certificate of the server; default: host of the address */
    uint64_t timeout_us;  /* default timeout of a call, with all its attempts; 0: 5 s */
    uint32_t connections; /* to each address; 0: one. Each has its own thread in the server */
    bool single_attempt;  /* do not repeat requests after failures */
    size_t reply_bytes_max; /* largest message; 0: 1 GiB */
};

struct hpsd_client;

/* Creates a client. It connects when the first call needs a connection, so hpsd_open succeeds also
 * while no server runs. With TLS, the process ignores SIGPIPE from now on, unless it has a handler.
 *
 * errors: INVALID_ARGUMENT, NOT_FOUND (of a file), PERMISSION_DENIED, RESOURCE_EXHAUSTED
 */
enum hpsd_status hpsd_open(const struct hpsd_options *options, struct hpsd_client **out_client,
                           struct hpsd_error *error);
/* Cancels the lookups in flight, waits until their callbacks have returned, and frees the client.
 * No other thread may use the client any more. Not within a callback. NULL has no effect. */
void hpsd_close(struct hpsd_client *client);

/* Makes all connections and waits until each server has answered a health check, or has failed. OK:
 * at least one has answered, whether it is healthy or not. Call it to find errors early, and to
 * keep the first lookups fast. timeout_us: 0: as for a call.
 *
 * errors: UNAVAILABLE, DEADLINE_EXCEEDED
 */
enum hpsd_status hpsd_connect(struct hpsd_client *client, uint64_t timeout_us,
                              struct hpsd_error *error);

/* ---- lookups --------------------------------------------------------------------------------- */

enum hpsd_dtype {
    HPSD_FP32 = 1,
    HPSD_FP16 = 2,
    HPSD_BF16 = 3,
    /* A row has dim bytes q, then scale and bias as float32. A value is q * scale + bias. */
    HPSD_INT8_ROWWISE_F32 = 4,
    HPSD_INT8_ROWWISE_F16 = 5, /* the same with scale and bias as float16 */
    HPSD_RAW = 15,             /* only hpsd_lookup.output_type: rows as they are stored */
};

/* docs/lookups.md has the formulas. */
enum hpsd_pooling {
    HPSD_POOLING_NONE = 0, /* one row for each key */
    HPSD_POOLING_SUM = 2,
    HPSD_POOLING_MEAN = 3,
    HPSD_POOLING_SQRTN = 4,
    HPSD_POOLING_MEAN_BY_COUNT = 5,
};

enum hpsd_key_status {
    HPSD_KEY_FOUND = 1,
    HPSD_KEY_DEFAULTED = 2, /* the default row: the lookup did not wait long enough for the row */
    HPSD_KEY_UNKNOWN = 3,   /* no tier has the key */
};

/* The behaviour for rows that are only in Redis or RocksDB. 0: as the model is configured. */
enum hpsd_miss_policy {
    HPSD_MISS_EXACT = 1,       /* wait for the true row */
    HPSD_MISS_WAIT = 2,        /* wait for up to max_wait_us, then return the default row */
    HPSD_MISS_MEMORY_ONLY = 3, /* return the default row */
    HPSD_MISS_THRESHOLD = 4,   /* wait if the hit rate is below the threshold of the model */
};

/* The behaviour for keys that no tier has. 0: as the model is configured. */
enum hpsd_unknown_key {
    HPSD_UNKNOWN_DEFAULT_ROW = 1,
    HPSD_UNKNOWN_ZERO = 2,
    HPSD_UNKNOWN_ERROR = 3, /* the lookup fails with HPSD_NOT_FOUND */
};

enum hpsd_consistency {
    HPSD_CONSISTENCY_ROW = 1,  /* the default */
    HPSD_CONSISTENCY_UNIT = 2, /* all rows are from the same moment */
};

/* The keys of one table, and where their rows go. */
struct hpsd_query {
    /* NULL: the table at this query's place in the model's order of tables (hpsd_model.tables). */
    const char *table;
    const void *keys; /* [n_keys] int64, with any alignment */
    size_t n_keys;
    /* With pooling, the reply has one row for each bag. Bag b has the keys offsets[b] to
     * offsets[b + 1] - 1. */
    enum hpsd_pooling pooling;
    const uint32_t *offsets; /* [n_bags + 1]; without pooling NULL */
    size_t n_bags;
    const float *weights; /* [n_keys]; NULL: every weight is 1 */
    /* Memory for the rows of this query, with any alignment: one after the other, each of
     * hpsd_row_bytes(). The rows may be smaller than rows_size; the bytes behind them are then
     * undefined. No other query may use these bytes. NULL: the rows go to hpsd_lookup.rows. */
    void *rows;
    size_t rows_size;
    uint8_t *key_status; /* [n_keys] receives enum hpsd_key_status; NULL: not wanted */
};

/* A lookup. Pointers are borrowed: offsets and memory for results until the lookup has ended, all
 * others until the function returns. */
struct hpsd_lookup {
    const char *model; /* NULL: "default" */
    int64_t version;   /* 0: the active version */
    const char *label; /* instead of `version`: the highest version with this label */
    const struct hpsd_query *queries; /* [n_queries] */
    size_t n_queries;
    /* Memory for the rows of all queries that have no memory of their own, in query order, without
     * gaps. The bytes behind them are then undefined. NULL: the library allocates reply.memory. */
    void *rows;
    size_t rows_size;
    /* One matrix for all queries: row r consists of row r of each query, in query order. All
     * queries must have the same number of rows. The matrix goes to `rows` above; the queries must
     * not have memory of their own. */
    bool concat;
    enum hpsd_dtype output_type; /* 0: FP32; INT8 types only as RAW */
    enum hpsd_miss_policy miss_policy;
    uint32_t max_wait_us; /* of HPSD_MISS_WAIT */
    enum hpsd_unknown_key unknown_key;
    enum hpsd_consistency consistency;
    uint32_t max_staleness_ms;   /* fail if updates older than this may be missing; 0: no limit */
    const char *request_id;      /* at most 128 bytes, for the slow log of the server */
    uint64_t timeout_us;         /* with all attempts; 0: hpsd_options.timeout_us */
    bool stream;                 /* the server sends messages of at most 1 MiB; same result */
    struct hpsd_result *results; /* [n_queries] receives the results; NULL: not wanted */
};

enum { HPSD_TIERS_MAX = 8 };

struct hpsd_tier {
    char name[24];       /* "gpu", "host", "redis", "rocksdb" */
    uint32_t found_keys; /* of n_unique */
};

/* The result of one query. Numbers of keys also count keys of bags. */
struct hpsd_result {
    /* The first row. With `concat`: the first value of this table in the matrix. NULL: no rows. */
    void *rows;
    size_t stride; /* from one row to the next */
    size_t n_rows;
    uint32_t dim; /* values of a row */
    enum hpsd_dtype dtype;
    uint32_t n_unique; /* keys that were read from tiers */
    uint32_t n_defaulted;
    uint32_t n_unknown;
    uint32_t n_tiers;
    struct hpsd_tier tiers[HPSD_TIERS_MAX]; /* [n_tiers] */
};

struct hpsd_reply {
    int64_t version;            /* the version that was read */
    char label[128];            /* of this version, cut to 127 bytes; "": none */
    uint64_t update_sequence;   /* never decreases while the version is loaded */
    int64_t event_time_unix_ms; /* newest event time of the applied updates; 0: none */
    uint64_t bytes;             /* size of the reply as sent by the server, without headers */
    /* Rows of queries without memory of their own, if hpsd_lookup.rows is NULL. The caller frees it
     * with hpsd_free. NULL: no rows. */
    void *memory;
};

/* Looks up rows and waits for them. After failures that allow it, repeats the request until the
 * timeout.
 *
 * errors: see proto/hps/v1/lookup.proto; OUT_OF_RANGE: the rows do not fit, and the text says how
 * large they are. The contents of the memory for results are then undefined.
 */
enum hpsd_status hpsd_lookup(struct hpsd_client *client, const struct hpsd_lookup *lookup,
                             struct hpsd_reply *out_reply, struct hpsd_error *error);

/* Called once when a lookup has ended. Success: `reply` is not NULL and error->status is HPSD_OK.
 * Failure: `reply` is NULL. Both are valid during the callback only, except reply->memory. */
typedef void (*hpsd_done_fn)(void *ctx, const struct hpsd_reply *reply,
                             const struct hpsd_error *error);

/* Starts a lookup and returns without waiting. If this returns OK, `done` is called exactly once,
 * on the thread of the client, possibly before this function returns to another thread. Otherwise
 * it is not called. *out_id (may be NULL) identifies the lookup for hpsd_cancel; it is set before
 * `done` is called.
 *
 * errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, CANCELLED (the client is being closed)
 */
enum hpsd_status hpsd_lookup_start(struct hpsd_client *client, const struct hpsd_lookup *lookup,
                                   hpsd_done_fn done, void *ctx, uint64_t *out_id,
                                   struct hpsd_error *error);
/* Ends a lookup early: `done` follows soon, with HPSD_CANCELLED unless it has ended otherwise. No
 * effect if the lookup has ended. Ids of a client are never used again. */
void hpsd_cancel(struct hpsd_client *client, uint64_t id);

/* Frees reply.memory. NULL has no effect. */
void hpsd_free(void *memory);

/* Size of a row as a reply has it. 0: no such type. RAW is not the type of a row. */
size_t hpsd_row_bytes(enum hpsd_dtype dtype, uint32_t dim);

/* ---- models ---------------------------------------------------------------------------------- */

struct hpsd_table {
    const char *name; /* "": this version has no table at this place; the other fields are 0 */
    uint32_t dim;
    enum hpsd_dtype dtype; /* of the stored rows */
    uint64_t n_rows;
    bool n_rows_estimated;
};

struct hpsd_model {
    int64_t version;
    const char *label;               /* "": none */
    const struct hpsd_table *tables; /* [n_tables] in the model's order */
    size_t n_tables;
};

/* Describes a version of a model. Needs the role `read` if the server has access rules.
 *
 * version: 0: the active version. model: NULL: "default". timeout_us: 0: as for a call
 * errors: NOT_FOUND, UNAVAILABLE (the model has no active version), PERMISSION_DENIED and others
 */
enum hpsd_status hpsd_model_get(struct hpsd_client *client, const char *model, int64_t version,
                                uint64_t timeout_us, struct hpsd_model **out_model,
                                struct hpsd_error *error);
void hpsd_model_free(struct hpsd_model *model); /* NULL has no effect */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
