/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether updates are visible to look-ups, by what a server says of them (Admin's GetUpdates): the
 * one judge, of hpsctl wait-for and of hps-publish --wait. A wait belongs to one thread at a time.
 *
 * What may be waited for:
 *
 *   now        all that was logged before the first look: each version has proved that it is
 *              applied, by answers of the leaders of all its partitions (as_of_unix_ms)
 *   records    offsets of partitions: read, applied, and in the topic as its leader has it now
 *
 * Nothing counts as visible that the server does not say is: a record that was refused or passed
 * over, a version that is frozen, a partition that is stopped and a model without topics do not end
 * by waiting, and are reported at once; whatever else is missing is waited for.
 */
#ifndef HPS_CLIENT_UPDATE_WAIT_H
#define HPS_CLIENT_UPDATE_WAIT_H

#include "client/client.h"
#include "hps/v1/admin.pb-c.h"

struct hps_update_range {
    int64_t first, last; /* offsets, both of them within */
};

/* Records of one partition that are waited for. */
struct hps_update_records {
    const char *topic;
    int32_t partition;
    const struct hps_update_range *ranges; /* [n_ranges], in order of offset; at least one */
    size_t n_ranges;
};

/* Borrowed for the life of the wait. */
struct hps_update_goal {
    const char *model;                        /* "": every one; not with records */
    int64_t version;                          /* 0: the active ones */
    const struct hps_update_records *records; /* [n_records]; NULL: all that is logged now */
    size_t n_records;
    bool named; /* the records name the version, which takes them even when it is frozen */
    /* Of now: records that were refused since then, or while it is waited for, are no success. */
    uint64_t refused_us;  /* before the first look */
    bool refused_allowed; /* ... they are */
};

enum hps_update_verdict {
    HPS_UPDATE_VISIBLE,
    HPS_UPDATE_WAITING, /* it may become so */
    HPS_UPDATE_NEVER    /* waiting does not help */
};

struct hps_update_wait;

/* NULL: no memory. */
struct hps_update_wait *hps_update_wait_new(const struct hps_update_goal *goal);
void hps_update_wait_free(struct hps_update_wait *wait); /* NULL is legal */

/* What the server said before the records were written: so a restart, and more refused records than
 * it lists, are seen. */
void hps_update_wait_before(struct hps_update_wait *wait,
                            const Hps__V1__GetUpdatesResponse *before);
/* Judge by what one server says now; every look of a wait at the same server.
 *
 * refreshed  the reply is to a question with `refresh`
 * err        unless VISIBLE: the reason, `<subject> <state>: <cause>; <what to do>`
 */
enum hps_update_verdict hps_update_wait_look(struct hps_update_wait *wait,
                                             const Hps__V1__GetUpdatesResponse *now, bool refreshed,
                                             struct hps_error *err);
/* Ask the server until it is visible. `stop` (may be NULL) ends it with CANCELLED once it is true.
 *
 * unit    timeout_us from now
 * error   DEADLINE: not visible within that time, with what is missing; PRECONDITION: it does not
 *         become so; CANCELLED; as hps_client_call
 */
hps_status hps_update_wait_run(struct hps_update_wait *wait, struct hps_client *client,
                               uint64_t timeout_us, bool (*stop)(void), struct hps_error *err)
    HPS_MUST_CHECK;
/* Of now, where it is allowed: how many records were refused ("" in out_text: none), and of them
 * the newest, for a person. */
const char *hps_update_wait_refused(const struct hps_update_wait *wait);

/* Could records on `topic` become visible in the versions of the goal, if they were written now?
 * `reply`: to a question with `refresh`. topic NULL: any.
 *
 * error   NOT_FOUND: there is no such version; PRECONDITION: frozen, or partitions of the topic
 *         are stopped; UNAVAILABLE: the server does not read such a topic, as yet
 */
hps_status hps_update_check(const Hps__V1__GetUpdatesResponse *reply,
                            const struct hps_update_goal *goal, const char *topic,
                            struct hps_error *err) HPS_MUST_CHECK;

/* One GetUpdates. owner: *out_reply is the caller's: hps_message_free of its base */
hps_status hps_update_ask(struct hps_client *client, const char *model, int64_t version,
                          bool refresh, uint64_t timeout_us,
                          Hps__V1__GetUpdatesResponse **out_reply, struct hps_error *err)
    HPS_MUST_CHECK;
/* A version that is frozen, and the way on, as a sentence in err. */
hps_status hps_update_say_frozen(const Hps__V1__VersionUpdates *version, struct hps_error *err);

#endif
