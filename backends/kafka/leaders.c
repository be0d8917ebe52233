/* SPDX-License-Identifier: Apache-2.0
 *
 * What the leaders of watched partitions say. Each is asked for the ends of its partitions, about
 * every 50 ms, for all consumers of the log:
 *
 *     router   which broker leads which partition: asked of any broker, every second or when some
 *       │      leader denies it
 *       ├─▶ leader 1   its partitions in one question ─▶ words
 *       └─▶ leader 2   waits for its answer          ─▶ … none: its own partitions know no more
 *
 * A thread per leader, since librdkafka's call returns when its leader has answered or time is up:
 * who does not answer keeps nobody else's answer. Ends are high watermarks: this handle reads
 * uncommitted, whatever the others do.
 *
 * A word is worth what was asked: it has the time from before the question was sent, so that an
 * answer that comes late proves no more than one that comes at once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/worker.h"

enum {
    ASK_EVERY_US = 50000,
    ASK_EACH_US = 100,       /* ... and so much more for each of a leader's partitions */
    ASK_MS = 3000,           /* for an answer; then the connection is given up, too */
    UNANSWERED_US = 2000000, /* a question without an answer counts as such */
    AGAIN_US = 500000,       /* after an answer that was none */
    SILENT_US = 1000000,     /* without a word: not asked for anything else */
    ROUTE_US = 1000000,      /* between looks who leads */
    ROUTE_SOON_US = 100000,
    ROUTE_MS = 1000,     /* for an answer to that; then another broker is asked */
    ABSENT_US = 1000000, /* of lists without it: then a partition is not there */
    HASTE_US = 5000000,  /* so long a leader that there is not yet is looked for often */
    STACK_BYTES = 256 * 1024,
    NOBODY = -1,
    WORD_TEXT_BYTES = sizeof(((struct hps_leader_response *)0)->text),
};

/* Of this handle alone, whatever the operator says. All brokers are connected, so that one which
 * hangs is not the only one that can be asked who leads. */
static const struct hps_kafka_property OWN[] = {
    {"isolation.level", "read_uncommitted"},
    {"enable.sparse.connections", "false"},
    {"reconnect.backoff.ms", "50"},
    {"reconnect.backoff.max.ms", "500"},
};

/* Under the lock, but for what never changes: topic, partition, in_handle. */
struct hps_kafka_watched {
    struct hps_kafka_watched *next;
    char *topic;
    int32_t partition;
    rd_kafka_topic_t *in_handle; /* so that the router asks for it */
    uint32_t n_refs;             /* watches of consumers, and the thread that asks */
    int32_t broker;              /* its leader; NOBODY: none, or not known */
    bool absent;                 /* it is not there */
    uint64_t absent_us;          /* since when lists are without it; 0: they are not */
    uint64_t lost_us;            /* since when it has no leader; 0: it has one */
    uint64_t since_us;           /* watched */
    uint64_t ask_us;             /* it has failed, and is not asked before; 0: it has not */
    uint64_t sent_us;            /* when the newest question was sent; 0: none */
    uint64_t ended_us;           /* the same of the newest that has ended */
    struct hps_leader_response word;
};

struct leader {
    struct leader *next;
    struct hps_kafka_leaders *of;
    int32_t broker;
    char name[128]; /* host:port, as the list of brokers has it now */
    struct hps_worker worker;
    struct hps_kafka_watched **asked; /* [capacity] the thread's own: in this turn */
    uint32_t n_asked;
    uint32_t capacity;
};

struct hps_kafka_leaders {
    struct hps_kafka *log;
    struct hps_lock lock;
    struct hps_cond changed;
    /* Under the lock: */
    rd_kafka_t *rk; /* NULL: nothing was watched yet */
    struct hps_kafka_watched *watched;
    uint32_t n_watched;
    struct leader *leaders;
    uint64_t route_us; /* when to look who leads */
    bool stopping;
    struct hps_worker router;
};

