/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit log of the operator's calls: who did what, and the result. Each event is a line with
 * component=audit in the log, and one in the file server.audit_log, if configured.
 */
#ifndef HPS_SERVER_OBSERVE_AUDIT_H
#define HPS_SERVER_OBSERVE_AUDIT_H

#include "base/log.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/status.h"

struct hps_audit;

/* One event. Text is borrowed for the call; NULL means "". */
struct hps_audit_event {
    const char *method; /* "LoadModel", "GET /metrics", "reload" */
    const char *who;    /* the identity that was checked, "cert:NAME"; "": none */
    const char *peer;   /* address of the caller */
    const char *model;  /* the model concerned */
    int64_t version;
    int code; /* gRPC status; 0: success */
    const char *error;
    /* Authentication or authorization rejected it. If false, a nonzero `code` means that the call
     * failed. */
    bool refused;
    bool logged; /* the log has a line of another component: write to the file only */
    const struct hps_log_field *request; /* fields of the request, up to HPS_LOG_END; NULL: none */
};

/* Open the file at `path` for appending. It is created if missing, readable by its owner only. With
 * an empty `path` *out_fd is -1.
 * error   INVALID: not a regular file; NOT_FOUND, PERMISSION, IO: the text names the file */
hps_status hps_audit_open(const char *path, int *out_fd, struct hps_error *err) HPS_MUST_CHECK;

/* Write to the open file `fd` (-1: no file). takes `fd`, also on failure. `lost`, borrowed until
 * the free, counts lines that could not be written. NULL: out of memory. */
struct hps_audit *hps_audit_new(int fd, struct hps_metric *lost);
/* Set the pool that writes the lines of hps_audit_refused, because their threads must not wait for
 * a disk. NULL: these lines are lost. Call it before other threads start, or after they have ended.
 */
void hps_audit_pool_set(struct hps_audit *audit, struct hps_pool *pool);
/* Write to the open file `fd` from now on, after a rotation or a change of its name. takes `fd`;
 * -1: no effect. One thread at a time; other threads may write at the same time. */
void hps_audit_reopened(struct hps_audit *audit, int fd);
void hps_audit_free(struct hps_audit *audit); /* no effect if NULL; no line may be in progress */

/* Write a line now, at every log level and without a rate limit. May wait for the disk of the file.
 * Any thread except loops. */
void hps_audit_write(struct hps_audit *audit, const struct hps_audit_event *event);
/* As hps_audit_write, for events that any client can cause. It does not wait, and writes at most 10
 * lines a second. The next line has the number of omitted lines in `suppressed`. Any thread. */
void hps_audit_refused(struct hps_audit *audit, const struct hps_audit_event *event);

#endif
