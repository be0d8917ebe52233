/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts and stops redis-server processes, and sends commands to them.
 */
#include "tests/lib/redis_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/pause.h"
#include "tests/lib/tmpdir.h"

#define SLOTS        16384
#define ARGS_MAX     64
#define WORDS_MAX    32
#define PATIENCE_US  (UINT64_C(60) * 1000 * 1000)
#define ANSWER_BYTES (1024 * 1024)
#define PAUSE_MS     5
#define PROGRAM      "redis-server"
/* Nodes exchange news at least twice in this time, and consider a silent node down. The timeout is
 * short while the nodes find each other, then longer than the pauses of a busy machine. */
#define NODE_TIMEOUT_MS_FIRST "1500"
#define NODE_TIMEOUT_MS       "15000"

struct server {
    pid_t pid;          /* 0: it is not running */
    redisContext *asks; /* NULL: not connected */
    uint16_t port;
    uint16_t bus_port;
    int port_fd; /* see port_hold */
    int bus_port_fd;
    char address[32];
    char dir[HPS_TMPDIR_PATH_MAX];
    char id[64]; /* node id in the cluster */
};

struct hps_redis_rig {
    struct hps_tmpdir dir;
    struct server servers[HPS_REDIS_RIG_NODES_MAX];
    uint32_t n_servers;
    bool cluster;
    bool whole; /* the nodes have once agreed on the cluster */
    const char *args[ARGS_MAX];
    char addresses[HPS_REDIS_RIG_NODES_MAX * 32];
    char answer[ANSWER_BYTES];
    size_t answer_size;
};

bool hps_redis_rig_present(void)
{
    const char *path = getenv("PATH");
    char file[512];
    while (path && *path) {
        size_t size = strcspn(path, ":");
        snprintf(file, sizeof(file), "%.*s/%s", (int)size, path, PROGRAM);
        if (access(file, X_OK) == 0) {
            return true;
        }
        path += size + (path[size] == ':');
    }
    fprintf(stderr, "\n*** SKIPPED: no " PROGRAM " here: apt-get install redis-server\n\n");
    return false;
}

/* Reserve a port. As long as the socket, which never listens, is open, the kernel gives the port to
 * no other program, even while its server is down. Servers set SO_REUSEADDR, so they can still
 * listen there. */
static int port_hold(uint16_t *out_port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(addr);
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
    *out_port = ntohs(addr.sin_port);
    return fd;
}

uint16_t hps_redis_rig_free_port(void)
{
    uint16_t port;
    (void)port_hold(&port); /* open until the program ends */
    return port;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void hang_up(struct server *server)
{
    redisFree(server->asks);
    server->asks = NULL;
}

static bool connect_to(struct server *server)
{
    if (server->asks == NULL) {
        server->asks = redisConnect("127.0.0.1", server->port);
        assert_non_null(server->asks);
        if (server->asks->err != 0) {
            hang_up(server);
            return false;
        }
        (void)fcntl(server->asks->fd, F_SETFD, FD_CLOEXEC); /* not for later servers */
    }
    return true;
}

static void answer_add(struct hps_redis_rig *rig, const char *mark, const char *text)
{
    size_t size = rig->answer_size;
    int n = snprintf(rig->answer + size, sizeof(rig->answer) - size, "%s%s%s", size > 0 ? "\n" : "",
                     mark, text);
    assert_true(n >= 0 && (size_t)n < sizeof(rig->answer) - size);
    rig->answer_size += (size_t)n;
}

/* Append a value of a reply, and all values in it. */
static void add_reply(struct hps_redis_rig *rig, const redisReply *reply)
{
    char number[24];
    if (reply->type == REDIS_REPLY_NIL) {
        answer_add(rig, "", "(nil)");
    } else if (reply->type == REDIS_REPLY_INTEGER) {
        snprintf(number, sizeof(number), "%lld", reply->integer);
        answer_add(rig, "", number);
    } else if (reply->type != REDIS_REPLY_ARRAY) {
        answer_add(rig, reply->type == REDIS_REPLY_ERROR ? "-" : "", reply->str);
    }
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        add_reply(rig, reply->element[i]);
    }
}

static bool ask(struct hps_redis_rig *rig, uint32_t node, const char *command)
{
    struct server *server = &rig->servers[node];
    const char *words[WORDS_MAX];
    size_t sizes[WORDS_MAX];
    int n_words = 0;
    rig->answer_size = 0;
    rig->answer[0] = '\0';
    for (const char *word = command; word != NULL; n_words++) {
        assert_true(n_words < WORDS_MAX);
        words[n_words] = word;
        sizes[n_words] = strcspn(word, " ");
        word = word[sizes[n_words]] != '\0' ? word + sizes[n_words] + 1 : NULL;
    }
    redisReply *reply =
        connect_to(server) ? redisCommandArgv(server->asks, n_words, words, sizes) : NULL;
    if (reply == NULL) {
        hang_up(server);
        return false;
    }
    add_reply(rig, reply);
    freeReplyObject(reply);
    return true;
}

