/* SPDX-License-Identifier: Apache-2.0
 *
 * Apache Kafka as a log of updates, through librdkafka. hpsd assigns partitions and offsets itself:
 * it joins no consumer group, and never reads committed offsets.
 */
#ifndef HPS_BACKENDS_KAFKA_KAFKA_H
#define HPS_BACKENDS_KAFKA_KAFKA_H

#include "backends/update_log.h"

struct hps_kafka_property {
    const char *name;
    const char *value;
};

struct hps_kafka_options {
    const char *brokers;   /* host:port, separated by `,` or `;` */
    const char *group;     /* consumer group to which positions are committed; NULL: no commits */
    const char *client_id; /* NULL: "hpsd"; each connection adds "-" and its name */
    /* [n_properties] properties of librdkafka: security, SASL, TLS, sizes. A client.id replaces the
     * one above. INVALID: properties that hpsd sets itself (handle.c), such as group.id. */
    const struct hps_kafka_property *properties;
    uint32_t n_properties;
};

/* Open the log, without connecting. Strings are borrowed for the call. INVALID: librdkafka does not
 * know or accept a property; NO_MEMORY. */
hps_status hps_kafka_open(const struct hps_kafka_options *options, struct hps_update_log **out_log,
                          struct hps_error *err) HPS_MUST_CHECK;
/* Check the options as hps_kafka_open does, and whether librdkafka can open a consumer with them:
 * only then does it load certificates. Does not connect, and leaves nothing open. Errors as above,
 * with librdkafka's reason. */
hps_status hps_kafka_check(const struct hps_kafka_options *options, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
