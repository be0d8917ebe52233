/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration as JSON, the difference of two, and docs/config.md: three readings of
 * the table of options. Main thread.
 */
#include "config/config.h"

#include <stdio.h>
#include <string.h>

#include "config/options.h"

static bool is_printed(const struct hps_option *option)
{
    return option->type != HPS_OPTION_TYPE_OBJECT && option->type != HPS_OPTION_TYPE_IGNORED;
}

/* The value as JSON; secrets are hidden but for whether there is one. */
static hps_status print_value(const struct hps_option *option, const void *base,
                              struct hps_buf *buf)
{
    if (option == &hps_options[HPS_OPTION_volatile_db_password]) {
        const char *password = ((const struct hps_config_volatile_db *)base)->password;
        return hps_buf_printf(buf, "%s", password[0] == '\0' ? "\"\"" : "\"***\"");
    }
    return hps_option_print(option, base, buf);
}

/* Every option of a section as members of an object; `first` tells whether a comma is due. */
static hps_status print_section(enum hps_option_section section, const void *base,
                                const struct hps_option_set *set, int indent, bool *first,
                                struct hps_buf *buf)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section != section || !is_printed(option)) {
            continue;
        }
        status = hps_buf_printf(buf, "%s\n%*s\"%s\": {\"value\": ", *first ? "" : ",", indent, "",
                                option->name);
        *first = false;
        if (status == HPS_OK) {
            status = print_value(option, base, buf);
        }
        if (status == HPS_OK) {
            bool set_by_user = hps_option_is_set(set, (enum hps_option_id)i);
            status = hps_buf_printf(buf, ", \"default\": %s}", set_by_user ? "false" : "true");
        }
    }
    return status;
}

static hps_status print_block(const char *name, enum hps_option_section section,
                              const struct hps_config *config, const struct hps_option_set *set,
                              struct hps_buf *buf)
{
    bool first = true;
    hps_status status = hps_buf_printf(buf, ",\n  \"%s\": {", name);
    if (status == HPS_OK) {
        status =
            print_section(section, hps_section_base_const(config, section), set, 4, &first, buf);
    }
    return status == HPS_OK ? hps_buf_printf(buf, "\n  }") : status;
}

static hps_status print_models(const struct hps_config *config, struct hps_buf *buf)
{
    hps_status status = hps_buf_printf(buf, ",\n  \"models\": [");
    for (size_t i = 0; i < config->n_models && status == HPS_OK; i++) {
        const struct hps_config_model *model = &config->models[i];
        bool first = true;
        status = hps_buf_printf(buf, "%s\n    {", i == 0 ? "" : ",");
        if (status == HPS_OK) {
            status = print_section(HPS_SECTION_model, model, &model->set, 6, &first, buf);
        }
        if (status == HPS_OK) {
            status = hps_buf_printf(buf, "\n    }");
        }
    }
    return status == HPS_OK ? hps_buf_printf(buf, "\n  ]") : status;
}

static hps_status print_server(const struct hps_config *config, struct hps_buf *buf)
{
    const struct hps_config_server *server = &config->server;
    bool first = true;
    hps_status status = hps_buf_printf(buf, ",\n  \"server\": {");
    if (status == HPS_OK) {
        status = print_section(HPS_SECTION_server, server, &server->set, 4, &first, buf);
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(buf, ",\n    \"tls\": {");
    }
    first = true;
    if (status == HPS_OK) {
        status = print_section(HPS_SECTION_tls, &server->tls, &server->tls.set, 6, &first, buf);
    }
    return status == HPS_OK ? hps_buf_printf(buf, "\n    }\n  }\n}\n") : status;
}

hps_status hps_config_print_effective(const struct hps_config *config, struct hps_buf *buf)
{
    bool first = true;
    hps_status status = hps_buf_printf(buf, "{");
    if (status == HPS_OK) {
        status = print_section(HPS_SECTION_top, config, &config->set, 2, &first, buf);
    }
    if (status == HPS_OK) {
        status = print_block("volatile_db", HPS_SECTION_volatile_db, config,
                             &config->volatile_db.set, buf);
    }
    if (status == HPS_OK) {
        status = print_block("persistent_db", HPS_SECTION_persistent_db, config,
                             &config->persistent_db.set, buf);
    }
    if (status == HPS_OK) {
        status = print_block("update_source", HPS_SECTION_update_source, config,
                             &config->update_source.set, buf);
    }
    if (status == HPS_OK) {
        status = print_models(config, buf);
    }
    return status == HPS_OK ? print_server(config, buf) : status;
}

/* ---- difference ------------------------------------------------------------------------------ */

enum { VALUE_BYTES_MAX = 16 * 1024 * 1024 };

struct diff {
    void (*fn)(void *ctx, const struct hps_config_change *change);
    void *ctx;
    size_t n_restart;
    struct hps_buf before; /* one value at a time */
    struct hps_buf after;
};

static void report(struct diff *diff, struct hps_config_change *change, bool reloadable)
{
    change->reloadable = reloadable;
    diff->n_restart += reloadable ? 0 : 1;
    diff->fn(diff->ctx, change);
}

