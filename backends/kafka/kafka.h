/* SPDX-License-Identifier: Apache-2.0
 *
 * Apache Kafka as a log of updates, through librdkafka. Partitions are assigned by us and begin
 * where we say: no consumer group is joined, and committed offsets are never read.
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
    const char *client_id; /* NULL: "hpsd"; each connection adds "-" and its name */
    /* [n_properties] of librdkafka, as they are: security, SASL, TLS, sizes; client.id in the place
     * of the one above. Those that would take the reading out of our hands are INVALID
     * (hps_kafka_open names them). */
    const struct hps_kafka_property *properties;
    uint32_t n_properties;
};

/* Does not connect. Strings are borrowed for the call. INVALID: a property that librdkafka does not
 * know, or a value that it refuses; NO_MEMORY. */
hps_status hps_kafka_open(const struct hps_kafka_options *options, struct hps_update_log **out_log,
                          struct hps_error *err) HPS_MUST_CHECK;
/* The same, and whether librdkafka can make a consumer of them: it loads certificates and looks for
 * what its build lacks only then. Does not connect, leaves nothing open. Errors as above, with
 * librdkafka's reason. */
hps_status hps_kafka_check(const struct hps_kafka_options *options, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
