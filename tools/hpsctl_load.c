/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl load: requests a new version and shows its progress. hpsctl_load_files.c names the files.
 * Main thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/hpsctl.h"

#include "base/assert.h"
#include "base/clock.h"

enum {
    BAR_WIDTH = 28,
    LINE_STEP_PERCENT = 10,
    LINE_US = 10000000,
    LOAD_REQUEST_BYTES_MAX = 16 << 20
};

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
    const char *row_dtype;
} load_flags;

const struct hps_arg hpsctl_load_args[] = {
    {"from", 0, HPS_ARG_TEXT, "DIR", &load_flags.from,
     "directory of the model files, or a .safetensors file, on the machine of the server and below "
     "its model_roots"},
    {"table", 0, HPS_ARG_LIST, "NAME=PATH", &load_flags.tables,
     "instead of --from: directory or file of one table, or FILE.safetensors:TENSOR; repeatable, "
     "in "
     "the order of the tables"},
    {"config", 0, HPS_ARG_TEXT, "FILE", &load_flags.config,
     "instead of --from: use the entry of the model in this ps.json (files, default rows, cache, "
     "policies)"},
    {"model", 0, HPS_ARG_TEXT, "NAME", &load_flags.model,
     "--config: name of the model in that file (default MODEL)"},
    {"version", 0, HPS_ARG_I64, "N", &load_flags.version,
     "number of the new version (default: the highest + 1)"},
    {"label", 0, HPS_ARG_TEXT, "TEXT", &load_flags.label,
     "name by which lookups can select the version (default none)"},
    {"lineage", 0, HPS_ARG_TEXT, "NAME", &load_flags.lineage,
     "training run of the version; all versions of a lineage apply the same updates (default: that "
     "of the newest version)"},
    {"row-dtype", 0, HPS_ARG_CHOICE, "fp32|fp16|bf16|int8_rowwise_f32|int8_rowwise_f16|file",
     &load_flags.row_dtype,
     "type of the stored rows; file: as in the files (default: models[].row_dtype of the server, "
     "else file)"},
    {"activate", 0, HPS_ARG_FLAG, NULL, &load_flags.activate,
     "activate the version when it is loaded"},
    {"force", 0, HPS_ARG_FLAG, NULL, &load_flags.force,
     "--activate: even if it differs a lot from the active version (tables, widths, rows)"},
    {"replace", 0, HPS_ARG_FLAG, NULL, &load_flags.replace,
     "after the load, unload the versions that were never active"},
    {"dry-run", 0, HPS_ARG_FLAG, NULL, &load_flags.dry_run,
     "load nothing; check the files, print the disk and memory that they need and the changes "
     "(exit 5: they do not fit)"},
    {"no-wait", 0, HPS_ARG_FLAG, NULL, &load_flags.no_wait, "return once the load has started"},
    HPS_ARGS_END,
};

