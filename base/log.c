/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds one line on the stack and writes it with one write(2). Any thread. The only lock protects
 * the rate-limit windows of call sites; a site over its limit does not take it.
 */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/lock.h"
#include "base/text.h"
#include "base/utf8.h"

enum {
    LINE_RESERVE = 64,     /* for the end of the line: truncated, suppressed, newline */
    TEXT_MAX_BYTES = 1024, /* of one value, before escaping; the rest is cut */
    SITE_LINES_MAX = 10,   /* per window */
    SITE_WINDOW_US = 1000000
};

struct line {
    size_t size;
    bool json;
    bool full; /* a field did not fit */
    char data[HPS_LOG_LINE_BYTES];
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};
enum { N_LEVELS = sizeof(level_names) / sizeof(level_names[0]) };

static atomic_int log_level = HPS_LOG_INFO;
static atomic_int log_format = HPS_LOG_LOGFMT;
static atomic_int log_fd = STDERR_FILENO;
static struct hps_lock site_lock = HPS_LOCK_STATIC(LOG_SITE);

void hps_log_setup(enum hps_log_level level, enum hps_log_format format, int fd)
{
    atomic_store(&log_format, (int)format);
    atomic_store(&log_fd, fd);
    hps_log_level_set(level);
}

void hps_log_level_set(enum hps_log_level level)
{
    atomic_store(&log_level, (int)level);
}

enum hps_log_level hps_log_level_get(void)
{
    return (enum hps_log_level)atomic_load_explicit(&log_level, memory_order_relaxed);
}

bool hps_log_enabled(enum hps_log_level level)
{
    return level >= hps_log_level_get();
}

bool hps_log_level_parse(const char *text, enum hps_log_level *out_level)
{
    for (unsigned i = 0; i < N_LEVELS; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out_level = (enum hps_log_level)i;
            return true;
        }
    }
    return false;
}

static void put_bytes(struct line *line, const char *text, size_t size)
{
    if (line->full || size > HPS_LOG_LINE_BYTES - LINE_RESERVE - line->size) {
        line->full = true;
        return;
    }
    memcpy(line->data + line->size, text, size);
    line->size += size;
}

static void put_text(struct line *line, const char *text)
{
    put_bytes(line, text, strlen(text));
}

static void put_escaped_point(struct line *line, uint32_t point, const char *text, size_t length)
{
    char escape[HPS_TEXT_ESCAPE_BYTES];
    switch (point) {
    case '"':
        put_text(line, "\\\"");
        break;
    case '\\':
        put_text(line, "\\\\");
        break;
    case '\n':
        put_text(line, "\\n");
        break;
    case '\r':
        put_text(line, "\\r");
        break;
    case '\t':
        put_text(line, "\\t");
        break;
    default:
        if (hps_text_point_is_plain(point)) {
            put_bytes(line, text, length);
        } else {
            put_bytes(line, escape, hps_text_escape(point, escape));
        }
    }
}

/* Put a quoted string, valid in JSON and logfmt; bytes that are not UTF-8 become U+FFFD. */
static void put_quoted(struct line *line, const char *text, size_t size)
{
    put_text(line, "\"");
    size_t at = 0;
    while (at < size) {
        uint32_t point;
        size_t length = hps_utf8_decode(text + at, size - at, &point);
        if (length == 0) {
            put_text(line, "\xef\xbf\xbd");
            at++;
            continue;
        }
        put_escaped_point(line, point, text + at, length);
        at += length;
    }
    put_text(line, "\"");
}

/* Whether logfmt must quote a value: it is empty, or not all plain graphic text. */
static bool needs_quotes(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint32_t point;
        size_t length = hps_utf8_decode(text + at, size - at, &point);
        if (length == 0 || point == ' ' || point == '=' || point == '"' || point == '\\' ||
            !hps_text_point_is_plain(point)) {
            return true;
        }
        at += length;
    }
    return size == 0;
}

static void put_string(struct line *line, const char *text)
{
    if (text == NULL) {
        put_text(line, line->json ? "null" : "\"\"");
        return;
    }
    size_t size = strnlen(text, TEXT_MAX_BYTES + 1);
    if (size > TEXT_MAX_BYTES) {
        size = TEXT_MAX_BYTES;
        while (size > TEXT_MAX_BYTES - 3 && ((uint8_t)text[size] & 0xc0) == 0x80) {
            size--; /* cut between characters */
        }
    }
    if (line->json || needs_quotes(text, size)) {
        put_quoted(line, text, size);
    } else {
        put_bytes(line, text, size);
    }
}

static void put_double(struct line *line, double value)
{
    char text[HPS_TEXT_F64_BYTES];

    if (isfinite(value)) {
        put_text(line, hps_text_f64(value, text));
    } else {
        put_string(line, hps_text_f64(value, text)); /* not a JSON number: a string */
    }
}

static void put_name(struct line *line, const char *name)
{
    if (line->json) {
        put_text(line, line->size == 0 ? "{\"" : ",\"");
        put_text(line, name);
        put_text(line, "\":");
    } else {
        put_text(line, line->size == 0 ? "" : " ");
        put_text(line, name);
        put_text(line, "=");
    }
}

