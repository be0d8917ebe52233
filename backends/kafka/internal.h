/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the Kafka client share:
 *
 *     kafka.c         the log: its settings, librdkafka's handles, what its errors mean
 *     consumer.c      a consumer: polling, events
 *     partitions.c    the partitions that it reads, and what ends that
 *     topics.c        which topics there are, and how they are set
 *     offsets.c       questions for offsets, leader by leader
 *     dead_letters.c  copies of rejected records, on their way to the dead-letter topic
 *     leaders.c       what the leaders of watched partitions say; of the log, for all consumers
 *     recall.c        what is at an offset now; of the log
 *     commits.c       committing positions; of the log
 *
 * A consumer belongs to one thread, and so does all of `struct hps_kafka_consumer`. What is of the
 * log has threads and locks of its own, so that nothing there holds up reading.
 */
#ifndef HPS_BACKENDS_KAFKA_INTERNAL_H
#define HPS_BACKENDS_KAFKA_INTERNAL_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backends/kafka/kafka.h"
#include "base/rows/topic_filter.h"

enum {
    HPS_KAFKA_TEXT_BYTES = 256, /* of an event */
    HPS_KAFKA_HELD_MAX = 4096,  /* messages taken from librdkafka at once */
};

struct hps_kafka_leaders;
struct hps_kafka_recalls;
struct hps_kafka_commits;

struct hps_kafka {
    struct hps_update_log base;
    char *brokers;
    char *client_id;
    struct hps_kafka_property *properties; /* [n_properties] strings owned */
    uint32_t n_properties;
    struct hps_kafka_leaders *leaders;
    struct hps_kafka_recalls *recalls;
    struct hps_kafka_commits *commits;
};

/* ---- kafka.c --------------------------------------------------------------------------------- */

hps_status hps_kafka_status(rd_kafka_resp_err_t code);
/* Sets err to "what: why". */
hps_status hps_kafka_fail(struct hps_error *err, rd_kafka_resp_err_t code, const char *what);
void hps_kafka_text_set(char text[HPS_KAFKA_TEXT_BYTES], const char *from);
int hps_kafka_remaining_ms(uint64_t end_us); /* until then; not below 0 */

/* What all handles have in common, and `own` [n_own], which goes before anything else. INVALID: a
 * property that librdkafka does not know, or refuses. */
hps_status hps_kafka_conf(const struct hps_kafka *log, const struct hps_kafka_property *own,
                          size_t n_own, rd_kafka_conf_t **out_conf, struct hps_error *err)
    HPS_MUST_CHECK;
/* Of a property that is a number: no more than `max`. */
void hps_kafka_conf_at_most(rd_kafka_conf_t *conf, const char *name, long max);
/* takes conf. `name` is the last part of its client.id, and `what` it is goes into errors. */
hps_status hps_kafka_handle_open(const struct hps_kafka *log, rd_kafka_type_t type,
                                 rd_kafka_conf_t *conf, const char *name, const char *what,
                                 rd_kafka_t **out_rk, struct hps_error *err) HPS_MUST_CHECK;
/* Returns after some seconds, whatever the handle is waiting for. NULL is legal. */
void hps_kafka_handle_close(rd_kafka_t *rk);

/* ---- the consumer ---------------------------------------------------------------------------- */

/* What a consumer does with a partition. */
enum hps_kafka_phase {
    HPS_KAFKA_LEFT,     /* nothing: it is being moved, or was just made */
    HPS_KAFKA_READS,    /* it is assigned; its records are delivered */
    HPS_KAFKA_SEARCHES, /* it is not assigned: the end of a bad batch is searched for */
    HPS_KAFKA_STOPPED,  /* it has come to an end, which the next poll reports */
    HPS_KAFKA_TOLD,     /* ... has reported: the poll after that forgets the partition */
    HPS_KAFKA_PHASES
};

/* The search for the end of a bad batch: see partitions.c. */
struct hps_kafka_search {
    struct hps_watch *watch; /* for its recalls; NULL: no search */
    int64_t from;            /* the first offset that is left out */
    int64_t base;            /* of the batch */
    int64_t in;              /* the last offset that is known to be in it */
    int64_t out;             /* the first that is known not to be */
    int64_t at;              /* is being read */
    hps_status status;
    char text[HPS_KAFKA_TEXT_BYTES];
};

/* What ended a partition. */
struct hps_kafka_stop {
    enum hps_consumer_event_kind kind;
    hps_status status;
    int64_t low; /* -1: not known, as the next one */
    int64_t high;
    char text[HPS_KAFKA_TEXT_BYTES];
};

