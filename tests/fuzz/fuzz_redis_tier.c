/* SPDX-License-Identifier: Apache-2.0
 *
 * A malicious Redis server, and the complete Redis store: lookups, insertions, updates. The input
 * is a list of operations, followed by a list of replies. After the last reply the server sends
 * only errors. Operations must end, batches must stay consistent, and rows may be written only for
 * requested keys.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/redis/redis.h"
#include "backends/store_limits.h"
#include "backends/store_log.h"
#include "backends/store_servers.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "net/sock.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum { KEYS_MAX = 8, DIM = 2, ROW_BYTES = DIM * 4, OPS_MAX = 6, ANSWERS_MAX = 64, SHARDS = 2 };
enum { INPUT_BYTES_MAX = 1 << 16, PARTITION = 77, TIME_FACTOR = 100 };
#define WAIT_US (UINT64_C(20) * 1000 * 1000 * TIME_FACTOR)
enum { PEERS_MAX = 12, IN_BYTES_MAX = 1 << 16, ANSWER_BYTES_MAX = 1 << 16 };

static const uint8_t default_row[ROW_BYTES];
static const struct hps_table tables[2] = {{.name = "a",
                                            .id = 0,
                                            .dim = DIM,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .default_row = default_row},
                                           {.name = "b",
                                            .id = 1,
                                            .dim = DIM,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .default_row = default_row}};

struct peer {
    int fd; /* -1: no connection */
    size_t size;
    char in[IN_BYTES_MAX];
};

static struct {
    int listen_fd;
    char address[160];
    struct hps_store *store; /* by layout */
    atomic_flag busy;        /* protects the following fields */
    struct peer peers[PEERS_MAX];
    struct script script; /* the replies; a copy, because some are sent after the input */
    uint8_t answers[INPUT_BYTES_MAX];
    unsigned n_answers;
} world = {.busy = ATOMIC_FLAG_INIT};

/* ---- replies of the server ------------------------------------------------------------------- */

struct answer {
    char out[ANSWER_BYTES_MAX];
    size_t size;
};

static void put(struct answer *answer, const void *data, size_t size)
{
    if (size > 0 && size < ANSWER_BYTES_MAX - answer->size) {
        memcpy(answer->out + answer->size, data, size);
        answer->size += size;
    }
}

static void put_line(struct answer *answer, char kind, long long number)
{
    char line[32];
    int n = snprintf(line, sizeof(line), "%c%lld\r\n", kind, number);

    put(answer, line, (size_t)n);
}

static void put_bulk(struct answer *answer, const void *data, size_t size)
{
    put_line(answer, '$', (long long)size);
    put(answer, data, size);
    put(answer, "\r\n", 2);
}

/* One value. At depth 3 arrays have no arrays. */
static void put_value(struct answer *answer, struct script *script, unsigned depth)
{
    size_t size;
    uint8_t kind = script_u8(script);
    const uint8_t *data;

    switch (kind % (depth < 3 ? 6 : 4)) {
    case 0:
        put_line(answer, ':', (kind & 0x80) != 0 ? (int32_t)script_u32(script) : script_u8(script));
        break;
    case 1:
        data = script_run(script, &size);
        put_bulk(answer, data, size);
        break;
    case 2: /* with the size of a row, a digest or a position */
        data = script_take(script, (const size_t[]){ROW_BYTES, 20, 16, 0}[kind >> 6], &size);
        put_bulk(answer, data, size);
        break;
    case 3:
        put_line(answer, '$', -1);
        break;
    default: {
        unsigned n = script_u8(script) % 12;
        put_line(answer, '*', n);
        for (; n > 0; n--) {
            put_value(answer, script, depth + 1);
        }
        break;
    }
    }
}

/* As many values as the command has keys, as HMGET returns. */
static void put_row_of(struct answer *answer, struct script *script, unsigned n_words)
{
    unsigned n = n_words > 2 ? n_words - 2 : 1;

    put_line(answer, '*', n);
    for (; n > 0; n--) {
        put_value(answer, script, 2);
    }
}

