/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over the files of the directories given, so that its corpus is an ordinary
 * test wherever libFuzzer is not. A corpus that is missing or empty fails: it would test nothing.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/heap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* false: not readable, or no memory; says so. */
static int replay_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = hps_alloc(size); /* exactly: reading past the end is seen by ASan */
    int ok = file && data && fread(data, 1, size, file) == size;
    if (ok) {
        (void)LLVMFuzzerTestOneInput(data, size);
    } else {
        fprintf(stderr, "%s: cannot be read\n", path);
    }
    hps_free(data);
    if (file) {
        fclose(file);
    }
    return ok;
}

/* Number of files replayed, -1 on failure. */
static int replay_dir(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    if (!dir) {
        fprintf(stderr, "%s: no such directory\n", path);
        return -1;
    }
    for (struct dirent *entry = readdir(dir); entry && n >= 0; entry = readdir(dir)) {
        char file[4096];
        struct stat st;
        int size = snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (size < 0 || (size_t)size >= sizeof(file) || stat(file, &st) != 0) {
            fprintf(stderr, "%s/%s: cannot be read\n", path, entry->d_name);
            n = -1;
        } else if (S_ISREG(st.st_mode)) {
            n = replay_file(file, (size_t)st.st_size) ? n + 1 : -1;
        }
    }
    closedir(dir);
    if (n == 0) {
        fprintf(stderr, "%s: no files\n", path);
        n = -1;
    }
    return n;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS-DIRECTORY...\n", argv[0]);
        return 2;
    }
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay_dir(argv[i]);
        if (n < 0) {
            return 1;
        }
        total += n;
    }
    printf("%d inputs\n", total);
    return 0;
}
