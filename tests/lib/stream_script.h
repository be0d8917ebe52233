/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables for tests of a stream. A row is a list of steps for stream_rig.h: events, and checks of
 * the views, rows, metrics and log lines. A row that fails prints its name, the number of the step,
 * the partition's view and the log. One thread.
 *
 *     CASE("retention", START(3), PUTS(1, 9, 10), TRIM(5), TURNS(3), IS(GAP, "retention"))
 */
#ifndef HPS_TESTS_LIB_STREAM_SCRIPT_H
#define HPS_TESTS_LIB_STREAM_SCRIPT_H

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/lib/stream_rig.h"

#define DEAD_LETTERS "letters"

/* clang-format off */
enum step_kind {
    STEP_END,
    STEP_ON, STEP_PUT, STEP_LOG, STEP_TOPIC, STEP_LEADER, STEP_AT, STEP_PARTITIONS, STEP_COMPACTED,
    STEP_RECREATE, STEP_START, STEP_STOP, STEP_TURNS, STEP_WAIT, STEP_LATER, STEP_FREEZE, STEP_FAIL,
    STEP_RUN,
    STEP_COMMAND, /* the first step that has a result to compare */
    STEP_REFRESH, STEP_IS, STEP_PARTITION, STEP_STREAM, STEP_COUNT, STEP_LAG,
    STEP_LAG_MS, STEP_AGE_MS, STEP_EVENT_MS, STEP_ROWS, STEP_DISK, STEP_SEQUENCE, STEP_METRIC,
    STEP_LOGGED, STEP_COMMITTED, STEP_LETTERS,
    STEP_GET
};
/* clang-format on */

typedef void (*step_at_fn)(struct hps_update_log *log, const char *topic, int32_t partition,
                           int64_t at);

struct step {
    enum step_kind kind;
    const char *kind_text;
    int64_t a, b;
    double value, per_key; /* of the row of a key: value + per_key * key */
    double want;
    const char *text;
    step_at_fn at;
    void (*run)(struct rig *);
    double (*get)(struct rig *, const struct step *);
};

enum { ROW_STEPS_MAX = 48, UNKNOWN = -1, NONE = -1, UNFINISHED = -1 };

struct row {
    const char *name;
    struct step steps[ROW_STEPS_MAX];
};

#define STEP(of, ...)                                    \
    {                                                    \
        .kind = STEP_##of, .kind_text = #of, __VA_ARGS__ \
    }

#define CASE(name, ...) \
    {                   \
        name,           \
        {               \
            __VA_ARGS__ \
        }               \
    }

/* ---- the log and its brokers ----------------------------------------------------------------- */

/* The next steps concern this partition; at first: ITEMS, 0. */
#define ON(topic, number) STEP(ON, .text = (topic), .a = (number))
#define PUT(key, v)       STEP(PUT, .a = (key), .b = (key), .value = (v))
#define DELETE(key)       PUT(key, -1)
/* The value of each key's row is n times the key. */
#define PUTS(first, last, n) STEP(PUT, .a = (first), .b = (last), .per_key = (n))
/* HPS_FAKE_... settings of the log, of the topic */
#define LOG(setting, v)   STEP(LOG, .a = HPS_FAKE_##setting, .b = (v))
#define TOPIC(setting, v) STEP(TOPIC, .a = HPS_FAKE_##setting, .b = (v))
#define AWAY              LOG(AWAY, HPS_UNAVAILABLE)
#define BACK              LOG(AWAY, HPS_OK)
/* The leader does not answer; it answers again. */
#define SILENT       STEP(LEADER, .a = HPS_UNAVAILABLE)
#define ANSWERS      STEP(LEADER, .a = HPS_OK)
#define TRIM(low)    STEP(AT, .at = hps_fake_log_trim, .a = (low))
#define COMPACT(at_) STEP(AT, .at = hps_fake_log_compact, .a = (at_))
#define SPOIL(at_)   STEP(AT, .at = hps_fake_log_spoil, .a = (at_))
/* Create the topic, also after TOPIC(DELETED, true), or let it grow. */
#define PARTITIONS(n) STEP(PARTITIONS, .a = (n))
/* The topic is compacted, and keeps tombstones for this time. */
#define COMPACTED(ms) STEP(COMPACTED, .a = (ms))
/* Delete the topic and create it again at once: consumers get no event. */
#define RECREATE STEP(RECREATE)

