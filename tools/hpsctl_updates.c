/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl updates and wait-for: the state of updates, the operator's actions after a gap, and
 * waiting until an update is visible. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rows/update_record.h"
#include "client/wait.h"
#include "tools/hpsctl.h"

enum { SILENT_MS = 2000 /* a leader without an answer for longer is marked */ };

#define REFUSED_US_DEFAULT (UINT64_C(60) * 1000 * 1000)

static struct {
    const char *model;
    int64_t version;
    const char *topic;
    int64_t partition;
    const char *to;
    uint64_t refused_us;
    bool all, refresh, allow_refused;
} flags = {.model = "", .topic = "", .partition = -1, .refused_us = REFUSED_US_DEFAULT};

const struct hps_arg hpsctl_updates_args[] = {
    {"model", 0, HPS_ARG_TEXT, "MODEL", &flags.model, "only this model (default: all)"},
    {"version", 0, HPS_ARG_I64, "N", &flags.version, "only this version (default: all)"},
    {"topic", 0, HPS_ARG_TEXT, "TOPIC", &flags.topic,
     "pause, resume, seek, accept-gap: only this topic (default: all)"},
    {"partition", 0, HPS_ARG_I64, "N", &flags.partition,
     "pause, resume, seek, accept-gap: only this partition (default: all)"},
    {"to", 0, HPS_ARG_TEXT, "OFFSET", &flags.to,
     "seek: continue at this offset, at earliest, latest, or the time @MS (milliseconds since "
     "1970)"},
    {"all", 0, HPS_ARG_FLAG, NULL, &flags.all,
     "change every partition of every version of every model"},
    {"refresh", 0, HPS_ARG_FLAG, NULL, &flags.refresh,
     "first get the topics, and the end offset of each partition, from Kafka"},
    HPS_ARGS_END,
};

const struct hps_arg hpsctl_wait_for_args[] = {
    {"model", 0, HPS_ARG_TEXT, "MODEL", &flags.model,
     "only this model (default: all; with an offset: the model of its topic)"},
    {"version", 0, HPS_ARG_I64, "N", &flags.version,
     "only this version (default: the active ones)"},
    {"refused-within", 0, HPS_ARG_US, "SECONDS", &flags.refused_us,
     "now: exit 5 if a record was rejected within this time (default 60)"},
    {"allow-refused", 0, HPS_ARG_FLAG, NULL, &flags.allow_refused,
     "now: exit 0 even if records were rejected, and print the newest one"},
    HPS_ARGS_END,
};

/* ---- updates --------------------------------------------------------------------------------- */

/* "1.2 s ago"; "not known". */
static const char *age_text(int64_t now_ms, int64_t unix_ms, char out[HPSCTL_TEXT_BYTES])
{
    double age_s = (double)(now_ms - unix_ms) / 1000;
    if (unix_ms <= 0) {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "not known");
    } else {
        (void)snprintf(out, HPSCTL_TEXT_BYTES, "%.1f s ago", age_s > 0 ? age_s : 0);
    }
    return out;
}

static void print_line(const char *what, const char *text)
{
    printf("  %s: %s\n", what, text);
}

static void print_refused(const Hps__V1__VersionUpdates *of, int64_t now_ms)
{
    char age[HPSCTL_TEXT_BYTES], text[600];
    if (of->n_rejected_records > 0) {
        const Hps__V1__RejectedRecord *newest = of->rejected_records[of->n_rejected_records - 1];
        (void)snprintf(text, sizeof(text), "%s:%" PRId32 ":%" PRId64 ", %s: %s (%s)", newest->topic,
                       newest->partition, newest->offset, age_text(now_ms, newest->unix_ms, age),
                       newest->message, newest->reason);
        print_line("newest rejected record", text);
    }
}

