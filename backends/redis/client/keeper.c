/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a Redis cluster client. It opens connections that calls wait for and prepares them
 * (user, name), probes nodes that are down, and requests the map of slots. All its connections
 * progress concurrently; none blocks it. It owns a connection until it puts it into the pool of the
 * node.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/redis/client/internal.h"
#include "backends/redis/client/slots.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

#define TASKS_MAX           64
#define MAKING_MAX          8 /* per node */
#define TICK_US             (UINT64_C(1000) * 1000)
#define TICK_DOWN_US        (UINT64_C(20) * 1000) /* while a node is down */
#define REFRESH_US          (UINT64_C(1000) * 1000)
#define REFRESH_ANYWAY_US   (UINT64_C(30) * 1000 * 1000)
#define REFRESH_PAUSE_FIRST (UINT64_C(100) * 1000)
/* Between attempts to resolve the name of a node that has links. */
#define UNNAMED_US       (UINT64_C(1000) * 1000)
#define SLOTS_VALUES_MAX (1u << 20)
#define SLOTS_TEXT_MAX   ((size_t)64 << 20)

enum purpose { LINK, PROBE, SLOTS };
enum step { STEP_AUTH, STEP_NAME, STEP_READONLY, STEP_PING, STEP_MODE, STEP_SLOTS };
/* The mode that a server reports. */
enum mode { MODE_NOT_SAID, MODE_STANDALONE, MODE_CLUSTER, MODE_SENTINEL };

/* A connection being opened, or one borrowed from the pool to request the map of slots. */
struct task {
    enum purpose purpose;
    int16_t id;
    struct hps_redis_node *node;
    struct hps_redis_link link;
    struct hps_places places; /* n == 0: not known yet, or not needed */
    bool borrowed;
    bool connected;
    uint64_t started_us;
    uint64_t deadline_us;
    struct hps_buf out;
    size_t n_sent;
    enum step steps[5];
    uint32_t n_steps;
    uint32_t i_step;
    enum mode mode;
    struct hps_redis_reply reply;
};

struct keeper {
    struct hps_redis_cluster *cluster;
    struct task pool[TASKS_MAX];
    struct task *tasks[TASKS_MAX]; /* pointers into pool: [n_tasks] in use, then the free ones */
    uint32_t n_tasks;
    struct hps_redis_values slots; /* for the only SLOTS task */
    struct hps_redis_map map;
    bool asking;                             /* a SLOTS task exists */
    int16_t candidates[HPS_REDIS_NODES_MAX]; /* nodes to ask in this round */
    uint32_t n_candidates;
    uint32_t i_candidate;
    uint32_t turn;
    uint32_t turn_links;
    uint64_t round_us;
    uint64_t pause_us;
};

void hps_redis_keeper_wake(struct hps_redis_cluster *cluster)
{
    uint64_t one = 1;
    ssize_t size = write(cluster->wake_fd, &one, sizeof(one));
    HPS_ASSERT(size == sizeof(one) || errno == EAGAIN);
}

void hps_redis_refresh(struct hps_redis_cluster *cluster, int16_t hint)
{
    if (hint >= 0) {
        cluster->refresh_hint = hint;
    }
    if (!cluster->refresh_wanted) {
        cluster->refresh_wanted = true;
        hps_redis_keeper_wake(cluster);
    }
}

/* ---- one connection -------------------------------------------------------------------------- */

static hps_status put_step(struct task *task, enum step step, uint32_t n_args,
                           const char *const *args)
{
    HPS_ASSERT(task->n_steps < sizeof(task->steps) / sizeof(task->steps[0]));
    task->steps[task->n_steps++] = step;
    return hps_redis_put_command(&task->out, n_args, args);
}

