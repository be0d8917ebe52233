/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread for the log starts to read each partition at its offset, and stops after the first
 * record, the end of the partition, or an error:
 *
 *     waiting recalls ─▶ requests, up to a limit per leader ─▶ record, end or error ─▶ recall
 *            ▲                                    └ no response in time
 *            └────────────────────────────────────┘
 *
 * The limit is per leader, so that a broker without responses does not delay other brokers. There
 * is at most one request for a partition.
 *
 * There are two handles. The quick one soon closes a connection without a response, because
 * librdkafka may ask that broker for the new leader. If the leader sends other responses in that
 * time but not this one, such as a large batch on a slow line, the patient handle sends the next
 * request. It keeps a connection as long as consumers do. Each further request waits longer, but
 * the first ones wait a short time, because librdkafka may lose a request.
 */
#include "backends/kafka/recall.h"

#include <inttypes.h>
#include <string.h>
#include <sys/queue.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/update_record.h"
#include "base/worker.h"

enum {
    REQUESTS_OF_LEADER_MAX = 64,
    WAIT_MS = 1000, /* for a response; then the request is sent again */
    WAIT_MORE = 4,  /* factor of the wait for the next one, if the leader sends other responses */
    WAIT_MAX_MS = 60000,
    SOCKET_MS = 3000, /* for a response, before the quick handle closes the connection */
    RETRY_US = 500000,
    RESET_US = 20000, /* the same after librdkafka has used a wrong offset */
    SERVE_MS = 50,    /* between checks for requests without a response */
    STACK_BYTES = 256 * 1024,
};

/* Of these handles, whatever the operator sets. Only the leader is read, because a replica may
 * still have the old topic after a topic was recreated. A fetch is small, but has at least one
 * batch. All requests share a queue. librdkafka fetches no partition while a queue has
 * queued.min.messages, and checks only once a second whether it still does, so the number must be
 * high. */
static const struct hps_kafka_property OWN[] = {
    {"isolation.level", "read_uncommitted"},
    {"auto.offset.reset", "earliest"}, /* for an offset before the first record */
    {"client.rack", ""},
    {"fetch.message.max.bytes", "65536"},
    {"fetch.wait.max.ms", "10"},
    {"queued.min.messages", "10000000"},
};

enum { QUICK, PATIENT, N_READERS };

struct reader {
    rd_kafka_t *rk; /* NULL: not opened yet. The thread sets it and the next under the lock */
    rd_kafka_queue_t *queue;
    uint32_t n_requests;
};

enum recall_state { NONE, WAITS, REQUESTED, RESPONDED };

/* Under the lock of recalls, except the first five. */
struct hps_watch {
    struct hps_watch *next; /* of the consumer */
    struct hps_kafka_recalls *of;
    struct hps_kafka_watched *watched; /* a reference */
    const char *topic;
    int32_t partition;
    enum recall_state state;
    TAILQ_ENTRY(hps_watch) waiting;
    uint64_t due_us;  /* no request is sent before */
    uint32_t wait_ms; /* for the response to the next request */
    struct hps_recalled result;
};

struct request {
    LIST_ENTRY(request) all;
    struct hps_watch *watch; /* NULL: the result is not needed any more */
    struct reader *reader;
    rd_kafka_topic_t *topic;
    int32_t partition;
    int32_t broker; /* the leader when the request was sent */
    int64_t offset;
    uint64_t asked_us;
    uint64_t end_us; /* it has failed if there is no response before */
};

struct hps_kafka_recalls {
    const rd_kafka_conf_t *shared;
    struct hps_lock lock;
    struct hps_cond changed;
    /* Under the lock: */
    struct reader readers[N_READERS];
    TAILQ_HEAD(, hps_watch) waiting;
    LIST_HEAD(, request) requests; /* only the thread adds and removes requests */
    bool stopping;
    struct hps_worker worker;
};

/* ---- with the lock held ---------------------------------------------------------------------- */

static void waiting_add(struct hps_watch *watch, uint64_t due_us)
{
    HPS_ASSERT(watch->state == NONE || watch->state == REQUESTED);
    watch->state = WAITS;
    watch->due_us = due_us;
    TAILQ_INSERT_TAIL(&watch->of->waiting, watch, waiting);
}

/* Forget what the recall waits for, and its result. */
static void drop(struct hps_watch *watch)
{
    struct request *request;
    if (watch->state == WAITS) {
        TAILQ_REMOVE(&watch->of->waiting, watch, waiting);
    }
    LIST_FOREACH (request, &watch->of->requests, all) {
        request->watch = request->watch == watch ? NULL : request->watch;
    }
    watch->state = NONE;
}

