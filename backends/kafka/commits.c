/* SPDX-License-Identifier: Apache-2.0
 *
 * A handle that only commits, because librdkafka starts no partition of a handle while a commit is
 * in flight. The threads of consumers send the commits and take the results:
 *
 *     consumers ─▶ positions: the last one of each partition ─▶ commit in flight ─▶ coordinator
 *     consumers ◀─ the result, when it changes ◀────────────────────────┘
 */
#include "backends/kafka/commits.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"

enum {
    SOCKET_MS = 3000,   /* for a response of the coordinator */
    AGAIN_US = 1000000, /* after a failure; four times longer after each further one */
    AGAIN_MAX_US = 60000000,
    TELL_US = 30000000, /* shorter outages of a coordinator are not reported */
};

struct hps_kafka_commits {
    const rd_kafka_conf_t *shared;
    const char *group;
    struct hps_lock lock;
    /* Under the lock: */
    rd_kafka_t *rk; /* NULL: nothing was committed yet */
    rd_kafka_queue_t *responses;
    rd_kafka_queue_t *messages;                 /* librdkafka's errors of the group */
    rd_kafka_topic_partition_list_t *positions; /* that are not committed yet */
    bool in_flight;              /* a commit of them, as they were when it was sent */
    rd_kafka_resp_err_t refusal; /* of the group, since the last success */
    uint64_t due_us;             /* when the next commit may be sent */
    uint64_t failing_us;         /* since when; 0: not */
    uint64_t again_us;           /* how long to wait after the next failure */
    hps_status status;
    char text[HPS_KAFKA_TEXT_BYTES];
};

/* ---- results: with the lock held ------------------------------------------------------------- */

/* Take lasting errors of the group, which librdkafka reports once, and apart from responses. */
static void take_refusals(struct hps_kafka_commits *of)
{
    rd_kafka_message_t *message = NULL;
    while (rd_kafka_consume_batch_queue(of->messages, 0, &message, 1) == 1) {
        if (hps_kafka_status(message->err) == HPS_PERMISSION) {
            of->refusal = message->err;
        }
        rd_kafka_message_destroy(message);
    }
}

/* Remove the position of a partition, unless there is a newer one. */
static void remove_position(struct hps_kafka_commits *of, const rd_kafka_topic_partition_t *done)
{
    const rd_kafka_topic_partition_t *place =
        rd_kafka_topic_partition_list_find(of->positions, done->topic, done->partition);
    if (place != NULL && place->offset == done->offset) {
        rd_kafka_topic_partition_list_del(of->positions, done->topic, done->partition);
    }
}

/* The first error of the response. Removes positions that were committed, and positions of deleted
 * topics, which can never be committed. Takes the event. */
static rd_kafka_resp_err_t response_of(struct hps_kafka_commits *of, rd_kafka_event_t *event)
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
            remove_position(of, place);
        } else if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            code = place->err;
        }
    }
    rd_kafka_event_destroy(event);
    return code;
}

/* The commit in flight has ended. */
static void take_result(struct hps_kafka_commits *of, hps_status status, const char *why)
{
    uint64_t now_us = hps_clock_us();
    /* The coordinator may be unreachable, or not known yet. */
    bool may_pass = status == HPS_UNAVAILABLE || status == HPS_DEADLINE;
    if (status == HPS_OK) {
        of->refusal = RD_KAFKA_RESP_ERR_NO_ERROR;
        of->failing_us = 0;
        of->again_us = AGAIN_US;
    } else {
        of->failing_us = of->failing_us == 0 ? now_us : of->failing_us;
        of->due_us = now_us + of->again_us;
        of->again_us = 4 * of->again_us < AGAIN_MAX_US ? 4 * of->again_us : AGAIN_MAX_US;
    }
    of->in_flight = false;
    status = status == HPS_DEADLINE ? HPS_UNAVAILABLE : status;
    if (status != of->status && (!may_pass || now_us >= of->failing_us + TELL_US)) {
        of->status = status;
        snprintf(of->text, sizeof(of->text), "group \"%.100s\": %.140s", of->group, why);
    }
}

/* ---- requests: with the lock held ------------------------------------------------------------ */

