/* SPDX-License-Identifier: Apache-2.0
 *
 * Judges replies of GetUpdates, and asks for them until there is a verdict. Runs on the thread that
 * calls it.
 */
#include "client/update_wait.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/message.h"
#include "net/loop.h"

enum {
    POLL_US = 20 * 1000,
    REFRESH_US = 1000 * 1000, /* between two refreshes, at least */
    REFRESH_SHARE = 4, /* ... and so many times as long as the last one took: it holds a thread
                          of the server */
    REASON_US = 1000 * 1000, /* for the last question, why it is not there, when time is over */
    SILENT_MS = 2000,        /* a leader that has not answered for longer does not */
    REFUSED_LISTED_MAX = 64, /* that a server lists */
    TEXT_BYTES = 400,
    REFUSED_BYTES = 512
};

#define GET_UPDATES "/hps.v1.Admin/GetUpdates"

struct hps_update_wait {
    struct hps_update_goal goal;
    bool begun;   /* looked once */
    bool refresh; /* the next question is to be one with refresh */
    bool refreshed;
    int64_t
        before_ms;    /* by the server's clock: before that nothing of it was there; 0: not known */
    int64_t begin_ms; /* likewise: all that is waited for was logged before, if it was not later */
    int64_t last_ms;  /* likewise: the last reply; 0: none */
    uint64_t process_start_us;
    bool refused_unlisted; /* so many were refused since that not all were seen */
    char refused[REFUSED_BYTES];
};

struct hps_update_wait *hps_update_wait_new(const struct hps_update_goal *goal)
{
    HPS_ASSERT(goal->model != NULL);
    HPS_ASSERT((goal->records == NULL) == (goal->n_records == 0));
    struct hps_update_wait *wait = hps_calloc(1, sizeof(*wait));
    if (wait != NULL) {
        wait->goal = *goal;
        wait->refresh = true;
    }
    return wait;
}

void hps_update_wait_free(struct hps_update_wait *wait)
{
    hps_free(wait);
}

static bool is_meant(const struct hps_update_goal *goal, const Hps__V1__VersionUpdates *version)
{
    return (goal->model[0] == '\0' || strcmp(goal->model, version->model) == 0) &&
           (goal->version != 0 ? goal->version == version->version : version->active);
}

/* ---- reasons --------------------------------------------------------------------------------- */

static void say_none(const struct hps_update_goal *goal, struct hps_error *err)
{
    char of[160] = "";
    if (goal->model[0] != '\0') {
        (void)snprintf(of, sizeof(of), " of model \"%s\"", goal->model);
    }
    if (goal->version != 0) {
        hps_ignore(hps_error_set(err, HPS_NOT_FOUND,
                                 "version %" PRId64 "%s takes no updates: it is not resident; "
                                 "hpsctl models lists those that are",
                                 goal->version, of));
    } else {
        hps_ignore(hps_error_set(err, HPS_NOT_FOUND,
                                 "no active version%s takes updates; hpsctl models lists versions, "
                                 "hpsctl activate makes one active",
                                 of));
    }
}

hps_status hps_update_say_frozen(const Hps__V1__VersionUpdates *version, struct hps_error *err)
{
    return hps_error_set(err, HPS_PRECONDITION,
                         "version %" PRId64 " of model \"%s\" is frozen: a version of another "
                         "lineage was made the active one, and records that name no version are "
                         "passed over since; hpsctl updates seek --model %s --version %" PRId64
                         " --to OFFSET|earliest|latest|@MS lets it go on",
                         version->version, version->model, version->model, version->version);
}

/* States that do not end by waiting, as hpsctl and hps-publish say them. */
static const struct stop {
    const char *state;
    const char *is;
    const char *cause; /* where the server names none */
    const char *advice;
} stops[] = {
    {"paused", "is paused", "by hpsctl updates pause", "hpsctl updates resume ends that"},
    {"gap", "is stopped at a gap", "records that were not applied are lost",
     "load the model anew, or use hpsctl updates seek or accept-gap"},
    {"gone", "is gone", "the topic was deleted", "the server reads it when it is created again"},
    {"failed", "has failed", "Kafka refuses it", "remove the cause, then hpsctl updates resume"},
    {"frozen", "is frozen", "a version of another lineage was made the active one",
     "hpsctl updates seek lets it go on"},
};

