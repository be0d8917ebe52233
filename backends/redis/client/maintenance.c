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

struct maintenance {
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

void hps_redis_maintenance_wake(struct hps_redis_cluster *cluster)
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
        hps_redis_maintenance_wake(cluster);
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
static bool has_free_task(const struct maintenance *maintenance, enum purpose purpose)
{
    return maintenance->n_tasks < (purpose == SLOTS ? TASKS_MAX : TASKS_MAX - 1);
}

/* Requires has_room. Caller must hold the lock. */
static void task_new(struct maintenance *maintenance, enum purpose purpose, int16_t id)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    hps_lock_assert_held(&cluster->lock);
    HPS_ASSERT(has_free_task(maintenance, purpose));
    HPS_ASSERT(purpose != SLOTS || !maintenance->asking);
    struct task *task = maintenance->tasks[maintenance->n_tasks++];
    memset(task, 0, sizeof(*task));
    task->purpose = purpose;
    task->id = id;
    task->node = cluster->nodes[id];
    task->link.generation = task->node->generation;
    task->started_us = hps_clock_us();
    task->deadline_us = task->started_us + cluster->options.connect_timeout_us;
    hps_buf_init(&task->out, 1 << 20);
    if (purpose == SLOTS) {
        maintenance->asking = true;
        task->reply.values = &maintenance->slots;
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

static hps_status map_take(struct maintenance *maintenance, const struct task *task,
                           struct hps_error *err)
{
    struct hps_redis_map *map = &maintenance->map;
    bool standalone = task->reply.status != HPS_OK;
    hps_status status = HPS_OK;

    hps_redis_map_begin(map, maintenance->cluster);
    if (standalone) {
        status = refusal_check(task, err);
        hps_redis_map_tell(map, 0, HPS_REDIS_SLOTS - 1, true, &task->node->addr);
    } else {
        status = hps_redis_slots_read(&maintenance->slots, &task->node->addr, hps_redis_map_tell,
                                      map, err);
    }
    if (status == HPS_OK && map->n_slots == 0) {
        status =
            hps_error_set(err, HPS_UNAVAILABLE, "CLUSTER SLOTS: no slot is assigned to a node yet");
    }
    if (status == HPS_OK) {
        hps_redis_map_commit(map, standalone ? HPS_REDIS_STANDALONE : HPS_REDIS_CLUSTERED);
    } else {
        snprintf(maintenance->cluster->stats.error, sizeof(maintenance->cluster->stats.error),
                 "%.150s: %.150s", task->node->text, err->text);
    }
    return status;
}

/* End a request for the map of slots. Caller must hold the lock. */
static void slots_end(struct maintenance *maintenance, hps_status status, const struct task *task,
                      const struct hps_error *err)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    HPS_ASSERT(maintenance->asking);
    maintenance->asking = false;
    cluster->stats.n_refreshes++;
    if (status == HPS_OK) {
        cluster->refreshed_us = hps_clock_us();
        cluster->refresh_at_us = maintenance->round_us + REFRESH_US;
        maintenance->n_candidates = 0;
        maintenance->pause_us = 0;
        return;
    }
    if (++maintenance->i_candidate < maintenance->n_candidates) {
        return; /* try the next candidate without a pause */
    }
    uint64_t pause_us = maintenance->pause_us ? 2 * maintenance->pause_us : REFRESH_PAUSE_FIRST;
    uint64_t pause_us_max = cluster->options.pause_us_max;
    maintenance->pause_us = pause_us < pause_us_max ? pause_us : pause_us_max;
    maintenance->n_candidates = 0;
    bool known = cluster->kind != HPS_REDIS_UNKNOWN;
    cluster->refresh_wanted = true;
    cluster->refresh_at_us =
        hps_clock_us() +
        (known && maintenance->pause_us < REFRESH_US ? REFRESH_US : maintenance->pause_us);
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
static void task_end(struct maintenance *maintenance, uint32_t i, hps_status status,
                     struct hps_error *err)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    struct task *task = maintenance->tasks[i];
    struct hps_redis_node *node = task->node;
    uint64_t duration_us = hps_clock_us() - task->started_us;
    bool usable = status == HPS_OK;
    bool counts = task->borrowed || task->places.n > 0 || node->n_live == 0;

    hps_lock_assert_held(&cluster->lock);
    HPS_ASSERT(i < maintenance->n_tasks && status != HPS_AGAIN);
    HPS_ASSERT(task->borrowed || node->n_making > 0);
    if (usable && task->purpose == SLOTS) {
        status = map_take(maintenance, task, err);
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
        slots_end(maintenance, status, task, err);
    }
    hps_redis_changed(cluster);
    hps_buf_fini(&task->out);
    maintenance->tasks[i] = maintenance->tasks[--maintenance->n_tasks];
    maintenance->tasks[maintenance->n_tasks] = task;
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

static void start_links(struct maintenance *maintenance)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    uint32_t turn =
        maintenance->turn_links++; /* each node comes first once if there are too few tasks */
    for (uint32_t k = 0; k < cluster->n_nodes; k++) {
        uint32_t i = (turn + k) % cluster->n_nodes;
        struct hps_redis_node *node = cluster->nodes[i];
        if (hps_breaker_up(node->breaker)) {
            uint32_t n = hps_redis_links_wanted(cluster, node);
            for (; n > 0 && has_free_task(maintenance, LINK); n--) {
                task_new(maintenance, LINK, (int16_t)i);
            }
        } else if ((node->listed || node->entry) && has_free_task(maintenance, PROBE) &&
                   hps_breaker_enter(node->breaker) == HPS_BREAKER_PROBE) {
            task_new(maintenance, PROBE, (int16_t)i);
        }
    }
}

static void candidate_add(struct maintenance *maintenance, int16_t id)
{
    for (uint32_t i = 0; i < maintenance->n_candidates; i++) {
        if (maintenance->candidates[i] == id) {
            return;
        }
    }
    HPS_ASSERT(maintenance->n_candidates < HPS_REDIS_NODES_MAX);
    maintenance->candidates[maintenance->n_candidates++] = id;
}

/* Nodes to ask for the map: the one named by a redirection, nodes that are up in turn, configured
 * ones. */
static void candidates_gather(struct maintenance *maintenance)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    uint32_t turn = maintenance->turn++;

