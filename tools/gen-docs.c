/* SPDX-License-Identifier: Apache-2.0
 *
 * gen-docs docs: replaces the generated tables in docs/config.md and docs/threads.md, between the
 * two comments that mark them. Tests check that the committed pages are up to date.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/heap.h"
#include "base/lock_table.h"
#include "base/rows/fileio.h"
#include "config/config.h"

enum { PAGE_BYTES_MAX = 1024 * 1024 };

static const char begin_mark[] = "<!-- Made by gen-docs";
static const char end_mark[] = "<!-- The end of what gen-docs made. -->";

static hps_status read_page(const char *path, struct hps_buf *page, struct hps_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    hps_status status = hps_file_open_read(path, &fd, &size, err);

    if (status != HPS_OK) {
        return status;
    }
    status = size < PAGE_BYTES_MAX ? hps_buf_reserve(page, (size_t)size + 1) : HPS_EXHAUSTED;
    status = status == HPS_OK ? hps_file_pread(fd, path, page->data, (size_t)size, 0, err)
                              : hps_error_set(err, status, "%s: too large", path);
    (void)close(fd);
    if (status == HPS_OK) {
        page->data[size] = '\0';
    }
    return status;
}

static hps_status remake(const char *dir, const char *name, void (*put)(struct hps_buf *buf),
                         struct hps_error *err)
{
    struct hps_buf page, made;
    char *path = hps_file_path("%s/%s", dir, name);
    hps_buf_init(&page, PAGE_BYTES_MAX);
    hps_buf_init(&made, PAGE_BYTES_MAX);
    hps_status status = path == NULL ? hps_error_set(err, HPS_NO_MEMORY, "out of memory")
                                     : read_page(path, &page, err);

    if (status == HPS_OK) {
        const char *text = (const char *)page.data;
        const char *begin = strstr(text, begin_mark);
        const char *end = begin == NULL ? NULL : strstr(begin, end_mark);
        size_t n_before = begin == NULL ? 0 : (size_t)(begin - text) + strcspn(begin, "\n") + 1;
        hps_buf_put_bytes(&made, text, n_before);
        put(&made);
        hps_buf_put(&made, end == NULL ? "" : end);
        status = end == NULL             ? hps_error_set(err, HPS_INVALID, "%s: no marks", path)
                 : made.status != HPS_OK ? hps_error_set(err, made.status, "%s: no memory", path)
                                         : hps_file_replace(path, made.data, made.size, err);
    }
    hps_buf_fini(&made);
    hps_buf_fini(&page);
    hps_free(path);
    return status;
}

int main(int argc, char **argv)
{
    struct hps_error err = {.text = "usage: gen-docs DIRECTORY"};

    if (argc == 2 && remake(argv[1], "config.md", hps_config_doc, &err) == HPS_OK &&
        remake(argv[1], "threads.md", hps_lock_doc, &err) == HPS_OK) {
        return 0;
    }
    (void)fprintf(stderr, "gen-docs: %s\n", err.text);
    return 1;
}
