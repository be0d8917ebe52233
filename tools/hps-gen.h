/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of hps-gen: hps-gen.c (rows, manifest, directory), hps-gen_options.c (command
 * line) and hps-gen_config.c (the configuration that serves the tables). One thread.
 */
#ifndef HPS_TOOLS_HPS_GEN_H
#define HPS_TOOLS_HPS_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/dtype.h"
#include "base/rows/rowfile.h"
#include "base/status.h"
#include "tools/tool.h"

/* The tables of MLPerf's DLRM-DCNv2, which `preset` selects. */
enum { GEN_DCNV2_TABLES = 26, GEN_DCNV2_DIM = 128 };

struct gen {
    /* Set by the options. */
    bool preset;
    double scale; /* factor for the numbers of rows of the preset */
    uint64_t n_tables;
    uint64_t rows;
    uint64_t dim;
    uint64_t seed;
    enum hps_dtype dtype;
    enum hps_row_form form;
    bool dle;
    bool hashed;
    const char *model;
    const char *state_dir;
    const char *out;
    /* Derived from the options. */
    char *out_path;   /* absolute */
    char *stage_path; /* directory into which all files are written first */
    char *state_path; /* absolute */
    uint64_t bytes_total;
    uint64_t bytes_done;
    uint64_t begin_us;
    struct tool_progress progress;
};

/* Reads the command line. False: exit with *out_code; the reason has been printed. */
bool gen_options(int argc, char **argv, struct gen *out_gen, int *out_code) HPS_MUST_CHECK;

/* The number of rows of a table; with the preset, after scaling. */
uint64_t gen_table_rows(const struct gen *gen, uint64_t table);
/* The path of a table's files in `dir`, in the form that hps_row_writer_open expects. The caller
 * frees it with hps_free. NULL: no memory. */
char *gen_table_path(const struct gen *gen, const char *dir, uint64_t table);

/* Appends to `text` the ps.json with which hpsd or HPS serves the tables. If there is no memory,
 * text->status is NO_MEMORY. */
void gen_put_ps_json(const struct gen *gen, struct hps_buf *text);
/* Appends to `text` the config.json of a DLE checkpoint. If there is no memory, text->status is
 * NO_MEMORY. */
void gen_put_dle_json(const struct gen *gen, struct hps_buf *text);
/* Writes the text that `put` appends to the file `name` in the directory stage_path. */
hps_status gen_write_json(const struct gen *gen, const char *name,
                          void (*put)(const struct gen *, struct hps_buf *), struct hps_error *err)
    HPS_MUST_CHECK;

#endif
