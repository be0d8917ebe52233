/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas of an identity over all its connections, from the rules of the role file
 * (server/access/access.h): lookups per second, and bytes of replies in flight. A lookup beyond a
 * quota is rejected at once, with a hint when to retry. On the loop thread of the connection.
 */
#include <inttypes.h>

#include "server/access/access.h"
#include "server/access/account.h"
#include "server/lookup/internal.h"

bool request_take_turn(struct request *request)
{
    uint64_t retry_us;
    struct hps_error err;

    HPS_ASSERT(request->phase == PHASE_LOOP);
    if (hps_access_take_call(request->call.grpc, HPS_ROLE_LOOKUP, &retry_us, &err) == HPS_OK) {
        return true;
    }
    request_reject_for(request, HPS_REJECT_REQUESTS_PER_S, retry_us, &err);
    return false;
}

bool request_charge_quota(struct request *request, uint64_t bytes)
{
    const struct hps_access_grant *grant = hps_access_grant_of(request->call.grpc);
    uint64_t bytes_max = grant != NULL ? hps_access_grant_reply_bytes(grant) : 0;
    struct hps_error err;

    HPS_ASSERT(request->phase == PHASE_LOOP && request->room.account == NULL);
    if (bytes_max == 0) {
        return true;
    }
    struct hps_account *account = hps_access_grant_account(grant);
    if (hps_account_charge(account, bytes_max, bytes)) {
        request->room.account = account;
        request->room.account_bytes = bytes;
        return true;
    }
    hps_error_set(&err, HPS_EXHAUSTED,
                  "lookup rejected: with the replies in flight, a reply of %" PRIu64
                  " bytes exceeds the %" PRIu64
                  " bytes that %s may have (reply_bytes of its rule); retry later",
                  bytes, bytes_max, hps_access_grant_who(grant));
    request_reject(request, HPS_REJECT_REPLY_QUOTA, &err);
    return false;
}

void request_discharge_quota(struct request *request)
{
    struct request_room *room = &request->room;

    if (room->account != NULL) {
        hps_account_discharge(room->account, room->account_bytes);
        room->account = NULL;
    }
}
