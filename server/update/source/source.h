/* SPDX-License-Identifier: Apache-2.0
 *
 * The log as a stream's source: the consumer, lists of topics, responses of leaders, and proofs
 * that topics are still the ones that were read. Thread `update`.
 */
#ifndef HPS_SERVER_UPDATE_SOURCE_SOURCE_H
#define HPS_SERVER_UPDATE_SOURCE_SOURCE_H

#include "server/update/partition/steps.h"

enum {
    UPDATE_LOG_TIMEOUT_MS = 3000, /* of a request to the log */
    UPDATE_LEADER_SILENT_US = 2000000
};

/* The connection of the consumer to the log. */
struct update_link {
    bool answers;       /* a list was answered since the log was lost. False without a consumer */
    bool outage_logged; /* an outage was logged, and its end was not logged yet */
    uint64_t heard_us;  /* when the newest list was taken, or the consumer was opened */
    char text[200];     /* the last error of the log; "": none */
};

struct update_topics {
    bool listed;              /* a list has arrived */
    bool started;             /* the log has an info that topics of the model are listed */
    bool fresh;               /* no position was stored when the version was added */
    int64_t listed_ms;        /* when the newest list that was taken was requested
                                 (hps_clock_forward_ms); 0: not known */
    uint64_t listed_us;       /* the same by hps_clock_us */
    int64_t start_ms;         /* the files may lack updates from this time; 0: not known */
    uint64_t retry_due_us;    /* after a lack of memory: no list is taken before */
    uint64_t identify_due_us; /* when topics are identified next, even without a new list */
};

/* Whether lists of topics are answered. */
static inline bool update_is_connected(const struct hps_update_stream *stream)
{
    return stream->link->answers && !stream->link->outage_logged;
}

/* ---- link.c ---------------------------------------------------------------------------------- */

/* Open the consumer, which the stream owns. False: the consumer cannot be opened now. The error is
 * logged. */
bool update_link_open(struct hps_update_stream *stream);
/* Close the consumer. No effect if it is closed. */
void update_link_close(struct hps_update_stream *stream);
/* The log became unreachable: stop reading. text: the error. */
void update_link_down(struct hps_update_stream *stream, const char *text);
/* Set `err` to the last error of the log. Returns UNAVAILABLE. */
hps_status update_unreachable(const struct hps_update_stream *stream, struct hps_error *err);

/* ---- topics.c -------------------------------------------------------------------------------- */

/* Take the newest list of topics: add new partitions, and identify topics. since_us: if the newest
 * list was requested before, another one is requested. A lack of lists is logged. */
void update_take_topics(struct hps_update_stream *stream, uint64_t since_us);

/* ---- identity.c ------------------------------------------------------------------------------ */

/* Topics were listed: compare ids. due: also require proofs. */
void update_identify(struct hps_update_stream *stream, bool due);

/* Take recalled records, and request records that are due. */
void update_identity_turn(struct hps_update_stream *stream);

/* Whether the topic counts as the one that was read. */
bool update_is_same(const struct update_partition *partition);
/* Whether the topic was proved to be the same at since_ms or later, or needs no proof. */
bool update_is_proved_since(const struct update_partition *partition, int64_t since_ms);
/* Until when (Unix ms) the topic counts as the one that was read. INT64_MAX: no record was read
 * yet, or the topic is not checked since the partition has a gap or failed. */
int64_t update_same_until_ms(const struct update_partition *partition);

/* ---- proof.c --------------------------------------------------------------------------------- */

/* Take the responses of leaders, and recalled records. */
void update_take_responses(struct hps_update_stream *stream);
/* Advance as-of of partitions that were read up to an end that their leader named. After a poll and
 * update_take_responses, before the batch is applied. */
void update_prove(struct hps_update_stream *stream);

/* The consumer is closed: forget its watches and their responses. */
void update_forget_responses(struct hps_update_stream *stream);
/* Whether the last response of the partition's leader is too old. */
bool update_leader_silent(const struct update_partition *partition);

#endif
