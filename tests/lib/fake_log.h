/* SPDX-License-Identifier: Apache-2.0
 *
 * An update log for tests that does as it is told: topics in memory, and the things that happen to
 * real ones, retention, compaction, topics made anew, outages. Any thread. Names and records are
 * borrowed for the call.
 */
#ifndef HPS_TESTS_LIB_FAKE_LOG_H
#define HPS_TESTS_LIB_FAKE_LOG_H

#include "backends/update_log.h"

struct hps_fake_header {
    const char *name;
    const void *value;
    size_t size;
};

struct hps_fake_record {
    const void *key; /* NULL: none */
    size_t key_size;
    const void *value; /* NULL: a tombstone */
    size_t value_size;
    int64_t time_unix_ms;
    enum hps_record_time time_of;
    const struct hps_fake_header *headers; /* [n_headers] */
    uint32_t n_headers;
};

/* Of the log. Each is 0, or HPS_OK, at first. */
enum hps_fake_setting {
    HPS_FAKE_AWAY,  /* hps_status: the log does not answer, UNAVAILABLE or UNAUTHENTICATED */
    HPS_FAKE_IDS,   /* topics that are made from now on have ids */
    HPS_FAKE_LISTS, /* hps_status: lists of topics are not answered, as by brokers that hang */
    HPS_FAKE_LISTS_TAKE_US, /* each list, answered or not, takes so long by the fake clock */
    /* hps_status: DEADLINE: dead letters stay in flight; UNAVAILABLE: the first one does;
     * EXHAUSTED: the queue for them is full; otherwise they are lost. Waiting moves the fake clock.
     */
    HPS_FAKE_LETTERS,
    HPS_FAKE_RECALLS,         /* hps_status: recalls are refused */
    HPS_FAKE_RECALLS_MUTE,    /* recalls have no answer, though leaders give their word */
    HPS_FAKE_RECALLS_TAKE_US, /* the answer to a recall comes so much later by the fake clock */
    HPS_FAKE_SETTINGS
};

/* Of a topic. Each is 0, or HPS_OK, at first. */
enum hps_fake_topic_setting {
    HPS_FAKE_DELETED, /* consumers see it GONE, and another one may be made under its name; false:
                         it is back, unless another one was made */
    HPS_FAKE_HIDDEN,  /* the user may not see it: it is not listed, and refused by name */
    HPS_FAKE_SLOW,  /* what is appended is not delivered, and polls end where the topic did, as with
                       an open transaction; its leader tells the end that there is */
    HPS_FAKE_FAILS, /* hps_status: assigned partitions FAIL with it */
    HPS_FAKE_OFFSETS, /* hps_status: its offsets are not told, as without a leader: UNAVAILABLE; nor
                         does a GAP event tell them */
    HPS_FAKE_KEPT_MS, /* records younger than this are there for sure; 0: not known */
    HPS_FAKE_TIME_OF, /* enum hps_record_time: the times of new records */
    HPS_FAKE_TOPIC_SETTINGS
};

/* Close by ops, after its consumers. */
struct hps_update_log *hps_fake_log_new(const char *cluster_id);

void hps_fake_log_set(struct hps_update_log *log, enum hps_fake_setting setting, int64_t value);
void hps_fake_log_topic_set(struct hps_update_log *log, const char *topic,
                            enum hps_fake_topic_setting setting, int64_t value);

/* Make a topic, or let it grow to n_partitions. It is not compacted. */
void hps_fake_log_topic(struct hps_update_log *log, const char *topic, int32_t n_partitions);
void hps_fake_log_topic_compacted(struct hps_update_log *log, const char *topic,
                                  enum hps_compaction compaction, int64_t delete_retention_ms);

/* Append to a partition; returns the offset. */
int64_t hps_fake_log_append(struct hps_update_log *log, const char *topic, int32_t partition,
                            const struct hps_fake_record *record);
/* Take up an offset without a record, as the marker of a transaction does. */
int64_t hps_fake_log_append_hole(struct hps_update_log *log, const char *topic, int32_t partition);
void hps_fake_log_compact(struct hps_update_log *log, const char *topic, int32_t partition,
                          int64_t offset); /* that record is no more */
void hps_fake_log_trim(struct hps_update_log *log, const char *topic, int32_t partition,
                       int64_t low); /* as retention does */
int64_t hps_fake_log_high(struct hps_update_log *log, const char *topic, int32_t partition);

void hps_fake_log_cluster(struct hps_update_log *log, const char *cluster_id);
/* UNAVAILABLE: the leader of that partition gives no word, and nothing of what comes is delivered;
 * OK: it does again. */
void hps_fake_log_leader(struct hps_update_log *log, const char *topic, int32_t partition,
                         hps_status status);
/* The id of the broker that leads the partition; 0 at first. */
void hps_fake_log_broker(struct hps_update_log *log, const char *topic, int32_t partition,
                         int32_t broker);
/* Another topic of that name, at once: who reads it is told nothing, nor that it is another. */
void hps_fake_log_topic_replace(struct hps_update_log *log, const char *topic);
/* Who recalls what is there from `offset` on is told that there is nothing, as by a leader that is
 * new, or one that is one no more; -1: it is there again. */
void hps_fake_log_recall_end(struct hps_update_log *log, const char *topic, int32_t partition,
                             int64_t offset);
/* That record can no longer be read. */
void hps_fake_log_spoil(struct hps_update_log *log, const char *topic, int32_t partition,
                        int64_t offset);
/* Every consumer that there is now is of no more use. */
void hps_fake_log_break_consumers(struct hps_update_log *log);

/* Block until every consumer has found nothing more in a poll that it made, or was in, since the
 * call began: all that was there before was polled, and dealt with. One caller at a time. */
void hps_fake_log_idle_wait(struct hps_update_log *log);
/* Block until there are so many consumers. */
void hps_fake_log_consumers_wait(struct hps_update_log *log, uint32_t n);
/* What the group committed last, -1: nothing. */
int64_t hps_fake_log_committed(struct hps_update_log *log, const char *group, const char *topic,
                               int32_t partition);
uint64_t hps_fake_log_polls(struct hps_update_log *log);

#endif
