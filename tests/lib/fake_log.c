/* SPDX-License-Identifier: Apache-2.0
 *
 * The scriptable update log. One mutex guards everything. Records and topics are never freed before
 * the log is, so that what consumers have borrowed stays, whatever the script does.
 */
#include "tests/lib/fake_log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/update_record.h"

struct record {
    struct hps_fake_record is;
    bool spoilt;         /* it cannot be read */
    struct record *next; /* of all ever made */
};

struct partition {
    struct record **records; /* [high], NULL: none at that offset */
    int64_t low;
    int64_t high;
    int64_t delivered; /* where polls end, of a slow topic */
    hps_status leader; /* OK: it answers */
    int32_t broker;    /* id of the leader */
    int64_t hidden;    /* number of last records that recalls do not find */
};

struct topic {
    char *name;
    char id[24]; /* "": topics have none */
    int64_t set[HPS_FAKE_TOPIC_SETTINGS];
    enum hps_compaction compaction;
    int64_t delete_retention_ms;
    int32_t n_partitions;
    struct partition *partitions;
    struct topic *next;
};

struct commit {
    char *topic;
    int32_t partition;
    int64_t offset;
    struct commit *next;
};

/* A partition as a consumer reads it. */
struct reading {
    char *topic_name;
    struct topic *topic; /* as it was when it was assigned; NULL: there was none */
    int32_t partition;
    uint32_t tag;
    int64_t next;
    int64_t caught_up_at; /* offset at which it was told so, -1: it was not */
};

struct hps_watch {
    struct fake_consumer *consumer;
    char *topic;
    int32_t partition;
    struct hps_leader_response word;
    int64_t recall;     /* -1: nothing was asked */
    uint64_t recall_us; /* when its answer comes */
    hps_status refused; /* OK: it is not; a refusal is the answer until the next recall */
    struct hps_watch *next;
};

struct dead_letter_record {
    char *topic;
    struct record *record;
};

struct fake_consumer {
    struct hps_consumer base;
    struct fake_log *log;
    char **names; /* [n_names] in order */
    uint32_t n_names;
    hps_status seen; /* of the log */
    bool awake;
    bool broken;
    bool idle; /* found nothing in a poll since the script last asked */
    struct reading *readings;
    uint32_t n_readings;
    uint32_t turn; /* reading that is first in the next poll */
    struct hps_consumer_record *records;
    uint32_t n_records;
    uint32_t records_capacity;
    struct hps_consumer_event *events;
    uint32_t n_events;
    struct hps_consumer_topic *topics; /* [n_names] */
    struct hps_consumer_topics list;   /* as reported last */
    uint64_t unlisted_us;              /* the last request for topics was not answered; 0: it was */
    char *cluster_id;
    struct dead_letter_record *dead_letters;
    uint32_t n_dead_letters;
    uint32_t n_late; /* of them, in flight as the last flush ended */
    struct hps_watch *watches;
    struct fake_consumer *next;
};

struct fake_log {
    struct hps_update_log base;
    pthread_mutex_t lock;
    pthread_cond_t changed;    /* for consumers */
    pthread_cond_t progressed; /* for the script */
    char *cluster_id;
    int64_t set[HPS_FAKE_SETTINGS];
    struct topic *topics;
    struct record *records;
    struct commit *commits;
    struct fake_consumer *consumers;
    uint32_t n_consumers;
    uint64_t n_polls;
    unsigned n_topics_made;
};

static struct fake_log *lock(struct fake_log *log)
{
    pthread_mutex_lock(&log->lock);
    return log;
}

static struct fake_log *locked(struct hps_update_log *base)
{
    return lock((struct fake_log *)base);
}

static hps_status away_of(const struct fake_log *log)
{
    return (hps_status)log->set[HPS_FAKE_AWAY];
}

static void unlock(struct fake_log *log)
{
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
}

static void *must(void *ptr)
{
    HPS_ASSERT(ptr != NULL);
    return ptr;
}

/* ---- the log itself -------------------------------------------------------------------------- */

static struct topic *find_topic(struct fake_log *log, const char *name)
{
    for (struct topic *topic = log->topics; topic != NULL; topic = topic->next) {
        if (!topic->set[HPS_FAKE_DELETED] && strcmp(topic->name, name) == 0) {
            return topic;
        }
    }
    return NULL;
}

static struct partition *find_partition(struct fake_log *log, const char *name, int32_t number)
{
    struct topic *topic = find_topic(log, name);
    if (topic == NULL || number < 0 || number >= topic->n_partitions) {
        return NULL;
    }
    return &topic->partitions[number];
}

static struct topic *make_topic(struct fake_log *log, const char *name, int32_t n_partitions)
{
    struct topic *topic = find_topic(log, name);
    if (topic == NULL) {
        topic = must(hps_calloc(1, sizeof(*topic)));
        topic->name = must(hps_strdup(name));
        topic->compaction = HPS_COMPACTION_NO;
        topic->delete_retention_ms = -1;
        log->n_topics_made++;
        if (log->set[HPS_FAKE_IDS]) {
            snprintf(topic->id, sizeof(topic->id), "topic-%u", log->n_topics_made);
        }
        struct topic **place = &log->topics; /* in order of name */
        while (*place != NULL && strcmp((*place)->name, name) <= 0) {
            place = &(*place)->next;
        }
        topic->next = *place;
        *place = topic;
    }
    if (n_partitions > topic->n_partitions) {
        topic->partitions =
            must(hps_realloc(topic->partitions, (size_t)n_partitions * sizeof(*topic->partitions)));
        memset(&topic->partitions[topic->n_partitions], 0,
               (size_t)(n_partitions - topic->n_partitions) * sizeof(*topic->partitions));
        topic->n_partitions = n_partitions;
    }
    return topic;
}

