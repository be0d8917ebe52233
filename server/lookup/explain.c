/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills in `explain` of a reply if the request has it set: the time of each stage, and a note for
 * each tier and each kind of key of a part. On the loop thread.
 */
#include <stdio.h>
#include <string.h>

#include "server/lookup/internal.h"

enum { NOTES_MAX = 64 };

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

/* NULL: the tier was not queried. */
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

/* Adds the notes of a part: where its keys were found, or why not. */
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
    if (part->form == HPS_PART_POOLED) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "bags pooled in place", part->n_whole_bags,
                              part->n_bags));
    }
    if (n_shared > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "fetched by another lookup", n_shared,
                              part->n_unique));
    }
    if (part->n_unknown > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "in no tier", part->n_unknown, part->n_keys));
    }
    if (part->n_defaulted > 0) {
        snprintf(what, sizeof(what), "defaulted (%s)",
                 hps_defaulted_reason(request->lookup.miss_policy));
        add_note(explain, notes,
                 printed_note(request->arena, table, what, part->n_defaulted, part->n_keys));
    }
}

const struct hps_encode_explain *request_explain(struct request *request)
{
    struct hps_encode_explain *explain = NULL;
    struct hps_encode_stage *stages = NULL;
    const char **notes = NULL;

    HPS_ASSERT(request->stages.now == HPS_STAGE_ENCODE);
    if (request->call.explain) {
        explain = hps_arena_calloc(request->arena, 1, sizeof(*explain));
        stages = hps_arena_calloc(request->arena, HPS_STAGE_ENCODE, sizeof(*stages));
        notes = hps_arena_calloc(request->arena, NOTES_MAX, sizeof(*notes));
    }
    if (explain == NULL || stages == NULL || notes == NULL) {
        return NULL;
    }
    for (unsigned i = 0; i < HPS_STAGE_ENCODE; i++) { /* the stages that have ended */
        stages[i].name = hps_stage_name(i);
        stages[i].duration_us = request->stages.us[i];
    }
    explain->stages = stages;
    explain->n_stages = HPS_STAGE_ENCODE;
    explain->notes = notes;
    if (hps_lookup_state_was_repeated(&request->lookup_state) || request->lookup.n_reread > 0) {
        add_note(explain, notes, "read again: updates arrived during the lookup");
    }
    for (uint32_t i = 0; i < request->lookup.n_parts; i++) {
        explain_part(request, &request->lookup.parts[i], explain, notes);
    }
    return explain;
}
