/* SPDX-License-Identifier: Apache-2.0
 *
 * What is at an offset now: one record is read, through handles that do nothing else, so that it
 * neither moves nor delays what consumers read.
 *
 *     watches that wait ─▶ under way, a few of each leader ─▶ record, end or refusal ─▶ the watch
 *            ▲                                        └ nothing for a while
 *            └────────────────────────────────────────┘
 *
 * One thread for the log; a broker that does not answer has its few places, and no others. Of a
 * partition one thing is asked at a time.
 *
 * There are two handles. The first gives up a connection soon: as long as it has one that hangs,
 * librdkafka does not learn of who leads instead. What its leader does not send in that time though
 * it answers otherwise, a large batch on a slow line, is asked of the second, which waits as long
 * as consumers do.
 */
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/update_record.h"
#include "base/worker.h"

enum {
    PLACES = 64,
    PLACES_OF_LEADER = 4,
    QUICK_MS = 3000, /* for what is at an offset; then it is asked again */
    PATIENT_MS = 60000,
    AGAIN_US = 500000,
    SERVE_MS = 50, /* between looks for what has waited too long */
    STACK_BYTES = 256 * 1024,
};

/* Of these handles alone, whatever the operator says. Of the leader: a replica may be another topic
 * still. Little at a time: one batch comes in any case. */
static const struct hps_kafka_property OWN[] = {
    {"isolation.level", "read_uncommitted"},
    {"auto.offset.reset", "earliest"}, /* what is before the first record is asked of it */
    {"client.rack", ""},
    {"fetch.message.max.bytes", "65536"},
    {"fetch.wait.max.ms", "10"},
    {"queued.min.messages", "1"},
};

enum { QUICK, PATIENT, N_READERS };

struct reader {
    rd_kafka_t *rk; /* NULL: not needed yet. Set, as the next, by the thread, under the lock */
    rd_kafka_queue_t *queue;
    uint32_t n_asked;
};

/* A question that is under way. */
struct question {
    struct hps_watch *watch; /* NULL: nobody wants to know any more */
    struct reader *reader;
    rd_kafka_topic_t *topic;
    int32_t partition;
    int32_t broker; /* that led it as it was asked */
    int64_t offset;
    uint64_t asked_us;
};

struct hps_kafka_recalls {
    struct hps_kafka *log;
    struct hps_lock lock;
    struct hps_cond changed;
    /* Under the lock: */
    struct reader readers[N_READERS];
    struct hps_watch *waiting; /* in order */
    struct question asked[PLACES];
    uint32_t n_asked; /* added and taken away by the thread alone */
    bool stopping;
    struct hps_worker worker;
};

/* ---- with the lock held ---------------------------------------------------------------------- */

static void waiting_add(struct hps_kafka_recalls *of, struct hps_watch *watch, uint64_t due_us)
{
    HPS_ASSERT(watch->recall != HPS_KAFKA_RECALL_ANSWERED);
    struct hps_watch **at = &of->waiting;
    while (*at != NULL) {
        at = &(*at)->next_waiting;
    }
    watch->next_waiting = NULL;
    watch->recall = HPS_KAFKA_RECALL_WAITS;
    watch->recall_due_us = due_us;
    *at = watch;
}

/* Nobody waits for an answer for this watch any more. */
static void drop(struct hps_kafka_recalls *of, struct hps_watch *watch)
{
    struct hps_watch **at = &of->waiting;
    while (*at != NULL && *at != watch) {
        at = &(*at)->next_waiting;
    }
    if (*at != NULL) {
        *at = watch->next_waiting;
    }
    for (uint32_t i = 0; i < of->n_asked; i++) {
        if (of->asked[i].watch == watch) {
            of->asked[i].watch = NULL;
        }
    }
    watch->recall = HPS_KAFKA_RECALL_NONE;
}