static void *copy(const void *bytes, size_t size)
{
    if (bytes == NULL) {
        return NULL;
    }
    void *made = must(hps_alloc(size));
    memcpy(made, bytes, size);
    return made;
}

static struct record *make_record(const struct hps_fake_record *from)
{
    struct record *record = must(hps_calloc(1, sizeof(*record)));
    record->is = *from;
    record->is.key = copy(from->key, from->key_size);
    record->is.value = copy(from->value, from->value_size);
    struct hps_fake_header *headers =
        must(hps_calloc(from->n_headers + 1, sizeof(record->is.headers[0])));
    for (uint32_t i = 0; i < from->n_headers; i++) {
        headers[i].name = must(hps_strdup(from->headers[i].name));
        headers[i].value = copy(from->headers[i].value, from->headers[i].size);
        headers[i].size = from->headers[i].size;
    }
    record->is.headers = headers;
    return record;
}

static void free_record(struct record *record)
{
    for (uint32_t i = 0; i < record->is.n_headers; i++) {
        hps_free((char *)record->is.headers[i].name);
        hps_free((void *)record->is.headers[i].value);
    }
    hps_free((void *)record->is.headers);
    hps_free((void *)record->is.key);
    hps_free((void *)record->is.value);
    hps_free(record);
}

static int64_t append(struct fake_log *log, const char *topic, int32_t number,
                      struct record *record)
{
    struct partition *partition = must(find_partition(log, topic, number));
    if ((partition->high & (partition->high - 1)) == 0) { /* full: 0, or a power of two */
        size_t size = (size_t)(2 * partition->high + 1) * sizeof(partition->records[0]);
        partition->records = must(hps_realloc(partition->records, size));
    }
    partition->records[partition->high] = record;
    if (record != NULL) {
        record->next = log->records;
        log->records = record;
    }
    return partition->high++;
}

/* ---- the script ------------------------------------------------------------------------------ */

void hps_fake_log_topic(struct hps_update_log *base, const char *topic, int32_t n_partitions)
{
    struct fake_log *log = locked(base);
    make_topic(log, topic, n_partitions);
    unlock(log);
}

void hps_fake_log_topic_compacted(struct hps_update_log *base, const char *name,
                                  enum hps_compaction compaction, int64_t delete_retention_ms)
{
    struct fake_log *log = locked(base);
    struct topic *topic = must(find_topic(log, name));
    topic->compaction = compaction;
    topic->delete_retention_ms = delete_retention_ms;
    unlock(log);
}

void hps_fake_log_set(struct hps_update_log *base, enum hps_fake_setting setting, int64_t value)
{
    struct fake_log *log = locked(base);
    log->set[setting] = value;
    unlock(log);
}

void hps_fake_log_topic_set(struct hps_update_log *base, const char *name,
                            enum hps_fake_topic_setting setting, int64_t value)
{
    struct fake_log *log = locked(base);
    struct topic *topic = find_topic(log, name);
    if (topic == NULL) { /* undelete it */
        for (topic = log->topics; strcmp(topic->name, name) != 0; topic = topic->next) {
            HPS_ASSERT(topic->next != NULL);
        }
    }
    topic->set[setting] = value;
    for (int32_t i = 0; i < topic->n_partitions && setting == HPS_FAKE_SLOW; i++) {
        topic->partitions[i].delivered = topic->partitions[i].high;
    }
    unlock(log);
}

void hps_fake_log_leader(struct hps_update_log *base, const char *topic, int32_t partition,
                         hps_status status)
{
    struct fake_log *log = locked(base);
    struct partition *of = must(find_partition(log, topic, partition));
    of->delivered = of->leader == HPS_OK ? of->high : of->delivered;
    of->leader = status;
    unlock(log);
}

void hps_fake_log_broker(struct hps_update_log *base, const char *topic, int32_t partition,
                         int32_t broker)
{
    struct fake_log *log = locked(base);
    struct partition *of = must(find_partition(log, topic, partition));
    of->broker = broker;
    unlock(log);
}

void hps_fake_log_topic_replace(struct hps_update_log *base, const char *name)
{
    struct fake_log *log = locked(base);
    struct topic *topic = must(find_topic(log, name));
    for (int32_t i = 0; i < topic->n_partitions; i++) {
        struct partition *of = &topic->partitions[i];
        hps_free(of->records);
        *of = (struct partition){.leader = of->leader, .broker = of->broker};
    }
    log->n_topics_made++;
    if (topic->id[0] != '\0') {
        snprintf(topic->id, sizeof(topic->id), "topic-%u", log->n_topics_made);
    }
    unlock(log);
}

