/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of the audit log. Each is one write(2) to a file opened for appending. A reload replaces
 * the file behind the descriptor, so that no lock is held while a disk is slow. Any thread.
 */
#include "server/observe/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"

enum { FIELDS_MAX = 48, FIELDS_OWN = 10 };
enum kind { REFUSED, FAILED, DONE, KINDS };

struct hps_audit {
    int fd; /* -1: no file; never changes */
    struct hps_metric *lost;
    struct hps_pool *pool;
    struct hps_log_site sites[KINDS][HPS_LOG_CLIENTS]; /* by the hash of the identity */
    atomic_bool torn; /* the last line is incomplete: the disk was full */
};

/* A line, posted to a thread that may wait. */
struct posted {
    struct hps_task task;
    struct hps_audit *audit;
    size_t size;
    char line[];
};

/* ---- the file -------------------------------------------------------------------------------- */

static hps_status open_error(struct hps_error *err, const char *path)
{
    hps_status status = errno == ENOENT || errno == ENOTDIR                   ? HPS_NOT_FOUND
                        : errno == EACCES || errno == EPERM                   ? HPS_PERMISSION
                        : errno == ELOOP || errno == ENXIO || errno == EISDIR ? HPS_INVALID
                                                                              : HPS_IO;
    return hps_error_set(err, status, "server.audit_log: cannot open \"%s\" to append to it: %s",
                         path, errno == ELOOP ? "it is a symbolic link" : strerror(errno));
}

hps_status hps_audit_open(const char *path, int *out_fd, struct hps_error *err)
{
    struct stat st;
    if (path[0] == '\0') {
        *out_fd = -1;
        return HPS_OK;
    }
    /* O_NONBLOCK: do not wait for the reader of a pipe, which is rejected below. */
    int fd =
        open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK,
             S_IRUSR | S_IWUSR);
    if (fd < 0) {
        return open_error(err, path);
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return hps_error_set(
            err, HPS_INVALID,
            "server.audit_log: \"%s\" is not a regular file; expected one, or an unused name",
            path);
    }
    *out_fd = fd;
    return HPS_OK;
}

static void count_lost(struct hps_audit *audit, const char *why)
{
    hps_metric_add(audit->lost, 1);
    HPS_LOG(ERROR, "audit",
            "audit line lost: server.audit_log cannot be written; this log has the line, with "
            "component=audit",
            HPS_STR("reason", why));
}

static void write_line(struct hps_audit *audit, const char *line, size_t size)
{
    HPS_ASSERT(size > 0 && line[size - 1] == '\n');
    if (atomic_exchange(&audit->torn, false)) {
        /* otherwise the next line is incomplete, too */
        hps_ignore(write(audit->fd, "\n", 1) == 1 ? HPS_OK : HPS_IO);
    }
    ssize_t written;
    do {
        written = write(audit->fd, line, size);
    } while (written < 0 && errno == EINTR);
    if (written != (ssize_t)size) {
        atomic_store(&audit->torn, written > 0);
        count_lost(audit, written < 0 ? strerror(errno) : "the disk is full");
    }
}

static void run_posted(struct hps_task *task)
{
    struct posted *posted = (struct posted *)task;
    write_line(posted->audit, posted->line, posted->size);
    hps_free(posted);
}

/* False: the pool is full, or there is no memory. */
static bool post_line(struct hps_audit *audit, const char *line, size_t size)
{
    struct posted *posted =
        audit->pool != NULL ? hps_alloc(offsetof(struct posted, line) + size) : NULL;
    if (posted != NULL) {
        *posted = (struct posted){.task.run = run_posted, .audit = audit, .size = size};
        memcpy(posted->line, line, size);
        if (hps_pool_post(audit->pool, &posted->task) == HPS_OK) {
            return true;
        }
        hps_free(posted);
    }
    return false;
}

