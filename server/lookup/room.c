/* SPDX-License-Identifier: Apache-2.0
 *
 * A request waits for room for its reply, for bounded times: first in the line of its connection,
 * whose replies may take so much together (hps_grpc_call_charge), then among all: the loop's side
 * of admission.h. On the loop thread of the connection, but for on_granted.
 */
#include <inttypes.h>

#include "server/lookup/internal.h"

enum {
    /* Of a look-up's arena: keys twice, slots, set, duplicates, status, marks of the stream. Beside
     * narrow rows this is most of what a look-up holds. */
    WORK_BYTES_PER_KEY = 50,
    WORK_BYTES_PER_WEIGHT = 4,
    WORK_BYTES_PER_BAG = 5, /* where it begins, and whether it is whole */
    /* One that waits has its version pinned, and nobody but its own client is in its way. */
    CONN_WAIT_US_MAX = 10 * 1000 * 1000,
    /* So often who waits among all has it noted how far readers are. */
    LOOK_US = 40 * 1000,
    /* So long before such a wait is over, or for the last half of it, slow readers give way. */
    CUT_US = 100 * 1000,
};

/* The wait for room is over. */
static void on_admitted(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    request_turn_begin(request);
    HPS_ASSERT(request->phase == PHASE_ROOM);
    if (request->call.closed) {
        request->phase = PHASE_ENDED;
    } else {
        request_arrive(request);
        request_start(request);
    }
    request_turn_end(request);
}

/* Any thread. */
static void on_granted(struct hps_admission_ticket *ticket)
{
    struct request *request = HPS_CONTAINER_OF(ticket, struct request, room.ticket);

    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request->task.run = on_admitted;
    request_to_loop(request, &request->task);
}

static uint64_t room_bytes(const struct request_room *room)
{
    return room->reply_bytes + room->work_bytes;
}

/* Of the look-up's arena. */
static uint64_t arena_bytes(const struct hps_lookup *lookup)
{
    uint64_t bytes = lookup->n_keys * WORK_BYTES_PER_KEY;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        bytes += part->weights == NULL ? 0 : (uint64_t)part->n_keys * WORK_BYTES_PER_WEIGHT;
        bytes += part->offsets == NULL ? 0 : (uint64_t)part->n_bags * WORK_BYTES_PER_BAG;
    }
    return bytes;
}

uint64_t request_pooled_bytes(const struct hps_lookup *lookup)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        if (part->pooling != HPS_POOLING_NONE) {
            bytes += (uint64_t)part->n_keys * part->table->row_bytes;
        }
    }
    return bytes;
}

/* Rows that are added may be far more than what they come to: what a reply may have at most holds
 * for both together. */
static void measure(const struct request *request, struct request_room *room)
{
    const struct hps_lookup *lookup = &request->lookup;
    uint64_t pooled = request_pooled_bytes(lookup);
    uint64_t n_tries = lookup->unit ? HPS_LOOKUP_TRIES_MAX : 1;
    uint64_t work = n_tries * (arena_bytes(lookup) + hps_lookup_scratch_bytes(lookup));

    room->reply_bytes = request->front->bytes_max(request->asked, lookup) + pooled;
    room->work_bytes = work > pooled ? work - pooled : 0;
}

/* Wait on, in PHASE_ROOM, until it is time to look at readers again, or late. */
static void wait_on(struct request *request)
{
    uint64_t look_us = hps_loop_now_us(request->loop) + LOOK_US;
    uint64_t late_us = request->room.late_us;

    hps_grpc_readers_watch(request->call.grpc);
    hps_timer_set(request->loop, &request->timer, look_us < late_us ? look_us : late_us);
}