void hps_fake_log_spoil(struct hps_update_log *base, const char *topic, int32_t partition,
                        int64_t offset)
{
    struct fake_log *log = locked(base);
    struct partition *of = must(find_partition(log, topic, partition));
    HPS_ASSERT(offset >= of->low && offset < of->high && of->records[offset] != NULL);
    of->records[offset]->spoilt = true;
    unlock(log);
}

void hps_fake_log_recall_end(struct hps_update_log *base, const char *topic, int32_t partition,
                             int64_t offset)
{
    struct fake_log *log = locked(base);
    struct partition *of = must(find_partition(log, topic, partition));
    of->hidden = offset < 0 ? 0 : of->high - offset;
    unlock(log);
}

/* Where polls end. */
static int64_t end_of(const struct topic *topic, int32_t partition)
{
    const struct partition *of = &topic->partitions[partition];
    return topic->set[HPS_FAKE_SLOW] || of->leader != HPS_OK ? of->delivered : of->high;
}

int64_t hps_fake_log_append(struct hps_update_log *base, const char *topic, int32_t partition,
                            const struct hps_fake_record *record)
{
    struct fake_log *log = locked(base);
    int64_t offset = append(log, topic, partition, make_record(record));
    unlock(log);
    return offset;
}

int64_t hps_fake_log_append_hole(struct hps_update_log *base, const char *topic, int32_t partition)
{
    struct fake_log *log = locked(base);
    int64_t offset = append(log, topic, partition, NULL);
    unlock(log);
    return offset;
}

void hps_fake_log_compact(struct hps_update_log *base, const char *topic, int32_t number,
                          int64_t offset)
{
    struct fake_log *log = locked(base);
    struct partition *partition = must(find_partition(log, topic, number));
    HPS_ASSERT(offset >= 0 && offset < partition->high);
    partition->records[offset] = NULL;
    unlock(log);
}

void hps_fake_log_trim(struct hps_update_log *base, const char *topic, int32_t number, int64_t low)
{
    struct fake_log *log = locked(base);
    struct partition *partition = must(find_partition(log, topic, number));
    HPS_ASSERT(low >= partition->low && low <= partition->high);
    partition->low = low;
    unlock(log);
}

int64_t hps_fake_log_high(struct hps_update_log *base, const char *topic, int32_t number)
{
    struct fake_log *log = locked(base);
    struct partition *partition = find_partition(log, topic, number);
    int64_t high = partition == NULL ? 0 : partition->high;
    unlock(log);
    return high;
}

void hps_fake_log_cluster(struct hps_update_log *base, const char *cluster_id)
{
    struct fake_log *log = locked(base);
    hps_free(log->cluster_id);
    log->cluster_id = must(hps_strdup(cluster_id));
    unlock(log);
}

void hps_fake_log_break_consumers(struct hps_update_log *base)
{
    struct fake_log *log = locked(base);
    for (struct fake_consumer *c = log->consumers; c != NULL; c = c->next) {
        c->broken = true;
    }
    unlock(log);
}

static bool all_idle(const struct fake_log *log)
{
    for (const struct fake_consumer *c = log->consumers; c != NULL; c = c->next) {
        if (!c->idle) {
            return false;
        }
    }
    return true;
}

void hps_fake_log_idle_wait(struct hps_update_log *base)
{
    struct fake_log *log = locked(base);
    for (struct fake_consumer *c = log->consumers; c != NULL; c = c->next) {
        c->idle = false;
    }
    /* A waiting consumer polls again. */
    pthread_cond_broadcast(&log->changed);
    while (!all_idle(log)) {
        pthread_cond_wait(&log->progressed, &log->lock);
    }
    unlock(log);
}

void hps_fake_log_consumers_wait(struct hps_update_log *base, uint32_t n)
{
    struct fake_log *log = locked(base);
    while (log->n_consumers != n) {
        pthread_cond_wait(&log->progressed, &log->lock);
    }
    unlock(log);
}

static struct commit *find_commit(struct fake_log *log, const char *topic, int32_t partition)
{
    struct commit *commit = log->commits;
    while (commit != NULL &&
           (commit->partition != partition || strcmp(commit->topic, topic) != 0)) {
        commit = commit->next;
    }
    return commit;
}

int64_t hps_fake_log_committed(struct hps_update_log *base, const char *topic, int32_t partition)
{
    struct fake_log *log = locked(base);
    struct commit *commit = find_commit(log, topic, partition);
    int64_t offset = commit == NULL ? -1 : commit->offset;
    unlock(log);
    return offset;
}

uint64_t hps_fake_log_polls(struct hps_update_log *base)
{
    struct fake_log *log = locked(base);
    uint64_t n = log->n_polls;
    unlock(log);
    return n;
}

/* ---- polling --------------------------------------------------------------------------------- */

static void add_record(struct fake_consumer *c, const struct reading *reading,
                       const struct record *record)
{
    if (c->n_records == c->records_capacity) {
        uint32_t capacity = c->records_capacity == 0 ? 64 : 2 * c->records_capacity;
        c->records = must(hps_realloc(c->records, capacity * sizeof(c->records[0])));
        c->records_capacity = capacity;
    }
    c->records[c->n_records++] = (struct hps_consumer_record){
        .tag = reading->tag,
        .partition = reading->partition,
        .topic = reading->topic->name,
        .offset = reading->next,
        .time_unix_ms = record->is.time_unix_ms,
        .time_of = record->is.time_of,
        .key = record->is.key,
        .key_size = record->is.key_size,
        .value = record->is.value,
        .value_size = record->is.value_size,
        .handle = record,
    };
}

