/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the last slow lookups, with the time of each stage. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_SLOWLOG_H
#define HPS_SERVER_OBSERVE_SLOWLOG_H

#include "server/observe/metrics.h"
#include "server/observe/trace.h"

enum { HPS_SLOWLOG_SIZE = 128, HPS_REQUEST_ID_MAX = 128 };

struct hps_slow_request {
    uint64_t sequence; /* set by hps_slowlog_add: 1 for the first entry since the start */
    uint64_t unix_ms;  /* set by hps_slowlog_add: Unix time at the end of the request */
    char request_id[HPS_REQUEST_ID_MAX + 1]; /* "": the request had none */
    char trace_id[HPS_TRACE_ID_CHARS + 1];   /* from the header traceparent; "": none */
    char peer[64];                           /* address of the client */
    char model[96];
    int64_t version;      /* 0: no version was found */
    uint64_t n_keys;      /* keys of the request, including duplicates */
    uint64_t n_unique;    /* distinct keys of each query, summed over the queries */
    uint64_t n_defaulted; /* keys that got the default row, because the lookup did not wait */
    uint64_t n_unknown;   /* keys that no tier has */
    int grpc_code;
    uint64_t duration_us;
    /* Time in each stage. The sum is duration_us, or more if work continued after the client had
     * disconnected. */
    uint64_t stage_us[HPS_STAGE_COUNT];
};

struct hps_slowlog;

/* threshold_us: a request that takes at least this long is slow; 0: every request is slow. NULL:
 * out of memory. */
struct hps_slowlog *hps_slowlog_new(uint64_t threshold_us);
void hps_slowlog_free(struct hps_slowlog *log); /* no effect if NULL */
uint64_t hps_slowlog_threshold_us(const struct hps_slowlog *log);
void hps_slowlog_threshold_set(struct hps_slowlog *log, uint64_t threshold_us);

/* If the request is slow, keep a copy of it and log a line. */
void hps_slowlog_add(struct hps_slowlog *log, const struct hps_slow_request *request);
/* Copy the newest entries, newest first, to out_requests[n_max]. Returns how many were copied. */
unsigned hps_slowlog_snapshot(struct hps_slowlog *log, struct hps_slow_request *out_requests,
                              unsigned n_max);
/* Remove all entries. Returns how many there were. */
unsigned hps_slowlog_reset(struct hps_slowlog *log);

#endif
