/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of docs/config.md, made from the table of options so that they cannot disagree with
 * the parser. Runs in tools/gen-docs and in the test that compares the committed page.
 */
#include "config/options.h"

#include "base/assert.h"

static const char *type_name(const struct hps_option *option)
{
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        return "bool";
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_U64:
        return "integer";
    case HPS_OPTION_TYPE_BYTES:
        return "size";
    case HPS_OPTION_TYPE_F64:
        return "number";
    case HPS_OPTION_TYPE_ENUM:
        return "word";
    case HPS_OPTION_TYPE_STRING:
        return "string";
    case HPS_OPTION_TYPE_STRINGS:
        return "strings";
    case HPS_OPTION_TYPE_OBJECT:
        return option == &hps_options[HPS_OPTION_top_models] ? "list" : "object";
    case HPS_OPTION_TYPE_TABLES:
        return option->values != NULL ? "word or list" : "list";
    case HPS_OPTION_TYPE_LISTEN:
        return "address";
    case HPS_OPTION_TYPE_LISTENS:
        return "addresses";
    default:
        return "any";
    }
}

/* Text inside a table cell: a bar would end it. */
static void print_cell(struct hps_buf *buf, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        hps_buf_putf(buf, "%s%c", *c == '|' ? "\\" : "", *c);
    }
}

static void print_words(const struct hps_option *option, struct hps_buf *buf)
{
    HPS_ASSERT(option->values != NULL);
    for (const struct hps_option_value *v = option->values; v->word != NULL; v++) {
        hps_buf_putf(buf, "%s`%s`", v == option->values ? "" : ", ", v->word);
        if (v->aliases[0] != '\0') {
            hps_buf_putf(buf, " (%s)", v->aliases);
        }
    }
}

/* What may be written: words or range. */
static void print_range(const struct hps_option *option, struct hps_buf *buf)
{
    HPS_ASSERT(option->min <= option->max);
    struct hps_option bare = *option;
    switch (option->type) {
    case HPS_OPTION_TYPE_ENUM:
        print_words(option, buf);
        break;
    case HPS_OPTION_TYPE_TABLES:
        bare.type = HPS_OPTION_TYPE_U32;
        if (option->values != NULL) {
            print_words(option, buf);
        } else if (option->max != 0) {
            hps_option_expected(&bare, buf);
        }
        break;
    case HPS_OPTION_TYPE_F64:
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        hps_option_expected(option, buf);
        break;
    default:
        break;
    }
}

static void print_flags(const struct hps_option *option, struct hps_buf *buf)
{
    static const struct {
        unsigned flag;
        const char *text;
    } flags[] = {
        {HPS_OPTION_REQUIRED, "required"},
        {HPS_OPTION_RELOAD, "reload"},
        {HPS_OPTION_VERSION, "version"},
        {HPS_OPTION_LOAD, "load"},
    };
    const unsigned later = HPS_OPTION_RELOAD | HPS_OPTION_VERSION | HPS_OPTION_LOAD;
    bool at_start = option->section == HPS_SECTION_model && (option->flags & later) == 0;
    const char *comma = "";
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if ((option->flags & flags[i].flag) != 0) {
            hps_buf_putf(buf, "%s*%s*", comma, flags[i].text);
            comma = ", ";
        }
    }
    if (at_start) {
        hps_buf_putf(buf, "%s*start*", comma);
    }
}

static void print_row(const struct hps_option *option, struct hps_buf *buf)
{
    hps_buf_putf(buf, "| `%s`%s | %s | ", option->name,
                 (option->flags & HPS_OPTION_OURS) != 0 ? " **+**" : "", type_name(option));
    if (option->def[0] != '\0') {
        hps_buf_putf(buf, "`%s`", option->def);
    }
    hps_buf_put(buf, " | ");
    print_range(option, buf);
    hps_buf_put(buf, " | ");
    print_flags(option, buf);
    hps_buf_put(buf, " | ");
    print_cell(buf, option->help);
    hps_buf_put(buf, " |\n");
}

/* The keys that are ignored, or the keys that were removed. */
static void print_past(bool removed, struct hps_buf *buf)
{
    hps_buf_put(buf, removed ? "\nRemoved keys are errors:\n"
                             : "\n## Accepted and ignored\n\nThese keys of HPS change "
                               "nothing in hpsd. Any value is accepted. One warning lists "
                               "the keys that a\nfile has:\n");
    const char *comma = removed ? "\n- " : "";
    for (const struct hps_option_past *past = hps_options_past; past->name != NULL; past++) {
        if ((past->instead != NULL) == removed) {
            hps_buf_putf(buf, "%s`%s`%s%s", comma, past->name, removed ? ": " : "",
                         removed ? past->instead : "");
            comma = removed ? "\n- " : ",\n";
        }
    }
    hps_buf_put(buf, ".\n");
}

void hps_config_doc(struct hps_buf *buf)
{
    print_past(false, buf);
    print_past(true, buf);
    for (int i = 0; i < (int)HPS_SECTION_COUNT; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        const char *path = hps_section_path(section);
        const char *quote = path[0] == '\0' ? "" : "`";
        hps_buf_putf(buf,
                     "\n## %s%s%s\n\n| key | type | default | values | marks | meaning |\n"
                     "|---|---|---|---|---|---|\n",
                     quote, path[0] == '\0' ? "Top level" : path, quote);
        for (size_t j = 0; j < HPS_OPTION_COUNT; j++) {
            if (hps_options[j].section == section) {
                print_row(&hps_options[j], buf);
            }
        }
    }
}