/* There is room: three events of each reading and one of the log. */
static void add_event(struct fake_consumer *c, enum hps_consumer_event_kind kind,
                      const struct reading *reading, const struct partition *partition,
                      hps_status status, const char *text)
{
    c->events[c->n_events++] = (struct hps_consumer_event){
        .kind = kind,
        .tag = reading == NULL ? HPS_CONSUMER_NO_TAG : reading->tag,
        .offset = reading == NULL ? -1 : reading->next,
        .high = partition == NULL ? -1 : partition->high,
        .status = status,
    };
    snprintf(c->events[c->n_events - 1].text, sizeof(c->events[0].text), "%s", text);
}

static void drop_reading(struct fake_consumer *c, uint32_t i)
{
    hps_free(c->readings[i].topic_name);
    c->readings[i] = c->readings[--c->n_readings];
}

static bool is_hidden(const struct topic *topic)
{
    return topic->set[HPS_FAKE_DELETED] || topic->set[HPS_FAKE_HIDDEN];
}

/* False: the consumer stops reading the partition, and reports why. A deleted or hidden topic
 * delivers nothing, and only the list shows why, as with Kafka. If it was recreated: GONE. */
static bool readable(struct fake_consumer *c, uint32_t i)
{
    struct reading *reading = &c->readings[i];
    struct topic *topic = reading->topic;
    const struct topic *now = find_topic(c->log, reading->topic_name);
    if (topic != NULL && is_hidden(topic) && (now == NULL || now == topic)) {
        return true;
    }
    if (topic == NULL || topic->set[HPS_FAKE_DELETED] || topic->set[HPS_FAKE_HIDDEN] ||
        reading->partition >= topic->n_partitions) {
        add_event(c, HPS_CONSUMER_GONE, reading, NULL, HPS_NOT_FOUND, "the topic is not there");
    } else if (topic->set[HPS_FAKE_FAILS] != HPS_OK) {
        add_event(c, HPS_CONSUMER_FAILED, reading, NULL, (hps_status)topic->set[HPS_FAKE_FAILS],
                  "the topic fails");
    } else {
        struct partition *partition = &topic->partitions[reading->partition];
        if (reading->next >= partition->low && reading->next <= partition->high) {
            return true;
        }
        add_event(c, HPS_CONSUMER_GAP, reading, NULL, HPS_RANGE, "the offset is not there");
    }
    drop_reading(c, i);
    return false;
}

static void take_from(struct fake_consumer *c, struct reading *reading, uint32_t records_max,
                      uint64_t bytes_max, uint64_t *bytes)
{
    if (is_hidden(reading->topic)) {
        return;
    }
    struct partition *partition = &reading->topic->partitions[reading->partition];
    int64_t end = end_of(reading->topic, reading->partition);
    while (reading->next < end && c->n_records < records_max) {
        struct record *record = partition->records[reading->next];
        if (record != NULL && record->spoilt) {
            add_event(c, HPS_CONSUMER_BAD, reading, partition, HPS_DATA_LOSS, "it is damaged");
            c->events[c->n_events - 1].high = ++reading->next;
            return;
        }
        if (record != NULL) {
            uint64_t more = record->is.key_size + record->is.value_size;
            if (c->n_records > 0 && *bytes + more > bytes_max) {
                return;
            }
            add_record(c, reading, record);
            *bytes += more;
        }
        reading->next++;
    }
    if (reading->next == end && reading->caught_up_at != reading->next) {
        reading->caught_up_at = reading->next;
        add_event(c, HPS_CONSUMER_CAUGHT_UP, reading, partition, HPS_OK, "caught up");
    }
}

/* Under the lock: all that there is to tell now. */
static void gather(struct fake_consumer *c, uint32_t records_max, uint64_t bytes_max)
{
    c->n_records = 0;
    c->n_events = 0;
    c->events = must(hps_realloc(c->events, (3 * c->n_readings + 1) * sizeof(c->events[0])));
    if (c->seen != away_of(c->log)) {
        c->seen = away_of(c->log);
        add_event(c, c->seen == HPS_OK ? HPS_CONSUMER_UP : HPS_CONSUMER_DOWN, NULL, NULL, c->seen,
                  c->seen == HPS_OK ? "the log is back" : "the log is away");
    }
    if (c->seen != HPS_OK) {
        return;
    }
    for (uint32_t i = 0; i < c->n_readings;) {
        i += readable(c, i) ? 1 : 0;
    }
    uint64_t bytes = 0;
    c->turn++;
    for (uint32_t i = 0; i < c->n_readings; i++) {
        struct reading *reading = &c->readings[(c->turn + i) % c->n_readings];
        take_from(c, reading, records_max, bytes_max, &bytes);
    }
}

