/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the files that a configuration names. See server/check.h.
 */
#include "server/check.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/safetensors.h"
#include "server/daemon_internal.h"
#include "server/load/loader.h"

struct checking {
    const struct hps_check *check;
    const struct hps_config_model *model;
    unsigned n_errors;
};

static void report(struct checking *checking, bool is_error, const struct hps_error *err,
                   const char *advice)
{
    char text[1024];
    HPS_ASSERT(err->status != HPS_OK);
    snprintf(text, sizeof(text), "%s: models[%s]: %s; %s", checking->check->config->file,
             checking->model->name, err->text, advice);
    checking->n_errors += is_error;
    checking->check->tell(checking->check->ctx, is_error, text);
}

static void report_unloadable(struct checking *checking, const struct hps_error *err)
{
    if (err->status == HPS_NOT_FOUND && checking->check->stored) {
        report(checking, false, err,
               "hpsd serves a stored version without its files; a first start needs them");
    } else {
        report(checking, true, err,
               "hpsd would start and not be ready, because the model cannot be loaded");
    }
}

/* ---- the manifest.json of a table ------------------------------------------------------------ */

/* The name of a table in a model directory: the name of its file without the suffix. */
static void entry_name(const struct hps_model_table *files, char *out_name, size_t size)
{
    static const char *const tails[] = {".rows.npy", ".npy"};
    if (files->form == HPS_ROW_FORM_SAFETENSORS) {
        snprintf(out_name, size, "%s", files->name);
        return;
    }
    const char *slash = strrchr(files->path, '/');
    const char *base = slash != NULL ? slash + 1 : files->path;
    size_t n = strlen(base);
    for (size_t i = 0; files->form != HPS_ROW_FORM_HUGECTR && i < 2; i++) {
        size_t n_tail = strlen(tails[i]);
        if (n > n_tail && strcmp(base + n - n_tail, tails[i]) == 0) {
            n -= n_tail;
            break;
        }
    }
    snprintf(out_name, size, "%.*s", (int)n, base);
}

/* owner: the caller; NULL: out of memory */
static char *parent_of(const char *path)
{
    const char *slash = memrchr(path, '/', hps_safetensors_file_size(path));
    return slash == NULL ? hps_strdup(".") : hps_strndup(path, (size_t)(slash - path) + 1);
}

/* A load from models[] does not read manifest.json, but `load --from` does. So files that do not
 * match it are an error, and an unreadable manifest is a warning. */
static void check_manifest(struct checking *checking, const struct hps_model_table *files,
                           const struct hps_row_desc *desc)
{
    char name[HPS_MODEL_NAME_BYTES_MAX + 16];
    struct hps_manifest manifest = {0};
    struct hps_error err = {0};
    char *dir = parent_of(files->path);
    char *path = dir != NULL ? hps_file_path("%s/manifest.json", dir) : NULL;
    hps_status status = path == NULL
                            ? hps_error_set(&err, HPS_NO_MEMORY, "no memory for its manifest")
                            : hps_manifest_read(path, &manifest, &err);
    if (status == HPS_OK) {
        entry_name(files, name, sizeof(name));
        status = hps_manifest_check_table(&manifest, name, desc, &err);
        if (status == HPS_OK) {
            status = hps_manifest_check_sizes(&manifest, name, dir, &err);
        }
        if (status != HPS_OK) {
            hps_ignore(hps_error_prefix(&err, status, "table \"%s\"", files->name));
            report(checking, true, &err, "the files do not match their manifest.json");
        }
    } else if (status != HPS_NOT_FOUND) {
        report(checking, false, &err,
               "a load of models[] does not need it, `hpsctl load --from` does");
    }
    hps_manifest_close(&manifest);
    hps_free(path);
    hps_free(dir);
}

/* ---- a table --------------------------------------------------------------------------------- */

static struct hps_load_env env_of(const struct hps_config *config)
{
    return (struct hps_load_env){.key_bytes = config->key_bytes,
                                 .nan_allowed = config->server.nan_policy == HPS_CONFIG_NAN_ACCEPT};
}

