/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted update log for tests: topics in memory, and events of real ones, such as retention,
 * compaction, recreated topics and outages. Any thread. Names and records are borrowed for the
 * call.
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

/* Settings of the log. Each is 0, or HPS_OK, at first. */
enum hps_fake_setting {
    HPS_FAKE_AWAY,     /* hps_status: the log does not respond, UNAVAILABLE or UNAUTHENTICATED */
    HPS_FAKE_IDS,      /* topics that are created from now on have ids */
    HPS_FAKE_IDS_MUTE, /* requests for ids are not answered: known ids stay */
    HPS_FAKE_LISTS, /* hps_status: requests for topics are not answered, as by brokers that hang */
    /* hps_status: DEADLINE: dead letters stay in flight; UNAVAILABLE: the first one does;
     * EXHAUSTED: the queue for them is full; otherwise they are lost. Waiting moves the fake clock.
     */
    HPS_FAKE_LETTERS,
    HPS_FAKE_RECALLS,         /* hps_status: recalls are refused */
    HPS_FAKE_RECALLS_MUTE,    /* recalls are not answered, though leaders respond */
    HPS_FAKE_RECALLS_TAKE_US, /* the answer to a recall comes this much later by the fake clock */
    HPS_FAKE_SETTINGS
};

/* Settings of a topic. Each is 0, or HPS_OK, at first. */
enum hps_fake_topic_setting {
    HPS_FAKE_DELETED, /* it is not listed and delivers nothing, and a topic of that name may be
                         created: then consumers see this one GONE; false: it exists again, unless
                         another one was created */
    HPS_FAKE_HIDDEN,  /* the user may not see it: it is not listed, and refused by name */
    HPS_FAKE_SLOW,  /* new records are not delivered, and polls end at the old end, as with an open
                       transaction; its leader names the true end */
    HPS_FAKE_FAILS, /* hps_status: assigned partitions FAIL with it */
    HPS_FAKE_OFFSETS, /* hps_status: requests for its offsets fail, as without a leader:
                         UNAVAILABLE */
    HPS_FAKE_KEPT_MS, /* the log has all records that are younger; 0: not known */
    HPS_FAKE_TIME_OF, /* enum hps_record_time: the times of new records */
    HPS_FAKE_TOPIC_SETTINGS
};

/* Close by ops, after its consumers. */
struct hps_update_log *hps_fake_log_new(const char *cluster_id);

void hps_fake_log_set(struct hps_update_log *log, enum hps_fake_setting setting, int64_t value);
void hps_fake_log_topic_set(struct hps_update_log *log, const char *topic,
                            enum hps_fake_topic_setting setting, int64_t value);

/* Create a topic, or let it grow to n_partitions. It is not compacted. */
void hps_fake_log_topic(struct hps_update_log *log, const char *topic, int32_t n_partitions);
void hps_fake_log_topic_compacted(struct hps_update_log *log, const char *topic,
                                  enum hps_compaction compaction, int64_t delete_retention_ms);

/* Append to a partition; returns the offset. */
int64_t hps_fake_log_append(struct hps_update_log *log, const char *topic, int32_t partition,
                            const struct hps_fake_record *record);
/* Append an offset without a record, as the marker of a transaction is. */
int64_t hps_fake_log_append_hole(struct hps_update_log *log, const char *topic, int32_t partition);
void hps_fake_log_compact(struct hps_update_log *log, const char *topic, int32_t partition,
                          int64_t offset); /* removes that record */
void hps_fake_log_trim(struct hps_update_log *log, const char *topic, int32_t partition,
                       int64_t low); /* removes records, as retention does */
int64_t hps_fake_log_high(struct hps_update_log *log, const char *topic, int32_t partition);

void hps_fake_log_cluster(struct hps_update_log *log, const char *cluster_id);
/* UNAVAILABLE: the leader of that partition does not respond, and no records of it are delivered;
 * OK: it responds again. */
void hps_fake_log_leader(struct hps_update_log *log, const char *topic, int32_t partition,
                         hps_status status);
/* Set the id of the broker that leads the partition; it is 0 at first. */
void hps_fake_log_broker(struct hps_update_log *log, const char *topic, int32_t partition,
                         int32_t broker);
/* Delete the topic and create it again at once. Consumers get no event. */
void hps_fake_log_topic_replace(struct hps_update_log *log, const char *topic);
/* Recalls find no record from `offset` on, as at a leader that is new or was replaced; -1: they
 * find records again. */
void hps_fake_log_recall_end(struct hps_update_log *log, const char *topic, int32_t partition,
                             int64_t offset);
/* Make that record unreadable. */
void hps_fake_log_spoil(struct hps_update_log *log, const char *topic, int32_t partition,
                        int64_t offset);
/* Every existing consumer fails with a fatal error. */
void hps_fake_log_break_consumers(struct hps_update_log *log);

/* Block until every consumer has ended a poll without a record since the call began: all earlier
 * records are polled and taken. One caller at a time. */
void hps_fake_log_idle_wait(struct hps_update_log *log);
/* Block until n consumers exist. */
void hps_fake_log_consumers_wait(struct hps_update_log *log, uint32_t n);
/* The last position that was committed; -1: none. */
int64_t hps_fake_log_committed(struct hps_update_log *log, const char *topic, int32_t partition);
uint64_t hps_fake_log_polls(struct hps_update_log *log);

#endif
