/* SPDX-License-Identifier: Apache-2.0
 *
 * See http1_head.h. All input comes from untrusted clients.
 */
#include "net/http1_head.h"

#include <string.h>

size_t hps_http1_head_end(const char *head, size_t size, size_t from)
{
    size_t i = from > 3 ? from - 3 : 0;

    while (i < size) {
        const char *eol = memchr(head + i, '\n', size - i);
        if (eol == NULL) {
            break;
        }
        i = (size_t)(eol - head);
        if (size - i >= 2 && eol[1] == '\n') {
            return i + 2;
        }
        if (size - i >= 3 && eol[1] == '\r' && eol[2] == '\n') {
            return i + 3;
        }
        i++;
    }
    return 0;
}

bool hps_http1_head_is_strict(const char *head, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (head[i] == '\n' || (head[i] == '\r' && (i + 1 == size || head[i + 1] != '\n'))) {
            return false;
        }
        i += head[i] == '\r';
    }
    return true;
}

bool hps_http1_next_line(char **at, char *end, char **out_line, size_t *out_size)
{
    char *eol = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;

    if (eol == NULL) {
        return false;
    }
    char *text_end = eol > *at && eol[-1] == '\r' ? eol - 1 : eol;
    *text_end = '\0';
    *out_line = *at;
    *out_size = (size_t)(text_end - *at);
    *at = eol + 1;
    return true;
}

static bool is_token(const char *text, size_t size)
{
    static const char odd[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && (c == '\0' || strchr(odd, c) == NULL)) {
            return false;
        }
    }
    return size > 0;
}

bool hps_http1_line_parse(char *text, struct hps_http1_line *out_line)
{
    char *target = strchr(text, ' ');
    char *version = target != NULL ? strchr(target + 1, ' ') : NULL;

    if (version == NULL || !is_token(text, (size_t)(target - text)) || target[1] != '/' ||
        (strcmp(version, " HTTP/1.1") != 0 && strcmp(version, " HTTP/1.0") != 0)) {
        return false;
    }
    *target = '\0';
    *version = '\0';
    for (const char *c = target + 1; *c != '\0'; c++) {
        if (*c < '!' || *c > '~') {
            return false;
        }
    }
    target[1 + strcspn(target + 1, "?#")] = '\0';
    *out_line =
        (struct hps_http1_line){.verb = text, .path = target + 1, .minor = version[8] == '1'};
    return true;
}

bool hps_http1_field_parse(char *text, size_t size, struct hps_http1_field *out_field)
{
    char *colon = memchr(text, ':', size);
    char *end = text + size;

    if (colon == NULL || !is_token(text, (size_t)(colon - text))) {
        return false;
    }
    for (char *c = text; c < colon; c++) {
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c | 0x20) : *c;
    }
    for (const char *c = colon + 1; c < end; c++) {
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == '\x7f') {
            return false;
        }
    }
    char *value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t')) {
        value++;
    }
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    *colon = '\0';
    *end = '\0'; /* then follows the end of the line, or blanks */
    *out_field = (struct hps_http1_field){.name = text,
                                          .name_size = (size_t)(colon - text),
                                          .value = value,
                                          .value_size = (size_t)(end - value)};
    return true;
}

const char *hps_http1_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } reasons[] = {
        {100, "Continue"},
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Other";
}