/* Plan the load of this one table. The caller closes out_source, also on an error. */
static hps_status plan_table(const struct hps_config *config, const struct hps_config_model *model,
                             struct hps_config_table *table, struct hps_source *out_source,
                             struct hps_load_plan *out_plan, struct hps_error *err)
{
    const struct hps_load_env env = env_of(config);
    struct hps_config_model one = *model;
    one.tables = table;
    one.n_tables = 1;
    hps_status status = hps_source_open_config(&config->server.model_roots, &one, out_source, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_version *version = hps_version_new(one.name, 1, 1);
    status = version == NULL ? hps_error_set(err, HPS_NO_MEMORY, "no memory for a version")
                             : hps_load_plan(&env, out_source, 0, version, out_plan, err);
    hps_version_free(version);
    return status;
}

static void check_table(struct checking *checking, struct hps_config_table *table)
{
    const struct hps_load_env env = env_of(checking->check->config);
    struct hps_source source = {0};
    struct hps_load_plan plan;
    struct hps_row_desc desc;
    struct hps_error err = {0};
    hps_status status =
        plan_table(checking->check->config, checking->model, table, &source, &plan, &err);
    if (status == HPS_OK) {
        status = hps_load_describe(&env, &source.tables[0], &desc, &err);
    }
    if (status == HPS_OK) {
        check_manifest(checking, &source.tables[0].files, &desc);
    } else {
        report_unloadable(checking, &err);
    }
    hps_source_close(&source);
}

static void check_label(struct checking *checking)
{
    struct hps_error err = {0};
    if (checking->model->label[0] != '\0' && !hps_label_valid(checking->model->label)) {
        hps_ignore(hps_error_set(&err, HPS_INVALID, "label: got \"%.130s\", expected %s",
                                 checking->model->label, HPS_LABEL_RULE));
        report(checking, !checking->check->stored, &err,
               "hpsd serves stored versions, and would refuse to load this one");
    }
}

uint64_t hps_check_store_bytes(const struct hps_config *config)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < config->n_models; i++) {
        for (size_t k = 0; k < config->models[i].n_tables; k++) {
            struct hps_source source = {0};
            struct hps_load_plan plan;
            struct hps_error err = {0};
            if (plan_table(config, &config->models[i], &config->models[i].tables[k], &source, &plan,
                           &err) == HPS_OK) {
                bytes += plan.store_bytes;
            }
            hps_source_close(&source);
        }
    }
    return bytes;
}

unsigned hps_check_models(const struct hps_check *check)
{
    struct checking checking = {.check = check};
    HPS_ASSERT(check->config != NULL && check->tell != NULL);
    for (size_t i = 0; i < check->config->n_models; i++) {
        checking.model = &check->config->models[i];
        check_label(&checking);
        for (size_t k = 0; k < checking.model->n_tables; k++) {
            check_table(&checking, &checking.model->tables[k]);
        }
    }
    return checking.n_errors;
}

/* ---- server ---------------------------------------------------------------------------------- */

static unsigned report_option(const struct hps_check *check, hps_status status,
                              struct hps_error *err)
{
    if (status == HPS_OK) {
        return 0;
    }
    hps_ignore(hps_error_prefix(err, status, "%s", check->config->file));
    check->tell(check->ctx, true, err->text);
    return 1;
}

unsigned hps_check_server(const struct hps_check *check)
{
    const struct hps_config_server *server = &check->config->server;
    struct hps_access_rules *rules = NULL;
    struct daemon_tls tls;
    struct hps_error err = {0};
    HPS_ASSERT(check->tell != NULL);
    unsigned n_errors = report_option(check, daemon_make_tls(server, &tls, &err), &err);
    daemon_tls_free(&tls);
    n_errors += report_option(check, daemon_read_rules(server, &rules, &err), &err);
    hps_access_rules_unref(rules);
    return n_errors;
}