/* NULL: it may go on by itself. A frozen one applies records that name its version. */
static const struct stop *stop_of(const Hps__V1__PartitionUpdates *partition, bool named)
{
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        if (strcmp(partition->state, stops[i].state) == 0) {
            return named && strcmp(partition->state, "frozen") == 0 ? NULL : &stops[i];
        }
    }
    return NULL;
}

static hps_status say_stop(const Hps__V1__VersionUpdates *version,
                           const Hps__V1__PartitionUpdates *partition, const struct stop *stop,
                           struct hps_error *err)
{
    return hps_error_set(
        err, HPS_PRECONDITION,
        "partition %" PRId32 " of %s %s in version %" PRId64 " of model \"%s\": "
        "%s; %s",
        partition->partition, partition->topic, stop->is, version->version, version->model,
        partition->reason[0] != '\0' ? partition->reason : stop->cause, stop->advice);
}

/* What keeps a partition that may go on, "running: 3 records behind". */
static void say_state(const Hps__V1__VersionUpdates *version,
                      const Hps__V1__PartitionUpdates *partition, int64_t now_ms,
                      char out_text[TEXT_BYTES])
{
    int64_t silent_ms = partition->end_unix_ms > 0 ? now_ms - partition->end_unix_ms : -1;
    const char *reason = partition->reason[0] != '\0'            ? partition->reason
                         : strcmp(partition->state, "held") == 0 ? version->held
                                                                 : "";
    int n = snprintf(out_text, TEXT_BYTES, "%s", partition->state);
    if (reason[0] != '\0') {
        n += snprintf(out_text + n, (size_t)(TEXT_BYTES - n), ": %.250s", reason);
    }
    if (n < TEXT_BYTES && silent_ms > SILENT_MS) {
        n += snprintf(out_text + n, (size_t)(TEXT_BYTES - n),
                      "; its leader has not answered for %.1f s", (double)silent_ms / 1000);
    } else if (n < TEXT_BYTES && partition->end_unix_ms == 0) {
        n += snprintf(out_text + n, (size_t)(TEXT_BYTES - n), "; its leader has not answered yet");
    }
    if (n < TEXT_BYTES && partition->offset >= 0 && partition->lag_record_count > 0 &&
        !partition->lag_unknown) {
        (void)snprintf(out_text + n, (size_t)(TEXT_BYTES - n), "; %" PRIu64 " records behind",
                       partition->lag_record_count);
    }
}

/* ---- refused records ------------------------------------------------------------------------- */

static void say_refused(const struct hps_update_wait *wait, const Hps__V1__VersionUpdates *version,
                        const Hps__V1__RejectedRecord *newest, size_t n,
                        char out_text[REFUSED_BYTES])
{
    HPS_ASSERT(n > 0);
    char more[100] = "";
    bool all = n >= REFUSED_LISTED_MAX;
    if (n > 1) {
        (void)snprintf(more, sizeof(more), "; %s%zu records %s were", all ? "at least " : "", n,
                       wait->goal.records != NULL ? "that are waited for" : "of late");
    }
    (void)snprintf(out_text, REFUSED_BYTES,
                   "%.140s:%" PRId32 ":%" PRId64 " was refused by version %" PRId64
                   ": %.120s (%.20s), "
                   "and is in no row%s",
                   newest->topic, newest->partition, newest->offset, version->version,
                   newest->message, newest->reason, more);
}

