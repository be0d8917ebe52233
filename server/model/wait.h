/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides for WaitForUpdates whether updates are visible to lookups, by comparing the request with
 * views of the version's stream. For the goals NOW and RECORDS, visibility must be proved after the
 * start of the wait. Plain data, used by one thread at a time.
 */
#ifndef HPS_SERVER_MODEL_WAIT_H
#define HPS_SERVER_MODEL_WAIT_H

#include "hps/v1/lookup.pb-c.h"
#include "server/update/updates.h"

struct hps_wait {
    const Hps__V1__WaitForUpdatesRequest *request; /* borrowed; valid by hps_wait_check */
    /* Unix ms: start of the wait. Proofs must not be older. NOW covers the records logged before
     * it. */
    int64_t begin_ms;
    bool begun;           /* a view was examined */
    bool unlisted;        /* more records were rejected since the mark than a view lists */
    uint64_t number_seen; /* rejected records up to this number were examined */
    size_t n_visible;     /* the first n_visible of request->records are visible */
    char rejected[400];   /* goal NOW: text of the newest rejected record; "": none */

    /* The reply, as of the last view. */
    Hps__V1__WaitOutcome outcome; /* NOT_YET: still waiting */
    struct hps_error why;         /* only its text is used */
    char topic[249];              /* "": none */
    int32_t partition;
    int64_t offset; /* -1: none */
    Hps__V1__UpdateMark mark;
    uint32_t key_bytes;
};

/* Starts a wait now. */
void hps_wait_init(struct hps_wait *wait, const Hps__V1__WaitForUpdatesRequest *request);
/* Checks a request, except whether the version has its tables.
 *
 * error   INVALID: the text names the field */
hps_status hps_wait_check(const Hps__V1__WaitForUpdatesRequest *request, struct hps_error *err)
    HPS_MUST_CHECK;
/* Updates the reply from a view. refreshed: since the wait began, Kafka was queried for topics and
 * the leaders for the ends of partitions. DONE: the reply is final. REFRESH: another such query
 * would help. */
enum hps_update_look hps_wait_look(struct hps_wait *wait, const struct hps_stream_view *view,
                                   bool refreshed);
/* Sets the reply: the version takes no more updates. */
void hps_wait_end(struct hps_wait *wait, int64_t version);
/* Sets the reply: the version has no such table, so no record of the topic becomes visible. */
void hps_wait_no_table(struct hps_wait *wait, int64_t version, const char *topic,
                       const char *table);

#endif
