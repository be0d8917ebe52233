/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of librdkafka: properties, opening and closing, errors. Files of this folder include only
 * headers of files above them in this list:
 *
 *     handle.c        properties, handles, statuses
 *     leaders.c       a thread that lists topics, and a thread per leader that queries the ends of
 *                     partitions; of the log, for all consumers
 *     recall.c        a thread that reads single records, of the log; the watches of a consumer
 *     topics.c        the topics of a consumer, with their ids and settings
 *     offsets.c       queries for offsets, leader by leader
 *     partitions.c    the partitions that a consumer reads, and why reading ends
 *     commits.c       commits positions; of the log
 *     dead_letters.c  copies of rejected records, sent to the dead-letter topic
 *     consumer.c      a consumer: polls and events
 *     kafka.c         the log
 *
 * A consumer and its parts belong to one thread. The parts of the log have threads and locks of
 * their own, so that an unresponsive broker does not delay reading. Each kind of request has its
 * own handle, because a broker answers the requests of one connection in order.
 */
#ifndef HPS_BACKENDS_KAFKA_HANDLE_H
#define HPS_BACKENDS_KAFKA_HANDLE_H

#include <librdkafka/rdkafka.h>

#include "backends/kafka/kafka.h"

enum { HPS_KAFKA_TEXT_BYTES = sizeof(((struct hps_consumer_event *)0)->text) };

hps_status hps_kafka_status(rd_kafka_resp_err_t code);
/* The broker did not respond, in contrast to a response with an error. */
bool hps_kafka_is_silence(rd_kafka_resp_err_t code);
/* Set err to "what: why". */
hps_status hps_kafka_fail(struct hps_error *err, rd_kafka_resp_err_t code, const char *what);
void hps_kafka_text_set(char text[HPS_KAFKA_TEXT_BYTES], const char *from);
/* The record of a message without an error, which it borrows from; its tag is 0. */
struct hps_consumer_record hps_kafka_record(const rd_kafka_message_t *message);
int hps_kafka_remaining_ms(uint64_t end_us); /* until then; at least 0 */

/* Make the configuration that all handles share: hpsd's defaults and the operator's properties.
 * INVALID: a property that hpsd sets itself, or that librdkafka does not know or accept;
 * NO_MEMORY. */
hps_status hps_kafka_conf_new(const struct hps_kafka_options *options, rd_kafka_conf_t **out_conf,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Copy `shared`, and set the properties `own` [n_own] of one handle, which librdkafka must accept.
 */
rd_kafka_conf_t *hps_kafka_conf(const rd_kafka_conf_t *shared, const struct hps_kafka_property *own,
                                size_t n_own) HPS_MUST_CHECK;
/* Lower a numeric property to `max` if it is higher. */
void hps_kafka_conf_at_most(rd_kafka_conf_t *conf, const char *name, long max);
/* Takes conf. `name` is the last part of the handle's client.id, `what` its name in errors. */
hps_status hps_kafka_handle_open(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *name,
                                 const char *what, rd_kafka_t **out_rk, struct hps_error *err)
    HPS_MUST_CHECK;
/* Returns within some seconds, whatever the handle waits for. NULL: no effect. */
void hps_kafka_handle_close(rd_kafka_t *rk);

/* Query one leader for the offsets of list->elems[from, from + n), like rd_kafka_offsets_for_times.
 * That call fails for all partitions if one fails; after this call each has its own offset or
 * error. Any thread. */
void hps_kafka_offsets_query(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list, int from, int n,
                             uint64_t end_us);

#endif
