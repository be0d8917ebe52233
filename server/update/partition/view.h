/* SPDX-License-Identifier: Apache-2.0
 *
 * The view of a stream and of its partitions, for metrics, `hpsctl updates`, GetUpdates, GetModel
 * and WaitForUpdates. The stream's thread makes it after each turn.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_VIEW_H
#define HPS_SERVER_UPDATE_PARTITION_VIEW_H

#include "server/update/partition/position.h"

enum hps_partition_state {
    HPS_PARTITION_STARTING,
    HPS_PARTITION_RUNNING,
    HPS_PARTITION_PAUSED,
    HPS_PARTITION_GAP,
    HPS_PARTITION_GONE,
    HPS_PARTITION_FAILED,
    /* A running partition has one of these states while no update becomes visible. */
    HPS_PARTITION_FROZEN,      /* its version is frozen: it skips records that name no version */
    HPS_PARTITION_HELD,        /* the current batch cannot be applied */
    HPS_PARTITION_UNREACHABLE, /* its leader does not respond */
    HPS_PARTITION_STATES
};
/* "starting", … Any thread. */
const char *hps_partition_state_text(enum hps_partition_state state);

/* Times in ms are by hps_clock_forward_ms. */
struct hps_partition_view {
    char topic[249];
    int32_t partition;
    enum hps_partition_state state;
    char topic_id[HPS_TOPIC_ID_BYTES_MAX]; /* of the topic that was read; "": not known */
    int64_t next;                          /* published; -1: not known yet */
    struct hps_witness last;               /* the last record before `next` */
    int64_t high; /* one past the last record, in its leader's last response; -1: not known */
    int64_t response_asked_ms;  /* when the request for this response was sent; 0: no response */
    uint64_t lag;               /* records, up to `high` */
    bool lag_known;             /* `high` is young, and of the topic that was read */
    uint64_t response_until_us; /* `high` is young until then (hps_clock_us) */
    int64_t same_until_ms;      /* the topic counts as the one that was read until then (Unix ms) */
    int64_t as_of_ms;           /* every update logged before is applied; 0: not known */
    int64_t same_ms;     /* the last proof that the topic is the one that was read; 0: not known */
    int64_t skipped;     /* hps_position.skipped of the published position */
    int64_t skipped_end; /* skipped records are before this offset; 0: not known */
    int64_t frozen;      /* hps_position.frozen of the published position */
    double records_per_s;
    char reason[200]; /* of its state, or a warning about its rows */
};

/* A record that was read and rejected: no row has it. */
struct hps_rejected_view {
    char topic[249];
    int32_t partition;
    int64_t offset;
    int64_t read_ms;    /* hps_clock_forward_ms */
    uint64_t number;    /* counts the rejected records of all streams since the start, from 1 */
    const char *reason; /* label of update_records_rejected_total; static */
    char text[120];
};
enum { HPS_REJECTED_VIEWS_MAX = 64 };

/* For how long (ms) a partition may have had updates that are not applied; -1: not known. Any
 * thread. */
int64_t hps_partition_lag_ms(const struct hps_partition_view *view);

struct hps_stream_view {
    const char *model, *lineage;
    int64_t version;
    bool active;
    bool frozen;
    bool listed;                            /* the log has listed its topics */
    bool connected;                         /* a server of the log responds */
    char connection_error[200];             /* why not; "": it is connected */
    bool leaders_up;                        /* the responses of all leaders are young */
    bool shared;                            /* a tier is shared with other daemons */
    bool shared_behind;                     /* shards of this tier lag: lookups do not read them */
    bool shared_apart;                      /* the version skipped records: it bypasses this tier */
    char held[200];                         /* why a batch cannot be applied; "": no batch waits */
    uint64_t sequence;                      /* batches applied */
    uint64_t n_records, n_rejected, n_keys; /* since the version was added */
    int64_t event_time_ms;                  /* newest applied; 0: none */
    double records_per_s, keys_per_s;       /* applied, over the last seconds */
    int64_t as_of_ms; /* the oldest of all partitions; 0: not known, or no partition */
    const struct hps_partition_view *partitions; /* by topic and number */
    uint32_t n_partitions;
    const struct hps_rejected_view *rejected; /* the newest ones, oldest first */
    uint32_t n_rejected_views;
    uint64_t n_rejected_numbers; /* the last hps_rejected_view.number of any stream */
    uint64_t instance;           /* a random number of this start of the daemon */
    uint32_t key_bytes;          /* of HCTR records */
};

#endif
