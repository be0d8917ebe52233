/* SPDX-License-Identifier: Apache-2.0
 *
 * The C library against scripted servers of net/, each on a thread of this process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heap.h"
#include "client/hpsd.h"
#include "client/message.h"
#include "hps/v1/lookup.pb-c.h"
#include "net/acceptor.h"
#include "net/grpc.h"
#include "net/sock.h"
#include "tests/lib/tmpdir.h"

#define SECOND_US (UINT64_C(1000) * 1000)

enum { DIM = 4, SERVERS = 2, KEYS = 3 };

/* ---- servers --------------------------------------------------------------------------------- */

/* The reply of a server to a lookup. */
enum play {
    ANSWER,
    ANSWER_TWICE,  /* two messages */
    ANSWER_SHORT,  /* without the last table */
    ANSWER_LONG,   /* one table more */
    ANSWER_BROKEN, /* bytes that are no message */
    ANSWER_HALVES, /* a stream of two messages, each with half of the rows of the only query */
    ANSWER_SLOW,   /* if the attempt has time for a lookup that takes 1.5 s */
    NEVER,
    NOTHING,
    FAIL, /* with `code` */
};

struct server {
    struct hps_loop *loop;
    struct hps_grpc_server *grpc;
    struct hps_grpc_loop *grpc_loop;
    struct hps_acceptor *acceptor;
    pthread_t thread;
    bool running;
    char address[HPS_TMPDIR_PATH_MAX + 8];
    struct hps_grpc_service services[2];
    atomic_int play;
    atomic_int code;
    atomic_int n_lookups;
    atomic_int n_healths;
};

static struct server servers[SERVERS];
static struct hps_tmpdir dir;

static float value(int64_t key, unsigned i)
{
    return (float)key * 10 + (float)i;
}

/* The rows of a query: of each key, or the sum of each bag. */
static void fill_rows(const Hps__V1__TableQuery *query, size_t n_rows, float *rows)
{
    const int64_t *keys = (const int64_t *)(const void *)query->keys.data;
    const uint32_t *offsets = (const uint32_t *)(const void *)query->offsets.data;

    for (size_t row = 0; row < n_rows; row++) {
        size_t begin = offsets == NULL ? row : offsets[row];
        size_t end = offsets == NULL ? row + 1 : offsets[row + 1];
        for (unsigned i = 0; i < DIM; i++) {
            rows[row * DIM + i] = 0;
            for (size_t k = begin; k < end; k++) {
                int64_t key;
                memcpy(&key, &keys[k], sizeof(key));
                rows[row * DIM + i] += value(key, i);
            }
        }
    }
}

/* Fills a result with rows [begin, end) of the query, where a negative key is unknown. */
static void fill_result(const Hps__V1__TableQuery *query, size_t begin, size_t end,
                        Hps__V1__TableResult *result)
{
    size_t n_keys = query->keys.len / sizeof(int64_t);
    size_t n_rows = query->offsets.len == 0 ? n_keys : query->offsets.len / 4 - 1;
    float *rows = hps_calloc(n_rows + 1, DIM * sizeof(float));
    size_t first_key = query->offsets.len == 0 ? begin : 0;
    size_t n_result_keys = query->offsets.len == 0 ? end - begin : n_keys;

    assert_non_null(rows);
    hps__v1__table_result__init(result);
    fill_rows(query, n_rows, rows);
    result->table = query->table;
    result->dim = DIM;
    result->row_count = (uint32_t)(end - begin);
    result->unique_key_count = (uint32_t)n_result_keys;
    result->key_status.data = hps_calloc(n_result_keys + 1, 1);
    assert_non_null(result->key_status.data);
    for (size_t k = 0; k < n_result_keys; k++) {
        int64_t key;
        memcpy(&key, query->keys.data + (first_key + k) * sizeof(key), sizeof(key));
        result->key_status.data[k] = key < 0 ? HPSD_KEY_UNKNOWN : HPSD_KEY_FOUND;
        result->unknown_key_count += key < 0;
    }
    result->key_status.len = result->unknown_key_count > 0 ? n_result_keys : 0;
    result->rows.len = (end - begin) * DIM * sizeof(float);
    memmove(rows, rows + begin * DIM, result->rows.len);
    result->rows.data = (uint8_t *)rows;
}

static size_t rows_of(const Hps__V1__TableQuery *query)
{
    return query->offsets.len == 0 ? query->keys.len / sizeof(int64_t) : query->offsets.len / 4 - 1;
}

/* part: 0: all rows; 1, 2: half of them. */
static void send_answer(struct hps_grpc_call *call, const Hps__V1__LookupRequest *request,
                        size_t n_results, unsigned part)
{
    Hps__V1__LookupResponse reply = HPS__V1__LOOKUP_RESPONSE__INIT;
    Hps__V1__TableResult results[64];
    Hps__V1__TableResult *pointers[64];
    struct hps_buf buf;

    assert_true(n_results <= 64);
    hps_buf_init(&buf, 1 << 26);
    for (size_t i = 0; i < n_results; i++) {
        const Hps__V1__TableQuery *query = request->queries[i < request->n_queries ? i : 0];
        size_t n = rows_of(query);
        fill_result(query, part == 2 ? n / 2 : 0, part == 1 ? n / 2 : n, &results[i]);
        pointers[i] = &results[i];
    }
    reply.version = request->version == 0 ? 7 : request->version;
    reply.label = (char *)(uintptr_t) "nightly";
    reply.update_sequence = 9;
    reply.results = pointers;
    reply.n_results = n_results;
    assert_int_equal(hps_message_encode(&reply.base, &buf, NULL), HPS_OK);
    hps_grpc_call_send_copy(call, buf.data, buf.size);
    for (size_t i = 0; i < n_results; i++) {
        hps_free(results[i].rows.data);
        hps_free(results[i].key_status.data);
    }
    hps_buf_fini(&buf);
}