static void print_version(const Hps__V1__VersionUpdates *of, int64_t now_ms)
{
    char text[HPSCTL_TEXT_BYTES];
    printf("%s %" PRId64 "%s: %s%s, lineage %s, %" PRIu64 " records, %" PRIu64 " keys, %" PRIu64
           " bad, as of %s, %.1f records/s, %.1f keys/s\n",
           of->model, of->version, of->active ? " (active)" : "",
           of->connected ? "connected" : "NOT CONNECTED", of->frozen ? ", FROZEN" : "", of->lineage,
           of->record_count, of->key_count, of->rejected_record_count,
           age_text(now_ms, of->as_of_unix_ms, text), of->records_per_s, of->keys_per_s);
    if (!of->connected && of->connection_error[0] != '\0') {
        print_line("not connected", of->connection_error);
    }
    if (of->frozen) {
        printf(
            "  frozen: a version of another lineage was activated, and this version skips records "
            "that name no version; to continue: hpsctl updates seek --model %s --version %" PRId64
            " --to OFFSET|earliest|latest|@MS\n",
            of->model, of->version);
    }
    if (of->held[0] != '\0') {
        print_line("a batch cannot be applied", of->held);
    }
    print_refused(of, now_ms);
    if (strcmp(of->shared_tier, "apart") == 0) {
        printf(
            "  the shared tier is bypassed: rows there may have updates that this version lacks\n");
    } else if (of->shared_tier[0] != '\0') {
        printf("  the shared tier is %s: shards that lack updates are not read\n", of->shared_tier);
    }
    if (of->listed && of->n_partitions == 0) {
        printf("  no topic hps_et.%s or hps_et.%s.<table>: none was created, or the Kafka user of "
               "the server may not see it\n",
               of->model, of->model);
    }
}

static void offset_cell(struct hpsctl_table *table, int64_t offset)
{
    hpsctl_table_cell(table, offset < 0 ? "-" : "%" PRId64, offset);
}

static bool is_silent(const Hps__V1__PartitionUpdates *partition, int64_t now_ms)
{
    return partition->end_offset >= 0 && now_ms - partition->end_unix_ms > SILENT_MS;
}

static void lag_cell(struct hpsctl_table *table, const Hps__V1__PartitionUpdates *partition,
                     int64_t now_ms)
{
    bool known = partition->offset >= 0 && partition->end_offset >= 0;
    hpsctl_table_cell(table,
                      !known                         ? "-"
                      : is_silent(partition, now_ms) ? "%" PRIu64 "?"
                      : partition->lag_unknown       ? "-"
                                                     : "%" PRIu64,
                      partition->lag_record_count);
}

static void reason_cell(struct hpsctl_table *table, const Hps__V1__VersionUpdates *of,
                        const Hps__V1__PartitionUpdates *partition)
{
    const char *reason = partition->reason[0] != '\0'            ? partition->reason
                         : strcmp(partition->state, "held") == 0 ? of->held
                         : strcmp(partition->state, "frozen") == 0
                             ? "a version of another lineage was activated"
                         : strcmp(partition->state, "paused") == 0 ? "by hpsctl updates pause"
                                                                   : "";
    if (partition->passed_over_offset >= 0 && partition->passed_over_end_offset > 0) {
        hpsctl_table_cell(table, "%s%srecords %" PRId64 " to %" PRId64 " were skipped", reason,
                          reason[0] != '\0' ? "; " : "", partition->passed_over_offset,
                          partition->passed_over_end_offset - 1);
    } else {
        hpsctl_table_cell(table, "%s", reason);
    }
}

static void partition_cells(struct hpsctl_table *table, const Hps__V1__VersionUpdates *of,
                            const Hps__V1__PartitionUpdates *partition, int64_t now_ms)
{
    hpsctl_table_cell(table, "%s", of->model);
    hpsctl_table_cell(table, "%" PRId64, of->version);
    hpsctl_table_cell(table, "%s", partition->topic);
    hpsctl_table_cell(table, "%" PRId32, partition->partition);
    hpsctl_table_cell(table, "%s", partition->state);
    offset_cell(table, partition->offset);
    offset_cell(table, partition->end_offset);
    lag_cell(table, partition, now_ms);
    hpsctl_table_cell(table, partition->lag_ms < 0 ? "-" : "%.1f",
                      (double)partition->lag_ms / 1000);
    hpsctl_table_cell(table, "%.1f", partition->records_per_s);
    reason_cell(table, of, partition);
}

static int print_updates(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL",  ">VERSION",   "TOPIC",  ">PARTITION",
                                          "STATE",  ">OFFSET",    ">END",   ">LAG",
                                          ">LAG S", ">RECORDS/S", "REASON", NULL};
    const Hps__V1__GetUpdatesResponse *updates = reply;
    int64_t now_ms = updates->unix_ms > 0 ? updates->unix_ms : (int64_t)hps_clock_wall_ms();
    bool silent = false;
    struct hpsctl_table table;

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t v = 0; v < updates->n_versions; v++) {
        const Hps__V1__VersionUpdates *of = updates->versions[v];
        print_version(of, now_ms);
        for (size_t i = 0; i < of->n_partitions; i++) {
            partition_cells(&table, of, of->partitions[i], now_ms);
            silent = silent || is_silent(of->partitions[i], now_ms);
        }
    }
    printf("\n");
    int code = hpsctl_table_print(&table);
    if (silent) {
        printf("\n"
               "?: the leader of the partition has not replied for more than %d s; END and LAG are "
               "from its last reply\n",
               SILENT_MS / 1000);
    }
    return code;
}