/* Put all commands at once; the replies come in one round trip. */
static hps_status put_steps(const struct hps_redis_options *options, struct task *task)
{
    const char *auth[3] = {"AUTH", options->user, options->password};
    const char *auth_default[2] = {"AUTH", options->password};
    hps_status status = HPS_OK;

    if (!task->borrowed && options->password) {
        status = options->user ? put_step(task, STEP_AUTH, 3, auth)
                               : put_step(task, STEP_AUTH, 2, auth_default);
    }
    if (status == HPS_OK && !task->borrowed) {
        status = put_step(task, STEP_NAME, 3, (const char *[]){"CLIENT", "SETNAME", "hpsd"});
    }
    if (status == HPS_OK && !task->borrowed && options->replica_reads) {
        status = put_step(task, STEP_READONLY, 1, (const char *[]){"READONLY"});
    }
    if (status == HPS_OK && task->purpose != SLOTS) {
        return put_step(task, STEP_PING, 1, (const char *[]){"PING"});
    }
    if (status == HPS_OK) { /* permitted to every user */
        status = put_step(task, STEP_MODE, 1, (const char *[]){"HELLO"});
    }
    if (status == HPS_OK) {
        status = put_step(task, STEP_SLOTS, 2, (const char *[]){"CLUSTER", "SLOTS"});
    }
    return status;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* From a reply to HELLO: names, each followed by its value. */
static enum mode mode_of(const struct hps_redis_values *values)
{
    for (uint32_t i = 1; i + 1 < values->n; i = hps_redis_values_next(values, i + 1)) {
        if (strcmp(hps_redis_values_text(values, i), "mode") == 0) {
            const char *mode = hps_redis_values_text(values, i + 1);
            return strcmp(mode, "cluster") == 0      ? MODE_CLUSTER
                   : strcmp(mode, "standalone") == 0 ? MODE_STANDALONE
                   : strcmp(mode, "sentinel") == 0   ? MODE_SENTINEL
                                                     : MODE_NOT_SAID;
        }
    }
    return MODE_NOT_SAID;
}

/* The server works, but refuses CLUSTER SLOTS. map_take decides what that means. */
static bool is_refusal(const char *error)
{
    return strstr(error, "cluster support disabled") || begins(error, "ERR unknown command") ||
           begins(error, "NOPERM");
}

/* OK: the reply to a step is acceptable. */
static hps_status step_done(struct task *task, struct hps_error *err)
{
    const struct hps_redis_reply *reply = &task->reply;
    enum step step = task->steps[task->i_step];
    /* The server also closes the connection after this error. */
    bool refused = begins(reply->error, "ERR max number of clients");
    if (step == STEP_MODE) {
        task->mode = reply->status == HPS_OK ? mode_of(reply->values) : MODE_NOT_SAID;
        return HPS_OK;
    }
    if (reply->status == HPS_OK || (!refused && (step == STEP_NAME || step == STEP_READONLY))) {
        return HPS_OK;
    }
    if ((step == STEP_PING && begins(reply->error, "NOPERM")) ||
        (step == STEP_SLOTS && is_refusal(reply->error))) {
        return HPS_OK; /* it works */
    }
    return hps_error_set(err, reply->status, "%s", reply->error);
}

/* OK: all commands are answered; AGAIN: poll; any other status: failed. */
static hps_status task_step(struct task *task, struct hps_error *err)
{
    struct hps_redis_conn *conn = task->link.conn;
    hps_status status = HPS_OK;

    if (!task->connected) {
        status = hps_redis_conn_handshake(conn, err);
        task->connected = status == HPS_OK;
    }
    while (status == HPS_OK && task->n_sent < task->out.size) {
        size_t size = 0;
        struct iovec iov = {.iov_base = task->out.data + task->n_sent,
                            .iov_len = task->out.size - task->n_sent};
        status = hps_redis_conn_write(conn, &iov, 1, &size);
        task->n_sent += size;
        if (status != HPS_OK && status != HPS_AGAIN) {
            return hps_error_set(err, status, "the connection broke");
        }
    }
    while (task->connected && task->i_step < task->n_steps) {
        status = hps_redis_conn_next(conn, &task->reply, err);
        if (status == HPS_OK) {
            status = step_done(task, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        task->i_step++;
    }
    return status;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* One task is reserved for requesting the map of slots. */
static bool has_free_task(const struct keeper *keeper, enum purpose purpose)
{
    return keeper->n_tasks < (purpose == SLOTS ? TASKS_MAX : TASKS_MAX - 1);
}

/* Requires has_room. Caller must hold the lock. */
static void task_new(struct keeper *keeper, enum purpose purpose, int16_t id)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    hps_lock_assert_held(&cluster->lock);
    HPS_ASSERT(has_free_task(keeper, purpose));
    HPS_ASSERT(purpose != SLOTS || !keeper->asking);
    struct task *task = keeper->tasks[keeper->n_tasks++];
    memset(task, 0, sizeof(*task));
    task->purpose = purpose;
    task->id = id;
    task->node = cluster->nodes[id];
    task->link.generation = task->node->generation;
    task->started_us = hps_clock_us();
    task->deadline_us = task->started_us + cluster->options.connect_timeout_us;
    hps_buf_init(&task->out, 1 << 20);
    if (purpose == SLOTS) {
        keeper->asking = true;
        task->reply.values = &keeper->slots;
        task->borrowed = hps_redis_node_checkout(task->node, &task->link);
        task->connected = task->borrowed;
    }
    task->node->n_making += !task->borrowed;
}

static void forget_places(struct hps_redis_node *node)
{
    hps_resolve_free(node->resolve);
    node->resolve = NULL;
}

/* Get the addresses of the node. One name resolution serves all tasks that wait for it, and later
 * ones for name_kept_us. AGAIN: in progress. */
static hps_status find_places(const struct hps_redis_cluster *cluster, struct task *task,
                              struct hps_error *err)
{
    struct hps_redis_node *node = task->node;
    if (!hps_addr_is_name(&node->addr)) {
        return hps_addr_resolve(&node->addr, false, &task->places, err);
    }
    uint64_t ended_us = node->resolve != NULL ? hps_resolve_ended_us(node->resolve) : 0;
    if (ended_us != 0 && ended_us < task->started_us &&
        (task->started_us - ended_us > cluster->options.name_kept_us ||
         hps_resolve_take(node->resolve, &task->places, NULL) != HPS_OK)) {
        forget_places(node);
    }
    hps_status status = HPS_OK;
    if (node->resolve == NULL) {
        status = hps_resolve_new(&node->addr, cluster->wake_fd, &node->resolve, err);
    }
    return status == HPS_OK ? hps_resolve_take(node->resolve, &task->places, err) : status;
}

/* Connect to the next address. AGAIN: in progress. */
static hps_status task_connect(struct hps_redis_cluster *cluster, struct task *task,
                               struct hps_error *err)
{
    hps_status status =
        hps_redis_conn_open(&task->node->addr, &task->places, cluster->tls,
                            cluster->options.reply_bytes_max, &task->link.conn, err);
    return status == HPS_OK ? HPS_AGAIN : status;
}

/* AGAIN: connecting, or the name is being resolved. Call without the lock. */
static hps_status task_open(struct hps_redis_cluster *cluster, struct task *task,
                            struct hps_error *err)
{
    hps_status status = task->borrowed ? HPS_OK : find_places(cluster, task, err);
    if (status != HPS_OK) {
        return status;
    }
    status = put_steps(&cluster->options, task);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "out of memory");
    }
    if (task->borrowed) {
        return HPS_AGAIN;
    }
    task->places.first = task->node->turn;
    task->deadline_us = hps_clock_us() + cluster->options.connect_timeout_us;
    return task_connect(cluster, task, err);
}

/* The connection was refused, and there is another address. */
static bool is_refused(const struct task *task)
{
    return !task->borrowed && !hps_redis_conn_reached(task->link.conn) &&
           task->places.n_tried < task->places.n;
}

static hps_status task_connect_again(struct hps_redis_cluster *cluster, struct task *task,
                                     struct hps_error *err)
{
    hps_redis_conn_close(task->link.conn);
    task->link.conn = NULL;
    return task_connect(cluster, task, err);
}

/* A standalone server has no map. A cluster node may deny it to this user. */
static hps_status refusal_check(const struct task *task, struct hps_error *err)
{
    if (task->mode == MODE_CLUSTER) {
        return hps_error_set(err, HPS_PERMISSION, "CLUSTER SLOTS refused: %s", task->reply.error);
    }
    return task->mode == MODE_SENTINEL
               ? hps_error_set(err, HPS_INVALID, "a Redis Sentinel, expected a Redis server")
               : HPS_OK;
}

static hps_status map_take(struct keeper *keeper, const struct task *task, struct hps_error *err)
{
    struct hps_redis_map *map = &keeper->map;
    bool standalone = task->reply.status != HPS_OK;
    hps_status status = HPS_OK;

    hps_redis_map_begin(map, keeper->cluster);
    if (standalone) {
        status = refusal_check(task, err);
        hps_redis_map_tell(map, 0, HPS_REDIS_SLOTS - 1, true, &task->node->addr);
    } else {
        status =
            hps_redis_slots_read(&keeper->slots, &task->node->addr, hps_redis_map_tell, map, err);
    }
    if (status == HPS_OK && map->n_slots == 0) {
        status =
            hps_error_set(err, HPS_UNAVAILABLE, "CLUSTER SLOTS: no slot is assigned to a node yet");
    }
    if (status == HPS_OK) {
        hps_redis_map_commit(map, standalone ? HPS_REDIS_STANDALONE : HPS_REDIS_CLUSTERED);
    } else {
        snprintf(keeper->cluster->stats.error, sizeof(keeper->cluster->stats.error),
                 "%.150s: %.150s", task->node->text, err->text);
    }
    return status;
}

/* End a request for the map of slots. Caller must hold the lock. */
static void slots_end(struct keeper *keeper, hps_status status, const struct task *task,
                      const struct hps_error *err)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    HPS_ASSERT(keeper->asking);
    keeper->asking = false;
    cluster->stats.n_refreshes++;
    if (status == HPS_OK) {
        cluster->refreshed_us = hps_clock_us();
        cluster->refresh_at_us = keeper->round_us + REFRESH_US;
        keeper->n_candidates = 0;
        keeper->pause_us = 0;
        return;
    }
    if (++keeper->i_candidate < keeper->n_candidates) {
        return; /* the next candidate is asked at once */
    }
    uint64_t pause_us = keeper->pause_us ? 2 * keeper->pause_us : REFRESH_PAUSE_FIRST;
    uint64_t pause_us_max = cluster->options.pause_us_max;
    keeper->pause_us = pause_us < pause_us_max ? pause_us : pause_us_max;
    keeper->n_candidates = 0;
    bool known = cluster->kind != HPS_REDIS_UNKNOWN;
    cluster->refresh_wanted = true;
    cluster->refresh_at_us =
        hps_clock_us() + (known && keeper->pause_us < REFRESH_US ? REFRESH_US : keeper->pause_us);
    cluster->n_refreshes_failed++;
    HPS_LOG(WARN, "redis",
            "slot map not refreshed: no Redis node returned a valid one; the last valid one stays "
            "in use",
            HPS_STR("node", task->node->text), HPS_STR("error", err->text));
    hps_redis_changed(cluster);
}