/* false: the server closes the connection. */
static bool put_answer(struct answer *answer, struct script *script, unsigned n_words)
{
    static const char *const errors[] = {"-ERR no\r\n",       "-MOVED 1 127.0.0.1:1\r\n",
                                         "-ASK 99999 :0\r\n", "-NOSCRIPT no\r\n",
                                         "-LOADING wait\r\n", "-OOM command not allowed\r\n",
                                         "-NOPERM no\r\n",    "-MOVED\r\n"};
    size_t size;
    uint8_t kind = script_u8(script);
    const uint8_t *data;

    switch (kind % 8) {
    case 0:
        put(answer, "+OK\r\n", 5);
        break;
    case 1:
        put(answer, errors[kind >> 5], strlen(errors[kind >> 5]));
        break;
    case 2:
        put_row_of(answer, script, n_words);
        break;
    case 3: /* not a reply, or a part of one */
        data = script_run(script, &size);
        put(answer, data, size);
        return false;
    case 4: /* like the replies of the store's scripts */
        put_line(answer, '*', 4);
        put_line(answer, ':', kind >> 6);
        data = script_take(script, 20, &size);
        put_bulk(answer, data, size);
        data = script_run(script, &size);
        put_bulk(answer, data, size);
        put_line(answer, ':', script_u8(script));
        break;
    default:
        put_value(answer, script, 0);
        break;
    }
    return true;
}

/* Replies to the first commands of a connection, as a server that is not in a cluster. */
static bool put_introduction(struct answer *answer, const char *word, size_t size)
{
    static const struct {
        const char *word, *answer;
    } usual[] = {
        {"PING", "+PONG\r\n"},
        {"CLIENT", "+OK\r\n"},
        {"CLUSTER", "-ERR This instance has cluster support disabled\r\n"},
        {"HELLO", "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"},
    };

    for (unsigned i = 0; i < sizeof(usual) / sizeof(usual[0]); i++) {
        if (strlen(usual[i].word) == size && memcmp(usual[i].word, word, size) == 0) {
            put(answer, usual[i].answer, strlen(usual[i].answer));
            return true;
        }
    }
    return false;
}

/* ---- the server ------------------------------------------------------------------------------ */

/* The size of the first command, "*N" and N times "$SIZE" with SIZE bytes; 0: it is incomplete. */
static size_t command_size(const struct peer *peer, unsigned *out_n_words, size_t *out_word_at,
                           size_t *out_word_size)
{
    const char *at = peer->in;
    const char *end = peer->in + peer->size;
    const char *line = peer->size > 0 ? memchr(at, '\n', peer->size) : NULL;
    unsigned n = line != NULL ? (unsigned)strtoul(at + 1, NULL, 10) : 0;

    *out_n_words = n;
    for (at = line != NULL ? line + 1 : end; n > 0; n--) {
        line = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        size_t size = line != NULL ? strtoul(at + 1, NULL, 10) : 0;
        if (line == NULL || (size_t)(end - line - 1) < size + 2) {
            return 0;
        }
        if (n == *out_n_words) {
            *out_word_at = (size_t)(line + 1 - peer->in);
            *out_word_size = size;
        }
        at = line + 1 + size + 2;
    }
    return (size_t)(at - peer->in);
}

static bool answer_command(const char *word, size_t word_size, unsigned n_words,
                           struct answer *answer)
{
    answer->size = 0;
    if (put_introduction(answer, word, word_size)) {
        return true;
    }
    if (world.script.left == 0 || ++world.n_answers > ANSWERS_MAX) {
        put(answer, "-ERR no more\r\n", 14);
        return true;
    }
    return put_answer(answer, &world.script, n_words);
}

static void peer_serve(struct peer *peer)
{
    static struct answer answer;
    ssize_t n = recv(peer->fd, peer->in + peer->size, sizeof(peer->in) - 1 - peer->size, 0);
    unsigned n_words;
    size_t word_at = 0;
    size_t word_size = 0;
    bool goes_on = n > 0 || (n < 0 && errno == EAGAIN);

    peer->size += n > 0 ? (size_t)n : 0;
    peer->in[peer->size] = '\0';
    for (size_t size = 1; goes_on && size > 0;) {
        size = command_size(peer, &n_words, &word_at, &word_size);
        if (size > 0) {
            goes_on = answer_command(peer->in + word_at, word_size, n_words, &answer);
            (void)!send(peer->fd, answer.out, answer.size, MSG_NOSIGNAL);
            peer->size -= size;
            memmove(peer->in, peer->in + size, peer->size + 1);
        }
    }
    if (!goes_on) {
        close(peer->fd);
        peer->fd = -1;
    }
}