/* ---- watched partitions: with the lock held -------------------------------------------------- */

static void watched_release(struct hps_kafka_leaders *of, struct hps_kafka_watched *watched)
{
    HPS_ASSERT(watched->n_refs > 0);
    if (--watched->n_refs > 0) {
        return;
    }
    struct hps_kafka_watched **at = &of->watched;
    while (*at != watched) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = watched->next;
    HPS_ASSERT(of->n_watched > 0);
    of->n_watched--;
    rd_kafka_topic_destroy(watched->in_handle);
    hps_free(watched->topic);
    hps_free(watched);
}

static hps_status watched_make(struct hps_kafka_leaders *of, const char *topic, int32_t partition,
                               struct hps_kafka_watched **out_watched)
{
    struct hps_kafka_watched *watched = of->watched;
    while (watched != NULL &&
           (watched->partition != partition || strcmp(watched->topic, topic) != 0)) {
        watched = watched->next;
    }
    if (watched == NULL) {
        watched = hps_calloc(1, sizeof(*watched));
        char *name = hps_strdup(topic);
        rd_kafka_topic_t *in_handle =
            watched == NULL || name == NULL ? NULL : rd_kafka_topic_new(of->rk, topic, NULL);
        if (in_handle == NULL) {
            hps_free(name);
            hps_free(watched);
            return HPS_NO_MEMORY;
        }
        *watched = (struct hps_kafka_watched){
            .next = of->watched,
            .topic = name,
            .partition = partition,
            .in_handle = in_handle,
            .broker = NOBODY,
            .since_us = hps_clock_us(),
            .word = {.status = HPS_UNAVAILABLE, .text = "the leader was not asked yet"},
        };
        of->watched = watched;
        of->n_watched++;
        of->route_us = 0;
        hps_cond_broadcast(&of->changed);
    }
    watched->n_refs++;
    *out_watched = watched;
    return HPS_OK;
}

/* A question that was sent at sent_us has ended without an answer. */
static void word_none(struct hps_kafka_watched *watched, uint64_t sent_us, hps_status status,
                      const char *text)
{
    HPS_ASSERT(status != HPS_OK);
    if (sent_us < watched->ended_us) {
        return; /* a newer one has ended before */
    }
    watched->ended_us = sent_us;
    watched->word.status = status;
    snprintf(watched->word.text, sizeof(watched->word.text), "%s", text);
}

static void word_take(struct hps_kafka_watched *watched, uint64_t sent_us, int64_t sent_unix_ms,
                      int64_t high)
{
    struct hps_leader_response *word = &watched->word;
    if (sent_us > word->asked_us) {
        if (word->asked_us == 0 || sent_us > word->asked_us + HPS_LEADER_SILENT_US) {
            word->since_us = sent_us;
        }
        word->asked_us = sent_us;
        word->asked_unix_ms = sent_unix_ms;
        word->high = high;
    }
    if (sent_us >= watched->ended_us) {
        watched->ended_us = sent_us;
        word->status = HPS_OK;
        word->text[0] = '\0';
    }
    HPS_ASSERT(word->since_us > 0 && word->since_us <= word->asked_us);
}

/* ---- a leader -------------------------------------------------------------------------------- */

/* Take those that are due into `asked`: those that failed apart, since one of them keeps the others
 * from being answered at once. With the lock held. */
static void leader_gather(struct leader *leader, bool failed)
{
    uint64_t now_us = hps_clock_us();
    leader->n_asked = 0;
    if (leader->capacity < leader->of->n_watched) {
        void *asked = hps_realloc(leader->asked, leader->of->n_watched * sizeof(leader->asked[0]));
        if (asked == NULL) {
            return; /* nobody is asked, and that shows */
        }
        leader->asked = asked;
        leader->capacity = leader->of->n_watched;
    }
    for (struct hps_kafka_watched *watched = leader->of->watched; watched != NULL;
         watched = watched->next) {
        if (watched->broker == leader->broker && (watched->ask_us != 0) == failed &&
            watched->ask_us <= now_us) {
            HPS_ASSERT(leader->n_asked < leader->capacity);
            watched->n_refs++;
            leader->asked[leader->n_asked++] = watched;
        }
    }
}