/* Of now: what was refused in the time before, or since. */
static void note_refused(struct hps_update_wait *wait, const Hps__V1__VersionUpdates *version)
{
    int64_t since_ms = wait->begin_ms - (int64_t)(wait->goal.refused_us / 1000);
    const Hps__V1__RejectedRecord *newest = NULL;
    size_t n = 0;
    for (size_t i = 0; i < version->n_rejected_records; i++) {
        if (version->rejected_records[i]->unix_ms >= since_ms) {
            newest = version->rejected_records[i];
            n++;
        }
    }
    if (newest != NULL) {
        say_refused(wait, version, newest, n, wait->refused);
    }
}

const char *hps_update_wait_refused(const struct hps_update_wait *wait)
{
    return wait->refused;
}

void hps_update_wait_before(struct hps_update_wait *wait, const Hps__V1__GetUpdatesResponse *before)
{
    HPS_ASSERT(!wait->begun);
    wait->before_ms = wait->last_ms = before->unix_ms;
    wait->process_start_us = before->process_start_us;
}

/* ranges are in order of offset */
static bool is_within(const struct hps_update_records *records, int64_t offset)
{
    HPS_ASSERT(records->n_ranges > 0);
    size_t low = 0;
    size_t high = records->n_ranges;
    while (low < high) {
        size_t at = low + (high - low) / 2;
        if (records->ranges[at].last < offset) {
            low = at + 1;
        } else {
            high = at;
        }
    }
    return low < records->n_ranges && records->ranges[low].first <= offset;
}

static bool is_waited_for(const struct hps_update_goal *goal, const Hps__V1__RejectedRecord *record)
{
    for (size_t r = 0; r < goal->n_records; r++) {
        const struct hps_update_records *of = &goal->records[r];
        if (of->partition == record->partition && strcmp(of->topic, record->topic) == 0 &&
            is_within(of, record->offset)) {
            return true;
        }
    }
    return false;
}

/* Of records: those that are listed and waited for. What was read before they were written has
 * their offset in an older topic of that name. */
static void find_refused(struct hps_update_wait *wait, const Hps__V1__VersionUpdates *version)
{
    const Hps__V1__RejectedRecord *newest = NULL;
    size_t n = 0;
    for (size_t i = 0; i < version->n_rejected_records; i++) {
        const Hps__V1__RejectedRecord *record = version->rejected_records[i];
        if (record->unix_ms >= wait->before_ms && is_waited_for(&wait->goal, record)) {
            newest = record;
            n++;
        }
    }
    if (newest != NULL) {
        say_refused(wait, version, newest, n, wait->refused);
    }
    bool full = version->n_rejected_records >= REFUSED_LISTED_MAX && wait->last_ms > 0;
    wait->refused_unlisted =
        wait->refused_unlisted || (full && version->rejected_records[0]->unix_ms >= wait->last_ms);
}

/* ---- all that is logged now ------------------------------------------------------------------ */

/* Since the first look, is it known to be the topic that was read? */
static bool is_same_topic(const struct hps_update_wait *wait, const Hps__V1__PartitionUpdates *at)
{
    HPS_ASSERT(wait->begun);
    return at->same_topic_unix_ms >= wait->begin_ms;
}

static bool is_proved(const struct hps_update_wait *wait, const Hps__V1__PartitionUpdates *at)
{
    return at->as_of_unix_ms >= wait->begin_ms && is_same_topic(wait, at);
}

