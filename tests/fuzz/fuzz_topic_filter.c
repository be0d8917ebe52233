/* SPDX-License-Identifier: Apache-2.0
 *
 * Any text as topic filter, and any text as topic name. The input is two runs, the filter and the
 * name.
 */
#include "base/assert.h"
#include "base/rows/topic_filter.h"
#include "base/rows/update_record.h"
#include "tests/fuzz/script.h"

/* The maximum length of a topic name in Kafka. */
enum { TOPIC_BYTES_MAX = 249 };

/* regcomp takes minutes and gigabytes for `x{1,255}{1,255}`. Filters are written by the operator,
 * so hpsd does not prevent this. */
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
    /* With a filter that matches every topic of the model, this filter must not matter. */
    HPS_ASSERT(hps_topic_filters_new(list, 2, &filters, &err) == HPS_OK);
    HPS_ASSERT(hps_topic_filters_match(filters, topic, "m") == ours);
    hps_topic_filters_free(filters);
    return 0;
}
