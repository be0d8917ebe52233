/* SPDX-License-Identifier: Apache-2.0
 *
 * Two kinds of threads, for all consumers of the log:
 *
 *     router   lists the named topics every 250 ms, with the leader of each partition
 *       ├─▶ leader 1   queries broker 1 for the ends of its partitions, about every 50 ms
 *       └─▶ leader 2   waits for broker 2; only the responses for its own partitions get older
 *
 * The router uses any broker that responds. Each leader has its own thread, because librdkafka's
 * call returns only when the leader has responded or a timeout has passed. Ends are high
 * watermarks, because this handle always reads uncommitted records.
 *
 * A response counts as of the time at which its request was sent, so a late response proves as much
 * as a fast one.
 */
#include "backends/kafka/leaders.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/worker.h"

enum {
    QUERY_EVERY_US = 50000,
    QUERY_EACH_US = 100,     /* added for each partition of the leader */
    QUERY_MS = 3000,         /* for a response; after that librdkafka also closes the connection */
    UNANSWERED_US = 2000000, /* a request without a response counts as failed */
    RETRY_US = 500000,       /* after an error response */
    SILENT_US = 1000000,     /* a leader without a response for so long gets no other requests */
    LIST_EVERY_US = 250000,
    LIST_SOON_US = 100000, /* after a failure */
    LIST_MS = 500,         /* for a response; then any broker is used, with twice that, ... */
    LIST_DOUBLED_MAX = 2,  /* ... up to this number of times */
    ABSENT_US = 1000000,   /* a topic that lists lack for so long is deleted */
    NAME_BYTES_MAX = 249,  /* of a topic in Kafka */
    STACK_BYTES = 256 * 1024,
    NO_BROKER = -1,
    RESPONSE_TEXT_BYTES = sizeof(((struct hps_leader_response *)0)->text),
};

/* Of this handle, whatever the operator sets. */
static const struct hps_kafka_property OWN[] = {
    {"isolation.level", "read_uncommitted"},
    {"enable.sparse.connections", "false"},
    {"reconnect.backoff.ms", "50"},
    {"reconnect.backoff.max.ms", "500"},
};

/* A partition to query at its leader, or a topic that is only listed. Under the lock, except `of`,
 * `in_handle`, `partition` and `now.topic`, which never change. */
struct hps_kafka_watched {
    LIST_ENTRY(hps_kafka_watched) all;
    struct hps_kafka_leaders *of;
    rd_kafka_topic_t *in_handle; /* librdkafka lists the topics that have such an object */
    int32_t partition;
    uint32_t n_refs;    /* watches of consumers, and the thread that queries the leader */
    uint64_t since_us;  /* watched since then: earlier requests may not name the topic */
    uint64_t absent_us; /* lists have lacked the topic, or a partition, since then; 0: no */
    struct hps_kafka_listed now; /* the topic */
    struct leader *leader;       /* NULL: none, or not known */
    uint64_t retry_us; /* the last request failed, and is not sent again before; 0: it did not */
    uint64_t sent_us;  /* when the newest request was sent; 0: none */
    uint64_t ended_us; /* the same of the newest request that has ended */
    struct hps_leader_response response;
};

struct leader {
    struct leader *next;
    struct hps_kafka_leaders *of;
    int32_t broker;
    char name[128]; /* host:port, by the newest list */
    struct hps_worker worker;
};

struct hps_kafka_leaders {
    const rd_kafka_conf_t *shared;
    struct hps_lock lock;
    struct hps_cond changed;
    /* Under the lock: */
    rd_kafka_t *rk; /* NULL: not started */
    LIST_HEAD(, hps_kafka_watched) watched;
    struct leader *leaders;
    uint64_t list_us;    /* when the next list is due; UINT64_MAX: not now */
    uint64_t listed_us;  /* when the newest list was requested */
    uint32_t n_failures; /* lists that failed, since the last one that did not */
    bool stopping;
    struct hps_worker router;
};

/* ---- watched partitions: with the lock held -------------------------------------------------- */