/* Why a version has not proved it yet, which may come. */
static void say_unproved(const struct hps_update_wait *wait, const Hps__V1__VersionUpdates *version,
                         int64_t now_ms, struct hps_error *err)
{
    const Hps__V1__PartitionUpdates *worst = NULL;
    size_t n = 0;
    for (size_t i = 0; i < version->n_partitions; i++) {
        const Hps__V1__PartitionUpdates *at = version->partitions[i];
        if (!is_proved(wait, at)) {
            bool worse =
                worst == NULL ||
                (strcmp(worst->state, "running") == 0 &&
                 (strcmp(at->state, "running") != 0 || at->end_unix_ms < worst->end_unix_ms));
            worst = worse ? at : worst;
            n++;
        }
    }
    char text[TEXT_BYTES] = "";
    if (!version->connected) {
        (void)snprintf(text, sizeof(text), "is not connected to Kafka: %.300s",
                       version->connection_error);
    } else if (worst != NULL) {
        char state[TEXT_BYTES];
        say_state(version, worst, now_ms, state);
        (void)snprintf(
            text, sizeof(text), "waits for partition %" PRId32 " of %.120s, %.160s%s",
            worst->partition, worst->topic, state,
            is_same_topic(wait, worst) ? "" : "; not checked yet whether the topic was recreated");
    } else if (version->held[0] != '\0') {
        (void)snprintf(text, sizeof(text), "cannot apply a batch: %.300s", version->held);
    } else {
        (void)snprintf(text, sizeof(text), "%s",
                       "has not received its list of topics from Kafka yet");
    }
    size_t used = strlen(text);
    if (n > 1 && version->connected) {
        (void)snprintf(text + used, sizeof(text) - used, " (and for %zu more)", n - 1);
    }
    hps_ignore(hps_error_set(err, HPS_DEADLINE, "version %" PRId64 " of model \"%s\" %s",
                             version->version, version->model, text));
}

