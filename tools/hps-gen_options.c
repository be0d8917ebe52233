/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hps-gen.
 */
#include <string.h>

#include "base/assert.h"
#include "base/rows/modeldir.h"
#include "tools/hps-gen.h"
#include "tools/tool.h"

#define NOT_GIVEN UINT64_MAX

static struct {
    const char *preset;
    const char *scale;
    const char *dtype;
    const char *form;
    const char *keys;
    const char *model;
    const char *state_dir;
    const char *out;
    uint64_t n_tables, rows, dim, seed;
} flags = {
    .dtype = "fp32",
    .form = "hugectr",
    .keys = "dense",
    .n_tables = NOT_GIVEN,
    .rows = NOT_GIVEN,
    .dim = NOT_GIVEN,
    .seed = 1,
};

static const struct hps_arg args[] = {
    {"preset", 0, HPS_ARG_CHOICE, "dlrm-dcnv2", &flags.preset,
     "the 26 tables of MLPerf's DLRM-DCNv2: 204 million rows of 128 values"},
    {"scale", 0, HPS_ARG_TEXT, "SHARE", &flags.scale,
     "share of the preset's rows, above 0 and up to 1 (default 1)"},
    {"tables", 0, HPS_ARG_U64, "N", &flags.n_tables,
     "without a preset: number of tables, 1 to 4096"},
    {"rows", 0, HPS_ARG_U64, "N", &flags.rows, "rows of each table"},
    {"dim", 0, HPS_ARG_U64, "N", &flags.dim,
     "values of each row, 1 to 65536 (default with --preset 128)"},
    {"dtype", 0, HPS_ARG_CHOICE, "fp32|fp16|bf16|int8_rowwise_f32|int8_rowwise_f16", &flags.dtype,
     "type of the rows (default fp32; the only type of --format hugectr): bf16 as uint16, "
     "int8_rowwise as uint8 with T.scale_bias.npy"},
    {"seed", 0, HPS_ARG_U64, "N", &flags.seed, "seed of the values (default 1)"},
    {"format", 0, HPS_ARG_CHOICE, "hugectr|npy|dle", &flags.form,
     "hugectr (default): T/key and T/emb_vector, keys not sorted; npy: T.npy, or T.keys.npy and "
     "T.rows.npy with --keys hashed; dle: T.npy and config.json, as in DeepLearningExamples"},
    {"keys", 0, HPS_ARG_CHOICE, "dense|hashed", &flags.keys,
     "dense (default): keys 0 to ROWS-1; hashed: the same numbers, hashed to 64 bits"},
    {"model", 0, HPS_ARG_TEXT, "NAME", &flags.model,
     "name of the model in ps.json (default model; with --preset dlrm)"},
    {"state-dir", 0, HPS_ARG_TEXT, "DIR", &flags.state_dir,
     "ps.json puts the persistent store into DIR/rocksdb (default DIR: that of --out)"},
    {"out", 0, HPS_ARG_TEXT, "DIR", &flags.out,
     "where to write: an empty directory, or a new one in a directory that exists"},
    HPS_ARGS_END,
};

static const struct hps_program program = {
    .self =
        {
            .name = "hps-gen",
            .words = "--preset dlrm-dcnv2 [--scale SHARE] --out DIR\n"
                     "--tables N --rows N --dim N --out DIR",
            .summary = "Write the files of a test model, and a ps.json to serve it.",
            .args = args,
            .details =
                "\n"
                "The tables are feature_0, feature_1, ...; a manifest.json describes them. Every\n"
                "value depends only on seed, table and key, so clients can check the rows\n"
                "that a server returns; `hps-bench --verify` does.",
            .example = "hps-gen --tables 2 --rows 100000 --dim 16 --format npy --out /tmp/model",
        },
    .exit_codes = "0 written   1 failed, nothing was written   2 usage",
};

static uint64_t value_or(uint64_t value, uint64_t otherwise)
{
    return value != NOT_GIVEN ? value : otherwise;
}

/* Checks each option alone. */
static hps_status check_each(struct hps_error *err)
{
    const struct hps_arg_range ranges[] = {
        {"tables", value_or(flags.n_tables, 1), 1, HPS_MODEL_TABLES_MAX},
        {"rows", value_or(flags.rows, 1), 1, UINT64_C(1) << 40},
        {"dim", value_or(flags.dim, 1), 1, HPS_ROW_DIM_MAX},
    };
    double scale;

    if (flags.scale != NULL && (!hps_args_f64(flags.scale, &scale) || !(scale > 0) || scale > 1)) {
        return hps_error_set(err, HPS_INVALID,
                             "--scale \"%s\": expected a number above 0 and up to 1", flags.scale);
    }
    if (flags.model != NULL && !hps_model_name_valid(flags.model)) {
        return hps_error_set(err, HPS_INVALID,
                             "--model \"%s\": expected 1 to 120 letters, digits, '_' or '-'",
                             flags.model);
    }
    return hps_args_ranges(ranges, sizeof(ranges) / sizeof(ranges[0]), err);
}

/* Checks combinations and missing options. NULL: valid. */
static const char *wrong_together(void)
{
    bool preset = flags.preset != NULL;
    bool tables = flags.n_tables != NOT_GIVEN, rows = flags.rows != NOT_GIVEN;

    return preset && (tables || rows)
               ? "--preset with --tables or --rows: expected only one of them"
           : !preset && flags.scale != NULL ? "--scale: expected --preset with it"
           : !preset && !(tables && rows && flags.dim != NOT_GIVEN)
               ? "no size: expected --preset, or --tables, --rows and --dim"
           : flags.out == NULL || flags.out[0] == '\0' ? "no directory: expected --out DIR"
           : flags.form[0] == 'h' && strcmp(flags.dtype, "fp32") != 0
               ? "--dtype: expected --format npy or dle; hugectr has only fp32"
           : flags.form[0] == 'd' && flags.keys[0] == 'h'
               ? "--keys hashed: expected --format hugectr or npy; dle has no keys"
               : NULL;
}

bool gen_options(int argc, char **argv, struct gen *out_gen, int *out_code)
{
    struct hps_args read;
    struct hps_error err = {0};

    if (!hps_args_start(&program, argc, argv, &read, out_code)) {
        return false;
    }
    const char *wrong = check_each(&err) != HPS_OK ? err.text : wrong_together();
    if (wrong != NULL) {
        *out_code = hps_args_wrong(&program, NULL, "%s", wrong);
        return false;
    }
    struct gen gen = {.preset = flags.preset != NULL,
                      .scale = 1,
                      .seed = flags.seed,
                      .dle = flags.form[0] == 'd',
                      .hashed = flags.keys[0] == 'h',
                      .state_dir = flags.state_dir,
                      .out = flags.out};
    if (flags.scale != NULL) {
        (void)hps_args_f64(flags.scale, &gen.scale); /* checked before */
    }
    gen.n_tables = gen.preset ? GEN_DCNV2_TABLES : flags.n_tables;
    gen.rows = value_or(flags.rows, 0);
    gen.dim = value_or(flags.dim, GEN_DCNV2_DIM);
    bool known = hps_dtype_parse(flags.dtype, strlen(flags.dtype), &gen.dtype);
    HPS_ASSERT(known); /* the word was checked */
    gen.form = flags.form[0] == 'h' ? HPS_ROW_FORM_HUGECTR
               : gen.hashed         ? HPS_ROW_FORM_NPY_PAIR
                                    : HPS_ROW_FORM_NPY;
    gen.model = flags.model != NULL ? flags.model : gen.preset ? "dlrm" : "model";
    *out_gen = gen;
    return true;
}
