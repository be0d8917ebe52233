/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about models: models, tables, activate, rollback, unload. Main thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "client/wait.h"
#include "tools/hpsctl.h"

/* ---- lists ----------------------------------------------------------------------------------- */

/* Progress of a warm-up of the host map; empty: no warm-up is running. */
static void warm_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    if (version->hot_key_count == 0) {
        hpsctl_table_cell(table, "%s", "");
    } else {
        hpsctl_table_cell(table, "%.0f %%",
                          100.0 * (double)version->warm_key_count / (double)version->hot_key_count);
    }
}

/* Memory on the device, or the reason why there is no memory. */
static void device_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    char text[HPSCTL_TEXT_BYTES];

    hpsctl_table_cell(table, "%s",
                      version->device_note[0] != '\0'
                          ? version->device_note
                          : hpsctl_bytes_text(version->device_bytes, text));
}

/* When the version was loaded, or the progress of its load. */
static void loaded_cell(struct hpsctl_table *table, const Hps__V1__VersionInfo *version)
{
    char text[HPSCTL_TEXT_BYTES];

    if (strcmp(version->state, "loading") == 0) {
        hpsctl_table_cell(table, "%d %%", (int)(100.0 * version->load_ratio));
    } else {
        hpsctl_table_cell(table, "%s", hpsctl_time_text(version->loaded_unix_ms, text));
    }
}

/* Models without a version, and why. */
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
    {"version", 0, HPS_ARG_I64, "N", &tables_version, "version to show (default: the active one)"},
    HPS_ARGS_END,
};

/* The embedding cache of a table, and the share of rows in it. */
static void cache_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info)
{
    HPS_ASSERT(table->n_cells % table->n_columns == table->n_columns - 3);
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
    static const char *const columns[] = {"MODEL", ">VERSION",  ">PLACE",     "TABLE",
                                          ">DIM",  "TYPE",      ">ROWS",      ">DENSE ROWS",
                                          ">GPU",  ">GPU ROWS", ">GPU SHARE", NULL};
    const Hps__V1__ListTablesResponse *list = reply;
    struct hpsctl_table table;

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < list->n_tables; i++) {
        hpsctl_table_cells(&table, list->tables[i]);
        hpsctl_table_cell(&table, "%" PRIu64, list->tables[i]->dense_row_count);
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
    hpsctl_print_versions(stdout, ctl->words[0], "unloaded", answer->unload_versions,
                          answer->n_unload_versions);
    hpsctl_print_diffs(answer->version, answer->previous_version, answer->diffs, answer->n_diffs);
}

/* An activation of another lineage may have frozen this version. Then it serves its old state,
 * which the user would not notice. */
static void warn_frozen(struct hpsctl *ctl, const char *model, int64_t version)
{
    Hps__V1__WaitForUpdatesRequest request = HPS__V1__WAIT_FOR_UPDATES_REQUEST__INIT;
    Hps__V1__WaitForUpdatesResponse *reply = NULL;
    struct hps_error err = {0};

    request.model = (char *)(uintptr_t)model; /* not written to */
    request.version = version;
    request.goal = HPS__V1__WAIT_GOAL__WAIT_GOAL_READY;
    hps_status status =
        hps_client_wait(ctl->client, &request, ctl->timeout_us != 0 ? ctl->timeout_us : UPDATES_US,
                        NULL, &reply, &err);
    if (reply != NULL && reply->outcome == HPS__V1__WAIT_OUTCOME__WAIT_OUTCOME_FROZEN) {
        (void)fprintf(stderr, "hpsctl: warning: %s\n", err.text);
    } else if (status != HPS_OK && status != HPS_PRECONDITION) { /* else it takes no updates */
        (void)fprintf(stderr, "hpsctl: active, but the state of its updates is unknown: %s\n",
                      err.text);
    }
    hps_message_free((ProtobufCMessage *)reply);
}

static int switch_version(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request)
{
    Hps__V1__ActivateVersionResponse *answer = NULL;

    int code =
        hpsctl_call(ctl, method, request, &hps__v1__activate_version_response__descriptor, &answer);
    if (code != TOOL_OK) {
        return code;
    }
    if (hpsctl_json(ctl)) {
        code = hpsctl_print_json(&answer->base);
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
     "even if it differs a lot from the active version (tables, widths, rows)"},
    HPS_ARGS_END,
};

int hpsctl_activate(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 2);
    Hps__V1__ActivateVersionRequest request = HPS__V1__ACTIVATE_VERSION_REQUEST__INIT;

    request.model = ctl->words[0];
    request.force = activate_force;
    if (!hpsctl_version_arg(ctl, ctl->words[1], &request.version)) {
        return TOOL_USAGE;
    }
    int code = switch_version(ctl, "ActivateVersion", &request.base);
    if (code == TOOL_DEADLINE) {
        (void)fprintf(
            stderr,
            "hpsctl: a switch that has started continues in the server; see `hpsctl models`\n");
    }
    return code;
}

int hpsctl_rollback(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 1);
    Hps__V1__RollbackModelRequest request = HPS__V1__ROLLBACK_MODEL_REQUEST__INIT;

    request.model = ctl->words[0];
    return switch_version(ctl, "RollbackModel", &request.base);
}

static int print_unloaded(struct hpsctl *ctl, const void *reply)
{
    (void)reply;
    printf("%s: version %s is unloaded\n", ctl->words[0], ctl->words[1]);
    return TOOL_OK;
}

int hpsctl_unload(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 2);
    Hps__V1__UnloadVersionRequest request = HPS__V1__UNLOAD_VERSION_REQUEST__INIT;

    request.model = ctl->words[0];
    if (!hpsctl_version_arg(ctl, ctl->words[1], &request.version)) {
        return TOOL_USAGE;
    }
    int code = hpsctl_call_print(ctl, "UnloadVersion", &request.base,
                                 &hps__v1__unload_version_response__descriptor, print_unloaded);
    if (code == TOOL_DEADLINE) {
        (void)fprintf(
            stderr,
            "hpsctl: an unload that has started continues in the server; see `hpsctl models`\n");
    }
    return code;
}
