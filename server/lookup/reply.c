/* SPDX-License-Identifier: Apache-2.0
 *
 * The answer to a look-up that is done: as one message, or as a stream of them of which few are
 * queued at a time; and why its keys got what they got, for a client that asked for it. On the loop
 * thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/lookup/internal.h"

enum { STREAM_QUEUED_LOW = 2 * HPS_STREAM_MESSAGE_BYTES_MAX, NOTES_MAX = 64 };

/* ---- explain --------------------------------------------------------------------------------- */

static const char *printed_note(struct hps_arena *arena, const char *table, const char *what,
                                uint32_t n, uint32_t of)
{
    char text[256];
    int size = snprintf(text, sizeof(text), "table '%s': %s %u of %u", table, what, n, of);

    return size < 0 ? NULL : hps_arena_strndup(arena, text, strlen(text));
}

static void add_note(struct hps_encode_explain *explain, const char **notes, const char *note)
{
    if (note != NULL && explain->n_notes < NOTES_MAX) {
        notes[explain->n_notes++] = note;
    }
}

/* NULL: the tier was not asked. */
static const char *tier_note(struct request *request, const struct hps_lookup_part *part,
                             const char *tier, const struct hps_tier_report *report)
{
    char what[64];

    if (report->n_asked == 0) {
        return NULL;
    }
    snprintf(what, sizeof(what), "%s (%s) found", tier, hps_status_text(report->status));
    return printed_note(request->arena, part->table->name, what, report->n_found - report->n_shared,
                        report->n_asked);
}

/* Why the keys of a part got what they got. */
static void explain_part(struct request *request, const struct hps_lookup_part *part,
                         struct hps_encode_explain *explain, const char **notes)
{
    const char *table = part->table->name;
    uint32_t n_shared = part->walk.n_shared_absent;
    char what[64];

    for (unsigned kind = 0; kind < HPS_TIER_COUNT && part->n_keys > 0; kind++) {
        const char *tier = hps_tier_name((enum hps_tier_kind)kind);
        const struct hps_tier_report *report = &part->walk.reports[kind];
        add_note(explain, notes, tier_note(request, part, tier, report));
        n_shared += report->n_shared;
    }
    if (n_shared > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "fetched by another look-up", n_shared,
                              part->n_unique));
    }
    if (part->n_unknown > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "in no tier", part->n_unknown, part->n_keys));
    }
    if (part->n_defaulted > 0) {
        snprintf(what, sizeof(what), "not waited for (%s)",
                 hps_defaulted_reason(request->lookup.miss_policy));
        add_note(explain, notes,
                 printed_note(request->arena, table, what, part->n_defaulted, part->n_keys));
    }
}

/* Explain of the answer; NULL if not asked for, or without memory for it. */
static const struct hps_encode_explain *make_explain(struct request *request)
{
    struct hps_encode_explain *explain = NULL;
    struct hps_encode_stage *stages = NULL;
    const char **notes = NULL;

    if (request->call.explain) {
        explain = hps_arena_calloc(request->arena, 1, sizeof(*explain));
        stages = hps_arena_calloc(request->arena, HPS_STAGE_ENCODE, sizeof(*stages));
        notes = hps_arena_calloc(request->arena, NOTES_MAX, sizeof(*notes));
    }
    if (explain == NULL || stages == NULL || notes == NULL) {
        return NULL;
    }
    for (unsigned i = 0; i < HPS_STAGE_ENCODE; i++) { /* those that have ended */
        stages[i].name = hps_stage_name(i);
        stages[i].duration_us = request->stages.us[i];
    }
    explain->stages = stages;
    explain->n_stages = HPS_STAGE_ENCODE;
    explain->notes = notes;
    if (hps_course_was_repeated(&request->course) || request->lookup.n_reread > 0) {
        add_note(explain, notes, "read again: updates came meanwhile");
    }
    for (uint32_t i = 0; i < request->lookup.n_parts; i++) {
        explain_part(request, &request->lookup.parts[i], explain, notes);
    }
    return explain;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void count_answer(struct request *request)
{
    const struct hps_lookup *lookup = &request->lookup;
    struct hps_slow_request *slow = &request->slow;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        slow->n_unique += lookup->parts[i].n_unique;
        slow->n_defaulted += lookup->parts[i].n_defaulted;
        slow->n_unknown += lookup->parts[i].n_unknown;
    }
}

static void finish_ok(struct request *request)
{
    request->call.code = 0;
    hps_grpc_call_finish(request->call.grpc, 0, NULL);
}

/* Send messages of the stream while little is queued; on_drained comes back for the rest. */
static void send_messages(struct request *request)
{
    while (!request->call.closed && request->call.code < 0 &&
           hps_grpc_call_queued(request->call.grpc) < STREAM_QUEUED_LOW) {
        if (hps_stream_done(request->reply.stream)) {
            finish_ok(request);
            return;
        }
        struct hps_encoded encoded;
        hps_status status = hps_stream_next(request->reply.stream, &encoded);
        if (status != HPS_OK) {
            struct hps_error err;
            hps_error_set(&err, status, "no memory for a message of the stream");
            request_fail(request, &err);
            return;
        }
        hps_grpc_call_send(request->call.grpc, encoded.slices, encoded.n_slices);
    }
}

/* Sending may lead to on_drained at once, which must not send out of order. */
void request_pump(struct request *request)
{
    if (!request->reply.pumping) {
        request->reply.pumping = true;
        send_messages(request);
        request->reply.pumping = false;
    }
}

static hps_status send_whole(struct request *request, const struct hps_encode_explain *explain)
{
    struct hps_encoded encoded;
    hps_status status = hps_encode_lookup(&request->lookup, explain, request->lookup.block,
                                          request->service->parts.blocks, request->arena, &encoded);

    if (status == HPS_OK) {
        hps_grpc_call_send(request->call.grpc, encoded.slices, encoded.n_slices);
    }
    return status;
}

void request_reply(struct request *request)
{
    hps_status status;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    HPS_ASSERT(!request->call.closed);
    request->phase = PHASE_REPLY; /* before the call hears of it, and may be over at once */
    hps_stages_enter(&request->stages, HPS_STAGE_ENCODE);
    request_name_work(request);
    count_answer(request);
    const struct hps_encode_explain *explain = make_explain(request);
    if (request->call.streaming) {
        status =
            hps_stream_new(&request->lookup, explain, request->lookup.block,
                           request->service->parts.blocks, request->arena, &request->reply.stream);
    } else {
        status = send_whole(request, explain);
    }
    request_unpin(request);
    request->reply.encoded = true;
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    if (status != HPS_OK) {
        struct hps_error err;
        hps_error_set(&err, status, "no memory to encode %" PRIu64 " keys", request->lookup.n_keys);
        request_fail(request, &err);
    } else if (request->call.streaming) {
        request_pump(request);
    } else {
        finish_ok(request);
    }
}
