/* SPDX-License-Identifier: Apache-2.0
 *
 * The streams of all versions: it adds and ends them, shows their views, and gives commands to
 * them. Any thread; stream_main is the thread `update`.
 */
#include "server/update/updates.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "server/observe/metrics.h"
#include "server/update/updater.h"

enum {
    STREAM_STACK_BYTES = 1 << 20,
    TURN_MS_MAX = 100 /* as-of is this precise */
};

/* ---- streams --------------------------------------------------------------------------------- */

static void wake(struct hps_update_stream *stream)
{
    hps_lock_acquire(&stream->board->lock);
    update_wake(stream);
    hps_lock_release(&stream->board->lock);
}

/* End the waits and the commands of a stream. No more are added, since it stops. Commands to all
 * versions of a model continue with the other versions. */
static void end(struct hps_update_stream *stream)
{
    struct hps_update_work *work;
    update_waits_end(stream);
    while ((work = update_call_take(stream)) != NULL) {
        if (work->command.version != 0) {
            hps_ignore(hps_error_set(&work->error, HPS_UNAVAILABLE,
                                     "version %" PRId64 " of model \"%s\" takes no more updates",
                                     stream->number, stream->model));
        }
        work->advance(work);
    }
    update_life_set(stream, UPDATE_ENDED);
}

static void *stream_main(void *arg)
{
    struct hps_update_stream *stream = arg;
    uint32_t poll_ms = stream->source->poll_timeout_ms;
    hps_thread_background(); /* before the consumer creates its threads, which inherit this */
    while (!update_stops(stream)) {
        update_stream_turn(stream, poll_ms < TURN_MS_MAX ? poll_ms : TURN_MS_MAX);
        update_waits_show(stream);
    }
    update_stream_close(stream);
    end(stream);
    return NULL;
}

/* Remove the streams that have ended, or all, from the list. free_list frees them, without the
 * lock. */
static struct hps_update_stream *take(struct hps_updater *updater, bool all)
{
    struct hps_update_stream *list = NULL;
    struct hps_update_stream **at = &updater->streams;
    while (*at != NULL) {
        struct hps_update_stream *stream = *at;
        if (all || atomic_load(&stream->life) == UPDATE_ENDED) {
            *at = stream->next;
            stream->next = list;
            list = stream;
        } else {
            at = &stream->next;
        }
    }
    return list;
}

static void free_list(struct hps_update_stream *list)
{
    for (struct hps_update_stream *stream = list; stream != NULL; stream = stream->next) {
        update_life_set(stream, UPDATE_STOPS);
        wake(stream);
    }
    while (list != NULL) {
        struct hps_update_stream *stream = list;
        list = stream->next;
        hps_worker_join(&stream->thread);
        update_stream_free(stream);
    }
}

hps_status update_open(struct hps_updater *updater, struct hps_update_stream *stream,
                       struct hps_error *err)
{
    struct update_others others = {.stream = stream};
    stream->updater = updater;
    hps_status status = update_stream_open(stream, err);
    if (status == HPS_OK) {
        hps_updater_each(updater, update_add_others, &others);
        status = others.status;
    }
    return status;
}

void hps_updater_add(struct hps_updater *updater, struct hps_version *version, uint64_t n_switches)
{
    struct hps_error err = {0};
    if (updater == NULL) {
        return;
    }
    struct hps_update_stream *stream = update_stream_new(&updater->common, version, n_switches);
    hps_status status = stream == NULL ? HPS_NO_MEMORY : update_open(updater, stream, &err);
    hps_lock_acquire(&updater->lock);
    struct hps_update_stream *ended = take(updater, false);
    if (status == HPS_OK && updater->stopped) {
        status = hps_error_set(&err, HPS_UNAVAILABLE, "the server stops");
    }
    if (status == HPS_OK) {
        update_stream_show(stream);
        if (hps_worker_start(&stream->thread, "update", STREAM_STACK_BYTES, stream_main, stream) !=
            HPS_OK) {
            status = hps_error_set(&err, HPS_EXHAUSTED, "the update thread cannot be started");
        }
    }
    if (status == HPS_OK) {
        stream->next = updater->streams;
        stream->id = ++updater->last_id;
        updater->streams = stream;
    }
    hps_lock_release(&updater->lock);
    free_list(ended);
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "updates",
                "updates off: the version is served without them; fix the cause in error, then "
                "load the version again",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", err.text[0] != '\0' ? err.text : hps_status_text(status)));
    }
    if (status != HPS_OK && stream != NULL) {
        update_stream_close(stream);
        update_stream_free(stream);
    }
}

