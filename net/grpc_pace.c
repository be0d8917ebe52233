/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends connections and calls that read replies too slowly. Replies that a client does not read
 * occupy memory that other clients need, so a client must read at a minimum rate. A *reader* is a
 * connection with a full socket or a closed flow-control window, or a call with a closed window. A
 * call that waits only for other calls of its connection is no reader. A reader is ended if
 *
 *   - it read less than the minimum for 10 s: a tick of the loop ends it;
 *   - a reply finds no memory: each loop ends one reader that read less than the minimum since a
 *     sample, the one that would take longest to read the rest. If only the quota of one client is
 *     used up, only its connections are candidates. A search ends after 1 ms.
 *
 * Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

enum {
    PERIOD_US = 10 * 1000 * 1000,
    NOTE_US = 40 * 1000,      /* minimum time between two samples, also with shorter ticks */
    NOTED_US_MIN = 80 * 1000, /* less is too short to judge a client with a long round trip */
    SEARCH_US = 1000,
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

/* Whether bytes are queued, and only the client keeps them from being sent. */
static bool conn_waits(const struct grpc_conn *conn)
{
    return conn->http->queued > 0 && hps_http_is_limited(conn->http);
}

static bool call_sends(const struct hps_grpc_call *call)
{
    return call->reply->phase < GRPC_REPLY_RESET && call->stream->queued > 0;
}

static bool call_waits(const struct hps_grpc_call *call)
{
    return call_sends(call) && hps_http_stream_is_limited(call->stream);
}

/* The minimum rate of one call. Calls that send share the minimum of the connection equally. */
static uint64_t call_minimum(const struct grpc_conn *conn)
{
    uint64_t n_calls = 0;

    for (const struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        n_calls += call_sends(call);
    }
    return conn->grpc_loop->limits->reply_bytes_per_s_min / (n_calls > 0 ? n_calls : 1);
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
        grpc_pace_see(&call->reply->pace, call_waits(call), call->stream->framed, now_us);
    }
}

/* ---- ending readers -------------------------------------------------------------------------- */

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
        HPS_LOG_BY(hps_conn_client(conn->http->conn), WARN, "grpc",
                   "slow reader cut off: for 10 s it took its replies at less than "
                   "reply_bytes_per_s_min; have it read faster or ask for less at a time",
                   HPS_STR("peer", conn->peer), HPS_U64("bytes", bytes));
    } else {
        HPS_LOG_BY(hps_conn_client(conn->http->conn), WARN, "grpc",
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
    grpc_pace_rest(&call->reply->pace);
    grpc_call_stalled(call);
}

bool grpc_paces_check(struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t minimum = conn->grpc_loop->limits->reply_bytes_per_s_min;

    see(conn, now_us);
    if (grpc_is_noting(conn->grpc_loop)) {
        grpc_pace_note(&conn->pace, hps_http_written_bodies(conn->http));
    }
    if (grpc_pace_was_slow(&conn->pace, hps_http_written_bodies(conn->http), minimum, now_us)) {
        cut_conn(conn, HPS_GRPC_SLOW_RATE);
        return false;
    }
    minimum = call_minimum(conn);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        uint64_t framed = call->stream->framed;
        if (grpc_is_noting(conn->grpc_loop)) {
            grpc_pace_note(&call->reply->pace, framed);
        }
        if (grpc_pace_was_slow(&call->reply->pace, framed, minimum, now_us)) {
            cut_call(call, HPS_GRPC_SLOW_RATE);
        }
    }
    return true;
}

/* ---- samples --------------------------------------------------------------------------------- */

void grpc_pace_note(struct grpc_pace *pace, uint64_t taken)
{
    memmove(pace->noted + 1, pace->noted, sizeof pace->noted - sizeof pace->noted[0]);
    pace->noted[0] = taken;
}

void grpc_notes_begin(struct hps_grpc_loop *grpc_loop, uint64_t now_us)
{
    if (!grpc_is_noting(grpc_loop) && now_us - grpc_loop->noted_us[0] >= NOTE_US) {
        memmove(grpc_loop->noted_us + 1, grpc_loop->noted_us,
                sizeof grpc_loop->noted_us - sizeof grpc_loop->noted_us[0]);
        grpc_loop->noted_us[0] = 0;
    }
}

void grpc_notes_complete(struct hps_grpc_loop *grpc_loop)
{
    if (grpc_is_noting(grpc_loop)) {
        grpc_loop->noted_us[0] = hps_clock_us();
    }
}

/* ---- when there is no memory ----------------------------------------------------------------- */

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

bool grpc_search_goes_on(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what,
                         struct grpc_conn *conn, uint64_t from_us)
{
    bool goes_on = conn != NULL && hps_clock_us() - from_us <= SEARCH_US;

    grpc_loop->cut_next[what] = goes_on ? NULL : conn;
    return goes_on;
}

/* The time in which a reader would read `bytes` more, if it was slow since the sample; else 0. */
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

/* The slowest reader of a loop. */
struct slow {
    struct grpc_conn *conn;     /* NULL: no slow reader */
    struct hps_grpc_call *call; /* NULL: the connection itself */
    uint64_t left_us;           /* until it has read everything */
};

static void look_at_conn(struct grpc_conn *conn, int i, uint64_t now_us, struct slow *slowest)
{
    const struct hps_grpc_loop *grpc_loop = conn->grpc_loop;
    uint64_t noted_us = grpc_loop->noted_us[i];
    uint64_t minimum = grpc_loop->limits->reply_bytes_per_s_min;
    const struct grpc_pace *pace = &conn->pace;

    see(conn, now_us);
    if (pace->since_us != 0 && pace->since_us <= noted_us) {
        uint64_t left = left_us(pace, pace->noted[i], now_us - noted_us,
                                hps_http_written_bodies(conn->http), minimum, conn_bytes(conn));
        if (left > slowest->left_us) {
            *slowest = (struct slow){.conn = conn, .left_us = left};
        }
    }
    minimum = call_minimum(conn);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        pace = &call->reply->pace;
        if (pace->since_us == 0 || pace->since_us > noted_us) {
            continue;
        }
        uint64_t left = left_us(pace, pace->noted[i], now_us - noted_us, call->stream->framed,
                                minimum, call_bytes(call));
        if (left > slowest->left_us) {
            *slowest = (struct slow){.conn = conn, .call = call, .left_us = left};
        }
    }
}

void grpc_paces_cut(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what, uint64_t client)
{
    uint64_t now_us = hps_clock_us();
    int i = grpc_notes_usable(grpc_loop->noted_us, now_us);
    struct slow slowest = {0};

    if (i < 0 || grpc_loop->limits->reply_bytes_per_s_min == 0) {
        return;
    }
    struct grpc_conn *conn = grpc_search_begin(grpc_loop, what);
    for (; grpc_search_goes_on(grpc_loop, what, conn, now_us); conn = conn->next) {
        if (conn->http->ready && (client == 0 || conn->client == client)) {
            look_at_conn(conn, i, now_us, &slowest);
        }
    }
    if (slowest.call != NULL) {
        cut_call(slowest.call, HPS_GRPC_SLOW_ROOM);
    } else if (slowest.conn != NULL) {
        cut_conn(slowest.conn, HPS_GRPC_SLOW_ROOM);
    }
}