/* Is there a place for it? */
static bool has_place(const struct hps_kafka_recalls *of, const struct hps_watch *watch,
                      int32_t broker)
{
    uint32_t n_same = 0;
    for (uint32_t i = 0; i < of->n_asked; i++) {
        const struct question *question = &of->asked[i];
        if (question->partition == watch->partition &&
            strcmp(rd_kafka_topic_name(question->topic), watch->topic) == 0) {
            return false;
        }
        n_same += question->broker == broker;
    }
    return of->n_asked < PLACES && n_same < PLACES_OF_LEADER;
}

/* The next that can be asked, taken from those that wait; else when the first is due, UINT64_MAX:
 * none. */
static struct hps_watch *take_waiting(struct hps_kafka_recalls *of, int32_t *out_broker,
                                      uint64_t *out_due_us)
{
    uint64_t now_us = hps_clock_us();
    *out_due_us = UINT64_MAX;
    for (struct hps_watch **at = &of->waiting; *at != NULL; at = &(*at)->next_waiting) {
        struct hps_watch *watch = *at;
        int32_t broker = hps_kafka_watch_broker(watch);
        if (watch->recall_due_us > now_us) {
            *out_due_us = watch->recall_due_us < *out_due_us ? watch->recall_due_us : *out_due_us;
        } else if (has_place(of, watch, broker)) {
            *at = watch->next_waiting;
            *out_broker = broker;
            return watch;
        }
    }
    return NULL;
}

