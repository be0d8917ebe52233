/* SPDX-License-Identifier: Apache-2.0
 *
 * The position of a version in one partition of the update log, as the store has it: key and value
 * of a position of cache/update/update.h. Pure functions. Any thread.
 *
 *   key     "<topic>/<partition>"
 *   value   little-endian:
 *            0  u8   format, 3
 *            1  u8   bits; 1: the last record is known; 2: the operator has paused the partition;
 *                    4: the witness is known; 8: all skipped records are before the offset
 *                    where the version started
 *            2  u16  bytes of the cluster's id
 *            4  u16  bytes of the topic's id
 *            6  u16  0
 *            8  i64  offset of the next record
 *           16  i64  of the last record before it that was read: offset,
 *           24  i64    time (Unix ms),
 *           32  u64    hash of key and value
 *           40  i64  every update of the partition logged before this time (Unix ms, wall clock)
 *                    is applied
 *           48  i64  newest event time applied (Unix ms); 0: none
 *           56  i64  offset where the version started; -1: not known
 *           64  i64  offset of the first skipped record that other daemons may have applied; -1:
 *                    no record was skipped; -2: skipped records cannot be applied any more
 *           72  i64  of the witness, the last record that is known to be of the topic that is
 *                    read: offset,
 *           80  i64    time (Unix ms),
 *           88  u64    hash of key and value
 *           96  i64  offset of the first record that was skipped because the version was frozen;
 *                    -1: no record was skipped
 *          104  i64  start of the time (Unix ms, wall clock) from which deletes may be missing if
 *                    as-of is not known; 0: not known
 *          112       the cluster's id; empty if it is not known (a position of a manifest)
 *          then      the topic's id; empty if it is not known
 *
 * Format 2 has the cluster's id at 72. It has no witness and no topic's id: the last record is the
 * witness. Format 1 has the cluster's id at 56, and does not say whether records were skipped: they
 * count as skipped from offset 0.
 *
 * Two more records of a version belong to no partition. "frozen" (u8: whether the version skips
 * records that name no version; u64: number of the last switch of the model). "start" (i64, Unix
 * ms: the files may lack updates from this time). A key of a position may end with
 * HPS_POSITION_OTHER: another version of the model read the partition when this one was opened. Its
 * value is empty.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_POSITION_H
#define HPS_SERVER_UPDATE_PARTITION_POSITION_H

#include "backends/store_durable.h"
#include "base/rows/update_record.h"

enum {
    HPS_CLUSTER_BYTES_MAX = 128, /* with its NUL; Kafka's ids have 22 */
    HPS_TOPIC_ID_BYTES_MAX = 40, /* with its NUL */
    HPS_POSITION_KEY_BYTES_MAX = HPS_UPDATE_TOPIC_BYTES_MAX + 12,
    HPS_POSITION_VALUE_BYTES_MAX = 112 + HPS_CLUSTER_BYTES_MAX + HPS_TOPIC_ID_BYTES_MAX,
    HPS_POSITION_FROZEN_BYTES = 9
};

#define HPS_POSITION_FROZEN "frozen"
#define HPS_POSITION_START  "start"
#define HPS_POSITION_OTHER  '+'

/* A record that was read. A record that is read later is compared with it. */
struct hps_witness {
    bool known;
    int64_t offset;
    int64_t time_ms;
    uint64_t hash;
};

/* Whether both are of the same record, or both are unknown. */
static inline bool hps_witness_same(const struct hps_witness *a, const struct hps_witness *b)
{
    return a->known == b->known && (!a->known || (a->offset == b->offset &&
                                                  a->time_ms == b->time_ms && a->hash == b->hash));
}

struct hps_position {
    char cluster[HPS_CLUSTER_BYTES_MAX];   /* "": not known */
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* "": not known */
    int64_t next;
    bool paused;
    struct hps_witness last;    /* the last record before `next` */
    struct hps_witness witness; /* while the log has this record, the topic is the one from which
                                   the records before `next` were read */
    int64_t as_of_ms;
    int64_t event_time_ms;
    int64_t start;     /* -1: not known */
    int64_t skipped;   /* the first skipped record; or HPS_POSITION_WHOLE or HPS_POSITION_LOST */
    bool before_start; /* all skipped records have offsets before `start` */
    int64_t base_ms;   /* deletes before this time are applied, or known to be lost; 0: not known */
    int64_t frozen;    /* the first record that was skipped because the version was frozen; or
                          HPS_POSITION_WHOLE */
};

/* No record was skipped; records were skipped that cannot be applied any more. */
enum { HPS_POSITION_WHOLE = -1, HPS_POSITION_LOST = -2 };

/* Memory for the key and the value of a record of the store. */
struct hps_position_memory {
    char key[HPS_POSITION_KEY_BYTES_MAX];
    uint8_t value[HPS_POSITION_VALUE_BYTES_MAX];
};

/* Make the record of a position; NULL: the one of HPS_POSITION_OTHER. It is in `to`. */
struct hps_record hps_position_record(const char *topic, int32_t partition,
                                      const struct hps_position *position,
                                      struct hps_position_memory *to);
/* Make the record HPS_POSITION_FROZEN. Its value is in `to`. */
struct hps_record hps_position_frozen_record(bool frozen, uint64_t n_switches,
                                             struct hps_position_memory *to);
/* Write the key or the value of a position. Return the number of bytes. */
size_t hps_position_key(const char *topic, int32_t partition,
                        char out_key[HPS_POSITION_KEY_BYTES_MAX]);
size_t hps_position_encode(const struct hps_position *position,
                           uint8_t out_value[HPS_POSITION_VALUE_BYTES_MAX]);
/* Read the value of HPS_POSITION_FROZEN. False: `size` is wrong, and no output is set. */
bool hps_position_frozen_decode(const void *value, size_t size, bool *out_frozen,
                                uint64_t *out_n_switches);
/* False: it is not the key of a partition, and no output is set. */
bool hps_position_key_parse(const void *key, size_t size,
                            char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX], int32_t *out_partition);
/* DATA_LOSS: it is cut short or contradictory; NEWER_FORMAT. */
hps_status hps_position_decode(const void *value, size_t size, struct hps_position *out_position)
    HPS_MUST_CHECK;

#endif