/* A partition that is read, or that has an end to be reported. In order of (topic, number). */
struct hps_kafka_partition {
    rd_kafka_topic_t *topic; /* a reference */
    int32_t number;
    uint32_t tag;
    enum hps_kafka_phase phase;
    int64_t next;     /* to be delivered; those before it never are */
    bool caught_up;   /* to be reported in this poll */
    bool bad;         /* to be reported in this poll: search.from to `next` */
    bool asked_again; /* after an error that may not be of where it is read now */
    struct hps_kafka_stop stop;
    struct hps_kafka_search search;
    const struct hps_watch *watch; /* NULL: none is known */
};

/* librdkafka has it assigned. */
static inline bool hps_kafka_is_assigned(const struct hps_kafka_partition *partition)
{
    return partition->phase == HPS_KAFKA_READS;
}

/* An answer of the admin API that is awaited. */
struct hps_kafka_ask {
    bool asked;
    bool late; /* was waited for in vain: not waited for again */
};

/* The cluster, as this consumer reaches it, and what of that was reported. */
enum hps_kafka_link_phase {
    HPS_KAFKA_UP,
    HPS_KAFKA_FALLING, /* no broker answers: DOWN is to be reported */
    HPS_KAFKA_DOWN,    /* ... was reported */
    HPS_KAFKA_CHANGED, /* ... was reported with another reason: to be reported again */
    HPS_KAFKA_RISING,  /* it answers again: UP is to be reported */
    HPS_KAFKA_FATAL,   /* the handle is of no more use */
    HPS_KAFKA_LINK_PHASES
};

struct hps_kafka_link {
    enum hps_kafka_link_phase phase;
    hps_status status; /* why not, of the last broker that had a reason */
    char text[HPS_KAFKA_TEXT_BYTES];
};

/* Messages taken from librdkafka. */
struct hps_kafka_held {
    rd_kafka_message_t **messages; /* [HPS_KAFKA_HELD_MAX] */
    uint32_t from;                 /* those before were delivered by the last poll */
    uint32_t to;
    uint64_t message_bytes; /* of one, about, lately */
};

/* What was reported of commits. */
struct hps_kafka_commits_seen {
    uint64_t n_changes;
    bool fail;
    char text[HPS_KAFKA_TEXT_BYTES];
};

struct hps_kafka_topic_list {
    char *cluster_id;
    struct hps_consumer_topic *topics; /* [n] names and ids owned */
    uint32_t n;
    struct hps_kafka_ask configs; /* how topics are set */
    struct hps_kafka_ask ids;     /* of topics */
};

struct hps_kafka_dead_letters {
    rd_kafka_t *producer; /* made when there is one to send */
    /* Letters that were sent since the last flush that found none late: [newer]. Earlier ones: the
     * other one. */
    uint64_t n_in_flight[2];
    unsigned newer;
    struct hps_dead_letters since_flush;
};

struct hps_kafka_consumer {
    struct hps_consumer base;
    struct hps_kafka *log;
    char *model;
    char *group; /* NULL: no commits */
    struct hps_topic_filters *filters;
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    rd_kafka_queue_t *answers; /* of the admin API */
    atomic_bool awake;

    struct hps_kafka_partition *partitions; /* [n_partitions] */
    uint32_t n_partitions;
    uint32_t partitions_capacity;
    bool searches;     /* some partition does */
    bool has_news;     /* some partition has something to report */
    uint64_t check_us; /* when to look whether what was assigned is there; 0: it was */

    struct hps_kafka_link link;
    struct hps_kafka_held held;
    struct hps_consumer_record *records; /* [HPS_KAFKA_HELD_MAX] */
    struct hps_consumer_event *events;   /* [3 * partitions_capacity + 2] */
    struct hps_kafka_commits_seen commits;
    struct hps_kafka_topic_list list;
    struct hps_watch *watches;
    struct hps_kafka_dead_letters dead_letters;
};

/* No broker answers. */
static inline bool hps_kafka_is_down(const struct hps_kafka_consumer *c)
{
    return c->link.phase == HPS_KAFKA_FALLING || c->link.phase == HPS_KAFKA_DOWN ||
           c->link.phase == HPS_KAFKA_CHANGED;
}