static void lookup_called(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct server *server = hps_grpc_call_ctx(call);
    ProtobufCMessage *message = NULL;
    int play = atomic_load(&server->play);

    atomic_fetch_add(&server->n_lookups, 1);
    if (play == FAIL) {
        hps_grpc_call_finish(call, atomic_load(&server->code), "refused on purpose");
        return;
    }
    if (play == NEVER ||
        (play == ANSWER_SLOW && hps_grpc_call_deadline_us(call) < hps_clock_us() + 1500 * 1000)) {
        return;
    }
    assert_int_equal(
        hps_message_decode(&hps__v1__lookup_request__descriptor, data, size, &message, NULL),
        HPS_OK);
    const Hps__V1__LookupRequest *request = (const Hps__V1__LookupRequest *)message;
    switch (play) {
    case ANSWER_BROKEN:
        hps_grpc_call_send_copy(call, "\xff\xff\xff", 3);
        break;
    case ANSWER_SHORT:
        send_answer(call, request, request->n_queries - 1, 0);
        break;
    case ANSWER_LONG:
        send_answer(call, request, request->n_queries + 1, 0);
        break;
    case ANSWER_HALVES:
        send_answer(call, request, 1, 1);
        send_answer(call, request, 1, 2);
        break;
    case NOTHING:
        break;
    case ANSWER_TWICE:
        send_answer(call, request, request->n_queries, 0);
        send_answer(call, request, request->n_queries, 0);
        break;
    default:
        send_answer(call, request, request->n_queries, 0);
        break;
    }
    hps_message_free(message);
    hps_grpc_call_finish(call, 0, NULL);
}

/* Version 3 is active; its order of tables is users, none, items. */
static void get_model_called(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    Hps__V1__GetModelResponse reply = HPS__V1__GET_MODEL_RESPONSE__INIT;
    Hps__V1__ModelVersion versions[2] = {HPS__V1__MODEL_VERSION__INIT,
                                         HPS__V1__MODEL_VERSION__INIT};
    Hps__V1__ModelVersion *version_pointers[] = {&versions[0], &versions[1]};
    Hps__V1__ModelTable tables[2] = {HPS__V1__MODEL_TABLE__INIT, HPS__V1__MODEL_TABLE__INIT};
    Hps__V1__ModelTable *table_pointers[] = {&tables[0], &tables[1]};
    struct hps_buf buf;

    (void)data;
    (void)size;
    hps_buf_init(&buf, 4096);
    tables[0].table = (char *)(uintptr_t) "items";
    tables[0].dim = 16;
    tables[0].data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP16;
    tables[0].row_count = 1000;
    tables[0].place = 2;
    tables[1].table = (char *)(uintptr_t) "users";
    tables[1].dim = 8;
    tables[1].data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP32;
    tables[1].row_count_estimated = true;
    versions[0].version = 2;
    versions[1].version = 3;
    versions[1].label = (char *)(uintptr_t) "nightly";
    versions[1].tables = table_pointers;
    versions[1].n_tables = 2;
    reply.active_version = 3;
    reply.versions = version_pointers;
    reply.n_versions = 2;
    assert_int_equal(hps_message_encode(&reply.base, &buf, NULL), HPS_OK);
    hps_grpc_call_send_copy(call, buf.data, buf.size);
    hps_grpc_call_finish(call, 0, NULL);
    hps_buf_fini(&buf);
}

static void health_called(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct server *server = hps_grpc_call_ctx(call);
    const uint8_t reply[] = {0x08, 1};

    (void)data;
    (void)size;
    atomic_fetch_add(&server->n_healths, 1);
    hps_grpc_call_send_copy(call, reply, sizeof(reply));
    hps_grpc_call_finish(call, 0, NULL);
}

static const struct hps_grpc_method methods[] = {
    {.path = "/hps.v1.ParameterServer/Lookup", .on_message = lookup_called},
    {.path = "/hps.v1.ParameterServer/LookupStream", .on_message = lookup_called},
    {.path = "/hps.v1.ParameterServer/GetModel", .on_message = get_model_called},
};
static const struct hps_grpc_method health_methods[] = {
    {.path = "/grpc.health.v1.Health/Check", .on_message = health_called},
};

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct server *server = ctx;

    hps_grpc_loop_adopt(server->grpc_loop, conn, cookie, false);
}

static void *serve(void *ctx)
{
    struct server *server = ctx;

    hps_loop_run(server->loop);
    hps_acceptor_free(server->acceptor);
    hps_grpc_loop_free(server->grpc_loop);
    hps_loop_free(server->loop);
    return NULL;
}

static void start_server(struct server *server)
{
    const struct hps_grpc_limits limits = {
        .request_bytes_max = 64 << 20,
        .connection_reply_bytes_max = 256 << 20,
        .streams_max = 1024,
        .handshake_timeout_us = 10 * SECOND_US,
        .stall_timeout_us = 30 * SECOND_US,
    };
    const struct hps_acceptor_options options = {.on_accept = on_accept, .ctx = server};
    struct hps_error err = {0};
    struct hps_addr addr;
    int fd;

    server->services[0] = (struct hps_grpc_service){"hps.v1.ParameterServer", methods,
                                                    sizeof(methods) / sizeof(methods[0]), server};
    server->services[1] =
        (struct hps_grpc_service){"grpc.health.v1.Health", health_methods, 1, server};
    (void)unlink(server->address + 5);
    assert_int_equal(hps_addr_parse(server->address, &addr, &err), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &fd, &err), HPS_OK);
    assert_int_equal(hps_loop_new(&server->loop, &err), HPS_OK);
    server->grpc = hps_grpc_server_new(&limits, NULL);
    assert_non_null(server->grpc);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(hps_grpc_server_add(server->grpc, &server->services[i], 1), HPS_OK);
    }
    assert_int_equal(hps_grpc_loop_new(server->grpc, server->loop, &server->grpc_loop), HPS_OK);
    assert_int_equal(hps_acceptor_new(server->loop, &options, &server->acceptor, &err), HPS_OK);
    assert_int_equal(hps_acceptor_add(server->acceptor, fd, NULL, 1, true, &err), HPS_OK);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
    server->running = true;
}