const char *hps_redis_rig_ask(struct hps_redis_rig *rig, uint32_t node, const char *format, ...)
{
    char command[4096];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    assert_true(size > 0 && (size_t)size < sizeof(command));
    /* The connection may be to a process that was killed since. */
    if (!ask(rig, node, command) && !ask(rig, node, command)) {
        fail_msg("node %u does not answer: %s", node, command);
    }
    return rig->answer;
}

void hps_redis_rig_await(struct hps_redis_rig *rig, uint32_t node, const char *wanted,
                         const char *command)
{
    uint64_t until_us = hps_clock_us() + PATIENCE_US;
    while (!ask(rig, node, command) || !strstr(rig->answer, wanted)) {
        if (hps_clock_us() > until_us) {
            fail_msg("node %u: no '%s' in the answer to %s: %.2000s", node, wanted, command,
                     rig->answer);
        }
        brief_pause_ms(PAUSE_MS);
    }
}

/* ---- processes ------------------------------------------------------------------------------- */

static void run_server(const struct hps_redis_rig *rig, const struct server *server)
{
    char port[8];
    char bus_port[8];
    const char *args[ARGS_MAX + 40] = {PROGRAM,     "--bind",
                                       "127.0.0.1", "--dir",
                                       server->dir, "--port",
                                       port,        "--save",
                                       "",          "--appendonly",
                                       "no",        "--logfile",
                                       "log",       "--enable-debug-command",
                                       "yes",       "--repl-diskless-sync-delay",
                                       "0",         "--rdb-del-sync-files",
                                       "yes"};
    size_t n = 19;
    snprintf(port, sizeof(port), "%u", server->port);
    snprintf(bus_port, sizeof(bus_port), "%u", server->bus_port);
    if (rig->cluster) {
        const char *more[] = {"--cluster-enabled",
                              "yes",
                              "--cluster-port",
                              bus_port,
                              "--cluster-node-timeout",
                              rig->whole ? NODE_TIMEOUT_MS : NODE_TIMEOUT_MS_FIRST,
                              "--cluster-replica-no-failover",
                              "yes", /* only by hps_redis_rig_takeover */
                              "--cluster-config-file",
                              "nodes.conf",
                              "--cluster-require-full-coverage",
                              "no"};
        memcpy(args + n, more, sizeof(more));
        n += sizeof(more) / sizeof(more[0]);
    }
    for (size_t i = 0; rig->args[i]; i++) {
        args[n++] = rig->args[i];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    execvp(args[0], (char *const *)args);
    _exit(127);
}

void hps_redis_rig_start(struct hps_redis_rig *rig, uint32_t node)
{
    struct server *server = &rig->servers[node];
    assert_int_equal(server->pid, 0);
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0) {
        run_server(rig, server);
    }
    uint64_t until_us = hps_clock_us() + PATIENCE_US;
    while (waitpid(server->pid, NULL, WNOHANG) == 0) {
        if (ask(rig, node, "PING")) {
            return;
        }
        if (hps_clock_us() > until_us) {
            fail_msg(PROGRAM " on port %u does not answer: see %s/log", server->port, server->dir);
        }
        brief_pause_ms(PAUSE_MS);
    }
    server->pid = 0;
    fail_msg(PROGRAM " does not start: see %s/log", server->dir);
}

void hps_redis_rig_kill(struct hps_redis_rig *rig, uint32_t node)
{
    struct server *server = &rig->servers[node];
    assert_true(server->pid > 0);
    kill(server->pid, SIGKILL);
    assert_int_equal(waitpid(server->pid, NULL, 0), server->pid);
    server->pid = 0;
    hang_up(server);
}

void hps_redis_rig_pause(struct hps_redis_rig *rig, uint32_t node)
{
    int status;
    assert_int_equal(kill(rig->servers[node].pid, SIGSTOP), 0);
    assert_int_equal(waitpid(rig->servers[node].pid, &status, WUNTRACED), rig->servers[node].pid);
}

void hps_redis_rig_resume(struct hps_redis_rig *rig, uint32_t node)
{
    assert_int_equal(kill(rig->servers[node].pid, SIGCONT), 0);
}

/* ---- rigs ------------------------------------------------------------------------------------ */