/* Have it asked again. */
static void put_back(struct hps_kafka_recalls *of, struct hps_watch *watch)
{
    if (watch != NULL) {
        waiting_add(of, watch, hps_clock_us() + AGAIN_US);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* With the lock held. */
static hps_status reader_open(struct hps_kafka_recalls *of, struct reader *reader)
{
    rd_kafka_conf_t *conf = NULL;
    bool quick = reader == &of->readers[QUICK];
    if (reader->rk != NULL) {
        return HPS_OK;
    }
    hps_status status = hps_kafka_conf(of->log, OWN, sizeof(OWN) / sizeof(OWN[0]), &conf, NULL);
    if (status != HPS_OK) {
        return status;
    }
    if (quick) {
        hps_kafka_conf_at_most(conf, "socket.timeout.ms", QUICK_MS);
        hps_kafka_conf_at_most(conf, "socket.connection.setup.timeout.ms", QUICK_MS);
    }
    status =
        hps_kafka_handle_open(of->log, RD_KAFKA_CONSUMER, conf, quick ? "recalls" : "recalls-large",
                              "Kafka client that recalls records", &reader->rk, NULL);
    if (status == HPS_OK) {
        reader->queue = rd_kafka_queue_new(reader->rk);
    }
    return status;
}

/* Ask for it, through the handle that it is to be asked of; false: not now. With the lock held. */
static bool begin(struct hps_kafka_recalls *of, struct hps_watch *watch, int32_t broker)
{
    struct reader *reader = &of->readers[watch->recall_patient ? PATIENT : QUICK];
    rd_kafka_topic_t *topic = reader_open(of, reader) == HPS_OK
                                  ? rd_kafka_topic_new(reader->rk, watch->topic, NULL)
                                  : NULL;
    if (topic == NULL) {
        return false;
    }
    struct question question = {
        .watch = watch,
        .reader = reader,
        .topic = topic,
        .partition = watch->partition,
        .broker = broker,
        .offset = watch->recalled.asked_offset,
        .asked_us = hps_clock_us(),
    };
    if (rd_kafka_consume_start_queue(topic, question.partition, question.offset, reader->queue) !=
        0) {
        rd_kafka_topic_destroy(topic);
        return false;
    }
    watch->recall = HPS_KAFKA_RECALL_ASKED;
    HPS_ASSERT(of->n_asked < PLACES);
    reader->n_asked++;
    of->asked[of->n_asked++] = question;
    return true;
}

/* Ask what can be asked now; returns when the next that waits is due. With the lock held. */
static uint64_t ask(struct hps_kafka_recalls *of)
{
    uint64_t due_us;
    int32_t broker;
    struct hps_watch *watch;
    while ((watch = take_waiting(of, &broker, &due_us)) != NULL) {
        if (!begin(of, watch, broker)) {
            put_back(of, watch);
        }
    }
    return due_us;
}

/* It has ended. With the lock held, which is released meanwhile: librdkafka's own threads are
 * waited for. */
static void end(struct hps_kafka_recalls *of, uint32_t i)
{
    HPS_ASSERT(i < of->n_asked);
    struct question question = of->asked[i];
    HPS_ASSERT(question.reader->n_asked > 0);
    of->asked[i] = of->asked[--of->n_asked];
    question.reader->n_asked--;
    hps_lock_release(&of->lock);
    rd_kafka_consume_stop(question.topic, question.partition);
    rd_kafka_topic_destroy(question.topic);
    hps_lock_acquire(&of->lock);
}

static void answer_record(const struct question *question, const rd_kafka_message_t *message,
                          struct hps_recalled *out)
{
    rd_kafka_timestamp_type_t type = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    int64_t time_ms = rd_kafka_message_timestamp(message, &type);
    if (message->offset < question->offset) {
        return; /* begun anew at the first one: what was asked for is behind the end */
    }
    out->offset = message->offset;
    out->time_unix_ms = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? 0 : time_ms;
    out->hash =
        hps_update_record_hash(message->key, message->key == NULL ? 0 : message->key_len,
                               message->payload, message->payload == NULL ? 0 : message->len);
}

/* What the message says; false: nothing, librdkafka goes on trying. */
static bool answer(const struct question *question, const rd_kafka_message_t *message,
                   struct hps_recalled *out)
{
    int64_t high = -1;
    *out = (struct hps_recalled){
        .asked_offset = question->offset,
        .asked_us = question->asked_us,
        .status = HPS_OK,
        .low = -1,
        .offset = -1,
    };
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        answer_record(question, message, out);
    } else if (message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        out->status = hps_kafka_status(message->err);
        out->offset = message->offset;
        return out->status != HPS_UNAVAILABLE && out->status != HPS_DEADLINE;
    }
    rd_kafka_get_watermark_offsets(question->reader->rk, rd_kafka_topic_name(question->topic),
                                   question->partition, &out->low, &high);
    return true;
}

static void take(struct hps_kafka_recalls *of, const rd_kafka_message_t *message)
{
    struct hps_recalled recalled;
    for (uint32_t i = 0; i < of->n_asked; i++) {
        struct hps_watch *watch = of->asked[i].watch;
        if (of->asked[i].topic != message->rkt || of->asked[i].partition != message->partition) {
            continue;
        }
        if (answer(&of->asked[i], message, &recalled)) {
            if (watch != NULL) {
                watch->recalled = recalled;
                HPS_ASSERT(watch->recall == HPS_KAFKA_RECALL_ASKED);
                watch->recall = HPS_KAFKA_RECALL_ANSWERED;
            }
            end(of, i);
        }
        return;
    }
}

/* End those that have waited too long, or are for nobody. */
static void expire(struct hps_kafka_recalls *of)
{
    uint64_t now_us = hps_clock_us();
    for (uint32_t i = of->n_asked; i-- > 0;) {
        const struct question *question = &of->asked[i];
        struct hps_watch *watch = question->watch;
        bool quick = question->reader == &of->readers[QUICK];
        uint64_t wait_us = UINT64_C(1000) * (quick ? QUICK_MS : PATIENT_MS);
        int32_t broker;
        if (watch == NULL || of->stopping || now_us >= question->asked_us + wait_us) {
            of->asked[i].watch = NULL;
            if (watch != NULL) {
                watch->recall_patient =
                    quick && hps_kafka_watch_leader(watch, 0, &broker) == HPS_OK;
                put_back(of, watch);
            }
            end(of, i);
        }
    }
}

/* What a reader has by now, or gets within timeout_ms. With the lock held, which is released
 * meanwhile. */
static void serve(struct hps_kafka_recalls *of, struct reader *reader, int timeout_ms)
{
    rd_kafka_message_t *message = NULL;
    ssize_t n = 0;
    if (reader->n_asked == 0) {
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
        uint64_t due_us = ask(of);
        if (of->n_asked == 0 && due_us == UINT64_MAX) {
            hps_cond_wait(&of->changed, &of->lock);
            continue;
        }
        if (of->n_asked == 0) {
            hps_cond_wait_until(&of->changed, &of->lock, due_us);
            continue;
        }
        serve(of, &of->readers[PATIENT], of->readers[QUICK].n_asked == 0 ? SERVE_MS : 0);
        serve(of, &of->readers[QUICK], SERVE_MS);
        expire(of);
    }
    expire(of);
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_kafka_recalls_new(struct hps_kafka *log, struct hps_kafka_recalls **out_recalls)
{
    struct hps_kafka_recalls *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return HPS_NO_MEMORY;
    }
    of->log = log;
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_RECALL);
    hps_cond_init(&of->changed);
    *out_recalls = of;
    return HPS_OK;
}

