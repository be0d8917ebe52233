/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit log of administrative calls that change something or return confidential data: each
 * call with its identity, request and result. All other calls are in the audit log only if the
 * access rules reject them. Each event is a line with component=audit in hpsd's log. If
 * server.audit_log names a file, the event is also a line in that file.
 */
#ifndef HPS_SERVER_OBSERVE_AUDIT_H
#define HPS_SERVER_OBSERVE_AUDIT_H

#include "base/log.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/status.h"

struct hps_audit;

/* One event. Texts are borrowed for the call. NULL means "", except for `method`. */
struct hps_audit_event {
    const char *method; /* such as "LoadModel", "GET /metrics", "reload" */
    const char *who;    /* authenticated identity, such as "cert:NAME"; "": none */
    const char *peer;   /* address of the caller */
    const char *model;  /* the model that the call is about; "": none */
    int64_t version;    /* the version that the call is about; 0: none */
    int code;           /* gRPC status; 0: success */
    const char *error;  /* text of the error; "" on success */
    /* The call was rejected before its work, for example by authentication or authorization. If
     * false and `code` is not 0, the call failed. */
    bool refused;
    bool on_loop; /* the caller is on a loop thread */
    bool logged;  /* another component has logged the event: write it only to the file */
    const struct hps_log_field *request; /* fields of the request, up to HPS_LOG_END; NULL: none */
};

/* Open the file at `path` for appending. If it is missing, it is created, readable and writable by
 * its owner only. If `path` is empty, *out_fd is -1. The caller owns *out_fd.
 * error   INVALID: not a regular file; NOT_FOUND, PERMISSION, IO: the text names the file */
hps_status hps_audit_open(const char *path, int *out_fd, struct hps_error *err) HPS_MUST_CHECK;

/* Make an audit log that writes to hpsd's log and to the file `fd` from hps_audit_open. If `fd` is
 * -1, it writes only to hpsd's log. Takes `fd`, also on failure. lost: counts lines that could not
 * be written to the file; borrowed until hps_audit_free. NULL: out of memory. */
struct hps_audit *hps_audit_new(int fd, struct hps_metric *lost);
/* Set the pool that writes the lines of refused events and of loop threads to the file,
 * because their callers must not wait for a disk. If the pool is full or NULL, lines of refused
 * events are lost, and other lines are written at once. Call it before other threads start, or
 * after they have ended. */
void hps_audit_pool_set(struct hps_audit *audit, struct hps_pool *pool);
/* Replace the file by `fd`, after a rotation or a change of server.audit_log. Takes `fd`. If the
 * log was made without a file, `fd` must be -1, and the call has no effect. One thread at a time;
 * other threads may write lines at the same time. */
void hps_audit_reopened(struct hps_audit *audit, int fd);
void hps_audit_free(struct hps_audit *audit); /* no effect if NULL; no line may be in progress */

/* Write the event, at every log level and without a rate limit. May wait for the disk of the file,
 * unless the event is refused or `on_loop` is set. Any thread. */
void hps_audit_write(struct hps_audit *audit, const struct hps_audit_event *event);
/* As hps_audit_write, for events that a client can cause without a change: refused calls, failed
 * calls, and calls that read. Writes at most 10 of each a second for one identity. The field
 * `suppressed` of the next line counts the events that were not written. hps_log_site_of
 * describes the limits. */
void hps_audit_limited(struct hps_audit *audit, const struct hps_audit_event *event);

#endif
