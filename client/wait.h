/* SPDX-License-Identifier: Apache-2.0
 *
 * WaitForUpdates for tools: makes one call and returns its outcome as a status.
 */
#ifndef HPS_CLIENT_WAIT_H
#define HPS_CLIENT_WAIT_H

#include "client/client.h"
#include "hps/v1/lookup.pb-c.h"

/* Waits until the updates of `request` are visible to lookups, at most timeout_us (0: the server's
 * limit of one hour). Sets request->max_wait_ms. The wait ends early when `stop` (may be NULL)
 * returns true.
 *
 * error   DEADLINE: the updates are not visible in time; PRECONDITION: they will not become
 *         visible, or the model or version does not exist; CANCELLED: `stop` returned true; and the
 *         other errors of hps_client_call
 * owner   *out_reply: the caller, hps_message_free. It is set with every status; NULL if the server
 *         sent no reply
 */
hps_status hps_client_wait(struct hps_client *client, Hps__V1__WaitForUpdatesRequest *request,
                           uint64_t timeout_us, bool (*stop)(void),
                           Hps__V1__WaitForUpdatesResponse **out_reply, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