static void silence_tell(char text[WORD_TEXT_BYTES], int32_t broker, const char *name)
{
    snprintf(text, WORD_TEXT_BYTES, "broker %" PRId32 " at %.90s, the leader, does not answer",
             broker, name);
}

static void leader_failed(struct leader *leader, struct hps_kafka_watched *watched,
                          uint64_t sent_us, rd_kafka_resp_err_t code)
{
    char text[sizeof(watched->word.text)];
    hps_status status = hps_kafka_status(code);
    bool silent = hps_kafka_is_silence(code);
    if (silent) {
        silence_tell(text, leader->broker, leader->name);
    } else {
        snprintf(text, sizeof(text), "broker %" PRId32 " at %.60s, the leader: %.50s",
                 leader->broker, leader->name, rd_kafka_err2str(code));
    }
    /* Whether the partition is there route_one finds out: librdkafka may not know a topic that the
     * user may not see any more, and a broker may lag. */
    bool later = silent || status == HPS_NOT_FOUND;
    word_none(watched, sent_us, later ? HPS_UNAVAILABLE : status, text);
    if (!silent) {
        watched->ask_us = hps_clock_us() + AGAIN_US;
    }
    /* Somebody else may lead. */
    uint64_t soon_us = hps_clock_us() + ROUTE_SOON_US;
    leader->of->route_us = leader->of->route_us < soon_us ? leader->of->route_us : soon_us;
}

/* One question about all in `asked`. With the lock held, which is released meanwhile. */
static void leader_ask(struct leader *leader)
{
    struct hps_kafka_leaders *of = leader->of;
    int n = (int)leader->n_asked;
    if (n == 0) {
        return;
    }
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    uint64_t sent_us = hps_clock_us();
    int64_t sent_unix_ms = hps_clock_forward_ms();
    for (int i = 0; i < n; i++) {
        struct hps_kafka_watched *watched = leader->asked[i];
        rd_kafka_topic_partition_list_add(list, watched->topic, watched->partition)->offset =
            RD_KAFKA_OFFSET_END;
        watched->sent_us = sent_us;
    }
    hps_lock_release(&of->lock);
    hps_kafka_offsets_ask(of->rk, list, sent_us + UINT64_C(1000) * ASK_MS);
    hps_lock_acquire(&of->lock);
    bool news = false; /* for the router, or for who waits for a first word */
    HPS_ASSERT(list->cnt == n);
    for (int i = 0; i < n; i++) {
        struct hps_kafka_watched *watched = leader->asked[i];
        const rd_kafka_topic_partition_t *answer = &list->elems[i];
        news = news || watched->ended_us == 0;
        if (answer->err == RD_KAFKA_RESP_ERR_NO_ERROR && answer->offset >= 0) {
            watched->ask_us = 0;
            word_take(watched, sent_us, sent_unix_ms, answer->offset);
        } else {
            news = true;
            leader_failed(leader, watched, sent_us,
                          answer->err != RD_KAFKA_RESP_ERR_NO_ERROR
                              ? answer->err
                              : RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE);
        }
        watched_release(of, watched);
    }
    if (news) {
        hps_cond_broadcast(&of->changed);
    }
    rd_kafka_topic_partition_list_destroy(list);
}

static bool leads_any(const struct leader *leader)
{
    const struct hps_kafka_watched *watched = leader->of->watched;
    while (watched != NULL && watched->broker != leader->broker) {
        watched = watched->next;
    }
    return watched != NULL;
}

