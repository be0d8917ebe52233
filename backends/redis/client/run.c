/* SPDX-License-Identifier: Apache-2.0
 *
 * Running commands on the nodes that have their slots. The commands of one node form a lane, which
 * has one connection. All lanes are written and read concurrently. A lane that is done returns its
 * connection at once, however long the other lanes take. A lane that waits for a connection, or for
 * a retry, continues as soon as it can, so no node waits for another. A lane with a connection
 * always makes progress, so calls cannot deadlock. Runs on the worker thread that made the call.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/redis/client/internal.h"
#include "backends/redis/client/slots.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

#define REDIRECTS_MAX  16
#define PIECES_MAX     128  /* written together */
#define RETRY_US_FIRST 1000 /* after TRYAGAIN, doubling up to RETRY_US_MAX */
#define RETRY_US_MAX   16000
#define LOOK_US        1000 /* how often waiting lanes are checked while others are active */

static const char asking[] = "*1\r\n$6\r\nASKING\r\n";

/* The state of a command, stored in command->state with the marks below. */
enum { PENDING, SENT, ANSWERED, LATER, DONE, STATE_MASK = 7 };
enum {
    MARK_ASK = 8,    /* send to `target` only, where ASK pointed */
    MARK_MASTER = 16 /* do not send to a replica */
};

struct lane {
    int16_t id; /* of the node; HPS_REDIS_NOBODY: the lane is unused */
    struct hps_redis_node *node;
    struct hps_redis_link link;      /* conn NULL: none yet */
    struct hps_redis_command *first; /* linked by `next` */
    struct hps_redis_command *last;
    struct hps_redis_command *writing; /* the next command to write; NULL: all are written */
    size_t n_gone;                     /* bytes written of it, including ASKING before it */
    struct hps_redis_command *reading; /* the command of the next reply; NULL: all were read */
    bool reading_asked;                /* its reply to ASKING has been read */
    hps_status status;                 /* AGAIN: in progress */
    char why[HPS_REDIS_ERROR_MAX];
    bool quick;
    uint64_t since_us; /* the run's alive_us when the lane was started */
    uint64_t started_us;
    uint64_t alive_us;       /* when bytes were last sent or received, or the lane was started */
    uint64_t first_reply_us; /* 0: none yet */
    uint64_t n_bytes_sent;
    struct hps_redis_reply asked;
};

struct run {
    struct hps_redis_cluster *cluster;
    struct hps_redis_command *commands;
    uint32_t n;
    uint64_t started_us;
    uint64_t deadline_us; /* UINT64_MAX: none */
    bool quick;           /* some command is QUICK */
    uint64_t alive_us;    /* when a command last got its final reply, or the call began */
    bool waiting;         /* some commands are neither done nor in an active lane */
    uint64_t retry_us;    /* pause after the next TRYAGAIN */
    uint64_t retry_at_us; /* when commands to be retried are due; 0: none */
    struct lane *lanes;
    uint32_t n_lanes;
    uint32_t n_lanes_max;
    struct pollfd *polls; /* [n_lanes_max] */
};

static int state_of(const struct hps_redis_command *command)
{
    return command->state & STATE_MASK;
}

static void state_set(struct hps_redis_command *command, int state)
{
    command->state = (uint8_t)((command->state & ~STATE_MASK) | state);
}

static void finish(struct hps_redis_command *command, hps_status status, const char *why)
{
    HPS_ASSERT(status != HPS_OK && status != HPS_AGAIN);
    command->reply.status = status;
    snprintf(command->reply.error, sizeof(command->reply.error), "%s", why);
    state_set(command, DONE);
}

/* When a call without progress gives up. */
static uint64_t run_end_us(const struct run *run)
{
    uint64_t quick_us = run->alive_us + run->cluster->options.command_timeout_us;
    return run->quick && quick_us < run->deadline_us ? quick_us : run->deadline_us;
}

/* When a node is given up. Redirections do not extend the time. */
static uint64_t lane_end_us(const struct run *run, const struct lane *lane)
{
    uint64_t alive_us = lane->alive_us > lane->started_us ? lane->alive_us : lane->since_us;
    uint64_t quick_us = alive_us + run->cluster->options.command_timeout_us;
    return lane->quick && quick_us < run->deadline_us ? quick_us : run->deadline_us;
}