/* Record which address worked, or failed. */
static void places_learn(const struct task *task, bool usable)
{
    struct hps_redis_node *node = task->node;
    const struct hps_places *places = &task->places;
    bool reached = usable || (task->link.conn != NULL && hps_redis_conn_reached(task->link.conn));

    if (task->borrowed) {
        return;
    }
    if (usable) {
        node->unnamed_us = 0;
        node->turn = places->first + places->n_tried - 1;
    } else if (places->n == 0) {
        node->unnamed_us = hps_clock_us();
    } else if (task->link.conn != NULL && node->turn == places->first) {
        node->turn = places->first + places->n_tried; /* do not try that address first again */
    }
    if (!reached && places->n > 0 && node->resolve != NULL &&
        hps_resolve_ended_us(node->resolve) != 0) {
        forget_places(node);
    }
}

/* End a task. Caller must hold the lock. A failed name resolution says nothing about existing
 * connections of the node. */
static void task_end(struct keeper *keeper, uint32_t i, hps_status status, struct hps_error *err)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    struct task *task = keeper->tasks[i];
    struct hps_redis_node *node = task->node;
    uint64_t duration_us = hps_clock_us() - task->started_us;
    bool usable = status == HPS_OK;
    bool counts = task->borrowed || task->places.n > 0 || node->n_live == 0;

    hps_lock_assert_held(&cluster->lock);
    HPS_ASSERT(i < keeper->n_tasks && status != HPS_AGAIN);
    HPS_ASSERT(task->borrowed || node->n_making > 0);
    if (usable && task->purpose == SLOTS) {
        status = map_take(keeper, task, err);
    }
    places_learn(task, usable);
    node->n_making -= !task->borrowed;
    if (usable && task->borrowed) {
        hps_redis_node_checkin(cluster, node, task->link);
    } else if (usable) {
        hps_redis_node_add(cluster, node, task->link.conn, task->link.generation);
    } else if (task->borrowed) {
        hps_redis_node_broke(cluster, node, task->link);
    } else {
        hps_redis_conn_close(task->link.conn);
        node->stats.n_broken++;
        node->made_bad_us = counts ? hps_clock_us() : node->made_bad_us;
    }
    if (task->purpose == PROBE) {
        hps_redis_node_probed(cluster, node, usable ? HPS_OK : HPS_UNAVAILABLE, err->text);
    } else if (!usable && counts) {
        hps_redis_node_account(cluster, node, HPS_UNAVAILABLE, duration_us, err->text);
    } else if (!usable) {
        snprintf(node->stats.error, sizeof(node->stats.error), "%.300s", err->text);
    }
    if (task->purpose == SLOTS) {
        slots_end(keeper, status, task, err);
    }
    hps_redis_changed(cluster);
    hps_buf_fini(&task->out);
    keeper->tasks[i] = keeper->tasks[--keeper->n_tasks];
    keeper->tasks[keeper->n_tasks] = task;
}

