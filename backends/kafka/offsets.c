/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions for offsets. librdkafka asks the leaders of all partitions at once, waits for all of
 * them, and has no answer for any partition if one leader has none or refuses one partition. So
 * each leader is asked alone, for a short time, and what it refuses is halved until it is known
 * which partition it is. Who is known not to answer (leaders.c) is not asked.
 *
 * On the thread of the consumer, but for hps_kafka_offsets_ask.
 */
#include <inttypes.h>
#include <string.h>

#include "backends/kafka/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    LEADER_MS = 1000, /* for all answers of one leader */
    NOBODY = -1,
};

/* ---- one leader ------------------------------------------------------------------------------ */

bool hps_kafka_is_silence(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR__TIMED_OUT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
    case RD_KAFKA_RESP_ERR__RESOLVE:
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR__SSL:
    case RD_KAFKA_RESP_ERR__DESTROY:
        return true;
    default:
        return false;
    }
}

/* Some of list's, from `from` on. */
static rd_kafka_topic_partition_list_t *some_of(const rd_kafka_topic_partition_list_t *list,
                                                int from, int n)
{
    HPS_ASSERT(from >= 0 && n > 0 && from + n <= list->cnt);
    rd_kafka_topic_partition_list_t *some = rd_kafka_topic_partition_list_new(n);
    for (int i = from; i < from + n; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        rd_kafka_topic_partition_list_add(some, at->topic, at->partition)->offset = at->offset;
    }
    return some;
}

void hps_kafka_offsets_ask(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list, uint64_t end_us)
{
    rd_kafka_resp_err_t code = rd_kafka_offsets_for_times(rk, list, hps_kafka_remaining_ms(end_us));
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        return;
    }
    if (list->cnt == 1 || hps_kafka_is_silence(code)) { /* no use in asking for less */
        for (int i = 0; i < list->cnt; i++) {
            list->elems[i].err = code;
        }
        return;
    }
    int halves[3] = {0, list->cnt / 2, list->cnt};
    HPS_ASSERT(list->cnt > 1); /* each half is smaller than the whole */
    for (int half = 0; half < 2; half++) {
        int from = halves[half];
        rd_kafka_topic_partition_list_t *some = some_of(list, from, halves[half + 1] - from);
        hps_kafka_offsets_ask(rk, some, end_us); /* no deeper than the logarithm of them */
        for (int i = 0; i < some->cnt; i++) {
            list->elems[from + i].offset = some->elems[i].offset;
            list->elems[from + i].err = some->elems[i].err;
        }
        rd_kafka_topic_partition_list_destroy(some);
    }
}

void hps_kafka_bounds_ask(struct hps_kafka_consumer *c, const char *topic, int32_t number,
                          int64_t *out_low, int64_t *out_high)
{
    const struct hps_watch *watch = hps_kafka_watch_find(c, topic, number);
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * LEADER_MS;
    const int64_t what[] = {RD_KAFKA_OFFSET_BEGINNING, RD_KAFKA_OFFSET_END};
    int64_t bounds[] = {-1, -1};
    int32_t broker = NOBODY;
    bool silent = watch != NULL && hps_kafka_watch_leader(watch, 0, &broker) != HPS_OK;
    for (int i = 0; i < 2 && !silent; i++) {
        rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(list, topic, number)->offset = what[i];
        hps_kafka_offsets_ask(c->rk, list, end_us);
        bounds[i] = list->elems[0].err == RD_KAFKA_RESP_ERR_NO_ERROR ? list->elems[0].offset : -1;
        rd_kafka_topic_partition_list_destroy(list);
    }
    *out_low = bounds[0];
    *out_high = bounds[1];
}

/* ---- many ------------------------------------------------------------------------------------ */

/* What is asked for: of each, and the answers by now. */
struct inquiry {
    struct hps_kafka_consumer *c;
    struct hps_consumer_offsets *partitions; /* [n_partitions] */
    int32_t *brokers; /* [n_partitions] who is to be asked; NOBODY: it is settled */
    uint32_t n_partitions;
    uint32_t n_answered;
    uint64_t end_us;
};

/* One question about the partitions that `broker` leads and are fine so far:
 * RD_KAFKA_OFFSET_BEGINNING, _END, or, 0, the time of each that wants one. NULL: there is nothing
 * to ask. */
static rd_kafka_topic_partition_list_t *ask(const struct inquiry *of, int32_t broker, int64_t what,
                                            uint64_t end_us)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new((int)of->n_partitions);
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        const struct hps_consumer_offsets *partition = &of->partitions[i];
        bool wanted = of->brokers[i] == broker && partition->status == HPS_OK &&
                      (what != 0 || partition->time_unix_ms >= 0);
        if (wanted && rd_kafka_topic_partition_list_find(list, partition->topic,
                                                         partition->partition) == NULL) {
            rd_kafka_topic_partition_list_add(list, partition->topic, partition->partition)
                ->offset = what != 0 ? what : partition->time_unix_ms;
        }
    }
    if (list->cnt > 0) {
        hps_kafka_offsets_ask(of->c->rk, list, end_us);
    }
    return list;
}

/* The answer for one; -1: none. */
static int64_t offset_in(rd_kafka_topic_partition_list_t *list,
                         struct hps_consumer_offsets *partition)
{
    const rd_kafka_topic_partition_t *place =
        rd_kafka_topic_partition_list_find(list, partition->topic, partition->partition);
    if (place == NULL) {
        return -1;
    }
    if (place->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        /* NOT_FOUND is no proof: see leader_failed. */
        hps_status status = hps_kafka_status(place->err);
        bool later = status == HPS_DEADLINE || status == HPS_NOT_FOUND;
        partition->status = later ? HPS_UNAVAILABLE : status;
        return -1;
    }
    return place->offset;
}