/* ---- planning: with the lock ----------------------------------------------------------------- */

static int16_t replica_of(struct hps_redis_cluster *cluster, int16_t master)
{
    uint32_t turn = cluster->turn++;
    for (uint32_t k = 0; k < cluster->n_nodes; k++) {
        uint32_t i = (turn + k) % cluster->n_nodes;
        const struct hps_redis_node *node = cluster->nodes[i];
        if (node->listed && node->master == master && hps_breaker_up(node->breaker)) {
            return (int16_t)i;
        }
    }
    return master;
}

/* The node for the command. HPS_REDIS_NOBODY: it is finished, or the map is not known yet. */
static int16_t target_of(struct run *run, struct hps_redis_command *command)
{
    struct hps_redis_cluster *cluster = run->cluster;
    if (command->state & MARK_ASK) {
        return (int16_t)command->target;
    }
    int16_t target = cluster->slots[command->slot];
    if (target < 0) {
        bool known = cluster->kind != HPS_REDIS_UNKNOWN;
        if (!known && cluster->n_refreshes_failed == 0) {
            return HPS_REDIS_NOBODY; /* the map will be known soon */
        }
        char why[HPS_REDIS_ERROR_MAX];
        hps_redis_why(cluster, why, sizeof(why));
        hps_redis_refresh(cluster, HPS_REDIS_NOBODY);
        finish(command, HPS_UNAVAILABLE,
               known    ? "no node has the slot"
               : why[0] ? why
                        : "no server has answered yet");
        return HPS_REDIS_NOBODY;
    }
    bool replica = cluster->options.replica_reads && (command->flags & HPS_REDIS_READ) &&
                   !(command->state & MARK_MASTER);
    return replica ? replica_of(cluster, target) : target;
}

static bool is_active(const struct lane *lane)
{
    return lane->link.conn != NULL;
}

static void lane_clear(struct lane *lane, int16_t id)
{
    memset(lane, 0, offsetof(struct lane, asked));
    memset(&lane->asked, 0, sizeof(lane->asked));
    lane->id = id;
    lane->status = HPS_AGAIN;
}

static struct lane *lane_of(struct run *run, int16_t id)
{
    struct lane *lane = NULL;
    for (uint32_t i = 0; i < run->n_lanes; i++) {
        if (run->lanes[i].id == id) {
            return &run->lanes[i];
        }
        if (run->lanes[i].id == HPS_REDIS_NOBODY) {
            lane = &run->lanes[i];
        }
    }
    if (!lane) {
        HPS_ASSERT(run->n_lanes < run->n_lanes_max);
        lane = &run->lanes[run->n_lanes++];
    }
    lane_clear(lane, id);
    lane->node = run->cluster->nodes[id];
    return lane;
}

static void lane_fail_all(struct lane *lane, hps_status status, const char *why)
{
    for (struct hps_redis_command *c = lane->first; c; c = c->next) {
        finish(c, status, why);
    }
    lane->first = NULL;
}

static void lane_start(const struct run *run, struct lane *lane)
{
    HPS_ASSERT(is_active(lane) && lane->first != NULL);
    for (struct hps_redis_command *c = lane->first; c; c = c->next) {
        state_set(c, SENT);
        lane->quick = lane->quick || (c->flags & HPS_REDIS_QUICK);
    }
    lane->quick = lane->quick || run->deadline_us == UINT64_MAX;
    lane->writing = lane->reading = lane->first;
    lane->since_us = run->alive_us;
    lane->started_us = lane->alive_us = hps_clock_us();
}