static void server_add(struct hps_redis_rig *rig)
{
    uint32_t node = rig->n_servers++;
    struct server *server = &rig->servers[node];
    char name[16];
    snprintf(name, sizeof(name), "node%u", node);
    hps_tmpdir_mkdir(&rig->dir, name);
    snprintf(server->dir, sizeof(server->dir), "%s", hps_tmpdir_join(&rig->dir, name));
    server->port_fd = port_hold(&server->port);
    server->bus_port_fd = port_hold(&server->bus_port);
    hps_redis_rig_start(rig, node);
    snprintf(server->address, sizeof(server->address), "127.0.0.1:%u", server->port);
    size_t size = strlen(rig->addresses);
    snprintf(rig->addresses + size, sizeof(rig->addresses) - size, "%s%s", size ? "," : "",
             server->address);
}

void hps_redis_rig_more_args(struct hps_redis_rig *rig, const char *const *args)
{
    size_t n = 0;
    while (rig->args[n]) {
        n++;
    }
    for (size_t i = 0; args && args[i]; i++) {
        assert_true(n + i + 1 < ARGS_MAX);
        rig->args[n + i] = args[i];
    }
}

static struct hps_redis_rig *rig_new(bool cluster, const char *const *args)
{
    struct hps_redis_rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    hps_tmpdir_open(&rig->dir);
    rig->cluster = cluster;
    hps_redis_rig_more_args(rig, args);
    return rig;
}

struct hps_redis_rig *hps_redis_rig_standalone(const char *const *args)
{
    struct hps_redis_rig *rig = rig_new(false, args);
    server_add(rig);
    return rig;
}

