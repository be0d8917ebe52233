/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration as JSON, a reading of the table of options. Main thread.
 */
#include "config/config.h"

#include <stdio.h>
#include <string.h>

#include "config/options.h"

#include "base/assert.h"

/* Every option of a section as members of an object; `first` tells whether a comma is due. */
static hps_status print_section(enum hps_option_section section, const void *base,
                                const struct hps_option_set *set, int indent, bool *first,
                                struct hps_buf *buf)
{
    HPS_ASSERT(base != NULL);
    hps_status status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section != section || !hps_option_has_value(option)) {
            continue;
        }
        status = hps_buf_printf(buf, "%s\n%*s\"%s\": {\"value\": ", *first ? "" : ",", indent, "",
                                option->name);
        *first = false;
        if (status == HPS_OK) {
            status = hps_option_print_public(option, base, buf);
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
    HPS_ASSERT(config->n_models == 0 || config->models != NULL);
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

hps_status hps_config_print_entry(const struct hps_config_model *model, struct hps_buf *buf)
{
    const char *comma = "{";
    hps_status status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section != HPS_SECTION_model || !hps_option_has_value(option) ||
            !hps_option_is_set(&model->set, (enum hps_option_id)i)) {
            continue;
        }
        status = hps_buf_printf(buf, "%s\"%s\": ", comma, option->name);
        comma = ", ";
        if (status == HPS_OK) {
            status = hps_option_print(option, model, buf);
        }
    }
    return status == HPS_OK ? hps_buf_append(buf, "}", 1) : status;
}