/* Get a connection for the lane, finish its commands, or leave them waiting. */
static void lane_open(struct run *run, struct lane *lane)
{
    struct hps_redis_node *node = lane->node;
    char why[HPS_REDIS_ERROR_MAX];

    HPS_ASSERT(!is_active(lane));
    if (!hps_breaker_up(node->breaker)) {
        snprintf(why, sizeof(why), "node %.150s is down: %.120s", node->text, node->stats.error);
        for (const struct hps_redis_command *c = lane->first; c; c = c->next) {
            node->stats.n_refused++;
        }
        lane_fail_all(lane, HPS_UNAVAILABLE, why);
        return;
    }
    uint64_t now_us = hps_clock_us();
    bool late = now_us >= run_end_us(run); /* a command sent now would be given up at once */
    if (!late && hps_redis_node_checkout(node, &lane->link)) {
        lane_start(run, lane);
        return;
    }
    if (node->n_live == 0 && node->made_bad_us >= run->started_us) {
        snprintf(why, sizeof(why), "node %.150s: %.120s", node->text, node->stats.error);
        lane_fail_all(lane, HPS_UNAVAILABLE, why);
        return;
    }
    if (!late) {
        return; /* keep waiting */
    }
    bool nothing = node->n_live == 0;
    snprintf(why, sizeof(why), "node %.150s: no connection in time (%s)", node->text,
             nothing ? "the node does not answer" : "all connections are in use");
    if (nothing) {
        node->stats.n_timeouts++;
        hps_redis_node_account(run->cluster, node, HPS_DEADLINE, now_us - run->started_us, why);
    }
    lane_fail_all(lane, HPS_DEADLINE, why);
}

/* Make commands PENDING again once their retry is due. */
static void retry(struct run *run)
{
    if (run->retry_at_us == 0 || hps_clock_us() < run->retry_at_us) {
        return;
    }
    run->retry_us = 2 * run->retry_us < RETRY_US_MAX ? 2 * run->retry_us : RETRY_US_MAX;
    run->retry_at_us = 0;
    for (uint32_t i = 0; i < run->n; i++) {
        if (state_of(&run->commands[i]) == LATER) {
            state_set(&run->commands[i], PENDING);
        }
    }
}

/* Put pending commands into lanes, unless the lane of their node is active. */
static void lay(struct run *run)
{
    for (uint32_t i = 0; i < run->n; i++) {
        struct hps_redis_command *command = &run->commands[i];
        if (state_of(command) != PENDING) {
            run->waiting = run->waiting || state_of(command) == LATER;
            continue;
        }
        int16_t id = target_of(run, command);
        struct lane *lane = id < 0 ? NULL : lane_of(run, id);
        if (!lane || is_active(lane)) {
            run->waiting = run->waiting || state_of(command) == PENDING;
            continue;
        }
        command->next = NULL;
        command->target = id;
        if (lane->last) {
            lane->last->next = command;
        } else {
            lane->first = command;
        }
        lane->last = command;
    }
}

static bool any_active(const struct run *run)
{
    for (uint32_t i = 0; i < run->n_lanes; i++) {
        if (is_active(&run->lanes[i])) {
            return true;
        }
    }
    return false;
}

/* False: nothing is left to do. */
static bool plan(struct run *run)
{
    hps_lock_assert_held(&run->cluster->lock);
    if (run->waiting) {
        for (uint32_t i = 0; i < run->n_lanes; i++) {
            if (!is_active(&run->lanes[i])) {
                run->lanes[i].id = HPS_REDIS_NOBODY;
            }
        }
        retry(run);
        run->waiting = false;
        lay(run);
        for (uint32_t i = 0; i < run->n_lanes; i++) {
            struct lane *lane = &run->lanes[i];
            if (lane->id != HPS_REDIS_NOBODY && !is_active(lane)) {
                lane_open(run, lane);
                run->waiting = run->waiting || (!is_active(lane) && lane->first);
            }
        }
    }
    return run->waiting || any_active(run);
}

/* Count lanes without a connection as waiting for their node (want), or no longer. Wakes the
 * cluster's thread to open connections. */
static void lanes_want(struct run *run, bool want)
{
    bool wake = false;
    hps_lock_assert_held(&run->cluster->lock);
    for (uint32_t i = 0; i < run->n_lanes; i++) {
        struct lane *lane = &run->lanes[i];
        if (lane->id == HPS_REDIS_NOBODY || is_active(lane) || !lane->first) {
            continue;
        }
        if (!want) {
            HPS_ASSERT(lane->node->n_waiting > 0);
            lane->node->n_waiting--;
            continue;
        }
        lane->node->n_waiting++;
        wake = wake || hps_redis_links_wanted(run->cluster, lane->node) > 0;
    }
    if (wake) {
        hps_redis_maintenance_wake(run->cluster);
    }
}

