/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast clients take their replies. What a client does not take is memory that others want, and
 * a byte now and then is no reason to leave it that. A reader is a connection whose socket or
 * window is full, or else a call whose own window is; what others of its connection keep waiting is
 * not to blame. It is cut off
 *
 *   - by its loop's tick, when it took less than the minimum for 10 s;
 *   - in a search through all loops, when an answer somewhere would have to be refused for want of
 *     memory: the one that took less than the minimum of late, and that at this pace would be the
 *     last to have taken all.
 *
 * Loop thread of the connection; the search goes from loop to loop as a task.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"

enum {
    PERIOD_US = 10 * 1000 * 1000,
    NOTE_US = 40 * 1000,      /* what is noted is not noted anew sooner */
    NOTED_US_MIN = 80 * 1000, /* a shorter time says little, where a round trip takes as long */
    SEARCH_US = 10 * 1000,    /* from the end of a search until the next one */
};

enum { SECOND_US = 1000 * 1000 };

/* ---- one reader ------------------------------------------------------------------------------ */

static uint64_t rate_of(uint64_t bytes, uint64_t us)
{
    return us > 0 ? bytes * SECOND_US / us : UINT64_MAX;
}

void grpc_pace_see(struct grpc_pace *pace, bool waits, uint64_t taken, uint64_t now_us)
{
    if (!waits) {
        grpc_pace_rest(pace);
    } else if (pace->since_us == 0) {
        *pace = (struct grpc_pace){.since_us = now_us, .period_us = now_us, .taken = taken};
    }
}

bool grpc_pace_was_slow(struct grpc_pace *pace, uint64_t taken, uint64_t bytes_per_s_min,
                        uint64_t now_us)
{
    uint64_t us = now_us - pace->period_us;

    if (pace->since_us == 0 || us < PERIOD_US) {
        return false;
    }
    bool slow = rate_of(taken - pace->taken, us) < bytes_per_s_min;
    pace->period_us = now_us;
    pace->taken = taken;
    return slow;
}

/* ---- connections and calls ------------------------------------------------------------------- */

/* Something is queued, and the reader alone keeps it from being sent. */
static bool conn_waits(const struct grpc_conn *conn)
{
    return conn->http->queued > 0 && hps_http_is_limited(conn->http);
}

static bool call_sends(const struct hps_grpc_call *call)
{
    return call->reply.phase < GRPC_REPLY_RESET && call->stream->queued > 0;
}

static bool call_waits(const struct hps_grpc_call *call)
{
    return call_sends(call) && hps_http_stream_is_limited(call->stream);
}

/* Of the minimum, what each of the calls must take that share a connection. */
static uint64_t call_minimum(const struct grpc_conn *conn)
{
    uint64_t n_calls = 0;

    for (const struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        n_calls += call_sends(call);
    }
    return conn->grpc_loop->limits.reply_bytes_per_s_min / (n_calls > 0 ? n_calls : 1);
}

static size_t conn_bytes(const struct grpc_conn *conn)
{
    size_t queued = conn->http->queued;
    size_t held = conn->account != NULL ? hps_account_used(conn->account, HPS_LIMIT_REPLIES) : 0;

    return held > queued ? held : queued;
}

static size_t call_bytes(const struct hps_grpc_call *call)
{
    size_t queued = call->stream->queued;
    size_t held = atomic_load(&call->charge.held[HPS_LIMIT_REPLIES]);

    return held > queued ? held : queued;
}

static void see(struct grpc_conn *conn, uint64_t now_us)
{
    grpc_pace_see(&conn->pace, conn_waits(conn), hps_http_written_bodies(conn->http), now_us);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        grpc_pace_see(&call->pace, call_waits(call), call->stream->framed, now_us);
    }
}

/* ---- cutting off ----------------------------------------------------------------------------- */

void grpc_slow_count(const struct grpc_conn *conn, enum hps_grpc_slow why)
{
    const struct hps_grpc_observer *observer = &conn->grpc_loop->server->observer;

    if (observer->on_slow != NULL) {
        observer->on_slow(observer->ctx, why);
    }
}

static void tell(const struct grpc_conn *conn, enum hps_grpc_slow why, size_t bytes)
{
    if (why == HPS_GRPC_SLOW_RATE) {
        HPS_LOG_BY(hps_conn_client(hps_http_conn(conn->http)), WARN, "grpc",
                   "slow reader cut off: for 10 s it took its replies at less than "
                   "reply_bytes_per_s_min; have it read faster or ask for less at a time",
                   HPS_STR("peer", conn->peer), HPS_U64("bytes", bytes));
    } else {
        HPS_LOG_BY(hps_conn_client(hps_http_conn(conn->http)), WARN, "grpc",
                   "slow reader cut off: it took its replies at less than reply_bytes_per_s_min "
                   "while there was no memory for those of others; have it read faster or ask for "
                   "less at a time",
                   HPS_STR("peer", conn->peer), HPS_U64("bytes", bytes));
    }
    grpc_slow_count(conn, why);
}

