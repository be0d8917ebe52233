/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides for WaitForUpdates whether updates are visible to lookups. It compares the request with
 * views of the version's update stream (struct hps_stream_view). A view has the last known state of
 * the partitions in Kafka. For the goals NOW and RECORDS, this state counts only if it was read
 * from Kafka after the wait began. struct hps_wait has no locks: one thread at a time.
 */
#ifndef HPS_SERVER_MODEL_WAIT_H
#define HPS_SERVER_MODEL_WAIT_H

#include "hps/v1/lookup.pb-c.h"
#include "server/update/updates.h"

struct hps_wait {
    const Hps__V1__WaitForUpdatesRequest *request; /* borrowed; hps_wait_check returned OK for it */
    /* Start of the wait, hps_clock_forward_ms. The goal NOW waits for the records that were logged
     * before this time. */
    int64_t begin_ms;
    bool begun; /* at least one view was examined */
    /* Records of this wait may have been rejected unnoticed: a view lists only the newest rejected
     * records, and some older ones were in no view. */
    bool unlisted;
    /* Rejected records with a number (hps_rejected_view.number) up to this one were examined. */
    uint64_t number_seen;
    size_t n_visible;   /* the first n_visible of request->records are visible */
    char rejected[400]; /* text about the newest rejected record of this wait; "": none */

    /* The reply, as of the last view. */
    Hps__V1__WaitOutcome outcome; /* NOT_YET: still waiting */
    struct hps_error why;         /* only its text is used: the reason of `outcome` */
    char topic[249];              /* the topic that the outcome is about; "": none */
    int32_t partition;            /* the partition that the outcome is about; -1: none */
    int64_t offset;               /* offset of the record that the outcome is about; -1: none */
    Hps__V1__UpdateMark mark;
    uint32_t key_bytes; /* bytes of a key in HCTR records */
};

/* Starts a wait at the present time. */
void hps_wait_init(struct hps_wait *wait, const Hps__V1__WaitForUpdatesRequest *request);
/* Checks a request. Does not check whether the version has the tables that the request's topics
 * name.
 *
 * error   INVALID: the text names the field */
hps_status hps_wait_check(const Hps__V1__WaitForUpdatesRequest *request, struct hps_error *err)
    HPS_MUST_CHECK;
/* Updates the reply from a view. refreshed: true if, since the wait began, Kafka has sent the list
 * of topics, and the leaders have sent the ends of their partitions. Returns DONE if the reply is
 * final, REFRESH if the wait needs a newer list of topics or newer ends from Kafka, else WAIT. */
enum hps_update_check hps_wait_look(struct hps_wait *wait, const struct hps_stream_view *view,
                                    bool refreshed);
/* Sets the reply of a wait that ends because the version takes no more updates. */
void hps_wait_end(struct hps_wait *wait, int64_t version);
/* Sets the reply of a wait that ends because the version lacks the table of the topic, so that no
 * record of the topic can become visible. */
void hps_wait_no_table(struct hps_wait *wait, int64_t version, const char *topic,
                       const char *table);

#endif