static void stop_server(struct server *server)
{
    if (server->running) {
        hps_loop_stop(server->loop);
        (void)pthread_join(server->thread, NULL);
        hps_grpc_server_free(server->grpc);
        server->running = false;
    }
}

/* Takes some milliseconds, as the client expects of a restart. */
static void restart_server(struct server *server)
{
    uint64_t now_us = hps_clock_us();

    stop_server(server);
    while (hps_clock_us() - now_us < 5000) {
        (void)sched_yield();
    }
    start_server(server);
}

static int set_up(void **state)
{
    (void)state;
    hps_tmpdir_open(&dir);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct server *server = &servers[i];
        char name[8];
        (void)snprintf(name, sizeof(name), "s%u", i);
        *server = (struct server){0};
        (void)snprintf(server->address, sizeof(server->address), "unix:%s",
                       hps_tmpdir_join(&dir, name));
    }
    start_server(&servers[0]);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SERVERS; i++) {
        stop_server(&servers[i]);
    }
    hps_tmpdir_close(&dir);
    return 0;
}

/* ---- a server that cuts its reply everywhere ------------------------------------------------- */

static void send_frame(int fd, uint8_t type, uint8_t flags, const void *data, size_t size)
{
    const uint8_t stream = type == 4 ? 0 : 1; /* SETTINGS are of the connection */
    const uint8_t head[9] = {0, 0, (uint8_t)size, type, flags, 0, 0, 0, stream};

    assert_int_equal(send(fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

/* Answers a lookup of keys 1 to 3 on the first stream: each byte has a DATA frame of its own. */
static void *serve_bytes(void *ctx)
{
    static const char head[] = "\x88\x00\x0c"
                               "content-type"
                               "\x10"
                               "application/grpc";
    static const char trailer[] = "\x00\x0b"
                                  "grpc-status"
                                  "\x01"
                                  "0";
    uint8_t reply[63] = {0, 0, 0, 0, 58, 0x10, 7, 0x22, 54, 0x10, DIM, 0x20, KEYS, 0x7a, 48};
    int *listener = ctx;
    int fd = accept(*listener, NULL, NULL);
    char got[4096];

    assert_true(fd >= 0 && recv(fd, got, sizeof(got), 0) > 0);
    for (unsigned i = 0; i < KEYS * DIM; i++) {
        float one = value(1 + i / DIM, i % DIM);
        memcpy(reply + 15 + i * sizeof(one), &one, sizeof(one));
    }
    send_frame(fd, 4, 0, "", 0);
    send_frame(fd, 1, 4, head, sizeof(head) - 1);
    for (size_t i = 0; i < sizeof(reply); i++) {
        send_frame(fd, 0, 0, reply + i, 1);
    }
    send_frame(fd, 1, 5, trailer, sizeof(trailer) - 1);
    while (recv(fd, got, sizeof(got), 0) > 0) {
    }
    close(fd);
    return NULL;
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct hpsd_client *open_client(const struct hpsd_options *options)
{
    struct hpsd_client *client = NULL;
    struct hpsd_error error;

    assert_int_equal(hpsd_open(options, &client, &error), HPSD_OK);
    return client;
}

static struct hpsd_client *open_one(void)
{
    return open_client(
        &(struct hpsd_options){.addresses = servers[0].address, .timeout_us = 60 * SECOND_US});
}

static struct hpsd_client *open_both(uint64_t timeout_us)
{
    char addresses[2 * sizeof(servers[0].address) + 1];

    (void)snprintf(addresses, sizeof(addresses), "%s,%s", servers[0].address, servers[1].address);
    return open_client(&(struct hpsd_options){.addresses = addresses, .timeout_us = timeout_us});
}

/* A lookup of three keys of one table into its own memory. */
struct small {
    int64_t keys[KEYS];
    float rows[KEYS][DIM];
    struct hpsd_query query;
    struct hpsd_lookup lookup;
    struct hpsd_error error;
    uint64_t id;
    atomic_int n_done;
    atomic_int status;
};

static void small_init(struct small *small, int64_t first)
{
    *small = (struct small){.keys = {first, first + 1, first + 2}};
    small->query = (struct hpsd_query){.table = "items",
                                       .keys = small->keys,
                                       .n_keys = KEYS,
                                       .rows = small->rows,
                                       .rows_size = sizeof(small->rows)};
    small->lookup = (struct hpsd_lookup){.model = "m", .queries = &small->query, .n_queries = 1};
}

static void small_check(const struct small *small)
{
    for (unsigned k = 0; k < KEYS; k++) {
        for (unsigned i = 0; i < DIM; i++) {
            assert_true(small->rows[k][i] == value(small->keys[k], i));
        }
    }
}

static enum hpsd_status small_lookup(struct hpsd_client *client, struct small *small)
{
    return hpsd_lookup(client, &small->lookup, NULL, &small->error);
}

static void small_done(void *ctx, const struct hpsd_reply *reply, const struct hpsd_error *error)
{
    struct small *small = ctx;

    assert_int_equal(error->status == HPSD_OK, reply != NULL);
    small->error = *error;
    atomic_store(&small->status, (int)error->status);
    atomic_fetch_add(&small->n_done, 1);
}

static void small_start(struct hpsd_client *client, struct small *small)
{
    assert_int_equal(
        hpsd_lookup_start(client, &small->lookup, small_done, small, &small->id, &small->error),
        HPSD_OK);
}

/* Waits for something that happens on another thread. */
static void until(const atomic_int *at, int least)
{
    while (atomic_load(at) < least) {
        (void)sched_yield();
    }
}

/* ---- lookups --------------------------------------------------------------------------------- */

static void test_lookup_when_two_tables_then_rows_states_and_results(void **state)
{
    const int64_t items[] = {1, -2, 3}, users[] = {4, 5, 6};
    const uint32_t offsets[] = {0, 2, 2, 3};
    float item_rows[3][DIM], user_rows[3][DIM];
    uint8_t states[3] = {9, 9, 9}, user_states[3] = {9, 9, 9};
    struct hpsd_result results[3];
    const struct hpsd_query queries[] = {
        {.table = "items",
         .keys = items,
         .n_keys = 3,
         .rows = item_rows,
         .rows_size = sizeof(item_rows),
         .key_status = states},
        {.table = "none"},
        {.keys = users,
         .n_keys = 3,
         .pooling = HPSD_POOLING_SUM,
         .offsets = offsets,
         .n_bags = 3,
         .rows = user_rows,
         .rows_size = sizeof(user_rows),
         .key_status = user_states},
    };
    const struct hpsd_lookup lookup = {
        .model = "m", .version = 5, .queries = queries, .n_queries = 3, .results = results};
    struct hpsd_client *client = open_one();
    struct hpsd_error error;
    struct hpsd_reply reply;

    (void)state;
    assert_int_equal(hpsd_lookup(client, &lookup, &reply, &error), HPSD_OK);
    assert_int_equal(reply.version, 5);
    assert_string_equal(reply.label, "nightly");
    assert_int_equal(reply.update_sequence, 9);
    assert_null(reply.memory);
    assert_true(item_rows[1][2] == value(-2, 2) && item_rows[2][3] == value(3, 3));
    assert_true(user_rows[0][1] == value(4, 1) + value(5, 1) && user_rows[1][0] == 0);
    assert_memory_equal(states, ((uint8_t[]){1, 3, 1}), 3);
    assert_memory_equal(user_states, ((uint8_t[]){1, 1, 1}), 3);
    assert_ptr_equal(results[0].rows, item_rows);
    assert_int_equal(results[0].stride, DIM * sizeof(float));
    assert_int_equal(results[0].n_rows, 3);
    assert_int_equal(results[0].dim, DIM);
    assert_int_equal(results[0].dtype, HPSD_FP32);
    assert_int_equal(results[0].n_unknown, 1);
    assert_null(results[1].rows);
    assert_int_equal(results[2].n_rows, 3);
    hpsd_close(client);
}

/* Rows of some tables are large enough to be received in place, of others they are not. */
static void test_lookup_when_rows_are_large_then_every_value_is_right(void **state)
{
    enum { TABLES = 9, MOST = 9000 };
    static int64_t keys[MOST];
    static float rows[TABLES * MOST][DIM];
    struct hpsd_query queries[TABLES];
    struct hpsd_client *client = open_one();
    struct hpsd_error error;
    struct hpsd_reply reply;
    size_t n = 0;

    (void)state;
    for (unsigned i = 0; i < MOST; i++) {
        keys[i] = i;
    }
    for (unsigned t = 0; t < TABLES; t++) {
        queries[t] =
            (struct hpsd_query){.table = "t", .keys = keys, .n_keys = t % 3 == 0 ? MOST : 100 + t};
        n += queries[t].n_keys;
    }
    for (unsigned own = 0; own < 2; own++) {
        const struct hpsd_lookup lookup = {.queries = queries,
                                           .n_queries = TABLES,
                                           .rows = own ? rows : NULL,
                                           .rows_size = own ? n * sizeof(rows[0]) : 0};
        assert_int_equal(hpsd_lookup(client, &lookup, &reply, &error), HPSD_OK);
        const float *at = own ? rows[0] : reply.memory;
        assert_true(own == (reply.memory == NULL));
        for (unsigned t = 0; t < TABLES; t++) {
            for (size_t k = 0; k < queries[t].n_keys; k++, at += DIM) {
                for (unsigned i = 0; i < DIM; i++) {
                    assert_true(at[i] == value((int64_t)k, i));
                }
            }
        }
        hpsd_free(reply.memory);
    }
    hpsd_close(client);
}

static void test_lookup_when_streamed_then_parts_are_put_together(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small;
    uint8_t states[KEYS] = {0};

    (void)state;
    atomic_store(&servers[0].play, ANSWER_HALVES);
    small_init(&small, -1);
    small.query.key_status = states;
    small.lookup.stream = true;
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    small_check(&small);
    assert_memory_equal(states, ((uint8_t[]){3, 1, 1}), 3);
    hpsd_close(client);
}

static void test_lookup_when_arguments_are_wrong_then_named(void **state)
{
    static const uint32_t down[] = {0, 2, 1, 3}, late[] = {1, 2, 2, 3};
    static const struct {
        struct hpsd_query query;
        bool concat;
        const char *text;
    } cases[] = {
        {{.n_keys = 1}, false, "queries[0].keys"},
        {{.pooling = 1}, false, "queries[0].pooling"},
        {{.pooling = HPSD_POOLING_SUM}, false, "queries[0].offsets: got NULL"},
        {{.offsets = late}, false, "need pooling"},
        {{.pooling = HPSD_POOLING_SUM, .offsets = down, .n_bags = 3},
         false,
         "offsets[2]: 1 is below the one before it, 2"},
        {{.pooling = HPSD_POOLING_SUM, .offsets = late, .n_bags = 3}, false, "got 1 to 3"},
        {{.rows = (void *)(uintptr_t)late}, true, "queries[0].rows"},
        {{.keys = late, .n_keys = SIZE_MAX / 8}, false, "queries[0].n_keys"},
    };
    struct hpsd_client *client = open_one();
    struct hpsd_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct hpsd_lookup lookup = {
            .queries = &cases[i].query, .n_queries = 1, .concat = cases[i].concat};
        assert_int_equal(hpsd_lookup(client, &lookup, NULL, &error), HPSD_INVALID_ARGUMENT);
        assert_int_equal(error.status, HPSD_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, cases[i].text));
    }
    assert_int_equal(hpsd_lookup(client, &(struct hpsd_lookup){.n_queries = 1}, NULL, NULL),
                     HPSD_INVALID_ARGUMENT);
    assert_int_equal(atomic_load(&servers[0].n_lookups), 0);
    hpsd_close(client);
}

static void test_lookup_when_memory_is_small_then_out_of_range(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small;

    (void)state;
    small_init(&small, 1);
    small.query.rows_size--;
    assert_int_equal(small_lookup(client, &small), HPSD_OUT_OF_RANGE);
    assert_non_null(strstr(small.error.text, "48 bytes"));
    small.query.rows = NULL;
    small.lookup.rows = small.rows;
    small.lookup.rows_size = 1;
    assert_int_equal(small_lookup(client, &small), HPSD_OUT_OF_RANGE);
    small_init(&small, 1);
    assert_int_equal(small_lookup(client, &small), HPSD_OK); /* the client still works */
    small_check(&small);
    hpsd_close(client);
}

static void test_lookup_when_the_reply_is_wrong_then_data_loss(void **state)
{
    static const int plays[] = {ANSWER_TWICE, ANSWER_SHORT, ANSWER_LONG, ANSWER_BROKEN};
    struct hpsd_client *client = open_one();
    struct small small;

    (void)state;
    for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
        atomic_store(&servers[0].play, plays[i]);
        small_init(&small, 1);
        assert_int_equal(small_lookup(client, &small), HPSD_DATA_LOSS);
    }
    atomic_store(&servers[0].play, NOTHING);
    assert_int_equal(small_lookup(client, &small), HPSD_INTERNAL);
    atomic_store(&servers[0].play, ANSWER);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    hpsd_close(client);
}

static void test_lookup_when_the_reply_is_cut_at_each_byte_then_every_row_is_right(void **state)
{
    struct hps_addr addr;
    struct small small;
    pthread_t thread;
    int listener;

    (void)state;
    stop_server(&servers[0]);
    (void)unlink(servers[0].address + 5);
    assert_int_equal(hps_addr_parse(servers[0].address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &listener, NULL), HPS_OK);
    assert_int_equal(fcntl(listener, F_SETFL, 0), 0); /* accept waits */
    assert_int_equal(pthread_create(&thread, NULL, serve_bytes, &listener), 0);
    struct hpsd_client *client = open_one();
    small_init(&small, 1);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    small_check(&small);
    hpsd_close(client);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(listener);
}

static void test_lookup_when_refused_then_status_and_text(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small;

    (void)state;
    small_init(&small, 1);
    atomic_store(&servers[0].play, FAIL);
    for (int code = 1; code <= 16; code++) {
        if (code == HPSD_UNAVAILABLE || code == HPSD_DEADLINE_EXCEEDED || code == HPSD_ABORTED) {
            continue; /* repeated */
        }
        atomic_store(&servers[0].code, code);
        assert_int_equal(small_lookup(client, &small), code);
        assert_string_equal(small.error.text, "refused on purpose");
    }
    hpsd_close(client);
}

/* ---- asynchronous ---------------------------------------------------------------------------- */

static void test_start_when_many_are_in_flight_then_each_ends_once(void **state)
{
    enum { N = 200 };
    static struct small small[N];
    struct hpsd_client *client =
        open_client(&(struct hpsd_options){.addresses = servers[0].address, .connections = 3});

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        small_init(&small[i], i * 100);
        small_start(client, &small[i]);
        assert_true(i == 0 || small[i].id != small[i - 1].id);
    }
    for (unsigned i = 0; i < N; i++) {
        until(&small[i].n_done, 1);
        assert_int_equal(atomic_load(&small[i].status), HPSD_OK);
        small_check(&small[i]);
    }
    hpsd_close(client);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(atomic_load(&small[i].n_done), 1);
    }
}

