/* SPDX-License-Identifier: Apache-2.0
 *
 * A reload: read the configuration and its files again, and apply the reloadable options.
 * Everything that can fail comes first; until then nothing has changed. Main thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/store_servers.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "config/secrets.h"
#include "server/daemon_internal.h"
#include "server/observe/notify.h"

/* LINE_BYTES: the longest field of a log line. */
enum { REPORT_BYTES_MAX = 16 << 20, LINE_BYTES = 1024 };

_Static_assert(LINE_BYTES > sizeof(struct hps_config_change) + 16, "a line holds any change");

/* ---- report ---------------------------------------------------------------------------------- */

/* Names, each terminated by NUL, one after the other. */
struct report {
    struct hps_buf applied;
    struct hps_buf restart;
};

static void report_init(struct report *report)
{
    hps_buf_init(&report->applied, REPORT_BYTES_MAX);
    hps_buf_init(&report->restart, REPORT_BYTES_MAX);
}

static void report_fini(struct report *report)
{
    hps_buf_fini(&report->applied);
    hps_buf_fini(&report->restart);
}

static void report_change(void *ctx, const struct hps_config_change *change)
{
    struct report *report = ctx;
    if (change->reloadable) {
        hps_buf_putf(&report->applied, "%s: %s -> %s%c", change->path, change->before,
                     change->after, '\0');
    } else {
        hps_buf_putf(&report->restart, "%s%c", change->path, '\0');
    }
}

static void write_applied(const char *text)
{
    HPS_LOG(INFO, "config", "reloaded", HPS_STR("applied", text));
}

static void write_restart(const char *text)
{
    HPS_LOG(WARN, "config", "options not applied: they need a restart; see keys",
            HPS_STR("keys", text));
}

/* Log all names in one line, or in several if they are longer than a field. */
static void write_list(const struct hps_buf *names, void (*write)(const char *text))
{
    char line[LINE_BYTES] = "";
    size_t size = 0;
    size_t at = 0;
    while (at < names->size) {
        const char *name = (const char *)names->data + at;
        size_t name_size = strlen(name);
        if (size > 0 && size + 2 + name_size >= sizeof(line)) {
            write(line);
            size = 0;
        }
        size +=
            (size_t)snprintf(line + size, sizeof(line) - size, "%s%s", size > 0 ? ", " : "", name);
        at += name_size + 1;
    }
    if (size > 0) {
        write(line);
    }
}

static void report_write(const struct report *report)
{
    if (report->applied.size == 0) {
        write_applied("nothing");
    }
    write_list(&report->applied, write_applied);
    write_list(&report->restart, write_restart);
}

static void log_warnings(const struct hps_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++) {
        if (hps_note_is_warning(&notes->items[i])) {
            HPS_LOG(WARN, "config", notes->items[i].text);
        }
    }
}

/* ---- preparation ----------------------------------------------------------------------------- */

/* New limits, posted to a loop. */
struct limits_task {
    struct hps_task task;
    struct limits_task *next;
    struct loop_thread *thread;
    struct hps_grpc_limits limits;
};

struct prepared {
    struct hps_access_rules *rules;
    struct daemon_tls tls;
    struct hps_strings model_roots;
    int audit_fd;               /* -1: none */
    struct limits_task *limits; /* one for each loop */
};

static void prepared_free(struct prepared *prepared)
{
    hps_access_rules_unref(prepared->rules);
    daemon_tls_free(&prepared->tls);
    hps_strings_fini(&prepared->model_roots);
    if (prepared->audit_fd >= 0) {
        close(prepared->audit_fd);
    }
    while (prepared->limits != NULL) {
        struct limits_task *next = prepared->limits->next;
        hps_free(prepared->limits);
        prepared->limits = next;
    }
}

static void run_limits(struct hps_task *task) /* loop thread */
{
    struct limits_task *mine = (struct limits_task *)task;
    if (mine->thread->grpc != NULL) {
        hps_grpc_loop_limits_set(mine->thread->grpc, &mine->limits);
    }
    hps_free(mine);
}

static hps_status prepare_limits(struct hps_daemon *daemon, const struct hps_config_server *config,
                                 struct prepared *prepared)
{
    for (unsigned i = 0; i < daemon->n_threads; i++) {
        struct limits_task *one = hps_calloc(1, sizeof(*one));
        if (one == NULL) {
            return HPS_NO_MEMORY;
        }
        one->task.run = run_limits;
        one->thread = &daemon->threads[i];
        daemon_grpc_limits(config, &one->limits);
        one->next = prepared->limits;
        prepared->limits = one;
    }
    return HPS_OK;
}

