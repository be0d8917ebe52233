/* SPDX-License-Identifier: Apache-2.0
 *
 * The quota of lookups per second of an identity, over all its connections, from the rules of the
 * role file (server/access/access.h). A lookup beyond it is rejected at once, with a hint when to
 * retry. On the loop thread of the connection.
 */
#include <inttypes.h>

#include "server/access/access.h"
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
