/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring of slow requests. Only slow requests and readers take its mutex. Any thread.
 */
#include "server/observe/slowlog.h"

#include <stdatomic.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"

struct hps_slowlog {
    atomic_uint_fast64_t threshold_us;
    struct hps_lock lock;
    uint64_t n_added; /* since start */
    unsigned n_kept;
    struct hps_slow_request ring[HPS_SLOWLOG_SIZE]; /* sequence s at (s - 1) % size */
};

struct hps_slowlog *hps_slowlog_new(uint64_t threshold_us)
{
    struct hps_slowlog *log = hps_calloc(1, sizeof(*log));

    if (log == NULL) {
        return NULL;
    }
    atomic_init(&log->threshold_us, threshold_us);
    hps_lock_init(&log->lock, HPS_LOCK_SLOW_LOG);
    return log;
}

void hps_slowlog_free(struct hps_slowlog *log)
{
    if (log == NULL) {
        return;
    }
    hps_lock_fini(&log->lock);
    hps_free(log);
}

uint64_t hps_slowlog_threshold_us(const struct hps_slowlog *log)
{
    return atomic_load_explicit(&log->threshold_us, memory_order_relaxed);
}

void hps_slowlog_threshold_set(struct hps_slowlog *log, uint64_t threshold_us)
{
    atomic_store_explicit(&log->threshold_us, threshold_us, memory_order_relaxed);
}

static void log_line(const struct hps_slow_request *request)
{
    HPS_LOG(WARN, "lookup", "lookup slow: see the longest of its stages",
            HPS_STR("request_id", request->request_id), HPS_STR("trace_id", request->trace_id),
            HPS_STR("peer", request->peer), HPS_STR("model", request->model),
            HPS_I64("version", request->version), HPS_I64("code", request->grpc_code),
            HPS_U64("keys", request->n_keys), HPS_U64("unique", request->n_unique),
            HPS_U64("defaulted", request->n_defaulted), HPS_U64("unknown", request->n_unknown),
            HPS_U64("duration_us", request->duration_us),
            HPS_U64("receive_us", request->stage_us[HPS_STAGE_RECEIVE]),
            HPS_U64("decode_us", request->stage_us[HPS_STAGE_DECODE]),
            HPS_U64("admission_us", request->stage_us[HPS_STAGE_ADMISSION]),
            HPS_U64("queue_us", request->stage_us[HPS_STAGE_QUEUE]),
            HPS_U64("gpu_us", request->stage_us[HPS_STAGE_GPU]),
            HPS_U64("host_us", request->stage_us[HPS_STAGE_HOST]),
            HPS_U64("redis_us", request->stage_us[HPS_STAGE_REDIS]),
            HPS_U64("rocksdb_us", request->stage_us[HPS_STAGE_ROCKSDB]),
            HPS_U64("wait_us", request->stage_us[HPS_STAGE_WAIT]),
            HPS_U64("unit_us", request->stage_us[HPS_STAGE_UNIT]),
            HPS_U64("work_us", request->stage_us[HPS_STAGE_WORK]),
            HPS_U64("loop_us", request->stage_us[HPS_STAGE_LOOP]),
            HPS_U64("encode_us", request->stage_us[HPS_STAGE_ENCODE]),
            HPS_U64("send_us", request->stage_us[HPS_STAGE_SEND]));
}

void hps_slowlog_add(struct hps_slowlog *log, const struct hps_slow_request *request)
{
    if (request->duration_us < hps_slowlog_threshold_us(log)) {
        return;
    }
    uint64_t unix_ms = hps_clock_wall_ms();
    hps_lock_acquire(&log->lock);
    struct hps_slow_request *entry = &log->ring[log->n_added % HPS_SLOWLOG_SIZE];
    *entry = *request;
    entry->sequence = ++log->n_added;
    entry->unix_ms = unix_ms;
    log->n_kept += log->n_kept < HPS_SLOWLOG_SIZE ? 1 : 0;
    HPS_ASSERT(log->n_kept <= log->n_added);
    hps_lock_release(&log->lock);
    log_line(request);
}

unsigned hps_slowlog_snapshot(struct hps_slowlog *log, struct hps_slow_request *out_requests,
                              unsigned n_max)
{
    HPS_ASSERT(out_requests != NULL || n_max == 0);
    hps_lock_acquire(&log->lock);
    unsigned n = log->n_kept < n_max ? log->n_kept : n_max;
    for (unsigned i = 0; i < n; i++) {
        out_requests[i] = log->ring[(log->n_added - 1 - i) % HPS_SLOWLOG_SIZE];
    }
    hps_lock_release(&log->lock);
    return n;
}

unsigned hps_slowlog_reset(struct hps_slowlog *log)
{
    hps_lock_acquire(&log->lock);
    unsigned n = log->n_kept;
    log->n_kept = 0;
    hps_lock_release(&log->lock);
    return n;
}