/* Request the next list at due_us at the latest; 0: now. */
static void list_by(struct hps_kafka_leaders *of, uint64_t due_us)
{
    if (due_us < of->list_us) {
        of->list_us = due_us;
        hps_cond_broadcast(&of->changed);
    }
}

static void watched_release(struct hps_kafka_watched *watched)
{
    HPS_ASSERT(watched->n_refs > 0);
    if (--watched->n_refs > 0) {
        return;
    }
    LIST_REMOVE(watched, all);
    rd_kafka_topic_destroy(watched->in_handle);
    hps_free(watched);
}

/* A request that was sent at sent_us has ended without a result. */
static void response_none(struct hps_kafka_watched *watched, uint64_t sent_us, hps_status status,
                          const char *text)
{
    HPS_ASSERT(status != HPS_OK);
    if (sent_us < watched->ended_us) {
        return; /* a newer one has ended before */
    }
    watched->ended_us = sent_us;
    watched->response.status = status;
    snprintf(watched->response.text, sizeof(watched->response.text), "%s", text);
}

static void response_take(struct hps_kafka_watched *watched, const struct leader *leader,
                          uint64_t sent_us, int64_t sent_unix_ms, int64_t high)
{
    struct hps_leader_response *response = &watched->response;
    if (sent_us > response->asked_us) {
        response->asked_us = sent_us;
        response->asked_unix_ms = sent_unix_ms;
        response->high = high;
        /* librdkafka sends the request to the broker that it takes for the leader. */
        response->broker = watched->leader == leader ? leader->broker : NO_BROKER;
    }
    if (sent_us >= watched->ended_us) {
        watched->ended_us = sent_us;
        response->status = HPS_OK;
        response->text[0] = '\0';
    }
}

/* ---- a leader -------------------------------------------------------------------------------- */

static void silence_text(char text[RESPONSE_TEXT_BYTES], const struct leader *leader)
{
    snprintf(text, RESPONSE_TEXT_BYTES, "broker %" PRId32 " at %.90s, the leader, does not respond",
             leader == NULL ? NO_BROKER : leader->broker, leader == NULL ? "" : leader->name);
}

static void leader_failed(struct leader *leader, struct hps_kafka_watched *watched,
                          uint64_t sent_us, rd_kafka_resp_err_t code)
{
    char text[sizeof(watched->response.text)];
    hps_status status = hps_kafka_status(code);
    bool silent = hps_kafka_is_silence(code);
    if (silent) {
        silence_text(text, leader);
    } else {
        snprintf(text, sizeof(text), "broker %" PRId32 " at %.60s, the leader: %.50s",
                 leader->broker, leader->name, rd_kafka_err2str(code));
    }
    /* NOT_FOUND does not prove that the partition is deleted: librdkafka may not know a topic that
     * hpsd may not see, and a broker may lag. The lists of the router show which. */
    bool later = silent || status == HPS_NOT_FOUND;
    response_none(watched, sent_us, later ? HPS_UNAVAILABLE : status, text);
    if (!silent) {
        watched->retry_us = hps_clock_us() + RETRY_US;
    }
    /* Another broker may be the leader now. */
    list_by(leader->of, hps_clock_us() + LIST_SOON_US);
}

/* Send one request for the leader's partitions. Those with `failed` get a request of their own,
 * because one of them would delay the responses of all. Returns the number of partitions. With the
 * lock held, which is released during the request. */
