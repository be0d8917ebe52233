/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about models: models, tables, load, activate, rollback, unload. One thread.
 */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/update_wait.h"
#include "tools/hpsctl.h"

/* ---- lists ----------------------------------------------------------------------------------- */

/* How far a warm-up of the host map is; empty: none is under way. */
static void warm_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    if (version->hot_key_count == 0) {
        hpsctl_table_cell(table, "%s", "");
    } else {
        hpsctl_table_cell(table, "%.0f %%",
                          100.0 * (double)version->warm_key_count / (double)version->hot_key_count);
    }
}

/* Memory on its device, or why it has none. */
static void device_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    char text[HPSCTL_TEXT_BYTES];

    hpsctl_table_cell(table, "%s",
                      version->device_note[0] != '\0'
                          ? version->device_note
                          : hpsctl_bytes_text(version->device_bytes, text));
}

/* When it was loaded, or how much of it is. */
static void loaded_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    char text[HPSCTL_TEXT_BYTES];

    if (strcmp(version->state, "loading") == 0) {
        hpsctl_table_cell(table, "%d %%", (int)(100.0 * version->load_ratio));
    } else {
        hpsctl_table_cell(table, "%s", hpsctl_time_text(version->loaded_unix_ms, text));
    }
}

/* Models that have no version yet, and why. */
static void print_reasons(const Hps__V1__ListModelsResponse *list)
{
    for (size_t m = 0; m < list->n_models; m++) {
        if (list->models[m]->reason[0] != '\0') {
            printf("%s\n", list->models[m]->reason);
        }
    }
}

static int print_models(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL",  ">VERSION", "STATE",  "LABEL", ">TABLES",
                                          ">ROWS",  ">GPU",     ">HOST",  ">WARM", ">DISK",
                                          "LOADED", "LINEAGE",  "SOURCE", NULL};
    const Hps__V1__ListModelsResponse *list = reply;
    struct hpsctl_table table;
    char text[HPSCTL_TEXT_BYTES];

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t m = 0; m < list->n_models; m++) {
        const Hps__V1__ModelInfo *model = list->models[m];
        for (size_t v = 0; v < model->n_versions; v++) {
            const Hps__V1__VersionInfo *version = model->versions[v];
            hpsctl_table_cell(&table, "%s", model->model);
            hpsctl_table_cell(&table, "%" PRId64, version->version);
            hpsctl_table_cell(&table, "%s", version->state);
            hpsctl_table_cell(&table, "%s", version->label);
            hpsctl_table_cell(&table, "%" PRIu32, version->table_count);
            hpsctl_rows_cell(&table, version->row_count, version->row_count_estimated);
            device_cell(&table, version);
            hpsctl_table_cell(&table, "%s", hpsctl_bytes_text(version->host_bytes, text));
            warm_cell(&table, version);
            hpsctl_table_cell(&table, "%s", hpsctl_bytes_text(version->persistent_bytes, text));
            loaded_cell(&table, version);
            hpsctl_table_cell(&table, "%s", version->lineage);
            hpsctl_table_cell(&table, "%s", version->source);
        }
    }
    int code = hpsctl_table_print(&table);
    print_reasons(list);
    return code;
}

int hpsctl_models(struct hpsctl *ctl)
{
    Hps__V1__ListModelsRequest request = HPS__V1__LIST_MODELS_REQUEST__INIT;

    return hpsctl_call_print(ctl, "ListModels", &request.base,
                             &hps__v1__list_models_response__descriptor, print_models);
}

static int64_t tables_version;

const struct hps_arg hpsctl_tables_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &tables_version, "of this version (default: the active one)"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

static void table_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info)
{
    hpsctl_table_cell(table, "%s", info->model);
    hpsctl_table_cell(table, "%" PRId64, info->version);
    hpsctl_table_cell(table, "%" PRIu32, info->place);
    hpsctl_table_cell(table, "%s", info->table);
    hpsctl_table_cell(table, "%" PRIu32, info->dim);
    hpsctl_table_cell(table, "%s", info->data_type);
    hpsctl_rows_cell(table, info->row_count, info->row_count_estimated);
}