/* Replies to all received commands. Any thread. */
static void serve(void)
{
    while (atomic_flag_test_and_set(&world.busy)) {
        sched_yield();
    }
    bool knocks = true;
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        struct peer *peer = &world.peers[i];
        if (peer->fd < 0 && knocks) {
            peer->fd = accept4(world.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            peer->size = 0;
            knocks = peer->fd >= 0;
        }
        if (peer->fd >= 0) {
            peer_serve(peer);
        }
    }
    atomic_flag_clear(&world.busy);
}

/* ---- time -----------------------------------------------------------------------------------
 *
 * Time passes TIME_FACTOR times as fast, because the store pauses for up to a second after errors.
 * Otherwise one pause would take as long as a thousand inputs. Linked with --wrap for these
 * functions. */

uint64_t __real_hps_clock_us(void);
uint64_t __wrap_hps_clock_us(void);
bool __real_hps_cond_wait_until(struct hps_cond *cond, struct hps_lock *lock, uint64_t deadline_us);
bool __wrap_hps_cond_wait_until(struct hps_cond *cond, struct hps_lock *lock, uint64_t deadline_us);
int __real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
                 const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
                 const sigset_t *mask);

uint64_t __wrap_hps_clock_us(void)
{
    return __real_hps_clock_us() * TIME_FACTOR;
}

bool __wrap_hps_cond_wait_until(struct hps_cond *cond, struct hps_lock *lock, uint64_t deadline_us)
{
    uint64_t now_us = __wrap_hps_clock_us();
    uint64_t left_us = deadline_us > now_us ? (deadline_us - now_us) / TIME_FACTOR : 0;

    return __real_hps_cond_wait_until(cond, lock, now_us + left_us);
}

/* A thread that would wait for the server first runs the server itself. Another thread for the
 * server would take most of the time. */
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
    uint64_t us =
        ((uint64_t)timeout->tv_sec * 1000000 + (uint64_t)timeout->tv_nsec / 1000) / TIME_FACTOR;
    const struct timespec left = {.tv_sec = (time_t)(us / 1000000),
                                  .tv_nsec = (long)(us % 1000000) * 1000};

    serve();
    return __real_ppoll(fds, n, &left, mask);
}

static void server_open(void)
{
    struct hps_addr addr = {.is_unix = true};

    snprintf(addr.path, sizeof(addr.path), "%s", hps_tmpdir_join(&place_dir, "redis"));
    snprintf(world.address, sizeof(world.address), "unix:%s", addr.path);
    HPS_ASSERT(hps_sock_listen(&addr, 0600, &world.listen_fd, NULL) == HPS_OK);
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        world.peers[i].fd = -1;
    }
}

/* ---- the tier -------------------------------------------------------------------------------- */

static struct hps_store *store_open(void)
{
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    struct hps_store *store;

    options.redis.addresses = world.address;
    options.redis.command_timeout_us = WAIT_US;
    options.redis.connect_timeout_us = WAIT_US;
    options.redis.failures_max = UINT32_MAX;
    options.redis.pause_us_first = 1000;
    options.redis.pause_us_max = 1000;
    options.redis.reply_bytes_max = 1 << 16;
    options.write_timeout_us = WAIT_US;
    options.n_shards = SHARDS;
    options.fields_max = 4;
    options.member = "fuzz";
    HPS_ASSERT(hps_redis_open(&options, &store, NULL) == HPS_OK);
    HPS_ASSERT(hps_redis_cluster_wait(hps_redis_of(store), hps_clock_us() + WAIT_US));
    return store;
}

static void world_open(void)
{
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    server_open();
    world.store = store_open();
}

struct rows {
    hps_key keys[KEYS_MAX];
    uint32_t slots[KEYS_MAX];
    uint8_t bytes[KEYS_MAX * ROW_BYTES];
    uint32_t n;
};

static void some_rows(struct rows *rows, struct script *script)
{
    *rows = (struct rows){.n = script_u8(script) % KEYS_MAX + 1u};
    hps_key key = script_u8(script);
    for (uint32_t i = 0; i < rows->n; i++) {
        rows->keys[i] = key++;
        rows->slots[i] = i;
    }
}