void hps_kafka_recalls_free(struct hps_kafka_recalls *of)
{
    if (of == NULL) {
        return;
    }
    hps_worker_stop(&of->worker, &of->lock, &of->changed, &of->stopping);
    for (int i = 0; i < N_READERS; i++) {
        if (of->readers[i].queue != NULL) {
            HPS_ASSERT(of->readers[i].n_asked == 0);
            rd_kafka_queue_destroy(of->readers[i].queue);
        }
        hps_kafka_handle_close(of->readers[i].rk);
    }
    hps_cond_fini(&of->changed);
    hps_lock_fini(&of->lock);
    hps_free(of);
}

/* ---- recalling ------------------------------------------------------------------------------- */

void hps_kafka_recall(struct hps_watch *watch, int64_t offset)
{
    struct hps_kafka_recalls *of = watch->log->recalls;
    hps_lock_acquire(&of->lock);
    drop(of, watch);
    watch->recalled = (struct hps_recalled){.asked_offset = offset};
    watch->recall_patient = false;
    waiting_add(of, watch, 0);
    hps_ignore(/* if it cannot be started, then with the next one that is asked for */
               hps_worker_start(&of->worker, "kafka-recall", STACK_BYTES, recalls_run, of));
    hps_cond_broadcast(&of->changed);
    for (int i = 0; i < N_READERS; i++) {
        if (of->readers[i].n_asked > 0) {
            rd_kafka_queue_yield(of->readers[i].queue);
        }
    }
    hps_lock_release(&of->lock);
}

bool hps_kafka_recalled(const struct hps_watch *watch, struct hps_recalled *out_recalled)
{
    struct hps_kafka_recalls *of = watch->log->recalls;
    hps_lock_acquire(&of->lock);
    bool answered = watch->recall == HPS_KAFKA_RECALL_ANSWERED;
    if (answered) {
        *out_recalled = watch->recalled;
    }
    hps_lock_release(&of->lock);
    return answered;
}

void hps_kafka_recall_cancel(struct hps_watch *watch)
{
    struct hps_kafka_recalls *of = watch->log->recalls;
    hps_lock_acquire(&of->lock);
    drop(of, watch);
    hps_lock_release(&of->lock);
}

struct hps_watch *hps_kafka_recall_new(struct hps_kafka_consumer *c, const char *topic,
                                       int32_t partition)
{
    struct hps_watch *theirs = NULL;
    struct hps_watch *watch = NULL;
    if (hps_kafka_watch(&c->base, topic, partition, &theirs, NULL) == HPS_OK) {
        watch = hps_calloc(1, sizeof(*watch));
    }
    if (watch != NULL) {
        *watch = (struct hps_watch){.log = theirs->log,
                                    .watched = theirs->watched,
                                    .topic = theirs->topic,
                                    .partition = theirs->partition};
    }
    return watch;
}

void hps_kafka_recall_free(struct hps_watch *watch)
{
    if (watch != NULL) {
        hps_kafka_recall_cancel(watch);
        hps_free(watch);
    }
}