/* No lane is active: wait for a connection, the map, or a retry that is due. */
static void wait_for_change(struct run *run)
{
    struct hps_redis_cluster *cluster = run->cluster;
    uint64_t until_us = run_end_us(run);
    if (run->retry_at_us != 0 && run->retry_at_us < until_us) {
        until_us = run->retry_at_us;
    }
    cluster->n_waiting++;
    hps_cond_wait_until(&cluster->changed, &cluster->lock, until_us);
    cluster->n_waiting--;
}

/* ---- writing and reading: without the lock --------------------------------------------------- */

static void lane_broken(struct lane *lane, hps_status status, const char *why)
{
    lane->status = status;
    snprintf(lane->why, sizeof(lane->why), "node %.150s: %.120s", lane->node->text, why);
}

static size_t asking_size(const struct hps_redis_command *command)
{
    return command->state & MARK_ASK ? sizeof(asking) - 1 : 0;
}

/* The first pieces of the data that is still to be written. */
static int pieces_of(const struct lane *lane, struct iovec pieces[PIECES_MAX])
{
    size_t n_gone = lane->n_gone;
    int n = 0;
    for (const struct hps_redis_command *c = lane->writing; c && n + 2 <= PIECES_MAX; c = c->next) {
        size_t size = asking_size(c);
        if (n_gone < size) {
            pieces[n++] = (struct iovec){(char *)asking + n_gone, size - n_gone};
            n_gone = size;
        }
        n_gone -= size;
        pieces[n++] = (struct iovec){(char *)c->bytes + n_gone, c->size - n_gone};
        n_gone = 0;
    }
    return n;
}

static void lane_write(struct lane *lane)
{
    struct iovec pieces[PIECES_MAX];
    while (lane->writing) {
        size_t size = 0;
        int n = pieces_of(lane, pieces);
        hps_status status = hps_redis_conn_write(lane->link.conn, pieces, n, &size);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status != HPS_OK) {
            lane_broken(lane, HPS_UNAVAILABLE, "the connection broke");
            return;
        }
        lane->n_bytes_sent += size;
        lane->n_gone += size;
        while (lane->writing && lane->n_gone >= asking_size(lane->writing) + lane->writing->size) {
            lane->n_gone -= asking_size(lane->writing) + lane->writing->size;
            lane->writing = lane->writing->next;
        }
    }
}

static void lane_read(struct lane *lane)
{
    struct hps_error err = {0};
    while (lane->reading) {
        struct hps_redis_command *c = lane->reading;
        bool ask = (c->state & MARK_ASK) && !lane->reading_asked;
        hps_status status =
            hps_redis_conn_next(lane->link.conn, ask ? &lane->asked : &c->reply, &err);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status != HPS_OK) {
            lane_broken(lane, status == HPS_CLOSED ? HPS_UNAVAILABLE : status, err.text);
            return;
        }
        if (lane->first_reply_us == 0) {
            lane->first_reply_us = hps_clock_us();
        }
        lane->reading_asked = ask;
        if (!ask) {
            state_set(c, ANSWERED);
            lane->reading = c->next;
        }
    }
    if (lane->writing) {
        lane_broken(lane, HPS_IO, "a reply without a command");
    } else {
        lane->status = HPS_OK;
    }
}

static bool goes_on(const struct lane *lane)
{
    return is_active(lane) && lane->status == HPS_AGAIN;
}

static void lane_give_up(struct lane *lane)
{
    lane_broken(lane, HPS_DEADLINE, "no answer in time");
}