struct load_view {
    struct hpsctl *ctl;
    bool done;
    bool short_of_room; /* dry run: the version would not fit */
    char stage[24];
    unsigned percent_shown;
    uint64_t shown_us;
    uint64_t began_us, began_bytes; /* of the first message, for the rate */
    bool unloads_printed;
    bool notes_printed;
    struct tool_progress bar;
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

static void progress_text(struct load_view *view, const Hps__V1__LoadProgress *progress, char *out,
                          size_t size)
{
    char bytes[HPSCTL_TEXT_BYTES], rate[HPSCTL_TEXT_BYTES], left[HPSCTL_TEXT_BYTES];
    bool remaining = progress->remaining_ms > 0;
    uint64_t now_us = hps_clock_us();

    if (view->began_us == 0) {
        view->began_us = now_us;
        view->began_bytes = progress->bytes_done;
    }
    double seconds = (double)(now_us - view->began_us) / 1e6;
    uint64_t moved = progress->bytes_done - view->began_bytes;
    (void)snprintf(out, size, "%-6s %3u%%  %" PRIu64 " rows  %s  %s/s%s%s", progress->stage,
                   progress_percent(progress), progress->rows_done,
                   hpsctl_bytes_text(progress->bytes_done, bytes),
                   hpsctl_bytes_text(seconds > 0 ? (uint64_t)((double)moved / seconds) : 0, rate),
                   remaining ? "  left " : "",
                   remaining ? hpsctl_duration_text((progress->remaining_ms + 999) / 1000, left)
                             : "");
}

static void draw_bar(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    HPS_ASSERT(view->bar.out != NULL);
    unsigned filled = progress_percent(progress) * BAR_WIDTH / 100;
    char text[160], bar[BAR_WIDTH + 1];

    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    progress_text(view, progress, text, sizeof(text));
    tool_progress_draw(&view->bar, "[%s] %s", bar, text);
}

static void draw_line(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    unsigned percent = progress_percent(progress);
    char text[160];

    if (strncmp(view->stage, progress->stage, sizeof(view->stage) - 1) == 0 &&
        percent < view->percent_shown + LINE_STEP_PERCENT &&
        hps_clock_us() < view->shown_us + LINE_US) {
        return;
    }
    (void)snprintf(view->stage, sizeof(view->stage), "%s", progress->stage);
    view->percent_shown = percent;
    view->shown_us = hps_clock_us();
    progress_text(view, progress, text, sizeof(text));
    (void)fprintf(stderr, "%s\n", text);
}

static void print_conversions(const Hps__V1__LoadProgress *progress)
{
    static const char *const columns[] = {"TABLE", "TYPE", ">LARGEST ERROR", ">MEAN ERROR", NULL};
    struct hpsctl_table table;

    if (progress->n_conversions == 0) {
        return;
    }
    printf("\nconverted (errors against the values of the files):\n");
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < progress->n_conversions; i++) {
        const Hps__V1__TableConversion *conversion = progress->conversions[i];
        hpsctl_table_cell(&table, "%s", conversion->table);
        hpsctl_table_cell(&table, "%s -> %s", conversion->data_type_from, conversion->data_type_to);
        hpsctl_table_cell(&table, "%.3g", conversion->error_max);
        hpsctl_table_cell(&table, "%.3g", conversion->error_mean);
    }
    (void)hpsctl_table_print(&table);
}

static void show_done(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    HPS_ASSERT(progress->done);
    tool_progress_end(&view->bar);
    printf("%s version %" PRId64 " loaded, %" PRIu64 " rows%s", progress->model, progress->version,
           progress->row_count, progress->activated ? ", active" : "");
    if (progress->duplicate_key_count > 0) {
        printf("; %" PRIu64 " duplicate keys, the last row of each was kept",
               progress->duplicate_key_count);
    }
    printf("\n");
    if (progress->dropped_row_count > 0) {
        printf("warning: volatile_db.overflow_margin dropped %" PRIu64
               " of its rows, and no other store keeps them\n",
               progress->dropped_row_count);
    }
    if (!progress->activated) {
        printf("it is not active yet; to activate it: hpsctl activate %s %" PRId64 "\n",
               progress->model, progress->version);
    }
    hpsctl_print_versions(stdout, progress->model, "unloaded", progress->unload_versions,
                          progress->n_unload_versions);
    print_conversions(progress);
    hpsctl_print_diffs(progress->version, progress->active_version, progress->diffs,
                       progress->n_diffs);
}

static void print_unloads(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    if (!view->unloads_printed && !progress->done) {
        view->unloads_printed = true;
        hpsctl_print_versions(stderr, progress->model, "will be unloaded",
                              progress->unload_versions, progress->n_unload_versions);
    }
}

/* Prints notes with the first message, because the load may take hours. */
static void print_notes(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    for (size_t i = 0; !view->notes_printed && i < progress->n_notes; i++) {
        printf("%s\n", progress->notes[i]);
    }
    (void)fflush(stdout);
    view->notes_printed = true;
}