/* Put a whole field, or nothing if it does not fit. */
static void put_field(struct line *line, const struct hps_log_field *field)
{
    char number[24];
    size_t before = line->size;
    bool full_before = line->full;
    line->full = false;
    put_name(line, field->name);
    switch (field->type) {
    case HPS_LOG_STR:
        put_string(line, field->value.str);
        break;
    case HPS_LOG_I64:
        snprintf(number, sizeof(number), "%" PRId64, field->value.i64);
        put_text(line, number);
        break;
    case HPS_LOG_U64:
        snprintf(number, sizeof(number), "%" PRIu64, field->value.u64);
        put_text(line, number);
        break;
    case HPS_LOG_F64:
        put_double(line, field->value.f64);
        break;
    }
    if (line->full) {
        line->size = before;
    }
    line->full = line->full || full_before;
}

static void put_time(struct line *line)
{
    uint64_t wall_ms = hps_clock_wall_ms();
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm utc;
    char text[40];
    char stamp[48];
    if (gmtime_r(&seconds, &utc) == NULL ||
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc) == 0) {
        text[0] = '\0';
    }
    snprintf(stamp, sizeof(stamp), "%s.%03uZ", text, (unsigned)(wall_ms % 1000));
    put_field(line, &HPS_STR("ts", stamp));
}

/* Put the end of the line; LINE_RESERVE always has space for it. */
static void put_end(struct line *line, uint32_t suppressed)
{
    char text[LINE_RESERVE];
    int length = 0;
    if (line->full) {
        length = snprintf(text, sizeof(text), line->json ? ",\"truncated\":1" : " truncated=1");
    }
    if (suppressed != 0) {
        const char *fmt = line->json ? ",\"suppressed\":%" PRIu32 : " suppressed=%" PRIu32;
        length += snprintf(text + length, sizeof(text) - (size_t)length, fmt, suppressed);
    }
    length += snprintf(text + length, sizeof(text) - (size_t)length, line->json ? "}\n" : "\n");
    memcpy(line->data + line->size, text, (size_t)length);
    line->size += (size_t)length;
}

static void line_write(const struct line *line)
{
    int fd = atomic_load(&log_fd);
    size_t done = 0;
    while (done < line->size) {
        ssize_t rc = write(fd, line->data + done, line->size - done);
        if (rc < 0 && errno == EINTR) {
            continue;
        }
        if (rc <= 0) {
            return; /* there is no other place to report it */
        }
        done += (size_t)rc;
    }
}

struct hps_log_site *hps_log_site_of(struct hps_log_site sites[HPS_LOG_CLIENTS], uint64_t client)
{
    return &sites[hps_mix64(client ^ hps_hash_secret()) % HPS_LOG_CLIENTS];
}

static bool window_open(uint64_t window_us, uint64_t now_us)
{
    return window_us != 0 && now_us >= window_us && now_us - window_us < SITE_WINDOW_US;
}

bool hps_log_site_admit(struct hps_log_site *site, uint32_t *out_suppressed)
{
    if (window_open(__atomic_load_n(&site->window_us, __ATOMIC_ACQUIRE), hps_clock_us()) &&
        __atomic_load_n(&site->count, __ATOMIC_RELAXED) >= SITE_LINES_MAX) {
        __atomic_fetch_add(&site->suppressed, 1, __ATOMIC_RELAXED);
        return false;
    }
    bool admit = true;
    hps_lock_acquire(&site_lock);
    uint64_t now_us = hps_clock_us();
    uint32_t count = __atomic_load_n(&site->count, __ATOMIC_RELAXED);
    if (!window_open(__atomic_load_n(&site->window_us, __ATOMIC_RELAXED), now_us)) {
        count = 0;
        __atomic_store_n(&site->count, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&site->window_us, now_us, __ATOMIC_RELEASE);
    }
    if (count >= SITE_LINES_MAX) {
        __atomic_fetch_add(&site->suppressed, 1, __ATOMIC_RELAXED);
        admit = false;
    } else {
        __atomic_store_n(&site->count, count + 1, __ATOMIC_RELAXED);
        *out_suppressed = __atomic_exchange_n(&site->suppressed, 0, __ATOMIC_RELAXED);
    }
    hps_lock_release(&site_lock);
    return admit;
}

static void begin_line(struct line *line)
{
    line->size = 0;
    line->full = false;
    line->json = atomic_load(&log_format) == (int)HPS_LOG_JSON;
    put_time(line);
}

static void put_fields(struct line *line, const struct hps_log_field *fields)
{
    for (const struct hps_log_field *field = fields; field->name != NULL; field++) {
        put_field(line, field);
    }
}

size_t hps_log_line(const struct hps_log_field *fields, char out_line[HPS_LOG_LINE_BYTES])
{
    struct line line;
    begin_line(&line);
    put_fields(&line, fields);
    put_end(&line, 0);
    memcpy(out_line, line.data, line.size);
    return line.size;
}

void hps_log_write(struct hps_log_site *site, enum hps_log_level level, const char *component,
                   const char *msg, const struct hps_log_field *fields)
{
    int saved_errno = errno;
    uint32_t suppressed = 0;
    if (!hps_log_site_admit(site, &suppressed)) {
        errno = saved_errno;
        return;
    }
    struct line line;
    begin_line(&line);
    put_field(&line, &HPS_STR("level", level_names[level]));
    put_field(&line, &HPS_STR("msg", msg));
    put_field(&line, &HPS_STR("component", component));
    put_fields(&line, fields);
    put_end(&line, suppressed);
    line_write(&line);
    errno = saved_errno;
}
