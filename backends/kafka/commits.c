/* SPDX-License-Identifier: Apache-2.0
 *
 * Each group of the log has a thread and a handle that only commits, because librdkafka starts no
 * partition of a handle while a commit is in flight. After a refusal the thread closes the handle
 * and waits: librdkafka would look for the group's coordinator twice a second without end.
 *
 *     consumers ─▶ pending: the last position of each partition ─▶ thread ─▶ coordinator
 *     consumers ◀─ the result, when it changes ◀────────────────────┘
 */
#include "backends/kafka/commits.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/worker.h"

enum {
    ANSWER_US = 15000000, /* for a response, which usually takes milliseconds */
    SOCKET_MS = 3000,     /* for a response of the coordinator */
    SERVE_MS = 100,       /* between checks whether to stop */
    AGAIN_US = 1000000,   /* after a failure; four times longer after each further one */
    AGAIN_MAX_US = 60000000,
    TELL_US = 30000000, /* shorter outages of a coordinator are not reported */
    STACK_BYTES = 256 * 1024,
};

/* Of these handles. Without a coordinator a commit ends after a "session". A handle that is closed
 * before that uses a whole CPU until then. */
static const struct hps_kafka_property OWN[] = {
    {"session.timeout.ms", "2000"},
    {"heartbeat.interval.ms", "500"},
};

struct group {
    struct group *next;
    struct hps_kafka_commits *of;
    char *name;
    struct hps_worker worker;
    /* Under the lock: */
    struct hps_cond changed;
    rd_kafka_topic_partition_list_t *pending; /* NULL: none */
    hps_status status;
    char text[HPS_KAFKA_TEXT_BYTES];
    /* The thread's own: */
    rd_kafka_t *rk; /* NULL: not connected */
    rd_kafka_queue_t *answers;
    rd_kafka_queue_t *messages; /* librdkafka's errors of the group */
    uint64_t failing_us;        /* since when; 0: not */
    uint64_t again_us;          /* how long to wait after the next failure */
};

struct hps_kafka_commits {
    const rd_kafka_conf_t *shared;
    struct hps_lock lock;
    struct group *groups;
    bool stopping;
};

/* ---- the handle of a group: its thread ------------------------------------------------------- */

static hps_status connect_group(struct group *group, struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    const struct hps_kafka_property own[] = {OWN[0], OWN[1], {"group.id", group->name}};
    if (group->rk != NULL) {
        return HPS_OK;
    }
    hps_status status =
        hps_kafka_conf(group->of->shared, own, sizeof(own) / sizeof(own[0]), &conf, err);
    if (status == HPS_OK) {
        hps_kafka_conf_at_most(conf, "socket.timeout.ms", SOCKET_MS);
        status = hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, "commits",
                                       "Kafka client that commits", &group->rk, err);
    }
    if (status == HPS_OK) {
        rd_kafka_poll_set_consumer(group->rk);
        group->messages = rd_kafka_queue_get_consumer(group->rk);
        group->answers = rd_kafka_queue_new(group->rk);
    }
    return status;
}

static void disconnect_group(struct group *group)
{
    if (group->rk != NULL) {
        rd_kafka_queue_destroy(group->messages);
        rd_kafka_queue_destroy(group->answers);
        hps_kafka_handle_close(group->rk);
        group->rk = NULL;
    }
}

/* A lasting error of the group that librdkafka reports elsewhere; NO_ERROR: none. */
static rd_kafka_resp_err_t group_error(struct group *group)
{
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_message_t *message = NULL;
    while (code == RD_KAFKA_RESP_ERR_NO_ERROR &&
           rd_kafka_consume_batch_queue(group->messages, 0, &message, 1) == 1) {
        if (hps_kafka_status(message->err) == HPS_PERMISSION) {
            code = message->err;
        }
        rd_kafka_message_destroy(message);
    }
    return code;
}

/* The first error of the response. Removes positions that were committed from `positions`, and
 * positions of deleted topics, which can never be committed. Takes the event. */