/* ---- changes --------------------------------------------------------------------------------- */

static int print_changed(struct hpsctl *ctl, const void *reply)
{
    const Hps__V1__ControlUpdatesResponse *changed = reply;
    printf("%s: %" PRIu32 " partitions\n", ctl->words[0], changed->partition_count);
    return TOOL_OK;
}

/* A seek does not resume partitions that an operator has paused: prints their number. */
static int print_paused(struct hpsctl *ctl)
{
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;
    Hps__V1__GetUpdatesResponse *now = NULL;
    uint32_t n = 0;

    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    if (hpsctl_call(ctl, "GetUpdates", &request.base, &hps__v1__get_updates_response__descriptor,
                    &now) != TOOL_OK) {
        (void)fprintf(stderr, "hpsctl: done, but could not check for paused partitions\n");
        return TOOL_OK;
    }
    for (size_t v = 0; v < now->n_versions; v++) {
        const Hps__V1__VersionUpdates *of = now->versions[v];
        for (size_t i = 0; i < of->n_partitions; i++) {
            const Hps__V1__PartitionUpdates *at = of->partitions[i];
            n += strcmp(at->state, "paused") == 0 &&
                 (flags.topic[0] == '\0' || strcmp(flags.topic, at->topic) == 0) &&
                 (flags.partition < 0 || flags.partition == at->partition);
        }
    }
    hps_message_free(&now->base);
    if (n > 0) {
        FILE *out = hpsctl_json(ctl) ? stderr : stdout; /* stdout has only the JSON document */
        (void)fprintf(out,
                      "%" PRIu32
                      " of them %s paused and stay%s paused; to continue: hpsctl updates resume",
                      n, n == 1 ? "is" : "are", n == 1 ? "s" : "");
        if (flags.model[0] != '\0') {
            (void)fprintf(out, " --model %s", flags.model);
        }
        if (flags.version != 0) {
            (void)fprintf(out, " --version %" PRId64, flags.version);
        }
        if (flags.topic[0] != '\0') {
            (void)fprintf(out, " --topic %s", flags.topic);
        }
        if (flags.partition >= 0) {
            (void)fprintf(out, " --partition %" PRId64, flags.partition);
        }
        (void)fprintf(out, "\n");
    }
    return TOOL_OK;
}

/* Require a filter or --all: without --model the command would change every model. */
static int check_filters(const struct hpsctl *ctl)
{
    bool any = flags.model[0] != '\0' || flags.version != 0 || flags.topic[0] != '\0' ||
               flags.partition >= 0;
    if (flags.partition < -1 || flags.partition > INT32_MAX) {
        return hpsctl_usage(ctl, "--partition %" PRId64 ": expected 0 or more", flags.partition);
    }
    if (flags.all && any) {
        return hpsctl_usage(ctl,
                            "updates %s --all: expected without --model, --version, "
                            "--topic and --partition",
                            ctl->words[0]);
    }
    if (!any && !flags.all) {
        return hpsctl_usage(ctl,
                            "updates %s: expected --model, --version, --topic or --partition, or "
                            "--all for everything",
                            ctl->words[0]);
    }
    return TOOL_OK;
}

/* False: the error has been printed. */
static bool read_target(const struct hpsctl *ctl, Hps__V1__ControlUpdatesRequest *request)
{
    if (flags.to == NULL) {
        (void)hpsctl_usage(ctl, "updates seek: expected --to OFFSET|earliest|latest|@MS");
        return false;
    }
    if (strcmp(flags.to, "earliest") == 0) {
        request->seek_target = HPS__V1__SEEK_TARGET__SEEK_TARGET_EARLIEST;
        return true;
    }
    if (strcmp(flags.to, "latest") == 0) {
        request->seek_target = HPS__V1__SEEK_TARGET__SEEK_TARGET_LATEST;
        return true;
    }
    bool time = flags.to[0] == '@';
    request->seek_target =
        time ? HPS__V1__SEEK_TARGET__SEEK_TARGET_TIME : HPS__V1__SEEK_TARGET__SEEK_TARGET_OFFSET;
    if (!hps_args_i64(flags.to + time, &request->seek_value) || request->seek_value < 0) {
        (void)hpsctl_usage(ctl, "--to \"%s\": expected an offset, earliest, latest or @MS",
                           flags.to);
        return false;
    }
    return true;
}