/* The embedding cache of a table, and which part of the rows is there. */
static void cache_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info)
{
    char text[HPSCTL_TEXT_BYTES];
    double n_rows = (double)info->row_count;

    if (info->device_bytes == 0) {
        for (int i = 0; i < 3; i++) {
            hpsctl_table_cell(table, "%s", "");
        }
        return;
    }
    hpsctl_table_cell(table, "%s", hpsctl_bytes_text(info->device_bytes, text));
    hpsctl_table_cell(table, "%" PRIu64, info->device_row_count);
    hpsctl_table_cell(table, "%.0f %%",
                      n_rows > 0 ? 100.0 * (double)info->device_row_count / n_rows : 0.0);
}

static int print_tables(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL",     ">VERSION",   ">PLACE", "TABLE",
                                          ">DIM",      "TYPE",       ">ROWS",  ">GPU",
                                          ">GPU ROWS", ">GPU SHARE", NULL};
    const Hps__V1__ListTablesResponse *list = reply;
    struct hpsctl_table table;

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < list->n_tables; i++) {
        table_cells(&table, list->tables[i]);
        cache_cells(&table, list->tables[i]);
    }
    return hpsctl_table_print(&table);
}

int hpsctl_tables(struct hpsctl *ctl)
{
    Hps__V1__ListTablesRequest request = HPS__V1__LIST_TABLES_REQUEST__INIT;

    request.model = ctl->n_words > 0 ? ctl->words[0] : request.model;
    request.version = tables_version;
    return hpsctl_call_print(ctl, "ListTables", &request.base,
                             &hps__v1__list_tables_response__descriptor, print_tables);
}

/* ---- load ------------------------------------------------------------------------------------ */

enum { BAR_WIDTH = 28, LINE_STEP_PERCENT = 10, LOAD_REQUEST_BYTES_MAX = 16 << 20 };

static struct {
    const char *from;
    struct hps_arg_list tables;
    const char *config;
    const char *model;
    int64_t version;
    const char *label;
    const char *lineage;
    bool activate;
    bool dry_run;
    bool no_wait;
    bool force;
    bool replace;
} load_flags;