static struct timespec in_ms(uint32_t ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    uint64_t ns = (uint64_t)at.tv_nsec + (uint64_t)ms % 1000 * 1000000;
    at.tv_sec += (time_t)(ms / 1000 + ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

static hps_status fake_poll(struct hps_consumer *base, uint32_t timeout_ms, uint32_t records_max,
                            uint64_t bytes_max, struct hps_consumer_poll *out_poll,
                            struct hps_error *err)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    struct timespec until = in_ms(timeout_ms);
    hps_status status = HPS_OK;
    HPS_ASSERT(records_max > 0);
    lock(c->log);
    c->log->n_polls++;
    for (int rc = 0;;) {
        if (c->broken) {
            status = hps_error_set(err, HPS_INTERNAL, "the consumer is of no more use");
            break;
        }
        gather(c, records_max, bytes_max);
        if (c->n_records > 0 || c->n_events > 0 || c->awake || rc != 0) {
            break;
        }
        c->idle = true;
        pthread_cond_broadcast(&c->log->progressed);
        rc = pthread_cond_timedwait(&c->log->changed, &c->log->lock, &until);
    }
    c->awake = false;
    *out_poll = (struct hps_consumer_poll){c->records, c->n_records, c->events, c->n_events};
    pthread_mutex_unlock(&c->log->lock);
    return status;
}

/* ---- the other calls of a consumer ----------------------------------------------------------- */

static void fake_wake(struct hps_consumer *base)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    lock(c->log);
    c->awake = true;
    unlock(c->log);
}

/* The topic, if consumers see it. */
static struct topic *visible_topic(struct fake_log *log, const char *name)
{
    struct topic *topic = find_topic(log, name);
    return topic == NULL || topic->set[HPS_FAKE_HIDDEN] ? NULL : topic;
}

/* Requested now, and answered at once; while lists have no answer, the last one stays. A list that
 * differs, or that follows an outage, is a newer one, though the clock may stand. */
static void fake_topics(struct hps_consumer *base, uint64_t since_us,
                        struct hps_consumer_topics *out_topics)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    struct fake_log *log = c->log;
    int64_t now_ms = hps_clock_forward_ms();
    (void)since_us;
    lock(log);
    bool answered = away_of(log) == HPS_OK && log->set[HPS_FAKE_LISTS] == HPS_OK;
    bool differs = c->unlisted_us > 0;
    c->unlisted_us = answered ? c->unlisted_us : hps_clock_us();
    for (uint32_t i = 0; i < c->n_names && answered; i++) {
        const struct hps_consumer_topic was = c->topics[i];
        struct topic *topic = visible_topic(log, c->names[i]);
        c->topics[i] =
            (struct hps_consumer_topic){.name = c->names[i], .id = "", .delete_retention_ms = -1};
        if (topic != NULL) {
            bool stays = was.n_partitions > 0 && log->set[HPS_FAKE_IDS_MUTE];
            c->topics[i] = (struct hps_consumer_topic){
                .name = topic->name,
                .id = stays ? was.id : topic->id,
                .id_asked_unix_ms = stays                  ? was.id_asked_unix_ms
                                    : topic->id[0] == '\0' ? 0
                                                           : now_ms,
                .n_partitions = topic->n_partitions,
                .compaction = topic->compaction,
                .delete_retention_ms = topic->delete_retention_ms,
                .kept_ms = topic->set[HPS_FAKE_KEPT_MS],
                .time_of = (enum hps_record_time)topic->set[HPS_FAKE_TIME_OF],
            };
        }
        differs = differs || was.n_partitions != c->topics[i].n_partitions;
    }
    if (answered) {
        hps_free(c->cluster_id);
        c->cluster_id = must(hps_strdup(log->cluster_id));
        uint64_t now_us = hps_clock_us();
        if (now_us <= c->list.asked_us || now_us <= c->unlisted_us) {
            now_us = (c->unlisted_us > 0 ? c->unlisted_us : c->list.asked_us) + differs;
        }
        c->unlisted_us = 0;
        c->list =
            (struct hps_consumer_topics){now_us, now_ms, c->cluster_id, c->topics, c->n_names, ""};
    }
    *out_topics = c->list;
    unlock(log);
}

static int64_t first_since(const struct partition *partition, int64_t time_unix_ms)
{
    for (int64_t i = partition->low; i < partition->high; i++) {
        if (time_unix_ms >= 0 && partition->records[i] != NULL &&
            partition->records[i]->is.time_unix_ms >= time_unix_ms) {
            return i;
        }
    }
    return partition->high;
}

/* Why the leader does not answer; OK: it does. */
static hps_status leader_status(const struct fake_log *log, const struct topic *topic,
                                int32_t partition)
{
    return away_of(log) != HPS_OK                              ? away_of(log)
           : topic == NULL || partition >= topic->n_partitions ? HPS_NOT_FOUND
           : topic->set[HPS_FAKE_HIDDEN]                       ? HPS_PERMISSION
           : topic->set[HPS_FAKE_OFFSETS] != HPS_OK ? (hps_status)topic->set[HPS_FAKE_OFFSETS]
                                                    : topic->partitions[partition].leader;
}