    maintenance->n_candidates = 0;
    maintenance->i_candidate = 0;
    if (cluster->refresh_hint >= 0) {
        candidate_add(maintenance, cluster->refresh_hint);
        cluster->refresh_hint = HPS_REDIS_NOBODY;
    }
    for (unsigned entries = 0; entries < 2; entries++) {
        for (uint32_t k = 0; k < cluster->n_nodes; k++) {
            uint32_t i = (turn + k) % cluster->n_nodes;
            const struct hps_redis_node *node = cluster->nodes[i];
            bool up = hps_breaker_up(node->breaker);
            if (entries ? node->entry && (!node->listed || up) : node->listed && up) {
                candidate_add(maintenance, (int16_t)i);
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

static void start_slots(struct maintenance *maintenance)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    uint64_t now_us = hps_clock_us();

    if (maintenance->asking) {
        return;
    }
    if (maintenance->n_candidates == 0) {
        bool stale = cluster->kind == HPS_REDIS_CLUSTERED &&
                     now_us - cluster->refreshed_us >= REFRESH_ANYWAY_US;
        bool wanted = cluster->refresh_wanted || cluster->kind == HPS_REDIS_UNKNOWN || stale ||
                      anybody_down(cluster);
        if (!wanted || now_us < cluster->refresh_at_us) {
            return;
        }
        cluster->refresh_wanted = false;
        candidates_gather(maintenance);
        maintenance->round_us = now_us;
        if (maintenance->n_candidates == 0) {
            cluster->refresh_at_us = now_us + REFRESH_US;
            cluster->n_refreshes_failed++;
            hps_redis_changed(cluster);
            return;
        }
    }
    task_new(maintenance, SLOTS, maintenance->candidates[maintenance->i_candidate]);
}

/* Time until the next work is due, unless the thread is woken earlier. */
static uint64_t next_us(const struct maintenance *maintenance)
{
    const struct hps_redis_cluster *cluster = maintenance->cluster;
    uint64_t now_us = hps_clock_us();
    uint64_t at_us = now_us + (anybody_down(cluster) ? TICK_DOWN_US : TICK_US);

    if (!maintenance->asking && (cluster->refresh_wanted || cluster->kind == HPS_REDIS_UNKNOWN) &&
        cluster->refresh_at_us < at_us) {
        at_us = cluster->refresh_at_us;
    }
    for (uint32_t i = 0; i < maintenance->n_tasks; i++) {
        at_us =
            maintenance->tasks[i]->deadline_us < at_us ? maintenance->tasks[i]->deadline_us : at_us;
    }
    return at_us > now_us ? at_us - now_us : 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Open new tasks. Caller must hold the lock, which is released during each open. Failed tasks end,
 * which frees space for new ones. */
static void open_new(struct maintenance *maintenance)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    for (uint32_t i = 0; i < maintenance->n_tasks;) {
        struct task *task = maintenance->tasks[i];
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
            task_end(maintenance, i, status, &err);
        }
    }
}

static void poll_tasks(struct maintenance *maintenance, struct pollfd *polls, uint64_t timeout_us)
{
    for (uint32_t i = 0; i < maintenance->n_tasks; i++) {
        struct task *task = maintenance->tasks[i];
        bool writing = task->connected && task->n_sent < task->out.size;
        polls[i] = (struct pollfd){.fd = -1};
        if (task->link.conn != NULL) {
            polls[i].fd = hps_redis_conn_fd(task->link.conn);
            polls[i].events = hps_redis_conn_events(task->link.conn);
            polls[i].events |= (short)(writing ? POLLOUT : 0);
        }
    }
    polls[maintenance->n_tasks] =
        (struct pollfd){.fd = maintenance->cluster->wake_fd, .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_us / 1000000),
                               .tv_nsec = (long)(timeout_us % 1000000) * 1000};
    if (ppoll(polls, maintenance->n_tasks + 1, &timeout, NULL) < 0) {
        for (uint32_t i = 0; i <= maintenance->n_tasks; i++) {
            polls[i].revents = 0;
        }
    }
    if (polls[maintenance->n_tasks].revents & POLLIN) {
        uint64_t count;
        ssize_t size = read(maintenance->cluster->wake_fd, &count, sizeof(count));
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
static void step_tasks(struct maintenance *maintenance, const struct pollfd *polls)
{
    for (uint32_t i = maintenance->n_tasks; i-- > 0;) {
        struct task *task = maintenance->tasks[i];
        struct hps_error err = {0};
        hps_status status = HPS_AGAIN;
        if (polls[i].revents != 0) {
            status = task_step(task, &err);
            if (status != HPS_OK && status != HPS_AGAIN && is_refused(task)) {
                status = task_connect_again(maintenance->cluster, task, &err);
            }
        }
        if (status == HPS_AGAIN && hps_clock_us() >= task->deadline_us) {
            status = hps_error_set(&err, HPS_DEADLINE, "%s", late_text(task));
        }
        if (status != HPS_AGAIN) {
            hps_lock_acquire(&maintenance->cluster->lock);
            task_end(maintenance, i, status, &err);
            hps_lock_release(&maintenance->cluster->lock);
        }
    }
}

static void keep(struct maintenance *maintenance)
{
    struct hps_redis_cluster *cluster = maintenance->cluster;
    struct pollfd polls[TASKS_MAX + 1];

    hps_lock_acquire(&cluster->lock);
    while (!cluster->stopping) {
        start_links(maintenance);
        start_slots(maintenance);
        open_new(maintenance);
        uint64_t timeout_us = next_us(maintenance);
        hps_lock_release(&cluster->lock);
        poll_tasks(maintenance, polls, timeout_us);
        step_tasks(maintenance, polls);
        hps_lock_acquire(&cluster->lock);
    }
    while (maintenance->n_tasks > 0) {
        struct hps_error err = {.text = "closing"};
        task_end(maintenance, maintenance->n_tasks - 1, HPS_CANCELLED, &err);
    }
    hps_lock_release(&cluster->lock);
}

static void *maintenance_run(void *ctx)
{
    struct maintenance *maintenance = ctx;
    hps_redis_values_init(&maintenance->slots, SLOTS_VALUES_MAX, SLOTS_TEXT_MAX);
    keep(maintenance);
    hps_redis_values_fini(&maintenance->slots);
    return NULL;
}

hps_status hps_redis_maintenance_start(struct hps_redis_cluster *cluster, struct hps_error *err)
{
    struct maintenance *maintenance = hps_calloc(1, sizeof(*maintenance));
    if (!maintenance) {
        return hps_error_set(err, HPS_NO_MEMORY, "Redis: out of memory");
    }
    maintenance->cluster = cluster;
    for (uint32_t i = 0; i < TASKS_MAX; i++) {
        maintenance->tasks[i] = &maintenance->pool[i];
    }
    cluster->maintenance = maintenance;
    hps_status status =
        hps_worker_start(&cluster->thread, "redis", 0, maintenance_run, maintenance);
    if (status != HPS_OK) {
        hps_free(maintenance);
        return hps_error_set(err, status, "Redis: cannot start a thread");
    }
    return HPS_OK;
}

void hps_redis_maintenance_stop(struct hps_redis_cluster *cluster)
{
    hps_lock_acquire(&cluster->lock);
    cluster->stopping = true;
    hps_lock_release(&cluster->lock);
    hps_redis_maintenance_wake(cluster);
    hps_worker_join(&cluster->thread);
    hps_free(cluster->maintenance);
}