/* Wait until a lane can proceed, or end_us. Give up lanes past the run's deadline. */
static void lanes_poll(struct run *run, uint64_t now_us, uint64_t end_us)
{
    bool wait = true;
    for (uint32_t i = 0; i < run->n_lanes; i++) {
        struct lane *lane = &run->lanes[i];
        run->polls[i] = (struct pollfd){.fd = -1};
        if (!goes_on(lane)) {
            wait = wait && !is_active(lane);
            continue;
        }
        uint64_t lane_us = lane_end_us(run, lane);
        if (now_us >= run->deadline_us) {
            lane_give_up(lane);
            wait = false;
            continue;
        }
        run->polls[i].fd = hps_redis_conn_fd(lane->link.conn);
        run->polls[i].events = hps_redis_conn_events(lane->link.conn);
        end_us = lane_us < end_us ? lane_us : end_us;
    }
    uint64_t left_us = wait && end_us > now_us ? end_us - now_us : 0;
    struct timespec left = {.tv_sec = (time_t)(left_us / 1000000),
                            .tv_nsec = (long)(left_us % 1000000) * 1000};
    if (ppoll(run->polls, run->n_lanes, &left, NULL) < 0) {
        for (uint32_t i = 0; i < run->n_lanes; i++) {
            run->polls[i].revents = 0;
        }
    }
}

static void lane_go_on(struct lane *lane)
{
    uint64_t n_sent = lane->n_bytes_sent;
    uint64_t n_received = hps_redis_conn_bytes_received(lane->link.conn);
    lane_write(lane);
    if (lane->status == HPS_AGAIN) {
        lane_read(lane);
    }
    if (lane->n_bytes_sent > n_sent ||
        hps_redis_conn_bytes_received(lane->link.conn) > n_received) {
        lane->alive_us = hps_clock_us();
    }
}

/* Run until a lane is done, or waiting lanes should be checked. A lane past its time is given up
 * only after one more read: this thread may have been delayed, and data may have arrived. */
static void exchange(struct run *run)
{
    uint64_t end_us = run->waiting ? hps_clock_us() + LOOK_US : UINT64_MAX;
    bool any_through = false;

    HPS_ASSERT(any_active(run));
    for (uint32_t i = 0; i < run->n_lanes; i++) {
        struct lane *lane = &run->lanes[i];
        if (goes_on(lane) && lane->writing == lane->first && lane->n_gone == 0) {
            lane_write(lane);
        }
    }
    for (uint64_t now_us; !any_through && (now_us = hps_clock_us()) < end_us;) {
        lanes_poll(run, now_us, end_us);
        for (uint32_t i = 0; i < run->n_lanes; i++) {
            struct lane *lane = &run->lanes[i];
            if (goes_on(lane) && run->polls[i].revents != 0) {
                lane_go_on(lane);
            }
            if (goes_on(lane) && now_us >= lane_end_us(run, lane)) {
                lane_give_up(lane);
            }
            any_through = any_through || (is_active(lane) && !goes_on(lane));
        }
    }
}

/* ---- results: with the lock ------------------------------------------------------------------ */

static void again(struct run *run, struct hps_redis_command *command)
{
    int state = PENDING;
    run->waiting = true;
    if (++command->n_redirects > REDIRECTS_MAX) {
        char last[HPS_REDIS_ERROR_MAX];
        memcpy(last, command->reply.error, sizeof(last));
        snprintf(command->reply.error, sizeof(command->reply.error),
                 "redirected %d times; last reply: %.200s", REDIRECTS_MAX, last);
        command->reply.status = HPS_UNAVAILABLE;
        state = DONE;
    }
    state_set(command, state);
}