static void *leader_run(void *arg)
{
    struct leader *leader = arg;
    struct hps_kafka_leaders *of = leader->of;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        if (!leads_any(leader)) {
            hps_cond_wait(&of->changed, &of->lock);
            continue;
        }
        uint64_t due_us = hps_clock_us() + ASK_EVERY_US;
        leader_gather(leader, false);
        due_us += (uint64_t)ASK_EACH_US * leader->n_asked;
        leader_ask(leader);
        if (!of->stopping) {
            leader_gather(leader, true);
            leader_ask(leader);
        }
        while (!of->stopping && hps_clock_us() < due_us) {
            hps_cond_wait_until(&of->changed, &of->lock, due_us);
        }
    }
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- the router ------------------------------------------------------------------------------ */

/* The thread that asks this broker, started if there is none. NULL: it cannot be. Lock held. */
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

/* Nobody is to be asked. */
static void route_none(struct hps_kafka_watched *watched, uint64_t sent_us, hps_status status,
                       const char *why)
{
    watched->broker = NOBODY;
    word_none(watched, sent_us, status, why);
}

static void route_one(struct hps_kafka_leaders *of, struct hps_kafka_watched *watched,
                      const struct rd_kafka_metadata_topic *topic, uint64_t sent_us)
{
    rd_kafka_resp_err_t code = topic == NULL ? RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART : topic->err;
    hps_status status = hps_kafka_status(code);
    const struct rd_kafka_metadata_partition *found = NULL;
    for (int i = 0; topic != NULL && i < topic->partition_cnt; i++) {
        if (topic->partitions[i].id == watched->partition) {
            found = &topic->partitions[i];
        }
    }
    bool absent = found == NULL && (code == RD_KAFKA_RESP_ERR_NO_ERROR || status == HPS_NOT_FOUND);
    if (!absent) {
        watched->absent_us = 0;
    } else if (watched->absent_us == 0) {
        watched->absent_us = sent_us;
    }
    /* One broker may not have heard of it yet. */
    watched->absent = absent && sent_us >= watched->absent_us + ABSENT_US;
    if (absent) {
        route_none(watched, sent_us, watched->absent ? HPS_NOT_FOUND : HPS_UNAVAILABLE,
                   "there is no such partition");
    } else if (found == NULL) {
        route_none(watched, sent_us, status, rd_kafka_err2str(code));
    } else if (found->leader < 0) {
        route_none(watched, sent_us, HPS_UNAVAILABLE, "the partition has no leader at present");
    } else if (leader_of(of, found->leader) == NULL) {
        route_none(watched, sent_us, HPS_UNAVAILABLE, "no thread to ask the leader");
    } else if (watched->broker != found->leader) {
        watched->broker = found->leader;
        watched->ask_us = 0;
    }
}

/* With the lock held, which is released meanwhile. */
static void route(struct hps_kafka_leaders *of)
{
    const struct rd_kafka_metadata *all = NULL;
    uint64_t sent_us = hps_clock_us();
    hps_lock_release(&of->lock);
    rd_kafka_poll(of->rk, 0); /* callbacks: tokens of OAuth */
    /* Of the topics that have an object in this handle. */
    rd_kafka_resp_err_t code = rd_kafka_metadata(of->rk, 0, NULL, &all, ROUTE_MS);
    hps_lock_acquire(&of->lock);
    const struct rd_kafka_metadata_topic *topic = NULL;
    uint64_t now_us = hps_clock_us();
    bool again = code != RD_KAFKA_RESP_ERR_NO_ERROR;
    for (struct hps_kafka_watched *watched = of->watched; watched != NULL;
         watched = watched->next) {
        if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
            if (watched->broker == NOBODY) {
                route_none(watched, sent_us, HPS_UNAVAILABLE,
                           "no broker names the partition's leader");
            }
            continue;
        }
        if (watched->since_us > sent_us) {
            again = true; /* it was not asked for */
            continue;
        }
        if (topic == NULL || strcmp(topic->topic, watched->topic) != 0) {
            topic = hps_kafka_topic_in(all, watched->topic);
        }
        route_one(of, watched, topic, sent_us);
        if (watched->broker != NOBODY) {
            watched->lost_us = 0;
        } else if (watched->lost_us == 0) {
            watched->lost_us = now_us;
        }
        again = again || (watched->broker == NOBODY && now_us < watched->lost_us + HASTE_US);
    }
    if (all != NULL) {
        leaders_name(of, all);
        rd_kafka_metadata_destroy(all);
    }
    of->route_us = now_us + (again ? ROUTE_SOON_US : ROUTE_US);
    hps_cond_broadcast(&of->changed);
}