/* ---- starting tasks: with the lock ----------------------------------------------------------- */

static bool is_used(const struct hps_redis_cluster *cluster, const struct hps_redis_node *node)
{
    return node->listed && (node->master < 0 || cluster->options.replica_reads);
}

uint32_t hps_redis_links_wanted(const struct hps_redis_cluster *cluster,
                                const struct hps_redis_node *node)
{
    if (node->n_live > 0 && node->unnamed_us != 0 &&
        hps_clock_us() - node->unnamed_us < UNNAMED_US) {
        return 0;
    }
    uint32_t n = node->n_live + node->n_making;
    uint32_t n_coming = node->n_idle + node->n_making;
    uint32_t n_max =
        n < cluster->options.connections_per_node ? cluster->options.connections_per_node - n : 0;
    uint32_t making_max = node->finding ? 1 : MAKING_MAX;
    uint32_t making = node->n_making < making_max ? making_max - node->n_making : 0;
    n_max = n_max < making ? n_max : making;
    uint32_t wanted = node->n_waiting > n_coming ? node->n_waiting - n_coming : 0;
    if (wanted == 0 && n == 0 && is_used(cluster, node)) {
        wanted = 1; /* detects a dead node, and the first call need not wait */
    }
    return wanted < n_max ? wanted : n_max;
}

