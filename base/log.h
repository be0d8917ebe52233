/* SPDX-License-Identifier: Apache-2.0
 *
 * The log has one line per event, in logfmt or JSON. docs/monitoring.md lists the fields. Each line
 * is written with one write(2) to stderr, or to the descriptor that hps_log_setup sets. Each call
 * site is limited to 10 lines per second, or to 10 for each client. The field suppressed=N of its
 * next line is the number of lines that were left out. Any thread.
 */
#ifndef HPS_BASE_LOG_H
#define HPS_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hps_log_level { HPS_LOG_DEBUG, HPS_LOG_INFO, HPS_LOG_WARN, HPS_LOG_ERROR };
enum hps_log_format { HPS_LOG_LOGFMT, HPS_LOG_JSON };

struct hps_log_field {
    const char *name;
    enum { HPS_LOG_STR, HPS_LOG_I64, HPS_LOG_U64, HPS_LOG_F64 } type;
    union {
        const char *str;
        int64_t i64;
        uint64_t u64;
        double f64;
    } value;
};

#define HPS_STR(field, v) ((struct hps_log_field){(field), HPS_LOG_STR, {.str = (v)}})
#define HPS_I64(field, v) ((struct hps_log_field){(field), HPS_LOG_I64, {.i64 = (int64_t)(v)}})
#define HPS_U64(field, v) ((struct hps_log_field){(field), HPS_LOG_U64, {.u64 = (uint64_t)(v)}})
#define HPS_F64(field, v) ((struct hps_log_field){(field), HPS_LOG_F64, {.f64 = (double)(v)}})
#define HPS_LOG_END       ((struct hps_log_field){0})

/* The rate limit of one call site. Zero it before its first use. */
struct hps_log_site {
    uint64_t window_us;
    uint32_t count;
    uint32_t suppressed;
};

/* Selects one of the rate limits of a site by a hash of the client with a secret. Clients with the
 * same hash share a limit. So a large number of addresses cannot fill the disk. */
enum { HPS_LOG_CLIENTS = 64 };
struct hps_log_site *hps_log_site_of(struct hps_log_site sites[HPS_LOG_CLIENTS], uint64_t client);

/* Log an event, for example:
 * HPS_LOG(WARN, "catalog", "version dropped", HPS_STR("model", name), HPS_I64("version", 3)); */
#define HPS_LOG(lvl, component, msg, ...)                                  \
    do {                                                                   \
        static struct hps_log_site hps_log_site_;                          \
        HPS_LOG_BY_SITE(&hps_log_site_, lvl, component, msg, __VA_ARGS__); \
    } while (0)
/* As HPS_LOG, for an event that a client causes: each client has its own limit, and cannot hide
 * the lines of others. client: a number that tells clients apart. */
#define HPS_LOG_BY(client, lvl, component, msg, ...)                                  \
    do {                                                                              \
        static struct hps_log_site hps_log_sites_[HPS_LOG_CLIENTS];                   \
        HPS_LOG_BY_SITE(hps_log_site_of(hps_log_sites_, client), lvl, component, msg, \
                        __VA_ARGS__);                                                 \
    } while (0)
#define HPS_LOG_BY_SITE(site, lvl, component, msg, ...)                                      \
    do {                                                                                     \
        if (hps_log_enabled(HPS_LOG_##lvl)) {                                                \
            hps_log_write((site), HPS_LOG_##lvl, (component), (msg),                         \
                          (struct hps_log_field[]){__VA_ARGS__ __VA_OPT__(, ) HPS_LOG_END}); \
        }                                                                                    \
    } while (0)

void hps_log_setup(enum hps_log_level level, enum hps_log_format format, int fd);
void hps_log_level_set(enum hps_log_level level);
enum hps_log_level hps_log_level_get(void);
bool hps_log_enabled(enum hps_log_level level);
/* Parse "debug", "info", "warn" or "error". False: no such level. */
bool hps_log_level_parse(const char *text, enum hps_log_level *out_level);
void hps_log_write(struct hps_log_site *site, enum hps_log_level level, const char *component,
                   const char *msg, const struct hps_log_field *fields);

/* ---- lines for other destinations than the log ----------------------------------------------- */

enum { HPS_LOG_LINE_BYTES = 8192 };
/* Format a line like hps_log_write, with its newline, but without level, message and component.
 * Returns the number of bytes, at least 1. Any thread. */
size_t hps_log_line(const struct hps_log_field *fields, char out_line[HPS_LOG_LINE_BYTES]);
/* Whether the rate limit of `site` allows a line now. If true, the caller must write the line.
 * *out_suppressed is then the number of lines that `site` left out before. Any thread. */
bool hps_log_site_admit(struct hps_log_site *site, uint32_t *out_suppressed);

#endif