static hps_status fake_offsets(struct hps_consumer *base, struct hps_consumer_offsets *parts,
                               uint32_t n_parts, uint32_t timeout_ms, struct hps_error *err)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    (void)timeout_ms;
    (void)err;
    lock(c->log);
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].topic == NULL) {
            continue;
        }
        const struct partition *partition =
            find_partition(c->log, parts[i].topic, parts[i].partition);
        const struct topic *topic = find_topic(c->log, parts[i].topic);
        parts[i].status = away_of(c->log) != HPS_OK ? HPS_UNAVAILABLE
                          : partition == NULL       ? HPS_NOT_FOUND
                                              : leader_status(c->log, topic, parts[i].partition);
        if (parts[i].status == HPS_OK) {
            parts[i].low = partition->low;
            parts[i].high = partition->high;
            parts[i].at_time = first_since(partition, parts[i].time_unix_ms);
        }
    }
    unlock(c->log);
    return HPS_OK;
}

static struct reading *find_reading(const struct fake_consumer *c, const char *topic,
                                    int32_t partition)
{
    for (uint32_t i = 0; i < c->n_readings; i++) {
        if (c->readings[i].partition == partition &&
            strcmp(c->readings[i].topic_name, topic) == 0) {
            return &c->readings[i];
        }
    }
    return NULL;
}

static hps_status fake_assign(struct hps_consumer *base, const struct hps_consumer_position *at,
                              uint32_t tag, struct hps_error *err)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    if (at->offset < 0) {
        return hps_error_set(err, HPS_INVALID, "offset %lld is below 0", (long long)at->offset);
    }
    lock(c->log);
    struct reading *reading = find_reading(c, at->topic, at->partition);
    if (reading == NULL) {
        c->readings = must(hps_realloc(c->readings, (c->n_readings + 1) * sizeof(c->readings[0])));
        reading = &c->readings[c->n_readings++];
        reading->topic_name = must(hps_strdup(at->topic));
        reading->partition = at->partition;
    }
    reading->topic = find_topic(c->log, at->topic);
    reading->tag = tag;
    reading->next = at->offset;
    reading->caught_up_at = -1;
    unlock(c->log);
    return HPS_OK;
}

static void fake_unassign(struct hps_consumer *base, const char *topic, int32_t partition)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    lock(c->log);
    struct reading *reading = find_reading(c, topic, partition);
    if (reading != NULL) {
        drop_reading(c, (uint32_t)(reading - c->readings));
    }
    unlock(c->log);
}

static bool fake_header(const struct hps_consumer_record *record, const char *name,
                        const void **out_value, size_t *out_size)
{
    const struct record *of = record->handle;
    for (uint32_t i = of->is.n_headers; i-- > 0;) {
        if (strcmp(of->is.headers[i].name, name) == 0) {
            *out_value = of->is.headers[i].value;
            *out_size = of->is.headers[i].size;
            return true;
        }
    }
    return false;
}

/* ---- what leaders say ------------------------------------------------------------------------ */

static hps_status fake_watch(struct hps_consumer *base, const char *topic, int32_t partition,
                             struct hps_watch **out_watch, struct hps_error *err)
{
    (void)err;
    struct fake_consumer *c = (struct fake_consumer *)base;
    struct hps_watch *watch = c->watches;
    while (watch != NULL && (watch->partition != partition || strcmp(watch->topic, topic) != 0)) {
        watch = watch->next;
    }
    if (watch == NULL) {
        watch = must(hps_calloc(1, sizeof(*watch)));
        *watch = (struct hps_watch){.consumer = c,
                                    .topic = must(hps_strdup(topic)),
                                    .partition = partition,
                                    .word = {.broker = -1, .status = HPS_UNAVAILABLE},
                                    .recall = -1,
                                    .next = c->watches};
        c->watches = watch;
    }
    *out_watch = watch;
    return HPS_OK;
}

/* Asked now, and answered at once; never twice at one time, though the clock may stand. */
static void fake_leader_response(const struct hps_watch *of,
                                 struct hps_leader_response *out_response)
{
    struct hps_watch *watch = (struct hps_watch *)(uintptr_t)of;
    struct fake_log *log = watch->consumer->log;
    lock(log);
    const struct topic *topic = find_topic(log, watch->topic);
    struct hps_leader_response *word = &watch->word;
    word->status = leader_status(log, topic, watch->partition);
    word->text[0] = '\0';
    if (word->status == HPS_OK) {
        uint64_t now_us = hps_clock_us();
        word->asked_us = now_us > word->asked_us ? now_us : word->asked_us + 1;
        word->asked_unix_ms = hps_clock_forward_ms();
        word->high = topic->partitions[watch->partition].high;
        word->broker = topic->partitions[watch->partition].broker;
    } else {
        snprintf(word->text, sizeof(word->text), "the leader is away: %s",
                 hps_status_text(word->status));
    }
    *out_response = *word;
    unlock(log);
}

static void fake_recall(struct hps_watch *watch, int64_t offset)
{
    lock(watch->consumer->log);
    watch->recall = offset;
    watch->refused = HPS_OK;
    watch->recall_us =
        hps_clock_us() + (uint64_t)watch->consumer->log->set[HPS_FAKE_RECALLS_TAKE_US];
    unlock(watch->consumer->log);
}