/* Each lookup starts the next one when it has ended. */
struct chain {
    struct hpsd_client *client;
    struct small small;
    pthread_t thread; /* of the first callback */
    atomic_int n_ended;
};

static void chain_done(void *ctx, const struct hpsd_reply *reply, const struct hpsd_error *error)
{
    struct chain *chain = ctx;
    struct hpsd_error refused;

    assert_non_null(reply);
    assert_int_equal(error->status, HPSD_OK);
    small_check(&chain->small);
    if (atomic_load(&chain->n_ended) == 0) {
        chain->thread = pthread_self();
    }
    assert_true(pthread_equal(chain->thread, pthread_self()));
    assert_int_equal(hpsd_lookup(chain->client, &chain->small.lookup, NULL, &refused),
                     HPSD_FAILED_PRECONDITION); /* it would wait for itself */
    if (atomic_fetch_add(&chain->n_ended, 1) < 49) {
        assert_int_equal(
            hpsd_lookup_start(chain->client, &chain->small.lookup, chain_done, chain, NULL, NULL),
            HPSD_OK);
    }
}

static void test_start_when_within_a_callback_then_it_runs(void **state)
{
    struct chain chain = {.client = open_one()};

    (void)state;
    small_init(&chain.small, 5);
    assert_int_equal(
        hpsd_lookup_start(chain.client, &chain.small.lookup, chain_done, &chain, NULL, NULL),
        HPSD_OK);
    until(&chain.n_ended, 50);
    hpsd_close(chain.client);
}