/* ---- hpsd and its operator ------------------------------------------------------------------- */

/* Start hpsd, or start it again, and take n turns. */
#define START(n)  STEP(START, .a = (n))
#define STOP      STEP(STOP)
#define TURNS(n)  STEP(TURNS, .a = (n))
#define WAIT(s)   STEP(WAIT, .a = (s))   /* one turn each second */
#define LATER(ms) STEP(LATER, .a = (ms)) /* no turn */
/* Switch n of the model makes a version of another lineage the active one. */
#define FREEZE(n) STEP(FREEZE, .a = (n))
/* The disk applies `skip` batches; then n fail. */
#define DISK_FAILS(status, skip, n) STEP(FAIL, .value = HPS_##status, .a = (skip), .b = (n))
#define DO(function)                STEP(RUN, .run = (function))

/* Commands for all partitions, and their result */
#define COMMAND(of, to, offset, status)                                               \
    STEP(COMMAND, .a = HPS_UPDATE_##of, .b = HPS_UPDATE_SEEK_##to, .value = (offset), \
         .want = HPS_##status)
#define PAUSE(status)        COMMAND(PAUSE, OFFSET, 0, status)
#define RESUME(status)       COMMAND(RESUME, OFFSET, 0, status)
#define ACCEPT(status)       COMMAND(ACCEPT_GAP, OFFSET, 0, status)
#define SEEK(offset, status) COMMAND(SEEK, OFFSET, offset, status)
#define SEEK_TO(to, status)  COMMAND(SEEK, to, 0, status)
/* Refresh: how many partitions it proved, or UNFINISHED; REFRESHED: without a new request. */
#define REFRESH(n)   STEP(REFRESH, .a = true, .want = (n))
#define REFRESHED(n) STEP(REFRESH, .a = false, .want = (n))

/* ---- checks ---------------------------------------------------------------------------------- */

/* HPS_PARTITION_..., and a part of its reason: "" is no reason, NULL is any. */
#define IS(state, reason) STEP(IS, .want = HPS_PARTITION_##state, .text = (reason))
/* A field of the partition's view, int64_t */
#define SEEN(field, n) \
    STEP(PARTITION, .text = #field, .a = offsetof(struct hps_partition_view, field), .want = (n))
#define NEXT(n) SEEN(next, n)
#define HIGH(n) SEEN(high, n)
/* Records from `from` on, at most up to `end`, were skipped. */
#define SKIPPED_RANGE(from, end) SEEN(skipped, from), SEEN(skipped_end, end)
#define LAG(n)                   STEP(LAG, .want = (n))
/* The partition's lag, and the version's age, in ms, as lookups know it; or UNKNOWN */
#define LAG_MS(ms) STEP(LAG_MS, .want = (ms))
#define AGE_MS(ms) STEP(AGE_MS, .want = (ms))
/* The age of the newest applied event. */
#define EVENT_MS(ms) STEP(EVENT_MS, .want = (ms))
/* Fields of the stream's view: true, or a text that is not empty; a number, uint64_t */
#define SHOWS(field, is) \
    STEP(STREAM, .text = #field, .a = offsetof(struct hps_stream_view, field), .want = (is))
#define COUNT(field, n) \
    STEP(COUNT, .text = #field, .a = offsetof(struct hps_stream_view, field), .want = (n))
/* Rows by their first value, or NONE: on the host and the disk, or only on the disk */
#define ROW(key, v)          STEP(ROWS, .a = (key), .b = (key), .value = (v))
#define ROWS(first, last, n) STEP(ROWS, .a = (first), .b = (last), .per_key = (n))
#define DISK(key, v)         STEP(DISK, .a = (key), .want = (v))
/* Batches since the row began */
#define SEQUENCE(n) STEP(SEQUENCE, .want = (n))
/* HPS_M_UPDATE_... of the model; label: NULL, or the second one */
#define METRIC(id, label, n) STEP(METRIC, .a = HPS_M_UPDATE_##id, .text = (label), .want = (n))
#define LOGGED(text_, n)     STEP(LOGGED, .text = (text_), .want = (n)) /* lines so far */
#define COMMITTED(n)         STEP(COMMITTED, .want = (n))
#define LETTERS(n)           STEP(LETTERS, .want = (n)) /* in the topic DEAD_LETTERS */
/* A check of one test file, with the members of struct step that it reads */
#define GET(function, ...)                                                         \
    {                                                                              \
        .kind = STEP_GET, .kind_text = #function, .get = (function), ##__VA_ARGS__ \
    }

/* ---- the runner ------------------------------------------------------------------------------ */

struct script {
    struct rig *rig;
    const char *topic;
    int32_t partition;
    uint64_t sequence;
    FILE *log;
};

static struct {
    const char *row;
    unsigned step;
} script_at;

/* Prints the row in which an assertion of hpsd fails. */
static inline void script_aborted(int signal)
{
    (void)signal;
    print_error("row \"%s\", step %u: aborted\n", script_at.row, script_at.step);
}

static inline const struct hps_partition_view *script_view(const struct script *script)
{
    static const struct hps_partition_view none = {.state = HPS_PARTITION_STATES, .next = -1};
    const struct hps_update_stream *stream = script->rig->stream;
    for (uint32_t i = 0; stream != NULL && i < stream->view->n_partitions; i++) {
        const struct hps_partition_view *view = &stream->view->partitions[i];
        if (view->partition == script->partition && strcmp(view->topic, script->topic) == 0) {
            return view;
        }
    }
    return &none;
}

static inline void script_start(struct script *script, unsigned n_turns)
{
    struct rig *rig = script->rig;
    if (rig->stream != NULL) {
        rig_restart(rig, n_turns);
    } else {
        open_stream(rig);
        turns(rig, n_turns);
    }
    update_stream_show(rig->stream);
}

static inline void script_stop(struct rig *rig)
{
    close_stream(rig);
    fixture_version_close(&rig->fx);
    fixture_version(&rig->fx, 7, "run");
}

static inline void wait_s(struct rig *rig, int64_t s)
{
    for (int64_t i = 0; i < s; i++) {
        hps_clock_advance(1000 * 1000);
        turns(rig, 1);
    }
}

static inline double script_refresh(struct rig *rig, bool asks)
{
    const struct update_refresh *refresh = rig->stream->refresh;
    if (asks) {
        hps_clock_advance(1);
        rig->stream->refresh->asked_us = hps_clock_us();
        (void)update_refresh_turn(rig->stream, 0);
    }
    bool failed = refresh->error.status != HPS_OK;
    double n = 0; /* partitions that it proved */
    UPDATE_EACH (rig->stream, partition) {
        n += partition->proof->response.asked_us >= refresh->done_us &&
             update_is_proved_since(partition, refresh->begun_ms);
    }
    return refresh->begun_us > 0 ? UNFINISHED : failed ? NAN : n;
}

/* The first value of a row; NAN: the host and the disk differ. */
static inline double script_value(const struct script *script, hps_key key, bool disk)
{
    struct rig *rig = script->rig;
    uint32_t table = strcmp(script->topic, USERS) == 0 ? FIXTURE_USERS : FIXTURE_ITEMS;
    double on_disk = fixture_tier_value(&rig->fx, 1, table, key);
    return disk || fixture_tier_value(&rig->fx, 0, table, key) == on_disk ? on_disk : NAN;
}

/* Stops at the first row with another value. */
static inline double script_rows(const struct script *script, const struct step *step,
                                 double *out_want)
{
    double got = NAN;
    for (int64_t key = step->a; key <= step->b; key++) {
        *out_want = step->value + step->per_key * (double)key;
        got = script_value(script, (hps_key)key, false);
        if (got != *out_want) {
            break;
        }
    }
    return got;
}

/* How many lines contain the text; prints all of them. */
static inline unsigned script_logged(FILE *log, const char *text, bool prints)
{
    char line[1024];
    unsigned n = 0;
    rewind(log);
    while (fgets(line, sizeof(line), log) != NULL) {
        n += strstr(line, text) != NULL ? 1 : 0;
        if (prints) {
            print_error("    %s", line);
        }
    }
    return n;
}

static inline double script_state(const struct script *script, const struct step *step)
{
    const struct hps_partition_view *view = script_view(script);
    bool none = step->text != NULL && step->text[0] == '\0';
    bool fits = none ? view->reason[0] == '\0'
                     : step->text == NULL || strstr(view->reason, step->text) != NULL;
    return fits ? (double)view->state : NAN;
}

static inline void script_log(struct script *script, const struct step *step)
{
    struct hps_update_log *log = script->rig->log;
    switch (step->kind) {
    case STEP_ON:
        script->topic = step->text;
        script->partition = (int32_t)step->a;
        break;
    case STEP_PUT:
        for (int64_t key = step->a; key <= step->b; key++) {
            put_on(script->rig, script->topic, script->partition, (hps_key)key,
                   (float)(step->value + step->per_key * (double)key));
        }
        break;
    case STEP_LOG:
        hps_fake_log_set(log, (enum hps_fake_setting)step->a, step->b);
        break;
    case STEP_TOPIC:
        hps_fake_log_topic_set(log, script->topic, (enum hps_fake_topic_setting)step->a, step->b);
        break;
    case STEP_LEADER:
        hps_fake_log_leader(log, script->topic, script->partition, (hps_status)step->a);
        break;
    case STEP_AT:
        step->at(log, script->topic, script->partition, step->a);
        break;
    case STEP_PARTITIONS:
        hps_fake_log_topic(log, script->topic, (int32_t)step->a);
        break;
    case STEP_COMPACTED:
        hps_fake_log_topic_compacted(log, script->topic, HPS_COMPACTION_YES, step->a);
        break;
    default:
        hps_fake_log_topic_replace(log, script->topic);
        break;
    }
}

static inline void script_act(struct script *script, const struct step *step)
{
    struct rig *rig = script->rig;
    switch (step->kind) {
    case STEP_START:
        script_start(script, (unsigned)step->a);
        break;
    case STEP_STOP:
        script_stop(rig);
        break;
    case STEP_TURNS:
        turns(rig, (unsigned)step->a);
        break;
    case STEP_WAIT:
        wait_s(rig, step->a);
        break;
    case STEP_LATER:
        hps_clock_advance((uint64_t)step->a * 1000);
        break;
    case STEP_FREEZE:
        freeze(rig, (uint64_t)step->a);
        break;
    case STEP_FAIL:
        hps_fake_fail(rig->fx.disk, HPS_FAKE_APPLY, (hps_status)step->value, (uint32_t)step->a,
                      (uint32_t)step->b, 0);
        break;
    case STEP_RUN:
        step->run(rig);
        break;
    default:
        script_log(script, step);
        break;
    }
}

static inline double script_result(struct script *script, const struct step *step, double *out_want)
{
    struct rig *rig = script->rig;
    const struct hps_partition_view *view = script_view(script);
    switch (step->kind) {
    case STEP_COMMAND:
        return command_on(rig, "", -1, (enum hps_update_command_kind)step->a,
                          (enum hps_update_seek)step->b, (int64_t)step->value);
    case STEP_REFRESH:
        return script_refresh(rig, step->a != 0);
    case STEP_IS:
        return script_state(script, step);
    case STEP_PARTITION:
        return (double)*(const int64_t *)(const void *)((const char *)view + step->a);
    case STEP_STREAM:
        return *((const char *)rig->stream->view + step->a) != 0;
    case STEP_COUNT:
        return (double)*(const uint64_t *)(const void *)((const char *)rig->stream->view + step->a);
    case STEP_LAG:
        return view->lag_known ? (double)view->lag : UNKNOWN;
    case STEP_LAG_MS:
        return (double)hps_partition_lag_ms(view);
    case STEP_AGE_MS:
        return (double)hps_update_age_ms(rig->fx.version);
    case STEP_EVENT_MS:
        return (double)(hps_clock_forward_ms() - hps_update_event_time_ms(rig->fx.version));
    case STEP_ROWS:
        return script_rows(script, step, out_want);
    case STEP_DISK:
        return script_value(script, (hps_key)step->a, true);
    case STEP_SEQUENCE:
        return (double)(hps_update_sequence(rig->fx.version) - script->sequence);
    case STEP_METRIC:
        return hps_metric_value(hps_server_metric(rig->metrics, (enum hps_metric_id)step->a, "m",
                                                  step->text, NULL, NULL));
    case STEP_LOGGED:
        return script_logged(script->log, step->text, false);
    case STEP_GET:
        return step->get(rig, step);
    case STEP_LETTERS:
        return (double)hps_fake_log_high(rig->log, DEAD_LETTERS, 0);
    default:
        return (double)hps_fake_log_committed(rig->log, script->topic, script->partition);
    }
}

static inline void script_report(const struct script *script, const struct step *step, double got,
                                 double want)
{
    const struct hps_partition_view *view = script_view(script);
    print_error("row \"%s\", step %u, %s %s: %g, not %g; %s/%d is %u, next %lld, high %lld: %s\n",
                script_at.row, script_at.step, step->kind_text,
                step->text != NULL ? step->text : "", got, want, script->topic,
                (int)script->partition, view->state, (long long)view->next, (long long)view->high,
                view->reason);
    (void)script_logged(script->log, "", true);
}

/* rig: not started yet. */
static inline bool row_passes(const struct row *row, struct rig *rig)
{
    static uint64_t n_rows;
    struct script script = {.rig = rig, .topic = ITEMS, .log = tmpfile()};
    bool passes = true;
    assert_non_null(script.log);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, fileno(script.log));
    hps_clock_advance(++n_rows * 86400 * 1000 * 1000); /* no line counts for the row before */
    script.sequence = hps_update_sequence(rig->fx.version);
    script_at.row = row->name;
    for (unsigned i = 0; i < ROW_STEPS_MAX && row->steps[i].kind != STEP_END && passes; i++) {
        const struct step *step = &row->steps[i];
        script_at.step = i + 1;
        if (step->kind < STEP_COMMAND) {
            script_act(&script, step);
            continue;
        }
        double want = step->want;
        double got = script_result(&script, step, &want);
        if (got != want) {
            script_report(&script, step, got, want);
            passes = false;
        }
    }
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, STDERR_FILENO);
    (void)fclose(script.log);
    return passes;
}

/* open: like rig_open */
static inline void run_rows(const struct row *rows, size_t n, struct rig *(*open)(void))
{
    size_t n_failed = 0;
    (void)signal(SIGABRT, script_aborted);
    for (size_t i = 0; i < n; i++) {
        struct rig *rig = open();
        n_failed += row_passes(&rows[i], rig) ? 0 : 1;
        rig_close(rig);
    }
    assert_int_equal(n_failed, 0);
}
#define RUN_WITH(rows, open) ((void)state, run_rows(rows, sizeof(rows) / sizeof((rows)[0]), open))
#define RUN(rows)            RUN_WITH(rows, rig_open)

#endif