/* It counts against its connection: ask for room among all. */
static void ask_admission(struct request *request)
{
    struct hps_lookup_service *service = request->service;
    struct request_room *room = &request->room;
    struct hps_error err;
    bool held = false;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    hps_stages_enter(&request->stages, HPS_STAGE_ADMISSION);
    room->wait_us_max = atomic_load(&service->queue_us_max);
    room->ticket.client = hps_grpc_call_client(request->call.grpc);
    room->ticket.on_granted = on_granted;
    hps_status status = hps_admission_ask(service->parts.admission, &room->ticket,
                                          room->reply_bytes, room->work_bytes, &held, &err);
    if (status == HPS_OK && held) {
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        request_start(request);
    } else if (status == HPS_OK) {
        request->phase = PHASE_ROOM;
        room->late_us = hps_loop_now_us(request->loop) + room->wait_us_max;
        wait_on(request);
    } else if (status == HPS_RANGE) { /* no use in trying again */
        err.status = HPS_EXHAUSTED;
        hps_metric_add(service->parts.metrics->rejected[HPS_REJECT_REPLY_BYTES], 1);
        request_fail(request, &err);
    } else {
        hps_grpc_readers_watch(request->call.grpc);
        hps_grpc_readers_cut(request->call.grpc); /* for those who come next */
        request_reject(request, HPS_REJECT_QUEUE, &err);
    }
}

/* Those of its connection that stand in line have as many keys in memory as they may. */
static void refuse_to_stand(struct request *request)
{
    struct hps_error err;

    hps_error_set(&err, HPS_EXHAUSTED,
                  "look-up rejected: no room for a reply that takes %" PRIu64
                  " bytes beside the others "
                  "of its connection (connection_reply_bytes), and no memory to have its keys wait "
                  "for that; read replies faster, or ask for fewer at a time",
                  room_bytes(&request->room));
    request_reject(request, HPS_REJECT_CONNECTION, &err);
}

void request_ask_room(struct request *request)
{
    struct request_room *room = &request->room;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    measure(request, room);
    if (!request_charge_quota(request, room_bytes(room))) {
        return;
    }
    hps_status status =
        hps_grpc_call_charge(request->call.grpc, room_bytes(room), hps_arena_used(request->arena));
    if (status == HPS_OK) {
        ask_admission(request);
        return;
    }
    if (status != HPS_AGAIN) {
        refuse_to_stand(request);
        return;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_ADMISSION);
    request->phase = PHASE_CONN;
    hps_timer_set_after(request->loop, &request->timer, CONN_WAIT_US_MAX);
}

void request_room_charged(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_CONN);
    request_arrive(request);
    ask_admission(request);
}

void request_conn_late(struct request *request)
{
    struct hps_error err;

    HPS_ASSERT(request->phase == PHASE_CONN);
    request_arrive(request);
    hps_error_set(&err, HPS_EXHAUSTED,
                  "look-up rejected: no room for a reply that takes %" PRIu64
                  " bytes beside the others "
                  "of its connection within %d s (connection_reply_bytes); read replies faster, or "
                  "ask for fewer at a time",
                  room_bytes(&request->room), CONN_WAIT_US_MAX / 1000000);
    request_reject(request, HPS_REJECT_CONNECTION, &err);
}

/* The wait is over. */
static void refuse_late(struct request *request)
{
    struct hps_lookup_service *service = request->service;
    struct hps_error err;

    if (!hps_admission_cancel(service->parts.admission, &request->room.ticket)) {
        return; /* let in meanwhile: on_admitted is on its way */
    }
    request_arrive(request);
    hps_error_set(&err, HPS_EXHAUSTED,
                  "look-up rejected: no room for a reply that takes %" PRIu64
                  " bytes within %" PRIu64 " us, beside %" PRIu64
                  " bytes in flight (reply_bytes_in_flight); retry later",
                  request->room.ticket.bytes, request->room.wait_us_max,
                  hps_admission_bytes(service->parts.admission));
    request_reject(request, HPS_REJECT_QUEUE, &err);
}

void request_room_on_timer(struct request *request)
{
    const struct request_room *room = &request->room;
    uint64_t now_us = hps_loop_now_us(request->loop);

    HPS_ASSERT(request->phase == PHASE_ROOM);
    if (now_us >= room->late_us) {
        refuse_late(request);
        return;
    }
    if (room->late_us - now_us <= CUT_US || room->late_us - now_us <= room->wait_us_max / 2) {
        hps_grpc_readers_cut(request->call.grpc);
    }
    wait_on(request);
}

void request_room_close(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_ROOM);
    if (hps_admission_cancel(request->service->parts.admission, &request->room.ticket)) {
        request->phase = PHASE_ENDED;
    } /* else on_admitted is on its way */
}
