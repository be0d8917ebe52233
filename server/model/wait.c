/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides for WaitForUpdates: see server/model/wait.h.
 */
#include "server/model/wait.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/rows/update_record.h"

#define OUTCOME(name) HPS__V1__WAIT_OUTCOME__WAIT_OUTCOME_##name
#define GOAL(name)    HPS__V1__WAIT_GOAL__WAIT_GOAL_##name

/* The inputs and the result of one hps_wait_look. */
struct judging {
    struct hps_wait *wait;
    const struct hps_stream_view *view;
    bool refreshed;
    bool refresh; /* another refresh would help */
};

void hps_wait_init(struct hps_wait *wait, const Hps__V1__WaitForUpdatesRequest *request)
{
    *wait = (struct hps_wait){.request = request,
                              .begin_ms = hps_clock_forward_ms(),
                              .outcome = OUTCOME(NOT_YET),
                              .partition = -1,
                              .offset = -1};
    hps__v1__update_mark__init(&wait->mark);
    hps_ignore(hps_error_set(&wait->why, HPS_DEADLINE,
                             "model \"%s\" was not checked: the server is busy; retry",
                             request->model));
}

/* ---- the request ----------------------------------------------------------------------------- */

static hps_status check_topic(const Hps__V1__WaitForUpdatesRequest *request, const char *topic,
                              struct hps_error *err)
{
    struct hps_update_topic of;
    if (!hps_update_topic_parse(topic, &of) || strcmp(of.model, request->model) != 0) {
        return hps_error_set(err, HPS_INVALID,
                             "topic: got \"%s\", expected hps_et.%s or hps_et.%s.TABLE", topic,
                             request->model, request->model);
    }
    return HPS_OK;
}

static hps_status check_records(const Hps__V1__WaitForUpdatesRequest *request, size_t r,
                                struct hps_error *err)
{
    const Hps__V1__UpdateRecords *of = request->records[r];
    bool right = of->partition >= 0 && of->n_first > 0 && of->n_first == of->n_last;
    for (size_t i = 0; i < of->n_first && right; i++) {
        right = of->first[i] >= 0 && of->first[i] <= of->last[i] && of->last[i] < INT64_MAX &&
                (i == 0 || of->first[i] > of->last[i - 1]);
    }
    if (!right) {
        return hps_error_set(err, HPS_INVALID,
                             "records[%zu]: expected a partition, and as many first as last "
                             "offsets, at least one, ascending",
                             r);
    }
    return check_topic(request, of->topic, err);
}

hps_status hps_wait_check(const Hps__V1__WaitForUpdatesRequest *request, struct hps_error *err)
{
    bool records = request->goal == GOAL(RECORDS);
    hps_status status = HPS_OK;
    if (request->goal < GOAL(NOW) || request->goal > GOAL(READY)) {
        return hps_error_set(err, HPS_INVALID, "goal: got %d, expected 1 to 3", (int)request->goal);
    }
    if (records != (request->n_records > 0)) {
        return hps_error_set(err, HPS_INVALID, "records: expected with goal RECORDS only");
    }
    if (request->topic[0] != '\0' && request->goal != GOAL(READY)) {
        return hps_error_set(err, HPS_INVALID, "topic: expected with goal READY only");
    }
    for (size_t r = 0; r < request->n_records && status == HPS_OK; r++) {
        status = check_records(request, r, err);
    }
    return status == HPS_OK && request->topic[0] != '\0' ? check_topic(request, request->topic, err)
                                                         : status;
}

/* ---- replies --------------------------------------------------------------------------------- */

static Hps__V1__WaitOutcome answer(struct judging *at, Hps__V1__WaitOutcome outcome,
                                   const struct hps_partition_view *about, int64_t offset,
                                   const char *fmt, ...) HPS_PRINTF(5, 6);
static Hps__V1__WaitOutcome answer(struct judging *at, Hps__V1__WaitOutcome outcome,
                                   const struct hps_partition_view *about, int64_t offset,
                                   const char *fmt, ...)
{
    struct hps_wait *wait = at->wait;
    char text[sizeof(wait->why.text)];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    hps_ignore(hps_error_set(&wait->why, HPS_PRECONDITION, "%s", text));
    (void)snprintf(wait->topic, sizeof(wait->topic), "%s", about != NULL ? about->topic : "");
    wait->partition = about != NULL ? about->partition : -1;
    wait->offset = offset;
    return outcome;
}

