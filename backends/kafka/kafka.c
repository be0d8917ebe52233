/* SPDX-License-Identifier: Apache-2.0
 *
 * Apache Kafka as a log of updates: opening and closing it.
 */
#include "backends/kafka/kafka.h"

#include "backends/kafka/consumer.h"
#include "base/heap.h"

static void kafka_close(struct hps_update_log *base)
{
    struct hps_kafka *log = (struct hps_kafka *)base;
    hps_kafka_commits_free(log->commits);
    hps_kafka_recalls_free(log->recalls);
    hps_kafka_leaders_free(log->leaders);
    if (log->shared != NULL) {
        rd_kafka_conf_destroy(log->shared);
    }
    hps_free(log->group);
    hps_free(log);
}

static const struct hps_update_log_ops LOG_OPS = {
    .name = "kafka",
    .close = kafka_close,
    .consumer_open = hps_kafka_consumer_open,
};

hps_status hps_kafka_open(const struct hps_kafka_options *options, struct hps_update_log **out_log,
                          struct hps_error *err)
{
    struct hps_kafka *log = hps_calloc(1, sizeof(*log));
    if (log == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
    }
    log->base.ops = &LOG_OPS;
    hps_status status = hps_kafka_conf_new(options, &log->shared, err);
    if (status == HPS_OK) {
        log->leaders = hps_kafka_leaders_new(log->shared);
        log->recalls = hps_kafka_recalls_new(log->shared);
        log->group = options->group == NULL ? NULL : hps_strdup(options->group);
        log->commits = log->group == NULL ? NULL : hps_kafka_commits_new(log->shared, log->group);
        if (log->leaders == NULL || log->recalls == NULL ||
            (options->group != NULL && log->commits == NULL)) {
            status = hps_error_set(err, HPS_NO_MEMORY, "no memory for the update source");
        }
    }
    if (status != HPS_OK) {
        kafka_close(&log->base);
        return status;
    }
    *out_log = &log->base;
    return HPS_OK;
}

hps_status hps_kafka_check(const struct hps_kafka_options *options, struct hps_error *err)
{
    /* Without brokers the handle does not connect. */
    const struct hps_kafka_property own[] = {{"group.id", "hpsd.check"},
                                             {"bootstrap.servers", NULL}};
    rd_kafka_conf_t *shared = NULL;
    rd_kafka_t *rk = NULL;
    hps_status status = hps_kafka_conf_new(options, &shared, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_conf_t *conf = hps_kafka_conf(shared, own, sizeof(own) / sizeof(own[0]));
    status = hps_kafka_handle_open(RD_KAFKA_CONSUMER, conf, "check", "Kafka consumer", &rk, err);
    hps_kafka_handle_close(rk);
    rd_kafka_conf_destroy(shared);
    return status;
}
