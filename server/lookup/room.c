/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserves memory for the reply and the work of a request (hps_charge_wait). If there is not
 * enough, the request waits for a limited time. Loop thread of the connection, except on_granted.
 */
#include <inttypes.h>

#include "server/lookup/internal.h"

enum {
    /* Of a lookup's arena: keys twice, slots, set, duplicates, status, marks of the stream. If rows
     * are short, this is most of the memory of a lookup. */
    WORK_BYTES_PER_KEY = 50,
    WORK_BYTES_MIN = REQUEST_ARENA_BYTES + REQUEST_SCRATCH_BYTES,
    /* Of a request with a reply: the request and the minimum size of two blocks. */
    REPLY_BYTES_MIN = 2048 + 2 * 4096,
    WORK_BYTES_PER_WEIGHT = 4,
    WORK_BYTES_PER_BAG = 5, /* its offset, and whether it is complete */
    /* The maximum wait for memory of the connection, which only its own client can free. */
    CONNECTION_WAIT_US_MAX = 10 * 1000 * 1000,
    CONNECTION_LOOK_US = 1000 * 1000,
    /* How often a waiting request samples the progress of clients that read replies. */
    LOOK_US = 40 * 1000,
    /* Slow readers are ended during this time before the wait ends, or during its last half. */
    CUT_US = 100 * 1000,
};

static struct hps_charge *charge_of(const struct request *request)
{
    return hps_grpc_call_charge(request->call.grpc);
}

/* Bytes of the lookup's arena. */
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

/* The rows of pooled lookups may be much larger than the result. So reply_bytes_max limits the sum
 * of both. */