static Hps__V1__WaitOutcome answer_frozen(struct judging *at)
{
    const struct hps_stream_view *view = at->view;
    return answer(at, OUTCOME(FROZEN), NULL, -1,
                  "version %" PRId64
                  " of model \"%s\" is frozen: a version of another lineage was activated, and "
                  "this version skips records that name no version; to continue: hpsctl updates "
                  "seek --model %s --version %" PRId64 " --to OFFSET|earliest|latest|@MS",
                  view->version, view->model, view->model, view->version);
}

/* Why a partition has stopped. NOT_YET: it may continue without an operator. A frozen version still
 * applies records that name it. */
static Hps__V1__WaitOutcome answer_stop(struct judging *at, const struct hps_partition_view *of)
{
    static const struct {
        Hps__V1__WaitOutcome outcome;
        const char *is, *cause, *advice;
    } stops[HPS_PARTITION_STATES] = {
        [HPS_PARTITION_PAUSED] = {OUTCOME(PAUSED), "is paused", "by hpsctl updates pause",
                                  "to continue: hpsctl updates resume"},
        [HPS_PARTITION_GAP] = {OUTCOME(GAP), "is stopped at a gap",
                               "records that were not applied are lost",
                               "load the model again, or use hpsctl updates seek or accept-gap"},
        [HPS_PARTITION_GONE] = {OUTCOME(FAILED), "is gone", "the topic was deleted",
                                "the server reads it once it is created again"},
        [HPS_PARTITION_FAILED] = {OUTCOME(FAILED), "has failed", "Kafka rejects requests for it",
                                  "fix the cause, then hpsctl updates resume"},
        [HPS_PARTITION_FROZEN] = {OUTCOME(FROZEN), "is frozen",
                                  "a version of another lineage was activated",
                                  "to continue: hpsctl updates seek"},
    };
    bool named = at->wait->request->names_version;
    if (stops[of->state].is == NULL || (named && of->state == HPS_PARTITION_FROZEN)) {
        return OUTCOME(NOT_YET);
    }
    return answer(at, stops[of->state].outcome, of, -1,
                  "partition %" PRId32 " of %s %s in version %" PRId64 " of model \"%s\": %s; %s",
                  of->partition, of->topic, stops[of->state].is, at->view->version, at->view->model,
                  of->reason[0] != '\0' ? of->reason : stops[of->state].cause,
                  stops[of->state].advice);
}

/* The state of a partition that may continue: "running; 3 records behind". */
static const char *state_text(const struct hps_partition_view *of, char out[static 300])
{
    char lag[48] = "";
    if (of->next >= 0 && of->lag > 0 && of->lag_known) {
        (void)snprintf(lag, sizeof(lag), "; %" PRIu64 " records behind", of->lag);
    }
    (void)snprintf(out, 300, "%s%s%s%s", hps_partition_state_text(of->state),
                   of->reason[0] != '\0' ? ": " : "", of->reason, lag);
    return out;
}

static Hps__V1__WaitOutcome answer_away(struct judging *at)
{
    return answer(at, OUTCOME(NOT_YET), NULL, -1,
                  "version %" PRId64 " of model \"%s\" is not connected to Kafka: %s",
                  at->view->version, at->view->model, at->view->connection_error);
}

static Hps__V1__WaitOutcome answer_unread(struct judging *at, const char *topic)
{
    at->refresh = true;
    return !at->view->connected
               ? answer_away(at)
               : answer(at, OUTCOME(NOT_YET), NULL, -1,
                        "topic %s is not read by version %" PRId64
                        " of model \"%s\": the topic or its partition does not exist, the "
                        "server's Kafka user may not see it, or update_filters exclude it",
                        topic, at->view->version, at->view->model);
}

/* ---- rejected records ------------------------------------------------------------------------ */

