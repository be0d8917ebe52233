/* SPDX-License-Identifier: Apache-2.0
 *
 * WaitForUpdates, for tools: one call, and what its answer means for an exit code.
 */
#ifndef HPS_CLIENT_WAIT_H
#define HPS_CLIENT_WAIT_H

#include "client/client.h"
#include "hps/v1/lookup.pb-c.h"

/* Ask, and wait for at most timeout_us (0: the server's hour). `stop` (may be NULL) ends it once it
 * is true. request->max_wait_ms is set here.
 *
 * error   DEADLINE: not visible in time; PRECONDITION: it does not become so, or there is no such
 *         model or version; CANCELLED: stopped; else as hps_client_call
 * owner   *out_reply: the caller, hps_message_free; set also with DEADLINE and PRECONDITION, then
 *         NULL if the server gave no answer
 */
hps_status hps_client_wait(struct hps_client *client, Hps__V1__WaitForUpdatesRequest *request,
                           uint64_t timeout_us, bool (*stop)(void),
                           Hps__V1__WaitForUpdatesResponse **out_reply, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