static void *many_lookups(void *ctx)
{
    struct hpsd_client *client = ctx;
    struct small sync, async;

    for (unsigned i = 0; i < 50; i++) {
        small_init(&sync, i);
        small_init(&async, i + 7);
        if (i % 3 == 0) {
            small_start(client, &async);
        }
        assert_int_equal(small_lookup(client, &sync), HPSD_OK);
        small_check(&sync);
        if (i % 3 == 0) {
            if (i % 2 == 0) {
                hpsd_cancel(client, async.id);
            }
            until(&async.n_done, 1);
            assert_true(atomic_load(&async.status) == HPSD_OK ||
                        atomic_load(&async.status) == HPSD_CANCELLED);
        }
    }
    return NULL;
}

static void test_lookup_when_threads_share_a_client_then_all_are_right(void **state)
{
    enum { THREADS = 4 };
    struct hpsd_client *client = open_one();
    pthread_t threads[THREADS];

    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, many_lookups, client), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    hpsd_close(client);
}

static void test_cancel_when_in_flight_then_cancelled_and_others_go_on(void **state)
{
    struct hpsd_client *client = open_one();
    struct small waits, next;

    (void)state;
    atomic_store(&servers[0].play, NEVER);
    small_init(&waits, 1);
    small_init(&next, 2);
    small_start(client, &waits);
    until(&servers[0].n_lookups, 1);
    hpsd_cancel(client, waits.id + 1); /* not in flight */
    atomic_store(&servers[0].play, ANSWER);
    assert_int_equal(small_lookup(client, &next), HPSD_OK);
    assert_int_equal(atomic_load(&waits.n_done), 0);
    hpsd_cancel(client, waits.id);
    until(&waits.n_done, 1);
    assert_int_equal(atomic_load(&waits.status), HPSD_CANCELLED);
    hpsd_cancel(client, waits.id);
    hpsd_close(client);
    assert_int_equal(atomic_load(&waits.n_done), 1);
}

