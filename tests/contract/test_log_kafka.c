/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka keeps the contract of update logs, on librdkafka's mock cluster.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/contract/log_contract.h"
#include "tests/lib/log_client.h"

static struct hps_update_log *open_kafka(void *ctx)
{
    struct hps_mock_kafka **mock = ctx;
    *mock = hps_mock_kafka_new(2);
    return open_log(hps_mock_kafka_brokers(*mock), NULL, 0);
}

static void clean(void *ctx)
{
    hps_mock_kafka_free(*(struct hps_mock_kafka **)ctx);
}

static void make_topic(void *ctx, const char *topic, int32_t n_partitions)
{
    hps_mock_kafka_topic(*(struct hps_mock_kafka **)ctx, topic, n_partitions);
}

static void append(void *ctx, const char *topic, int32_t partition,
                   const struct hps_fake_record *record)
{
    hps_mock_kafka_append(*(struct hps_mock_kafka **)ctx, topic, partition, record);
}

int main(void)
{
    struct hps_mock_kafka *mock = NULL;
    const struct log_contract contract = {
        .name = "kafka",
        .ctx = &mock,
        .open = open_kafka,
        .clean = clean,
        .make_topic = make_topic,
        .append = append,
        .has_times = false, /* the mock cluster does neither */
    };
    return log_contract_run(&contract);
}