/* Whether a request may be sent: see the limits above. */
static bool may_request(const struct hps_watch *watch, int32_t broker)
{
    uint32_t n_same = 0;
    const struct request *request;
    LIST_FOREACH (request, &watch->of->requests, all) {
        if (request->partition == watch->partition &&
            strcmp(rd_kafka_topic_name(request->topic), watch->topic) == 0) {
            return false;
        }
        n_same += request->broker == broker;
    }
    return n_same < REQUESTS_OF_LEADER_MAX;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* With the lock held. */
static hps_status reader_open(struct hps_kafka_recalls *of, struct reader *reader)
{
    bool quick = reader == &of->readers[QUICK];
    if (reader->rk != NULL) {
        return HPS_OK;
    }
    rd_kafka_conf_t *conf = hps_kafka_conf(of->shared, OWN, sizeof(OWN) / sizeof(OWN[0]));
    if (quick) {
        hps_kafka_conf_at_most(conf, "socket.timeout.ms", SOCKET_MS);
        hps_kafka_conf_at_most(conf, "socket.connection.setup.timeout.ms", SOCKET_MS);
    }
    hps_status status =
        hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, quick ? "recalls" : "recalls-large",
                              "Kafka client that recalls records", &reader->rk, NULL);
    if (status == HPS_OK) {
        reader->queue = rd_kafka_queue_new(reader->rk);
    }
    return status;
}

/* Send the request. False: not now. With the lock held. */
static bool begin(struct hps_watch *watch, int32_t broker, uint64_t now_us)
{
    struct hps_kafka_recalls *of = watch->of;
    struct reader *reader = &of->readers[watch->wait_ms > WAIT_MS ? PATIENT : QUICK];
    struct request *request = hps_calloc(1, sizeof(*request));
    if (request == NULL || reader_open(of, reader) != HPS_OK) {
        hps_free(request);
        return false;
    }
    *request = (struct request){
        .watch = watch,
        .reader = reader,
        .topic = rd_kafka_topic_new(reader->rk, watch->topic, NULL),
        .partition = watch->partition,
        .broker = broker,
        .offset = watch->result.asked_offset,
        .asked_us = now_us,
        .end_us = now_us + UINT64_C(1000) * watch->wait_ms,
    };
    if (request->topic == NULL ||
        rd_kafka_consume_start_queue(request->topic, request->partition, request->offset,
                                     reader->queue) != 0) {
        if (request->topic != NULL) {
            rd_kafka_topic_destroy(request->topic);
        }
        hps_free(request);
        return false;
    }
    TAILQ_REMOVE(&of->waiting, watch, waiting);
    watch->state = REQUESTED;
    reader->n_requests++;
    LIST_INSERT_HEAD(&of->requests, request, all);
    return true;
}

/* Send the requests that may be sent now. Returns when the next recall is due; UINT64_MAX: never.
 * With the lock held. */
static uint64_t begin_all(struct hps_kafka_recalls *of)
{
    uint64_t now_us = hps_clock_us();
    uint64_t due_us = UINT64_MAX;
    for (struct hps_watch *watch = TAILQ_FIRST(&of->waiting), *next; watch != NULL; watch = next) {
        next = TAILQ_NEXT(watch, waiting);
        int32_t broker = hps_kafka_watched_listed(watch->watched).broker;
        if (watch->due_us <= now_us && may_request(watch, broker) &&
            !begin(watch, broker, now_us)) {
            watch->due_us = now_us + RETRY_US;
        }
        if (watch->state == WAITS && watch->due_us > now_us && watch->due_us < due_us) {
            due_us = watch->due_us;
        }
    }
    return due_us;
}

/* Remove the request. With the lock held, which is released while librdkafka's threads stop to
 * read. */
static void end(struct hps_kafka_recalls *of, struct request *request)
{
    HPS_ASSERT(request->reader->n_requests > 0);
    LIST_REMOVE(request, all);
    request->reader->n_requests--;
    hps_lock_release(&of->lock);
    rd_kafka_consume_stop(request->topic, request->partition);
    rd_kafka_topic_destroy(request->topic);
    hps_free(request);
    hps_lock_acquire(&of->lock);
}

static void take_record(const struct request *request, const rd_kafka_message_t *message,
                        struct hps_recalled *out)
{
    const struct hps_consumer_record record = hps_kafka_record(message);
    if (record.offset < request->offset) {
        return; /* the offset is after the end, and librdkafka has begun at the first record */
    }
    out->offset = record.offset;
    out->time_unix_ms = record.time_unix_ms;
    out->hash =
        hps_update_record_hash(record.key, record.key_size, record.value, record.value_size);
}