struct hps_update_stream *update_stream_find(struct hps_updater *updater, const char *model,
                                             int64_t number)
{
    hps_lock_assert_held(&updater->lock);
    struct hps_update_stream *stream = updater->streams;
    while (stream != NULL &&
           (strcmp(stream->model, model) != 0 || update_stops(stream) ||
            (number == 0 ? !atomic_load(&stream->active) : stream->number != number))) {
        stream = stream->next;
    }
    return stream;
}

static bool is_loaded(struct update_common *common, const char *model, int64_t version)
{
    struct hps_updater *updater = HPS_CONTAINER_OF(common, struct hps_updater, common);
    hps_lock_acquire(&updater->lock);
    bool loaded = update_stream_find(updater, model, version) != NULL;
    hps_lock_release(&updater->lock);
    return loaded;
}

void hps_updater_remove(struct hps_updater *updater, const struct hps_version *version)
{
    if (updater == NULL) {
        return;
    }
    hps_lock_acquire(&updater->lock);
    struct hps_update_stream *stream = update_stream_find(updater, version->model, version->number);
    if (stream != NULL) {
        update_life_set(stream, UPDATE_STOPS);
        wake(stream);
    }
    hps_lock_release(&updater->lock);
}

void hps_updater_activated(struct hps_updater *updater, const struct hps_version *version,
                           uint64_t n_switches)
{
    if (updater == NULL) {
        return;
    }
    const char *lineage = version->lineage != NULL ? version->lineage : "";
    hps_lock_acquire(&updater->lock);
    for (struct hps_update_stream *stream = updater->streams; stream != NULL;
         stream = stream->next) {
        if (strcmp(stream->model, version->model) != 0) {
            continue;
        }
        atomic_store(&stream->active, stream->number == version->number);
        if (strcmp(stream->lineage, lineage) != 0) {
            atomic_store(&stream->freeze.asked_by, n_switches);
            wake(stream);
        }
    }
    hps_lock_release(&updater->lock);
}

hps_status hps_updater_place(struct hps_version *version, struct hps_error *err)
{
    return update_set_shared_positions(version, err);
}

void hps_updater_reconfigure(struct hps_updater *updater, bool nan_allowed, uint64_t rows_per_s_max)
{
    if (updater != NULL) {
        atomic_store(&updater->common.nan_allowed, nan_allowed);
        atomic_store(&updater->common.rows_per_s_max, rows_per_s_max);
    }
}

/* ---- where updates of files start ------------------------------------------------------------ */

/* Make the records of the manifest's start positions. Returns their number. */
static uint32_t seed_positions(const struct hps_version *version,
                               const struct hps_manifest *manifest,
                               struct hps_position_memory *memory, struct hps_record *records)
{
    uint32_t n = 0;
    for (size_t i = 0; i < manifest->n_positions; i++) {
        const struct hps_manifest_position *from = &manifest->positions[i];
        struct hps_position position = {.next = from->offset,
                                        .start = from->offset,
                                        .skipped = HPS_POSITION_WHOLE,
                                        .frozen = HPS_POSITION_WHOLE};
        struct hps_update_route route;
        if (strlen(from->topic) >= HPS_UPDATE_TOPIC_BYTES_MAX ||
            strlen(from->cluster) >= sizeof(position.cluster) || from->offset < 0 ||
            !hps_update_route(version, from->topic, &route)) {
            HPS_LOG(WARN, "updates",
                    "start position ignored: the topic in the manifest is not of this version",
                    HPS_STR("model", version->model), HPS_STR("topic", from->topic));
            continue;
        }
        memcpy(position.cluster, from->cluster, strlen(from->cluster) + 1);
        records[n] = hps_position_record(from->topic, from->partition, &position, &memory[n]);
        n++;
    }
    return n;
}