static uint64_t measure(const struct request *request, uint64_t *out_reply_bytes)
{
    const struct hps_lookup *lookup = &request->lookup;
    uint64_t pooled = request_pooled_bytes(lookup);
    uint64_t n_tries = lookup->unit ? HPS_LOOKUP_TRIES_MAX : 1;
    uint64_t work = n_tries * (arena_bytes(lookup) + hps_lookup_scratch_bytes(lookup));

    *out_reply_bytes = request->front->bytes_max(request->asked, lookup) + pooled;
    return *out_reply_bytes + REPLY_BYTES_MIN + WORK_BYTES_MIN +
           (work > pooled ? work - pooled : 0);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* While the request waits, the memory of its keys is charged as request memory. Later it is part of
 * the reserved memory. */
static void count_keys(struct request *request, uint64_t bytes)
{
    hps_charge_shrink(charge_of(request), HPS_LIMIT_REQUESTS, request->room.key_bytes);
    request->room.key_bytes = bytes;
}

static void arrive(struct request *request)
{
    request_arrive(request);
    count_keys(request, 0);
}

/* The memory is reserved. */
static void on_admitted(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    request_turn_begin(request);
    HPS_ASSERT(request->phase == PHASE_ROOM);
    request->room.held = request->room.wanted;
    if (request->call.closed) {
        request->phase = PHASE_ENDED;
    } else {
        arrive(request);
        request_start(request);
    }
    request_turn_end(request);
}

/* Any thread. */
static void on_granted(void *ctx)
{
    struct request *request = ctx;

    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request->task.run = on_admitted;
    request_to_loop(request, &request->task);
}

static void wait_on(struct request *request)
{
    struct request_room *room = &request->room;
    uint64_t now_us = hps_loop_now_us(request->loop);

    if (room->at_connection && charge_of(request)->state != HPS_CHARGE_WAITS_CONNECTION) {
        room->at_connection = false;
        room->late_us = now_us + room->wait_us_max;
    }
    if (!room->at_connection) {
        hps_grpc_readers_watch(request->call.grpc);
    }
    uint64_t look_us = now_us + (room->at_connection ? CONNECTION_LOOK_US : LOOK_US);
    hps_timer_set(request->loop, &request->timer,
                  look_us < room->late_us ? look_us : room->late_us);
}

static void cut_readers(struct request *request)
{
    enum hps_limit_scope scope =
        hps_charge_short_of(charge_of(request), HPS_LIMIT_REPLIES, request->room.wanted);

    hps_grpc_readers_cut(request->call.grpc, scope);
}

/* Ends the wait after wait_us, without memory. why: there is no memory for the keys; else NULL. */
static void give_up(struct request *request, uint64_t wait_us, const struct hps_error *why)
{
    enum hps_limit_scope scope;
    struct hps_error late;

    if (!hps_charge_cancel(charge_of(request), wait_us, &scope, &late)) {
        return; /* granted concurrently: on_admitted follows */
    }
    arrive(request);
    request_reject(request,
                   scope == HPS_SCOPE_CONNECTION ? HPS_REJECT_CONNECTION : HPS_REJECT_QUEUE,
                   why != NULL ? why : &late);
}

static void begin_wait(struct request *request)
{
    struct request_room *room = &request->room;
    uint64_t keys = hps_arena_used(request->arena);
    struct hps_error err;

    request->phase = PHASE_ROOM;
    room->wait_us_max = atomic_load(&request->service->queue_us_max);
    room->at_connection = true; /* wait_on corrects it if necessary */
    room->late_us = hps_loop_now_us(request->loop) + CONNECTION_WAIT_US_MAX;
    wait_on(request);
    if (hps_charge_grow(charge_of(request), HPS_LIMIT_REQUESTS, keys, &err) == HPS_OK) {
        room->key_bytes = keys;
    } else {
        cut_readers(request); /* for the requests that come next */
        give_up(request, 0, &err);
    }
}

void request_ask_room(struct request *request)
{
    struct request_room *room = &request->room;
    struct hps_charge *charge = charge_of(request);
    uint64_t reply_bytes_max = atomic_load(&request->service->reply_bytes_max);
    uint64_t reply_bytes;
    struct hps_error err;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    room->wanted = measure(request, &reply_bytes);
    room->reply = reply_bytes + REPLY_BYTES_MIN;
    if (reply_bytes > reply_bytes_max) {
        hps_metric_add(request->service->parts.metrics->rejected[HPS_REJECT_REPLY_BYTES], 1);
        hps_error_set(&err, HPS_EXHAUSTED,
                      "the reply and the rows that are added for it would have %" PRIu64
                      " bytes, limit is %" PRIu64 " (reply_bytes_max); ask for fewer keys",
                      reply_bytes, reply_bytes_max);
        request_fail(request, &err);
        return;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_ADMISSION);
    charge->on_granted = on_granted;
    charge->ctx = request;
    hps_status status = hps_charge_wait(charge, room->wanted, &err);
    if (status == HPS_OK) {
        room->held = room->wanted;
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        request_start(request);
    } else if (status == HPS_AGAIN) {
        begin_wait(request);
    } else {
        request_reject(request, HPS_REJECT_REPLY_QUOTA, &err);
    }
}

void request_room_on_timer(struct request *request)
{
    const struct request_room *room = &request->room;
    uint64_t left_us = room->late_us - hps_loop_now_us(request->loop);

    HPS_ASSERT(request->phase == PHASE_ROOM);
    if (room->late_us <= hps_loop_now_us(request->loop)) {
        give_up(request, room->at_connection ? CONNECTION_WAIT_US_MAX : room->wait_us_max, NULL);
        return;
    }
    if (!room->at_connection && (left_us <= CUT_US || left_us <= room->wait_us_max / 2)) {
        cut_readers(request);
    }
    wait_on(request);
}

void request_room_close(struct request *request)
{
    HPS_ASSERT(request->phase == PHASE_ROOM);
    count_keys(request, 0);
    if (hps_charge_cancel(charge_of(request), 0, NULL, NULL)) {
        request->phase = PHASE_ENDED;
    } /* else on_admitted follows */
}

void request_give_work(struct request *request)
{
    struct request_room *room = &request->room;

    if (request->gpu.left_version == NULL) { /* else a device may still use it */
        request_drop_message(request);
        hps_grpc_call_discharge(request->call.grpc, room->held - room->reply);
        room->held = room->reply;
    }
}

void request_give_room(struct request *request)
{
    hps_grpc_call_discharge(request->call.grpc, request->room.held);
    request->room.held = 0;
}