/* Each asserts that `to` may follow, and goes there. */
void hps_kafka_link_set(struct hps_kafka_consumer *c, enum hps_kafka_link_phase to);
void hps_kafka_phase_set(struct hps_kafka_partition *partition, enum hps_kafka_phase to);
/* Assert all that holds between two calls of the consumer's thread. */
void hps_kafka_consumer_sane(const struct hps_kafka_consumer *c);

hps_status hps_kafka_consumer_open(struct hps_update_log *base,
                                   const struct hps_consumer_options *options,
                                   struct hps_consumer **out_consumer, struct hps_error *err);
/* The cluster has answered. */
void hps_kafka_answered(struct hps_kafka_consumer *c);

/* ---- partitions.c ---------------------------------------------------------------------------- */

hps_status hps_kafka_partitions_reserve(struct hps_kafka_consumer *c) HPS_MUST_CHECK; /* one more */
/* NULL: it is not read. */
struct hps_kafka_partition *hps_kafka_partition_find(struct hps_kafka_consumer *c,
                                                     const rd_kafka_topic_t *topic, int32_t number);
/* "hps_et.m.t [3]: topic does not exist (…)": what librdkafka says of a partition that is gone. */
void hps_kafka_partition_gone(struct hps_kafka_consumer *c, const char *reason);
/* A message that is none: something happened to a partition. */
void hps_kafka_partition_failed(struct hps_kafka_consumer *c, struct hps_kafka_partition *partition,
                                const rd_kafka_message_t *message);
/* Continue the searches for the ends of bad batches. True: one is in flight. Call it after the
 * records of a poll were gathered: BAD must be reported before later records. */
bool hps_kafka_partitions_search(struct hps_kafka_consumer *c);
/* Tell of those that are read and are not there any more, by a list of all topics. */
void hps_kafka_partitions_check(struct hps_kafka_consumer *c, const struct rd_kafka_metadata *all);
/* librdkafka does not always say that what was assigned is not there: look once. */
void hps_kafka_partitions_check_late(struct hps_kafka_consumer *c);
/* Forget those whose end was reported by the last poll. */
void hps_kafka_partitions_sweep(struct hps_kafka_consumer *c);
/* Messages that the last poll delivered are no longer borrowed. */
void hps_kafka_held_release(struct hps_kafka_consumer *c);
/* Drop all of them. */
void hps_kafka_held_drop_all(struct hps_kafka_consumer *c);

hps_status hps_kafka_assign(struct hps_consumer *base, const struct hps_consumer_position *at,
                            uint32_t tag, struct hps_error *err);
void hps_kafka_unassign(struct hps_consumer *base, const char *topic, int32_t number);

/* ---- topics.c -------------------------------------------------------------------------------- */

hps_status hps_kafka_topics(struct hps_consumer *base, uint32_t timeout_ms,
                            struct hps_consumer_topics *out_topics, struct hps_error *err);
void hps_kafka_topics_free(struct hps_consumer_topic *topics, uint32_t n);
/* The topics that there are, of any broker that answers in time; more than one may be asked.
 * out_rk is the handle that has heard it; out_all is for rd_kafka_metadata_destroy. */
hps_status hps_kafka_list(struct hps_kafka_consumer *c, uint64_t end_us, rd_kafka_t **out_rk,
                          const struct rd_kafka_metadata **out_all, struct hps_error *err)
    HPS_MUST_CHECK;
/* NULL: there is no such topic. */
const struct rd_kafka_metadata_topic *hps_kafka_topic_in(const struct rd_kafka_metadata *all,
                                                         const char *topic);

/* ---- offsets.c ------------------------------------------------------------------------------- */

hps_status hps_kafka_offsets(struct hps_consumer *base, struct hps_consumer_offsets *partitions,
                             uint32_t n_partitions, uint32_t timeout_ms, struct hps_error *err);
/* No answer, rather than one that says no. */
bool hps_kafka_is_silence(rd_kafka_resp_err_t code);
/* Ask the leader of all of them for offsets, as rd_kafka_offsets_for_times does, which has no
 * answer for any if one has none. Each has its own offset, or error, afterwards. Any thread. */
void hps_kafka_offsets_ask(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list, uint64_t end_us);
/* The bounds of a partition of which its leader has just said something; -1: not known. */
void hps_kafka_bounds_ask(struct hps_kafka_consumer *c, const char *topic, int32_t number,
                          int64_t *out_low, int64_t *out_high);

/* ---- dead_letters.c -------------------------------------------------------------------------- */

