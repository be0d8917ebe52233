/* SPDX-License-Identifier: Apache-2.0
 *
 * Dead letters.
 */
#include "backends/kafka/dead_letters.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/clock.h"

enum {
    SERVE_MS = 100,
    QUEUE_KB_MAX = 64 * 1024, /* memory for letters in flight */
};

/* librdkafka remembers for minutes that a topic was refused or missing. A new producer learns the
 * current state. */
static void producer_renew(struct hps_kafka_dead_letters *of, hps_status status)
{
    HPS_ASSERT(of->producer != NULL);
    bool refused = status == HPS_PERMISSION || status == HPS_NOT_FOUND;
    if (refused && rd_kafka_outq_len(of->producer) == 0) {
        rd_kafka_destroy(of->producer);
        of->producer = NULL;
    }
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct hps_dead_letters *letters = &((struct hps_kafka_dead_letters *)opaque)->since_flush;
    (void)rk;
    uint64_t *n_in_flight = message->_private;
    HPS_ASSERT(*n_in_flight > 0);
    (*n_in_flight)--;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        letters->n_acknowledged++;
        return;
    }
    letters->n_lost++;
    if (letters->status == HPS_OK) {
        letters->status = hps_kafka_status(message->err);
        snprintf(letters->text, sizeof(letters->text), "%s", rd_kafka_err2str(message->err));
    }
}

static hps_status producer_open(struct hps_kafka_dead_letters *of, struct hps_error *err)
{
    static const struct hps_kafka_property reported[] = {{"acks", "all"}, /* else loss is silent */
                                                         {"delivery.report.only.error", "false"}};
    if (of->producer != NULL) {
        return HPS_OK;
    }
    rd_kafka_conf_t *conf = hps_kafka_conf(of->shared, reported, 2);
    hps_kafka_conf_at_most(conf, "queue.buffering.max.kbytes", QUEUE_KB_MAX);
    rd_kafka_conf_set_opaque(conf, of);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return hps_kafka_handle_open(RD_KAFKA_PRODUCER, conf, "dead-letters",
                                 "producer of dead letters", &of->producer, err);
}

/* The headers of the record, and headers that describe its origin. */
static rd_kafka_headers_t *make_headers(const struct hps_consumer_record *record,
                                        const char *reason)
{
    rd_kafka_headers_t *headers = NULL;
    char partition[16];
    char offset[24];
    if (rd_kafka_message_headers(record->handle, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        headers = rd_kafka_headers_copy(headers);
    } else {
        headers = rd_kafka_headers_new(4);
    }
    snprintf(partition, sizeof(partition), "%" PRId32, record->partition);
    snprintf(offset, sizeof(offset), "%" PRId64, record->offset);
    rd_kafka_header_add(headers, "hps-reason", -1, reason, -1);
    rd_kafka_header_add(headers, "hps-topic", -1, record->topic, -1);
    rd_kafka_header_add(headers, "hps-partition", -1, partition, -1);
    rd_kafka_header_add(headers, "hps-offset", -1, offset, -1);
    return headers;
}

hps_status hps_kafka_dead_letters_send(struct hps_kafka_dead_letters *of, const char *topic,
                                       const struct hps_consumer_record *record, const char *reason,
                                       uint32_t timeout_ms, struct hps_error *err)
{
    uint64_t end_us = hps_clock_us() + UINT64_C(1000) * timeout_ms;
    uint64_t *n_in_flight = &of->n_in_flight[of->newer];
    HPS_ASSERT(topic != NULL && reason != NULL && record->handle != NULL);
    hps_status status = producer_open(of, err);
    if (status != HPS_OK) {
        return status;
    }
    rd_kafka_headers_t *headers = make_headers(record, reason);
    for (;;) {
        rd_kafka_resp_err_t code = rd_kafka_producev(
            of->producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
            RD_KAFKA_V_KEY((void *)record->key, record->key_size),
            RD_KAFKA_V_VALUE((void *)record->value, record->value_size),
            RD_KAFKA_V_TIMESTAMP(record->time_unix_ms), RD_KAFKA_V_OPAQUE(n_in_flight),
            RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) { /* librdkafka owns the headers */
            (*n_in_flight)++;
            return HPS_OK;
        }
        if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL || hps_clock_us() >= end_us) {
            rd_kafka_headers_destroy(headers);
            producer_renew(of, hps_kafka_status(code));
            return hps_kafka_fail(err, code, "dead letter");
        }
        rd_kafka_poll(of->producer, SERVE_MS);
    }
}

void hps_kafka_dead_letters_flush(struct hps_kafka_dead_letters *of, uint32_t timeout_ms,
                                  struct hps_dead_letters *out_letters)
{
    if (of->producer != NULL) {
        rd_kafka_poll(of->producer, 0); /* a flush with timeout 0 calls no on_delivery */
        rd_kafka_flush(of->producer, timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms);
    }
    struct hps_dead_letters letters = of->since_flush;
    letters.late = of->n_in_flight[1 - of->newer] > 0;
    if (letters.status == HPS_OK && of->n_in_flight[0] + of->n_in_flight[1] > 0) {
        letters.status = HPS_DEADLINE;
        snprintf(letters.text, sizeof(letters.text), "not acknowledged yet");
    }
    if (!letters.late) {
        of->newer = 1 - of->newer;
    }
    of->since_flush = (struct hps_dead_letters){.status = HPS_OK};
    if (of->producer != NULL) {
        producer_renew(of, letters.status);
    }
    *out_letters = letters;
}

void hps_kafka_dead_letters_close(struct hps_kafka_dead_letters *of)
{
    if (of->producer != NULL) {
        rd_kafka_purge(of->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        rd_kafka_destroy(of->producer);
    }
}
