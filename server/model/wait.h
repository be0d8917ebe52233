/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether updates are visible to look-ups: the judge of WaitForUpdates, which compares what is
 * waited for with views of the version's stream. Nothing counts as visible that was not proved
 * since the wait began. Plain data; by one thread at a time.
 */
#ifndef HPS_SERVER_MODEL_WAIT_H
#define HPS_SERVER_MODEL_WAIT_H

#include "hps/v1/lookup.pb-c.h"
#include "server/update/updates.h"

struct hps_wait {
    const Hps__V1__WaitForUpdatesRequest *request; /* borrowed; checked */
    int64_t begin_ms; /* Unix ms: what counts as proof is later; of NOW, what is logged before */
    bool begun;       /* there was a view */
    bool unlisted;    /* since the mark more were rejected than are listed */
    uint64_t number_seen; /* of records that were rejected: those up to it were looked at */
    size_t n_visible;     /* of request->records, from the first */
    char rejected[400];   /* of NOW: the newest that was rejected, "": none was */

    /* The answer, as of the last view. */
    Hps__V1__WaitOutcome outcome; /* NOT_YET: there is none yet */
    struct hps_error why;         /* its text; the status is of no matter */
    char topic[249];              /* "": none */
    int32_t partition;
    int64_t offset; /* -1: none */
    Hps__V1__UpdateMark mark;
    uint32_t key_bytes;
};

/* Begins now. */
void hps_wait_init(struct hps_wait *wait, const Hps__V1__WaitForUpdatesRequest *request);
/* Is the request one that can be judged? Which tables there are is not looked at.
 *
 * error   INVALID names the field
 */
hps_status hps_wait_check(const Hps__V1__WaitForUpdatesRequest *request, struct hps_error *err)
    HPS_MUST_CHECK;
/* Judge by a view. refreshed: since the wait began the log was asked for topics, and the leaders
 * for ends. DONE: there is an answer. */
enum hps_update_look hps_wait_look(struct hps_wait *wait, const struct hps_stream_view *view,
                                   bool refreshed);
/* The version takes no more updates. */
void hps_wait_end(struct hps_wait *wait, int64_t version);
/* The version has no such table: nothing of the topic becomes visible. */
void hps_wait_no_table(struct hps_wait *wait, int64_t version, const char *topic,
                       const char *table);

#endif