hps_status hps_kafka_dead_letter(struct hps_consumer *base, const char *topic,
                                 const struct hps_consumer_record *record, const char *reason,
                                 uint32_t timeout_ms, struct hps_error *err);
void hps_kafka_dead_letter_flush(struct hps_consumer *base, uint32_t timeout_ms,
                                 struct hps_dead_letters *out_letters);
void hps_kafka_dead_letters_close(struct hps_kafka_consumer *c);

/* ---- leaders.c ------------------------------------------------------------------------------- */

struct hps_kafka_watched; /* a partition that is watched, by any consumer */

enum hps_kafka_recall_state {
    HPS_KAFKA_RECALL_NONE,
    HPS_KAFKA_RECALL_WAITS,
    HPS_KAFKA_RECALL_ASKED,
    HPS_KAFKA_RECALL_ANSWERED
};

struct hps_watch {
    struct hps_watch *next; /* of its consumer */
    struct hps_kafka *log;
    struct hps_kafka_watched *watched;
    const char *topic; /* of it, as the next */
    int32_t partition;
    /* Under the lock of recalls: */
    enum hps_kafka_recall_state recall;
    struct hps_watch *next_waiting;
    uint64_t recall_due_us; /* not to be asked before */
    bool recall_patient;    /* it takes its time though its leader answers */
    struct hps_recalled recalled;
};

hps_status hps_kafka_leaders_new(struct hps_kafka *log, struct hps_kafka_leaders **out_leaders)
    HPS_MUST_CHECK;
/* Nothing is watched any more. NULL is legal. */
void hps_kafka_leaders_free(struct hps_kafka_leaders *leaders);
/* The handle that leaders are asked through, which lives as long as the log. NULL: nothing was
 * watched yet. */
rd_kafka_t *hps_kafka_leaders_handle(struct hps_kafka_leaders *leaders);

hps_status hps_kafka_watch(struct hps_consumer *base, const char *topic, int32_t partition,
                           struct hps_watch **out_watch, struct hps_error *err);
void hps_kafka_heard(const struct hps_watch *watch, struct hps_leader_response *out_word);
/* NULL: it is not watched. */
struct hps_watch *hps_kafka_watch_find(const struct hps_kafka_consumer *c, const char *topic,
                                       int32_t partition);
void hps_kafka_watches_free(struct hps_kafka_consumer *c);
/* Which broker may be asked now: OK and its id, or why nobody is. Waits for the first word of one
 * that has been watched for less than a second. */
hps_status hps_kafka_watch_leader(const struct hps_watch *watch, uint64_t end_us,
                                  int32_t *out_broker);
/* The id of the leading broker, -1 if not known. */
int32_t hps_kafka_watch_broker(const struct hps_watch *watch);
/* The cluster says again and again that there is no such partition. */
bool hps_kafka_watch_absent(const struct hps_watch *watch);

/* ---- recall.c -------------------------------------------------------------------------------- */

hps_status hps_kafka_recalls_new(struct hps_kafka *log, struct hps_kafka_recalls **out_recalls)
    HPS_MUST_CHECK;
void hps_kafka_recalls_free(struct hps_kafka_recalls *recalls); /* NULL is legal */
void hps_kafka_recall(struct hps_watch *watch, int64_t offset);
bool hps_kafka_recalled(const struct hps_watch *watch, struct hps_recalled *out_recalled);
/* The watch is about to go. */
void hps_kafka_recall_cancel(struct hps_watch *watch);
/* A second watch of the partition, for recalls of this folder. An answer that is an error has the
 * offset of librdkafka's message. The caller owns it. NULL: no memory. */
struct hps_watch *hps_kafka_recall_new(struct hps_kafka_consumer *c, const char *topic,
                                       int32_t partition);
void hps_kafka_recall_free(struct hps_watch *watch); /* NULL is legal; before the consumer's own */

/* ---- commits.c ------------------------------------------------------------------------------- */

hps_status hps_kafka_commits_new(struct hps_kafka *log, struct hps_kafka_commits **out_commits)
    HPS_MUST_CHECK;
void hps_kafka_commits_free(struct hps_kafka_commits *commits); /* NULL is legal */
void hps_kafka_commit(struct hps_consumer *base, const struct hps_consumer_position *positions,
                      uint32_t n_positions);
/* True: what became of commits of this consumer's group has changed since `*seen`. */
bool hps_kafka_commits_news(struct hps_kafka_commits *commits, const char *group, uint64_t *seen,
                            hps_status *out_status, char out_text[HPS_KAFKA_TEXT_BYTES]);

#endif
