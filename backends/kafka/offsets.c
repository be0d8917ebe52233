/* SPDX-License-Identifier: Apache-2.0
 *
 * librdkafka queries the leaders of all partitions at once, and has no result for any partition if
 * one leader does not respond. So each leader is queried in its own call, for a short time. Leaders
 * without recent responses (leaders.c) are not queried.
 */
#include "backends/kafka/offsets.h"

#include "base/clock.h"
#include "base/heap.h"

enum {
    LEADER_MS = 1000, /* for all responses of one leader */
    NO_BROKER = -1,
};

/* The partitions, and the results so far. */
struct query {
    rd_kafka_t *rk;
    struct hps_consumer_offsets *partitions; /* [n_partitions] */
    int32_t *brokers; /* [n_partitions] the leaders; NO_BROKER: none, or done */
    uint32_t n_partitions;
};

static void take_result(struct hps_consumer_offsets *partition, int64_t wanted,
                        const rd_kafka_topic_partition_t *result)
{
    int64_t offset = result->offset;
    if (result->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        /* NOT_FOUND proves nothing: see leader_failed. */
        hps_status status = hps_kafka_status(result->err);
        bool later = status == HPS_DEADLINE || status == HPS_NOT_FOUND;
        partition->status = later ? HPS_UNAVAILABLE : status;
    } else if (wanted != 0 ? offset < 0
                           : offset == partition->time_unix_ms && offset > partition->high) {
        partition->status = HPS_UNAVAILABLE; /* librdkafka has not replaced the request's value */
    } else if (wanted == RD_KAFKA_OFFSET_BEGINNING) {
        partition->low = offset;
    } else if (wanted == RD_KAFKA_OFFSET_END) {
        partition->high = offset;
        partition->at_time = offset;
    } else if (offset >= partition->low && offset < partition->high) {
        partition->at_time = offset;
    }
}

/* Query the broker for one offset of each of its partitions without an error so far. `wanted`:
 * RD_KAFKA_OFFSET_BEGINNING or _END; 0: the partition's time, if it has one. */
static void query(const struct query *of, int32_t broker, int64_t wanted, uint64_t end_us)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new((int)of->n_partitions);
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        struct hps_consumer_offsets *partition = &of->partitions[i];
        if (of->brokers[i] == broker && partition->status == HPS_OK &&
            (wanted != 0 || partition->time_unix_ms >= 0)) {
            rd_kafka_topic_partition_t *at =
                rd_kafka_topic_partition_list_add(list, partition->topic, partition->partition);
            at->offset = wanted != 0 ? wanted : partition->time_unix_ms;
            at->opaque = partition;
        }
    }
    if (list->cnt > 0) {
        hps_kafka_offsets_query(of->rk, list, 0, list->cnt, end_us);
    }
    for (int i = 0; i < list->cnt; i++) {
        take_result(list->elems[i].opaque, wanted, &list->elems[i]);
    }
    rd_kafka_topic_partition_list_destroy(list);
}

/* Set the leader of each partition, or the reason why it cannot be queried. */
static hps_status find_leaders(const struct query *of, struct hps_kafka_watches *watches,
                               uint64_t end_us, struct hps_error *err)
{
    for (uint32_t i = 0; i < of->n_partitions; i++) {
        struct hps_consumer_offsets *partition = &of->partitions[i];
        struct hps_watch *watch = NULL;
        of->brokers[i] = NO_BROKER;
        if (partition->topic == NULL) {
            continue;
        }
        partition->low = partition->high = partition->at_time = -1;
        hps_status status =
            hps_kafka_watch(watches, partition->topic, partition->partition, &watch, err);
        if (status == HPS_NO_MEMORY) {
            return status;
        }
        partition->status = status != HPS_OK ? HPS_NOT_FOUND
                                             : hps_kafka_watched_leader(hps_kafka_watched(watch),
                                                                        end_us, &of->brokers[i]);
    }
    return HPS_OK;
}

hps_status hps_kafka_offsets(rd_kafka_t *rk, struct hps_kafka_watches *watches,
                             struct hps_consumer_offsets *partitions, uint32_t n_partitions,
                             uint32_t timeout_ms, struct hps_error *err)
{
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms;
    struct query of = {.rk = rk,
                       .partitions = partitions,
                       .brokers = hps_calloc((size_t)n_partitions + 1, sizeof(of.brokers[0])),
                       .n_partitions = n_partitions};
    if (of.brokers == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for offsets");
    }
    hps_status status = find_leaders(&of, watches, end_us, err);
    for (uint32_t i = 0; i < n_partitions && status == HPS_OK; i++) {
        int32_t broker = of.brokers[i];
        if (broker == NO_BROKER) {
            continue;
        }
        uint64_t until_us = hps_clock_us() + UINT64_C(1000) * LEADER_MS;
        until_us = until_us < end_us ? until_us : end_us;
        query(&of, broker, RD_KAFKA_OFFSET_BEGINNING, until_us);
        query(&of, broker, RD_KAFKA_OFFSET_END, until_us);
        query(&of, broker, 0, until_us);
        for (uint32_t k = i; k < n_partitions; k++) {
            of.brokers[k] = of.brokers[k] == broker ? NO_BROKER : of.brokers[k];
        }
    }
    hps_free(of.brokers);
    return status;
}