static void test_close_when_in_flight_then_callbacks_come_first(void **state)
{
    enum { N = 20 };
    static struct small small[N];
    struct hpsd_client *client = open_one();

    (void)state;
    atomic_store(&servers[0].play, NEVER);
    for (unsigned i = 0; i < N; i++) {
        small_init(&small[i], i);
        small_start(client, &small[i]);
    }
    hpsd_close(client);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(atomic_load(&small[i].n_done), 1);
        assert_int_equal(atomic_load(&small[i].status), HPSD_CANCELLED);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void test_lookup_when_no_reply_comes_then_deadline_exceeded(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small, async;

    (void)state;
    atomic_store(&servers[0].play, NEVER);
    small_init(&small, 1);
    small_init(&async, 1);
    small.lookup.timeout_us = async.lookup.timeout_us = 50 * 1000;
    small_start(client, &async);
    assert_int_equal(small_lookup(client, &small), HPSD_DEADLINE_EXCEEDED);
    assert_non_null(strstr(small.error.text, servers[0].address));
    assert_non_null(strstr(small.error.text, "no reply within 0.05 s"));
    until(&async.n_done, 1);
    assert_int_equal(atomic_load(&async.status), HPSD_DEADLINE_EXCEEDED);
    atomic_store(&servers[0].play, ANSWER);
    small.lookup.timeout_us = 60 * SECOND_US;
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    assert_int_equal(atomic_load(&servers[0].n_healths), 1); /* the connection was doubted */
    hpsd_close(client);
}

static void test_lookup_when_the_timeout_is_huge_then_the_first_attempt_is_not_cut(void **state)
{
    struct small small;

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct hpsd_client *client = open_client(&(struct hpsd_options){
            .addresses = servers[0].address, .timeout_us = UINT64_MAX, .single_attempt = true});
        small_init(&small, 1);
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
        hpsd_close(client);
    }
}

/* ---- servers that fail ----------------------------------------------------------------------- */

static void test_lookup_when_no_server_runs_then_unavailable_with_the_reason(void **state)
{
    struct small small;

    (void)state;
    stop_server(&servers[0]);
    struct hpsd_client *client = open_one();
    small_init(&small, 1);
    small.lookup.timeout_us = 100 * 1000;
    assert_int_equal(small_lookup(client, &small), HPSD_UNAVAILABLE);
    assert_non_null(strstr(small.error.text, servers[0].address));
    assert_non_null(strstr(small.error.text, "attempts within 0.1 s"));
    assert_int_equal(hpsd_connect(client, 0, &small.error), HPSD_UNAVAILABLE);
    assert_non_null(strstr(small.error.text, "cannot reach unix:"));
    hpsd_close(client);
}

static void test_lookup_when_the_server_restarts_then_it_reconnects(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small, waits;

    (void)state;
    small_init(&small, 1);
    small_init(&waits, 2);
    assert_int_equal(hpsd_connect(client, 0, &small.error), HPSD_OK);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    stop_server(&servers[0]);
    small_start(client, &waits);
    start_server(&servers[0]);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    until(&waits.n_done, 1);
    assert_int_equal(atomic_load(&waits.status), HPSD_OK);
    small_check(&waits);
    hpsd_close(client);
}

/* The restart is seen before the next call starts. */
static void test_start_when_the_server_restarted_while_idle_then_one_attempt_suffices(void **state)
{
    struct hpsd_client *client = open_client(
        &(struct hpsd_options){.addresses = servers[0].address, .single_attempt = true});
    struct small small;

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        small_init(&small, 1);
        assert_int_equal(hpsd_connect(client, 0, &small.error), HPSD_OK);
        restart_server(&servers[0]);
        small_start(client, &small);
        until(&small.n_done, 1);
        assert_int_equal(atomic_load(&small.status), HPSD_OK);
        restart_server(&servers[0]);
    }
    hpsd_close(client);
}

static void test_lookup_when_one_attempt_is_allowed_then_failures_are_told(void **state)
{
    struct hpsd_client *client = open_client(
        &(struct hpsd_options){.addresses = servers[0].address, .single_attempt = true});
    struct small small;

    (void)state;
    atomic_store(&servers[0].play, FAIL);
    atomic_store(&servers[0].code, HPSD_UNAVAILABLE);
    small_init(&small, 1);
    assert_int_equal(small_lookup(client, &small), HPSD_UNAVAILABLE);
    assert_non_null(strstr(small.error.text, "refused on purpose"));
    assert_int_equal(atomic_load(&servers[0].n_lookups), 1);
    hpsd_close(client);
}

