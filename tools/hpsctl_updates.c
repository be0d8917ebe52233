/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl updates and wait-for: what versions have of their updates, the operator's ways out of a
 * gap, and waiting until an update is visible. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/heap.h"
#include "tools/hpsctl.h"

enum { POLL_NS = 20 * 1000 * 1000 };

static struct {
    const char *model;
    int64_t version;
    const char *topic;
    int64_t partition;
    const char *to;
    bool refresh;
} flags = {"", 0, "", -1, NULL, false};

const struct hps_arg hpsctl_updates_args[] = {
    {"model", 0, HPS_ARG_TEXT, "MODEL", &flags.model, "of this model (default: every one)"},
    {"version", 0, HPS_ARG_I64, "N", &flags.version, "of this version (default: every one)"},
    {"topic", 0, HPS_ARG_TEXT, "TOPIC", &flags.topic, "change this topic (default: every one)"},
    {"partition", 0, HPS_ARG_I64, "N", &flags.partition,
     "change this partition (default: every one)"},
    {"to", 0, HPS_ARG_TEXT, "OFFSET", &flags.to,
     "seek: an offset, earliest, latest, or @MS, milliseconds since 1970"},
    {"refresh", 0, HPS_ARG_FLAG, NULL, &flags.refresh, "ask Kafka for topics and ends first"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

const struct hps_arg hpsctl_wait_for_args[] = {
    {"model", 0, HPS_ARG_TEXT, "MODEL", &flags.model, "of this model (default: every one)"},
    {"version", 0, HPS_ARG_I64, "N", &flags.version, "of this version (default: active ones)"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

/* ---- updates --------------------------------------------------------------------------------- */

/* "1.2 s" before now; "-": not known. */
static const char *age_text(int64_t unix_ms, char out[HPSCTL_TEXT_BYTES])
{
    double age_s = (double)((int64_t)hps_clock_wall_ms() - unix_ms) / 1000;
    (void)snprintf(out, HPSCTL_TEXT_BYTES, unix_ms <= 0 ? "-" : "%.1f s", age_s > 0 ? age_s : 0);
    return out;
}

static void print_version(const Hps__V1__VersionUpdates *of)
{
    char text[HPSCTL_TEXT_BYTES];
    printf("%s %" PRId64 "%s: %s%s, lineage %s, %" PRIu64 " records, %" PRIu64 " keys, %" PRIu64
           " bad, as of %s ago\n",
           of->model, of->version, of->active ? " (active)" : "",
           of->connected ? "connected" : "NOT CONNECTED", of->frozen ? ", FROZEN" : "", of->lineage,
           of->record_count, of->key_count, of->rejected_record_count,
           age_text(of->as_of_unix_ms, text));
    if (of->held[0] != '\0') {
        printf("  a batch waits: %s\n", of->held);
    }
    if (strcmp(of->shared_tier, "apart") == 0) {
        printf("  the shared tier is left alone: others may have records that this one lacks\n");
    } else if (of->shared_tier[0] != '\0') {
        printf("  the shared tier is %s: some of it is not read from\n", of->shared_tier);
    }
}

static int print_updates(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL",  ">VERSION", "TOPIC", ">PARTITION",
                                          "STATE",  ">OFFSET",  ">END",  ">LAG",
                                          ">LAG S", "REASON",   NULL};
    const Hps__V1__GetUpdatesResponse *updates = reply;
    struct hpsctl_table table;

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t v = 0; v < updates->n_versions; v++) {
        const Hps__V1__VersionUpdates *of = updates->versions[v];
        print_version(of);
        for (size_t i = 0; i < of->n_partitions; i++) {
            const Hps__V1__PartitionUpdates *partition = of->partitions[i];
            hpsctl_table_cell(&table, "%s", of->model);
            hpsctl_table_cell(&table, "%" PRId64, of->version);
            hpsctl_table_cell(&table, "%s", partition->topic);
            hpsctl_table_cell(&table, "%" PRId32, partition->partition);
            hpsctl_table_cell(&table, "%s", partition->state);
            hpsctl_table_cell(&table, "%" PRId64, partition->offset);
            hpsctl_table_cell(&table, "%" PRId64, partition->end_offset);
            hpsctl_table_cell(&table, "%" PRIu64, partition->lag_record_count);
            hpsctl_table_cell(&table, partition->lag_ms < 0 ? "-" : "%.1f",
                              (double)partition->lag_ms / 1000);
            hpsctl_table_cell(&table, "%s", partition->reason);
        }
    }
    printf("\n");
    return hpsctl_table_print(&table);
}

static int print_changed(struct hpsctl *ctl, const void *reply)
{
    const Hps__V1__ControlUpdatesResponse *changed = reply;
    printf("%s: %" PRIu32 " partitions\n", ctl->words[0], changed->partition_count);
    return HPSCTL_OK;
}

/* False after saying what is wrong. */
static bool read_target(const struct hpsctl *ctl, Hps__V1__ControlUpdatesRequest *request)
{
    if (flags.to == NULL) {
        (void)hpsctl_usage(ctl, "seek: --to is missing");
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
        (void)hpsctl_usage(ctl, "--to: got \"%s\", expected an offset, earliest, latest or @MS",
                           flags.to);
        return false;
    }
    return true;
}

static int control(struct hpsctl *ctl, Hps__V1__UpdateAction action)
{
    Hps__V1__ControlUpdatesRequest request = HPS__V1__CONTROL_UPDATES_REQUEST__INIT;

    request.action = action;
    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.topic = (char *)(uintptr_t)flags.topic;
    if (flags.partition < -1 || flags.partition > INT32_MAX) {
        return hpsctl_usage(ctl, "--partition: got %" PRId64 ", expected 0 or more",
                            flags.partition);
    }
    request.one_partition = flags.partition >= 0;
    request.partition = (int32_t)(flags.partition >= 0 ? flags.partition : 0);
    if (action == HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK && !read_target(ctl, &request)) {
        return HPSCTL_USAGE;
    }
    return hpsctl_call_print(ctl, "ControlUpdates", &request.base,
                             &hps__v1__control_updates_response__descriptor, print_changed);
}

int hpsctl_updates(struct hpsctl *ctl)
{
    static const char *const words[] = {"pause", "resume", "seek", "accept-gap", NULL};
    static const Hps__V1__UpdateAction actions[] = {
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_PAUSE, HPS__V1__UPDATE_ACTION__UPDATE_ACTION_RESUME,
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_SEEK,
        HPS__V1__UPDATE_ACTION__UPDATE_ACTION_ACCEPT_GAP};
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;

    if (ctl->n_words > 0 && !hpsctl_word_arg(ctl, ctl->words[0], words)) {
        return HPSCTL_USAGE;
    }
    for (size_t i = 0; ctl->n_words > 0 && words[i] != NULL; i++) {
        if (strcmp(ctl->words[0], words[i]) == 0) {
            return control(ctl, actions[i]);
        }
    }
    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.refresh = flags.refresh;
    return hpsctl_call_print(ctl, "GetUpdates", &request.base,
                             &hps__v1__get_updates_response__descriptor, print_updates);
}

/* ---- wait-for -------------------------------------------------------------------------------- */

/* What is waited for: the ends of all partitions, as they were, or one offset. */
struct goal {
    Hps__V1__GetUpdatesResponse *ends; /* NULL: the next ones */
    char topic[256];
    int32_t partition;
    int64_t offset;
};

static int get_updates(struct hpsctl *ctl, bool refresh, Hps__V1__GetUpdatesResponse **out_reply)
{
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;
    request.model = (char *)(uintptr_t)flags.model;
    request.version = flags.version;
    request.refresh = refresh;
    return hpsctl_call(ctl, "GetUpdates", &request.base, &hps__v1__get_updates_response__descriptor,
                       out_reply);
}

/* One past the last offset that is waited for; 0: none of this partition. */
static int64_t goal_of(const struct goal *goal, const Hps__V1__VersionUpdates *version,
                       const Hps__V1__PartitionUpdates *partition)
{
    if (goal->ends == NULL) {
        bool meant =
            strcmp(goal->topic, partition->topic) == 0 && goal->partition == partition->partition;
        return meant ? goal->offset + 1 : 0;
    }
    for (size_t v = 0; v < goal->ends->n_versions; v++) {
        const Hps__V1__VersionUpdates *of = goal->ends->versions[v];
        bool same = of->version == version->version && strcmp(of->model, version->model) == 0;
        for (size_t i = 0; same && i < of->n_partitions; i++) {
            if (of->partitions[i]->partition == partition->partition &&
                strcmp(of->partitions[i]->topic, partition->topic) == 0) {
                return of->partitions[i]->end_offset;
            }
        }
    }
    return 0;
}

struct progress {
    bool met;  /* a partition that is waited for is there */
    bool done; /* all of them are so far */
    const Hps__V1__PartitionUpdates *stuck;
};

static struct progress look(const struct goal *goal, const Hps__V1__GetUpdatesResponse *now)
{
    struct progress progress = {.done = true};
    for (size_t v = 0; v < now->n_versions; v++) {
        const Hps__V1__VersionUpdates *version = now->versions[v];
        if (flags.version == 0 && !version->active) {
            continue;
        }
        for (size_t i = 0; i < version->n_partitions; i++) {
            const Hps__V1__PartitionUpdates *partition = version->partitions[i];
            int64_t next = goal_of(goal, version, partition);
            if (next == 0) {
                continue;
            }
            progress.met = true;
            if (partition->offset < next) {
                progress.done = false;
                bool stuck =
                    strcmp(partition->state, "gap") == 0 || strcmp(partition->state, "failed") == 0;
                progress.stuck = stuck ? partition : progress.stuck;
            }
        }
    }
    progress.done = progress.done && (progress.met || goal->ends != NULL);
    return progress;
}

static int wait_goal(struct hpsctl *ctl, const struct goal *goal)
{
    const struct timespec pause = {0, POLL_NS};
    uint64_t until_us = hps_clock_us() + ctl->timeout_us;
    for (;;) {
        Hps__V1__GetUpdatesResponse *now = NULL;
        int code = get_updates(ctl, false, &now);
        if (code != HPSCTL_OK) {
            return code;
        }
        struct progress progress = look(goal, now);
        if (progress.stuck != NULL) {
            (void)fprintf(stderr, "hpsctl: partition %" PRId32 " of %s stands still: %s\n",
                          progress.stuck->partition, progress.stuck->topic, progress.stuck->reason);
        }
        bool stuck = progress.stuck != NULL;
        hps_message_free(&now->base);
        if (stuck) {
            return HPSCTL_NEGATIVE;
        }
        if (progress.done) {
            return HPSCTL_OK;
        }
        if (hps_clock_us() >= until_us) {
            (void)fprintf(stderr, "hpsctl: %s\n",
                          progress.met ? "not there within the time-out"
                                       : "no active version reads such a partition");
            return HPSCTL_DEADLINE;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* "topic:partition:offset" */
static bool read_position(const char *text, struct goal *goal)
{
    const char *last = strrchr(text, ':');
    const char *first = last;
    int64_t partition;
    while (first != NULL && first > text && first[-1] != ':') {
        first--;
    }
    if (first == NULL || first <= text + 1 || (size_t)(first - text) > sizeof(goal->topic)) {
        return false;
    }
    char number[24];
    size_t size = (size_t)(last - first);
    if (size == 0 || size >= sizeof(number)) {
        return false;
    }
    memcpy(number, first, size);
    number[size] = '\0';
    memcpy(goal->topic, text, (size_t)(first - text) - 1);
    goal->topic[first - text - 1] = '\0';
    if (!hps_args_i64(number, &partition) || partition < 0 || partition > INT32_MAX ||
        !hps_args_i64(last + 1, &goal->offset) || goal->offset < 0 || goal->offset == INT64_MAX) {
        return false;
    }
    goal->partition = (int32_t)partition;
    return true;
}

int hpsctl_wait_for(struct hpsctl *ctl)
{
    struct goal goal = {0};
    int code = HPSCTL_OK;

    if (strcmp(ctl->words[0], "now") == 0) {
        code = get_updates(ctl, true, &goal.ends);
    } else if (!read_position(ctl->words[0], &goal)) {
        return hpsctl_usage(ctl, "\"%s\" is no position: TOPIC:PARTITION:OFFSET, or now",
                            ctl->words[0]);
    }
    if (code == HPSCTL_OK) {
        code = wait_goal(ctl, &goal);
    }
    if (goal.ends != NULL) {
        hps_message_free(&goal.ends->base);
    }
    if (code == HPSCTL_OK && !hpsctl_json(ctl)) {
        printf("visible\n");
    } else if (code == HPSCTL_OK) {
        printf("{\"visible\":true}\n");
    }
    return code;
}