static hps_status handle_open(struct hps_kafka_commits *of, struct hps_error *err)
{
    /* Without a coordinator a commit ends after a "session". A handle that is closed before that
     * uses a whole CPU until then. */
    const struct hps_kafka_property own[] = {
        {"session.timeout.ms", "2000"}, {"heartbeat.interval.ms", "500"}, {"group.id", of->group}};
    if (of->rk != NULL) {
        return HPS_OK;
    }
    rd_kafka_conf_t *conf = hps_kafka_conf(of->shared, own, sizeof(own) / sizeof(own[0]));
    hps_kafka_conf_at_most(conf, "socket.timeout.ms", SOCKET_MS);
    hps_status status = hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, "commits",
                                              "Kafka client that commits", &of->rk, err);
    if (status == HPS_OK) {
        rd_kafka_poll_set_consumer(of->rk);
        of->messages = rd_kafka_queue_get_consumer(of->rk);
        of->responses = rd_kafka_queue_new(of->rk);
    }
    return status;
}

/* Send the positions. The admin calls are not used: librdkafka aborts the process if the
 * response to a request arrives after its timeout, as after an outage. */
static void send_positions(struct hps_kafka_commits *of)
{
    struct hps_error err = {0};
    HPS_ASSERT(!of->in_flight);
    of->in_flight = true;
    hps_status status = handle_open(of, &err);
    if (status == HPS_OK) {
        rd_kafka_resp_err_t code =
            rd_kafka_commit_queue(of->rk, of->positions, of->responses, NULL, NULL);
        status = code == RD_KAFKA_RESP_ERR_NO_ERROR ? HPS_OK : hps_kafka_fail(&err, code, "commit");
    }
    if (status != HPS_OK) {
        take_result(of, status, err.text);
    }
}

/* Take the result of the commit in flight, if it has ended, and send the next one. */
static void serve(struct hps_kafka_commits *of)
{
    rd_kafka_event_t *event = NULL;
    if (of->in_flight) {
        take_refusals(of);
        event = rd_kafka_queue_poll(of->responses, 0);
    }
    if (event != NULL) {
        rd_kafka_resp_err_t code = response_of(of, event);
        bool refused = code != RD_KAFKA_RESP_ERR_NO_ERROR && of->refusal != 0;
        code = refused ? of->refusal : code;
        take_result(of, hps_kafka_status(code), rd_kafka_err2str(code));
    }
    if (!of->in_flight && of->positions->cnt > 0 && hps_clock_us() >= of->due_us) {
        send_positions(of);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_kafka_commits *hps_kafka_commits_new(const rd_kafka_conf_t *shared, const char *group)
{
    struct hps_kafka_commits *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return NULL;
    }
    of->shared = shared;
    of->group = group;
    of->again_us = AGAIN_US;
    of->positions = rd_kafka_topic_partition_list_new(8);
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_COMMITS);
    return of;
}

void hps_kafka_commits_free(struct hps_kafka_commits *of)
{
    if (of == NULL) {
        return;
    }
    rd_kafka_topic_partition_list_destroy(of->positions);
    if (of->rk != NULL) {
        rd_kafka_queue_destroy(of->messages);
        rd_kafka_queue_destroy(of->responses);
        hps_kafka_handle_close(of->rk);
    }
    hps_lock_fini(&of->lock);
    hps_free(of);
}

/* ---- committing ------------------------------------------------------------------------------ */

void hps_kafka_commits_add(struct hps_kafka_commits *of,
                           const struct hps_consumer_position *positions, uint32_t n_positions)
{
    hps_lock_acquire(&of->lock);
    for (uint32_t i = 0; i < n_positions; i++) {
        const struct hps_consumer_position *at = &positions[i];
        HPS_ASSERT(at->partition >= 0 && at->offset >= 0);
        rd_kafka_topic_partition_t *place =
            rd_kafka_topic_partition_list_find(of->positions, at->topic, at->partition);
        if (place == NULL) {
            place = rd_kafka_topic_partition_list_add(of->positions, at->topic, at->partition);
        }
        place->offset = at->offset;
    }
    hps_lock_release(&of->lock);
}

bool hps_kafka_commits_turn(struct hps_kafka_commits *of, hps_status *seen,
                            char out_text[HPS_KAFKA_TEXT_BYTES])
{
    hps_lock_acquire(&of->lock);
    serve(of);
    bool news = of->status != *seen;
    if (news) {
        *seen = of->status;
        memcpy(out_text, of->text, sizeof(of->text));
    }
    hps_lock_release(&of->lock);
    return news;
}
