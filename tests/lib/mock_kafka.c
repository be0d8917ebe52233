/* SPDX-License-Identifier: Apache-2.0
 *
 * librdkafka's mock cluster for tests. One thread.
 */
#include "tests/lib/mock_kafka.h"

#include <arpa/inet.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"

enum { ANSWER_MS = 60000, METADATA = 3 };

struct hps_mock_kafka {
    rd_kafka_t *producer;
    rd_kafka_mock_cluster_t *cluster;
    int n_brokers;
    uint64_t n_failed; /* records that were not delivered */
};

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *line)
{
    (void)rk, (void)level, (void)facility, (void)line; /* tests cause outages on purpose */
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct hps_mock_kafka *mock = opaque;
    (void)rk;
    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        fprintf(stderr, "mock kafka: %s\n", rd_kafka_err2str(message->err));
        mock->n_failed++;
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
    char text[256];
    HPS_ASSERT(rd_kafka_conf_set(conf, name, value, text, sizeof(text)) == RD_KAFKA_CONF_OK);
}

struct hps_mock_kafka *hps_mock_kafka_new(int n_brokers)
{
    struct hps_mock_kafka *mock = hps_calloc(1, sizeof(*mock));
    HPS_ASSERT(mock != NULL);
    mock->n_brokers = n_brokers;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, on_log);
    rd_kafka_conf_set_opaque(conf, mock);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "linger.ms", "0");
    set(conf, "max.in.flight", "1"); /* in order, even after an outage */
    mock->producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, NULL, 0);
    HPS_ASSERT(mock->producer != NULL);
    mock->cluster = rd_kafka_mock_cluster_new(mock->producer, n_brokers);
    HPS_ASSERT(mock->cluster != NULL);
    /* Metadata requests from version 4 on disable the automatic creation of topics. */
    HPS_ASSERT(rd_kafka_mock_set_apiversion(mock->cluster, METADATA, 0, 4) ==
               RD_KAFKA_RESP_ERR_NO_ERROR);
    HPS_ASSERT(
        rd_kafka_brokers_add(mock->producer, rd_kafka_mock_cluster_bootstraps(mock->cluster)) > 0);
    return mock;
}

void hps_mock_kafka_free(struct hps_mock_kafka *mock)
{
    rd_kafka_mock_cluster_destroy(mock->cluster);
    rd_kafka_destroy(mock->producer);
    hps_free(mock);
}

const char *hps_mock_kafka_brokers(const struct hps_mock_kafka *mock)
{
    return rd_kafka_mock_cluster_bootstraps(mock->cluster);
}

void hps_mock_kafka_topic(struct hps_mock_kafka *mock, const char *topic, int32_t n_partitions)
{
    HPS_ASSERT(rd_kafka_mock_topic_create(mock->cluster, topic, n_partitions, 1) ==
               RD_KAFKA_RESP_ERR_NO_ERROR);
}

void hps_mock_kafka_topic_fail(struct hps_mock_kafka *mock, const char *topic, int error)
{
    rd_kafka_mock_topic_set_error(mock->cluster, topic, (rd_kafka_resp_err_t)error);
}

static void produce(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                    const struct hps_fake_record *record)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(record->n_headers + 1);
    for (uint32_t i = 0; i < record->n_headers; i++) {
        const struct hps_fake_header *header = &record->headers[i];
        rd_kafka_header_add(headers, header->name, -1, header->value, (ssize_t)header->size);
    }
    rd_kafka_resp_err_t code;
    while ((code = rd_kafka_producev(
                mock->producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(partition),
                RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                RD_KAFKA_V_KEY((void *)record->key, record->key_size),
                RD_KAFKA_V_VALUE((void *)record->value, record->value_size),
                RD_KAFKA_V_TIMESTAMP(record->time_unix_ms), RD_KAFKA_V_HEADERS(headers),
                RD_KAFKA_V_END)) == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
        rd_kafka_poll(mock->producer, 100);
    }
    HPS_ASSERT(code == RD_KAFKA_RESP_ERR_NO_ERROR);
}

void hps_mock_kafka_flush(struct hps_mock_kafka *mock)
{
    HPS_ASSERT(rd_kafka_flush(mock->producer, ANSWER_MS) == RD_KAFKA_RESP_ERR_NO_ERROR);
    HPS_ASSERT(mock->n_failed == 0);
}

void hps_mock_kafka_append(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           const struct hps_fake_record *record)
{
    produce(mock, topic, partition, record);
    hps_mock_kafka_flush(mock);
}

void hps_mock_kafka_append_many(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                                uint64_t first, uint32_t n, size_t size)
{
    uint8_t *value = hps_calloc(1, size);
    HPS_ASSERT(value != NULL && size >= sizeof(first));
    for (uint64_t i = first; i < first + n; i++) {
        memcpy(value, &i, sizeof(i));
        struct hps_fake_record record = {.value = value, .value_size = size};
        produce(mock, topic, partition, &record);
    }
    hps_free(value);
}

/* ---- damaged batches ------------------------------------------------------------------------- */

/* A buffer of Kafka's protocol: numbers are big-endian. */
struct bytes {
    uint8_t data[1024];
    size_t size;
};

static void put(struct bytes *bytes, int64_t value, size_t width)
{
    HPS_ASSERT(bytes->size + width <= sizeof(bytes->data));
    for (size_t i = 0; i < width; i++) {
        bytes->data[bytes->size++] = (uint8_t)((uint64_t)value >> (8 * (width - 1 - i)));
    }
}