static rd_kafka_resp_err_t response_of(rd_kafka_event_t *event,
                                       rd_kafka_topic_partition_list_t *positions)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    const rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    bool each = code == RD_KAFKA_RESP_ERR_NO_ERROR; /* each partition has its own result */
    for (int i = 0; list != NULL && i < list->cnt; i++) {
        each = each || list->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR;
    }
    if (each) {
        code = RD_KAFKA_RESP_ERR_NO_ERROR;
    }
    for (int i = 0; list != NULL && i < list->cnt && each; i++) {
        const rd_kafka_topic_partition_t *place = &list->elems[i];
        if (place->err == RD_KAFKA_RESP_ERR_NO_ERROR ||
            hps_kafka_status(place->err) == HPS_NOT_FOUND) {
            rd_kafka_topic_partition_list_del(positions, place->topic, place->partition);
        } else if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            code = place->err;
        }
    }
    rd_kafka_event_destroy(event);
    return code;
}

static bool is_stopping(struct group *group)
{
    hps_lock_acquire(&group->of->lock);
    bool stopping = group->of->stopping;
    hps_lock_release(&group->of->lock);
    return stopping;
}

/* The admin calls are not used: librdkafka aborts the process if the response to a request arrives
 * after its timeout, as after an outage. */
static rd_kafka_resp_err_t commit(struct group *group, rd_kafka_topic_partition_list_t *positions)
{
    HPS_ASSERT(group->rk != NULL && positions->cnt > 0);
    uint64_t end_us = hps_clock_us() + ANSWER_US;
    rd_kafka_resp_err_t code =
        rd_kafka_commit_queue(group->rk, positions, group->answers, NULL, NULL);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return code;
    }
    rd_kafka_resp_err_t why = RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_event_t *event = NULL;
    while (event == NULL && hps_clock_us() < end_us && !is_stopping(group)) {
        event = rd_kafka_queue_poll(group->answers, SERVE_MS);
        why = why == RD_KAFKA_RESP_ERR_NO_ERROR ? group_error(group) : why;
    }
    if (event == NULL) {
        disconnect_group(group); /* so that a late response is dropped */
        return RD_KAFKA_RESP_ERR__TIMED_OUT;
    }
    code = response_of(event, positions);
    return code != RD_KAFKA_RESP_ERR_NO_ERROR && why != RD_KAFKA_RESP_ERR_NO_ERROR ? why : code;
}

/* ---- its thread ------------------------------------------------------------------------------ */

static void pending_set(struct group *group, const char *topic, int32_t partition, int64_t offset,
                        bool newer)
{
    HPS_ASSERT(partition >= 0 && offset >= 0);
    if (group->pending == NULL) {
        group->pending = rd_kafka_topic_partition_list_new(8);
    }
    rd_kafka_topic_partition_t *place =
        rd_kafka_topic_partition_list_find(group->pending, topic, partition);
    if (place == NULL) {
        rd_kafka_topic_partition_list_add(group->pending, topic, partition)->offset = offset;
    } else if (newer) {
        place->offset = offset;
    }
}

static void result_set(struct group *group, hps_status status, const char *why)
{
    HPS_ASSERT(why != NULL);
    if (status == group->status) {
        return;
    }
    group->status = status;
    snprintf(group->text, sizeof(group->text), "group \"%.100s\": %.140s", group->name, why);
}

/* The coordinator may be unreachable, or not known yet. */
static bool may_pass(hps_status status)
{
    return status == HPS_UNAVAILABLE || status == HPS_DEADLINE;
}

/* With the lock held. */
static void take_result(struct group *group, hps_status status, const char *why,
                        const rd_kafka_topic_partition_list_t *positions)
{
    uint64_t now_us = hps_clock_us();
    if (status == HPS_OK) {
        group->failing_us = 0;
        group->again_us = AGAIN_US;
        result_set(group, HPS_OK, "");
        return;
    }
    for (int i = 0; i < positions->cnt; i++) {
        const rd_kafka_topic_partition_t *place = &positions->elems[i];
        pending_set(group, place->topic, place->partition, place->offset, false);
    }
    group->failing_us = group->failing_us == 0 ? now_us : group->failing_us;
    if (!may_pass(status) || now_us >= group->failing_us + TELL_US) {
        result_set(group, status == HPS_DEADLINE ? HPS_UNAVAILABLE : status, why);
    }
}

/* Commit the pending positions. With the lock held, which is released during the request. False: it
 * failed. */
static bool commit_pending(struct group *group)
{
    struct hps_error err = {0};
    rd_kafka_topic_partition_list_t *positions = group->pending;
    HPS_ASSERT(positions != NULL);
    group->pending = NULL;
    hps_lock_release(&group->of->lock);
    hps_status status = connect_group(group, &err);
    const char *why = err.text;
    if (status == HPS_OK) {
        rd_kafka_resp_err_t code = commit(group, positions);
        status = hps_kafka_status(code);
        why = rd_kafka_err2str(code);
    }
    if (status != HPS_OK && !may_pass(status)) {
        disconnect_group(group);
    }
    hps_lock_acquire(&group->of->lock);
    take_result(group, status, why, positions);
    rd_kafka_topic_partition_list_destroy(positions);
    return status == HPS_OK;
}

