/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration that serves the tables: ps.json, and the config.json of a DLE checkpoint.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/rows/fileio.h"
#include "tools/hps-gen.h"

enum { PS_JSON_BYTES_MAX = 16 << 20, MAX_BATCH_SIZE = 65536 };

/* ,\n      "name": [ one item per table ] */
static void put_list(const struct gen *gen, struct hps_buf *text, const char *name,
                     void (*put)(const struct gen *, struct hps_buf *, uint64_t))
{
    HPS_ASSERT(gen->n_tables > 0);
    hps_buf_putf(text, ",\n      \"%s\": [", name);
    for (uint64_t i = 0; i < gen->n_tables; i++) {
        hps_buf_put(text, i > 0 ? ", " : "");
        put(gen, text, i);
    }
    hps_buf_put(text, "]");
}

static void put_path(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    char *path = gen_table_path(gen, gen->out_path, table);

    if (path == NULL) {
        text->status = HPS_NO_MEMORY;
    } else {
        hps_json_text(text, path, strlen(path));
    }
    hps_free(path);
}

static void put_name(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)gen;
    hps_buf_putf(text, "\"feature_%" PRIu64 "\"", table);
}

static void put_dim(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)table;
    hps_buf_putf(text, "%" PRIu64, gen->dim);
}

static void put_default(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    (void)gen;
    (void)table;
    hps_buf_put(text, "0.0");
}

static void put_rows(const struct gen *gen, struct hps_buf *text, uint64_t table)
{
    hps_buf_putf(text, "%" PRIu64, gen_table_rows(gen, table));
}

void gen_put_ps_json(const struct gen *gen, struct hps_buf *text)
{
    hps_buf_put(text, "{\n"
                      "  \"supportlonglong\": true,\n"
                      "  \"volatile_db\": {\"type\": \"parallel_hash_map\"},\n"
                      "  \"persistent_db\": {\"type\": \"rocks_db\", \"path\": ");
    hps_json_text(text, gen->state_path, strlen(gen->state_path));
    hps_buf_putf(text,
                 "},\n"
                 "  \"models\": [\n"
                 "    {\n"
                 "      \"model\": \"%s\",\n"
                 "      \"max_batch_size\": %d,\n"
                 "      \"deployed_device_list\": [0],\n"
                 "      \"gpucache\": true,\n"
                 "      \"gpucacheper\": 0.2,\n"
                 "      \"hit_rate_threshold\": 1.0",
                 gen->model, MAX_BATCH_SIZE);
    put_list(gen, text, "embedding_table_names", put_name);
    put_list(gen, text, "sparse_files", put_path);
    put_list(gen, text, "embedding_vecsize_per_table", put_dim);
    put_list(gen, text, "default_value_for_each_table", put_default);
    if (gen->dtype != HPS_DTYPE_FP32) { /* HPS ignores this option, and has no such rows */
        hps_buf_putf(text, ",\n      \"row_dtype\": \"%s\"", hps_dtype_name(gen->dtype));
    }
    hps_buf_put(text, "\n    }\n  ]\n}\n");
}

void gen_put_dle_json(const struct gen *gen, struct hps_buf *text)
{
    hps_buf_putf(text, "{\n      \"seed\": %" PRIu64, gen->seed);
    put_list(gen, text, "categorical_cardinalities", put_rows);
    put_list(gen, text, "embedding_dim", put_dim);
    hps_buf_put(text, "\n}\n");
}

hps_status gen_write_json(const struct gen *gen, const char *name,
                          void (*put)(const struct gen *, struct hps_buf *), struct hps_error *err)
{
    HPS_ASSERT(gen->stage_path != NULL);
    struct hps_buf text;

    hps_buf_init(&text, PS_JSON_BYTES_MAX);
    char *path = hps_file_path("%s/%s", gen->stage_path, name);
    put(gen, &text);
    hps_status status = path == NULL ? HPS_NO_MEMORY : text.status;
    if (status == HPS_OK) {
        status = hps_file_replace(path, text.data, text.size, err);
    } else {
        hps_error_set(err, status, "%s: %s", name, hps_status_text(status));
    }
    hps_free(path);
    hps_buf_fini(&text);
    return status;
}