static void cut_conn(struct grpc_conn *conn, enum hps_grpc_slow why)
{
    tell(conn, why, conn_bytes(conn));
    grpc_pace_rest(&conn->pace);
    hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "the peer reads too slowly");
}

static void cut_call(struct hps_grpc_call *call, enum hps_grpc_slow why)
{
    tell(call->conn, why, call_bytes(call));
    grpc_pace_rest(&call->pace);
    grpc_call_stalled(call);
}

bool grpc_paces_check(struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t minimum = conn->grpc_loop->limits.reply_bytes_per_s_min;

    if (minimum == 0) {
        return true;
    }
    see(conn, now_us);
    if (grpc_pace_was_slow(&conn->pace, hps_http_written_bodies(conn->http), minimum, now_us)) {
        cut_conn(conn, HPS_GRPC_SLOW_RATE);
        return false;
    }
    minimum = call_minimum(conn);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        uint64_t framed = call->stream->framed;
        if (grpc_pace_was_slow(&call->pace, framed, minimum, now_us)) {
            cut_call(call, HPS_GRPC_SLOW_RATE);
        }
    }
    return true;
}

/* ---- notes: how far readers were a moment ago ------------------------------------------------ */

void grpc_pace_note(struct grpc_pace *pace, uint64_t taken)
{
    memmove(pace->noted + 1, pace->noted, sizeof pace->noted - sizeof pace->noted[0]);
    pace->noted[0] = taken;
}

static void note(struct hps_grpc_loop *grpc_loop)
{
    uint64_t now_us = hps_clock_us();

    if (grpc_loop->noted_us[0] != 0 && now_us - grpc_loop->noted_us[0] < NOTE_US) {
        return;
    }
    memmove(grpc_loop->noted_us + 1, grpc_loop->noted_us,
            sizeof grpc_loop->noted_us - sizeof grpc_loop->noted_us[0]);
    grpc_loop->noted_us[0] = now_us;
    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        if (!hps_http_is_ready(conn->http)) {
            continue;
        }
        see(conn, now_us);
        grpc_pace_note(&conn->pace, hps_http_written_bodies(conn->http));
        for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
            grpc_pace_note(&call->pace, call->stream->framed);
        }
    }
}

static void run_note(struct hps_task *task)
{
    struct hps_grpc_loop *grpc_loop = HPS_CONTAINER_OF(task, struct hps_grpc_loop, note);

    atomic_store(&grpc_loop->note_posted, false);
    if (grpc_loop->phase != GRPC_LOOP_FREED) {
        note(grpc_loop);
    }
    grpc_loop_unref(grpc_loop);
}

void hps_grpc_readers_watch(struct hps_grpc_call *call)
{
    struct hps_grpc_server *server = call->grpc_loop->server;
    uint64_t now_us = hps_loop_now_us(call->loop);
    uint64_t watched_us = atomic_load_explicit(&server->watched_us, memory_order_relaxed);

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (call->grpc_loop->limits.reply_bytes_per_s_min == 0 ||
        (now_us >= watched_us && now_us - watched_us < NOTE_US)) {
        return;
    }
    atomic_store_explicit(&server->watched_us, now_us, memory_order_relaxed);
    for (struct hps_grpc_loop *at = server->loops; at != NULL; at = at->next) {
        if (!atomic_exchange(&at->note_posted, true)) {
            atomic_fetch_add_explicit(&at->refs, 1, memory_order_relaxed);
            hps_loop_post(at->loop, &at->note);
        }
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

int grpc_notes_usable(const uint64_t *noted_us, uint64_t now_us)
{
    for (int i = 0; i < GRPC_NOTES; i++) {
        uint64_t at_us = noted_us[i];
        if (at_us != 0 && now_us - at_us >= NOTED_US_MIN) {
            return i;
        }
    }
    return -1;
}

/* How long a reader would take for `bytes` more, if it was slow since the notes; 0: it was not. */
static uint64_t left_us(const struct grpc_pace *pace, uint64_t noted, uint64_t us, uint64_t taken,
                        uint64_t bytes_per_s_min, size_t bytes)
{
    HPS_ASSERT(pace->since_us != 0 && taken >= noted);
    uint64_t bytes_per_s = rate_of(taken - noted, us);
    if (bytes_per_s >= bytes_per_s_min) {
        return 0;
    }
    return bytes < UINT64_MAX / SECOND_US ? bytes * SECOND_US / (bytes_per_s + 1) : UINT64_MAX;
}

static void look_at_conn(struct grpc_conn *conn, int i, uint64_t now_us, struct grpc_slow *slowest)
{
    const struct hps_grpc_loop *grpc_loop = conn->grpc_loop;
    uint64_t noted_us = grpc_loop->noted_us[i];
    uint64_t minimum = grpc_loop->limits.reply_bytes_per_s_min;
    const struct grpc_pace *pace = &conn->pace;

    see(conn, now_us);
    if (pace->since_us != 0 && pace->since_us <= noted_us) {
        uint64_t left = left_us(pace, pace->noted[i], now_us - noted_us,
                                hps_http_written_bodies(conn->http), minimum, conn_bytes(conn));
        if (left > slowest->measure) {
            *slowest = (struct grpc_slow){.conn = conn, .measure = left};
        }
    }
    minimum = call_minimum(conn);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        pace = &call->pace;
        if (pace->since_us == 0 || pace->since_us > noted_us) {
            continue;
        }
        uint64_t left = left_us(pace, pace->noted[i], now_us - noted_us, call->stream->framed,
                                minimum, call_bytes(call));
        if (left > slowest->measure) {
            *slowest = (struct grpc_slow){.conn = conn, .call = call, .measure = left};
        }
    }
}

/* The measure is the time until it would have taken all. */
static struct grpc_slow find_reader(struct hps_grpc_loop *grpc_loop)
{
    uint64_t now_us = hps_clock_us();
    int i = grpc_notes_usable(grpc_loop->noted_us, now_us);
    struct grpc_slow slowest = {0};

    if (i < 0 || grpc_loop->limits.reply_bytes_per_s_min == 0) {
        return slowest;
    }
    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        if (hps_http_is_ready(conn->http)) {
            look_at_conn(conn, i, now_us, &slowest);
        }
    }
    return slowest;
}

