/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting until look-ups see what was published, on every server that was named. One thread.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/heap.h"
#include "client/message.h"
#include "hps/v1/admin.pb-c.h"
#include "tools/hps-publish.h"

enum {
    CALL_US = 10 * 1000 * 1000,
    PAUSE_NS = 20 * 1000 * 1000,
    REFRESH_US = 1000 * 1000 /* how often servers are told to look for new topics */
};

struct publish_servers {
    size_t n;
    struct hps_client *clients[PUBLISH_SERVERS_MAX];
    const char *addresses[PUBLISH_SERVERS_MAX];
};

hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                struct publish_servers **out_servers, struct hps_error *err)
{
    struct publish_servers *servers = hps_calloc(1, sizeof(*servers));

    if (servers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    for (; servers->n < n; servers->n++) {
        struct hps_client_options one = *options;
        one.address = addresses[servers->n];
        hps_status status = hps_client_open(&one, &servers->clients[servers->n], err);
        if (status != HPS_OK) {
            publish_servers_close(servers);
            return hps_error_prefix(err, status, "--wait");
        }
        servers->addresses[servers->n] = one.address;
    }
    *out_servers = servers;
    return HPS_OK;
}

void publish_servers_close(struct publish_servers *servers)
{
    if (servers != NULL) {
        for (size_t i = 0; i < servers->n; i++) {
            hps_client_close(servers->clients[i]);
        }
        hps_free(servers);
    }
}

/* ---- one look -------------------------------------------------------------------------------- */

enum outcome { VISIBLE, BEHIND, UNREAD };

/* What this server has of one position. INVALID: it stands still. */
static hps_status look(const Hps__V1__GetUpdatesResponse *now, const struct publish_wait *wait,
                       const struct publish_position *position, enum outcome *out,
                       struct hps_error *err)
{
    *out = UNREAD;
    for (size_t v = 0; v < now->n_versions; v++) {
        const Hps__V1__VersionUpdates *version = now->versions[v];
        if (wait->version != 0 ? version->version != wait->version : !version->active) {
            continue;
        }
        for (size_t i = 0; i < version->n_partitions; i++) {
            const Hps__V1__PartitionUpdates *at = version->partitions[i];
            if (at->partition != (int32_t)position->partition ||
                strcmp(at->topic, position->topic) != 0) {
                continue;
            }
            *out = at->offset > position->offset ? VISIBLE : BEHIND;
            if (*out == BEHIND &&
                (strcmp(at->state, "gap") == 0 || strcmp(at->state, "gone") == 0 ||
                 strcmp(at->state, "failed") == 0)) {
                return hps_error_set(
                    err, HPS_PRECONDITION,
                    "partition %u of %s stands still in version %" PRId64 " (%s): %s",
                    position->partition, position->topic, version->version, at->state, at->reason);
            }
        }
    }
    return HPS_OK;
}

static hps_status ask(struct hps_client *client, const struct publish_wait *wait, bool refresh,
                      Hps__V1__GetUpdatesResponse **out_reply, struct hps_error *err)
{
    Hps__V1__GetUpdatesRequest request = HPS__V1__GET_UPDATES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;

    request.model = (char *)(uintptr_t)wait->model; /* it is only read */
    request.version = wait->version;
    request.refresh = refresh;
    hps_status status =
        hps_client_call_message(client, "/hps.v1.Admin/GetUpdates", &request.base,
                                &hps__v1__get_updates_response__descriptor, CALL_US, &reply, err);
    if (status == HPS_OK) {
        *out_reply = (Hps__V1__GetUpdatesResponse *)(void *)reply;
    }
    return status;
}

/* Drop the positions that are visible from the front of what is left. */
static hps_status advance(struct hps_client *client, const struct publish_wait *wait, bool refresh,
                          size_t *at, enum outcome *out, struct hps_error *err)
{
    Hps__V1__GetUpdatesResponse *now = NULL;

    hps_status status = ask(client, wait, refresh, &now, err);
    if (status != HPS_OK) {
        return status;
    }
    *out = VISIBLE;
    while (status == HPS_OK && *out == VISIBLE && *at < wait->n_positions) {
        status = look(now, wait, &wait->positions[*at], out, err);
        *at += status == HPS_OK && *out == VISIBLE;
    }
    hps_message_free(&now->base);
    return status;
}

static hps_status wait_one(struct hps_client *client, const char *address,
                           const struct publish_wait *wait, uint64_t end_us, struct hps_error *err)
{
    const struct timespec pause = {0, PAUSE_NS};
    uint64_t refresh_us = 0;
    size_t at = 0;

    while (at < wait->n_positions) {
        enum outcome outcome;
        bool refresh = hps_clock_us() >= refresh_us;
        if (refresh) {
            refresh_us = hps_clock_us() + REFRESH_US;
        }
        hps_status status = advance(client, wait, refresh, &at, &outcome, err);
        if (status != HPS_OK) {
            return hps_error_prefix(err, status, "%s", address);
        }
        if (at == wait->n_positions) {
            break;
        }
        if (publish_interrupted()) {
            return hps_error_set(err, HPS_CANCELLED, "interrupted: published, not waited for");
        }
        if (hps_clock_us() >= end_us) {
            const struct publish_position *left = &wait->positions[at];
            return hps_error_set(
                err, HPS_DEADLINE, "%s: %s:%u:%" PRId64 " is not visible within %.1f s%s", address,
                left->topic, left->partition, left->offset, (double)wait->timeout_us / 1e6,
                outcome == UNREAD ? ": no such version reads this partition" : "");
        }
        (void)nanosleep(&pause, NULL);
    }
    return HPS_OK;
}

hps_status publish_wait(struct publish_servers *servers, const struct publish_wait *wait,
                        struct hps_error *err)
{
    uint64_t end_us = hps_clock_us() + wait->timeout_us;

    for (size_t i = 0; i < servers->n; i++) {
        hps_status status = wait_one(servers->clients[i], servers->addresses[i], wait, end_us, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}
