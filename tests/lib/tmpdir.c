/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory of a test's own. See tests/lib/tmpdir.h.
 */
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

void hps_tmpdir_open(struct hps_tmpdir *dir)
{
    const char *root = getenv("TMPDIR");

    memset(dir, 0, sizeof(*dir));
    int n = snprintf(dir->path, sizeof(dir->path), "%s/hps-test-XXXXXX",
                     root != NULL && root[0] != '\0' ? root : "/tmp");
    assert_true(n > 0 && (size_t)n < sizeof(dir->path));
    assert_non_null(mkdtemp(dir->path));
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

static void remove_tree(const char *path)
{
    assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void hps_tmpdir_close(struct hps_tmpdir *dir)
{
    remove_tree(dir->path);
}

void hps_tmpdir_remove(struct hps_tmpdir *dir, const char *name)
{
    remove_tree(hps_tmpdir_join(dir, name));
}

const char *hps_tmpdir_join(struct hps_tmpdir *dir, const char *name)
{
    char *text = dir->joined[dir->n_joined++ % 4];

    size_t n_path = strlen(dir->path);
    size_t n_name = strlen(name);

    assert_true(n_path + n_name + 2 <= HPS_TMPDIR_PATH_MAX);
    memcpy(text, dir->path, n_path);
    text[n_path] = '/';
    memcpy(text + n_path + 1, name, n_name + 1);
    return text;
}

void hps_tmpdir_write(struct hps_tmpdir *dir, const char *name, const void *data, size_t size)
{
    FILE *file = fopen(hps_tmpdir_join(dir, name), "wb");

    assert_non_null(file);
    if (size > 0) {
        assert_int_equal(fwrite(data, 1, size, file), size);
    }
    assert_int_equal(fclose(file), 0);
}

void hps_tmpdir_mkdir(struct hps_tmpdir *dir, const char *name)
{
    assert_int_equal(mkdir(hps_tmpdir_join(dir, name), 0700), 0);
}

size_t hps_tmpdir_entries(struct hps_tmpdir *dir, const char *name)
{
    DIR *stream = opendir(hps_tmpdir_join(dir, name));
    size_t n = 0;

    assert_non_null(stream);
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(stream);
    return n;
}