/* False: the message is not the result; librdkafka retries. */
static bool result_of(const struct request *request, const rd_kafka_message_t *message,
                      struct hps_recalled *out)
{
    int64_t high = -1;
    *out = (struct hps_recalled){
        .asked_offset = request->offset,
        .asked_us = request->asked_us,
        .status = HPS_OK,
        .broker = rd_kafka_message_broker_id(message),
        .low = -1,
        .offset = -1,
    };
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        take_record(request, message, out);
    } else if (message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        out->status = hps_kafka_status(message->err);
        out->offset = message->offset;
        return out->status != HPS_UNAVAILABLE && out->status != HPS_DEADLINE;
    }
    rd_kafka_get_watermark_offsets(request->reader->rk, rd_kafka_topic_name(request->topic),
                                   request->partition, &out->low, &high);
    return true;
}

/* Whether librdkafka has begun at the first record, though the partition does not end before the
 * offset. It does so after a bad batch: it fetches from a wrong offset in the batch, and applies
 * the broker's error to the next request. */
static bool is_reset(const struct request *request, const rd_kafka_message_t *message)
{
    struct hps_leader_response leader = {0};
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR && message->offset < request->offset &&
        request->watch != NULL) {
        hps_kafka_watched_response(request->watch->watched, &leader);
    }
    return leader.high > request->offset;
}

/* With the lock held. */
static void take(struct hps_kafka_recalls *of, const rd_kafka_message_t *message)
{
    struct hps_recalled result;
    struct request *request = LIST_FIRST(&of->requests);
    while (request != NULL &&
           (request->topic != message->rkt || request->partition != message->partition)) {
        request = LIST_NEXT(request, all);
    }
    if (request == NULL || !result_of(request, message, &result)) {
        return;
    }
    struct hps_watch *watch = request->watch;
    if (is_reset(request, message)) {
        request->watch = NULL;
        waiting_add(watch, hps_clock_us() + RESET_US);
    } else if (watch != NULL) {
        HPS_ASSERT(watch->state == REQUESTED);
        watch->result = result;
        watch->state = RESPONDED;
    }
    end(of, request);
}

/* Whether the request has to end without a result. With the lock held. */
static bool is_over(const struct hps_kafka_recalls *of, const struct request *request)
{
    return request->watch == NULL || of->stopping || hps_clock_us() >= request->end_us;
}

/* End the requests that may end without a result. With the lock held. */
static void expire(struct hps_kafka_recalls *of)
{
    for (struct request *request = LIST_FIRST(&of->requests), *next; request != NULL;
         request = next) {
        next = LIST_NEXT(request, all);
        if (!is_over(of, request)) {
            continue;
        }
        struct hps_watch *watch = request->watch;
        int32_t broker;
        if (watch != NULL) {
            request->watch = NULL;
            uint32_t more_ms = WAIT_MORE * watch->wait_ms;
            bool leads = hps_kafka_watched_leader(watch->watched, 0, &broker) == HPS_OK;
            watch->wait_ms = !leads ? WAIT_MS : more_ms < WAIT_MAX_MS ? more_ms : WAIT_MAX_MS;
            waiting_add(watch, hps_clock_us() + RETRY_US);
        }
        end(of, request);
    }
}

/* Take the reader's messages that arrive within timeout_ms. With the lock held, which is released
 * during the wait. */
static void serve(struct hps_kafka_recalls *of, struct reader *reader, int timeout_ms)
{
    rd_kafka_message_t *message = NULL;
    ssize_t n = 0;
    if (reader->n_requests == 0) {
        return;
    }
    HPS_ASSERT(reader->rk != NULL && reader->queue != NULL);
    do {
        hps_lock_release(&of->lock);
        rd_kafka_poll(reader->rk, 0); /* callbacks: tokens of OAuth */
        n = rd_kafka_consume_batch_queue(reader->queue, timeout_ms, &message, 1);
        hps_lock_acquire(&of->lock);
        if (n == 1) {
            take(of, message);
            rd_kafka_message_destroy(message);
        }
        timeout_ms = 0;
    } while (n == 1 && !of->stopping);
}

