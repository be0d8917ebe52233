/* SPDX-License-Identifier: Apache-2.0
 *
 * WaitForUpdates for tools: one call, and its outcome as a status.
 */
#ifndef HPS_CLIENT_WAIT_H
#define HPS_CLIENT_WAIT_H

#include "client/client.h"
#include "hps/v1/lookup.pb-c.h"

/* Waits at most timeout_us (0: the server's limit of one hour). Ends when `stop` (may be NULL)
 * returns true. Sets request->max_wait_ms.
 *
 * error   DEADLINE: not visible in time; PRECONDITION: it will not become visible, or there is no
 *         such model or version; CANCELLED: stopped; else as hps_client_call
 * owner   *out_reply: the caller, hps_message_free; set with every status, NULL if the server sent
 *         no reply
 */
hps_status hps_client_wait(struct hps_client *client, Hps__V1__WaitForUpdatesRequest *request,
                           uint64_t timeout_us, bool (*stop)(void),
                           Hps__V1__WaitForUpdatesResponse **out_reply, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
