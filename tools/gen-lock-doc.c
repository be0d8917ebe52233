/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the table of locks in docs/threads.md anew: gen-lock-doc docs/threads.md. A test compares
 * the committed page.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/lock_table.h"

enum { PAGE_BYTES_MAX = 1024 * 1024 };

static hps_status page_read(const char *path, struct hps_buf *page)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return HPS_IO;
    }
    hps_status status = hps_buf_reserve(page, PAGE_BYTES_MAX);
    if (status == HPS_OK) {
        page->size = fread(page->data, 1, PAGE_BYTES_MAX - 1, file);
        page->data[page->size] = '\0';
        status = ferror(file) != 0 ? HPS_IO : HPS_OK;
    }
    (void)fclose(file);
    return status;
}

static hps_status page_write(const char *path, const struct hps_buf *page)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return HPS_IO;
    }
    size_t size = fwrite(page->data, 1, page->size, file);
    return fclose(file) == 0 && size == page->size ? HPS_OK : HPS_IO;
}

int main(int argc, char **argv)
{
    struct hps_buf page, made;
    hps_buf_init(&page, PAGE_BYTES_MAX);
    hps_buf_init(&made, PAGE_BYTES_MAX);
    hps_status status = argc == 2 ? page_read(argv[1], &page) : HPS_INVALID;
    if (status == HPS_OK) {
        status = hps_lock_doc((const char *)page.data, &made);
    }
    if (status == HPS_OK) {
        status = page_write(argv[1], &made);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "gen-lock-doc: %s\nusage: gen-lock-doc docs/threads.md\n",
                      hps_status_text(status));
    }
    hps_buf_fini(&made);
    hps_buf_fini(&page);
    return status == HPS_OK ? 0 : 1;
}