static void *recalls_run(void *arg)
{
    struct hps_kafka_recalls *of = arg;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        uint64_t due_us = begin_all(of);
        if (LIST_EMPTY(&of->requests)) {
            hps_cond_wait_until(&of->changed, &of->lock, due_us);
            continue;
        }
        serve(of, &of->readers[PATIENT], of->readers[QUICK].n_requests == 0 ? SERVE_MS : 0);
        serve(of, &of->readers[QUICK], SERVE_MS);
        expire(of);
    }
    expire(of);
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_kafka_recalls *hps_kafka_recalls_new(const rd_kafka_conf_t *shared)
{
    struct hps_kafka_recalls *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return NULL;
    }
    of->shared = shared;
    TAILQ_INIT(&of->waiting);
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_RECALL);
    hps_cond_init(&of->changed);
    return of;
}

void hps_kafka_recalls_free(struct hps_kafka_recalls *of)
{
    if (of == NULL) {
        return;
    }
    hps_worker_stop(&of->worker, &of->lock, &of->changed, &of->stopping);
    HPS_ASSERT(LIST_EMPTY(&of->requests) && TAILQ_EMPTY(&of->waiting));
    for (int i = 0; i < N_READERS; i++) {
        if (of->readers[i].queue != NULL) {
            rd_kafka_queue_destroy(of->readers[i].queue);
        }
        hps_kafka_handle_close(of->readers[i].rk);
    }
    hps_cond_fini(&of->changed);
    hps_lock_fini(&of->lock);
    hps_free(of);
}

/* ---- watches --------------------------------------------------------------------------------- */

hps_status hps_kafka_watch_new(struct hps_kafka_watches *watches, const char *topic,
                               int32_t partition, struct hps_watch **out_watch)
{
    struct hps_watch *watch = hps_calloc(1, sizeof(*watch));
    hps_status status =
        watch == NULL ? HPS_NO_MEMORY
                      : hps_kafka_watched_add(watches->leaders, topic, partition, &watch->watched);
    if (status != HPS_OK) {
        hps_free(watch);
        return status;
    }
    watch->of = watches->recalls;
    watch->topic = hps_kafka_watched_listed(watch->watched).topic;
    watch->partition = partition;
    *out_watch = watch;
    return HPS_OK;
}

void hps_kafka_watch_free(struct hps_watch *watch)
{
    if (watch != NULL) {
        hps_lock_acquire(&watch->of->lock);
        drop(watch);
        hps_lock_release(&watch->of->lock);
        hps_kafka_watched_release(watch->watched);
        hps_free(watch);
    }
}

hps_status hps_kafka_watch(struct hps_kafka_watches *watches, const char *topic, int32_t partition,
                           struct hps_watch **out_watch, struct hps_error *err)
{
    struct hps_watch *watch = watches->first;
    while (watch != NULL && (watch->partition != partition || strcmp(watch->topic, topic) != 0)) {
        watch = watch->next;
    }
    if (watch == NULL) {
        hps_status status = hps_kafka_watch_new(watches, topic, partition, &watch);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "%s [%" PRId32 "] cannot be watched", topic,
                                 partition);
        }
        watch->next = watches->first;
        watches->first = watch;
    }
    *out_watch = watch;
    return HPS_OK;
}

void hps_kafka_watches_free(struct hps_kafka_watches *watches)
{
    while (watches->first != NULL) {
        struct hps_watch *watch = watches->first;
        watches->first = watch->next;
        hps_kafka_watch_free(watch);
    }
}

struct hps_kafka_watched *hps_kafka_watched(const struct hps_watch *watch)
{
    return watch->watched;
}

void hps_kafka_leader_response(const struct hps_watch *watch,
                               struct hps_leader_response *out_response)
{
    hps_kafka_watched_response(watch->watched, out_response);
}

/* ---- recalling ------------------------------------------------------------------------------- */

void hps_kafka_recall(struct hps_watch *watch, int64_t offset)
{
    struct hps_kafka_recalls *of = watch->of;
    hps_lock_acquire(&of->lock);
    drop(watch);
    watch->result = (struct hps_recalled){.asked_offset = offset};
    watch->wait_ms = WAIT_MS;
    waiting_add(watch, 0);
    hps_ignore(/* after a failure the next recall starts the thread */
               hps_worker_start(&of->worker, "kafka-recall", STACK_BYTES, recalls_run, of));
    hps_cond_broadcast(&of->changed);
    for (int i = 0; i < N_READERS; i++) {
        if (of->readers[i].n_requests > 0) {
            rd_kafka_queue_yield(of->readers[i].queue);
        }
    }
    hps_lock_release(&of->lock);
}

bool hps_kafka_recalled(const struct hps_watch *watch, struct hps_recalled *out_recalled)
{
    hps_lock_acquire(&watch->of->lock);
    bool responded = watch->state == RESPONDED;
    if (responded) {
        *out_recalled = watch->result;
    }
    hps_lock_release(&watch->of->lock);
    return responded;
}