static int leader_query(struct leader *leader, bool failed)
{
    struct hps_kafka_leaders *of = leader->of;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(16);
    uint64_t sent_us = hps_clock_us();
    int64_t sent_unix_ms = hps_clock_forward_ms();
    struct hps_kafka_watched *watched;
    LIST_FOREACH (watched, &of->watched, all) {
        if (watched->leader == leader && (watched->retry_us != 0) == failed &&
            watched->retry_us <= sent_us) {
            rd_kafka_topic_partition_t *at =
                rd_kafka_topic_partition_list_add(list, watched->now.topic, watched->partition);
            at->offset = RD_KAFKA_OFFSET_END;
            at->opaque = watched;
            watched->n_refs++;
            watched->sent_us = sent_us;
        }
    }
    int n = list->cnt;
    if (n > 0) {
        hps_lock_release(&of->lock);
        hps_kafka_offsets_query(of->rk, list, 0, n, sent_us + UINT64_C(1000) * QUERY_MS);
        hps_lock_acquire(&of->lock);
    }
    bool news = false; /* for the router, and for callers that wait for a first response */
    for (int i = 0; i < n; i++) {
        const rd_kafka_topic_partition_t *result = &list->elems[i];
        watched = result->opaque;
        news = news || watched->ended_us == 0;
        if (result->err == RD_KAFKA_RESP_ERR_NO_ERROR && result->offset >= 0) {
            watched->retry_us = 0;
            response_take(watched, leader, sent_us, sent_unix_ms, result->offset);
        } else {
            news = true;
            leader_failed(leader, watched, sent_us,
                          result->err != RD_KAFKA_RESP_ERR_NO_ERROR
                              ? result->err
                              : RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE);
        }
        watched_release(watched);
    }
    if (news) {
        hps_cond_broadcast(&of->changed);
    }
    rd_kafka_topic_partition_list_destroy(list);
    return n;
}

static void *leader_run(void *arg)
{
    struct leader *leader = arg;
    struct hps_kafka_leaders *of = leader->of;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        uint64_t begun_us = hps_clock_us();
        int n = leader_query(leader, false);
        if (!of->stopping) {
            n += leader_query(leader, true);
        }
        uint64_t every_us =
            n > 0 ? QUERY_EVERY_US + (uint64_t)QUERY_EACH_US * (uint64_t)n : RETRY_US;
        /* Without a partition to query: until a list has one for it. */
        bool woken = false;
        while (!of->stopping && !woken && hps_clock_us() < begun_us + every_us) {
            hps_cond_wait_until(&of->changed, &of->lock, begun_us + every_us);
            woken = n == 0;
        }
    }
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- the router ------------------------------------------------------------------------------ */

/* The thread that queries this broker, started if missing. NULL: it cannot start. Lock held. */
static struct leader *leader_of(struct hps_kafka_leaders *of, int32_t broker)
{
    HPS_ASSERT(broker >= 0);
    struct leader *leader = of->leaders;
    while (leader != NULL && leader->broker != broker) {
        leader = leader->next;
    }
    if (leader != NULL) {
        return leader;
    }
    leader = hps_calloc(1, sizeof(*leader));
    if (leader == NULL) {
        return NULL;
    }
    leader->of = of;
    leader->broker = broker;
    char name[16];
    snprintf(name, sizeof(name), "kafka-lead-%u", (unsigned)broker % 10000);
    if (hps_worker_start(&leader->worker, name, STACK_BYTES, leader_run, leader) != HPS_OK) {
        hps_free(leader);
        return NULL;
    }
    leader->next = of->leaders;
    of->leaders = leader;
    return leader;
}

static void leaders_name(struct hps_kafka_leaders *of, const struct rd_kafka_metadata *all)
{
    for (struct leader *leader = of->leaders; leader != NULL; leader = leader->next) {
        for (int i = 0; i < all->broker_cnt; i++) {
            if (all->brokers[i].id == leader->broker) {
                snprintf(leader->name, sizeof(leader->name), "%s:%d", all->brokers[i].host,
                         all->brokers[i].port);
            }
        }
    }
}

/* Take the topic from a list. False: the list proves nothing. A broker may lag behind the cluster's
 * controller, so a single list does not prove that a known topic is deleted. */