/* Ranges are ascending. */
static bool is_within(const Hps__V1__UpdateRecords *records, int64_t offset)
{
    size_t low = 0;
    size_t high = records->n_last;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (records->last[middle] < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < records->n_first && records->first[low] <= offset;
}

static bool is_waited_for(const struct judging *at, const struct hps_rejected_view *record)
{
    const Hps__V1__WaitForUpdatesRequest *request = at->wait->request;
    int64_t since_ms = at->wait->begin_ms - (int64_t)request->rejected_within_ms;
    for (size_t r = 0; r < request->n_records; r++) {
        const Hps__V1__UpdateRecords *of = request->records[r];
        if (of->partition == record->partition && strcmp(of->topic, record->topic) == 0 &&
            is_within(of, record->offset)) {
            return true;
        }
    }
    return request->goal == GOAL(NOW) && record->read_ms >= since_ms;
}

/* Returns the newest rejected record since the last view that concerns the wait, and keeps its
 * text. */
static const struct hps_rejected_view *find_rejected(struct judging *at)
{
    struct hps_wait *wait = at->wait;
    const struct hps_stream_view *view = at->view;
    const struct hps_rejected_view *newest = NULL;
    bool dropped = view->n_rejected_views == HPS_REJECTED_VIEWS_MAX &&
                   view->rejected[0].number > wait->number_seen + 1;
    for (uint32_t i = 0; i < view->n_rejected_views; i++) {
        if (view->rejected[i].number > wait->number_seen && is_waited_for(at, &view->rejected[i])) {
            newest = &view->rejected[i];
        }
    }
    wait->unlisted = wait->unlisted || (dropped && (wait->begun || wait->request->mark != NULL));
    wait->number_seen = view->n_rejected_numbers;
    if (newest != NULL) {
        (void)snprintf(wait->rejected, sizeof(wait->rejected),
                       "%.140s:%" PRId32 ":%" PRId64 " was rejected by version %" PRId64
                       ": %s (%.20s); no row has it",
                       newest->topic, newest->partition, newest->offset, view->version,
                       newest->text, newest->reason);
    }
    return newest;
}

static Hps__V1__WaitOutcome answer_rejected(struct judging *at,
                                            const struct hps_rejected_view *record)
{
    struct hps_wait *wait = at->wait;
    const char *advice = wait->request->goal == GOAL(NOW)
                             ? "; publish a correct record, or wait with --allow-refused"
                             : "";
    Hps__V1__WaitOutcome outcome =
        answer(at, OUTCOME(REJECTED), NULL, record->offset, "%s%s", wait->rejected, advice);
    memcpy(wait->topic, record->topic, sizeof(wait->topic));
    wait->partition = record->partition;
    return outcome;
}

/* ---- NOW ------------------------------------------------------------------------------------- */

/* Whether a check since the wait began has shown that the topic was not recreated. */
static bool is_same_topic(const struct judging *at, const struct hps_partition_view *of)
{
    return of->same_ms >= at->wait->begin_ms;
}

static bool is_proved(const struct judging *at, const struct hps_partition_view *of)
{
    return of->as_of_ms >= at->wait->begin_ms && is_same_topic(at, of);
}

/* Why the wait is not over. Names a partition that is not proved, if possible one that does not
 * run. */
static Hps__V1__WaitOutcome answer_unproved(struct judging *at)
{
    const struct hps_stream_view *view = at->view;
    const struct hps_partition_view *of = NULL;
    char state[300];
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        bool says_more = of == NULL || of->state == HPS_PARTITION_RUNNING;
        of = !is_proved(at, &view->partitions[i]) && says_more ? &view->partitions[i] : of;
    }
    if (!view->connected) {
        return answer_away(at);
    }
    if (of == NULL) {
        return answer(at, OUTCOME(NOT_YET), NULL, -1,
                      "version %" PRId64 " of model \"%s\" has not received its list of topics "
                      "from Kafka yet",
                      view->version, view->model);
    }
    return answer(at, OUTCOME(NOT_YET), of, -1,
                  "version %" PRId64 " of model \"%s\" waits for partition %" PRId32
                  " of %.120s, %s%s",
                  view->version, view->model, of->partition, of->topic, state_text(of, state),
                  is_same_topic(at, of) ? "" : "; not checked yet whether the topic was recreated");
}

static Hps__V1__WaitOutcome judge_now(struct judging *at)
{
    struct hps_wait *wait = at->wait;
    const struct hps_stream_view *view = at->view;
    const struct hps_rejected_view *rejected = find_rejected(at);
    bool proved = at->refreshed && view->n_partitions > 0 && view->as_of_ms >= wait->begin_ms;
    if (view->frozen) {
        return answer_frozen(at);
    }
    if (rejected != NULL && !wait->request->rejected_allowed) {
        return answer_rejected(at, rejected);
    }
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        const struct hps_partition_view *of = &view->partitions[i];
        if (!is_proved(at, of)) {
            Hps__V1__WaitOutcome stop = answer_stop(at, of);
            if (stop != OUTCOME(NOT_YET)) {
                return stop;
            }
            proved = false;
            at->refresh = at->refresh || !is_same_topic(at, of);
        }
    }
    if (view->n_partitions == 0 && view->listed && at->refreshed) {
        return answer(at, OUTCOME(NO_TOPIC), NULL, -1,
                      "model \"%s\" has no topic hps_et.%s or hps_et.%s.<table>: none exists, or "
                      "the server's Kafka user may not see it; create it, or grant that user "
                      "Describe and Read",
                      view->model, view->model, view->model);
    }
    return proved ? answer(at, OUTCOME(VISIBLE), NULL, -1, "%s", wait->rejected)
                  : answer_unproved(at);
}