static void get(struct hps_space *space, struct script *script)
{
    struct rows rows;
    uint8_t how = script_u8(script);
    const struct hps_call call = {.exact_position = (how & 1) != 0};
    bool seen[KEYS_MAX] = {false};

    some_rows(&rows, script);
    hps_key first = rows.keys[0];
    struct hps_part_batch parts[2] = {
        {&tables[0], {.keys = rows.keys, .slots = rows.slots, .rows = rows.bytes, .n = rows.n}},
        {&tables[1], {.keys = rows.keys, .slots = rows.slots, .rows = rows.bytes, .n = 0}},
    };
    hps_status status = (how & 2) != 0
                            ? space->store->ops->get_many(space, &call, parts, 2)
                            : space->store->ops->get(space, &call, &tables[0], &parts[0].batch);
    hps_ignore(status);
    HPS_ASSERT(parts[0].batch.n <= rows.n);
    for (uint32_t i = 0; i < rows.n; i++) { /* found or not, each key occurs once */
        HPS_ASSERT(rows.slots[i] < rows.n && !seen[rows.slots[i]]);
        HPS_ASSERT(rows.keys[i] == first + rows.slots[i]);
        seen[rows.slots[i]] = true;
    }
}

static void insert(struct hps_space *space, struct script *script)
{
    static const struct hps_call call;
    struct hps_insert_report report;
    struct rows rows;

    some_rows(&rows, script);
    hps_ignore(space->store->ops->insert(space, &call, &tables[0], rows.keys, rows.slots,
                                         rows.bytes, rows.n, NULL, &report));
    HPS_ASSERT(report.n_inserted + report.n_failed + report.n_stale + report.n_no_capacity <=
               rows.n);
}

static void apply(struct hps_space *space, struct script *script)
{
    static const struct hps_call call;
    struct hps_log_report report;
    struct rows rows;
    const uint32_t from = 0;

    some_rows(&rows, script);
    int64_t first = script_u8(script);
    const struct hps_write write = {&tables[0], rows.keys, rows.bytes, rows.n};
    const struct hps_log_span span = {PARTITION, 0, first, first + script_u8(script)};
    const struct hps_log_batch batch = {&write, &from, 1, &span, 1, false};
    if (space->store->ops->log->apply(space, &call, &batch, &report) == HPS_OK) {
        HPS_ASSERT(report.n_applied + report.n_had + report.n_gap + report.n_failed == SHARDS);
    }
}

static void positions(struct hps_space *space, struct script *script)
{
    static const struct hps_call call;
    const struct hps_store_log_ops *log = space->store->ops->log;
    struct hps_log_position at = {PARTITION, script_u8(script), 0};
    struct hps_log_position behind[4];
    struct hps_log_report report;
    uint32_t n = 0;

    switch (script_u8(script) % 4) {
    case 0:
        hps_ignore(log->positions_set(space, &at, 1));
        break;
    case 1:
        hps_ignore(log->positions_get(space, &call, &at, 1));
        break;
    case 2:
        hps_ignore(log->behind(space, &call, behind, 4, &n));
        HPS_ASSERT(n <= 4);
        break;
    default:
        hps_ignore(log->reset(space, &call, &report));
        break;
    }
}

static void look(struct hps_space *space)
{
    struct hps_store_server servers[2];
    struct hps_store_shared_stats stats;
    struct hps_store_usage usage;

    space->store->ops->space_usage(space, &usage);
    HPS_ASSERT(space->store->ops->servers->list(space->store, servers, 2) <= 2);
    space->store->ops->servers->stats(space->store, &stats);
}

static void operate(struct hps_space *space, struct script *script)
{
    switch (script_u8(script) % 6) {
    case 0:
    case 1:
        get(space, script);
        break;
    case 2:
        insert(space, script);
        break;
    case 3:
        apply(space, script);
        break;
    case 4:
        positions(space, script);
        break;
    default:
        look(space);
        break;
    }
}

static void answers_set(const struct script *script)
{
    while (atomic_flag_test_and_set(&world.busy)) {
        sched_yield();
    }
    size_t n = script->left < INPUT_BYTES_MAX ? script->left : INPUT_BYTES_MAX;
    if (n > 0) {
        memcpy(world.answers, script->at, n);
    }
    world.script = (struct script){world.answers, n};
    world.n_answers = 0;
    atomic_flag_clear(&world.busy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct script ops = {0};
    const struct hps_space_id id = {"m", 1, tables, 2, 99};
    struct hps_space *space;

    if (place_open()) {
        world_open();
    }
    struct hps_store *store = world.store;
    ops.at = script_run(&script, &ops.left);
    answers_set(&script);
    if (store->ops->space_open(store, &id, &space, NULL) != HPS_OK) {
        return 0;
    }
    for (unsigned i = 0; i < OPS_MAX && ops.left > 0; i++) {
        operate(space, &ops);
    }
    store->ops->space_close(space);
    return 0;
}
