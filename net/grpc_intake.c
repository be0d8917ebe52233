/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses requests that clients send too slowly. An incomplete request occupies memory that other
 * clients need, so a client must send at a minimum rate. A request is refused if the server waits
 * only for its client, and
 *
 *   - the client sent less than the minimum for 10 s: a tick of the loop refuses the request;
 *   - another request finds no memory: each loop refuses the slow requests of one connection, the
 *     one with most memory in slow requests. If only the quota of one client is used up, only its
 *     connections are candidates. A search ends after 1 ms.
 *
 * Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

enum { SECOND_US = 1000 * 1000 };

/* Whether the server waits only for the client: the request is incomplete, and the flow-control
 * window is open. */
static bool call_waits(const struct hps_grpc_call *call)
{
    if (call->request->phase != GRPC_REQUEST_OPEN && call->request->phase != GRPC_REQUEST_WHOLE) {
        return false;
    }
    bool between = call->entry->method->client_streaming && /* messages: no minimum rate */
                   hps_grpc_decoder_idle(&call->request->decoder);
    return !between && call->request->stash.size == 0 && !call->conn->withheld;
}

/* The minimum rate of one call. Incomplete requests of a connection share the minimum equally. */
static uint64_t call_minimum(const struct grpc_conn *conn)
{
    uint64_t n_calls = 0;

    for (const struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        n_calls += call_waits(call);
    }
    return conn->grpc_loop->limits->request_bytes_per_s_min / (n_calls > 0 ? n_calls : 1);
}

static void refuse(struct hps_grpc_call *call, enum hps_grpc_slow why)
{
    uint64_t minimum = call->grpc_loop->limits->request_bytes_per_s_min;

    HPS_LOG_BY(
        hps_grpc_call_client(call), WARN, "grpc",
        "slow request refused: it came at less than request_bytes_per_s_min; send it faster, "
        "or fewer at a time",
        HPS_STR("peer", call->conn->peer), HPS_U64("bytes", call->request->counted));
    grpc_slow_count(call->conn, why);
    grpc_call_refuse(call, HPS_EXHAUSTED,
                     "the request came at less than %" PRIu64 " bytes a second%s", minimum,
                     why == HPS_GRPC_SLOW_SEND_ROOM ? " while there was no memory for others" : "");
}

void grpc_intakes_check(struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t minimum = call_minimum(conn);

    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        struct grpc_pace *pace = &call->request->pace;
        grpc_pace_see(pace, call_waits(call), call->request->received, now_us);
        if (grpc_is_noting(conn->grpc_loop)) {
            grpc_pace_note(pace, call->request->received);
        }
        if (grpc_pace_was_slow(pace, call->request->received, minimum, now_us)) {
            refuse(call, HPS_GRPC_SLOW_SEND_RATE);
        }
    }
}

/* ---- when there is no memory ----------------------------------------------------------------- */

/* Whether the server waited for the request during all the time since sample i, and the client sent
 * less than `minimum` in this time. */
static bool is_slow(const struct hps_grpc_call *call, int i, uint64_t minimum, uint64_t now_us)
{
    uint64_t noted_us = call->grpc_loop->noted_us[i];
    const struct grpc_pace *pace = &call->request->pace;

    if (!call_waits(call) || pace->since_us == 0 || pace->since_us > noted_us) {
        return false;
    }
    HPS_ASSERT(now_us > noted_us && call->request->received >= pace->noted[i]);
    return (call->request->received - pace->noted[i]) * SECOND_US / (now_us - noted_us) < minimum;
}

/* Bytes of the slow requests of a connection. cut: refuses these requests. */
static size_t slow_bytes(const struct grpc_conn *conn, int i, uint64_t now_us, bool cut)
{
    uint64_t minimum = call_minimum(conn);
    size_t bytes = 0;

    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        if (is_slow(call, i, minimum, now_us)) {
            bytes += call->request->counted;
            if (cut) {
                refuse(call, HPS_GRPC_SLOW_SEND_ROOM);
            }
        }
    }
    return bytes;
}

void grpc_intakes_cut(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what, uint64_t client)
{
    uint64_t now_us = hps_clock_us();
    int i = grpc_notes_usable(grpc_loop->noted_us, now_us);
    const struct grpc_conn *slowest = NULL;
    size_t most = 0;

    if (i < 0 || grpc_loop->limits->request_bytes_per_s_min == 0) {
        return;
    }
    struct grpc_conn *conn = grpc_search_begin(grpc_loop, what);
    for (; grpc_search_goes_on(grpc_loop, what, conn, now_us); conn = conn->next) {
        bool meant = client == 0 || conn->client == client;
        size_t bytes = meant ? slow_bytes(conn, i, now_us, false) : 0;
        if (bytes > most) {
            slowest = conn;
            most = bytes;
        }
    }
    if (slowest != NULL) {
        (void)slow_bytes(slowest, i, now_us, true);
    }
}