/* ---- RECORDS --------------------------------------------------------------------------------- */

static const struct hps_partition_view *find_partition(const struct hps_stream_view *view,
                                                       const Hps__V1__UpdateRecords *records)
{
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        if (view->partitions[i].partition == records->partition &&
            strcmp(view->partitions[i].topic, records->topic) == 0) {
            return &view->partitions[i];
        }
    }
    return NULL;
}

/* The first of the records that may have been passed over; -1: none. A frozen version applies
 * records that name it. */
static int64_t passed_over(const Hps__V1__UpdateRecords *records,
                           const struct hps_partition_view *of, bool named)
{
    int64_t from = of->skipped == HPS_POSITION_LOST ? 0 : of->skipped;
    int64_t end = named && of->frozen >= 0 ? of->frozen
                  : of->skipped_end > 0    ? of->skipped_end
                                           : INT64_MAX;
    for (size_t i = 0; i < records->n_first && from >= 0; i++) {
        int64_t first = records->first[i] > from ? records->first[i] : from;
        if (first <= records->last[i] && first < end) {
            return first;
        }
    }
    return -1;
}

static Hps__V1__WaitOutcome answer_passed_over(struct judging *at,
                                               const struct hps_partition_view *of, int64_t offset)
{
    bool lost = of->skipped == HPS_POSITION_LOST;
    return answer(at, OUTCOME(PASSED_OVER), of, offset,
                  "%s:%" PRId32 ":%" PRId64 " %s by version %" PRId64 ": %s", of->topic,
                  of->partition, offset, lost ? "may not have been applied" : "was skipped",
                  at->view->version,
                  lost ? "Kafka had removed it before the version was loaded, or an operator "
                         "accepted the gap or moved past it; publish the record again, or load the "
                         "model again"
                       : "the version was frozen, or an operator moved past the offset; to read "
                         "it, use hpsctl updates seek");
}

static Hps__V1__WaitOutcome judge_partition(struct judging *at,
                                            const Hps__V1__UpdateRecords *records,
                                            const struct hps_partition_view *of)
{
    const struct hps_wait *wait = at->wait;
    bool named = wait->request->names_version;
    bool other = of->state == HPS_PARTITION_GAP || of->state == HPS_PARTITION_GONE;
    int64_t last = records->last[records->n_last - 1];
    bool behind = of->next <= last;
    int64_t passed = passed_over(records, of, named);
    char state[300];
    if (passed >= 0 && passed < of->next) {
        return answer_passed_over(at, of, passed);
    }
    if (!other && !behind && at->refreshed && of->response_asked_ms >= wait->begin_ms &&
        of->high > last && is_same_topic(at, of)) {
        return OUTCOME(VISIBLE);
    }
    at->refresh = at->refresh || !is_same_topic(at, of);
    if (behind && at->view->frozen && !named) {
        return answer_frozen(at);
    }
    if (behind || of->state != HPS_PARTITION_FROZEN) {
        Hps__V1__WaitOutcome stop = answer_stop(at, of);
        if (stop != OUTCOME(NOT_YET)) {
            return stop;
        }
    }
    if (behind && !at->view->connected) {
        return answer_away(at);
    }
    return answer(at, OUTCOME(NOT_YET), of, last,
                  "%s:%" PRId32 ":%" PRId64 " is %s by version %" PRId64 " of model \"%s\": %s%s",
                  of->topic, of->partition, last, behind ? "not applied" : "read",
                  at->view->version, at->view->model,
                  behind ? "the partition is " : "its leader has not confirmed this record yet, ",
                  state_text(of, state));
}