static void start_links(struct keeper *keeper)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    uint32_t turn =
        keeper->turn_links++; /* each node comes first once if there are too few tasks */
    for (uint32_t k = 0; k < cluster->n_nodes; k++) {
        uint32_t i = (turn + k) % cluster->n_nodes;
        struct hps_redis_node *node = cluster->nodes[i];
        if (hps_breaker_up(node->breaker)) {
            uint32_t n = hps_redis_links_wanted(cluster, node);
            for (; n > 0 && has_free_task(keeper, LINK); n--) {
                task_new(keeper, LINK, (int16_t)i);
            }
        } else if ((node->listed || node->entry) && has_free_task(keeper, PROBE) &&
                   hps_breaker_enter(node->breaker) == HPS_BREAKER_PROBE) {
            task_new(keeper, PROBE, (int16_t)i);
        }
    }
}

static void candidate_add(struct keeper *keeper, int16_t id)
{
    for (uint32_t i = 0; i < keeper->n_candidates; i++) {
        if (keeper->candidates[i] == id) {
            return;
        }
    }
    HPS_ASSERT(keeper->n_candidates < HPS_REDIS_NODES_MAX);
    keeper->candidates[keeper->n_candidates++] = id;
}

/* Nodes to ask for the map: the one named by a redirection, nodes that are up in turn, configured
 * ones. */