static struct hps_recalled recall_now(const struct partition *partition, int64_t asked_offset)
{
    struct hps_recalled recalled = {.asked_offset = asked_offset,
                                    .asked_us = hps_clock_us(),
                                    .broker = partition->broker,
                                    .low = partition->low,
                                    .offset = -1};
    int64_t from = asked_offset > partition->low ? asked_offset : partition->low;
    int64_t high = partition->high - partition->hidden;
    for (int64_t i = from; i < high && recalled.offset < 0; i++) {
        const struct record *record = partition->records[i];
        if (record != NULL) {
            recalled.offset = i;
            recalled.time_unix_ms = record->is.time_unix_ms;
            recalled.hash = hps_update_record_hash(record->is.key, record->is.key_size,
                                                   record->is.value, record->is.value_size);
        }
    }
    return recalled;
}

static bool fake_recalled(const struct hps_watch *of, struct hps_recalled *out_recalled)
{
    struct hps_watch *watch = (struct hps_watch *)(uintptr_t)of;
    struct fake_log *log = watch->consumer->log;
    lock(log);
    const struct topic *topic = find_topic(log, watch->topic);
    bool answered = watch->recall >= 0 && hps_clock_us() >= watch->recall_us &&
                    !log->set[HPS_FAKE_RECALLS_MUTE] &&
                    leader_status(log, topic, watch->partition) == HPS_OK;
    if (answered) {
        *out_recalled = recall_now(&topic->partitions[watch->partition], watch->recall);
        watch->refused =
            watch->refused != HPS_OK ? watch->refused : (hps_status)log->set[HPS_FAKE_RECALLS];
        out_recalled->status = watch->refused;
    }
    unlock(log);
    return answered;
}

static void fake_commit(struct hps_consumer *base, const struct hps_consumer_position *positions,
                        uint32_t n_positions)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    lock(c->log);
    for (uint32_t i = 0; i < n_positions && away_of(c->log) == HPS_OK; i++) {
        struct commit *commit = find_commit(c->log, positions[i].topic, positions[i].partition);
        if (commit == NULL) {
            commit = must(hps_calloc(1, sizeof(*commit)));
            commit->topic = must(hps_strdup(positions[i].topic));
            commit->partition = positions[i].partition;
            commit->next = c->log->commits;
            c->log->commits = commit;
        }
        commit->offset = positions[i].offset;
    }
    unlock(c->log);
}

/* ---- dead letters: with the headers that say where they are from ----------------------------- */

static struct record *make_dead_letter(const struct hps_consumer_record *from, const char *reason)
{
    const struct record *of = from->handle;
    struct hps_fake_header *headers =
        must(hps_calloc(of->is.n_headers + 4, sizeof(of->is.headers[0])));
    struct hps_fake_record dead_letter_record = of->is;
    char partition[16];
    char offset[24];
    snprintf(partition, sizeof(partition), "%d", from->partition);
    snprintf(offset, sizeof(offset), "%lld", (long long)from->offset);
    const struct hps_fake_header more[] = {{"hps-reason", reason, strlen(reason)},
                                           {"hps-topic", from->topic, strlen(from->topic)},
                                           {"hps-partition", partition, strlen(partition)},
                                           {"hps-offset", offset, strlen(offset)}};
    for (uint32_t i = 0; i < of->is.n_headers; i++) {
        headers[i] = of->is.headers[i];
    }
    for (uint32_t i = 0; i < 4; i++) {
        headers[of->is.n_headers + i] = more[i];
    }
    dead_letter_record.headers = headers;
    dead_letter_record.n_headers += 4;
    struct record *made = make_record(&dead_letter_record);
    hps_free(headers);
    return made;
}

static hps_status letters_status(struct fake_log *log)
{
    lock(log);
    hps_status status =
        away_of(log) != HPS_OK ? HPS_DEADLINE : (hps_status)log->set[HPS_FAKE_LETTERS];
    unlock(log);
    return status;
}

static hps_status fake_dead_letter(struct hps_consumer *base, const char *topic,
                                   const struct hps_consumer_record *record, const char *reason,
                                   uint32_t timeout_ms, struct hps_error *err)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    if (letters_status(c->log) == HPS_EXHAUSTED) {
        hps_clock_advance(UINT64_C(1000) * timeout_ms);
        return hps_error_set(err, HPS_EXHAUSTED, "the queue of dead letters is full");
    }
    c->dead_letters =
        must(hps_realloc(c->dead_letters, (c->n_dead_letters + 1) * sizeof(c->dead_letters[0])));
    c->dead_letters[c->n_dead_letters++] =
        (struct dead_letter_record){must(hps_strdup(topic)), make_dead_letter(record, reason)};
    return HPS_OK;
}