hps_status hps_updater_seed(struct hps_version *version, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, uint64_t n_switches, struct hps_error *err)
{
    int64_t start_ms = (int64_t)oldest_file_ms;
    struct hps_position_memory *memory = hps_calloc(manifest->n_positions + 1, sizeof(*memory));
    struct hps_record *records = hps_calloc(manifest->n_positions + 2, sizeof(*records));
    hps_status status = HPS_NO_MEMORY;
    if (memory != NULL && records != NULL) {
        uint32_t n = seed_positions(version, manifest, memory, records);
        records[n] = hps_position_frozen_record(false, n_switches, &memory[n]);
        n++;
        records[n++] = (struct hps_record){HPS_POSITION_START, strlen(HPS_POSITION_START),
                                           &start_ms, sizeof(start_ms)};
        const struct hps_update_batch batch = {.positions = records, .n_positions = n};
        status = hps_update_apply(version, &batch, err);
    } else {
        status = hps_error_set(err, status, "no memory for the positions of a version");
    }
    hps_free(memory);
    hps_free(records);
    /* If the lowest tier does not take updates, the version is served without them. */
    return status == HPS_PRECONDITION ? HPS_OK : status;
}

uint64_t hps_updater_start_hash(const struct hps_updater *updater,
                                const struct hps_manifest *manifest, uint64_t oldest_file_ms)
{
    if (updater == NULL) {
        return 0;
    }
    const struct hps_config_update_source *source = &updater->common.options.config->update_source;
    int64_t time_ms = update_start_time_ms(source, (int64_t)oldest_file_ms);
    uint64_t hash = hps_hash_bytes(&time_ms, sizeof(time_ms), (uint64_t)source->start);
    for (size_t i = 0; i < manifest->n_positions; i++) {
        const struct hps_manifest_position *from = &manifest->positions[i];
        const int64_t at[] = {from->partition, from->offset};
        hash = hps_hash_bytes(from->cluster, strlen(from->cluster), hash);
        hash = hps_hash_bytes(from->topic, strlen(from->topic), hash);
        hash = hps_hash_bytes(at, sizeof(at), hash);
    }
    return hash;
}

bool hps_updater_start_text(const struct hps_updater *updater, const struct hps_manifest *manifest,
                            uint64_t oldest_file_ms, char *out_text, size_t size)
{
    char since[24];
    if (updater == NULL) {
        return false;
    }
    const struct hps_config_update_source *source = &updater->common.options.config->update_source;
    int64_t start_ms = update_start_time_ms(source, (int64_t)oldest_file_ms);
    update_time_text(start_ms, since, sizeof(since));
    const char *which = source->start == HPS_CONFIG_UPDATE_START_EARLIEST ? "all" : "only new";
    int n = start_ms >= 0
                ? snprintf(out_text, size,
                           "records since %s are applied (update_source.start, "
                           "start_time_unix_ms, start_slack_s)",
                           since)
                : snprintf(out_text, size, "%s records are applied (update_source.start)", which);
    if (manifest->n_positions > 0 && n > 0 && (size_t)n < size) {
        snprintf(out_text + n, size - (size_t)n,
                 "; %zu partitions start at the manifest's start_positions", manifest->n_positions);
    }
    return true;
}

/* ---- views ----------------------------------------------------------------------------------- */

void hps_updater_each(struct hps_updater *updater,
                      void (*fn)(void *ctx, const struct hps_stream_view *view), void *ctx)
{
    if (updater == NULL) {
        return;
    }
    hps_lock_acquire(&updater->lock);
    for (struct hps_update_stream *stream = updater->streams; stream != NULL;
         stream = stream->next) {
        if (update_stops(stream)) {
            continue;
        }
        hps_lock_acquire(&stream->board->lock);
        update_view_now(stream);
        fn(ctx, stream->view);
        hps_lock_release(&stream->board->lock);
    }
    hps_lock_release(&updater->lock);
}

void hps_updater_gauges(struct hps_updater *updater)
{
    static const enum hps_metric_id of_partitions[] = {
        HPS_M_UPDATE_LAG, HPS_M_UPDATE_LAG_SECONDS, HPS_M_UPDATE_GAP, HPS_M_UPDATE_PARTITION_STATE};
    if (updater != NULL) {
        struct hps_metrics *metrics = updater->common.options.metrics;
        /* An active version may have fewer partitions than before. */
        for (unsigned i = 0; i < sizeof(of_partitions) / sizeof(of_partitions[0]); i++) {
            hps_metrics_clear(metrics, of_partitions[i]);
        }
        hps_updater_each(updater, update_show_gauges, metrics);
        hps_lock_acquire(&updater->waits_lock);
        uint32_t n_waiters = updater->n_waiters;
        hps_lock_release(&updater->waits_lock);
        hps_metric_set(hps_server_metric(metrics, HPS_M_UPDATE_WAITS, NULL, NULL, NULL, NULL),
                       n_waiters);
    }
}

/* ---- commands -------------------------------------------------------------------------------- */