const struct hps_arg hpsctl_load_args[] = {
    {"from", 0, HPS_ARG_TEXT, "DIR", &load_flags.from,
     "directory of the model files, on the server's machine and below its model_roots"},
    {"table", 0, HPS_ARG_LIST, "NAME=PATH", &load_flags.tables,
     "instead: a table's directory or file; repeatable, in the order of the model's tables"},
    {"config", 0, HPS_ARG_TEXT, "FILE", &load_flags.config,
     "instead: the sparse_files of the model in this ps.json, under its table names"},
    {"model", 0, HPS_ARG_TEXT, "NAME", &load_flags.model, "its name in that file (default: MODEL)"},
    {"version", 0, HPS_ARG_I64, "N", &load_flags.version, "its number (default: the highest + 1)"},
    {"label", 0, HPS_ARG_TEXT, "TEXT", &load_flags.label, "a name for people"},
    {"lineage", 0, HPS_ARG_TEXT, "NAME", &load_flags.lineage,
     "training run it belongs to (default: that of the newest version)"},
    {"activate", 0, HPS_ARG_FLAG, NULL, &load_flags.activate, "switch to it when it is loaded"},
    {"force", 0, HPS_ARG_FLAG, NULL, &load_flags.force,
     "with --activate: however much it differs from the active version"},
    {"replace", 0, HPS_ARG_FLAG, NULL, &load_flags.replace,
     "unload versions that never were active, once this one is loaded"},
    {"dry-run", 0, HPS_ARG_FLAG, NULL, &load_flags.dry_run,
     "check the files, say what disk and memory they need and what they would change"},
    {"no-wait", 0, HPS_ARG_FLAG, NULL, &load_flags.no_wait, "return once the load has begun"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

static volatile bool load_interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    load_interrupted = true;
}

struct load_view {
    struct hpsctl *ctl;
    bool terminal;
    bool any;
    bool done;
    bool short_of_room; /* dry run: it would not fit */
    char stage[24];
    unsigned percent_shown;
    size_t line_width; /* of the bar last drawn */
    bool going_told;   /* which versions go */
};

static unsigned progress_percent(const Hps__V1__LoadProgress *progress)
{
    uint64_t done = progress->bytes_total > 0 ? progress->bytes_done : progress->rows_done;
    uint64_t total = progress->bytes_total > 0 ? progress->bytes_total : progress->rows_total;

    if (total == 0) {
        return 0;
    }
    double percent = 100.0 * (double)done / (double)total;
    return percent > 100.0 ? 100 : (unsigned)percent;
}

static void progress_text(const Hps__V1__LoadProgress *progress, char *out, size_t size)
{
    char bytes[HPSCTL_TEXT_BYTES], left[HPSCTL_TEXT_BYTES];
    bool remaining = progress->remaining_ms > 0;

    (void)snprintf(out, size, "%-6s %3u%%  %" PRIu64 " rows  %s%s%s", progress->stage,
                   progress_percent(progress), progress->rows_done,
                   hpsctl_bytes_text(progress->bytes_done, bytes), remaining ? "  left " : "",
                   remaining ? hpsctl_duration_text((progress->remaining_ms + 999) / 1000, left)
                             : "");
}

static void draw_bar(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    unsigned filled = progress_percent(progress) * BAR_WIDTH / 100;
    char text[160], bar[BAR_WIDTH + 1];

    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    progress_text(progress, text, sizeof(text));
    int n = fprintf(stderr, "\r[%s] %s", bar, text);
    size_t width = n > 0 ? (size_t)n : 0;
    if (width < view->line_width) {
        (void)fprintf(stderr, "%*s", (int)(view->line_width - width), "");
    }
    view->line_width = width;
    (void)fflush(stderr);
}

static void end_bar(struct load_view *view)
{
    if (view->line_width > 0) {
        (void)fputc('\n', stderr);
        view->line_width = 0;
    }
}

static void draw_line(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    unsigned percent = progress_percent(progress);
    char text[160];

    if (strncmp(view->stage, progress->stage, sizeof(view->stage) - 1) == 0 &&
        percent < view->percent_shown + LINE_STEP_PERCENT) {
        return;
    }
    (void)snprintf(view->stage, sizeof(view->stage), "%s", progress->stage);
    view->percent_shown = percent;
    progress_text(progress, text, sizeof(text));
    (void)fprintf(stderr, "%s\n", text);
}

static void need_cells(struct hpsctl_table *table, const char *what, uint64_t needed,
                       uint64_t available)
{
    char text[HPSCTL_TEXT_BYTES];

    hpsctl_table_cell(table, "%s", what);
    hpsctl_table_cell(table, "%s", hpsctl_bytes_text(needed, text));
    hpsctl_table_cell(table, "%s", hpsctl_bytes_text(available, text));
    hpsctl_table_cell(table, "%s", needed <= available ? "yes" : "NO");
}

/* What there is of it only others know; 0: nothing of it is needed. */
static void only_needed_cells(struct hpsctl_table *table, const char *resource, uint64_t needed)
{
    char text[HPSCTL_TEXT_BYTES];
    if (needed > 0) {
        hpsctl_table_cell(table, "%s", resource);
        hpsctl_table_cell(table, "%s", hpsctl_bytes_text(needed, text));
        hpsctl_table_cell(table, "-");
        hpsctl_table_cell(table, "-");
    }
}

static void print_plan(const Hps__V1__LoadPlan *plan)
{
    static const char *const tables[] = {"MODEL", ">VERSION", ">PLACE", "TABLE",
                                         ">DIM",  "TYPE",     ">ROWS",  NULL};
    static const char *const columns[] = {"RESOURCE", ">NEEDED", ">AVAILABLE", "FITS", NULL};
    struct hpsctl_table table;

    hpsctl_table_init(&table, tables);
    for (size_t i = 0; i < plan->n_tables; i++) {
        table_cells(&table, plan->tables[i]);
    }
    (void)hpsctl_table_print(&table);
    printf("\n");
    hpsctl_table_init(&table, columns);
    need_cells(&table, "disk", plan->disk_bytes_needed, plan->disk_bytes_available);
    need_cells(&table, "host memory", plan->host_bytes_needed, plan->host_bytes_available);
    only_needed_cells(&table, "redis", plan->redis_bytes_needed);
    only_needed_cells(&table, "device memory", plan->device_bytes_needed);
    (void)hpsctl_table_print(&table);
    if (plan->dropped_row_count > 0) {
        printf("\nwarning: %" PRIu64 " rows are beyond volatile_db.overflow_margin and would be "
               "dropped; no other store has them\n",
               plan->dropped_row_count);
    }
}

/* "before -> after", or what there is of a table that only one version has. */
static void change_cell(struct hpsctl_table *table, const Hps__V1__TableDiff *diff, uint64_t before,
                        uint64_t after)
{
    if (diff->dim_before == 0) {
        hpsctl_table_cell(table, "%" PRIu64, after);
    } else if (diff->dim_after == 0 || before == after) {
        hpsctl_table_cell(table, "%" PRIu64, before);
    } else {
        hpsctl_table_cell(table, "%" PRIu64 " -> %" PRIu64, before, after);
    }
}

static void diff_cells(struct hpsctl_table *table, const Hps__V1__TableDiff *diff)
{
    bool same_type = strcmp(diff->data_type_before, diff->data_type_after) == 0;

    hpsctl_table_cell(table, "%s", diff->table);
    hpsctl_table_cell(table, "%s",
                      diff->dim_before == 0  ? "new"
                      : diff->dim_after == 0 ? "gone"
                                             : "changed");
    change_cell(table, diff, diff->dim_before, diff->dim_after);
    hpsctl_table_cell(table, "%s%s%s", diff->data_type_before, same_type ? "" : " -> ",
                      same_type ? "" : diff->data_type_after);
    change_cell(table, diff, diff->row_count_before, diff->row_count_after);
    if (diff->row_count_before > 0 && diff->dim_after > 0) {
        double before = (double)diff->row_count_before;
        hpsctl_table_cell(table, "%+.1f %%",
                          100.0 * ((double)diff->row_count_after - before) / before);
    } else {
        hpsctl_table_cell(table, "%s", "");
    }
}

/* What another version changes, table by table; nothing where nothing does. */
static void print_diffs(int64_t version, int64_t before, Hps__V1__TableDiff **diffs, size_t n)
{
    static const char *const columns[] = {"TABLE", "STATE",   ">DIM", ">TYPE",
                                          ">ROWS", ">CHANGE", NULL};
    struct hpsctl_table table;

    if (n == 0) {
        return;
    }
    printf("\nversion %" PRId64 " against version %" PRId64
           " (rows as loaded; tables not named are the same):\n",
           version, before);
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < n; i++) {
        diff_cells(&table, diffs[i]);
    }
    (void)hpsctl_table_print(&table);
}