static void cut_reader(const struct grpc_slow *slow)
{
    if (slow->call != NULL) {
        cut_call(slow->call, HPS_GRPC_SLOW_ROOM);
    } else {
        cut_conn(slow->conn, HPS_GRPC_SLOW_ROOM);
    }
}

static void search_end(struct hps_grpc_server *server)
{
    atomic_store_explicit(&server->search.ended_us, hps_clock_us(), memory_order_relaxed);
    atomic_store_explicit(&server->search.under_way, false, memory_order_release);
}

/* Go on at that loop. */
static void search_go(struct hps_grpc_server *server, struct hps_grpc_loop *to)
{
    server->search.at = to;
    hps_loop_post(to->loop, &server->search.task);
}

static void run_cut(struct hps_task *task)
{
    struct hps_grpc_server *server = HPS_CONTAINER_OF(task, struct hps_grpc_server, search.task);

    if (server->search.at != NULL) {
        struct grpc_slow slowest = server->search.what->find(server->search.at);
        if (slowest.conn != NULL) {
            server->search.what->cut(&slowest);
        }
    }
    search_end(server);
}

static void run_search(struct hps_task *task)
{
    struct hps_grpc_server *server = HPS_CONTAINER_OF(task, struct hps_grpc_server, search.task);
    struct hps_grpc_loop *at = server->search.at;

    if (at == NULL) { /* it was freed: the server ends */
        search_end(server);
        return;
    }
    struct grpc_slow slowest = server->search.what->find(at);
    if (slowest.measure > server->search.slowest) {
        server->search.slowest = slowest.measure;
        server->search.slowest_at = at;
    }
    if (at->next != NULL) {
        search_go(server, at->next);
    } else if (server->search.slowest_at != NULL) {
        task->run = run_cut;
        search_go(server, server->search.slowest_at);
    } else {
        search_end(server);
    }
}

void grpc_search_begin(struct hps_grpc_server *server, const struct grpc_search *what)
{
    uint64_t ended_us = atomic_load_explicit(&server->search.ended_us, memory_order_relaxed);
    uint64_t now_us = hps_clock_us();

    if (server->loops == NULL ||
        (ended_us != 0 && now_us >= ended_us && now_us - ended_us < SEARCH_US) ||
        atomic_exchange_explicit(&server->search.under_way, true, memory_order_acquire)) {
        return;
    }
    server->search.what = what;
    server->search.slowest_at = NULL;
    server->search.slowest = 0;
    server->search.task.run = run_search;
    search_go(server, server->loops);
}

void hps_grpc_readers_cut(struct hps_grpc_call *call)
{
    static const struct grpc_search readers = {.find = find_reader, .cut = cut_reader};

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (call->grpc_loop->limits.reply_bytes_per_s_min > 0) {
        grpc_search_begin(call->grpc_loop->server, &readers);
    }
}

/* ---- loops of a server ----------------------------------------------------------------------- */

void grpc_paces_init(struct hps_grpc_loop *grpc_loop)
{
    grpc_loop->note.run = run_note;
    atomic_init(&grpc_loop->note_posted, false);
    grpc_loop->next = grpc_loop->server->loops;
    grpc_loop->server->loops = grpc_loop;
}

void grpc_paces_fini(struct hps_grpc_loop *grpc_loop)
{
    struct hps_grpc_server *server = grpc_loop->server;
    struct hps_grpc_loop **at = &server->loops;

    while (*at != grpc_loop) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = grpc_loop->next;
    if (server->search.at == grpc_loop) {
        server->search.at = NULL;
    }
    if (server->search.slowest_at == grpc_loop) {
        server->search.slowest_at = NULL;
    }
}