/* config: the new one */
static hps_status prepare(struct hps_daemon *daemon, const struct hps_config_server *config,
                          struct prepared *prepared, struct hps_error *err)
{
    hps_status status = daemon_read_rules(config, &prepared->rules, err);
    if (status == HPS_OK) {
        status = daemon_make_tls(config, &prepared->tls, err);
    }
    if (status == HPS_OK) {
        status = hps_audit_open(config->audit_log, &prepared->audit_fd, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    status = hps_strings_copy(&config->model_roots, &prepared->model_roots);
    if (status == HPS_OK) {
        status = prepare_limits(daemon, config, prepared);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory");
    }
    /* Last, because it cannot be undone. */
    struct hps_store *shared = hps_stores_shared(&daemon->options.env.stores);
    bool renews = shared != NULL && shared->ops->servers != NULL;
    return renews ? shared->ops->servers->renew_tls(shared, err) : HPS_OK;
}

/* ---- application ----------------------------------------------------------------------------- */

/* Cannot fail. Takes ownership of all members of `prepared`. */
static void apply(struct hps_daemon *daemon, struct prepared *prepared)
{
    const struct hps_config *config = daemon->options.config;
    const struct hps_config_server *server = &config->server;
    struct hps_lookup_limits lookup;
    struct hps_place_limits places;
    hps_slowlog_threshold_set(daemon->slowlog, (uint64_t)server->slow_request_ms * 1000);
    struct hps_limits_options limits;
    daemon_limits(server, &limits);
    hps_limits_set(daemon->limits, &limits);
    daemon_pools_limits(daemon, server);
    daemon_lookup_limits(server, &lookup);
    hps_lookup_service_limits_set(daemon->lookup, &lookup);
    daemon_place_limits(server, false, &places);
    hps_acceptor_limits_set(daemon->acceptor, &places);
    daemon_place_limits(server, true, &places);
    hps_acceptor_limits_set(daemon->admin_acceptor, &places);
    daemon_pages_reload(daemon);
    hps_catalog_reconfigure(daemon->catalog, config, &prepared->model_roots);
    hps_access_rules_set(daemon->access, prepared->rules);
    prepared->rules = NULL;
    hps_audit_reopened(daemon->audit, prepared->audit_fd);
    prepared->audit_fd = -1;
    HPS_ASSERT(prepared->tls.grpc == NULL || daemon->tls.grpc != NULL);
    if (prepared->tls.grpc != NULL) {
        hps_tls_renew(daemon->tls.grpc, prepared->tls.grpc);
        hps_tls_renew(daemon->tls.http, prepared->tls.http);
        hps_tls_renew(daemon->tls.kserve, prepared->tls.kserve);
        prepared->tls = (struct daemon_tls){NULL, NULL, NULL};
    }
    daemon_recheck(daemon);
    while (prepared->limits != NULL) {
        struct limits_task *one = prepared->limits;
        prepared->limits = one->next;
        hps_loop_post(one->thread->loop, &one->task);
    }
}

/* ---- the reload ------------------------------------------------------------------------------ */

static hps_status read_next(const struct hps_daemon_options *options, struct hps_config **out_next,
                            struct hps_notes *notes, struct hps_error *err)
{
    struct hps_config *next = NULL;
    hps_status status = hps_config_parse_file(options->config_file, &next, notes, err);
    if (status == HPS_OK) {
        status = hps_config_finish(next, options->flags, notes, err);
    }
    if (status != HPS_OK) {
        hps_config_free(next);
        return status;
    }
    *out_next = next;
    return HPS_OK;
}

static void exchange(struct hps_daemon *daemon, struct hps_config *next)
{
    hps_lock_acquire(&daemon->config_lock);
    hps_config_exchange(daemon->options.config, next);
    hps_lock_release(&daemon->config_lock);
}

/* The exchange changes exactly the options that hps_config_diff reports as reloadable. */
static hps_status take_over(struct hps_daemon *daemon, struct hps_config *next,
                            struct report *report, struct hps_error *err)
{
    struct hps_config *running = daemon->options.config;
    struct prepared prepared = {.audit_fd = -1};
    hps_lock_acquire(&daemon->config_lock);
    running->server.log_level = (enum hps_config_log_level)hps_log_level_get();
    hps_lock_release(&daemon->config_lock);
    hps_status status = hps_config_diff(running, next, report_change, report);
    status = status == HPS_OK ? report->applied.status : status;
    status = status == HPS_OK ? report->restart.status : status;
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory");
    }
    exchange(daemon, next);
    status = prepare(daemon, &running->server, &prepared, err);
    if (status == HPS_OK) {
        apply(daemon, &prepared);
    } else {
        exchange(daemon, next); /* restore the old values */
    }
    prepared_free(&prepared);
    return status;
}

/* systemd copies the credentials of a unit (LoadCredential=) when it starts the unit. A reload
 * reads the same copies again. */
static void log_credentials(const struct hps_daemon *daemon)
{
    char options[512];
    if (hps_secrets_below(daemon->options.config, getenv("CREDENTIALS_DIRECTORY"), options,
                          sizeof(options)) > 0) {
        HPS_LOG(
            INFO, "config",
            "credentials not renewed: systemd copies them when it starts the unit; if they have "
            "changed, restart hpsd",
            HPS_STR("keys", options));
    }
}

/* The lines are logged if the old or the new level includes them. */
static void log_outcome(const struct hps_daemon *daemon, const struct report *report,
                        const struct hps_notes *notes)
{
    HPS_ASSERT(report->applied.status == HPS_OK && report->restart.status == HPS_OK);
    enum hps_log_level level = (enum hps_log_level)daemon->options.config->server.log_level;
    if (level < hps_log_level_get()) {
        hps_log_level_set(level);
    }
    log_warnings(notes);
    report_write(report);
    log_credentials(daemon);
    hps_log_level_set(level);
}

static hps_status reload(struct hps_daemon *daemon, struct hps_error *err)
{
    struct hps_config *next = NULL;
    struct hps_notes notes;
    struct report report;
    hps_notes_init(&notes);
    report_init(&report);
    hps_status status = read_next(&daemon->options, &next, &notes, err);
    if (status == HPS_OK) {
        status = take_over(daemon, next, &report, err);
    }
    for (size_t i = 0; i < notes.n; i++) {
        if (notes.items[i].kind == HPS_NOTE_ERROR && strcmp(notes.items[i].text, err->text) != 0) {
            HPS_LOG(ERROR, "config", "configuration invalid: see error",
                    HPS_STR("error", notes.items[i].text));
        }
    }
    if (status == HPS_OK) {
        log_outcome(daemon, &report, &notes);
    }
    hps_config_free(next);
    hps_notes_fini(&notes);
    report_fini(&report);
    return status;
}

/* Log rotation may have renamed the file, so it is opened again even if the reload failed. */
static void rotate_audit_log(struct hps_daemon *daemon)
{
    struct hps_error err = {0};
    int fd = -1;
    if (hps_audit_open(daemon->options.config->server.audit_log, &fd, &err) == HPS_OK) {
        hps_audit_reopened(daemon->audit, fd);
    } else {
        HPS_LOG(
            ERROR, "audit",
            "audit log not reopened: hpsd keeps writing to the old file; fix the cause and reload",
            HPS_STR("error", err.text));
    }
}

static void audit_reload(struct hps_daemon *daemon, const struct hps_error *err)
{
    const struct hps_audit_event event = {.method = "reload",
                                          .peer = "SIGHUP",
                                          .code = hps_status_grpc_code(err->status),
                                          .error = err->text,
                                          .logged = true};
    hps_audit_write(daemon->audit, &event);
}

static void reload_file(struct hps_daemon *daemon)
{
    struct hps_error err = {0};
    if (daemon->options.config_file == NULL) {
        HPS_LOG(INFO, "config", "configuration not reloaded: hpsd was started without a file");
        return;
    }
    hps_notify_reloading();
    if (reload(daemon, &err) != HPS_OK) {
        HPS_LOG(ERROR, "config",
                "configuration not reloaded: the new one is invalid, and no part of it is applied; "
                "fix the file and reload again",
                HPS_STR("error", err.text));
        rotate_audit_log(daemon);
    }
    audit_reload(daemon, &err);
    hps_notify_ready();
}

void daemon_reload(struct hps_daemon *daemon)
{
    if (daemon->phase != PHASE_SERVING) {
        return; /* draining */
    }
    reload_file(daemon);
    hps_catalog_retry_models(daemon->catalog); /* with the current configuration */
}