static void *router_run(void *arg)
{
    struct hps_kafka_leaders *of = arg;
    hps_thread_background();
    hps_lock_acquire(&of->lock);
    while (!of->stopping) {
        if (of->watched == NULL) {
            hps_cond_wait(&of->changed, &of->lock);
        } else if (hps_clock_us() < of->route_us) {
            hps_cond_wait_until(&of->changed, &of->lock, of->route_us);
        } else {
            route(of);
        }
    }
    hps_lock_release(&of->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_kafka_leaders_new(struct hps_kafka *log, struct hps_kafka_leaders **out_leaders)
{
    struct hps_kafka_leaders *of = hps_calloc(1, sizeof(*of));
    if (of == NULL) {
        return HPS_NO_MEMORY;
    }
    of->log = log;
    hps_lock_init(&of->lock, HPS_LOCK_KAFKA_LEADERS);
    hps_cond_init(&of->changed);
    *out_leaders = of;
    return HPS_OK;
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
        hps_free(leader->asked);
        hps_free(leader);
    }
    hps_kafka_handle_close(of->rk);
    hps_cond_fini(&of->changed);
    hps_lock_fini(&of->lock);
    hps_free(of);
}

rd_kafka_t *hps_kafka_leaders_handle(struct hps_kafka_leaders *of)
{
    hps_lock_acquire(&of->lock);
    rd_kafka_t *rk = of->rk;
    hps_lock_release(&of->lock);
    return rk;
}

/* The handle and the router. With the lock held. */
static hps_status start(struct hps_kafka_leaders *of, struct hps_error *err)
{
    rd_kafka_conf_t *conf = NULL;
    hps_status status = HPS_OK;
    if (of->rk == NULL) {
        status = hps_kafka_conf(of->log, OWN, sizeof(OWN) / sizeof(OWN[0]), &conf, err);
        if (status != HPS_OK) {
            return status;
        }
        hps_kafka_conf_at_most(conf, "socket.timeout.ms", ASK_MS);
        hps_kafka_conf_at_most(conf, "socket.connection.setup.timeout.ms", ASK_MS);
        status = hps_kafka_handle_open(of->log, RD_KAFKA_CONSUMER, conf, "leaders",
                                       "Kafka client that asks leaders", &of->rk, err);
    }
    if (status == HPS_OK &&
        hps_worker_start(&of->router, "kafka-router", STACK_BYTES, router_run, of) != HPS_OK) {
        return hps_error_set(err, HPS_EXHAUSTED, "no thread to ask for partition leaders");
    }
    return status;
}

/* ---- watching -------------------------------------------------------------------------------- */

struct hps_watch *hps_kafka_watch_find(const struct hps_kafka_consumer *c, const char *topic,
                                       int32_t partition)
{
    struct hps_watch *watch = c->watches;
    while (watch != NULL && (watch->partition != partition || strcmp(watch->topic, topic) != 0)) {
        watch = watch->next;
    }
    return watch;
}

hps_status hps_kafka_watch(struct hps_consumer *base, const char *topic, int32_t partition,
                           struct hps_watch **out_watch, struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    struct hps_kafka_leaders *of = c->log->leaders;
    struct hps_watch *watch = hps_kafka_watch_find(c, topic, partition);
    if (watch != NULL) {
        *out_watch = watch;
        return HPS_OK;
    }
    watch = hps_calloc(1, sizeof(*watch));
    if (watch == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to watch %s [%" PRId32 "]", topic,
                             partition);
    }
    hps_lock_acquire(&of->lock);
    hps_status status = start(of, err);
    if (status == HPS_OK && watched_make(of, topic, partition, &watch->watched) != HPS_OK) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory to watch %s [%" PRId32 "]", topic,
                               partition);
    }
    hps_lock_release(&of->lock);
    if (status != HPS_OK) {
        hps_free(watch);
        return status;
    }
    watch->log = c->log;
    watch->topic = watch->watched->topic;
    watch->partition = partition;
    watch->next = c->watches;
    c->watches = watch;
    *out_watch = watch;
    return HPS_OK;
}