static void print_numbers(FILE *to, const char *model, const char *what, const int64_t *numbers,
                          size_t n)
{
    if (n == 0) {
        return;
    }
    (void)fprintf(to, "%s: %s: version", model, what);
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(to, "%s %" PRId64, i > 0 ? "," : "", numbers[i]);
    }
    (void)fputc('\n', to);
}

static void show_done(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    end_bar(view);
    printf("%s version %" PRId64 " loaded, %" PRIu64 " rows%s", progress->model, progress->version,
           progress->row_count, progress->activated ? ", active" : "");
    if (progress->duplicate_key_count > 0) {
        printf("; %" PRIu64 " duplicate keys, the last row of each was kept",
               progress->duplicate_key_count);
    }
    printf("\n");
    if (progress->dropped_row_count > 0) {
        printf("warning: %" PRIu64
               " of its rows were dropped by volatile_db.overflow_margin, and no "
               "other store has them\n",
               progress->dropped_row_count);
    }
    if (!progress->activated) {
        printf("it is not active yet: hpsctl activate %s %" PRId64 "\n", progress->model,
               progress->version);
    }
    print_numbers(stdout, progress->model, "unloaded", progress->unload_versions,
                  progress->n_unload_versions);
    print_diffs(progress->version, progress->active_version, progress->diffs, progress->n_diffs);
}

static void show_plan(const Hps__V1__LoadProgress *progress)
{
    const Hps__V1__LoadPlan *plan = progress->plan;

    print_plan(plan);
    print_diffs(progress->version, progress->active_version, plan->diffs, plan->n_diffs);
    if (plan->n_unload_versions > 0) {
        printf("\n");
    }
    print_numbers(stdout, progress->model, "would be unloaded", plan->unload_versions,
                  plan->n_unload_versions);
}

static void tell_going(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    if (!view->going_told && !progress->done) {
        view->going_told = true;
        print_numbers(stderr, progress->model, "will be unloaded", progress->unload_versions,
                      progress->n_unload_versions);
    }
}

static void show_progress(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    tell_going(view, progress);
    if (progress->plan != NULL) {
        end_bar(view);
        show_plan(progress);
    } else if (progress->done && !load_flags.dry_run) {
        show_done(view, progress);
    } else if (progress->done) {
        end_bar(view);
    } else if (view->terminal) {
        draw_bar(view, progress);
    } else {
        draw_line(view, progress);
    }
}