static void show_progress(struct load_view *view, const Hps__V1__LoadProgress *progress)
{
    print_notes(view, progress);
    print_unloads(view, progress);
    if (progress->plan != NULL) {
        tool_progress_end(&view->bar);
        hpsctl_print_plan(progress);
    } else if (progress->done && !load_flags.dry_run) {
        show_done(view, progress);
    } else if (progress->done) {
        tool_progress_end(&view->bar);
    } else if (strcmp(progress->stage, "plan") == 0 && hps_clock_us() < view->shown_us + LINE_US) {
        return; /* only a load that waits for another one is long in this stage */
    } else if (view->bar.out != NULL) {
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
    if (!hpsctl_json(view->ctl) && hps_message_plain(message) != HPS_OK) {
        hps_message_free(message);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to show the progress");
    }
    const Hps__V1__LoadProgress *progress = (const Hps__V1__LoadProgress *)message;
    view->done = view->done || progress->done;
    if (progress->plan != NULL) {
        view->short_of_room =
            progress->plan->disk_bytes_needed > progress->plan->disk_bytes_available ||
            progress->plan->host_bytes_needed > progress->plan->host_bytes_available;
    }
    if (hpsctl_json(view->ctl)) {
        (void)hpsctl_print_json(message);
    } else {
        show_progress(view, progress);
    }
    hps_message_free(message);
    return HPS_OK;
}

static int load_result(struct hpsctl *ctl, struct load_view *view, hps_status status,
                       const struct hps_error *err)
{
    tool_progress_end(&view->bar);
    if (tool_interrupted() && status != HPS_OK) {
        (void)fprintf(stderr,
                      "hpsctl: the load of %s continues in the server; see `hpsctl models`\n",
                      ctl->words[0]);
        return TOOL_INTERRUPTED;
    }
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, err);
    }
    if (load_flags.dry_run) {
        return view->short_of_room ? TOOL_NEGATIVE : TOOL_OK;
    }
    if (load_flags.no_wait && !view->done && !hpsctl_json(ctl)) {
        printf("the load of %s has started; see `hpsctl models`\n", ctl->words[0]);
    }
    return TOOL_OK;
}

/* The command line has priority over the configuration file; the server applies this. */
static void load_request(struct hpsctl *ctl, const struct hpsctl_load_files *files,
                         Hps__V1__LoadModelRequest *out_request)
{
    HPS_ASSERT(files->directory == NULL || files->n_tables == 0);
    Hps__V1__LoadModelRequest request = HPS__V1__LOAD_MODEL_REQUEST__INIT;
    request.model = ctl->words[0];
    request.directory = files->directory != NULL ? files->directory : request.directory;
    request.tables = files->pointers;
    request.n_tables = files->n_tables;
    request.config = files->config.size > 0 ? (char *)files->config.data : request.config;
    request.version = load_flags.version;
    if (load_flags.label != NULL) {
        request.label = (char *)(uintptr_t)load_flags.label;
    }
    if (load_flags.lineage != NULL) {
        request.lineage = (char *)(uintptr_t)load_flags.lineage;
    }
    if (load_flags.row_dtype != NULL) {
        request.row_dtype = (char *)(uintptr_t)load_flags.row_dtype;
    }
    request.activate = load_flags.activate;
    request.dry_run = load_flags.dry_run;
    request.no_wait = load_flags.no_wait;
    request.force = load_flags.force;
    request.replace = load_flags.replace;
    *out_request = request;
}

int hpsctl_load(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 1);
    const struct hpsctl_load_from from = {load_flags.from, &load_flags.tables, load_flags.config,
                                          load_flags.model};
    struct hpsctl_load_files files;
    Hps__V1__LoadModelRequest request;
    struct load_view view = {.ctl = ctl,
                             .shown_us = hps_clock_us(),
                             .bar = {.out = isatty(STDERR_FILENO) == 1 ? stderr : NULL}};
    struct hps_error err = {0};
    struct hps_buf encoded;

    int code = hpsctl_load_files_open(ctl, &from, &files);
    if (code != TOOL_OK) {
        return code;
    }
    code = hpsctl_open(ctl);
    if (code != TOOL_OK) {
        hpsctl_load_files_free(&files);
        return code;
    }
    load_request(ctl, &files, &request);
    hps_buf_init(&encoded, LOAD_REQUEST_BYTES_MAX);
    hps_status status = hps_message_encode(&request.base, &encoded, &err);
    if (status == HPS_OK) {
        tool_interrupts_note(false);
        status =
            hps_client_stream(ctl->client, "/hps.v1.Admin/LoadModel", encoded.data, encoded.size,
                              ctl->timeout_us, on_progress, &view, tool_interrupted, &err);
    }
    hps_buf_fini(&encoded);
    hpsctl_load_files_free(&files);
    return load_result(ctl, &view, status, &err);
}