struct hps_redis_rig *hps_redis_rig_cluster(uint32_t n_masters, uint32_t n_replicas_each,
                                            const char *const *args)
{
    struct hps_redis_rig *rig = rig_new(true, args);
    uint32_t n = n_masters * (1 + n_replicas_each);
    char known[40];
    snprintf(known, sizeof(known), "cluster_known_nodes:%u\r", n);
    assert_true(n > 0 && n <= HPS_REDIS_RIG_NODES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        server_add(rig);
        snprintf(rig->servers[i].id, sizeof(rig->servers[i].id), "%s",
                 hps_redis_rig_ask(rig, i, "CLUSTER MYID"));
        hps_redis_rig_ask(rig, i, "CLUSTER SET-CONFIG-EPOCH %u", i + 1);
        if (i < n_masters) {
            hps_redis_rig_ask(rig, i, "CLUSTER ADDSLOTSRANGE %u %u", SLOTS * i / n_masters,
                              SLOTS * (i + 1) / n_masters - 1);
        }
        if (i > 0) {
            hps_redis_rig_ask(rig, 0, "CLUSTER MEET 127.0.0.1 %u %u", rig->servers[i].port,
                              rig->servers[i].bus_port);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        hps_redis_rig_await(rig, i, known, "CLUSTER INFO");
    }
    for (uint32_t i = n_masters; i < n; i++) {
        hps_redis_rig_await(rig, i, rig->servers[i % n_masters].id, "CLUSTER NODES");
        assert_string_equal(
            hps_redis_rig_ask(rig, i, "CLUSTER REPLICATE %s", rig->servers[i % n_masters].id),
            "OK");
    }
    for (uint32_t i = 0; i < n; i++) {
        hps_redis_rig_await(rig, i, "cluster_state:ok", "CLUSTER INFO");
        hps_redis_rig_await(rig, i, "cluster_slots_assigned:16384", "CLUSTER INFO");
        if (i >= n_masters) {
            hps_redis_rig_await(rig, i, "master_link_status:up", "INFO replication");
        }
        for (uint32_t k = n_masters; k < n; k++) { /* all nodes know all replicas */
            char slots[16];
            snprintf(slots, sizeof(slots), "\n%u\n", rig->servers[k].port);
            hps_redis_rig_await(rig, i, slots, "CLUSTER SLOTS");
        }
    }
    rig->whole = true;
    for (uint32_t i = 0; i < n; i++) {
        assert_string_equal(
            hps_redis_rig_ask(rig, i, "CONFIG SET cluster-node-timeout " NODE_TIMEOUT_MS), "OK");
    }
    return rig;
}

void hps_redis_rig_free(struct hps_redis_rig *rig)
{
    if (!rig) {
        return;
    }
    for (uint32_t i = 0; i < rig->n_servers; i++) {
        if (rig->servers[i].pid > 0) {
            hps_redis_rig_kill(rig, i);
        }
        hang_up(&rig->servers[i]);
        close(rig->servers[i].port_fd);
        close(rig->servers[i].bus_port_fd);
    }
    hps_tmpdir_close(&rig->dir);
    hps_free(rig);
}

uint32_t hps_redis_rig_nodes(const struct hps_redis_rig *rig)
{
    return rig->n_servers;
}

uint16_t hps_redis_rig_port(const struct hps_redis_rig *rig, uint32_t node)
{
    return rig->servers[node].port;
}

pid_t hps_redis_rig_pid(const struct hps_redis_rig *rig, uint32_t node)
{
    return rig->servers[node].pid;
}

const char *hps_redis_rig_addresses(const struct hps_redis_rig *rig)
{
    return rig->addresses;
}

const char *hps_redis_rig_address(const struct hps_redis_rig *rig, uint32_t node)
{
    return rig->servers[node].address;
}

const char *hps_redis_rig_dir(const struct hps_redis_rig *rig, uint32_t node)
{
    return rig->servers[node].dir;
}

/* ---- moving slots ---------------------------------------------------------------------------- */

void hps_redis_rig_migrate_begin(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                 uint32_t to)
{
    assert_string_equal(
        hps_redis_rig_ask(rig, to, "CLUSTER SETSLOT %u IMPORTING %s", slot, rig->servers[from].id),
        "OK");
    assert_string_equal(
        hps_redis_rig_ask(rig, from, "CLUSTER SETSLOT %u MIGRATING %s", slot, rig->servers[to].id),
        "OK");
}

uint32_t hps_redis_rig_migrate_keys(struct hps_redis_rig *rig, uint16_t slot, uint32_t from,
                                    uint32_t to, uint32_t n)
{
    uint32_t n_moved = 0;
    while (n_moved < n) {
        char key[512];
        snprintf(key, sizeof(key), "%s",
                 hps_redis_rig_ask(rig, from, "CLUSTER GETKEYSINSLOT %u 1", slot));
        if (!key[0]) {
            break;
        }
        assert_string_equal(hps_redis_rig_ask(rig, from, "MIGRATE 127.0.0.1 %u %s 0 60000",
                                              rig->servers[to].port, key),
                            "OK");
        n_moved++;
    }
    return n_moved;
}

struct range {
    unsigned first;
    unsigned last;
    unsigned port; /* of the master */
};

/* Parse the next range of a reply to CLUSTER SLOTS. Its lines are: first, last, and for each node
 * address, port and id. False: there are no more ranges. */
static bool range_next(const char **line, struct range *out_range)
{
    while (*line) {
        bool found = sscanf(*line, "%u\n%u\n127.0.0.1\n%u\n", &out_range->first, &out_range->last,
                            &out_range->port) == 3;
        *line = strchr(*line, '\n');
        *line = *line ? *line + 1 : NULL;
        if (found) {
            return true;
        }
    }
    return false;
}

/* The port of the slot's owner as a node sees it; 0: no owner. */
static uint16_t owner_seen_by(struct hps_redis_rig *rig, uint32_t node, uint16_t slot)
{
    const char *line = hps_redis_rig_ask(rig, node, "CLUSTER SLOTS");
    struct range range;
    while (range_next(&line, &range)) {
        if (range.first <= slot && slot <= range.last) {
            return (uint16_t)range.port;
        }
    }
    return 0;
}

/* Wait until all nodes know the new owner. A node that does not know it could spread the old owner
 * to other nodes. */
static void await_owner(struct hps_redis_rig *rig, uint16_t slot, uint32_t owner)
{
    uint64_t until_us = hps_clock_us() + PATIENCE_US;
    for (uint32_t i = 0; i < rig->n_servers; i++) {
        while (rig->servers[i].pid > 0 && owner_seen_by(rig, i, slot) != rig->servers[owner].port) {
            if (hps_clock_us() > until_us) {
                fail_msg("node %u does not hear that slot %u is node %u's", i, slot, owner);
            }
            brief_pause_ms(PAUSE_MS);
        }
    }
}

void hps_redis_rig_migrate_end(struct hps_redis_rig *rig, uint16_t slot, uint32_t from, uint32_t to)
{
    const uint32_t nodes[2] = {to, from};
    for (unsigned i = 0; i < 2; i++) {
        assert_string_equal(hps_redis_rig_ask(rig, nodes[i], "CLUSTER SETSLOT %u NODE %s", slot,
                                              rig->servers[to].id),
                            "OK");
    }
    await_owner(rig, slot, to);
}

void hps_redis_rig_takeover(struct hps_redis_rig *rig, uint32_t replica)
{
    assert_string_equal(hps_redis_rig_ask(rig, replica, "CLUSTER FAILOVER TAKEOVER"), "OK");
    hps_redis_rig_await(rig, replica, "role:master", "INFO replication");
    const char *line = hps_redis_rig_ask(rig, replica, "CLUSTER SLOTS");
    struct range range = {0};
    while (range.port != rig->servers[replica].port && range_next(&line, &range)) {
    }
    assert_int_equal(range.port, rig->servers[replica].port);
    await_owner(rig, (uint16_t)range.first, replica); /* all ranges change at once */
}
