/* SPDX-License-Identifier: Apache-2.0
 *
 * Who asked the operator's part of the daemon for what, and what came of it: a line with
 * component=audit in the log, and one in a file of its own where server.audit_log names one.
 */
#ifndef HPS_SERVER_OBSERVE_AUDIT_H
#define HPS_SERVER_OBSERVE_AUDIT_H

#include "base/log.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/status.h"

struct hps_audit;

/* One line. Text is borrowed for the call; NULL is "". */
struct hps_audit_event {
    const char *method; /* "LoadModel", "GET /metrics", "reload" */
    const char *who;    /* the identity that was judged, "cert:NAME"; "": none */
    const char *peer;   /* where it came from */
    const char *model;  /* on what */
    int64_t version;
    int code; /* gRPC status; 0: it was done */
    const char *error;
    bool refused; /* it was not let in, or not allowed; else what `code` is not 0 of has failed */
    bool logged; /* the log has a line of another component on it: this one is for the file alone */
    const struct hps_log_field *request; /* its other fields, up to HPS_LOG_END; NULL: none */
};

/* Open the file at `path` to append to; it is made, readable by its owner alone, if there is none.
 * A blank `path` is no file, and *out_fd -1.
 * error   INVALID: no regular file; NOT_FOUND, PERMISSION, IO: naming it */
hps_status hps_audit_open(const char *path, int *out_fd, struct hps_error *err) HPS_MUST_CHECK;

/* Write to the file that `fd` has open (taken, also on failure), or to none (-1). `lost`, borrowed
 * for its life, counts lines that could not be written. NULL: no memory. */
struct hps_audit *hps_audit_new(int fd, struct hps_metric *lost);
/* Where lines of threads that must not wait for a disk are written: hps_audit_refused. NULL: they
 * are lost. Before and after all other threads. */
void hps_audit_pool_set(struct hps_audit *audit, struct hps_pool *pool);
/* Write to the file that `fd` has open, from now on: its name is another, or was given to a new
 * file. Takes `fd`; -1: nothing changes. One thread at a time; others may write meanwhile. */
void hps_audit_reopened(struct hps_audit *audit, int fd);
void hps_audit_free(struct hps_audit *audit); /* NULL is legal; no line may be under way */

/* Write a line now, at every log level, never held back. May wait for the disk of the file. Any
 * thread but loops. */
void hps_audit_write(struct hps_audit *audit, const struct hps_audit_event *event);
/* The same of what anybody may cause: it does not wait, and at most 10 lines a second are written,
 * the next of which has how many were left out in `suppressed`. Any thread. */
void hps_audit_refused(struct hps_audit *audit, const struct hps_audit_event *event);

#endif