static bool topic_take(struct hps_kafka_watched *watched, hps_status status, int32_t n,
                       uint64_t sent_us, int64_t sent_unix_ms)
{
    if (status != HPS_OK && status != HPS_NOT_FOUND && status != HPS_PERMISSION) {
        return false;
    }
    bool absent = n < watched->now.n_partitions && status != HPS_PERMISSION;
    watched->absent_us = !absent ? 0 : watched->absent_us == 0 ? sent_us : watched->absent_us;
    if (absent && sent_us < watched->absent_us + ABSENT_US) {
        return false;
    }
    watched->absent_us = 0;
    watched->now.n_partitions = n;
    watched->now.asked_us = sent_us;
    watched->now.asked_unix_ms = sent_unix_ms;
    return true;
}

/* Find the leader in a list. listed: NULL: the list lacks the topic. */
static void leader_take(struct hps_kafka_watched *watched,
                        const struct rd_kafka_metadata_topic *listed, hps_status status,
                        uint64_t sent_us)
{
    const struct rd_kafka_metadata_partition *found = NULL;
    for (int i = 0; listed != NULL && i < listed->partition_cnt; i++) {
        if (listed->partitions[i].id == watched->partition) {
            found = &listed->partitions[i];
        }
    }
    if (found == NULL && watched->partition < watched->now.n_partitions) {
        return; /* the list does not prove that the partition is deleted */
    }
    const char *why = NULL;
    if (found == NULL && (status == HPS_OK || status == HPS_NOT_FOUND)) {
        status = HPS_NOT_FOUND;
        why = "the partition does not exist";
    } else if (found == NULL) {
        why = rd_kafka_err2str(listed->err);
    } else if (found->leader < 0) {
        status = HPS_UNAVAILABLE;
        why = "the partition has no leader at present";
    } else {
        struct leader *leader = leader_of(watched->of, found->leader);
        status = HPS_UNAVAILABLE;
        why = leader == NULL ? "no thread can be started for the leader" : NULL;
        watched->retry_us = watched->leader == leader ? watched->retry_us : 0;
        watched->leader = leader;
    }
    if (why != NULL) {
        watched->leader = NULL;
        response_none(watched, sent_us, status, why);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct rd_kafka_metadata_topic *)a)->topic,
                  ((const struct rd_kafka_metadata_topic *)b)->topic);
}

/* With the lock held. False: the list proves nothing about some topic. */
static bool list_take(struct hps_kafka_leaders *of, const struct rd_kafka_metadata *all,
                      uint64_t sent_us, int64_t sent_unix_ms)
{
    bool proved = true;
    size_t n = (size_t)all->topic_cnt;
    qsort(all->topics, n, sizeof(all->topics[0]), by_name);
    struct hps_kafka_watched *watched;
    LIST_FOREACH (watched, &of->watched, all) {
        const struct rd_kafka_metadata_topic key = {.topic = (char *)watched->now.topic};
        const struct rd_kafka_metadata_topic *listed =
            bsearch(&key, all->topics, n, sizeof(key), by_name);
        int32_t n_partitions = listed == NULL ? 0 : listed->partition_cnt;
        hps_status status = listed == NULL ? HPS_NOT_FOUND : hps_kafka_status(listed->err);
        status = status == HPS_OK && n_partitions == 0 ? HPS_NOT_FOUND : status;
        if (watched->since_us <= sent_us) {
            watched->now.code = listed == NULL ? RD_KAFKA_RESP_ERR_NO_ERROR : listed->err;
            proved = topic_take(watched, status, status == HPS_OK ? n_partitions : 0, sent_us,
                                sent_unix_ms) &&
                     proved;
            leader_take(watched, listed, status, sent_us);
        }
    }
    leaders_name(of, all);
    return proved;
}

