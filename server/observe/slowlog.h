/* SPDX-License-Identifier: Apache-2.0
 *
 * The last slow requests, and the time of each stage. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_SLOWLOG_H
#define HPS_SERVER_OBSERVE_SLOWLOG_H

#include "server/observe/metrics.h"
#include "server/observe/trace.h"

enum { HPS_SLOWLOG_SIZE = 128, HPS_REQUEST_ID_MAX = 128 };

struct hps_slow_request {
    uint64_t sequence; /* set by the log: 1 for the first since the start */
    uint64_t unix_ms;  /* set by the log: time of its end */
    char request_id[HPS_REQUEST_ID_MAX + 1];
    char trace_id[HPS_TRACE_ID_CHARS + 1]; /* from its traceparent; "": none */
    char peer[64];
    char model[96];
    int64_t version;
    uint64_t n_keys;
    uint64_t n_unique;
    uint64_t n_defaulted;
    uint64_t n_unknown;
    int grpc_code;
    uint64_t duration_us;
    /* They add up to duration_us, or to more if the client went away while work continued. */
    uint64_t stage_us[HPS_STAGE_COUNT];
};

struct hps_slowlog;

/* threshold_us: requests of at least that duration are kept; 0 keeps all. NULL: out of memory. */
struct hps_slowlog *hps_slowlog_new(uint64_t threshold_us);
void hps_slowlog_free(struct hps_slowlog *log); /* no effect if NULL */
uint64_t hps_slowlog_threshold_us(const struct hps_slowlog *log);
void hps_slowlog_threshold_set(struct hps_slowlog *log, uint64_t threshold_us);

/* Keep a copy of the request and log a line, if the request is slow. */
void hps_slowlog_add(struct hps_slowlog *log, const struct hps_slow_request *request);
/* Copy the newest entries, newest first. Returns their number, at most n_max. */
unsigned hps_slowlog_snapshot(struct hps_slowlog *log, struct hps_slow_request *out_requests,
                              unsigned n_max);
unsigned hps_slowlog_reset(struct hps_slowlog *log); /* returns the number of removed entries */

#endif