static void take_bounds(const struct inquiry *of, int32_t broker,
                        rd_kafka_topic_partition_list_t *lows,
                        rd_kafka_topic_partition_list_t *highs)
{
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        struct hps_consumer_offsets *partition = &of->partitions[i];
        if (of->brokers[i] != broker || partition->status != HPS_OK) {
            continue;
        }
        partition->low = offset_in(lows, partition);
        partition->high = offset_in(highs, partition);
        partition->at_time = partition->high;
        if (partition->status == HPS_OK && (partition->low < 0 || partition->high < 0)) {
            partition->status = HPS_UNAVAILABLE;
        }
    }
}

static void take_times(const struct inquiry *of, int32_t broker,
                       rd_kafka_topic_partition_list_t *times)
{
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        struct hps_consumer_offsets *partition = &of->partitions[i];
        if (of->brokers[i] != broker || partition->status != HPS_OK ||
            partition->time_unix_ms < 0) {
            continue;
        }
        int64_t at = offset_in(times, partition);
        if (at == partition->time_unix_ms && at > partition->high) {
            partition->status = HPS_UNAVAILABLE; /* the question, not an answer */
        } else if (at >= partition->low && at < partition->high) {
            partition->at_time = at;
        }
    }
}

static void ask_leader(struct inquiry *of, int32_t broker)
{
    HPS_ASSERT(broker != NOBODY);
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * LEADER_MS;
    end_us = end_us < of->end_us ? end_us : of->end_us;
    rd_kafka_topic_partition_list_t *lows = ask(of, broker, RD_KAFKA_OFFSET_BEGINNING, end_us);
    rd_kafka_topic_partition_list_t *highs = ask(of, broker, RD_KAFKA_OFFSET_END, end_us);
    take_bounds(of, broker, lows, highs);
    rd_kafka_topic_partition_list_t *times = ask(of, broker, 0, end_us);
    take_times(of, broker, times);
    rd_kafka_topic_partition_list_destroy(lows);
    rd_kafka_topic_partition_list_destroy(highs);
    rd_kafka_topic_partition_list_destroy(times);
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        if (of->brokers[i] == broker) {
            of->n_answered += of->partitions[i].status != HPS_UNAVAILABLE;
            of->brokers[i] = NOBODY;
        }
    }
}

/* Of one that is not watched: who leads it, by the list of all topics. */
static void find_leader(struct inquiry *of, uint32_t i, const struct rd_kafka_metadata *all)
{
    struct hps_consumer_offsets *partition = &of->partitions[i];
    const struct rd_kafka_metadata_topic *topic = hps_kafka_topic_in(all, partition->topic);
    partition->status = HPS_NOT_FOUND;
    for (int k = 0; topic != NULL && k < topic->partition_cnt; k++) {
        if (topic->partitions[k].id == partition->partition) {
            of->brokers[i] = topic->partitions[k].leader;
            partition->status = of->brokers[i] >= 0 ? HPS_OK : HPS_UNAVAILABLE;
        }
    }
}

/* Who is to be asked for what. Of a partition that is not there librdkafka would wait for a
 * leader. */
static hps_status find_leaders(struct inquiry *of, struct hps_error *err)
{
    const struct rd_kafka_metadata *all = NULL;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        struct hps_consumer_offsets *partition = &of->partitions[i];
        const struct hps_watch *watch =
            hps_kafka_watch_find(of->c, partition->topic, partition->partition);
        partition->low = -1;
        partition->high = -1;
        partition->at_time = -1;
        partition->status = HPS_OK;
        of->brokers[i] = NOBODY;
        if (watch != NULL) {
            partition->status = hps_kafka_watch_leader(watch, of->end_us, &of->brokers[i]);
            continue;
        }
        rd_kafka_t *rk = NULL;
        if (all == NULL) {
            status = hps_kafka_list(of->c, of->end_us, &rk, &all, err);
            if (status != HPS_OK) {
                return status;
            }
        }
        find_leader(of, i, all);
    }
    if (all != NULL) {
        rd_kafka_metadata_destroy(all);
    }
    return HPS_OK;
}

hps_status hps_kafka_offsets(struct hps_consumer *base, struct hps_consumer_offsets *partitions,
                             uint32_t n_partitions, uint32_t timeout_ms, struct hps_error *err)
{
    struct hps_kafka_consumer *c = (struct hps_kafka_consumer *)base;
    struct inquiry of = {
        .c = c,
        .partitions = partitions,
        .brokers = hps_calloc((size_t)n_partitions + 1, sizeof(of.brokers[0])),
        .n_partitions = n_partitions,
        .end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms,
    };
    if (of.brokers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for offsets");
    }
    hps_status status = find_leaders(&of, err);
    bool any = false;
    for (uint32_t i = 0; i < n_partitions && status == HPS_OK; i++) {
        if (of.brokers[i] != NOBODY) {
            any = true;
            ask_leader(&of, of.brokers[i]);
        }
    }
    if (status == HPS_OK && of.n_answered > 0) {
        hps_kafka_answered(c);
    } else if (status == HPS_OK && any && hps_kafka_is_down(c)) {
        status = hps_error_set(err, c->link.status, "offsets not listed: %s", c->link.text);
    }
    hps_free(of.brokers);
    return status;
}