static void *group_run(void *arg)
{
    struct group *group = arg;
    struct hps_kafka_commits *of = group->of;
    uint64_t due_us = 0;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        if (group->pending == NULL) {
            hps_cond_wait(&group->changed, &of->lock);
        } else if (hps_clock_us() < due_us) {
            hps_cond_wait_until(&group->changed, &of->lock, due_us);
        } else if (!commit_pending(group)) {
            due_us = hps_clock_us() + group->again_us;
            group->again_us =
                4 * group->again_us < AGAIN_MAX_US ? 4 * group->again_us : AGAIN_MAX_US;
        }
    }
    hps_lock_release(&of->lock);
    disconnect_group(group);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_kafka_commits_new(const rd_kafka_conf_t *shared,
                                 struct hps_kafka_commits **out_commits)
{
    struct hps_kafka_commits *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return HPS_NO_MEMORY;
    }
    of->shared = shared;
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_COMMITS);
    *out_commits = of;
    return HPS_OK;
}

void hps_kafka_commits_free(struct hps_kafka_commits *of)
{
    if (of == NULL) {
        return;
    }
    hps_lock_acquire(&of->lock);
    of->stopping = true;
    for (struct group *group = of->groups; group != NULL; group = group->next) {
        hps_cond_broadcast(&group->changed);
    }
    hps_lock_release(&of->lock);
    while (of->groups != NULL) {
        struct group *group = of->groups;
        of->groups = group->next;
        hps_worker_join(&group->worker);
        if (group->pending != NULL) {
            rd_kafka_topic_partition_list_destroy(group->pending);
        }
        hps_cond_fini(&group->changed);
        HPS_ASSERT(group->rk == NULL);
        hps_free(group->name);
        hps_free(group);
    }
    hps_lock_fini(&of->lock);
    hps_free(of);
}

/* NULL: nothing was committed for the group yet. With the lock held. */
static struct group *group_find(const struct hps_kafka_commits *of, const char *name)
{
    struct group *group = of->groups;
    while (group != NULL && strcmp(group->name, name) != 0) {
        group = group->next;
    }
    return group;
}

/* The group with its thread, made if missing. NULL: no memory, or no thread. With the lock held. */
static struct group *group_make(struct hps_kafka_commits *of, const char *name)
{
    struct group *group = group_find(of, name);
    if (group == NULL) {
        group = hps_calloc(1, sizeof(*group));
        char *copy = hps_strdup(name);
        if (group == NULL || copy == NULL) {
            hps_free(copy);
            hps_free(group);
            return NULL;
        }
        *group = (struct group){
            .next = of->groups, .of = of, .name = copy, .again_us = AGAIN_US, .status = HPS_OK};
        hps_cond_init(&group->changed);
        of->groups = group;
    }
    hps_status status =
        hps_worker_start(&group->worker, "kafka-commit", STACK_BYTES, group_run, group);
    return status == HPS_OK ? group : NULL;
}

/* ---- committing ------------------------------------------------------------------------------ */

void hps_kafka_commits_add(struct hps_kafka_commits *of, const char *name,
                           const struct hps_consumer_position *positions, uint32_t n_positions)
{
    hps_lock_acquire(&of->lock);
    struct group *group = group_make(of, name);
    for (uint32_t i = 0; i < n_positions && group != NULL; i++) {
        pending_set(group, positions[i].topic, positions[i].partition, positions[i].offset, true);
    }
    if (group != NULL) {
        hps_cond_broadcast(&group->changed);
    }
    hps_lock_release(&of->lock);
}

bool hps_kafka_commits_news(struct hps_kafka_commits *of, const char *name, hps_status *seen,
                            char out_text[HPS_KAFKA_TEXT_BYTES])
{
    hps_lock_acquire(&of->lock);
    const struct group *group = group_find(of, name);
    bool news = group != NULL && group->status != *seen;
    if (news) {
        *seen = group->status;
        memcpy(out_text, group->text, sizeof(group->text));
    }
    hps_lock_release(&of->lock);
    return news;
}