static void put_all(struct bytes *bytes, const void *data, size_t size)
{
    HPS_ASSERT(bytes->size + size <= sizeof(bytes->data));
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

/* A batch of version 2 with garbage in place of records. */
static void put_damaged(struct bytes *out, uint32_t n, enum hps_mock_damage damage)
{
    static const char garbage[] = "these are no records, however they are looked at";
    struct bytes checked = {.size = 0};
    put(&checked, damage == HPS_MOCK_BAD_CODEC ? 6 : 4, 2); /* attributes: the codec */
    put(&checked, (int64_t)n - 1, 4);
    put(&checked, 1700000000000, 8);
    put(&checked, 1700000000000, 8);
    put(&checked, -1, 8); /* no producer id, epoch and sequence */
    put(&checked, -1, 2);
    put(&checked, -1, 4);
    put(&checked, n, 4);
    put_all(&checked, garbage, sizeof(garbage));
    uint32_t crc = hps_crc32c(0, checked.data, checked.size);
    put(out, 0, 8); /* the broker chooses the base offset */
    put(out, (int64_t)checked.size + 4 + 1 + 4, 4);
    put(out, 0, 4); /* epoch of the leader */
    put(out, 2, 1);
    put(out, damage == HPS_MOCK_BAD_CHECKSUM ? crc ^ 1 : crc, 4);
    put_all(out, checked.data, checked.size);
}

static int connect_broker(const struct hps_mock_kafka *mock)
{
    const char *colon = strchr(hps_mock_kafka_brokers(mock), ':');
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HPS_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    return fd;
}

void hps_mock_kafka_append_damaged(struct hps_mock_kafka *mock, const char *topic,
                                   int32_t partition, uint32_t n, enum hps_mock_damage damage)
{
    struct bytes batch = {.size = 0};
    struct bytes request = {.size = 0};
    struct bytes sized = {.size = 0};
    size_t length = strlen(topic);
    put_damaged(&batch, n, damage);
    put(&request, 0, 2); /* Produce, version 3, number 7, of a client without a name */
    put(&request, 3, 2);
    put(&request, 7, 4);
    put(&request, -1, 2);
    put(&request, -1, 2); /* no transaction; all replicas; timeout */
    put(&request, -1, 2);
    put(&request, ANSWER_MS, 4);
    put(&request, 1, 4);
    put(&request, (int64_t)length, 2);
    put_all(&request, topic, length);
    put(&request, 1, 4);
    put(&request, partition, 4);
    put(&request, (int64_t)batch.size, 4);
    put_all(&request, batch.data, batch.size);
    put(&sized, (int64_t)request.size, 4);
    put_all(&sized, request.data, request.size);
    hps_mock_kafka_leader(mock, topic, partition, 1);
    int fd = connect_broker(mock);
    HPS_ASSERT(send(fd, sized.data, sized.size, 0) == (ssize_t)sized.size);
    /* Size, id, one topic, one partition; the error code is at the end. */
    uint8_t answer[256];
    size_t wanted = 4 + 4 + 4 + 2 + length + 4 + 4 + 2;
    HPS_ASSERT(wanted <= sizeof(answer) &&
               recv(fd, answer, wanted, MSG_WAITALL) == (ssize_t)wanted);
    HPS_ASSERT(answer[wanted - 2] == 0 && answer[wanted - 1] == 0);
    close(fd);
}

/* ---- failures -------------------------------------------------------------------------------- */

void hps_mock_kafka_broker_down(struct hps_mock_kafka *mock, int32_t broker, bool down)
{
    HPS_ASSERT((down ? rd_kafka_mock_broker_set_down(mock->cluster, broker)
                     : rd_kafka_mock_broker_set_up(mock->cluster, broker)) ==
               RD_KAFKA_RESP_ERR_NO_ERROR);
}

void hps_mock_kafka_down(struct hps_mock_kafka *mock, bool down)
{
    for (int i = 1; i <= mock->n_brokers; i++) {
        hps_mock_kafka_broker_down(mock, i, down);
    }
}

void hps_mock_kafka_slow(struct hps_mock_kafka *mock, int32_t broker, int rtt_ms)
{
    HPS_ASSERT(rd_kafka_mock_broker_set_rtt(mock->cluster, broker, rtt_ms) ==
               RD_KAFKA_RESP_ERR_NO_ERROR);
}

void hps_mock_kafka_fail(struct hps_mock_kafka *mock, int api, int error, uint32_t n)
{
    rd_kafka_mock_clear_request_errors(mock->cluster, (int16_t)api);
    for (uint32_t i = 0; i < n; i++) {
        rd_kafka_mock_push_request_errors(mock->cluster, (int16_t)api, 1,
                                          (rd_kafka_resp_err_t)error);
    }
}

void hps_mock_kafka_delay(struct hps_mock_kafka *mock, int32_t broker, int api, int rtt_ms,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        HPS_ASSERT(rd_kafka_mock_broker_push_request_error_rtts(
                       mock->cluster, broker, (int16_t)api, 1, RD_KAFKA_RESP_ERR_NO_ERROR,
                       rtt_ms) == RD_KAFKA_RESP_ERR_NO_ERROR);
    }
}

void hps_mock_kafka_leader(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           int32_t broker)
{
    HPS_ASSERT(rd_kafka_mock_partition_set_leader(mock->cluster, topic, partition, broker) ==
               RD_KAFKA_RESP_ERR_NO_ERROR);
}

int64_t hps_mock_kafka_committed(struct hps_mock_kafka *mock, const char *group, const char *topic,
                                 int32_t partition)
{
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, on_log);
    set(conf, "bootstrap.servers", hps_mock_kafka_brokers(mock));
    set(conf, "group.id", group);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text));
    HPS_ASSERT(rk != NULL);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition);
    HPS_ASSERT(rd_kafka_committed(rk, list, ANSWER_MS) == RD_KAFKA_RESP_ERR_NO_ERROR);
    int64_t offset = list->elems[0].offset;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(rk);
    return offset < 0 ? -1 : offset;
}
