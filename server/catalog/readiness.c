/* SPDX-License-Identifier: Apache-2.0
 *
 * State, reasons, health service and gauge change together under one lock. The main thread then
 * updates the log and the service manager's status.
 */
#include "server/catalog/readiness.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/text.h"
#include "server/observe/notify.h"

enum { REASONS_BYTES_MAX = 1 << 20, LINE_BYTES = HPS_MODEL_WHY_BYTES + 32 };

struct hps_readiness {
    struct hps_readiness_parts parts;
    struct hps_lock lock; /* protects the next two, which only the main thread changes */
    bool ready;
    struct hps_buf reasons; /* each terminated by NUL */
    /* main thread only: */
    struct hps_buf found; /* by the current refresh */
    bool draining;
    bool has_been; /* was ready before */
    bool logged;   /* the log has a state: the next field */
    bool logged_ready;
    char line[LINE_BYTES]; /* current status at the service manager */
};

struct hps_readiness *hps_readiness_new(const struct hps_readiness_parts *parts)
{
    struct hps_readiness *readiness = hps_calloc(1, sizeof(*readiness));
    if (readiness == NULL) {
        return NULL;
    }
    readiness->parts = *parts;
    hps_lock_init(&readiness->lock, HPS_LOCK_READINESS);
    hps_buf_init(&readiness->reasons, REASONS_BYTES_MAX);
    hps_buf_init(&readiness->found, REASONS_BYTES_MAX);
    hps_metric_set(parts->ready, 0);
    if (hps_buf_append(&readiness->reasons, "starting", sizeof("starting")) != HPS_OK) {
        hps_readiness_free(readiness);
        return NULL;
    }
    return readiness;
}

void hps_readiness_free(struct hps_readiness *readiness)
{
    if (readiness == NULL) {
        return;
    }
    hps_buf_fini(&readiness->reasons);
    hps_buf_fini(&readiness->found);
    hps_lock_fini(&readiness->lock);
    hps_free(readiness);
}

static void add_reason(void *ctx, const char *reason)
{
    char shown[LINE_BYTES]; /* shown by probes and the service manager, one in a line */
    size_t size = hps_text_plain(reason, strlen(reason), shown, sizeof(shown));
    hps_ignore(hps_buf_append(ctx, shown, size + 1)); /* a shorter list is still correct */
}

/* Changes everything that other threads read, under one lock. */
static void change(struct hps_readiness *readiness, bool ready)
{
    hps_lock_acquire(&readiness->lock);
    const struct hps_buf before = readiness->reasons;
    readiness->reasons = readiness->found;
    readiness->found = before;
    readiness->ready = ready;
    hps_metric_set(readiness->parts.ready, ready ? 1 : 0);
    hps_health_service_set(readiness->parts.health, ready);
    hps_lock_release(&readiness->lock);
}

static const char *first_reason(const struct hps_readiness *readiness)
{
    const struct hps_buf *reasons = &readiness->reasons;
    return reasons->size > 0 ? (const char *)reasons->data : "no memory for the reasons";
}

/* The service manager shows one line: the first reason. */
static void tell_line(struct hps_readiness *readiness, bool ready)
{
    char line[LINE_BYTES];
    if (ready) {
        snprintf(line, sizeof(line), "ready");
    } else {
        snprintf(line, sizeof(line), "%s%s",
                 readiness->draining ? "" : "not ready: ", first_reason(readiness));
    }
    if (strcmp(line, readiness->line) != 0) {
        memcpy(readiness->line, line, sizeof(line));
        hps_notify_status(line);
    }
}

static void tell_log(struct hps_readiness *readiness, bool ready)
{
    if (readiness->logged && ready == readiness->logged_ready) {
        return; /* the progress of a load is not logged */
    }
    if (ready) {
        HPS_LOG(INFO, "daemon", "ready");
    } else if (!readiness->draining) { /* a drain has its own message */
        HPS_LOG(INFO, "daemon", "not ready", HPS_STR("reason", first_reason(readiness)));
    }
    readiness->logged = true;
    readiness->logged_ready = ready;
}

void hps_readiness_refresh(struct hps_readiness *readiness)
{
    hps_buf_clear(&readiness->found);
    if (readiness->draining) {
        add_reason(&readiness->found, "draining");
    }
    bool ready = hps_catalog_ready(readiness->parts.catalog, add_reason, &readiness->found) &&
                 !readiness->draining;
    change(readiness, ready);
    tell_line(readiness, ready);
    tell_log(readiness, ready);
    if (ready && !readiness->has_been) {
        readiness->has_been = true;
        readiness->parts.first(readiness->parts.ctx);
    }
}

void hps_readiness_drain(struct hps_readiness *readiness)
{
    readiness->draining = true;
    hps_readiness_refresh(readiness);
}

bool hps_readiness_get(struct hps_readiness *readiness, void (*fn)(void *ctx, const char *reason),
                       void *ctx)
{
    hps_lock_acquire(&readiness->lock);
    bool ready = readiness->ready;
    const char *text = (const char *)readiness->reasons.data;
    for (size_t at = 0; fn != NULL && !ready && at < readiness->reasons.size;
         at += strlen(text + at) + 1) {
        fn(ctx, text + at);
    }
    hps_lock_release(&readiness->lock);
    return ready;
}
