/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer of an update log that runs commands from lines of its standard input, for tests with a
 * real broker (test_kafka_log.py). One thread.
 *
 *     log_reader BROKERS TOPIC[,TOPIC…] GROUP [PROPERTY=VALUE…]
 *
 * The reply to a command is one or more lines. The last one is "ok" or "failed STATUS TEXT":
 *
 * - topics: "list AGE_MS CLUSTER", AGE_MS since the request was sent, -1: no list yet; "topic NAME
 *   PARTITIONS COMPACTION DELETE_RETENTION_MS TIME_OF ID" each
 * - offsets TOPIC PARTITION TIME: "offsets STATUS LOW HIGH AT_TIME"
 * - assign TOPIC PARTITION OFFSET TAG
 * - unassign TOPIC PARTITION
 * - heard TOPIC PARTITION: "heard STATUS HIGH AGE_MS TEXT", AGE_MS since the query, -1: no response
 * - recall TOPIC PARTITION OFFSET, then recalled TOPIC PARTITION: "recalled STATUS ASKED LOW OFFSET
 *   TIME HASH", or nothing yet
 * - poll: "record TAG PARTITION OFFSET TIME KIND KEY VALUE" each (hex; "-": null; "#" and the size
 *   if the value is large), "event KIND TAG OFFSET LOW HIGH STATUS TEXT" each
 * - commit TOPIC PARTITION OFFSET
 * - letters TOPIC: write copies of the records of the last poll, and flush
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/kafka/kafka.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

enum { ANSWER_MS = 30000, WORDS_MAX = 8, PROPERTIES_MAX = 32, TOPICS_MAX = 8, HEX_MAX = 1 << 16 };

static struct hps_consumer *consumer;
static struct hps_consumer_poll last;

static void answer(hps_status status, const struct hps_error *err)
{
    if (status == HPS_OK) {
        puts("ok");
    } else {
        printf("failed %d %s\n", status, err->text);
    }
}

static void put_hex(const void *bytes, size_t size)
{
    putchar(' ');
    if (size > HEX_MAX) {
        printf("#%zu", size);
        return;
    }
    if (bytes == NULL) {
        putchar('-');
    }
    for (size_t i = 0; bytes != NULL && i < size; i++) {
        printf("%02x", ((const uint8_t *)bytes)[i]);
    }
    if (bytes != NULL && size == 0) {
        putchar('.');
    }
}

static void do_topics(void)
{
    struct hps_consumer_topics list = {0};
    uint64_t now_us = hps_clock_us();
    consumer->ops->topics(consumer, now_us, &list);
    printf("list %" PRId64 " %s\n",
           list.asked_us == 0 ? -1 : (int64_t)(hps_clock_us() - list.asked_us) / 1000,
           list.cluster_id);
    for (uint32_t i = 0; i < list.n_topics; i++) {
        const struct hps_consumer_topic *topic = &list.topics[i];
        if (topic->n_partitions > 0) {
            printf("topic %s %" PRId32 " %d %" PRId64 " %d %s\n", topic->name, topic->n_partitions,
                   topic->compaction, topic->delete_retention_ms, topic->time_of, topic->id);
        }
    }
}

static hps_status do_offsets(char **words, struct hps_error *err)
{
    struct hps_consumer_offsets part = {
        .topic = words[1],
        .partition = (int32_t)strtol(words[2], NULL, 10),
        .time_unix_ms = strtoll(words[3], NULL, 10),
    };
    hps_status status = consumer->ops->offsets(consumer, &part, 1, ANSWER_MS, err);
    if (status == HPS_OK) {
        printf("offsets %d %" PRId64 " %" PRId64 " %" PRId64 "\n", part.status, part.low, part.high,
               part.at_time);
    }
    return status;
}

static hps_status do_watch(char **words, uint32_t n, struct hps_error *err)
{
    struct hps_watch *watch = NULL;
    struct hps_leader_response response = {0};
    struct hps_recalled recalled = {0};
    hps_status status =
        consumer->ops->watch(consumer, words[1], (int32_t)strtol(words[2], NULL, 10), &watch, err);
    if (status != HPS_OK) {
        return status;
    }
    if (strcmp(words[0], "recall") == 0 && n == 4) {
        consumer->ops->recall(watch, strtoll(words[3], NULL, 10));
    } else if (strcmp(words[0], "recalled") == 0) {
        if (consumer->ops->recalled(watch, &recalled)) {
            printf("recalled %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64 "\n",
                   recalled.status, recalled.asked_offset, recalled.low, recalled.offset,
                   recalled.time_unix_ms, recalled.hash);
        }
    } else {
        consumer->ops->leader_response(watch, &response);
        printf("heard %d %" PRId64 " %" PRId64 " %s\n", response.status, response.high,
               response.asked_us == 0 ? -1 : (int64_t)(hps_clock_us() - response.asked_us) / 1000,
               response.text);
    }
    return HPS_OK;
}

