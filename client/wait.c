/* SPDX-License-Identifier: Apache-2.0
 *
 * One WaitForUpdates call. Runs on the calling thread.
 */
#include "client/wait.h"

#include "client/message.h"

#define GRACE_US (UINT64_C(5) * 1000 * 1000) /* for the reply, which names missing updates */

static hps_status take(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    if (*(ProtobufCMessage **)ctx != NULL) {
        return hps_error_set(err, HPS_INTERNAL, "the server sent two replies to one call");
    }
    return hps_message_decode(&hps__v1__wait_for_updates_response__descriptor, data, size, ctx,
                              err);
}

hps_status hps_client_wait(struct hps_client *client, Hps__V1__WaitForUpdatesRequest *request,
                           uint64_t timeout_us, bool (*stop)(void),
                           Hps__V1__WaitForUpdatesResponse **out_reply, struct hps_error *err)
{
    ProtobufCMessage *message = NULL;
    struct hps_buf buf;
    uint64_t wait_ms = (timeout_us + 999) / 1000;
    request->max_wait_ms = wait_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)wait_ms;
    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_status status = hps_message_encode(&request->base, &buf, err);
    if (status == HPS_OK) { /* called as a stream of one message, so that it can be stopped */
        status = hps_client_stream(client, "/hps.v1.ParameterServer/WaitForUpdates", buf.data,
                                   buf.size, timeout_us != 0 ? timeout_us + GRACE_US : 0, take,
                                   &message, stop, err);
    }
    hps_buf_fini(&buf);
    if (status == HPS_OK && (message == NULL || hps_message_plain(message) != HPS_OK)) {
        status = hps_error_set(err, HPS_INTERNAL, "the server sent a reply that cannot be decoded");
    }
    if (status == HPS_NOT_FOUND) {
        err->status = status = HPS_PRECONDITION;
    }
    *out_reply = (Hps__V1__WaitForUpdatesResponse *)(void *)message;
    if (status != HPS_OK || (*out_reply)->outcome == HPS__V1__WAIT_OUTCOME__WAIT_OUTCOME_VISIBLE) {
        return status;
    }
    bool late = (*out_reply)->outcome == HPS__V1__WAIT_OUTCOME__WAIT_OUTCOME_NOT_YET;
    return hps_error_set(err, late ? HPS_DEADLINE : HPS_PRECONDITION, "%s%s",
                         late ? "not visible in time: " : "", (*out_reply)->text);
}