static void candidates_gather(struct keeper *keeper)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    uint32_t turn = keeper->turn++;

    keeper->n_candidates = 0;
    keeper->i_candidate = 0;
    if (cluster->refresh_hint >= 0) {
        candidate_add(keeper, cluster->refresh_hint);
        cluster->refresh_hint = HPS_REDIS_NOBODY;
    }
    for (unsigned entries = 0; entries < 2; entries++) {
        for (uint32_t k = 0; k < cluster->n_nodes; k++) {
            uint32_t i = (turn + k) % cluster->n_nodes;
            const struct hps_redis_node *node = cluster->nodes[i];
            bool up = hps_breaker_up(node->breaker);
            if (entries ? node->entry && (!node->listed || up) : node->listed && up) {
                candidate_add(keeper, (int16_t)i);
            }
        }
    }
}

static bool anybody_down(const struct hps_redis_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        const struct hps_redis_node *node = cluster->nodes[i];
        if (is_used(cluster, node) && !hps_breaker_up(node->breaker)) {
            return true;
        }
    }
    return false;
}

static void start_slots(struct keeper *keeper)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    uint64_t now_us = hps_clock_us();

    if (keeper->asking) {
        return;
    }
    if (keeper->n_candidates == 0) {
        bool stale = cluster->kind == HPS_REDIS_CLUSTERED &&
                     now_us - cluster->refreshed_us >= REFRESH_ANYWAY_US;
        bool wanted = cluster->refresh_wanted || cluster->kind == HPS_REDIS_UNKNOWN || stale ||
                      anybody_down(cluster);
        if (!wanted || now_us < cluster->refresh_at_us) {
            return;
        }
        cluster->refresh_wanted = false;
        candidates_gather(keeper);
        keeper->round_us = now_us;
        if (keeper->n_candidates == 0) {
            cluster->refresh_at_us = now_us + REFRESH_US;
            cluster->n_refreshes_failed++;
            hps_redis_changed(cluster);
            return;
        }
    }
    task_new(keeper, SLOTS, keeper->candidates[keeper->i_candidate]);
}

/* Time until the next work is due, unless the thread is woken earlier. */
static uint64_t next_us(const struct keeper *keeper)
{
    const struct hps_redis_cluster *cluster = keeper->cluster;
    uint64_t now_us = hps_clock_us();
    uint64_t at_us = now_us + (anybody_down(cluster) ? TICK_DOWN_US : TICK_US);

    if (!keeper->asking && (cluster->refresh_wanted || cluster->kind == HPS_REDIS_UNKNOWN) &&
        cluster->refresh_at_us < at_us) {
        at_us = cluster->refresh_at_us;
    }
    for (uint32_t i = 0; i < keeper->n_tasks; i++) {
        at_us = keeper->tasks[i]->deadline_us < at_us ? keeper->tasks[i]->deadline_us : at_us;
    }
    return at_us > now_us ? at_us - now_us : 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Open new tasks. Caller must hold the lock, which is released during each open. Failed tasks end,
 * which frees space for new ones. */
static void open_new(struct keeper *keeper)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    for (uint32_t i = 0; i < keeper->n_tasks;) {
        struct task *task = keeper->tasks[i];
        struct hps_error err = {0};
        if (task->n_steps > 0) {
            i++;
            continue;
        }
        hps_lock_release(&cluster->lock);
        hps_status status = task_open(cluster, task, &err);
        hps_lock_acquire(&cluster->lock);
        task->node->finding = status == HPS_AGAIN && task->link.conn == NULL;
        if (status == HPS_AGAIN) {
            i++;
        } else {
            task_end(keeper, i, status, &err);
        }
    }
}

static void poll_tasks(struct keeper *keeper, struct pollfd *polls, uint64_t timeout_us)
{
    for (uint32_t i = 0; i < keeper->n_tasks; i++) {
        struct task *task = keeper->tasks[i];
        bool writing = task->connected && task->n_sent < task->out.size;
        polls[i] = (struct pollfd){.fd = -1};
        if (task->link.conn != NULL) {
            polls[i].fd = hps_redis_conn_fd(task->link.conn);
            polls[i].events = hps_redis_conn_events(task->link.conn);
            polls[i].events |= (short)(writing ? POLLOUT : 0);
        }
    }
    polls[keeper->n_tasks] = (struct pollfd){.fd = keeper->cluster->wake_fd, .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_us / 1000000),
                               .tv_nsec = (long)(timeout_us % 1000000) * 1000};
    if (ppoll(polls, keeper->n_tasks + 1, &timeout, NULL) < 0) {
        for (uint32_t i = 0; i <= keeper->n_tasks; i++) {
            polls[i].revents = 0;
        }
    }
    if (polls[keeper->n_tasks].revents & POLLIN) {
        uint64_t count;
        ssize_t size = read(keeper->cluster->wake_fd, &count, sizeof(count));
        HPS_ASSERT(size == sizeof(count) || errno == EAGAIN);
    }
}