/* Request a list. With the lock held, which is released during the request. */
static void list(struct hps_kafka_leaders *of)
{
    const struct rd_kafka_metadata *all = NULL;
    uint32_t doubled = of->n_failures < LIST_DOUBLED_MAX ? of->n_failures : LIST_DOUBLED_MAX;
    uint64_t sent_us = hps_clock_us();
    int64_t sent_unix_ms = hps_clock_forward_ms();
    of->list_us = UINT64_MAX;
    of->listed_us = sent_us;
    hps_lock_release(&of->lock);
    rd_kafka_poll(of->rk, 0); /* callbacks: tokens of OAuth */
    /* 0: the topics that have an object in this handle */
    rd_kafka_resp_err_t code = rd_kafka_metadata(of->rk, 0, NULL, &all, LIST_MS << doubled);
    hps_lock_acquire(&of->lock);
    bool proved = false;
    of->n_failures = code == RD_KAFKA_RESP_ERR_NO_ERROR ? 0 : of->n_failures + 1;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        proved = list_take(of, all, sent_us, sent_unix_ms);
        rd_kafka_metadata_destroy(all);
    }
    struct hps_kafka_watched *watched;
    LIST_FOREACH (watched, &of->watched, all) {
        watched->now.code = code != RD_KAFKA_RESP_ERR_NO_ERROR ? code : watched->now.code;
        if (watched->leader == NULL && code != RD_KAFKA_RESP_ERR_NO_ERROR) {
            response_none(watched, sent_us, HPS_UNAVAILABLE, "no broker lists the partition");
        }
    }
    list_by(of, hps_clock_us() + (proved ? LIST_EVERY_US : LIST_SOON_US));
    hps_cond_broadcast(&of->changed);
}

static void *router_run(void *arg)
{
    struct hps_kafka_leaders *of = arg;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        if (LIST_EMPTY(&of->watched)) {
            of->list_us = UINT64_MAX; /* until one is added */
        }
        if (hps_clock_us() < of->list_us) {
            hps_cond_wait_until(&of->changed, &of->lock, of->list_us);
        } else {
            list(of);
        }
    }
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_kafka_leaders *hps_kafka_leaders_new(const rd_kafka_conf_t *shared)
{
    struct hps_kafka_leaders *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return NULL;
    }
    of->shared = shared;
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_LEADERS);
    hps_cond_init(&of->changed);
    return of;
}

void hps_kafka_leaders_free(struct hps_kafka_leaders *of)
{
    if (of == NULL) {
        return;
    }
    hps_worker_stop(&of->router, &of->lock, &of->changed, &of->stopping);
    while (of->leaders != NULL) {
        struct leader *leader = of->leaders;
        of->leaders = leader->next;
        hps_worker_join(&leader->worker);
        hps_free(leader);
    }
    hps_kafka_handle_close(of->rk);
    hps_cond_fini(&of->changed);
    hps_lock_fini(&of->lock);
    hps_free(of);
}

hps_status hps_kafka_leaders_start(struct hps_kafka_leaders *of, rd_kafka_t **out_rk,
                                   struct hps_error *err)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&of->lock);
    if (of->rk == NULL) {
        rd_kafka_conf_t *conf = hps_kafka_conf(of->shared, OWN, sizeof(OWN) / sizeof(OWN[0]));
        hps_kafka_conf_at_most(conf, "socket.timeout.ms", QUERY_MS);
        hps_kafka_conf_at_most(conf, "socket.connection.setup.timeout.ms", QUERY_MS);
        status = hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, "leaders",
                                       "Kafka client that queries leaders", &of->rk, err);
    }
    if (status == HPS_OK &&
        hps_worker_start(&of->router, "kafka-router", STACK_BYTES, router_run, of) != HPS_OK) {
        status = hps_error_set(err, HPS_EXHAUSTED, "no thread to list Kafka's topics");
    }
    *out_rk = of->rk;
    hps_lock_release(&of->lock);
    return status;
}

void hps_kafka_leaders_list(struct hps_kafka_leaders *of, uint64_t since_us)
{
    hps_lock_acquire(&of->lock);
    if (of->listed_us < since_us) {
        list_by(of, 0);
    }
    hps_lock_release(&of->lock);
}

/* ---- watched partitions ---------------------------------------------------------------------- */

