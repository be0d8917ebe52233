/* SPDX-License-Identifier: Apache-2.0
 *
 * Any text as a filter of topics, and any text as the topic that it is asked about. The input is
 * two runs, the filter and the topic.
 */
#include "base/assert.h"
#include "base/rows/topic_filter.h"
#include "base/rows/update_record.h"
#include "tests/fuzz/script.h"

/* A text that a broker has: its names are no longer. */
enum { TOPIC_BYTES_MAX = 249 };

/* What regcomp makes of `x{1,255}{1,255}` takes minutes and gigabytes; the filters are the
 * operator's own, so that it is his machine. */
static bool multiplies(const char *filter)
{
    return strchr(filter, '{') != NULL || strchr(filter, '*') != strrchr(filter, '*') ||
           strchr(filter, '+') != strrchr(filter, '+');
}

static void check_names(const char *topic)
{
    struct hps_update_topic name;
    char again[HPS_UPDATE_TOPIC_BYTES_MAX];

    if (hps_update_topic_parse(topic, &name)) {
        hps_update_topic_format(name.model, name.table[0] != '\0' ? name.table : NULL, again);
        HPS_ASSERT(strcmp(again, topic) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_topic_filters *filters = NULL;
    struct hps_error err = {0};
    char filter[256];
    char topic[256];
    struct hps_update_topic name;
    const char *const list[] = {script_text(&script, filter), "^hps_.+$"};

    if (multiplies(filter)) {
        return 0;
    }
    script_text(&script, topic);
    topic[TOPIC_BYTES_MAX] = '\0';
    check_names(topic);
    hps_status status = hps_topic_filters_new(list, 1, &filters, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(err.text[0] != '\0');
        return 0;
    }
    bool matches = hps_topic_filters_match(filters, topic, "m");
    bool ours = hps_update_topic_parse(topic, &name) && strcmp(name.model, "m") == 0;
    HPS_ASSERT(ours || !matches);
    hps_topic_filters_free(filters);
    /* Beside a filter that lets every topic of ours through, any other changes nothing. */
    HPS_ASSERT(hps_topic_filters_new(list, 2, &filters, &err) == HPS_OK);
    HPS_ASSERT(hps_topic_filters_match(filters, topic, "m") == ours);
    hps_topic_filters_free(filters);
    return 0;
}