static bool is_meant(const struct hps_update_stream *stream,
                     const struct hps_update_command *command)
{
    return (command->model[0] == '\0' || strcmp(command->model, stream->model) == 0) &&
           (command->version == 0 || command->version == stream->number) && !update_stops(stream);
}

/* Give the command to the next stream that it is for: an older one, since newer streams have had
 * it, or have been added since. The lock is held until the stream has the call, so that the stream
 * does not end without it. False: there is no such stream, or it takes no more commands. */
static bool give(struct hps_update_work *work)
{
    struct hps_updater *updater = work->updater;
    hps_lock_acquire(&updater->lock);
    struct hps_update_stream *stream = updater->streams;
    while (stream != NULL && (stream->id >= work->before_id || !is_meant(stream, &work->command))) {
        stream = stream->next;
    }
    bool given = false;
    if (stream != NULL) {
        work->n_streams++;
        work->before_id = stream->id;
        given = update_call_add(stream, work);
        if (!given) {
            hps_ignore(hps_error_set(&work->error, HPS_EXHAUSTED,
                                     "command rejected: too many commands wait for version %" PRId64
                                     " of model \"%s\"; retry later",
                                     stream->number, stream->model));
        }
    }
    hps_lock_release(&updater->lock);
    return given;
}

/* Sets the error of a command that no stream had, or that changed nothing. */
static void check_result(struct hps_update_work *work)
{
    const struct hps_update_command *command = &work->command;
    bool met = work->n_streams > 0;
    if (!met || (work->n_partitions == 0 && command->topic[0] != '\0')) {
        hps_ignore(hps_error_set(&work->error, HPS_NOT_FOUND, "no updates of model \"%s\" %s%s",
                                 command->model, met ? "come from topic " : "are taken",
                                 met ? command->topic : ""));
    } else if (command->kind == HPS_UPDATE_ACCEPT_GAP && work->n == 0) {
        hps_ignore(hps_error_set(&work->error, HPS_PRECONDITION,
                                 "no topic that exists has a gap to accept"));
    }
}

/* Thread `update`, or the one that begins the command. */
static void advance(struct hps_update_work *work)
{
    if (work->error.status == HPS_OK && give(work)) {
        return; /* another thread may have freed `work` */
    }
    if (work->error.status == HPS_OK) {
        check_result(work);
    }
    work->done(work);
}

void hps_updater_command(struct hps_updater *updater, struct hps_update_work *work)
{
    HPS_ASSERT(work->command.model != NULL && work->command.topic != NULL && work->done != NULL);
    if (updater == NULL) {
        hps_ignore(hps_error_set(&work->error, HPS_PRECONDITION, "no update source is configured"));
        work->done(work);
        return;
    }
    work->updater = updater;
    work->before_id = UINT64_MAX;
    work->advance = advance;
    advance(work);
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_updater_new(const struct hps_updater_options *options,
                           struct hps_updater **out_updater, struct hps_error *err)
{
    struct hps_updater *updater = hps_calloc(1, sizeof(*updater));
    if (updater == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for updates");
    }
    updater->common.is_loaded = is_loaded;
    const struct hps_config_update_source *source = &options->config->update_source;
    HPS_ASSERT(source->max_batch_size > 0 && source->max_batch_size <= HPS_UPDATE_KEYS_MAX / 2);
    updater->common.options = *options;
    updater->common.instance = hps_mix64(hps_hash_secret() ^ hps_clock_us());
    atomic_init(&updater->common.nan_allowed,
                options->config->server.nan_policy == HPS_CONFIG_NAN_ACCEPT);
    atomic_init(&updater->common.rows_per_s_max, source->max_rows_per_s);
    hps_lock_init(&updater->lock, HPS_LOCK_UPDATER);
    hps_lock_init(&updater->waits_lock, HPS_LOCK_UPDATE_WAITS);
    *out_updater = updater;
    return HPS_OK;
}

void hps_updater_stop(struct hps_updater *updater)
{
    if (updater == NULL) {
        return;
    }
    hps_lock_acquire(&updater->lock);
    updater->stopped = true;
    struct hps_update_stream *list = take(updater, true);
    hps_lock_release(&updater->lock);
    free_list(list);
}

void hps_updater_free(struct hps_updater *updater)
{
    if (updater == NULL) {
        return;
    }
    hps_updater_stop(updater);
    HPS_ASSERT(LIST_EMPTY(&updater->waiters));
    hps_lock_fini(&updater->waits_lock);
    hps_lock_fini(&updater->lock);
    hps_free(updater);
}