static void test_lookup_when_one_of_two_is_unavailable_then_the_other_answers(void **state)
{
    struct hpsd_client *client;
    struct small small;

    (void)state;
    start_server(&servers[1]);
    client = open_both(60 * SECOND_US);
    atomic_store(&servers[0].play, FAIL);
    atomic_store(&servers[0].code, HPSD_UNAVAILABLE);
    small_init(&small, 1);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    /* Skipped after each failure, for 50 ms at least; then it is used again only after a check. */
    assert_int_equal(atomic_load(&servers[1].n_lookups), 50);
    assert_true(atomic_load(&servers[0].n_lookups) < 25);
    /* ABORTED is repeated, but the server is healthy. */
    atomic_store(&servers[1].play, FAIL);
    atomic_store(&servers[1].code, HPSD_ABORTED);
    atomic_store(&servers[0].play, ANSWER);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    small_check(&small);
    hpsd_close(client);
}

static void test_lookup_when_a_dead_server_comes_then_it_is_used_again(void **state)
{
    struct hpsd_client *client = open_both(60 * SECOND_US);
    struct small small;

    (void)state;
    small_init(&small, 1);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    assert_int_equal(atomic_load(&servers[0].n_lookups), 50);
    start_server(&servers[1]);
    while (atomic_load(&servers[1].n_lookups) < 5) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    assert_true(atomic_load(&servers[1].n_healths) > 0);
    hpsd_close(client);
}

static void test_lookup_when_one_of_two_is_silent_then_the_other_answers(void **state)
{
    struct hpsd_client *client;
    struct small small;

    (void)state;
    start_server(&servers[1]);
    client = open_both(2 * SECOND_US);
    atomic_store(&servers[0].play, NEVER);
    small_init(&small, 1);
    while (atomic_load(&servers[0].n_lookups) == 0) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    small_check(&small);
    hpsd_close(client);
}

/* A server restarts and another process, such as systemd, keeps its socket open: the kernel
 * accepts. */
static void test_lookup_when_a_restarting_server_is_silent_then_the_other_answers(void **state)
{
    struct hpsd_client *client;
    struct hps_error err = {0};
    struct small small;
    struct hps_addr addr;
    int fd;

    (void)state;
    start_server(&servers[1]);
    client = open_both(20 * SECOND_US);
    assert_int_equal(hpsd_connect(client, 0, NULL), HPSD_OK);
    small_init(&small, 1);
    while (atomic_load(&servers[0].n_lookups) == 0 || atomic_load(&servers[1].n_lookups) == 0) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    stop_server(&servers[0]);
    (void)unlink(servers[0].address + 5);
    assert_int_equal(hps_addr_parse(servers[0].address, &addr, &err), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &fd, &err), HPS_OK);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    small_check(&small);
    hpsd_close(client);
    close(fd);
}

static void test_lookup_when_slow_at_two_servers_then_it_gets_the_time(void **state)
{
    struct hpsd_client *client;
    struct small small;

    (void)state;
    start_server(&servers[1]);
    client = open_both(60 * SECOND_US);
    atomic_store(&servers[0].play, ANSWER_SLOW);
    atomic_store(&servers[1].play, ANSWER_SLOW);
    small_init(&small, 1);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    assert_int_equal(atomic_load(&servers[0].n_lookups) + atomic_load(&servers[1].n_lookups), 3);
    hpsd_close(client);
}

static void test_lookup_when_every_attempt_is_aborted_then_aborted(void **state)
{
    struct hpsd_client *client;
    struct small small;

    (void)state;
    start_server(&servers[1]);
    client = open_both(60 * SECOND_US);
    assert_int_equal(hpsd_connect(client, 0, NULL), HPSD_OK);
    for (unsigned i = 0; i < SERVERS; i++) {
        atomic_store(&servers[i].play, FAIL);
        atomic_store(&servers[i].code, HPSD_ABORTED);
    }
    small_init(&small, 1);
    small.lookup.timeout_us = SECOND_US;
    assert_int_equal(small_lookup(client, &small), HPSD_ABORTED);
    assert_non_null(strstr(small.error.text, "refused on purpose"));
    assert_true(atomic_load(&servers[0].n_lookups) > 1);
    hpsd_close(client);
}

/* Server 0 has answered and then becomes silent; server 1 refuses. */
static void test_lookup_when_one_refuses_and_the_other_hangs_then_deadline_exceeded(void **state)
{
    struct hpsd_client *client;
    struct small small, first;

    (void)state;
    start_server(&servers[1]);
    client = open_both(60 * SECOND_US);
    assert_int_equal(hpsd_connect(client, 0, NULL), HPSD_OK);
    atomic_store(&servers[1].play, FAIL);
    atomic_store(&servers[1].code, HPSD_UNAVAILABLE);
    atomic_store(&servers[0].play, NEVER);
    small_init(&small, 1);
    small_init(&first, 1);
    small_start(client, &first); /* loads server 0, so that the next one begins at server 1 */
    until(&servers[0].n_lookups, 1);
    small.lookup.timeout_us = 100 * 1000;
    assert_int_equal(small_lookup(client, &small), HPSD_DEADLINE_EXCEEDED);
    assert_non_null(strstr(small.error.text, servers[0].address));
    hpsd_close(client);
}

static void test_lookup_when_two_are_healthy_then_both_are_used(void **state)
{
    struct hpsd_client *client;
    struct small small;

    (void)state;
    start_server(&servers[1]);
    client = open_both(60 * SECOND_US);
    assert_int_equal(hpsd_connect(client, 0, NULL), HPSD_OK);
    small_init(&small, 1);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(small_lookup(client, &small), HPSD_OK);
    }
    assert_in_range(atomic_load(&servers[0].n_lookups), 20, 80);
    assert_int_equal(atomic_load(&servers[0].n_lookups) + atomic_load(&servers[1].n_lookups), 100);
    hpsd_close(client);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void test_model_when_described_then_tables_are_at_their_places(void **state)
{
    struct hpsd_client *client = open_one();
    struct hpsd_model *model = NULL;
    struct hpsd_error error;

    (void)state;
    assert_int_equal(hpsd_model_get(client, "m", 0, 0, &model, &error), HPSD_OK);
    assert_int_equal(model->version, 3);
    assert_string_equal(model->label, "nightly");
    assert_int_equal(model->n_tables, 3);
    assert_string_equal(model->tables[0].name, "users");
    assert_int_equal(model->tables[0].dim, 8);
    assert_int_equal(model->tables[0].dtype, HPSD_FP32);
    assert_true(model->tables[0].n_rows_estimated);
    assert_string_equal(model->tables[1].name, "");
    assert_int_equal(model->tables[1].dim, 0);
    assert_string_equal(model->tables[2].name, "items");
    assert_int_equal(model->tables[2].dtype, HPSD_FP16);
    assert_int_equal(model->tables[2].n_rows, 1000);
    hpsd_model_free(model);
    assert_int_equal(hpsd_model_get(client, "m", 2, 0, &model, &error), HPSD_OK);
    assert_int_equal(model->n_tables, 0);
    hpsd_model_free(model);
    assert_int_equal(hpsd_model_get(client, "m", 4, 0, &model, &error), HPSD_UNAVAILABLE);
    hpsd_close(client);
}