static void put_line(struct hps_audit *audit, const struct hps_audit_event *event, const char *line,
                     size_t size)
{
    if ((event->refused || event->on_loop) && post_line(audit, line, size)) {
        return;
    }
    if (event->refused) {
        count_lost(audit, "too many admin calls are waiting, or no memory");
    } else {
        write_line(audit, line, size);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static enum kind kind_of(const struct hps_audit_event *event)
{
    return event->code == 0 ? DONE : event->refused ? REFUSED : FAILED;
}

static const char *text(const char *text_or_null)
{
    return text_or_null != NULL ? text_or_null : "";
}

static void fields_of(const struct hps_audit_event *event, uint32_t suppressed,
                      struct hps_log_field out_fields[FIELDS_MAX])
{
    static const char *const results[KINDS] = {"refused", "failed", "done"};
    const struct hps_log_field own[FIELDS_OWN] = {
        HPS_STR("method", text(event->method)), HPS_STR("model", text(event->model)),
        HPS_I64("version", event->version),     HPS_STR("who", text(event->who)),
        HPS_STR("peer", text(event->peer)),     HPS_STR("result", results[kind_of(event)]),
        HPS_I64("code", event->code),           HPS_STR("error", text(event->error)),
    };
    size_t n = 0;
    while (own[n].name != NULL) {
        out_fields[n] = own[n];
        n++;
    }
    if (suppressed > 0) {
        out_fields[n++] = HPS_U64("suppressed", suppressed);
    }
    for (size_t i = 0; event->request != NULL && event->request[i].name != NULL; i++) {
        if (n == FIELDS_MAX - 2) {
            out_fields[n++] = HPS_STR("request", "has more fields");
            break;
        }
        out_fields[n++] = event->request[i];
    }
    out_fields[n] = HPS_LOG_END;
}

static void write_event(struct hps_audit *audit, const struct hps_audit_event *event,
                        uint32_t suppressed)
{
    HPS_ASSERT(event->method != NULL && (!event->refused || event->code != 0));
    struct hps_log_site site = {0}; /* no rate limit here */
    struct hps_log_field fields[FIELDS_MAX];
    fields_of(event, suppressed, fields);
    if (!event->logged) {
        hps_log_write(&site, HPS_LOG_INFO, "audit", event->refused ? "call refused" : "admin call",
                      fields);
    }
    if (audit->fd >= 0) {
        char line[HPS_LOG_LINE_BYTES];
        put_line(audit, event, line, hps_log_line(fields, line));
    }
}

void hps_audit_write(struct hps_audit *audit, const struct hps_audit_event *event)
{
    write_event(audit, event, 0);
}

void hps_audit_limited(struct hps_audit *audit, const struct hps_audit_event *event)
{
    const char *who = text(event->who);
    uint64_t hash = hps_hash_bytes(who, strlen(who), 0);
    uint32_t suppressed = 0;
    if (hps_log_site_admit(hps_log_site_of(audit->sites[kind_of(event)], hash), &suppressed)) {
        write_event(audit, event, suppressed);
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

struct hps_audit *hps_audit_new(int fd, struct hps_metric *lost)
{
    struct hps_audit *audit = hps_calloc(1, sizeof(*audit));
    HPS_ASSERT(fd >= -1 && lost != NULL);
    if (audit == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    audit->fd = fd;
    audit->lost = lost;
    return audit;
}

void hps_audit_pool_set(struct hps_audit *audit, struct hps_pool *pool)
{
    audit->pool = pool;
}

void hps_audit_reopened(struct hps_audit *audit, int fd)
{
    HPS_ASSERT((fd >= 0) == (audit->fd >= 0)); /* only a restart adds or removes the file */
    if (fd < 0) {
        return;
    }
    int moved;
    do {
        moved = dup3(fd, audit->fd, O_CLOEXEC);
    } while (moved < 0 && (errno == EINTR || errno == EBUSY));
    HPS_ASSERT(moved == audit->fd); /* both descriptors are open */
    close(fd);
}

void hps_audit_free(struct hps_audit *audit)
{
    if (audit == NULL) {
        return;
    }
    if (audit->fd >= 0) {
        close(audit->fd);
    }
    hps_free(audit);
}
