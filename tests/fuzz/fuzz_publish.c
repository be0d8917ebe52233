/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the standard input of hps-publish, or as its file of keys to delete: through its
 * reader of lines into the writer of records, of all forms, with rows sent as any type. Every
 * record that comes out is one that hpsd takes.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rows/update_record.h"
#include "client/update_writer.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"
#include "tools/hps-publish.h"

enum { NAN_ALLOWED = 1, UNITS = 2, TABLE = 4, KEYS_ONLY = 8, NARROW = 16, NPY = 32 };

struct publish {
    struct hps_update_writer *writer;
    enum hps_update_form form;
    uint32_t key_bytes;
};

hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err)
{
    HPS_ASSERT(dim > 0 && n > 0);
    return hps_update_writer_rows(publish->writer, table, dim, dtype, keys, rows, n, err);
}

hps_status publish_deletes(struct publish *publish, const char *table, const hps_key *keys,
                           size_t n, struct hps_error *err)
{
    return hps_update_writer_deletes(publish->writer, table, keys, n, err);
}

hps_status publish_flush(struct publish *publish, struct hps_error *err)
{
    return hps_update_writer_flush(publish->writer, err);
}

hps_status publish_idle(struct publish *publish, struct hps_error *err)
{
    (void)publish;
    (void)err;
    return HPS_OK;
}

hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         enum hps_dtype dtype, struct hps_error *err)
{
    (void)publish;
    (void)table;
    (void)dim;
    (void)dtype;
    (void)err;
    return HPS_OK;
}

void publish_expect(struct publish *publish, uint64_t n_rows)
{
    (void)publish;
    (void)n_rows;
}

static hps_status on_topic(void *ctx, const char *name, uint32_t *out_topic,
                           uint32_t *out_n_partitions, struct hps_error *err)
{
    const struct publish *publish = ctx;
    struct hps_update_topic parsed;

    (void)err;
    HPS_ASSERT(hps_update_topic_parse(name, &parsed) && strcmp(parsed.model, "m") == 0);
    HPS_ASSERT((parsed.table[0] == '\0') == (publish->form == HPS_UPDATE_PACKED));
    *out_topic = 0;
    *out_n_partitions = 1;
    return HPS_OK;
}

static hps_status on_send(void *ctx, const struct hps_producer_record *record,
                          struct hps_error *err)
{
    const struct publish *publish = ctx;
    const struct hps_update_shape shape = {.key_bytes = publish->key_bytes, .dim = 0};
    struct hps_update_record decoded;

    HPS_ASSERT(record->partition == 0);
    hps_status status = hps_update_record_decode(record->key, record->key_size, record->value,
                                                 record->value_size, &shape, &decoded, err);
    HPS_ASSERT(status == HPS_OK && decoded.form == publish->form);
    return HPS_OK;
}

/* Standard input is read to its end. */
static hps_status lines(struct publish *publish, const struct publish_input *input,
                        struct script *script, struct hps_error *err)
{
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("lines", MFD_CLOEXEC);
    }
    HPS_ASSERT(fd >= 0 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    HPS_ASSERT(pwrite(fd, script->at, script->left, 0) == (ssize_t)script->left);
    return publish_lines(publish, input, fd, err);
}

static hps_status run(struct publish *publish, struct publish_input *input, uint8_t mode,
                      struct script *script, struct hps_error *err)
{
    if ((mode & KEYS_ONLY) == 0) {
        return lines(publish, input, script, err);
    }
    const char *name = (mode & NPY) != 0 ? "keys.npy" : "keys";
    if ((mode & NPY) != 0) {
        input->table = "items";
    }
    hps_tmpdir_write(&place_dir, name, script->at, script->left);
    return publish_deletes_file(publish, input, hps_tmpdir_join(&place_dir, name), err);
}

/* How rows of lines are sent: bits that mean something else for keys and for HCTR. */
static enum hps_dtype row_dtype(enum hps_update_form form, uint8_t mode)
{
    bool narrow = (mode & NARROW) != 0;

    if ((mode & KEYS_ONLY) != 0 || (form == HPS_UPDATE_HCTR && (mode & NPY) == 0)) {
        return 0;
    }
    return (mode & NPY) != 0 ? (narrow ? HPS_DTYPE_INT8_ROWWISE_F16 : HPS_DTYPE_FP16)
           : narrow          ? HPS_DTYPE_INT8_ROWWISE_F32
                             : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum hps_update_form forms[] = {HPS_UPDATE_KEYED, HPS_UPDATE_HCTR,
                                                 HPS_UPDATE_PACKED, HPS_UPDATE_PACKED};
    struct script script = {data, size};
    struct hps_error err = {0};

    (void)place_open();
    uint8_t mode = script_u8(&script);
    struct publish publish = {.form = forms[mode >> 6], .key_bytes = (mode & NARROW) != 0 ? 4 : 8};
    struct publish_input input = {.table = (mode & TABLE) != 0 ? "items" : NULL,
                                  .nan_allowed = (mode & NAN_ALLOWED) != 0,
                                  .units = (mode & UNITS) != 0 && (mode >> 6) >= 2};
    const struct hps_update_writer_options options = {.model = "m",
                                                      .form = publish.form,
                                                      .key_bytes = publish.key_bytes,
                                                      .batch_bytes = 512,
                                                      .units = input.units,
                                                      .row_dtype = row_dtype(publish.form, mode),
                                                      .nan_allowed = input.nan_allowed};
    const struct hps_update_sink sink = {&publish, on_topic, on_send};
    HPS_ASSERT(hps_update_writer_new(&options, &sink, &publish.writer, &err) == HPS_OK);
    hps_status status = run(&publish, &input, mode, &script, &err);
    HPS_ASSERT(status == HPS_OK || err.text[0] != '\0');
    hps_update_writer_free(publish.writer);
    return 0;
}