static hps_status on_progress(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    struct load_view *view = ctx;
    ProtobufCMessage *message = NULL;
    hps_status status =
        hps_message_decode(&hps__v1__load_progress__descriptor, data, size, &message, err);

    if (status != HPS_OK) {
        return status;
    }
    const Hps__V1__LoadProgress *progress = (const Hps__V1__LoadProgress *)message;
    view->any = true;
    view->done = view->done || progress->done;
    if (progress->plan != NULL) {
        view->short_of_room =
            progress->plan->disk_bytes_needed > progress->plan->disk_bytes_available ||
            progress->plan->host_bytes_needed > progress->plan->host_bytes_available;
    }
    if (hpsctl_json(view->ctl)) {
        struct hps_buf buf;
        hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
        status = hps_message_json(message, &buf);
        (void)hpsctl_print_buf(&buf, status);
    } else {
        show_progress(view, progress);
    }
    hps_message_free(message);
    return HPS_OK;
}

static int load_result(struct hpsctl *ctl, struct load_view *view, hps_status status,
                       const struct hps_error *err)
{
    end_bar(view);
    if (load_interrupted && status != HPS_OK) {
        (void)fprintf(stderr, "hpsctl: the load of %s goes on in the server; see `hpsctl models`\n",
                      ctl->words[0]);
        return HPSCTL_INTERRUPTED;
    }
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, err);
    }
    if (load_flags.dry_run) {
        return view->short_of_room ? HPSCTL_NEGATIVE : HPSCTL_OK;
    }
    if (load_flags.no_wait && !view->done && !hpsctl_json(ctl)) {
        printf("the load of %s has begun; see `hpsctl models`\n", ctl->words[0]);
    }
    return HPSCTL_OK;
}

/* What the command line says comes before what the configuration file does. */
static void load_request(struct hpsctl *ctl, const struct hpsctl_load_files *files,
                         Hps__V1__LoadModelRequest *out_request)
{
    const char *label = load_flags.label != NULL ? load_flags.label : files->label;
    const char *lineage = load_flags.lineage != NULL ? load_flags.lineage : files->lineage;
    Hps__V1__LoadModelRequest request = HPS__V1__LOAD_MODEL_REQUEST__INIT;
    request.model = ctl->words[0];
    request.directory = files->directory != NULL ? files->directory : request.directory;
    request.tables = files->pointers;
    request.n_tables = files->n_tables;
    request.version = load_flags.version != 0 ? load_flags.version : files->version;
    request.label = label != NULL ? (char *)(uintptr_t)label : request.label;
    request.lineage = lineage != NULL ? (char *)(uintptr_t)lineage : request.lineage;
    request.activate = load_flags.activate;
    request.dry_run = load_flags.dry_run;
    request.no_wait = load_flags.no_wait;
    request.force = load_flags.force;
    request.replace = load_flags.replace;
    *out_request = request;
}

int hpsctl_load(struct hpsctl *ctl)
{
    const struct hpsctl_load_from from = {load_flags.from, &load_flags.tables, load_flags.config,
                                          load_flags.model};
    struct hpsctl_load_files files;
    Hps__V1__LoadModelRequest request;
    struct load_view view = {.ctl = ctl, .terminal = isatty(STDERR_FILENO) == 1};
    struct sigaction action = {.sa_handler = on_interrupt};
    struct hps_error err = {0};
    struct hps_buf encoded;

    int code = hpsctl_load_files_open(ctl, &from, &files);
    if (code != HPSCTL_OK) {
        return code;
    }
    load_request(ctl, &files, &request);
    hps_buf_init(&encoded, LOAD_REQUEST_BYTES_MAX);
    hps_status status = hps_message_encode(&request.base, &encoded, &err);
    if (status == HPS_OK) {
        (void)sigaction(SIGINT, &action, NULL);
        status =
            hps_client_stream(ctl->client, "/hps.v1.Admin/LoadModel", encoded.data, encoded.size,
                              ctl->timeout_us, on_progress, &view, &load_interrupted, &err);
    }
    hps_buf_fini(&encoded);
    hpsctl_load_files_free(&files);
    return load_result(ctl, &view, status, &err);
}

/* ---- switch ---------------------------------------------------------------------------------- */

enum { UPDATES_US = 10 * 1000 * 1000 };

static void print_activated(const struct hpsctl *ctl,
                            const Hps__V1__ActivateVersionResponse *answer)
{
    printf("%s: version %" PRId64 " is active", ctl->words[0], answer->version);
    if (answer->previous_version != 0 && answer->previous_version != answer->version) {
        printf(" (was %" PRId64 ")", answer->previous_version);
    }
    printf(", switched in %" PRIu64 " us\n", answer->pause_us);
    print_numbers(stdout, ctl->words[0], "unloaded", answer->unload_versions,
                  answer->n_unload_versions);
    print_diffs(answer->version, answer->previous_version, answer->diffs, answer->n_diffs);
}