static const char *late_text(const struct task *task)
{
    return task->link.conn == NULL ? "name lookup timed out"
           : task->connected       ? "no answer in time"
           : hps_redis_conn_reached(task->link.conn)
               ? "TLS handshake timed out: check that the port is for TLS"
               : "connect timed out";
}

/* Iterates from the last task, because the last one takes the place of a task that ends. */
static void step_tasks(struct keeper *keeper, const struct pollfd *polls)
{
    for (uint32_t i = keeper->n_tasks; i-- > 0;) {
        struct task *task = keeper->tasks[i];
        struct hps_error err = {0};
        hps_status status = HPS_AGAIN;
        if (polls[i].revents != 0) {
            status = task_step(task, &err);
            if (status != HPS_OK && status != HPS_AGAIN && is_refused(task)) {
                status = task_connect_again(keeper->cluster, task, &err);
            }
        }
        if (status == HPS_AGAIN && hps_clock_us() >= task->deadline_us) {
            status = hps_error_set(&err, HPS_DEADLINE, "%s", late_text(task));
        }
        if (status != HPS_AGAIN) {
            hps_lock_acquire(&keeper->cluster->lock);
            task_end(keeper, i, status, &err);
            hps_lock_release(&keeper->cluster->lock);
        }
    }
}

static void keep(struct keeper *keeper)
{
    struct hps_redis_cluster *cluster = keeper->cluster;
    struct pollfd polls[TASKS_MAX + 1];

    hps_lock_acquire(&cluster->lock);
    while (!cluster->stopping) {
        start_links(keeper);
        start_slots(keeper);
        open_new(keeper);
        uint64_t timeout_us = next_us(keeper);
        hps_lock_release(&cluster->lock);
        poll_tasks(keeper, polls, timeout_us);
        step_tasks(keeper, polls);
        hps_lock_acquire(&cluster->lock);
    }
    while (keeper->n_tasks > 0) {
        struct hps_error err = {.text = "closing"};
        task_end(keeper, keeper->n_tasks - 1, HPS_CANCELLED, &err);
    }
    hps_lock_release(&cluster->lock);
}

static void *keeper_run(void *ctx)
{
    struct keeper *keeper = ctx;
    hps_redis_values_init(&keeper->slots, SLOTS_VALUES_MAX, SLOTS_TEXT_MAX);
    keep(keeper);
    hps_redis_values_fini(&keeper->slots);
    return NULL;
}

hps_status hps_redis_keeper_start(struct hps_redis_cluster *cluster, struct hps_error *err)
{
    struct keeper *keeper = hps_calloc(1, sizeof(*keeper));
    if (!keeper) {
        return hps_error_set(err, HPS_NO_MEMORY, "Redis: out of memory");
    }
    keeper->cluster = cluster;
    for (uint32_t i = 0; i < TASKS_MAX; i++) {
        keeper->tasks[i] = &keeper->pool[i];
    }
    cluster->keeper = keeper;
    hps_status status = hps_worker_start(&cluster->thread, "redis", 0, keeper_run, keeper);
    if (status != HPS_OK) {
        hps_free(keeper);
        return hps_error_set(err, status, "Redis: cannot start a thread");
    }
    return HPS_OK;
}

void hps_redis_keeper_stop(struct hps_redis_cluster *cluster)
{
    hps_lock_acquire(&cluster->lock);
    cluster->stopping = true;
    hps_lock_release(&cluster->lock);
    hps_redis_keeper_wake(cluster);
    hps_worker_join(&cluster->thread);
    hps_free(cluster->keeper);
}
