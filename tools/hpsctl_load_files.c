/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of `hpsctl load`: a directory, single tables, or the tables of a models[] entry in a
 * configuration file. One thread.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "config/config.h"
#include "tools/hpsctl.h"

enum { ENTRY_BYTES_MAX = 16 << 20 };

char *hpsctl_absolute(const char *path)
{
    char here[PATH_MAX];
    if (path[0] == '/' || getcwd(here, sizeof(here)) == NULL) {
        return hps_strdup(path);
    }
    while (strncmp(path, "./", 2) == 0) {
        path += 2;
    }
    return strcmp(path, ".") == 0 ? hps_strdup(here) : hps_file_path("%s/%s", here, path);
}

void hpsctl_load_files_free(struct hpsctl_load_files *files)
{
    for (size_t i = 0; i < files->n_tables; i++) {
        hps_free(files->tables[i].table);
        hps_free(files->tables[i].path);
    }
    hps_free(files->tables);
    hps_free(files->pointers);
    hps_free(files->directory);
    hps_buf_fini(&files->config);
    memset(files, 0, sizeof(*files));
}

static bool room(struct hpsctl_load_files *files, size_t n)
{
    HPS_ASSERT(files->tables == NULL && files->n_tables == 0);
    files->tables = hps_calloc(n, sizeof(*files->tables));
    files->pointers = hps_calloc(n, sizeof(*files->pointers));
    return files->tables != NULL && files->pointers != NULL;
}

static bool add(struct hpsctl_load_files *files, const char *name, size_t name_size,
                const char *path)
{
    HPS_ASSERT(files->tables != NULL && name_size > 0);
    Hps__V1__TableSource *table = &files->tables[files->n_tables];
    hps__v1__table_source__init(table);
    table->table = hps_strndup(name, name_size);
    table->path = hpsctl_absolute(path);
    files->pointers[files->n_tables++] = table;
    return table->table != NULL && table->path != NULL;
}

static int take_tables(struct hpsctl *ctl, const struct hps_arg_list *list,
                       struct hpsctl_load_files *files)
{
    if (!room(files, list->n)) {
        return hpsctl_no_memory();
    }
    for (size_t i = 0; i < list->n; i++) {
        const char *equals = strchr(list->items[i], '=');
        if (equals == NULL || equals == list->items[i] || equals[1] == '\0') {
            return hpsctl_usage(ctl, "--table \"%s\": expected NAME=PATH", list->items[i]);
        }
        if (!add(files, list->items[i], (size_t)(equals - list->items[i]), equals + 1)) {
            return hpsctl_no_memory();
        }
    }
    return TOOL_OK;
}

/* Prints the whole entry with absolute paths. */
static bool print_entry(const struct hps_config_model *model, struct hps_buf *text)
{
    for (size_t i = 0; i < model->n_tables; i++) {
        char *path = hpsctl_absolute(model->tables[i].path);
        if (path == NULL) {
            return false;
        }
        hps_free(model->tables[i].path);
        model->tables[i].path = path;
    }
    return hps_config_print_entry(model, text) == HPS_OK && hps_buf_append(text, "", 1) == HPS_OK;
}

static int take_config(struct hpsctl *ctl, const char *file, const char *name,
                       struct hpsctl_load_files *files)
{
    struct hps_error err = {0};
    struct hps_config *config = NULL;
    struct hps_notes notes;
    int code = TOOL_OK;
    hps_notes_init(&notes);
    hps_status status = hps_config_parse_file(file, &config, &notes, &err);
    for (size_t i = 0; i < notes.n; i++) {
        const struct hps_note *note = &notes.items[i];
        if (note->kind == HPS_NOTE_ERROR || hps_note_is_warning(note)) {
            (void)fprintf(stderr, "hpsctl: %s%s\n",
                          note->kind == HPS_NOTE_ERROR ? "" : "warning: ", note->text);
        }
    }
    if (status != HPS_OK && notes.n_errors == 0) {
        (void)fprintf(stderr, "hpsctl: %s\n", err.text);
    }
    hps_notes_fini(&notes);
    if (status != HPS_OK) {
        return TOOL_USAGE;
    }
    const struct hps_config_model *model = hps_config_model_find(config, name);
    if (model == NULL) {
        code = hpsctl_usage(
            ctl, "%s: models[] has no \"%s\"; expected the name of another model with --model NAME",
            file, name);
    } else if (!print_entry(model, &files->config)) {
        code = hpsctl_no_memory();
    }
    hps_config_free(config);
    return code;
}

int hpsctl_load_files_open(struct hpsctl *ctl, const struct hpsctl_load_from *from,
                           struct hpsctl_load_files *out_files)
{
    struct hpsctl_load_files files = {0};
    hps_buf_init(&files.config, ENTRY_BYTES_MAX);
    int n_given = (from->directory != NULL) + (from->tables->n > 0) + (from->config != NULL);
    int code = TOOL_OK;
    if (n_given != 1) {
        return hpsctl_usage(ctl,
                            "%s: expected one of --from DIR, --table NAME=PATH for each table, "
                            "--config FILE",
                            n_given == 0 ? "no files" : "more than one source of files");
    }
    if (from->model != NULL && from->config == NULL) {
        return hpsctl_usage(ctl, "--model: expected --config FILE with it");
    }
    if (from->directory != NULL) {
        char directory[PATH_MAX];
        /* A directory that is not visible here may be visible to the server. */
        bool seen = realpath(from->directory, directory) != NULL;
        files.directory = hps_strdup(seen ? directory : from->directory);
        code = files.directory != NULL ? TOOL_OK : hpsctl_no_memory();
    } else if (from->config != NULL) {
        const char *name = from->model != NULL ? from->model : ctl->words[0];
        code = take_config(ctl, from->config, name, &files);
    } else {
        code = take_tables(ctl, from->tables, &files);
    }
    if (code != TOOL_OK) {
        hpsctl_load_files_free(&files);
        return code;
    }
    *out_files = files;
    return TOOL_OK;
}
