/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a version is in one partition of the update log, as it is stored beside the rows: key and
 * value of a position of cache/update/update.h. Pure functions.
 *
 *   key     "<topic>/<partition>"
 *   value   little-endian:
 *            0  u8   format, 3
 *            1  u8   bits; 1: the last record is known; 2: the operator has paused the partition;
 *                    4: there is a witness; 8: all records that were passed over are before
 *                    the offset where the version began
 *            2  u16  bytes of the cluster's id
 *            4  u16  bytes of the topic's id
 *            6  u16  0
 *            8  i64  offset of the record that is next
 *           16  i64  of the last record before it that was read: offset,
 *           24  i64    time (Unix ms),
 *           32  u64    hash of key and value
 *           40  i64  every update of the partition logged before this time (Unix ms, wall clock)
 *                    is applied
 *           48  i64  newest event time applied (Unix ms); 0: none
 *           56  i64  where the version began; -1: not known
 *           64  i64  from where on records were passed over that others may have applied; -1: from
 *                    nowhere; -2: what was there is gone
 *           72  i64  of the witness, the last record that is known to be of the topic that is
 *                    read: offset,
 *           80  i64    time (Unix ms),
 *           88  u64    hash of key and value
 *           96  i64  from where on records were passed over as the version was frozen; -1: from
 *                    nowhere
 *          104  i64  since when (likewise) deletes may be missing where as-of is not known;
 *                    0: not known
 *          112       the cluster's id; none where the source did not say (a manifest)
 *          then      the topic's id, likewise
 *
 * Format 2 has the cluster's id at 72 and neither witness nor topic's id: the last record is the
 * witness. Format 1 has the cluster's id at 56, and nobody knows whether records were passed over:
 * as if they were from 0 on.
 *
 * Two more records of a version belong to no partition: "frozen" (u8: whether records that name no
 * version are passed over; u64: the switch of the model that was the last one then) and "start"
 * (i64, Unix ms: since when its files may lack updates). The key of a position with
 * HPS_POSITION_OTHER behind it says that another version of the model read the partition when this
 * one was opened; the value is empty.
 */
#ifndef HPS_SERVER_UPDATE_POSITION_H
#define HPS_SERVER_UPDATE_POSITION_H

#include "backends/store.h"
#include "base/rows/update_record.h"

enum {
    HPS_CLUSTER_BYTES_MAX = 128, /* with its NUL; Kafka's have 22 */
    HPS_TOPIC_ID_BYTES_MAX = 40, /* likewise */
    HPS_POSITION_KEY_BYTES_MAX = HPS_UPDATE_TOPIC_BYTES_MAX + 12,
    HPS_POSITION_VALUE_BYTES_MAX = 112 + HPS_CLUSTER_BYTES_MAX + HPS_TOPIC_ID_BYTES_MAX,
    HPS_POSITION_FROZEN_BYTES = 9
};

#define HPS_POSITION_FROZEN "frozen"
#define HPS_POSITION_START  "start"
#define HPS_POSITION_OTHER  '+'

/* A record that was read, to be known again by. */
struct hps_witness {
    bool known;
    int64_t offset;
    int64_t time_ms;
    uint64_t hash;
};

struct hps_position {
    char cluster[HPS_CLUSTER_BYTES_MAX];   /* "": not known */
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* likewise */
    int64_t next;
    bool paused;
    struct hps_witness last;    /* the last record before `next` */
    struct hps_witness witness; /* as long as the log has it, it is the topic that all up to `next`
                                   was read from */
    int64_t as_of_ms;
    int64_t event_time_ms;
    int64_t start;     /* -1: not known */
    int64_t skipped;   /* or one of the next */
    bool before_start; /* all records that were passed over have offsets before `start` */
    int64_t base_ms; /* all deletes of before are known to have been applied, or to be lost; 0: none
                        are */
    int64_t frozen;  /* from where on they were as the version was frozen; or HPS_POSITION_WHOLE */
};

/* Nothing was passed over; records were that nobody can apply any more. */
enum { HPS_POSITION_WHOLE = -1, HPS_POSITION_LOST = -2 };

/* Return the number of bytes. */
size_t hps_position_key(const char *topic, int32_t partition,
                        char out_key[HPS_POSITION_KEY_BYTES_MAX]);
size_t hps_position_encode(const struct hps_position *position,
                           uint8_t out_value[HPS_POSITION_VALUE_BYTES_MAX]);
/* The value of HPS_POSITION_FROZEN. */
void hps_position_frozen_encode(bool frozen, uint64_t n_switches,
                                uint8_t out_value[HPS_POSITION_FROZEN_BYTES]);
bool hps_position_frozen_decode(const void *value, size_t size, bool *out_frozen,
                                uint64_t *out_n_switches);
/* false: the key of no partition. */
bool hps_position_key_parse(const void *key, size_t size,
                            char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX], int32_t *out_partition);
/* DATA_LOSS: cut short or contradictory; NEWER_FORMAT. */
hps_status hps_position_decode(const void *value, size_t size, struct hps_position *out_position)
    HPS_MUST_CHECK;

#endif
