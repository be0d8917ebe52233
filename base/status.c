/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts and gRPC codes of statuses; formatting of error messages. Any thread.
 */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

const char *hps_status_text(hps_status status)
{
    switch (status) {
#define HPS_STATUS_TEXT(name, number, text, grpc) \
    case HPS_##name:                              \
        return text;
        HPS_STATUS_LIST(HPS_STATUS_TEXT)
#undef HPS_STATUS_TEXT
    }
    return "unknown error";
}

int hps_status_grpc_code(hps_status status)
{
    switch (status) {
#define HPS_STATUS_CODE(name, number, text, grpc) \
    case HPS_##name:                              \
        return grpc;
        HPS_STATUS_LIST(HPS_STATUS_CODE)
#undef HPS_STATUS_CODE
    }
    return 2;
}

/* The text may contain names and values from outside, and goes to terminals and logs. */
static void make_plain(struct hps_error *err)
{
    size_t size = strlen(err->text);
    if (!hps_text_is_plain(err->text, size)) {
        char raw[sizeof(err->text)];
        memcpy(raw, err->text, size);
        (void)hps_text_plain(raw, size, err->text, sizeof(err->text));
    }
}

hps_status hps_error_set(struct hps_error *err, hps_status status, const char *fmt, ...)
{
    if (err == NULL) {
        return status;
    }
    va_list args;
    va_start(args, fmt);
    err->status = status;
    vsnprintf(err->text, sizeof(err->text), fmt, args);
    va_end(args);
    make_plain(err);
    return status;
}

hps_status hps_error_prefix(struct hps_error *err, hps_status status, const char *fmt, ...)
{
    if (err == NULL) {
        return status;
    }
    char old[sizeof(err->text)];
    memcpy(old, err->text, sizeof(old));
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(err->text, sizeof(err->text), fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used + 2 < sizeof(err->text)) {
        char *at = err->text + used;
        size_t space = sizeof(err->text) - (size_t)used - 3; /* after ": ", before the NUL */
        size_t length = strnlen(old, space);
        memcpy(at, ": ", 2);
        memcpy(at + 2, old, length);
        at[2 + length] = '\0';
    }
    err->status = status;
    make_plain(err);
    return status;
}
