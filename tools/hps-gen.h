/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of hps-gen share: hps-gen.c (rows, manifest, the directory), hps-gen_options.c
 * (the command line) and hps-gen_config.c (the configuration that serves what was written). One
 * thread.
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

/* Of MLPerf's DLRM-DCNv2. */
enum { GEN_DCNV2_TABLES = 26, GEN_DCNV2_DIM = 128 };

struct gen {
    /* What was asked for. */
    bool preset;
    double scale; /* of the preset's rows */
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
    /* What follows from it. */
    char *out_path;   /* absolute */
    char *stage_path; /* where everything is written first */
    char *state_path; /* absolute */
    uint64_t bytes_total;
    uint64_t bytes_done;
    uint64_t begin_us;
    struct tool_progress progress;
};

/* Read the command line. False: exit with *out_code. */
bool gen_options(int argc, char **argv, struct gen *out_gen, int *out_code) HPS_MUST_CHECK;

/* Rows of a table, as scaled. */
uint64_t gen_table_rows(const struct gen *gen, uint64_t table);
/* Name of a table's files in `dir`, the form that hps_row_writer_open wants. NULL: no memory;
 * hps_free. */
char *gen_table_path(const struct gen *gen, const char *dir, uint64_t table);

/* ps.json: hpsd, or HPS, serves what was written. NO_MEMORY */
void gen_put_ps_json(const struct gen *gen, struct hps_buf *text);
/* The config.json of a DLE checkpoint. NO_MEMORY */
void gen_put_dle_json(const struct gen *gen, struct hps_buf *text);
/* A file of that name in the stage, of what `put` says. */
hps_status gen_write_json(const struct gen *gen, const char *name,
                          void (*put)(const struct gen *, struct hps_buf *), struct hps_error *err)
    HPS_MUST_CHECK;

#endif