static void fake_dead_letter_flush(struct hps_consumer *base, uint32_t timeout_ms,
                                   struct hps_dead_letters *out_letters)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    hps_status status = c->n_dead_letters > 0 ? letters_status(c->log) : HPS_OK;
    uint32_t n_stay = status == HPS_DEADLINE      ? c->n_dead_letters
                      : status == HPS_UNAVAILABLE ? 1
                                                  : 0;
    struct hps_dead_letters letters = {.status = status, .late = n_stay > 0 && c->n_late > 0};
    lock(c->log);
    for (uint32_t i = n_stay; i < c->n_dead_letters; i++) {
        if (status == HPS_OK || status == HPS_UNAVAILABLE) {
            make_topic(c->log, c->dead_letters[i].topic, 1);
            append(c->log, c->dead_letters[i].topic, 0, c->dead_letters[i].record);
            letters.n_acknowledged++;
        } else {
            free_record(c->dead_letters[i].record);
            letters.n_lost++;
        }
        hps_free(c->dead_letters[i].topic);
    }
    unlock(c->log);
    c->n_dead_letters = c->n_late = n_stay;
    if (n_stay > 0) {
        letters.status = HPS_DEADLINE;
        hps_clock_advance(UINT64_C(1000) * timeout_ms);
    }
    snprintf(letters.text, sizeof(letters.text), "%s", hps_status_text(letters.status));
    *out_letters = letters;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_consumer(struct fake_consumer *c)
{
    while (c->n_readings > 0) {
        drop_reading(c, 0);
    }
    for (uint32_t i = 0; i < c->n_dead_letters; i++) {
        free_record(c->dead_letters[i].record);
        hps_free(c->dead_letters[i].topic);
    }
    while (c->watches != NULL) {
        struct hps_watch *watch = c->watches;
        c->watches = watch->next;
        hps_free(watch->topic);
        hps_free(watch);
    }
    for (uint32_t i = 0; i < c->n_names; i++) {
        hps_free(c->names[i]);
    }
    hps_free(c->names);
    hps_free(c->dead_letters);
    hps_free(c->readings);
    hps_free(c->records);
    hps_free(c->events);
    hps_free(c->topics);
    hps_free(c->cluster_id);
    hps_free(c);
}

static void fake_consumer_close(struct hps_consumer *base)
{
    struct fake_consumer *c = (struct fake_consumer *)base;
    struct fake_log *log = c->log;
    lock(log);
    struct fake_consumer **place = &log->consumers;
    while (*place != c) {
        place = &(*place)->next;
    }
    *place = c->next;
    log->n_consumers--;
    pthread_cond_broadcast(&log->progressed);
    unlock(log);
    free_consumer(c);
}

static const struct hps_consumer_ops CONSUMER_OPS = {
    .close = fake_consumer_close,
    .topics = fake_topics,
    .watch = fake_watch,
    .leader_response = fake_leader_response,
    .recall = fake_recall,
    .recalled = fake_recalled,
    .offsets = fake_offsets,
    .assign = fake_assign,
    .unassign = fake_unassign,
    .poll = fake_poll,
    .wake = fake_wake,
    .header = fake_header,
    .commit = fake_commit,
    .dead_letter = fake_dead_letter,
    .dead_letter_flush = fake_dead_letter_flush,
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static hps_status fake_consumer_open(struct hps_update_log *base,
                                     const struct hps_consumer_options *options,
                                     struct hps_consumer **out_consumer, struct hps_error *err)
{
    struct fake_log *log = (struct fake_log *)base;
    struct fake_consumer *c = must(hps_calloc(1, sizeof(*c)));
    c->base.ops = &CONSUMER_OPS;
    c->log = log;
    (void)err;
    c->names = must(hps_calloc(options->n_topics + 1, sizeof(c->names[0])));
    c->topics = must(hps_calloc(options->n_topics + 1, sizeof(c->topics[0])));
    for (; c->n_names < options->n_topics; c->n_names++) {
        c->names[c->n_names] = must(hps_strdup(options->topics[c->n_names]));
    }
    qsort(c->names, c->n_names, sizeof(c->names[0]), by_text);
    lock(log);
    c->next = log->consumers;
    log->consumers = c;
    log->n_consumers++;
    pthread_cond_broadcast(&log->progressed);
    unlock(log);
    *out_consumer = &c->base;
    return HPS_OK;
}

static void fake_close(struct hps_update_log *base)
{
    struct fake_log *log = (struct fake_log *)base;
    HPS_ASSERT(log->n_consumers == 0);
    for (struct topic *topic = log->topics; topic != NULL; topic = log->topics) {
        log->topics = topic->next;
        for (int32_t i = 0; i < topic->n_partitions; i++) {
            hps_free(topic->partitions[i].records);
        }
        hps_free(topic->partitions);
        hps_free(topic->name);
        hps_free(topic);
    }
    for (struct record *record = log->records; record != NULL; record = log->records) {
        log->records = record->next;
        free_record(record);
    }
    for (struct commit *commit = log->commits; commit != NULL; commit = log->commits) {
        log->commits = commit->next;
        hps_free(commit->topic);
        hps_free(commit);
    }
    pthread_cond_destroy(&log->progressed);
    pthread_cond_destroy(&log->changed);
    pthread_mutex_destroy(&log->lock);
    hps_free(log->cluster_id);
    hps_free(log);
}

static const struct hps_update_log_ops LOG_OPS = {
    .name = "fake",
    .close = fake_close,
    .consumer_open = fake_consumer_open,
};

struct hps_update_log *hps_fake_log_new(const char *cluster_id)
{
    struct fake_log *log = must(hps_calloc(1, sizeof(*log)));
    pthread_condattr_t attr;
    log->base.ops = &LOG_OPS;
    log->cluster_id = must(hps_strdup(cluster_id));
    pthread_mutex_init(&log->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&log->changed, &attr);
    pthread_cond_init(&log->progressed, &attr);
    pthread_condattr_destroy(&attr);
    return &log->base;
}