static enum hps_update_verdict look_all(struct hps_update_wait *wait,
                                        const Hps__V1__VersionUpdates *version, int64_t now_ms,
                                        bool refreshed, struct hps_error *err)
{
    HPS_ASSERT(wait->goal.records == NULL);
    if (version->frozen) {
        hps_ignore(hps_update_say_frozen(version, err));
        return HPS_UPDATE_NEVER;
    }
    if (wait->refused[0] != '\0' && !wait->goal.refused_allowed) {
        hps_ignore(hps_error_set(err, HPS_PRECONDITION,
                                 "%s; publish a correct record, or wait with --allow-refused",
                                 wait->refused));
        return HPS_UPDATE_NEVER;
    }
    bool proved = wait->refreshed && version->as_of_unix_ms >= wait->begin_ms;
    for (size_t i = 0; i < version->n_partitions; i++) {
        const Hps__V1__PartitionUpdates *at = version->partitions[i];
        const struct stop *stop = is_proved(wait, at) ? NULL : stop_of(at, false);
        if (stop != NULL) {
            hps_ignore(say_stop(version, at, stop, err));
            return HPS_UPDATE_NEVER;
        }
        proved = proved && is_proved(wait, at);
        wait->refresh = wait->refresh || !is_same_topic(wait, at);
    }
    if (version->n_partitions == 0 && version->listed && refreshed) {
        hps_ignore(hps_error_set(
            err, HPS_PRECONDITION,
            "model \"%s\" has no topic hps_et.%s or hps_et.%s.<table>: none exists, or the "
            "server's Kafka user may not see it; create it, or grant that user Describe and Read",
            version->model, version->model, version->model));
        return HPS_UPDATE_NEVER;
    }
    if (proved) {
        return HPS_UPDATE_VISIBLE;
    }
    wait->refresh = wait->refresh || version->n_partitions == 0;
    say_unproved(wait, version, now_ms, err);
    return HPS_UPDATE_WAITING;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Where the last one is found; the next one is often behind it. */
static const Hps__V1__PartitionUpdates *find_partition(const Hps__V1__VersionUpdates *version,
                                                       const char *topic, int32_t number,
                                                       size_t *at)
{
    HPS_ASSERT(version->n_partitions == 0 || *at < version->n_partitions);
    for (size_t n = 0; n < version->n_partitions; n++) {
        size_t i = (*at + n) % version->n_partitions;
        if (version->partitions[i]->partition == number &&
            strcmp(version->partitions[i]->topic, topic) == 0) {
            *at = i;
            return version->partitions[i];
        }
    }
    return NULL;
}

static size_t n_partitions_of(const Hps__V1__VersionUpdates *version, const char *topic)
{
    size_t n = 0;
    for (size_t i = 0; i < version->n_partitions; i++) {
        n += strcmp(version->partitions[i]->topic, topic) == 0;
    }
    return n;
}

static hps_status say_unread(const Hps__V1__VersionUpdates *version, const char *topic,
                             struct hps_error *err)
{
    return version->connected
               ? hps_error_set(err, HPS_UNAVAILABLE,
                               "topic %s is not read by version %" PRId64
                               " of model \"%s\": the topic does not exist, the server's Kafka "
                               "user may not see it, or update_filters exclude it",
                               topic, version->version, version->model)
               : hps_error_set(err, HPS_UNAVAILABLE,
                               "version %" PRId64 " of model \"%s\" is not connected to the update "
                               "log: %s",
                               version->version, version->model, version->connection_error);
}

static int64_t last_of(const struct hps_update_records *records)
{
    int64_t last = -1;
    for (size_t i = 0; i < records->n_ranges; i++) {
        last = records->ranges[i].last > last ? records->ranges[i].last : last;
    }
    return last;
}

/* The first of the records that may have been passed over; -1: none was. */
static int64_t passed_over(const struct hps_update_records *records,
                           const Hps__V1__PartitionUpdates *at)
{
    HPS_ASSERT(records->n_ranges > 0);
    int64_t from = at->passed_over_offset == -2 ? 0 : at->passed_over_offset;
    int64_t end = at->passed_over_end_offset > 0 ? at->passed_over_end_offset : INT64_MAX;
    for (size_t i = 0; i < records->n_ranges && from >= 0; i++) {
        const struct hps_update_range *range = &records->ranges[i];
        int64_t first = range->first > from ? range->first : from;
        if (first <= range->last && first < end) {
            return first;
        }
    }
    return -1;
}

static enum hps_update_verdict say_passed_over(const Hps__V1__VersionUpdates *version,
                                               const Hps__V1__PartitionUpdates *at, int64_t offset,
                                               struct hps_error *err)
{
    if (at->passed_over_offset == -2) {
        hps_ignore(hps_error_set(err, HPS_PRECONDITION,
                                 "%s:%" PRId32 ":%" PRId64 " may be missing in version %" PRId64
                                 ": a gap there was accepted, or moved past; publish it again, or "
                                 "load the model anew",
                                 at->topic, at->partition, offset, version->version));
    } else {
        hps_ignore(hps_error_set(err, HPS_PRECONDITION,
                                 "%s:%" PRId32 ":%" PRId64 " was passed over by version %" PRId64
                                 ": the version was frozen, or moved past the offset; hpsctl "
                                 "updates seek to that offset reads it",
                                 at->topic, at->partition, offset, version->version));
    }
    return HPS_UPDATE_NEVER;
}

static enum hps_update_verdict say_behind(const Hps__V1__VersionUpdates *version,
                                          const Hps__V1__PartitionUpdates *at, int64_t last,
                                          int64_t now_ms, struct hps_error *err)
{
    char state[TEXT_BYTES];
    say_state(version, at, now_ms, state);
    hps_ignore(hps_error_set(err, HPS_DEADLINE,
                             "%s:%" PRId32 ":%" PRId64 " is not applied by version %" PRId64
                             " of model \"%s\": the partition is %.200s",
                             at->topic, at->partition, last, version->version, version->model,
                             version->connected ? state : version->connection_error));
    return HPS_UPDATE_WAITING;
}

static enum hps_update_verdict look_partition(struct hps_update_wait *wait,
                                              const Hps__V1__VersionUpdates *version,
                                              const struct hps_update_records *records,
                                              const Hps__V1__PartitionUpdates *at, int64_t now_ms,
                                              struct hps_error *err)
{
    bool named = wait->goal.named;
    int64_t last = last_of(records);
    int64_t passed = version->frozen && named ? -1 : passed_over(records, at);
    if (passed >= 0 && passed < at->offset) {
        return say_passed_over(version, at, passed, err);
    }
    bool other = strcmp(at->state, "gap") == 0 || strcmp(at->state, "gone") == 0;
    if (!other && at->offset > last && wait->refreshed && at->end_unix_ms >= wait->begin_ms &&
        at->end_offset > last && is_same_topic(wait, at)) {
        return HPS_UPDATE_VISIBLE;
    }
    bool behind = at->offset <= last;
    wait->refresh = wait->refresh || !is_same_topic(wait, at);
    if (behind && version->frozen && !named) {
        hps_ignore(hps_update_say_frozen(version, err));
        return HPS_UPDATE_NEVER;
    }
    const struct stop *stop = stop_of(at, named || !behind);
    if (stop != NULL) {
        hps_ignore(say_stop(version, at, stop, err));
        return HPS_UPDATE_NEVER;
    }
    if (behind) {
        return say_behind(version, at, last, now_ms, err);
    }
    hps_ignore(hps_error_set(
        err, HPS_DEADLINE,
        "%s:%" PRId32 ":%" PRId64 " is read by version %" PRId64
        " of model \"%s\", and the partition's leader has not confirmed this record yet%s%s",
        at->topic, at->partition, last, version->version, version->model,
        at->reason[0] != '\0' ? ": " : "", at->reason));
    return HPS_UPDATE_WAITING;
}

static enum hps_update_verdict look_records(struct hps_update_wait *wait,
                                            const Hps__V1__VersionUpdates *version, int64_t now_ms,
                                            struct hps_error *err)
{
    HPS_ASSERT(wait->goal.n_records > 0);
    enum hps_update_verdict verdict = HPS_UPDATE_VISIBLE;
    size_t at = 0;
    find_refused(wait, version);
    if (wait->refused[0] != '\0') {
        hps_ignore(hps_error_set(err, HPS_PRECONDITION, "%s", wait->refused));
        return HPS_UPDATE_NEVER;
    }
    for (size_t r = 0; r < wait->goal.n_records; r++) {
        const struct hps_update_records *records = &wait->goal.records[r];
        const Hps__V1__PartitionUpdates *partition =
            find_partition(version, records->topic, records->partition, &at);
        enum hps_update_verdict one = HPS_UPDATE_WAITING;
        struct hps_error why = {0};
        if (partition != NULL) {
            one = look_partition(wait, version, records, partition, now_ms, &why);
        } else if (version->frozen && !wait->goal.named) {
            hps_ignore(hps_update_say_frozen(version, &why));
            one = HPS_UPDATE_NEVER;
        } else {
            size_t n = n_partitions_of(version, records->topic);
            wait->refresh = true;
            hps_ignore(n == 0 ? say_unread(version, records->topic, &why)
                              : hps_error_set(&why, HPS_DEADLINE,
                                              "topic %s has no partition %" PRId32
                                              " in version %" PRId64 " of model \"%s\": it has %zu",
                                              records->topic, records->partition, version->version,
                                              version->model, n));
        }
        if (one != HPS_UPDATE_VISIBLE && verdict == HPS_UPDATE_VISIBLE) {
            *err = why;
            verdict = one;
        }
        if (one == HPS_UPDATE_NEVER) {
            *err = why;
            return one;
        }
    }
    if (verdict == HPS_UPDATE_VISIBLE && wait->refused_unlisted) {
        hps_ignore(hps_error_set(
            err, HPS_PRECONDITION,
            "version %" PRId64
            " of model \"%s\" has refused more records meanwhile than it lists: whether these were "
            "refused, too, is in the server's log alone; look there for \"record rejected\"",
            version->version, version->model));
        return HPS_UPDATE_NEVER;
    }
    return verdict;
}

/* ---- one look -------------------------------------------------------------------------------- */

/* False: no verdict may be had from this reply. */
static bool begin_look(struct hps_update_wait *wait, const Hps__V1__GetUpdatesResponse *now,
                       bool refreshed, struct hps_error *err)
{
    if (now->unix_ms == 0) {
        hps_ignore(hps_error_set(err, HPS_PRECONDITION,
                                 "the server is older than this program and does not report what "
                                 "is visible: use the hpsctl of its version"));
        return false;
    }
    if (wait->last_ms > 0 && wait->process_start_us != now->process_start_us) {
        hps_ignore(
            hps_error_set(err, HPS_PRECONDITION,
                          "the server was restarted meanwhile: what it refused before is in "
                          "its log alone; %s",
                          wait->before_ms > 0 ? "look there, or publish again" : "ask again"));
        return false;
    }
    if (!wait->begun) {
        wait->begun = true;
        wait->begin_ms = now->unix_ms;
        wait->process_start_us = now->process_start_us;
    }
    wait->refreshed = wait->refreshed || refreshed;
    wait->refresh = !wait->refreshed;
    return true;
}

enum hps_update_verdict hps_update_wait_look(struct hps_update_wait *wait,
                                             const Hps__V1__GetUpdatesResponse *now, bool refreshed,
                                             struct hps_error *err)
{
    enum hps_update_verdict verdict = HPS_UPDATE_VISIBLE;
    size_t n_meant = 0;
    if (!begin_look(wait, now, refreshed, err)) {
        return HPS_UPDATE_NEVER;
    }
    for (size_t v = 0; v < now->n_versions; v++) {
        const Hps__V1__VersionUpdates *version = now->versions[v];
        struct hps_error why = {0};
        enum hps_update_verdict one;
        if (!is_meant(&wait->goal, version)) {
            continue;
        }
        n_meant++;
        if (wait->goal.records == NULL) {
            note_refused(wait, version);
            one = look_all(wait, version, now->unix_ms, refreshed, &why);
        } else {
            one = look_records(wait, version, now->unix_ms, &why);
        }
        if (one == HPS_UPDATE_NEVER ||
            (one == HPS_UPDATE_WAITING && verdict == HPS_UPDATE_VISIBLE)) {
            *err = why;
            verdict = one;
        }
        if (one == HPS_UPDATE_NEVER) {
            return one;
        }
    }
    if (n_meant == 0) {
        say_none(&wait->goal, err);
        return HPS_UPDATE_NEVER;
    }
    wait->last_ms = now->unix_ms;
    return verdict;
}

hps_status hps_update_check(const Hps__V1__GetUpdatesResponse *reply,
                            const struct hps_update_goal *goal, const char *topic,
                            struct hps_error *err)
{
    size_t n_meant = 0;
    for (size_t v = 0; v < reply->n_versions; v++) {
        const Hps__V1__VersionUpdates *version = reply->versions[v];
        bool read = false;
        if (!is_meant(goal, version)) {
            continue;
        }
        n_meant++;
        if (version->frozen && !goal->named) {
            return hps_update_say_frozen(version, err);
        }
        for (size_t i = 0; i < version->n_partitions; i++) {
            const Hps__V1__PartitionUpdates *at = version->partitions[i];
            const struct stop *stop = stop_of(at, goal->named);
            if (topic == NULL || strcmp(at->topic, topic) != 0) {
                continue;
            }
            read = true;
            /* A topic that is gone is read again when there is one. */
            if (stop != NULL && strcmp(at->state, "gone") != 0) {
                return say_stop(version, at, stop, err);
            }
        }
        if (topic != NULL && !read && version->listed && version->connected) {
            return say_unread(version, topic, err);
        }
    }
    if (n_meant == 0) {
        say_none(goal, err);
        return HPS_NOT_FOUND;
    }
    return HPS_OK;
}

/* ---- asking ---------------------------------------------------------------------------------- */

hps_status hps_update_ask(struct hps_client *client, const char *model, int64_t version,
                          bool refresh, uint64_t timeout_us,
                          Hps__V1__GetUpdatesResponse **out_reply, struct hps_error *err)
{
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.model = (char *)(uintptr_t)model; /* it is only read */
    request.version = version;
    request.refresh = refresh;
    hps_status status = hps_client_call_message(client, GET_UPDATES, &request.base,
                                                &hps__v1__get_updates_response__descriptor,
                                                timeout_us, &reply, err);
    if (status == HPS_OK) {
        *out_reply = (Hps__V1__GetUpdatesResponse *)(void *)reply;
    }
    return status;
}

struct asking {
    struct hps_client *client;
    uint64_t end_us;
    uint64_t refresh_us;   /* not before */
    struct hps_error away; /* why the last refresh was not carried out */
};

/* With a refresh, if one is wanted and can be had; what is away then is no failure yet. */
static hps_status ask(struct hps_update_wait *wait, struct asking *asking,
                      Hps__V1__GetUpdatesResponse **out_reply, bool *out_refreshed,
                      struct hps_error *err)
{
    const struct hps_update_goal *goal = &wait->goal;
    uint64_t begin_us = hps_clock_us();
    *out_refreshed = false;
    if (wait->refresh && begin_us >= asking->refresh_us && begin_us < asking->end_us) {
        hps_status status = hps_update_ask(asking->client, goal->model, goal->version, true,
                                           asking->end_us - begin_us, out_reply, &asking->away);
        uint64_t now_us = hps_clock_us();
        uint64_t rest_us = REFRESH_SHARE * (now_us - begin_us);
        asking->refresh_us = now_us + (rest_us > REFRESH_US ? rest_us : REFRESH_US);
        *out_refreshed = status == HPS_OK;
        if (status != HPS_UNAVAILABLE && status != HPS_DEADLINE) {
            if (status != HPS_OK) {
                *err = asking->away;
            }
            return status;
        }
    }
    uint64_t now_us = hps_clock_us();
    uint64_t left_us = asking->end_us > now_us ? asking->end_us - now_us : 0;
    return hps_update_ask(asking->client, goal->model, goal->version, false,
                          left_us > REASON_US ? left_us : REASON_US, out_reply, err);
}

static hps_status time_is_over(const struct asking *asking, const struct hps_error *why,
                               struct hps_error *err)
{
    return hps_error_set(err, HPS_DEADLINE, "not visible in time: %s%s%s", why->text,
                         asking->away.text[0] != '\0' ? "; " : "", asking->away.text);
}

static void pause_until(struct hps_client *client, uint64_t until_us)
{
    uint64_t now_us;
    while ((now_us = hps_clock_us()) < until_us) {
        hps_loop_turn(hps_client_loop(client), until_us - now_us);
    }
}

hps_status hps_update_wait_run(struct hps_update_wait *wait, struct hps_client *client,
                               uint64_t timeout_us, bool (*stop)(void), struct hps_error *err)
{
    HPS_ASSERT(client != NULL);
    struct asking asking = {.client = client, .end_us = hps_clock_us() + timeout_us};
    for (;;) {
        Hps__V1__GetUpdatesResponse *now = NULL;
        struct hps_error why = {0};
        bool refreshed;
        hps_status status = ask(wait, &asking, &now, &refreshed, err);
        if (status != HPS_OK) {
            /* No such version, or no source of updates: nothing comes of waiting. */
            err->status = status == HPS_NOT_FOUND ? HPS_PRECONDITION : status;
            return err->status;
        }
        enum hps_update_verdict verdict = hps_update_wait_look(wait, now, refreshed, &why);
        hps_message_free(&now->base);
        if (refreshed) {
            asking.away = (struct hps_error){0};
        }
        if (verdict == HPS_UPDATE_VISIBLE) {
            return HPS_OK;
        }
        if (verdict == HPS_UPDATE_NEVER) {
            return hps_error_set(err, why.status == HPS_NO_MEMORY ? why.status : HPS_PRECONDITION,
                                 "%s", why.text);
        }
        uint64_t now_us = hps_clock_us();
        if (stop != NULL && stop()) {
            return hps_error_set(err, HPS_CANCELLED, "interrupted: not waited for any longer");
        }
        if (now_us >= asking.end_us) {
            return time_is_over(&asking, &why, err);
        }
        pause_until(client, now_us + POLL_US < asking.end_us ? now_us + POLL_US : asking.end_us);
    }
}