/* A version of another lineage may have frozen this one before: it is served as it was then, and
 * nobody would notice. The refresh is answered by the version's updater, which knows by then. */
static void warn_frozen(struct hpsctl *ctl, const char *model, int64_t version)
{
    Hps__V1__GetUpdatesResponse *now = NULL;
    struct hps_error err = {0};
    uint64_t timeout_us = ctl->timeout_us != 0 ? ctl->timeout_us : UPDATES_US;

    hps_status status = hps_update_ask(ctl->client, model, version, true, timeout_us, &now, &err);
    if (status == HPS_UNAVAILABLE || status == HPS_DEADLINE) { /* the log does not answer */
        err = (struct hps_error){0};
        status = hps_update_ask(ctl->client, model, version, false, timeout_us, &now, &err);
    }
    if (status == HPS_PRECONDITION || status == HPS_NOT_FOUND) {
        return; /* it takes no updates */
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "hpsctl: whether it follows its updates is not known: %s\n",
                      err.text);
        return;
    }
    for (size_t v = 0; v < now->n_versions; v++) {
        if (now->versions[v]->frozen) {
            hps_ignore(hps_update_say_frozen(now->versions[v], &err));
            (void)fprintf(stderr, "hpsctl: warning: %s\n", err.text);
        }
    }
    hps_message_free(&now->base);
}

static int switch_version(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request)
{
    Hps__V1__ActivateVersionResponse *answer = NULL;

    int code =
        hpsctl_call(ctl, method, request, &hps__v1__activate_version_response__descriptor, &answer);
    if (code != HPSCTL_OK) {
        return code;
    }
    if (hpsctl_json(ctl)) {
        struct hps_buf buf;
        hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
        code = hpsctl_print_buf(&buf, hps_message_json(&answer->base, &buf));
    } else {
        print_activated(ctl, answer);
    }
    (void)fflush(stdout);
    warn_frozen(ctl, ctl->words[0], answer->version);
    hps_message_free(&answer->base);
    return code;
}

static bool activate_force;

const struct hps_arg hpsctl_activate_args[] = {
    {"force", 0, HPS_ARG_FLAG, NULL, &activate_force,
     "however much it differs from the active version (tables, widths, rows)"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

int hpsctl_activate(struct hpsctl *ctl)
{
    Hps__V1__ActivateVersionRequest request = HPS__V1__ACTIVATE_VERSION_REQUEST__INIT;

    request.model = ctl->words[0];
    request.force = activate_force;
    if (!hpsctl_version_arg(ctl, ctl->words[1], &request.version)) {
        return HPSCTL_USAGE;
    }
    int code = switch_version(ctl, "ActivateVersion", &request.base);
    if (code == HPSCTL_DEADLINE) {
        (void)fprintf(stderr, "hpsctl: a switch that has begun goes on in the server; see "
                              "`hpsctl models`\n");
    }
    return code;
}

int hpsctl_rollback(struct hpsctl *ctl)
{
    Hps__V1__RollbackModelRequest request = HPS__V1__ROLLBACK_MODEL_REQUEST__INIT;

    request.model = ctl->words[0];
    return switch_version(ctl, "RollbackModel", &request.base);
}

static int print_unloaded(struct hpsctl *ctl, const void *reply)
{
    (void)reply;
    printf("%s: version %s is unloaded\n", ctl->words[0], ctl->words[1]);
    return HPSCTL_OK;
}

int hpsctl_unload(struct hpsctl *ctl)
{
    Hps__V1__UnloadVersionRequest request = HPS__V1__UNLOAD_VERSION_REQUEST__INIT;

    request.model = ctl->words[0];
    if (!hpsctl_version_arg(ctl, ctl->words[1], &request.version)) {
        return HPSCTL_USAGE;
    }
    int code = hpsctl_call_print(ctl, "UnloadVersion", &request.base,
                                 &hps__v1__unload_version_response__descriptor, print_unloaded);
    if (code == HPSCTL_DEADLINE) {
        (void)fprintf(stderr, "hpsctl: an unload that has begun goes on in the server; see "
                              "`hpsctl models`\n");
    }
    return code;
}
