/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/config.md, made from the table of options so that it cannot disagree with the parser. Runs
 * in tools/gen-config-doc and in the test that compares the committed file.
 */
#include <string.h>

#include "config/options.h"

#include "base/assert.h"

static const char intro[] =
    "<!-- Made by gen-config-doc from config/options.def. Do not edit. -->\n"
    "\n"
    "# Configuration\n"
    "\n"
    "One JSON file, `hpsd --config FILE`. A `ps.json` of NVIDIA HPS is read unchanged; what\n"
    "hpsd adds is in the `server` object and in new keys beside the old ones (marked **+**\n"
    "below). `hpsd --check --config FILE` validates it and prints every option with its\n"
    "value and whether that is the default. Samples: `config/samples/`.\n"
    "\n"
    "- `//` and `/* */` comments are allowed. Of a key that an object has more than once the\n"
    "  last value counts, as in HPS, with a warning; in a role file it is an error.\n"
    "- Numbers and booleans may be written as strings (`\"0.5\"`, `\"TRUE\"`). Words are read\n"
    "  without regard to case, and space and `-` as `_`.\n"
    "- Sizes are bytes, or strings with a unit: `\"4GiB\"`, `\"1.5 MB\"` (KiB MiB GiB TiB are\n"
    "  powers of 1024, KB MB GB TB of 1000).\n"
    "- A key that is not known is ignored with a warning in HPS's sections, as HPS does,\n"
    "  and is an error in `server`. A word that is not known is an error everywhere (HPS\n"
    "  silently takes a default).\n"
    "- What needs a part that this build lacks is an error that says so.\n"
    "- Errors read `FILE:LINE: PATH: got ..., expected ...` and end the program with exit\n"
    "  code 2.\n"
    "- The environment is not read, but for what systemd says in it. `--listen`,\n"
    "  `--kserve-listen`, `--http-listen`, `--admin-listen`, `--state-dir`, `--log-level` and\n"
    "  `--log-format`\n"
    "  replace the options of the same name in `server`.\n"
    "- SIGHUP reads the file again: options marked *reload* change at once, others are\n"
    "  reported and wait for a restart. A file can be replaced by another, but not added or\n"
    "  taken away. See Reload in [operations.md](operations.md#reload).\n"
    "\n"
    "`--table NAME=PATH` instead of a file serves one model named `default`: the rows live\n"
    "in `rocks_db` in the state directory and in the host map, `miss_policy` is `exact`,\n"
    "`hit_rate_threshold` 1.0, `gpucache` false, and the width of a table is that of its\n"
    "file. After a restart the files are what is served: one that has changed is loaded as\n"
    "the next version, see Models in [operations.md](operations.md#models).\n"
    "\n"
    "## What a version keeps\n"
    "\n"
    "A start loads the models of `models[]`. Versions are also loaded and switched at run\n"
    "time. One word per option tells when a new value in the file takes effect:\n"
    "\n"
    "- *version*: at the next load. Each version stores the value that it was loaded\n"
    "  with: files, widths, row types, default rows. While the active version differs\n"
    "  from the file, the model counts as `config_drift`; the log and `hpsctl status`\n"
    "  name the options and the command that loads the new values. While its files cannot\n"
    "  be read, widths, row types and default rows are compared, and the files are not.\n"
    "- *load*: at the next load. Number, label and lineage of a version. A difference is\n"
    "  normal and is not reported.\n"
    "- *start*: at the next start, for every version of the model.\n"
    "- *reload*: at once, by SIGHUP, for every version of the model.\n"
    "\n"
    "The order of a model's tables is stored with the model and kept while it has\n"
    "versions.\n"
    "\n"
    "A load can carry its own entry (`hpsctl load --config FILE`,\n"
    "`LoadModelRequest.config`). The new version stores all of it. Its *version* and\n"
    "*load* options always apply. Its *start* and *reload* options apply when the\n"
    "server's file has no entry for the model, also after a restart: such a model needs\n"
    "no file. When the file has an entry, the file's values apply and the load lists the\n"
    "options that it ignored. A load without any entry makes default rows of zeros; a\n"
    "version without any entry gets exact answers.\n"
    "\n"
    "A version that an operator loaded from other files is not drift while `models[]`\n"
    "stays the same: a restart serves it, and the log says so. Without `persistent_db` no\n"
    "version is stored, and a start loads what `models[]` says.\n"
    "\n"
    "## What becomes of HPS's settings\n"
    "\n"
    "- **Memory.** HPS has no limit, and each shard of each table holds a page of\n"
    "  `allocation_rate` bytes. The host map has one budget, `volatile_db.memory_bytes`. A\n"
    "  load beyond it is refused with the bytes that it needs and the bytes that are left.\n"
    "  As rows are asked for, those above a persistent store push out others within the\n"
    "  budget; a map without a store below refuses instead. Where not all tables fit,\n"
    "  small ones are whole and the large ones have equal shares of the rest; versions\n"
    "  that are not active give way.\n"
    "  `overflow_margin` and `overflow_resolution_target` are further limits in rows.\n"
    "- **Kinds of map.** `hash_map`, `parallel_hash_map` and `multi_process_hash_map` are\n"
    "  the host map.\n"
    "- **GPU.** A model with `gpucache` (HPS's default) has an embedding cache on each\n"
    "  device of its `deployed_device_list`, as in HPS a copy: look-ups are spread over them,\n"
    "  and what one of them misses goes there. `gpucacheper`, `embedding_cache_type` and\n"
    "  `init_ec` say how much of a table is cached and whether it is warmed. Without a GPU\n"
    "  that can be used the model is served exactly from the stores, with one line in the log.\n"
    "  Updates go into the cache as into every other tier: nothing is refreshed.\n"
    "- **Widths.** HPS does not compare `embedding_vecsize_per_table` with the files; hpsd\n"
    "  does, and refuses.\n"
    "- **`persistent_db.path`.** hpsd's database is `<path>/hpsd`; one that HPS made there\n"
    "  is left alone.\n"
    "- **`supportlonglong: false`.** Key files, keyed and packed update records and requests\n"
    "  hold int64 in both modes; each key is truncated to uint32.\n"
    "- **Workspaces, streams, chunks, thread pools** of HPS have no counterpart that could\n"
    "  run out. `server.keys_max` limits the keys of a request.\n"
    "- **Fused tables, FP8 and page-locked caches** are not made: tables keep their names,\n"
    "  and answers are the stored values.\n";

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
    const unsigned told = HPS_OPTION_RELOAD | HPS_OPTION_VERSION | HPS_OPTION_LOAD;
    bool at_start = option->section == HPS_SECTION_model && (option->flags & told) == 0;
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

hps_status hps_config_doc(struct hps_buf *buf)
{
    hps_buf_put(buf, intro);
    print_past(false, buf);
    print_past(true, buf);
    for (int i = 0; i < (int)HPS_SECTION_COUNT; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        const char *path = hps_section_path(section);
        const char *quote = path[0] == '\0' ? "" : "`";
        hps_buf_putf(buf,
                     "\n## %s%s%s\n\n| key | type | default | values | | meaning |\n"
                     "|---|---|---|---|---|---|\n",
                     quote, path[0] == '\0' ? "Top level" : path, quote);
        for (size_t j = 0; j < HPS_OPTION_COUNT; j++) {
            if (hps_options[j].section == section) {
                print_row(&hps_options[j], buf);
            }
        }
    }
    return buf->status;
}
