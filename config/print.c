/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration as JSON, from the table of options. Main thread.
 */
#include "config/config.h"

#include "config/options.h"

#include "base/assert.h"

/* Print all options of a section as members of an object. */
static void print_section(enum hps_option_section section, const void *base, int indent,
                          struct hps_buf *buf)
{
    HPS_ASSERT(base != NULL);
    const char *comma = "";
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section != section || !hps_option_has_value(option)) {
            continue;
        }
        bool given = hps_option_is_set(base, (enum hps_option_id)i);
        hps_buf_putf(buf, "%s\n%*s\"%s\": {\"value\": ", comma, indent, "", option->name);
        hps_option_print_public(option, base, buf);
        hps_buf_putf(buf, ", \"default\": %s}", given ? "false" : "true");
        comma = ",";
    }
}

hps_status hps_config_print_effective(const struct hps_config *config, struct hps_buf *buf)
{
    hps_buf_put(buf, "{");
    print_section(HPS_SECTION_top, config, 2, buf);
    for (int i = HPS_SECTION_volatile_db; i <= HPS_SECTION_update_source; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        hps_buf_putf(buf, ",\n  \"%s\": {", hps_section_path(section));
        print_section(section, hps_section_base_const(config, section), 4, buf);
        hps_buf_put(buf, "\n  }");
    }
    hps_buf_put(buf, ",\n  \"models\": [");
    for (size_t i = 0; i < config->n_models; i++) {
        hps_buf_putf(buf, "%s\n    {", i == 0 ? "" : ",");
        print_section(HPS_SECTION_model, &config->models[i], 6, buf);
        hps_buf_put(buf, "\n    }");
    }
    hps_buf_put(buf, "\n  ],\n  \"server\": {");
    print_section(HPS_SECTION_server, &config->server, 4, buf);
    hps_buf_put(buf, ",\n    \"tls\": {");
    print_section(HPS_SECTION_tls, &config->server.tls, 6, buf);
    hps_buf_put(buf, "\n    }\n  }\n}\n");
    return buf->status;
}

hps_status hps_config_print_entry(const struct hps_config_model *model, struct hps_buf *buf)
{
    const char *comma = "{";
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section == HPS_SECTION_model && hps_option_has_value(option) &&
            hps_option_is_set(&model->set, (enum hps_option_id)i)) {
            hps_buf_putf(buf, "%s\"%s\": ", comma, option->name);
            hps_option_print(option, model, buf);
            comma = ", ";
        }
    }
    hps_buf_put(buf, "}");
    return buf->status;
}