/* The outcome of the first record that is not visible. */
static Hps__V1__WaitOutcome judge_records(struct judging *at)
{
    struct hps_wait *wait = at->wait;
    const struct hps_rejected_view *rejected = find_rejected(at);
    if (rejected != NULL) {
        return answer_rejected(at, rejected);
    }
    while (wait->n_visible < wait->request->n_records) {
        const Hps__V1__UpdateRecords *records = wait->request->records[wait->n_visible];
        const struct hps_partition_view *of = find_partition(at->view, records);
        Hps__V1__WaitOutcome outcome = of != NULL ? judge_partition(at, records, of)
                                       : at->view->frozen && !wait->request->names_version
                                           ? answer_frozen(at)
                                           : answer_unread(at, records->topic);
        if (outcome != OUTCOME(VISIBLE)) {
            return outcome;
        }
        wait->n_visible++;
    }
    if (wait->unlisted) {
        return answer(at, OUTCOME(UNKNOWN), NULL, -1,
                      "version %" PRId64
                      " of model \"%s\" has rejected more records than it lists: only the server's "
                      "log tells whether these are among them; search it for \"record rejected\"",
                      at->view->version, at->view->model);
    }
    return answer(at, OUTCOME(VISIBLE), NULL, -1, "%s", "");
}

/* ---- READY ----------------------------------------------------------------------------------- */

static Hps__V1__WaitOutcome judge_ready(struct judging *at)
{
    const Hps__V1__WaitForUpdatesRequest *request = at->wait->request;
    const struct hps_stream_view *view = at->view;
    bool read = request->topic[0] == '\0' || !view->listed || !view->connected;
    if (view->frozen && !request->names_version) {
        return answer_frozen(at);
    }
    for (uint32_t i = 0; i < view->n_partitions; i++) {
        const struct hps_partition_view *of = &view->partitions[i];
        if (strcmp(of->topic, request->topic) != 0) {
            continue;
        }
        read = true;
        /* A deleted topic is read when it is created again. */
        Hps__V1__WaitOutcome stop =
            of->state == HPS_PARTITION_GONE ? OUTCOME(NOT_YET) : answer_stop(at, of);
        if (stop != OUTCOME(NOT_YET)) {
            return stop;
        }
    }
    return read ? answer(at, OUTCOME(VISIBLE), NULL, -1, "%s", "")
                : answer_unread(at, request->topic);
}

/* ---- one view -------------------------------------------------------------------------------- */

enum hps_update_check hps_wait_look(struct hps_wait *wait, const struct hps_stream_view *view,
                                    bool refreshed)
{
    struct judging at = {.wait = wait, .view = view, .refreshed = refreshed, .refresh = !refreshed};
    const Hps__V1__UpdateMark *mark = wait->request->mark;
    if (!wait->begun && mark != NULL) {
        wait->number_seen = mark->rejected;
    }
    if (mark != NULL && mark->instance != view->instance) {
        wait->outcome = answer(&at, OUTCOME(UNKNOWN), NULL, -1,
                               "the server was restarted: records that it rejected before are only "
                               "in its log; search it, or publish again");
    } else {
        wait->outcome = wait->request->goal == GOAL(NOW)       ? judge_now(&at)
                        : wait->request->goal == GOAL(RECORDS) ? judge_records(&at)
                                                               : judge_ready(&at);
    }
    wait->begun = true;
    wait->mark.instance = view->instance;
    wait->mark.rejected = view->n_rejected_numbers;
    wait->key_bytes = view->key_bytes;
    return wait->outcome != OUTCOME(NOT_YET) ? HPS_UPDATE_CHECK_DONE
           : at.refresh                      ? HPS_UPDATE_CHECK_REFRESH
                                             : HPS_UPDATE_CHECK_WAIT;
}

void hps_wait_end(struct hps_wait *wait, int64_t version)
{
    wait->outcome = OUTCOME(VERSION_ENDED);
    hps_ignore(hps_error_set(&wait->why, HPS_PRECONDITION,
                             "version %" PRId64
                             " of model \"%s\" takes no more updates: it was unloaded; retry",
                             version, wait->request->model));
}

void hps_wait_no_table(struct hps_wait *wait, int64_t version, const char *topic, const char *table)
{
    wait->outcome = OUTCOME(NO_TOPIC);
    (void)snprintf(wait->topic, sizeof(wait->topic), "%s", topic);
    hps_ignore(hps_error_set(
        &wait->why, HPS_PRECONDITION,
        "topic %s is not read by version %" PRId64
        " of model \"%s\": the version has no table %s; hpsctl tables %s lists its tables",
        topic, version, wait->request->model, table, wait->request->model));
}
