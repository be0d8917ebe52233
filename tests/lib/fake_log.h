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

/* Close by ops, after its consumers. */
struct hps_update_log *hps_fake_log_new(const char *cluster_id);

/* Make a topic, or let it grow to n_partitions. It is not compacted. */
void hps_fake_log_topic(struct hps_update_log *log, const char *topic, int32_t n_partitions);
void hps_fake_log_topic_compacted(struct hps_update_log *log, const char *topic,
                                  enum hps_compaction compaction, int64_t delete_retention_ms);
/* For how long records are there for sure; at first it is not known. */
void hps_fake_log_topic_kept(struct hps_update_log *log, const char *topic, int64_t kept_ms);
/* Delete a topic: consumers that read it see it GONE. Another may be made under its name. */
void hps_fake_log_topic_delete(struct hps_update_log *log, const char *topic);

/* Append to a partition; returns the offset. */
int64_t hps_fake_log_append(struct hps_update_log *log, const char *topic, int32_t partition,
                            const struct hps_fake_record *record);
/* Take up an offset without a record, as the marker of a transaction does. */
int64_t hps_fake_log_append_hole(struct hps_update_log *log, const char *topic, int32_t partition);
void hps_fake_log_compact(struct hps_update_log *log, const char *topic, int32_t partition,
                          int64_t offset); /* that record is no more */
void hps_fake_log_trim(struct hps_update_log *log, const char *topic, int32_t partition,
                       int64_t low); /* as retention does */
/* What is there now: false if there is no such record. Borrowed until the log is closed. */
bool hps_fake_log_read(struct hps_update_log *log, const char *topic, int32_t partition,
                       int64_t offset, struct hps_fake_record *out_record);
int64_t hps_fake_log_high(struct hps_update_log *log, const char *topic, int32_t partition);

/* UNAVAILABLE or UNAUTHENTICATED: the log is away and answers so; OK: it is back. */
void hps_fake_log_away(struct hps_update_log *log, hps_status status);
void hps_fake_log_cluster(struct hps_update_log *log, const char *cluster_id);
/* The log does not tell the offsets of that topic: UNAVAILABLE, as of partitions without a leader;
 * OK: it does again. */
void hps_fake_log_topic_offsets(struct hps_update_log *log, const char *topic, hps_status status);
/* Its user may not see it: it is not listed, and a watch says PERMISSION. */
void hps_fake_log_topic_hide(struct hps_update_log *log, const char *topic, bool hidden);
/* UNAVAILABLE: the leader of that partition gives no word, and nothing of what comes is delivered;
 * OK: it does again. */
void hps_fake_log_leader(struct hps_update_log *log, const char *topic, int32_t partition,
                         hps_status status);
/* Another topic of that name, at once: who reads it is told nothing, nor that it is another. */
void hps_fake_log_topic_replace(struct hps_update_log *log, const char *topic);
/* Topics that are made from now on have ids. */
void hps_fake_log_ids(struct hps_update_log *log);
/* Who recalls what is there from `offset` on is told that there is nothing, as by a leader that is
 * new, or one that is one no more; -1: it is there again. */
void hps_fake_log_recall_end(struct hps_update_log *log, const char *topic, int32_t partition,
                             int64_t offset);
/* UNAVAILABLE: nobody gets a list of topics, as of brokers that hang; OK: again. */
void hps_fake_log_lists(struct hps_update_log *log, hps_status status);
/* Each list, answered or not, takes so long by the fake clock; leaders answer meanwhile. */
void hps_fake_log_lists_take(struct hps_update_log *log, uint64_t us);
/* What is at an offset is told so long after it was asked, by the fake clock; at first at once. */
void hps_fake_log_recalls_take(struct hps_update_log *log, uint64_t us);
/* Who recalls is refused with this status; OK: again not. */
void hps_fake_log_recall_refuse(struct hps_update_log *log, hps_status status);
/* Nobody is told what is at an offset, though leaders give their word; false: again. */
void hps_fake_log_recall_mute(struct hps_update_log *log, bool mute);
/* That record can no longer be read. */
void hps_fake_log_spoil(struct hps_update_log *log, const char *topic, int32_t partition,
                        int64_t offset);
/* While it is slow, what is appended is not delivered, and polls end where the topic did, as with
 * an open transaction; only who asks for its offsets or its leaders for its end is told of it. */
void hps_fake_log_topic_slow(struct hps_update_log *log, const char *topic, bool slow);
/* Every consumer that there is now is of no more use. */
void hps_fake_log_break_consumers(struct hps_update_log *log);
/* Assigned partitions of that topic FAIL with `status`. */
void hps_fake_log_topic_fail(struct hps_update_log *log, const char *topic, hps_status status);
/* The next n flushes of dead letters fail with `status`, and those letters are lost. */
void hps_fake_log_lose_letters(struct hps_update_log *log, uint32_t n_flushes, hps_status status);

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