static void settle_redirect(struct run *run, struct hps_redis_command *command,
                            const struct hps_redis_redirect *redirect)
{
    struct hps_redis_cluster *cluster = run->cluster;
    int16_t node = hps_redis_node_find(cluster, &redirect->addr);

    if (node < 0) {
        state_set(command, DONE);
        return;
    }
    if (redirect->ask) {
        cluster->stats.n_ask++;
        command->state |= MARK_ASK;
        command->target = node;
    } else {
        cluster->stats.n_moved++;
        command->state |= MARK_MASTER;
        hps_redis_map_move(cluster, redirect->slot, node);
        hps_redis_refresh(cluster, node);
    }
    again(run, command);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Another configured server, since this one is a replica. */
static int16_t entry_after(const struct hps_redis_cluster *cluster, int16_t id)
{
    for (uint32_t k = 1; k < cluster->n_nodes; k++) {
        uint32_t i = ((uint32_t)id + k) % cluster->n_nodes;
        if (cluster->nodes[i]->entry) {
            return (int16_t)i;
        }
    }
    return HPS_REDIS_NOBODY;
}

/* Handle a reply. True: the node cannot serve anyone now. */
static bool settle_answer(struct run *run, const struct lane *lane,
                          struct hps_redis_command *command)
{
    struct hps_redis_cluster *cluster = run->cluster;
    const char *error = command->reply.error;
    struct hps_redis_redirect redirect;

    command->state &= (uint8_t)~MARK_ASK;
    state_set(command, DONE);
    if (command->reply.status == HPS_OK) {
        return false;
    }
    if (hps_redis_redirect_read(error, &lane->node->addr, &redirect)) {
        settle_redirect(run, command, &redirect);
        if (state_of(command) == DONE) {
            hps_redis_node_refused(lane->node, error); /* the redirection cannot be followed */
        }
        return false;
    }
    if (begins(error, "TRYAGAIN")) {
        cluster->stats.n_tryagain++;
        state_set(command, LATER); /* retried until the deadline, through ASK each time */
        command->n_redirects = 0;
        run->waiting = true;
        run->retry_at_us = run->retry_at_us ? run->retry_at_us : hps_clock_us() + run->retry_us;
        return false;
    }
    if (command->reply.status != HPS_NOT_FOUND) { /* NOSCRIPT is normal */
        hps_redis_node_refused(lane->node, error);
    }
    if (begins(error, "READONLY")) {
        hps_redis_refresh(cluster, entry_after(cluster, lane->id));
        return false;
    }
    bool down = begins(error, "LOADING") || begins(error, "CLUSTERDOWN");
    cluster->stats.n_down += down;
    if (begins(error, "CLUSTERDOWN")) {
        hps_redis_refresh(cluster, HPS_REDIS_NOBODY);
    }
    if (lane->node->master >= 0 && (down || begins(error, "MASTERDOWN"))) {
        command->state |= MARK_MASTER;
        again(run, command);
    }
    return down || begins(error, "MASTERDOWN") || begins(error, "BUSY");
}

/* Handle a missing reply: the lane broke or timed out. */
static void settle_silence(struct run *run, const struct lane *lane,
                           struct hps_redis_command *command, bool sent)
{
    bool from_replica = lane->node->master >= 0;
    bool may = !sent || !(command->flags & HPS_REDIS_ONCE);
    bool worth = lane->link.n_uses > 0 || from_replica; /* an idle connection may have been stale */

    command->maybe_done = command->maybe_done || sent;
    command->reply.status = lane->status;
    memcpy(command->reply.error, lane->why, sizeof(command->reply.error));
    state_set(command, DONE);
    if (lane->status == HPS_UNAVAILABLE && may && worth && hps_clock_us() < run_end_us(run)) {
        command->state |= from_replica ? MARK_MASTER : 0;
        again(run, command);
    }
}

static void count_rows(struct hps_redis_node_stats *stats, const struct hps_redis_rows *rows)
{
    for (; rows; rows = rows->more) {
        stats->n_rows += rows->n;
        stats->n_rows_found += rows->n_found;
    }
}

static void lane_settle(struct run *run, struct lane *lane)
{
    struct hps_redis_node_stats *stats = &lane->node->stats;
    bool begun = true;
    uint32_t n_commands = 0;
    bool useless = false;
    bool any_done = false;
    char error[HPS_REDIS_ERROR_MAX] = "";

    hps_lock_assert_held(&run->cluster->lock);
    HPS_ASSERT(is_active(lane) && lane->status != HPS_AGAIN);
    for (struct hps_redis_command *c = lane->first, *next; c; c = next) {
        next = c->next;
        begun = begun && (c != lane->writing || lane->n_gone > 0);
        n_commands++;
        if (state_of(c) == ANSWERED) {
            if (c->reply.status != HPS_OK) {
                memcpy(error, c->reply.error, sizeof(error));
            } else {
                count_rows(stats, c->reply.rows);
            }
            useless = settle_answer(run, lane, c) || useless;
            any_done = any_done || state_of(c) == DONE;
        } else {
            settle_silence(run, lane, c, begun);
        }
        begun = begun && c != lane->writing;
    }
    stats->n_commands += n_commands;
    stats->n_bytes_sent += lane->n_bytes_sent;
    if (lane->first_reply_us > 0) {
        uint64_t us = lane->first_reply_us - lane->started_us;
        stats->latency_us = stats->latency_us == 0 ? us : (15 * stats->latency_us + us) / 16;
    }
    stats->n_timeouts += lane->status == HPS_DEADLINE;
    uint64_t now_us = hps_clock_us();
    uint64_t duration_us = now_us - lane->alive_us;
    run->alive_us = any_done ? now_us : run->alive_us;
    if (lane->status == HPS_OK) {
        hps_redis_node_checkin(run->cluster, lane->node, lane->link);
        hps_redis_node_account(run->cluster, lane->node, useless ? HPS_UNAVAILABLE : HPS_OK,
                               duration_us, error);
    } else {
        hps_redis_node_broke(run->cluster, lane->node, lane->link);
        hps_redis_node_account(run->cluster, lane->node, lane->status, duration_us, lane->why);
    }
    lane_clear(lane, HPS_REDIS_NOBODY);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void run_all(struct run *run)
{
    struct hps_redis_cluster *cluster = run->cluster;

    hps_lock_acquire(&cluster->lock);
    while (plan(run)) {
        bool active = any_active(run);
        if (!active && hps_clock_us() >= run_end_us(run)) {
            break;
        }
        lanes_want(run, true);
        if (active) {
            hps_lock_release(&cluster->lock);
            exchange(run);
            hps_lock_acquire(&cluster->lock);
        } else {
            wait_for_change(run);
        }
        lanes_want(run, false);
        for (uint32_t i = 0; i < run->n_lanes; i++) {
            if (is_active(&run->lanes[i]) && !goes_on(&run->lanes[i])) {
                lane_settle(run, &run->lanes[i]);
            }
        }
    }
    hps_lock_release(&cluster->lock);
}

static hps_status run_begin(struct run *run)
{
    run->n_lanes_max = run->n < HPS_REDIS_NODES_MAX ? run->n : HPS_REDIS_NODES_MAX;
    char *block = hps_alloc(run->n_lanes_max * (sizeof(*run->lanes) + sizeof(*run->polls)));
    if (!block) {
        return HPS_NO_MEMORY;
    }
    run->lanes = (struct lane *)block;
    run->polls = (struct pollfd *)(run->lanes + run->n_lanes_max);
    run->waiting = true;
    run->retry_us = RETRY_US_FIRST;
    for (uint32_t i = 0; i < run->n; i++) {
        struct hps_redis_command *command = &run->commands[i];
        HPS_ASSERT(command->slot < HPS_REDIS_SLOTS && command->size > 0);
        command->reply.status = HPS_AGAIN;
        command->reply.error[0] = '\0';
        command->maybe_done = false;
        command->target = HPS_REDIS_NOBODY;
        command->n_redirects = 0;
        command->state = PENDING;
        run->quick = run->quick || (command->flags & HPS_REDIS_QUICK);
    }
    return HPS_OK;
}

hps_status hps_redis_cluster_run(struct hps_redis_cluster *cluster,
                                 struct hps_redis_command *commands, uint32_t n,
                                 uint64_t deadline_us)
{
    if (n == 0) {
        return HPS_OK;
    }
    uint64_t now_us = hps_clock_us();
    struct run run = {.cluster = cluster,
                      .commands = commands,
                      .n = n,
                      .started_us = now_us,
                      .alive_us = now_us,
                      .deadline_us = deadline_us ? deadline_us : UINT64_MAX,
                      .quick = deadline_us == 0};
    hps_status status = run_begin(&run);
    if (status == HPS_OK) {
        run_all(&run);
        hps_free(run.lanes);
    }
    hps_status first = HPS_OK;
    for (uint32_t i = 0; i < n; i++) {
        if (status != HPS_OK) {
            finish(&commands[i], status, "out of memory");
        } else if (state_of(&commands[i]) != DONE) {
            finish(&commands[i], HPS_DEADLINE,
                   commands[i].reply.error[0] ? commands[i].reply.error : "no answer in time");
        }
        HPS_ASSERT(commands[i].reply.status != HPS_AGAIN);
        first = first == HPS_OK ? commands[i].reply.status : first;
    }
    return first;
}