/* ---- options --------------------------------------------------------------------------------- */

static void test_open_when_options_are_wrong_then_named(void **state)
{
    static const struct {
        struct hpsd_options options;
        enum hpsd_status status;
        const char *text;
    } cases[] = {
        {{.addresses = NULL}, HPSD_INVALID_ARGUMENT, "addresses"},
        {{.addresses = "host"}, HPSD_INVALID_ARGUMENT, "host"},
        {{.addresses = "127.0.0.1:1,"}, HPSD_INVALID_ARGUMENT, ""},
        {{.addresses = "10.1.2.3:8601", .token = "t"}, HPSD_INVALID_ARGUMENT, "token_in_clear"},
        {{.addresses = "unix:/s", .token_file = "/nonexistent"}, HPSD_NOT_FOUND, "/nonexistent"},
        {{.addresses = "unix:/s", .token_file = "/"}, HPSD_INVALID_ARGUMENT, "file /"},
        {{.addresses = "unix:/s", .token = ""}, HPSD_INVALID_ARGUMENT, "token: expected"},
        {{.addresses = "unix:/s", .token = "a\r\nb: c"}, HPSD_INVALID_ARGUMENT, "token: expected"},
        {{.addresses = "h:1", .tls_ca = "/nonexistent"}, HPSD_INVALID_ARGUMENT, "/nonexistent"},
    };
    struct hpsd_client *client = NULL;
    struct hpsd_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(hpsd_open(&cases[i].options, &client, &error), cases[i].status);
        assert_non_null(strstr(error.text, cases[i].text));
        assert_null(client);
    }
    const struct hpsd_options clear = {
        .addresses = "10.1.2.3:8601", .token = "t", .token_in_clear = true};
    hpsd_close(open_client(&clear));
    hpsd_close(NULL);
}

static void test_client_when_forked_then_the_child_is_refused(void **state)
{
    struct hpsd_client *client = open_one();
    struct small small;
    int status;

    (void)state;
    small_init(&small, 1);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool refused = small_lookup(client, &small) == HPSD_FAILED_PRECONDITION;
        hpsd_close(client);
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(small_lookup(client, &small), HPSD_OK);
    hpsd_close(client);
}

static void test_text_and_size_when_any_number_then_defined(void **state)
{
    (void)state;
    assert_string_equal(hpsd_status_text(HPSD_NOT_FOUND), "not found");
    assert_string_equal(hpsd_status_text((enum hpsd_status)99), "unknown error");
    assert_int_equal(hpsd_row_bytes(HPSD_INT8_ROWWISE_F32, 10), 18);
    assert_int_equal(hpsd_row_bytes(HPSD_RAW, 10), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_lookup_when_two_tables_then_rows_states_and_results),
        TEST(test_lookup_when_rows_are_large_then_every_value_is_right),
        TEST(test_lookup_when_streamed_then_parts_are_put_together),
        TEST(test_lookup_when_arguments_are_wrong_then_named),
        TEST(test_lookup_when_memory_is_small_then_out_of_range),
        TEST(test_lookup_when_the_reply_is_wrong_then_data_loss),
        TEST(test_lookup_when_the_reply_is_cut_at_each_byte_then_every_row_is_right),
        TEST(test_lookup_when_refused_then_status_and_text),
        TEST(test_start_when_many_are_in_flight_then_each_ends_once),
        TEST(test_start_when_within_a_callback_then_it_runs),
        TEST(test_lookup_when_threads_share_a_client_then_all_are_right),
        TEST(test_cancel_when_in_flight_then_cancelled_and_others_go_on),
        TEST(test_close_when_in_flight_then_callbacks_come_first),
        TEST(test_lookup_when_no_reply_comes_then_deadline_exceeded),
        TEST(test_lookup_when_the_timeout_is_huge_then_the_first_attempt_is_not_cut),
        TEST(test_lookup_when_no_server_runs_then_unavailable_with_the_reason),
        TEST(test_lookup_when_the_server_restarts_then_it_reconnects),
        TEST(test_start_when_the_server_restarted_while_idle_then_one_attempt_suffices),
        TEST(test_lookup_when_one_attempt_is_allowed_then_failures_are_told),
        TEST(test_lookup_when_one_of_two_is_unavailable_then_the_other_answers),
        TEST(test_lookup_when_a_dead_server_comes_then_it_is_used_again),
        TEST(test_lookup_when_one_of_two_is_silent_then_the_other_answers),
        TEST(test_lookup_when_a_restarting_server_is_silent_then_the_other_answers),
        TEST(test_lookup_when_slow_at_two_servers_then_it_gets_the_time),
        TEST(test_lookup_when_every_attempt_is_aborted_then_aborted),
        TEST(test_lookup_when_one_refuses_and_the_other_hangs_then_deadline_exceeded),
        TEST(test_lookup_when_two_are_healthy_then_both_are_used),
        TEST(test_model_when_described_then_tables_are_at_their_places),
        TEST(test_open_when_options_are_wrong_then_named),
        TEST(test_client_when_forked_then_the_child_is_refused),
        TEST(test_text_and_size_when_any_number_then_defined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