void hps_kafka_watches_free(struct hps_kafka_consumer *c)
{
    struct hps_kafka_leaders *of = c->log->leaders;
    while (c->watches != NULL) {
        struct hps_watch *watch = c->watches;
        c->watches = watch->next;
        hps_kafka_recall_cancel(watch);
        hps_lock_acquire(&of->lock);
        watched_release(of, watch->watched);
        hps_lock_release(&of->lock);
        hps_free(watch);
    }
}

void hps_kafka_heard(const struct hps_watch *watch, struct hps_leader_response *out_word)
{
    struct hps_kafka_leaders *of = watch->log->leaders;
    const struct hps_kafka_watched *watched = watch->watched;
    hps_lock_acquire(&of->lock);
    *out_word = watched->word;
    uint64_t now_us = hps_clock_us();
    if (watched->sent_us > watched->ended_us && now_us > watched->sent_us + UNANSWERED_US) {
        const char *name = "";
        for (const struct leader *leader = of->leaders; leader != NULL; leader = leader->next) {
            name = leader->broker == watched->broker ? leader->name : name;
        }
        out_word->status = HPS_UNAVAILABLE;
        silence_tell(out_word->text, watched->broker, name);
    }
    hps_lock_release(&of->lock);
}

/* Nothing is known of it yet, and it is too early to say that nothing will be. */
static bool is_new(const struct hps_kafka_watched *watched)
{
    return watched->ended_us == 0 && hps_clock_us() < watched->since_us + SILENT_US;
}

hps_status hps_kafka_watch_leader(const struct hps_watch *watch, uint64_t end_us,
                                  int32_t *out_broker)
{
    struct hps_kafka_leaders *of = watch->log->leaders;
    const struct hps_kafka_watched *watched = watch->watched;
    hps_status status = HPS_OK;
    hps_lock_acquire(&of->lock);
    while (is_new(watched) && hps_clock_us() < end_us) {
        uint64_t until_us = watched->since_us + SILENT_US;
        hps_cond_wait_until(&of->changed, &of->lock, until_us < end_us ? until_us : end_us);
    }
    bool silent =
        watched->word.asked_us == 0 || hps_clock_us() > watched->word.asked_us + SILENT_US;
    if (watched->word.status == HPS_NOT_FOUND || watched->word.status == HPS_PERMISSION) {
        status = watched->word.status;
    } else if (silent || watched->broker == NOBODY) {
        status = HPS_UNAVAILABLE;
    } else {
        *out_broker = watched->broker;
        HPS_ASSERT(watched->word.asked_us > 0);
    }
    hps_lock_release(&of->lock);
    return status;
}

int32_t hps_kafka_watch_broker(const struct hps_watch *watch)
{
    struct hps_kafka_leaders *of = watch->log->leaders;
    hps_lock_acquire(&of->lock);
    int32_t broker = watch->watched->broker;
    hps_lock_release(&of->lock);
    return broker;
}

bool hps_kafka_watch_absent(const struct hps_watch *watch)
{
    struct hps_kafka_leaders *of = watch->log->leaders;
    hps_lock_acquire(&of->lock);
    bool absent = watch->watched->absent;
    hps_lock_release(&of->lock);
    return absent;
}