static hps_status do_poll(struct hps_error *err)
{
    hps_status status = consumer->ops->poll(consumer, 200, 1000, 1 << 20, &last, err);
    if (status != HPS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < last.n_records; i++) {
        const struct hps_consumer_record *record = &last.records[i];
        printf("record %" PRIu32 " %" PRId32 " %" PRId64 " %" PRId64 " %d", record->tag,
               record->partition, record->offset, record->time_unix_ms, record->time_of);
        put_hex(record->key, record->key_size);
        put_hex(record->value, record->value_size);
        putchar('\n');
    }
    for (uint32_t i = 0; i < last.n_events; i++) {
        const struct hps_consumer_event *event = &last.events[i];
        printf("event %d %" PRId64 " %" PRId64 " %" PRId64 " %d %s\n", event->kind,
               event->tag == HPS_CONSUMER_NO_TAG ? -1 : (int64_t)event->tag, event->offset,
               event->high, event->status, event->text);
    }
    return HPS_OK;
}

static hps_status do_dead_letters(const char *topic, struct hps_error *err)
{
    hps_status status = HPS_OK;
    struct hps_dead_letters letters = {0};
    for (uint32_t i = 0; i < last.n_records && status == HPS_OK; i++) {
        status = consumer->ops->dead_letter(consumer, topic, &last.records[i], "on purpose",
                                            ANSWER_MS, err);
    }
    if (status == HPS_OK) {
        consumer->ops->dead_letter_flush(consumer, ANSWER_MS, &letters);
        status = hps_error_set(err, letters.status, "%s", letters.text);
    }
    return status;
}

static hps_status obey(char **words, uint32_t n, struct hps_error *err)
{
    const char *verb = words[0];
    struct hps_consumer_position at = {
        .topic = n > 1 ? words[1] : "",
        .partition = n > 2 ? (int32_t)strtol(words[2], NULL, 10) : 0,
        .offset = n > 3 ? strtoll(words[3], NULL, 10) : 0,
    };
    if (strcmp(verb, "topics") == 0) {
        do_topics();
        return HPS_OK;
    }
    if (strcmp(verb, "offsets") == 0 && n == 4) {
        return do_offsets(words, err);
    }
    if (strcmp(verb, "assign") == 0 && n == 5) {
        last = (struct hps_consumer_poll){0};
        return consumer->ops->assign(consumer, &at, (uint32_t)strtoul(words[4], NULL, 10), err);
    }
    if (strcmp(verb, "unassign") == 0 && n == 3) {
        last = (struct hps_consumer_poll){0};
        consumer->ops->unassign(consumer, at.topic, at.partition);
        return HPS_OK;
    }
    if ((strcmp(verb, "heard") == 0 || strncmp(verb, "recall", strlen("recall")) == 0) && n >= 3) {
        return do_watch(words, n, err);
    }
    if (strcmp(verb, "poll") == 0) {
        return do_poll(err);
    }
    if (strcmp(verb, "commit") == 0 && n == 4) {
        consumer->ops->commit(consumer, &at, 1);
        return HPS_OK;
    }
    if (strcmp(verb, "letters") == 0 && n == 2) {
        return do_dead_letters(words[1], err);
    }
    return hps_error_set(err, HPS_INVALID, "no such command");
}

static void obey_all(void)
{
    char line[1024];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *words[WORDS_MAX] = {0};
        uint32_t n = 0;
        char *rest = NULL;
        for (char *response = strtok_r(line, " \n", &rest); response != NULL && n < WORDS_MAX;
             response = strtok_r(NULL, " \n", &rest)) {
            words[n++] = response;
        }
        if (n > 0) {
            struct hps_error err = {0};
            answer(obey(words, n, &err), &err);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    struct hps_kafka_property properties[PROPERTIES_MAX];
    struct hps_update_log *log = NULL;
    struct hps_error err = {0};
    uint32_t n = 0;
    if (argc < 4) {
        return 2;
    }
    for (int i = 4; i < argc && n < PROPERTIES_MAX; i++) {
        char *equals = strchr(argv[i], '=');
        HPS_ASSERT(equals != NULL);
        *equals = '\0';
        properties[n++] = (struct hps_kafka_property){argv[i], equals + 1};
    }
    struct hps_kafka_options options = {
        .brokers = argv[1], .group = argv[3], .properties = properties, .n_properties = n};
    const char *topics[TOPICS_MAX] = {0};
    struct hps_consumer_options mine = {.name = "test", .topics = topics, .settings_ms = ANSWER_MS};
    char *rest = NULL;
    for (char *topic = strtok_r(argv[2], ",", &rest); topic != NULL && mine.n_topics < TOPICS_MAX;
         topic = strtok_r(NULL, ",", &rest)) {
        topics[mine.n_topics++] = topic;
    }
    hps_status status = hps_kafka_open(&options, &log, &err);
    if (status == HPS_OK) {
        status = log->ops->consumer_open(log, &mine, &consumer, &err);
    }
    answer(status, &err);
    fflush(stdout);
    if (status != HPS_OK) {
        return 1;
    }
    obey_all();
    consumer->ops->close(consumer);
    log->ops->close(log);
    puts("closed");
    return 0;
}