static int control(struct hpsctl *ctl, Hps__V1__UpdateAction action)
{
    HPS_ASSERT(ctl->n_words == 1);
    Hps__V1__ControlUpdatesRequest request = HPS__V1__CONTROL_UPDATES_REQUEST__INIT;

    request.action = action;
    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.topic = (char *)(uintptr_t)flags.topic;
    int code = check_filters(ctl);
    if (code != TOOL_OK) {
        return code;
    }
    request.one_partition = flags.partition >= 0;
    request.partition = (int32_t)(flags.partition >= 0 ? flags.partition : 0);
    if (action == HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK && !read_target(ctl, &request)) {
        return TOOL_USAGE;
    }
    code = hpsctl_call_print(ctl, "ControlUpdates", &request.base,
                             &hps__v1__control_updates_response__descriptor, print_changed);
    return code == TOOL_OK && action == HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK
               ? print_paused(ctl)
               : code;
}

int hpsctl_updates(struct hpsctl *ctl)
{
    static const Hps__V1__UpdateAction actions[] = {
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_PAUSE, HPS__V1__UPDATE_ACTION__UPDATE_ACTION_RESUME,
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK,
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_ACCEPT_GAP};
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;

    if (ctl->n_words > 0) {
        return control(ctl, actions[ctl->choice]);
    }
    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.refresh = flags.refresh;
    return hpsctl_call_print(ctl, "GetUpdates", &request.base,
                             &hps__v1__get_updates_response__descriptor, print_updates);
}

/* ---- wait-for -------------------------------------------------------------------------------- */

struct position {
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t partition;
    int64_t offset;
    struct hps_update_topic of;
};

/* "topic:partition:offset" */
static bool read_position(const char *text, struct position *out)
{
    const char *last = strrchr(text, ':');
    const char *first = last;
    int64_t partition;
    while (first != NULL && first > text && first[-1] != ':') {
        first--;
    }
    if (first == NULL || first <= text + 1 || (size_t)(first - text) > sizeof(out->topic)) {
        return false;
    }
    char number[24];
    size_t size = (size_t)(last - first);
    if (size == 0 || size >= sizeof(number)) {
        return false;
    }
    memcpy(number, first, size);
    number[size] = '\0';
    memcpy(out->topic, text, (size_t)(first - text) - 1);
    out->topic[first - text - 1] = '\0';
    if (!hps_args_i64(number, &partition) || partition < 0 || partition > INT32_MAX ||
        !hps_args_i64(last + 1, &out->offset) || out->offset < 0 || out->offset == INT64_MAX) {
        return false;
    }
    out->partition = (int32_t)partition;
    return true;
}

/* Prints the outcome on stdout and stderr. */
static int print_waited(struct hpsctl *ctl, hps_status status, const struct hps_error *err)
{
    struct hps_buf buf;

    if (status == HPS_OK) {
        printf("%s\n", hpsctl_json(ctl) ? "{\"visible\":true}" : "visible");
        return TOOL_OK;
    }
    if (status != HPS_DEADLINE && status != HPS_PRECONDITION) {
        return hpsctl_fail(ctl, err);
    }
    (void)fprintf(stderr, "hpsctl: %s\n", err->text);
    if (hpsctl_json(ctl)) {
        hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
        hps_buf_put(&buf, "{\"visible\":false,\"reason\":");
        hps_json_text(&buf, err->text, strlen(err->text));
        hps_buf_put(&buf, "}");
        (void)hpsctl_print_buf(&buf);
    }
    return status == HPS_DEADLINE ? TOOL_DEADLINE : TOOL_NEGATIVE;
}