hps_status hps_kafka_watched_add(struct hps_kafka_leaders *of, const char *topic, int32_t partition,
                                 struct hps_kafka_watched **out_watched)
{
    hps_status status = HPS_OK;
    if (topic[0] == '\0' || strlen(topic) > NAME_BYTES_MAX) {
        return HPS_INVALID;
    }
    hps_lock_acquire(&of->lock);
    HPS_ASSERT(of->rk != NULL);
    struct hps_kafka_watched *watched;
    const struct hps_kafka_watched *other = NULL; /* of this topic */
    LIST_FOREACH (watched, &of->watched, all) {
        bool same = strcmp(watched->now.topic, topic) == 0;
        if (same && watched->partition == partition) {
            break;
        }
        other = same ? watched : other;
    }
    if (watched == NULL) {
        watched = hps_calloc(1, sizeof(*watched));
        rd_kafka_topic_t *in_handle =
            watched == NULL ? NULL : rd_kafka_topic_new(of->rk, topic, NULL);
        if (in_handle == NULL) {
            hps_free(watched);
            status = HPS_NO_MEMORY;
            goto done;
        }
        *watched = (struct hps_kafka_watched){
            .of = of,
            .in_handle = in_handle,
            .partition = partition,
            .since_us = hps_clock_us(),
            .absent_us = other == NULL ? 0 : other->absent_us,
            .now = other == NULL ? (struct hps_kafka_listed){0} : other->now,
            .response = {.broker = NO_BROKER,
                         .status = HPS_UNAVAILABLE,
                         .text = "the leader was not queried yet"},
        };
        watched->now.topic = rd_kafka_topic_name(in_handle);
        LIST_INSERT_HEAD(&of->watched, watched, all);
        list_by(of, 0);
    }
    watched->n_refs++;
    *out_watched = watched;
done:
    hps_lock_release(&of->lock);
    return status;
}

void hps_kafka_watched_release(struct hps_kafka_watched *watched)
{
    struct hps_kafka_leaders *of = watched->of;
    hps_lock_acquire(&of->lock);
    watched_release(watched);
    hps_lock_release(&of->lock);
}

struct hps_kafka_listed hps_kafka_watched_listed(const struct hps_kafka_watched *watched)
{
    struct hps_kafka_leaders *of = watched->of;
    hps_lock_acquire(&of->lock);
    struct hps_kafka_listed listed = watched->now;
    listed.broker = watched->leader == NULL ? NO_BROKER : watched->leader->broker;
    hps_lock_release(&of->lock);
    return listed;
}

void hps_kafka_watched_response(const struct hps_kafka_watched *watched,
                                struct hps_leader_response *out_response)
{
    struct hps_kafka_leaders *of = watched->of;
    hps_lock_acquire(&of->lock);
    *out_response = watched->response;
    uint64_t now_us = hps_clock_us();
    if (watched->sent_us > watched->ended_us && now_us > watched->sent_us + UNANSWERED_US) {
        out_response->status = HPS_UNAVAILABLE;
        silence_text(out_response->text, watched->leader);
    }
    hps_lock_release(&of->lock);
}

/* No response has arrived yet, and the first one may still come. */
static bool is_new(const struct hps_kafka_watched *watched)
{
    return watched->ended_us == 0 && hps_clock_us() < watched->since_us + SILENT_US;
}

hps_status hps_kafka_watched_leader(const struct hps_kafka_watched *watched, uint64_t end_us,
                                    int32_t *out_broker)
{
    struct hps_kafka_leaders *of = watched->of;
    const struct hps_leader_response *response = &watched->response;
    hps_status status = HPS_OK;
    hps_lock_acquire(&of->lock);
    while (is_new(watched) && hps_clock_us() < end_us) {
        uint64_t until_us = watched->since_us + SILENT_US;
        hps_cond_wait_until(&of->changed, &of->lock, until_us < end_us ? until_us : end_us);
    }
    bool silent = response->asked_us == 0 || hps_clock_us() > response->asked_us + SILENT_US;
    if (response->status == HPS_NOT_FOUND || response->status == HPS_PERMISSION) {
        status = response->status;
    } else if (silent || watched->leader == NULL) {
        status = HPS_UNAVAILABLE;
    } else {
        *out_broker = watched->leader->broker;
    }
    hps_lock_release(&of->lock);
    return status;
}