static void cut(char *out_text, size_t size, const struct hps_buf *buf)
{
    (void)snprintf(out_text, size, "%.*s", buf->size > 1024 ? 1024 : (int)buf->size,
                   buf->size == 0 ? "" : (const char *)buf->data);
}

/* Compare one option; a default that the machine made is the same default. */
static hps_status diff_option(struct diff *diff, const struct hps_option *option,
                              const char *prefix, const void *before, const void *after)
{
    hps_buf_clear(&diff->before);
    hps_buf_clear(&diff->after);
    hps_status status = hps_option_print(option, before, &diff->before);
    if (status == HPS_OK) {
        status = hps_option_print(option, after, &diff->after);
    }
    if (status != HPS_OK || (diff->before.size == diff->after.size &&
                             memcmp(diff->before.data, diff->after.data, diff->before.size) == 0)) {
        return status;
    }
    hps_buf_clear(&diff->before);
    hps_buf_clear(&diff->after);
    status = print_value(option, before, &diff->before);
    if (status == HPS_OK) {
        status = print_value(option, after, &diff->after);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_config_change change = {0};
    (void)snprintf(change.path, sizeof(change.path), "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".",
                   option->name);
    cut(change.before, sizeof(change.before), &diff->before);
    cut(change.after, sizeof(change.after), &diff->after);
    report(diff, &change, (option->flags & HPS_OPTION_RELOAD) != 0);
    return HPS_OK;
}

static hps_status diff_section(struct diff *diff, enum hps_option_section section,
                               const char *prefix, const void *before,
                               const struct hps_option_set *set_before, const void *after,
                               const struct hps_option_set *set_after)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        const struct hps_option *option = &hps_options[i];
        bool given = hps_option_is_set(set_before, (enum hps_option_id)i) ||
                     hps_option_is_set(set_after, (enum hps_option_id)i);
        bool derived = option == &hps_options[HPS_OPTION_server_model_roots] ||
                       option == &hps_options[HPS_OPTION_volatile_db_type] ||
                       option == &hps_options[HPS_OPTION_persistent_db_path] ||
                       option == &hps_options[HPS_OPTION_server_admin_listen] ||
                       option == &hps_options[HPS_OPTION_model_embedding_cache_type];
        if (option->section == section && is_printed(option) && (given || derived)) {
            status = diff_option(diff, option, prefix, before, after);
        }
    }
    return status;
}

static void diff_missing_models(struct diff *diff, const struct hps_config *here,
                                const struct hps_config *there, bool added)
{
    for (size_t i = 0; i < here->n_models; i++) {
        const char *name = here->models[i].name;
        if (hps_config_model_find(there, name) == NULL) {
            struct hps_config_change change = {0};
            (void)snprintf(change.path, sizeof(change.path), "models[%s]", name);
            (void)snprintf(added ? change.after : change.before, sizeof(change.after), "%s",
                           added ? "added" : "removed");
            report(diff, &change, false);
        }
    }
}

static hps_status diff_models(struct diff *diff, const struct hps_config *before,
                              const struct hps_config *after)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < before->n_models && status == HPS_OK; i++) {
        const struct hps_config_model *old = &before->models[i];
        const struct hps_config_model *fresh = hps_config_model_find(after, old->name);
        char prefix[160];
        (void)snprintf(prefix, sizeof(prefix), "models[%s]", old->name);
        if (fresh != NULL) {
            status =
                diff_section(diff, HPS_SECTION_model, prefix, old, &old->set, fresh, &fresh->set);
        }
    }
    diff_missing_models(diff, before, after, false);
    diff_missing_models(diff, after, before, true);
    return status;
}

hps_status hps_config_diff(const struct hps_config *before, const struct hps_config *after,
                           void (*fn)(void *ctx, const struct hps_config_change *change), void *ctx,
                           size_t *out_n_restart)
{
    const struct {
        enum hps_option_section section;
        const struct hps_option_set *before;
        const struct hps_option_set *after;
    } blocks[] = {
        {HPS_SECTION_top, &before->set, &after->set},
        {HPS_SECTION_volatile_db, &before->volatile_db.set, &after->volatile_db.set},
        {HPS_SECTION_persistent_db, &before->persistent_db.set, &after->persistent_db.set},
        {HPS_SECTION_update_source, &before->update_source.set, &after->update_source.set},
        {HPS_SECTION_server, &before->server.set, &after->server.set},
        {HPS_SECTION_tls, &before->server.tls.set, &after->server.tls.set},
    };
    struct diff diff = {.fn = fn, .ctx = ctx};
    hps_buf_init(&diff.before, VALUE_BYTES_MAX);
    hps_buf_init(&diff.after, VALUE_BYTES_MAX);
    hps_status status = HPS_OK;
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]) && status == HPS_OK; i++) {
        enum hps_option_section section = blocks[i].section;
        status = diff_section(&diff, section, hps_section_path(section),
                              hps_section_base_const(before, section), blocks[i].before,
                              hps_section_base_const(after, section), blocks[i].after);
    }
    if (status == HPS_OK) {
        status = diff_models(&diff, before, after);
    }
    hps_buf_fini(&diff.before);
    hps_buf_fini(&diff.after);
    if (status == HPS_OK) {
        *out_n_restart = diff.n_restart;
    }
    return status;
}