/* Reads the goal into the request; 0, or the exit code after printing the error. */
static int read_goal(const struct hpsctl *ctl, struct position *position,
                     Hps__V1__WaitForUpdatesRequest *request)
{
    HPS_ASSERT(ctl->n_words == 1);
    const char *text = ctl->words[0];
    if (strcmp(text, "now") == 0) {
        request->goal = HPS__V1__WAIT_GOAL__WAIT_GOAL_NOW;
        request->n_records = 0;
        return TOOL_OK;
    }
    if (!read_position(text, position)) {
        return hpsctl_usage(ctl, "\"%s\": expected TOPIC:PARTITION:OFFSET, or now", text);
    }
    if (!hps_update_topic_parse(position->topic, &position->of)) {
        return hpsctl_usage(ctl, "topic \"%s\": expected hps_et.MODEL.TABLE or hps_et.MODEL",
                            position->topic);
    }
    if (flags.model[0] != '\0' && strcmp(flags.model, position->of.model) != 0) {
        return hpsctl_usage(ctl, "--model %s: expected %s, the model of topic %s", flags.model,
                            position->of.model, position->topic);
    }
    request->goal = HPS__V1__WAIT_GOAL__WAIT_GOAL_RECORDS;
    request->model = position->of.model;
    return TOOL_OK;
}

static bool has_version(const Hps__V1__ModelInfo *model, int64_t version)
{
    bool has = version == 0 && model->active_version != 0;
    for (size_t v = 0; v < model->n_versions; v++) {
        has = has || model->versions[v]->version == version;
    }
    return has;
}

/* Waits for one model. end_us 0: no limit. */
static hps_status wait_one(struct hpsctl *ctl, Hps__V1__WaitForUpdatesRequest *request,
                           uint64_t end_us, struct hps_error *err)
{
    Hps__V1__WaitForUpdatesResponse *reply = NULL;
    uint64_t now_us = hps_clock_us();
    uint64_t left_us = end_us == 0 ? 0 : now_us < end_us ? end_us - now_us : 1;

    hps_status status = hps_client_wait(ctl->client, request, left_us, NULL, &reply, err);
    if (status == HPS_OK && reply->text[0] != '\0') {
        (void)fprintf(stderr, "hpsctl: allowed: %s\n", reply->text);
    }
    hps_message_free((ProtobufCMessage *)reply);
    return status;
}

/* Waits for every model that has the version, one after the other. */
static hps_status wait_for_all(struct hpsctl *ctl, Hps__V1__WaitForUpdatesRequest *request,
                               const Hps__V1__ListModelsResponse *list, uint64_t end_us,
                               struct hps_error *err)
{
    hps_status status = HPS_OK;
    bool met = false;

    for (size_t m = 0; m < list->n_models && status == HPS_OK; m++) {
        if (has_version(list->models[m], request->version)) {
            met = true;
            request->model = list->models[m]->model;
            status = wait_one(ctl, request, end_us, err);
        }
    }
    return met ? status
               : hps_error_set(err, HPS_PRECONDITION,
                               "no model has this version, or an active version; hpsctl models "
                               "lists versions, hpsctl activate activates one");
}

int hpsctl_wait_for(struct hpsctl *ctl)
{
    struct position position = {.partition = -1};
    Hps__V1__WaitForUpdatesRequest request = HPS__V1__WAIT_FOR_UPDATES_REQUEST__INIT;
    Hps__V1__UpdateRecords records = HPS__V1__UPDATE_RECORDS__INIT, *list = &records;
    Hps__V1__ListModelsRequest ask = HPS__V1__LIST_MODELS_REQUEST__INIT;
    Hps__V1__ListModelsResponse *models = NULL;
    struct hps_error err = {0};
    hps_status status;

    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.records = &list;
    request.n_records = 1;
    request.rejected_within_ms =
        flags.refused_us / 1000 < UINT32_MAX ? (uint32_t)(flags.refused_us / 1000) : UINT32_MAX;
    request.rejected_allowed = flags.allow_refused;
    int code = read_goal(ctl, &position, &request);
    if (code == TOOL_OK) {
        code = hpsctl_open(ctl);
    }
    if (code != TOOL_OK) {
        return code;
    }
    records.topic = position.topic;
    records.partition = position.partition;
    records.first = records.last = &position.offset;
    records.n_first = records.n_last = 1;
    uint64_t end_us = ctl->timeout_us != 0 ? hps_clock_us() + ctl->timeout_us : 0;
    if (request.model[0] != '\0') {
        status = wait_one(ctl, &request, end_us, &err);
    } else {
        code = hpsctl_call(ctl, "ListModels", &ask.base, &hps__v1__list_models_response__descriptor,
                           &models);
        if (code != TOOL_OK) {
            return code;
        }
        status = wait_for_all(ctl, &request, models, end_us, &err);
        hps_message_free(&models->base);
    }
    return print_waited(ctl, status, &err);
}
