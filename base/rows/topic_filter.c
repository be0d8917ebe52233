/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters for topics of updates. Any thread.
 */
#include "base/rows/topic_filter.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "base/rows/update_record.h"

struct hps_topic_filters {
    uint32_t n;
    regex_t regexes[];
};

/* The end of the bracket expression that begins at `at`: its ']', or the last character of the
 * filter if ']' is missing. */
static const char *bracket_end(const char *at)
{
    at += at[1] == '^' ? 2 : 1;
    at += at[0] == ']' ? 1 : 0; /* ']' in first position is an ordinary character */
    while (*at != '\0' && *at != ']') {
        const char close[] = {at[1], ']', '\0'}; /* end of a class, as in [[:alpha:]_] */
        bool class = *at == '[' && at[1] != '\0' && strchr(":.=", at[1]) != NULL;
        const char *end = class ? strstr(at + 2, close) : NULL;
        at = end != NULL ? end + 2 : at + 1;
    }
    return *at == '\0' ? at - 1 : at;
}

/* Finds patterns that regcomp accepts but matches in an unexpected way: `*` and `a|*` match only
 * empty text, `\\d` matches a letter. NULL: none found. */
static const char *fault_of(const char *filter)
{
    bool begins = true;
    for (const char *at = filter; *at != '\0'; at++) {
        if (*at == '\\' && at[1] != '\0') {
            at++;
            if (isalpha((unsigned char)*at) && strchr("bBsSwW", *at) == NULL) {
                return "it escapes a letter (write [0-9] for a digit)";
            }
            begins = false;
        } else if (*at == '[') {
            at = bracket_end(at);
            begins = false;
        } else if (begins && strchr("*+?{", *at) != NULL) {
            return "an operator has nothing to repeat (\".*\" matches every name)";
        } else {
            begins = strchr("(|^", *at) != NULL;
        }
    }
    return filter[0] == '\0' ? "it is empty" : NULL;
}

/* Compile with anchors, so that a match covers the whole name. Anchors within the filter are
 * allowed. */
static hps_status compile(regex_t *regex, const char *filter, struct hps_error *err)
{
    size_t size = strlen(filter) + sizeof("^()$");
    const char *fault = fault_of(filter);
    if (fault != NULL) {
        return hps_error_set(err, HPS_INVALID,
                             "update filter \"%s\" is not a regular expression: %s", filter, fault);
    }
    char *anchored = hps_alloc(size);
    if (anchored == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for an update filter");
    }
    snprintf(anchored, size, "^(%s)$", filter);
    /* First without anchors: `a)(b` alone is invalid, but would be valid in `^(a)(b)$`. */
    int rc = regcomp(regex, filter, REG_EXTENDED | REG_NOSUB);
    if (rc == 0) {
        regfree(regex);
        rc = regcomp(regex, anchored, REG_EXTENDED | REG_NOSUB);
    }
    hps_free(anchored);
    if (rc != 0) {
        char text[128];
        regerror(rc, regex, text, sizeof(text));
        return hps_error_set(err, rc == REG_ESPACE ? HPS_NO_MEMORY : HPS_INVALID,
                             "update filter \"%s\" is not a regular expression: %s", filter, text);
    }
    return HPS_OK;
}

hps_status hps_topic_filters_new(const char *const *filters, uint32_t n,
                                 struct hps_topic_filters **out_filters, struct hps_error *err)
{
    struct hps_topic_filters *compiled =
        hps_calloc(1, sizeof(*compiled) + n * sizeof(compiled->regexes[0]));
    if (compiled == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u update filters", n);
    }
    for (; compiled->n < n; compiled->n++) {
        hps_status status = compile(&compiled->regexes[compiled->n], filters[compiled->n], err);
        if (status != HPS_OK) {
            hps_topic_filters_free(compiled);
            return status;
        }
    }
    *out_filters = compiled;
    return HPS_OK;
}

bool hps_topic_filters_match(const struct hps_topic_filters *filters, const char *topic,
                             const char *model)
{
    struct hps_update_topic parsed;
    if (!hps_update_topic_parse(topic, &parsed) || strcmp(parsed.model, model) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < filters->n; i++) {
        const regex_t *regex = &filters->regexes[i];
        if (regexec(regex, model, 0, NULL, 0) == 0 || regexec(regex, topic, 0, NULL, 0) == 0) {
            return true;
        }
    }
    return filters->n == 0;
}

void hps_topic_filters_free(struct hps_topic_filters *filters)
{
    if (filters == NULL) {
        return;
    }
    for (uint32_t i = 0; i < filters->n; i++) {
        regfree(&filters->regexes[i]);
    }
    hps_free(filters);
}
